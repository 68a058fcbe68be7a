"""The deep case at full size: SmolLM2-135M's shape, random weights, LoRA; twenty losses beside PyTorch's.

    python bench/deep.py [--shape smollm2-135m|deep] [--keep FOLDER]

Thirty layers, one batch of 32 tokens, plain SGD at a fixed rate. The run with buffers shared, without, under poison,
not in place and unfused, and on one thread: all must give the same bits. Then every LoRA gradient of the first step,
with B = 0 and with another B, against PyTorch in float64, beside the error of PyTorch's own f32 (at most 4 times is
asked for). The model is written to a temporary folder. Ends with status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tests are written as modules

from tests.llm.deep_case import CASES, WAYS, DeepCase
from tests.llm.given_lora import GivenLora
from tests.llm.torch_lora import TorchLora

MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=CASES, default="smollm2-135m")
    parser.add_argument("--keep", type=Path, help="write the model here instead")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return measure(DeepCase(folder, args.shape))


def measure(case: DeepCase) -> int:
    bad = 0
    losses, arrays, plan = case.ours()
    single, double = (case.theirs(kind) for kind in (torch.float32, torch.float64))
    rows = [
        (i + 1, f"{a:.7f}", f"{b:.7f}", f"{c:.7f}", f"{a - c:+.1e}", f"{b - c:+.1e}")
        for i, (a, b, c) in enumerate(zip(losses, single, double, strict=True))
    ]
    table(rows, ("step", "gradloom", "PyTorch f32", "PyTorch f64", "our error", "PyTorch's"))
    bad += report("losses: our error over PyTorch's f32", noise(losses, single, double))
    bad += report("last loss over the first", losses[-1] / losses[0], 0.5)
    for way, options in WAYS.items():
        found, others, unshared = case.ours(**options)
        same = found == losses and all(a.tobytes() == others[k].tobytes() for k, a in arrays.items())
        bad += not same
        print(
            f"{way:<24} {'the same bits' if same else 'OTHER BITS'}; planned peak {unshared.peak_bytes / MIB:.1f} MiB"
        )
    for b_std in (0.0, 0.05):
        given = case.arrays(b_std)
        _, grads = GivenLora(case.path, given).gradients(*case.batch)
        (_, grads32), (_, grads64) = (
            TorchLora(case.path, given, kind).gradients(*case.batch) for kind in (torch.float32, torch.float64)
        )
        worst = max(noise(g, grads32[name], grads64[name]) for name, g in grads.items())
        what = (
            f"{len(grads)} gradients, B {'= 0' if not b_std else f'of spread {b_std}'}: worst error over PyTorch f32's"
        )
        bad += report(what, worst)
    print(
        f"planned peak {plan.peak_bytes / MIB:.1f} MiB, lower bound {plan.lower_bound_bytes / MIB:.1f} MiB, "
        f"unshared {plan.unshared_bytes / MIB:.1f} MiB; {len(plan.placement.inplace)} outputs in place"
    )
    return 1 if bad else 0


def noise(ours: object, single: object, double: object) -> float:
    """Our error against float64 over PyTorch's, as root mean square; half a unit in the last place is nothing."""
    a, b, c = (np.asarray(x, np.float64) for x in (ours, single, double))
    floor = np.abs(c).max() * 2.0**-24
    error, allowed = (float(np.sqrt(np.mean((x - c) ** 2))) for x in (a, b))
    return max(0.0, error - floor) / allowed if error > floor else 0.0


def report(what: str, ratio: float, most: float = 4.0) -> bool:
    print(f"{what}: {ratio:.2f}{'' if ratio <= most else f', MORE THAN {most}'}")
    return ratio > most


if __name__ == "__main__":
    sys.exit(main())
