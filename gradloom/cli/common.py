"""What the commands share: checks of options, lines on stderr, the JSON line, saving past a second Ctrl-C."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator

Parallel = Annotated[
    str | None,
    typer.Option(help="mpi: split each batch over the processes that mpiexec started, all on the same data."),
]
Exchange = Annotated[
    str | None,
    typer.Option(help="ordered: the same bits for any number of processes; or fast. [default: ordered]"),
]
_quiet = False  # this process is one that says nothing


def join(parallel: str | None, exchange: str | None) -> Communicator | None:
    """This process among those of mpiexec, where that is asked for: then rank 0 alone says and writes anything."""
    from ..base.errors import SettingError

    global _quiet
    need_one_of("parallel", parallel, ("mpi",))
    need_one_of("exchange", exchange, ("ordered", "fast"))
    if parallel is None:
        if exchange is not None:
            raise SettingError(f"--exchange {exchange}: is how processes exchange gradients; need --parallel mpi")
        return None
    from ..parallel.communicator import communicator

    ranks = communicator(parallel)
    _quiet = not ranks.is_root
    return ranks


def is_quiet() -> bool:
    """This process is not rank 0: what it has to say, rank 0 says."""
    return _quiet


def say(text: str) -> None:
    """A line on stderr."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)


def need_whole(option: str, value: int | None, least: int = 1) -> None:
    """SettingError unless the option was not given or is at least `least` and below 2**63."""
    from ..base.errors import SettingError

    if value is not None and not least <= value < 1 << 63:
        limit = "" if value < least else ", below 2**63"
        raise SettingError(f"--{option} {value}: need a whole number of at least {least}{limit}")


def need_rate(option: str, value: float | None) -> None:
    """SettingError unless the option was not given or is finite and above 0."""
    from ..base.errors import SettingError

    if value is not None and not 0 < value < math.inf:
        raise SettingError(f"--{option} {value:g}: need a finite number above 0")


def need_share(option: str, value: float | None) -> None:
    """SettingError unless the option was not given or lies in [0, 1)."""
    from ..base.errors import SettingError

    if value is not None and not 0 <= value < 1:
        raise SettingError(f"--{option} {value:g}: need a number of at least 0 and below 1")


def need_one_of(option: str, value: str | None, known: tuple[str, ...]) -> None:
    """SettingError unless the option was not given or is one of the known words."""
    from ..base.errors import SettingError

    if value is not None and value not in known:
        raise SettingError(f"--{option} {value}: is not known; need {' or '.join(known)}")


def json_text(result: dict[str, Any]) -> str:
    """One line of strict JSON: what is not a finite number becomes null, a byte of a file's name that is no UTF-8 an
    escape."""
    import json
    import re

    text = json.dumps(_plain(result), ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def columns(lines: list[tuple[str, str]], file: Any = None) -> None:
    """Names and texts in two columns, on stdout by default."""
    if _quiet:
        return
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        print(f"{name:<{width}}  {text}".rstrip(), file=file or sys.stdout, flush=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not stop the saving that the first one asked for."""
    try:
        old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread: no signal arrives here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
