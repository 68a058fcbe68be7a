"""Fills the table: imports every family."""

from . import (
    attention,
    elementwise,
    glu,
    index,
    layout,
    linear_loss,
    loss,
    matmul,
    norm,
    quant,
    random,
    reduce,
    rope,
    softmax,
    update,
)
from .table import KERNELS

FAMILIES = (
    attention,
    elementwise,
    glu,
    index,
    layout,
    linear_loss,
    loss,
    matmul,
    norm,
    quant,
    random,
    reduce,
    rope,
    softmax,
    update,
)

__all__ = ["FAMILIES", "KERNELS"]
