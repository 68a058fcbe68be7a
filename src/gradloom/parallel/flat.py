"""FlatArrays: many arrays that lie in one, so that they can be exchanged as one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..base.aligned import ALIGNMENT, aligned_zeros
from ..base.dtypes import f32
from ..base.errors import GraphError, ShapeError
from ..graph.graph import reachable, update_target
from ..graph.leaves import Parameter, stored_value
from ..graph.stored import Stored
from ..graph.value import Value

_GRAIN = ALIGNMENT // 4  # numbers of f32 per cache line


class FlatArrays:
    """One f32 array, `.whole` [n], and the pieces of it that stand for arrays of their own.

    pieces     pairs (name, shape); piece i starts on a cache line, gaps between pieces are 0 and stay so
    .whole     f32 [n], n a multiple of 16
    .pieces    piece i as an array, a view of .whole
    .stored    piece i as a Stored, .values piece i as a value for graphs: what a program writes there is seen in .whole
    .offsets   where piece i begins in .whole
    Raises ShapeError for a negative extent.
    """

    def __init__(self, pieces: Iterable[tuple[str, Sequence[int]]]) -> None:
        named = [(name, tuple(int(n) for n in shape)) for name, shape in pieces]
        self.names = [name for name, _ in named]
        self.offsets: list[int] = []
        total = 0
        for name, shape in named:
            if min(shape, default=0) < 0:
                raise ShapeError(f"{name}: shape {list(shape)}; need extents of at least 0")
            self.offsets.append(total)
            total += -(-math.prod(shape) // _GRAIN) * _GRAIN
        self.whole = aligned_zeros((total,), f32.numpy)
        cuts = zip(named, self.offsets, strict=True)
        self.pieces = [self.whole[start : start + math.prod(shape)].reshape(shape) for (_, shape), start in cuts]
        self.stored = [Stored.wrap(name, piece, "state") for (name, _), piece in zip(named, self.pieces, strict=True)]
        self.values: list[Parameter] = [stored_value(s) for s in self.stored]

    def __len__(self) -> int:
        return len(self.stored)

    def __repr__(self) -> str:
        return f"FlatArrays({len(self)} pieces, {self.whole.size} numbers)"


def take_effects(values: Sequence[Value]) -> dict[Stored, Value]:
    """Remove the updates of buffers (running statistics) from the graph of these values: buffer -> its new value.

    So the graph can be run without writing there. Raises GraphError for an update that is no single assign.
    """
    taken: dict[Stored, Value] = {}
    for node in reachable(values, effects=True):
        effects, node.effects = node.effects, ()
        for value in effects:
            target = update_target(value)
            if target is None:
                continue
            if value.node.op.name != "assign" or not isinstance(target, Parameter) or target.stored in taken:
                raise GraphError(
                    f"{node.op.name} {node.label}: its {value.node.op.name} of {target.node.label} cannot be averaged "
                    "over micro-batches; need one assign for each buffer"
                )
            new = value.node.inputs[2 * value.index + 1]
            assert new is not None
            taken[target.stored] = new
    return taken
