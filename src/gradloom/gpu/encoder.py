"""The encoder: a loop without decisions over dispatches. It calls the native functions of wgpu: the wrappers cost three
times as much and look for errors after each call; here errors come when the pass ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .program import Encoded, Piece

Ready = Sequence[tuple[Any, Any, Any, int, int]]  # of an instruction: see `ready`


def ready(encoded: Sequence[Encoded], groups: Mapping[tuple[Piece, ...], Any]) -> Ready:
    """The dispatches of an instruction as the loop walks them: handles of pipeline and bind group, the offset of the
    call as a C array, workgroups along x and y. The pipelines and groups must outlive it."""
    from wgpu.backends.wgpu_native import ffi

    return [
        (one.pipeline._internal, groups[one.pieces]._internal, ffi.new("uint32_t []", [one.offset]), one.x, one.y)
        for one in encoded
    ]


def encode(encoder: Any, steps: Sequence[Ready], **more: Any) -> None:
    """Encode instructions in one pass. more: arguments of begin_compute_pass."""
    from wgpu.backends.wgpu_native import lib

    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    running = encoder.begin_compute_pass(**more)
    native = running._internal
    for step in steps:
        for pipeline, group, offset, x, y in step:
            set_pipeline(native, pipeline)
            set_group(native, 0, group, 1, offset)
            dispatch(native, x, y, 1)
    running.end()
