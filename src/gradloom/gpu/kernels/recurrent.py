"""A step of an LSTM and its gradient."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for
from .table import Rule, kernel


def _cells(source: str, entry: str, cells: int) -> Rule:
    """cells: the argument of shape [N, H]."""

    def rule(call: Call) -> list[Dispatch]:
        c = call[cells]
        return [Dispatch(("math", source), entry, call.args, groups_for(c.size), (c.shape[1],))]

    return rule


kernel("lstm_cell", "f32", _cells("lstm_cell", "cell", 2))
kernel("lstm_cell_back", "f32", _cells("lstm_cell_back", "cell_back", 3))
