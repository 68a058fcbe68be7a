"""Recurrent layers and Resize of ONNX files, against onnxruntime: files of PyTorch, single nodes, errors."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")  # before modules that skip themselves: imported twice, they are incomplete
pytest.importorskip("onnxruntime")

import gradloom as gl  # noqa: E402
from tests.interchange.test_onnx_import import made  # noqa: E402
from tests.interchange.test_onnx_networks import agree, run  # noqa: E402

helper = onnx.helper
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def outputs_of(path: Path, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    net = gl.import_onnx(path)
    values = net(**{name: gl.input(name, array.shape) for name, array in given.items()})
    return gl.compile(list(values.values()) if isinstance(values, dict) else [values])(**given)


@pytest.mark.parametrize(("kind", "directions", "layers"), [*itertools.product(GATES, (1, 2), (1, 2))])
@pytest.mark.parametrize("begins", [False, True])
def test_layers_of_pytorch(kind: str, directions: int, layers: int, begins: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    rows_first = layers == 1
    how = {"num_layers": layers, "batch_first": rows_first, "bidirectional": directions == 2}
    layer = getattr(torch.nn, kind)(3, 5, **how)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any, *state: Any) -> Any:
            y, end = self.layer(x, (state if kind == "LSTM" else state[0]) if state else None)
            return (y, *end) if kind == "LSTM" else (y, end)

    x = torch.randn(2, 4, 3) if rows_first else torch.randn(4, 2, 3)
    state = [torch.randn(layers * directions, 2, 5) for _ in range((2 if kind == "LSTM" else 1) * begins)]
    path = tmp_path / "net.onnx"
    names = [f"x{i}" for i in range(1 + len(state))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(Net().eval(), (x, *state), str(path), dynamo=False, opset_version=17, input_names=names)
        except (ImportError, TypeError) as error:
            pytest.skip(f"this PyTorch writes no files: {error}")
    given = {name: one.numpy() for name, one in zip(names, (x, *state), strict=True)}
    for found, want in zip(outputs_of(path, given), run(path, **given), strict=True):
        agree(found, want)
    assert len(gl.import_onnx(path).named_parameters()) == 3 * layers


def layer_file(path: Path, kind: str, directions: int = 1, inputs: str = "x w r b", **attributes: Any) -> Any:
    """A node of 3 inputs and 5 hidden units over 4 steps of 2 rows, written to `path`; its input."""
    n = GATES[kind] * 5
    arrays = {"w": drawn(directions, n, 3), "r": drawn(directions, n, 5), "b": drawn(directions, 2 * n),
              "h": drawn(directions, 2, 5), "c": drawn(directions, 2, 5, seed=1), "p": drawn(directions, 15),
              "s": np.full(2, 4, np.int32), "short": np.array([4, 3], np.int32)}  # fmt: skip
    count = 3 if kind == "LSTM" else 2
    read = [name.strip("-") for name in inputs.split()]
    node = helper.make_node(kind, read, [f"y{i}" for i in range(count)], name="n", hidden_size=5, **attributes)
    x = {"x": drawn(4, 2, 3)}
    onnx.save(made([node], x, {name: array for name, array in arrays.items() if name in read}, count), path)
    return x


@pytest.mark.parametrize(
    ("kind", "directions", "inputs", "attributes"),
    [
        ("LSTM", 1, "x w r b s h c", {"direction": "reverse"}),
        ("LSTM", 2, "x w r b - h c", {"direction": "bidirectional"}),
        ("LSTM", 1, "x w r", {}),
        ("GRU", 1, "x w r b", {"linear_before_reset": 1}),
        ("GRU", 1, "x w r b", {}),
        ("GRU", 2, "x w r", {"direction": "bidirectional", "linear_before_reset": 0}),
        ("RNN", 1, "x w r b - h", {"activations": ["Relu"]}),
        ("RNN", 2, "x w r b", {"activations": ["Tanh", "Tanh"], "direction": "bidirectional"}),
    ],
)
def test_nodes(kind: str, directions: int, inputs: str, attributes: Any, tmp_path: Path) -> None:
    given = layer_file(tmp_path / "net.onnx", kind, directions, inputs, **attributes)
    wanted = run(tmp_path / "net.onnx", **given)
    for found, want in zip(outputs_of(tmp_path / "net.onnx", given), wanted, strict=True):
        agree(found, want)


def test_rows_first(tmp_path: Path) -> None:
    """layout=1, which onnxruntime has not: the same numbers with axes in another order."""
    given = layer_file(tmp_path / "net.onnx", "GRU")
    y, h = run(tmp_path / "net.onnx", **given)
    layer_file(tmp_path / "rows.onnx", "GRU", layout=1)
    model = onnx.load(tmp_path / "rows.onnx")
    x = np.ascontiguousarray(given["x"].transpose(1, 0, 2))
    (
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value,
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value,
    ) = 2, 4
    onnx.save(model, tmp_path / "rows.onnx")
    found = outputs_of(tmp_path / "rows.onnx", {"x": x})
    agree(found[0], y.transpose(2, 0, 1, 3))
    agree(found[1], h.transpose(1, 0, 2))


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "match"),
    [
        ("LSTM", "x w r b - h c p", {}, r"P \(peepholes\) is not supported"),
        ("LSTM", "x w r b", {"clip": 1.0}, "clip is not supported"),
        ("LSTM", "x w r b", {"input_forget": 1}, "input_forget=1; need input_forget=0"),
        ("LSTM", "x w r b", {"activations": ["Sigmoid", "Tanh", "Relu"]}, "activations Sigmoid, Tanh, Relu; need Sigm"),
        ("RNN", "x w r b", {"activations": ["Affine"]}, "activations Affine; need Tanh or Relu"),
        ("GRU", "x w r b short", {}, "sequence_lens; need 4 steps of each row"),
        ("GRU", "x w r b", {"direction": "bidirectional"}, "with direction=b'bidirectional'; need"),
        ("GRU", "x w r b", {"direction": "sideways"}, "with direction=b'sideways'; need"),
        ("GRU", "x r w b", {}, "do not fit|need"),
    ],
)
def test_errors_of_nodes(kind: str, inputs: str, attributes: Any, match: str, tmp_path: Path) -> None:
    given = layer_file(tmp_path / "net.onnx", kind, 1, inputs, **attributes)
    net = gl.import_onnx(tmp_path / "net.onnx")
    with pytest.raises(gl.GraphError, match=match) as caught:
        net(gl.input("x", given["x"].shape))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"import_onnx: {kind} 'n': ")


def test_an_imported_layer_trains(tmp_path: Path) -> None:
    layer_file(tmp_path / "net.onnx", "LSTM")
    net = gl.import_onnx(tmp_path / "net.onnx")
    assert set(net.named_parameters()) == {"w", "r", "b"}

    class Last(gl.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = net

        def forward(self, x: Any) -> Any:
            return self.layer(gl.ops.permute(x, (1, 0, 2)))["y1"][0]

    x = drawn(2, 4, 3)
    hist = gl.fit(Last(), gl.data.Dataset(x, np.zeros((2, 5), np.float32)), loss="mse", epochs=30, batch_size=2,
                  optimizer=gl.optim.Adam(lr=0.05), progress=False)  # fmt: skip
    assert hist[-1].train.loss < 0.1 * hist[0].train.loss


NONE = np.zeros(0, np.float32)
MODES = [
    *({"mode": "nearest", "coordinate_transformation_mode": c, "nearest_mode": n}
      for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
      for n in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    *({"mode": "linear", "coordinate_transformation_mode": c}
      for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")),
    {},
]  # fmt: skip
SIZES = [
    [np.array([1, 1, 2, 2], np.float32)],
    [np.array([1, 1, 0.6, 2.3], np.float32)],
    [NONE, np.array([2, 3, 9, 4])],
    [NONE, np.array([2, 3, 1, 13])],
]


@pytest.mark.parametrize("sizes", range(len(SIZES)))
@pytest.mark.parametrize("mode", range(len(MODES)))
def test_resize(sizes: int, mode: int, tmp_path: Path) -> None:
    arrays = {"roi": NONE, **{f"a{i}": array for i, array in enumerate(SIZES[sizes])}}
    node = helper.make_node("Resize", ["x", *arrays], ["y0"], **MODES[mode])
    given = {"x": drawn(2, 3, 5, 6)}
    onnx.save(made([node], given, arrays), tmp_path / "net.onnx")
    agree(outputs_of(tmp_path / "net.onnx", given)[0], run(tmp_path / "net.onnx", **given)[0])


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    "how",
    [
        {"scale_factor": 2, "mode": "nearest"},
        {"size": (7, 3), "mode": "nearest"},
        {"scale_factor": 1.7, "mode": "bilinear"},
        {"size": (9, 12), "mode": "bilinear", "align_corners": True},
    ],
    ids=str,
)
def test_interpolation_of_pytorch(how: Any, opset: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, x = tmp_path / "net.onnx", drawn(2, 3, 5, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(torch.nn.Upsample(**how), (torch.from_numpy(x),), str(path), dynamo=False,
                              opset_version=opset, input_names=["x"])  # fmt: skip
        except (ImportError, TypeError) as error:
            pytest.skip(f"this PyTorch writes no files: {error}")
    found = outputs_of(path, {"x": x})[0]
    agree(found, run(path, x=x)[0])
    agree(found, torch.nn.Upsample(**how)(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize(
    ("arrays", "attributes", "match"),
    [
        ({"s": np.ones(4, np.float32)}, {"mode": "cubic"}, "mode='cubic'; must be among nearest, linear"),
        (
            {"s": np.ones(4, np.float32)},
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "must be among half_p",
        ),
        ({"s": np.ones(4, np.float32)}, {"antialias": 1}, "antialias=1; need antialias=0"),
        ({"s": np.ones(3, np.float32)}, {}, "3 sizes or scales; need 4"),
        ({"s": np.array([1, 1, 0, 1], np.float32)}, {}, "need numbers > 0"),
        ({"s": np.array([1, 1, 0.01, 1], np.float32)}, {}, "need extents of at least 1"),
        ({"s": np.array([1, 1, 1e9, 1], np.float32)}, {}, "at most 6 axes and"),
    ],
)
def test_errors_of_resize(arrays: Any, attributes: Any, match: str, tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["x", "", *arrays], ["y0"], name="n", **attributes)
    onnx.save(made([node], {"x": drawn(2, 3, 5, 6)}, arrays), tmp_path / "net.onnx")
    net = gl.import_onnx(tmp_path / "net.onnx")
    with pytest.raises(gl.GraphError, match=match) as caught:
        net(gl.input("x", (2, 3, 5, 6)))
    assert "\n" not in str(caught.value)
