"""Fills the table: imports every family."""

from . import (
    attention,
    conv,
    elementwise,
    glu,
    index,
    layout,
    linear_loss,
    loss,
    matmul,
    norm,
    pool,
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
    conv,
    elementwise,
    glu,
    index,
    layout,
    linear_loss,
    loss,
    matmul,
    norm,
    pool,
    quant,
    random,
    reduce,
    rope,
    softmax,
    update,
)

__all__ = ["FAMILIES", "KERNELS"]
