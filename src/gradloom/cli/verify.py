"""gradloom verify: is one training step of this model on this data right here?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from ..base.exit_codes import Exit
from ..base.finetune_options import ObjectiveOptions
from ..base.json_documents import VERIFY
from ..base.options import options_of
from ..base.sample_options import DATA_HELP, DataOptions
from ..base.settings import PRECISIONS
from .common import Device, Json, Precision, Threads, json_text, need_one_of, need_place, need_whole, print_report
from .config import with_options
from .language import Lora, adapter_for, data_options
from .parser import Argument, Option
from .progress import change_line

if TYPE_CHECKING:
    from ..llm.verify import Verification

CapsuleFile = Annotated[
    str | None, Option(help="If something differs, save the step here, for gradloom replay.", metavar="FILE")
]
CHOICES = {"method": ("lora", "full"), "optimizer": ("adamw", "sgd"), "train_dtype": ("f32",), "precision": PRECISIONS}

HELP = """Run one training step with buffers shared, unshared, poisoned, unfused, on one thread, and in float64.

On a GPU its values are held against the CPU's, too. Prints the first node that differs, or that all agree and by
how much. The model and the adapter stay as they are.
Exit code 0: all agree; 1: something differs.
"""


@with_options(DataOptions, ObjectiveOptions)
def verify(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder.")],
    data: Annotated[str, Argument(help=DATA_HELP)],
    lora: Lora = None,
    method: Annotated[str, Option(help="lora, or full: the model's own tensors.")] = "lora",
    rank: Annotated[int | None, Option(help="Rank of a new adapter. [default: 8]")] = None,
    targets: Annotated[str | None, Option(help="Tensors to adapt or train: names, patterns, or all.")] = None,
    context: Annotated[int | None, Option(help="Tokens per row. [default: 64]")] = None,
    batch_size: Annotated[int, Option(help="Rows of the step.")] = 1,
    optimizer: Annotated[str, Option(help="adamw or sgd.")] = "adamw",
    train_dtype: Annotated[str | None, Option(help="f32: quantised and half tensors train as copies.")] = None,
    reference: Annotated[bool, Option(help="Also compare with float64, which takes memory and time.")] = True,
    seed: Annotated[int, Option(help="Random seed of the rows and of a new adapter.")] = 0,
    precision: Precision = None,
    threads: Threads = None,
    device: Device = None,
    capsule: CapsuleFile = None,
    json: Json = False,
    **options: Any,
) -> int:
    """Run the command; returns its exit code."""
    need_place("capsule", capsule)
    _check(rank=rank, context=context, batch_size=batch_size, threads=threads, seed=seed, method=method,
           optimizer=optimizer, train_dtype=train_dtype, precision=precision)  # fmt: skip
    reading = {name: options.pop(name) for name in options_of(DataOptions)}
    from ..llm.model import load
    from ..llm.verify import verify as verify_step
    from ..optim import SGD, AdamW

    loaded = load(model)
    adapter: Any = adapter_for(loaded, method, targets, train_dtype, lora, seed, rank=rank)
    print_report(f"{model}: {loaded.config}")
    result = verify_step(
        loaded, data, adapter, context=context, batch_size=batch_size, reference=reference, threads=threads, seed=seed,
        precision=precision, device=device or "cpu", data_options=data_options(reading), capsule=capsule, **options,
        optimizer=SGD(lr=1e-3) if optimizer == "sgd" else AdamW(lr=1e-3),
        on_check=lambda check: print(f"{check.name:<36}{'' if check.holds else 'DIFFERS: '}{check.found}", flush=True),
        on_progress=_progress if sys.stderr.isatty() else None,
    )  # fmt: skip
    _print_result(result)
    if json:
        print(json_text(VERIFY, {"model": model, "data": data, "agrees": result.agrees} | asdict(result)))
    return Exit.DONE if result.agrees else Exit.FAILED


def _check(**given: Any) -> None:
    """An error for a value that is none of CHOICES, or no whole number of at least 1 (seed: 0)."""
    for name, value in given.items():
        if name in CHOICES:
            need_one_of(name, value, CHOICES[name])
        else:
            need_whole(name, value, 0 if name == "seed" else 1)


def _print_result(result: Verification) -> None:
    from ..base.memory import show_bytes

    shared = f"{show_bytes(result.peak_bytes)} with buffers shared, {show_bytes(result.unshared_bytes)} without"
    print(f"one step: {result.tokens} tokens to learn, loss {result.loss:.6g}, {result.steps} instructions; {shared}")
    wrong = [check for check in result.checks if not check.holds]
    first = next((check.node for check in wrong if check.node), "")
    print("all agree" if not wrong else "FAILED" + (f" at {first}" if first else ""))
    if result.capsule is not None:
        print(f"saved in {result.capsule}; gradloom replay {result.capsule} --bisect finds the instruction")
    elif wrong:
        print("--capsule FILE saves the step, for gradloom replay --bisect")


def _progress(done: int, nodes: int) -> None:
    """One line on a terminal that changes."""
    text = "" if done == nodes else f"float64: {done:,} of {nodes:,} nodes"
    change_line(text)
