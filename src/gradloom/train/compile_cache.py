"""CompileCache: compiled programs, keyed by the structure of a model that may change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from ..base.collector import paused
from ..graph.scope import located
from ..nn.module import Module, Outline, set_by_forward
from .objective import Objective

MAX_STRUCTURES = 16  # structures of one model whose programs are kept

T = TypeVar("T")


class CompileCache:
    """Tables of compiled programs. Each entry belongs to the structure of model and loss that it was compiled for.

    objective  None: the structure never changes
    .version  the number of the structure in evaluation (False) and in training (True): equal numbers, equal structure.
              A model that changes back finds the programs of its earlier structure
    """

    def __init__(self, objective: Objective | None, seed: int, dynamic: bool) -> None:
        self._objective, self._seed, self._dynamic = objective, seed, dynamic
        self._outline: dict[bool, Outline] = {False: {}, True: {}}
        self._versions: dict[Hashable, int] = {}  # of the known outlines, the latest at the end
        self._count = 0  # of all outlines so far
        self._set_by_forward: set[tuple[Module, str]] = set()  # attributes that require no new graph
        self._tables: list[dict[Hashable, Any]] = []
        self._new: list[tuple[dict[Hashable, Any], Hashable]] | None = None  # entries since `trying` began
        self.version = {False: 0, True: 0}

    def table(self) -> dict[Hashable, Any]:
        """A new table for `get`. Entries of structures that were not used for long leave it."""
        self._tables.append({})
        return self._tables[-1]

    @contextlib.contextmanager
    def trying(self) -> Iterator[Callable[[], None]]:
        """Inside, entries are made to be dropped: by the function that this gives."""
        new: list[tuple[dict[Hashable, Any], Hashable]] = []
        self._new = new

        def drop() -> None:
            for table, key in new:
                table.pop(key, None)
            new.clear()

        try:
            yield drop
        finally:
            self._new = None

    @paused()
    def refresh(self, backward: bool) -> None:
        """Read the structure of the model and the loss; parameters that are new join the optimiser."""
        objective, outline = self._objective, Outline()
        if objective is None:
            return
        if isinstance(objective.model, Module):
            with objective.mode(backward):
                outline |= objective.model.outline()
        if isinstance(objective.loss, Module):
            outline |= objective.loss.outline()
        if outline == self._outline[backward]:
            return
        self._outline[backward] = outline
        if isinstance(objective.model, Module):
            objective.model.ensure_init(self._seed)
            if objective.state.chosen is None:
                objective.state.follow(objective.named())
        if not self._dynamic:
            self._set_version(backward)

    def _set_version(self, backward: bool) -> None:
        key = tuple((at, token) for at, token in self._outline[backward].items() if at not in self._set_by_forward)
        version = self._versions.pop(key, None)
        if version is None:
            version = self._count = self._count + 1
        self.version[backward] = self._versions[key] = version
        if len(self._versions) > MAX_STRUCTURES:
            oldest = self._versions.pop(next(iter(self._versions)))
            for table in self._tables:
                for old in [k for k in table if isinstance(k, tuple) and k[0] == oldest]:
                    del table[old]

    def get(self, table: dict[Hashable, T], key: Hashable, backward: bool, make: Callable[[], T]) -> T:
        """The entry of this key for the model's present structure; built if it is absent."""
        known = table.get((self.version[backward], key))
        if known is not None:
            return known
        self.refresh(backward)  # the model may have changed since the pass began
        known = table.get((self.version[backward], key))
        if known is None:
            before = self._outline[backward]
            with paused(), located():
                known = make()
            self.refresh(backward)
            own = set_by_forward(before, self._outline[backward]) - self._set_by_forward
            if own:
                self._set_by_forward |= own
                self._set_version(backward)
            table[self.version[backward], key] = known
            if self._new is not None:
                self._new.append((table, (self.version[backward], key)))
        return known
