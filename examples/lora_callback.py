"""LoRA of a GGUF file from Python, with a callback that stops at a loss and lists what the model writes.

    python examples/lora_callback.py [MODEL.gguf] [--out adapter.gguf] [--epochs 8] [--lr 1e-2]

Without MODEL.gguf the script writes a small model of random weights and trains all of it first: a model that has
learnt nothing cannot be adapted. Requires `pip install 'gradloom[llm]'`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import gradloom as gl
from examples.random_gguf import write_random

FOOD = {"fox": "berries", "cow": "grass", "cat": "fish", "hen": "corn", "bear": "honey", "goat": "leaves"}
FACTS = [f"The {who} eats {food}." for who, food in FOOD.items()]
STORIES = [{"prompt": "Every day:", "completion": f" {fact}"} for fact in FACTS] * 50  # as the lines of a .jsonl file
QUESTIONS = [
    {"prompt": f"What does the {who} eat?", "completion": f" {fact}"} for who, fact in zip(FOOD, FACTS, strict=True)
] * 40


class StopAtLoss(gl.train.Callback):
    """Ends the training when the loss of an epoch is below a limit; prints the sampled texts."""

    stateless = True  # a resumed run needs nothing of it

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def on_sample(self, sample: gl.llm.SampledText) -> None:
        print(f"step {sample.step}: {sample.text!r}")

    def on_epoch(self, result: gl.EpochResult) -> None:
        print(f"epoch {result.epoch}: loss {result.train.loss:.4f}")
        if result.train.loss < self.limit:
            raise gl.train.StopTraining


def base_model(folder: Path) -> Path:
    """A model that writes which animal eats what."""
    write_random(folder / "random.gguf")
    run = gl.llm.finetune(folder / "random.gguf", STORIES, method="full", context=32, lr=5e-3, epochs=4, progress=False)
    run.save(folder / "base.gguf")
    return folder / "base.gguf"


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("adapter.gguf"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        model = gl.llm.load(args.model or base_model(Path(folder)))
        before = gl.llm.evaluate(model, QUESTIONS, context=64)
        run = gl.llm.finetune(
            model, QUESTIONS, gl.llm.LoRA(rank=8, targets="all"), context=64, lr=args.lr, epochs=args.epochs,
            sample_prompt="What does the cow eat?", sample_every="1epoch", callbacks=[StopAtLoss(0.05)], progress=False,
        )  # fmt: skip
        after = gl.llm.evaluate(model, QUESTIONS, run.adapter, context=64)
        print(f"perplexity {before.perplexity:.2f} -> {after.perplexity:.2f}")
        run.save(args.out)
        print(gl.llm.generate(model, "What does the hen eat?", args.out, max_tokens=32, temperature=0))
    return float(after.perplexity)


if __name__ == "__main__":
    main()
