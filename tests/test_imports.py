"""Imports point one way (ARCHITECTURE.md); nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "gradloom"
LINE = ["base", "graph", "ops", "transform", "plan", "run"]  # each sees those before it
SEES: dict[str, set[str]] = {part: set(LINE[:i]) for i, part in enumerate(LINE)}
SEES |= {
    "nn": {"base", "graph", "ops"},
    "losses": {"base", "graph", "ops"},
    "metrics": {"base", "graph", "ops", "losses"},
    "optim": {"base", "graph", "ops"},
    "files": {"base"},
    "data": {"base"},
    "parallel": {"base", "graph"},
    "_core": set(),
    "_cells": set(),
}
SEES["gpu"] = set(LINE)
SEES["step"] = {*LINE, "nn", "optim", "parallel"}
SEES["eager"] = {*LINE, "optim", "step"}
SEES["runs"] = {*LINE, "nn", "optim", "parallel", "step", "eager", "files", "data"}
SEES["train"] = set(SEES)
SEES["tables"] = set(SEES)
SEES["llm"] = set(SEES)
SEES["interchange"] = set(SEES)
SEES["reports"] = set(SEES)
SEES["cli"] = set(SEES)
SEES["sklearn"] = {"base", "tables"}


@cache
def subscribers() -> set[str]:
    """The files with a class that receives events of a loop: subscribers, callbacks, their contributions."""
    classes = [
        (path.relative_to(PACKAGE).as_posix(), name, {base.strip().split(".")[-1] for base in bases.split(",")})
        for path in PACKAGE.rglob("*.py")
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\):", path.read_text(), re.M)
    ]
    known: set[str] = set()
    while (
        more := {name for _, name, bases in classes if bases & {"Subscriber", "Contribution", "Callback", *known}}
        - known
    ):
        known |= more
    return {file for file, _, bases in classes if bases & {"Subscriber", "Contribution", "Callback", *known}}


GIVEN = {  # files of subscribers that a loop imports
    "runs/events.py": "the protocol, and the default in place of a display",
    "train/callbacks.py": "the subscriber of its arguments callbacks=, on_epoch=, ...",
    "train/stopping.py": "the monitored number of a result",
}
LOOP = {"train/loop.py", "train/loop_state.py"}  # import none of the other subscribers


def foreign() -> set[str]:
    """What a loop does not import: subscribers, and what the saver writes."""
    return subscribers() - set(GIVEN) | {"runs/folder.py", "runs/checkpoint.py"}


NEVER = {  # a proof shares no code with the planner
    "plan/check.py": {"plan/memory.py", "plan/order.py", "plan/layout.py"},
    "plan/check_schedule.py": {"plan/memory.py", "plan/order.py", "plan/layout.py", "plan/split.py"},
}
PUBLIC = {"train/__init__.py": {"tables"}}  # public names that are defined in a package above
IMPORTERS = {  # which import modules of their own package, or of optional packages, by names that are computed
    "__init__.py", "base/extras.py", "cli/main.py",
    "llm/__init__.py", "llm/families/__init__.py", "llm/objectives/__init__.py", "llm/template_worker.py",
}  # fmt: skip
USERS = {"_core": {"run", "train"}, "_cells": {"data"}}  # who may talk to the native core, to the reader of tables


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def is_file(inside: list[str]) -> bool:
    """Of Python, or of types alone; the native parts are no files of the package."""
    path = PACKAGE.joinpath(*inside)
    return path.with_suffix(".py").exists() or (not path.name.startswith("_") and path.with_suffix(".pyi").exists())


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """(module inside the package as "plan/check.py" or "plan", line) of every import, wherever it stands."""
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(here[: len(here) - node.level]) if node.level else []
            source = [*above, *(node.module.split(".") if node.module else [])]
            names = [".".join([*source, a.name]) for a in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            name = node.args[0]
            if not isinstance(name, ast.Constant):
                assert path.relative_to(PACKAGE).as_posix() in IMPORTERS, (
                    f"{path}:{node.lineno} computes what it imports"
                )
                continue
            level = len(name.value) - len(name.value.lstrip("."))
            above = list(here[: len(here) - level]) if level else []
            names = [".".join([*above, name.value[level:]])]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != "gradloom":
                continue
            inside = parts[1:]
            while inside and not (PACKAGE.joinpath(*inside).is_dir() or is_file(inside)):
                if inside in (["_core"], ["_cells"]):
                    break
                inside = inside[:-1]  # a name of the module before it
            as_file = inside and is_file(inside)
            yield "/".join(inside) + (".py" if as_file else ""), node.lineno


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    if len(relative.parts) == 1:
        return  # gradloom/__init__.py collects everything
    part = relative.parts[0]
    assert part in SEES, f"{part} has no place in the order of imports"
    for module, line in imported(path):
        other = module.split("/")[0]
        place = f"{relative}:{line} imports {module}"
        assert module not in (foreign() if str(relative) in LOOP else NEVER.get(str(relative), set())), place
        if other in USERS:
            assert part in USERS[other], f"{place}; only {sorted(USERS[other])} talk to it"
        elif other and other != part:
            assert other in SEES[part] | PUBLIC.get(str(relative), set()), f"{place}; {part} sees {sorted(SEES[part])}"


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The groups of files of which each imports all others, through however many files in between."""
    reached: dict[str, set[str]] = {}
    for name in imports:
        reached[name], waiting = set(), [name]
        while waiting:
            new = imports.get(waiting.pop(), set()) - reached[name]
            reached[name] |= new
            waiting += new
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in imports if a in reached[a]}
    return sorted((set(group) for group in groups), key=sorted)


def test_subscribers_are_found() -> None:
    assert {
        "runs/saver.py",
        "train/display.py",
        "train/log.py",
        "llm/sample_texts.py",
        "cli/fit_watch.py",
    } < foreign()
    assert "llm/samples.py" not in foreign() and set(GIVEN) <= subscribers()


@pytest.mark.slow
def test_no_circle_of_imports() -> None:
    """Between files: imports inside of functions and for type checkers count, too."""
    imports: dict[str, set[str]] = {}
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        targets = {module if module.endswith(".py") else f"{module}/__init__.py" for module, _ in imported(path)}
        imports[name] = targets - {"_core/__init__.py", "_cells/__init__.py", "/__init__.py"}
    assert circles(imports) == [], "these files import one another"


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"d"}}) == [{"a", "b", "c"}, {"d"}]
    assert circles({"a": {"b"}, "b": {"c"}}) == []


LINES = 470  # a file that is longer is two files
LONG = {"plan/check.py": "one proof", "ops/elementwise.py": "one table", "base/habit_names.py": "one table"}


def test_files_have_one_subject() -> None:
    """Their length tells of it: none is longer than a few screens, unless it is one table or one proof."""
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in modules()}
    assert [name for name, lines in lengths.items() if lines > LINES and name not in LONG] == []


@pytest.mark.slow
def test_no_function_is_long() -> None:
    """At most 80 lines without its docstring."""
    long = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                docs = node.body[:1] if ast.get_docstring(node) else []
                lines = sum((one.end_lineno or 0) - one.lineno + 1 for one in [node, *docs])
                lines -= 2 * sum((one.end_lineno or 0) - one.lineno + 1 for one in docs)
                if lines > 80:
                    long.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    assert long == []


def test_the_reader_of_imports_sees_them_all(tmp_path: Path) -> None:
    """Function-level, aliased, absolute and relative imports are all found, and those by name."""
    path = PACKAGE / "plan" / "check.py"
    text = (
        "from ..run import executable\nimport gradloom.nn.module as m\n"
        "def f():\n    from .memory import place\n    from .. import ops\n"
        "    import_module('gradloom.eager.trace').current()\n"
        "    importlib.import_module('..train.loop', __package__)\n"
    )
    original = Path.read_text
    try:
        Path.read_text = lambda self, *a, **k: text if self == path else original(self, *a, **k)  # type: ignore[method-assign]
        found = {module for module, _ in imported(path)}
    finally:
        Path.read_text = original  # type: ignore[method-assign]
    written = {"run/executable.py", "nn/module.py", "plan/memory.py", "ops"}
    assert found == written | {"eager/trace.py", "train/loop.py"}


HEAVY = ("torch", "jax", "click", "gguf", "safetensors", "tokenizers", "jinja2", "pandas", "scipy")
HEAVY += ("matplotlib", "hypothesis", "mpi4py", "msgspec", "sklearn")


@pytest.mark.parametrize("statement", ["import gradloom", "import gradloom as gl; gl.compile([gl.input('x') * 2])"])
def test_nothing_heavy_is_imported(statement: str) -> None:
    code = f"import sys; {statement}; print(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent, timeout=60
    )
    assert done.stdout.split() == []


def test_every_public_name_exists() -> None:
    import gradloom

    for name in gradloom.__all__:
        assert getattr(gradloom, name) is not None
    assert set(gradloom.__all__) <= set(dir(gradloom))


NO_DEVICE = "SettingError: {}: device='nonsense' does not exist here; use "
FIRST = [  # a fresh process's first statements, which need a floor that nothing has imported; and what they print
    ("import gradloom as gl; gl.device('nonsense').__enter__()", NO_DEVICE.format("device")),
    ("from gradloom.graph.scope import device; device('nonsense').__enter__()", NO_DEVICE.format("device")),
    ("from gradloom.nn import Linear; Linear(1, 1).to('nonsense')", NO_DEVICE.format("to")),
    ("import gradloom as gl; p = gl.parameter([2.0]); p.assign(p * 3); print(p.numpy())", "[6.]"),
    ("from gradloom.nn import Linear; p = Linear(1, 1).init(0).bias; p.assign(p * 0 + 3); print(p.numpy())", "[3.]"),
    (
        "import gradloom as gl; gl.parameter(1.0).assign(gl.input('x'))",
        "GraphError: tensor: x at <string>:1 of a graph",
    ),
    (
        "from gradloom.graph.leaves import input; import gradloom.run.compile as c; c.compile(input('x'), device='y')",
        "BackendError: backend: 'y' is not known; must be one of cpu, numpy, null, gpu",
    ),
]


@pytest.mark.parametrize(("statements", "printed"), FIRST)
def test_a_lower_floor_reaches_an_upper_one_at_its_first_call(statements: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", statements], capture_output=True, text=True, timeout=60)
    assert printed in (done.stdout + done.stderr).strip().split("\n")[-1]
