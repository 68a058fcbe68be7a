"""Families of language models. Each is declared in one file."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from ..family import Family


@functools.cache
def declared() -> dict[str, Family]:
    """The supported architectures, values of general.architecture in GGUF files, sorted."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        family: Family = import_module(f".{module.name}", __name__).FAMILY
        found[family.name or module.name] = family
    return dict(sorted(found.items()))


def names() -> tuple[str, ...]:
    """The supported architectures, sorted."""
    return tuple(declared())


def find(architecture: object) -> Family | None:
    """The family of an architecture, a value of an untrusted file; None if it is not supported."""
    return declared().get(architecture) if isinstance(architecture, str) else None
