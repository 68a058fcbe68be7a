"""Names of arrays in state dicts of torch.nn where they differ from ours."""

from __future__ import annotations

from typing import Any

from .attention import MultiheadAttention
from .module import Module


def packed_names(name: str, layer: Module) -> list[str]:
    """The names in our layer of the contents of an array of torch's: three for a packed projection of attention."""
    above, _, last = name.rpartition(".")
    holder: Any = layer
    for one in above.split(".") if above else ():
        holder = getattr(holder, one, None)
    above = f"{above}." if above else ""
    if isinstance(holder, MultiheadAttention) and last.startswith("in_proj_"):
        return [f"{above}{part}.{last.removeprefix('in_proj_')}" for part in ("query", "key", "value")]
    if above.endswith("out_proj."):
        return [f"{above.removesuffix('out_proj.')}out.{last}"]
    return [name]
