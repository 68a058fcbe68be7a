"""Forms: what a model that changes has looked like, and what was compiled for each of its forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..base.collector import paused
from ..graph.scope import located
from ..nn.module import Module, Outline, set_by_forward
from .objective import Objective

OUTLINES = 16  # of a model that changes: so many of its forms keep what was compiled for them

T = TypeVar("T")


class Forms:
    """The outline of an objective's model and loss now, in evaluation and in training, as a number: one for each form.

    What is compiled is kept under that number: it is not used while the model has another form, and is used again when
    the model changes back.
    """

    def __init__(self, objective: Objective, seed: int, dynamic: bool) -> None:
        self._objective, self._seed, self._dynamic = objective, seed, dynamic
        self._outline: dict[bool, Outline] = {False: {}, True: {}}
        self._numbers: dict[Hashable, int] = {}  # of the outlines that were seen, the last one at the end
        self._seen = 0  # how many there were
        self._set_by_forward: set[tuple[Module, str]] = set()  # attributes that ask for no new graph
        self._caches: list[dict[Hashable, Any]] = []
        self.number = {False: 0, True: 0}

    def cache(self) -> dict[Hashable, Any]:
        """A new cache for `cached`; what belongs to a form that was not seen for long leaves it."""
        self._caches.append({})
        return self._caches[-1]

    @paused()
    def look(self, backward: bool) -> None:
        """See what the model is now: what was built for another form of it is not used until it is that again."""
        objective, outline = self._objective, Outline()
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
            self._count(backward)

    def _count(self, backward: bool) -> None:
        key = tuple((at, token) for at, token in self._outline[backward].items() if at not in self._set_by_forward)
        number = self._numbers.pop(key, None)
        if number is None:
            number = self._seen = self._seen + 1
        self.number[backward] = self._numbers[key] = number
        if len(self._numbers) > OUTLINES:
            oldest = self._numbers.pop(next(iter(self._numbers)))
            for cache in self._caches:
                for old in [k for k in cache if isinstance(k, tuple) and k[0] == oldest]:
                    del cache[old]

    def cached(self, cache: dict[Hashable, T], key: Hashable, backward: bool, make: Callable[[], T]) -> T:
        """What was made for this key and the model as it is; made now, if there is nothing yet."""
        known = cache.get((self.number[backward], key))
        if known is not None:
            return known
        self.look(backward)  # it may have changed since the pass began
        known = cache.get((self.number[backward], key))
        if known is None:
            before = self._outline[backward]
            with paused(), located():
                known = make()
            self.look(backward)
            own = set_by_forward(before, self._outline[backward]) - self._set_by_forward
            if own:
                self._set_by_forward |= own
                self._count(backward)
            cache[self.number[backward], key] = known
        return known
