"""op: declares an op and enters it into the registry, which refuses declarations with gaps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .composition import Composition
from .declaration import Rule, parsed_attrs, parsed_dtypes, parsed_overwrites, parsed_slots
from .opspec import REGISTRY, OpSpec


def op(
    name: str,
    *,
    inputs: str,
    outputs: str = "y",
    attrs: str = "",
    dtypes: str | None = None,
    shape: Rule | None = None,
    composition: Rule | None = None,
    vjp: Rule | None = None,
    no_gradient: str | None = None,
    no_gradient_to: Mapping[str, str] = MappingProxyType({}),
    reference: Rule | None = None,
    may_overwrite: str | Mapping[str, str] = "",
    dense: str = "",
    unit: str = "",
    rounds: str = "",
    updates: str = "",
    **fields: Any,
) -> OpSpec:
    """Declare an op: the fields of Declaration, names written as one text. AssertionError where there are gaps."""
    slots, results, known = parsed_slots(inputs), parsed_slots(outputs), parsed_attrs(attrs)
    if composition is not None:
        made = Composition(composition, slots, results, known)
        shape, reference = shape or made.shape(), reference or made.reference(name, fields.get("ids"))
        if vjp is None and no_gradient is None:
            vjp = made.vjp(no_gradient_to)
    elif dtypes is None and slots:
        raise AssertionError(f"op {name} needs: the dtypes of its inputs")
    if shape is None:
        raise AssertionError(f"op {name} needs: a shape rule or a composition")
    spec = OpSpec(
        name=name,
        family=sys._getframe(1).f_globals["__name__"].rpartition(".")[2],
        inputs=slots,
        outputs=results,
        attrs=known,
        dtypes=parsed_dtypes(dtypes or "any", slots),
        shape=shape,
        composition=composition,
        vjp=vjp,
        no_gradient=no_gradient,
        no_gradient_to=no_gradient_to,
        reference=reference,
        may_overwrite=parsed_overwrites(may_overwrite, results),
        dense=frozenset(dense.split()),
        unit=frozenset(unit.split()),
        rounds=tuple(rounds.split()),
        updates=dict(pair.split("=") for pair in updates.split()),
        **fields,
    )
    _refuse_gaps(spec)
    REGISTRY[name] = spec
    return spec


def _refuse_gaps(spec: OpSpec) -> None:
    gaps = []
    if spec.name in REGISTRY:
        gaps.append("the name is taken")
    if (spec.vjp is None) == (spec.no_gradient is None):
        gaps.append("exactly one of vjp and no_gradient")
    if spec.reference is None and not spec.leaf and not spec.python:
        gaps.append("a reference or a composition")
    if (spec.samples is None) == (spec.no_samples is None):
        gaps.append("exactly one of samples and no_samples")
    known = {s.name for s in spec.inputs} | {s.name for s in spec.outputs} | {a.name for a in spec.attrs}
    known |= {"g", "needed", "rounded"} | {f"g_{s.name}" for s in spec.outputs} | {"strides", "layout_shape"}
    for rule, wants in spec.wants.items():
        gaps += [f"{rule} asks for {w!r}, which is not declared" for w in wants if w not in known]
    inputs, outputs = {s.name for s in spec.inputs}, {s.name for s in spec.outputs}
    both = (inputs & outputs) - set(spec.updates)
    if both:
        gaps.append(f"different names of inputs and outputs, not {', '.join(sorted(both))}")
    for out, names in spec.may_overwrite.items():
        if out not in outputs or not set(names) <= inputs:
            gaps.append(f"may_overwrite names {out}: {names}")
    if (
        not set(spec.updates) <= outputs
        or not set(spec.updates.values()) <= inputs
        or not {*spec.dense, *spec.unit, *spec.rounds} <= inputs
    ):
        gaps.append("updates, dense, unit or rounds name an unknown input or output")
    if not set(spec.no_gradient_to) <= inputs or (spec.no_gradient_to and spec.vjp is None):
        gaps.append("no_gradient_to of inputs, together with a vjp")
    if gaps:
        raise AssertionError(f"op {spec.name} needs: {'; '.join(gaps)}")
