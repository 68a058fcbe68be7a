"""Head: a linear layer on the hidden state of the last token of a text, trained and saved together with an adapter.

scores f32 [n] = W h, W f32 [n, width] without a bias, h the hidden state of the last token after the final norm: the
`score` of transformers' AutoModelForSequenceClassification.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.arrays import place_in
from ..base.errors import DataError, FileError, one_line
from ..base.schema import Schema, both, different_texts, flag, number, one_of, table
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field
from . import families
from .embedding import POOLING_TYPES

if TYPE_CHECKING:
    from .model_file import ModelFile

HEAD = "head.weight"  # name of the parameter
PREFIX = "gradloom.head."  # of the keys of GGUF files, which other programs ignore
CLASSIFIER = "cls.output.weight"  # llama.cpp's matrix of a head; its labels are ARCH.classifier.output_labels
PEFT_HEAD = "gradloom.head"  # metadata of PEFT's .safetensors file: the facts, as JSON
KINDS = ("reward", "classify", "regress")


@dataclass(frozen=True)
class Head:
    """Facts of a head, in addition to its matrix.

    kind       "reward": one score; "classify": a score of each class; "regress": one score
    labels     names of the classes, in the order of the scores
    several    a text can have several labels: each has a probability of its own
    mean, deviation  of the numbers that were learned: a score s stands for mean + deviation * s
    """

    kind: str
    labels: tuple[str, ...] = ()
    several: bool = False
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def outputs(self) -> int:
        """Number of scores."""
        return len(self.labels) if self.kind == "classify" else 1

    def as_dict(self) -> dict[str, Any]:
        """JSON values by name."""
        return asdict(self) | {"labels": list(self.labels)}

    @classmethod
    def checked(cls, values: Any, where: str) -> Head:
        """A head from the values of a file. Raises DataError, naming `where`, for values that do not fit."""
        SCHEMA(values, where)
        count, is_classes = len(values["labels"]), values["kind"] == "classify"
        if (count < 2 if is_classes else count) or (values["several"] and not is_classes):
            need = "two labels or more of a head of the kind classify, and none of others"
            raise DataError(f"{where}: {count} labels of a head of the kind {values['kind']}; need {need}")
        return cls(**values | {"labels": tuple(values["labels"])})

    def __str__(self) -> str:
        return f"{self.kind} ({', '.join(self.labels)})" if self.labels else self.kind


def _positive(value: Any, name: str) -> None:
    if not value > 0:
        raise DataError(f"{name} is {value}; need a number above 0")


SCHEMA: Schema = table(
    {
        "kind": one_of(*KINDS), "labels": different_texts, "several": flag, "mean": number(),
        "deviation": both(number(), _positive),
    }
)  # fmt: skip


class HeadArrays(NamedTuple):
    """A head with its matrix f32 [scores, width], as it is in files."""

    head: Head
    weight: np.ndarray


# ---- files -----------------------------------------------------------------------------------------------------------


def head_fields(head: HeadArrays | None, where: Any) -> dict[str, Field]:
    """The metadata of a GGUF file for a head; {} for None. Raises FileError for numbers that are not finite."""
    if head is None:
        return {}
    facts, weight = head
    check_finite(where, weight)
    found = {
        "kind": gguf_field("string", facts.kind),
        "shape": gguf_field("array", np.array(weight.shape), "i32"),
        "weight": gguf_field("array", weight.reshape(-1), "f32"),
    }
    if facts.labels:
        found |= {"labels": gguf_field("array", facts.labels, "string"), "several": gguf_field("bool", facts.several)}
    if facts.kind == "regress":
        found |= {name: gguf_field("f64", getattr(facts, name)) for name in ("mean", "deviation")}
    return {PREFIX + name: value for name, value in found.items()}


def without_head(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The metadata of a GGUF file without those of a head."""
    return {key: value for key, value in fields.items() if not key.startswith(PREFIX)}


def with_head(
    fields: Mapping[str, Field], tensors: Mapping[str, Any], head: HeadArrays | None, architecture: str, where: Any
) -> tuple[dict[str, Field], dict[str, Any]]:
    """Metadata and tensors of a model's GGUF file with this head in place of an earlier one; as they are for None.

    Classes of which a text has one are llama.cpp's own classifier where it has one for the architecture: it computes
    their probabilities (pooling_type rank). Raises FileError for numbers that are not finite.
    """
    if head is None:
        return dict(fields), dict(tensors)
    labels, pooling = _labels_key(architecture), f"{architecture}.pooling_type"
    earlier = {labels, pooling} if CLASSIFIER in tensors else {labels}
    kept = {key: value for key, value in without_head(fields).items() if key not in earlier}
    others = {name: tensor for name, tensor in tensors.items() if name != CLASSIFIER}
    family = families.find(architecture)
    if family is None or not family.classifies or head.head.kind != "classify" or head.head.several:
        return kept | head_fields(head, where), others
    check_finite(where, head.weight)
    kept[labels] = gguf_field("array", head.head.labels, "string")
    kept[pooling] = gguf_field("u32", POOLING_TYPES["rank"])
    return kept, others | {CLASSIFIER: head.weight}


def head_of_model(file: ModelFile) -> HeadArrays | None:
    """The head in a model's file, gradloom's or llama.cpp's; None without one. Raises FileError for values that do not
    fit."""
    stored = read_head(file.metadata, file.path)
    if stored is not None or CLASSIFIER not in file.tensors:
        return stored
    key = _labels_key(str(file.metadata.get("general.architecture", "")))
    labels, shape = file.metadata.get(key), file.tensors[CLASSIFIER].shape
    if not isinstance(labels, list) or len(shape) != 2 or len(labels) != shape[0]:
        need = f"{key} with one label for each row of {CLASSIFIER}, which has shape {list(shape)}"
        raise FileError(f"{file.path}: the labels of its classifier are {one_line(labels)}; need {need}")
    head = _facts({"kind": "classify", "labels": labels, "several": False, "mean": 0.0, "deviation": 1.0}, file.path)
    weight = np.empty(shape, np.float32)
    file.weights(CLASSIFIER, weight)
    check_finite(file.path, weight)
    return HeadArrays(head, weight)


def _labels_key(architecture: str) -> str:
    return f"{architecture}.classifier.output_labels"


def read_head(metadata: Mapping[str, Any], where: Any) -> HeadArrays | None:
    """The head in the metadata of a GGUF file, None without one. Raises FileError for values that do not fit."""
    keys = [key for key in metadata if key.startswith(PREFIX)]
    if not keys:
        return None
    values = {key.removeprefix(PREFIX): metadata[key] for key in keys}
    weight, shape = values.pop("weight", None), values.pop("shape", None)
    given: dict[str, Any] = {"labels": [], "several": False, "mean": 0.0, "deviation": 1.0} | values
    head = _facts(given, where)
    fits = isinstance(shape, np.ndarray) and shape.dtype.kind in "iu" and shape.shape == (2,)
    fits = fits and isinstance(weight, np.ndarray) and weight.dtype == np.float32 and min(shape) > 0
    if not fits or int(shape[0]) * int(shape[1]) != weight.size or int(shape[0]) != head.outputs:
        need = f"an f32 array of [{head.outputs}, width] numbers and its shape, two whole numbers"
        raise FileError(f"{where}: {PREFIX}weight and {PREFIX}shape do not fit each other or the labels; need {need}")
    check_finite(where, weight)
    return HeadArrays(head, weight.reshape(int(shape[0]), int(shape[1])))


def peft_text(head: Head) -> str:
    """The facts as JSON, for PEFT's .safetensors file."""
    return json.dumps(head.as_dict(), ensure_ascii=False)


def peft_head(text: str | None, weight: np.ndarray, where: Any) -> HeadArrays:
    """A head of PEFT's folder; text: its facts. Without them, as other programs write it, one score is a reward and
    several are those of classes 0, 1, 2, ... Raises FileError for values that do not fit."""
    if weight.ndim != 2 or not weight.size:
        raise FileError(f"{where}: the head has shape {list(weight.shape)}; need 2 axes, none of them empty")
    check_finite(where, weight)
    if text is None:
        count = len(weight)
        head = Head("reward") if count == 1 else Head("classify", tuple(map(str, range(count))))
    else:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise FileError(f"{where}: {PEFT_HEAD} is not JSON") from None
        head = _facts(values, where)
    if head.outputs != len(weight):
        raise FileError(f"{where}: the head has {len(weight)} rows and {head.outputs} scores; need one row for each")
    return HeadArrays(head, weight)


def _facts(values: Any, where: Any) -> Head:
    try:
        return Head.checked(values, "gradloom.head")
    except DataError as error:
        raise FileError(f"{where}: {error}") from None


def check_finite(where: Any, weight: np.ndarray) -> None:
    """Raise FileError for numbers of a head that are not finite."""
    bad = np.flatnonzero(~np.isfinite(weight))
    if bad.size:
        at = int(bad[0])
        place = place_in(weight.shape, at)
        raise FileError(f"{where}: the head holds {weight.flat[at]:g}{place}; need finite numbers")
