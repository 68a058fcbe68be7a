"""Checks wheels of tools/wheels.py: contents, metadata, and what their modules need of a system.

    build/wheels/bin/python tools/check_wheels.py dist/*.whl

Prints a line per wheel: its size, its size installed, and the libraries and the minimum version of the system that its
modules need. Faults are listed below it; then the exit code is 1.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import lief

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("_core", "_cells")
GLIBC = (2, 28)
MACOS = (11, 0)
COMPILED = (".so", ".pyd", ".pyc")
DYNAMIC_LOOKUP = 0xFE
WEAK = ("__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable")  # of ELF: may be missing
# zig's linkers for Mach-O and PE have no list of exported symbols. Of weak ones (operator new and delete, types of
# nanobind's exceptions), dyld takes those of one library for all; Windows finds symbols by their library.
UNHIDDEN = re.compile(r"_Z(nw|na|dl|da|TI|TS|TV)\w+|__dso_handle|_mh_dylib_header")
MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "amd64": "x86_64"}
LIBRARIES = {  # of the system, which every installation has
    "manylinux": r"(libc|libm|libpthread|libdl|librt)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d",
    "musllinux": r"libc\.so|libc\.musl-x86_64\.so\.1",
    "macosx": r"/usr/lib/libSystem\.B\.dylib",
    "win": r"python3(\d\d)?\.dll|kernel32\.dll|api-ms-win-crt-\w+-l1-1-0\.dll",
}


class Module(NamedTuple):
    """What the file of a module states."""

    machine: str
    libraries: frozenset[str]
    exports: frozenset[str]
    free: frozenset[str]  # names that are found in whatever is loaded: those of Python
    least: tuple[int, ...]  # version of glibc or macOS; () without one
    faults: list[str]


def check(path: Path) -> tuple[list[str], str]:
    """Faults of a wheel, one per line, and a summary of it."""
    name, version, python, abi, platform = path.stem.split("-")
    with zipfile.ZipFile(path) as archive:
        files = {one.filename: archive.read(one) for one in archive.infolist()}
        size = sum(one.file_size for one in archive.infolist())
    about = f"{name}-{version}.dist-info"
    faults = [*record(files, about), *metadata(files, about), *materials(files, about), *sources(files)]
    if f"\nTag: {python}-{abi}-{platform}\n" not in files[f"{about}/WHEEL"].decode():
        faults.append("WHEEL has another tag than the file's name")
    found = {file: contents for file, contents in files.items() if file.endswith((".so", ".pyd", ".dll", ".dylib"))}
    suffix = ".pyd" if platform.startswith("win") else ".so"
    if sorted(found) != sorted(f"gradloom/{one}.{middle(abi, platform)}{suffix}".replace("..", ".") for one in MODULES):
        faults.append(f"modules are {', '.join(sorted(found))}")
    needs = []
    for file, contents in found.items():
        module = read(contents)
        needs.append(module)
        faults += [f"{file}: {fault}" for fault in unfit(module, Path(file).name.split(".")[0], platform, abi)]
    libraries = sorted(frozenset[str]().union(*(one.libraries for one in needs)))
    least = ".".join(map(str, max((one.least for one in needs), default=())))
    return (
        faults,
        f"{path.stat().st_size / 1e6:.2f} MB, {size / 1e6:.2f} MB installed; {least or '-'}; {' '.join(libraries)}",
    )


def middle(abi: str, platform: str) -> str:
    """Between the name of a module and .so or .pyd."""
    windows = platform.startswith("win")
    if abi == "abi3":
        return "" if windows else "abi3"
    if windows:
        return f"{abi}-{platform}"
    if platform.startswith("macosx"):
        return f"cpython-{abi[2:]}-darwin"
    machine = "aarch64" if platform.endswith("aarch64") else "x86_64"
    return f"cpython-{abi[2:]}-{machine}-linux-{'musl' if 'musl' in platform else 'gnu'}"


def record(files: dict[str, bytes], about: str) -> Iterator[str]:
    """RECORD lists every file with its digest and size."""
    own = f"{about}/RECORD"
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[own].decode()))}
    if listed.keys() != files.keys():
        yield f"RECORD and the archive differ in {', '.join(sorted(listed.keys() ^ files.keys()))}"
    for file, contents in files.items():
        digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).decode().rstrip("=")
        if file != own and listed.get(file) != [digest, str(len(contents))]:
            yield f"RECORD has another digest or size of {file}"
        if not file.startswith(("gradloom/", f"{about}/")):
            yield f"{file} is outside the package"


def metadata(files: dict[str, bytes], about: str) -> Iterator[str]:
    """METADATA 2.4 lists the licence files, no more and no fewer than there are."""
    head = message_from_bytes(files[f"{about}/METADATA"])
    if head["Metadata-Version"] != "2.4" or head["License-Expression"] != "MIT":
        yield f"METADATA is of version {head['Metadata-Version']}, licence {head['License-Expression']}"
    listed = head.get_all("License-File", [])
    there = [file.removeprefix(f"{about}/licenses/") for file in files if file.startswith(f"{about}/licenses/")]
    if sorted(listed) != sorted(there):
        yield f"License-File and licenses/ differ in {', '.join(sorted({*listed} ^ {*there}))}"
    if not {"llm", "test", "gpu", "parquet", "sklearn"} <= {*head.get_all("Provides-Extra", [])}:
        yield "METADATA lacks extras"
    if "# gradloom" not in str(head.get_payload()):
        yield "METADATA has no long description"


def materials(files: dict[str, bytes], about: str) -> Iterator[str]:
    """Each component of the bill of materials has a licence text."""
    document = json.loads(files[f"{about}/sboms/gradloom.cdx.json"])
    if (document["bomFormat"], document["specVersion"]) != ("CycloneDX", "1.6") or not document["components"]:
        yield "the bill of materials is not of CycloneDX 1.6, or lists nothing"
    for one in document["components"]:
        texts = [file for file in files if file.startswith(f"{about}/licenses/third_party/{one['name']}/")]
        if not texts or any(len(files[file]) < 500 for file in texts):
            yield f"no licence text of {one['name']}"


def sources(files: dict[str, bytes]) -> Iterator[str]:
    """All files of the package in this tree but compiled ones, and no others."""
    folder = ROOT / "src"
    paths = [one for one in (folder / "gradloom").rglob("*") if one.is_file() and one.suffix not in COMPILED]
    tree = {one.relative_to(folder).as_posix() for one in paths}
    there = {file for file in files if file.startswith("gradloom/") and not file.endswith((".so", ".pyd"))}
    if differ := (tree ^ there) - {"gradloom/_version.py"}:
        yield f"the tree and the wheel differ in {', '.join(sorted(differ))}"
    for file in sorted(tree & there - {"gradloom/_version.py"}):
        if (folder / file).read_bytes() != files[file]:
            yield f"{file} has other contents than in the tree"


def unfit(module: Module, name: str, platform: str, abi: str) -> Iterator[str]:
    """Why a module cannot be loaded on some systems of the platform."""
    if module.machine != (machine := MACHINES[re.split(r"_(?=x86_64|a)", platform)[-1]]):
        yield f"is for {module.machine}, not {machine}"
    allowed = LIBRARIES[re.match(r"[a-z]+", platform)[0]]  # type: ignore[index]
    if others := [one for one in sorted(module.libraries) if not re.fullmatch(allowed, one)]:
        yield f"needs {', '.join(others)}"
    pythons = {one for one in module.libraries if one.startswith("python")}
    dll = "python3.dll" if abi == "abi3" else f"python{abi[2:]}.dll"
    if platform.startswith("win") and pythons != {dll}:
        yield f"imports from {', '.join(sorted(pythons)) or 'no Python'}, not {dll}"
    if module.exports != {f"PyInit_{name}"}:
        yield f"exports {', '.join(sorted(module.exports)) or 'nothing'}"
    limit = {"manylinux": GLIBC, "macosx": MACOS}.get(re.match(r"[a-z]+", platform)[0], ())  # type: ignore[index]
    if strange := [one for one in sorted(module.free) if not one.startswith(("Py", "_Py"))]:
        yield f"needs {', '.join(strange)}, which none of its libraries has"
    yield from module.faults
    if limit and not () < module.least <= limit:
        yield f"needs version {module.least}, more than {limit}"


def read(contents: bytes) -> Module:
    """A module in the form ELF, Mach-O or PE."""
    import lief

    lief.logging.disable()  # "can't read value", of modules of macOS
    file = lief.parse(contents)
    if isinstance(file, lief.ELF.Binary):
        return read_elf(file)
    return read_mach_o(file) if isinstance(file, lief.MachO.Binary) else read_pe(file)


def read_elf(file: lief.ELF.Binary) -> Module:
    tags = {one.tag.name for one in file.dynamic_entries} & {"RPATH", "RUNPATH", "TEXTREL"}
    needs = [one.name for needed in file.symbols_version_requirement for one in needed.get_auxiliary_symbols()]
    versions = [tuple(map(int, name[6:].split("."))) for name in needs if name.startswith("GLIBC_")]
    free = [one.name for one in file.imported_symbols if needs and not one.symbol_version.has_auxiliary_version]
    return Module(
        {"X86_64": "x86_64", "AARCH64": "aarch64"}[file.header.machine_type.name],
        frozenset(file.libraries),
        frozenset(one.name for one in file.exported_symbols),
        frozenset(one for one in free if one not in WEAK),
        max(versions, default=()),
        [*sorted(tags), *([] if file.has_nx else ["executable stack"])],
    )


def read_mach_o(file: lief.MachO.Binary) -> Module:
    version = file.build_version.minos if file.has_build_version else file.version_min.version
    free = [one.name for one in file.imported_symbols if one.library_ordinal == DYNAMIC_LOOKUP]
    return Module(
        {"X86_64": "x86_64", "ARM64": "aarch64"}[file.header.cpu_type.name],
        frozenset(one.name for one in file.libraries if one.command.name != "ID_DYLIB"),
        hidden(one.name.removeprefix("_") for one in file.exported_symbols),
        frozenset(one.removeprefix("_") for one in free),
        tuple(version[:2]),
        ["rpath"] if file.has_rpath else [],
    )


def hidden(names: Iterable[str]) -> frozenset[str]:
    """The exported names that a linker could hide."""
    return frozenset(one for one in names if not UNHIDDEN.fullmatch(one))


def read_pe(file: lief.PE.Binary) -> Module:
    return Module(
        {"AMD64": "x86_64", "ARM64": "aarch64"}[file.header.machine.name],
        frozenset(one.name.lower() for one in file.imports),
        hidden(one.name for one in file.get_export().entries),
        frozenset(),
        (),
        [] if file.has_nx and file.is_pie else ["no NX or no ASLR"],
    )


def main(paths: list[str]) -> int:
    failed = False
    for path in map(Path, paths):
        faults, summary = check(path)
        print(f"{path.name}  {summary}", *(f"  {fault}" for fault in faults), sep="\n", flush=True)
        failed = failed or bool(faults)
    return int(failed or not paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
