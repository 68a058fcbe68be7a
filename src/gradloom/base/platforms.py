"""Platforms on which this version was tested. On others its wheels were built, and not executed."""

from __future__ import annotations

import platform

TESTED = ("Linux", "x86_64", "glibc")  # system, machine and C library, as the module platform names them
PARTLY = {
    ("Linux", "x86_64", "musl"): "tested in part",
    ("Linux", "aarch64", "glibc"): "tested in part, under emulation",
}


def untested() -> str:
    """The label of a platform on which not all tests passed; empty where they did."""
    system, machine, library = platform.system(), platform.machine(), platform.libc_ver()[0]
    if system == "Linux" and library in ("", "libc"):  # Python 3.13 and older have no name for musl
        library = "musl"
    here = (system, machine, library)
    return "" if here == TESTED else PARTLY.get(here, "built, not tested on this platform")
