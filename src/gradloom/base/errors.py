"""The errors that a user can meet. Each message is one line: what was seen, what is needed, where, and a hint."""

from __future__ import annotations

from typing import Any


class GradloomError(Exception):
    """Base of every error that gradloom raises on purpose; the command line answers it with exit code 2."""


class ShapeError(GradloomError, ValueError):
    """Shapes that do not fit an op."""


class DTypeError(GradloomError, TypeError):
    """A dtype or a type that an op does not take, such as a graph value where a number is required."""


class GraphError(GradloomError, ValueError):
    """A graph that cannot be what its builder meant: an unknown input, a missing feed, a name used twice."""


class GradientError(GradloomError):
    """A gradient that does not exist: a non-differentiable op, or one that was not kept."""


class PlanError(GradloomError):
    """A plan that its proof refuses. Always a fault of ours; the message names both nodes."""


class BackendError(GradloomError):
    """A backend, ISA or kernel that this machine does not have."""


class DeviceLost(BackendError):
    """The driver took a device away, and with it what only the device held."""


class DeviceMemoryError(BackendError):
    """A device has no more memory; names what it was for, and its bytes."""


class SettingError(GradloomError, ValueError):
    """A switch, environment variable or hyperparameter out of its range."""


class DataError(GradloomError, ValueError):
    """Data that cannot be trained on: a bad row, a missing column, a label out of range."""


class FileError(GradloomError):
    """A file that is missing, truncated, corrupted or cannot be written."""


class TrainError(GradloomError):
    """A training run that cannot go on."""


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
