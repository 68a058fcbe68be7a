"""Chat with a model, turn by turn. The cache is reused: only new tokens are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, SettingError
from ..base.habits import hinted
from ..train.arguments import check_names
from .arguments import adapter_of
from .chat import ChatTemplate
from .generate import ROWS, Generated, Generator, continued
from .gpu_layers import check_layers
from .model import Adapter, Model, model_of
from .sampling import Sampling


class Conversation:
    """A chat with a model.

    model, adapter   as in gl.llm.generate
    system           system prompt
    chat_template    instead of the adapter's (if it was trained with another one) or the model's
    special          whether names of control tokens in messages (<|im_end|>, </s>) become these tokens; by default they
                     are text
    max_tokens       maximum length of a reply
    temperature, top_k, top_p, seed: see Sampling. options go to gl.compile (threads=, device=, ...)

    `messages` are the turns so far. If the history and a reply do not fit into the model's context, the oldest turns
    are left out of the prompt; `forgotten` counts their messages. Each token is computed once, and again after the
    adapter's arrays have changed. Not thread-safe.
    Raises DataError for a model without a chat template, SettingError for settings out of range.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        adapter: Adapter | str | os.PathLike[str] | None = None,
        *,
        system: str | None = None,
        chat_template: str | None = None,
        special: bool = False,
        max_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_names("Conversation", options, Conversation, "gpu_layers", "gpu_memory")
        check_layers("Conversation", **options)
        self.model = model_of(model, "Conversation")
        context = self.model.config.context_length
        if not isinstance(max_tokens, (int, np.integer)) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise SettingError(setting="max_tokens", seen=max_tokens, need="a whole number of at least 1")
        self.max_tokens, self.how = min(int(max_tokens), context // 2), Sampling(temperature, top_k, top_p, seed)
        tokenizer = self.model.tokenizer
        self._adapter, self._options = adapter_of(adapter, self.model, "Conversation"), options
        self.template = ChatTemplate.of(tokenizer, chat_template, self._adapter, special)
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": _text("system", system)})
        self.forgotten = 0
        self._generator: Generator | None = None
        self._cached = np.empty(0, np.int32)  # the tokens in its cache
        self._versions: list[int] = []  # of the adapter's arrays, when these tokens were computed
        self._began = len(self.messages)

    @hinted
    def say(self, text: str, stream: Callable[[str], Any] | None = None) -> Generated:
        """The model's reply to this turn of the user; both are appended to `messages`. stream: as in gl.llm.generate.

        prompt_tokens of the result are those that were computed for this turn. If an exception (Ctrl-C) stops a reply,
        the part so far is appended. Raises DataError for a turn that does not fit into the context, or that the
        template refuses; it is not appended.
        """
        turn = {"role": "user", "content": _text("say", text)}
        ids, left_out = self._prompt([*self.messages, turn])
        self.messages.append(turn)
        self.forgotten = left_out
        pieces: list[str] = []

        def collect(piece: str) -> None:
            pieces.append(piece)
            if stream is not None:
                stream(piece)

        generator = self._room_for(len(ids) + self.max_tokens)
        parameters = () if self._adapter is None else self._adapter.parameters().values()
        versions = [parameter.stored.version for parameter in parameters]
        if versions != self._versions:
            self._cached, self._versions = self._cached[:0], versions
        known = min(_alike(self._cached, ids), len(ids) - 1)  # the last one is computed for its logits
        generator.rewind(known)
        self._cached = ids[:known]
        try:
            reply = continued(generator, ids[known:], self.max_tokens, self.how, (), collect)
            self._cached = np.concatenate([ids, reply.tokens]).astype(np.int32)[: generator.length]
            return reply
        finally:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def forget(self) -> None:
        """Remove all turns except the system prompt."""
        del self.messages[self._began :]
        self.forgotten = 0

    def _room_for(self, tokens: int) -> Generator:
        """A generator for a text of this length. It is replaced by one of twice its size, with an empty cache."""
        rows = ROWS if self._generator is None else self._generator.rows
        while rows < tokens:
            rows *= 2
        if self._generator is None or self._generator.rows < tokens:
            self._generator = Generator(self.model, self._adapter, rows, **self._options)
            self._cached = self._cached[:0]
        return self._generator

    def _prompt(self, messages: Sequence[dict[str, str]]) -> tuple[np.ndarray, int]:
        """(tokens up to where the assistant begins, number of messages left out): the longest end of the history, from
        a turn of the user on, that leaves room for a reply."""
        context = self.model.config.context_length
        starts = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for start in starts:
            ids = chat_ids(self.template, [*messages[: self._began], *messages[start:]])
            if len(ids) + self.max_tokens <= context:
                return ids, start - starts[0]
        raise DataError(
            f"a turn of {len(ids)} tokens with the system prompt; the context is {context} and {self.max_tokens} are"
            " reserved for the reply: need a shorter turn"
        )


def chat_ids(template: ChatTemplate, messages: Sequence[dict[str, str]]) -> np.ndarray:
    """The tokens of a chat up to where the assistant begins, i32. Raises DataError as ChatTemplate.render."""
    text = template.render(messages, generation_prompt=True)
    tokenizer = template.tokenizer
    bos = False if tokenizer.begins_with_bos(text) else None
    return np.asarray(tokenizer.encode(text, special=True, bos=bos), np.int32)


def _alike(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the common start."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def _text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise SettingError(f"{what}: got {what_is(text)}; need a text")
    return text
