"""Schedules: settings that change while a model is trained. Any number of any optimiser may be one.

A schedule is a function of the step (optimiser steps done, from 0) and the epoch (from 0); a function of your own is as
good. `value` is the highest rate; `warmup` steps before it is reached grow linearly; later steps count from there.

    gl.optim.AdamW(lr=gl.optim.schedules.Cosine(1e-3, steps=1000, warmup=50))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import f32_hint, in_f32
from ..base.errors import SettingError
from ..base.habits import KeywordHints, missing_name

Memory = dict[str, float]


class Warming(KeywordHints):
    """Base: value * (step + 1) / warmup for the first `warmup` steps, value * share(...) from then on.

    by: "step" counts optimiser steps after the warm-up, "epoch" passes over the data.
    """

    def __init__(self, value: float, *, warmup: int = 0, by: str = "step", **shown: Any) -> None:
        self.value = self._number("value", value)
        self.warmup = self._count("warmup", warmup, 0)
        if by not in ("step", "epoch"):
            raise SettingError(setting="by", seen=by, need="step or epoch", place=type(self).__name__)
        self.by = by
        self._shown = {**shown, "warmup": self.warmup, "by": by}

    def __call__(self, step: int, epoch: int) -> float:
        if step < self.warmup:
            return self.value * (step + 1) / self.warmup
        return self.value * self.share(step - self.warmup if self.by == "step" else epoch)

    def share(self, at: int) -> float:
        """The rest of the value after `at` steps or epochs."""
        return 1.0

    def _number(self, name: str, value: float, low: float = 0.0, high: float = math.inf) -> float:
        usable = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        usable = usable and low <= value < high and in_f32(value) < math.inf
        if not usable:
            need = "a finite number of at least 0" if high == math.inf else f"at least {low:g} and below {high:g}"
            need += f32_hint(value)
            raise SettingError(setting=name, seen=value, need=need, place=type(self).__name__)
        return float(value)

    def _count(self, name: str, value: int, least: int) -> int:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
            need = f"a whole number of at least {least}"
            raise SettingError(setting=name, seen=value, need=need, place=type(self).__name__)
        return int(value)

    def __repr__(self) -> str:
        plain = {"warmup": 0, "by": "step"}
        shown = [f"{name}={value!r}" for name, value in self._shown.items() if plain.get(name) != value]
        return f"{type(self).__name__}({', '.join([f'{self.value:g}', *shown])})"


class Constant(Warming):
    """The value, after the warm-up."""

    def __init__(self, value: float, *, warmup: int = 0) -> None:
        super().__init__(value, warmup=warmup)


class _Ending(Warming):
    """From the value to `final`, which is reached after `steps` steps (or epochs, by="epoch"), and stays."""

    def __init__(self, value: float, steps: int, final: float = 0.0, *, warmup: int = 0, by: str = "step") -> None:
        steps = self._count("steps", steps, 1)
        super().__init__(value, steps=steps, final=final, warmup=warmup, by=by)
        self.steps, self.final = steps, self._number("final", final)
        if by == "step" and self.warmup >= steps:
            sizes = {"warmup": warmup, "steps": steps}
            raise SettingError("{warmup} must be less than {steps}", sizes, place=type(self).__name__)
        self._length = steps - self.warmup if by == "step" else steps

    def __call__(self, step: int, epoch: int) -> float:
        if step < self.warmup:
            return self.value * (step + 1) / self.warmup
        at = step - self.warmup if self.by == "step" else epoch
        return self.final + (self.value - self.final) * self.share(at)


class Linear(_Ending):
    """In a straight line to `final` (0), reached after `steps` steps, those of the warm-up included."""

    def share(self, at: int) -> float:
        return 1.0 - min(at / self._length, 1.0)


class Cosine(_Ending):
    """Half a cosine down to `final` (0), reached after `steps` steps, those of the warm-up included.

    Loshchilov and Hutter, arXiv 1608.03983, without restarts.
    """

    def share(self, at: int) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * min(at / self._length, 1.0)))


class Step(Warming):
    """value * factor^k after k * every steps (or epochs)."""

    def __init__(self, value: float, every: int, factor: float = 0.1, *, warmup: int = 0, by: str = "step") -> None:
        super().__init__(value, every=every, factor=factor, warmup=warmup, by=by)
        self.every, self.factor = self._count("every", every, 1), self._number("factor", factor)

    def share(self, at: int) -> float:
        return self.factor ** (at // self.every)


class Exponential(Warming):
    """value * factor^k after k steps (or epochs)."""

    def __init__(self, value: float, factor: float, *, warmup: int = 0, by: str = "step") -> None:
        super().__init__(value, factor=factor, warmup=warmup, by=by)
        self.factor = self._number("factor", factor)

    def share(self, at: int) -> float:
        return self.factor**at


class Plateau(Warming):
    """The value, times `factor` each time the loss has not improved for more than `patience` epochs; PyTorch's rule.

    Improved is a loss below best * (1 - threshold). After a reduction, `cooldown` epochs are not judged. It never goes
    below `minimum`. `fit` and `finetune` report each epoch's loss to it, of validation if there is one, else of
    training; in a loop of your own call optimizer.observe(loss). Observed losses belong to the optimiser's state: it is
    saved with it, and one schedule may serve several trainings."""

    def __init__(
        self,
        value: float,
        factor: float = 0.1,
        patience: int = 10,
        *,
        threshold: float = 1e-4,
        cooldown: int = 0,
        minimum: float = 0.0,
        warmup: int = 0,
    ) -> None:
        super().__init__(value, factor=factor, patience=patience, warmup=warmup)
        self.factor, self.patience = self._number("factor", factor, 0.0, 1.0), self._count("patience", patience, 0)
        self.threshold, self.cooldown = (
            self._number("threshold", threshold, 0.0, 1.0),
            self._count("cooldown", cooldown, 0),
        )
        self.minimum = self._number("minimum", minimum)
        for name, number, usual in (
            ("threshold", self.threshold, 1e-4), ("cooldown", self.cooldown, 0), ("minimum", self.minimum, 0.0)
        ):  # fmt: skip
            if number != usual:
                self._shown[name] = number

    def remember(self) -> Memory:
        """Its state before the first epoch."""
        return {"rate": self.value, "best": math.inf, "bad": 0, "cooling": 0}

    def observe(self, memory: Memory, loss: float) -> None:
        """An epoch has ended with this loss; NaN is no improvement."""
        if loss < memory["best"] * (1.0 - self.threshold) or (memory["best"] == math.inf and loss < math.inf):
            memory["best"], memory["bad"] = float(loss), 0
        else:
            memory["bad"] += 1
        if memory["cooling"] > 0:
            memory["cooling"] -= 1
            memory["bad"] = 0
        if memory["bad"] > self.patience:
            memory["rate"] = max(memory["rate"] * self.factor, self.minimum)
            memory["cooling"], memory["bad"] = self.cooldown, 0

    def recall(self, memory: Memory, step: int, epoch: int) -> float:
        """The rate of a step, given the losses so far."""
        return memory["rate"] * ((step + 1) / self.warmup if step < self.warmup else 1.0)


def check_warmup(settings: Mapping[str, Any], steps: int) -> None:
    """SettingError for a schedule whose warm-up does not end in a training of this number of steps: its value would
    never be reached. settings: of an optimiser, by name."""
    for name, value in settings.items():
        if isinstance(value, Warming) and 0 < steps <= value.warmup - 1:
            text = f"{{warmup}} exceeds the {steps} steps of the training"
            raise SettingError(text, warmup=value.warmup, place=name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
