"""Runs the blocks of a Markdown page in order, in an empty folder, and compares the printed text with the page.

python -m tests.pages docs/tutorials/table.md            compares
python -m tests.pages docs/tutorials/table.md --write    puts what was printed, and the figures, into the page

    ```python       executed in one namespace for the page; a ```text block right after it is what it prints
    ```console      "$ command" lines, each followed by what it prints on both streams; run by bash
    ```sh           commands whose output is not shown
    <!-- setup      Python that readers do not see, up to -->; before the block that needs it
    <!-- not run: REASON -->   before a block that is not executed
    <!-- needs: gpu, mpi, PIL -->   the page is skipped without an adapter, mpiexec, or a package of this name

Speeds, times, bytes, node numbers and lines may differ, other numbers by a tenth; a line "..." stands for any number
of lines. Progress between the first and the last epoch is not compared. Files that the page shows (`![](curve.png)`)
must be written.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.gpu import adapter

ROOT = Path(__file__).resolve().parent.parent
UPDATE = "run python -m tests.pages PAGE --write"

_BLOCKS = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|(?P<skip>^<!-- not run: [^\n]+ -->\n+)?^(?P<fence>`{3,})(?P<kind>python|console|sh)\n(?P<code>.*?)^(?P=fence)$"
    r"(?:\n+(?P<out>^```text\n(?P<shown>.*?)^```$))?",
    re.M | re.S,
)


@dataclasses.dataclass
class Block:
    """A block: its kind, code, the output that the page shows (None: not shown), and the span that --write replaces."""

    kind: str
    code: str
    shown: str | None
    span: tuple[int, int]
    line: int
    skipped: bool


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order."""
    found = []
    for match in _BLOCKS.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["setup"] is not None:
            found.append(Block("setup", match["setup"], None, match.span(), line, False))
            continue
        kind, skipped = match["kind"], match["skip"] is not None
        if kind == "console":
            found.append(Block(kind, match["code"], match["code"], match.span("code"), line, skipped))
        else:
            span = match.span("shown") if match["out"] else match.span()
            found.append(Block(kind, match["code"], match["shown"], span, line, skipped))
    return found


class Run:
    """An execution of a page in a folder; `printed` is what each block prints."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed: list[tuple[Block, str]] = []

    def blocks(self) -> Iterator[tuple[Block, str]]:
        """Each block that is executed, with what it printed."""
        for block in blocks(self.page.read_text()):
            if not block.skipped:
                yield block, self._run(block)

    def _run(self, block: Block) -> str:
        where = f"{self.page.name}:{block.line}"
        if block.kind == "console":
            made = []
            for command, _ in commands(block.code):
                made.append(f"$ {command}\n{self._shell(command, where)}")
            return "".join(made)
        if block.kind == "sh":
            return self._shell(block.code, where)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            exec(compile(block.code, where, "exec", dont_inherit=True), self.names)  # without our __future__
        return out.getvalue()

    def _shell(self, command: str, where: str) -> str:
        """Output of a command, which must succeed unless it prints its exit code itself."""
        fails = command.endswith("; echo $?")
        done = subprocess.run(
            ["bash", "-c" if fails else "-ec", command],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n$ {command}\n{done.stdout}"
        return done.stdout


def commands(code: str) -> list[tuple[str, str]]:
    """(command, output) of a console block; a line that ends in a backslash continues the command."""
    found: list[tuple[str, str]] = []
    open_line = False
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif open_line:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            assert found, f"a console block begins with '$ ', found {line!r}"
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        open_line = line.endswith("\\") and not found[-1][1]
    return found


_MEASURED = (  # speeds, times, bytes
    r"(?:about |at most )?(?:\d+ (?:h|min) )?\d[\d.,]*(?:e[+-]\d+)?(?: [kMG])? ?"
    r"(?:rows/s|tokens/s|images/s|[kMG]?i?B|s|ms|us|min|h|%)(?!\w)(?: left)?"
)
_PLACE = r"(?:(?<=#)|(?<=node ))\d+|\w+\.md:\d+(?::\d+)?"  # nodes are numbered through the process; lines of the page
_NUMBER = r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"


def differences(shown: str, printed: str) -> str | None:
    """The first line that differs by more than noise, or None."""
    want, have = _lines(shown), _lines(printed)
    if _match(want, have):
        return None
    for i, line in enumerate(want):
        if line != "..." and (i >= len(have) or not _same(line, have[i])):
            return f"shown   {line}\nprinted {have[i] if i < len(have) else '(nothing)'}"
    return f"printed {have[len(want)] if len(have) > len(want) else '(nothing)'}, shown nothing more"


def _match(want: list[str], have: list[str]) -> bool:
    if not want:
        return not have
    if want[0] == "...":
        return any(_match(want[1:], have[i:]) for i in range(len(have) + 1))
    return bool(have) and _same(want[0], have[0]) and _match(want[1:], have[1:])


def _lines(text: str) -> list[str]:
    lines = [re.sub(r"epoch (\d+)/\1 ", "last epoch ", line.strip()) for line in text.strip().splitlines()]
    kept = [line for line in lines if not re.match(r"(epoch (?!1/)|step )\d+/", line)]
    return [re.sub(_MEASURED, "#", re.sub(_PLACE, "@", line)) for line in kept]


def _same(line: str, new: str) -> bool:
    if re.sub(_NUMBER, "#", line) != re.sub(_NUMBER, "#", new):
        return False
    numbers = [[float(n.replace(",", "")) for n in re.findall(_NUMBER, each)] for each in (line, new)]
    return all(abs(a - b) <= max(0.1 * abs(a), 0.02) for a, b in zip(*numbers, strict=True))


def figures(text: str) -> list[str]:
    """Files that the page shows and its blocks write: relative names without a folder."""
    return re.findall(r"!\[[^\]]*\]\(([\w-]+\.(?:png|svg))\)", text)


def missing(text: str) -> str:
    """The first requirement of a page that is not here, with the reason; "" where all are."""
    for name in [n.strip() for line in re.findall(r"^<!-- needs: (.+) -->$", text, re.M) for n in line.split(",")]:
        if name == "gpu":
            reason = adapter.why_not()
        elif name == "mpi":
            reason = "" if shutil.which("mpiexec") and importlib.util.find_spec("mpi4py") else "needs mpiexec, mpi4py"
        else:
            reason = "" if importlib.util.find_spec(name) else f"needs the package {name}"
        if reason:
            return f"{name}: {reason}"
    return ""


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """An empty folder as the working folder, with `gradloom`, `python` and the data of examples/ at hand."""
    before, path = Path.cwd(), os.environ["PATH"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "work"
        (Path(name) / "bin").mkdir()
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        for command, call in (("python", ""), ("gradloom", " -m gradloom")):
            script = Path(name) / "bin" / command
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{call} "$@"\n')
            script.chmod(0o755)
        kept = {k: os.environ.get(k) for k in ("PATH", "COLUMNS", "NO_COLOR", "GRADLOOM_ISA")}
        os.environ |= {"PATH": f"{Path(name) / 'bin'}:{path}", "COLUMNS": "100", "NO_COLOR": "1"}
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
            for key, value in kept.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def check(page: Path) -> list[str]:
    """Run a page; a message for each block whose output differs, and for each figure that is not written."""
    text, wrong = page.read_text(), []
    with workplace() as folder:
        for block, printed in Run(page, folder).blocks():
            found = differences(block.shown, printed) if block.shown is not None else None
            if found is not None:
                wrong.append(f"{page.name}:{block.line}: {UPDATE}\n{found}")
        wrong += [f"{page.name}: no block writes {name}" for name in figures(text) if not (folder / name).exists()]
    return wrong


def write(page: Path) -> None:
    """Run a page and put what its blocks print into it; outputs that agree stay as they are."""
    text = page.read_text()
    pieces, end = [], 0
    with workplace() as folder:
        for block, printed in Run(page, folder).blocks():
            if block.shown is None or differences(block.shown, printed) is None:
                continue
            pieces += [text[end : block.span[0]], printed.rstrip() + "\n"]
            end = block.span[1]
        for name in figures(text):
            shutil.copy(folder / name, page.parent / name)
    page.write_text("".join([*pieces, text[end:]]))


def main() -> int:
    """Compare or write the named pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.pages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put what was printed into the pages")
    options = parser.parse_args()
    wrong = []
    for page in options.pages:
        if options.write:
            write(page.resolve())
        else:
            wrong += check(page.resolve())
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
