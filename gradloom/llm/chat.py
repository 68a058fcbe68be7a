"""Chats as text, through a model's own chat template, and which parts of the text the assistant wrote.

A template is a jinja2 program that comes with the model file. It runs in jinja2's sandbox, with the helpers that
Hugging Face's templates use, and within bounds: so many turns of its loops, so long a text.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..base.errors import DataError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_TURNS = 200_000  # of all loops of one rendering
_left: ContextVar[int] = ContextVar("gradloom_template_turns")  # what this rendering has left of them
_LENGTH = 50_000_000  # characters of one rendering
_RANGE = 100_000
# What {% generation %} blocks are marked with while they are rendered: no characters of any language.
_BEGIN, _END = "\ufdd0\ufdd2\ufdd0", "\ufdd1\ufdd2\ufdd1"
_TICK = "_turn_of_a_loop"
_PLACE = "\ufdd3\ufdd4\ufdd3"  # stands for a turn's content while its place is looked for

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template.

    source     the template
    tokenizer  gives the texts of bos_token, eos_token, ... and the tokens that end a turn
    name       of the model, for messages

    Raises DataError for a template that is malformed.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, name: str = "") -> None:
        from jinja2 import TemplateSyntaxError

        self.tokenizer = tokenizer
        self.name = name or tokenizer.name
        self._where = f"{self.name}: " if self.name else ""
        self._ends = tokenizer.turn_ends
        self._now = datetime.datetime.now()  # one moment for all that this template renders
        self._environment = _environment(self._now)
        try:
            self._template = self._environment.from_string(_counted(self._environment, source))
        except TemplateSyntaxError as error:
            raise DataError(f"{self._where}chat template is malformed: line {error.lineno}: {error.message}") from None
        except Exception as error:
            raise DataError(f"{self._where}chat template cannot be compiled: {_shown(error)}") from None
        self._tokens = {
            f"{kind}_token": "" if token is None else tokenizer.pieces[token]
            for kind, token in (
                *(("bos", tokenizer.bos), ("eos", tokenizer.eos)),
                *(("unk", tokenizer.unk), ("pad", tokenizer.pad)),
            )
        }

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of the model file that the tokenizer comes from; DataError where it has none."""
        if tokenizer.chat_template is None:
            raise DataError(
                f"{tokenizer.name or 'the model'} has no chat template (tokenizer.chat_template), which messages need;"
                " give one (chat_template=, --chat-template), or give the data as text, or as prompt and completion"
            )
        return cls(tokenizer.chat_template, tokenizer)

    def render(
        self, messages: Sequence[Message], generation_prompt: bool = False, tools: Sequence[Any] | None = None
    ) -> str:
        """The chat as the model reads it; with generation_prompt up to where the assistant begins to write.

        Raises DataError when the template refuses the chat, fails, or does not come to an end.
        """
        text = self._render(messages, generation_prompt, tools)
        return text.replace(_BEGIN, "").replace(_END, "")

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, need_assistant: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids i32 [n], written bool [n]): the chat's tokens, and which of them the assistant wrote.

        Written are all turns of the assistant, each with the token that ends it; where the template ends the last
        turn with no such token, the tokenizer's end of text is put there. Raises DataError as render does, and,
        with need_assistant, for a chat without an assistant's turn.
        """
        return self.encode_batch([messages], [tools], need_assistant)[0]

    def encode_batch(
        self,
        chats: Sequence[Sequence[Message]],
        tools: Sequence[Sequence[Any] | None] | None = None,
        need_assistant: bool = True,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """encode for several chats; large batches use every core."""
        split = [
            self.parts(messages, tool, need_assistant)
            for messages, tool in zip(chats, tools or [None] * len(chats), strict=True)
        ]
        found = self.tokenizer.encode_parts([[text for text, _ in parts] for parts in split])
        return [
            self.joined(ids, [written for _, written in parts], parts[0][0])
            for ids, parts in zip(found, split, strict=True)
        ]

    def parts(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, need_assistant: bool = True
    ) -> list[tuple[str, bool]]:
        """The rendered chat in parts: (text, whether the assistant wrote it); the first is never the assistant's."""
        _check(messages)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if need_assistant and not turns:
            raise DataError(
                f"the chat of {len(messages)} messages has no assistant turn, so that nothing in it is to be learned;"
                " need a message with role assistant"
            )
        whole = self._render(messages, False, tools)
        if _BEGIN in whole:
            return self._marked(whole)
        parts: list[tuple[str, bool]] = []
        at = 0
        for i in turns:
            start, stop = self._turn(messages, i, whole, tools, at)
            parts += [(whole[at:start], False), (whole[start:stop], True)]
            at = stop
        return [*parts, (whole[at:], False)]

    # -- where the assistant's turns lie -------------------------------------------------------------------------

    def _turn(
        self, messages: Sequence[Message], i: int, whole: str, tools: Sequence[Any] | None, at: int
    ) -> tuple[int, int]:
        """(start, stop) in the text of all messages of what the assistant writes in message i.

        It begins where a prompt for generation ends, and ends where the text of the chat up to message i ends. Where a
        template prompts otherwise than it writes, or writes earlier turns otherwise than the last one, the place of the
        message's content is looked for.
        """
        before = self._rendered(messages[:i], True, tools)
        until = self._rendered(messages[: i + 1], False, tools)
        start = stop = None
        if before and len(before) >= at and whole.startswith(before) and (until or before).startswith(before):
            start = len(before)
            if until and whole.startswith(until):
                return start, start + self._kept(whole[start : len(until)])
        content = self._content(messages, i, whole, tools, at)
        if content is not None:
            stop = self._end(whole, content[1], blank_only=True) or content[1]
            start = content[0] if start is None or start > stop else start
        elif start is not None:
            stop = self._end(whole, start)
        elif before and until and whole.startswith(until):
            # what the prompt and the turn have in common, whole words and tags of it, was not written
            start = _common(before, until)
            while start > at and (whole[start - 1].isalnum() or whole[start - 1] == "_"):
                start -= 1
            start -= start > at and whole[start - 1] == "<"
            stop = start + self._kept(whole[start : len(until)])
        if start is None or stop is None or not at <= start <= stop <= len(whole):
            raise DataError(
                f"{self._where}chat template writes message {i + 1} of {len(messages)} in such a way that the"
                " assistant's text cannot be told from the rest; need a template with {% generation %} marks, or"
                " training on everything"
            )
        return start, stop

    def _content(
        self, messages: Sequence[Message], i: int, whole: str, tools: Sequence[Any] | None, at: int
    ) -> tuple[int, int] | None:
        """Where the content of message i lies, found by writing something else in its place."""
        other = self._rendered([*messages[:i], {**messages[i], "content": _PLACE}, *messages[i + 1 :]], False, tools)
        if other is None or other.count(_PLACE) != 1:
            return None
        start = other.index(_PLACE)
        rest = other[start + len(_PLACE) :]
        stop = len(whole) - len(rest)
        if not at <= start <= stop or not whole.startswith(other[:start]) or not whole.endswith(rest):
            return None
        while start > at and whole[start - 1] == " ":  # written as the first word's own
            start -= 1
        return start, stop

    def _end(self, text: str, start: int, blank_only: bool = False) -> int | None:
        """The place behind the first token from start on that ends a turn; with blank_only, if only blanks precede."""
        found = [(text.index(end, start), -len(end)) for end in self._ends if end in text[start:]]
        if not found:
            return None
        at, length = min(found)
        return at - length if not blank_only or not text[start:at].strip() else None

    def _kept(self, turn: str) -> int:
        """The length of a turn without the blanks that follow the token which ends it: nobody writes these."""
        bare = turn.rstrip()
        return len(bare) if any(bare.endswith(end) for end in self._ends) else len(turn)

    def _marked(self, whole: str) -> list[tuple[str, bool]]:
        parts: list[tuple[str, bool]] = []
        first, *others = whole.split(_BEGIN)
        parts.append((first, False))
        for other in others:
            inside, *after = other.split(_END)
            if len(after) != 1:
                raise DataError(
                    f"{self._where}chat template: {{% generation %}} blocks overlap; need one after the other"
                )
            parts += [(inside, True), (after[0], False)]
        return parts

    def joined(self, ids: list[np.ndarray], flags: list[bool], first: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, written) of a chat from those of its parts, the first of which is this text; see encode."""
        tokenizer = self.tokenizer
        written = [np.full(part.size, flag) for part, flag in zip(ids, flags, strict=True)]
        bos = tokenizer.bos
        if tokenizer.add_bos and bos is not None and not first.startswith(tokenizer.pieces[bos]):
            ids, written = [np.array([bos], np.int32), *ids], [np.array([False]), *written]
        tokens, mask = np.concatenate(ids).astype(np.int32), np.concatenate(written).astype(bool)
        if tokens.size and mask[-1] and tokenizer.eos is not None and int(tokens[-1]) not in tokenizer.end_ids:
            tokens, mask = np.append(tokens, np.int32(tokenizer.eos)), np.append(mask, True)
        return tokens, mask

    # -- running the template ------------------------------------------------------------------------------------

    def _rendered(self, messages: Sequence[Message], generation_prompt: bool, tools: Any) -> str | None:
        """A part of a chat; None when the template refuses it."""
        try:
            return self.render(messages, generation_prompt, tools)
        except DataError:
            return None

    def _render(self, messages: Sequence[Message], generation_prompt: bool, tools: Any) -> str:
        _left.set(_TURNS)
        pieces, length = [], 0
        try:
            for piece in self._template.generate(
                messages=list(messages),
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._tokens,
            ):
                pieces.append(piece)
                length += len(piece)
                if length > _LENGTH:
                    raise _Endless(f"its text passes {_LENGTH} characters")
        except _Refused as error:
            raise DataError(f"{self._where}chat template refuses the chat: {' '.join(str(error).split())}") from None
        except _Endless as error:
            raise DataError(f"{self._where}chat template does not come to an end: {error}") from None
        except Exception as error:
            raise DataError(f"{self._where}chat template fails: {_shown(error)}") from None
        return "".join(pieces)


def _tick() -> str:
    """Counts a turn of a template's loop."""
    left = _left.get() - 1
    _left.set(left)
    if left < 0:
        raise _Endless(f"its loops pass {_TURNS} turns")
    return ""


class _Refused(Exception):
    """raise_exception of a template."""


class _Endless(Exception):
    """A template that passes its bounds."""


def _common(a: str, b: str) -> int:
    """The length of what two texts begin with alike."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _check(messages: Any) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        seen = "an empty list" if isinstance(messages, (list, tuple)) else type(messages).__name__
        raise DataError(f"messages is {seen}; need a list of messages such as {{'role': 'user', 'content': '...'}}")
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            raise DataError(f"message {i + 1} of {len(messages)} has no role; need a text such as user or assistant")
        if role == "assistant" and message.get("content") is None and not message.get("tool_calls"):
            raise DataError(f"message {i + 1} of {len(messages)}, of the assistant, has no content; need a text")


def _environment(now: datetime.datetime) -> Any:
    """jinja2's sandbox with what templates written for Hugging Face's library expect."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: what the assistant writes."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
            if operator == "**" and not (numbers and abs(left) <= 1e6 and abs(right) <= 100):
                raise _Endless(f"it computes {left!r:.20} ** {right!r:.20}")
            for text, times in ((left, right), (right, left)):
                if operator == "*" and isinstance(text, (str, list, tuple)) and len(text) * times > _LENGTH:
                    raise _Endless(f"it repeats a text {times} times")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: object) -> NoReturn:
        raise _Refused(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own filter writes HTML

    def bounded_range(*bounds: int) -> range:
        made = range(*bounds)
        if len(made) > _RANGE:
            raise _Endless(f"it counts to {len(made)}")
        return made

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": now.strftime,
        "range": bounded_range,
        _TICK: _tick,
    }
    return environment


def _counted(environment: Any, source: str) -> Any:
    """The template's tree, with a tick put into every loop and macro."""
    from jinja2 import nodes

    tree = environment.parse(source)
    for node in tree.find_all((nodes.For, nodes.Macro)):
        tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
        node.body.insert(0, tick.set_lineno(node.lineno))
    return tree


def _shown(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
