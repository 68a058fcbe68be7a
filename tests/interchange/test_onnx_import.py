"""ONNX files as modules: our own files, those of PyTorch, single ops against onnxruntime, damaged and hostile files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")  # before modules that skip themselves: imported twice, they are incomplete
pytest.importorskip("onnxruntime")

import gradloom as gl  # noqa: E402
from gradloom.interchange import imported  # noqa: E402
from tests.interchange.test_onnx_networks import LAYERS, agree, rows, run  # noqa: E402
from tests.nn.random_networks import drawn  # noqa: E402
from tests.nn.torch_twins import spread  # noqa: E402

helper = onnx.helper
nn = gl.nn


@pytest.fixture(autouse=True)
def _no_finite_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLOOM_CHECK", raising=False)  # which refuses the -inf of hidden keys in a composed attention


def exported(net: Any, x: Any, path: Path) -> Any:
    gl.export_onnx(net, path, x)
    return gl.import_onnx(path)


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_come_back(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    net, shape = drawn(seed + 1000)
    ours = nn.Sequential(*net.layers)
    spread(ours, net.rng)
    back = exported(ours, np.zeros(shape, np.float32), tmp_path / "net.onnx")
    assert set(back.named_parameters()) == set(ours.named_parameters())
    for count in (shape[0], 1, 7):
        x = net.rng.standard_normal((count, *shape[1:])).astype(np.float32)
        agree(gl.predict(back, x), gl.predict(ours, x))


@pytest.mark.parametrize(("net", "x"), LAYERS.values(), ids=list(LAYERS))
def test_layers_that_are_not_drawn_come_back(net: Any, x: np.ndarray, tmp_path: Path) -> None:
    made = net().init(3)
    back = exported(made, x, tmp_path / "net.onnx")
    agree(gl.predict(back, x), gl.predict(made, x))
    assert set(back.named_parameters()) == set(made.named_parameters())


def test_an_imported_network_trains_saves_and_is_exported_again(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.BatchNorm(8), nn.Linear(8, 1)).init(0)
    back = exported(net, rows(4, 3), tmp_path / "a.onnx")
    assert set(back.named_buffers()) == {"2.running_mean", "2.running_var"}
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    data = gl.data.Dataset(x, x.sum(1, keepdims=True))
    hist = gl.fit(back, data, loss="mse", optimizer=gl.optim.Adam(lr=0.02), epochs=30, batch_size=16, progress=False)
    assert hist[-1].train.loss < 0.2 * hist[0].train.loss
    again = exported(back, x, tmp_path / "b.onnx")
    agree(gl.predict(again, x), gl.predict(back, x))
    assert set(again.state_dict()) == set(back.state_dict())
    gl.save(back, tmp_path / "net.safetensors")
    third = gl.import_onnx(tmp_path / "a.onnx")
    gl.load(third, tmp_path / "net.safetensors")
    agree(gl.predict(third, x), gl.predict(back, x))


def torch_networks(t: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    return {
        "mlp": (
            t.Sequential(t.Linear(5, 7), t.GELU(), t.Linear(7, 6), t.LayerNorm(6), t.SiLU(), t.Linear(6, 2)),
            (4, 5),
        ),
        "cnn": (
            t.Sequential(
                t.Conv2d(3, 8, 3, padding=1), t.BatchNorm2d(8), t.ReLU(), t.MaxPool2d(2), t.Conv2d(8, 4, 3, 2),
                t.LeakyReLU(0.2), t.AdaptiveAvgPool2d(1), t.Flatten(), t.Linear(4, 3), t.Softmax(1),
            ),
            (2, 3, 12, 10),
        ),
        "groups": (
            t.Sequential(
                t.Conv2d(4, 8, 3, groups=4), t.GroupNorm(2, 8), t.ELU(), t.ConvTranspose2d(8, 2, 2, 2),
                t.InstanceNorm2d(2, affine=True), t.AvgPool2d(2), t.Hardswish(), t.PReLU(),
            ),
            (2, 4, 9, 9),
        ),
        "rows": (
            t.Sequential(
                t.Conv1d(3, 4, 3, padding=1), t.BatchNorm1d(4), t.Softplus(), t.Conv1d(4, 2, 1), t.GLU(1), t.Flatten(),
                t.LogSoftmax(-1),
            ),
            (3, 3, 6),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["mlp", "cnn", "groups", "rows"])
@pytest.mark.parametrize("opset", [13, 18])
def test_files_of_pytorch(name: str, opset: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module, shape = torch_networks(torch.nn)[name]
    x = torch.randn(*shape)
    path = tmp_path / "torch.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(module.eval(), (x,), str(path), dynamo=False, opset_version=opset, input_names=["x"],
                              dynamic_axes={"x": {0: "rows"}})  # fmt: skip
        except (ImportError, TypeError) as error:
            pytest.skip(f"this PyTorch writes no files: {error}")
    net = gl.import_onnx(path)
    for count in (shape[0], 1):
        part = x[:count]
        agree(gl.predict(net, part.numpy()), module(part).detach().numpy())
    theirs = dict(module.named_parameters())
    if name != "rows":  # where batch norms are not merged with convolutions
        assert len(net.named_parameters()) >= len(theirs) - 2
    target = np.zeros(gl.predict(net, x.numpy()).shape, np.float32)
    gl.fit(net, gl.data.Dataset(x.numpy(), target), loss="mse", epochs=1, progress=False)


SPECS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Gemm", [rows(3, 4), rows(5, 3), rows(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Reciprocal", [rows(3, 4) + 5], {}),
    ("HardSigmoid", [rows(3, 4)], {"alpha": 0.3, "beta": 0.4}),
    ("Clip", [rows(3, 4), np.float32(-0.5), np.float32(0.7)], {}),
    ("Max", [rows(3, 4), rows(4), rows(3, 1)], {}),
    ("Split", [rows(6, 4), np.array([1, 5])], {"axis": 0}),
    ("Slice", [rows(6, 5), np.array([1, -3]), np.array([100, -1]), np.array([0, 1]), np.array([2, 1])], {}),
    ("Squeeze", [rows(3, 1, 4), np.array([-2])], {}),
    ("Unsqueeze", [rows(3, 4), np.array([0, -1])], {}),
    ("Tile", [rows(3, 2), np.array([2, 3])], {}),
    ("Pad", [rows(3, 4), np.array([1, 0, 0, 2]), np.float32(0.5)], {}),
    ("Gather", [rows(4, 5, 3), np.array([[0, -1], [2, 1]])], {"axis": 1}),
    ("Gather", [rows(4, 5), np.array(2)], {"axis": 1}),
    ("ReduceMean", [rows(3, 4, 2), np.array([1, -1])], {"keepdims": 0}),
    ("ReduceMax", [rows(3, 4)], {}),
    ("ArgMax", [rows(3, 4)], {"axis": 1}),
    ("MatMul", [rows(2, 3, 4), rows(4)], {}),
    ("Flatten", [rows(2, 3, 4)], {"axis": 2}),
    ("Transpose", [rows(2, 3, 4)], {}),
    ("Where", [np.array([[True], [False], [True]]), rows(3, 4), rows(4)], {}),
    ("Conv", [rows(2, 3, 7, 8), rows(4, 3, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    ("Conv", [rows(2, 3, 7, 8), rows(4, 3, 3, 2), rows(4)], {"pads": [1, 0, 2, 1], "dilations": [1, 2]}),
    ("ConvTranspose", [rows(2, 4, 5), rows(4, 3, 3)], {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    ("MaxPool", [rows(2, 3, 9)], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ("MaxPool", [rows(2, 3, 7, 6)], {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ("AveragePool", [rows(2, 3, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("GlobalMaxPool", [rows(2, 3, 7, 6)], {}),
    ("GlobalAveragePool", [rows(2, 3, 7)], {}),
    ("PRelu", [rows(2, 3, 4), rows(3, 1)], {}),
    ("InstanceNormalization", [rows(2, 3, 4, 2), rows(3), rows(3) + 1], {"epsilon": 0.1}),
    ("LayerNormalization", [rows(2, 3, 4), rows(4), rows(4) + 1], {"epsilon": 0.1}),
    ("Softmax", [rows(2, 3, 4)], {"axis": 1}),
    ("LogSoftmax", [rows(2, 3, 4)], {}),
    ("HardSwish", [3 * rows(3, 4)], {}),
    ("Cast", [3 * rows(3, 4)], {"to": 6}),
    ("Erf", [rows(3, 4)], {}),
    ("Floor", [3 * rows(3, 4)], {}),
    ("Ceil", [3 * rows(3, 4)], {}),
    ("Round", [np.array([0.5, 1.5, -2.5, 1.2], np.float32)], {}),
    ("Not", [np.array([True, False])], {}),
    ("CumSum", [rows(3, 4), np.array(1)], {}),
    ("CumSum", [rows(3, 4), np.array(-2)], {"reverse": 1, "exclusive": 1}),
    ("GatherElements", [rows(3, 4), np.array([[0, -1], [2, 1], [3, 3]])], {"axis": 1}),
    ("Trilu", [rows(4, 4), np.array(1)], {}),
    ("Trilu", [rows(4, 4)], {"upper": 0}),
    ("ReduceProd", [rows(3, 4, 2), np.array([1, -1])], {"keepdims": 0}),
    ("ReduceProd", [rows(3, 4)], {}),
    ("ReduceL1", [rows(3, 4), np.array([1])], {}),
    ("ReduceL2", [rows(3, 4)], {"keepdims": 0}),
    ("ReduceSumSquare", [rows(3, 4), np.array([0])], {}),
    ("ReduceLogSum", [np.abs(rows(3, 4)), np.array([0])], {}),
    ("ReduceLogSumExp", [rows(3, 4), np.array([1])], {}),
    ("Pad", [rows(3, 4), np.array([1, 2, 1, 0])], {"mode": "reflect"}),
    ("Pad", [rows(3, 4), np.array([1, 2, 1, 0])], {"mode": "edge"}),
    ("AveragePool", [rows(2, 3, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 1, 0, 1]}),
]


def made(nodes: list[Any], inputs: dict[str, np.ndarray], arrays: dict[str, np.ndarray], outputs: int = 1) -> Any:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(("op", "operands", "attributes"), SPECS, ids=[f"{i}-{s[0]}" for i, s in enumerate(SPECS)])
def test_single_ops_against_onnxruntime(
    op: str, operands: list[Any], attributes: dict[str, Any], tmp_path: Path
) -> None:
    arrays = {f"a{i}": np.asarray(one) for i, one in enumerate(operands[1:])}
    count = 2 if op == "Split" else 1
    node = helper.make_node(op, ["x", *arrays], [f"y{i}" for i in range(count)], **attributes)
    given = {"x": operands[0].astype(np.uint8) if operands[0].dtype == bool else operands[0]}
    nodes = [node]
    if operands[0].dtype == bool:
        node.input[0] = "b"
        nodes.insert(0, helper.make_node("Cast", ["x"], ["b"], to=9))
    onnx.save(made(nodes, given, arrays, count), tmp_path / "op.onnx")
    wanted = run(tmp_path / "op.onnx", **given)
    net = gl.import_onnx(tmp_path / "op.onnx")
    values = net(gl.input("x", given["x"].shape, "u8" if given["x"].dtype == np.uint8 else "f32"))
    values = list(values.values()) if isinstance(values, dict) else [values]
    for found, want in zip(gl.compile(values)(**given), wanted, strict=True):
        agree(found, want)


def test_inputs_and_outputs_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["u", "v"], ["y0"]), helper.make_node("MatMul", ["u", "w"], ["y1"])]
    onnx.save(made(nodes, {"u": rows(2, 3), "v": rows(2, 3)}, {"w": rows(3, 4)}, 2), tmp_path / "two.onnx")
    net = gl.import_onnx(tmp_path / "two.onnx")
    u, v = gl.input("u", (2, 3)), gl.input("v", (2, 3))
    assert list(net(u, v)) == list(net(v=v, u=u)) == ["y0", "y1"] and list(net.named_parameters()) == ["w"]
    with pytest.raises(gl.GraphError, match="OnnxModule: got 1 inputs; need u, v"):
        net(u)
    with pytest.raises(gl.ShapeError, match=r"OnnxModule: input v is f32\[2,4\]; need \[2, 3\]"):
        net(u, gl.input("v", (2, 4)))


def refused(path: Path, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        gl.import_onnx(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    refused(tmp_path / "none.onnx", gl.FileError, "none.onnx")
    refused(tmp_path, gl.FileError, "folder")
    path.write_bytes(b"\xff" * 100)
    refused(path, gl.FileError, "is no ONNX file, or is damaged")
    path.write_bytes(b"")
    refused(path, gl.FileError, "has no graph")
    x, w = {"x": rows(2, 3)}, {"w": rows(3, 4)}
    for nodes, kind, match in (
        ([helper.make_node("Scan", ["x", "w"], ["y0"])], gl.GraphError, "has no form here: Scan; need"),
        ([helper.make_node("Foo", ["x"], ["y0"], domain="my.ops")], gl.GraphError, "has no form here: my.ops.Foo"),
        ([helper.make_node("Relu", ["z"], ["y0"])], gl.FileError, "reads 'z', which is not made before"),
        ([helper.make_node("Relu", ["x"], ["x"])], gl.FileError, "makes a value that is there already"),
        ([helper.make_node("Relu", ["x"], ["z"])], gl.FileError, "outputs 'y0'"),
    ):
        onnx.save(made(nodes, x, w), path)
        refused(path, kind, match)
    model = made([helper.make_node("MatMul", ["x", "w"], ["y0"])], x, w)
    model.graph.initializer[0].dims[0] = 1 << 40
    path.write_bytes(model.SerializeToString())
    refused(path, gl.FileError, "array 'w' is damaged")
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    refused(path, gl.FileError, "array 'w' is in another file")
    model = made([helper.make_node("MatMul", ["x", "w"], ["y0"])], x, {"w": rows(3, 4).astype(np.float64)})
    path.write_bytes(model.SerializeToString())
    refused(path, gl.DTypeError, "array 'w' is float64; need float32")
    model.opset_import[0].version = 3
    path.write_bytes(model.SerializeToString())
    refused(path, gl.FileError, "opset 3; need 9 to 26")


@pytest.mark.parametrize(
    ("nodes", "arrays", "match"),
    [
        (["ConstantOfShape s -> a", "Add a x -> y0"], {"s": np.array([1 << 40, 4])}, "at most 6 axes and"),
        (["Expand x s -> y0"], {"s": np.array([1 << 50, 2, 3])}, "at most 6 axes and"),
        (["Tile x s -> y0"], {"s": np.array([1 << 31, 1 << 31])}, "at most 6 axes and"),
        (["Reshape x s -> y0"], {"s": np.array([7, -1])}, "Reshape"),
        (["Pad x s -> y0"], {"s": np.array([1, 0, 0, 0]), "mode": "odd"}, "mode='odd'; need mode='constant'"),
        (["Dropout x r t -> y0"], {"r": np.array(0.5, np.float32), "t": np.array(True)}, "training_mode=True; need F"),
        (["Gather x s -> y0"], {"s": np.array([9])}, "positions beyond an axis of 2"),
        (["Transpose -> y0"], {}, "do not fit the op"),
        (["MaxPool x -> y0"], {}, r"need \[N, C, L\] or"),
    ],
)
def test_hostile_nodes_are_errors_of_the_call(nodes: list[str], arrays: Any, match: str, tmp_path: Path) -> None:
    built = []
    for text in nodes:
        before, _, out = text.partition(" -> ")
        how = {"mode": arrays["mode"]} if "mode" in arrays else {}
        built.append(helper.make_node(before.split()[0], before.split()[1:], [out], name="n", **how))
    arrays = {name: array for name, array in arrays.items() if name != "mode"}
    onnx.save(made(built, {"x": rows(2, 3)}, arrays), tmp_path / "bad.onnx")
    net = gl.import_onnx(tmp_path / "bad.onnx")
    with pytest.raises(gl.GradloomError, match=match) as caught:
        net(gl.input("x", (2, 3)))
    assert "\n" not in str(caught.value) and str(caught.value).count("import_onnx: ") == 1


def test_the_page_lists_the_ops() -> None:
    from gradloom.interchange.import_ops import IMPORTS
    from gradloom.interchange.onnx_ops import OPS

    page = (Path(__file__).parents[2] / "docs" / "interchange.md").read_text()
    for start, ops in (("Ops that are imported: ", IMPORTS), ("Ops that are exported: ", OPS)):
        listed = page.partition(start)[2].partition(".\n")[0].replace("`", "")
        assert listed.split() == ", ".join(sorted(ops)).split()


def test_constants_of_a_graph_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported, "MOST_IN_ALL", 100)
    nodes = [helper.make_node("ConstantOfShape", ["s"], [f"c{i}"]) for i in range(9)]
    nodes.append(helper.make_node("Relu", ["x"], ["y0"]))
    onnx.save(made(nodes, {"x": rows(2, 3)}, {"s": np.array([4, 3])}), tmp_path / "many.onnx")
    with pytest.raises(gl.GraphError, match="constants of more than 100 elements are computed; need fewer"):
        gl.import_onnx(tmp_path / "many.onnx")(gl.input("x", (2, 3)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_raise_our_errors_alone(seed: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    x = rows(2, 1, 6, 6)
    gl.export_onnx(net.init(0), tmp_path / "net.onnx", x)
    whole = (tmp_path / "net.onnx").read_bytes()
    rng = np.random.default_rng(seed)
    refused_files = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        if rng.random() < 0.2:
            del data[int(rng.integers(len(data))) :]
        (tmp_path / "bad.onnx").write_bytes(data)
        try:
            gl.import_onnx(tmp_path / "bad.onnx")(gl.input("x", x.shape))
        except gl.GradloomError as error:
            refused_files += 1
            assert "\n" not in str(error) and len(str(error)) < 1000
    assert refused_files > 10
