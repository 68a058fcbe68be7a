"""Errors that users can meet. A message is one line: the value seen, the requirement, the remedy."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


def one_line(value: Any) -> str:
    """Its repr in one line of at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # more digits than Python writes
        text = hex(value) if isinstance(value, int) else "..."
    return text if len(text) <= 80 else text[:77] + "..."


class GradloomError(Exception):
    """Base of every error that gradloom raises on purpose; the command line exits with code 2.

    A message names settings in braces, so that each front end can write them its own way (`rendered`):

        SettingError(setting="lr", seen=0.0, need="a finite number above 0", place="Adam")
            Adam: lr=0.0: must be a finite number above 0
        SettingError("{metric} requires {patience} > 0", metric="f1", patience=...)
            metric='f1' requires patience > 0

    setting   name of the setting, by default the first of `settings`; None: the error concerns no setting
    seen      its value; ... where the message gives the name alone
    need      the requirement: completes "must be"
    place     the object or function that has the setting
    settings  all settings of the message, with their values, or ...; `named` has those whose names are not constant
    """

    def __init__(
        self, text: str = "", named: Mapping[str, Any] | None = None, /, *, setting: str | None = None,
        seen: Any = ..., need: str = "", place: str = "", **settings: Any,
    ) -> None:  # fmt: skip
        self.settings = {**({} if setting is None else {setting: seen}), **(named or {}), **settings}
        self.setting: str | None = next(iter(self.settings), None)
        self.need, self.place = need, place
        names = "|".join(map(re.escape, self.settings))
        text = text or (f"{{{self.setting}}}: must be {need}" if need else "")
        self._parts = re.split(rf"{{({names})}}", text) if names else [text]  # texts and names in turn
        self._context, self._is_named = "", False
        super().__init__(self.rendered())

    @property
    def seen(self) -> Any:
        """The value of the setting; ... where the message gives the name alone."""
        return ... if self.setting is None else self.settings[self.setting]

    def rendered(self, named: Callable[[str, Any], str | None] = lambda name, seen: None) -> str:
        """The message with settings as `named(name, seen)` writes them; where it returns None, as in Python: "lr=3", or
        "lr" alone. A setting that `named` writes needs no place."""

        def text(name: str) -> str:
            seen = self.settings[name]
            return named(name, seen) or (name if seen is ... else f"{name}={one_line(seen)}")

        is_named = self.setting is not None and named(self.setting, self.seen) is not None
        place = f"{self.place}: " if self.place and not is_named else ""
        words = [text(part) if i % 2 else part for i, part in enumerate(self._parts)]
        return f"{self._context}{place}{''.join(words)}"

    def name_settings(self, named: Callable[[str, Any], str | None]) -> None:
        """Write the settings of the message as `named` does, unless a front end has already written them."""
        if not self._is_named:
            self.args, self._is_named = (self.rendered(named),), True

    def extended(self, before: str = "", after: str = "") -> Self:
        """This error, with more text around its message."""
        self._context = before + self._context
        self._parts = [*self._parts[:-1], self._parts[-1] + after]
        self.args = (self.rendered(),)
        return self

    def edited(self, edit: Callable[[str], str]) -> Self:
        """This error, with `edit` applied to the texts between its settings."""
        self._parts = [part if i % 2 else edit(part) for i, part in enumerate(self._parts)]
        return self.extended()

    @classmethod
    def of(cls, error: GradloomError) -> Self:
        """An error of this type with the message and the settings of another one."""
        made = cls()
        made.settings, made.setting, made.need = error.settings, error.setting, error.need
        made.place, made._parts, made._context = error.place, error._parts, error._context
        return made.extended()

    def __reduce__(self) -> Any:
        """For other processes: a value that may not be pickled is sent as its text."""
        settings = {name: seen if _is_plain(seen) else _Text(one_line(seen)) for name, seen in self.settings.items()}
        return copyreg.__newobj__, (type(self), *self.args), {**vars(self), "settings": settings}  # type: ignore[attr-defined]


class _Text(str):
    """The repr of a value."""

    __repr__ = str.__str__


def _is_plain(value: Any) -> bool:
    plain = (bool, int, float, str, type(None), type(...))
    return type(value) in plain or (type(value) in (list, tuple) and all(type(one) in plain for one in value))


class ShapeError(GradloomError, ValueError):
    """Shapes that do not fit an op."""


class DTypeError(GradloomError, TypeError):
    """A dtype or a type that an op does not take, such as a graph value where a number is required."""


class GraphError(GradloomError, ValueError):
    """A graph that cannot be what its builder meant: an unknown input, a missing feed, a name used twice."""


class GradientError(GradloomError):
    """A gradient that does not exist: a non-differentiable op, or one that was not kept."""


class PlanError(GradloomError):
    """A plan that its proof refuses. Always a fault of ours; the message names both nodes. program: the program before
    the passes, switches and device, where gl.compile has raised it."""

    program: Any = None


class BackendError(GradloomError):
    """A backend, ISA or kernel that this machine does not have."""


class DeviceLost(BackendError):
    """The driver took a device away, and with it what only the device held."""


class DeviceMemoryError(BackendError):
    """A device has no more memory; names the purpose of the allocation, and its bytes."""


class SettingError(GradloomError, ValueError):
    """A switch, environment variable or hyperparameter out of its range."""


class BudgetError(SettingError):
    """A memory budget that a program cannot meet. least: bytes that it can; total: the same without the reserve of
    "about"; fixed: those of them that programs of fewer rows need as well; included: parts of them, in words."""

    least = total = fixed = 0
    included = ""


class DataError(GradloomError, ValueError):
    """Data that cannot be trained on: a bad row, a missing column, a label out of range."""


class FileError(GradloomError):
    """A file that is missing, truncated, corrupted or cannot be written."""


class TrainError(GradloomError):
    """A training run that cannot continue."""


class UserOpError(TrainError):
    """A function of a user-defined op (gl.op) that raised, or returned other results than it declares; __cause__ is
    the original exception. `steps_done` and `outputs` as below."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.steps_done = 0
        self.outputs: list[Any] = []


class NonFiniteError(TrainError):
    """The loss or a gradient became NaN or infinite; names the step and the first node that produced it."""


# What any backend may raise when a step fails. `steps_done` steps of the call were completed before it, `outputs` are
# what these gave, and nothing of the failed step was applied.


class GuardTripped(NonFiniteError):
    """The guard stopped a step before its updates: the loss or a gradient is not finite."""

    def __init__(self, steps_done: int, message: str) -> None:
        super().__init__(message)
        self.steps_done = steps_done
        self.outputs: list[Any] = []


class NotFinite(NonFiniteError):
    """A checked run computed an output that is not finite: the node, the first that has one, and which element."""

    def __init__(self, steps_done: int, message: str, node: Any, index: int) -> None:
        super().__init__(message)
        self.steps_done, self.node, self.index = steps_done, node, index
        self.outputs: list[Any] = []


class IndexOutOfRange(DataError):
    """A label, a row id or another whole number that is out of range."""

    def __init__(self, steps_done: int, message: str) -> None:
        super().__init__(message)
        self.steps_done = steps_done
        self.outputs: list[Any] = []
