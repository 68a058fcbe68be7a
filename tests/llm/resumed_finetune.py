"""A fine-tuning for the tests of resuming, as a function and as a process.

    python resumed_finetune.py MODEL FOLDER OUT [--full] [--threads N] [--ranks N] [--kill SECONDS]

trains in FOLDER, going on where it is, and writes what came of it to OUT (.npz). --kill: SIGKILL, so long after the
training has begun.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any

import numpy as np

import gradloom as gl
from gradloom.llm import LoRA, TrainedTensors, finetune, load
from gradloom.llm.finetune import Run
from tests.llm.random_models import packed
from tests.train.split_training import on_ranks


class Heard(gl.train.Callback):
    """Calls a function after each optimiser step of this process."""

    stateless, steers = True, False

    def __init__(self, function: Any) -> None:
        self.function = function

    def on_batch(self, batch: gl.train.BatchResult) -> None:
        self.function(batch)


def tuned(path: Any, full: bool = False, rows: int = 13, **options: Any) -> Run:
    """Dropout, windows of two micro-batches, a cosine, validation, the best weights kept, sampled texts."""
    adapter = TrainedTensors(["attn_q", "ffn_norm"], "f32") if full else LoRA(rank=3, dropout=0.2, seed=1)
    settings: dict[str, Any] = {
        "val_split": 0.2, "batch_size": 4, "micro_batch_size": 2, "threads": 1, "epochs": 4, "lr": 1e-2,
        "weight_decay": 0.1, "max_norm": 1.0, "keep_best": True, "seed": 2, "progress": False,
        "sample_prompt": "ab c", "sample_every": "2steps", "sample_tokens": 5,
    }  # fmt: skip
    return finetune(load(path), packed(rows, 24), adapter, **settings | options)


def outcome(run: Run) -> dict[str, np.ndarray]:
    """What was trained, the moments, the history and the texts."""
    kept = {name: p.numpy() for name, p in run.adapter.parameters().items()}
    kept |= {f"optimizer.{name}": array for name, array in run.trainer.optimizer_state.state_dict().items()}
    kept["losses"] = np.array([[e.epoch, e.train.loss, e.val.loss if e.val else 0.0] for e in run.history])
    kept["texts"] = np.array([f"{text.step} {text.text}" for text in run.samples])
    kept["steps"] = np.array([run.steps, run.first_step])
    return kept


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """The same names and bytes."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "folder", "out"):
        parser.add_argument(name)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--kill", type=float)
    asked = parser.parse_args()
    begun: list[Any] = []

    def heard(batch: Any) -> None:
        if not begun and asked.kill is not None:
            threading.Timer(asked.kill, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begun.append(batch)

    options: dict[str, Any] = {"run": asked.folder, "resume": True, "checkpoint_every": "0.02s"}
    options |= {"callbacks": [Heard(heard)]}

    def train(ranks: Any) -> dict[str, np.ndarray]:
        return outcome(tuned(asked.model, asked.full, parallel=ranks, threads=asked.threads, **options))

    found = on_ranks(asked.ranks, train)[0] if asked.ranks > 1 else train(None)
    np.savez(asked.out, **found)


if __name__ == "__main__":
    main()
