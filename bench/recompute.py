"""Time, memory and bits of a training step of SmolLM2-135M's shape under memory budgets, LoRA of rank 8 or full.

    python bench/recompute.py [--mode lora|full] [--rows 4] [--tokens 512] [--precision bf16] [--rounds 5]
                              [--shares 1,0.7,0.5,0.333,0.25,0.2,0.15] [--keep FOLDER] [--torch]

Each share is a program compiled with memory = share of the whole program's peak: planned bytes, the share of the time
that the selection predicts, the measured ratio (steps of all programs in turn, medians), and whether loss and gradients
have the bits of the program without a budget. --torch: then the same model in PyTorch, without and with
torch.utils.checkpoint around each block (and an AdamW of the adapter), each in a process of its own: time, and how far
its resident memory rises above that before the first step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import fma_peak, in_a_process, median_seconds, pin, rss_mib, table
from decoder_peers import RANK, tokens, torch_step
from lora import write

from gradloom.base import memory


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
    parser.add_argument("--torch", action="store_true", help="PyTorch as well")
    parser.add_argument("--work", help="of PyTorch, in this process: plain or checkpoint")
    args = parser.parse_args()
    pin(args.threads)
    if args.work:
        in_torch(args)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(write(folder, "f32"), args)
    if args.torch:
        lines = []
        for work in ("plain", "checkpoint"):
            found = in_a_process(__file__, work, *sys.argv[1:])
            lines.append((work, f"{found['bytes'] / 2**20:.0f}", f"{found['microseconds'] / 1e6:.3f}"))
        table(lines, ("PyTorch", "MiB", "s/step"))


def in_torch(args: argparse.Namespace) -> None:
    """Print the growth of this process and its median time for a step."""
    made = torch_step(args.tokens, args.mode == "full", args.threads, precision=args.precision, rows=args.rows,
                      checkpointed=args.work == "checkpoint")  # fmt: skip
    before = memory.resident()
    seconds = median_seconds(made, args.rounds)
    grown = int(rss_mib() * 2**20) - before
    print(json.dumps({"bytes": grown, "microseconds": int(1e6 * seconds)}))


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
