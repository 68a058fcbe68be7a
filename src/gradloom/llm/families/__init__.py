"""Families of language models. Each is declared in one file, named as general.architecture in GGUF files."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from ..family import Family


@functools.cache
def names() -> tuple[str, ...]:
    """The supported architectures, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def find(architecture: object) -> Family | None:
    """The family of an architecture, a value of an untrusted file; None if it is not supported."""
    if not isinstance(architecture, str) or architecture not in names():
        return None
    family: Family = import_module(f".{architecture}", __name__).FAMILY
    return family
