"""Memory in pieces: values, inputs and arrays that are larger than a binding of the adapter."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.gpu.backend import GpuBackend, Place, place_of
from gradloom.gpu.device import LIMITS, Gpu
from gradloom.gpu.memory import Memory, copy, read, write
from gradloom.gpu.stored import groups
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.stored import Stored
from tests.gpu.adapter import SMALL, small_bindings
from tests.gpu.harness import default_place, run_node
from tests.gpu.test_kernels import NAMES, of, size_of
from tests.ops.cases import node_of, samples_of, update_aliases

F32 = np.float32
TINY = 256  # bytes of a binding
FEW = 700  # elements of the inputs of a sample


@functools.cache
def tiny() -> Place:
    """A device on which almost every operand spans several pieces."""
    return Place(Gpu(0, binding_bytes=TINY))


def test_a_device_of_default_limits_has_no_more_than_webgpu_promises() -> None:
    limits = default_place().device.limits
    assert {name: limits[name] for name in LIMITS} == LIMITS and default_place().device.segments == 6


@pytest.mark.parametrize("name", NAMES)
def test_kernels_read_and_write_across_pieces(name: str) -> None:
    """The bits of a device whose bindings hold the operands whole."""
    ran = 0
    for case in [case for case in of(name) if size_of(case) <= FEW][:2]:
        sample = samples_of(name)[case[1]]
        node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
        shared, unwanted = update_aliases(node, sample.inputs)
        try:
            pieces = run_node(node, sample.inputs, alias=shared, unwanted=unwanted, place=tiny())
        except gl.BackendError as error:
            assert "touches too many buffers" in str(error)
            continue
        whole = run_node(node, sample.inputs, alias=shared, unwanted=unwanted, place=place_of(0))
        ran += 1
        for a, b in zip(pieces, whole, strict=True):
            assert a is None or a.tobytes() == b.tobytes(), case
    assert ran, "no sample is small enough"


def test_bytes_are_written_and_read_across_pieces() -> None:
    memory = Memory(tiny().device, 3 * TINY + 100, "bytes")
    assert [piece.size for piece in memory.pieces] == [TINY] * 4
    data = np.random.default_rng(0).integers(0, 256, 2 * TINY + 41, np.uint8)
    write(memory, 132, data)
    for start, size in ((132, data.size), (200, 300), (TINY - 1, 2), (TINY, TINY), (140, 0)):
        assert np.array_equal(read(memory, start, size), data[start - 132 : start - 132 + size]), (start, size)
    assert not read(memory, 0, 132).any()


def test_bytes_are_copied_across_pieces() -> None:
    device = tiny().device
    source, to = Memory(device, 4 * TINY, "bytes"), Memory(device, 4 * TINY, "bytes")
    data = np.random.default_rng(0).integers(0, 256, 4 * TINY, np.uint8)
    write(source, 0, data)
    encoder = device.raw.create_command_encoder()
    copy(encoder, source, 100, to, 248, 2 * TINY + 8)
    device.queue.submit([encoder.finish()])
    assert np.array_equal(read(to, 248, 2 * TINY + 8), data[100 : 2 * TINY + 108])
    assert not read(to, 0, 248).any() and not read(to, 2 * TINY + 256, TINY).any()


def test_memory_that_grows_keeps_its_whole_pieces() -> None:
    device = tiny().device
    before = device.bytes
    memory = Memory(device, TINY + 1, "bytes")
    first = memory.pieces[0]
    memory.grow(3 * TINY)
    assert memory.pieces[0] is first and memory.bytes == 3 * TINY == device.bytes - before
    del memory
    assert device.bytes == before


def test_small_arrays_share_a_binding_and_large_ones_lie_alone() -> None:
    sizes = (40, 10, 64, 30, 50, 200)
    arrays = [Stored(f"a{i}", np.zeros(n, F32)) for i, n in enumerate(sizes)]
    found = [([s.name for s in group], size) for group, size in groups([*arrays, arrays[0]], TINY)]
    assert found == [(["a2"], 256), (["a0", "a1"], 256), (["a4"], 200), (["a5"], 800), (["a3"], 128)]


def test_an_array_that_is_larger_than_a_binding_is_read_and_written() -> None:
    data = np.random.default_rng(0).standard_normal((300, 500)).astype(F32)
    with small_bindings():
        table = gl.parameter(data, name="table")
        ids = gl.input("ids", (3,), "i32")
        run = gl.compile([ops.get_rows(table, ids)], ops.assign(table, table * 2.0), device="gpu")
        assert np.array_equal(run(ids=[0, 131, 299])[0], data[[0, 131, 299]])
        assert np.array_equal(run(ids=[65, 66, 262])[0], 2 * data[[65, 66, 262]])
    assert data.nbytes > 4 * SMALL and np.array_equal(table.numpy(), 4 * data)


def test_an_input_that_is_larger_than_a_binding_is_fed() -> None:
    data = np.random.default_rng(0).standard_normal(3 * SMALL // 4 + 5).astype(F32)
    with small_bindings():
        x = gl.input("x", data.shape)
        run = gl.compile([ops.exp(x), ops.max(x)], device="gpu")
        first, largest = run(x=data)
    assert np.allclose(first, np.exp(data), rtol=1e-6) and largest == data.max()


def test_what_spans_too_many_bindings_is_refused_before_anything_runs() -> None:
    with small_bindings(few=True) as device:
        table = gl.parameter(np.ones((2000, 1000), F32), name="table")
        with pytest.raises(gl.BackendError) as caught:
            gl.compile([], ops.assign(table, table + 1.0), device="gpu")
    for told in (
        "the array table alone is 7.63 MiB", f"takes {device.segments} in a kernel (max-storage-buffers-per",
        "of 32.00 KiB each (max-storage-buffer-binding-size)", "need smaller arrays or batches, or device='cpu'",
    ):  # fmt: skip
        assert told in str(caught.value)
    assert table.numpy()[0, 0] == 1.0


def test_what_is_read_from_too_many_pieces_is_copied_side_by_side() -> None:
    """The gradient of attention reads seven arrays and writes three."""
    rng = np.random.default_rng(0)
    shape = (1, 64, 2, 60)  # 30 KiB: one a binding

    def run() -> tuple[list[np.ndarray], int]:
        q, k, v, weights = (gl.parameter(rng.standard_normal(shape).astype(F32), name=name) for name in "qkvw")
        positions = gl.input("positions", (1, 64), "i32")
        y, _ = ops.attention(q, k, v, positions, scale=0.2)
        loss = ops.sum(y * weights)
        program = gl.compile([loss, *gl.gradients(loss, [q, k, v])], device="gpu")
        return program(positions=np.arange(64)[None]), program.layout.gathered_bytes

    whole, none = run()
    with small_bindings(few=True):
        rng = np.random.default_rng(0)
        pieces, copied = run()
    assert (none, copied > 0) == (0, True)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole, pieces, strict=True))


def test_the_backend_plans_in_pieces_of_its_device() -> None:
    """A value that fits in a piece lies in one."""
    with small_bindings():
        x = gl.input("x", (150, 150))
        y = ops.exp(x) @ ops.sin(x) + ops.cos(x) @ ops.tanh(x)
        run = gl.compile(y, device="gpu", fuse=False)
        placed = run.plan.placement
        for value, offset in placed.offsets.items():
            assert offset // SMALL == (offset + value.bytes - 1) // SMALL
        assert placed.arena_bytes > 2 * SMALL
        data = np.random.default_rng(0).standard_normal((150, 150))
        there = run(x=data)[0]
    assert np.array_equal(there, gl.compile(y, device="gpu", fuse=False)(x=data)[0])
    assert GpuBackend(run.switches).piece_bytes == place_of(0).device.binding_bytes > SMALL
