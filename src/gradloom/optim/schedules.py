"""Schedules: settings that change while a model is trained. Any number of any optimiser may be one.

A schedule is a function of the step (optimiser steps done, from 0) and the epoch (from 0); a function of your own is as
good. `value` is the highest rate; `warmup` steps before it is reached grow linearly; later steps count from there.

    gl.optim.AdamW(lr=gl.optim.schedules.Cosine(1e-3, steps=1000, warmup=50))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, f32_hint, in_f32
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


class Polynomial(_Ending):
    """final + (value - final) * (1 - t / steps)^power down to `final` (0), reached after `steps` steps, those of the
    warm-up included: torch's PolynomialLR, and with `final` transformers' get_polynomial_decay_schedule_with_warmup.
    """

    def __init__(
        self, value: float, steps: int, power: float = 1.0, final: float = 0.0, *, warmup: int = 0, by: str = "step"
    ) -> None:
        super().__init__(value, steps, final, warmup=warmup, by=by)
        self.power = self._number("power", power)
        self._shown = {"steps": self.steps, "power": self.power, **self._shown}

    def share(self, at: int) -> float:
        return (1.0 - min(at / self._length, 1.0)) ** self.power


class WarmupStableDecay(_Ending):
    """The value until the last `decay` of `steps` steps, then down to `final` (0), which stays: WSD.

    Hu et al., MiniCPM, arXiv 2404.06395; Haegele et al., arXiv 2405.18392. decay_type: the form of the descent from 1
    to 0 as a function of its share p: "cosine" 0.5 (1 + cos(pi p)), "linear" 1 - p, or "1-sqrt" 1 - sqrt(p), as in
    transformers' get_wsd_schedule.
    """

    def __init__(
        self, value: float, steps: int, decay: int, final: float = 0.0, *, warmup: int = 0, decay_type: str = "cosine"
    ) -> None:
        super().__init__(value, steps, final, warmup=warmup)
        self.decay, self.decay_type = self._count("decay", decay, 1), decay_type
        if self.decay > self._length:
            sizes = {"warmup": self.warmup, "decay": self.decay, "steps": self.steps}
            raise SettingError(
                "{warmup} and {decay} must be at most {steps} together", sizes, place=type(self).__name__
            )
        if decay_type not in _DESCENTS:
            need = ", ".join(_DESCENTS)
            raise SettingError(setting="decay_type", seen=decay_type, need=f"one of {need}", place=type(self).__name__)
        self._shown = {"steps": self.steps, "decay": self.decay, **self._shown, "decay_type": decay_type}

    def share(self, at: int) -> float:
        late = at - (self._length - self.decay)
        return 1.0 if late <= 0 else _DESCENTS[self.decay_type](min(late / self.decay, 1.0))


_DESCENTS: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
    "linear": lambda p: 1.0 - p,
    "1-sqrt": lambda p: 1.0 - math.sqrt(p),
}


class CosineWarmRestarts(Warming):
    """Half a cosine from the value down to `final` (0) in `period` steps (or epochs), again and again; each period is
    `period_factor` times as long as the one before.

    Loshchilov and Hutter, arXiv 1608.03983; torch's CosineAnnealingWarmRestarts(T_0, T_mult, eta_min).
    """

    def __init__(
        self, value: float, period: int, period_factor: int = 1, final: float = 0.0, *, warmup: int = 0,
        by: str = "step",
    ) -> None:  # fmt: skip
        period, period_factor = self._count("period", period, 1), self._count("period_factor", period_factor, 1)
        super().__init__(value, period=period, period_factor=period_factor, final=final, warmup=warmup, by=by)
        self.period, self.period_factor, self.final = period, period_factor, self._number("final", final)

    def __call__(self, step: int, epoch: int) -> float:
        if step < self.warmup:
            return self.value * (step + 1) / self.warmup
        at = step - self.warmup if self.by == "step" else epoch
        return self.final + (self.value - self.final) * self.share(at)

    def share(self, at: int) -> float:
        length = self.period
        if self.period_factor == 1:
            at %= length
        else:
            while at >= length:
                at, length = at - length, length * self.period_factor
        return 0.5 * (1.0 + math.cos(math.pi * at / length))


class OneCycle(Warming):
    """From value / div_factor up to the value and down to value / div_factor / final_div_factor in `steps` steps; the
    last one stays. Smith and Topin, Super-Convergence, arXiv 1708.07120; torch's OneCycleLR.

    pct_start: the share of the steps that the rise takes. anneal_strategy: "cos" or "linear". three_phase: down to the
    first rate in the same number of steps, then to the last one. OneCycleLR also moves the momentum, from 0.95 to
    0.85 and back: momentum=OneCycle(0.85, steps, div_factor=0.85 / 0.95, final_div_factor=1.0) is the same.
    """

    def __init__(
        self, value: float, steps: int, *, pct_start: float = 0.3, anneal_strategy: str = "cos",
        div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(value)
        place = type(self).__name__
        self.steps, self.pct_start = self._count("steps", steps, 1), self._number("pct_start", pct_start)
        if self.pct_start > 1:
            raise SettingError(setting="pct_start", seen=pct_start, need="from 0 to 1", place=place)
        if anneal_strategy not in ("cos", "linear"):
            raise SettingError(setting="anneal_strategy", seen=anneal_strategy, need="cos or linear", place=place)
        factors = {"div_factor": div_factor, "final_div_factor": final_div_factor}
        for name, number in factors.items():
            if not self._number(name, number):
                raise SettingError(setting=name, seen=number, need="a finite number above 0", place=place)
        self.anneal_strategy, self.three_phase = anneal_strategy, as_bool("three_phase", three_phase, place)
        first = self.value / float(div_factor)
        last, up = first / float(final_div_factor), self.pct_start * self.steps
        self._phases = [(up - 1, first, self.value), (self.steps - 1, self.value, last)]
        if three_phase:
            self._phases[1:] = [(2 * up - 2, self.value, first), (self.steps - 1, first, last)]
        usual = {"pct_start": 0.3, "anneal_strategy": "cos", "div_factor": 25.0, "final_div_factor": 1e4}
        given = {"pct_start": self.pct_start, "anneal_strategy": anneal_strategy, **factors}
        self._shown = {"steps": self.steps, **{k: v for k, v in given.items() if v != usual[k]}}
        if three_phase:
            self._shown["three_phase"] = True

    def __call__(self, step: int, epoch: int) -> float:
        at, begin = min(step, self.steps - 1), 0.0
        for number, (end, low, high) in enumerate(self._phases):
            if end > begin and (at <= end or number == len(self._phases) - 1):
                share = (at - begin) / (end - begin)
                if self.anneal_strategy == "cos":
                    share = 0.5 * (1.0 - math.cos(math.pi * share))
                return low + (high - low) * share
            begin = end
        return self._phases[-1][2]


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


def ends_at(schedule: Any, step: int, epoch: int) -> bool:
    """The schedule reaches its last value after this number of steps, or of epochs where it counts those."""
    at = epoch if getattr(schedule, "by", "step") == "epoch" else step
    return isinstance(schedule, (_Ending, OneCycle)) and schedule.steps == at


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
