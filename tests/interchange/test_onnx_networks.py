"""Networks as ONNX files, in onnxruntime: random networks of all layers, several inputs and outputs, rows, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.interchange import graph_writer
from tests.nn.random_networks import drawn
from tests.nn.torch_twins import spread

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
nn = gl.nn


def run(path: Path, **inputs: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def agree(found: Any, wanted: Any) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * (1 + float(np.abs(wanted).max(initial=0))))


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    """Without PyTorch, their twins cannot be drawn."""
    pytest.importorskip("torch")
    net, shape = drawn(seed)
    ours = nn.Sequential(*net.layers)
    spread(ours, net.rng)
    made = gl.export_onnx(ours, tmp_path / "net.onnx", np.zeros(shape, np.float32))
    assert made.fixed == "" and made.inputs == {"input": ("float32", ("rows", *shape[1:]))}
    for rows in (shape[0], 1, 7):
        x = net.rng.standard_normal((rows, *shape[1:])).astype(np.float32)
        agree(run(tmp_path / "net.onnx", input=x)[0], gl.predict(ours, x))


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


LAYERS: dict[str, tuple[Any, np.ndarray]] = {
    "transformer": (
        lambda: nn.Sequential(
            nn.Embedding(9, 8), nn.PositionalEncoding(8), nn.TransformerEncoderLayer(8, 2, 5),
            nn.TransformerEncoderLayer(8, 4, 5, causal=True),
        ),
        np.arange(15).reshape(3, 5) % 9,
    ),
    "attention": (lambda: nn.MultiheadAttention(8, 4, kv_heads=2, causal=True, window=3, softcap=5.0), rows(3, 6, 8)),
    "rows": (
        lambda: nn.Sequential(
            nn.RMSNorm(6), nn.Dropout(0.5), nn.Linear(6, 4, activation="gelu_tanh"), nn.Unflatten(1, (2, 2)),
            nn.Permute((0, 2, 1)), nn.Softmax(1),
        ),
        rows(5, 6),
    ),
    "ensemble": (
        lambda: nn.Ensemble(
            nn.Periodic(6, [0, 3], members=3), nn.MemberLinear(3, 14, 4, "relu"), nn.MemberLinear(3, 4, 5), shortcut=6
        ),
        rows(4, 6),
    ),
    "standardize": (
        lambda: nn.Sequential(
            nn.Standardize(np.ones(3), np.full(3, 2.0)), nn.HiddenDropout(nn.Linear(3, 4), rate=0.3)
        ),
        rows(4, 3),
    ),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1, activation="relu"), nn.BatchNorm(3), nn.Dropout2d(),
            nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.GELU("tanh"),
        ),
        rows(3, 2, 11, 9),
    ),
    "padded means": (lambda: nn.Sequential(nn.AvgPool2d((3, 2), 2, padding=1), nn.Flatten()), rows(3, 2, 7, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("net", "x"), LAYERS.values(), ids=list(LAYERS))
def test_layers_that_are_not_drawn(net: Any, x: np.ndarray, tmp_path: Path) -> None:
    made = net().init(3)
    exported = gl.export_onnx(made, tmp_path / "net.onnx", x)
    assert exported.fixed == "" and made.training
    agree(run(tmp_path / "net.onnx", input=x)[0], gl.predict(made, x))
    more = np.concatenate([x, x])
    agree(run(tmp_path / "net.onnx", input=more)[0], gl.predict(made, more))


OPS: dict[str, Any] = {
    "erf": gl.ops.erf, "floor": gl.ops.floor, "ceil": gl.ops.ceil, "round": gl.ops.round, "trunc": gl.ops.trunc,
    "remainder": lambda x: gl.ops.remainder(x, 0.7) + gl.ops.remainder(x, -0.3),
    "cumsum": lambda x: gl.ops.cumsum(x, 1), "argsort": lambda x: gl.ops.argsort(x, 1, True),
    "sort": lambda x: gl.ops.sort(x)[0], "top_k": lambda x: gl.ops.top_k(x, 2, largest=False)[0],
    "gather": lambda x: gl.ops.gather(x, gl.ops.argsort(x), 1),
    "one_hot": lambda x: gl.ops.one_hot(gl.ops.argmax(x, 1), 5),
    "scatter_add": lambda x: gl.ops.scatter_add(x, gl.ops.argsort(x), x * 2.0, 1),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", OPS)
def test_single_ops(name: str, tmp_path: Path) -> None:
    net, x = Function(OPS[name]), 3 * rows(4, 5)
    made = gl.export_onnx(net, tmp_path / "net.onnx", x[:2])
    (y,) = gl.compile([net(gl.input("x", x.shape))])(x=x)
    assert made.fixed == ""
    agree(run(tmp_path / "net.onnx", input=x)[0], y)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Embedding(5, 2)

    def forward(self, u: Any, ids: Any) -> Any:
        y = self.left(u) + self.right(ids)
        return {"sum": y, "large": gl.ops.where(y > 0.0, y, 0.0), "state": (u * 2.0, gl.ops.argmax(y, 1))}


def test_several_inputs_and_outputs_and_names(tmp_path: Path) -> None:
    net, u, ids = Both().init(0), rows(4, 3), np.array([0, 4, 2, 1])
    path = tmp_path / "net.onnx"
    for example in ({"u": u, "ids": ids}, (u, ids)):
        made = gl.export_onnx(net, path, example)
        names = ["u", "ids"] if isinstance(example, dict) else ["input_1", "input_2"]
        assert list(made.inputs) == names and made.inputs[names[1]] == ("int64", ("rows",))
        assert list(made.outputs) == ["sum", "large", "state_1", "state_2"]
        found = run(path, **dict(zip(names, (u, ids), strict=True)))
        y = net.left.weight.numpy() @ u.T + net.left.bias.numpy()[:, None] + net.right.weight.numpy()[ids].T
        for one, want in zip(found, (y.T, np.maximum(y.T, 0), 2 * u, y.argmax(0)), strict=True):
            agree(one, want)
    model = onnx.load(path)
    assert {t.name for t in model.graph.initializer} >= {"left.weight", "left.bias", "right.weight"}
    assert (
        model.ir_version == 8 and [v.version for v in model.opset_import] == [18] and model.producer_name == "gradloom"
    )


def test_rows_that_cannot_be_free_are_those_of_the_example(tmp_path: Path) -> None:
    lstm = nn.LSTM(3, 4).init(0)  # the first axis is time: another number of steps is another graph
    x = rows(5, 2, 3)
    made = gl.export_onnx(lstm, tmp_path / "net.onnx", x)
    assert made.fixed == "graphs of different sizes" and made.inputs["input"] == ("float32", (5, 2, 3))
    (run_,) = [gl.compile(_flat(lstm(gl.input("x", x.shape))))]
    for one, want in zip(run(tmp_path / "net.onnx", input=x), run_(x=x), strict=True):
        agree(one, want)


def _flat(values: Any) -> list[Any]:
    return [v for one in values for v in _flat(one)] if isinstance(values, tuple) else [values]


class Random(nn.Module):
    def forward(self, x: Any) -> Any:
        return gl.ops.dropout(x, 0.5)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = tmp_path / "net.onnx", rows(2, 3)
    with pytest.raises(gl.GraphError, match=r"export_onnx: dropout .* has no form in ONNX; need a forward") as caught:
        gl.export_onnx(Random(), path, x)
    assert "\n" not in str(caught.value) and not path.exists()
    net = nn.Linear(3, 2).init(0)
    for call, kind, message in (
        (lambda: gl.export_onnx(net, path), gl.SettingError, "example is missing"),
        (lambda: gl.export_onnx({}, path, x), gl.SettingError, "got a dict; need a gl.nn.Module"),
        (lambda: gl.export_onnx(net, path, np.array(["a"])), gl.DataError, "example input is <U1; need numbers"),
        (lambda: gl.export_onnx(net, path, rows(2, 4)), gl.ShapeError, "inner sizes differ"),
        (lambda: gl.export_onnx(net, tmp_path / "none" / "net.onnx", x), gl.FileError, "none"),
    ):
        with pytest.raises(kind, match=message):
            call()
    monkeypatch.setattr(graph_writer, "LARGEST", 20)
    with pytest.raises(gl.FileError, match=r"of arrays; an ONNX file holds less than 2 GiB"):
        gl.export_onnx(net, path, x)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        gl.BackendError, match=r"ONNX: requires onnx, not installed; run pip install 'gradloom\[onnx\]'"
    ):
        gl.export_onnx(net, path, x)


def test_onnx_is_imported_when_it_is_used() -> None:
    code = "import gradloom as gl, sys; gl.export_onnx; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("groups", [2, 4])
def test_a_convolution_in_groups_is_one_node(groups: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups), nn.ReLU()).init(0)
    made = gl.export_onnx(net, tmp_path / "net.onnx", rows(2, 4, 7, 6))
    found = [node for node in onnx.load(tmp_path / "net.onnx").graph.node if node.op_type != "Identity"]
    assert [node.op_type for node in found] == ["Conv", "Relu"] and made.fixed == ""
    assert {one.name: one.i for one in found[0].attribute}["group"] == groups and len(found[0].input) == 3
    x = rows(3, 4, 7, 6)
    agree(run(tmp_path / "net.onnx", input=x)[0], gl.predict(net, x))
    agree(gl.predict(gl.import_onnx(tmp_path / "net.onnx"), x), gl.predict(net, x))
