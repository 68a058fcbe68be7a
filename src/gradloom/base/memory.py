"""The memory that this process may use: of the machine, of the control groups that hold it, or of its own limits
(RLIMIT_AS, RLIMIT_DATA); and the memory that it uses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from pathlib import Path

from .errors import GradloomError, SettingError

_DONTNEED = 4  # MADV_DONTNEED of Linux
_ABSENT = bytes(range(128))  # the highest bytes of entries of /proc/self/pagemap of absent pages

# "4096", "4G", "4 GiB": powers of 1024; "4GB": of 1000
_BYTES = re.compile(r"(\d{1,30})(\.\d{1,30})? ?(?:B|([KMGT])(i?B)?)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Memory:
    """Bytes of memory: of the machine or of the limit of this process: total and free."""

    total: int
    available: int


def memory(root: str = "/") -> Memory | None:
    """Memory available to this process: the least of the machine, its control groups and its own limits; None where the
    system
    does not report it (root: where proc and sys are, for tests)."""
    base = Path(root)
    fields = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (base / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in fields:
        return None
    total = fields["MemTotal"]
    available = fields.get("MemAvailable", fields.get("MemFree", total))
    for limit, used in (*_group_limits(base), *((one.limit, one.used) for one in _process_limits(base))):
        total = min(total, limit)
        available = min(available, max(limit - used, 0))
    return Memory(total, available)


def need_memory(
    need: int, what: str, hint: str, error: type[GradloomError] = SettingError, available: int | None = None
) -> None:
    """The error when fewer than `need` bytes are available: "what, N are available; hint".

    available: as it was measured earlier; now, when not given. Nothing is raised where the system does not report it.
    """
    if available is None:
        there = memory()
        available = need if there is None else there.available
    if need > available:
        raise error(f"{what}, {show_bytes(available)} are available; {hint}")


def show_bytes(n: int) -> str:
    """1536 -> "1.50 KiB"."""
    size = float(n)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def show_above(n: int, limit: int) -> str:
    """As `show_bytes`, or exact bytes where these are equal for `limit`, a smaller number."""
    return f"{n} bytes" if show_bytes(n) == show_bytes(limit) else show_bytes(n)


def as_bytes(name: str, given: int | str, place: str = "") -> int:
    """The bytes of a setting: a whole number above 0, or a text: "5000000" (bytes), "512M" or "512MiB" (units of 1024),
    "1.5GB" (units of 1000); K, M, G, T. SettingError for anything else."""
    found, bytes = _BYTES.fullmatch(given) if isinstance(given, str) else None, 0
    if found is not None and (found[3] or not found[2]):  # no part of a byte
        unit = 1000 if (found[4] or "").upper() == "B" else 1024
        power = "KMGT".index(found[3].upper()) + 1 if found[3] else 0
        bytes = int(Fraction(found[1] + (found[2] or "")) * unit**power)
    elif isinstance(given, Integral) and not isinstance(given, bool):
        bytes = int(given)
    if bytes > 0:
        return bytes
    raise SettingError(setting=name, seen=given, need="bytes, or a text such as '4GiB', '4G' or '4.2GB'", place=place)


def resident() -> int:
    """The bytes that this process holds in memory now; where the system does not report it, the peak so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return resident_peak()


def resident_peak() -> int:
    """The most bytes that this process has held in memory so far."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError), open("/proc/self/status", "rb") as file:
        return int(next(line for line in file if line.startswith(b"VmHWM:")).split()[1]) * 1024
    import resource  # where the value of a new process on Linux starts with the peak of its parent

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def present(address: int, bytes: int) -> int:
    """How many of these bytes of this process are in memory; 0 where the system does not report it."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    if not page or not bytes:
        return 0
    first, last = address // page, -(-(address + bytes) // page)
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        tops = file.read(8 * (last - first))[7::8]  # of each entry the byte with the bit
        return min(bytes, page * len(tops.translate(None, _ABSENT)))
    return 0


def release(address: int, bytes: int) -> None:
    """Give whole pages of this private, anonymous memory back to the system, where it can: they read as zeros then."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    if not sys.platform.startswith("linux") or not page:
        return
    first, last = -(-address // page), (address + bytes) // page
    if first < last:
        with contextlib.suppress(OSError, AttributeError):
            advise = ctypes.CDLL(None).madvise
            advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
            advise(page * first, page * (last - first), _DONTNEED)


def trim() -> None:
    """Give freed memory back to the system, where the C library can: what reading a text or a tokenizer took for a
    moment would otherwise add to the memory of a run."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def settle() -> None:
    """Free what nothing needs any more: graphs, programs and plans refer to themselves, and stay until they are
    collected, with their arrays."""
    gc.collect()
    trim()


@dataclass(frozen=True)
class ProcessLimit:
    """A limit of this process, in bytes; used: of it. name: as getrlimit calls it; shell: how a shell sets it."""

    name: str
    shell: str
    limit: int
    used: int


# name, of `ulimit`, in /proc/self/limits, field of /proc/self/statm
_PROCESS_LIMITS = (("RLIMIT_AS", "ulimit -v", "Max address space", 0), ("RLIMIT_DATA", "ulimit -d", "Max data size", 5))
START_BYTES = {"RLIMIT_AS": 256 << 20, "RLIMIT_DATA": 192 << 20}  # of a command that loads its libraries; measured
_MANY_THREADS = 4096  # processes and threads of a user: the default limits of systems are higher
CORE_BYTES = 12 << 20  # more of them for each core: the stacks of threads


def _process_limits(base: Path) -> list[ProcessLimit]:
    """The limits that are set; none where the system does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (base / "proc/self/limits").read_text().splitlines()
        soft = {line[:26].strip(): line[26:].split()[0] for line in lines[1:]}
        used = [int(n) * os.sysconf("SC_PAGE_SIZE") for n in (base / "proc/self/statm").read_text().split()]
        return [
            ProcessLimit(name, shell, int(soft[key]), used[field])
            for name, shell, key, field in _PROCESS_LIMITS
            if soft.get(key, "unlimited") != "unlimited"
        ]
    return []


def _starts_threads(count: int) -> bool:
    """Whether the system starts this number of threads. They are tried only under a low limit (`ulimit -u`)."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return True
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft == resource.RLIM_INFINITY or soft > _MANY_THREADS:
        return True
    end, started = threading.Event(), []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        end.set()
        for thread in started:
            thread.join()
    return True


def need_start_memory(cores: int) -> None:
    """SettingError where a limit of this process is too small for a command to load its libraries: they end the process
    where they get no memory. Under a limit of memory or threads, libraries start no threads of their own: OpenBLAS
    sends the process SIGINT where it gets none. To be called before NumPy is imported."""
    limits = _process_limits(Path("/"))
    for one in limits:
        need = START_BYTES[one.name] + cores * CORE_BYTES
        if one.limit < need:
            seen = f"memory: this process is limited to {show_bytes(one.limit)} ({one.name}, {one.shell})"
            raise SettingError(f"{seen}; must be at least {show_bytes(need)}, or unlimited")
    if limits or not _starts_threads(cores + 2):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def need_left(need: int, what: str) -> None:
    """MemoryError where a limit of this process leaves fewer than `need` bytes: for libraries that end the process
    instead of raising one."""
    for one in _process_limits(Path("/")):
        if one.limit - one.used < need:
            left = show_bytes(max(one.limit - one.used, 0))
            raise MemoryError(f"{what} needs {show_bytes(need)}, {one.name} ({one.shell}) leaves {left}")


def _group_limits(base: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be given back) of the control groups that hold this process."""
    with contextlib.suppress(OSError):
        for line in (base / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # version 2
                top, names = base / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                top = base / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            parts = Path(path.lstrip("/")).parts
            for depth in range(len(parts), -1, -1):  # the limits of parent groups apply as well
                with contextlib.suppress(OSError, ValueError):
                    folder = top.joinpath(*parts[:depth])
                    limit = int((folder / names[0]).read_text())  # "max": no limit
                    stat = dict(w.split() for w in (folder / "memory.stat").read_text().splitlines())
                    yield limit, int((folder / names[1]).read_text()) - int(stat.get(names[2], 0))
