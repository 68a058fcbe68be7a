"""gradloom: the command. Start-up stays fast: a command imports what it needs when it runs."""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from .. import __version__
from ..base.errors import GradloomError
from ..base.exit_codes import Exit
from ..base.extras import broken_requirement, need_required
from ..base.memory import need_start_memory
from ..base.native import PACKAGE
from ..base.reasons import reason_of, remedy_of
from ..base.settings import core_count
from ..base.terminal import BYTES_AS_THEY_ARE
from ..base.uploads import shown_by
from .common import (
    OF_PYTHON,
    Quiet,
    StdoutError,
    command_line,
    exit_code,
    interrupt_instead,
    late_exit_code,
    print_last,
    remember,
    show_reports,
    signals,
    stdout_exit_code,
    streams,
    warn,
    with_value,
)
from .parser import HELP_FLAGS, Argument, Command, Group, command, declared
from .progress import Uploads

_COMMANDS = (
    "fit", "predict", "finetune", "rerun", "runs", "report", "generate", "chat", "embed", "evaluate", "compare", "plan",
    "verify", "profile", "rebuild", "capsule", "replay", "info", "merge", "quantize", "export", "doctor",
)  # fmt: skip
_LONGEST = 2000  # characters of an error, whose middle is left out: input may be of any length


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"gradloom {__version__}")
        context.exit()


def _stoppable(command: Callable[..., int]) -> Callable[..., int]:
    """A command that names options in its errors, and exits with the code of a signal: the parser would use 130."""
    parameters = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def call(*arguments: Any, **options: Any) -> int:
        need_start_memory(core_count())
        if command.__name__ != "doctor":  # it reports them itself
            need_required()
        try:
            return command(*arguments, **options)
        except GradloomError as error:
            error.name_settings(functools.partial(_named, parameters, options))
            raise
        except KeyboardInterrupt as stop:
            warn("gradloom: interrupted")
            return exit_code(stop)

    return call


def _named(parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any], name: str, seen: Any) -> str | None:
    """A setting of Python as an option of the command with these parameters: "--lr 3"; None if it has none."""
    name = OF_PYTHON.get(name, name)
    if name not in parameters:
        return None
    declaration = declared(parameters[name].annotation)
    flag = next(iter(getattr(declaration, "flags", ())), f"--{name.replace('_', '-')}")
    if isinstance(declaration, Argument):
        flag = name.upper()
    if seen is ...:
        return flag
    return with_value(flag, seen if given.get(name) is None else given[name])


def _with_quiet(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the option --quiet."""

    @functools.wraps(command)
    def call(*arguments: Any, quiet: bool = False, **options: Any) -> int:
        show_reports(not quiet)
        return command(*arguments, **options)

    signature = inspect.signature(command, eval_str=True)  # for the parser
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    call.__annotations__ = {**command.__annotations__, "quiet": Quiet}
    return call


def _load(name: str) -> Command:
    module = import_module(f".{name}", __package__)
    function = getattr(module, name)
    return command(_stoppable(function if name in ("runs", "info", "doctor") else _with_quiet(function)), module.HELP)


_VERSION = click.Option(
    ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
app = Group(
    "gradloom",
    _COMMANDS,
    _load,
    help="Train models as planned, proved computation graphs on a small native core.",
    params=[_VERSION],
    context_settings=HELP_FLAGS,
)


def load_all() -> None:
    """Import all commands."""
    for name in _COMMANDS:
        import_module(f".{name}", __package__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (base/exit_codes.py).

    What only a fault of ours raises, such as a TypeError, shows its traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    remember(given)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files are printed as the bytes that they are
        sys.stdout.reconfigure(errors="surrogateescape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=BYTES_AS_THEY_ARE)
    with streams(), signals(lasting=arguments is None), shown_by(Uploads().show):
        code = late_exit_code(_run(given))
        try:
            sys.stdout.flush()
        except (StdoutError, BrokenPipeError) as error:
            code = code or _stdout_failed(error)
        return code


def _invoke(given: list[str]) -> int:
    """The command's exit code. An error after a signal that is still to be raised, or that a failed import was made of,
    is this interrupt."""
    try:
        with app.make_context("gradloom", given) as parsed:
            return int(app.invoke(parsed))
    except Exception as error:
        stop = interrupt_instead(error)
        if stop is None:
            raise
        raise stop from None


def _run(given: list[str]) -> int:
    try:
        return _invoke(given)
    except GradloomError as error:
        return _refuse(str(error))
    except KeyboardInterrupt as stop:
        warn("gradloom: interrupted")
        return exit_code(stop)
    except click.exceptions.Exit as end:  # of --help and --version
        return end.exit_code
    except click.ClickException as error:  # an unknown option, a value of another type
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "gradloom"
        message = _of_parser(error, context)
        return _refuse(message if message.endswith("--help") else f"{message}; see {path} --help", error.exit_code)
    except (StdoutError, BrokenPipeError) as error:
        return _stdout_failed(error)
    except (ImportError, AttributeError) as error:
        line = str(error).removeprefix("gradloom: ") if error.name == PACKAGE else broken_requirement(error)
        if line is None:
            raise
        return _refuse(line)
    except (MemoryError, RecursionError, OverflowError, UnicodeError, OSError) as error:
        return _refuse(_what_failed(error))
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # while a class was made; Python 3.12 does not wrap it
            warn("gradloom: interrupted")
            return exit_code(error.__cause__)
        if str(error) != "can't start new thread":
            raise
        return _refuse("threads: the system starts no further one; need more memory, or a higher limit (ulimit -u)")


def _of_parser(error: click.ClickException, context: click.Context | None) -> str:
    """The message of an error of the parser, with what to write instead of an unknown option or command."""
    from ..base.habits import command_hint, option_hint

    if isinstance(error, click.NoSuchOption) and context is not None:
        parameters = context.command.params
        flags = [name for one in parameters for name in one.opts if name.startswith("--")]
        arguments = [one.name for one in parameters if isinstance(one, click.Argument)]
        hint = option_hint(error.option_name, flags, arguments, context.command.name or "")
        return f"No such option: {error.option_name}{hint}"
    message = " ".join(error.format_message().split()).rstrip(".")
    if unknown := re.match(r"No such command '(.*?)'", message):
        return f"{unknown[0]}{command_hint(unknown[1])}"
    if re.match(r"Invalid value for .*'-n'", message) and "-ngl" in command_line():
        return f"{message}; use --gpu-layers for -ngl"
    return message


def _stdout_failed(error: StdoutError | BrokenPipeError) -> int:
    """The exit code if stdout is closed or full; one line on stderr unless the pipe was closed."""
    return stdout_exit_code(Exit.FAILED if isinstance(error, BrokenPipeError) else _refuse(str(error)))


def _what_failed(error: Exception) -> str:
    """The message of one of Python's own errors, in the form of our errors."""
    seen = str(error)
    if isinstance(error, MemoryError):
        return f"memory: not enough{f' ({seen})' * bool(seen)}; need smaller data, a smaller model or smaller batches"
    if isinstance(error, RecursionError):
        return f"input: nested too deeply ({seen}); need a flatter one"
    if isinstance(error, OverflowError):
        return f"input: a number is too large ({seen}); need a smaller one"
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_directory():
            return "working directory: does not exist any more; need one that does, or whole paths"
        name = error.filename if isinstance(error.filename, str) else "input or output"
        return f"{name}: {reason_of(error)}{remedy_of(error)}"
    if isinstance(error, UnicodeEncodeError) and error.encoding == "ascii":
        return f"input or output: {seen}; need a locale of UTF-8, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    return f"input or output: a text that cannot be converted ({seen}); need UTF-8: PYTHONUTF8=1"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _refuse(message: str, code: int = Exit.REFUSED) -> int:
    line = " ".join(message.split())
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    print_last(f"gradloom: {line}")
    return code


if __name__ == "__main__":
    sys.exit(main())
