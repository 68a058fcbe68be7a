"""Fills the table: imports every family."""

from . import elementwise
from .table import KERNELS

FAMILIES = (elementwise,)

__all__ = ["FAMILIES", "KERNELS"]
