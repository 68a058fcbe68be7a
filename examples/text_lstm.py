"""A text classifier: an LSTM over words separates good reviews from bad ones, "not" included.

    python examples/text_lstm.py [--rows 2000] [--epochs 6] [--seed 0]

The script writes its own reviews. Prints the accuracy and F1 on held-out reviews, and classifies three new ones.
"""

from __future__ import annotations

import argparse

import numpy as np

import gradloom as gl

GOOD, BAD = ("good", "great", "funny", "clever"), ("bad", "dull", "boring", "slow")
LENGTH = 12  # words of a review at most


def reviews(rows: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Texts, and 1 for each good one."""
    rng, texts, labels = np.random.default_rng(seed), [], []
    for _ in range(rows):
        subject = rng.choice(["the film", "this story", "the cast", "every scene in the film"])
        good, negated = rng.integers(2), rng.integers(2)
        verdict = ("not " if negated else "") + ("very " if rng.integers(2) else "") + rng.choice((BAD, GOOD)[good])
        end = rng.choice(["", " from start to end", " to me"])
        texts.append(f"{subject} {rng.choice(['is', 'was', 'seemed'])} {verdict}{end}")
        labels.append(good ^ negated)
    return texts, np.array(labels, np.int32)


def encode(texts: list[str], words: dict[str, int]) -> dict[str, np.ndarray]:
    """Word ids i32 [n, LENGTH], filled with 0, and the number of words i32 [n]; unknown words are 1."""
    tokens = np.zeros((len(texts), LENGTH), np.int32)
    lengths = np.zeros(len(texts), np.int32)
    for row, text in enumerate(texts):
        ids = [words.get(word, 1) for word in text.lower().split()][:LENGTH]
        tokens[row, : len(ids)], lengths[row] = ids, len(ids)
    return {"tokens": tokens, "lengths": lengths}


class Classifier(gl.nn.Module):
    """Logits [n, 2] of reviews; the names of forward's arguments are the keys of the data."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = gl.nn.Embedding(words, 16)
        self.lstm = gl.nn.LSTM(16, 32, batch_first=True)
        self.head = gl.nn.Linear(32, 2)

    def forward(self, tokens: gl.Value, lengths: gl.Value) -> gl.Value:
        _, (last, _) = self.lstm(self.embed(tokens), lengths=lengths)
        logits: gl.Value = self.head(last[-1])  # of the state after the last word of each review
        return logits


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    texts, labels = reviews(args.rows, args.seed)
    words = {word: i + 2 for i, word in enumerate(sorted({word for text in texts for word in text.split()}))}
    data, held = gl.data.Dataset(encode(texts, words), labels), reviews(500, args.seed + 1)
    net, optimizer = Classifier(len(words) + 2), gl.optim.AdamW(lr=1e-2)
    gl.fit(net, data, optimizer=optimizer, epochs=args.epochs, batch_size=50, max_norm=1.0, seed=args.seed)

    test = gl.evaluate(net, (encode(held[0], words), held[1]), metrics=["f1"])
    print(f"accuracy {test.accuracy:.4f} +- {test.accuracy_unc:.4f}, F1 {test.metrics['f1']:.4f}")
    asked = ["The film was not boring", "this story is very dull", "every scene seemed clever"]
    for text, scores in zip(asked, gl.predict(net, encode(asked, words)), strict=True):
        print(f"{text}: {'good' if scores.argmax() else 'bad'}")
    return float(test.accuracy)


if __name__ == "__main__":
    main()
