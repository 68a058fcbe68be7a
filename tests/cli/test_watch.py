"""--watch of fit and finetune: norms in the metrics of a run, whose result stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradloom as gl
from tests.cli.command import run
from tests.cli.test_fit import flowers
from tests.cli.test_language import TEXT
from tests.llm.random_models import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("watch")
    write(made, "llama", chat=True, context=128).rename(made / "m.gguf")
    (made / "t.txt").write_text(" ".join(TEXT.split() * 100))
    flowers(made / "t.csv")
    return made


def watched(folder: Path) -> list[dict[str, float]]:
    return [line for line in gl.train.read_metrics(folder) if line["kind"] == "watch"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_finetune(folder: Path, capsys: pytest.CaptureFixture[str], precision: str) -> None:
    line = ["finetune", folder / "m.gguf", folder / "t.txt", "--context", 32, "--batch-size", 4, "--steps", 5]
    line += ["--micro-batch-size", 2, "--precision", precision, "--overwrite"]
    patterns = ["blk.*.attn_output", "grad:blk.*.attn_output", "grad:blk.0.attn_q*", "blk.1"]
    watch = [word for pattern in patterns for word in ("--watch", pattern)]
    assert run(capsys, *line, "--out", folder / "plain.gguf")[0] == 0
    code, _, err = run(capsys, *line, "--out", folder / "w.gguf", *watch, "--watch-every", "2steps")
    assert code == 0, err
    assert (folder / "w.gguf").read_bytes() == (folder / "plain.gguf").read_bytes()
    found = watched(folder / "w.run")
    assert [one["step"] for one in found] == [2, 4]
    names = {f"norm/{kind}blk.{i}.attn_output" for kind in ("", "grad:") for i in (0, 1)}
    names |= {"norm/blk.1", "norm/grad:blk.0.attn_q", "norm/grad:blk.0.attn_q.weight.lora_b"}
    assert all(names <= one.keys() and all(one[name] > 0 for name in names) for one in found)
    code, _, err = run(capsys, "plan", folder / "m.gguf", "--context", 32, "--watch", "grad:*", "--json")
    assert code == 0, err
    code, _, err = run(capsys, "plan", folder / "m.gguf", "--context", 32, "--watch", "nothing")
    assert code == 2 and "--watch" in err and "'nothing' matches no module, node, input or parameter" in err
    code, _, err = run(capsys, *line, "--out", folder / "w.gguf", "--watch-every", "2steps")
    assert code == 2 and "--watch-every 2steps requires --watch" in err


def test_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["fit", folder / "t.csv", "--epochs", 2, "--ensemble", 1, "--hidden", "16,8"]
    assert run(capsys, *line, "--out", folder / "plain")[0] == 0
    code, _, err = run(
        capsys, *line, "--out", folder / "w", "--watch", "*", "--watch", "grad:*", "--watch-every", "3steps"
    )
    assert code == 0, err
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("plain", "w")]
    assert weights[0] == weights[1]
    found = watched(folder / "w")
    assert found and all(one["step"] % 3 == 0 and len(one) > 10 for one in found)
    assert run(capsys, "rerun", folder / "w", "--out", folder / "again")[0] == 0
    again = watched(folder / "again")
    assert [(a["step"], a["norm/0"]) for a in again] == [(one["step"], one["norm/0"]) for one in found]
    code, _, err = run(capsys, *line, "--out", folder / "none", "--watch", "9.*")
    assert code == 2 and "--watch: '9.*' matches no module" in err and not (folder / "none" / "metrics.jsonl").exists()


def test_an_ensemble(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["fit", folder / "t.csv", "--epochs", 2, "--hidden", "8"]
    for name, more in (("e", []), ("ew", ["--watch", "*", "--watch", "grad:*", "--watch-every", "1steps"])):
        code, _, err = run(capsys, *line, "--out", folder / name, *more)
        assert code == 0, err
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("e", "ew")]
    assert weights[0] == weights[1] and watched(folder / "ew")
