"""Every JSON object that a command prints or a run writes is as docs/json.md declares it, and names its version."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

import gradloom as gl
from gradloom.base.json_documents import VERIFY
from gradloom.base.json_facts import MERGE
from gradloom.run import machine
from tests.cli.command import run
from tests.cli.test_fit import flowers
from tests.cli.test_language import TEXT
from tests.json_checks import check_document, check_values
from tests.llm.other_program import use
from tests.llm.random_models import write
from tests.scripts import script

DOCS = script("docs/json_documents.py")


def printed(capsys: Any, *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_every_document_is_as_it_is_declared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that was printed or written, so also what comes after `Document.named`, which conftest.py checks."""
    monkeypatch.setattr(machine, "stale_sources", list)  # whoever edits the sources meanwhile
    table, numbers = flowers(tmp_path / "t.csv"), tmp_path / "n.csv"
    numbers.write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i * 0.5 + 100}\n" for i in range(120)))
    text, fitted, tuned = tmp_path / "t.txt", tmp_path / "fitted", tmp_path / "a.gguf"
    text.write_text(" ".join(TEXT.split() * 100))
    model = write(tmp_path, "llama", chat=True, context=256)
    use(monkeypatch)
    gl.save(gl.nn.Sequential(gl.nn.Linear(2, 1)), tmp_path / "net.safetensors")
    gl.capsule(gl.compile(gl.ops.exp(gl.input("x", (3,)))), tmp_path / "x.capsule", {"x": [1.0, 2.0, 3.0]})
    found = [
        printed(capsys, "fit", table, "--out", fitted, "--epochs", 2, "--val", f"other={table}"),
        printed(capsys, "fit", numbers, "--out", tmp_path / "n", "--epochs", 2, "--ensemble", 1, "--val-split", 0.2),
        printed(capsys, "rerun", fitted),
        printed(capsys, "predict", fitted, table),
        printed(capsys, "predict", tmp_path / "n", numbers, "--keep", "a"),
        printed(capsys, "predict", tmp_path / "n", numbers, "--out", tmp_path / "p.csv"),
        printed(capsys, "finetune", model, text, "--context", 32, "--steps", 3, "--out", tuned),
        printed(capsys, "generate", model, "--prompt", "once", "-n", 3, "--lora", tuned),
        printed(capsys, "evaluate", model, text, "--context", 32),
        printed(capsys, "compare", model, text, "--context", 32, "--tokens", 100),
        printed(capsys, "compare", model, "--lora", tuned, "--layers"),
        printed(capsys, "plan", model, text, "--context", 32),
        printed(capsys, "verify", model, text, "--context", 8, "--no-reference"),
        printed(capsys, "profile", model, "--context", 8, "--steps", 1, "--trace", tmp_path / "trace.json"),
        printed(capsys, "profile", fitted, "--steps", 1),
        printed(capsys, "merge", model, tuned, "--out", tmp_path / "merged.gguf"),
        printed(capsys, "quantize", model, "--out", tmp_path / "small.gguf", "--type", "q8_0"),
        printed(capsys, "embed", model, text),
        printed(capsys, "info", tuned),
        printed(capsys, "info", model),
        printed(capsys, "info", fitted),
        printed(capsys, "info", tmp_path / "net.safetensors"),
        printed(capsys, "replay", tmp_path / "x.capsule"),
        printed(capsys, "rebuild", fitted, "--step", 2),
        printed(capsys, "capsule", fitted, "--step", 2, "--out", tmp_path / "y.capsule"),
        printed(capsys, "doctor", "--quick"),
        printed(capsys, "runs", tmp_path),
        printed(capsys, "report", fitted, "-o", tmp_path / "report.html"),
        json.loads((fitted / "result.json").read_text()),
    ]
    undone = {"gradloom.export/1"}
    if importlib.util.find_spec("onnx") is not None:
        found.insert(-1, printed(capsys, "export", fitted, "-o", tmp_path / "net.onnx"))
        undone.clear()
    assert next(iter(found[0])) == "schema" and found[0] == found[-1]
    for folder in (fitted, tmp_path / "n", tmp_path / "a.run"):
        found.append(json.loads((folder / "run.json").read_text()))
        found += map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    seen = {check_document(one).schema for one in found}
    assert seen == {one.schema for one in DOCS.documents()} - undone


def test_a_document_rejects_what_is_not_declared() -> None:
    good = {"model": "m", "adapter": "a", "out": "o", "type": None, "bytes": 1, "tensors": {"f32": 2}, "changed": 1}
    good |= {"notes": [], "seconds": 0.5}
    check_values(MERGE, good)
    for bad in (good | {"more": 1}, good | {"bytes": "1"}, good | {"type": 3}, {"model": "m"}):
        with pytest.raises(AssertionError, match=r"gradloom\.merge/1: "):
            check_values(MERGE, bad)
    verified = {"model": "m", "data": "d", "agrees": True, "tokens": 1, "steps": 1, "peak_bytes": 1}
    verified |= {
        "unshared_bytes": 1,
        "loss": 1.0,
        "checks": [{"name": "n", "holds": True, "found": "f"}],
        "capsule": None,
    }
    with pytest.raises(AssertionError, match="node"):
        check_values(VERIFY, verified)


def test_the_page_and_the_schema_are_generated() -> None:
    for path, fresh in DOCS.written().items():
        if os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1":
            path.write_text(fresh)
        assert path.read_text() == fresh, "run python docs/json_documents.py --write"


def test_names_have_a_version_and_keys_are_unique() -> None:
    for one in DOCS.documents():
        name, _, version = one.schema.partition("/")
        assert name.startswith("gradloom.") and int(version) >= 1
        names = [key.name for key in one.keys]
        assert len(set(names)) == len(names) and "schema" not in names, one.schema
    required = DOCS.schema()["$defs"]["gradloom.fit/1"]["required"]
    assert required == ["schema", "data", "model", "steps", "interrupted"]
