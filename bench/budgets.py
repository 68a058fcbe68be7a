"""Random runs of fit and finetune under random memory budgets: is the resident peak of each process below its budget,
and is the trained file that of the run without one?

    python bench/budgets.py [--runs 20] [--seed 0] [--command fit|finetune]

Each run is a process of its own. finetune: a random model (type, width, layers), method, context, batch, precision,
checkpoints and sampled texts. fit: a random table and network, batch, optimiser, average, dropout, ensemble, early
stopping. First without a budget, then with `--memory` between the least that is accepted and the first peak. Prints a
line per run; exit code 1 where a peak exceeds its budget or files differ. Where fewer rows are computed at once, the
file is compared with that of a run with this number.
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


def run(folder: Path, command: list[str], options: list[str]) -> dict[str, Any]:
    """The JSON object of a run, with the digest of the trained file; or the last line of its error."""
    out = folder / ("out.gguf" if command[0] == "finetune" else "out")
    line = [sys.executable, "-m", "gradloom", *command, "--out", str(out), "--overwrite", *options, "--json", "--quiet"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found = json.loads(done.stdout.splitlines()[-1])
    if command[0] == "finetune":
        trained = out.read_bytes()
    else:  # without the metadata, which hold the size of micro-batches and the seconds
        from safetensors.numpy import load_file

        trained = b"".join(array.tobytes() for _, array in sorted(load_file(out / "model.safetensors").items()))
    return found | {"digest": hashlib.sha256(trained).hexdigest()[:12]}


def finetune(rng: np.random.Generator, folder: Path) -> tuple[list[str], list[str]]:
    """(command, options that fix the rows computed at once) of a random fine-tuning, whose files are written."""
    from examples.random_gguf import write_random

    heads = int(rng.choice([4, 8]))
    shape = {"layers": int(rng.integers(6, 20)), "width": 32 * heads, "heads": heads, "kv_heads": 2}
    kind = str(rng.choice(["f32", "q8_0", "q4_0"]))
    write_random(folder / "model.gguf", kind=kind, ffn=96 * heads, vocab=4096, **shape)
    words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(2, 8, 3000)]
    (folder / "text.txt").write_text(" ".join(words[i] for i in rng.integers(0, len(words), 30000)))
    rows, method = int(rng.choice([1, 2, 4])), str(rng.choice(["lora", "full"]))
    options = ["--steps", "3", "--context", str(rng.choice([128, 256, 512])), "--batch-size", str(2 * rows)]
    options += ["--method", method, "--precision", str(rng.choice(["f32", "bf16"]))]
    options += ["--train-dtype", "f32"] if method == "full" and kind != "f32" else []
    options += ["--checkpoint-every", "1steps"] if rng.random() < 0.5 else []
    options += ["--sample-prompt", "a b", "--sample-every", "2steps"] if rng.random() < 0.3 else []
    return ["finetune", "model.gguf", "text.txt", *options], ["--micro-batch-size", str(rows)]


def fit(rng: np.random.Generator, folder: Path) -> tuple[list[str], list[str]]:
    """Likewise of a random training on a table."""
    rows, columns = int(rng.integers(500, 4000)), int(rng.integers(2, 40))
    x = rng.standard_normal((rows, columns)).round(4)
    y = (x[:, 0] + x[:, 1] > 0).astype(int) if rng.random() < 0.5 else x.sum(1).round(3)
    np.savetxt(folder / "t.csv", np.c_[x, y], delimiter=",", header=",".join(map("c{}".format, range(columns + 1))),
               comments="", fmt="%.4g")  # fmt: skip
    batch, depth = int(rng.choice([256, 1024, 4096])), int(rng.integers(1, 12))
    options = ["--epochs", "2", "--batch-size", str(batch), "--ensemble", str(rng.choice([1, 1, 4]))]
    options += ["--hidden", ",".join([str(rng.choice([32, 128, 256]))] * depth), "--seed", str(rng.integers(100))]
    options += ["--optimizer", str(rng.choice(["adamw", "sgd", "lion", "adafactor", "muon"]))]
    options += ["--ema", "0.9"] if rng.random() < 0.3 else []
    options += ["--dropout", str(rng.choice([0, 0.2]))]
    options += ["--val-split", "0.2", "--patience", "5"] if rng.random() < 0.5 else ["--val-split", "0", "--folds", "0"]
    options += ["--checkpoint-every", "5steps"] if rng.random() < 0.4 else []
    return ["fit", "t.csv", *options], ["--micro-batch-size", str(batch)]


def one(rng: np.random.Generator, command: str, folder: Path) -> tuple[bool, tuple[str, ...]]:
    """(the budget was kept with the same bits, a line to print) of one run."""
    line, rows = {"fit": fit, "finetune": finetune}[command](rng, folder)
    name = " ".join(line[2:] if command == "fit" else line[3:])
    fixed = rng.random() < 0.6  # the rows computed at once
    whole, refused = run(folder, line, rows), run(folder, line, [*rows, "--memory", "32MiB"])
    least = re.search(r"at least about ([\d.]+) (MiB|GiB)", refused.get("error", ""))
    if "error" in whole or least is None:
        return False, (name, whole.get("error", ""), "", refused.get("error", "not rejected"), "", "NO")
    low = float(least[1]) * (1024 if least[2] == "GiB" else 1) * MIB
    low *= 1.05 if fixed else 0.97
    budget = int(rng.uniform(low, max(low, whole["peak_bytes"])))
    got = run(folder, line, [*(rows if fixed else []), "--memory", str(budget)])
    if "error" in got and not fixed:  # fewer rows do not always need less
        return True, (name, f"{whole['peak_bytes'] / MIB:.1f}", f"{budget / MIB:.1f}", "rejected", "", "yes")
    micro = str(got.get("micro_batch_size", ""))
    if "error" not in got and micro != rows[1]:
        whole = run(folder, line, ["--micro-batch-size", micro])
    holds = "error" not in got and got["peak_bytes"] <= budget and got["digest"] == whole.get("digest")
    peak = f"{got['peak_bytes'] / MIB:.1f}" if "peak_bytes" in got else got["error"]
    return holds, (
        name,
        f"{whole['peak_bytes'] / MIB:.1f}",
        f"{budget / MIB:.1f}",
        peak,
        micro,
        "yes" if holds else "NO",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=("fit", "finetune"), help="by default both in turn")
    args = parser.parse_args()
    lines, kept = [], True
    for k in range(args.runs):
        command = args.command or ("fit", "finetune")[k % 2]
        rng = np.random.default_rng((args.seed, k))
        with tempfile.TemporaryDirectory() as name:
            holds, line = one(rng, command, Path(name))
        kept = kept and holds
        lines.append((f"{k} {command}", *line))
        print(*lines[-1], flush=True)
    table(lines, ("run", "options", "without MiB", "budget", "peak", "rows at once", "kept"))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
