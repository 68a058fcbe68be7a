"""Commands whose result is not finite: exit code 2 and one line that names the first cause; no null in --json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import SHAPES, write_random
from gradloom.base.errors import NonFiniteError
from gradloom.cli.common import json_text
from gradloom.files import open_gguf
from gradloom.llm import evaluate, generate, load
from gradloom.llm.generate import Generator
from tests.cli.command import run
from tests.json_checks import ANY

TEXT = "the cat sat on the mat and looked at the dog. " * 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(write_random(tmp_path / "m.gguf", "llama", "f32", **SHAPES["small"]))


def damage(path: Path, name: str, value: float, count: int = 1) -> None:
    """Set the first numbers of a tensor of a model file."""
    tensor = open_gguf(path).tensors[name]
    data = bytearray(path.read_bytes())
    data[tensor.offset : tensor.offset + 4 * count] = np.full(count, value, "<f4").tobytes()
    path.write_bytes(data)


CASES = [
    ("blk.1.ffn_up.weight", math.nan, 1, "blk.1.ffn_up.weight (f32) holds nan at [0, 0]"),
    ("blk.0.attn_q.weight", math.inf, 1, "blk.0.attn_q.weight (f32) holds inf at [0, 0]"),
    ("blk.1.attn_norm.weight", 3e38, 64, "blk.1."),  # the tensor is finite, its product is not
]


@pytest.mark.parametrize(("name", "value", "count", "cause"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
@pytest.mark.parametrize("command", ["evaluate", "generate", "chat"])
def test_language_models_name_the_tensor_or_the_node(
    tmp_path: Path,
    model: Path,
    capsys: Any,
    monkeypatch: Any,
    command: str,
    name: str,
    value: float,
    count: int,
    cause: str,
) -> None:
    damage(model, name, value, count)
    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    arguments = {
        "evaluate": [tmp_path / "t.txt", "--json"],
        "generate": ["-p", "the cat", "-n", "4", "--json"],
        "chat": ["--chat-template", tmp_path / "t.jinja"],
    }[command]
    if command == "chat":
        (tmp_path / "in").write_text("hello\nhello\n")
        monkeypatch.setattr("sys.stdin", open(tmp_path / "in"))  # noqa: SIM115
    code, out, err = run(capsys, command, model, *arguments)
    last = err.strip().splitlines()[-1]
    assert code == 2 and '{"' not in out and last.startswith("gradloom: ") and cause in last


def test_python_raises_the_same(tmp_path: Path, model: Path) -> None:
    damage(model, "blk.1.ffn_up.weight", math.nan)
    (tmp_path / "t.txt").write_text(TEXT)
    loaded = load(model)
    for call in (
        lambda: evaluate(loaded, tmp_path / "t.txt"),
        lambda: generate(loaded, "the cat"),
        lambda: Generator(loaded).feed([1, 2, 3]),
    ):
        with pytest.raises(NonFiniteError, match=r"blk\.1\.ffn_up\.weight"):
            call()


def test_adapters_are_named(tmp_path: Path, model: Path) -> None:
    loaded, adapter = load(model), gl.llm.LoRA(2, targets=["attn_q"])
    adapter.bind(loaded)
    name, one = next(iter(adapter.parameters().items()))
    one.assign(np.full(one.shape, np.nan, np.float32))
    with pytest.raises(NonFiniteError, match=f"{name} of the adapter holds nan"):
        generate(loaded, "the cat", adapter)


def test_a_perplexity_beyond_f64_is_no_result(tmp_path: Path, model: Path, capsys: Any) -> None:
    damage(model, "output_norm.weight", 3e18, 64)
    (tmp_path / "t.txt").write_text(TEXT)
    code, out, err = run(capsys, "evaluate", model, tmp_path / "t.txt", "--json")
    assert code == 2 and not out and "perplexity" in err.splitlines()[-1]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(120, 2))
    lines = [f"{a:.6f},{b:.6f},{a + 2 * b:.6f}" for a, b in rows]
    (tmp_path / "train.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    (tmp_path / "one.csv").write_text("\n".join(["a,b,y", lines[0]]) + "\n")
    for name, large in (("sums", "1e38,-1e38,1"), ("squares", "1e25,-1e25,1")):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *lines[:5], large, *lines[5:9]]) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["sums", "squares"])
@pytest.mark.parametrize("option", ["--test", "--val"])
def test_fit_names_the_row(table: Path, capsys: Any, name: str, option: str) -> None:
    """Of outputs that are not finite, and of finite ones whose loss is not."""
    data, out = table / f"{name}.csv", table / "out"
    code, text, err = run(capsys, "fit", table / "train.csv", option, data, "--epochs", 1, "--out", out, "--json")
    last = err.strip().splitlines()[-1]
    assert code == 2 and not text and f"{option[2:]}_loss" in last and "row 5" in last
    assert (out / "model.safetensors").exists()  # the training was finite


def test_predict_names_the_row_and_the_node(table: Path, capsys: Any) -> None:
    out = table / "out"
    assert run(capsys, "fit", table / "train.csv", "--epochs", 1, "--out", out)[0] == 0
    code, text, err = run(capsys, "predict", out, table / "sums.csv", "--json")
    assert code == 2 and not text and "row 5" in err and "produced a number that is not finite" in err
    code, text, _ = run(capsys, "predict", out, table / "one.csv", "--json")  # R2 is not defined for one row
    assert (
        code == 0
        and "rmse" in json.loads(text)
        and "r2" not in json.loads(text)
        and "null" not in text.split("notes")[1]
    )


def test_json_has_no_number_that_is_not_finite() -> None:
    found = json.loads(json_text(ANY, {"a": {"loss_unc": math.nan, "test_r2": math.nan}, "b": None}))
    assert found == {"schema": "test/1", "a": {}, "b": None}
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(NonFiniteError, match="loss"):
            json_text(ANY, {"a": [{"loss": value}]})
    with pytest.raises(NonFiniteError, match="r2"):
        json_text(ANY, {"r2": math.inf})
    assert json_text(ANY, {"loss": math.nan}, strict=False) == '{"schema": "test/1", "loss": null}'
