"""The site builds without a warning: every page is linked, no link is dead; every public name has an entry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradloom as gl
from gradloom.graph.opspec import REGISTRY
from tests import pages
from tests.scripts import ROOT, script


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("docs/reference.py")


def test_the_reference_has_every_public_name(reference: ModuleType) -> None:
    spaces = reference.namespaces()
    listed = {space: [name for names in sections.values() for name in names] for space, sections in spaces.items()}
    modules = [name for name in gl.__all__ if isinstance(getattr(gl, name), ModuleType)]
    assert sorted([*listed["gl"], *modules]) == sorted(gl.__all__)
    assert {f"gl.{name}" for name in modules} | {"gl"} == set(listed)
    for name in modules:
        assert sorted(listed[f"gl.{name}"]) == sorted(getattr(gl, name).__all__)


@pytest.mark.slow
def test_every_entry_has_a_text(reference: ModuleType) -> None:
    text = "\n".join(reference.pages().values())
    empty = re.findall(r"\{py:(?:class|function|data)\} (\S+).*\n\n```+\n", text)
    assert not empty


def test_every_public_name_has_an_example(reference: ModuleType) -> None:
    """And every example a name. Their blocks are executed by test_pages.py."""
    for space, sections in reference.namespaces().items():
        found = reference.examples(space)
        assert sorted(found) == sorted(name for names in sections.values() for name in names), space
        assert not [name for name, text in found.items() if not pages.blocks(text)], space
    spaces = {page.stem.partition("-")[0] for page in reference.NAMES.glob("*.md")}
    assert spaces == set(reference.namespaces())


@pytest.mark.slow
def test_every_op_has_formula_gradient_and_shapes(reference: ModuleType) -> None:
    entries = re.split(r"^### (\w+)\n", reference.every_op(), flags=re.M)[1:]
    found = dict(zip(entries[::2], entries[1::2], strict=True))
    assert sorted(found) == sorted(REGISTRY)
    for name, entry in found.items():
        formula, facts = entry.strip().split("\n- ", 1)
        assert formula.strip() and f"gradient: {'no' if REGISTRY[name].vjp is None else 'yes'}" in facts, name
        assert "<svg " in facts, name


DOCSTRING = """First *line* of `x * y`.

    rows, size   f32 [n, m]
                 or none

    gl.fit(net)

End_of it."""
MARKDOWN = """First \\*line\\* of `x * y`.

- `rows, size`: f32 \\[n, m\\] or none

```
gl.fit(net)
```

End\\_of it."""


def test_docstrings_become_markdown(reference: ModuleType) -> None:
    assert reference._markdown(DOCSTRING) == MARKDOWN


PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name not in ("reference", "names"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_names_of_a_page_exist(page: Path) -> None:
    missing = []
    for name in sorted(set(re.findall(r"`gl((?:\.[A-Za-z_]\w*)+)", page.read_text()))):
        value: object = gl
        for part in name[1:].split("."):
            value = getattr(value, part, None)
            if value is None:
                missing.append(f"gl{name}")
                break
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_options_of_a_page_exist(page: Path) -> None:
    """`gradloom COMMAND ... --option` on one line: the command has the option."""
    commands = script("docs/options.py").commands()
    wrong, refused = [], re.findall(r"No such option: (--[a-z-]+)", page.read_text())  # as the page shows
    for name, rest in re.findall(r"\bgradloom ([a-z]+)\b([^\n`#;|]*)", page.read_text()):
        known = (
            {form for p in commands[name].params for form in [*p.opts, *p.secondary_opts]}
            if name in commands
            else set()
        )
        wrong += [
            f"gradloom {name} {option}"
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest)
            if option not in {*known, *refused, "--help"}
        ]
    assert not wrong


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(package)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "trees"),
        "docs",
        str(tmp_path),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "searchindex.js").stat().st_size > 100_000
    for page in tmp_path.rglob("*.html"):  # readable without a network
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]*)\"", page.read_text())
        assert not loaded, (page.name, loaded)
