"""TapeOptions: how the programs of a tape are compiled."""

from __future__ import annotations

from typing import NamedTuple

from ..base.arguments import as_bool
from ..base.errors import SettingError
from ..base.settings import as_precision, switches
from ..run.backend import backend, check_effect, is_device, named


class TapeOptions(NamedTuple):
    """Arguments of gl.compile that a tape is opened with; None: the environment's setting."""

    precision: str | None = None  # of products
    flush: bool | None = None  # denormal numbers are 0
    device: str = "cpu"

    @property
    def of_updates(self) -> TapeOptions:
        """Of a program without products of the model: it begins with gradients that are computed."""
        return self._replace(precision=None)


DEFAULTS = TapeOptions()


def checked(precision: str | None, flush: bool | None, device: str | None) -> TapeOptions:
    """The options of a new tape; SettingError for invalid values, BackendError where the device is absent."""
    name = named("grad_tape", device, None)
    if name != "cpu":
        if not is_device(name):
            raise SettingError(setting="device", seen=name, need="'cpu', 'gpu', 'gpu:1'", place="grad_tape")
        check_effect("grad_tape", [name], {"flush": flush})
        backend(name, switches())
    return TapeOptions(
        None if precision is None else as_precision(precision), None if flush is None else as_bool("flush", flush), name
    )
