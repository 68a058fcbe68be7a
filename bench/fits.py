"""Which model trains in which memory: LoRA of rank 8 on all linear layers, one row of tokens at a time.

    python bench/fits.py [--only 135M] [--contexts 512,2048] [--precision f32] [--measure]

For each shape of model (random weights, a file that is written and removed) and context, from gl.llm.plan with a text
of a few rows: the peak of the process without a budget, and the least `--memory` (with a margin of 5 %) with the
predicted time of its step relative to that. --measure also runs one step within the least `--memory` and prints the
peak of its process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import table

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
QWEN3 = {"arch": "qwen3", "head-dim": 128, "vocab": 151936, "context": 40960, "rope-base": 1000000}
SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M q8_0": {"shape": "smollm2-135m", "type": "q8_0"},
    "Qwen3-0.6B q4_k": {"shape": "qwen3-0.6b", "type": "q4_k"},
    "Qwen3-1.7B q4_k": QWEN3 | {"type": "q4_k", "layers": 28, "width": 2048, "heads": 16, "kv-heads": 8, "ffn": 6144},
    "Qwen3-4B q4_k": QWEN3 | {"type": "q4_k", "layers": 36, "width": 2560, "heads": 32, "kv-heads": 8, "ffn": 9728},
    "Qwen3-8B q4_k": QWEN3 | {"type": "q4_k", "layers": 36, "width": 4096, "heads": 32, "kv-heads": 8, "ffn": 12288},
}
UNTIED = ("Qwen3-8B q4_k",)
PLAN = """
import json, sys
import gradloom as gl
model, text, context, precision = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
adapter = gl.llm.LoRA(8, targets="all")
found = gl.llm.plan(model, adapter, text, context=context, batch_size=1, steps=1, val_split=0, precision=precision)
need, time = found.curve[-1]
print(json.dumps([found.total, int(1.05 * found.budget(need)), time]))
"""


def write(path: Path, name: str) -> None:
    """The file of a shape."""
    options = [word for key, value in SHAPES[name].items() for word in (f"--{key}", str(value))]
    options += ["--untied"] if name in UNTIED else []
    subprocess.run([sys.executable, str(ROOT / "examples/random_gguf.py"), str(path), *options], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def text_of(path: Path, context: int) -> Path:
    """A file of a few rows of tokens."""
    text = path.with_name("text.txt")
    text.write_text("the quick brown fox jumps over the lazy dog " * (context // 8))
    return text


def planned(path: Path, context: int, precision: str) -> tuple[int, int, float]:
    """(peak without a budget, least budget, relative time), of a process of its own."""
    command = [sys.executable, "-c", PLAN, str(path), str(text_of(path, context)), str(context), precision]
    whole, least, time = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return whole, least, time


def measured(path: Path, context: int, precision: str, memory: int) -> int:
    """The peak of a process that makes one step with this budget."""
    text = text_of(path, context)
    options = ["--targets", "all", "--context", str(context), "--batch-size", "1", "--steps", "1", "--val-split", "0"]
    options += ["--precision", precision, "--memory", str(memory), "--out", str(path.with_name("out.gguf"))]
    command = [sys.executable, "-m", "gradloom", "finetune", str(path), str(text), *options, "--overwrite", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1])["peak_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the name of a model")
    parser.add_argument("--contexts", default="512,2048")
    parser.add_argument("--precision", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--measure", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in (name for name in SHAPES if args.only in name):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write(path, name)
            for context in map(int, args.contexts.split(",")):
                whole, least, time = planned(path, context, args.precision)
                row = [name, str(context), f"{whole / GIB:.2f}", f"{least / GIB:.2f}", f"{time:.2f}"]
                if args.measure:
                    row.append(f"{measured(path, context, args.precision, least) / GIB:.2f}")
                rows.append(tuple(row))
                print(*row, flush=True)
    table(rows, ("model", "context", "without GiB", "least GiB", "time", *["measured GiB"] * args.measure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
