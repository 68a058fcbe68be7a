"""The machine: what it refuses, and what a run does."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradloom import _core
from tests.core.harness import ARG, CODES, INSTRUCTION, arg, attr_words

ISA = _core.isas()[0]
STOP = {name: i for i, name in enumerate(_core.STOP_NAMES)}


def in_child(work: Callable[[], int]) -> int:
    """The exit code of work, run in a forked process; -1 when it hangs."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = work()
        finally:
            os._exit(code)
    for _ in range(6000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


class Tape:
    """Small bytecode in the making. Segments 0: arena, 1: memory (two rows of eight floats), 2: settings,
    3: scratch."""

    def __init__(self, isa: str = ISA) -> None:
        self.isa = isa
        self.kernels: list[tuple[str, str]] = []
        self.instructions: list[np.ndarray] = []
        self.args: list[np.ndarray] = []
        self.words: list[int] = []
        self.arena = _core.Arena()
        self.arena.ensure(1 << 16)
        self.memory = np.zeros(16, np.float32)
        self.memory[:8] = np.arange(8)
        self.segments: list[tuple] = [
            ("arena", self.arena), ("memory", self.memory.ctypes.data, self.memory.nbytes), ("settings", 16),
            ("scratch", 64),
        ]  # fmt: skip
        self.options: dict[str, Any] = {}

    def add(self, name: str, args: list[np.ndarray], attrs: list[Any] = [], sig: str = "f32", **fields: Any) -> Tape:  # noqa: B006
        r = np.zeros((), INSTRUCTION)
        if (name, sig) not in self.kernels:
            self.kernels.append((name, sig))
        words = [int(w) for w in attr_words(attrs)]
        r["kernel"], r["node"] = self.kernels.index((name, sig)), 100 + len(self.instructions)
        r["arg_first"], r["arg_count"] = len(self.args), len(args)
        r["attr_first"], r["attr_count"] = len(self.words), len(words)
        try:
            parts, _, _ = _core.kernel_plan(self.isa, name, sig, np.array(args, ARG), np.array(words, np.int64))
        except ValueError:
            parts = (1,)
        r["phases"] = len(parts)
        r["parts"][: len(parts)] = parts
        for k, v in fields.items():
            r[k] = v
        self.args += args
        self.words += words
        self.instructions.append(r)
        return self

    def program(self) -> _core.Program:
        return _core.Program(
            self.isa, self.kernels, np.array(self.instructions, INSTRUCTION), np.array(self.args, ARG),
            np.array(self.words, np.int64), self.segments, **self.options,
        )  # fmt: skip


def vec(segment: int, offset: int = 0, n: int = 8, write: bool = False, dtype: str = "f32") -> np.ndarray:
    return arg(dtype, (n,), segment, offset, write=write)


def counter() -> Tape:
    """memory row 1 += setting 0, each step; records: that row's first two numbers."""
    t = Tape()
    t.add("add", [vec(1, 32), arg("f32", (), 2, 0), vec(1, 32, write=True)])
    t.options["records"] = [(1, 32, 8)]
    return t


def changed(record: np.ndarray, **fields: Any) -> np.ndarray:
    record = record.copy()
    for k, v in fields.items():
        if isinstance(v, tuple):
            record[k][v[0]] = v[1]
        else:
            record[k] = v
    return record


# ---- what is refused -------------------------------------------------------------------------------------


BAD_ARGS = [
    (changed(vec(9)), "segment 9; there are 4"),
    (changed(vec(3)), "segment 3 is scratch"),
    (changed(vec(1), offset=40), "bytes 40..+32 lie outside segment 1 of 64 bytes"),
    (changed(vec(1), offset=2**64 - 16), "lie outside segment 1"),
    (changed(vec(1), bytes=2**63), "lie outside segment 1"),
    (changed(vec(1), offset=2), "offset 2 is no multiple of 4"),
    (changed(vec(1), shape=(0, 9)), "reach 9 elements of f32, but it has 32 bytes"),
    (changed(vec(1), strides=(0, 2)), "reach 15 elements of f32, but it has 32 bytes"),
    (changed(vec(1), shape=(0, 2**62), strides=(0, 2**62)), "but it has 32 bytes"),
    (changed(vec(1), shape=(0, -8)), "axis 0 has size -8"),
    (changed(vec(1), strides=(0, -1)), "stride -1"),
    (changed(vec(1), shape=(3, 2)), "unused axis 3 has size 2"),
    (changed(vec(1), strides=(3, 2)), "unused axis 3 has size 1, stride 2"),
    (changed(vec(1), rank=7), "rank 7; at most 6"),
    (changed(vec(1), dtype=9), "dtype code 9; 0..8 and 16..25 exist"),
    (changed(vec(1), dtype=26), "dtype code 26"),
    (changed(vec(1), dtype=16), "its shape and strides cut blocks of 32 of q4_0"),
    (changed(vec(1), dtype=16, shape=(0, 64)), "reach 64 elements of q4_0, but it has 32 bytes"),
    (changed(vec(1), dtype=16, shape=(0, 32), offset=4), "offset 4 is no multiple of 18, the size of q4_0"),
    (changed(vec(1), dtype=20, shape=(0, 32), bytes=34, flags=1), "is written, but q8_0 is only read"),
    (changed(vec(1), dtype=0), "has a segment, but no dtype"),
    (changed(vec(1), dtype=7), "arguments are of other dtypes"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "message"), BAD_ARGS)
def test_bad_argument(record: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=r"instruction 0 \(relu f32, node 100\)") as error:
        Tape().add("relu", [record, vec(0, 0, write=True)]).program()
    assert message in str(error.value)


def test_bad_output() -> None:
    for record, message in (
        (changed(vec(0, 0, write=True), strides=(0, 2), bytes=64), "is written, but not dense"),
        (vec(2, 0, 4, write=True), "segment 2 is read only"),
    ):
        with pytest.raises(ValueError, match=message):
            Tape().add("relu", [vec(1), record]).program()
    t = Tape()
    t.segments[1] = ("readonly", *t.segments[1][1:])
    t.add("relu", [vec(1), vec(1, 32, write=True)])
    with pytest.raises(ValueError, match="segment 1 is read only"):
        t.program()
    t = Tape()
    t.segments[1] = ("memory", t.memory.ctypes.data + 1, 63)
    t.add("relu", [vec(1, 0, 4), vec(0, 0, 4, write=True)])
    with pytest.raises(ValueError, match="segment 1: its address is no multiple of 4"):
        t.program()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kernel": 5}, "kernel 5; there are 1"),
        ({"arg_first": 1}, "arguments 1..+2; the bytecode has 2"),
        ({"arg_count": 2**32 - 1}, "the bytecode"),
        ({"attr_first": 0, "attr_count": 1}, "attribute words 0..+1; the bytecode has 0"),
        ({"phases": 0}, "0 phases"),
        ({"phases": 5}, "5 phases"),
        ({"phases": 2, "parts": (1, 1)}, "2 phases; on isa"),
        ({"parts": (0, 2)}, "2 parts in phase 0; on isa"),
        ({"parts": (0, 0)}, "0 parts in phase 0"),
    ],
)
def test_bad_instruction(fields: dict, message: str) -> None:
    r = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
    r.instructions[0] = changed(r.instructions[0], **fields)
    with pytest.raises(ValueError, match=r"instruction 0|the bytecode") as error:
        r.program()
    assert message in str(error.value)


def test_bad_names_segments_and_buffers() -> None:
    good = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
    good.program()
    with pytest.raises(ValueError, match="isa pdp11: this machine runs"):
        _core.kernels("pdp11")
    for name, sig, message in (
        ("rleu", "f32", "has no rleu"), ("relu", "f64", "has relu for f32")
    ):  # fmt: skip
        t = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
        t.kernels = [(name, sig)]
        with pytest.raises(ValueError, match=message):
            t.program()
    for segment in (("cloud", 3), ("arena",), ("memory", 3), ("scratch", 1, 2), ()):
        t = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
        t.segments.append(segment)
        with pytest.raises(ValueError, match="segment 4: need"):
            t.program()
    for segment, message in ((("settings", 8), "second settings"), (("memory", 0, 8), "at address 0")):
        t = Tape().add("relu", [vec(1), vec(0, 0, write=True)])
        t.segments.append(segment)
        with pytest.raises(ValueError, match=message):
            t.program()
    t = Tape()
    t.segments[2] = ("settings", 12)
    with pytest.raises(ValueError, match="whole words"):
        t.program()
    args = [
        ISA,
        good.kernels,
        np.array(good.instructions, INSTRUCTION),
        np.array(good.args, ARG),
        np.zeros(0, np.int64),
    ]
    for i, bad in ((2, np.zeros(47, np.uint8)), (3, np.zeros(121, np.uint8)), (4, np.zeros(3, np.int32))):
        with pytest.raises(ValueError, match="no whole number of records"):
            _core.Program(*args[:i], bad, *args[i + 1 :], good.segments)
    with pytest.raises(TypeError, match="C-contiguous"):
        _core.Program(*args[:3], np.zeros((4, 240), np.uint8)[:, ::2], args[4], good.segments)


def test_bad_ranges() -> None:
    for key, value, message in (
        ("records", [(7, 0, 4)], "record 0: segment 7"),
        ("records", [(1, 60, 8)], "record 0: bytes 60"),
        ("records", [(3, 0, 8)], "is scratch"),
        ("dead", [(5, 0, 0, 4)], "there is no instruction 5"),
        ("dead", [(0, 2, 0, 4)], "lies in no memory"),
        ("guards", [(0, 1 << 30, 4)], "guard range 0: bytes"),
    ):
        t = counter()
        t.options[key] = value
        with pytest.raises(ValueError, match=message):
            t.program()


def test_missing_workspace_and_scratch() -> None:
    n = 1 << 18
    t = Tape()
    t.arena.ensure(n * 4 + 4096)
    args = [arg("f32", (), 1, 0), arg("f32", (), 1, 4), vec(0, 0, n), arg("f32", (), 1, 32, write=True)]
    t.add("guard", args)
    with pytest.raises(ValueError, match="needs a workspace of"):
        t.program()
    parts, _, workspace = _core.kernel_plan(ISA, "guard", "f32", np.array(args, ARG), np.zeros(0, np.int64))
    assert len(parts) == 2 and workspace == 8 * parts[0]
    t = Tape()
    t.arena.ensure(n * 4 + 4096)
    t.add("guard", [*args, arg("u8", (workspace,), 0, n * 4, write=True)], phases=2, parts=np.array([*parts, 0, 0]))
    t.program()
    row = next(((n, s) for n, s in _core.kernels(ISA) if n == "matmul"), None)
    if row is None:
        return
    args = [arg("f32", (200, 300), 0, 0), arg("f32", (300, 200), 0, 0), arg("f32", (200, 200), 0, 1 << 19, write=True)]
    if _core.kernel_plan(ISA, "matmul", "f32", np.array(args, ARG), np.zeros(0, np.int64))[1] > 64:
        t = Tape()
        t.arena.ensure(1 << 21)
        with pytest.raises(ValueError, match="bytes of scratch; the bytecode has 64"):
            t.add("matmul", args).program()


# ---- what a run does -------------------------------------------------------------------------------------


def test_steps_settings_and_records() -> None:
    t = counter()
    p = t.program()
    assert len(p) == 1 and p.record_bytes == 8 and p.settings_bytes == 16
    settings = np.zeros((5, 4), np.float32)
    settings[:, 0] = [1, 10, 100, 1000, 10000]
    records = np.zeros((5, 2), np.float32)
    assert p.run(5, settings=settings, records=records) == (5, 0, 0, 0, 0)
    assert records[:, 0].tolist() == [1, 11, 111, 1111, 11111] and records[:, 1].tolist() == records[:, 0].tolist()
    assert p.run(0) == (0, 0, 0, 0, 0)
    assert p.run(2)[0] == 2  # the last settings stay
    assert t.memory[8] == 31111
    for key, value, message in (
        ("settings", settings[:4], "settings: 64 bytes; need 5 rows of 16"),
        ("settings", np.zeros((5, 3), np.float32), "settings: 60 bytes"),
        ("records", records[:4], "records: 32 bytes; need 5 rows of 8"),
    ):
        with pytest.raises(ValueError, match=message):
            p.run(5, **{key: value})
    frozen = records.copy()
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="records"):
        p.run(5, records=frozen)
    with pytest.raises(ValueError, match="need 0 or more"):
        p.run(-1)
    with pytest.raises(ValueError, match="need 1 or more"):
        p.run(1, threads=0)


def test_bind() -> None:
    t = counter()
    p = t.program()
    settings = np.array([[1, 0]], np.float64).view(np.float32).reshape(1, 4)
    settings = np.zeros((1, 4), np.float32)
    settings[0, 0] = 1
    other = np.full(16, 7, np.float32)
    p.run(1, settings=settings)
    p.bind(1, other.ctypes.data, other.nbytes)
    p.run(1, settings=settings)
    assert t.memory[8] == 1 and other[8] == 8 and other[7] == 7
    with pytest.raises(ValueError, match="gets 32 bytes; its arguments reach 64"):
        p.bind(1, other.ctypes.data, 32)
    with pytest.raises(ValueError, match="no memory segment"):
        p.bind(0, other.ctypes.data, 64)
    with pytest.raises(ValueError, match="segment 8; there are 4"):
        p.bind(8, other.ctypes.data, 64)
    with pytest.raises(ValueError, match="address 0"):
        p.bind(1, 0, 64)
    with pytest.raises(ValueError, match="no multiple of 4"):
        p.bind(1, other.ctypes.data + 2, 64)
    p.run(1)
    assert other[8] == 9


def test_arena_grows_under_a_program() -> None:
    t = Tape()
    t.add("add", [vec(1), vec(1), vec(0, 64, write=True)]).add("add", [vec(0, 64), vec(1), vec(1, 32, write=True)])
    p = t.program()
    old = t.arena.view()
    p.run()
    before = t.arena.address
    assert old[64:96].view(np.float32).tolist() == [2.0 * i for i in range(8)]
    t.arena.ensure(64 << 20)
    assert t.arena.bytes >= 64 << 20 and t.arena.generation > 1 and t.arena.address % (2 << 20) == 0
    p.run()
    assert t.memory[8:].tolist() == [3.0 * i for i in range(8)]
    assert t.arena.view()[64:96].view(np.float32)[1] == 2
    assert old[64:96].view(np.float32)[1] == 2 and old.ctypes.data == before  # the old block lives while it is seen
    generation = t.arena.generation
    t.arena.ensure(1)
    assert t.arena.generation == generation
    assert 0 <= t.arena.huge_bytes <= t.arena.bytes


def test_arena_that_cannot_grow() -> None:
    t = Tape().add("add", [vec(1), vec(1), vec(0, 64, write=True)])
    p = t.program()
    assert _core.Arena().view().size == 0 and _core.Arena().huge_bytes == 0
    with pytest.raises(MemoryError):
        t.arena.ensure(1 << 60)
    assert t.arena.bytes == 0
    assert p.run()[:2] == (1, 0)  # what the program needs is made again
    assert t.arena.bytes >= 96
    t.arena.ensure(4096)
    assert p.run()[:2] == (1, 0)


def test_guard_stops_before_the_update() -> None:
    t = Tape()
    t.add("guard", [arg("f32", (), 2, 0), arg("f32", (), 2, 8), vec(1), arg("f32", (), 0, 0, write=True)])
    t.add("add", [vec(1, 32), vec(1), vec(1, 32, write=True)])
    t.options["records"] = [(0, 0, 4)]
    p = t.program()
    settings = np.ones((4, 4), np.float32)
    settings[2, 0] = np.nan
    records = np.zeros((4, 1), np.float32)
    done, stop, node, index, _ = p.run(4, settings=settings, records=records)
    assert (done, stop, node, index) == (2, STOP["guard"], 100, 0)
    assert t.memory[9] == 2 and records[:, 0].tolist() == pytest.approx([140**0.5, 140**0.5, 0, 0])
    assert p.run(1, settings=settings)[:2] == (1, 0)  # and runs on


def test_check_finds_the_first_bad_output() -> None:
    t = Tape()
    t.add("sub", [vec(1), vec(1), vec(0, 0, write=True)])
    t.add("div", [vec(1), vec(1), vec(0, 64, write=True)])  # 0 / 0
    t.add("add", [vec(0, 64), vec(1), vec(1, 32, write=True)])
    p = t.program()
    assert p.run(1)[:2] == (1, 0)
    done, stop, node, index, value = p.run(1, check=True)
    assert (done, stop, node, index) == (0, STOP["nonfinite"], 101, 0)
    assert np.isnan(np.array([value], np.int64).astype(np.uint32).view(np.float32)[0])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("number", ["largest", np.inf, -np.inf, np.nan])
def test_check_finds_bad_halves(kind: str, number: Any) -> None:
    t = Tape()
    t.memory[3] = {"f16": 65504.0, "bf16": 3.38e38}[kind] if number == "largest" else number
    t.add("cast", [vec(1), vec(0, write=True, dtype=kind)], [CODES[kind]], sig=f"f32_{kind}")
    done, stop, _, index, _ = t.program().run(1, check=True)
    assert (done, stop, index) == ((1, 0, 0) if number == "largest" else (0, STOP["nonfinite"], 3))


def test_check_finds_overwritten_guards() -> None:
    t = Tape()
    t.add("relu", [vec(1), vec(0, 64, write=True)]).add("relu", [vec(1), vec(0, 128, write=True)])
    t.options["guards"] = [(0, 32, 32), (0, 96, 32)]
    assert t.program().run(1, check=True)[:2] == (1, 0)
    t.options["guards"] = [(0, 32, 32), (0, 96, 33)]
    done, stop, node, index, value = t.program().run(1, check=True)
    assert (done, stop, node, index, value) == (0, STOP["bounds"], 101, 128, 0)
    assert t.program().run(1)[:2] == (1, 0)


def test_poison_fills_what_is_dead() -> None:
    t = Tape("scalar")  # AddressSanitizer does not see masked loads
    t.add("relu", [vec(1), vec(0, 64, write=True)]).add("relu", [vec(0, 64), vec(1, 32, write=True)])
    t.options["dead"] = [(1, 0, 64, 32), (_core.EACH_STEP, 0, 256, 32)]
    p = t.program()
    p.run()
    assert t.memory[8:].tolist() == list(range(8)) and t.arena.view()[64:96].any()
    p.run(2, poison=True)
    assert t.memory[8:].tolist() == list(range(8))
    assert (t.arena.view()[64:96] == 0xFF).all() and (t.arena.view()[256:288] == 0xFF).all()
    t.options["dead"] = [(0, 0, 64, 32)]  # too early
    early = t.program()
    if _core.ADDRESS_SANITIZER:  # reading it ends the process

        def child() -> int:
            early.run(1, poison=True)
            return 0

        assert in_child(child) > 0
    else:
        early.run(1, poison=True)
        assert np.isnan(t.memory[8:]).all()


def test_stop_from_another_thread_and_deadline() -> None:
    t = counter()
    p = t.program()
    timer = threading.Timer(0.05, p.stop)
    timer.start()
    done, stop, *_ = p.run(1 << 40)
    timer.join()
    assert stop == STOP["requested"] and done > 0
    assert p.run(3)[:2] == (3, 0)  # the request is used up
    p.stop()
    assert p.run(3)[:2] == (1, STOP["requested"])  # one made between runs ends the next after a step
    start = time.perf_counter()
    done, stop, *_ = p.run(1 << 40, deadline=0.05)
    assert stop == STOP["deadline"] and done > 0 and 0.04 < time.perf_counter() - start < 5
    assert p.run(1, deadline=1e-9)[:2] == (1, 0)


def test_one_run_at_a_time() -> None:
    t = counter()
    p = t.program()
    thread = threading.Thread(target=p.run, args=(1 << 40,))
    thread.start()
    time.sleep(0.05)
    with pytest.raises(RuntimeError, match="running already"):
        p.run(1)
    with pytest.raises(RuntimeError, match="running"):
        p.bind(1, t.memory.ctypes.data, 64)
    p.stop()
    thread.join()
    assert p.run(1)[0] == 1


def test_programs_that_share_an_arena_take_turns() -> None:
    a = counter()
    a.add("add", [vec(1, 32), vec(1, 32), vec(0, 0, write=True)])
    b = counter()
    b.arena, b.segments[0] = a.arena, a.segments[0]
    b.add("add", [vec(1, 32), vec(1, 32), vec(0, 0, write=True)])
    programs = [a.program(), b.program()]
    threads = [threading.Thread(target=p.run, args=(200000,)) for p in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    growing = threading.Thread(target=programs[0].run, args=(1 << 40,))
    growing.start()
    time.sleep(0.02)
    threading.Timer(0.05, programs[0].stop).start()
    a.arena.ensure(32 << 20)  # waits for the run
    growing.join()
    assert programs[0].run(1)[0] == 1


def test_profile() -> None:
    t = counter()
    t.add("exp", [vec(1), vec(0, 0, write=True)])
    p = t.program()
    p.run(3)
    p.profile(True)
    p.run(10)
    steps, least, total = p.timings()
    assert steps == 10 and len(least) == len(total) == 2
    assert all(0 <= a * 10 <= b for a, b in zip(least, total, strict=True))
    p.profile(False)
    p.run(10)
    assert p.timings()[0] == 10


def test_memory_is_given_back() -> None:
    for _ in range(50):
        t = counter()
        t.arena.ensure(8 << 20)
        p = t.program()
        p.run(1)
        view = t.arena.view()
        del t, p
        view[:] = 1  # the view keeps its block
