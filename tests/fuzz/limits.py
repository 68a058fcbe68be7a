"""What one input of a fuzzer may cost: seconds, and bytes of address space beside those that the process had before."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from gradloom.base.errors import GradloomError

CASES = int(os.environ.get("FUZZ_CASES", "300"))  # more of them: FUZZ_CASES=100000
SECONDS = 10  # of the processor; sixty times as many on the clock, because other processes may take turns
PAGE = resource.getpagesize()


def memory(key: str) -> int:
    """Bytes of this process as Linux tells them: VmSize, VmRSS, or VmHWM, the peak since `reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {key}")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class TookTooLong(BaseException):
    """Not caught by any code that is under test."""


def _stop(number: int, _: object) -> None:
    raise TookTooLong(f"more than {SECONDS} s of the processor" if number == signal.SIGPROF else "no end in sight")


class Costs:
    """The largest costs so far, and how many inputs were read and refused."""

    def __init__(self) -> None:
        self.seconds, self.bytes, self.read, self.refused = 0.0, 0, 0, 0

    def __str__(self) -> str:
        return (
            f"{self.read} read, {self.refused} refused; at most {self.seconds:.2f} s of the processor and"
            f" {self.bytes / 1e6:.0f} MB of resident memory more than before the first"
        )


@contextlib.contextmanager
def one_input(path: Path, costs: Costs) -> Iterator[None]:
    """What is inside may raise a GradloomError of one line, and take SECONDS, and 200 MB and 20 times the file's bytes:
    beyond that RLIMIT_AS makes a MemoryError. Warnings are errors: they are further lines on stderr."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = [signal.signal(number, _stop) for number in (signal.SIGALRM, signal.SIGPROF)]
    resource.setrlimit(resource.RLIMIT_AS, (used + 20 * path.stat().st_size + 200_000_000, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, 60 * SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resident, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
        costs.read += 1
    except GradloomError as error:
        assert "\n" not in str(error) and str(error) and len(str(error)) < 4000, repr(error)
        costs.refused += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(number, handler)
        costs.seconds = max(costs.seconds, time.process_time() - start)
        costs.bytes += resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
