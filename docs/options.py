"""The arguments and options of each command, as docs/command.md lists them: `python docs/options.py`."""

from __future__ import annotations

from typing import Any


def commands() -> dict[str, Any]:
    """The commands by name, in the order of `gradloom --help`."""
    import typer

    from gradloom.cli.main import app

    return dict(typer.main.get_command(app).commands)


def page() -> str:
    """All commands."""
    return "\n".join(f"### gradloom {name}\n\n{_section(name)}" for name in commands())


def _section(name: str) -> str:
    """One command: its line, its arguments, its options."""
    command = commands()[name]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    line = " ".join(["gradloom", name, *(a.name.upper() for a in arguments)])
    lines = [f"    {line} [options]", "", "| argument or option | |", "|---|---|"]
    lines += [f"| `{a.name.upper()}` | {_text(a.help)} |" for a in arguments]
    for option in options:
        forms = ", ".join(f"`{form}`" for form in [*option.opts, *option.secondary_opts])
        needed = " Needed." if option.required else ""
        default = option.default
        shown = not option.is_flag and default is not None and not callable(default) and default != ()
        lines.append(f"| {forms} | {_text(option.help)}{needed}{f' [default: {default}]' if shown else ''} |")
    return "\n".join(lines) + "\n"


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page())
