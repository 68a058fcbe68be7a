"""Without a required package one line names it and the command that installs it; doctor still reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradloom.base.extras import REQUIRED
from tests import processes

DIGITS = str(Path(__file__).parents[2] / "examples" / "data" / "digits.npz")
WITHOUT = """
import sys
from importlib import metadata
gone, package = sys.argv[1:3]
sys.modules[gone] = None
version = metadata.version
def version_without(name):
    if name == package:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = version_without
sys.argv = ["gradloom", *sys.argv[3:]]
from gradloom.cli.start import main
sys.exit(main())
"""
BROKEN = "import sys; from gradloom.cli.start import main; sys.argv[0] = 'gradloom'; sys.exit(main())"
PACKAGES = [(module, package) for package, (module, _) in REQUIRED.items()]


def run(code: str, *words: str, path: Path | None = None) -> tuple[int, str, str]:
    env = processes.environment()
    if path is not None:
        env["PYTHONPATH"] = f"{path}:{env['PYTHONPATH']}"
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("module", "package"), PACKAGES)
def test_a_command_names_the_package(tmp_path: Path, module: str, package: str) -> None:
    line = f"gradloom: requires {package}, not installed; run `pip install {package}`\n"
    for words in (("fit", DIGITS, "--out", str(tmp_path / "run")), ("info", "m.gguf"), ("runs", str(tmp_path))):
        assert run(WITHOUT, module, package, *words) == (2, "", line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "package"), PACKAGES)
def test_doctor_reports_as_far_as_it_can(module: str, package: str) -> None:
    code, out, err = run(WITHOUT, module, package, "doctor", "--quick")
    if package == "click":
        assert (code, out, err) == (2, "", "gradloom: requires click, not installed; run `pip install click`\n")
    else:
        problem = (
            f"problem: the package {package} ({REQUIRED[package][1]}) is not installed; run `pip install {package}`"
        )
        assert code == 1 and err == "" and out.count(f"`pip install {package}`") == 1 and problem in out, out
        assert ("\ncore           none\n" in out) == (package in ("numpy", "ml_dtypes"))


@pytest.mark.parametrize(("module", "package"), PACKAGES)
def test_a_package_that_cannot_be_imported(tmp_path: Path, module: str, package: str) -> None:
    """Such as one of another Python, whose own parts are missing."""
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("raise ImportError('no part _x\\n\\nplease read this')\n")
    words = ("fit", DIGITS, "--epochs", "1", "--out", str(tmp_path / "run"))
    if module == "safetensors":
        words = ("info", str(tmp_path / "m.safetensors"))
        (tmp_path / "m.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    line = f"gradloom: {package} cannot be imported: no part _x; run `pip install --force-reinstall {package}`\n"
    code, _, err = run(BROKEN, *words, path=tmp_path)
    assert code == 2 and err.endswith(line) and "Traceback" not in err, err


OTHER_VERSION = """
import sys
from importlib import metadata
version, (package, other) = metadata.version, sys.argv[1:3]
metadata.version = lambda name: other if name == package else version(name)
metadata.requires = lambda name: [
    "numpy>=1.26", "click>=8.1", "wgpu<0.33,>=0.32; extra == 'gpu'", "gradloom[llm]; extra == 'test'", "absent>=9"
]
if sys.argv[3]:
    import numpy
    del numpy.ndarray
sys.argv = ["gradloom", *sys.argv[4:]]
from gradloom.cli.start import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("package", "version", "limits"),
    [("numpy", "1.24.4", ">=1.26"), ("click", "7.1.2", ">=8.1"), ("wgpu", "0.33.1", ">=0.32,<0.33")],
)
def test_doctor_compares_versions(package: str, version: str, limits: str) -> None:
    line = f"problem: {package} {version} is installed; need {limits}; run `pip install '{package}{limits}'`\n"
    code, out, _ = run(OTHER_VERSION, package, version, "", "doctor", "--quick")
    assert code == 1 and line in out, out


@pytest.mark.parametrize("version", ["1.26", "1.26.0rc1", "2.0"])
def test_versions_that_are_enough(version: str) -> None:
    assert "need >=" not in run(OTHER_VERSION, "numpy", version, "", "doctor", "--quick")[1]


def test_a_command_names_a_package_that_is_too_old(tmp_path: Path) -> None:
    """Such as NumPy without an attribute that is used."""
    words = ("fit", DIGITS, "--out", str(tmp_path / "run"))
    line = "gradloom: numpy 1.24.4 is installed; need >=1.26; run `pip install 'numpy>=1.26'`\n"
    assert run(OTHER_VERSION, "numpy", "1.24.4", "broken", *words) == (2, "", line)


def test_doctor_names_a_package_without_its_module() -> None:
    code, out, err = run(WITHOUT, "msgspec", "", "doctor", "--quick")
    line = "problem: the package msgspec (settings) is installed without its module msgspec; "
    assert (code, err) == (1, "") and f"{line}run `pip install --force-reinstall msgspec`\n" in out, out
