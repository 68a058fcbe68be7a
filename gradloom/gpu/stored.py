"""Stored arrays on a device: uploaded when the host has written them, downloaded when the host reads them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.stored import Stored
from .device import Gpu

ALIGNMENT = 64
LARGE = 1 << 20  # bytes of an array that has a buffer of its own
POOL = 64 << 20  # bytes of a buffer that small ones share
PIECE = 32 << 20  # bytes of one upload: what the driver holds twice meanwhile


class Pool:
    """A buffer that several arrays lie in; it is given back with the last of them."""

    def __init__(self, device: Gpu, bytes: int, what: str) -> None:
        self.buffer = device.buffer(bytes, what)
        weakref.finalize(self, device.drop, self.buffer)


class Copy:
    """An array on a device. version: of the stored array whose contents lie here."""

    def __init__(self, device: Gpu, pool: Pool, offset: int, bytes: int) -> None:
        self.device, self.pool, self.offset, self.bytes = device, pool, offset, bytes
        self.version = -1

    def upload(self, stored: Stored) -> None:
        """Bring here what the host has written."""
        version = stored.version
        data = np.ascontiguousarray(stored.read()).reshape(-1).view(np.uint8)
        for start in range(0, data.size, PIECE):
            write(self.device, self.pool.buffer, self.offset + start, data[start : start + PIECE])
        self.version = version

    def bring(self, array: np.ndarray) -> None:
        flat = array.reshape(-1).view(np.uint8)
        with self.device.lock:
            flat[...] = read(self.device, self.pool.buffer, self.offset, flat.size)


class Copies:
    """All stored arrays on a device. Before a fork they and values of tapes come home, so that the child has them."""

    def __init__(self, device: Gpu) -> None:
        self.device = device
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.bring_home)
        self._known: weakref.WeakKeyDictionary[Stored, Copy] = weakref.WeakKeyDictionary()
        self.kept: weakref.WeakSet[Any] = weakref.WeakSet()  # values of tapes (kept.py)

    def place(self, several: Iterable[Stored]) -> list[Copy]:
        """Where each lies. Small ones that are new here lie side by side in one buffer; larger ones have one each,
        which goes when the array does."""
        several = list(several)
        group, size = list[Stored](), 0
        for stored in [s for s in dict.fromkeys(several) if s not in self._known]:
            if stored.bytes >= LARGE:
                self._allocate([stored], stored.bytes)
                continue
            if size + stored.bytes > POOL:
                self._allocate(group, size)
                group, size = [], 0
            group.append(stored)
            size += -(-stored.bytes // ALIGNMENT) * ALIGNMENT
        if group:
            self._allocate(group, size)
        return [self._known[s] for s in several]

    def _allocate(self, group: list[Stored], size: int) -> None:
        largest = max(group, key=lambda s: s.bytes)
        pool, offset = Pool(self.device, size, f"the array {largest.name}"), 0
        for stored in group:
            self._known[stored] = Copy(self.device, pool, offset, stored.bytes)
            offset += -(-stored.bytes // ALIGNMENT) * ALIGNMENT

    def bring_home(self) -> None:
        """Download whatever is newer here."""
        if not (self.device.lost or self.device.forked):
            for stored in list(self._known):
                if stored.away is not None:
                    stored.read()
            for value in list(self.kept):
                value.numpy()

    def fetch(self, several: Iterable[Stored]) -> None:
        """Before the lock of the device is taken: what `upload` needs comes home from other devices."""
        for stored in several:
            if self._known[stored].version != stored.version:
                stored.read()

    def upload(self, several: Iterable[Stored]) -> None:
        """Before a run: whatever was written elsewhere since it lay here."""
        for stored in several:
            copy = self._known[stored]
            if copy.version != stored.version:
                copy.upload(stored)

    def written(self, several: Iterable[Stored]) -> None:
        """After a run: the newest contents of these lie here."""
        for stored in several:
            copy = self._known[stored]
            stored.version += 1
            copy.version, stored.away = stored.version, copy


def write(device: Gpu, buffer: Any, offset: int, data: np.ndarray) -> None:
    """Bytes into a buffer; up to three more behind them are overwritten by zeros."""
    if not data.size:
        return
    if data.size % 4:
        data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
    with device.errors("an upload"):
        device.queue.write_buffer(buffer, offset, data)


def read(device: Gpu, buffer: Any, offset: int, bytes: int) -> np.ndarray:
    """Bytes out of a buffer."""
    if not bytes:
        return np.empty(0, np.uint8)
    start = offset // 4 * 4
    with device.errors("a download"):
        found = device.queue.read_buffer(buffer, start, -(-(offset + bytes - start) // 4) * 4)
    return np.frombuffer(found, np.uint8)[offset - start : offset - start + bytes]
