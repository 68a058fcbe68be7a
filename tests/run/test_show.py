"""gl.ops.show: lines of values when a program runs, and the bits of a program without them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.run.show import shown_value
from tests.plan.devices import DEVICES, registered

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), RNG.integers(0, 3, 60)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [
        line for line in capsys.readouterr().err.splitlines() if re.match(r"(hidden|logits|labels|h) [fi]\d+\[", line)
    ]


def test_a_line_of_statistics() -> None:
    assert shown_value("h", np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)) == (
        "h f32[2,2]: mean 3, from 1 to 6; 1, 2, 3, 6"
    )
    assert shown_value("h", np.arange(7, dtype=np.int32)) == "h i32[7]: mean 3, from 0 to 6; 0, 1, 2, 3, 4, 5, ..."
    assert (
        shown_value("h", np.array([np.nan, 2.0], np.float32)) == "h f32[2]: 1 not finite, mean 2, from 2 to 2; nan, 2"
    )
    assert shown_value("h", np.array(np.inf, np.float32)) == "h f32[]: 1 not finite; inf"
    assert shown_value("h", np.zeros((0, 3), np.float32)) == "h f32[0,3]: no numbers"
    assert "\n" not in shown_value("a\nb\u202e", np.zeros(1)) and "\u202e" not in shown_value("\u202e", np.zeros(1))


def program(marked: bool, **options: Any) -> Any:
    x, labels = gl.input("x", (6, 5)), gl.input("labels", (6,), "i32")
    rng = np.random.default_rng(1)
    w = [gl.parameter(rng.standard_normal(shape).astype("f4"), f"w{k}") for k, shape in enumerate([(5, 8), (8, 3)])]
    h = ops.relu(x @ w[0])
    h = ops.show(h, "hidden") if marked else h
    out = h @ w[1]
    out = ops.show(out, "logits", every=2) if marked else out
    loss = ops.cross_entropy(out, ops.show(labels, "labels", every=3) if marked else labels)
    return gl.compile([loss, *gl.gradients(loss, w)], **options)


FEEDS = {"x": X[:6], "labels": Y[:6].astype(np.int32)}


@pytest.mark.parametrize(
    "options", [{}, {"precision": "bf16"}, {"fuse": False}, {"backend": "numpy"}, {"memory": 1 << 20}], ids=str
)
def test_a_program_prints_and_keeps_its_bits(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run, plain = program(True, **options), program(False, **options)
    found = [run(**FEEDS) for _ in range(3)]
    lines = shown(capsys)
    assert [line.split()[0] for line in lines] == ["hidden", "logits", "labels", "hidden", "hidden", "logits"]
    expected = plain(**FEEDS)
    for arrays in found:
        assert [a.tobytes() for a in arrays] == [a.tobytes() for a in expected]
    assert not shown(capsys)
    hidden = np.maximum(FEEDS["x"] @ run.reads[0].read(), 0) if run.reads[0].shape == (5, 8) else None
    assert hidden is None or float(re.findall(r"mean (\S+),", lines[0])[0]) == pytest.approx(hidden.mean(), rel=1e-2)
    assert re.match(r"hidden f(32|64)\[6,8\]: mean ", lines[0]) and lines[2].startswith("labels i32[6]: mean ")


def test_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with registered():
        x = gl.input("x", (4, 4))
        with gl.device(DEVICES[0]):
            h = ops.show(x @ gl.parameter(np.eye(4, dtype="f4"), "w"), "h")
        with gl.device(DEVICES[1]):
            out = ops.tanh(h) @ gl.parameter(np.eye(4, dtype="f4"), "v")
        run = gl.compile(out, devices=DEVICES)
        run(x=np.ones((4, 4), "f4"))
    assert shown(capsys) == ["h f32[4,4]: mean 1, from 1 to 1; 1, 1, 1, 1, 1, 1, ..."]


def test_the_gradient_is_the_identity() -> None:
    x = gl.input("x", (3,))
    (g,) = gl.gradients(ops.sum(ops.sqr(ops.show(x, "x"))), [x])
    assert gl.compile(g)(x=np.array([1, 2, 3], "f4"))[0].tolist() == [2, 4, 6]


class Shown(nn.Module):
    def __init__(self, marked: bool, every: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8, activation="relu"), nn.Linear(8, 3)
        self.marked, self.every = marked, every

    def forward(self, x: Any) -> Any:
        h = self.one(x)
        return self.two(ops.show(h, "h", self.every) if self.marked else h)


def fitted(marked: bool, every: int = 1, **options: Any) -> list[bytes]:
    net = Shown(marked, every)
    more: dict[str, Any] = {"loss": "cross_entropy", "epochs": 2, "batch_size": 20, "progress": False, "seed": 3}
    gl.fit(net, (X, Y), **more | options)
    return [array.tobytes() for array in net.state_dict().values()]


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 7}, {"precision": "bf16"}, {"dynamic": True}], ids=str)
def test_a_training_prints_each_step(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    plain = fitted(False, **options)
    assert not shown(capsys)
    assert fitted(True, **options) == plain
    lines = shown(capsys)
    micro = 3 if "micro_batch_size" in options else 1
    assert len(lines) == 6 * micro and all(line.startswith("h f32[") for line in lines)


def test_every_nth_step_of_a_watched_training(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    fitted(True, 4, watch="one", watch_every="1steps", run=tmp_path)
    assert len(shown(capsys)) == 2  # of steps 1 and 5


def test_eager_values_are_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    w = gl.parameter(np.array([1.0, 2.0], np.float32), "w")
    with gl.grad_tape() as tape:
        h = ops.show(gl.tensor(np.array([3.0, 4.0], np.float32)) * w, "h")
        assert shown(capsys) == ["h f32[2]: mean 5.5, from 3 to 8; 3, 8"]
        loss = ops.sum(h * h)
    assert tape.backward(loss)[w].numpy().tolist() == [2 * 3 * 3, 2 * 8 * 4]


def test_what_is_refused() -> None:
    x = gl.input("x", (2,))
    for name in ("", 3, None):
        with pytest.raises(gl.SettingError, match="show: name"):
            ops.show(x, name)  # type: ignore[arg-type]
    with pytest.raises(gl.SettingError, match="every"):
        ops.show(x, "x", 0)
