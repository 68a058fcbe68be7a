"""Max and average pools of images, and their gradients."""

from __future__ import annotations

from ..calls import Arg, Call, Dispatch, groups_for
from .table import kernel


def _words(call: Call, x: Arg, y: Arg) -> tuple[int, ...]:
    """The words of wgsl/pool.wgsl, for images x and windows y."""
    return (*x.shape[2:], *y.shape[2:], *(n for name in ("kernel", "stride", "padding") for n in call.attrs[name]))


def _max(call: Call) -> list[Dispatch]:
    x, y, _ = call.args
    groups = groups_for(-(-y.size // 4))
    return [Dispatch(("pool", "max_pool"), "max_pool", call.args, groups, _words(call, x, y))] if y.size else []


def _back(call: Call) -> list[Dispatch]:
    """(g, index) -> dx, or g -> dx."""
    g, dx = call[0], call.args[-1]
    source, entry = (
        ("max_pool_back", "max_pool_back") if call.node.op.name == "max_pool2d_back" else ("avg_pool", "avg_pool_back")
    )
    groups = groups_for(dx.size)
    return [Dispatch(("pool", source), entry, call.args, groups, _words(call, dx, g))] if dx.size else []


def _average(call: Call) -> list[Dispatch]:
    x, y = call.args
    groups = groups_for(y.size)
    return [Dispatch(("pool", "avg_pool"), "avg_pool", call.args, groups, _words(call, x, y))] if y.size else []


kernel("max_pool2d", "f32_u8", _max)
kernel("max_pool2d_back", "f32_u8_f32", _back)
kernel("avg_pool2d", "f32", _average)
kernel("avg_pool2d_back", "f32", _back)
