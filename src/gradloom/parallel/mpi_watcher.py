"""A helper process for the ranks of a machine that names a killed rank, as launchers do not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any


class Watcher:
    """This rank's end of a pipe to the process that watches the ranks of this machine.

    Each rank holds the only writing end of a pipe, and the kernel closes it when the process ends, however it ends.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._pipe: int | None = None

    def start(self, gather: Callable[[Any], list[Any]], near: list[int], pids: list[int]) -> None:
        """Let the process name the rank that ends without a word; `near`: the ranks of this machine, with their pids.

        All ranks of the group call this together: `gather` is theirs.
        """
        leader = near[0] == self.rank
        folder, ends = "", []
        with contextlib.suppress(OSError, AttributeError):  # a system without named pipes, or a full disk: no watcher
            if leader:
                folder = tempfile.mkdtemp(prefix="gradloom-")
                for rank in near:
                    os.mkfifo(f"{folder}/{rank}")
                    ends.append(os.open(f"{folder}/{rank}", os.O_RDONLY | os.O_NONBLOCK))
        place = gather(folder)[near[0]]
        if place:
            with contextlib.suppress(OSError, ImportError):
                self._pipe = _first_to_close(f"{place}/{self.rank}")
        held = gather(self._pipe is not None)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if leader and all(held[r] for r in near):
            ranks = [f"{end}:{rank}:{pid}" for end, rank, pid in zip(ends, near, pids, strict=True)]
            command = [sys.executable, "-I", "-S", "-c", _WATCHER, str(self.size), *ranks]
            quiet = subprocess.DEVNULL
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    command, start_new_session=True, stdin=quiet, stdout=subprocess.PIPE, pass_fds=ends
                )
                assert process.stdout is not None
                process.stdout.read()  # until it watches all of them
                process.stdout.close()
                process.returncode = 0  # nobody waits for it
        for end in ends:
            os.close(end)
        gather(None)

    def dismiss(self) -> None:
        """Notify the process that ends of ranks from now on are reported elsewhere."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):  # it is gone
                os.write(pipe, b".")
            os.close(pipe)

    def forget(self) -> None:
        """In a child of the rank: close the pipe, a sign of life of the rank."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _first_to_close(path: str) -> int:
    """The writing end of a named pipe, at a number above those that a program starts with.

    When a process ends, Linux closes its descriptors before anybody is notified, the highest number first. So this one
    closes before the launcher's connection, at which the launcher kills the other ranks: their pipes close later.
    """
    import fcntl
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    low = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 2048 if most < 0 else min(most // 2, 2048))
    finally:
        os.close(low)


# Names the rank whose pipe closes first, unless a rank has written that there is no need. epoll lists pipes in the
# order in which they became ready, however late this process wakes; without epoll, two ends at once may be confused.
_WATCHER = """
import os, selectors, signal, socket, sys
for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(stop, signal.SIG_IGN)
pipes = selectors.DefaultSelector()
for text in sys.argv[2:]:
    end, rank, pid = map(int, text.split(":"))
    pipes.register(end, selectors.EVENT_READ, (rank, pid))
os.close(1)
first = pipes.select()[0][0]
if not os.read(first.fd, 1):
    text = "gradloom: rank %d of %s ended without a word (killed? process %d on %s); all ranks end\\n"
    os.write(2, (text % (first.data[0], sys.argv[1], first.data[1], socket.gethostname())).encode())
"""


def namespace() -> str:
    """The PID namespace of this process: a pid means something only inside of it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
