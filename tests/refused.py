"""Errors about settings, matched by their fields, so that their sentences can change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import pytest

from gradloom.base.errors import SettingError


@contextlib.contextmanager
def refused(
    setting: str,
    seen: Any = ANY,
    need: str = "",
    place: str = "",
    kind: type[Exception] = SettingError,
    **more: Any,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Inside, an error of this kind about this setting is raised. need: part of the requirement. more: the other
    settings that it names, with their values; ... for the name alone."""
    with pytest.raises(kind) as raised:
        yield raised
    error = raised.value
    assert (error.setting, error.place) == (setting, place or error.place), error
    assert (seen is ANY or error.seen == seen) and need in error.need, error
    assert {name: value for name, value in error.settings.items() if name in more} == more, error
