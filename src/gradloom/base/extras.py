"""Optional dependencies: packages that an extra installs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import BackendError

# Extra -> its packages, as in pyproject.toml
EXTRAS = {
    "llm": ("gguf", "tokenizers", "jinja2"),
    "gpu": ("wgpu",),
    "parquet": ("pyarrow",),
    "sklearn": ("scikit-learn",),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboardX",),
    "mpi": ("mpi4py", "mpich"),
}


def install(extra: str) -> str:
    """The command that installs an extra."""
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
