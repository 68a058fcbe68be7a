"""Memory of dpo beside that of sft with twice the rows, planned and measured.

    python bench/preferences_memory.py [--only NAME] [--context 256]

A row of dpo holds both sides of a pair, so it has as many tokens as two rows of sft. Both sides fill the context. For
each setting, in MiB: the planned peak of the process (`gradloom plan`), and the measured one of three steps (`gradloom
finetune`, a process of its own), of dpo and of sft on the same texts with twice the rows. The log-probabilities of the
base model are computed before the first step, by the same weights. Exit code 1 where a peak exceeds its plan, or that
of dpo the one of sft, by more than 8 MiB: Python's objects of the further program are not planned to the byte.
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
from common import table

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
OBJECTS = 8  # MiB
SMALL = {"layers": 12, "width": 256, "heads": 8, "kv-heads": 2, "ffn": 768, "vocab": 4096}
SETTINGS: dict[str, tuple[dict[str, Any], int, list[str]]] = {  # model, rows of dpo, options
    "LoRA f32": (SMALL | {"type": "f32"}, 2, []),
    "LoRA bf16": (SMALL | {"type": "f32"}, 2, ["--precision", "bf16"]),
    "LoRA q4_0, all layers": (SMALL | {"type": "q4_0"}, 2, ["--targets", "all"]),
    "full f32": (SMALL | {"type": "f32"}, 2, ["--method", "full"]),
    "micro-batches, q8_0": (SMALL | {"type": "q8_0"}, 4, ["--micro", "1", "--targets", "attn_q,attn_v"]),
    "SmolLM2-135M q8_0": ({"shape": "smollm2-135m", "type": "q8_0"}, 2, []),
}


def data(folder: Path, context: int) -> None:
    """pairs.jsonl, and texts.jsonl with both sides of each pair as a prompt and its completion."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(2, 8, 500)]
    pairs, texts = [], []
    for _ in range(24):
        prompt, *sides = (" ".join(rng.choice(words, n)) for n in (20, context, context))
        pairs.append({"prompt": prompt, "chosen": sides[0], "rejected": sides[1]})
        texts += [{"prompt": prompt, "completion": side} for side in sides]
    for name, rows in (("pairs", pairs), ("texts", texts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: Path, command: str, options: list[str]) -> dict[str, Any]:
    """The JSON object of a command."""
    line = [sys.executable, "-m", "gradloom", command, "model.gguf", *options, "--json"]
    more = [] if command == "plan" else ["--out", "out.gguf", "--overwrite", "--quiet"]
    done = subprocess.run([*line, *more], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(name: str, context: int) -> tuple[str, ...]:
    shape, rows, more = SETTINGS[name]
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        script = [sys.executable, str(ROOT / "examples" / "random_gguf.py"), str(folder / "model.gguf")]
        words = [word for key, value in shape.items() for word in (f"--{key}", str(value))]
        subprocess.run([*script, *words], check=True, stdout=subprocess.DEVNULL)
        data(folder, context)
        found: list[float] = []
        for objective, file, factor in (("dpo", "pairs.jsonl", 1), ("sft", "texts.jsonl", 2)):
            micro = factor * int(more[more.index("--micro") + 1] if "--micro" in more else rows)
            given = [word for k, word in enumerate(more) if word != "--micro" and more[k - 1 : k] != ["--micro"]]
            options = ["--objective", objective, "--context", str(context), "--batch-size", str(factor * rows)]
            options += ["--micro-batch-size", str(micro), "--val-split", "0", *given]
            planned = run(folder, "plan", [file, *options])["peak_bytes"]
            found += [planned / MIB, run(folder, "finetune", [file, *options, "--steps", "3"])["peak_bytes"] / MIB]
    holds = max(found[1] - found[3], found[1] - found[0], found[3] - found[2]) <= OBJECTS
    return name, *(f"{value:.1f}" for value in found), "yes" if holds else "NO"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="settings that contain this text")
    parser.add_argument("--context", type=int, default=256)
    args = parser.parse_args()
    lines = []
    for name in SETTINGS:
        if args.only in name:
            lines.append(one(name, args.context))
            print(*lines[-1], flush=True)
    table(lines, ("", "dpo planned", "measured", "sft planned", "measured", "holds"))
    return 0 if all(line[-1] == "yes" for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
