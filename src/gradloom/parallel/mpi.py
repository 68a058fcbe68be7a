"""The communicator over MPI: ranks are the processes that mpiexec started, on one machine or many.

MPI moves the numbers; this file makes sure that every wait ends. Three things watch:

- Each rank has a thread that sends a beat to all others about every second: has this rank worked since the last one, or
  does it wait, and in which call. A rank without a sign of life for `timeout` seconds is named and ends all.
- A rank that fails notifies the others at once; they raise from the call they wait in. When the program
  ends, all wait until the others have ended their work (rank 0 may still be saving), then end together.
- Launchers kill all ranks when one was killed, without naming it. So the ranks of a machine have a small helper
  process. Each rank holds a pipe to it; it names the rank whose pipe closes first.

All calls to MPI that could wait are non-blocking ones: while one is outstanding, its rank looks at all this.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from ..base import interrupts
from ..base.errors import ShapeError, TrainError
from ..base.exit_codes import Exit, of_signal
from ..base.locks import Lock
from ..base.terminal import to_stderr
from .communicator import BUCKET_BYTES, Communicator, LocalSum, Reduction, described
from .heartbeat import Place, Pulse, RankState
from .mpi_start import START, started_mpi
from .mpi_sums import FastSum, OrderedSum
from .mpi_watcher import Watcher, namespace

HELLO = 31_101  # tag of the first message, the only one on MPI's own communicator
BEAT, FAILURE, BYE = 1, 2, 3  # tags of control messages
SLOT = 256  # bytes of a gathered value that fit into the first message


class MpiRank(Communicator):
    """One process among those of mpiexec. Made once per process, by `communicator`."""

    def __init__(self, timeout: float) -> None:
        MPI = self.mpi = started_mpi(timeout)
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, timeout)
        self._place = Place(0, "")
        self._waiting = False
        self._failure: tuple[int, str] | None = None
        self._own_error: BaseException | None = None  # the failure of this rank itself
        self._kept: list[Any] = []  # buffers that MPI may still write to
        self._sent: list[tuple[Any, bytes]] = []  # control messages on their way
        self._lock = Lock()  # a signal handler may come in between
        self._states = [RankState() for _ in range(self.size)]
        self._listened = time.monotonic()  # time of the last look for messages
        self.others = [r for r in range(self.size) if r != self.rank]
        if self.size > 1:
            self._greet()
        self.world = MPI.COMM_WORLD.Dup()
        self._line = MPI.COMM_WORLD.Dup()  # for control messages
        self._ended = self._interrupted = self._reported = self._is_child = False
        self._watcher = Watcher(self.rank, self.size)
        if self.size > 1:
            self._listener = threading.Thread(target=self._listen, name="gradloom-beat", daemon=True)
            self._worker = threading.get_ident()
            self._listener.start()
            self._hook = sys.excepthook
            sys.excepthook = self._uncaught
            atexit.register(self._leave)
        homes = self.gather((socket.gethostname(), namespace(), os.getpid()))
        near = [r for r in range(self.size) if homes[r][:2] == homes[self.rank][:2]]
        self.local_size = len(near)
        if self.size > 1:
            self._watcher.start(self.gather, near, [homes[r][2] for r in near])
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._forked)

    # What all drivers do.

    def reduction(self, elements: int, ordered: bool = True) -> Reduction:
        if self.size == 1:
            return LocalSum(elements, ordered)
        return OrderedSum(self, elements) if ordered else FastSum(self, elements)

    def gather(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        data = pickle.dumps(value, protocol=5)
        with self.call("gather"):
            mine = struct.pack("<q", len(data)) + data[: SLOT - 8]
            slots = np.zeros((self.size, SLOT), np.uint8)
            slots[self.rank, : len(mine)] = np.frombuffer(mine, np.uint8)
            self.wait([self.world.Iallgather(self.mpi.IN_PLACE, slots)], slots)
            sizes = [int(n) for n in slots[:, :8].copy().view("<i8")[:, 0]]
            if max(sizes) <= SLOT - 8:
                return [pickle.loads(slots[r, 8 : 8 + n].tobytes()) for r, n in enumerate(sizes)]
            ends = np.cumsum(sizes)
            whole = np.empty(int(ends[-1]), np.uint8)
            whole[ends[self.rank] - len(data) : ends[self.rank]] = np.frombuffer(data, np.uint8)
            places = [whole, sizes, [int(e - n) for e, n in zip(ends, sizes, strict=True)], self.mpi.BYTE]
            self.wait([self.world.Iallgatherv(self.mpi.IN_PLACE, places)], whole)
            return [pickle.loads(whole[e - n : e].data) for e, n in zip(ends, sizes, strict=True)]

    def broadcast(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            raise ShapeError(f"broadcast: an array with strides {array.strides}; need a C-contiguous one")
        if self.size == 1:
            return
        flat = array.reshape(-1).view(np.uint8)
        with self.call(f"broadcast({array.dtype}{list(array.shape)})"):
            for begin in range(0, flat.size, 16 * BUCKET_BYTES):
                piece = flat[begin : begin + 16 * BUCKET_BYTES]
                self.wait([self.world.Ibcast(piece, root=0)], piece)

    def fail(self, error: BaseException) -> None:
        if self._is_child:
            return
        if self._failure is None:
            self._own_error = error
        self._note(self.rank, f"failed with {described(error)}")

    def _end(self, rank: int, what: str) -> NoReturn:
        self._note(rank, what)
        raise TrainError(self._sentence())

    def close(self) -> None:
        pass  # the next fit takes the same connection; it ends with the program

    # Waiting.

    @contextlib.contextmanager
    def call(self, call: str) -> Iterator[None]:
        """Wraps a call that all ranks make together: counts it, and notifies the others when it fails."""
        self._raise_failure()
        self._place = Place(self._place.calls + 1, call[:80])
        try:
            yield
        except TrainError:
            raise
        except BaseException as error:  # Ctrl-C, or an error of MPI: this call will never be whole
            self.fail(error)
            if isinstance(error, self.mpi.Exception):
                raise TrainError(f"rank {self.rank}: MPI gave up in {call}: {described(error)}") from None
            raise

    def wait(self, requests: list[Any], *buffers: Any, statuses: list[Any] | None = None) -> None:
        """Wait until MPI has done `requests`; TrainError as soon as a rank has failed or is silent."""
        done = self.mpi.Request.Testall
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
        for rank in self.others:
            state = self._states[rank]
            if state.gone and state.place.calls < self._place.calls:
                why = f": {state.last_word}" * bool(state.last_word)
                self._note(rank, f"ended while the others wait for it in {call}{why}")
            elif not state.gone and self._silent(state):
                self._note(rank, f"gave no sign of life for {self.timeout:g} s ({call})")
            stuck = stuck and state.waits and state.place == self._place and now - state.since > self.timeout
        if stuck:
            self._note(self.rank, f"and all others wait in {call} for {self.timeout:g} s: the network is stuck")
        self._raise_failure()

    def _compare_calls(self, waited: float) -> None:
        """Name the rank that makes another call than most, when all have come or have had time to report theirs."""
        mine = self._place
        places = [mine if r == self.rank else state.place for r, state in enumerate(self._states)]
        here = {r: place.call for r, place in enumerate(places) if place.calls == mine.calls}
        calls = list(here.values())
        if len(set(calls)) == 1 or (len(here) < self.size and waited < min(3.0, self.timeout / 2)):
            return
        odd = min(here, key=lambda r: (calls.count(here[r]), -r))
        usual = next(r for r in sorted(here, key=lambda r: (-calls.count(here[r]), r)) if here[r] != here[odd])
        self._note(odd, f"came to {here[odd]} while rank {usual} is in {here[usual]}")

    def _silent(self, state: RankState) -> bool:
        """Whether the rank has given no sign of life for longer than the time-out, while this rank was listening."""
        return self._listened - state.alive > self.timeout

    def _note(self, rank: int, what: str, send: bool = True) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = (rank, what)
        self._watcher.dismiss()  # the ends that follow are its consequence
        if send:
            self._send(FAILURE, pickle.dumps((rank, what[:2000])))

    def _raise_failure(self) -> None:
        if self._is_child:
            raise TrainError(
                f"rank {self.rank}: called in process {os.getpid()}, a fork of the rank; need the process that mpiexec "
                "started, which alone can reach the other ranks"
            )
        if self._failure is None:
            return
        if self._own_error is not None:
            raise TrainError(f"rank {self.rank} has failed before with {described(self._own_error)}; start again")
        if (stop := _interrupt(self._failure[1])) is not None:
            if not self._interrupted:
                self._interrupted = True
                time.sleep(0.5)  # mpiexec interrupts all: let it come now, and not during a save
            raise stop
        raise TrainError(self._sentence())

    def _sentence(self) -> str:
        assert self._failure is not None
        return f"rank {self._failure[0]} {self._failure[1]}; all {self.size} ranks end"

    # Control messages.

    def _greet(self) -> None:
        """Wait until all ranks are here: the only wait in which no beat can be received."""
        world = self.mpi.COMM_WORLD
        sent = [world.Isend(bytearray(1), dest=r, tag=HELLO) for r in self.others]
        here = {r: world.Irecv(bytearray(1), source=r, tag=HELLO) for r in self.others}
        begin = time.monotonic()
        while missing := [r for r, request in here.items() if not request.Test()]:
            if (waited := time.monotonic() - begin) > START * self.timeout:
                text = f"rank {missing[0]} did not come within {START * self.timeout:g} s; all {self.size} ranks end"
                to_stderr(f"gradloom: rank {self.rank}: {text}: every rank must call this")
                time.sleep(0.5)  # mpiexec forwards the text before it kills the processes
                world.Abort(Exit.FAILED)
            time.sleep(min(waited / 16, 0.01))
        self._kept.append(sent)

    def _send(self, tag: int, data: bytes) -> None:
        with self._lock:
            self._sent = [(request, buffer) for request, buffer in self._sent if not request.Test()]
            self._sent += [(self._line.Isend(data, dest=rank, tag=tag), data) for rank in self.others]

    def _listen(self) -> None:
        """The thread that receives and sends beats."""
        pulse = Pulse(self._worker)
        beat = 0.0
        while not self._ended:
            now = time.monotonic()
            if (pause := now - self._listened) > self.timeout / 4:  # this process was stopped, not the others
                for state in self._states:
                    state.alive += pause
            self._hear()
            if now >= beat:
                beat = now + min(self.timeout / 8, 1.0)
                pulse.feel(self._waiting)
                self._send(BEAT, self._beat(pulse.signs))
            time.sleep(min(self.timeout / 40, 0.05))

    def _beat(self, signs: int) -> bytes:
        place = self._place
        return struct.pack("<qqq", signs, place.calls, self._waiting) + place.call.encode()

    def _hear(self) -> None:
        MPI = self.mpi
        status = MPI.Status()
        while (message := self._line.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            rank, tag = status.Get_source(), status.Get_tag()
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv(data)
            state = self._states[rank]
            now = time.monotonic()
            if tag == FAILURE:
                culprit, what = pickle.loads(data)
                self._note(culprit, what, send=False)
                continue
            if tag == BYE:
                state.gone, state.last_word = True, data.decode(errors="replace")
                continue
            signs, calls, waits = struct.unpack_from("<qqq", data)
            if signs != state.signs:
                state.signs, state.alive = signs, now
            place = Place(calls, data[24:].decode(errors="replace"))
            if place != state.place or bool(waits) != state.waits:
                state.since = now
            state.waits, state.place = bool(waits), place
        self._listened = time.monotonic()

    # The end.

    def _uncaught(self, kind: Any, error: BaseException, trace: Any) -> None:
        """An exception that ends the program: notify the others, print it once."""
        is_known = self._failure is not None and isinstance(error, TrainError) and str(error) == self._sentence()
        self.fail(error)
        if isinstance(error, KeyboardInterrupt):
            to_stderr(f"gradloom: rank {self.rank}: interrupted")
        elif is_known:
            to_stderr(f"gradloom: rank {self.rank}: {type(error).__name__}: {error}")
        else:
            to_stderr(f"gradloom: rank {self.rank} of {self.size} failed:")
            self._hook(kind, error, trace)
        sys.stderr.flush()
        self._reported = True

    def _leave(self) -> None:
        """Runs at the end of the program: waits until all ranks end, and calls MPI_Abort if one has failed."""
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        self._waiting = True
        self._send(BEAT, self._beat(0))
        self._send(BYE, self.last_word.encode())
        try:
            self._wait_for_the_end()
        except KeyboardInterrupt:
            self._note(self.rank, "was interrupted (Ctrl-C)")
        self._ended = True
        self._listener.join()
        self._watcher.dismiss()
        if self._failure is not None:
            if not (self._reported or self.is_root or self._states[0].gone):  # rank 0, which prints for all, cannot
                to_stderr(f"gradloom: rank {self.rank}: {self._sentence()}")
            time.sleep(1 if self._states[0].gone and not self.is_root else 0)  # one call of Abort is enough
            stop = _interrupt(self._failure[1])
            self.mpi.COMM_WORLD.Abort(Exit.FAILED if stop is None else of_signal(stop))

    def _wait_for_the_end(self) -> None:
        """Wait until all others have ended; after a failure they have the time-out to save and report."""
        begin = time.monotonic()
        while expected := [r for r in self.others if not self._states[r].gone]:
            dead = [r for r in expected if self._silent(self._states[r])]
            if dead and self._failure is None:
                self._note(dead[0], f"gave no sign of life for {self.timeout:g} s")
                to_stderr(f"gradloom: rank {self.rank}: {self._sentence()}")
                self._reported = True
            if self._failure is not None and (dead == expected or time.monotonic() - begin > self.timeout):
                return
            time.sleep(0.005)

    def _forked(self) -> None:
        """Runs in a forked child, which is no rank: closes its pipe, a sign of life of the rank."""
        self._is_child = True
        atexit.unregister(self._leave)
        sys.excepthook = self._hook
        self._watcher.forget()


def _interrupt(what: str) -> KeyboardInterrupt | None:
    """The exception that the other ranks raise for a rank that a signal stopped; None for any other failure."""
    named = (number for number, name in interrupts.SIGNALS.items() if f"({name})" in what)
    return next(map(interrupts.interrupt, named), None)
