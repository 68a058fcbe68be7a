"""Stored arrays on a device: uploaded when the host has written them, downloaded when the host reads them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.uploads import Upload
from ..graph.stored import Stored, bring_home
from .device import Gpu
from .memory import DOWNLOAD, Memory, read_several, write

ALIGNMENT = 64
LARGE = 1 << 20  # bytes of an array that has memory of its own
POOL = 64 << 20  # bytes of the memory that small ones share
UPLOAD = 32 << 20  # bytes of one upload, which the driver holds twice meanwhile


class Copy:
    """An array on a device. version: of the stored array whose contents lie here."""

    def __init__(self, pool: Memory, offset: int, bytes: int) -> None:
        self.pool, self.offset, self.bytes = pool, offset, bytes
        self.version = -1

    def upload(self, stored: Stored, progress: Upload) -> None:
        """Upload the contents that the host has written."""
        version = stored.version
        data = np.ascontiguousarray(stored.read()).reshape(-1).view(np.uint8)
        for start in range(0, data.size, UPLOAD):
            if start:
                _hand_over(self.home)
            part = data[start : start + UPLOAD]
            write(self.pool, self.offset + start, part)
            progress.add(part.size)
        self.version = version

    @property
    def home(self) -> Gpu:
        return self.pool.device

    def bring(self, several: Sequence[tuple[Copy, np.ndarray]]) -> None:
        """Arrays of at most `DOWNLOAD` bytes come together, larger ones alone."""
        device = self.pool.device
        most = min(DOWNLOAD, device.binding_bytes)
        group, size = list[tuple[Copy, np.ndarray]](), 0
        with device.lock:
            for copy, array in several:
                if group and size + aligned(copy.bytes) > most:
                    _bring(device, group)
                    group, size = [], 0
                group.append((copy, array))
                size += aligned(copy.bytes)
            _bring(device, group)


_in_use: weakref.WeakSet[Copies] = weakref.WeakSet()  # of the devices in use


def _before_fork() -> None:
    for copies in list(_in_use):
        copies.bring_home()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


class Copies:
    """All stored arrays on a device. Before a fork they and values of tapes come home, so that the child has them."""

    def __init__(self, device: Gpu) -> None:
        self.device = device
        _in_use.add(self)
        self._known: weakref.WeakKeyDictionary[Stored, Copy] = weakref.WeakKeyDictionary()
        self.kept: weakref.WeakSet[Any] = weakref.WeakSet()  # values of tapes (kept.py)

    def place(self, several: Iterable[Stored]) -> list[Copy]:
        """The copy of each array. New ones get memory, which is freed with them."""
        several = list(several)
        for group, size in groups([s for s in several if s not in self._known], self.device.binding_bytes):
            largest = max(group, key=lambda s: s.bytes)
            pool, offset = Memory(self.device, size, f"the array {largest.name}"), 0
            for stored in group:
                self._known[stored] = Copy(pool, offset, stored.bytes)
                offset += aligned(stored.bytes)
        return [self._known[s] for s in several]

    def bring_home(self) -> None:
        """Download whatever is newer here."""
        if not (self.device.lost or self.device.forked):
            bring_home(list(self._known))
            for value in list(self.kept):
                value.numpy()

    def fetch(self, several: Iterable[Stored]) -> None:
        """Before the lock of the device is taken: what `upload` needs comes home from other devices."""
        for stored in several:
            if self._known[stored].version != stored.version:
                stored.read()

    def upload(self, several: Iterable[Stored]) -> None:
        """Before a run: whatever was written elsewhere since it lay here."""
        stale = [s for s in dict.fromkeys(several) if self._known[s].version != s.version]
        progress, held = Upload(self.device.called, sum(s.bytes for s in stale)), 0
        for stored in stale:
            copy = self._known[stored]
            copy.upload(stored, progress)
            held += copy.bytes
            if held >= UPLOAD:
                _hand_over(self.device)
                held = 0

    def written(self, several: Iterable[Stored]) -> None:
        """After a run: the newest contents of these lie here."""
        for stored in several:
            copy = self._known[stored]
            stored.version += 1
            copy.version, stored.away = stored.version, copy


def _hand_over(device: Gpu) -> None:
    """Submit pending writes: wgpu keeps them in memory of the host until then."""
    device.queue.submit([])
    device.wait()


def _bring(device: Gpu, several: Sequence[tuple[Copy, np.ndarray]]) -> None:
    """Copy arrays from the device into memory here, in one transfer."""
    found = read_several(device, [(copy.pool, copy.offset, copy.bytes) for copy, _ in several])
    for (_, array), data in zip(several, found, strict=True):
        array.reshape(-1).view(np.uint8)[...] = data


def aligned(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def groups(several: Iterable[Stored], binding_bytes: int) -> Iterator[tuple[list[Stored], int]]:
    """(the arrays of a memory, its bytes): small ones share a binding, a larger one has its own."""
    most = min(POOL, binding_bytes)
    group, size = list[Stored](), 0
    for stored in dict.fromkeys(several):
        bytes = aligned(stored.bytes)
        if bytes >= min(LARGE, most):
            yield [stored], stored.bytes
            continue
        if size + bytes > most:
            yield group, size
            group, size = [], 0
        group.append(stored)
        size += bytes
    if group:
        yield group, size
