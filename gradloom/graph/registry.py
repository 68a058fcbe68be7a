"""Every op by its name. graph/ itself declares the leaves only; ops/ adds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .opspec import OpSpec

REGISTRY: dict[str, OpSpec] = {}
