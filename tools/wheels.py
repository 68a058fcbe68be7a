"""Builds the wheels of all platforms on one Linux machine, with a compiler that pip installs:

    python -m venv build/wheels && build/wheels/bin/pip install -r tools/wheels.txt
    build/wheels/bin/python tools/wheels.py [PLATFORM...] --out dist
    build/wheels/bin/python tools/check_wheels.py dist/*.whl

Per platform, CMake compiles the native library once, with the C++ compiler of the package ziglang; per interface of
Python, the two modules are compiled against it: for Python 3.10, for 3.11, and for the stable interface of 3.12 and
newer. Only the headers of these interpreters are used, so those of this machine serve all platforms: `python3.10`,
`python3.11` and `python3.12` are looked for in the folders of `--pythons`, then on PATH. Two builds of one commit with
the versions in wheels.txt and the same three interpreters give the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import nanobind
import ziglang
from elftools.elf.elffile import ELFFile
from materials import bill_of_materials, components, with_licenses
from scikit_build_core.build import prepare_metadata_for_build_wheel
from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parent.parent
NANOBIND = Path(nanobind.__file__).parent
PYTHONS = {"cp310": "python3.10", "cp311": "python3.11", "cp312": "python3.12"}
SOURCES = (".py", ".pyi", ".typed", ".wgsl", ".js", ".css")  # of the package
STABLE = "cp312"  # from this version on, one wheel: the stable interface


class Platform(NamedTuple):
    target: str  # of the compiler
    system: str
    suffix: str  # of a module, before .so


PLATFORMS = {
    "manylinux_2_28_x86_64": Platform("x86_64-linux-gnu.2.28", "Linux", "x86_64-linux-gnu"),
    "manylinux_2_28_aarch64": Platform("aarch64-linux-gnu.2.28", "Linux", "aarch64-linux-gnu"),
    "musllinux_1_2_x86_64": Platform("x86_64-linux-musl", "Linux", "x86_64-linux-musl"),
    "macosx_11_0_arm64": Platform("aarch64-macos.11.0", "Darwin", "darwin"),
    "macosx_11_0_x86_64": Platform("x86_64-macos.11.0", "Darwin", "darwin"),
    "win_amd64": Platform("x86_64-windows-gnu", "Windows", "win_amd64"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds wheels of gradloom with the compiler of the package ziglang.")
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"of {', '.join(PLATFORMS)}; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels (dist)")
    parser.add_argument("--pythons", default="", help="folders with the interpreters, separated by ':', before PATH")
    options = parser.parse_args()
    unknown = [name for name in options.platforms if name not in PLATFORMS]
    if unknown:
        parser.error(f"platform {unknown[0]}: must be one of {', '.join(PLATFORMS)}")
    os.environ["PATH"] = ":".join([options.pythons, str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # of the files in the wheels: 1980
    includes = {abi: include_folder(python) for abi, python in PYTHONS.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        package = Package.prepared(Path(folder))
        for name in options.platforms or PLATFORMS:
            build = Build(PLATFORMS[name], Path(folder) / name)
            for abi, include in includes.items():
                path = package.write(options.out, name, abi, build.modules(abi, include))
                print(f"{path.name}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def include_folder(python: str) -> Path:
    return Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]).strip())


class Build:
    """The native library of one platform, and modules linked with it."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform, self.folder = platform, folder
        folder.mkdir()
        for tool in ("ar", "ranlib"):
            self._script(tool, tool)
        self.compiler = self._script("c++", f"c++ -target {platform.target}")
        run([
            "cmake", "-S", str(ROOT), "-B", str(folder / "native"), "-G", "Ninja", "-DGRADLOOM_MODULES=OFF",
            "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={platform.target.split('-')[0]}",  # a library alone
            f"-DCMAKE_CXX_COMPILER={self.compiler}", f"-DCMAKE_AR={folder / 'ar'}",
            f"-DCMAKE_RANLIB={folder / 'ranlib'}", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        ])  # fmt: skip
        run(["ninja", "-C", str(folder / "native")])

    def _script(self, name: str, command: str) -> Path:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
        path.chmod(0o755)
        return path

    def modules(self, abi: str, include: Path) -> dict[str, bytes]:
        """File name -> contents of gradloom._core and gradloom._cells."""
        folder = self.folder / abi
        folder.mkdir()
        windows = self.platform.system == "Windows"
        library = next((self.folder / "native").glob("*native.*"))
        flags = [
            "-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector",
            "-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections", "-DNB_COMPACT_ASSERTIONS",
            "-include", "Python.h", "-include", "cstdio",
            f"-I{NANOBIND / 'include'}", f"-I{NANOBIND / 'ext/robin_map/include'}",
        ]  # fmt: skip
        if windows:
            include = shutil.copytree(include, folder / "include")
            shutil.copy(ROOT / "tools/windows/pyconfig.h", include)
        flags += ["-DPy_LIMITED_API=0x030C0000"] if abi == STABLE else []
        objects = {}
        for name, source in (
            ("nanobind", NANOBIND / "src/nb_combined.cpp"),
            ("_core", ROOT / "csrc/module.cpp"),
            ("_cells", ROOT / "csrc/cells/module.cpp"),
        ):
            objects[name] = str(folder / f"{name}.o")
            extra = ["-DNB_BUILD"] if name == "nanobind" else [f"-DNB_DOMAIN=gradloom{name}"]  # as in CMakeLists.txt
            run([str(self.compiler), *flags, *extra, f"-I{include}", "-c", str(source), "-o", objects[name]])
        exports = folder / "exports.map"  # without it, also operator new and classes of nanobind
        exports.write_text("{ global: PyInit_*; local: *; };\n")
        link = {
            "Linux": ["-Wl,--gc-sections", "-Wl,-s", "-Wl,--build-id=none", f"-Wl,--version-script={exports}"],
            "Darwin": ["-Wl,-undefined,dynamic_lookup", "-Wl,-dead_strip", "-Wl,-s"],
            "Windows": ["-Wl,-s", import_library(folder, abi)] if windows else [],
        }[self.platform.system]
        made = {}
        for name in ("_core", "_cells"):
            file = folder / (name + module_suffix(self.platform, abi))
            own_name = [f"-Wl,-install_name,@rpath/{file.name}"] if self.platform.system == "Darwin" else []
            inputs = [objects[name], objects["nanobind"], str(library)]
            run([str(self.compiler), "-shared", *inputs, "-o", str(file), *link, *own_name])
            made[file.name] = file.read_bytes()
        return made


def module_suffix(platform: Platform, abi: str) -> str:
    if platform.system == "Windows":
        return ".pyd" if abi == STABLE else f".{abi}-{platform.suffix}.pyd"
    return ".abi3.so" if abi == STABLE else f".cpython-{abi[2:]}-{platform.suffix}.so"


def import_library(folder: Path, abi: str) -> str:
    """A library for links on Windows: the names that an interpreter for Linux exports, as those of Python's DLL.
    Names that the DLL lacks are harmless: a module imports only the names that it uses."""
    code = "import sys, sysconfig as s; print(sys.executable, *s.get_config_vars('LIBDIR', 'INSTSONAME'), sep='\\n')"
    python, *library = run([PYTHONS[abi], "-c", code]).splitlines()
    shared = Path(*library)
    with open(shared if shared.suffix != ".a" and shared.exists() else python, "rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        names = sorted({s.name for s in symbols if s.name.startswith(("Py", "_Py")) and s["st_shndx"] != "SHN_UNDEF"})
    dll = "python3.dll" if abi == STABLE else f"python{abi[2:]}.dll"
    definition, made = folder / "python.def", folder / "python.lib"
    definition.write_text("\n".join([f"LIBRARY {dll}", "EXPORTS", *(f"  {name}" for name in names)]) + "\n")
    run([sys.executable, "-m", "ziglang", "dlltool", "-m", "i386:x86-64", "-d", str(definition), "-l", str(made)])
    return str(made)


class Package(NamedTuple):
    """What all wheels have in common."""

    name: str
    version: str
    files: dict[str, bytes]  # path in the wheel -> contents
    about: str  # folder of the metadata

    @classmethod
    def prepared(cls, folder: Path) -> Package:
        os.chdir(ROOT)
        about = prepare_metadata_for_build_wheel(str(folder))
        name, version = about.removesuffix(".dist-info").split("-")
        files = {"gradloom/_version.py": f'version = "{version}"\n'.encode()}
        for path in (ROOT / "src/gradloom").rglob("*"):
            if path.suffix in SOURCES and path.name != "_version.py":
                files[path.relative_to(ROOT / "src").as_posix()] = path.read_bytes()
        for path in (folder / about).rglob("*"):
            if path.is_file() and path.name not in ("RECORD", "WHEEL"):
                files[path.relative_to(folder).as_posix()] = path.read_bytes()
        return cls(name, version, files, about)

    def write(self, out: Path, platform: str, abi: str, modules: dict[str, bytes]) -> Path:
        tag = f"{abi}-{'abi3' if abi == STABLE else abi}-{platform}"
        files = self.files | {f"gradloom/{file}": contents for file, contents in modules.items()}
        files[f"{self.about}/WHEEL"] = (
            f"Wheel-Version: 1.0\nGenerator: gradloom\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
        )
        parts = components(
            PLATFORMS[platform].target,
            (importlib.metadata.version("nanobind"), NANOBIND),
            (importlib.metadata.version("ziglang"), Path(ziglang.__file__).parent),
        )
        files[f"{self.about}/sboms/gradloom.cdx.json"] = bill_of_materials(self.version, platform, parts).encode()
        texts = {f"third_party/{one.name}/{file}": text for one in parts for file, text in one.texts.items()}
        files |= {f"{self.about}/licenses/{path}": text for path, text in texts.items()}
        files[f"{self.about}/METADATA"] = with_licenses(files[f"{self.about}/METADATA"], list(texts))
        path = out / f"{self.name}-{self.version}-{tag}.whl"
        with WheelFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            for file in sorted(files, key=lambda file: (".dist-info/" in file, file)):
                info = zipfile.ZipInfo(file)  # of 1980: the same in every build
                info.external_attr = (0o755 if file.endswith((".so", ".pyd")) else 0o644) << 16
                wheel.writestr(info, files[file], zipfile.ZIP_DEFLATED)
        return path


if __name__ == "__main__":
    main()
