"""Softmax and log_softmax over the last axis, and their gradients."""

from __future__ import annotations

from ..calls import Call, Dispatch, spread
from .table import Rule, kernel


def _rows(call: Call, which: int) -> tuple[int, int]:
    """(elements of a row, rows)."""
    shape = call[which].shape
    width = shape[-1] if shape else 1
    return width, call[which].size // width if width else 0


def _softmax(call: Call) -> list[Dispatch]:
    x, mask, y = call.args
    width, rows = _rows(call, 0)
    logit = "at_1(r * word(0u) + i) * param(2u)"
    if mask.present:
        logit += " + at_2(offset(2u, r * word(0u) + i))"
    defines = {"LOGIT": logit, "RESULT": "exp_(logit(r, i) - s.x) / s.y"}
    args = (y, x, spread(mask, x.shape) if mask.present else mask)
    words = (width, rows, float(call.attrs["scale"]))
    return [Dispatch(("tree", "math", "softmax"), "softmax", args, max(rows, 1), words, defines)]


def _log_softmax(call: Call) -> list[Dispatch]:
    x, y = call.args
    width, rows = _rows(call, 0)
    defines = {"LOGIT": "at_1(r * word(0u) + i)", "RESULT": "keep(logit(r, i) - s.x) - log_(s.y)"}
    return [Dispatch(("tree", "math", "softmax"), "softmax", (y, x), max(rows, 1), (width, rows), defines)]


def _back(term: str, result: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        g, y, dx = call.args
        width, rows = _rows(call, 0)
        words = (width, rows, float(call.attrs.get("scale", 1.0)))
        defines = {"TERM": term, "RESULT": result}
        sources = ("tree", "math", "softmax_back")
        return [Dispatch(sources, "back", (dx, g, y), max(rows, 1), words, defines)]

    return rule


kernel("softmax", "f32", _softmax)
kernel("log_softmax", "f32", _log_softmax)
kernel("softmax_back", "f32", _back("at_1(e) * at_2(e)", "(at_1(e) - sum) * at_2(e) * param(2u)"))
kernel("log_softmax_back", "f32", _back("at_1(e)", "fma(-exp_(at_2(e)), sum, at_1(e))"))
