"""Process that renders chat templates; template_process.py starts it.

A template is a jinja2 program from a model file and is not trusted. It runs in jinja2's sandbox, in a process with
limits: memory, processor time per chat, no files, no child processes. This script imports the standard library and
jinja2 only.

    python -I -S -B template_worker.py MEMORY FOLDER ...

MEMORY: bytes that it may allocate after its start. The folders contain jinja2 and markupsafe. Requests on stdin and
answers on stdout are JSON, one value per line, in UTF-8 (surrogates are encoded like other characters):

    request                                                      answers
    {"source", "now", "tokens", "ends", "control", "seconds"}    ["", [], []], or [fault]
    [[seconds, length], ...], then one line for each:            for each, in order:
    [messages, tools, generation_prompt]                         [text, cuts, origins], or [fault]

seconds: processor time for the template or the chat; length: characters of one rendering. If generation_prompt is null,
the assistant's turns are located: text[cuts[0]:cuts[1]], text[cuts[2]:cuts[3]], ... Otherwise there are no cuts.
origins: for each control token in the text that has a character from a message, the index of one such character (see
template_origins.py). The first line is [GREETING].

Each answer is written before the next chat begins, so a process that ends is at the first chat without an answer. When
the answers to a request exceed BATCH characters, the line null replaces the rest. A process that exceeds its seconds is
ended by SIGPROF; one that exceeds MEMORY exits with code NO_MEMORY.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

if not __package__:  # run as a script: this folder is the package, without importing its __init__.py
    __package__ = "templates"
    sys.modules[__package__] = types.ModuleType(__package__)
    sys.modules[__package__].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from .template_environment import Refused, sandbox
from .template_origins import Marks, Origins

GREETING = "gradloom renders templates"
NO_MEMORY = 3
BATCH = 16 << 20
_CHECK_SECONDS = 0.1  # between checks of the parent and of the memory while a request is served
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
            environment = sandbox(now, _BEGIN, _END)
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
        except Refused as error:
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


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    sys.path += sys.argv[2:]
    # jinja2 imports these modules on first use, when files can no longer be opened
    for module in ("html", "pprint", "textwrap", "jinja2.constants", "jinja2.debug"):
        importlib.import_module(module)
    Template("{{ 'codecs, too' }}", datetime.datetime.now(), {}, ()).render((), False, None, 100)
    _confine(int(sys.argv[1]))
    _answer(GREETING)
    template: Template | None = None
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, _CHECK_SECONDS, _CHECK_SECONDS)
        if isinstance(request, dict):
            template = None  # freed before the next one is compiled
            signal.setitimer(signal.ITIMER_PROF, request.pop("seconds"))
            try:
                template = Template(**request | {"now": datetime.datetime.fromisoformat(request["now"])})
                _answer("", [], [])
            except Fault as fault:
                _answer(_line(fault))
        else:
            assert template is not None
            _serve(template, request, [sys.stdin.buffer.readline() for _ in request])
        del line, request
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _serve(template: Template, limits: list[tuple[float, int]], chats: list[bytes]) -> None:
    left = BATCH
    for (seconds, length), chat in zip(limits, chats, strict=True):
        if left < 0:
            _write("null")
            break
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            messages, tools, generation_prompt = json.loads(chat)
            if generation_prompt is None:
                parts = template.split(messages, tools, length)
            else:
                parts = template.render(messages, generation_prompt, tools, length)
            left -= len(parts[0])
            _answer(*parts)
        except Fault as fault:
            _answer(_line(fault))


def _line(fault: Fault) -> str:
    return " ".join(str(fault)[:4000].split())[:1000]


def _answer(*parts: object) -> None:
    _write(json.dumps(parts, ensure_ascii=False, separators=(",", ":")))


def _write(line: str) -> None:
    left = memoryview(f"{line}\n".encode("utf-8", "surrogatepass"))
    while left:
        left = left[os.write(1, left) :]


def _confine(memory: int) -> None:
    """Set the limits of this process permanently, and end it when its parent has ended.

    ITIMER_PROF is the processor time of a chat: the kernel ends the process. Only Linux bounds the address space;
    elsewhere the resident memory is checked between two instructions of Python.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    held = _address_space()
    limits = {"CORE": 0, "FSIZE": 0, "NPROC": 0, "NOFILE": 3} | ({} if held is None else {"AS": held + memory})
    resident_limit = _resident_peak() + memory if held is None else 0
    parent = os.getppid()

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)
        if resident_limit and _resident_peak() > resident_limit:
            os._exit(NO_MEMORY)

    signal.signal(signal.SIGALRM, check)
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):  # the system does not have this limit
            resource.setrlimit(which, (value, value))


def _address_space() -> int | None:
    """Bytes of addresses that this process uses; None if the system does not report them."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os._exit(NO_MEMORY)
    except BrokenPipeError:  # the parent has ended
        os._exit(0)
