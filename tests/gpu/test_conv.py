"""Convolutions as products: strides, dilations and paddings that leave rests and gaps; a K that is shared out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradloom.gpu.calls import Call, args_of
from gradloom.gpu.kernels import product
from gradloom.gpu.kernels.all import KERNELS
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.value import Node
from gradloom.ops.conv import conv_extents
from gradloom.plan.bytecode import ARG, signature
from tests.core.harness import arg
from tests.gpu.harness import default_place, run_node
from tests.noise import assert_noise
from tests.ops.cases import node_of, reference

WINDOWS = [  # kernel, stride, padding, dilation
    ((2, 2), (3, 3), (0, 0), (1, 1)),  # places of x that lie under nothing
    ((2, 3), (3, 2), (1, 2), (2, 4)),  # a stride that the dilation divides, and one that it does not
    ((3, 3), (4, 6), (2, 1), (6, 4)),  # a common divisor
    ((4, 1), (2, 5), (3, 0), (3, 1)),
    ((5, 5), (1, 1), (4, 2), (1, 2)),
]


def three(rng: np.random.Generator, x: Any, w: Any, how: dict[str, Any]) -> list[tuple[str, tuple[Any, ...], Any]]:
    """(op, inputs, attributes) of a convolution and its gradients, for shapes of images and kernels."""
    images, kernels, bias = (rng.normal(size=shape).astype(np.float32) for shape in (x, w, w[:1]))
    g = rng.normal(size=conv_extents(x, w, how)).astype(np.float32)
    return [
        ("conv2d", (images, kernels, bias), how | {"act": "relu"}),
        ("conv2d_back_input", (g, kernels), how | {"height": x[2], "width": x[3]}),
        ("conv2d_back_weight", (g, images), how | {"kernel": w[2:]}),
    ]


def checked(name: str, inputs: tuple[Any, ...], attrs: dict[str, Any], longest: int) -> Node:
    node = node_of(REGISTRY[name], inputs, attrs)
    found, again = (run_node(node, inputs, place=default_place()) for _ in range(2))
    for k, (single, double) in enumerate(
        zip(reference(node, inputs, np.float32), reference(node, inputs), strict=True)
    ):
        assert found[k].tobytes() == again[k].tobytes()
        assert_noise(f"{name}, output {k}, {attrs}", found[k], single, double, longest=longest)
    return node


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows(window: tuple[Any, ...]) -> None:
    kernel, stride, padding, dilation = window
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    for name, inputs, attrs in three(np.random.default_rng(0), (2, 3, 17, 19), (5, 3, *kernel), how):
        checked(name, inputs, attrs, longest=2 * 17 * 19)


def workspace(node: Node) -> int:
    forms = [("none", ()) if v is None else (v.dtype.name, v.shape) for v in (*node.inputs, *node.outputs)]
    records = np.array([arg(name, shape, 0, nbytes=0) for name, shape in forms], ARG)
    return KERNELS[node.op.name, signature(node)].workspace(Call(node, args_of(records)))


def test_a_long_k_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many channels, and over images and pixels; the bias and relu come after the sum of the shares."""
    monkeypatch.setattr(product, "LONGEST", 64)
    how = {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 1)}
    for name, inputs, attrs in three(np.random.default_rng(1), (3, 40, 9, 8), (36, 40, 3, 3), how):
        node = checked(name, inputs, attrs, longest=1000)
        shares, rest = divmod(workspace(node), 4 * node.outputs[0].size)
        assert shares > 1 and not rest
