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

if not __package__:  # run as a script: this folder is the package, without importing its __init__.py
    __package__ = "templates"
    sys.modules[__package__] = types.ModuleType(__package__)
    sys.modules[__package__].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from .template_rendering import Fault, Template

GREETING = "gradloom renders templates"
NO_MEMORY = 3
BATCH = 16 << 20
_CHECK_SECONDS = 0.1  # between checks of the parent and of the memory while a request is served


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
