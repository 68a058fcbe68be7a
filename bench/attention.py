"""Fused attention, forward and backward, beside the FMA peak measured in the same run and PyTorch's own.

    python bench/attention.py [--threads N] [--rounds N] [--isa NAME] [--only forward|backward|cache] [--no-peers]
                              [--window N] [--softcap X]

Figures are medians over rounds; each round measures the peak, then ours, then PyTorch's scaled_dot_product_attention
(causal; keys and values repeated for the heads that share them, outside the time). `of peak` counts only the products
that causality leaves: 2 forward and 5 backward. `cache`: one token looks at S keys; GB/s of keys and values read,
beside the machine's copying rate (read and written bytes). --window, --softcap: ours with them, PyTorch's without; the
products that are counted stay those without a window.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from common import installed, table

# tokens, heads, key heads, D
SHAPES = ((256, 9, 3, 64), (512, 9, 3, 64), (1024, 9, 3, 64), (4096, 9, 3, 64), (512, 32, 8, 128))
CACHES = ((512, 9, 3, 64), (4096, 9, 3, 64), (4096, 32, 8, 128))
STRETCH = 0.05  # seconds of one measurement, or one call where that is longer


def seconds(run, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats


def ours(shape: tuple[int, ...], what: str, isa: str, threads: int, layers: int, limits: dict[str, float]):
    """A program of `layers` equal instructions, so that a call costs nothing beside it."""
    import gradloom as gl
    from gradloom import ops

    t, heads, groups, d = shape
    rng = np.random.default_rng(0)
    queries = 1 if what == "cache" else t
    sizes = {"q": (1, queries, heads, d), "k": (1, t, groups, d), "v": (1, t, groups, d)}
    q, k, v = (gl.parameter(rng.standard_normal(s).astype(np.float32), n) for n, s in sizes.items())
    if what == "cache":
        at = np.full((1, 1), t - 1, np.int32)
        keys = [gl.parameter(rng.standard_normal(sizes["k"]).astype(np.float32)) for _ in range(2 * layers)]
        outputs = [
            ops.attention(q, a, b, at, scale=d**-0.5, cached=True, **limits)[0]
            for a, b in zip(keys[::2], keys[1::2], strict=True)
        ]
    else:
        y, lse = ops.attention(q, k, v, np.arange(t, dtype=np.int32)[None], scale=d**-0.5, **limits)
        outputs = [y, lse] if what == "forward" else gl.gradients(y, [q, k, v], [q])
    run = gl.compile(outputs, isa=isa, threads=threads)
    run()
    name = "attention_back" if what == "backward" else "attention"

    def took() -> float:
        """Seconds of the instruction, a mean over some calls."""
        run.collect_times()
        run()
        calls = 1 + int(STRETCH / max(_total(run, name), 1e-6))
        run.collect_times()
        for _ in range(calls):
            run()
        return _total(run, name) / calls / layers

    return took


def _total(run, name: str) -> float:
    return sum(total for label, _, total in run.timings() if label.split()[0].partition("#")[0] == name) * 1e-9


def torch_run(shape: tuple[int, ...], what: str, threads: int, layers: int):
    import torch

    torch.set_num_threads(threads)
    t, heads, groups, d = shape
    q = torch.randn(1, heads, 1 if what == "cache" else t, d, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    if what == "cache":
        pairs = [
            [torch.randn(1, groups, t, d).repeat_interleave(heads // groups, 1) for _ in range(2)]
            for _ in range(layers)
        ]

        def cached() -> None:
            with torch.no_grad():
                for k, v in pairs:
                    attend(q, k, v)

        return cached
    k, v = (torch.randn(1, heads, t, d, requires_grad=True) for _ in range(2))
    if what == "forward":

        def forward() -> None:
            with torch.no_grad():
                attend(q, k, v, is_causal=True)

        return forward
    y = attend(q, k, v, is_causal=True)
    g = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), g, retain_graph=True)


def main() -> None:
    from gradloom import _core

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=_core.cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--isa", default=_core.isas()[0])
    parser.add_argument("--only", choices=("forward", "backward", "cache"))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--window", type=int)
    parser.add_argument("--softcap", type=float)
    args = parser.parse_args()
    limits = {"window": args.window, "softcap": args.softcap}
    peers = installed("torch") and not args.no_peers
    rows = []
    for what, shapes in (("forward", SHAPES), ("backward", SHAPES), ("cache", CACHES)):
        if args.only not in (None, what):
            continue
        for shape in shapes:
            t, heads, groups, d = shape
            # Layers of a cache together are larger than the last-level cache, as those of a model are.
            layers = max(1, 2**27 // (t * groups * d * 8)) if what == "cache" else 1
            took = ours(shape, what, args.isa, args.threads, layers, limits)
            peer = torch_run(shape, what, args.threads, layers) if peers else None
            times, shares, others = [], [], []
            for _ in range(args.rounds):
                peak = _core.fma_peak(args.isa, args.threads, 3)
                times.append(took())
                pairs = t * (t + 1) / 2 * heads
                shares.append(pairs * d * (4 if what == "forward" else 10) * 1e-9 / times[-1] / peak)
                if peer:
                    peer()
                    others.append(seconds(peer, max(1, int(STRETCH / max(seconds(peer, 1), 1e-6)))) / layers)
            mine = statistics.median(times)
            other = statistics.median(others) if others else 0.0
            if what == "cache":
                share = f"{t * groups * d * 8e-9 / mine:.1f} GB/s"
            else:
                share = f"{100 * statistics.median(shares):.0f} %"
            shown = f"T={t} H={heads} KVH={groups} D={d}"
            ratio = (f"{other * 1e3:.3f}", f"{other / mine:.2f}") if others else ("-", "-")
            rows.append((what, shown, f"{mine * 1e3:.3f}", share, *ratio))
    table(rows, ("", "shape", "ms", "of peak", "torch ms", "torch / ours"))
    rate = _core.copy_rate(args.isa, args.threads)
    print(f"peak {_core.fma_peak(args.isa, args.threads):.0f} GFLOP/s, copying {rate:.1f} GB/s, {args.threads} threads")


if __name__ == "__main__":
    main()
