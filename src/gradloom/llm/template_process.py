"""Client of the process that renders chat templates (template_worker.py).

One process renders all templates of this process, one request at a time. It starts with the first template and ends
with the last ChatTemplate. Its answers are not trusted: lines have a length limit and a fixed form. If it exits, stays
silent or exceeds a limit, the chat that it was rendering is at fault, and a new process renders the next chat.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import BackendError
from ..base.extras import missing
from ..base.locks import Lock
from .template_worker import GREETING, NO_MEMORY

_SCRIPT = Path(__file__).with_name("template_worker.py")
# The environment of the process: variables that the interpreter requires to start, and the locale for strftime
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
_REQUEST = 48 << 10  # bytes of a request of more than one chat; a pipe holds 64 KiB
_READ = 1 << 18
# An answer after its text: nothing for a fault, else cuts and origins
_REST = re.compile(r"(?:,\[([0-9,]{0,8388608})\],\[([0-9,]*)\])?\]")


@dataclass(frozen=True)
class Limits:
    """Limits of a template."""

    seconds: float = 5.0  # processor time for one chat, or for compiling the template
    seconds_per_message: float = 0.25e-3  # added for each message of each assistant's turn that is located
    most_seconds: float = 60.0  # for a chat of any length
    silence: float = 12.0  # elapsed time for an answer, as a multiple of the processor time
    start: float = 60.0  # elapsed seconds until the process has started
    memory: int = 1 << 30  # bytes
    length: int = 10_000_000  # characters of one rendering, in addition to the bytes of the chat


LIMITS = Limits()


Source = Mapping[str, Any]  # arguments of template_rendering.Template


@dataclass(frozen=True)
class Chat:
    """A chat to render: (messages, tools, generation_prompt) as a line of JSON."""

    data: bytes
    renderings: int  # messages of all assistant's turns to be located


class TemplateFailure(Exception):
    """The reason why a template or chat has no text."""

    def __init__(self, text: str, lost: bool = False, no_memory: bool = False) -> None:
        """text: starts with "chat template". lost: the process cannot be used any more. no_memory: by its limit."""
        super().__init__(text)
        self.text, self.lost, self.no_memory = text, lost, no_memory


def _lost(text: str, no_memory: bool = False) -> TemplateFailure:
    return TemplateFailure(f"chat template {text}", True, no_memory)


Answer = tuple[str, list[int], list[int]] | TemplateFailure  # text, cuts and origins; see template_worker


class _Process:
    """A running template_worker.py. Raises BackendError if it cannot be started."""

    def __init__(self) -> None:
        if not sys.executable:
            raise BackendError(
                "chat templates are rendered by a separate Python process, and sys.executable is empty; need the path"
                " of a Python interpreter there"
            )
        folders = [_folder(name) for name in ("jinja2", "markupsafe")]
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_SCRIPT), str(LIMITS.memory), *folders]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self.source: Source | None = None  # of the compiled template
        self.used = False  # memory may be occupied by chats or other templates
        try:
            self.popen = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                cwd="/", env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _not_started(error.strerror or str(error)) from None
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self._pipes = self.popen.stdin, self.popen.stdout
        self.end = weakref.finalize(self, _kill, self.popen, self._pipes)
        os.set_blocking(self._pipes[0].fileno(), False)
        try:
            (answer,) = self.answers(b"", [(LIMITS.start / LIMITS.silence, 1000)])
            if not isinstance(answer, TemplateFailure) or answer.text != GREETING:
                raise _lost("fails: its first answer is not the expected one")
        except TemplateFailure as lost:
            self.end()
            raise _not_started(lost.text.replace("chat template", "it")) from None

    def answers(
        self, request: bytes, limits: Sequence[tuple[float, int]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[Answer | None]:
        """Send a request and yield its answers, one for each limit: (seconds of processor time, maximum bytes). None is
        the last if the rest is not answered. meanwhile: called after the request has been sent.

        Raises TemplateFailure if an answer is missing or malformed.
        """
        send, receive = (pipe.fileno() for pipe in self._pipes)
        left, received, searched = memoryview(request), bytearray(), 0
        try:
            while left:
                _wait(send, select.POLLOUT, limits[0][0] * LIMITS.silence)
                left = left[os.write(send, left[:_READ]) :]
        except BrokenPipeError:
            raise self._ended(limits[0][0]) from None
        meanwhile()
        for seconds, most in limits:
            until = time.monotonic() + seconds * LIMITS.silence
            while (stop := received.find(b"\n", searched)) < 0 and len(received) <= most:
                searched = len(received)
                _wait(receive, select.POLLIN, seconds * LIMITS.silence, until)
                data = os.read(receive, _READ)
                if not data:
                    raise self._ended(seconds)
                received += data
            if not 0 <= stop <= most:
                raise _lost(f"fails: its process answers with more than {most} bytes")
            line = received[:stop]
            del received[: stop + 1]
            searched = 0
            yield _decoded(line)

    def _ended(self, seconds: float) -> TemplateFailure:
        """The reason why the process has closed its pipe."""
        try:
            code = self.popen.wait(1.0)
        except subprocess.TimeoutExpired:
            return _lost("fails: its process closes the pipe")
        if code == -signal.SIGPROF:
            return _lost(f"does not come to an end: it takes more than {round(seconds, 1):g} s of processor time")
        if code == NO_MEMORY:
            return _lost(f"does not come to an end: it takes more than {LIMITS.memory >> 20} MiB of memory", True)
        if code < 0:
            return _lost(f"fails: its process is ended by {signal.Signals(-code).name}")
        return _lost(f"fails: its process ends with exit code {code}")

    def abandon(self) -> None:
        """Close the pipes in a forked process: the process belongs to the parent, which must be able to end it."""
        self.end.detach()
        for pipe in self._pipes:
            pipe.close()
        self.popen.returncode = 0  # otherwise Popen waits for it


class Renderer:
    """Renders chats in a separate process. Thread-safe: requests are serialised."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return renderer, ()  # a copy is the renderer of the process that unpickles it

    def load(self, source: Source) -> TemplateFailure | None:
        """Compile a template; TemplateFailure if it is malformed. Raises BackendError if no process can be started."""
        with self._exclusive():
            return self._load(source)[1]

    def render(
        self, source: Source, chats: Sequence[Chat], meanwhile: Callable[[], object] = lambda: None
    ) -> list[Answer]:
        """Answers for the first of these chats, at least one; see template_worker. meanwhile: called while the process
        computes. Raises BackendError as `load`."""
        with self._exclusive():
            return self._render(source, chats, meanwhile)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise BackendError(
                "a chat template is used by a signal handler that interrupts the rendering of a chat; use it outside of"
                " the handler"
            )
        with self._lock:
            try:
                yield
            except BaseException:  # Ctrl-C: nobody reads the remaining answers
                self._end()
                raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()

    def _load(self, source: Source) -> tuple[_Process, TemplateFailure | None]:
        """The process, which has compiled the template unless there is a failure."""
        process = self._process
        if process is None or process.popen.poll() is not None:
            self._end()
            process = self._process = _Process()
        if process.source is source:
            return process, None
        process.used = process.used or process.source is not None
        process.source = None
        request = _line({**source, "seconds": LIMITS.seconds})
        try:
            (answer,) = process.answers(request, [(LIMITS.seconds, 1 << 20)])
        except TemplateFailure as lost:
            process.end()
            if lost.no_memory and process.used:  # the memory may have been occupied by others
                return self._load(source)
            text = lost.text.replace("chat template", "chat template cannot be compiled: it", 1)
            return process, TemplateFailure(text, lost=True)
        if isinstance(answer, TemplateFailure):
            return process, answer
        process.source = source
        return process, None

    def _render(self, source: Source, chats: Sequence[Chat], meanwhile: Callable[[], object]) -> list[Answer]:
        process, failure = self._load(source)
        if failure is not None:
            return [failure]
        limits: list[tuple[float, int]] = []
        size = 0
        for chat in chats:
            size += len(chat.data)
            if limits and size > _REQUEST:
                break
            seconds = min(LIMITS.seconds + LIMITS.seconds_per_message * chat.renderings, LIMITS.most_seconds)
            limits.append((seconds, LIMITS.length + len(chat.data)))
        request = b"".join([_line(limits), *(chat.data for chat in chats[: len(limits)])])
        # up to 6 bytes of JSON per character, origins of 9 bytes, and cuts
        most = [(seconds, 12 * length + (1 << 22)) for seconds, length in limits]
        answers: list[Answer] = []
        used, process.used = process.used, True
        try:
            for answer in process.answers(request, most, meanwhile):
                if answer is None and answers:
                    break
                if answer is None:
                    raise _lost("fails: its process does not answer")
                answers.append(answer)
        except TemplateFailure as lost:
            process.end()
            if not lost.no_memory or not (answers or used):
                answers.append(lost)
            elif not answers:  # as in _load
                return self._render(source, chats[:1], lambda: None)
        return answers


# -- lines -------------------------------------------------------------------------------------------------------------


def _wait(pipe: int, event: int, seconds: float, until: float | None = None) -> None:
    """Wait until a pipe is ready, or until a time. Raises TemplateFailure after these seconds."""
    poll = select.poll()
    poll.register(pipe, event)
    milliseconds = 1e3 * (seconds if until is None else max(0.0, until - time.monotonic()))
    if not poll.poll(milliseconds) and not poll.poll(0):  # this process may have been stopped meanwhile
        raise _lost(f"does not come to an end: its process is silent for {round(seconds, 1):g} s")


def _decoded(line: bytearray) -> Answer | None:
    """The answer in a line; None for null. Nothing is decoded that is not in the form of an answer."""
    if line == b"null":
        return None
    try:
        decoded = str(line, "utf-8", "surrogatepass")
        if not decoded.startswith('["'):
            raise ValueError
        text, at = json.JSONDecoder().raw_decode(decoded, 1)
        rest = _REST.fullmatch(decoded, at)
        if rest is None:
            raise ValueError
        if rest[1] is None:
            return TemplateFailure(text)
        cuts, origins = _places(rest[1], 0, len(text) + 1), _places(rest[2], 1, len(text))
    except ValueError:
        raise _lost("fails: its process answers with something other than a text") from None
    if cuts is None or len(cuts) % 2:
        raise _lost("fails: its process answers with cuts that are not in the text")
    if origins is None:
        raise _lost("fails: its process answers with origins that are not in the text")
    return text, cuts, origins


def _places(numbers: str, step: int, stop: int) -> list[int] | None:
    """The numbers, if each is less than stop and at least step larger than the one before."""
    places: list[int] = []
    least = 0
    for number in re.finditer("[0-9]+", numbers):
        place = int(number[0])
        if not least <= place < stop:
            return None
        places.append(place)
        least = place + step
    return places


def _plain(value: Any) -> Any:
    """The JSON value for a mapping or an array."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)


def _line(value: Any) -> bytes:
    return f"{_encoder.encode(value)}\n".encode("utf-8", "surrogatepass")


def chat_of(messages: Any, tools: Any, generation_prompt: bool | None, renderings: int) -> Chat:
    """A chat of JSON values: texts, numbers, lists, dicts. Raises TypeError, ValueError or RecursionError for other
    values, as json.dumps does."""
    return Chat(_line((messages, tools, generation_prompt)), renderings)


# -- starting and ending -----------------------------------------------------------------------------------------------


def _folder(module: str) -> str:
    """The folder of a package for the process, which does not search sys.path."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise missing("chat templates", "llm")
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))


def _not_started(why: str) -> BackendError:
    return BackendError(
        f"chat templates are rendered by a separate Python process, which {sys.executable} (sys.executable) does not"
        f" start: {why}; need the path of a Python interpreter there"
    )


def _kill(popen: subprocess.Popen[bytes], pipes: Sequence[Any]) -> None:
    """End a process and its children, and wait for it."""
    if popen.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(popen.pid, signal.SIGKILL)
    for pipe in pipes:
        pipe.close()
    popen.wait()


_lock = Lock()
_renderers: list[weakref.ref[Renderer]] = []  # at most one


def renderer() -> Renderer:
    """The renderer of this process. Its process ends with the last reference to it."""
    with _lock:
        found = _renderers[0]() if _renderers else None
        if found is None:
            found = Renderer()
            _renderers[:] = [weakref.ref(found)]
        return found


def _after_fork() -> None:
    """A forked process starts its own process when it needs one. Locks may be held by threads that it does not have."""
    global _lock
    _lock = Lock()
    found = _renderers[0]() if _renderers else None
    if found is not None:
        found._lock = Lock()
        if found._process is not None:
            found._process.abandon()
            found._process = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
