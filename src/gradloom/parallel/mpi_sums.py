"""Sums over MPI ranks: folded in the order of the micro-batches, or local sums and one allreduce."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from .communicator import BUCKET_BYTES, LocalSum, Reduction, shard


class RankGroup(Protocol):
    """What a sum needs of an MpiRank."""

    rank: int
    size: int
    others: list[int]  # the ranks of the group but this one
    mpi: Any  # the module mpi4py.MPI
    world: Any  # MPI's communicator

    def check(self, what: str, checksum: object) -> None:
        """TrainError unless all ranks have the same."""

    def call(self, name: str) -> AbstractContextManager[None]:
        """Around a call that all ranks make together."""

    def wait(self, requests: list[Any], *buffers: Any, statuses: list[Any] | None = None) -> None:
        """Until MPI is done with the requests."""


class OrderedSum(Reduction):
    """Each rank owns a stretch of the sum: it gets that stretch of everybody's arrays, bucket by bucket, and folds.

    An empty message means that its sender has no micro-batch in this round.
    """

    def __init__(self, ranks: RankGroup, elements: int) -> None:
        super().__init__(elements, True)
        self._ranks = ranks
        self._stretches = [shard(self.elements, r, ranks.size) for r in range(ranks.size)]
        begin, end = self._stretches[ranks.rank]
        longest = max(e - b for b, e in self._stretches)
        self._bucket = min(BUCKET_BYTES // 4, max(longest, 1))
        self._buckets = -(-longest // self._bucket)
        self._total = np.empty(end - begin, np.float32)
        room = min(self._bucket, end - begin)
        self._theirs = np.empty((2, ranks.size, room), np.float32)  # this bucket and the next
        self._out: np.ndarray | None = None  # allocated at the first access
        self._nothing = np.empty(0, np.float32)
        ranks.check("the number of elements to add up", elements)

    @property
    def bytes(self) -> int:
        return self._total.nbytes + self._theirs.nbytes + (0 if self._out is None else self._out.nbytes)

    def add(self, mine: np.ndarray | None) -> None:
        if mine is not None:
            mine = self.checked_flat(mine, "the contribution")
        ranks = self._ranks
        with ranks.call("add"):
            anything = self.has_terms
            ahead = self._exchange(0, mine)
            for bucket in range(self._buckets):
                requests, senders = ahead
                if bucket + 1 < self._buckets:
                    ahead = self._exchange(bucket + 1, mine)
                statuses = [ranks.mpi.Status() for _ in requests]
                ranks.wait(requests, mine, self._theirs, statuses=statuses)
                given = {r for r, status in zip(senders, statuses, strict=False) if status.Get_count(ranks.mpi.FLOAT)}
                anything = self._fold(bucket, mine, given)
            self.has_terms = anything

    def _part(self, rank: int, bucket: int) -> slice:
        """The elements of the whole sum that are this bucket of a rank's stretch."""
        begin, end = self._stretches[rank]
        return slice(min(begin + bucket * self._bucket, end), min(begin + (bucket + 1) * self._bucket, end))

    def _exchange(self, bucket: int, mine: np.ndarray | None) -> tuple[list[Any], list[int]]:
        """Start to send everybody his part of `mine` and to get this rank's part from all: (requests, senders)."""
        ranks, world = self._ranks, self._ranks.world
        part = self._part(ranks.rank, bucket)
        room = self._theirs[bucket % 2, :, : part.stop - part.start]
        senders = ranks.others if room.size else []
        requests = [world.Irecv(room[r], source=r, tag=bucket % 2) for r in senders]
        for r in ranks.others:
            theirs = self._part(r, bucket)
            if theirs.stop > theirs.start:
                data = self._nothing if mine is None else mine[theirs]
                requests.append(world.Isend(data, dest=r, tag=bucket % 2))
        return requests, senders

    def _fold(self, bucket: int, mine: np.ndarray | None, given: set[int]) -> bool:
        """Add the terms of this bucket in the order of ranks; True when the sum has a term."""
        ranks = self._ranks
        part = self._part(ranks.rank, bucket)
        total = self._total[bucket * self._bucket :][: part.stop - part.start]
        anything = self.has_terms
        for rank in range(ranks.size):
            if rank == ranks.rank:
                term = None if mine is None else mine[part]
            else:
                term = self._theirs[bucket % 2, rank, : total.size] if rank in given else None
            if term is not None:
                np.add(total, term, out=total) if anything else np.copyto(total, term)
                anything = True
        return anything

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        ranks = self._ranks
        if out is not None:
            out = self.checked_flat(out, "out")
        else:
            out = self._out = np.empty(self.elements, np.float32) if self._out is None else self._out
        begin, end = self._stretches[ranks.rank]
        out[begin:end] = self._total if self.has_terms else 0
        self.has_terms = False
        with ranks.call("finish"):
            sizes, begins = [e - b for b, e in self._stretches], [b for b, _ in self._stretches]
            whole = [out, sizes, begins, ranks.mpi.FLOAT]
            ranks.wait([ranks.world.Iallgatherv(ranks.mpi.IN_PLACE, whole)], out)
        return out


class FastSum(Reduction):
    """Local sums, and one allreduce of MPI at the end."""

    def __init__(self, ranks: RankGroup, elements: int) -> None:
        super().__init__(elements, False)
        self._ranks = ranks
        self._local = LocalSum(self.elements)
        ranks.check("the number of elements to add up", elements)

    @property
    def bytes(self) -> int:
        return self._local.bytes

    def add(self, mine: np.ndarray | None) -> None:
        self._local.add(mine)

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        out = self._local.finish(out)
        ranks, step = self._ranks, 4 * BUCKET_BYTES  # elements: MPI cuts them further
        with ranks.call("finish"):
            for begin in range(0, self.elements, step):
                piece = out[begin : begin + step]
                ranks.wait([ranks.world.Iallreduce(ranks.mpi.IN_PLACE, piece)], piece)
        return out
