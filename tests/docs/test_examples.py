"""Each script of examples/ runs by itself and prints a result; each is listed in docs/examples.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradloom
from tests.pages import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
TOOLS = ("random_gguf",)  # written for tests, benchmarks and pages; longer than what one copies

# Arguments of a short run, in which {data} is a folder with the data of make_data.py, and what it prints.
RUNS = {
    "compiled_loop": ("--steps 1000", r"largest distance from sin\(t\): 0\.0\d+"),
    "dp_iris": ("{data} --replicas 2 --iterations 100", r"2 replicas: loss 0\.\d+, held-out accuracy (?:0\.[89]|1\.0)"),
    "dpo_by_hand": ("tiny.gguf pairs.jsonl", r"step 20  loss 0\.[0-5]"),
    "eager_iris": ("{data}/iris.csv --epochs 20", r"accuracy on 30 held-out flowers: (?:0\.9|1\.0)"),
    "eager_mnist": ("{data} --epochs 2 --batch-size 50", r"epoch 2: loss .*, test accuracy 0\.[89]"),
    "ggml_mnist": ("mnist-fc out.gguf {data} --epochs 2", r"test_acc=\d\d\.\d\d\+-"),
    "lora_callback": ("", r"perplexity \d+\.\d+ -> 1\.0\d\n The hen eats corn\."),
    "make_data": ("made", r"made: iris\.csv, t10k-images-idx3-ubyte, "),
    "mnist_cnn": ("{data} --epochs 2", r"test accuracy 0\.[89]\d+ \+- "),
    "onnx_export": ("", r"largest difference \de-0[67]|largest difference \d\.\de-0[67]"),
    "own_layer": ("--epochs 8", r"accuracy 0\.9\d+ \+- .* three values\nrow 0 has \[-0\.\d+ +-?0\. +0\.\d+"),
    "own_optimizer": ("--epochs 6", r"AdamW      test loss .* accuracy 0\.9\d+\nAdaBelief  test loss .* accuracy 0\.9"),
    "random_gguf": ("out.gguf --chat", r"out\.gguf: \d+ bytes"),
    "sort_transformer": ("--steps 300 --digits 4", r"; (?:0\.9\d+|1\.000) of 200 held-out rows are sorted"),
    "tabular": ("{data}", r"iris\.csv +test_accuracy +(?:0\.\d+|1\.0+)"),
    "text_lstm": ("", r"The film was not boring: good\nthis story is very dull: bad"),
}  # fmt: skip
NEEDS = {"dpo_by_hand": "gguf", "ggml_mnist": "gguf", "lora_callback": "gguf", "onnx_export": "onnx"}


def _run(name: str, arguments: list[str], folder: Path) -> str:
    """What a script prints to stdout; nothing of the project but the package itself is on the path."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(gradloom.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    _run("make_data", [str(folder)], folder)
    return folder


def test_each_script_has_a_run() -> None:
    assert sorted(RUNS) == SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name: str, data: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(name, "numpy"))
    arguments, printed = RUNS[name]
    if "tiny.gguf" in arguments:
        from examples.random_gguf import write_random

        write_random(tmp_path / "tiny.gguf")
        line = '{"prompt": "Is it good?", "chosen": " It is good.", "rejected": " No, bad."}\n'
        (tmp_path / "pairs.jsonl").write_text(line * 8)
    out = _run(name, arguments.format(data=data).split(), tmp_path)
    assert re.search(printed, out), out


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in TOOLS])
def test_script_is_short_and_listed(name: str) -> None:
    """30 to 80 lines; the docstring has the command; the page of examples has a line with a link to the file."""
    text = (EXAMPLES / f"{name}.py").read_text()
    assert 30 <= text.count("\n") <= 80
    assert f"    python examples/{name}.py" in text.split('"""')[1]
    page = (ROOT / "docs" / "examples.md").read_text()
    assert f"| [`{name}.py`](#example-{name}) |" in page and f"```{{literalinclude}} ../examples/{name}.py\n" in page
