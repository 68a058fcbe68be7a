"""Classes of real texts: objective `classify` against TF-IDF with logistic regression, on the same rows.

    python bench/text_classes.py SDIST [--model FILE.gguf] [--seeds 3] [--rows N]

SDIST: the source package vaderSentiment-3.3.2.tar.gz, which contains 23 699 snippets with a rating by people (Hutto and
Gilbert 2014): film reviews (Pang and Lee 2005), product reviews, editorials, tweets. Two tasks: positive or negative
(film reviews), and which of the four sources. The default model is stories260K.gguf (260 000 parameters, trained on
children's stories, 512 tokens), the data beside the checkout; with a larger model the first columns change alone.

Each seed draws a fifth of the rows for the test. Scores are those of the test rows; +- is the standard error of the
mean over seeds, and of a single seed that of the rows (binomial). "difference" pairs the rows of both: its error is
sqrt(sum of squared differences) / rows.
"""

from __future__ import annotations

import argparse
import io
import math
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import SHARED, table

SOURCES = ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")
LORA = {"epochs": 4, "lr": 2e-3, "batch_size": 8, "context": 192}
FULL = {"epochs": 4, "lr": 5e-4, "batch_size": 8, "context": 192, "method": "full"}


def snippets(path: str) -> dict[str, list[tuple[float, str]]]:
    """Source -> (rating from -4 to 4, text) of each snippet."""
    with tarfile.open(path) as sdist:
        member = next(m for m in sdist.getmembers() if m.name.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = sdist.extractfile(member)
        assert inner is not None
        found: dict[str, list[tuple[float, str]]] = {}
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as folder:
            for name in SOURCES:
                file = folder.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
                assert file is not None
                lines = [line.split("\t") for line in file.read().decode("utf-8", "replace").splitlines()]
                found[name] = [(float(cells[1]), cells[2].strip()) for cells in lines if len(cells) == 3]
    return found


def tasks(path: str, rows: int | None) -> dict[str, list[dict[str, str]]]:
    """Task -> rows with text and label."""
    found = snippets(path)
    films = [
        {"text": text, "label": "positive" if rating > 0 else "negative"}
        for rating, text in found[SOURCES[0]]
        if rating
    ]
    sources = [{"text": text, "label": name} for name, lines in found.items() for _, text in lines if text]
    rng = np.random.default_rng(0)
    picked = {"film reviews": films, "sources": sources}
    return {name: [each[i] for i in rng.permutation(len(each))[:rows]] for name, each in picked.items()}


def logistic(train: list[dict[str, str]], test: list[dict[str, str]]) -> list[str]:
    """Predictions of TF-IDF (words and pairs of words) with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2), LogisticRegression(C=10.0, max_iter=1000)
    )
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    return list(model.predict([row["text"] for row in test]))


def tuned(path: str, train: list[dict[str, str]], test: list[dict[str, str]], seed: int, options: Any) -> list[str]:
    """Predictions of the fine-tuned model."""
    import gradloom as gl

    model = gl.llm.load(path)
    run = gl.llm.finetune(model, train, objective="classify", seed=seed, val_split=0, progress=False, **options)
    found: list[str] = gl.llm.predict(model, [{"text": row["text"]} for row in test], run.adapter).values
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist")
    parser.add_argument("--model", default=str(SHARED / "gguf" / "stories260K.gguf"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="of each task; all by default")
    args = parser.parse_args()
    ways = {
        "TF-IDF + logistic regression": lambda train, test, seed: logistic(train, test),
        f"LoRA of {Path(args.model).stem}": lambda *rows: tuned(args.model, *rows, LORA),
        f"full training of {Path(args.model).stem}": lambda *rows: tuned(args.model, *rows, FULL),
    }
    lines = []
    for task, data in tasks(args.sdist, args.rows).items():
        right: dict[str, list[np.ndarray]] = {name: [] for name in ways}
        recalls: dict[str, list[float]] = {name: [] for name in ways}
        seconds = dict.fromkeys(ways, 0.0)
        for seed in range(args.seeds):
            order = np.random.default_rng(seed).permutation(len(data))
            cut = len(data) // 5
            test, train = ([data[i] for i in part] for part in (order[:cut], order[cut:]))
            true = np.array([row["label"] for row in test])
            for name, way in ways.items():
                began = time.perf_counter()
                hit = np.array(way(train, test, seed)) == true
                seconds[name] += time.perf_counter() - began
                right[name].append(hit)
                recalls[name].append(float(np.mean([hit[true == one].mean() for one in np.unique(true)])))
        base = right["TF-IDF + logistic regression"]
        for name, hits in right.items():
            gap = [h.astype(float) - b for h, b in zip(hits, base, strict=True)]
            lines.append((
                f"{task}: {name}", str(len(data)), shown([h.mean() for h in hits], hits), shown(recalls[name], hits),
                shown([g.mean() for g in gap], gap), f"{seconds[name] / args.seeds:.0f}",
            ))  # fmt: skip
            print(*lines[-1], flush=True)
    table(lines, ("", "rows", "accuracy", "balanced accuracy", "difference", "seconds"))


def shown(means: list[float], rows: list[np.ndarray]) -> str:
    """Mean +- standard error."""
    if len(means) > 1:
        error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    else:
        error = float(np.std(rows[0].astype(float), ddof=1)) / math.sqrt(len(rows[0]))
    return f"{np.mean(means):.4f} +- {error:.4f}"


if __name__ == "__main__":
    main()
