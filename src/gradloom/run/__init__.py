"""Backends and executables: who computes."""

from .backend import register, register_planning
from .cpu_backend import CpuBackend
from .dequantise import dequantize
from .null_backend import NullBackend
from .numpy_backend import NumpyBackend
from .quantise import quantize

for one in (CpuBackend, NumpyBackend, NullBackend):
    register(one)
register_planning(NullBackend.name, NullBackend)

__all__ = ["dequantize", "quantize"]
