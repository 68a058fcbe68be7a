"""The n-th call to the system fails, for every n: what commands leave behind (tests/faults/harness.py).

With FAULTS=all every call fails in every way, over old outputs and where there are none; the core's own allocations
are among them where it was built for that (tests/faults.sh). Else four commands, over old outputs, failing once or
writing half, and of equal calls in a row the first and the last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gradloom import _core
from tests import processes
from tests.faults.harness import COMMANDS, COMPILER, CONVERSIONS, MODES, Case, Service

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or COMPILER is None, reason="needs Linux and a C++ compiler: a library to preload"
)
ALL = os.environ.get("FAULTS") == "all"
# what strace calls them -> what the library does
CALLS = {
    "openat": "open", "open": "open", "creat": "open", "write": "write", "writev": "write", "pwrite64": "write",
    "pwritev": "write", "ftruncate": "ftruncate", "truncate": "truncate", "fallocate": "fallocate", "mkdir": "mkdir",
    "mkdirat": "mkdir", "rename": "rename", "renameat": "rename", "renameat2": "rename", "link": "link",
    "linkat": "link", "symlink": "symlink", "symlinkat": "symlink", "chmod": "chmod", "fchmod": "chmod",
    "fchmodat": "chmod", "fsync": "fsync", "fdatasync": "fsync", "sync_file_range": "fsync", "mmap": "mmap",
    "msync": "msync", "copy_file_range": "copy", "sendfile": "copy", "flock": "flock", "read": "read",
    "pread64": "read", "readv": "read",
}  # fmt: skip


COMMAND = "import sys; sys.path.remove(''); from gradloom.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize("name", COMMANDS if ALL else ("fit", "peft", "merge", "quantize"))
@pytest.mark.slow
def test_whatever_fails(name: str, tmp_path: Path) -> None:
    case = Case(name, Service(tmp_path))
    assert any(call.startswith("arena") for call in case.calm.calls) == (_core.FAULTS and name not in CONVERSIONS)
    faults = list(case.faults(MODES, (True, False)) if ALL else case.faults(("once", "short"), (True,), short=True))
    print(f"{name}: {len(faults)} faults, exit codes {dict(case.codes)}")
    found = [f"{name} {mode} {at} ({call}): {'; '.join(wrong)}" for mode, at, call, wrong in faults if wrong]
    assert not found, "\n".join(
        [f"{len(found)} of {len(faults)}; python -m tests.faults.harness COMMAND MODE N:", *found]
    )
    assert case.codes["once", 2] and case.codes["short", 0], "nothing failed"


@pytest.mark.skipif(not ALL, reason="needs tests/faults.sh")
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("name", COMMANDS)
def test_all_calls_are_seen(name: str, tmp_path: Path) -> None:
    """What the library counts is all that the command asks of the system for its files: strace sees no more."""
    case = Case(name, Service(tmp_path))
    case.restore(True)
    trace = tmp_path / "trace"
    words = [str(word) for word in case.command]
    done = subprocess.run(
        ["strace", "-f", "-y", "-o", trace, sys.executable, "-c", COMMAND, *words], cwd=case.service.work,
        env=processes.environment(OPENBLAS_NUM_THREADS="1"), capture_output=True, timeout=300,
    )  # fmt: skip
    if done.returncode and b"ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    seen = Counter(
        CALLS[call]
        for call, path in map(_call, trace.read_text(errors="replace").splitlines())
        if call in CALLS and Path(case.service.work, path).is_relative_to(case.service.work)
    )
    native = ("arena", "new", "thread")
    counted = Counter(call.split()[0] for call in case.calm.calls if call.split()[0] not in native)
    assert seen == counted


def _call(line: str) -> tuple[str, str]:
    """(call, the path that it is about) of a line of strace, as in 17 fsync(3</a/b>) = 0, openat(AT_FDCWD</a>, "b")."""
    found = re.match(r"\d+ +(\w+)\((.*)", line)
    if found is None:
        return "", "/"
    call, rest = found.groups()
    if call == "mmap":
        named = re.search(r"\d+<([^>]*)>", rest)
    elif call in ("copy_file_range", "sendfile"):
        named = re.search(r"(?:.*, )?\d+<([^>]*)>", rest)
    else:
        named = re.match(r"\d+<([^>]*)>", rest)
    if named:
        return call, named[1] if named[1].startswith("/") else "/"  # pipe:[17]
    paths = re.findall(r'"([^"]*)"', rest)
    return call, (paths[-1 if re.match("rename|link", call) else 0] if paths else "/")
