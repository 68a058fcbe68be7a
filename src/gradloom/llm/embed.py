"""embed: embeddings of texts by a language model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import SettingError
from ..base.habits import hinted
from .arguments import adapter_of
from .embedding import POOLINGS, Embedding
from .forms import Form
from .model import model_of
from .objectives.embed import POOLING, Embed
from .text_outputs import outputs_of, texts_as_rows

if TYPE_CHECKING:
    from .model import Adapter, Model
    from .samples import Report


@hinted
def embed(
    model: Model | str | os.PathLike[str],
    texts: str | Collection[str] | Collection[Mapping[str, Any]],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    pooling: str | None = None,
    width: int | None = None,
    context: int | None = None,
    batch_size: int | None = None,
    data_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> np.ndarray:
    """The embedding of each text, f32 [texts, width], rows of norm 1: their products are cosines.

    model, adapter: objects, or the paths of their files. texts: one, several, or dicts with the keys of .jsonl lines:
    text, or messages. pooling: "mean" over the hidden states of all tokens, or that of the "last" one; by default that
    of the adapter, else that of the model (pooling_type of its file), else "last". With "last" a text ends with the
    token for end of text. width: components to keep, the first ones, normalised again; by default all. context: most
    tokens of a text, of which the first are read; by default the model's context. batch_size: rows of texts at a time,
    by default about 512 tokens. data_options: as those of the training (text_key, special, ...). options: for
    gl.compile (threads=, ...).

    Raises SettingError for another pooling or width, DataError for texts that cannot be read, NonFiniteError for an
    embedding that is not finite.
    """
    return embeddings(model, texts, adapter, pooling, width, context, batch_size, data_options, options)[0]


def embeddings(
    model: Model | str | os.PathLike[str],
    texts: Any,
    adapter: Adapter | str | os.PathLike[str] | None,
    pooling: str | None,
    width: int | None,
    context: int | None,
    batch_size: int | None,
    data_options: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[np.ndarray, Embedding, Report]:
    """(the result of embed, how it was computed, counts of the texts)."""
    from ..train.arguments import check_names

    check_names("embed", options, embed)
    if pooling is not None and pooling not in POOLINGS:
        raise SettingError(setting="pooling", seen=pooling, need=" or ".join(POOLINGS), place="embed")
    model = model_of(model, "embed")
    limit = model.config.width
    if width is not None and as_whole("width", width, 1, "embed") > limit:
        raise SettingError(setting="width", seen=width, need=f"1 to {limit}, the width of the model", place="embed")
    bound = adapter_of(adapter, model, "embed")
    if bound is not None:
        bound.bind(model)
    known = getattr(bound, "embedding", None)
    if pooling is None:
        known = known or model.embedding or Embedding(POOLING)
        pooling = known.pooling
    reading = dict(data_options or {})
    rows = texts_as_rows(texts, reading.get("text_key") or "text", "embed")
    found, report = outputs_of(
        "embed", _Texts(pooling=pooling), model, bound, rows, context, batch_size, reading, options
    )  # fmt: skip
    if width is not None and width < limit:
        found = found[:, :width] / np.maximum(np.linalg.norm(found[:, :width], axis=1, keepdims=True), 1e-12)
    return found, Embedding(pooling, () if known is None else known.widths), report


@dataclass(frozen=True)
class _Texts(Embed):
    """Embeddings of texts, each of one part."""

    form: ClassVar[Form] = Form("labelled", last=True)

    def __post_init__(self) -> None:
        form = Form("labelled", last=True, end=self.pooling == "last")
        object.__setattr__(self, "form", form)
