"""Direct preference optimisation with a loop of one's own: the same losses as gl.llm.finetune(objective="dpo").

    python examples/dpo_by_hand.py MODEL.gguf PAIRS.jsonl

A line of PAIRS: {"prompt": "...", "chosen": "...", "rejected": "..."}.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import llm, ops

CONTEXT, BATCH, STEPS, BETA = 128, 4, 20, 0.1


def train(path: str, data: Any, steps: int = STEPS) -> list[float]:
    """The loss of each step."""
    model, adapter = llm.load(path), llm.LoRA(rank=8, seed=0)
    adapter.bind(model)
    samples = llm.read_samples(data, model.tokenizer, form=llm.Form("preferences", parts=2))
    rows = llm.pack(samples, CONTEXT, packing=False)  # each row: a chosen and a rejected completion
    assert rows.parts is not None  # which completion a token belongs to
    x = np.stack([rows.tokens, rows.positions, rows.labels, rows.parts], 1)

    def logps(x: gl.Value, adapter: Any) -> gl.Value:
        """Log-probabilities of both completions, f32 [rows, 2]."""
        hidden = model.hidden(x[:, 0], x[:, 1], adapter, longest=CONTEXT)
        each = model.logprobs(hidden, x[:, 2], adapter).reshape(x.shape[0], -1)
        return ops.stack([ops.sum(ops.where(x[:, 3] == side, each, 0.0), 1) for side in (0, 1)], axis=1)

    base = gl.compile(logps(gl.input("x", (1, *x.shape[1:]), "i32"), None))
    reference = np.concatenate([base(x=row[None])[0] for row in x])

    def loss(logps: gl.Value, reference: gl.Value) -> gl.Value:
        ratios = logps - reference
        return ops.softplus(-BETA * (ratios[:, 0] - ratios[:, 1]))

    trainer = gl.Trainer(lambda x: logps(x, adapter), loss, gl.optim.AdamW(lr=1e-3, weight_decay=0.0))
    losses = []
    for step in range(steps):
        batch = np.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        losses.append(trainer.step(x[batch], reference[batch]).loss)
    return losses


if __name__ == "__main__":
    for step, loss in enumerate(train(sys.argv[1], sys.argv[2]), 1):
        print(f"step {step}  loss {loss:.4f}")
