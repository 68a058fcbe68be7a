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


def name_of(family: Family) -> str:
    """general.architecture of a declared family."""
    return next(name for name, one in declared().items() if one is family)


def model_types() -> dict[str, Family]:
    """model_type of a Hugging Face config.json -> its family."""
    return {kind: family for family in declared().values() for kind in family.folder.types}


def names() -> tuple[str, ...]:
    """The supported architectures, sorted."""
    return tuple(declared())


def find(architecture: object) -> Family | None:
    """The family of an architecture, a value of an untrusted file; None if it is not supported."""
    return declared().get(architecture) if isinstance(architecture, str) else None
