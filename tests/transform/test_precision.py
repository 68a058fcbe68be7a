"""precision="bf16": what is rounded, and where."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.dtypes import bf16, f32
from gradloom.graph.graph import check_graph
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.value import Node, Value
from gradloom.transform.passes import rewrite
from gradloom.transform.program import Program, gather
from tests.refused import refused

PRODUCTS = {
    "matmul": "x y", "matmul_act": "x y", "matmul_relu_back": "x y h", "conv2d": "x w", "conv2d_max_pool": "x w",
    "conv2d_back_input": "g w", "conv2d_back_weight": "g x",
    "conv2d_pool_back_input": "g w", "conv2d_pool_back_weight": "g x y",
    "attention": "q k v", "attention_back": "g q k v y",
    "linear_cross_entropy": "x w", "linear_cross_entropy_rows": "x w",
}  # fmt: skip
OTHERS = {"swiglu_back": "gate up", "geglu_back": "gate up", "relu_back": "y"}


def program(outputs: list[Value], updates: tuple[Value, ...] = (), kernels: bool = True, **how: bool) -> Program:
    """After all passes, in bf16; kernels: whether products take bf16 operands."""

    def runs(node: Node) -> bool:
        return kernels or not any(v is not None and v.dtype is bf16 for v in node.inputs if node.op.rounds)

    made = rewrite(gather(outputs, updates), runs=runs, precision="bf16", **how)
    check_graph(made.nodes)
    return made


def named(made: Program, name: str) -> list[Node]:
    return [node for node in made.nodes if node.op.name == name]


def readers(made: Program, node: Node) -> list[Node]:
    return [n for n in made.nodes if any(v is node.outputs[0] for v in n.inputs)]


def test_the_ops_that_round() -> None:
    assert {op.name: " ".join(op.rounds) for op in REGISTRY.values() if op.rounds} == PRODUCTS | OTHERS


def layers() -> tuple[Value, list[Value]]:
    """(loss, gradients) of two layers whose hidden rows products alone read."""
    w = [gl.parameter(np.ones((8, 8)), f"w{i}") for i in range(2)]
    h = ops.rms_norm(gl.input("x", (4, 8)) @ w[0])
    loss = ops.mean(ops.sqr(h @ w[1]))
    return loss, [g for g in gl.gradients(loss, w) if g is not None]


def test_a_value_is_rounded_once_behind_its_producer() -> None:
    loss, grads = layers()
    made = program([loss, *grads])
    (norm,) = named(made, "rms_norm")
    (rounded,) = [n for n in named(made, "round_bf16") if n.inputs[0] is norm.outputs[0]]
    assert made.nodes.index(rounded) == made.nodes.index(norm) + 1
    assert readers(made, norm) == [rounded], "only the bf16 numbers are read"
    assert len(readers(made, rounded)) == 2  # forward, and its transpose backward
    assert {n.inputs[0].dtype.name for n in named(made, "matmul") if n.inputs[0] is not None} == {"bf16"}
    assert {v.dtype.name for n in named(made, "matmul") for v in n.outputs} == {"f32"}


def test_without_kernels_the_operands_are_widened() -> None:
    loss, grads = layers()
    for node in named(program([loss, *grads], kernels=False), "matmul"):
        for value in node.inputs:
            assert value is not None and value.dtype is f32 and value.node.op.name == "cast"
            source = value.node.inputs[0]
            assert source is not None and source.dtype is bf16


def test_what_others_read_later_is_rounded_in_front_of_each_product() -> None:
    """Kept as bf16 beside f32 it would take more memory, not less."""
    w = gl.parameter(np.ones((8, 8)), "w")
    x = ops.rms_norm(gl.input("x", (4, 8)))
    y = x @ w
    made = program([ops.sum(y) + ops.sum(ops.exp(x)), gl.gradients(ops.sum(ops.sqr(y)), [w])[0]])
    (norm,) = named(made, "rms_norm")
    assert sum(n.inputs[0] is norm.outputs[0] for n in named(made, "round_bf16")) == 1
    made = program([ops.sum(y), gl.gradients(ops.sum(ops.sqr(y)), [w])[0], ops.sum(ops.exp(x)), x])
    (norm,) = named(made, "rms_norm")
    assert sum(n.inputs[0] is norm.outputs[0] for n in named(made, "round_bf16")) == 2


def test_a_trained_weight_is_left_to_the_kernel() -> None:
    loss, grads = layers()
    made = program([loss, *grads])
    weights = [v for n in named(made, "matmul") for v in n.inputs[1:] if v is not None and v.dtype is f32]
    assert len(weights) == 3 and all(v.node.op.name in ("parameter", "permute") for v in weights)


def test_frozen_weights_stay_in_their_dtype() -> None:
    table = gl.constant(np.ones((8, 8), np.float32))
    y = gl.input("x", (4, 8)) @ ops.cast(table, "f16")
    (node,) = named(program([y]), "matmul")
    assert [v.dtype.name for v in node.inputs if v is not None] == ["bf16", "f16"]  # a constant, which is cast now


def test_a_part_of_a_value_is_rounded_alone() -> None:
    x = ops.exp(gl.input("x", (4, 8)))
    made = program([x[:1] @ gl.parameter(np.ones((8, 3)), "w")])
    (rounded,) = [n for n in named(made, "round_bf16") if n.outputs[0].shape == (1, 8)]
    assert rounded.inputs[0] is not None and rounded.inputs[0].node.op.name == "slice"


def test_products_of_an_optimiser_stay_in_f32() -> None:
    """Those of Muon's iterations, behind the guard."""
    net = gl.nn.Linear(6, 4, bias=False).init(0)
    trainer = gl.Trainer(net, "mse", gl.optim.Muon(lr=0.1), precision="bf16", threads=1)
    trainer.step(np.ones((3, 6), np.float32), np.ones((3, 4), np.float32))
    (step,) = trainer.compiled
    nodes = step.run.program.nodes
    guard = next(i for i, node in enumerate(nodes) if node.op.guard)
    before, behind = ([n for n in part if n.op.name == "matmul"] for part in (nodes[:guard], nodes[guard:]))

    def rounds(node: Node) -> bool:
        return any(v.dtype is bf16 or (v.node.op.name == "cast") for v in node.inputs if v is not None)

    assert before and all(map(rounds, before))
    assert len(behind) > 5 and not any(map(rounds, behind))


def test_f32_is_the_same_program() -> None:
    loss, grads = layers()
    plain = rewrite(gather([loss, *grads]))
    assert [n.op.name for n in plain.nodes] == [
        n.op.name for n in rewrite(gather([loss, *grads]), precision="f32").nodes
    ]
    assert not named(plain, "round_bf16")


def test_another_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gl.input("x", (2, 2))
    with refused("precision", "f16", need="f32 or bf16"):
        gl.compile(x @ x, precision="f16")
    monkeypatch.setenv("GRADLOOM_PRECISION", "half")
    with refused("GRADLOOM_PRECISION", "half", need="f32 or bf16"):
        gl.compile(x @ x)
    monkeypatch.setenv("GRADLOOM_PRECISION", "bf16")
    assert named(gl.compile(x @ x).program, "round_bf16")
    assert not named(gl.compile(x @ x, precision="f32").program, "round_bf16")


def constants(*shapes: tuple[int, ...]) -> list[Value]:
    rng = np.random.default_rng(3)
    return [gl.constant(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def of_constants() -> dict[str, Value]:
    """Products whose operands are constants, or are folded to constants."""
    a, b, image, filters = constants((8, 16), (16, 4), (2, 3, 6, 6), (4, 3, 3, 3))
    q, k, v = constants((2, 8, 2, 16), (2, 8, 2, 16), (2, 8, 2, 16))
    positions = gl.constant(np.tile(np.arange(8, dtype=np.int32), (2, 1)))
    return {
        "product": a @ b,
        "sum of constants": (a + 0.125) @ (b * 3.0),
        "view": ops.matmul(ops.reshape(a, (16, 8)), ops.permute(b, (1, 0)), transpose_x=True, transpose_y=True),
        "activation": ops.relu(a @ b),
        "product of a product": ops.matmul(a @ b, b, transpose_y=True),
        "convolution": ops.reshape(ops.conv2d(image, filters), (8, -1)),
        "attention": ops.reshape(ops.attention(q, k, v, positions, scale=0.25)[0], (8, -1)),
    }


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("case", list(of_constants()))
def test_operands_that_are_constants_are_rounded(case: str, fuse: bool) -> None:
    value = of_constants()[case]
    x = gl.input("x", value.shape)
    data = np.zeros(value.shape, np.float32)
    run = gl.compile([value + x], precision="bf16", fuse=fuse)(x=data)[0]
    defined = gl.compile([value + x], backend="numpy", precision="bf16")(x=data)[0]
    exact = gl.compile([value + x], backend="numpy")(x=data)[0]
    largest = np.abs(exact).max()
    assert np.abs(run - defined).max() <= 2e-6 * largest, "as the definition rounds"
    assert np.abs(run - exact).max() > 1e-4 * largest, "not as in f32"
    for kernels in (True, False):
        made = program([value + x], kernels=kernels, fuse=fuse)
        assert all(not node.op.rounds for node in rewrite(gather([value + x])).nodes), "f32 folds it"
        assert [node for node in made.nodes if node.op.rounds] or not kernels
