"""GFLOP/s of the matrix product beside the peak measured in the same run, on one and on two threads.

    python bench/gemm.py [--isa avx512|avx2|scalar] [--threads 1,2] [--rounds N] [--only 500x500x784] [--no-peers]
    python bench/gemm.py --precision bf16    operands of bf16; the peak is that of its unit, where there is one
    python bench/gemm.py --frozen [--kinds q8_0,q4_0,...]    right operands in the formats of model files, beside f32

Each figure is the median over the rounds. Every round measures the peak and then, at once, the products, each through
the machine that runs training steps; `of peak` is the median of the ratios. NN, NT, TN: which operand lies transposed.
With --frozen: NT is x W^T, the forward product (blocks run along k), NN is g W, the gradient of the activations (blocks
run along n); `of f32` is the median of the ratios to the f32 product of the same round. Formats with blocks of 256 are
measured with 512 in the place of 576. Decoding alone: bench/dequantise.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np
from common import table

SHAPES = (
    (500, 500, 784), (784, 500, 500), (512, 576, 576), (512, 1536, 576), (512, 576, 1536), (512, 49152, 576),
    (2048, 2048, 2048), (64, 64, 64), (500, 10, 500),
)  # fmt: skip
TARGETS = {(64, 64, 64): 65, (500, 10, 500): 35}  # percent of the peak; 80 for the others
FORMS = ("NN", "NT", "TN")
BF16_SHAPES = ((512, 576, 576), (512, 1536, 576), (512, 576, 1536), (2048, 2048, 2048))
FROZEN_SHAPES = ((512, 576, 576), (512, 1536, 576), (512, 576, 1536), (512, 49152, 576))
PEERS = ("numpy", "torch")
STRETCH = 0.02  # seconds of one measurement, or one call where that is longer


class Ours:
    """x @ y as bytecode of one instruction, in huge pages like every plan."""

    def __init__(
        self, isa: str, shape: tuple[int, int, int], form: str, kind: str = "f32", precision: str = "f32"
    ) -> None:
        from gradloom import _core
        from gradloom.base.dtypes import dtype
        from gradloom.ops.common import draw_blocks
        from gradloom.plan import bytecode
        from gradloom.run import dequantize

        m, n, k = shape
        layouts = [((m, k), (k, 1) if form[0] == "N" else (1, m)), ((k, n), (n, 1) if form[1] == "N" else (1, k))]
        args, offset = [], 0
        for i, (dims, strides) in enumerate([*layouts, ((m, n), (n, 1))]):
            known = dtype((precision, kind if precision == "f32" else precision, "f32")[i])
            nbytes, flags = known.bytes_of(dims[0] * dims[1]), bytecode.ARG_WRITE if i == 2 else 0
            segment, at = (
                (1, 0) if i == 1 and kind != "f32" else (0, offset)
            )  # a frozen operand lies in memory of its own
            args.append((segment, known.code, 2, flags, at, nbytes, (*dims, 1, 1, 1, 1), (*strides, 0, 0, 0, 0)))
            offset += 0 if segment else -(-nbytes // 4096) * 4096 + 64
        records = np.array(args, bytecode.ARG)
        words = np.zeros(0, np.int64)
        signature = f"f32_{kind}_f32" if kind != "f32" else "f32" if precision == "f32" else f"{precision}_f32"
        parts, scratch, workspace = _core.kernel_plan(isa, "matmul", signature, records, words)
        self.arena = _core.Arena()
        self.arena.ensure(offset + workspace)
        numbers = self.arena.view()[: offset // 4 * 4].view(np.float32)
        some = np.random.default_rng(0).standard_normal(99991).astype(dtype(precision).numpy)
        numbers[:] = np.resize(some, numbers.nbytes // some.itemsize).view(np.float32)
        self.frozen = np.zeros(args[1][5] if kind != "f32" else 64, np.uint8)
        if kind != "f32":
            some = np.random.default_rng(1).standard_normal(99991).astype(dtype(kind).numpy).view(np.uint8)
            if dtype(kind).is_quantised:
                some = draw_blocks(np.random.default_rng(1), kind, (999, dtype(kind).block))
            self.frozen[:] = np.resize(some, self.frozen.size)
        if workspace:
            args.append(
                (0, 5, 1, bytecode.ARG_WRITE, offset, workspace, (workspace, 1, 1, 1, 1, 1), (1, 0, 0, 0, 0, 0))
            )
            records = np.array(args, bytecode.ARG)
        step = np.zeros(1, bytecode.INSTRUCTION)
        step["arg_count"], step["phases"] = len(args), len(parts)
        step["parts"][0, : len(parts)] = parts
        frozen = ("readonly", self.frozen.ctypes.data, self.frozen.size)
        segments = [("arena", self.arena), frozen, ("scratch", scratch)]
        self.program = _core.Program(isa, [("matmul", signature)], step, records, words, segments)
        self.flops = 2e-9 * m * n * k
        held = [numbers.view(dtype(name).numpy) for name in (precision, precision, "f32")]
        x, y, z = (
            np.lib.stride_tricks.as_strided(
                h[int(r["offset"]) // h.itemsize :], r["shape"][:2], r["strides"][:2] * h.itemsize
            ).astype(np.float32, copy=False)
            for h, r in zip(held, records[:3], strict=True)
        )
        if kind != "f32":
            y = dequantize(self.frozen, kind, (n, k) if form[1] == "T" else (k, n))
            y = y.T if form[1] == "T" else y
        self.run(1, 2)
        rows = np.unique(np.linspace(0, m - 1, 5).astype(int))
        want = x[rows].astype(np.float64) @ y.astype(np.float64) if n * k < 1 << 22 else x[rows] @ y
        assert np.allclose(z[rows], want, rtol=1e-3, atol=1e-5 * k), f"{shape} {form}: wrong product"
        self.repeats = 1
        self.repeats = max(1, int(STRETCH / self.seconds(1)))

    def run(self, steps: int, threads: int) -> None:
        done = self.program.run(steps, threads=threads)
        assert done[0] == steps

    def seconds(self, threads: int) -> float:
        self.run(1, threads)
        began = time.perf_counter()
        self.run(self.repeats, threads)
        return (time.perf_counter() - began) / self.repeats

    def rate(self, threads: int) -> float:
        return self.flops / self.seconds(threads)


def frozen_section(isa: str, threads: list[int], rounds: int, kinds: list[str], shapes: list[tuple]) -> None:
    """Products with frozen right operands beside f32."""
    from gradloom import _core
    from gradloom.base.dtypes import dtype

    rows = []
    for shape in shapes:
        for wide in (False, True):
            here = [k for k in kinds if (dtype(k).block == 256) == wide]
            sizes = tuple(512 if v == 576 and wide else v for v in shape)
            if not here:
                continue
            works = {(k, form): Ours(isa, sizes, form, k) for k in ("f32", *here) for form in ("NT", "NN")}
            found: dict[tuple, list[tuple[float, float]]] = {}
            for _ in range(rounds):
                for t in threads:
                    peak = _core.fma_peak(isa, t, 1)
                    for form in ("NT", "NN"):
                        plain = works["f32", form].rate(t)
                        for k in here:
                            rate = works[k, form].rate(t)
                            found.setdefault((k, form, t), []).append((rate / peak, rate / plain))
            for k in here:
                row = ["x".join(map(str, sizes)), k]
                for t in threads:
                    for form in ("NT", "NN"):
                        peaks, ratios = zip(*found[k, form, t], strict=True)
                        row.append(f"{100 * statistics.median(peaks):.0f} % ({100 * statistics.median(ratios):.0f})")
                rows.append(tuple(row))
    print(f"{isa}: frozen right operands, % of the FMA peak (% of f32)")
    table(rows, ("m x n x k", "format", *(f"{form}, {t} thr." for t in threads for form in ("NT", "NN"))))


def peer_rates(name: str, threads: int, rounds: int, shapes: list[tuple[int, int, int]]) -> None:
    """Runs in a process of its own, where the peer sees its threads: prints {"MxNxK form": GFLOP/s}."""
    if name == "torch":
        import torch

        torch.set_num_threads(threads)
    found: dict[str, float] = {}
    for m, n, k in shapes:
        for form in FORMS:
            x = np.random.default_rng(0).standard_normal((m, k) if form[0] == "N" else (k, m)).astype(np.float32)
            y = np.random.default_rng(1).standard_normal((k, n) if form[1] == "N" else (n, k)).astype(np.float32)
            z = np.empty((m, n), np.float32)
            if name == "torch":
                x, y, z = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(z)
            x, y = x if form[0] == "N" else x.T, y if form[1] == "N" else y.T
            call = (
                (lambda x=x, y=y, z=z: torch.matmul(x, y, out=z))
                if name == "torch"
                else (lambda x=x, y=y, z=z: np.matmul(x, y, out=z))
            )
            call()
            began = time.perf_counter()
            call()
            repeats = max(1, int(STRETCH / (time.perf_counter() - began)))
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                for _ in range(repeats):
                    call()
                times.append((time.perf_counter() - began) / repeats)
            found[f"{m}x{n}x{k} {form}"] = 2e-9 * m * n * k / statistics.median(times)
    print(json.dumps(found))


def ask_peer(name: str, threads: int, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--peer", name, "--threads", str(threads), "--rounds", str(args.rounds)]
    if args.only:
        command += ["--only", args.only]
    env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", help="default: the best that the machine has")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="one shape, as MxNxK; any sizes")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--frozen", action="store_true", help="right operands in the formats of model files")
    parser.add_argument("--kinds", default="f16,bf16,q8_0,q4_0,q4_1,q5_0,q5_1,q2_k,q3_k,q4_k,q5_k,q6_k")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    known = SHAPES if args.precision == "f32" else BF16_SHAPES
    shapes = [tuple(int(v) for v in args.only.split("x"))] if args.only else list(known)
    if args.peer:
        return peer_rates(args.peer, int(args.threads), args.rounds, shapes)

    args.no_peers |= args.precision != "f32"
    from gradloom import _core

    isa = args.isa or _core.isas()[0]
    threads = [int(t) for t in args.threads.split(",")]
    if args.frozen:
        chosen = shapes if args.only else list(FROZEN_SHAPES)
        return frozen_section(isa, threads, args.rounds, args.kinds.split(","), chosen)
    cases = [(shape, form) for shape in shapes for form in FORMS]
    peaks: dict[int, list[float]] = {t: [] for t in threads}
    rates: dict[tuple, list[float]] = {(*case, t): [] for case in cases for t in threads}
    ratios: dict[tuple, list[float]] = {key: [] for key in rates}
    for shape in shapes:  # operands of one shape at a time are held
        works = {form: Ours(isa, shape, form, precision=args.precision) for form in FORMS}
        for _ in range(args.rounds):
            for t in threads:
                peaks[t].append((_core.fma_peak if args.precision == "f32" else _core.bf16_peak)(isa, t, 1))
                for form, work in works.items():
                    rates[shape, form, t].append(work.rate(t))
                    ratios[shape, form, t].append(rates[shape, form, t][-1] / peaks[t][-1])
    peers = {} if args.no_peers else {(p, t): ask_peer(p, t, args) for p in PEERS for t in threads}

    peak = {t: statistics.median(peaks[t]) for t in threads}
    rows, short, result = [], 0, {}
    for shape, form in cases:
        name = "x".join(str(v) for v in shape)
        row = [name, form]
        for t in threads:
            rate = statistics.median(rates[shape, form, t])
            percent = 100 * statistics.median(ratios[shape, form, t])
            short += percent < (TARGETS.get(shape, 80) if args.precision == "f32" else 85)
            row += [f"{rate:.0f}", f"{percent:.0f} %"]
            row += [
                f"{peers[p, t][f'{name} {form}']:.0f}" if peers.get((p, t)) else "-" for p in PEERS if not args.no_peers
            ]
            result[f"{name} {form} {t}"] = round(rate, 1)
        rows.append(tuple(row))
    heads = ["m x n x k", "form"]
    for t in threads:
        heads += [f"{t} thread{'s' * (t > 1)}", "of peak", *(p for p in PEERS if not args.no_peers)]
    print(f"{isa}: {args.precision} GFLOP/s; peak " + ", ".join(f"{peak[t]:.0f} on {t}" for t in threads))
    table(rows, tuple(heads))
    targets = "85 %" if args.precision == "bf16" else "80 %; 65 for 64x64x64, 35 for 500x10x500"
    print("all at or above their targets" if not short else f"{short} below target ({targets})")
    if args.json:
        print(json.dumps({"isa": isa, "peak": peak, "gflops": result}))


if __name__ == "__main__":
    main()
