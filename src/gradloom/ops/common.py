"""Shared by the op families: shape rules, sums over broadcast axes, sample inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.dtypes import DType, Shaped, bf16, dtype, f32
from ..base.errors import DTypeError
from ..graph.declaration import BadSample, Reject, Sample, Spec, called_with
from ..graph.leaves import as_value, stored_value
from ..graph.opspec import REGISTRY
from ..graph.scope import user_location
from ..graph.stored import Stored, dequantised
from ..graph.value import Shape, Value, describe

# ---- shape rules -----------------------------------------------------------------------------------------


def need(condition: bool, seen: str, wanted: str) -> None:
    """Reject unless the condition holds."""
    if not condition:
        raise Reject(seen, wanted)


def need_plain(name: str, **arguments: Any) -> None:
    """DTypeError for an argument of an op's function that is a value or a text: a number of Python is required."""
    for argument, given in arguments.items():
        if isinstance(given, (Value, str)):
            seen = f"{argument} is {f'a value, {describe(given)}' if isinstance(given, Value) else repr(given)}"
            raise DTypeError(f"{name}: {seen}; need a number of Python; at {user_location()}")


def whole(name: str, argument: str, given: Any) -> int:
    """The argument of an op's function as an int; DTypeError unless it is a whole number."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (int, np.integer)):
        raise DTypeError(f"{name}: {argument} is {what_is(given)}; need a whole number; at {user_location()}")
    return int(given)


def f32_values(name: str, *operands: Any, promote: bool = True) -> list[Value]:
    """The operands of a composition as f32 values; DTypeError for other dtypes.

    promote: whole numbers are converted, as by ops that compute; functions that only move elements take none.
    """
    values = [as_value(x) for x in operands]
    for value in values:
        whole_numbers = not value.dtype.is_float and not value.dtype.is_quantised
        if value.dtype is not f32 and not (promote and whole_numbers):
            seen = f"dtype {value.dtype.name} is not taken: {', '.join(map(describe, values))}"
            raise DTypeError(f"{name}: {seen}; need f32; at {user_location()}")
    return [v if v.dtype is f32 else REGISTRY["cast"](v, dtype=f32) for v in values]


def need_rounded(first: Spec, *others: Spec) -> None:
    """Reject operands of a product that are bf16 where the first one is not; see Declaration.rounds."""
    alone = first.dtype is bf16 or all(other.dtype is not bf16 for other in others)
    need(alone, "an operand is bf16, the first is not", "the first in bf16 as well, or all in f32")


def same_as(*names: str) -> Callable[..., Spec]:
    """Shape rule: all these inputs are of one shape, and so is the output, which is f32."""

    def rule(**specs: Spec) -> Spec:
        first = specs[names[0]]
        for name in names[1:]:
            need(specs[name].shape == first.shape, "shapes differ", f"{names[0]} and {name} of one shape")
        return Spec(first.shape)

    return called_with(names, rule)


def broadcast_shape(*specs: Spec) -> Shape:
    """NumPy's broadcasting, or a Reject."""
    ndim = max(s.ndim for s in specs)
    padded = [(1,) * (ndim - s.ndim) + s.shape for s in specs]
    shape = []
    for extents in zip(*padded, strict=True):
        wide = {e for e in extents if e != 1}
        need(len(wide) <= 1, "shapes do not broadcast", "extents that are equal or 1, counted from the last axis")
        shape.append(wide.pop() if wide else 1)
    return tuple(shape)


def broadcast_of(*names: str, kind: DType = f32) -> Callable[..., Spec]:
    """Shape rule: the inputs broadcast together; the output is of dtype `kind`."""

    def rule(**specs: Spec) -> Spec:
        return Spec(broadcast_shape(*specs.values()), kind)

    return called_with(names, rule)


def scalar_specs(*specs: Spec | None) -> None:
    """Reject run-time scalars of another shape."""
    for spec in specs:
        need(spec is None or spec.shape == (), "a scalar is not of shape ()", "shape ()")


def normal_axis(axis: int, ndim: int) -> int:
    """A possibly negative axis as 0..ndim-1."""
    if not isinstance(axis, (int, np.integer)):
        raise Reject(f"axis is {what_is(axis)}", "a whole number")
    need(-ndim <= axis < ndim, f"axis {axis} does not exist", f"an axis from {-ndim} to {ndim - 1}")
    return axis % ndim


def need_axis(spec: Spec, axis: int) -> None:
    """Reject an axis that is not one of 0..ndim-1."""
    need(0 <= axis < spec.ndim, f"axis {axis} does not exist", f"an axis from 0 to {spec.ndim - 1}")


def normal_axes(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """None (all), an int or several, possibly negative -> sorted, each once."""
    if axes is None:
        return tuple(range(ndim))
    given = tuple(axes) if isinstance(axes, (Sequence, np.ndarray)) else (axes,)
    ordered = sorted(normal_axis(a, ndim) for a in given)
    need(len(set(ordered)) == len(ordered), f"axes {given} name one axis twice", "each axis once")
    return tuple(ordered)


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    strides, n = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = n
        n *= shape[i]
    return strides


# ---- gradients -------------------------------------------------------------------------------------------


def unbroadcast(g: Value, like: Value) -> Value:
    """g summed over the axes along which `like` was broadcast: the gradient of a broadcast input."""
    if g.shape == like.shape:
        return g
    lead = g.ndim - like.ndim
    axes = [i for i in range(g.ndim) if i < lead or (like.shape[i - lead] == 1 and g.shape[i] != 1)]
    summed = REGISTRY["sum"](g, axes=axes) if axes else g
    return summed if summed.shape == like.shape else REGISTRY["reshape"](summed, shape=like.shape)


def zeros_like(x: Value) -> Value:
    """Zeros of x's shape; nothing of x is read."""
    return REGISTRY["broadcast_to"](0.0, shape=x.shape)


# ---- samples ---------------------------------------------------------------------------------------------

SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (3, 33), (2, 3, 1, 5), (65, 67))
PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((1,), (1,)), ((17,), (17,)), ((5, 33), (5, 33)), ((5, 33), (33,)), ((5, 33), (5, 1)),
    ((4, 7), ()), ((), (7,)), ((2, 1, 5), (3, 1)), ((1, 6), (2, 5, 6)), ((2, 3, 1, 1), (1, 3, 4, 5)),
)  # fmt: skip
LARGE: Shape = (401, 751)  # enough elements for several parts


def draw(
    rng: np.random.Generator,
    shape: Sequence[int],
    low: float = -2.0,
    high: float = 2.0,
    avoid: Sequence[float] = (),
    margin: float = 0.05,
) -> np.ndarray:
    """Uniform f32 numbers, at least `margin` away from the points in `avoid` (kinks, poles)."""
    x = rng.uniform(low, high, shape)
    for kink in avoid:
        x = np.where(np.abs(x - kink) < margin, kink + np.where(x >= kink, 2, -2) * margin, x)
    return np.asarray(x, np.float32)


# Byte positions of the scales of a block, all of them f16.
BLOCK_SCALES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
}  # fmt: skip


def draw_blocks(
    rng: np.random.Generator, kind: str | DType, shape: Sequence[int], low: float = -0.01, high: float = 0.01
) -> np.ndarray:
    """Random bytes (u8, one axis) of a quantised array of `shape`, blocks along its last axis.

    Any integers make valid blocks; the scales are drawn from low..high, so that all numbers are finite.
    """
    known = dtype(kind)
    count = math.prod(shape) // known.block
    data = rng.integers(0, 256, (count, known.bytes), np.uint8)
    for at in BLOCK_SCALES[known.name]:
        data[:, at : at + 2] = rng.uniform(low, high, (count, 1)).astype(np.float16).view(np.uint8)
    return data.reshape(-1)


@dataclass(frozen=True)
class Quantised(Shaped):
    """A quantised operand of a sample: bytes, and the view of them that the op sees (shape, strides in elements)."""

    dtype: DType
    data: np.ndarray
    shape: Shape
    strides: Shape

    @classmethod
    def draw(
        cls, rng: np.random.Generator, kind: str | DType, shape: Sequence[int], axes: Sequence[int] | None = None
    ) -> Quantised:
        """Random blocks along the last axis of an array of `shape`, seen with its axes in the order `axes`."""
        order = tuple(range(len(shape))) if axes is None else tuple(axes)
        strides = dense_strides(shape)
        data = draw_blocks(rng, kind, shape)
        return cls(dtype(kind), data, tuple(shape[a] for a in order), tuple(strides[a] for a in order))

    def numpy(self) -> np.ndarray:
        """The numbers, as f32."""
        flat = dequantised(self.data, self.dtype, (self.data.size // self.dtype.bytes * self.dtype.block,))
        view = np.lib.stride_tricks.as_strided(flat, self.shape, [4 * s for s in self.strides])
        return np.array(view) if self.size else np.zeros(self.shape, np.float32)

    def value(self) -> Value:
        """A leaf that holds the bytes, its axes turned to the operand's shape."""
        order = sorted(range(self.ndim), key=lambda a: -self.strides[a])
        stored = stored_value(Stored.map("quantised", self.data, self.dtype, [self.shape[a] for a in order]))
        return REGISTRY["permute"](stored, axes=tuple(order.index(a) for a in range(self.ndim)))


def unary(
    low: float = -2.0,
    high: float = 2.0,
    avoid: Sequence[float] = (),
    special: Sequence[float] = (),
    count: int = 1,
    **attrs: Any,
) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples of `count` inputs of one shape; the last input is in the domain, the others are in -2..2."""

    def samples(rng: np.random.Generator) -> list[Sample]:
        def one(shape: Shape) -> Sample:
            others = [draw(rng, shape) for _ in range(count - 1)]
            return Sample((*others, draw(rng, shape, low, high, avoid)), dict(attrs))

        samples = [one(shape) for shape in (*SHAPES, LARGE)]
        if special:
            x = np.array(special, np.float32)
            samples.append(Sample((*[draw(rng, x.shape) for _ in range(count - 1)], x), dict(attrs)))
        return samples

    return samples


def pairs(
    low: float = -2.0,
    high: float = 2.0,
    avoid: Sequence[float] = (),
    special: Sequence[tuple[float, float]] = (),
    first: tuple[float, float] | None = None,
    margin: float = 0.05,
) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples of two broadcasting inputs; y is in low..high away from `avoid`, x in `first` (default the same)."""
    x_low, x_high = first or (low, high)

    def samples(rng: np.random.Generator) -> list[Sample]:
        samples = [
            Sample((draw(rng, a, x_low, x_high, () if first else avoid), draw(rng, b, low, high, avoid, margin)))
            for a, b in (*PAIRS, (LARGE, LARGE), (LARGE, LARGE[1:]))
        ]
        if special:
            x, y = np.array(special, np.float32).T
            samples.append(Sample((x.copy(), y.copy())))
        return samples

    return samples


def bad(message: str, *shapes: Any, **attrs: Any) -> BadSample:
    """A refused call: inputs given as shapes (f32), as ("i32", shape), or None."""
    kinds = {"f32": np.float32, "i32": np.int32, "u8": np.uint8, "i64": np.int64, "f64": np.float64}
    inputs: list[np.ndarray | None] = []
    for shape in shapes:
        if shape is None:
            inputs.append(None)
        elif shape and isinstance(shape[0], str):
            inputs.append(np.ones(shape[1], kinds[shape[0]]))
        else:
            inputs.append(np.ones(shape, np.float32))
    return BadSample(tuple(inputs), message, dict(attrs))
