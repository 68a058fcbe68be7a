"""Pictures of the shapes of an op, for the site's reference: a box per input and output, drawn from its own samples.

Axes that are equal in all samples of one form have one letter. The pictures are HTML with small SVG drawings in the
colour of the text, so that they are readable on light and dark pages, and wrap on narrow ones.
"""

from __future__ import annotations

import functools
import html
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.dtypes import dtype
from ..graph.declaration import Spec
from ..graph.opspec import OpSpec

LETTERS = "nmkpqrstuvwabcdefghijloxyz"
STYLE = (  # of a page with pictures, once
    "<style>.op-shapes{display:flex;flex-wrap:wrap;align-items:center;gap:.4em 1.2em;margin:.4em 0 1.2em}"
    ".op-shapes figure{margin:0;text-align:center;line-height:1.3;font-size:.85em}"
    ".op-shapes svg{display:block;margin:auto}.op-shapes small{flex-basis:100%}</style>"
)
SHEETS = 2  # drawn behind a box for the axes before the last two


@dataclass(frozen=True)
class Form:
    """A sample as shapes: of inputs, then outputs; None for an absent input."""

    attrs: dict[str, Any]
    specs: tuple[Spec | None, ...]
    given: int  # inputs among the specs

    @property
    def sizes(self) -> list[int]:
        """Of all axes, in order."""
        return [n for spec in self.specs if spec is not None for n in spec.shape]

    @property
    def ranks(self) -> tuple[int | None, ...]:
        return tuple(None if spec is None else len(spec.shape) for spec in self.specs)


def forms(spec: OpSpec) -> list[Form]:
    """The samples of an op as shapes; none of an op without samples."""
    if spec.samples is None:
        return []
    found = []
    for sample in spec.samples(np.random.default_rng(zlib.crc32(spec.name.encode()))):
        given = [*sample.inputs, *[None] * (spec.fixed_inputs - len(sample.inputs))]
        inputs = [None if x is None else Spec(tuple(x.shape), dtype(x.dtype)) for x in given]
        outputs = spec.infer(inputs, spec.canonical_attrs(sample.attrs))  # type: ignore[arg-type]  # shapes suffice
        found.append(Form(sample.attrs, (*inputs, *outputs), len(inputs)))
    return found


@functools.cache
def chosen(spec: OpSpec) -> tuple[Form, list[list[str]]] | None:
    """The form that is drawn, and the letters of the axes of each input and output; None of an op without samples."""
    every = forms(spec)
    if not every:
        return None
    best = min((form for form in every if 0 not in form.sizes), key=lambda form: _rank(spec, form))
    wide = [form for form in every if form.ranks == best.ranks and 0 not in form.sizes]
    narrow = [form for form in wide if form.attrs == best.attrs and 1 not in form.sizes] or [best]
    equal, always = (list(zip(*(form.sizes for form in group), strict=True)) for group in (narrow, wide))
    doubtful = _doubtful(best, equal, always, len({tuple(form.sizes) for form in narrow}) == 1 and spec.view is None)
    letters: dict[Any, str] = {}
    names = []
    for size, here, everywhere in zip(best.sizes, equal, always, strict=True):
        key = (here, everywhere if here in doubtful else None)
        if size > 1 and key not in letters:
            letters[key] = LETTERS[len(letters) % len(LETTERS)]
        names.append("1" if size == 1 else letters[key])
    ends = np.cumsum([rank or 0 for rank in best.ranks]).tolist()
    return best, [names[end - (rank or 0) : end] for end, rank in zip(ends, best.ranks, strict=True)]


def _doubtful(form: Form, equal: list[Any], always: list[Any], alone: bool) -> set[Any]:
    """Sizes that are equal by chance, because they differ in other forms: in two axes of one array, or (`alone`: no
    other form has these attributes) in different axes of an input and an output."""
    places = [(i, axis) for i, rank in enumerate(form.ranks) for axis in range(rank or 0)]
    found = set()
    for first, (i, axis) in enumerate(places):
        for second, (j, other) in enumerate(places):
            across = alone and i < form.given <= j and axis != other
            if (i == j or across) and equal[first] == equal[second] and always[first] != always[second]:
                found.add(equal[first])
    return found


def _rank(spec: OpSpec, form: Form) -> tuple[Any, ...]:
    """Order of preference: plain dtypes, matrices, operands of one rank, all inputs, sizes that cannot be confused, a
    result with axes, few axes."""
    inputs = [one for one in form.specs[: form.given] if one is not None]
    outputs = [one for one in form.specs[form.given :] if one is not None]
    coded = any(one.dtype.is_quantised or one.dtype.name == "bf16" for one in inputs)
    axes = max(len(one.shape) for one in (*inputs, *outputs))
    mixed = spec.elementwise and len({len(one.shape) for one in inputs}) > 1
    twice = sum(len(one.shape) - len({*one.shape}) for one in (*inputs, *outputs))
    moved = sum(
        n == m and i != j
        for one in inputs
        for other in outputs
        for i, n in enumerate(one.shape)
        for j, m in enumerate(other.shape)
    )
    absent = 0 if spec.group_size else -len(inputs)
    scalar = all(not one.shape for one in outputs)
    return coded, axes < 2, mixed, 1 in form.sizes, absent, twice + moved, scalar, axes, -len({*form.sizes}), form.sizes


Axes = tuple[str, Spec | None, list[str]]  # name, shape, letters


def _drawn(spec: OpSpec) -> tuple[list[list[Axes]], dict[str, Any]]:
    """The inputs and the outputs that are drawn, of a repeated group the first; attributes of the sample."""
    found = chosen(spec)
    if found is None:
        return [[(slot.name, None, []) for slot in slots] for slots in (spec.inputs, spec.outputs)], {}
    form, letters = found
    every = list(zip(form.specs, letters, strict=True))
    sides = [(spec.inputs, every[: form.given]), (spec.outputs, every[form.given :])]
    drawn: list[list[Axes]] = [
        [(slot.name, one, axes) for slot, (one, axes) in zip(slots, held, strict=False) if one is not None]
        for slots, held in sides
    ]
    return drawn, {name: value for name, value in form.attrs.items() if name != spec.stream}


def text(spec: OpSpec) -> str:
    """The shapes in one line: "x [n, k], y [k, m] -> z [n, m]"."""
    sides, _ = _drawn(spec)
    parts = [
        ", ".join(name if one is None else f"{name} [{', '.join(axes)}]" for name, one, axes in side) for side in sides
    ]
    return " -> ".join(parts).strip()


def picture(spec: OpSpec) -> str:
    """HTML without a line break: the boxes of the inputs, an arrow, the boxes of the outputs."""
    sides, attrs = _drawn(spec)
    boxes, results = ("".join(_figure(*one) for one in side) for side in sides)
    dots = "<span>&#8230;</span>" if any(slot.repeated for slot in spec.inputs) else ""
    given = html.escape(", ".join(f"{name}={_plain(value)}" for name, value in attrs.items()))
    under = f"<small>with {given}</small>" if given else ""
    return (
        f'<div class="op-shapes" role="img" aria-label="{html.escape(text(spec), quote=True)}">'
        f"{boxes}{dots}<span>&#8594;</span>{results}{under}</div>"
    )


def _plain(value: Any) -> str:
    shown = getattr(value, "name", value)
    if isinstance(shown, float):
        return f"{shown:.4g}"
    return str(list(shown) if isinstance(shown, tuple) else shown)


def _figure(name: str, one: Spec | None, letters: Sequence[str]) -> str:
    """A box with its name, letters and sizes below."""
    if one is None:
        shown, below = "", "any shape"
    else:
        shown, below = f"[{', '.join(letters)}]", f"{one.dtype.name} {' &#215; '.join(map(str, one.shape))}".strip()
    drawing = _svg(None if one is None else one.shape)
    return f"<figure>{drawing}<figcaption><b>{html.escape(name)}</b> {shown}<br/>{below}</figcaption></figure>"


def _svg(shape: tuple[int, ...] | None) -> str:
    """A rectangle of the last two axes, with sheets behind it for the others; of one axis a bar, of none a dot."""
    rows, columns = (6, 6) if shape is None else ((1, 1, *shape)[-2:])
    w, h = _side(columns), _side(rows)
    sheets = SHEETS if shape is not None and len(shape) > 2 and math.prod(shape[:-2]) > 1 else 0
    if shape == ():
        w = h = 8
    parts = [
        f'<rect x="{1 + 4 * i}" y="{1 + 4 * (sheets - i)}" width="{w}" height="{h}" rx="2" fill="currentColor" '
        f'fill-opacity="{0.12 if i == 0 else 0.05}" stroke="currentColor"/>'
        for i in reversed(range(sheets + 1))
    ]
    width, height = w + 2 + 4 * sheets, h + 2 + 4 * sheets
    dash = ' stroke-dasharray="3 2"' if shape is None else ""
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}"{dash}>{"".join(parts)}</svg>'


def _side(size: int) -> int:
    """Pixels of an axis: they grow with the root of its size."""
    return min(96, round(6 + 12 * math.sqrt(size)))
