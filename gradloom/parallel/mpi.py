"""The communicator over MPI: ranks are the processes that mpiexec started, on one machine or many.

MPI moves the numbers; this file makes sure that every wait ends. Three things watch:

- Each rank has a thread that sends a beat to all others about every second: has this rank worked since the last one, or
  does it wait, and in which call. A rank without a sign of life for `timeout` seconds is named and ends all.
- A rank that fails says so at once, on the same line; the others raise from whatever they wait in. When the program
  ends, all wait until the others have said what they had to say (rank 0 may still be saving), then end together.
- Launchers kill all ranks when one was killed, without saying which. So beside the ranks of a machine stands a small
  process that nobody waits for. Each rank holds a pipe to it; it names the rank whose pipe closes first.

All calls to MPI that could wait are non-blocking ones, looked at in turn with all this.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..base.errors import BackendError, ShapeError, TrainError
from ..base.interrupts import Terminated
from .communicator import BUCKET_BYTES, Communicator, LocalSum, Reduction, described, launched, shard

HELLO = 31_101  # tag of the first message, the only one on MPI's own communicator
BEAT, FAILURE, BYE = 1, 2, 3  # tags of what is said beside the numbers
SLOT = 256  # bytes of a gathered value that fit into the first message
START = 10  # time-outs to wait for all ranks to come, when no sign of life can be heard yet


def _mpi(timeout: float) -> Any:
    """The module mpi4py.MPI, started."""
    try:
        with _alarm(START * timeout):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"parallel='mpi': mpi4py with a working MPI is missing ({described(error)}); pip install gradloom[mpi]"
        ) from None
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise BackendError(
            "parallel='mpi': this MPI was started without MPI_THREAD_MULTIPLE; take one that has it (the package "
            "mpich) and leave mpi4py.rc.thread_level alone"
        )
    if MPI.COMM_WORLD.size < launched():
        raise BackendError(
            f"parallel='mpi': mpiexec started {launched()} processes, but mpi4py's MPI sees {MPI.COMM_WORLD.size}: "
            f"they belong to different MPIs; mpi4py has {MPI.Get_library_version().split(chr(10))[0].strip()}"
        )
    return MPI


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """MPI starts only when all ranks have come, and lets no thread run before: another process ends a vain wait."""
    if launched() == 1 or "mpi4py.MPI" in sys.modules:
        yield
        return
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-I", "-S", "-c", _ALARM, f"{seconds:g}", str(launched())]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=quiet)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


_ALARM = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    text = "gradloom: not all ranks came within %s s: each of the %s must call this; all end\\n"
    os.write(2, (text % (sys.argv[1], sys.argv[2])).encode())
    os.kill(os.getppid(), signal.SIGKILL)
"""


class MpiRank(Communicator):
    """One process among those of mpiexec. Made once per process, by `communicator`."""

    def __init__(self, timeout: float) -> None:
        MPI = self._mpi = _mpi(timeout)
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, timeout)
        self._place = _Place(0, "")
        self._waiting = False
        self._failure: tuple[int, str] | None = None
        self._own: BaseException | None = None  # the failure is this rank's
        self._kept: list[Any] = []  # buffers that MPI may still write to
        self._sent: list[tuple[Any, bytes]] = []  # messages beside the numbers, on their way
        self._lock = threading.RLock()  # a signal handler may come in between
        self._states = [_State() for _ in range(self.size)]
        self._heard = time.monotonic()  # up to when this rank has listened
        self._others = [r for r in range(self.size) if r != self.rank]
        if self.size > 1:
            self._greet()
        self._world = MPI.COMM_WORLD.Dup()
        self._line = MPI.COMM_WORLD.Dup()  # what is said beside the numbers
        self._ended = self._interrupted = self._said = self._is_child = False
        self._pipe: int | None = None  # to the process that watches the ranks of this machine
        if self.size > 1:
            self._listener = threading.Thread(target=self._listen, name="gradloom-beat", daemon=True)
            self._worker = threading.get_ident()
            self._listener.start()
            self._hook = sys.excepthook
            sys.excepthook = self._uncaught
            atexit.register(self._leave)
        homes = self.gather((socket.gethostname(), _namespace(), os.getpid()))
        near = [r for r in range(self.size) if homes[r][:2] == homes[self.rank][:2]]
        self.local_size = len(near)
        if self.size > 1:
            self._watch(near, [homes[r][2] for r in near])
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._forked)

    # What all drivers do.

    def reduction(self, elements: int, ordered: bool = True) -> Reduction:
        if self.size == 1:
            return LocalSum(elements, ordered)
        return _OrderedSum(self, elements) if ordered else _FastSum(self, elements)

    def gather(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        data = pickle.dumps(value, protocol=5)
        with self._in("gather"):
            mine = struct.pack("<q", len(data)) + data[: SLOT - 8]
            slots = np.zeros((self.size, SLOT), np.uint8)
            slots[self.rank, : len(mine)] = np.frombuffer(mine, np.uint8)
            self._wait([self._world.Iallgather(self._mpi.IN_PLACE, slots)], slots)
            sizes = [int(n) for n in slots[:, :8].copy().view("<i8")[:, 0]]
            if max(sizes) <= SLOT - 8:
                return [pickle.loads(slots[r, 8 : 8 + n].tobytes()) for r, n in enumerate(sizes)]
            ends = np.cumsum(sizes)
            whole = np.empty(int(ends[-1]), np.uint8)
            whole[ends[self.rank] - len(data) : ends[self.rank]] = np.frombuffer(data, np.uint8)
            places = [whole, sizes, [int(e - n) for e, n in zip(ends, sizes, strict=True)], self._mpi.BYTE]
            self._wait([self._world.Iallgatherv(self._mpi.IN_PLACE, places)], whole)
            return [pickle.loads(whole[e - n : e].data) for e, n in zip(ends, sizes, strict=True)]

    def broadcast(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            raise ShapeError(f"broadcast: an array with strides {array.strides}; need a C-contiguous one")
        if self.size == 1:
            return
        flat = array.reshape(-1).view(np.uint8)
        with self._in(f"broadcast({array.dtype}{list(array.shape)})"):
            for begin in range(0, flat.size, 16 * BUCKET_BYTES):
                piece = flat[begin : begin + 16 * BUCKET_BYTES]
                self._wait([self._world.Ibcast(piece, root=0)], piece)

    def fail(self, error: BaseException) -> None:
        if self._is_child:
            return
        if self._failure is None:
            self._own = error
        self._note(self.rank, f"failed with {described(error)}")

    def _end(self, rank: int, what: str) -> NoReturn:
        self._note(rank, what)
        raise TrainError(self._sentence())

    def close(self) -> None:
        pass  # the next fit takes the same connection; it ends with the program

    # Waiting.

    @contextlib.contextmanager
    def _in(self, call: str) -> Iterator[None]:
        """Around a call that all ranks make together."""
        self._raise_failure()
        self._place = _Place(self._place.calls + 1, call[:80])
        try:
            yield
        except TrainError:
            raise
        except BaseException as error:  # Ctrl-C, or an error of MPI: this call will never be whole
            self.fail(error)
            if isinstance(error, self._mpi.Exception):
                raise TrainError(f"rank {self.rank}: MPI gave up in {call}: {described(error)}") from None
            raise

    def _wait(self, requests: list[Any], *buffers: Any, statuses: list[Any] | None = None) -> None:
        """Until MPI is done with `requests`, or until there is a reason to give up."""
        done = self._mpi.Request.Testall
        if done(requests, statuses):
            return
        self._waiting = True
        begin = time.perf_counter()
        try:
            while not done(requests, statuses):
                waited = time.perf_counter() - begin
                if waited > 1e-3:
                    time.sleep(min(waited / 16, 1e-3))
                    self._look_around(waited)
                elif waited > 2e-5:
                    os.sched_yield() if hasattr(os, "sched_yield") else time.sleep(0)
        except BaseException:
            self._kept += [requests, buffers]
            raise
        finally:
            self._waiting = False

    def _look_around(self, waited: float) -> None:
        """Raise if a rank has failed, ended, made another call or shown no sign of life."""
        self._raise_failure()
        self._compare_calls(waited)
        now, call = time.monotonic(), self._place.call
        stuck = waited > self.timeout
        for rank in self._others:
            state = self._states[rank]
            if state.gone and state.place.calls < self._place.calls:
                self._note(rank, f"ended while the others wait for it in {call}")
            elif not state.gone and self._silent(state):
                self._note(rank, f"gave no sign of life for {self.timeout:g} s ({call})")
            stuck = stuck and state.waits and state.place == self._place and now - state.since > self.timeout
        if stuck:
            self._note(self.rank, f"and all others wait in {call} for {self.timeout:g} s: the network is stuck")
        self._raise_failure()

    def _compare_calls(self, waited: float) -> None:
        """Name the rank that makes another call than most, when all have come or have had time to say where."""
        mine = self._place
        places = [mine if r == self.rank else state.place for r, state in enumerate(self._states)]
        here = {r: place.call for r, place in enumerate(places) if place.calls == mine.calls}
        calls = list(here.values())
        if len(set(calls)) == 1 or (len(here) < self.size and waited < min(3.0, self.timeout / 2)):
            return
        odd = min(here, key=lambda r: (calls.count(here[r]), -r))
        usual = next(r for r in sorted(here, key=lambda r: (-calls.count(here[r]), r)) if here[r] != here[odd])
        self._note(odd, f"came to {here[odd]} while rank {usual} is in {here[usual]}")

    def _silent(self, state: _State) -> bool:
        """No sign of life for too long, as far as this rank has listened."""
        return self._heard - state.alive > self.timeout

    def _note(self, rank: int, what: str, tell: bool = True) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = (rank, what)
        self._dismiss()  # the ends that follow are its consequence
        if tell:
            self._tell(FAILURE, pickle.dumps((rank, what[:2000])))

    def _raise_failure(self) -> None:
        if self._is_child:
            raise TrainError(
                f"rank {self.rank}: called in process {os.getpid()}, a fork of the rank; need the process that mpiexec "
                "started, which alone can reach the other ranks"
            )
        if self._failure is None:
            return
        if self._own is not None:
            raise TrainError(f"rank {self.rank} has failed before with {described(self._own)}; start again")
        if (stop := _interrupt(self._failure[1])) is not None:
            if not self._interrupted:
                self._interrupted = True
                time.sleep(0.5)  # mpiexec interrupts all: let it come now, and not while somebody saves
            raise stop
        raise TrainError(self._sentence())

    def _sentence(self) -> str:
        assert self._failure is not None
        return f"rank {self._failure[0]} {self._failure[1]}; all {self.size} ranks end"

    # What is said beside the numbers.

    def _greet(self) -> None:
        """Wait until all ranks are here: the only wait in which no beat can be heard."""
        world = self._mpi.COMM_WORLD
        sent = [world.Isend(bytearray(1), dest=r, tag=HELLO) for r in self._others]
        here = {r: world.Irecv(bytearray(1), source=r, tag=HELLO) for r in self._others}
        begin = time.monotonic()
        while missing := [r for r, request in here.items() if not request.Test()]:
            if (waited := time.monotonic() - begin) > START * self.timeout:
                text = f"rank {missing[0]} did not come within {START * self.timeout:g} s; all {self.size} ranks end"
                print(f"gradloom: rank {self.rank}: {text}: every rank must call this", file=sys.stderr, flush=True)
                world.Abort(1)
            time.sleep(min(waited / 16, 0.01))
        self._kept.append(sent)

    def _tell(self, tag: int, data: bytes) -> None:
        with self._lock:
            self._sent = [(request, buffer) for request, buffer in self._sent if not request.Test()]
            self._sent += [(self._line.Isend(data, dest=rank, tag=tag), data) for rank in self._others]

    def _listen(self) -> None:
        """The thread that hears and sends beats."""
        pulse = _Pulse(self._worker)
        beat = 0.0
        while not self._ended:
            now = time.monotonic()
            if (pause := now - self._heard) > self.timeout / 4:  # this process was stopped: no reason to blame others
                for state in self._states:
                    state.alive += pause
            self._hear()
            if now >= beat:
                beat = now + min(self.timeout / 8, 1.0)
                pulse.feel(self._waiting)
                self._tell(BEAT, self._beat(pulse.signs))
            time.sleep(min(self.timeout / 40, 0.05))

    def _beat(self, signs: int) -> bytes:
        place = self._place
        return struct.pack("<qqq", signs, place.calls, self._waiting) + place.call.encode()

    def _hear(self) -> None:
        MPI = self._mpi
        status = MPI.Status()
        while (message := self._line.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            rank, tag = status.Get_source(), status.Get_tag()
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv(data)
            state = self._states[rank]
            now = time.monotonic()
            if tag == FAILURE:
                culprit, what = pickle.loads(data)
                self._note(culprit, what, tell=False)
                continue
            signs, calls, waits = struct.unpack_from("<qqq", data)
            if signs != state.signs:
                state.signs, state.alive = signs, now
            place = _Place(calls, data[24:].decode(errors="replace"))
            if place != state.place or bool(waits) != state.waits:
                state.since = now
            state.waits, state.place = bool(waits), place
            state.gone = state.gone or tag == BYE
        self._heard = time.monotonic()

    # The end.

    def _uncaught(self, kind: Any, error: BaseException, trace: Any) -> None:
        """An exception that ends the program: tell the others, say it once."""
        told = self._failure is not None and isinstance(error, TrainError) and str(error) == self._sentence()
        self.fail(error)
        if isinstance(error, KeyboardInterrupt):
            print(f"gradloom: rank {self.rank}: interrupted", file=sys.stderr)
        elif told:
            print(f"gradloom: rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            print(f"gradloom: rank {self.rank} of {self.size} failed:", file=sys.stderr, flush=True)
            self._hook(kind, error, trace)
        sys.stderr.flush()
        self._said = True

    def _leave(self) -> None:
        """At the end of the program: all end together, and with MPI_Abort if one has failed."""
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        self._waiting = True
        self._tell(BYE, self._beat(0))
        try:
            self._wait_for_the_end()
        except KeyboardInterrupt:
            self._note(self.rank, "was interrupted (Ctrl-C)")
        self._ended = True
        self._listener.join()
        self._dismiss()
        if self._failure is not None:
            if not (self._said or self.is_root or self._states[0].gone):  # rank 0, which speaks for all, cannot
                print(f"gradloom: rank {self.rank}: {self._sentence()}", file=sys.stderr, flush=True)
            time.sleep(1 if self._states[0].gone and not self.is_root else 0)  # one call of Abort is enough
            stop = _interrupt(self._failure[1])
            self._mpi.COMM_WORLD.Abort(1 if stop is None else 143 if isinstance(stop, Terminated) else 130)

    def _wait_for_the_end(self) -> None:
        """Until all others have come to their end; after a failure they have the time-out to save and say something."""
        begin = time.monotonic()
        while expected := [r for r in self._others if not self._states[r].gone]:
            dead = [r for r in expected if self._silent(self._states[r])]
            if dead and self._failure is None:
                self._note(dead[0], f"gave no sign of life for {self.timeout:g} s")
                print(f"gradloom: rank {self.rank}: {self._sentence()}", file=sys.stderr, flush=True)
                self._said = True
            if self._failure is not None and (dead == expected or time.monotonic() - begin > self.timeout):
                return
            time.sleep(0.005)

    def _watch(self, near: list[int], pids: list[int]) -> None:
        """Let a process beside the ranks of this machine name the one that ends without a word.

        Each rank holds the only writing end of a pipe, and the kernel closes it when the process ends, however it ends.
        """
        leader = near[0] == self.rank
        folder, ends = "", []
        with contextlib.suppress(OSError, AttributeError):  # a system without named pipes, or a full disk: no watch
            if leader:
                folder = tempfile.mkdtemp(prefix="gradloom-")
                for rank in near:
                    os.mkfifo(f"{folder}/{rank}")
                    ends.append(os.open(f"{folder}/{rank}", os.O_RDONLY | os.O_NONBLOCK))
        place = self.gather(folder)[near[0]]
        if place:
            with contextlib.suppress(OSError, ImportError):
                self._pipe = _first_to_close(f"{place}/{self.rank}")
        held = self.gather(self._pipe is not None)
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
                process.stdout.read()  # until it has all of them in sight
                process.stdout.close()
                process.returncode = 0  # nobody waits for it
        for end in ends:
            os.close(end)
        self.gather(None)

    def _dismiss(self) -> None:
        """Tell the process that watches that whoever ends from now on ends for a reason that is said elsewhere."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):  # it is gone
                os.write(pipe, b".")
            os.close(pipe)

    def _forked(self) -> None:
        """In a child of this process, which has no part in MPI: let go of what says that the rank is alive."""
        self._is_child = True
        atexit.unregister(self._leave)
        sys.excepthook = self._hook
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _first_to_close(path: str) -> int:
    """The writing end of a named pipe, at a number above those that a program starts with.

    When a process ends, Linux closes its descriptors before anybody hears of the end, the highest number first. So this
    one closes before the launcher's connection, at which the launcher kills the other ranks: their pipes close later.
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


class _Place(NamedTuple):
    """Where a rank is: how many calls it has made that wait for the others, and the last of them."""

    calls: int
    call: str


class _State:
    """What is known of another rank."""

    def __init__(self) -> None:
        self.signs = -1
        self.place = _Place(0, "")
        self.waits = False
        self.gone = False  # its program has come to its end
        self.alive = self.since = time.monotonic()  # last sign of life; since when it has been where it is


class _Pulse:
    """Counts signs of life of this process: its main thread computes, it reads or writes, or it waits for others."""

    def __init__(self, worker: int) -> None:
        self.signs = 0
        self._clock = time.pthread_getcpuclockid(worker) if hasattr(time, "pthread_getcpuclockid") else None
        self._last = self._now()

    def _now(self) -> tuple[float, float, float, int]:
        """(time, seconds of work of the main thread, of all others but this one, blocks read and written)"""
        whole = time.process_time() - time.thread_time()
        worker = whole if self._clock is None else time.clock_gettime(self._clock)
        try:
            import resource

            used = resource.getrusage(resource.RUSAGE_SELF)
            blocks = used.ru_inblock + used.ru_oublock
        except ImportError:
            blocks = 0
        return time.monotonic(), worker, whole, blocks

    def feel(self, waits: bool) -> None:
        now, last = self._now(), self._last
        wall, worker, whole = now[0] - last[0], now[1] - last[1], now[2] - last[2]
        # A display that refreshes itself is no sign of life; helpers at work are.
        if waits or worker > 0.005 * wall or whole > 0.2 * wall or now[3] != last[3]:
            self.signs += 1
        self._last = now


class _OrderedSum(Reduction):
    """Each rank owns a stretch of the sum: it gets that stretch of everybody's arrays, bucket by bucket, and folds.

    A message of no elements says that its sender has no micro-batch in this round.
    """

    def __init__(self, ranks: MpiRank, elements: int) -> None:
        super().__init__(elements, True)
        self._ranks = ranks
        self._stretches = [shard(self.elements, r, ranks.size) for r in range(ranks.size)]
        begin, end = self._stretches[ranks.rank]
        longest = max(e - b for b, e in self._stretches)
        self._bucket = min(BUCKET_BYTES // 4, max(longest, 1))
        self._buckets = -(-longest // self._bucket)
        self._total = np.empty(end - begin, np.float32)
        room = min(self._bucket, end - begin)
        self._theirs = np.empty((2, ranks.size, room), np.float32)  # this bucket and the next
        self._out: np.ndarray | None = None  # made when somebody asks for it
        self._nothing = np.empty(0, np.float32)
        ranks.check("the number of elements to add up", elements)

    @property
    def bytes(self) -> int:
        return self._total.nbytes + self._theirs.nbytes + (0 if self._out is None else self._out.nbytes)

    def add(self, mine: np.ndarray | None) -> None:
        if mine is not None:
            mine = self._flat(mine, "the contribution")
        ranks = self._ranks
        with ranks._in("add"):
            anything = self.has_terms
            ahead = self._exchange(0, mine)
            for bucket in range(self._buckets):
                requests, senders = ahead
                if bucket + 1 < self._buckets:
                    ahead = self._exchange(bucket + 1, mine)
                statuses = [ranks._mpi.Status() for _ in requests]
                ranks._wait(requests, mine, self._theirs, statuses=statuses)
                given = {r for r, status in zip(senders, statuses, strict=False) if status.Get_count(ranks._mpi.FLOAT)}
                anything = self._fold(bucket, mine, given)
            self.has_terms = anything

    def _part(self, rank: int, bucket: int) -> slice:
        """What a rank's bucket is of the whole."""
        begin, end = self._stretches[rank]
        return slice(min(begin + bucket * self._bucket, end), min(begin + (bucket + 1) * self._bucket, end))

    def _exchange(self, bucket: int, mine: np.ndarray | None) -> tuple[list[Any], list[int]]:
        """Start to send everybody his part of `mine` and to get this rank's part from all: (requests, senders)."""
        ranks, world = self._ranks, self._ranks._world
        part = self._part(ranks.rank, bucket)
        room = self._theirs[bucket % 2, :, : part.stop - part.start]
        senders = ranks._others if room.size else []
        requests = [world.Irecv(room[r], source=r, tag=bucket % 2) for r in senders]
        for r in ranks._others:
            theirs = self._part(r, bucket)
            if theirs.stop > theirs.start:
                data = self._nothing if mine is None else mine[theirs]
                requests.append(world.Isend(data, dest=r, tag=bucket % 2))
        return requests, senders

    def _fold(self, bucket: int, mine: np.ndarray | None, given: set[int]) -> bool:
        """Add what this bucket brought, in the order of ranks. Is there anything in the sum now?"""
        ranks = self._ranks
        part = self._part(ranks.rank, bucket)
        total = self._total[bucket * self._bucket :][: part.stop - part.start]
        anything = self.has_terms
        for rank in range(ranks.size):
            if rank == ranks.rank:
                term = None if mine is None else mine[part]
            else:
                term = self._theirs[bucket % 2, rank, : total.size] if rank in given else None
            if term is not None:
                np.add(total, term, out=total) if anything else np.copyto(total, term)
                anything = True
        return anything

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        ranks = self._ranks
        if out is not None:
            out = self._flat(out, "out")
        else:
            out = self._out = np.empty(self.elements, np.float32) if self._out is None else self._out
        begin, end = self._stretches[ranks.rank]
        out[begin:end] = self._total if self.has_terms else 0
        self.has_terms = False
        with ranks._in("finish"):
            sizes, begins = [e - b for b, e in self._stretches], [b for b, _ in self._stretches]
            whole = [out, sizes, begins, ranks._mpi.FLOAT]
            ranks._wait([ranks._world.Iallgatherv(ranks._mpi.IN_PLACE, whole)], out)
        return out


class _FastSum(Reduction):
    """Local sums, and one allreduce of MPI at the end."""

    def __init__(self, ranks: MpiRank, elements: int) -> None:
        super().__init__(elements, False)
        self._ranks = ranks
        self._local = LocalSum(self.elements)
        ranks.check("the number of elements to add up", elements)

    @property
    def bytes(self) -> int:
        return self._local.bytes

    def add(self, mine: np.ndarray | None) -> None:
        self._local.add(mine)

    def finish(self, out: np.ndarray | None = None) -> np.ndarray:
        out = self._local.finish(out)
        ranks, step = self._ranks, 4 * BUCKET_BYTES  # elements: MPI cuts them further
        with ranks._in("finish"):
            for begin in range(0, self.elements, step):
                piece = out[begin : begin + step]
                ranks._wait([ranks._world.Iallreduce(ranks._mpi.IN_PLACE, piece)], piece)
        return out


def _interrupt(what: str) -> KeyboardInterrupt | None:
    """What a failure raises on the other ranks where it was a signal; see `described`."""
    return Terminated() if "(SIGTERM)" in what else KeyboardInterrupt() if "(Ctrl-C)" in what else None


def _namespace() -> str:
    """Processes see each other's numbers only within one of these."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
