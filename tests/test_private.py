"""What is private stays private: no module of the package reaches an underscored name of another one. The memory of
a stored array, too, is touched in graph/stored.py alone; all others call its read() and write()."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "gradloom"
NATIVE = ("_core", "_cells")


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(nodes: list[ast.AST]) -> set[str]:
    """The underscored names that a module gives to functions, classes, variables and attributes."""
    names = set()
    for node in nodes:
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


def reached(nodes: list[ast.AST], own: set[str]) -> Iterator[tuple[str, int]]:
    """(name, line) of underscored names that this module imports or reads and does not define: own are those that it
    defines."""
    imported = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("gradloom")):
            yield from ((a.name, node.lineno) for a in node.names if private(a.name) and a.name not in NATIVE)
            imported |= {a.asname or a.name for a in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and private(node.attr):
            theirs = isinstance(node.value, ast.Name) and node.value.id in imported
            if theirs or node.attr not in own:
                yield node.attr, node.lineno


def test_no_underscored_name_is_reached_across_modules() -> None:
    everywhere: set[str] = set()  # what modules of the package define; other names belong to other packages
    found = []
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        own = defined(nodes)
        everywhere |= own
        found += [(path.relative_to(PACKAGE), line, name) for name, line in reached(nodes, own)]
    at = {f"{path}:{line} reaches {name}" for path, line, name in found if name in everywhere}
    assert not at, "; ".join(sorted(at))


def test_the_reader_sees_what_it_looks_for() -> None:
    text = """
from .other import _hidden, shown, Theirs
from gradloom.other import _far
class Mine:
    _mine: int = 0
    def _own(self):
        self._here = 1
        return self._mine + self._here + self._own() + self._base + other._theirs + os._exit + Theirs._mine + x.__dict__
"""
    nodes = list(ast.walk(ast.parse(text)))
    assert defined(nodes) == {"_mine", "_own", "_here"}
    names = {name for name, _ in reached(nodes, defined(nodes))}
    assert names == {"_hidden", "_far", "_base", "_theirs", "_mine", "_exit"}


def test_stored_arrays_offer_no_way_around_read_and_write() -> None:
    from gradloom.graph.stored import Stored

    offered = {name for name in dir(Stored) if not name.startswith("_")}
    assert offered == {
        "absent_bytes", "address", "assign", "away", "bytes", "check", "checked", "deferred", "device", "dtype", "each",
        "has_optimizer", "initialised", "map", "members", "name", "ndim", "numpy", "read", "role", "serial",
        "set_trainable", "shape", "size", "stack", "uninitialised", "version", "wrap", "write",
    }  # fmt: skip
