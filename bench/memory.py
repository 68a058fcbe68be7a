"""Memory: what runs take against what their plans said.

    python bench/memory.py [--no-peers] [--only training|tuning] [--shape tuned]

Training: bytes of the MLP and CNN runs: the arena, its lower bound, huge pages, resident memory; PyTorch's beside.
"grown" is by how much the arena grew after compile: it must be 0. Tuning: fine-tunings of random models in 12 settings:
the resident peak above what the process held after its imports, beside what the plan of the run promised. It may be at
most the promise and 3 % or 16 MiB more, and at least 90 % of it. Each run is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import peer, rss_mib, table

sys.path.append(str(Path(__file__).resolve().parents[1]))  # examples/

TUNED = {"layers": 6, "width": 512, "heads": 8, "kv_heads": 2, "ffn": 1536, "vocab": 8192}
SIZES = ((128, 4), (256, 8))  # context, batch
MIB = 2**20


def training(work: str) -> dict[str, Any]:
    import gradloom as gl
    from gradloom.run.cpu_backend import arena

    rng = np.random.default_rng(0)
    if work == "mlp":
        net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
        x = rng.random((60000, 784), dtype=np.float32)
    else:
        from mnist_cnn import model

        net, x = model(), rng.random((5000, 1, 28, 28), dtype=np.float32)
    data = gl.data.Dataset(x, rng.integers(0, 10, len(x)))
    trainer = gl.Trainer(net)
    before = rss_mib()
    gl.epoch(trainer, data, batch_size=500)
    compiled = arena().bytes
    for _ in range(2):
        gl.epoch(trainer, data, batch_size=500)
    plan = trainer.plans[0]
    return {
        "peak": plan.peak_bytes, "lower": plan.lower_bound_bytes, "unshared": plan.unshared_bytes,
        "arena": arena().bytes,
        "huge": arena().huge_bytes, "grown": arena().bytes - compiled, "rss": rss_mib(), "run": rss_mib() - before,
    }  # fmt: skip


def resident(name: str) -> int:
    """Bytes of this process, by the name in /proc/self/status. (The peak of getrusage begins with the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def tuning(model: str, text: str, method: str, kind: str, context: int, batch: int) -> dict[str, int]:
    import gguf  # noqa: F401
    import tokenizers  # noqa: F401

    import gradloom as gl
    import gradloom.llm.data
    import gradloom.llm.finetune
    import gradloom.llm.packing
    import gradloom.llm.tokenizer

    base = resident("VmRSS")
    adapter = gl.llm.LoRA(rank=8, targets="all") if method == "lora" else gl.llm.TrainedTensors("all", "f32")
    run = gl.llm.Run(model, text, adapter, context=context, batch_size=batch, steps=2)
    run.train(progress=False)
    return {"promised": run.memory().need, "taken": resident("VmHWM") - base}


def of_process(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def training_table(peers: bool) -> None:
    lines = []
    for work in ("mlp", "cnn"):
        m = of_process("--work", work)
        torch = peer(work, "torch", 2, blocks=2) if peers else None
        mib = [f"{m[k] / MIB:.2f}" for k in ("peak", "lower", "unshared", "arena", "huge", "grown")]
        lines.append((work, *mib, f"{m['rss']:.0f}", f"{torch['rss_mib']:.0f}" if torch else "-"))
    heads = "MiB", "planned", "lower bound", "unshared", "arena", "in huge pages", "grown", "resident"
    table(lines, (*heads, "PyTorch resident"))


def tuning_table(shape: dict[str, Any]) -> bool:
    """Print the table; whether every run keeps what its plan promised."""
    from examples.random_gguf import write_random

    lines, kept = [], True
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(2, 8, 3000)]
        text.write_text(" ".join(words[i] for i in rng.integers(0, len(words), 30000)))
        for kind in ("f32", "q8_0", "q4_k"):
            model = Path(folder) / f"{kind}.gguf"
            write_random(model, kind=kind, **shape)
            for method in ("lora", "full"):
                for context, batch in SIZES:
                    m = of_process("--work", "tuning", "--of", model, text, method, kind, context, batch)
                    promised, taken = m["promised"], m["taken"]
                    holds = 0.9 * promised <= taken <= promised + max(0.03 * promised, 16 * MIB)
                    kept = kept and holds
                    mib = f"{promised / MIB:.1f}", f"{taken / MIB:.1f}", f"{taken / promised:.3f}"
                    name = f"{method} {kind} {batch} x {context}"
                    lines.append((name, *mib, "yes" if holds else "NO"))
            model.unlink()
    table(lines, ("MiB", "promised", "taken", "quotient", "kept"))
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--only", choices=("training", "tuning"))
    parser.add_argument("--shape", default="tuned", help="of the tuned models: tuned, or one of random_gguf.py")
    parser.add_argument("--work", choices=("mlp", "cnn", "tuning"), help=argparse.SUPPRESS)
    parser.add_argument("--of", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work == "tuning":
        *names, context, batch = args.of
        print(json.dumps(tuning(*names, int(context), int(batch))))
        return 0
    if args.work:
        print(json.dumps(training(args.work)))
        return 0
    if args.only != "tuning":
        training_table(not args.no_peers)
    if args.only == "training":
        return 0
    from examples.random_gguf import SHAPES

    return 0 if tuning_table((SHAPES | {"tuned": TUNED})[args.shape]) else 1


if __name__ == "__main__":
    sys.exit(main())
