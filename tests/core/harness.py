"""Runs one kernel, or small bytecode, on NumPy arrays: no graph, no plan. For the tests of the core and its kernels.

    y, = run("relu", [x], ["f32(3,4)"])                       # outputs as "dtype(shape)" or (dtype, shape)
    z, = run("add", [x, y], [("f32", (3, 4))], alias={0: 0})  # output 0 lies in the bytes of input 0
    run("clamp", [x], ["f32(5)"], attrs=[-1.0, 1.0])          # int, float, bool; a list takes its length first

Inputs may be strided or broadcast views (non-negative strides), quantised ones (anything with the dtype's name, data,
shape and strides, as gradloom.ops.common.Quantised has them), or None for an absent optional one. Every buffer has
guard bytes on both sides; a changed guard byte, or a changed input that is no alias, is an AssertionError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gradloom import _core

BLOCKS = {  # of quantised dtypes: code, elements and bytes of a block
    "q4_0": (16, 32, 18), "q4_1": (17, 32, 20), "q5_0": (18, 32, 22), "q5_1": (19, 32, 24), "q8_0": (20, 32, 34),
    "q2_k": (21, 256, 84), "q3_k": (22, 256, 110), "q4_k": (23, 256, 144), "q5_k": (24, 256, 176),
    "q6_k": (25, 256, 210),
}  # fmt: skip
CODES = {"none": 0, "f32": 1, "f16": 2, "bf16": 3, "f64": 4, "u8": 5, "i8": 6, "i32": 7, "i64": 8}
CODES |= {k: v[0] for k, v in BLOCKS.items()}
NUMPY = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64), "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8),
    "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
}  # fmt: skip
NAMES = {v: k for k, v in NUMPY.items()}
ARG = np.dtype(
    [("segment", "u4"), ("dtype", "u1"), ("rank", "u1"), ("flags", "u2"), ("offset", "u8"), ("bytes", "u8"),
     ("shape", "i8", 6), ("strides", "i8", 6)]
)  # fmt: skip
INSTRUCTION = np.dtype(
    [("kernel", "u4"), ("node", "u4"), ("arg_first", "u4"), ("arg_count", "u4"), ("attr_first", "u4"),
     ("attr_count", "u4"), ("flags", "u4"), ("phases", "u4"), ("parts", "u4", 4)]
)  # fmt: skip
assert ARG.itemsize == _core.ARG_BYTES and INSTRUCTION.itemsize == _core.INSTRUCTION_BYTES
NO_SEGMENT = 0xFFFFFFFF
WRITE = 1
GUARD = 256
GUARD_BYTE = 0xA5


def attr_words(attrs: Sequence[Any]) -> np.ndarray:
    """Attribute words: a float as the bits of the double, a list as its length and its members."""
    words: list[int] = []
    for a in attrs:
        if isinstance(a, (list, tuple)):
            words += [len(a), *(int(v) for v in a)]
        elif isinstance(a, float):
            words.append(struct.unpack("<q", struct.pack("<d", a))[0])
        else:
            words.append(int(a))
    return np.array(words, np.int64)


def arg(
    dtype: str, shape: Sequence[int], segment: int = NO_SEGMENT, offset: int = 0, nbytes: int | None = None,
    strides: Sequence[int] | None = None, write: bool = False,
) -> np.ndarray:  # fmt: skip
    """One argument record (strides in elements; dense when not given)."""
    r = np.zeros((), ARG)
    r["segment"], r["dtype"], r["rank"], r["flags"] = segment, CODES[dtype], len(shape), WRITE if write else 0
    r["shape"] = 1
    if strides is None:
        strides, n = [], 1
        for s in reversed(shape):
            strides.insert(0, n)
            n *= s
    for i, (n, s) in enumerate(zip(shape, strides, strict=True)):
        r["shape"][i], r["strides"][i] = n, s
    if nbytes is None:
        reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        nbytes = reach * NUMPY[dtype].itemsize if dtype != "none" else 0
    r["offset"], r["bytes"] = offset, nbytes
    return r


def signature(dtypes: Sequence[str]) -> str:
    """The dtypes of the present arguments in order; equal neighbours merged."""
    out: list[str] = []
    for t in dtypes:
        if t != "none" and (not out or out[-1] != t):
            out.append(t)
    return "_".join(out)


def isas() -> list[str]:
    """The instruction sets with kernels of their own for every op; the others take most from one of these."""
    return [isa for isa in _core.isas() if len(_core.kernels(isa, own=True)) == len(_core.kernels(isa))]


class Guarded:
    """A buffer between guard bytes, 64-byte aligned."""

    def __init__(self, nbytes: int) -> None:
        self.raw = np.full(nbytes + 2 * GUARD + 64, GUARD_BYTE, np.uint8)
        self.start = GUARD + (-(self.raw.ctypes.data + GUARD)) % 64
        self.nbytes = nbytes
        self.bytes = self.raw[self.start : self.start + nbytes]
        self.address = self.raw.ctypes.data + self.start

    def intact(self) -> bool:
        return bool(
            (self.raw[: self.start] == GUARD_BYTE).all() and (self.raw[self.start + self.nbytes :] == GUARD_BYTE).all()
        )


def _spec(out: str | tuple[str, Sequence[int]]) -> tuple[str, tuple[int, ...]]:
    if isinstance(out, str):
        name, _, rest = out.partition("(")
        return name, tuple(int(v) for v in rest.rstrip(")").split(",") if v.strip())
    return out[0], tuple(out[1])


def run(
    name: str,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[str | tuple[str, Sequence[int]] | None],
    attrs: Sequence[Any] = (),
    *,
    isa: str | None = None,
    sig: str | None = None,
    alias: dict[int, int] | None = None,
    threads: int = 1,
    poison: bool = True,
    check: bool = False,
    unwanted: Sequence[int] = (),
    full: bool = False,
) -> Any:
    """The outputs as NumPy arrays. alias: {output: input} shares bytes; unwanted: outputs passed without data.

    full=True returns (outputs, result of Program.run, parts) instead.
    """
    isa = isa or _core.isas()[0]
    alias = alias or {}
    segments: list[tuple] = []
    guarded: list[Guarded] = []
    records: list[np.ndarray] = []
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    input_segment: list[int] = []
    dtypes: list[str] = []
    aliased = set(alias.values())
    for i, x in enumerate(inputs):
        if x is None:
            records.append(arg("none", ()))
            input_segment.append(-1)
            continue
        quantised = not isinstance(x, np.ndarray | np.generic)
        t = x.dtype.name if quantised else NAMES[x.dtype]
        size = 1 if quantised else x.dtype.itemsize
        strides = [s // size if n > 1 else 0 for n, s in zip(x.shape, x.strides, strict=True)]
        if i in aliased:
            assert x.flags.c_contiguous
            strides = [s // size for s in x.strides]
        reach = 0 if x.size == 0 else 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
        if quantised:
            reach = -(-reach // BLOCKS[t][1]) * BLOCKS[t][2]  # bytes
            assert reach == x.data.size or not all(x.strides)
        same = next((j for j in range(i) if inputs[j] is x), None)  # one value passed twice: one buffer
        if same is not None:
            segment = input_segment[same]
        else:
            g = Guarded(reach * size)
            if reach:
                if quantised:
                    g.bytes[:] = x.data[:reach]
                else:
                    view = np.lib.stride_tricks.as_strided(x, (reach,), (size,), writeable=False)
                    g.bytes.view(x.dtype)[:] = view
            segment = len(segments)
            segments.append(("memory", g.address, g.nbytes))
            guarded.append(g)
            if i not in aliased and not any(inputs[j] is x for j in aliased):
                kept.append((g.bytes, g.bytes.copy()))
        input_segment.append(segment)
        dtypes.append(t)
        records.append(arg(t, x.shape, segment, 0, reach * size, strides))
    results: list[np.ndarray | None] = []
    for o, out in enumerate(outputs):
        if out is None or o in unwanted:
            t, shape = ("none", ()) if out is None else _spec(out)
            records.append(arg(t, shape))
            results.append(None)
            continue
        t, shape = _spec(out)
        dtypes.append(t)
        nbytes = int(np.prod(shape, dtype=np.int64)) * NUMPY[t].itemsize
        if o in alias:
            segment = input_segment[alias[o]]
            g = guarded[segment]
        else:
            g = Guarded(nbytes)
            g.bytes[:] = 0xFF
            segment = len(segments)
            segments.append(("memory", g.address, nbytes))
            guarded.append(g)
        records.append(arg(t, shape, segment, 0, nbytes, write=True))
        results.append(g.bytes[:nbytes].view(NUMPY[t]).reshape(shape))
    sig = sig or signature(dtypes)
    words = attr_words(attrs)
    parts, scratch, workspace = _core.kernel_plan(isa, name, sig, np.array(records, ARG), words)
    if workspace:
        g = Guarded(workspace)
        g.bytes[:] = 0xFF
        records.append(arg("u8", (workspace,), len(segments), 0, workspace, write=True))
        segments.append(("memory", g.address, workspace))
        guarded.append(g)
    segments.append(("scratch", scratch))
    instruction = np.zeros(1, INSTRUCTION)
    instruction["arg_count"], instruction["attr_count"], instruction["phases"] = len(records), len(words), len(parts)
    instruction["parts"][0, : len(parts)] = parts
    program = _core.Program(isa, [(name, sig)], instruction, np.array(records, ARG), words, segments)
    result = program.run(1, threads=threads, poison=poison, check=check)
    for g in guarded:
        assert g.intact(), f"{name} {sig} on {isa}: guard bytes overwritten"
    for now, before in kept:
        assert np.array_equal(now, before), f"{name} {sig} on {isa}: an input was changed"
    if full:
        return results, result, parts
    assert result[1] == 0, f"{name} {sig} on {isa}: stopped: {_core.STOP_NAMES[result[1]]} {result}"
    return results
