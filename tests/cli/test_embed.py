"""gradloom embed: CSV, NumPy and JSON; gradloom info of embeddings and heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from tests.cli.command import run
from tests.llm.random_models import write

TEXTS = ["fine day", "no, rain", "so glad"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an adapter for embeddings, one with a head, and texts."""
    place = tmp_path_factory.mktemp("embed")
    write(place, "llama").rename(place / "m.gguf")
    settings: dict[str, Any] = {"steps": 2, "context": 32, "val_split": 0.0, "progress": False}
    pairs = [{"anchor": text, "positive": text[::-1]} for text in TEXTS]
    made = gl.llm.finetune(place / "m.gguf", pairs, objective="embed", pooling="mean", widths=[8, 48], **settings)
    made.save(place / "a.gguf")
    labelled = [{"text": text, "label": ["odd", "even"][i % 2]} for i, text in enumerate(TEXTS)]
    gl.llm.finetune(place / "m.gguf", labelled, objective="classify", **settings).save(place / "head.gguf")
    (place / "t.txt").write_text("\n".join(TEXTS) + "\n")
    (place / "t.csv").write_text("id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)))
    (place / "t.jsonl").write_text("".join(json.dumps({"s": text}) + "\n" for text in TEXTS))
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return place


@pytest.mark.parametrize("given", [["t.txt"], ["t.csv"], ["t.jsonl", "--text-key", "s"]])
def test_numbers_go_to_stdout(capsys: Any, folder: Path, given: list[str]) -> None:
    name, *more = given
    code, out, err = run(capsys, "embed", folder / "m.gguf", folder / name, "--lora", folder / "a.gguf", *more)
    assert code == 0, err
    found = np.array([line.split(",") for line in out.splitlines()], np.float32)
    assert found.tobytes() == gl.llm.embed(folder / "m.gguf", TEXTS, folder / "a.gguf").tobytes()
    assert "3 embeddings of 48 numbers, pooling mean" in err


def test_files_and_json(capsys: Any, folder: Path, tmp_path: Path) -> None:
    given = ("embed", folder / "m.gguf", folder / "t.txt", "--width", 5)
    expected = gl.llm.embed(folder / "m.gguf", TEXTS, width=5)
    for name in ("e.npy", "e.csv"):
        code, out, err = run(capsys, *given, "--out", tmp_path / name)
        assert (code, out) == (0, ""), err
    assert np.load(tmp_path / "e.npy").tobytes() == expected.tobytes()
    assert np.loadtxt(tmp_path / "e.csv", np.float32, delimiter=",").tobytes() == expected.tobytes()
    code, out, _ = run(capsys, *given, "--pooling", "mean", "--json")
    found = json.loads(out)
    assert (found["rows"], found["width"], found["pooling"]) == (3, 5, "mean")
    np.testing.assert_allclose(
        found["embeddings"], gl.llm.embed(folder / "m.gguf", TEXTS, width=5, pooling="mean"), atol=1e-7
    )
    code, out, _ = run(capsys, *given, "--out", tmp_path / "e.npy", "--json")
    assert "embeddings" not in json.loads(out)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--pooling", "max"], "--pooling max"),
        (["--width", "49"], "--width 49"),
        (["--width", "0"], "--width 0"),
        (["--out", "e.txt"], "FILE.npy or FILE.csv"),
        (["--text-key", "words"], "words"),
        (["--context", "100000"], "--context"),
        (["--encoding", "nothing"], "encoding"),
    ],
)
def test_errors_are_one_line(
    capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], text: str
) -> None:
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, "embed", "m.gguf", "t.txt", *more)
    assert (code, out) == (2, "")
    assert text in err and err.count("\n") == 1


@pytest.mark.slow
def test_training_by_the_command(capsys: Any, folder: Path, tmp_path: Path) -> None:
    """Recall in the report and in --json, and the command that uses the adapter."""
    words = ["--objective", "embed", "--context", 32, "--steps", 2, "--val", folder / "pairs.jsonl", "--widths", "8,48"]
    words += ["--pooling", "mean", "--temperature", 0.1, "--out", tmp_path / "a.gguf", "--json"]
    code, out, err = run(capsys, "finetune", folder / "m.gguf", folder / "pairs.jsonl", *words)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert {"recall_at_1", "recall_at_5", "mrr"} <= found.keys()
    assert "recall@1" in err and "gradloom embed" in err
    code, _, err = run(capsys, "verify", folder / "m.gguf", folder / "pairs.jsonl", *words[:2], "--context", 32)
    assert code == 0, err


def test_a_merged_model_is_for_embed(capsys: Any, folder: Path, tmp_path: Path) -> None:
    code, out, err = run(capsys, "merge", folder / "m.gguf", folder / "a.gguf", "-o", tmp_path / "merged.gguf")
    assert code == 0, err
    assert f"gradloom embed {tmp_path / 'merged.gguf'} texts.csv" in out and "--prompt" not in out
    code, _, err = run(capsys, "embed", tmp_path / "merged.gguf", folder / "t.txt")
    assert code == 0 and "pooling mean" in err


def test_info_shows_pooling_and_heads(capsys: Any, folder: Path) -> None:
    code, out, _ = run(capsys, "info", folder / "a.gguf", "--json")
    found = json.loads(out.splitlines()[-1])
    assert (code, found["pooling"], found["widths"]) == (0, "mean", [8, 48])
    assert "embeddings  pooling mean, also the first 8, 48 numbers" in out
    code, out, _ = run(capsys, "info", folder / "head.gguf", "--json")
    found = json.loads(out.splitlines()[-1])
    assert found["head"] == {"kind": "classify", "scores": 2, "labels": ["even", "odd"], "several": False}
    assert "head        classify: even, odd" in out and found["pooling"] is None
    code, out, _ = run(capsys, "info", folder / "m.gguf", "--json")
    found = json.loads(out.splitlines()[-1])
    assert found["pooling"] is None and found["widths"] == [] and "head" not in found
