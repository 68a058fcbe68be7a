"""A decoder-only transformer that sorts digits: "3141|" is continued by "1134".

    python examples/sort_transformer.py [--steps 400] [--digits 6] [--seed 0]

The script draws its own rows. Each token sees those before it alone (causal=True). Prints the share of held-out rows
that greedy generation sorts without an error.
"""

from __future__ import annotations

import argparse

import numpy as np

import gradloom as gl

BAR = 10  # the token between a row and its sorted digits


class Decoder(gl.nn.Module):
    """Logits [n, T, 11] of the next token after each of i32 [n, T]."""

    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.embed = gl.nn.Embedding(BAR + 1, width)
        self.positions = gl.nn.PositionalEncoding(width)
        self.blocks = gl.nn.ModuleList(
            gl.nn.TransformerEncoderLayer(
                width, heads=4, hidden=4 * width, dropout=0.0, activation="gelu", norm_first=True, causal=True
            )
            for _ in range(layers)
        )
        self.norm = gl.nn.LayerNorm(width)
        self.head = gl.nn.Linear(width, BAR + 1)

    def forward(self, tokens: gl.Value) -> gl.Value:
        x = self.positions(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        logits: gl.Value = self.head(self.norm(x))
        return logits


def rows(n: int, digits: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens i32 [n, 2 * digits] and the next of each; -100 inside of the row that is given: no loss there."""
    drawn = np.random.default_rng(seed).integers(0, 10, (n, digits))
    text = np.concatenate([drawn, np.full((n, 1), BAR), np.sort(drawn)], axis=1).astype(np.int32)
    labels = text[:, 1:].copy()
    labels[:, :digits] = -100
    return text[:, :-1], labels


def generate(net: gl.nn.Module, prompt: np.ndarray, count: int) -> np.ndarray:
    """The likeliest `count` tokens after each prompt [n, T]."""
    text = np.pad(prompt, ((0, 0), (0, count)))  # one shape, one program: later tokens are not seen
    for at in range(prompt.shape[1], text.shape[1]):
        text[:, at] = gl.predict(net, text)[:, at - 1].argmax(-1)
    return text[:, prompt.shape[1] :]


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    net, data = Decoder(), rows(64 * args.steps, args.digits, args.seed)
    rate = gl.optim.schedules.Cosine(3e-3, steps=args.steps, warmup=20)
    gl.fit(net, data, optimizer=gl.optim.AdamW(lr=rate), epochs=1, batch_size=64, max_norm=1.0, seed=args.seed)

    asked = rows(200, args.digits, args.seed + 1)[0][:, : args.digits + 1]
    answers = generate(net, asked, args.digits)
    right = float((answers == np.sort(asked[:, :-1])).all(1).mean())
    print(f"{asked[0, :-1]} -> {answers[0]}; {right:.3f} of 200 held-out rows are sorted")
    return right


if __name__ == "__main__":
    main()
