"""The interface of the programs that compare knows: each opens a model and computes logits of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from .lora import LoRA
    from .model import Model

BATCH = 64  # tokens at a time
OnBlock = Callable[[int, np.ndarray], None]  # (number of a block, the residual stream behind it f32 [n * d])


class OtherModel(Protocol):
    """A model that is open in another program.

    name        of the program; version: of the package that brings it
    vocab_size  number of logits
    context     the most tokens of a text
    """

    @property
    def name(self) -> str: ...

    version: str
    vocab_size: int
    context: int

    def tokenize(self, text: str) -> list[int]:
        """Ids, without bos and eos; the names of control tokens become these tokens."""

    def logits(self, tokens: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of a text, in blocks f32 [n, V] of BATCH tokens, the last of fewer, that are valid
        until the next. Before each block its residual streams are passed to on_block."""


@dataclass(frozen=True)
class Program:
    """Another program.

    name      as in compare(program=)
    folders   it reads Hugging Face folders; otherwise GGUF files
    refusal   of a model of the other form, as the end of a message that starts with its path
    describe  returns its versions and settings. Raises BackendError, with the command that installs it, without its
              package
    open      (model, adapter, the most tokens of a text, threads, on_block) -> the model in this program; raises
              BackendError without its package, FileError for a model that it does not load
    """

    name: str
    folders: bool
    refusal: str
    describe: Callable[[], str]
    open: Callable[[Model, LoRA | None, int, int | None, OnBlock | None], AbstractContextManager[OtherModel]]
