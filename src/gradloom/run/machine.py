"""The machine as gradloom sees it: core, memory, limits, and whether kernels agree with their definitions."""

from __future__ import annotations

import contextlib
import math
import time
import zlib
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.aligned import aligned_empty
from ..base.dtypes import bf16
from ..base.errors import BackendError, GradloomError
from ..base.settings import core_count
from ..graph.composition import by_reference
from ..graph.declaration import Sample
from ..graph.leaves import stored_value
from ..graph.opspec import REGISTRY, OpSpec
from ..graph.stored import Stored
from ..graph.value import Node
from ..plan.bytecode import signature
from .compile import compile as compile_program
from .cpu_backend import _core, choose_isa

PACKAGE = Path(__file__).resolve().parents[1]


def isas() -> list[str]:
    """Instruction sets that this machine runs, best first."""
    return list(_core.isas())


def core_path() -> Path:
    """The file of the native core."""
    return Path(_core.__file__)


def stale_sources(package: Path = PACKAGE) -> list[str]:
    """Sources of this source tree that are newer than the built core: the core is not
    theirs, or the reader of tables (csrc/cells)."""
    root, core = package.parents[1], core_path()  # package: src/gradloom
    built = {name: core.with_name(core.name.replace("_core", name, 1)).stat().st_mtime for name in ("_core", "_cells")}
    sources = [p for p in (root / "csrc").rglob("*") if p.suffix in (".h", ".cpp")]
    module = {p: "_cells" if p.parent.name == "cells" else "_core" for p in sources}
    return sorted(str(p.relative_to(root)) for p in sources if p.stat().st_mtime > built[module[p]])


@dataclass(frozen=True)
class Processor:
    """From CPUID: vendor ("" where unknown), family, model, bytes of a core's data caches (0: unknown)."""

    vendor: str
    family: int
    model: int
    l1_bytes: int
    l2_bytes: int


def processor() -> Processor:
    """The processor that this runs on."""
    return Processor(*_core.processor())


def tuning() -> str:
    """The row of the table of processors (csrc/tuning.cpp) that matrix products use: it changes speed, never bits."""
    return _core.tuning()


# ---- memory ----------------------------------------------------------------------------------------------------------


def huge_pages() -> str:
    """When the system gives huge pages: always, madvise, never, or unknown."""
    with contextlib.suppress(OSError):
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return text.partition("[")[2].partition("]")[0] or "unknown"
    return "unknown"


# ---- limits ----------------------------------------------------------------------------------------------------------


def fma_peak(threads: int, isa: str | None = None) -> float:
    """GFLOP/s of f32 multiply-adds in registers, all threads at once: the upper limit of any kernel."""
    return float(_core.fma_peak(choose_isa(isa), min(threads, core_count())))


COPY_BYTES = 256 << 20  # for each thread of copy_rate


def copy_rate(threads: int, isa: str | None = None) -> float:
    """GB/s read and written by a copy out of every cache (takes 256 MiB per thread while it runs)."""
    return float(_core.copy_rate(choose_isa(isa), min(threads, core_count())))


BF16_UNITS = {"amx": "AMX", "avx512bf16": "AVX-512 BF16"}  # instruction sets whose products of bf16 run on units
GAIN_SHAPE = (512, 1536, 576)  # M, K, N


def bf16_units(isa: str | None = None) -> str:
    """The processor's units for products of bf16 numbers that an instruction set uses; "" where it uses none."""
    return BF16_UNITS.get(choose_isa(isa), "")


def bf16_gain(threads: int, isa: str | None = None) -> float:
    """How many times faster than in f32 a matrix product with bf16 operands is here (takes some 0.1 s)."""
    m, k, n = GAIN_SHAPE
    rng = np.random.default_rng(0)
    seconds = []
    for kind in (np.dtype(np.float32), bf16.numpy):
        x, y = (
            stored_value(_copied(rng.standard_normal(shape, np.float32).astype(kind))) for shape in ((m, k), (k, n))
        )
        run = compile_program(REGISTRY["matmul"](x, y), threads=min(threads, core_count()), isa=isa, precision="f32")
        taken = []
        for _ in range(7):
            begun = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begun)
        seconds.append(min(taken))
    return seconds[0] / seconds[1]


# ---- kernels against their definitions -------------------------------------------------------------------------------

TOLERANCE = {"f16": 2e-3, "bf16": 2e-2}  # of the largest number
SMALL = 1_000_000  # elements of the inputs of a sample that is still quick


@dataclass(frozen=True)
class SelfCheck:
    """What self_check found: ops checked, ops that the core has no kernel for, those that failed and why.

    skipped: ops whose samples require a package that is not installed
    worst: the largest f32 error, relative to the largest number of its output.
    """

    checked: int
    skipped: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[str, ...]
    worst: float
    worst_op: str


def self_check(isa: str | None = None, threads: int = 2) -> SelfCheck:
    """Run a sample of every op on the CPU and hold it against the op's definition in float64 (some 2 s); where an
    instruction set takes kernels from another one, of the ops that it has kernels of its own for.

    The whole truth is in the tests; this finds a core that was built wrongly or belongs to other sources.
    """
    chosen = choose_isa(isa)
    have = {name for name, _ in _core.kernels(chosen)}
    own = {row for row in _core.kernels(chosen, own=True) if row[0] in REGISTRY}
    checked, skipped, missing, failed, worst = 0, [], [], [], (0.0, "")
    for spec in REGISTRY.values():
        if spec.leaf or spec.written or spec.view is not None or spec.samples is None:
            continue
        if spec.name not in have:
            missing.append(spec.name)
            continue
        if not any(name == spec.name for name, _ in own):
            continue
        try:
            sample = _sample(spec, own)
        except BackendError:
            skipped.append(spec.name)
            continue
        if sample is None:
            continue
        try:
            error, beyond = _difference(spec, sample, chosen, threads)
        except GradloomError as problem:
            failed.append(f"{spec.name}: {problem}")
            continue
        checked += 1
        if not beyond <= 1:
            failed.append(f"{spec.name}: differs from its definition by {beyond:.3g} times the tolerance")
        worst = max(worst, (error, spec.name))
    return SelfCheck(checked, tuple(skipped), tuple(missing), tuple(failed), worst[0], worst[1])


def _sample(spec: OpSpec, own: Container[tuple[str, str]]) -> Sample | None:
    """The largest of the small samples of plain numbers that one of these kernels computes."""
    assert spec.samples is not None
    samples = spec.samples(np.random.default_rng(zlib.crc32(spec.name.encode())))
    plain = [s for s in samples if all(x is None or isinstance(x, np.ndarray) for x in s.inputs)]
    sizes = [sum(x.size for x in s.inputs if x is not None) for s in plain]
    small = [(size, -i) for i, size in enumerate(sizes) if size <= SMALL]
    largest = (plain[-i] for _, i in sorted(small, reverse=True))
    return next((s for s in largest if (spec.name, signature(_node(spec, s))) in own), None)


def _difference(spec: OpSpec, sample: Sample, isa: str, threads: int) -> tuple[float, float]:
    """The worst error of the outputs: of f32, relative to the largest number; of all, in units of the tolerance."""
    node = _node(spec, sample)
    wanted = _reference(node, sample)
    if spec.updates:
        places = _updated(node)
        compile_program([], [node.outputs[k] for k in places], isa=isa, threads=threads)()
        got = {k: stored.read() for k, stored in places.items()}
    else:
        got = dict(enumerate(compile_program(list(node.outputs), isa=isa, threads=threads, fuse=False)()))
    worst = beyond = 0.0
    for k, array in got.items():
        have, want = np.asarray(array, np.float64), np.asarray(wanted[k], np.float64)
        finite = np.isfinite(want)
        if not np.array_equal(np.isfinite(have), finite):
            return math.inf, math.inf
        scale = float(np.max(np.abs(want[finite]), initial=0.0)) or 1.0
        error = float(np.max(np.abs(have - want)[finite], initial=0.0)) / scale
        kind = node.outputs[k].dtype.name
        worst = max(worst, error) if kind == "f32" else worst
        beyond = max(beyond, error / TOLERANCE.get(kind, 2e-4))
    return worst, beyond


def _node(spec: OpSpec, sample: Sample) -> Node:
    return spec.node([None if x is None else stored_value(_copied(x)) for x in sample.inputs], sample.attrs)


def _copied(array: np.ndarray) -> Stored:
    place = aligned_empty(array.shape, array.dtype)
    place[...] = array
    return Stored.wrap("sample", place, "state")


def _reference(node: Node, sample: Sample) -> list[np.ndarray]:
    real = [np.dtype(np.float32), bf16.numpy]
    arrays = [x.astype(np.float64) if x is not None and x.dtype in real else x for x in sample.inputs]
    return by_reference(node, arrays)


def _updated(node: Node) -> dict[int, Stored]:
    """output -> the array that it is written to."""
    op = node.op
    names = [s.name for s in op.inputs]
    places = {}
    for k in range(len(node.outputs)):
        target = op.updates.get(op.slot(op.outputs, k).name)
        if target is not None:
            value = node.inputs[names.index(target) + k // len(op.outputs) * op.group_size]
            if value is not None:
                places[k] = value.node.attrs["stored"]
    return places
