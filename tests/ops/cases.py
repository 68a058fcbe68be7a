"""Cases made from the registry: every op x sample, and how its kernels are held against its reference.

A failing kernel case prints the line that repeats it; by hand:

    PYTHONPATH=src:. python -c 'from tests.ops.cases import check; check("relu", 3, "avx2", layout="gaps", threads=2)'
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradloom as gl  # fills the registry
from gradloom.base.dtypes import dtype as as_dtype
from gradloom.graph.composition import Composition, as_read, by_reference, composed, is_rounded
from gradloom.graph.declaration import Sample
from gradloom.graph.leaves import constant
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.graph.value import Node, Value
from gradloom.ops.common import Quantised
from gradloom.plan.bytecode import signature

ROUNDED_TOLERANCE = 2.0**-8  # of an op that rounds what it computes: a number may lie between two of bf16
ELEMENTWISE_FLOOR = 4e-7  # absolute error allowed to elementwise ops
CAST_TOLERANCE = {"f16": 2.0**-11, "bf16": 2.0**-8}
REAL = ("float32", "float16", "bfloat16")
LAYOUTS = ("dense", "reversed", "gaps", "repeated")
SMALL = 20_000  # elements; larger samples run in fewer combinations


def sampled_ops() -> list[OpSpec]:
    return [spec for spec in REGISTRY.values() if spec.samples is not None]


def kernel_ops() -> list[OpSpec]:
    """Ops that run: no leaves, no views, no ops of files."""
    return [spec for spec in sampled_ops() if not spec.leaf and spec.view is None and not spec.written]


@functools.cache
def samples_of(name: str) -> tuple[Sample, ...]:
    """The op's samples, the same in every run; absent optional inputs are written out."""
    spec = REGISTRY[name]
    assert spec.samples is not None
    found = spec.samples(np.random.default_rng(zlib.crc32(name.encode())))
    missing = [spec.fixed_inputs - len(s.inputs) for s in found]
    return tuple(Sample((*s.inputs, *[None] * m), s.attrs) for s, m in zip(found, missing, strict=True))


def cases() -> list[tuple[str, int]]:
    return [(spec.name, i) for spec in sampled_ops() for i in range(len(samples_of(spec.name)))]


def case_id(case: Any) -> str:
    return f"{case[0]}-{case[1]}" if isinstance(case, tuple) else str(case)


def node_of(spec: OpSpec, inputs: Sequence[Any], attrs: dict[str, Any]) -> Node:
    """A node of the op on constants and quantised leaves."""
    return spec.node([None if x is None else operand(x) for x in inputs], attrs)


def operand(x: Any) -> Value:
    return x.value() if isinstance(x, Quantised) else constant(x, x.dtype)


def without_rows(x: Any) -> Any:
    """The same operand with nothing along its first axis."""
    if isinstance(x, Quantised):
        return Quantised(x.dtype, x.data[:0], (0, *x.shape[1:]), x.strides)
    return x[:0].copy()


def reference(node: Node, inputs: Sequence[Any], real: Any = np.float64) -> list[np.ndarray]:
    """The op's reference in float64 or float32; f64 data stay as they are."""
    arrays = [x.numpy() if isinstance(x, Quantised) else x for x in inputs]
    arrays = [x.astype(real) if x is not None and x.dtype.name in REAL else x for x in arrays]
    return by_reference(node, arrays)


def rounds_inside(node: Node) -> bool:
    """Whether the node rounds what it has computed itself, for a product inside of it."""
    return "rounded" in node.op.wants["reference"] and is_rounded(node)


def tolerance_of(node: Node) -> float:
    return ROUNDED_TOLERANCE if rounds_inside(node) else node.op.tolerance


def composition_error(spec: OpSpec) -> float:
    """The largest difference of the op's reference from what follows from its composition, over all small samples."""
    assert spec.composition is not None
    derived = Composition(spec.composition, spec.inputs, spec.outputs, spec.attrs).reference()
    most = 0.0
    for sample in samples_of(spec.name):
        if sum(x.size for x in sample.inputs if x is not None) > SMALL:
            continue
        node = node_of(spec, sample.inputs, sample.attrs)
        arrays = [x.numpy() if isinstance(x, Quantised) else x for x in sample.inputs]
        arrays = [x.astype(np.float64) if x is not None and x.dtype.name in REAL else x for x in arrays]
        with np.errstate(all="ignore"):
            given = as_read(node, arrays) if spec.rounds else arrays
            if rounds_inside(node):
                made = gl.compile(list(composed(node, node.inputs)), backend="numpy")()
            else:
                made = derived(**(node.attrs | spec.bind_inputs(given)))
            pairs = zip(made, reference(node, sample.inputs), strict=True)
            for a, b in pairs:
                assert np.array_equal(np.isfinite(a), np.isfinite(b)), spec.name
                error = np.abs(a - b) / (1 + np.abs(b))
                most = max(most, float(np.max(error[np.isfinite(b)], initial=0.0)))
    return most


def telling(arrays: Sequence[np.ndarray]) -> bool:
    """Is there something to compare: not all zeros, not all NaN, more than a few numbers."""
    every = np.concatenate([a.astype(np.float64).ravel() for a in arrays])
    useful = int((np.isfinite(every) & (every != 0)).sum())
    return useful >= 5 and useful >= 0.1 * every.size


def difference(name: str, got: np.ndarray, want: np.ndarray, want_f32: np.ndarray, kind: Value) -> str:
    """What is wrong with a result, or nothing."""
    if REGISTRY[name].exact and kind.dtype.name not in CAST_TOLERANCE:
        if np.array_equal(got, want_f32, equal_nan=got.dtype.kind == "f"):
            return ""
        at = np.unravel_index(int(np.argmax(~((got == want_f32) | ((got != got) & (want_f32 != want_f32))))), got.shape)
        return f"at {list(map(int, at))}: got {got[at]!r}, need {want_f32[at]!r} exactly"
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        want64 = np.where(np.abs(want64) > np.finfo(np.float32).max, np.sign(want64) * np.inf, want64)
    finite = np.isfinite(want64)
    nan = np.isnan(want64) | np.isnan(want_f32)
    same = np.where(finite, True, (got64 == want64) | (np.isnan(got64) & nan))
    tolerance = tolerance_of(kind.node)
    if REGISTRY[name].elementwise:
        tolerance = CAST_TOLERANCE.get(kind.dtype.name, tolerance)
        room = tolerance * np.abs(want64) + ELEMENTWISE_FLOOR
    else:
        scale = float(np.max(np.abs(want64[finite]), initial=0.0))
        with np.errstate(all="ignore"):  # where terms cancel: four times what f32 costs the reference itself
            noise = np.abs(want_f32.astype(np.float64) - want64)
        noise_most = float(np.max(noise[finite & np.isfinite(noise)], initial=0.0))
        room = np.full(want64.shape, max(tolerance * scale, 4 * noise_most) + 1e-30)
    with np.errstate(all="ignore"):
        close = np.where(finite, np.abs(got64 - want64) <= room, same)
    if close.all():
        return ""
    at = np.unravel_index(int(np.argmax(~close)), got.shape)
    return f"at {list(map(int, at))}: got {got64[at]!r}, need {want64[at]!r} within {room[at]:.3g}"


# ---- layouts: the same numbers, stored differently ---------------------------------------------------------


def laid_out(x: np.ndarray, layout: str, unit: bool = False) -> np.ndarray:
    """x under other strides. unit: one of the last two strides stays 1, none is 0 (what matrices may look like)."""
    if x.ndim == 0:
        return x
    if isinstance(x, Quantised):
        return blocks_laid_out(x, layout)
    if layout == "reversed" and unit:  # the last two axes swapped in memory
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return np.asfortranarray(x)
    if layout == "gaps":
        steps = [2] * x.ndim if not unit else [1] * x.ndim
        wide = np.full(
            [n * s + 3 for n, s in zip(x.shape, steps, strict=True)], np.nan if x.dtype.kind == "f" else 99, x.dtype
        )
        view = wide[tuple(slice(1, 1 + n * s, s) for n, s in zip(x.shape, steps, strict=True))]
        view[...] = x
        return view
    if layout == "repeated":  # stride 0 along the first axis: other numbers
        return np.broadcast_to(x[:1], x.shape)
    return x


def blocks_laid_out(x: Quantised, layout: str) -> Quantised:
    """The same blocks with one more after each row, or the first of all rows again and again; blocks cannot turn."""
    if layout == "gaps":
        along = x.shape[x.strides.index(1)]
        rows = x.data.reshape(-1, along // x.dtype.block, x.dtype.bytes)
        wide = np.concatenate([rows, np.full_like(rows[:, :1], 255)], 1)
        strides = tuple(s if s == 1 else s // along * (along + x.dtype.block) for s in x.strides)
        return Quantised(x.dtype, wide.reshape(-1)[: -x.dtype.bytes], x.shape, strides)
    if layout == "repeated" and x.strides[0] != 1:
        return Quantised(x.dtype, x.data, x.shape, (0, *x.strides[1:]))
    return x


def arranged(spec: OpSpec, inputs: Sequence[Any], layout: str) -> list[Any] | None:
    """The inputs in a layout that the op says it takes; None where none of them can differ from dense."""
    found, changed = [], False
    for i, x in enumerate(inputs):
        slot = spec.slot(spec.inputs, i)
        free = x is not None and x.ndim > 0 and slot.name not in spec.dense
        matrix = slot.name in spec.unit
        if not free or (matrix and layout == "repeated" and x.ndim < 3):
            found.append(x)
            continue
        changed = True
        found.append(laid_out(x, layout, matrix))
    return found if changed else None


# ---- one kernel run against its reference ------------------------------------------------------------------


def aliases_of(node: Node, inputs: Sequence[Any]) -> list[dict[int, int]]:
    """{output: input} for every pair that may share bytes: same shape and dtype."""
    found = []
    for k, (out_name, value) in enumerate(node.op.named_outputs(node.outputs)):
        for i, (name, x) in enumerate(node.op.named_inputs(inputs)):
            allowed = x is not None and name in node.op.may_overwrite.get(out_name, ())
            if allowed and x.shape == value.shape and x.dtype == value.dtype.numpy:
                found.append({k: i})
    return found


def update_aliases(node: Node, inputs: Sequence[Any]) -> tuple[dict[int, int], list[int]]:
    """For update ops: outputs lie in their inputs; outputs of absent inputs are not wanted."""
    op = node.op
    into, unwanted = {}, []
    names = [s.name for s in op.inputs]
    for k in range(len(node.outputs)):
        slot = op.slot(op.outputs, k)
        if slot.name in op.updates:
            i = names.index(op.updates[slot.name]) + k // len(op.outputs) * op.group_size
            if inputs[i] is None:
                unwanted.append(k)
            else:
                into[k] = i
    return into, unwanted


def attr_list(node: Node) -> list[Any]:
    """Attributes in the order of declaration, for the harness; optional ones at the end where they are given."""
    found: list[Any] = []
    attrs = list(node.op.attrs)
    while attrs and node.attrs[attrs[-1].name] is None:
        attrs.pop()
    for attr in attrs:
        value = node.attrs[attr.name]
        if value is None:
            value = -(1 << 63)
        elif attr.kind == "dtype":
            value = value.code
        elif attr.choices:
            value = attr.choices.index(value)
        elif attr.kind == "float":
            value = float(value)
        elif attr.kind == "ints":
            value = list(value)
        found.append(value)
    return found


def call_line(name: str, number: int, isa: str, **options: Any) -> str:
    """The line that repeats a case."""
    return f'check("{name}", {number}, "{isa}"{"".join(f", {k}={v!r}" for k, v in options.items() if v)})'


def check(
    name: str,
    number: int,
    isa: str,
    layout: str = "dense",
    threads: int = 1,
    alias: dict[int, int] | None = None,
    twice: Sequence[int] = (),
    compare: bool = True,
) -> list[np.ndarray | None]:
    """Run sample `number` of the op and hold it against the reference. Returns the outputs.

    isa: an instruction set of the CPU, or "gpu".
    alias: {output: input} shares bytes; twice: these two inputs are one value; compare=False: only run. The harness
    puts guard bytes around every buffer, fills outputs and scratch with NaN and sees that inputs stay as they are.
    """
    from tests.core.harness import run

    spec = REGISTRY[name]
    sample = samples_of(name)[number]
    inputs: list[Any] = list(sample.inputs)
    if twice:
        inputs[twice[1]] = inputs[twice[0]]
    node = node_of(spec, inputs, sample.attrs)
    placed = arranged(spec, inputs, layout) if layout != "dense" else inputs
    assert placed is not None, f"{name} takes dense inputs only"
    if twice:
        placed[twice[1]] = placed[twice[0]]
    shared, unwanted = update_aliases(node, inputs)
    shared |= alias or {}
    outputs = [(v.dtype.name, v.shape) for v in node.outputs]
    if isa == "gpu":
        from tests.gpu.harness import default_place, run_node

        got = run_node(node, placed, alias=shared, unwanted=unwanted, place=default_place())
    else:
        got = run(
            name, placed, outputs, attr_list(node), isa=isa, sig=signature(node), alias=shared, threads=threads,
            unwanted=unwanted,
        )  # fmt: skip
    if not compare:
        return got
    want, want_f32 = _wanted(name, number, layout, tuple(twice), node, placed)
    for k, value in enumerate(node.outputs):
        if k in unwanted:
            continue
        wrong = difference(name, got[k], want[k], want_f32[k], value)
        if wrong and isa == "gpu":
            wrong = difference(name, got[k], *_allowed(node, k, got[k], placed, want[k], want_f32[k]), value)
        if wrong:
            line = call_line(name, number, isa, layout=layout, threads=threads, alias=alias, twice=tuple(twice))
            raise AssertionError(f"{name}: output {k} {value!r} {wrong}\nrepeat: {line}")
    return got


# Units of the last place within which WebGPU's accuracies let an adapter divide and take roots (1 / inverseSqrt).
ADAPTER_UNITS = {"div": 2.5, "sqrt": 5.0}


def _allowed(
    node: Node, k: int, got: np.ndarray, placed: Sequence[Any], want: np.ndarray, want_f32: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The references of output k with the results of an adapter where WebGPU allows these, too: it may take subnormal
    inputs as zeros, and divide and take roots to some units of the last place."""
    flushed = reference(node, [without_subnormals(x) for x in placed], np.float32)[k].astype(want_f32.dtype)
    units = ADAPTER_UNITS.get(node.op.name, 0.0)
    with np.errstate(all="ignore"):
        near = np.abs(got - want_f32) <= units * np.spacing(np.abs(want_f32)) if units else False
        allowed = (got == flushed) | near
    return np.where(allowed, got, want), np.where(allowed, got, want_f32)


def without_subnormals(x: Any) -> Any:
    """The array with zeros of their signs in the place of f32's subnormal numbers."""
    if x is None or isinstance(x, Quantised) or x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


@functools.lru_cache(maxsize=64)
def _cached(key: Any) -> dict:
    return {}


def _wanted(name: str, number: int, layout: str, twice: tuple, node: Node, placed: Sequence[Any]) -> Any:
    """References of a case; layouts other than `repeated` hold the same numbers."""
    held = _cached((name, number, layout == "repeated", twice))
    if not held:
        held["f64"] = reference(node, placed)
        held["f32"] = reference(node, placed, np.float32) if REGISTRY[name].exact or twice else held["f64"]
        for k, v in enumerate(node.outputs):
            if v.dtype is as_dtype("f32") and REGISTRY[name].exact:
                held["f32"][k] = held["f32"][k].astype(np.float32)
    return held["f64"], held["f32"]
