"""Checks of wheels find each fault: contents, metadata, and needs of their modules."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("check_wheels", ROOT / "tools" / "check_wheels.py")
assert spec is not None and spec.loader is not None
wheels: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)

ABOUT = "gradloom-1.0.dist-info"
METADATA = """Metadata-Version: 2.4
Name: gradloom
License-Expression: MIT
License-File: LICENSE
License-File: third_party/nanobind/LICENSE
Provides-Extra: llm
Provides-Extra: test
Provides-Extra: gpu
Provides-Extra: parquet
Provides-Extra: sklearn

# gradloom
"""
BILL = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "nanobind"}]}


def contents(**changed: bytes | None) -> dict[str, bytes]:
    """Files of a wheel, without modules: those of the tree, and RECORD for them; then changed (None: removed)."""
    files = {
        path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
        for path in (ROOT / "src/gradloom").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed", ".wgsl", ".js", ".css")
    }
    files |= {
        f"{ABOUT}/METADATA": METADATA.encode(),
        f"{ABOUT}/licenses/LICENSE": b"MIT",
        f"{ABOUT}/licenses/third_party/nanobind/LICENSE": b"x" * 500,
        f"{ABOUT}/sboms/gradloom.cdx.json": json.dumps(BILL).encode(),
    }
    rows = [f"{file},sha256={digest(text)},{len(text)}\n" for file, text in files.items()]
    files[f"{ABOUT}/RECORD"] = "".join([*rows, f"{ABOUT}/RECORD,,\n"]).encode()
    for file, text in changed.items():
        files[file] = text or b""
        if text is None:
            del files[file]
    return files


def digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")


def faults(files: dict[str, bytes]) -> list[str]:
    checks = (wheels.metadata, wheels.materials, wheels.record)
    return [fault for check in checks for fault in check(files, ABOUT)] + list(wheels.sources(files))


def test_a_wheel_without_fault() -> None:
    assert faults(contents()) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("gradloom/base/arrays.py", b"", "RECORD has another digest or size of gradloom/base/arrays.py"),
        ("gradloom/base/arrays.py", b"", "gradloom/base/arrays.py has other contents than in the tree"),
        ("gradloom/base/arrays.py", None, "the tree and the wheel differ in gradloom/base/arrays.py"),
        ("gradloom/more.py", b"x", "RECORD and the archive differ in gradloom/more.py"),
        ("tests/more.py", b"x", "tests/more.py is outside the package"),
        (f"{ABOUT}/licenses/LICENSE", None, "License-File and licenses/ differ in LICENSE"),
        (f"{ABOUT}/licenses/third_party/nanobind/LICENSE", b"x", "no licence text of nanobind"),
        (f"{ABOUT}/METADATA", METADATA.replace("2.4", "2.1").encode(), "METADATA is of version 2.1, licence MIT"),
        (f"{ABOUT}/METADATA", METADATA.replace(": llm", ": lm").encode(), "METADATA lacks extras"),
        (f"{ABOUT}/METADATA", METADATA.replace("# gradloom", "").encode(), "METADATA has no long description"),
        (f"{ABOUT}/sboms/gradloom.cdx.json", json.dumps(BILL | {"specVersion": "1"}).encode(), "bill of materials"),
    ],
)
def test_faults_of_contents_are_found(file: str, text: bytes | None, found: str) -> None:
    assert any(found in fault for fault in faults(contents(**{file: text})))


def test_a_file_of_a_new_kind_must_be_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    folder = tmp_path / "src/gradloom"
    (folder / "__pycache__").mkdir(parents=True)
    for name in ("table.json", "a.py", "_core.abi3.so", "__pycache__/a.pyc"):
        (folder / name).touch()
    assert list(wheels.sources({"gradloom/a.py": b""})) == ["the tree and the wheel differ in gradloom/table.json"]


LINUX = wheels.Module(
    "x86_64", frozenset({"libc.so.6"}), frozenset({"PyInit__core"}), frozenset({"PyErr_Clear"}), (2, 14), []
)
LINUX_TAG = "manylinux_2_28_x86_64"
MAC = LINUX._replace(machine="aarch64", libraries=frozenset({"/usr/lib/libSystem.B.dylib"}), least=(11, 0))
WINDOWS = LINUX._replace(libraries=frozenset({"python3.dll", "kernel32.dll"}), free=frozenset(), least=())


@pytest.mark.parametrize(
    ("platform", "module", "fault"),
    [
        (LINUX_TAG, LINUX, None),
        (LINUX_TAG, LINUX._replace(least=(2, 29)), "needs version (2, 29), more than (2, 28)"),
        (LINUX_TAG, LINUX._replace(libraries=frozenset({"libstdc++.so.6"})), "needs libstdc++.so.6"),
        (LINUX_TAG, LINUX._replace(free=frozenset({"memcpy"})), "needs memcpy, which none of its libraries has"),
        (LINUX_TAG, LINUX._replace(exports=frozenset({"PyInit__core", "f"})), "exports PyInit__core, f"),
        (LINUX_TAG, LINUX._replace(machine="aarch64"), "is for aarch64, not x86_64"),
        (LINUX_TAG, LINUX._replace(faults=["executable stack"]), "executable stack"),
        ("manylinux_2_28_aarch64", LINUX._replace(machine="aarch64"), None),
        ("musllinux_1_2_x86_64", LINUX._replace(libraries=frozenset({"libc.so"}), least=()), None),
        ("musllinux_1_2_x86_64", LINUX._replace(least=()), "needs libc.so.6"),
        ("macosx_11_0_arm64", MAC, None),
        ("macosx_11_0_arm64", MAC._replace(least=(12, 0)), "needs version (12, 0), more than (11, 0)"),
        ("macosx_11_0_x86_64", MAC, "is for aarch64, not x86_64"),
        ("win_amd64", WINDOWS, None),
        ("win_amd64", WINDOWS._replace(libraries=frozenset()), "imports from no Python, not python3.dll"),
        ("win_amd64", WINDOWS._replace(libraries=frozenset({"python3.dll", "libc++.dll"})), "needs libc++.dll"),
    ],
)  # fmt: skip
def test_needs_that_a_platform_does_not_meet(platform: str, module: Any, fault: str | None) -> None:
    assert list(wheels.unfit(module, "_core", platform, "abi3")) == ([] if fault is None else [fault])


@pytest.mark.parametrize("file", sorted((ROOT / "src/gradloom").glob("_core*.so")))
def test_a_module_of_this_machine_is_read(file: Path) -> None:
    pytest.importorskip("lief")
    module = wheels.read(file.read_bytes())
    assert "PyInit__core" in module.exports and any(name.startswith("Py") for name in module.free)
