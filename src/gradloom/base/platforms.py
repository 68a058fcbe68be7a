"""Platforms on which the tests of this version ran; on others gradloom was built, and not tested."""

from __future__ import annotations

import platform

TESTED = (("Linux", "x86_64"),)  # (system, machine), as the module platform names them
UNTESTED = "built, not tested on this platform"


def is_tested() -> bool:
    """Whether the tests of this version ran on a platform like this one."""
    return (platform.system(), platform.machine()) in TESTED
