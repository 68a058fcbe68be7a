"""What every declaration promises, checked without kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradloom.base.dtypes import bf16, f32, f64, i32, i64, u8
from gradloom.base.errors import DTypeError, GradloomError
from gradloom.graph.leaves import constant
from gradloom.graph.opspec import REGISTRY
from gradloom.ops.table import op_table
from tests.ops.cases import case_id, cases, laid_out, node_of, reference, sampled_ops, samples_of, telling

BAD = [(spec.name, i) for spec in REGISTRY.values() for i in range(len(spec.bad_samples))]
VIEWS = [(spec.name, i) for spec in sampled_ops() if spec.view for i in range(len(samples_of(spec.name)))]


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_shape_rule_agrees_with_the_reference(case):
    name, number = case
    sample = samples_of(name)[number]
    node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
    for real in (np.float64, np.float32):
        results = reference(node, sample.inputs, real)
        assert [r.shape for r in results] == [v.shape for v in node.outputs]
        for result, value in zip(results, node.outputs, strict=True):
            if name in ("cast", "take_batch"):
                assert result.dtype == value.dtype.numpy or (result.dtype == np.float64 and value.dtype.is_float)
            else:
                kind = real if value.dtype.is_float else value.dtype.numpy
                assert result.dtype == kind or result.shape == ()  # NumPy 1 widens scalars


@pytest.mark.parametrize("spec", sampled_ops(), ids=lambda s: s.name)
def test_samples_say_something(spec):
    """Not all zeros, not all NaN; two at least; and the two precisions agree where both are finite."""
    samples = samples_of(spec.name)
    assert len(samples) >= 2
    found = []
    for sample in samples:
        node = node_of(spec, sample.inputs, sample.attrs)
        found += reference(node, sample.inputs)
    assert telling(found) or spec.name == "zero"


@pytest.mark.parametrize("case", BAD, ids=case_id)
def test_bad_sample_gets_its_message(case):
    name, number = case
    bad = REGISTRY[name].bad_samples[number]
    inputs = [None if x is None else constant(x, x.dtype) for x in bad.inputs]
    with pytest.raises(GradloomError) as caught:
        REGISTRY[name].node(inputs, bad.attrs)
    message = str(caught.value)
    assert message.startswith(bad.message + "; at test_declarations.py:"), message
    assert "\n" not in message


def test_every_op_refuses_something():
    leaves = {s.name for s in REGISTRY.values() if s.leaf}
    assert [s.name for s in REGISTRY.values() if not (s.bad_samples or s.dtypes or s.name in leaves)] == []


@pytest.mark.parametrize("spec", sampled_ops(), ids=lambda s: s.name)
def test_every_input_refuses_the_dtypes_that_it_is_not_declared_to_take(spec):
    sample = samples_of(spec.name)[0]
    for i, x in enumerate(sample.inputs):
        taken = spec.dtypes.get(spec.slot(spec.inputs, i).name)
        if x is None or taken is None:
            continue
        for other in (f32, f64, bf16, i32, i64, u8):
            if other not in taken:
                inputs = [*sample.inputs[:i], np.ones(x.shape, other.numpy), *sample.inputs[i + 1 :]]
                need = " or ".join(kind.name for kind in taken)
                message = f"^{spec.name}: dtype {other.name} is not taken: .*; need {need};"
                with pytest.raises(DTypeError, match=message):
                    node_of(spec, inputs, sample.attrs)


@pytest.mark.parametrize("layout", ["dense", "reversed", "gaps", "repeated"])
@pytest.mark.parametrize("case", VIEWS, ids=case_id)
def test_view_rule_is_what_numpy_does(case, layout):
    name, number = case
    spec = REGISTRY[name]
    sample = samples_of(name)[number]
    node = node_of(spec, sample.inputs, sample.attrs)
    x = laid_out(sample.inputs[0], layout)
    strides = [s // x.itemsize for s in x.strides]
    found = spec.call("view", node.attrs | {"layout_shape": x.shape, "strides": strides})
    want = spec.call("reference", node.attrs | {"x": x})
    if found is None:
        assert name == "reshape" and layout != "dense" and not np.shares_memory(want, x)
        return
    offset, new_strides = found
    shape = node.outputs[0].shape
    assert len(new_strides) == len(shape)
    got = _at(x, x.__array_interface__["data"][0] + offset * x.itemsize, shape, new_strides)
    assert np.array_equal(got, want)
    if layout != "repeated":
        assert np.shares_memory(want, x)


def _at(x: np.ndarray, start: int, shape: tuple[int, ...], strides: list[int]) -> np.ndarray:
    """The elements at an address, read one by one inside x's memory."""
    import ctypes

    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    low = x.__array_interface__["data"][0]
    high = low + x.itemsize + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True))
    assert low <= start and start + reach * x.itemsize <= high, "the view leaves its buffer"
    flat = np.ctypeslib.as_array((ctypes.c_float * reach).from_address(start))
    return np.lib.stride_tricks.as_strided(flat, shape, [s * x.itemsize for s in strides])


CATALOGUE = """
neg abs sgn step sqr sqrt exp expm1 log sin cos relu leaky_relu elu sigmoid tanh gelu gelu_tanh silu softplus clamp
log1p erf floor ceil round trunc remainder flip
scale add sub mul div pow maximum minimum equal less greater relu_back leaky_relu_back elu_back sigmoid_back tanh_back
gelu_back gelu_tanh_back silu_back clamp_back where cast reshape permute slice broadcast_to copy concat pad sum mean max
min argmax matmul matmul_act matmul_relu_back get_rows scatter_rows take_batch layer_norm layer_norm_back rms_norm
rms_norm_back
batch_norm batch_norm_back softmax softmax_back log_softmax log_softmax_back conv2d conv2d_back_input conv2d_back_weight
conv2d_max_pool max_pool2d max_pool2d_back avg_pool2d avg_pool2d_back dropout cross_entropy_sum
linear_cross_entropy linear_cross_entropy_rows correct sgd adamw grad_norm
accumulate zero assign guard constant input parameter setting
set_rows rope attention attention_back swiglu swiglu_back geglu geglu_back lstm_cell lstm_cell_back exp2
"""


def test_the_catalogue_is_complete():
    assert set(CATALOGUE.split()) <= set(REGISTRY)


def test_the_op_table_of_the_docs_is_that_of_the_registry():
    page = Path(__file__).parents[2] / "docs" / "ops.md"
    assert page.read_text() == op_table(), "python -m gradloom.ops.table > docs/ops.md"
