"""Commands of click, declared by the annotations of a function's parameters.

    def merge(model: Annotated[str, Argument(help="A model.")], seed: Annotated[int, Option(help="A seed.")] = 0) -> int

A parameter without a default is required. Its type is str, int, float, bool or list[str], or one of these or None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import click

HELP_FLAGS = {"help_option_names": ["--help", "-h"]}


@dataclass(frozen=True)
class Argument:
    """A positional argument; of type list[str] any number of them."""

    help: str


@dataclass(frozen=True, init=False)
class Option:
    """An option. flags: by default --name, and for a bool --name/--no-name."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None

    def __init__(self, *flags: str, help: str, metavar: str | None = None) -> None:
        for name, value in (("flags", flags), ("help", help), ("metavar", metavar)):
            object.__setattr__(self, name, value)


class Command(click.Command):
    """A command that lists its arguments in its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [one.row() for one in self.get_params(ctx) if isinstance(one, _Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class Group(click.Group):
    """A group of these commands, in this order, each of which is loaded when it is used."""

    def __init__(self, name: str, names: Sequence[str], load: Callable[[str], Command], **settings: Any) -> None:
        super().__init__(name, **settings)
        self._names, self._load = tuple(names), cache(load)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        return self._load(cmd_name) if cmd_name in self._names else None


class _Argument(click.Argument):
    def __init__(self, name: str, help: str, **settings: Any) -> None:
        super().__init__([name], **settings)
        self.text = help  # not `help`, which click has from 8.5 on

    def row(self) -> tuple[str, str]:
        return self.human_readable_name, f"{self.text}  [required]" if self.required else self.text


def command(function: Callable[..., int], text: str) -> Command:
    """The command that calls a function: its name, its parameters, this text as help.

    The text is no docstring: those are removed by PYTHONOPTIMIZE=2."""
    parameters = [_parameter(one) for one in inspect.signature(function, eval_str=True).parameters.values()]
    return Command(function.__name__, HELP_FLAGS, callback=function, params=parameters, help=text)


def declared(annotation: Any) -> Argument | Option:
    """The declaration of a parameter."""
    found: Argument | Option = get_args(annotation)[1]
    return found


def _parameter(given: inspect.Parameter) -> click.Parameter:
    assert get_origin(given.annotation) is Annotated
    kind, declaration = get_args(given.annotation)[0], declared(given.annotation)
    kinds = [one for one in get_args(kind) if one is not NoneType]
    if NoneType in get_args(kind):
        (kind,) = kinds
    required = given.default is inspect.Parameter.empty
    settings: dict[str, Any] = {"required": required} if required else {"default": given.default}
    if isinstance(declaration, Argument) and get_origin(kind) is list:  # one or more
        return _Argument(given.name, declaration.help, type=get_args(kind)[0], nargs=-1, required=required)
    if isinstance(declaration, Argument):
        return _Argument(given.name, declaration.help, type=kind, **settings | {"required": required})
    flags = list(declaration.flags)
    if not flags:
        flag = f"--{given.name.replace('_', '-')}"
        flags = [f"{flag}/--no-{flag[2:]}" if kind is bool else flag]
    if kind is bool:
        settings["is_flag"] = True
    elif get_origin(kind) is list:
        (kind,) = get_args(kind)
        settings |= {"multiple": True, "callback": lambda _context, _option, values: list(values) or None}
    return click.Option(
        [given.name, *flags],
        type=kind,
        help=declaration.help,
        metavar=declaration.metavar,
        show_default=True,
        **settings,
    )
