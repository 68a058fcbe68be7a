"""Checks of the arguments that trainers, fit and finetune share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from .. import losses
from ..base.errors import SettingError
from ..base.habits import keyword_hint
from ..base.settings import Switches, switches
from ..base.training_options import TrainerOptions
from ..parallel.communicator import Communicator
from ..run.backend import backend, check_effect
from ..run.budget import ProcessBudget, check_one_process
from ..run.compile import compile as compile_program
from ..run.compile import device_names
from .class_weight import Tables

T = TypeVar("T")


def check_used(
    use: TrainerOptions, build: str, loss: Any, communicator: Communicator | None, class_weights: Tables
) -> None:
    """SettingError for a setting of a Trainer that would have no effect."""
    for name in ("max_norm", "max_value"):
        if build != "opt" and not math.isinf(getattr(use, name)):
            text = f"{{{name}}} requires build='opt'; this Trainer has {{build}}"
            raise SettingError(text, {name: ..., "build": build}, place="Trainer")
    if communicator is None and use.exchange != "ordered":
        text = "{exchange} requires {communicator}"
        raise SettingError(text, exchange=use.exchange, communicator=..., place="Trainer")
    reads = losses.named(loss) if isinstance(loss, str) else loss
    if class_weights is not None and isinstance(reads, losses.Loss) and not reads.has_labels:
        text = "{class_weights} cannot be combined with {loss}, which reads no labels"
        raise SettingError(text, class_weights=..., loss=str(loss), place="Trainer")


def budget_of(
    limit: int | str | None, options: Mapping[str, Any], communicator: Communicator | None, dynamic: bool,
    has_devices: bool,
) -> ProcessBudget | None:  # fmt: skip
    """The memory budget of a Trainer. SettingError where it cannot be used: on other devices than the CPU, for graphs
    that change from call to call, and "auto" with ranks, which share the memory."""
    if limit is None:
        return None
    if has_devices:
        raise SettingError("{memory} requires device 'cpu'", memory=limit)
    if dynamic:
        raise SettingError("{memory} and {dynamic} are mutually exclusive", memory=limit, dynamic=True)
    check_one_process(limit, communicator)
    return ProcessBudget("", limit, options, proposes=communicator is None)


def check_options(who: str, options: Mapping[str, Any], function: Callable[..., Any], *more: str) -> None:
    """SettingError, with the nearest known name, for an option that is neither one of gl.compile nor an argument of the
    function, nor one of `more`; for a switch (base/settings.py) whose value is not usable, or that has no effect on a
    given device."""
    check_names(who, options, function, *more)
    _switches(options)
    check_effect(who, device_names(who, *map(options.get, ("device", "backend", "devices"))), options)


def check_names(who: str, options: Iterable[str], function: Callable[..., Any], *more: str) -> None:
    """SettingError, with what to write instead, for an option that is neither one of gl.compile nor an argument of the
    function, nor one of `more`."""
    known = set(more)
    for callee in (compile_program, function):
        known |= {n for n, p in inspect.signature(callee).parameters.items() if p.kind != p.VAR_KEYWORD}
        known -= {"memory"} if callee is compile_program else set()  # which bounds one program only
    known = (known - {"self", "outputs", "updates"}) | set(more)
    for name in options:
        if name not in known:
            hint = keyword_hint(who, name, sorted(known), f"use {', '.join(sorted(known))}")
            raise SettingError(f"{who}: {name} is not an argument{hint}")


def with_backend(who: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the device, where one is given, under the name of backend; with several, as a tuple of names
    under devices."""
    made = dict(options)
    given = [made.pop(word, None) for word in ("device", "backend", "devices")]
    names = device_names(who, *given)
    if given[2] is not None:
        made["devices"] = tuple(names)
    elif names:
        (made["backend"],) = names
    return made


def need_devices(options: Mapping[str, Any]) -> None:
    """BackendError where a device that these options of `with_backend` name is not there, or cannot compute."""
    one = options.get("backend")
    for name in options.get("devices", () if one is None else (one,)):
        backend(name, _switches(options))


def _switches(options: Mapping[str, Any]) -> Switches:
    """The switches among options; SettingError for a value that is not usable."""
    return switches(**{name: options[name] for name in inspect.signature(switches).parameters if name in options})


def check_batch(batch_size: int, rows: int | None = None, what: str = "batch_size") -> None:
    """SettingError unless 1 <= batch_size, and <= rows where they are given."""
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise SettingError(setting=what, seen=batch_size, need="a whole number of at least 1")
    if rows is not None and batch_size > rows:
        raise SettingError(f"{{{what}}} must be at most {{batch_size}}", {what: batch_size, "batch_size": rows})
