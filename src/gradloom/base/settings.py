"""Every environment variable of gradloom, declared once. `gl.compile` takes arguments of the same names.

| variable           | argument  | meaning                                                                         |
|--------------------|-----------|---------------------------------------------------------------------------------|
| GRADLOOM_REUSE     | reuse     | 0: no two buffers share bytes                                                   |
| GRADLOOM_INPLACE   | inplace   | 0: no output takes an input's buffer                                            |
| GRADLOOM_FUSE      | fuse      | 0: no node is fused                                                             |
| GRADLOOM_POISON    | poison    | 1: dead ranges and scratch are filled with NaN                                  |
| GRADLOOM_ISA       | isa       | scalar, avx2, avx512, ... (`gradloom doctor`); the machine's best when unset    |
| GRADLOOM_PRECISION | precision | f32, or bf16: operands of products are rounded to bf16 (docs/precision.md)      |
| GRADLOOM_FLUSH     | flush     | 1: denormal numbers are 0, other bits; 1 when unset for bf16, 0 for f32          |
| GRADLOOM_THREADS   | threads   | number of threads; the machine's cores when unset                               |
| GRADLOOM_DEBUG     | debug     | 0..4: plan; time per step; program after each pass; bytecode, printed to stderr |
| GRADLOOM_CHECK     | check     | 2: guard bytes round every buffer and a scan for NaN after each step            |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from .arguments import as_bool, as_whole
from .errors import SettingError


def _read_int(name: str, default: int | None, low: int, high: int) -> int | None:
    text = os.environ.get(name, "")
    if text == "":
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise SettingError(setting=name, seen=text, need=f"a whole number from {low} to {high}")
    return value


def core_count() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


@dataclass(frozen=True)
class Switches:
    """How a graph is compiled and run; every field is an argument of `gl.compile`."""

    reuse: bool = True
    inplace: bool = True
    fuse: bool = True
    poison: bool = False
    isa: str | None = None
    precision: str = "f32"
    flush: bool = False
    threads: int = 1
    debug: int = 0
    check: int = 0


Precision = Literal["f32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("f32", "bf16")


def as_precision(given: str | None) -> Precision:
    """The precision of products: the argument, else the environment's, else "f32"; SettingError for another one."""
    name, value = "precision", given
    if given is None:
        name, value = "GRADLOOM_PRECISION", os.environ.get("GRADLOOM_PRECISION") or PRECISIONS[0]
    for known in PRECISIONS:
        if value == known:
            return known
    raise SettingError(setting=name, seen=value, need=" or ".join(PRECISIONS))


def switches(
    *,
    reuse: bool | None = None,
    inplace: bool | None = None,
    fuse: bool | None = None,
    poison: bool | None = None,
    isa: str | None = None,
    precision: str | None = None,
    flush: bool | None = None,
    threads: int | None = None,
    debug: int | None = None,
    check: int | None = None,
) -> Switches:
    """The switches in force: an argument wins over its environment variable, which wins over the default."""

    def flag(given: bool | None, name: str, default: bool) -> bool:
        if given is None:
            return bool(_read_int(name, int(default), 0, 1))
        return as_bool(name.removeprefix("GRADLOOM_").lower(), given)

    def level(given: int | None, name: str, high: int) -> int:
        if given is None:
            return _read_int(name, 0, 0, high) or 0
        if not isinstance(given, Integral) or not 0 <= given <= high:
            setting = name.removeprefix("GRADLOOM_").lower()
            raise SettingError(setting=setting, seen=given, need=f"a whole number from 0 to {high}")
        return int(given)

    cores, products = core_count(), as_precision(precision)
    if threads is None:
        threads = _read_int("GRADLOOM_THREADS", cores, 1, 1024)
    threads = as_whole("threads", threads, 1)
    return Switches(
        reuse=flag(reuse, "GRADLOOM_REUSE", True),
        inplace=flag(inplace, "GRADLOOM_INPLACE", True),
        fuse=flag(fuse, "GRADLOOM_FUSE", True),
        poison=flag(poison, "GRADLOOM_POISON", False),
        isa=isa if isa is not None else os.environ.get("GRADLOOM_ISA") or None,
        precision=products,
        flush=flag(flush, "GRADLOOM_FLUSH", products == "bf16"),
        threads=min(threads, cores),  # more spinning threads than cores only wait for each other
        debug=level(debug, "GRADLOOM_DEBUG", 4),
        check=level(check, "GRADLOOM_CHECK", 2),
    )
