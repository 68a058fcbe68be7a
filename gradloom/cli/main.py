"""gradloom: the command. Start-up stays fast: a command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from .. import __version__
from ..base.errors import GradloomError
from .common import is_quiet
from .doctor import doctor
from .evaluate import evaluate
from .finetune import finetune
from .fit import fit
from .generate import generate
from .info import info
from .merge import merge
from .plan import plan
from .predict import predict
from .verify import verify

app = typer.Typer(
    name="gradloom",
    help="Train models as planned, proved computation graphs on a small native core.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(fit)
app.command()(predict)
app.command()(finetune)
app.command()(generate)
app.command()(evaluate)
app.command()(plan)
app.command()(verify)
app.command()(info)
app.command()(merge)
app.command()(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradloom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train models as planned, proved computation graphs on a small native core."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0 done, 2 bad input (one line on stderr), 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = app(args=given, prog_name="gradloom", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except GradloomError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except typer.Exit as end:
        return int(end.exit_code)
    except BrokenPipeError:  # the reader of our output went away: nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # the parser's own errors (an unknown option, a value of another type) carry a message and a code
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "gradloom"
        text = " ".join(str(message()).split()).rstrip(".")
        return _refuse(f"{text}; see {command} --help", getattr(error, "exit_code", 2))


def _refuse(message: str, code: int = 2) -> int:
    if not is_quiet():
        print(f"gradloom: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
