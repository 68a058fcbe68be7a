"""classify: the class of a text, or several of its classes.

The head and the losses are those of transformers' AutoModelForSequenceClassification: cross entropy of one class
(single_label_classification), sigmoid cross entropy of several (multi_label_classification).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ... import ops
from ...base.arguments import what_is
from ...base.errors import SettingError
from ...graph.value import Value
from ...tables.scores import class_probabilities, classification_scores
from ...train.metric import Metric
from ..forms import Form
from ..head import Head
from ..labels import Classes
from ..objective import Forward
from ..rows import Rows
from ..scored import HeadObjective, Scored, head_in, with_own

_SCORES = ("balanced_accuracy", "f1_macro", "roc_auc")  # of all samples together


@dataclass(frozen=True)
class Classify(HeadObjective):
    """Cross entropy of the class, of several labels the mean of their sigmoid cross entropies.

    class_weight: of the loss of each class, whose mean is then weighted: {class: weight}, others have 1, or "balanced",
    samples / (classes * samples of the class).
    """

    form: ClassVar[Form] = Form("labelled", last=True, labels="classes")
    head_kind: ClassVar[str] = "classify"
    class_weight: Any = None

    def __post_init__(self) -> None:
        weight = self.class_weight
        if weight is None or weight == "balanced":
            return
        need = '"balanced", or a dict of classes and their weights, finite numbers of at least 0'
        if not isinstance(weight, Mapping) or not weight:
            seen = what_is(weight) if weight != {} else "an empty dict"
            raise SettingError(f"finetune: {{class_weight}} is {seen}; need {need}", setting="class_weight")
        for name, value in weight.items():
            plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not plain or not 0 <= value < math.inf:
                text = f"finetune: {{class_weight}} of {name!r:.60} is {value!r:.60}; need {need}"
                raise SettingError(text, setting="class_weight")

    def head_of(self, rows: Rows | None, given: Head | None) -> Head:
        head = super().head_of(rows, given)
        if rows is None:
            return Head("classify", ("0", "1")) if given is None else head
        assert rows.classes is not None
        if given is not None and (given.labels, given.several) != rows.classes:
            names = ", ".join(rows.classes.names)
            text = f"finetune: {{adapter}} has a head for {given}; the data have the classes {names}"
            raise SettingError(f"{text:.400}; need the same", adapter=...)
        self._weights(rows, rows.classes)
        return Head("classify", *rows.classes) if given is None else head

    # ---- rows as arrays ------------------------------------------------------------------------------------

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """With class weights the last column of the labels is the weight of the sample."""
        x, labels = super().arrays(rows)
        assert rows.classes is not None
        weights = self._weights(rows, rows.classes)
        if weights is None:
            return x, labels
        of_each = weights[labels[:, :, 1].astype(np.int64)]
        return x, np.concatenate([labels, of_each[:, :, None]], axis=2)

    def fitted(self, rows: Rows) -> Classify:
        assert rows.classes is not None
        weights = self._weights(rows, rows.classes)
        if weights is None:
            return self
        return replace(self, class_weight=dict(zip(rows.classes.names, weights.tolist(), strict=True)))

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return super().shapes(context, samples, numbers + (self.class_weight is not None))

    def _weights(self, rows: Rows, classes: Classes) -> np.ndarray | None:
        """The weight of each class, f32 [classes]. Raises SettingError for weights that do not fit the data."""
        if self.class_weight is None:
            return None
        if classes.several:
            text = "finetune: {class_weight} requires one label for each text; these have lists"
            raise SettingError(text, class_weight=self.class_weight)
        weights = np.ones(len(classes.names), np.float32)
        assert rows.values is not None
        train = rows.values[rows.train].reshape(-1, rows.values.shape[2])
        count = np.bincount(train[train[:, 0] == 1, 1].astype(np.int64), minlength=len(weights))
        if self.class_weight == "balanced":
            weights[count > 0] = (count.sum() / (len(weights) * count[count > 0])).astype(np.float32)
            return weights
        given = {str(name): value for name, value in self.class_weight.items()}
        for name, value in given.items():
            if name not in classes.names:
                text = f"finetune: {{class_weight}}: {name!r:.60} is no class of the data; these are"
                raise SettingError(f"{text} {', '.join(classes.names):.200}", setting="class_weight")
            weights[classes.names.index(name)] = value
        if not weights[count > 0].any():
            text = "finetune: {class_weight} is 0 for all classes that the training rows have; need a class with a"
            raise SettingError(f"{text} weight above 0", setting="class_weight")
        return weights

    # ---- loss and metrics ----------------------------------------------------------------------------------

    def loss_of(self, scored: Scored) -> Value | tuple[Value, Value]:
        scores, head = scored.scores[:, :, 0], scored.head
        if head.several:
            labels = scored.numbers
            each = ops.softplus(scores) - scores * labels  # of a label y: log(1 + exp(s)) - y s
            return ops.sum(each, axes=2) * (1 / head.outputs)
        own = _one_hot(scored.numbers[:, :, 0], head.outputs)
        loss = -ops.sum(own * ops.log_softmax(scores), axes=2)
        return loss if self.class_weight is None else (loss, scored.numbers[:, :, 1])

    def metrics_of(self, scored: Scored) -> Mapping[str, Value]:
        scores, count = scored.scores[:, :, 0], scored.head.outputs
        if scored.head.several:
            guessed = ops.where(ops.greater(scores, 0.0), 1.0, 0.0)
            return {
                "accuracies": ops.sum(ops.where(ops.equal(guessed, scored.numbers), 1.0, 0.0), axes=2) * (1 / count)
            }
        own = ops.sum(_one_hot(scored.numbers[:, :, 0], count) * scores, axes=2)
        return {"accuracies": ops.where(ops.equal(own, ops.max(scores, axes=2)), 1.0, 0.0)}

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        head = head_in(forward)
        score = several_scores if head.several else _of_one

        def of(name: str) -> Metric:
            def measure(outputs: np.ndarray, labels: np.ndarray) -> float:
                there = labels[:, :, 0] == 1
                return score(outputs[:, :, 0][there], labels[there, 1 : 1 + (head.outputs if head.several else 1)])[
                    name
                ]

            return Metric(measure, whole=True, uncertainty="bootstrap")

        found = super().measures(forward, train)
        return with_own(found, {"accuracies": of("accuracy")}) | {name: of(name) for name in _SCORES}


def _one_hot(ids: Value, count: int) -> Value:
    """ids f32 [rows, K] -> f32 [rows, K, count]."""
    flat = ops.cast(ids.reshape(ids.shape[0] * ids.shape[1]), "i32")
    return ops.loss.one_hot(flat, count).reshape(*ids.shape, count)


def _of_one(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of one class of each sample: scores f32 [n, classes], labels f32 [n, 1]."""
    shares = class_probabilities(scores, "cross_entropy")
    return classification_scores(shares, labels[:, 0].astype(np.int64), uncertainties=False)


def several_scores(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Means over the labels of the scores of each: scores f32 [n, labels], labels f32 [n, labels] of 0 and 1."""
    guessed, true = scores > 0, labels == 1
    hits, both = (guessed & true).sum(0), guessed.sum(0) + true.sum(0)
    f1 = np.where(both > 0, 2 * hits / np.maximum(both, 1), np.nan)
    found: dict[str, list[float]] = {"balanced_accuracy": [], "roc_auc": []}
    for each, label in zip(scores.T, true.T, strict=True):
        ranked = 1 / (1 + np.exp(-np.clip(each.astype(np.float64), -700, 700)))
        of_label = classification_scores(np.stack([1 - ranked, ranked], 1), label.astype(np.int64), uncertainties=False)
        for name, values in found.items():
            values.append(of_label[name])
    means = {name: _mean(values) for name, values in found.items()}
    return means | {"f1_macro": _mean(f1), "accuracy": float((guessed == true).mean())}


def _mean(values: Any) -> float:
    """The mean of those that are defined; nan without any."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else math.nan


OBJECTIVE = Classify
