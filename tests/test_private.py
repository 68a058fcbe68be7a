"""What is private stays private: no module of the package reaches an underscored name of another one, and only
graph/stored.py touches the memory of a stored array."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gradloom"

MEMORY = "graph/stored.py"  # touches Stored.array; everybody else calls read() and write()


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def everywhere() -> set[str]:
    """The underscored names that modules of the package define."""
    return set().union(*(defined(tree(path)) for path in modules()))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(module: ast.Module) -> set[str]:
    """The underscored names that a module gives to functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            on_self = isinstance(node, ast.Name) or (isinstance(node.value, ast.Name) and node.value.id == "self")
            if on_self:
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets
        ):
            names |= {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
    return {name for name in names if private(name)}


def reached(module: ast.Module, ours: set[str]) -> Iterator[tuple[str, int]]:
    """(name, line) of underscored names that this module imports or reads and does not define. ours: those that modules
    of the package define; the others belong to other packages."""
    own, imported = defined(module), set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("gradloom")):
            yield from ((a.name, node.lineno) for a in node.names if private(a.name) and a.name != "_core")
            imported |= {a.asname or a.name for a in node.names}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr in ours:
            theirs = isinstance(node.value, ast.Name) and node.value.id in imported
            if theirs or node.attr not in own:
                yield node.attr, node.lineno


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_no_underscored_name_is_reached_across_modules(path: Path) -> None:
    at = {f"{relative(path)}:{line} reaches {name}" for name, line in reached(tree(path), everywhere())}
    assert not at, "; ".join(sorted(at))


def touched(module: ast.Module) -> list[int]:
    """The lines that read an attribute `array` of anything; np.array(...) and model.array(...) are calls."""
    called = {id(node.func) for node in ast.walk(module) if isinstance(node, ast.Call)}
    return [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr == "array" and id(node) not in called
    ]


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_the_memory_of_stored_arrays_is_touched_in_few_places(path: Path) -> None:
    name = relative(path)
    if name != MEMORY:
        assert not touched(tree(path)), f"{name}: lines {touched(tree(path))} touch .array; need read() or write()"


def test_the_readers_see_what_they_look_for() -> None:
    text = """
from .other import _hidden, shown, Theirs
from gradloom.other import _far
class Mine:
    _mine: int = 0
    def _own(self):
        self._here = 1
        return self._mine + self._here + self._own() + self._base + other._theirs + os._exit + Theirs._mine + x.__dict__
    def take(self, stored):
        return stored.array[0] + np.array(2) + model.array("w")
"""
    module = ast.parse(text)
    assert defined(module) == {"_mine", "_own", "_here"}
    names = {name for name, _ in reached(module, {"_theirs", "_base", "_mine", "_hidden"})}
    assert names == {"_hidden", "_far", "_base", "_theirs", "_mine"}
    assert touched(module) == [10]
