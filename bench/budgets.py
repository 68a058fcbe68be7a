"""Random fine-tunings under random memory budgets: is the resident peak of each process below its budget, and are the
trained bytes those of the run without one?

    python bench/budgets.py [--runs 20] [--seed 0]

Each run is a process of its own: a random model (type, width, layers), method, context, batch, precision, checkpoints
and sampled texts, first without a budget, then with `memory` between the least that is accepted and the first peak.
Prints a line per run; exit code 1 where a peak exceeds its budget or bytes differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import table

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # examples/
MIB = 2**20


def run(folder: Path, options: list[str], memory: int | None) -> dict[str, Any]:
    out = folder / "out.gguf"
    command = [sys.executable, "-m", "gradloom", "finetune", "model.gguf", "text.txt", "--out", str(out), "--overwrite"]
    command += [*options, "--json", "--quiet", *([] if memory is None else ["--memory", str(memory)])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"peak": found["peak_bytes"], "digest": hashlib.sha256(out.read_bytes()).hexdigest()[:12]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from examples.random_gguf import write_random

    rng, lines, kept = np.random.default_rng(args.seed), [], True
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            heads = int(rng.choice([4, 8]))
            shape = {"layers": int(rng.integers(6, 20)), "width": 32 * heads, "heads": heads, "kv_heads": 2}
            kind = str(rng.choice(["f32", "q8_0", "q4_0"]))
            write_random(folder / "model.gguf", kind=kind, ffn=96 * heads, vocab=4096, **shape)
            words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(2, 8, 3000)]
            (folder / "text.txt").write_text(" ".join(words[i] for i in rng.integers(0, len(words), 30000)))
            context, rows, method = (
                int(rng.choice([128, 256, 512])),
                int(rng.choice([1, 2, 4])),
                rng.choice(["lora", "full"]),
            )
            options = [
                "--steps",
                "3",
                "--context",
                str(context),
                "--batch-size",
                str(2 * rows),
                "--micro-batch-size",
                str(rows),
            ]
            options += ["--method", str(method), "--precision", str(rng.choice(["f32", "bf16"]))]
            options += ["--train-dtype", "f32"] if method == "full" and kind != "f32" else []
            options += ["--checkpoint-every", "1steps"] if rng.random() < 0.5 else []
            options += ["--sample-prompt", "a b", "--sample-every", "2steps"] if rng.random() < 0.3 else []
            whole, refused = run(folder, options, None), run(folder, options, 64 * MIB)
            least = re.search(r"at least about ([\d.]+) (MiB|GiB)", refused.get("error", ""))
            if "error" in whole or least is None:
                lines.append((" ".join(options), whole, refused, "", "NO"))
                kept = False
                continue
            low = float(least[1]) * (1024 if least[2] == "GiB" else 1) * MIB
            budget = int(rng.uniform(1.1 * low, max(1.1 * low, whole["peak"])))
            got = run(folder, options, budget)
            holds = "error" not in got and got["peak"] <= budget and got["digest"] == whole["digest"]
            kept = kept and holds
            name = f"{kind} {shape['layers']}x{shape['width']} {' '.join(options[2:])}"
            peak = f"{got['peak'] / MIB:.1f}" if "peak" in got else got["error"]
            lines.append((name, f"{whole['peak'] / MIB:.1f}", f"{budget / MIB:.1f}", peak, "yes" if holds else "NO"))
            print(*lines[-1], flush=True)
    table(lines, ("run", "without MiB", "budget", "peak", "kept"))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
