"""Platforms on which this version was tested. On others its wheels were built, and not executed."""

from __future__ import annotations

import platform

TESTED = ("Linux", "x86_64", "glibc")  # system, machine and C library, as the module platform names them
EMULATED = ("Linux", "aarch64", "glibc")


def untested() -> str:
    """The label of a platform on which not all tests passed; empty where they did."""
    here = (platform.system(), platform.machine(), platform.libc_ver()[0])
    if here == TESTED:
        return ""
    return "tested in part, under emulation" if here == EMULATED else "built, not tested on this platform"
