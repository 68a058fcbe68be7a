"""The op table of docs/ops.md, printed from the registry: `python -m gradloom.ops.table > docs/ops.md`."""

from __future__ import annotations

import inspect
import sys

from ..graph.declaration import Attr, Slot
from ..graph.opspec import REGISTRY, OpSpec

HEAD = """# Ops

Printed from the registry by `python -m gradloom.ops.table`; a test keeps it so. `b?` is optional; names after `|`
repeat as groups. *in place*: inputs whose buffer the first output (or the one named) may take. *bf16*: inputs that
`precision="bf16"` rounds. The functions of `gradloom.ops` are these ops, some with friendlier arguments (negative axes,
numbers for pairs, weights and biases), and compositions of them, listed at the end.

Functions with `axis=` or `axes=` take `axis=`, `axes=`, `dim=` and `dims=`, those with `keepdims=` also `keepdim=`.

Ops compute in f32: i32 values are converted, and whole numbers beyond 2^24 = 16777216 are rounded then, also in
comparisons, `argmax`, `max`, `remainder` and `where`. `gather`, `sort`, `argsort`, indexing, and `equal` and
`not_equal` of two i32 values keep them. `cast` to i32 of a number beyond its range, or of NaN, is -2147483648.
"""


def _slots(slots: tuple[Slot, ...]) -> str:
    fixed = [s.name + "?" * s.optional for s in slots if not s.repeated]
    groups = [s.name + "?" * s.optional for s in slots if s.repeated]
    return " ".join([*fixed, *(["\\|", *groups] if groups else [])])


def attribute_text(attr: Attr) -> str:
    kind = " or ".join(attr.choices) or attr.kind
    if attr.default is inspect.Parameter.empty:
        return f"{attr.name}: {kind}"
    default = list(attr.default) if isinstance(attr.default, tuple) else attr.default
    return f"{attr.name}: {kind} = {default}"


def gradient_text(spec: OpSpec) -> str:
    if spec.vjp is None:
        return f"no: {spec.no_gradient}"
    return "; ".join(["yes", *(f"none to {name}: {why}" for name, why in spec.no_gradient_to.items())])


def _in_place(spec: OpSpec) -> str:
    if spec.view is not None:
        return "a view"
    if spec.updates:
        return "writes " + ", ".join(dict.fromkeys(spec.updates.values()))
    parts = []
    for out, names in spec.may_overwrite.items():
        parts.append((f"{out}: " if out != spec.outputs[0].name else "") + " ".join(names))
    return ", ".join(parts)


def _compositions() -> list[str]:
    """The public functions that are no ops: a row each, with signature and first paragraph."""
    from .. import ops

    rows = []
    for name in ops.__all__:
        function = getattr(ops, name)
        if name in REGISTRY or isinstance(function, OpSpec):
            continue
        empty = inspect.Parameter.empty
        given = [p.replace(annotation=empty) for p in inspect.signature(function).parameters.values()]
        about = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| {name}{inspect.Signature(given)} | {about} |")
    return rows


def op_table() -> str:
    """All ops as Markdown, a table per family, and the functions that are compositions of them."""
    families: dict[str, list[OpSpec]] = {}
    for spec in REGISTRY.values():
        families.setdefault(spec.family, []).append(spec)
    lines = [HEAD]
    for family, specs in families.items():
        lines += [
            f"## {family}",
            "",
            "| op | inputs -> outputs | attributes || formula | gradient | in place | bf16 |",
        ]
        lines.append("|---|---|---|---|---|---|---|")
        for s in specs:
            flow = f"{_slots(s.inputs)} -> {_slots(s.outputs)}".strip()
            what = s.doc.replace("|", "\\|")
            cells = (
                s.name,
                flow,
                ", ".join(map(attribute_text, s.attrs)),
                what,
                gradient_text(s),
                _in_place(s),
                " ".join(s.rounds),
            )
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Functions that are compositions", "", "| function | result |", "|---|---|", *_compositions(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    import gradloom.ops  # noqa: F401 (fills the registry)

    sys.stdout.write(op_table())
