"""Speeds of this machine: fixed ones that cost nothing, and measured ones."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from ..base.aligned import aligned_empty
from ..base.dtypes import bf16
from ..base.memory import settle
from ..base.settings import core_count
from ..graph.leaves import stored_value
from ..graph.opspec import REGISTRY
from ..graph.stored import Stored
from ..graph.value import Value
from ..plan.plan import Plan
from .compile import compile as compile_program
from .cost import Rates, node_cost
from .cpu_backend import _core

L2_BYTES = 512 << 10  # of a core, where CPUID does not state it
PRODUCT = (256, 512, 512)  # M, K, N
NEAR = 1 << 16  # numbers of each operand of the sum that is computed in a core's cache
FAR = 2 << 20  # numbers of an array that is copied: 8 MiB, more than the second-level cache
LARGE_FAR = 8 << 20  # the same for programs of LARGE bytes and more, which use no third-level cache
LARGE = 256 << 20
RUNS, SECONDS = 5, 5e-3  # at least, of each measurement


def slow_rates(threads: int) -> Rates:
    """Rates of a slow machine, for a first estimate: almost every machine is faster."""
    threads = min(threads, core_count())
    return Rates(threads, 2e10 * threads, 2e10 * threads, 1e10 * threads, 4e9, L2_BYTES * threads)


@functools.cache
def measured_rates(threads: int, isa: str | None = None, is_bf16: bool = False, is_large: bool = False) -> Rates:
    """Rates measured now, once in a process, in some 40 ms: the best of a few runs, as without other load.

    threads: at most those that the process may use. isa: the instruction set, by default the best. is_bf16: measure
    products of bf16 operands, else their rate is that of f32. is_large: copy more than a third-level cache holds.
    """
    threads = min(threads, core_count())
    far = LARGE_FAR if is_large else FAR
    product = _product(threads, isa, np.dtype(np.float32))
    rates = Rates(
        threads=threads,
        product=product,
        product_bf16=_product(threads, isa, bf16.numpy) if is_bf16 else product,
        cached=_bytes_per_second("add", 2, NEAR, 1, isa) * threads,
        memory=_bytes_per_second("neg", 1, far, threads, isa),
        cache_bytes=(_core.processor()[-1] or L2_BYTES) * threads,
    )
    settle()  # the arrays of the measurement
    return rates


def rates_for(plans: Sequence[Plan], isa: str | None, seconds: Callable[[Rates], float], least: float) -> Rates | None:
    """Measured rates for these programs, of one number of threads; None where seconds(rates), the duration of a run of
    them, is below `least`. Nothing is measured where slow rates suffice to see that.

    isa: the instruction set, by default the best.
    """
    threads = plans[0].threads
    if seconds(slow_rates(threads)) < least:
        return None
    rates = measured_rates(threads, isa, *_kind(plans))
    return rates if seconds(rates) >= least else None


def measure_early(plans: Sequence[Plan], isa: str | None = None) -> None:
    """Measure the rates that `rates_for` will use of these programs, where they are large: now, before their arrays are
    there, to which those of the measurement would be added."""
    is_bf16, is_large = _kind(plans)
    if is_large:
        measured_rates(plans[0].threads, isa, is_bf16, is_large)


def _kind(plans: Sequence[Plan]) -> tuple[bool, bool]:
    """Whether they have bf16 values, and whether one is large."""
    is_bf16 = any(value.dtype is bf16 for plan in plans for node in plan.order.steps for value in node.outputs)
    return is_bf16, max(plan.peak_bytes + plan.stored_bytes for plan in plans) >= LARGE


def _product(threads: int, isa: str | None, kind: np.dtype) -> float:
    """FLOP/s of a matrix product."""
    m, k, n = PRODUCT
    flops, _, seconds = _measured("matmul", [((m, k), kind), ((k, n), kind)], threads, isa)
    return flops / seconds


def _bytes_per_second(op: str, inputs: int, count: int, threads: int, isa: str | None) -> float:
    """Bytes read and written by an elementwise op with inputs of `count` f32 numbers."""
    _, moved, seconds = _measured(op, [((count,), np.dtype(np.float32))] * inputs, threads, isa)
    return moved / seconds


def _measured(
    op: str, inputs: Sequence[tuple[tuple[int, ...], np.dtype]], threads: int, isa: str | None
) -> tuple[float, float, float]:
    """FLOPs, bytes and least seconds of one instruction with inputs of these shapes and dtypes."""
    value = REGISTRY[op](*(_ones(shape, kind) for shape, kind in inputs))
    run = compile_program(value[:1], threads=threads, isa=isa, precision="f32")  # not all of it: outputs are copied
    run()  # fills the caches
    run.collect_times()
    count, began = 0, time.perf_counter()
    while count < RUNS or time.perf_counter() - began < SECONDS:
        run()
        count += 1
    return *node_cost(value.node), run.timings()[0][1] * 1e-9


def _ones(shape: tuple[int, ...], kind: np.dtype) -> Value:
    array = aligned_empty(shape, kind)
    array[...] = 1
    return stored_value(Stored.wrap("rate", array, "state"))
