"""Models in the formats of other programs: ONNX."""

from .export import export_onnx
from .imported import import_onnx

__all__ = ["export_onnx", "import_onnx"]
