"""Eager computing with a tape: values are computed when they are looked at, by programs that are compiled once."""

from .cache import Stats, stats
from .draws import seed
from .gradients import Gradients
from .tape import GradTape, grad_tape, no_grad
from .tensors import Tensor, from_dlpack, tensor

__all__ = ["GradTape", "Gradients", "Stats", "Tensor", "from_dlpack", "grad_tape", "no_grad", "seed", "stats", "tensor"]
