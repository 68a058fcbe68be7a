"""Layer, RMS and batch norm, and their gradients."""

from __future__ import annotations

import math

from ..calls import Call, Dispatch
from .table import Rule, kernel


def _rows(source: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x = call[0]
        width = x.shape[-1]
        words = (width, float(call.attrs["eps"]))
        name = call.node.op.name
        return [Dispatch(("tree", "stats", source), name, call.args, x.size // width, words)] if x.size else []

    return rule


def _channels(call: Call) -> list[Dispatch]:
    images, channels, *pixels = call[0].shape
    words = (images * math.prod(pixels), channels, math.prod(pixels), float(call.attrs["eps"]))
    name = call.node.op.name
    return [Dispatch(("tree", "stats", name), name, call.args, channels, words)]


for _name in ("layer_norm", "rms_norm"):
    kernel(_name, "f32", _rows("norm"))
    kernel(f"{_name}_back", "f32", _rows("norm_back"))
for _name in ("batch_norm", "batch_norm_back"):
    kernel(_name, "f32", _channels)
