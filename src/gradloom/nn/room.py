"""Memory check before parameters are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.errors import BackendError
from ..base.memory import need_memory, show_bytes
from ..graph.leaves import Parameter
from ..graph.value import describe

_SMALL = 1 << 28  # bytes of parameters up to which the free memory is not measured


def need_room(what: str, parameters: Sequence[Parameter]) -> None:
    """BackendError, before anything is allocated, where the free memory does not hold these parameters, of which each
    is drawn in float64 first. what: the model, for the message."""
    largest = max(parameters, key=lambda p: p.bytes, default=None)
    if largest is None:
        return
    need = sum(p.bytes for p in parameters if not p.stored.initialised) + 2 * largest.bytes
    if need > _SMALL:
        seen = f"{what}: {sum(p.size for p in parameters):,} parameters, the largest {describe(largest)}"
        need_memory(need, f"{seen}, need {show_bytes(need)} of memory", "need smaller layers", BackendError)
