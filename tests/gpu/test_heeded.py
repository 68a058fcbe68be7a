"""Settings of the CPU beside what does not heed them, and the environment that names an instruction set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.eager.options import checked
from gradloom.llm.generate import Generator
from gradloom.llm.verify import verify
from gradloom.train.trainer import Trainer
from tests.cli.command import run
from tests.llm.random_models import rows_of, write

X, T = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


def tried(who: str, folder: Path) -> Callable[..., Any]:
    """The entry of this name, for options."""
    net, x, w = gl.nn.Linear(3, 1), gl.input("x", (3,)), gl.parameter(np.ones(3))
    graphs: dict[str, Callable[..., Any]] = {
        "compile": lambda **o: gl.compile(ops.exp(x), **o),
        "Trainer": lambda **o: Trainer(net, "mse", gl.optim.SGD(), **o),
        "fit": lambda **o: gl.fit(net, (X, T), epochs=1, progress=False, **o),
        "evaluate": lambda **o: gl.evaluate(net, (X, T), loss="mse", **o),
        "predict": lambda **o: gl.predict(net, X, **o),
        "graph": lambda **o: gl.Graph(ops.sum(w * 2.0)).compile(**o),
        "dp_train": lambda **o: gl.dp_train(lambda: net, [(X[0], T[0])], loss_fn=print, iterations=1, **o),
        "tape": lambda isa=None, flush=None, device=None: checked(None, flush, device),
    }
    if who in graphs:
        return graphs[who]
    model, rows = gl.llm.load(write(folder, "llama")), rows_of(2, 12)
    return {
        "finetune": lambda **o: gl.llm.finetune(model, rows, val_split=0.0, epochs=1, **o),
        "plan": lambda **o: gl.llm.plan(model, rows, **o),
        "score": lambda **o: gl.llm.evaluate(model, rows, **o),
        "generate": lambda **o: Generator(model, None, 8, **o).prepare(1),
        "verify": lambda **o: verify(model, rows, gl.llm.LoRA(), **o),
    }[who]


GRAPHS = ("compile", "Trainer", "fit", "evaluate", "predict", "graph")
LLM = ("finetune", "plan", "score", "generate")


@pytest.mark.no_adapter
@pytest.mark.parametrize("given", [{"isa": "scalar"}, {"flush": True}])
@pytest.mark.parametrize(
    ("device", "entries"), [("numpy", (*GRAPHS, *LLM)), ("gpu", (*GRAPHS, *LLM, "dp_train", "verify", "tape"))]
)
def test_an_entry_refuses_what_its_device_does_not_heed(
    device: str, entries: Sequence[str], given: dict[str, Any], tmp_path: Path
) -> None:
    (name,) = given
    for who in entries:
        if who == "tape" and name == "isa":
            continue
        with pytest.raises(gl.SettingError, match=f"{name}=.* requires device 'cpu'; it has no effect on .*{device}"):
            tried(who, tmp_path)(device=device, **given)


@pytest.mark.no_adapter
@pytest.mark.parametrize("given", [{"isa": "scalar"}, {"flush": True}])
def test_the_cpu_and_its_plans_heed_them(given: dict[str, Any]) -> None:
    y = ops.exp(gl.input("x", (3,)))
    gl.compile(y, **given)(x=np.ones(3))
    gl.compile(y, device="null", **given)
    assert gl.compare(y, {"x": np.ones(3)}, **given) is None


def table(folder: Path) -> str:
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{a:.3f},{b:.3f},{'pq'[int(a > b)]}" for a, b in rng.random((40, 2)))
    (folder / "t.csv").write_text(f"a,b,c\n{rows}\n")
    return str(folder / "t.csv")


def test_an_instruction_set_that_is_not_here_does_not_stop_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADLOOM_ISA", "sse9")
    fit = ["fit", table(tmp_path), "--epochs", "2", "--ensemble", "1", "--hidden", "4", "--device"]
    out = str(tmp_path / "run")
    code, _, told = run(capsys, *fit, "cpu")
    assert code == 2 and "GRADLOOM_ISA='sse9' cannot run here" in told
    code, _, told = run(capsys, *fit, "gpu", "--out", out, "--checkpoint-every", "1epoch")
    assert code == 0, told
    code, _, told = run(capsys, "rerun", out, "--out", tmp_path / "again")
    assert code == 0 and "same bits" not in told, told
    made, loss = lambda: gl.nn.Linear(3, 1).init(0), lambda y, t: ops.sum(ops.sqr(y - t))
    where = tmp_path / "replicas"
    gl.dp_train(made, [(X[0], T[0])], loss_fn=loss, iterations=2, device="gpu", replicas=1, run=where)
