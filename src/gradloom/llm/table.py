"""Table of all tensors of a model: trained or frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.memory import show_bytes
from .head import HEAD

if TYPE_CHECKING:
    from .model import Adapter, Model


def training_table(model: Model, adapter: Adapter) -> str:
    """One line for each kind of tensor, with its layers, then the sums. Binds the adapter to the model."""
    adapter.bind(model)
    trained = adapter.parameters()
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for name, tensor in model.file.tensors.items():
        layer, short = _layer(name)
        shape = "x".join(map(str, tensor.shape))
        row = (short, shape, tensor.kind, _state(name, tensor.kind, adapter))
        groups.setdefault(row, []).append(layer)
    rows = [("tensor", "shape", "type", "layers", "trains")]
    rows += [(name, shape, kind, _ranges(layers), state) for (name, shape, kind, state), layers in groups.items()]
    if (head := trained.get(HEAD)) is not None:
        rows.append(("head", "x".join(map(str, head.shape)), "f32", "", "yes"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
    count, size = sum(p.size for p in trained.values()), sum(p.bytes for p in trained.values())
    frozen = [n for n in model.file.tensors if adapter.weight(n) is None]
    frozen_size = sum(model.file.tensors[n].bytes for n in frozen)
    lines.append(f"trains: {count:,} parameters in {len(trained)} arrays, {show_bytes(size)}")
    lines.append(
        f"frozen: {sum(_size(model.file.tensors[n].shape) for n in frozen):,} parameters in {len(frozen)} tensors, "
        f"{show_bytes(frozen_size)} mapped"
    )
    return "\n".join([*lines, *model.notes])


def _state(name: str, kind: str, adapter: Adapter) -> str:
    """State of a tensor: "yes" (trained), "frozen", or its LoRA."""
    trained = adapter.parameters()
    if adapter.weight(name) is not None:
        return "yes" if kind == "f32" else "yes, as an f32 copy"
    a, b = trained.get(f"{name}.lora_a"), trained.get(f"{name}.lora_b")
    return "frozen" if a is None or b is None else f"LoRA of rank {b.shape[1]}, {a.size + b.size:,} parameters each"


def _layer(name: str) -> tuple[int, str]:
    """(layer, name in it); -1 for tensors outside of layers."""
    parts = name.removesuffix(".weight").split(".", 2)
    return (int(parts[1]), parts[2]) if parts[0] == "blk" else (-1, name.removesuffix(".weight"))


def _ranges(layers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> 0-2, 5."""
    spans: list[list[int]] = []
    for layer in sorted(layers):
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in spans if a >= 0)


def _size(shape: Sequence[int]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n
