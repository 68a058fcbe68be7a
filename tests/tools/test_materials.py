"""The bill of materials of a wheel lists what its modules hold; metadata and licence texts of the project."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("materials", ROOT / "tools" / "materials.py")
assert spec is not None and spec.loader is not None
materials: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(materials)

ALL = {"nanobind", "robin-map", "libc++", "libc++abi", "compiler_rt", "uPlot"}
TARGETS = {
    "x86_64-linux-gnu.2.28": ALL | {"libunwind"},
    "x86_64-linux-musl": ALL | {"libunwind"},
    "aarch64-macos.11.0": ALL,
    "x86_64-windows-gnu": ALL | {"libunwind", "mingw-w64"},
}


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """The files of the package ziglang that are read."""
    texts = {
        "LICENSE": "MIT of Zig",
        "lib/libcxx/include/__config": "#  define _LIBCPP_VERSION 220108\n",
        "lib/libc/include/any-windows-any/_mingw_mac.h": "".join(
            f"#define __MINGW64_VERSION_{part} {n}\n" for part, n in (("MAJOR", 15), ("MINOR", 0), ("BUGFIX", 1))
        ),
        "lib/libc/mingw/COPYING": "ZPL",
    } | {f"lib/{name}/LICENSE.TXT": f"LLVM of {name}" for name in ("libcxx", "libcxxabi", "libunwind")}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def binding(tmp_path: Path) -> Path:
    header = tmp_path / "nanobind/ext/robin_map/include/tsl/robin_growth_policy.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        "".join(f"#define TSL_RH_VERSION_{p} {n}\n" for p, n in (("MAJOR", 1), ("MINOR", 4), ("PATCH", 0)))
    )
    return tmp_path / "nanobind"


@pytest.mark.parametrize("target", TARGETS)
def test_each_component_has_version_licence_and_purl(target: str, compiler: Path, binding: Path) -> None:
    parts = materials.components(target, ("2.9", binding), ("0.17.1", compiler))
    document = json.loads(materials.bill_of_materials("1.0", target, parts))
    found = {one["name"]: one for one in document["components"]}
    assert found.keys() == TARGETS[target] and len(document["components"]) == len(found)
    for name, one in found.items():
        assert one["bom-ref"] == name and re.fullmatch(r"\d+(\.\d+)+", one["version"])
        assert one["purl"].startswith("pkg:") and one["version"] in one["purl"] and one["licenses"][0]["expression"]
    assert found["libc++"]["version"] == "22.1.8" and found["robin-map"]["version"] == "1.4.0"
    if "windows" in target:
        assert found["mingw-w64"]["version"] == "15.0.1" and found["mingw-w64"]["licenses"] == [
            {"expression": "ZPL-2.1"}
        ]


@pytest.mark.parametrize("target", TARGETS)
def test_dependencies_reach_every_component_and_no_other(target: str, compiler: Path, binding: Path) -> None:
    parts = materials.components(target, ("2.9", binding), ("0.17.1", compiler))
    document = json.loads(materials.bill_of_materials("1.0", target, parts))
    uses = {one["ref"]: one["dependsOn"] for one in document["dependencies"]}
    assert uses.keys() == {"gradloom", *TARGETS[target]} and len(document["dependencies"]) == len(uses)
    reached, waiting = set(), [document["metadata"]["component"]["bom-ref"]]
    while waiting:
        reached.add(name := waiting.pop())
        waiting += set(uses[name]) - reached
    assert reached == uses.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_each_component_has_its_licence_text(target: str, compiler: Path, binding: Path) -> None:
    for one in materials.components(target, ("2.9", binding), ("0.17.1", compiler)):
        assert one.texts or (ROOT / "third_party" / one.name / "LICENSE").stat().st_size > 500, one.name


def test_metadata_lists_further_licence_files() -> None:
    before = b"Metadata-Version: 2.4\nLicense-File: LICENSE\nLicense-File: b\nName: x\n\nText\n"
    after = materials.with_licenses(before, ["c/D", "e"])
    assert after == before.replace(b"File: b\n", b"File: b\nLicense-File: c/D\nLicense-File: e\n")


@pytest.mark.skipif(importlib.util.find_spec("nanobind") is None, reason="needs nanobind")
def test_licence_texts_are_those_of_the_packages() -> None:
    files = importlib.metadata.files("nanobind") or ()
    (own,) = [file for file in files if file.name == "LICENSE" and "dist-info" in str(file)]
    text = (ROOT / "third_party/nanobind/LICENSE").read_text()
    assert text == own.read_text()
    (header,) = [file for file in files if file.name == "robin_map.h"]
    comment = re.sub(r"^ \* ?", "", header.read_text().split("*/")[0], flags=re.M)
    assert (ROOT / "third_party/robin-map/LICENSE").read_text().strip() in comment


def test_the_long_description_has_no_links_into_the_repository() -> None:
    """They are dead in a package index."""
    assert re.findall(r"\]\((?!https?://)[^)]*\)|src=|href=", (ROOT / "docs/package.md").read_text()) == []


def test_the_licence_of_the_project_is_an_expression() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^license = "MIT"$', text, re.M) and "License ::" not in text
    (listed,) = re.findall(r"^license-files = \[(.*)\]$", text, re.M)
    files = {str(path.relative_to(ROOT)) for name in re.findall(r'"(.*?)"', listed) for path in ROOT.glob(name)}
    assert files == {"LICENSE", *(f"third_party/{name}/LICENSE" for name in ("nanobind", "robin-map", "uPlot"))}
