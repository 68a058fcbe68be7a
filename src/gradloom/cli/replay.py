"""gradloom replay: run a capsule here, and compare it with where it was made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.exit_codes import Exit
from ..base.json_facts import REPLAY
from ..base.terminal import in_one_line
from .common import Json, columns, json_text, need_place, print_report
from .parser import Argument, Option
from .progress import change_line

if TYPE_CHECKING:
    from ..run.capsule import Capsule
    from ..run.replay import Replayed

LONGEST = 500  # characters of a line

HELP = """Run a capsule here: plan and prove its programs again, run them, and compare with the saved results.

On the instruction set and device of the capsule, the bits of every instruction are compared. Elsewhere each
instruction is held against its float64 definition. Prints the first that differs.
Exit code 0: the same; 1: something differs.
"""


def replay(
    file: Annotated[str, Argument(help="A capsule.")],
    isa: Annotated[
        str | None, Option(help="Instruction set: scalar, avx2, ... [default: the capsule's, if it runs here]")
    ] = None,
    device: Annotated[str | None, Option(help="cpu, gpu or gpu:1. [default: the capsule's]")] = None,
    bisect: Annotated[
        bool, Option("--bisect", help="Also save a capsule of the first instruction that differs, alone.")
    ] = False,
    out: Annotated[
        str | None, Option("--out", "-o", help="The file of --bisect. [default: FILE.reduced.capsule]", metavar="FILE")
    ] = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..base.errors import SettingError
    from ..files import check_target, refuse_input
    from ..run.replay import replay as run_here
    from ..runs.capsules import load

    need_place("out", out)
    if out is not None and not bisect:
        raise SettingError("{out} requires {bisect}", out=out, bisect=...)
    target = out or _reduced_name(file)
    if bisect:
        refuse_input(target, file)
        check_target(target)
    made = load(file)
    print_report(_described(made))
    if bisect and not made.has_data:
        raise SettingError(f"{file}: has no data to run; {{bisect}} requires a capsule with data", bisect=...)
    result = run_here(made, isa, device, _progress if sys.stderr.isatty() else None)
    saved = _reduce(made, result, isa, device, target) if bisect and result.first is not None else None
    lines = _lines(made, result, saved)
    if bisect and result.first is not None and saved is None:
        lines.append(("reduced", "nothing is saved: no instruction differs alone; it depends on its place in the plan"))
    columns(lines, sys.stderr if json else None)
    if json:
        print(json_text(REPLAY, _values(file, result, saved)))
    return Exit.DONE if result.agrees else Exit.FAILED


def _reduced_name(file: str) -> str:
    path = Path(file)
    return str(path.with_name(f"{path.name.removesuffix('.capsule')}.reduced.capsule"))


def _described(made: Capsule) -> str:
    """A capsule in one line."""
    about = made.about
    words = [f"capsule of gradloom {about.get('gradloom', '?')}", f"{made.device} {made.switches['isa']}".rstrip()]
    words += [f"{key} {about[key]}" for key in ("run", "step", "reduced") if key in about]
    return in_one_line(", ".join(words), LONGEST)


def _reduce(made: Capsule, result: Replayed, isa: str | None, device: str | None, target: str) -> str | None:
    """Save the instruction that differs, if it does so alone; the file."""
    from ..run.reduce import reduced
    from ..run.replay import replay as run_here
    from ..runs.capsules import save

    assert result.first is not None
    small = reduced(made, result.first, isa, device)
    if small is None or run_here(small, isa, device).agrees:
        return None
    save(target, small)
    return target


def _lines(made: Capsule, result: Replayed, saved: str | None) -> list[tuple[str, str]]:
    lines = [("plan", "the same" if result.same_plan else "another one than in the capsule")]
    if not result.has_run and result.agrees:
        return [*lines, ("result", "planned and proved; the capsule has no data to run")]
    where = f"on {result.device} {result.isa}".rstrip()
    if result.agrees:
        how = "the same bits" if result.by_bits else "each agrees with its definition"
        lines.append(("result", f"{result.steps} instructions {where}: {how}"))
        if not result.by_bits and not result.error:
            found = f"loss and other outputs differ by at most {result.largest:.2g} of their largest number"
            lines.append(("outputs", f"{found}; of weights and moments the capsule has digests alone"))
    elif result.first is not None:
        lines.append(("result", f"{where}: DIFFERS: {result.first.text}"))
    if result.not_finite:
        lines.append(("not finite", f"first in {result.not_finite}"))
    if result.error:
        lines.append(("stopped", result.error))
    lines = [(name, in_one_line(text, LONGEST)) for name, text in lines]  # names out of an untrusted file
    return [*lines, ("reduced", saved)] if saved is not None else lines


def _values(file: str, result: Replayed, saved: str | None) -> dict[str, Any]:
    first = result.first
    return {
        "file": file, "agrees": result.agrees, "device": result.device, "isa": result.isa, "by_bits": result.by_bits,
        "same_plan": result.same_plan, "has_run": result.has_run, "steps": result.steps,
        "first": None if first is None else first.text, "not_finite": result.not_finite or None,
        "error": result.error or None, "reduced": saved,
    }  # fmt: skip


def _progress(done: int, steps: int) -> None:
    """One line on a terminal that changes."""
    change_line("" if done == steps else f"float64: {done:,} of {steps:,} instructions")
