"""What state_bits=8 changes: final losses and memory, each beside those of f32 moments.

    python bench/optimizer_states.py [--only training|memory] [--seeds 3]

Training: the same data, order and seeds with moments of 32 and of 8 bits; the loss on held-out rows with its
uncertainty. The last column is the mean difference over the seeds, in units of that uncertainty. Asked for: at most 1.
MNIST (MLP with dropout, CNN) and full fine-tuning of stories260K on Shakespeare and on GSM8K, where ../shared/data is
there, with AdamW and with Lion.

Memory: full fine-tuning of four layers of SmolLM2-135M's shape (a small vocabulary), 128 tokens at a time, each in a
process of its own: the bytes of the moments as planned, and the peak of the process as planned and as measured.
Asked for: moments of at most 0.27 of those in f32.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import in_a_process, rss_mib, table
from precision import MIB, STORIES, TEXTS, fitted, random_model, tuned

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the examples are written as modules

BITS = (32, 8)
RATES = {"adamw": 1e-3, "lion": 1e-4}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("training", "memory"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of each fine-tuning")
    parser.add_argument("--epochs", type=int, default=4, help="of each training on MNIST")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(taken(*args.work)))
        return 0
    kept = True
    if args.only in (None, "training") and STORIES.exists():
        kept &= training(args.seeds, args.epochs, args.steps)
    if args.only in (None, "memory"):
        kept &= memory()
    return 0 if kept else 1


def on_mnist(kind: str, epochs: int, seed: int, name: str, bits: int) -> tuple[float, float]:
    """The loss on the test rows, and its uncertainty."""
    import gradloom as gl

    made = {"adamw": gl.optim.AdamW, "lion": gl.optim.Lion}[name]
    return fitted(kind, epochs, seed, lambda lr: made(lr=RATES[name], state_bits=bits))


def on_stories(text: str, steps: int, seed: int, name: str, bits: int) -> tuple[float, float]:
    """The same of full fine-tuning."""
    return tuned("full", text, steps, seed, RATES[name], optimizer=name, state_bits=bits)


def training(seeds: int, epochs: int, steps: int) -> bool:
    works: dict[str, Any] = {
        f"MNIST, {kind.upper()}": functools.partial(on_mnist, kind, epochs) for kind in ("mlp", "cnn")
    } | {
        f"stories260K on {text}, full": functools.partial(on_stories, str(path), steps) for text, path in TEXTS.items()
    }
    lines, kept = [], True
    for name, run in works.items():
        for optimizer in RATES:
            losses: dict[int, list[float]] = {bits: [] for bits in BITS}
            spread = []
            for seed in range(seeds):
                for bits in BITS:
                    loss, uncertainty = run(seed, optimizer, bits)
                    losses[bits].append(loss)
                    spread.append(uncertainty)
            full, coded = (statistics.mean(losses[bits]) for bits in BITS)
            unit = statistics.median(spread)
            kept &= abs(coded - full) <= unit
            numbers = (f"{full:.4f}", f"{coded:.4f}", f"{unit:.4f}", f"{(coded - full) / unit:+.2f}")
            lines.append((f"{name}, {optimizer}", *numbers))
    table(lines, (f"loss on held-out rows, {seeds} seeds", "32 bits", "8 bits", "uncertainty", "difference"))
    return kept


def memory() -> bool:
    lines, kept = [], True
    with tempfile.TemporaryDirectory() as folder:
        model, text = random_model(Path(folder))
        for name in RATES:
            found = {bits: in_a_process(__file__, str(model), str(text), name, str(bits)) for bits in BITS}
            for what in ("parameters", "moments", "planned peak", "peak"):
                full, coded = (found[bits][what] for bits in BITS)
                kept &= what != "moments" or coded <= 0.27 * full
                lines.append((f"{name}, {what}", f"{full / MIB:.1f}", f"{coded / MIB:.1f}", f"{coded / full:.3f}"))
    table(lines, ("full fine-tuning, MiB", "32 bits", "8 bits", "quotient"))
    return kept


def taken(model: str, text: str, optimizer: str, bits: str) -> dict[str, int]:
    """Bytes of the trained parameters and of their moments; the peak of the process as planned and as measured."""
    import gradloom as gl

    sizes: dict[str, Any] = {"context": 128, "batch_size": 2, "micro_batch_size": 1, "steps": 2, "val_split": 0.0}
    run = gl.llm.Run(
        model, text, gl.llm.TrainedTensors("all", "f32"), optimizer=optimizer, state_bits=int(bits), **sizes
    )
    run.train(progress=False)
    plan = run.memory()
    return {
        "parameters": plan.trained, "moments": plan.state, "planned peak": plan.total,
        "peak": round(rss_mib() * MIB),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
