"""Headed: the part of an adapter that is a head."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import FileError
from ..data.dataset import generator
from ..graph.leaves import Parameter, stored_value
from ..graph.stored import Stored
from .embedding import Embedding
from .head import HEAD, Head, HeadArrays

if TYPE_CHECKING:
    from .model import Model

_STREAM = 4  # of random numbers of a seed (data.dataset uses 1 and 2, lora 3)
_DEVIATION = 0.02  # of a new head, as in transformers


class Headed:
    """An adapter that can have a head. head: its facts, or None; head_weight: the matrix f32 [scores, width].
    embedding: how texts become embeddings, of an adapter that was trained for them, or None."""

    embedding: Embedding | None = None
    head: Head | None = None
    head_weight: Parameter | None = None

    def add_head(self, head: Head, model: Model, seed: int, weight: np.ndarray | None = None) -> None:
        """A head for this model: with these numbers, or new ones from N(0, 0.02), sampled by the seed. One that exists
        keeps its numbers. Raises FileError for a head of another width."""
        shape = head.outputs, model.config.width
        if self.head_weight is None:
            if weight is None:
                stored = Stored.deferred(HEAD, shape, lambda: _drawn(seed, shape), "f32", "trained")
            else:
                stored = Stored(HEAD, weight, "f32", "trained")
            self.head_weight = stored_value(stored)
        self.head = head
        self.check_head(model)

    def check_head(self, model: Model) -> None:
        """Raise FileError for a head of another width or number of scores."""
        if self.head is None or self.head_weight is None:
            return
        need = self.head.outputs, model.config.width
        if self.head_weight.shape != need:
            raise FileError(
                f"adapter: its head has shape {list(self.head_weight.shape)}; {model.path} needs {list(need)}: the"
                " adapter is for another model"
            )

    def head_parameters(self) -> dict[str, Parameter]:
        """The matrix by its name; {} without a head."""
        return {} if self.head_weight is None else {HEAD: self.head_weight}

    def head_arrays(self) -> HeadArrays | None:
        """A copy of the head, for files."""
        if self.head is None or self.head_weight is None:
            return None
        return HeadArrays(self.head, self.head_weight.numpy())


def _drawn(seed: int, shape: tuple[int, int]) -> np.ndarray:
    rng = generator(seed, _STREAM, zlib.crc32(HEAD.encode()))
    return rng.standard_normal(shape) * _DEVIATION
