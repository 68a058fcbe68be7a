"""The process that renders chat templates: a script that template_process.py runs.

A template is a jinja2 program that comes with a model file, and is not trusted. It runs in jinja2's sandbox, with the
helpers that Hugging Face's templates use, inside of a process with limits: memory, processor time for each chat, no
files, no processes. This file imports the standard library and jinja2, nothing of gradloom.

The process is started as `python -I -S -B template_worker.py MEMORY FOLDER ...`: MEMORY is the bytes that it may take
beyond what it holds at its start, the folders are those where jinja2 and markupsafe lie. stdin brings requests and
stdout takes answers. Both are frames: the length in 8 bytes, little-endian, then a request or an answer.

    request, marshalled                            answers
                                                   the fault GREETING, once at the start
    {"source", "now", "tokens", "ends", "control", "seconds"}    an empty text, or the fault of the template
    [(chat, seconds, length), ...]                 one for each chat, in their order: its text, cuts and origins, or its
                                                   fault

A chat is (messages, tools, generation_prompt), marshalled by itself. seconds: of processor time, for the template or
the chat; length: characters of one rendering. An answer is a head of 8 bytes, which holds the number of cuts in its
lower half and the number of origins in its upper half, then the cuts and the origins of 8 bytes each, and a text in
UTF-8, surrogates as they are. Where the head is FAULT there are no numbers and the text says what is wrong.
Several answers are written at once: where the process ends, answers may be lost of chats before the one that it was at.
HERE is no answer: what follows, also the end of the process, is about the next chat.
generation_prompt is None where the assistant's turns are to be found: text[cuts[0]:cuts[1]], text[cuts[2]:cuts[3]], ...
are what the assistant wrote. Elsewhere there are no cuts. Origins are places of characters that come from messages: one
in each control token of the text that is not the template's own (see template_origins.py). When the answers to a
request pass BATCH bytes, an answer LATER takes the place of the rest. A process that passes its seconds is ended by
SIGPROF, one that passes MEMORY ends with exit code NO_MEMORY.

Requests are marshalled because that takes a tenth of the time of JSON; they come from gradloom itself, in the same
version of Python. Answers come from a process that ran what a file said: gradloom reads them as numbers and text.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import marshal
import os
import resource
import signal
import struct
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

if not __package__:  # the script of the process: this folder as a package, of which nothing else is imported
    __package__ = "templates"
    sys.modules[__package__] = types.ModuleType(__package__)
    sys.modules[__package__].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from .template_environment import Refused, sandbox
from .template_origins import Marks, Origins

GREETING = "gradloom renders templates"
NO_MEMORY = 3
FAULT, LATER, HERE = (1 << 64) - 1, (1 << 64) - 2, (1 << 64) - 3  # in place of the numbers of cuts and origins
BATCH = 16 << 20
_WRITE = 1 << 15  # bytes of answers that are written at once; a pipe holds 64 KiB
_LOOK = 0.1  # seconds between two looks at the parent and at the memory while requests are served
_MARKS = 100_000  # {% generation %} blocks of one rendering
# What {% generation %} blocks are marked with while they are rendered, and what stands for a turn's content while its
# place is looked for: 16 of the 32 noncharacters from U+FDD0 on, at random in each process, so that no chat holds them.
_BEGIN, _END, _PLACE = ("".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(16)) for _ in range(3))

Message = Mapping[str, Any]


class Fault(Exception):
    """What is wrong with a template or with what it makes of a chat: the message's part behind the model's name."""


class Template:
    """A compiled template.

    source  the template
    now     the moment that strftime_now tells
    tokens  texts by name: bos_token, eos_token, ...
    ends    texts of the tokens that end a turn
    control texts of the control tokens that no message may contain as such

    Raises Fault for a template that is malformed.
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

    def render(
        self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int
    ) -> tuple[str, list[int], list[int]]:
        """(text, no cuts, origins) of a chat; the text has at most `length` characters. Fault when there is none, or
        its origins are not known."""
        whole, _, _, marks = self._marked(messages, generation_prompt, tools, length)
        return _answer(whole.replace(_BEGIN, "").replace(_END, ""), [], marks)

    def split(self, messages: Sequence[Message], tools: Any, length: int) -> tuple[str, list[int], list[int]]:
        """(text, cuts, origins) of a chat; see the head of this file. Fault when there is no text, its origins are not
        known, or the assistant's turns cannot be told from the rest of it."""
        whole, messages, tools, marks = self._marked(messages, False, tools, length)
        if _BEGIN in whole:
            return _answer(*_generated(whole), marks)
        cuts: list[int] = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                cuts += _Turn(self, messages, i, whole, tools, length, cuts[-1] if cuts else 0).bounds()
        return _answer(whole, cuts, marks)

    def _marked(
        self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int
    ) -> tuple[str, Sequence[Message], Any, Marks | None]:
        """(text, messages, tools, marks): with marks in all of them, where their texts require it."""
        whole = self._render(messages, generation_prompt, tools, length)
        marks = self._origins.marks(messages, tools)
        if marks is None:
            return whole, messages, tools, None
        text = None
        with contextlib.suppress(Fault, RecursionError):
            other = marks.put(messages), marks.put(tools)
            text = self._render(other[0], generation_prompt, other[1], length)
        if marks.complete and text is not None and marks.removed(text) == whole:
            return text, *other, marks
        find = self._origins.places
        control = marks.control
        if control is None and text is not None and len(find(whole)) > len(find(text)):
            control = self._origins.find(whole)
        if control is not None:
            raise Fault(
                f"chat template treats messages with the text {control!r} of a control token in such a way that its"
                " own tokens cannot be told from it; need messages without this text, or special=True (--special),"
                " which reads it as a token"
            )
        return whole, messages, tools, None

    def rendered(self, messages: Sequence[Message], generation_prompt: bool, tools: Any, length: int) -> str | None:
        """A part of a chat; None when the template refuses it."""
        try:
            text = self._render(messages, generation_prompt, tools, length)
            return text.replace(_BEGIN, "").replace(_END, "")
        except Fault:
            return None

    def end(self, text: str, start: int, blank_only: bool = False) -> int | None:
        """The place behind the first token from start on that ends a turn; with blank_only, if only blanks precede."""
        ends = [(text.index(end, start), -len(end)) for end in self._ends if end in text[start:]]
        if not ends:
            return None
        at, length = min(ends)
        return at - length if not blank_only or not text[start:at].strip() else None

    def kept(self, turn: str) -> int:
        """The length of a turn up to the first of the tokens at its end that end it, or all of it where there is none:
        nobody writes the blanks and tokens that follow (a template may close the text with one of its own)."""
        length, bare = len(turn), turn.rstrip()
        while end := next((end for end in self._ends if bare.endswith(end)), ""):
            length, bare = len(bare), bare[: -len(end)].rstrip()
        return length

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


class _Turn:
    """Where message i, of the assistant, lies in the text of all messages, from `at` on."""

    def __init__(
        self, template: Template, messages: Sequence[Message], i: int, whole: str, tools: Any, length: int, at: int
    ) -> None:
        self.template, self.messages, self.i, self.whole = template, messages, i, whole
        self.tools, self.length, self.at = tools, length, at

    def bounds(self) -> tuple[int, int]:
        """(start, stop) of what the assistant writes in the message.

        It begins where a prompt for generation ends, and ends where the text of the chat up to the message ends. Where
        a template prompts otherwise than it writes, or writes earlier turns otherwise than the last one, the place of
        the message's content is looked for.
        """
        template, i, whole, at = self.template, self.i, self.whole, self.at
        before = template.rendered(self.messages[:i], True, self.tools, self.length)
        until = template.rendered(self.messages[: i + 1], False, self.tools, self.length)
        start = stop = None
        if before and len(before) >= at and whole.startswith(before) and (until or before).startswith(before):
            start = len(before)
            if until and whole.startswith(until):
                return start, start + template.kept(whole[start : len(until)])
        content = self.content()
        if content is not None:
            stop = template.end(whole, content[1], blank_only=True) or content[1]
            start = content[0] if start is None or start > stop else start
        elif start is not None:
            stop = template.end(whole, start)
        elif before and until and whole.startswith(until):
            # what the prompt and the turn have in common, whole words and tags of it, was not written
            start = _common(before, until)
            while start > at and (whole[start - 1].isalnum() or whole[start - 1] == "_"):
                start -= 1
            start -= start > at and whole[start - 1] == "<"
            stop = start + template.kept(whole[start : len(until)])
        if start is None or stop is None or not at <= start <= stop <= len(whole):
            raise Fault(
                f"chat template writes message {i + 1} of {len(self.messages)} in such a way that the assistant's text"
                " cannot be told from the rest; need a template with {% generation %} marks, or training on everything"
            )
        return start, stop

    def content(self) -> tuple[int, int] | None:
        """Where the message's content lies, found by writing something else in its place."""
        messages, i, whole, at = self.messages, self.i, self.whole, self.at
        changed = [*messages[:i], {**messages[i], "content": _PLACE}, *messages[i + 1 :]]
        other = self.template.rendered(changed, False, self.tools, self.length)
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


def _answer(text: str, cuts: list[int], marks: Marks | None) -> tuple[str, list[int], list[int]]:
    return (text, cuts, []) if marks is None else (marks.removed(text), cuts, marks.places(text))


def _generated(whole: str) -> tuple[str, list[int]]:
    """(text, cuts) of a text whose turns of the assistant are marked."""
    if whole.count(_BEGIN) > _MARKS:
        raise Fault(f"chat template does not come to an end: its {{% generation %}} blocks pass {_MARKS}")
    first, *others = whole.split(_BEGIN)
    texts, cuts, at = [first], [], len(first)
    for other in others:
        inside, *after = other.split(_END)
        if len(after) != 1:
            raise Fault("chat template: {% generation %} blocks overlap; need one after the other")
        cuts += [at, at + len(inside)]
        texts += [inside, after[0]]
        at += len(inside) + len(after[0])
    return "".join(texts), cuts


def _common(a: str, b: str) -> int:
    """The length of what two texts begin with alike."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    sys.path += sys.argv[2:]
    # later no file can be opened: what jinja2 imports when it is needed is imported now
    for module in ("html", "pprint", "textwrap", "jinja2.constants", "jinja2.debug"):
        importlib.import_module(module)
    Template("{{ 'codecs, too' }}", datetime.datetime.now(), {}, ()).render((), False, None, 100)
    answers = _Answers()
    try:
        _serve_all(answers)
    except MemoryError:
        answers.show()
        os._exit(NO_MEMORY)


def _serve_all(answers: _Answers) -> None:
    _confine(int(sys.argv[1]), answers)
    answers.add(GREETING, FAULT)
    answers.write()
    template: Template | None = None
    for request in _requests():
        signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
        if isinstance(request, dict):
            template = None  # frees the last one first
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            now = datetime.datetime.fromisoformat(request["now"])
            try:
                template = Template(request["source"], now, request["tokens"], request["ends"], request["control"])
                answers.add("")
            except Fault as fault:
                answers.add(_line(fault), FAULT)
            answers.write()
        else:
            assert template is not None
            _serve(template, request, answers)
        del request
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _serve(template: Template, chats: list[tuple[bytes, float, int]], answers: _Answers) -> None:
    left = BATCH
    for chat, seconds, length in chats:
        if left < 0:
            answers.add("", LATER)
            break
        answers.begin()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        messages, tools, generation_prompt = marshal.loads(chat)
        try:
            if generation_prompt is None:
                text, cuts, origins = template.split(messages, tools, length)
            else:
                text, cuts, origins = template.render(messages, generation_prompt, tools, length)
            left -= answers.add(text, len(cuts) | len(origins) << 32, [*cuts, *origins])
        except Fault as fault:
            left -= answers.add(_line(fault), FAULT)
    answers.write()


def _line(fault: Fault) -> str:
    return " ".join(str(fault)[:4000].split())[:1000]


def _requests() -> Iterator[Any]:
    """Requests until the parent closes the pipe, or ends."""
    stdin = sys.stdin.buffer
    while True:
        head = stdin.read(8)
        if len(head) < 8:
            return
        body = stdin.read(struct.unpack("<Q", head)[0])
        yield marshal.loads(body)


class _Answers:
    """Answers on their way. They are written when there are enough of them, at the end of a request, and before a chat
    that takes long or ends the process. `show` may be called between any two instructions of the other methods."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._hidden = False  # a chat is rendered, and the parent does not know yet that it is this one

    def begin(self) -> None:
        """A chat of a request begins."""
        self._hidden = True

    def add(self, text: str, kind: int = 0, numbers: Sequence[int] = ()) -> int:
        """An answer; the bytes of its text."""
        body = text.encode("utf-8", "surrogatepass")
        frame = struct.pack(f"<QQ{len(numbers)}Q", 8 + 8 * len(numbers) + len(body), kind, *numbers) + body
        self._hidden = False
        self._held += frame
        if len(self._held) >= _WRITE:
            self.write()
        return len(body)

    def write(self) -> None:
        """Send what is held."""
        left, self._held = memoryview(self._held), bytearray()
        while left:
            left = left[os.write(1, left) :]

    def show(self) -> None:
        """Send what is held, and that the chat which is rendered is next."""
        if self._hidden:
            self._hidden = False
            self.add("", HERE)
            self.write()


def _confine(memory: int, answers: _Answers) -> None:
    """Set the limits of this process, for good, and end it when its parent is gone.

    The CPU clock of a chat is ITIMER_PROF: the kernel ends the process, whatever it computes. Elsewhere than on Linux
    the address space cannot be bounded; there what is resident is looked at between two instructions of Python.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    held = _address_space()
    limits = {"CORE": 0, "FSIZE": 0, "NPROC": 0, "NOFILE": 3}
    most = 0
    if held is None:
        most = _resident_peak() + memory
    else:
        limits["AS"] = held + memory
    parent = os.getppid()

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)
        answers.show()
        if most and _resident_peak() > most:
            os._exit(NO_MEMORY)

    signal.signal(signal.SIGALRM, look)
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):  # a system that does not know this limit
            resource.setrlimit(which, (value, value))


def _address_space() -> int | None:
    """Bytes of addresses that this process holds; None where the system does not tell."""
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
    except BrokenPipeError:  # the parent is gone
        os._exit(0)
