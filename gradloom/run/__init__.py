"""Backends and executables: who computes."""

from .dequantise import dequantize

__all__ = ["dequantize"]
