"""Models in the formats of other programs: ONNX."""

from .export import export_onnx

__all__ = ["export_onnx"]
