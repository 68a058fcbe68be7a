"""Fills the table: imports every family."""

from . import elementwise, index, layout, random, reduce, softmax, update
from .table import KERNELS

FAMILIES = (elementwise, index, layout, random, reduce, softmax, update)

__all__ = ["FAMILIES", "KERNELS"]
