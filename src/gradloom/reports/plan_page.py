"""Page of plans: each program of a plan, or of a training, as a memory map with its numbers and stored arrays."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.memory import show_bytes
from ..base.messages import log
from ..plan.memory_map import MemoryMap, ProgramMap, program_map
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from .curve import memory_time_curve
from .memory_map import figure, stored_table
from .page import Section, page, write_page

TITLE = "Memory plan"
MEMORY = "Memory"  # the section of the whole run


class Programs(NamedTuple):
    """What a page of plans shows.

    maps: of the programs, in any order. about: lines to read first, as (name, value). curve: (bytes of memory,
    relative time of a step), without a budget and with smaller ones. subtitle: the subject.
    """

    maps: Sequence[ProgramMap]
    about: Sequence[tuple[str, str]] = ()
    curve: Sequence[tuple[int, float]] = ()
    subtitle: str = ""


def programs_of(plan: Any) -> Programs:
    """The programs of a plan of gl.compile, or of an object with `report_programs()`."""
    if isinstance(plan, (Plan, Schedule)):
        return Programs([program_map(plan)])
    given = plan.report_programs()
    maps = [program_map(one) for one in given.pop("plans")]
    count = len(maps)
    found = Programs(maps, **given)
    return found._replace(subtitle=f"{count} programs, that with the highest peak first" if count > 1 else "")


def save_plan(plan: Any, path: str | os.PathLike[str]) -> None:
    """Write the page of a plan."""
    found = programs_of(plan)
    write_page(path, TITLE, sections(found), found.subtitle)


def show_plan(plan: Any) -> None:
    """Display the page of a plan: in a notebook below the cell, otherwise in the browser, from a temporary file."""
    found = programs_of(plan)
    text = page(TITLE, sections(found), found.subtitle)
    if in_notebook():
        from IPython.display import HTML, display

        display(HTML(framed(text)))
        return
    handle, path = tempfile.mkstemp(prefix="gradloom-plan-", suffix=".html")
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
    if not webbrowser.open(Path(path).as_uri()):
        log.warning(f"show: no browser was found; the page is {path}")


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which has imported IPython."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def framed(text: str, title: str = TITLE) -> str:
    """A page inside of another one, whose scripts and styles it does not share."""
    return (
        f'<iframe title="{html.escape(title)}" sandbox="allow-scripts" style="width:100%;height:760px;border:0" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )


def sections(found: Programs) -> list[Section]:
    """A section for each program, the one with the highest peak first."""
    ordered = sorted(found.maps, key=lambda one: -one.peak_bytes)
    made = []
    if found.about or len(found.curve) > 1:
        markup = memory_time_curve(found.curve) if len(found.curve) > 1 else ""
        made.append(Section(MEMORY, facts=found.about, html=markup))
    names = unique([one.name for one in ordered])
    for name, one in zip(names, ordered, strict=True):
        made.append(_section(name, one))
    return made


def _section(name: str, program: ProgramMap) -> Section:
    if len(program.maps) == 1:
        (one,) = program.maps
        return Section(
            name, numbers=numbers(one), figures=[figure(one, "Bytes of the arena at each step")],
            tables=[("Stored arrays", stored_table(one))],
        )  # fmt: skip
    copies = f"{program.copies}, {show_bytes(program.copy_bytes)} a step"
    figures = [figure(one, f"Arena of {one.device}: {one.summary}") for one in program.maps]
    tables = [(f"Stored arrays of {one.device}", stored_table(one)) for one in program.maps]
    return Section(name, numbers=[("copies between devices", copies)], figures=figures, tables=tables)


def numbers(one: MemoryMap) -> list[tuple[str, str]]:
    """The numbers of a plan to read first."""
    scratch = one.scratch_bytes * one.threads
    bound = one.lower_bound_bytes + scratch
    found = [
        ("peak", show_bytes(one.peak_bytes)),
        ("lower bound", show_bytes(bound)),
        ("peak / lower bound", f"{one.peak_bytes / bound:.3f}" if bound else "1"),
        ("without sharing", show_bytes(one.unshared_bytes + scratch)),
        ("parameters and state", show_bytes(one.stored_bytes)),
        ("steps", f"{one.steps:,}"),
        ("buffers in place", f"{one.in_place:,}"),
    ]
    if one.scratch_bytes:
        found.append(("scratch in the peak", f"{one.threads} × {show_bytes(one.scratch_bytes)}"))
    if one.budget is not None:
        found.append(("budget", show_bytes(one.budget)))
    if one.recomputed_nodes:
        found.append((f"{one.recomputed_nodes:,} nodes computed again", show_bytes(one.recomputed_bytes)))
        found.append(("predicted time of these", f"{one.recomputed_overhead:+.1%}"))
    return found


def unique(names: Sequence[str]) -> list[str]:
    """The names, with a number where one occurs several times."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found
