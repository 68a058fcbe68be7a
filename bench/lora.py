"""Seconds per training step of SmolLM2-135M's shape: LoRA of rank 8 on q, k, v, o, and full fine-tuning; PyTorch, JAX.

    python bench/lora.py [--tokens 256,512] [--mode lora,full] [--threads 2] [--rounds 7] [--precision bf16]
                         [--no-peers] [--keep FOLDER]

One row of tokens per step, AdamW, f32 arithmetic. With --precision bf16 ours rounds the operands of products, PyTorch
computes under its autocast, JAX stays in f32, and peak and products are those of bf16. Every contender is a process of
its own that is ready, warm and idle; the steps are taken in turn, one contender after the other, so that a disturbance
meets all of them. Figures are
medians; `resident` is the most that the process ever held, mapped weights included. `GEMMs alone`: all products of the
step by our own kernel, each shape timed by itself in this run; the bound is their arithmetic at the FMA peak measured
in this run. `PyTorch, tuned` keeps freed memory in its process (glibc's malloc is told never to give it back). The
model files are written to a temporary folder, or found there again with --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy checks our products here; its threads would go on spinning

import numpy as np
from common import fma_peak, in_precision, installed, pin, rss_mib, steps_on_request, table
from decoder_peers import DECAY, LAYERS, LR, RANK, SHAPES, VOCAB, WIDTH, tokens

BLOCK = 384  # columns of the vocabulary at a time, as csrc/kernels/linear_loss.h walks it
ROOT = Path(__file__).resolve().parent.parent
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
CONTENDERS = {
    "lora": ("gradloom, f32 base", "gradloom, q8_0 base", "PyTorch", "PyTorch, tuned", "JAX"),
    "full": ("gradloom, f32 base", "PyTorch", "PyTorch, tuned", "JAX"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="256,512")
    parser.add_argument("--mode", default="lora,full")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the model files, used again when they are there")
    parser.add_argument("--contender", nargs=3, metavar=("NAME", "MODE", "TOKENS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    pin(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        if args.contender:
            name, mode, length = args.contender
            serve(name, mode, int(length), folder, args.threads, args.precision)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("f32", "q8_0"):
            write(folder, kind)
        for mode in args.mode.split(","):
            for length in args.tokens.split(","):
                measure(mode, int(length), folder, args)


def write(folder: Path, kind: str) -> Path:
    """The model of random weights, unless it is there."""
    path = folder / f"smollm2-135m-{kind}.gguf"
    if not path.exists():
        script = [sys.executable, str(ROOT / "examples" / "random_gguf.py")]
        part = path.with_suffix(".part")
        subprocess.run(
            [*script, str(part), "--shape", "smollm2-135m", "--type", kind], check=True, stdout=subprocess.DEVNULL
        )
        part.rename(path)
    return path


# ---- the parent: steps in turn --------------------------------------------------------------------------------------


class Contender:
    def __init__(self, name: str, mode: str, length: int, folder: Path, threads: int, precision: str) -> None:
        self.name, self.times = in_precision(name, precision), list[float]()
        environment = dict(os.environ, JAX_PLATFORMS="cpu")
        for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[key] = str(threads)
        if name.endswith("tuned"):
            environment |= TUNED
        command = [sys.executable, __file__, "--threads", str(threads), "--precision", precision]
        command += ["--keep", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--contender", name, mode, str(length)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.answer()

    def answer(self) -> dict:
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"{self.name}: ended early, with {self.process.wait()}")
            if line.startswith("{"):
                return json.loads(line)

    def ask(self, what: str) -> dict:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.answer()


def measure(mode: str, length: int, folder: Path, args: argparse.Namespace) -> None:
    names = [n for n in CONTENDERS[mode] if n.startswith("gradloom") or (not args.no_peers and available(n))]
    contenders = [Contender(n, mode, length, folder, args.threads, args.precision) for n in names]
    peaks = []
    for _ in range(args.rounds):
        peaks.append(fma_peak(args.threads, args.precision))
        for c in contenders:
            c.times.append(c.ask("step")["seconds"])
            time.sleep(0.3)  # OpenMP's threads spin for a while after their work
    gemms = products(mode, length)
    alone = [sum(n * seconds(*shape, args.threads, args.precision) for shape, n in gemms.items()) for _ in range(2)]
    last = {c.name: c.ask("end") for c in contenders}
    for c in contenders:
        c.process.wait()
    peak, gemm = statistics.median(peaks), statistics.median(alone)
    flop = sum(2 * m * n * k * count for (m, n, k, _), count in gemms.items())
    ours = statistics.median(contenders[0].times)
    print(f"\n{mode}, 1 x {length} tokens, {args.threads} threads; FMA peak {peak:.0f} GFLOP/s")
    lines = [
        ("arithmetic at the FMA peak", f"{flop / peak / 1e9:.3f}", "", "", f"{flop / peak / 1e9 / ours:.2f}", "", ""),
        ("GEMMs alone", f"{gemm:.3f}", "", "", f"{gemm / ours:.2f}", "", ""),
    ]
    for c in contenders:
        s, found = statistics.median(c.times), last[c.name]
        spread = f"{min(c.times):.3f}-{max(c.times):.3f}"
        rate, ratio, held = f"{length / s:.0f}", f"{s / ours:.2f}", f"{found['rss_mib']:.0f}"
        lines.append((c.name, f"{s:.3f}", spread, rate, ratio, held, f"{found['loss']:.4f}"))
    table(lines, (f"{mode}, {length} tokens", "s/step", "least-most", "tokens/s", "ratio", "resident MiB", "loss"))
    print(f"the GEMMs alone run at {flop / gemm / 1e9:.0f} GFLOP/s, {100 * flop / gemm / 1e9 / peak:.0f} % of the peak")
    for c in contenders:
        if "profile" in last[c.name]:
            whole = sum(ms for _, ms, _ in last[c.name]["profile"])
            print(f"\n{c.name}: {whole:.0f} ms inside the step, by op (planned {last[c.name]['planned_mib']:.0f} MiB)")
            rest = [(op, f"{ms:.1f}", f"{100 * ms / whole:.1f}", count) for op, ms, count in last[c.name]["profile"]]
            table(rest, ("op", "ms/step", "%", "instructions"))


def available(name: str) -> bool:
    return installed("torch" if name.startswith("PyTorch") else "jax")


def products(mode: str, length: int) -> dict[tuple[int, int, int, str], int]:
    """(m, n, k, form) of every product of a step -> how often. Weights lie as [n_out, n_in]."""
    found: dict[tuple[int, int, int, str], int] = defaultdict(int)
    for name, (n_in, n_out) in SHAPES.items():
        needed = LAYERS - (mode == "lora" and name in "qkv")  # nothing below the first block trains
        found[length, n_out, n_in, "NT"] += LAYERS
        found[length, n_in, n_out, "NN"] += needed
        if mode == "full":
            found[n_out, n_in, length, "TN"] += LAYERS
        elif name in "qkvo":
            found[length, RANK, n_in, "NT"] += LAYERS  # x A^T, times B^T; then dB, the thin gradient, dA, dX
            found[length, n_out, RANK, "NT"] += LAYERS
            found[n_out, RANK, length, "TN"] += LAYERS
            found[length, RANK, n_out, "NN"] += LAYERS
            found[RANK, n_in, length, "TN"] += LAYERS
            found[length, n_in, RANK, "NN"] += needed
    blocks = VOCAB // BLOCK  # the loss walks the vocabulary block by block
    found[length, BLOCK, WIDTH, "NT"] += blocks
    found[length, WIDTH, BLOCK, "NN"] += blocks
    if mode == "full":
        found[BLOCK, WIDTH, length, "TN"] += blocks
    return found


def seconds(m: int, n: int, k: int, form: str, threads: int, precision: str) -> float:
    """Of one product by our kernel: the median once the threads are awake and apart."""
    from gemm import Ours

    from gradloom import _core

    product = Ours(_core.isas()[0], (m, n, k), form, precision=precision)
    return statistics.median([product.seconds(threads) for _ in range(6)][1:])


# ---- a contender ----------------------------------------------------------------------------------------------------


def serve(name: str, mode: str, length: int, folder: Path, threads: int, precision: str) -> None:
    """Two steps to warm up, then one for each line "step"; "end" ends."""
    trainer = None
    if name.startswith("gradloom"):
        step, trainer = ours(mode, length, write(folder, "q8_0" if "q8_0" in name else "f32"), threads, precision)
    else:
        from decoder_peers import jax_step, torch_step

        full = mode == "full"
        step = (
            jax_step(length, full, threads) if name == "JAX" else torch_step(length, full, threads, LAYERS, precision)
        )
    loss = steps_on_request(step)
    found: dict = {"rss_mib": rss_mib(), "loss": loss}
    if trainer is not None:
        (compiled,) = trainer.compiled
        found |= {"profile": profile(compiled.run, step), "planned_mib": compiled.run.plan.peak_bytes / 2**20}
    print(json.dumps(found), flush=True)


def ours(mode: str, length: int, path: Path, threads: int, precision: str = "f32"):
    import gradloom as gl
    from gradloom import llm

    model = llm.load(path)
    adapter = llm.TrainedTensors("all") if mode == "full" else llm.LoRA(rank=RANK, alpha=2 * RANK, seed=0)
    adapter.bind(model)
    if mode == "lora":
        rng = np.random.default_rng(0)
        for b in adapter.b.values():
            b.assign(rng.normal(0, 0.01, b.shape))
    trainer = gl.Trainer(
        lambda x: model.hidden(x[:, 0], x[:, 1], adapter, training=True),
        lambda hidden, labels: model.loss_pair(hidden, labels, adapter),
        gl.optim.AdamW(lr=LR, weight_decay=DECAY),
        threads=threads,
        precision=precision,
    )
    row = tokens(length).astype(np.int32)[None]
    x, labels = np.stack([row[:, :-1], np.arange(length, dtype=np.int32)[None]], 1), row[:, 1:].copy()
    return lambda: trainer.step(x, labels).loss, trainer


def profile(run, step, steps: int = 3) -> list[tuple[str, float, int]]:
    """(op, milliseconds per step, instructions), the most expensive first; products of the adapter apart."""
    run.collect_times()
    for _ in range(steps):
        step()
    spent: dict[str, list[int]] = defaultdict(list)
    for node, (_, least, _) in zip(run.plan.order.steps, run.timings(), strict=True):
        thin = node.op.name.startswith("matmul") and RANK in (*node.outputs[0].shape, node.inputs[0].shape[-1])
        spent[node.op.name + (" (rank 8)" if thin else "")].append(least)
    found = [(op, sum(times) / 1e6, len(times)) for op, times in spent.items()]
    return sorted(found, key=lambda row: -row[1])


if __name__ == "__main__":
    main()
