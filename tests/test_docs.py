"""The documents tell the truth: generated parts are made again (GRADLOOM_UPDATE_GOLDEN=1 rewrites them)."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from tests.scripts import script

ROOT = Path(__file__).resolve().parent.parent
UPDATE = os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1"


def test_architecture_shows_the_step_as_it_is() -> None:
    page = ROOT / "ARCHITECTURE.md"
    fresh = f"<!-- one_step -->\n\n{script(ROOT / 'docs' / 'one_step.py').page()}\n<!-- /one_step -->"
    text = page.read_text()
    if UPDATE:
        page.write_text(re.sub(r"<!-- one_step -->.*?<!-- /one_step -->", lambda _: fresh, text, flags=re.S))
    found = re.search(r"<!-- one_step -->.*?<!-- /one_step -->", page.read_text(), re.S)
    assert found and found[0] == fresh, "run GRADLOOM_UPDATE_GOLDEN=1 pytest tests/test_docs.py"


def test_each_atomic_has_a_reason() -> None:
    """ARCHITECTURE.md lists the atomic objects of the core, each with its memory order, and no others."""
    found = set()
    for path in (ROOT / "csrc").rglob("*.*"):
        text = path.read_text()
        names = re.findall(r"std::atomic<[\w\s]+\*?>\*?\s+(\w+)\s*[{;]", text)
        names += re.findall(r"__atomic_\w+\(&(\w+)", text)
        found |= {(path.name, name) for name in names}
        assert names or not re.search(r"\batomic_|__atomic|__sync_", text), path.name
    listed = set()
    for line in (ROOT / "ARCHITECTURE.md").read_text().split("### Memory order of the core")[1].splitlines():
        if row := re.match(r"\| (`[\w:]+`(?:, `[\w:]+`)*) \(`([\w.]+)`\) \|", line):
            listed |= {(row[2], name.rpartition("::")[2]) for name in re.findall(r"`([\w:]+)`", row[1])}
    assert listed == found


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_the_documents_name_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(
        r"`((?:gradloom|csrc|tests|bench|examples|docs|plan|run|ops|graph|train|data|base|transform)/[\w/]+\.\w+)", text
    )
    missing = [f for f in named if not (ROOT / f).exists() and not (ROOT / "src" / "gradloom" / f).exists()]
    assert named and not missing, f"{name} names {missing}"


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    import gradloom as gl

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    section = re.search(r"## From Python\n(.*?)\n## ", text, re.S)
    assert section
    blocks = re.findall(r"(?:^    .*\n(?:^\s*\n)?)+", section[1] + "\n", re.M)
    assert len(blocks) == 3
    rng = np.random.default_rng(0)
    images, labels = rng.random((600, 784), dtype=np.float32), rng.integers(0, 10, 600)
    names = {"images": images, "labels": labels, "test": gl.data.Dataset(images, labels), "x": images}
    names["data"] = names["test"]
    first, lasting, second = (re.sub(r"^    ", "", b, flags=re.M) for b in blocks)
    exec(first.replace("epochs=30", "epochs=1, progress=False"), names)
    assert (tmp_path / "net.safetensors").exists() and 0 <= names["hist"][-1].val.accuracy <= 1
    exec(lasting.replace("epochs=30", "epochs=1, progress=False"), names)
    assert (tmp_path / "runs/a/run.json").exists()
    exec(second, names)
    assert [float(v) for v in names["run"](a=3.0, b=4.0)] == [16.0, 12.0]


def test_the_page_of_losses_and_metrics_has_all() -> None:
    import gradloom as gl

    text = (ROOT / "docs" / "losses.md").read_text()
    table = re.findall(r"^\| `(\w+)`, `(\w+)` \| ?([^|]*?) ?\|", text, re.M)
    rows = {name: (kind, options) for name, kind, options in table}
    known = [getattr(gl.losses, name) for name in gl.losses.__all__ if name not in ("Loss", "named")]
    losses = {kind.name: kind for kind in known}
    scores = [getattr(gl.metrics, name) for name in gl.metrics.__all__ if name[0].isupper() and name != "Score"]
    assert {kind.name: kind.__name__ for kind in scores} == {
        name: rows.pop(name)[0] for name in [k.name for k in scores]
    }
    assert {name: kind.__name__ for name, kind in losses.items()} == {name: kind for name, (kind, _) in rows.items()}
    for name, kind in losses.items():
        shown = [f"`{f.name}={f.default!r}`".replace("1e-06", "1e-6") for f in dataclasses.fields(kind)]
        assert rows[name][1] == ", ".join(shown)


def test_the_page_of_layers_has_all() -> None:
    import gradloom as gl

    pages = script(ROOT / "docs" / "layers.py")
    page = ROOT / "docs" / "layers.md"
    if UPDATE:
        page.write_text(pages.page())
    assert page.read_text() == pages.page(), "run python docs/layers.py > docs/layers.md"
    named = " ".join(pages.SECTIONS.values()).split()
    assert sorted([*named, "from_torch", "stacked", "torch_state_dict"]) == sorted(gl.nn.__all__)


_MEASURED = r"\d[\d.,]*(?: [kM])? (?:rows/s|GB|MB|kB|s left)|time .*|memory .*"  # speeds, times and bytes


def _same_transcript(shown: str, printed: str) -> None:
    """The same lines, but for speeds, times, bytes and lines of progress between the first and the last epoch."""
    made = []
    for text in (shown, printed):
        lines = [re.sub(r"epoch (\d+)/\1 ", "last epoch ", line.strip()) for line in text.strip().splitlines()]
        lines = [line for line in lines if not re.match(r"epoch (?!1/)\d+/", line)]
        made.append([re.sub(_MEASURED, "#", line) for line in lines])
    assert made[0] == made[1]


def test_the_first_command_of_the_readme_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gradloom.cli.main import main

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    block = re.search(r"<!-- digits -->(.*?)<!-- /digits -->", (ROOT / "README.md").read_text(), re.S)
    assert block and main(["fit", "examples/data/digits.npz"]) == 0
    out, err = capsys.readouterr()
    _same_transcript(block[1], err + out)


@pytest.mark.parametrize("path", sorted((ROOT / "bench").glob("*.py")), ids=lambda path: path.name)
def test_a_script_of_bench_finds_the_folders_that_it_imports(path: Path) -> None:
    """`python bench/x.py` has bench/ on the path, and not the project folder."""
    text = path.read_text()
    if re.search(r"^ *from (examples|tests)\b", text, re.M):
        assert re.search(r"^ *sys\.path\.(insert|append)\(", text, re.M)


def test_the_page_for_users_of_ggml_has_every_function_once() -> None:
    import gradloom as gl

    pages = script(ROOT / "docs" / "coming_from" / "ggml.py")
    page = ROOT / "docs" / "coming_from" / "ggml.md"
    if UPDATE:
        page.write_text(pages.page())
    text = page.read_text()
    assert text == pages.page(), "run python docs/coming_from/ggml.py > docs/coming_from/ggml.md"
    tables, same = (
        text.partition("## Functions")[2],
        re.findall(r"`(\w+)`", text.partition("## The same")[2].split("##")[0]),
    )
    shown = [*re.findall(r"^\| `ggml_(\w+)` \| (?!because)", tables.split("## The same")[0], re.M)]
    shown += [name for name in same if name != "gl"]
    shown += re.findall(r"`ggml_(\w+)`", tables.partition("## Without")[2])
    assert sorted(shown) == sorted(pages.FUNCTIONS.split())
    for name in set(re.findall(r"\bgl(?:\.\w+)+", text)) - {"gl.opt_fit", "gl.ops.ggml_mul_mat"}:
        found = gl
        for part in name.split(".")[1:]:
            found = getattr(found, part)


def changelog_faults(text: str) -> list[str]:
    """Lines that differ from the form of Keep a Changelog: versions, newest first; kinds of changes in this order, none
    empty; entries as lists, under a bold topic where there is one."""
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    faults, versions, order, last = [], [], -1, "title"
    for line in text.splitlines():
        version = re.fullmatch(r"## \[(Unreleased|\d+\.\d+\.\d+)\](?: - (\d{4}-\d\d-\d\d))?", line)
        kind = re.fullmatch(r"### (\w+)", line)
        if last in ("kind", "topic") and line and (line.startswith("#") or (last == "topic" and line[:2] != "- ")):
            faults.append(f"nothing above {line}")
        if version:
            versions.append(version[1])
            order, last = -1, "version"
            if (version[1] == "Unreleased") == bool(version[2]) or (version[1] == "Unreleased") == (len(versions) > 1):
                faults.append(line)
        elif kind:
            place = kinds.index(kind[1]) if kind[1] in kinds else -1
            if place <= order:
                faults.append(line)
            order, last = place, "kind"
        elif re.fullmatch(r"\*\*.+\*\*", line):
            last = "topic"
        elif line.startswith("- "):
            if order < 0:
                faults.append(line)
            last = "entry"
        elif line and not line.startswith("  ") and (versions or line.startswith("## ")):
            faults.append(line)
    if last in ("kind", "topic"):
        faults.append("nothing at the end")
    numbers = [tuple(map(int, version.split("."))) for version in versions[1:]]
    return faults + ([] if numbers == sorted(numbers, reverse=True) else ["order of versions"])


def test_the_changelog_has_the_usual_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n") and "## [Unreleased]\n" in text
    assert changelog_faults(text) == []
    entries = text.split("## [0.1.0]")[0].split("\n- ")[1:]
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("### Added", "### New"), ("### Added", "### Fixed"), ("- One", "One"), ("- One", ""), ("- Three", ""),
        ("## [0.1.0] - 2026-01-02", "## 0.1.0"), ("- 2026-01-02", "- 2 January"),
        ("[Unreleased]", "[0.0.9] - 2026-01-01"),
    ],
)  # fmt: skip
def test_a_changelog_of_another_form(old: str, new: str) -> None:
    right = (
        "# Changelog\n\nText.\n\n## [Unreleased]\n\n### Added\n\n**Topic**\n\n- One,\n  in two lines.\n\n"
        "### Changed\n\n- Two\n\n"
        "## [0.1.0] - 2026-01-02\n\n### Added\n\n- Three\n"
    )
    assert changelog_faults(right) == []
    assert changelog_faults(right.replace(old, new, 1))
