"""Fills the table: imports every family."""

from . import (  # noqa: F401
    attention,
    conv,
    elementwise,
    gather,
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
    recurrent,
    reduce,
    rope,
    scan,
    softmax,
    sort,
    triangular,
    update,
    update_8bit,
)
from .table import KERNELS

__all__ = ["KERNELS"]
