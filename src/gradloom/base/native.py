"""The error of an installation whose native modules cannot be imported."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES

PACKAGE = "gradloom"

_CPUS = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}  # names of one processor -> the one shown
_ELF = {3: "x86", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}  # e_machine
_MACH = {0x01000007: "x86-64", 0x0100000C: "aarch64"}  # cputype
_STABLE = (3, 12)  # the oldest version whose stable interface the wheels use
_HEADER_BYTES = 20


def core_error(module: str, cause: ImportError) -> ImportError:
    """The error for a native module (_core or _cells) that cannot be imported, with the remedy: to be raised.

    It names the files of this module in the package with the Python and the processor that they belong to, and those of
    this process. A package in an archive, and a source tree that was never built, have errors of their own.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return ImportError(f"gradloom: {_reason(folder, module, cause)}", name=PACKAGE)


def _reason(folder: str, module: str, cause: ImportError) -> str:
    if not os.path.isdir(folder):
        return f"cannot be imported from a zip archive ({_archive(folder)}): install it with `pip install`"
    found = sorted(name for name in os.listdir(folder) if re.fullmatch(rf"{module}\.(.*\.)?(so|pyd)", name))
    if not found and _is_installed(folder):
        missing = f"the native core {module} is missing from the installation in {folder}"
        return f"{missing}; install it again with `pip install --force-reinstall` and the wheel"
    if not found:
        return (
            f"the native core is not built in {folder}; install it with `pip install .` in the project folder, "
            f"or remove {os.path.dirname(folder)} from PYTHONPATH to use the installed package"
        )
    here = f"{_interpreter()} {_machine()}"
    remedy = "install the wheel of this one, or build from source with `pip install .`"
    fitting = [os.path.join(folder, name) for name in found if _fits(name, module)]
    if fitting and _machine_of(fitting[0]) == _machine():
        return f"the native core {fitting[0]} cannot be loaded: {cause}; {remedy}"
    kinds = ", ".join(dict.fromkeys(_kind(folder, name, module) for name in found))
    return f"the native core in {folder} was built for {kinds} (found {', '.join(found)}), this is {here}; {remedy}"


def _is_installed(folder: str) -> bool:
    """Whether the package is an installed one, not a source tree: pip's notes lie beside it."""
    beside = os.listdir(os.path.dirname(folder))
    return any(re.fullmatch(rf"{PACKAGE}-.*\.dist-info", name) for name in beside)


def _archive(folder: str) -> str:
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def _fits(name: str, module: str) -> bool:
    """Whether this interpreter would load a file of this name."""
    suffix = name.removeprefix(module)
    return suffix in EXTENSION_SUFFIXES and (sys.version_info >= _STABLE or not _is_stable(suffix))


def _is_stable(suffix: str) -> bool:
    return suffix in (".abi3.so", ".pyd")


def _kind(folder: str, name: str, module: str) -> str:
    """Interpreter, processor and system that a file was built for, such as CPython 3.11 x86-64 on Linux."""
    suffix = name.removeprefix(module)
    version = re.match(r"\.(?:cpython-|cp)(\d)(\d+)(t?)", suffix)
    if version:
        python = f"CPython {version[1]}.{version[2]}{' free-threaded' * bool(version[3])}"
    elif _is_stable(suffix):
        python = f"CPython {_STABLE[0]}.{_STABLE[1]} or newer"
    else:
        python = suffix.split(".")[1].split("-")[0]
    return f"{python} {_machine_of(os.path.join(folder, name))}"


def _machine_of(path: str) -> str:
    """Processor and system of a native module, from its first bytes; the C library from its name."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER_BYTES)
    except OSError as error:
        return f"unknown ({error.strerror})"
    if head[:4] == b"\x7fELF":
        number = head[18] + 256 * head[19] if head[5:6] != b"\x02" else head[19] + 256 * head[18]
        return f"{_ELF.get(number, 'another processor')} on Linux{_musl(path)}"
    if head[:4] == b"\xcf\xfa\xed\xfe":
        return f"{_MACH.get(int.from_bytes(head[4:8], 'little'), 'another processor')} on macOS"
    return "x86-64 on Windows" if head[:2] == b"MZ" else "an unknown system"


def _interpreter() -> str:
    free = " free-threaded" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}{free}"


def _machine() -> str:
    """Processor and system of this interpreter."""
    machine = platform.machine().lower()
    system = "macOS" if platform.system() == "Darwin" else platform.system()
    return f"{_CPUS.get(machine, machine)} on {system}{_musl(EXTENSION_SUFFIXES[0])}"


def _musl(name: str) -> str:
    return " (musl)" if name.endswith("-musl.so") else ""
