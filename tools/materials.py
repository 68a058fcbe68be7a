"""Bill of materials of a wheel: the libraries that are compiled into its modules or copied into its pages, their
versions and licence texts."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote


class Component(NamedTuple):
    """A library that is linked statically or copied."""

    name: str
    version: str
    license: str  # an SPDX expression
    purl: str  # package URL
    texts: dict[str, bytes]  # file name -> licence text; none where the project's own licenses hold it
    uses: tuple[str, ...] = ()  # names of components


def components(target: str, nanobind: tuple[str, Path], zig: tuple[str, Path]) -> list[Component]:
    """The components of a wheel for a target of the compiler (x86_64-linux-musl); nanobind, zig: version and folder.

    On macOS the system's library unwinds the stack. No part of glibc or musl is linked statically.
    """
    lib, robin = zig[1] / "lib", nanobind[1] / "ext/robin_map/include/tsl/robin_growth_policy.h"
    map_version = ".".join(str(number(robin, f"TSL_RH_VERSION_{part}")) for part in ("MAJOR", "MINOR", "PATCH"))
    known = number(lib / "libcxx/include/__config", "_LIBCPP_VERSION")  # 220108: 22.1.8
    llvm = f"{known // 10000}.{known // 100 % 100}.{known % 100}"
    runtime = ("compiler_rt", "mingw-w64") if "windows" in target else ("compiler_rt",)
    unwind = () if "macos" in target else ("libunwind",)

    def of_llvm(name: str, folder: str, uses: tuple[str, ...]) -> Component:
        text = {"LICENSE.TXT": (lib / folder / "LICENSE.TXT").read_bytes()}
        purl = f"pkg:github/llvm/llvm-project@llvmorg-{llvm}#{folder}"
        return Component(name, llvm, "Apache-2.0 WITH LLVM-exception", purl, text, uses)

    found = [
        Component(
            "nanobind", nanobind[0], "BSD-3-Clause", f"pkg:pypi/nanobind@{nanobind[0]}", {}, ("robin-map", "libc++")
        ),
        Component("robin-map", map_version, "MIT", f"pkg:github/tessil/robin-map@v{map_version}", {}, ("libc++",)),
        of_llvm("libc++", "libcxx", ("libc++abi", *runtime)),
        of_llvm("libc++abi", "libcxxabi", (*unwind, *runtime)),
        Component(
            "compiler_rt", zig[0], "MIT", f"pkg:github/ziglang/zig@{zig[0]}#lib/compiler_rt",
            {"LICENSE": (zig[1] / "LICENSE").read_bytes()},
        ),
    ]  # fmt: skip
    found.append(Component("uPlot", plot := version_of_plot(), "MIT", f"pkg:npm/uplot@{plot}", {}))
    if unwind:
        found.append(of_llvm("libunwind", "libunwind", runtime))
    if "windows" in target:
        header = lib / "libc/include/any-windows-any/_mingw_mac.h"
        version = ".".join(str(number(header, f"__MINGW64_VERSION_{part}")) for part in ("MAJOR", "MINOR", "BUGFIX"))
        text = {"COPYING": (lib / "libc/mingw/COPYING").read_bytes()}
        found.append(Component("mingw-w64", version, "ZPL-2.1", f"pkg:generic/mingw-w64@{version}", text))
    return sorted(found)


def number(header: Path, name: str) -> int:
    """The whole number that a header defines under this name."""
    found = re.search(rf"^#\s*define\s+{name}\s+(\d+)", header.read_text(), re.M)
    assert found, f"{header} defines no {name}"
    return int(found[1])


def version_of_plot() -> str:
    """The version in the first line of the script that pages of curves contain."""
    script = Path(__file__).parent.parent / "src/gradloom/reports/assets/uplot.min.js"
    found = re.match(r".*uPlot \(v([0-9.]+)\)", script.read_text())
    assert found, f"{script} has no version in its first line"
    return found[1]


def bill_of_materials(version: str, platform: str, parts: list[Component]) -> str:
    """The form CycloneDX 1.6, in JSON (PEP 770)."""

    def described(one: Component) -> dict[str, object]:
        return {
            "type": "library", "bom-ref": one.name, "name": one.name, "version": one.version,
            "licenses": [{"expression": one.license}], "purl": one.purl,
        }  # fmt: skip

    direct = ("nanobind", "libc++", "compiler_rt", "uPlot", *(one.name for one in parts if one.name == "mingw-w64"))
    own = Component("gradloom", version, "MIT", f"pkg:pypi/gradloom@{quote(version)}", {}, direct)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'gradloom {version} {platform}')}",
        "version": 1,
        "metadata": {"component": described(own)},
        "components": [described(one) for one in parts],
        "dependencies": [{"ref": one.name, "dependsOn": sorted(one.uses)} for one in (own, *parts)],
    }
    return json.dumps(document, indent=1) + "\n"


def with_licenses(metadata: bytes, files: list[str]) -> bytes:
    """METADATA with a line for each of these licence files, next to those that it has."""
    text = metadata.decode()
    lines = "".join(f"License-File: {file}\n" for file in files)
    last = text.index("\n", text.rindex("\nLicense-File: ") + 1) + 1
    return (text[:last] + lines + text[last:]).encode()
