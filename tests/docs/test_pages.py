"""Blocks of the site's pages run, and print what the pages show (tests/pages.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tests.gpu import adapter

DOCS = pages.ROOT / "docs"
GENERATED = {"command", "json", "layers", "ops", "options"}  # from declarations, and docs/reference/
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.stem not in GENERATED and page.relative_to(DOCS).parts[0] != "reference"
]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if pages.blocks(page.read_text())], ids=lambda p: p.stem)
def test_blocks_print_what_the_page_shows(page: Path) -> None:
    reason = pages.missing(page.read_text())
    if reason.startswith("gpu"):
        adapter.need_adapter()
    if reason:
        pytest.skip(reason)
    # a process of its own: names, caches and counters of the pages before it are gone
    done = subprocess.run(
        [sys.executable, "-m", "tests.pages", str(page)], cwd=pages.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_few_blocks_are_not_run() -> None:
    skipped = [(page.name, block.line) for page in PAGES for block in pages.blocks(page.read_text()) if block.skipped]
    assert len(skipped) <= 7, skipped


def test_every_block_of_code_is_executed_or_is_output() -> None:
    """A fence of another kind, or an indented block, would not be run."""
    for page in PAGES:
        text = page.read_text()
        kinds = set(re.findall(r"^`{3,}(?!\{)(\w+)", text, re.M))
        assert kinds <= {"python", "console", "sh", "text"}, (page.name, kinds)
        outside = re.sub(r"^(`{3,}).*?^\1$|^<!-- .*?-->$", "", text, flags=re.M | re.S)
        assert not re.findall(r"^ {4,}\S.*$", outside, re.M), page.name


def test_messages_are_found_by_their_text() -> None:
    """The index of errors lists every section, and a heading has words of the message that its code prints."""
    index, sections = (DOCS / "trouble" / "index.md").read_text(), 0
    for page in sorted((DOCS / "trouble").glob("*.md")):
        for part in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
            if page.stem == "index":
                continue
            sections += 1
            heading, _, body = part.partition("\n")
            assert re.search(rf"^- \[{re.escape(heading)}\]\({page.name}#", index, re.M), f"{page.name}: {heading}"
            shown = "\n".join(block.shown or "" for block in pages.blocks(body)).replace("'", "")
            words = [piece.strip(" ,") for piece in re.split(r"\.\.\.|;|\bN\b", heading)]
            assert not shown or max(words, key=len) in shown, (page.name, heading)
    assert sections >= 50 and index.count("\n- [") == sections


PAGE = """# A page

<!-- setup
hidden = 2
-->

```python
print(hidden * 21, "rows in 0.3 s, 12 MB")
```

```text
42 rows in 0.8 s, 10 MB
```

```console
$ echo one; \\
  echo two
one
...
$ false; echo $?
1
```

<!-- not run: it needs a GPU -->
```sh
exit 1
```
"""


def test_a_page_that_is_right(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert pages.check(page) == []
    pages.write(page)
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("old", "new"),
    [("42 rows", "49 rows"), ("one\n", "two\n"), ("$ false; echo $?\n1", "$ false; echo $?\n"), ("0.8 s", "quickly")],
)
def test_a_page_that_is_wrong(tmp_path: Path, old: str, new: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(old, new))
    assert len(pages.check(page)) == 1
    pages.write(page)
    assert pages.check(page) == []


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nexit 3\n```\n")
    with pytest.raises(AssertionError, match="exit code 3"):
        pages.check(page)


def test_places_may_differ() -> None:
    assert pages.differences("div#12 at page.md:3:4, node 7", "div#4711 at page.md:18:4, node 99") is None
    assert pages.differences("div#12 at page.md:3:4, element 7", "div#12 at page.md:3:4, element 9") is not None


def test_times_may_have_another_number_of_units() -> None:
    assert pages.differences("about 3 h 53 min: 5 epochs of 20 min 3 s", "about 50 min: 5 epochs of 16 s") is None
    assert pages.differences("about 3 h 53 min: 5 epochs of 20 s", "about 50 min: 4 epochs of 16 s") is not None


def test_requirements_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.missing("# A page\n\n<!-- needs: numpy, json -->\n") == ""
    assert (
        pages.missing("<!-- needs: numpy, no_such_package -->") == "no_such_package: needs the package no_such_package"
    )
    monkeypatch.setattr(adapter, "why_not", lambda: "no adapter")
    assert pages.missing("<!-- needs: gpu -->") == "gpu: no adapter"
    monkeypatch.setenv("PATH", "")
    assert pages.missing("<!-- needs: mpi -->") == "mpi: needs mpiexec, mpi4py"


def test_a_figure_is_written_by_a_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nopen('a.png', 'wb').write(b'1')\n```\n\n![a](a.png)\n![b](b.png)\n")
    assert pages.check(page) == ["page.md: no block writes b.png"]
