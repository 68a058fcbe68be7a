"""Measured rates of an adapter: its matrix product, its copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..graph.leaves import parameter
from ..ops import assign, matmul
from ..run.compile import compile
from .backend import GpuExecutable
from .device import Gpu, device

SMALLEST, LARGEST = 256, 4096  # rows of the matrices
ENOUGH_NS = 10_000_000  # a product that takes so long is large enough
COPY_BYTES = 64 << 20
ROUNDS = 3


@dataclass(frozen=True)
class Peak:
    """gflops: of an f32 matrix product by our kernel. upload_gbs, download_gbs: bytes to the device and from it.
    copy_gbs: bytes read and written by a copy from one buffer of the device to another."""

    gflops: float
    upload_gbs: float
    download_gbs: float
    copy_gbs: float

    def __str__(self) -> str:
        product, up, down, inside = (
            f"{rate:.0f}" if rate >= 100 else f"{rate:.2g}"
            for rate in (self.gflops, self.upload_gbs, self.download_gbs, self.copy_gbs)
        )
        return f"matrix products {product} GFLOP/s; copies of {inside} GB/s inside, {up} to it, {down} from it"


def peak(name: str, place: int = 0) -> Peak:
    """Measure an adapter: a second or two. BackendError where it gives no device."""
    made = device(place)
    with made.errors("measuring"):
        upload, download, copy = _copies(made)
    return Peak(_product(name, made), upload, download, copy)


def _product(name: str, made: Gpu) -> float:
    """GFLOP/s of the fastest of some products, of n x n matrices that are large enough to keep the adapter busy."""
    n = SMALLEST
    while True:
        took = product_ns(name, n)
        fits = 4 * (2 * n) ** 2 <= made.binding_bytes
        if took >= ENOUGH_NS or n >= LARGEST or not fits:
            return 2.0 * n**3 / max(took, 1)
        n *= 2


def product_ns(name: str, n: int) -> int:
    """Nanoseconds of an n x n product. The result stays on the device: nothing is copied for it."""
    a, b, c = (parameter(np.zeros((n, n), np.float32), name=key) for key in "abc")
    run = compile([], assign(c, matmul(a, b)), device=name)
    assert isinstance(run, GpuExecutable)
    run()
    run.collect_times()
    for _ in range(ROUNDS):
        run()
    return max(least for what, least, _ in run.timings() if what.startswith("matmul"))


def _copies(made: Gpu) -> tuple[float, float, float]:
    """(to the device, from it, inside it) in GB/s: the fastest of some rounds, the waiting included."""
    size = min(COPY_BYTES, made.binding_bytes)
    data = np.zeros(size, np.uint8)
    there, other = (made.buffer(size, "a measurement") for _ in range(2))

    def upload() -> None:
        made.queue.write_buffer(there, 0, data)
        made.queue.submit([])
        made.wait()

    def download() -> None:
        made.queue.read_buffer(there, 0, size)

    def copy() -> None:
        encoder = made.raw.create_command_encoder()
        encoder.copy_buffer_to_buffer(there, 0, other, 0, size)
        made.queue.submit([encoder.finish()])
        made.wait()

    try:
        up, down, inside = (_seconds(what) for what in (upload, download, copy))
    finally:
        made.drop(there)
        made.drop(other)
    return size / up / 1e9, size / down / 1e9, 2 * size / inside / 1e9


def _seconds(run: Callable[[], None]) -> float:
    taken = []
    for _ in range(ROUNDS + 1):  # the first one touches the memory
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])
