"""llama.cpp's gelu on the CPU."""

from __future__ import annotations

from gradloom import ops
from gradloom.graph.value import Value


def table_geglu(gate: Value, up: Value) -> Value:
    """ggml_vec_geglu_f32 (ggml-cpu/vec.h) with GGML_GELU_FP16, its default: gelu of the gate in f16, from the table
    ggml_table_gelu_f16 of f16 numbers; beyond +-10 the gate itself, and 0."""
    y = ops.cast(ops.cast(ops.gelu_tanh(ops.cast(ops.cast(gate, "f16"), "f32")), "f16"), "f32")
    y = ops.where(ops.greater(gate, 10.0), gate, ops.where(ops.greater(-10.0, gate), 0.0, y))
    return ops.mul(y, up)
