"""What precision="bf16" changes beside the time: gradients, final losses, memory; each beside f32's.

    python bench/precision.py [--only gradients|training|memory] [--shape smollm2-135m|deep] [--seeds 3]

Gradients: the thirty layers of bench/deep.py, LoRA with B not zero, twenty steps of SGD by the gradients of float64.
Before each step all have the same weights. Shown is the relative L2 error of each trained array's gradient against
PyTorch's float64, beside that of PyTorch's autocast to bf16. Asked for: the median at most autocast's, the worst at
most 1.5 times.

Training: the same data, order and seeds in f32 and in bf16; the loss on held-out rows with its uncertainty. The last
column is the mean difference over the seeds, in units of that uncertainty. Asked for: at most 1. MNIST (MLP with
dropout, CNN) and stories260K (LoRA and full fine-tuning on Shakespeare and on GSM8K), where ../shared/data is there.

Memory: LoRA and full fine-tuning of four layers of SmolLM2-135M's shape (a small vocabulary, whose gradient would hide
what is measured), 4 x 512 tokens, each in a process of its own: the arena that is planned, and what the process really
takes for it. Asked for: at most 70 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import SHARED, in_a_process, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tests are written as modules

MIB = 2**20
PRECISIONS = ("f32", "bf16")
ROWS = 12_000  # of MNIST to train on
LAYERS = 4
STORIES = SHARED / "gguf" / "stories260K.gguf"
TEXTS = {
    "Shakespeare": SHARED / "text" / "tinyshakespeare.txt",
    "GSM8K": SHARED / "instruct" / "gsm8k-train.jsonl",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("gradients", "training", "memory"))
    parser.add_argument("--shape", choices=("smollm2-135m", "deep"), default="deep")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of each fine-tuning")
    parser.add_argument("--epochs", type=int, default=4, help="of each training on MNIST")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(taken(*args.work)))
        return 0
    kept = True
    if args.only in (None, "gradients"):
        kept &= gradients(args.shape)
    if args.only in (None, "training") and STORIES.exists():
        kept &= training(args.seeds, args.epochs, args.steps)
    if args.only in (None, "memory"):
        kept &= memory()
    return 0 if kept else 1


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradients(shape: str) -> bool:
    from tests.llm.deep_case import DeepCase

    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = zip(*DeepCase(Path(folder), shape).bf16_errors(), strict=True)
    median, worst = ([f(ours), f(theirs)] for f in (statistics.median, max))
    lines = [(name, *(f"{e:.4f}" for e in errors)) for name, errors in (("median", median), ("worst", worst))]
    table(lines, (f"{len(ours)} gradients, relative error", "gradloom", "autocast"))
    return median[0] <= median[1] and worst[0] <= 1.5 * worst[1]


# ---- training --------------------------------------------------------------------------------------------------------


def training(seeds: int, epochs: int, steps: int) -> bool:
    works: dict[str, Any] = {"MNIST, MLP": ("mlp", epochs), "MNIST, CNN": ("cnn", epochs)}
    for text, path in TEXTS.items():
        works |= {f"stories260K on {text}, {method}": (method, str(path), steps) for method in ("LoRA", "full")}
    lines, kept = [], True
    for name, (kind, *more) in works.items():
        losses: dict[str, list[float]] = {p: [] for p in PRECISIONS}
        spread = []
        for seed in range(seeds):
            for precision in PRECISIONS:
                run = fitted if kind in ("mlp", "cnn") else tuned
                loss, uncertainty = run(kind, *more, seed, precision=precision)
                losses[precision].append(loss)
                spread.append(uncertainty)
        f32, bf16 = (statistics.mean(losses[p]) for p in PRECISIONS)
        unit = statistics.median(spread)
        kept &= abs(bf16 - f32) <= unit
        lines.append((name, f"{f32:.4f}", f"{bf16:.4f}", f"{unit:.4f}", f"{(bf16 - f32) / unit:+.2f}"))
    table(lines, (f"loss on held-out rows, {seeds} seeds", *PRECISIONS, "uncertainty", "difference"))
    return kept


def fitted(kind: str, epochs: int, seed: int, optimizer: Any = None, **options: Any) -> tuple[float, float]:
    """The loss on MNIST's test rows, and its uncertainty. optimizer: makes one from lr=; options: of gl.fit."""
    import gradloom as gl
    from gradloom.data.idx import read_idx

    nn = gl.nn
    rows = {n: read_idx(SHARED / "mnist" / f"{n}-images-idx3-ubyte.gz") for n in ("train", "t10k")}
    labels = {n: read_idx(SHARED / "mnist" / f"{n}-labels-idx1-ubyte.gz") for n in rows}
    shape = (784,) if kind == "mlp" else (1, 28, 28)
    x = {n: (a.astype(np.float32) / 255).reshape(-1, *shape) for n, a in rows.items()}
    if kind == "mlp":
        net = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Dropout(0.2), nn.Linear(500, 10))
    else:
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, activation="relu"), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, activation="relu"), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10),
        )  # fmt: skip
    data = x["train"][:ROWS], labels["train"][:ROWS]
    gl.fit(net.init(seed), data, optimizer=(optimizer or gl.optim.AdamW)(lr=1e-3), epochs=epochs, batch_size=100,
           seed=seed, progress=False, **options)  # fmt: skip
    found = gl.evaluate(net, (x["t10k"], labels["t10k"]), loss="cross_entropy")
    return found.loss, found.loss_unc


def tuned(kind: str, text: str, steps: int, seed: int, lr: float = 1e-3, **settings: Any) -> tuple[float, float]:
    """The loss on held-out rows, and its uncertainty. settings: of gl.llm.finetune."""
    import gradloom as gl

    adapter = gl.llm.LoRA(rank=8, targets="all") if kind == "LoRA" else gl.llm.TrainedTensors("all", "f32")
    options = {} if text.endswith(".txt") else {"prompt_key": "question", "completion_key": "answer"}
    run = gl.llm.finetune(
        str(STORIES), text, adapter, data_options=options, context=256, batch_size=4, steps=steps, lr=lr, seed=seed,
        val_split=0.02, progress=False, **settings,
    )  # fmt: skip
    return run.report["val_loss"], run.report["val_loss_unc"]


# ---- memory ----------------------------------------------------------------------------------------------------------


def random_model(folder: Path) -> tuple[Path, Path]:
    """Files of LAYERS layers of SmolLM2-135M's shape and of a random text."""
    from examples.random_gguf import SHAPES, write_random

    model, text = folder / "model.gguf", folder / "text.txt"
    write_random(model, **(SHAPES["smollm2-135m"] | {"layers": LAYERS, "vocab": 1024}))
    text.write_text("".join(map(chr, np.random.default_rng(0).integers(97, 123, 40_000))))
    return model, text


def memory() -> bool:
    lines, kept = [], True
    with tempfile.TemporaryDirectory() as folder:
        model, text = random_model(Path(folder))
        for method in ("LoRA", "full"):
            found = {p: in_a_process(__file__, str(model), str(text), method, p) for p in PRECISIONS}
            for what in ("planned", "resident"):
                f32, bf16 = (found[p][what] for p in PRECISIONS)
                kept &= bf16 <= 0.7 * f32
                lines.append((f"{method}, {what}", f"{f32 / MIB:.1f}", f"{bf16 / MIB:.1f}", f"{bf16 / f32:.3f}"))
    table(lines, ("activations of 4 x 512 tokens, MiB", *PRECISIONS, "quotient"))
    return kept


def taken(model: str, text: str, method: str, precision: str) -> dict[str, int]:
    """Bytes of activations: what the plan says, and what two steps have added to the process's own memory, without
    what trains, its moments, inputs and the scratch of threads."""
    import gradloom as gl

    adapter = gl.llm.LoRA(rank=8, targets="all") if method == "LoRA" else gl.llm.TrainedTensors("all", "f32")
    sizes: dict[str, Any] = {"context": 512, "batch_size": 4, "micro_batch_size": 4, "steps": 2, "val_split": 0.0}
    run = gl.llm.Run(model, text, adapter, precision=precision, **sizes)
    before = own_bytes()
    run.train(progress=False)
    plan = run.memory()
    others = plan.copies + plan.trained + plan.state + plan.gradients + plan.inputs + plan.scratch * plan.threads
    return {"planned": plan.arena, "resident": own_bytes() - before - others}


def own_bytes() -> int:
    """Resident memory of this process that no file is mapped to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    sys.exit(main())
