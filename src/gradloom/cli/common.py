"""Shared by the commands: checks of options, lines on stderr, the JSON line, signals, streams."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

from ..base import interrupts
from ..base.errors import GradloomError, NonFiniteError, SettingError, one_line
from ..base.exit_codes import Exit, of_signal
from ..base.finetune_options import FinetuneOutput, PlacingOptions
from ..base.messages import log
from ..base.reasons import reason_of, remedy_of
from ..base.terminal import shown_on, to_stderr
from ..base.training_options import DeviceOptions, MemoryOptions, RankOptions
from .parser import Option
from .setting import flag_of
from .unbuffered import whole_writes

if TYPE_CHECKING:
    from ..base.json_documents import Document
    from ..parallel.communicator import Communicator

Parallel = Annotated[str | None, flag_of(RankOptions, "parallel")]
Exchange = Annotated[str | None, flag_of(RankOptions, "exchange")]
# Options of many commands
Threads = Annotated[int | None, flag_of(DeviceOptions, "threads")]
Precision = Annotated[str | None, flag_of(DeviceOptions, "precision")]
Device = Annotated[str | None, flag_of(DeviceOptions, "device")]
GpuLayers = Annotated[str | None, flag_of(PlacingOptions, "gpu_layers")]
GpuMemory = Annotated[str | None, flag_of(PlacingOptions, "gpu_memory")]
MemoryLimit = Annotated[str | None, flag_of(MemoryOptions, "memory")]
Json = Annotated[bool, flag_of(FinetuneOutput, "json")]
Quiet = Annotated[bool, Option("--quiet", help="No progress and no report on stderr: warnings and errors alone.")]
OF_PYTHON = {"tensors": "targets", "train_on_all": "loss_on"}  # settings that have other names in Python
_quiet = False  # this process prints nothing: its rank is not 0
_reports = True  # progress and reports are shown: there is no --quiet
_ranks: Communicator | None = None
_words: list[str] = []  # the command, without the program's name


def remember(words: Sequence[str]) -> None:
    """This process runs this command."""
    _words[:] = words
    show_reports(True)


def show_reports(shown: bool) -> None:
    """Whether this command shows progress, reports and messages below a warning."""
    global _reports
    _reports = shown
    log.setLevel(logging.INFO if shown else logging.WARNING)


def shows_reports() -> bool:
    """This process shows progress and reports: it is rank 0 of a command without --quiet."""
    return _reports and not _quiet


def command_line() -> list[str]:
    """The command that this process runs, without the program's name."""
    return list(_words)


def join(parallel: str | None, exchange: str | None) -> Communicator | None:
    """The communicator of this process with --parallel mpi: then rank 0 alone prints and writes files.

    Without it, when mpiexec started several processes, the first one warns that each works alone."""
    global _quiet, _ranks
    need_one_of("parallel", parallel, ("mpi",))
    need_one_of("exchange", exchange, ("ordered", "fast"))
    if parallel is None:
        if exchange is not None:
            raise SettingError("{exchange} requires {parallel}", exchange=exchange, parallel="mpi")
        _hint_at_parallel()
        return None
    from ..parallel.join import communicator

    ranks = communicator(parallel)
    atexit.register(ignore_signals)  # before the wait for the other ranks, which a second signal shall not end
    _quiet, _ranks = not ranks.is_root, ranks
    return ranks


def _hint_at_parallel() -> None:
    from ..parallel.communicator import launched, launched_first

    if launched() > 1 and launched_first():
        each = "each does the whole work and writes to the same place"
        warn(f"mpiexec started {launched()} processes, and {each}; --parallel mpi splits each batch over them")


def is_quiet() -> bool:
    """Whether this process is not rank 0, which prints for all."""
    return _quiet


def print_last(line: str) -> None:
    """Print the reason why this process ends on stderr. Another rank than 0 sends it to the waiting ranks instead: if
    all end for one reason, rank 0 prints it."""
    if not _quiet:
        to_stderr(line)
    elif _ranks is not None:
        _ranks.last_word = line.removeprefix("gradloom: ")


def print_report(text: str) -> None:
    """A report on stderr: a line, or several."""
    if _reports:
        warn(text)


def warn(text: str) -> None:
    """A warning on stderr, which --quiet leaves: a line, or several."""
    if not _quiet:
        to_stderr(text)


def to_paste(words: Sequence[str]) -> str:
    """A command in one line, as a shell takes it: what cannot be printed is written as $'...' (bash, zsh, POSIX of
    2024). On Windows, in the quotes of its programs."""
    if sys.platform == "win32":
        from subprocess import list2cmdline

        return list2cmdline(words)
    return " ".join(shlex.quote(word) if word.isprintable() else _as_escapes(word) for word in words)


def _as_escapes(word: str) -> str:
    plain = {"\\": "\\\\", "'": "\\'"}
    parts = [
        plain.get(c) or (c if c.isprintable() else "".join(f"\\{byte:03o}" for byte in os.fsencode(c))) for c in word
    ]
    return f"$'{''.join(parts)}'"


def llama_server(model: str, adapter: str | None = None) -> str:
    """llama.cpp's command that serves a model, with an adapter, in one line.

    It reads the value of --lora as a row of CSV; versions before 2026 have no quotes there.
    """
    words = ["llama-server", "-m", model]
    if adapter is None:
        return to_paste(words)
    if "," not in adapter and not adapter.startswith('"'):
        return to_paste([*words, "--lora", adapter])
    quoted = '"' + adapter.replace('"', '""') + '"'
    if sys.platform == "win32":  # without comments in a command
        return to_paste([*words, "--lora", quoted])
    note = "a comma or quote in the path of an adapter: needs llama.cpp of February 2026 or newer"
    return f"{to_paste([*words, '--lora', quoted])}  # {note}"


def resume_line(command: str, places: Sequence[str], ranks: Communicator | None, exchange: str | None) -> str:
    """The command line that resumes this run, from any folder; places: options that name its files and folders."""
    words = ["gradloom", command, *places, "--resume"]
    if ranks is not None:
        words = ["mpiexec", "-n", str(ranks.size), *words, "--parallel", "mpi"]
    return to_paste(words + (["--exchange", exchange] if exchange is not None else []))


def need_whole(name: str, value: int | None, least: int = 1) -> None:
    """SettingError unless the option was not given or is at least `least` and below 2**63."""
    if value is not None and not least <= value < 1 << 63:
        limit = "" if value < least else ", below 2**63"
        raise SettingError(setting=name, seen=value, need=f"a whole number of at least {least}{limit}")


def need_place(name: str, value: str | None) -> None:
    """SettingError for the empty name of a file or folder: it does not mean the default."""
    if value == "":
        raise SettingError(setting=name, seen="", need="the name of a file or folder")


def need_one_of(name: str, value: str | None, known: tuple[str, ...]) -> None:
    """SettingError unless the option was not given or is one of the known words."""
    if value is not None and value not in known:
        raise SettingError(setting=name, seen=value, need=" or ".join(known))


def with_value(flag: str, value: Any) -> str:
    """An option as the command line writes it: "--lr 3", or "--json" for a boolean."""
    if isinstance(value, bool):
        return flag
    values = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
    words = [one if isinstance(one, str) else f"{one:g}" if isinstance(one, float) else one_line(one) for one in values]
    return f"{flag} {' '.join(words):.80}".rstrip()


_UNDEFINED = ("_unc", "roc_auc", "r2")  # ends of names of numbers that some rows do not define


def json_text(document: Document, values: Mapping[str, Any], strict: bool = True) -> str:
    """A JSON document in one line of strict JSON. A byte of a file's name that is no UTF-8, and what ends a line
    elsewhere than in JSON, become escapes. A number that is not defined (NaN of an uncertainty, of ROC AUC or R2) is
    left out. Any other number that is not finite is a NonFiniteError that names it; with strict=False it becomes null.
    """
    import json
    import re

    text = json.dumps(_plain(document.named(values), "", strict), ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any, name: str, strict: bool) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if strict:
            raise NonFiniteError(f"{name} is {value}; --json has finite numbers only")
        return None
    if isinstance(value, dict):
        return {k: _plain(v, str(k), strict) for k, v in value.items() if not _is_undefined(k, v)}
    if isinstance(value, (list, tuple)):
        return [_plain(v, name, strict) for v in value]
    return value


def _is_undefined(name: Any, value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value) and str(name).endswith(_UNDEFINED)


def saved_weights(loop: Any, epochs: int) -> str:
    """Of which epoch the weights are that a Loop leaves; epochs: how many are whole."""
    epoch = loop.kept.epoch
    if epoch > epochs:
        return f"of epoch {epoch}, as far as it came"
    return f"of epoch {epoch} of {epochs}" + ", the best" * (loop.restored is not None)


def columns(lines: list[tuple[str, str]], file: Any = None) -> None:
    """Names and texts in two columns, on stdout by default."""
    if _quiet or (file is sys.stderr and not _reports):
        return
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        print(f"{name:<{width}}  {text}".rstrip(), file=file or sys.stdout, flush=True)


@contextlib.contextmanager
def json_when_stopped(as_json: bool, document: Document, **known: Any) -> Iterator[None]:
    """Print `known` as the JSON object, with 0 steps, if a signal stops the block before the training."""
    try:
        yield
    except KeyboardInterrupt:
        if as_json and not _quiet:
            print(json_text(document, {**known, "steps": 0, "interrupted": True}))
        raise


# ---- signals, and streams that cannot be written ---------------------------------------------------------------------

_late: list[KeyboardInterrupt] = []  # the signal that came while files were written
_handler = interrupts.Raising()


def exit_code(stop: BaseException | None) -> Exit:
    """Of a command that was stopped by a signal. The parser makes another exception of it."""
    return of_signal(stop if isinstance(stop, KeyboardInterrupt) else _handler.last)


def interrupt_instead(error: Exception) -> KeyboardInterrupt | None:
    """What a signal raises that waits for the end of an import, or raised where C code made this ImportError of it."""
    return _handler.take() or (interrupts.last_interrupt if isinstance(error, ImportError) else None)


def raise_lost_signal() -> None:
    """Before long work: raises what a signal raised that was lost, as in an import or a destructor."""
    if _handler.last is not None:
        raise _handler.last


def stdout_exit_code(code: int) -> int:
    """The exit code of a command whose stdout is closed or full, or that of the signal."""
    return code if interrupts.last_interrupt is None else exit_code(interrupts.last_interrupt)


def late_exit_code(code: int) -> int:
    """The code of a command that was done, or that of the signal that came while it wrote its files, or at its end."""
    stop = _handler.take() or next(iter(_late), None)
    return exit_code(stop) if stop is not None and code == Exit.DONE else code


@contextlib.contextmanager
def signals(lasting: bool) -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C inside. Signals that the process was started to ignore (nohup, background)
    stay ignored.

    lasting: it stays so, for a process that ends after this.
    """
    global _handler
    _late.clear()
    interrupts.last_interrupt = None
    _handler = interrupts.Raising()
    old: interrupts.Handlers = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere no signal arrives
        for number in interrupts.SIGNALS:
            if interrupts.has_default(number):
                old[number] = signal.signal(number, _handler)
    try:
        with _handler.sending_lost_again():
            yield
    finally:
        if not lasting:
            interrupts.restore(old)


def ignore_signals() -> None:
    """Ignore the signals that end a run: this process has written its files, or rank 0 is writing them."""
    for number in interrupts.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def uninterrupted() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Defer Ctrl-C, SIGTERM and SIGHUP while files are written inside; `main` then ends with their exit code.

    The block gets a function, `interruptible`: inside `with interruptible():` signals interrupt as they do outside. No
    signal arrives between its end and the writing that follows.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal arrives here
        yield contextlib.nullcontext
        return

    def note(number: int, frame: FrameType | None) -> None:
        _late.append(interrupts.interrupt(number))

    @contextlib.contextmanager
    def interruptible() -> Iterator[None]:
        interrupts.restore(old)
        try:
            yield
        finally:
            for number in old:
                signal.signal(number, note)

    old = interrupts.replace(note)
    try:
        yield interruptible
    finally:
        interrupts.restore(old)


def with_more(error: Exception, more: str) -> Exception:
    """The error with `more` added to its line; an internal error itself, with `more` on a line of its own."""
    if isinstance(error, MemoryError):  # also NumPy's, which is made of other arguments
        return MemoryError(f"{error}; {more}")
    if isinstance(error, GradloomError):
        return error.extended(after=f"; {more}")
    warn(more)
    return error


class StdoutError(Exception):
    """Stdout is closed or full: the results cannot be printed."""


class _Stdout:
    """sys.stdout, whose failures have a type of their own; a reader that went away is a BrokenPipeError as ever.

    On a terminal control characters are written as escapes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failing():
            return int(self._stream.write(shown_on(self._stream, text)))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            remedy = remedy_of(error, "need a file or a reader that takes it")
            raise StdoutError(f"stdout: cannot be written: {reason_of(error)}{remedy}") from None


class _Stderr:
    """sys.stderr, which may be closed or full: then progress is dropped, and the work continues.

    On a terminal control characters are written as escapes; `controls` is the same stream without that."""

    def __init__(self, stream: Any, escapes: bool = True) -> None:
        self._stream, self._escapes = stream, escapes

    @property
    def controls(self) -> _Stderr:
        return _Stderr(self._stream, escapes=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(shown_on(self._stream, text) if self._escapes else text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """Inside, stdout and stderr are there, also where the process was started without them.

    A number below 3 that is not open gets /dev/null first: else a file that is written would have it, and texts for
    stdout would go into that file. Stdout then fails as a closed one does.
    """
    old = sys.stdout, sys.stderr
    for number in range(3):
        if not _is_open(number):
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # gets the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    with whole_writes(sys.stdout) as stdout:
        sys.stdout, sys.stderr = cast(TextIO, _Stdout(stdout)), cast(TextIO, _Stderr(sys.stderr))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = old
            for stream in filter(None, old):
                _flush(stream)


def _flush(stream: TextIO) -> None:
    """Write the buffer, to /dev/null if need be: Python's own flush at exit would fail, with exit code 120."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
