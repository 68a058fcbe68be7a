"""Time, memory and bits of a training step of SmolLM2-135M's shape under memory budgets, LoRA of rank 8 or full.

    python bench/recompute.py [--mode lora|full] [--rows 4] [--tokens 512] [--precision bf16] [--rounds 5]
                              [--shares 1,0.7,0.5,0.333,0.25,0.2,0.15] [--keep FOLDER]

Each share is a program compiled with memory = share of the whole program's peak: planned bytes, the share of the time
that the selection predicts, the measured ratio (steps of all programs in turn, medians), and whether loss and gradients
have the bits of the program without a budget.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from common import fma_peak, pin, table
from decoder_peers import RANK, tokens
from lora import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("lora", "full"), default="lora")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", default="1,0.7,0.5,0.333,0.25,0.2,0.15")
    parser.add_argument("--keep", type=Path, help="folder for the model file, used again when it is there")
    args = parser.parse_args()
    pin(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(write(folder, "f32"), args)


def measure(path: Path, args: argparse.Namespace) -> None:
    import gradloom as gl
    from gradloom import llm

    model = llm.load(path)
    adapter = llm.TrainedTensors("all") if args.mode == "full" else llm.LoRA(rank=RANK, alpha=2 * RANK, seed=0)
    adapter.bind(model)
    if args.mode == "lora":
        rng = np.random.default_rng(0)
        for b in adapter.b.values():
            b.assign(rng.normal(0, 0.01, b.shape))
    shape = (args.rows, args.tokens)
    ids, positions, labels = (gl.input(name, shape, "i32") for name in ("ids", "positions", "labels"))
    loss, _ = model.loss_pair(model.hidden(ids, positions, adapter, training=True), labels, adapter)
    outputs = [loss, *gl.gradients(loss, list(adapter.parameters().values()))]
    row = np.tile(tokens(args.tokens).astype(np.int32), (args.rows, 1))
    feeds = {"ids": row[:, :-1].copy(), "labels": row[:, 1:].copy()}
    feeds["positions"] = np.tile(np.arange(args.tokens, dtype=np.int32), (args.rows, 1))
    options = {"threads": args.threads, "precision": args.precision}
    whole = gl.compile(outputs, **options).plan.peak_bytes
    programs, selecting = {}, {}
    for share in map(float, args.shares.split(",")):
        began = time.perf_counter()
        try:
            programs[share] = gl.compile(outputs, memory=int(share * whole), **options)
        except gl.SettingError as error:
            print(f"{share}: {error}")
            continue
        selecting[share] = time.perf_counter() - began
    times: dict[float, list[float]] = {share: [] for share in programs}
    results = {share: run(**feeds) for share, run in programs.items()}
    for _ in range(args.rounds):
        for share, run in programs.items():
            began = time.perf_counter()
            run(**feeds)
            times[share].append(time.perf_counter() - began)
    first = next(iter(programs))
    lines = []
    for share, run in programs.items():
        plan, seconds = run.plan, statistics.median(times[share])
        same = all(np.array_equal(a, b) for a, b in zip(results[first], results[share], strict=True))
        lines.append((
            f"{share:.3f}", f"{plan.peak_bytes / 2**20:.0f}", f"{plan.peak_bytes / whole:.3f}", plan.recomputed.nodes,
            f"{1 + plan.recomputed.overhead:.3f}", f"{seconds:.3f}", f"{seconds / statistics.median(times[first]):.3f}",
            f"{selecting[share]:.1f}", "equal" if same else "NOT EQUAL",
        ))  # fmt: skip
    print(
        f"{args.mode}, {args.rows} x {args.tokens} tokens, {args.precision}; peak {fma_peak(args.threads):.0f} GFLOP/s"
    )
    heads = ("share", "MiB", "of whole", "recomputed", "predicted", "s/step", "measured", "compile s", "bits")
    table(lines, heads)


if __name__ == "__main__":
    main()
