"""Exchange: ranks (or replicas) sum up the results of their micro-batches, and all take the same step on the sum.

micro-batch j on rank j mod N -> one flat f32 array: gradients of the loss sum, next values of buffers (running
                                 statistics), loss sum, weight, and pieces for results
fold over j = 0, 1, 2, ...    -> the sum, the same bits on all ranks for any number of ranks
one program on the sum        -> guard, clipping, update, buffers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import NotFinite
from ..graph.leaves import Parameter
from ..graph.stored import bring_home
from ..graph.value import Value
from ..optim.state import OptimizerState
from ..parallel.communicator import Communicator, Reduction
from ..parallel.flat import FlatArrays
from ..run.diagnose import OVERFLOW
from .step import end_step


class Exchange:
    """The flat array of a micro-batch, and then of the step.

    parameters  those with a gradient; buffers: those that a micro-batch computes a next value of
    pieces      name -> shape of f32 numbers that are summed with them and that no program reads: see `numbers`.
                "reached" [parameters + buffers] is 1 where a micro-batch has a value for each
    exchange    "ordered": summed in the order of the micro-batches; "fast": in the quickest order
    """

    def __init__(
        self,
        ranks: Communicator,
        parameters: Iterable[Parameter],
        buffers: Iterable[Parameter],
        pieces: Mapping[str, tuple[int, ...]],
        exchange: str,
    ) -> None:
        self.ranks, self.parameters, self.buffers = ranks, tuple(parameters), tuple(buffers)
        laid: list[tuple[str, tuple[int, ...]]] = [(f"{p.stored.name}.grad", p.shape) for p in self.parameters]
        laid += [(f"{p.stored.name}.next", p.shape) for p in self.buffers]
        laid += [("loss", ()), ("weight", ()), *pieces.items()]
        self.flat = FlatArrays(laid)
        self._ordered = exchange == "ordered"
        self._reduction: Reduction | None = None
        self._programs = self.flat.values[: len(laid) - len(pieces)]  # what programs read and write
        first = len(self._programs)
        self._loss, self._weight = self.flat.pieces[first - 2 : first]
        self.numbers = dict(zip(pieces, self.flat.pieces[first:], strict=True))

    def join(self) -> Exchange:
        """Connect to the other ranks; all call it together."""
        self._reduction = self.ranks.reduction(self.flat.whole.size, self._ordered)
        return self

    @property
    def reduction_bytes(self) -> int:
        """Bytes of the sum's own buffers on this rank."""
        return 0 if self._reduction is None else self._reduction.bytes

    @property
    def mean_loss(self) -> float:
        """The sum of losses / the sum of weights, after `fold`; 0 without any weight."""
        return float(self._loss / self._weight) if self._weight != 0 else 0.0

    @property
    def reached(self) -> tuple[float, ...] | None:
        """Micro-batches of the last sum with a value for each parameter and buffer; None where they are not counted."""
        counts = self.numbers.get("reached")
        return None if counts is None else tuple(counts.tolist())

    @property
    def updated(self) -> tuple[Parameter, ...]:
        """The parameters that a step on the last sum updates."""
        reached = self.reached
        return (
            self.parameters
            if reached is None
            else tuple(p for p, n in zip(self.parameters, reached, strict=False) if n)
        )

    def collect(self, values: Sequence[Value | None]) -> tuple[Value, ...]:
        """Updates that write a micro-batch's gradients, next values of buffers, loss sum and weight to the flat array,
        and zeros for None."""
        pairs = list(zip(self._programs, values, strict=True))
        updates = ops.assign(*(v for piece, new in pairs if new is not None for v in (piece, new)))
        absent = [piece for piece, new in pairs if new is None]
        return updates + ops.zero(*absent) if absent else updates

    def _fetch(self) -> None:
        """Copy what a device has computed to the flat array."""
        bring_home(self.flat.stored)

    def spoil(self) -> None:
        """Mark this micro-batch as not finite: the guard on the sum trips, on all ranks."""
        self._fetch()
        self._loss[...] = np.nan

    def run(self, program: Any, settings: Mapping[str, Any]) -> list[np.ndarray] | None:
        """The outputs of the program of a micro-batch; None, and `spoil`, where it is not finite (with check 2)."""
        try:
            return program.run_many(1, settings)[1]
        except NotFinite:
            self.spoil()
            return None

    def fold(self, count: int, compute: Callable[[int], object]) -> None:
        """The sum over micro-batches 0 .. count - 1; compute(j) fills the flat array with one of this rank."""
        ranks, reduction = self.ranks, self._reduction
        assert reduction is not None
        for first in range(0, count, ranks.size):
            j = first + ranks.rank
            if j < count:
                compute(j)
                self._fetch()
                reduction.add(self.flat.whole)
            else:
                reduction.add(None)
        reduction.finish(self.flat.whole)
        for stored in self.flat.stored:  # for copies on a device
            stored.version += 1

    def ending(
        self,
        state: OptimizerState,
        *,
        divisor: Value | None = None,
        max_norm: float = math.inf,
        max_value: float = math.inf,
        reached: Sequence[float] | None = None,
    ) -> tuple[list[Value], tuple[Value, ...]]:
        """(norms, updates) of the program on the sum. norms, divisor: see end_step. reached: micro-batches with a value
        for each parameter and buffer; without it the buffers' values are shares, whose sum is their mean."""
        *pieces, loss, weight = self._programs
        targets = (*self.parameters, *self.buffers)
        counts = [1.0] * len(targets) if reached is None else reached
        many = len(self.parameters)
        gathered = [(p, piece, float(n)) for p, piece, n in zip(targets, pieces, counts, strict=True)]
        trained = [(p, piece) for p, piece, n in gathered[:many] if n]
        norms, written = end_step(
            state, [p for p, _ in trained], [piece for _, piece in trained], loss, weight,
            divisor=divisor, max_norm=max_norm, max_value=max_value,
        )  # fmt: skip
        means = [
            (p, piece if reached is None else ops.scale(piece, factor=1 / n)) for p, piece, n in gathered[many:] if n
        ]
        if means:
            written += ops.assign(*(v for pair in means for v in pair))
        return norms, written

    def cause(self, count: int, compute: Callable[[int], object], diagnose: Callable[[int], str]) -> str:
        """Why the guard tripped, the same on all ranks: each computes its micro-batches again up to the first one that
        is not finite, whose cause is diagnose(j)."""
        ranks = self.ranks
        mine: tuple[int, str] | None = None
        for j in range(ranks.rank, count, ranks.size):
            compute(j)
            self._fetch()
            if not np.isfinite(self.flat.whole).all():
                mine = j, diagnose(j)
                break
        causes = [cause for cause in ranks.gather(mine) if cause is not None]
        return min(causes)[1] if causes else OVERFLOW
