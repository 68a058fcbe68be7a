"""Packages that gradloom requires, and optional ones that an extra installs."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import BackendError

# Required package -> the name that is imported, and the use, as in pyproject.toml
REQUIRED = {
    "numpy": ("numpy", "everything"),
    "ml_dtypes": ("ml_dtypes", "bf16"),
    "safetensors": ("safetensors", "saved models"),
    "click": ("click", "the command"),
    "msgspec": ("msgspec", "settings"),
    "tomli-w": ("tomli_w", "settings files"),
}
if sys.version_info < (3, 11):
    REQUIRED["tomli"] = ("tomli", "settings files")  # the standard library reads them from then on
if sys.platform == "win32":
    REQUIRED["colorama"] = ("colorama", "the progress bar")

# Extra -> its packages, as in pyproject.toml
EXTRAS = {
    "llm": ("gguf", "tokenizers", "jinja2"),
    "gpu": ("wgpu",),
    "parquet": ("pyarrow",),
    "images": ("pillow",),
    "sklearn": ("scikit-learn",),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboardX",),
    "onnx": ("onnx",),
    "mpi": ("mpi4py", "mpich"),
}


def need_required() -> None:
    """BackendError unless all required packages are installed. Imports none of them."""
    if missing := _missing_requirements():
        raise BackendError(missing)


def broken_requirement(error: ImportError | AttributeError) -> str | None:
    """The line for a required package that is not installed, too old or cannot be imported; None if it is about
    another."""
    if missing := _missing_requirements():
        return missing
    if outdated := outdated_requirements():
        return outdated[0]
    if not isinstance(error, ImportError):
        return None
    modules = {module: package for package, (module, _) in REQUIRED.items()}
    frames = traceback.walk_tb(error.__traceback__)
    names = [*(frame.f_globals.get("__name__", "") for frame, _ in frames), error.name or ""]
    broken = [modules[top] for top in (name.split(".")[0] for name in names) if top in modules]
    if not broken:
        return None
    reason = next(iter(str(error.__cause__ or error).strip().splitlines()), "ImportError")
    return f"{broken[-1]} cannot be imported: {reason}; run `pip install --force-reinstall {broken[-1]}`"


def _missing_requirements() -> str | None:
    missing = [package for package, (module, _) in REQUIRED.items() if find_spec(module) is None]
    return f"requires {', '.join(missing)}, not installed; run `pip install {' '.join(missing)}`" if missing else None


def outdated_requirements() -> list[str]:
    """A line for each installed package of another version than gradloom requires, extras included. Empty in a source
    tree that is not installed."""
    from importlib import metadata  # takes 10 ms

    try:
        required = metadata.requires("gradloom") or []
    except metadata.PackageNotFoundError:
        return []
    found = {}
    for line in required:
        name, limits = re.match(r"([\w.-]+)\s*(?:\[.*?\])?\s*\(?([^;)]*)", line).groups()  # type: ignore[union-attr]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        limits = ",".join(sorted(limits.replace(" ", "").split(","), reverse=True))
        if not all(_within(version, limit) for limit in limits.split(",") if limit):
            found[name] = f"{name} {version} is installed; need {limits}; run `pip install '{name}{limits}'`"
    return list(found.values())


_COMPARED: dict[str, Callable[[list[int], list[int]], bool]] = {">=": lambda a, b: a >= b, "<": lambda a, b: a < b}


def _within(version: str, limit: str) -> bool:
    """Whether a version satisfies one limit such as >=1.26. Limits of other kinds count as satisfied."""
    kind, number = re.match(r"([<>=!~]*)(.*)", limit).groups()  # type: ignore[union-attr]
    return kind not in _COMPARED or _COMPARED[kind](_numbers(version), _numbers(number))


def _numbers(version: str) -> list[int]:
    """The numbers of a version before any letter, without zeros at the end."""
    found = [int(n) for n in re.match(r"[\d.]*", version)[0].split(".") if n]  # type: ignore[index]
    while found and not found[-1]:
        found.pop()
    return found


def install(extra: str) -> str:
    """The command that installs an extra, and the Python that it needs where this one is too old."""
    if extra == "gpu" and sys.version_info < (3, 11):
        return f"pip install 'gradloom[{extra}]' with Python 3.11 or newer"
    return f"pip install 'gradloom[{extra}]'"


def optional(module: str, place: str, extra: str) -> Any:
    """Import a module of an extra's package; BackendError with the command that installs it. place: for the message."""
    try:
        return import_module(module)
    except ImportError:
        raise missing(place, extra) from None


def need_llm() -> None:
    """BackendError unless all packages of the extra llm are installed. Imports none of them."""
    if any(find_spec(name) is None for name in EXTRAS["llm"]):
        raise missing("language model", "llm")


def missing(place: str, extra: str) -> BackendError:
    """The error for an extra that is not installed: to be raised."""
    packages = ", ".join(EXTRAS[extra])
    return BackendError(f"{place}: requires {packages}, not installed; run {install(extra)}")
