"""predict: scores of texts by a model with a head: classes, numbers or rewards."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..base.errors import SettingError
from ..base.habits import hinted
from ..graph.leaves import Parameter, stored_value
from ..graph.stored import Stored
from ..graph.value import Value
from .arguments import adapter_of
from .chat_forms import MESSAGES
from .forms import Form
from .head import HEAD, Head
from .headed import Headed
from .json_rows import FileRows
from .model import model_of
from .scored import HeadObjective
from .text_outputs import outputs_of, texts_as_rows

if TYPE_CHECKING:
    from .model import Adapter, Model
    from .samples import Report


@dataclass(frozen=True)
class Predictions:
    """Result of predict.

    head      the facts of the head: kind, labels, ...
    scores    f64 [texts, scores], of the head
    report    counts of the texts, those that were cut included
    """

    head: Head
    scores: np.ndarray
    report: Report = field(repr=False)

    @property
    def values(self) -> list[Any]:
        """The prediction for each text: the name of its class (of several labels, a list of names), or its number."""
        head = self.head
        if head.several:
            return [[name for name, s in zip(head.labels, row, strict=True) if s > 0] for row in self.scores]
        if head.labels:
            return [head.labels[i] for i in self.scores.argmax(1).tolist()]
        numbers: list[Any] = (self.scores[:, 0] * head.deviation + head.mean).tolist()
        return numbers

    @property
    def probabilities(self) -> np.ndarray | None:
        """f64 [texts, classes]: they sum to 1, unless a text can have several labels; None without classes."""
        if not self.head.labels:
            return None
        if self.head.several:
            return 1 / (1 + np.exp(-np.clip(self.scores, -700, 700)))
        shares = np.exp(self.scores - self.scores.max(1, keepdims=True))
        return np.asarray(shares / shares.sum(1, keepdims=True))

    def __len__(self) -> int:
        return len(self.scores)


@hinted
def predict(
    model: Model | str | os.PathLike[str],
    texts: str | Collection[str] | Collection[Mapping[str, Any]],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    context: int | None = None,
    batch_size: int | None = None,
    data_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Predictions:
    """The class, number or reward of each text, by a head that finetune trained (objective reward, classify, regress).

    model, adapter: objects, or the paths of their files; without an adapter the head is that of the model's file, which
    method="full" wrote. texts: one, several, or dicts with the keys of .jsonl lines, as in training: text, prompt and
    completion, or messages. data_options: as those of the training (text_key, as_chat, ...). context: most tokens of a
    text, of which the first are read; by default the model's context. batch_size: rows of texts at a time, by default
    about 512 tokens. options: for gl.compile (threads=, ...).

    Raises SettingError for a model without a head, DataError for texts that cannot be read, NonFiniteError for a score
    that is not finite.
    """
    from ..train.arguments import check_names

    check_names("predict", options, predict)
    model = model_of(model, "predict")
    bound = with_head_of(model, adapter_of(adapter, model, "predict"))
    head = bound.head
    assert head is not None
    reading = dict(data_options or {})
    rows = _as_rows(texts, head, reading.get("text_key") or "text")
    if head.kind == "reward" and isinstance(rows[0], Mapping) and "completion" in rows[0]:
        reading.pop("text_key", None)
    scores, report = outputs_of(
        "predict", _Scores(), model, bound, rows, context, batch_size, reading, options
    )  # fmt: skip
    return Predictions(head, scores.astype(np.float64), report)


class ModelHead(Headed):
    """The head of a model's file, in the place of an adapter."""

    def __init__(self, weight: Parameter, head: Head) -> None:
        self.head_weight, self.head = weight, head

    def bind(self, model: Model) -> None:
        """There is nothing to create."""

    def parameters(self) -> dict[str, Parameter]:
        return self.head_parameters()

    def save(self, path: str | os.PathLike[str]) -> None:
        raise SettingError(f"{path}: the head is part of its model's file")

    def weight(self, name: str) -> Parameter | None:
        return None

    def linear(self, name: str, x: Value, rows: int, training: bool) -> Value | None:
        return None

    def embed(self, name: str, tokens: Value) -> Value | None:
        return None


def with_head_of(model: Model, adapter: Any) -> Any:
    """The adapter with its head, or the head of the model's file. Raises SettingError without one."""
    if adapter is not None:
        adapter.bind(model)
        if getattr(adapter, "head", None) is not None:
            return adapter
    stored = model.classifier if adapter is None else None
    if stored is None:
        which = f"{model.path} has" if adapter is None else "the adapter has"
        raise SettingError(
            f"predict: {which} no head; need a training with the objective reward, classify or regress",
            setting="adapter",
        )
    return ModelHead(stored_value(Stored(HEAD, stored.weight, "f32", "frozen")), stored.head)


def _as_rows(texts: Any, head: Head, key: str) -> list[Any]:
    """The texts as dicts; of a reward a text is a completion without a prompt, which the end of text follows."""
    given = texts_as_rows(texts, key, "predict")
    first = given[0]
    is_text = (
        head.kind == "reward"
        and isinstance(first, Mapping)
        and key in first
        and not {"completion", "output", *MESSAGES} & first.keys()
    )
    if is_text and all(isinstance(one, Mapping) and isinstance(one.get(key), str) for one in given):
        rows = [{"prompt": "", "completion": one[key]} for one in given]
        return FileRows(rows, given.reader, given.numbers) if isinstance(given, FileRows) else rows
    return given


class _Scores(HeadObjective):
    """Scores of texts, each of one part."""

    form: ClassVar[Form] = Form("labelled", last=True)
