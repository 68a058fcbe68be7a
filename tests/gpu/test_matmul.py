"""Products of a long K and a small result, whose K is shared out among workgroups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradloom.base.dtypes import dtype
from gradloom.gpu.calls import Call, args_of
from gradloom.gpu.kernels import matmul, product
from gradloom.gpu.kernels.all import KERNELS
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.value import Node
from gradloom.ops.matmul import narrow_operand
from gradloom.plan.bytecode import ARG, signature
from tests.core.harness import arg
from tests.gpu.harness import run_node
from tests.noise import assert_noise
from tests.ops.cases import node_of, reference


def workspace(node: Node) -> int:
    """Bytes, for dense operands."""
    forms = [("none", ()) if v is None else (v.dtype.name, v.shape) for v in (*node.inputs, *node.outputs)]
    records = np.array([arg(name, shape, 0, nbytes=0) for name, shape in forms], ARG)
    return KERNELS[node.op.name, signature(node)].workspace(Call(node, args_of(records)))


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_k_is_shared_out(kind: str) -> None:
    """Two matrices on one right operand; bias, relu and gate come after the sum of the shares."""
    rng = np.random.default_rng(0)
    k, shape = 1056, (2, 20, 7)
    x = rng.normal(size=(2, 20, k)).astype(np.float32)
    y: Any = rng.normal(size=(k, 7)).astype(np.float32)
    if kind != "f32":
        y = narrow_operand(rng, dtype(kind), (k, 7), True)
    bias, gate = rng.normal(size=7).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    for name, more, attrs in (
        ("matmul", (), {}),
        ("matmul_act", (bias,), {"act": "relu"}),
        ("matmul_act", (None,), {"act": "none"}),
        ("matmul_relu_back", (gate,), {}),
    ):
        node = node_of(REGISTRY[name], (x, y, *more), attrs)
        assert workspace(node) == 4 * 4 * 2 * 20 * 7, "four shares of 264, rounded up to whole blocks"
        inputs = (x, y, *more)
        (found,), (again,) = run_node(node, inputs), run_node(node, inputs)
        assert found.tobytes() == again.tobytes()
        assert_noise(name, found, *reference(node, inputs, np.float32), *reference(node, inputs), longest=k)


def test_k_is_not_shared_out_where_there_are_tiles_enough() -> None:
    wide = node_of(REGISTRY["matmul"], (np.ones((600, 600), np.float32), np.ones((600, 600), np.float32)), {})
    assert workspace(wide) == 0


def test_a_long_k_is_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are tiles enough, or few rows; bias and relu come after the sum."""
    for module in (matmul, product):
        monkeypatch.setattr(module, "LONGEST", 64)
    rng = np.random.default_rng(1)
    for shape in ((600, 150, 520), (3, 150, 70)):
        m, k, n = shape
        x, y, bias = (rng.normal(size=size).astype(np.float32) for size in ((m, k), (k, n), n))
        node, inputs = node_of(REGISTRY["matmul_act"], (x, y, bias), {"act": "relu"}), (x, y, bias)
        assert workspace(node) == 4 * 3 * m * n
        (found,) = run_node(node, inputs)
        assert_noise(f"{shape}", found, *reference(node, inputs, np.float32), *reference(node, inputs), longest=k)


def test_no_adapter_ends_the_loops_of_a_long_sum() -> None:
    """Mesa's software adapter does so, without a word, after 65535 rounds of a kernel's loops."""
    rng = np.random.default_rng(2)
    for m, k, n in ((4, 150_000, 8), (40, 100_000, 8)):
        x, y = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
        node = node_of(REGISTRY["matmul"], (x, y), {})
        (found,) = run_node(node, (x, y))
        assert_noise(f"{m, k, n}", found, *reference(node, (x, y), np.float32), *reference(node, (x, y)), longest=k)
    classes, rows, features = 60_000, 16, 8
    x, w = (rng.normal(size=(n, features)).astype(np.float32) for n in (rows, classes))
    given = (x, w, rng.integers(0, classes, rows).astype(np.int32), None)
    node = node_of(REGISTRY["linear_cross_entropy"], given, {})
    found = run_node(node, given)
    for k, (single, double) in enumerate(zip(reference(node, given, np.float32), reference(node, given), strict=True)):
        assert_noise(f"output {k}", found[k], single, double, longest=classes)
