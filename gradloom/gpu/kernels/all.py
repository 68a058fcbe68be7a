"""Fills the table: imports every family."""

from . import (
    elementwise,
    glu,
    linear_loss,
    loss,
    matmul,
    norm,
    rope,
)
from .table import KERNELS

FAMILIES = (
    elementwise,
    glu,
    linear_loss,
    loss,
    matmul,
    norm,
    rope,
)

__all__ = ["FAMILIES", "KERNELS"]
