"""A package without a native core that this interpreter can load: the error names what is there and the remedy."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import gradloom
from gradloom import _core
from gradloom.base import native
from tests import processes

PACKAGE = Path(gradloom.__file__).parent
DIGITS = Path(__file__).parents[2] / "examples" / "data" / "digits.npz"
HERE = f"CPython 3.{sys.version_info[1]} {native._machine()}"
REMEDY = "; install the wheel of this one, or build from source with `pip install .`"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package without its native modules."""
    folder = tmp_path / "site" / "gradloom"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


def head(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little")


HIDE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if not hasattr(each, "known_source_files")]
"""


def refused(path: Path) -> str:
    """The line of the command, which Python's error has, too. An editable installation would be found before `path`:
    its finder is removed when Python starts."""
    start = path.parent / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(HIDE)
    env = processes.environment(PYTHONPATH=f"{path}{os.pathsep}{start}")
    fit = [sys.executable, "-m", "gradloom", "fit", str(DIGITS), "--out", str(path.parent / "out")]
    done = subprocess.run(fit, env=env, capture_output=True, text=True, cwd=path.parent)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    code = "import gradloom as gl\ntry: gl.compile\nexcept ImportError as error: print(error)"
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "\n" not in done.stderr[:-1]
    assert other.stdout.replace("_core", "_cells") == done.stderr.replace("_core", "_cells")
    return done.stderr.removesuffix("\n")


@pytest.mark.skipif(platform.system() != "Linux", reason="files of Linux")
@pytest.mark.parametrize(
    ("suffix", "machine", "kind"),
    [
        (".cpython-37-x86_64-linux-gnu.so", 62, "CPython 3.7 x86-64 on Linux"),
        (".cpython-313t-aarch64-linux-gnu.so", 183, "CPython 3.13 free-threaded aarch64 on Linux"),
        (".cpython-311-x86_64-linux-musl.so", 62, "CPython 3.11 x86-64 on Linux (musl)"),
        (".abi3.so", 183 if platform.machine() == "x86_64" else 62, "CPython 3.12 or newer "),
        (".cp312-win_amd64.pyd", 0, "CPython 3.12 an unknown system"),
    ],
)
def test_a_core_of_another_python_or_processor_is_named(tree: Path, suffix: str, machine: int, kind: str) -> None:
    for module in ("_core", "_cells"):
        (tree / f"{module}{suffix}").write_bytes(head(machine) if machine else b"")
    line = refused(tree.parent)
    assert f"the native core in {tree} was built for {kind}" in line
    assert re.search(rf"\(found _(core|cells){re.escape(suffix)}\), this is {re.escape(HERE + REMEDY)}$", line), line


def test_a_core_that_fits_and_cannot_be_loaded(tree: Path) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    for module in ("_core", "_cells"):
        file = tree / f"{module}{suffix}"
        file.write_bytes(Path(_core.__file__).read_bytes()[:40])
    line = refused(tree.parent)
    assert re.search(rf"the native core {tree}/_c\w+{re.escape(suffix)} cannot be loaded: .*{REMEDY}$", line), line


@pytest.mark.slow
def test_a_package_in_an_archive(tree: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "gradloom"), "zip", tree.parent)
    assert refused(Path(archive)) == (
        f"gradloom: cannot be imported from a zip archive ({archive}): install it with `pip install`"
    )


def test_an_installation_without_its_core(tree: Path) -> None:
    (tree.parent / "gradloom-1.0.dist-info").mkdir()
    assert refused(tree.parent).replace("_cells", "_core") == (
        f"gradloom: the native core _core is missing from the installation in {tree}; "
        "install it again with `pip install --force-reinstall` and the wheel"
    )


def test_a_tree_that_was_never_built(tree: Path) -> None:
    assert refused(tree.parent) == (
        f"gradloom: the native core is not built in {tree}; install it with `pip install .` in the project folder, "
        f"or remove {tree.parent} from PYTHONPATH to use the installed package"
    )


@pytest.mark.parametrize("modules", ["_core, _cells", "_cells, _core"])
def test_errors_of_the_module_that_is_loaded_second(modules: str) -> None:
    """Each reaches Python as its own type, in wheels, too, whose modules hold a C++ library each."""
    code = f"from gradloom import {modules}\n" + (
        "for call in (lambda: _core.use_tuning('x'), lambda: _cells.Splitter('ab')):\n"
        "    try: call()\n"
        "    except ValueError as error: print(error)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"use_tuning x: .*\nseparator: .*\n", printed)


def test_a_core_that_is_loaded_twice_is_named() -> None:
    code = """
import sys, warnings
warnings.simplefilter("ignore")  # of nanobind
for _ in range(2):
    for name in [name for name in sys.modules if name.startswith("gradloom")]: del sys.modules[name]
    import gradloom.run.cpu_backend
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.endswith("its native core can be loaded once in a process: restart Python\n"), done.stderr
