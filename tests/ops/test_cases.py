"""The kernel tests are worth something: one wrong element is seen, and data that says nothing is no pass."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom.graph.opspec import REGISTRY
from tests.ops import cases
from tests.ops.cases import LAYOUTS, arranged, call_line, check, difference, node_of, samples_of, telling


@pytest.mark.parametrize("name", ["exp", "mul", "sum", "matmul", "argmax", "cast", "adamw"])
def test_one_wrong_element_is_seen(name):
    number = max(range(len(samples_of(name))), key=lambda i: sum(x.size for x in samples_of(name)[i].inputs))
    sample = samples_of(name)[number]
    node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
    value, want = node.outputs[0], cases.reference(node, sample.inputs)[0]
    right = want.astype(value.dtype.numpy)
    assert difference(name, right, want, right, value) == ""
    for wrong in (right.flat[0] + right.dtype.type(1), np.nan) if right.dtype.kind == "f" else (right.flat[0] + 1,):
        got = right.copy()
        got.flat[-1] = wrong
        assert difference(name, got, want, right, value)


def test_a_kernel_that_disagrees_says_how_to_repeat_it(monkeypatch):
    monkeypatch.setattr(REGISTRY["silu"], "reference", lambda x: x / (1 + np.exp(-x)) * (1 + 1e-4))
    cases._cached.cache_clear()
    with pytest.raises(AssertionError, match=r'repeat: check\("silu", 3, "scalar", layout=.dense., threads=1\)'):
        check("silu", 3, "scalar")
    cases._cached.cache_clear()


def test_call_line():
    assert (
        call_line("add", 2, "avx2", threads=2, alias={0: 1}, twice=())
        == 'check("add", 2, "avx2", threads=2, alias={0: 1})'
    )


def test_data_that_says_nothing_is_no_pass():
    assert not telling([np.zeros(100)])
    assert not telling([np.full(100, np.nan)])
    assert not telling([np.ones(3)])
    assert telling([np.arange(10.0)])


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_layouts_are_not_dense_and_hold_the_same_numbers(layout):
    x, y = samples_of("add")[3].inputs
    laid = arranged(REGISTRY["add"], [x, y], layout)
    assert laid is not None and not laid[0].flags.c_contiguous
    assert layout == "repeated" or np.array_equal(laid[0], x)


def test_matrices_keep_one_unit_stride():
    x, y = next(s.inputs for s in samples_of("matmul") if s.inputs[0].shape == (33, 17))
    for layout in LAYOUTS[1:3]:
        laid = arranged(REGISTRY["matmul"], [x, y], layout)
        assert laid is not None and all(v.itemsize in v.strides[-2:] and not v.flags.c_contiguous for v in laid)
