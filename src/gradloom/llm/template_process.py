"""The process in which chat templates are rendered (template_worker.py), seen from here.

One process serves all templates of this process, one template at a time; it is started when a template is made and
ends when the last ChatTemplate is gone. Nothing that it answers is trusted: frames have a length limit, answers a
shape. Whatever goes wrong with it (its death, its silence, a limit) is the fault of the chat that it was at; the next
chat is served by a fresh process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import marshal
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import BackendError
from .template_worker import FAULT, GREETING, HERE, LATER, NO_MEMORY

_SCRIPT = Path(__file__).with_name("template_worker.py")
# What the interpreter needs of the environment to start, and strftime to answer as here; nothing else is handed on.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
_REQUEST = 48 << 10  # bytes of chats that go into one request, where it is more than one; a pipe holds 64 KiB
_READ = 1 << 18
_HEAD = struct.Struct("<QQ")  # of a frame: its bytes behind the first number, and how many cuts and origins it has


@dataclass(frozen=True)
class Limits:
    """What a template may take."""

    seconds: float = 5.0  # of processor time, for a chat or for compiling the template
    seconds_per_message: float = 0.25e-3  # more of them, for each message of each assistant's turn that is looked for
    most_seconds: float = 60.0  # for a chat of any length
    silence: float = 12.0  # times the seconds: how long an answer may take by the clock
    start: float = 60.0  # seconds until the process greets
    memory: int = 1 << 30  # bytes
    length: int = 10_000_000  # characters of one rendering, beyond the bytes of the chat


LIMITS = Limits()


@dataclass(frozen=True)
class Source:
    """A template as the process gets it; see template_worker.Template."""

    source: str
    now: str
    tokens: dict[str, str]
    ends: tuple[str, ...]
    control: tuple[str, ...]


@dataclass(frozen=True)
class Chat:
    """A chat to render: `data` is (messages, tools, generation_prompt), marshalled."""

    data: bytes
    renderings: int  # messages of all assistant's turns that are looked for


@dataclass(frozen=True)
class TemplateFailure:
    """Why there is no text; begins with "chat template"."""

    text: str
    lost: bool = False  # the chat has ended the process, by a limit or otherwise


Answer = tuple[str, list[int], list[int]] | TemplateFailure  # text, cuts and origins; see template_worker


class _LostError(Exception):
    """The process cannot be used any more, and why."""

    def __init__(self, why: str, no_memory: bool = False) -> None:
        super().__init__(why)
        self.no_memory = no_memory
        self.here = False  # the next chat is at fault, not one of those after it


class _Child:
    """The process that runs, if any."""

    process: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        """Kill it, with whatever it has started, and wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()
        process.wait()

    def forget(self) -> None:
        """In a forked process: the process belongs to another one, which must be able to close its pipe."""
        process, self.process = self.process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # else Popen would wait for it


class Renderer:
    """Renders chats in a process of its own. Threads take turns, a request at a time."""

    def __init__(self) -> None:
        self._child = _Child()
        self._lock = threading.RLock()
        self._loaded: Source | None = None  # what the process has compiled
        self._used = False  # it has done more than to compile this template
        weakref.finalize(self, self._child.end)

    def __reduce__(self) -> tuple[Any, ...]:
        return renderer, ()  # a copy is that of the process in which it is made

    def load(self, source: Source) -> TemplateFailure | None:
        """Compile a template; TemplateFailure when it is malformed. BackendError when no process can be started."""
        with self._exclusive():
            return self._load(source)

    def render(
        self, source: Source, chats: Sequence[Chat], meanwhile: Callable[[], object] = lambda: None
    ) -> list[Answer]:
        """(text, cuts, origins) of the first of these chats, of one at least; see template_worker. BackendError as
        load.

        meanwhile is called while the process computes.
        """
        with self._exclusive():
            return self._render(source, chats, meanwhile)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise BackendError(
                "a chat template is used by a signal handler that interrupts the rendering of a chat; need a handler"
                " that leaves it to the program"
            )
        with self._lock:
            try:
                yield
            except BaseException:  # Ctrl-C: answers are on their way that nobody would read
                self._child.end()
                raise

    def _load(self, source: Source) -> TemplateFailure | None:
        process = self._child.process
        if process is None or process.poll() is not None:
            self._child.end()
            self._start()
        if self._loaded is source:
            return None
        used = self._used = self._used or self._loaded is not None
        self._loaded = None
        request = {**vars(source), "seconds": LIMITS.seconds}
        try:
            (answer,) = self._answers(marshal.dumps(request), [(LIMITS.seconds, 1 << 20)])
        except _LostError as lost:
            self._child.end()
            if lost.no_memory and used:  # was it this template's need, or what others have left behind?
                return self._load(source)
            return TemplateFailure(f"chat template cannot be compiled: {lost}", lost=True)
        if isinstance(answer, TemplateFailure):
            return answer
        self._loaded = source
        return None

    def _render(self, source: Source, chats: Sequence[Chat], meanwhile: Callable[[], object]) -> list[Answer]:
        fault = self._load(source)
        if fault is not None:
            return [fault]
        request: list[tuple[bytes, float, int]] = []
        rules: list[tuple[float, int]] = []
        size = 0
        for chat in chats:
            size += len(chat.data)
            if rules and size > _REQUEST:
                break
            seconds = min(LIMITS.seconds + LIMITS.seconds_per_message * chat.renderings, LIMITS.most_seconds)
            length = LIMITS.length + len(chat.data)
            request.append((chat.data, seconds, length))
            rules.append((seconds, 12 * length + (1 << 22)))  # of a character 4 bytes, and 8 as an origin; and cuts
        answers: list[Answer] = []
        used, self._used = self._used, True
        try:
            for answer in self._answers(marshal.dumps(request), rules, meanwhile):
                if answer is None and answers:
                    break
                if answer is None:
                    raise _LostError("fails: its process does not answer")
                answers.append(answer)
        except _LostError as lost:
            self._child.end()
            if lost.no_memory and (answers or used):  # as above
                return answers or self._render(source, chats[:1], lambda: None)
            if lost.here or len(rules) - len(answers) == 1:
                answers.append(TemplateFailure(f"chat template {lost}", lost=True))
                return answers
            for chat in chats[len(answers) : len(rules)]:  # which of them is at fault?
                answers += self._render(source, [chat], lambda: None)
                if isinstance(answers[-1], TemplateFailure) and answers[-1].lost:
                    break
        return answers

    # -- the pipes -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not sys.executable:
            raise BackendError(
                "chat templates are rendered by a Python process of their own, and sys.executable is empty; need the"
                " path of a Python interpreter there"
            )
        folders = [_folder(name) for name in ("jinja2", "markupsafe")]
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_SCRIPT), str(LIMITS.memory), *folders]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._loaded, self._used = None, False
        try:
            process = self._child.process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=nothing, cwd="/", env=environment,
                start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
            (answer,) = self._answers(b"", [(LIMITS.start / LIMITS.silence, 1000)])
            why = "" if answer == TemplateFailure(GREETING) else "it answers otherwise than it should"
        except OSError as error:
            why = error.strerror or str(error)
        except _LostError as lost:
            why = f"it {lost}"
        if why:
            self._child.end()
            raise BackendError(
                f"chat templates are rendered by a Python process of their own, which {sys.executable}"
                f" (sys.executable) does not start: {why}; need the path of a Python interpreter there"
            )

    def _answers(
        self, request: bytes, rules: Sequence[tuple[float, int]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[Answer | None]:
        """Send a request; the answers to it, one for each rule: (seconds of processor time, bytes at most). None is
        the last where the process answers no more of it.

        Raises _LostError when an answer does not come, or cannot be one.
        """
        process = self._child.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        out, into = process.stdin.fileno(), process.stdout.fileno()
        left = memoryview(struct.pack("<Q", len(request)) + request if request else b"")
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # what is left, and why, comes out below
            left = left[os.write(out, left[:_READ]) :]
        meanwhile()
        got, at = bytearray(), 0  # bytes that have come, and how many of them are decoded
        here = False
        with selectors.DefaultSelector() as selector:
            selector.register(into, selectors.EVENT_READ)
            if left:
                selector.register(out, selectors.EVENT_WRITE)
            try:
                for seconds, most in rules:
                    until = time.monotonic() + seconds * LIMITS.silence
                    while (stop := _end(got, at, most)) is None or isinstance(answer := _decoded(got, at, stop), int):
                        if stop is not None:
                            if here:
                                raise _not_trusted("answers with what is no text")
                            at, here = stop, True
                            continue
                        del got[:at]
                        at = 0
                        ready = selector.select(max(0.0, until - time.monotonic())) or selector.select(0)
                        if not ready:
                            silence = f"{round(seconds * LIMITS.silence, 1):g} s"
                            raise _LostError(f"does not come to an end: its process is silent for {silence}")
                        for key, _ in ready:
                            if key.fd == into:
                                data = os.read(into, _READ)
                                if not data:
                                    raise _ended(process, seconds)
                                got += data
                                continue
                            try:
                                left = left[os.write(out, left[:_READ]) :]
                            except BrokenPipeError:  # what became of it is seen when it is read from
                                left = left[:0]
                            if not left:
                                selector.unregister(out)
                    at, here = stop, False
                    yield answer
            except _LostError as lost:
                lost.here = lost.here or here
                raise


def _end(got: bytearray, at: int, most: int) -> int | None:
    """Where the frame ends that begins at a place; None as long as not all of it is there. _LostError when it cannot
    be as long as it says."""
    if len(got) < at + 8:
        return None
    size = 8 + int.from_bytes(got[at : at + 8], "little")
    if size > most:
        raise _not_trusted(f"answers with {size} bytes, {most} at most are possible")
    return at + size if len(got) >= at + size else None


def _decoded(got: bytearray, at: int, stop: int) -> Answer | int | None:
    """The answer in a frame; None for LATER, and HERE as it is. _LostError when it is none of these."""
    try:
        size, kind = _HEAD.unpack_from(got, at)
        if size == 8 and kind in (LATER, HERE):
            return HERE if kind == HERE else None
        count, marked = (0, 0) if kind == FAULT else (kind & 0xFFFFFFFF, kind >> 32)
        numbers = struct.unpack_from(f"<{count + marked}Q", got, at + 16)
        text = str(got[at + 16 + 8 * len(numbers) : stop], "utf-8", "surrogatepass")
    except (ValueError, struct.error):  # struct.error: more numbers than there are bytes
        raise _not_trusted("answers with what is no text") from None
    if kind == FAULT:
        return TemplateFailure(text)
    cuts, origins = [*numbers[:count]], [*numbers[count:]]
    bounds = [0, *cuts, len(text)]
    if len(cuts) % 2 or sorted(bounds) != bounds:
        raise _not_trusted("answers with cuts that are not in the text")
    if sorted({*origins}) != origins or (origins and origins[-1] >= len(text)):
        raise _not_trusted("answers with origins that are not in the text")
    return text, cuts, origins


def _not_trusted(what: str) -> _LostError:
    """What the process sends is no answer to the chat that is next."""
    lost = _LostError(f"fails: its process {what}")
    lost.here = True
    return lost


def _ended(process: subprocess.Popen[bytes], seconds: float) -> _LostError:
    """Why the process has closed its end of the pipe."""
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return _LostError("fails: its process closes the pipe")
    if code == -signal.SIGPROF:
        return _LostError(f"does not come to an end: it takes more than {round(seconds, 1):g} s of processor time")
    if code == NO_MEMORY:
        return _LostError(f"does not come to an end: it takes more than {LIMITS.memory >> 20} MiB of memory", True)
    if code < 0:
        return _LostError(f"fails: its process is ended by {signal.Signals(-code).name}")
    return _LostError(f"fails: its process ends with exit code {code}")


def _folder(module: str) -> str:
    """Where a package lies that the process needs: it sees none of the folders that are looked through here."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise BackendError(f"chat templates need the package {module}, which is not installed")
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))


def _plain(value: Any) -> Any:
    """What JSON has in place of a value that is none of its own."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)


_TEXT = {str}


def chat_of(messages: Any, tools: Any, generation_prompt: bool | None, renderings: int) -> Chat:
    """A chat whose messages and tools are as JSON has them: texts, numbers, lists, dicts. Raises TypeError, ValueError
    and RecursionError for what JSON has not, as json.dumps does."""
    if tools is not None or not all(
        type(message) is dict and {*map(type, message), *map(type, message.values())} == _TEXT for message in messages
    ):
        messages, tools = json.loads(_encoder.encode((messages, tools)))
    return Chat(marshal.dumps((messages, tools, generation_prompt)), renderings)


# -- one for each process ----------------------------------------------------------------------------------------------

_making = threading.Lock()
_made: list[weakref.ref[Renderer]] = []


def renderer() -> Renderer:
    """The one of this process. Its process ends when nobody holds it any more."""
    with _making:
        made = _made[0]() if _made else None
        if made is None:
            made = Renderer()
            _made[:] = [weakref.ref(made)]
        return made


def _after_fork() -> None:
    """A forked process starts a process of its own when it needs one; a thread that it does not have held the lock."""
    global _making
    _making = threading.Lock()
    made = _made[0]() if _made else None
    if made is not None:
        made._lock = threading.RLock()
        made._child.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
