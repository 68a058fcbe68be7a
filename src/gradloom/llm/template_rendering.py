"""Rendering of chat templates, and location of the assistant's turns; part of the process of template_worker.py."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from .template_origins import Marks, Origins

_MAX_GENERATIONS = 100_000  # {% generation %} blocks of one rendering
# Marks around {% generation %} blocks, and a placeholder for a turn's content: 16 of the 32 noncharacters from U+FDD0
# on, random for each process, so that no chat contains them.
_BEGIN, _END, _PLACE = ("".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(16)) for _ in range(3))

Message = Mapping[str, Any]
Parts = tuple[str, list[int], list[int]]  # text, cuts, origins


class Fault(Exception):
    """A template or chat that cannot be rendered: the part of the message after the model's name."""


class Template:
    """A compiled template.

    source  the template
    now     result of strftime_now
    tokens  texts by name: bos_token, eos_token, ...
    ends    texts of the tokens that end a turn
    control texts of the control tokens that are text when they occur in messages

    Raises Fault for a malformed template.
    """

    def __init__(
        self, source: str, now: datetime.datetime, tokens: Mapping[str, str], ends: Sequence[str],
        control: Sequence[str] = (),
    ) -> None:  # fmt: skip
        from jinja2 import TemplateSyntaxError, nodes

        self._tokens, self._ends = tokens, ends
        try:
            environment = _sandbox(now)
            constants = environment.parse(source).find_all(nodes.Const) if control else ()
            self._origins = Origins(control, source, [one.value for one in constants if isinstance(one.value, str)])
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise Fault(f"chat template is malformed: line {error.lineno}: {error.message}") from None
        except MemoryError:
            raise
        except Exception as error:
            raise Fault(f"chat template cannot be compiled: {_shown(error)}") from None

    def render(self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int) -> Parts:
        """A chat without cuts. Raises Fault if it cannot be rendered in `length` characters, or its origins are
        unknown."""
        whole, _, _, marks = self._marked(messages, generation_prompt, tools, length)
        return _parts(_without_blocks(whole), [], marks)

    def split(self, messages: Sequence[Message], tools: Any, length: int) -> Parts:
        """A chat with the cuts of the assistant's turns. Raises Fault as `render`, or if a turn cannot be located."""
        whole, messages, tools, marks = self._marked(messages, False, tools, length)
        if _BEGIN in whole:
            return _parts(*_generated(whole), marks)

        def rendered(messages: Sequence[Message], generation_prompt: bool) -> str | None:
            """None if the template rejects this part of the chat."""
            with contextlib.suppress(Fault):
                return _without_blocks(self._render(messages, generation_prompt, tools, length))
            return None

        cuts: list[int] = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                cuts += _turn(rendered, self._ends, messages, i, whole, cuts[-1] if cuts else 0)
        return _parts(whole, cuts, marks)

    def _marked(
        self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int
    ) -> tuple[str, Sequence[Message], Any, Marks | None]:
        """(text, messages, tools, marks), all three with marks if the chat requires them."""
        whole = self._render(messages, generation_prompt, tools, length)
        marks = self._origins.marks(messages, tools)
        if marks is None:
            return whole, messages, tools, None
        text = None
        with contextlib.suppress(Fault, RecursionError):
            marked = marks.put(messages), marks.put(tools)
            text = self._render(marked[0], generation_prompt, marked[1], length)
        if marks.complete and text is not None and marks.removed(text) == whole:
            return text, *marked, marks
        places, control = self._origins.places, marks.control
        if control is None and text is not None and len(places(whole)) > len(places(text)):
            control = self._origins.find(whole)
        if control is not None:
            raise Fault(
                f"chat template processes messages with the text {control!r} of a control token in a way that hides"
                " which control tokens are its own; remove this text from the messages, or use special=True"
                " (--special), which reads it as a token"
            )
        return whole, messages, tools, None

    def _render(self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int) -> str:
        pieces, left = [], length
        try:
            for piece in self._template.generate(
                messages=list(messages),
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._tokens,
            ):
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    raise Fault(f"chat template does not come to an end: its text passes {length} characters")
        except (Fault, MemoryError):
            raise
        except _Refused as error:
            raise Fault(f"chat template refuses the chat: {error}") from None
        except Exception as error:
            raise Fault(f"chat template fails: {_shown(error)}") from None
        return "".join(pieces)


# -- the assistant's turns ---------------------------------------------------------------------------------------------

Render = Callable[[Sequence[Message], bool], str | None]  # (messages, generation_prompt) -> text


def _turn(
    rendered: Render, ends: Sequence[str], messages: Sequence[Message], i: int, whole: str, at: int
) -> tuple[int, int]:
    """(start, stop) of message i, the assistant's, in whole[at:]. Raises Fault if it cannot be located.

    The turn starts after the generation prompt and stops at the end of the chat up to this message. If the template
    prompts differently from how it writes turns, or writes earlier turns differently from the last, the message's
    content is located instead.
    """
    before = rendered(messages[:i], True)
    until = rendered(messages[: i + 1], False)
    start = stop = None
    if before and len(before) >= at and whole.startswith(before) and (until or before).startswith(before):
        start = len(before)
        if until and whole.startswith(until):
            return start, start + _kept(ends, whole[start : len(until)])
    content = _content(rendered, messages, i, whole, at)
    if content is not None:
        stop = _end(ends, whole, content[1], blank_only=True) or content[1]
        start = content[0] if start is None or start > stop else start
    elif start is not None:
        stop = _end(ends, whole, start)
    elif before and until and whole.startswith(until):
        # the common start of prompt and turn, cut at a whole word or tag, is the template's
        start = next((k for k, (a, b) in enumerate(zip(before, until, strict=False)) if a != b), len(before))
        start = min(start, len(until))
        while start > at and (whole[start - 1].isalnum() or whole[start - 1] == "_"):
            start -= 1
        start -= start > at and whole[start - 1] == "<"
        stop = start + _kept(ends, whole[start : len(until)])
    if start is None or stop is None or not at <= start <= stop <= len(whole):
        raise Fault(
            f"chat template writes message {i + 1} of {len(messages)} in a way that hides which text is the"
            " assistant's; use a template with {% generation %} marks, or train on everything"
        )
    return start, stop


def _content(rendered: Render, messages: Sequence[Message], i: int, whole: str, at: int) -> tuple[int, int] | None:
    """(start, stop) of the content of message i, located by rendering a placeholder; None if it is not found once."""
    other = rendered([*messages[:i], {**messages[i], "content": _PLACE}, *messages[i + 1 :]], False)
    if other is None or other.count(_PLACE) != 1:
        return None
    head, rest = other.split(_PLACE)
    start, stop = len(head), len(whole) - len(rest)
    if not at <= start <= stop or not whole.startswith(head) or not whole.endswith(rest):
        return None
    while start > at and whole[start - 1] == " ":  # a blank before a word is part of the word's token
        start -= 1
    return start, stop


def _end(ends: Sequence[str], text: str, start: int, blank_only: bool = False) -> int | None:
    """The index after the first token in text[start:] that ends a turn; blank_only: only blanks may precede it."""
    found = [(text.index(end, start), -len(end)) for end in ends if end in text[start:]]
    if not found:
        return None
    at, length = min(found)
    return at - length if not blank_only or not text[start:at].strip() else None


def _kept(ends: Sequence[str], turn: str) -> int:
    """The length of a turn up to the first of the tokens at its end that end it, or of all of it. Blanks and tokens
    after this token are the template's: some close the whole text with another token."""
    length, bare = len(turn), turn.rstrip()
    while end := next((end for end in ends if bare.endswith(end)), ""):
        length, bare = len(bare), bare[: -len(end)].rstrip()
    return length


def _generated(whole: str) -> tuple[str, list[int]]:
    """(text, cuts) of a text with marked {% generation %} blocks."""
    if whole.count(_BEGIN) > _MAX_GENERATIONS:
        raise Fault(f"chat template does not come to an end: its {{% generation %}} blocks pass {_MAX_GENERATIONS}")
    first, *others = whole.split(_BEGIN)
    texts, cuts, at = [first], [], len(first)
    for other in others:
        inside, *after = other.split(_END)
        if len(after) != 1:
            raise Fault("chat template: {% generation %} blocks overlap; they must not be nested")
        cuts += [at, at + len(inside)]
        texts += [inside, after[0]]
        at += len(inside) + len(after[0])
    return "".join(texts), cuts


def _without_blocks(text: str) -> str:
    return text.replace(_BEGIN, "").replace(_END, "")


def _parts(text: str, cuts: list[int], marks: Marks | None) -> Parts:
    return (text, cuts, []) if marks is None else (marks.removed(text), cuts, marks.places(text))


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


# -- jinja2 ------------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """raise_exception of a template."""


def _sandbox(now: datetime.datetime) -> Any:
    """jinja2's sandbox with the extensions that templates for Hugging Face's library use."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: text of the assistant."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def raise_exception(message: object) -> NoReturn:
        raise _Refused(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own filter writes HTML

    class Sandbox(ImmutableSandboxedEnvironment):
        # otherwise constant products are computed when a template is compiled
        intercepted_binops = frozenset(("*", "**"))

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": now.strftime}
    return environment
