"""Seconds per step of LoRA for the shapes of Gemma 3 270M and Qwen3 0.6B; beside them transformers' models in PyTorch.

    python bench/family_steps.py [--shape gemma3-270m,qwen3-0.6b] [--tokens 256] [--threads 2] [--rounds 5] [--no-peers]

Random weights; rank 8 on q, k, v, o; one row of tokens a step; AdamW. PyTorch computes in f32, under autocast to bf16
(weights f32), and with the base's weights in bf16. Every contender is a process of its own that is ready, warm and
idle; the steps are taken in turn. Figures are medians; `resident` is the most that the process ever held, mapped
weights included. "arithmetic" are the products of a step, by hand, at the peak of multiply-adds measured in this run.
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import fma_peak, installed, pin, rss_mib, steps_on_request, table

ROOT = Path(__file__).resolve().parent.parent
RANK, LR, DECAY, B_STD = 8, 1e-3, 0.01, 0.01
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


class Shape(NamedTuple):
    arch: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def linears(self) -> list[tuple[int, int]]:
        """[n_in, n_out] of a block: q, k, v, o, gate, up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        into = [(self.width, q), (self.width, kv), (self.width, kv), (q, self.width)]
        return [*into, (self.width, self.ffn), (self.width, self.ffn), (self.ffn, self.width)]


SHAPES = {
    "gemma3-270m": Shape("gemma3", 18, 640, 4, 1, 256, 2048, 262144),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936),
}
CONTENDERS = {  # name: (who, precision)
    "gradloom, f32": ("gradloom", "f32"),
    "gradloom, bf16": ("gradloom", "bf16"),
    "PyTorch, f32": ("torch", "f32"),
    "PyTorch, autocast": ("torch", "autocast"),
    "PyTorch, bf16 weights": ("torch", "bf16"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default=",".join(SHAPES))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--contender", nargs=3, metavar=("NAME", "SHAPE", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    pin(args.threads)
    if args.contender:
        serve(*args.contender, args)
        return
    names = [n for n, (who, _) in CONTENDERS.items() if who == "gradloom" or not args.no_peers]
    if not (installed("torch") and transformers_installed()):
        names = [n for n in names if n.startswith("gradloom")]
    with tempfile.TemporaryDirectory() as folder:
        for name in args.shape.split(","):
            measure(name, write(Path(folder), SHAPES[name]), names, args)


def transformers_installed() -> bool:
    import importlib.util

    return importlib.util.find_spec("transformers") is not None


def write(folder: Path, shape: Shape) -> Path:
    """A GGUF file of random weights in f32."""
    path = folder / f"{shape.arch}.gguf"
    script = [sys.executable, str(ROOT / "examples" / "random_gguf.py"), str(path), "--arch", shape.arch]
    for key in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
        script += [f"--{key.replace('_', '-')}", str(getattr(shape, key))]
    subprocess.run([*script, "--context", "4096"], check=True, stdout=subprocess.DEVNULL)
    return path


def measure(name: str, path: Path, names: list[str], args: argparse.Namespace) -> None:
    """Steps of all contenders in turn, and the table."""
    processes = {n: start(n, name, path, args) for n in names}
    times: dict[str, list[float]] = {n: [] for n in names}
    peaks = {"f32": [], "bf16": []}
    for _ in range(args.rounds):
        for precision, found in peaks.items():
            found.append(fma_peak(args.threads, precision))
        for n, process in processes.items():
            times[n].append(ask(process, "step")["seconds"])
            time.sleep(0.3)  # OpenMP's threads spin for a while after their work
    ends = {n: ask(process, "end") for n, process in processes.items()}
    for process in processes.values():
        process.wait()
    first = statistics.median(times[names[0]])
    lines = []
    for precision, found in peaks.items():
        limit = arithmetic(SHAPES[name], args.tokens) / statistics.median(found) / 1e9
        lines.append((f"arithmetic, {precision}", f"{limit:.3f}", "", f"{limit / first:.2f}", "", ""))
    for n in names:
        s = statistics.median(times[n])
        spread = f"{min(times[n]):.3f}-{max(times[n]):.3f}"
        lines.append((n, f"{s:.3f}", spread, f"{s / first:.2f}", f"{ends[n]['rss_mib']:.0f}", f"{ends[n]['loss']:.3f}"))
    print(f"\n{name}, LoRA, 1 x {args.tokens} tokens, {args.threads} threads")
    table(lines, (name, "s/step", "least-most", "ratio", "resident MiB", "loss"))


def arithmetic(shape: Shape, tokens: int) -> float:
    """Floating-point operations of the products of a step without those of rank 8 and of attention: forward, and the
    gradient of the inputs; the head as well."""
    block = sum(n_in * n_out for n_in, n_out in shape.linears)
    return 2 * 2 * tokens * (shape.layers * block + shape.vocab * shape.width)


def start(name: str, shape: str, path: Path, args: argparse.Namespace) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[key] = str(args.threads)
    command = [sys.executable, __file__, "--threads", str(args.threads), "--tokens", str(args.tokens)]
    command += ["--contender", name, shape, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    answer(process)
    return process


def ask(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write(what + "\n")
    process.stdin.flush()
    return answer(process)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise SystemExit(f"{process.args}: ended early, with {process.wait()}")


# ---- a contender ----------------------------------------------------------------------------------------------------


def serve(name: str, shape: str, path: str, args: argparse.Namespace) -> None:
    """Two steps to warm up, then one for each line "step"; "end" ends."""
    who, precision = CONTENDERS[name]
    made = SHAPES[shape]
    step = (ours if who == "gradloom" else transformers_step)(made, path, args.tokens, args.threads, precision)
    loss = steps_on_request(step)
    print(json.dumps({"rss_mib": rss_mib(), "loss": loss}), flush=True)


def row_of(shape: Shape, tokens: int) -> np.ndarray:
    """[tokens + 1]"""
    return np.random.default_rng(0).integers(0, shape.vocab, tokens + 1).astype(np.int32)


def ours(shape: Shape, path: str, tokens: int, threads: int, precision: str) -> Any:
    import gradloom as gl
    from gradloom import llm

    model, adapter = llm.load(path), llm.LoRA(rank=RANK, alpha=2 * RANK, seed=0)
    adapter.bind(model)
    for b in adapter.b.values():
        b.assign(np.random.default_rng(0).normal(0, B_STD, b.shape))
    trainer = gl.Trainer(
        lambda x: model.hidden(x[:, 0], x[:, 1], adapter, training=True),
        lambda hidden, labels: model.loss_pair(hidden, labels, adapter),
        gl.optim.AdamW(lr=LR, weight_decay=DECAY),
        threads=threads,
        precision=precision,
    )
    row = row_of(shape, tokens)[None]
    x, labels = np.stack([row[:, :-1], np.arange(tokens, dtype=np.int32)[None]], 1), row[:, 1:].copy()
    return lambda: trainer.step(x, labels).loss


def transformers_step(shape: Shape, path: str, tokens: int, threads: int, precision: str) -> Any:
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made = {"gemma3": transformers.Gemma3TextConfig, "qwen3": transformers.Qwen3Config}[shape.arch](
        num_hidden_layers=shape.layers, hidden_size=shape.width, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.ffn,
        vocab_size=shape.vocab, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa")
    model = model.to(torch.bfloat16 if precision == "bf16" else torch.float32).train().requires_grad_(False)

    class Lora(torch.nn.Module):
        def __init__(self, base: torch.nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.a = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
            self.b = torch.nn.Parameter(torch.randn(base.out_features, RANK) * B_STD)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = (p.to(x.dtype) for p in (self.a, self.b))
            return self.base(x) + 2.0 * torch.nn.functional.linear(torch.nn.functional.linear(x, a), b)

    for layer in model.model.layers:
        for name in NAMES:
            setattr(layer.self_attn, name, Lora(getattr(layer.self_attn, name)))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=DECAY, fused=True)
    row = torch.from_numpy(row_of(shape, tokens)).long()[None]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            logits = model(input_ids=row[:, :-1], use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits.float(), row[0, 1:])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main()
