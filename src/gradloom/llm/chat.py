"""Chats as text, rendered by a model's chat template, with the parts that the assistant wrote.

A template is a jinja2 program from the model file. It runs in a separate process with limits; see template_process.py.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, what_is
from ..base.clock import local_now
from ..base.errors import DataError, SettingError, one_line
from .chat_forms import messages_to_render
from .special_tokens import RenderedText
from .template_process import Chat, Source, TemplateFailure, chat_of, renderer

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_AHEAD = 32  # chats per request; the next request is prepared meanwhile
_LOST, _LOST_OF = 4, 1000  # a template fails after ending its process 4 times, for more than 1 of 1000 chats

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template.

    source     the template
    tokenizer  for the texts of bos_token, eos_token, ... and the tokens that end a turn
    name       of the model, for messages
    special    whether names of control tokens in messages become these tokens; by default they are text, as in
               llama.cpp, and only the template's own become tokens

    Raises SettingError for a template that is not a str; DataError for one that is malformed or has neither {{ nor {%
    (the name of a file, for example); BackendError if the process cannot be started.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, name: str = "", special: bool = False) -> None:
        self.tokenizer = tokenizer
        self.name = name or tokenizer.name
        self._where = f"{self.name}: " if self.name else ""
        check_template(source, self._where)
        tokens = {
            f"{kind}_token": "" if token is None else tokenizer.pieces[token]
            for kind, token in (
                *(("bos", tokenizer.bos), ("eos", tokenizer.eos)),
                *(("unk", tokenizer.unk), ("pad", tokenizer.pad)),
            )
        }
        now = local_now()  # the same for all chats of this template
        control = () if as_bool("special", special) else tokenizer.control_tokens
        self._source: Source = {
            "source": source, "now": now.isoformat(), "tokens": tokens, "ends": tuple(tokenizer.turn_ends),
            "control": control,
        }  # fmt: skip
        self._renderer = renderer()
        self._lost = self._done = 0  # chats that ended the process, and all
        failure = self._renderer.load(self._source)
        if failure is not None:
            raise self._error(failure)

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, given: str | None = None, adapter: object = None, special: bool = False
    ) -> ChatTemplate:
        """The given template, or the one that the adapter was trained with (LoRA.chat_template), or that of the
        tokenizer's model file. Raises DataError if there is none."""
        given = given if given is not None else getattr(adapter, "chat_template", None)
        if given is not None:
            return cls(given, tokenizer, special=special)
        if tokenizer.chat_template is None:
            raise DataError(
                f"{tokenizer.name or 'the model'} has no chat template (tokenizer.chat_template), which messages need;"
                " give one (chat_template=, --chat-template), or give the data as text, or as prompt and completion"
            )
        return cls(tokenizer.chat_template, tokenizer, special=special)

    def render(
        self, messages: Sequence[Message], generation_prompt: bool = False, tools: Sequence[Any] | None = None
    ) -> str:
        """The text of a chat for the model; with generation_prompt it ends where the assistant begins.

        Tokenizer.encode reads names of control tokens in the result as tokens if they are the template's, and as text
        if they come from messages. Raises DataError if the template refuses the chat, fails, exceeds its limits, or
        processes a message with such a name in a way that hides its origin.
        """
        messages = messages_to_render(messages)[0] if messages else messages
        (rendering,) = self._rendered([self._asked(messages, tools, generation_prompt)])
        if isinstance(rendering, DataError):
            raise rendering
        text, _, plain = rendering
        return RenderedText.of(text, plain)

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, need_assistant: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids i32 [n], written bool [n]): the chat's tokens, and which of them the assistant wrote.

        `written` covers all turns of the assistant, each with the token that ends it. If the template ends the last
        turn without such a token, the tokenizer's end of text is appended. Raises DataError as render does, and, with
        need_assistant, for a chat without an assistant's turn.
        """
        return self.encode_batch([messages], [tools], need_assistant)[0]

    def encode_batch(
        self,
        chats: Sequence[Sequence[Message]],
        tools: Sequence[Sequence[Any] | None] | None = None,
        need_assistant: bool = True,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """encode for several chats; large batches use every core."""
        asked = list(zip(chats, tools or [None] * len(chats), strict=True))
        split = []
        for i, parts in enumerate(self.split(asked, need_assistant), 1):
            if isinstance(parts, DataError):
                raise DataError(f"chat {i} of {len(chats)}: {parts}") if len(chats) > 1 else parts
            split.append(parts)
        encoded = self.tokenizer.encode_parts([[text for text, _ in parts] for parts in split])
        return [
            self.joined(ids, [written for _, written in parts], parts[0][0])
            for ids, parts in zip(encoded, split, strict=True)
        ]

    def parts(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, need_assistant: bool = True
    ) -> list[tuple[str, bool]]:
        """The rendered chat in parts: (text, whether the assistant wrote it); the first is never the assistant's.

        Raises DataError as encode does.
        """
        (parts,) = self.split([(messages, tools)], need_assistant)
        if isinstance(parts, DataError):
            raise parts
        return parts

    def split(
        self, chats: Sequence[tuple[Sequence[Message], Sequence[Any] | None]], need_assistant: bool = True
    ) -> Iterator[list[tuple[str, bool]] | DataError]:
        """`parts` of each of these (messages, tools), or its DataError, lazily.

        Raises DataError for a template that exceeds its limits repeatedly.
        """
        for rendering in self._rendered(self._turns_asked(*chat, need_assistant) for chat in chats):
            if isinstance(rendering, DataError):
                yield rendering
                continue
            text, cuts, plain = rendering
            bounds = [0, *cuts, len(text)]
            yield [(_part(text, plain, a, b), i % 2 == 1) for i, (a, b) in enumerate(pairwise(bounds))]

    def joined(self, ids: list[np.ndarray], flags: Sequence[int], first: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, written) of a chat from those of its parts. flags: of each part, a number other than 0 (or True) where
        the assistant wrote it; `written` has it at each of its tokens. first: the text of the first part. See encode.
        """
        tokenizer = self.tokenizer
        written = [np.full(part.size, flag) for part, flag in zip(ids, flags, strict=True)]
        if tokenizer.add_bos and not tokenizer.begins_with_bos(first):
            begin = np.array(tokenizer.first_ids, np.int32)
            ids, written = [begin, *ids], [np.zeros(begin.size, bool), *written]
        tokens, mask = np.concatenate(ids).astype(np.int32), np.concatenate(written)
        if tokens.size and mask[-1] and tokenizer.eos is not None and int(tokens[-1]) not in tokenizer.end_ids:
            tokens, mask = np.append(tokens, np.int32(tokenizer.eos)), np.append(mask, mask[-1])
        return tokens, mask

    # -- the process that renders --------------------------------------------------------------------------------

    def _turns_asked(self, messages: Sequence[Message], tools: Any, need_assistant: bool) -> Chat | DataError:
        """A chat whose assistant's turns are to be located."""
        try:
            messages, turns = messages_to_render(messages)
        except DataError as error:
            return error
        if need_assistant and not turns:
            return DataError(
                f"the chat of {len(messages)} messages has no assistant turn, so there is nothing to learn;"
                " need a message with role assistant"
            )
        return self._asked(messages, tools, None, turns * len(messages))

    def _asked(
        self, messages: Sequence[Message], tools: Any, generation_prompt: bool | None, renderings: int = 0
    ) -> Chat | DataError:
        try:
            return chat_of(messages, tools, None if generation_prompt is None else bool(generation_prompt), renderings)
        except (TypeError, ValueError, RecursionError) as error:
            return DataError(
                f"messages or tools contain what JSON does not have ({' '.join(str(error).split())[:100]}); need texts,"
                " numbers, lists and dicts"
            )

    def _rendered(self, asked: Iterable[Chat | DataError]) -> Iterator[tuple[str, list[int], list[int]] | DataError]:
        """(text, cuts, origins) of each, or its error, in order. The next request is prepared while one is computed."""
        source, left = iter(asked), list[Any]()

        def take() -> None:
            left.extend(islice(source, 2 * _AHEAD - len(left)))

        take()
        while left:
            chats = list(takewhile(lambda one: isinstance(one, Chat), left))
            answers = self._renderer.render(self._source, chats[:_AHEAD], take) if chats else left[:1]
            del left[: len(answers)]
            for one in answers:
                self._done += 1
                if isinstance(one, TemplateFailure):
                    self._count_lost(one)
                    yield self._error(one)
                else:
                    yield one
            take()

    def _count_lost(self, failure: TemplateFailure) -> None:
        """Raise DataError for a template that repeatedly ends its process, which can take minutes."""
        self._lost += failure.lost
        if failure.lost and self._lost >= _LOST and self._lost * _LOST_OF > self._done:
            chats = f"{self._lost} of {self._done} chats"
            raise self._error(
                TemplateFailure(f"{failure.text}, for {chats}; need another template (chat_template=, --chat-template)")
            )

    def _error(self, failure: TemplateFailure) -> DataError:
        return DataError(self._where + " ".join(failure.text.split())[:1000])


def check_template(source: object, where: str = "") -> None:
    """Raise SettingError for a template that is not a str, DataError for a text without any jinja2 expression."""
    if not isinstance(source, str):
        read = "; read the file: chat_template=path.read_text()" if isinstance(source, os.PathLike) else ""
        text = f"{where}{{chat_template}} is {what_is(source)}; must be the text of a jinja2 template{read}"
        raise SettingError(text, setting="chat_template")
    if "{{" not in source and "{%" not in source:
        raise DataError(
            f"{where}chat template {one_line(source)} has neither {{{{ nor {{%; it must be the text of a jinja2"
            " template, not the name of a file (use Path(name).read_text())"
        )


def _part(text: str, plain: list[int], start: int, stop: int) -> str:
    """text[start:stop] with its plain places."""
    if not plain:
        return text[start:stop]
    places = plain[bisect_left(plain, start) : bisect_left(plain, stop)]
    return RenderedText.of(text[start:stop], [at - start for at in places])
