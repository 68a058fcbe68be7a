"""Memory of a device: bytes in pieces, buffers of at most one binding each. A kernel that touches a value which spans
several pieces binds all of these."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.memory import show_bytes
from .device import Gpu

DOWNLOAD = 32 << 20  # bytes of one transfer to the host

Part = tuple[int, int, int, int]  # of a range: piece, byte in the piece, byte in the range, bytes


class Memory:
    """Device memory, zeros at first; freed with its last reference. pieces: of `device.binding_bytes` each, the last
    one of fewer."""

    def __init__(self, device: Gpu, bytes: int, what: str) -> None:
        """what: for messages. DeviceMemoryError where there is no more memory."""
        self.device, self.what = device, what
        self.pieces: list[Any] = []
        weakref.finalize(self, _drop, device, self.pieces)
        self.grow(bytes)

    @property
    def bytes(self) -> int:
        return sum(int(piece.size) for piece in self.pieces)

    def grow(self, bytes: int) -> None:
        """Grow to at least this size; the contents are lost. DeviceMemoryError if there is no more memory: then the
        size is smaller."""
        sizes = piece_sizes(bytes, self.device.binding_bytes)
        whole = [piece for piece in self.pieces[: len(sizes)] if piece.size == self.device.binding_bytes]
        for piece in self.pieces[len(whole) :]:
            self.device.drop(piece)
        self.pieces[:] = whole
        what = self.what if len(sizes) == 1 else f"a piece of {self.what}, {show_bytes(bytes)} in all,"
        for size in sizes[len(whole) :]:
            self.pieces.append(self.device.buffer(size, what))


def _drop(device: Gpu, pieces: list[Any]) -> None:
    while pieces:
        device.drop(pieces.pop())


def piece_sizes(bytes: int, most: int) -> list[int]:
    """The bytes of each piece; most: of one."""
    return [min(most, bytes - at) for at in range(0, max(bytes, 1), most)]


def parts(offset: int, bytes: int, most: int) -> Iterator[Part]:
    """The part of a range in each piece; most: the bytes of a piece."""
    at = offset
    while at < offset + bytes:
        piece, begin = divmod(at, most)
        length = min(most - begin, offset + bytes - at)
        yield piece, begin, at - offset, length
        at += length


def write(memory: Memory, offset: int, data: np.ndarray) -> None:
    """Bytes to a multiple of 4; up to three more behind them are overwritten by zeros."""
    device = memory.device
    if data.size % 4:
        data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
    for piece, begin, at, length in parts(offset, data.size, device.binding_bytes):
        with device.errors(f"an upload of {memory.what}"):
            device.queue.write_buffer(memory.pieces[piece], begin, data[at : at + length])


def read(memory: Memory, offset: int, bytes: int) -> np.ndarray:
    """A copy of bytes, in transfers of at most `DOWNLOAD`."""
    start = offset // 4 * 4
    found = np.empty(-(-(offset + bytes - start) // 4) * 4 if bytes else 0, np.uint8)
    most = min(DOWNLOAD, memory.device.binding_bytes)
    for at in range(0, found.size, most):
        length = min(most, found.size - at)
        (found[at : at + length],) = _transferred(memory.device, [(memory, start + at, length)], [length])
    return found[offset - start : offset - start + bytes]


def read_several(device: Gpu, several: Sequence[tuple[Memory, int, int]]) -> list[np.ndarray]:
    """Copies of several ranges (memory, offset, bytes), offsets multiples of 4: in one transfer, or one by one if they
    are larger than one transfer."""
    sizes = [-(-bytes // 4) * 4 for _, _, bytes in several]
    if len(several) < 2 or sum(sizes) > min(DOWNLOAD, device.binding_bytes):
        return [read(*one) for one in several]
    found = _transferred(device, several, sizes)
    return [data[: one[2]] for one, data in zip(several, found, strict=True)]


def _transferred(device: Gpu, several: Sequence[tuple[Memory, int, int]], sizes: Sequence[int]) -> list[np.ndarray]:
    """Ranges of these sizes, multiples of 4, through one buffer."""
    what = f"a download of {several[0][0].what}"
    staging = device.buffer(sum(sizes), what, device.usage.MAP_READ | device.usage.COPY_DST)
    try:
        with device.errors(what):
            encoder, to = device.raw.create_command_encoder(), 0
            for (memory, offset, _), size in zip(several, sizes, strict=True):
                for piece, begin, at, length in parts(offset, size, device.binding_bytes):
                    encoder.copy_buffer_to_buffer(memory.pieces[piece], begin, staging, to + at, length)
                to += size
            device.queue.submit([encoder.finish()])
            staging.map_sync("READ")
            data = np.frombuffer(staging.read_mapped(0, to), np.uint8)
            staging.unmap()
    finally:
        device.drop(staging)
    ends = np.cumsum(sizes).tolist()
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def copy(encoder: Any, source: Memory, offset: int, to: Memory, at: int, bytes: int) -> None:
    """Encodes a copy of bytes from one memory to another; offsets and bytes are multiples of 4."""
    most = source.device.binding_bytes
    for piece, begin, here, length in parts(offset, bytes, most):
        for other, start, further, some in parts(at + here, length, most):
            encoder.copy_buffer_to_buffer(source.pieces[piece], begin + further, to.pieces[other], start, some)
