"""flush=: denormal numbers are 0 in every thread of a run, and the caller's own mode stays; and who has met any."""

from __future__ import annotations

import ctypes
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import _core, ops
from gradloom.base import settings
from gradloom.base.settings import Switches, switches
from gradloom.run.walk import Walk
from gradloom.transform.program import gather
from tests.run.test_bits import bits, block, images

ISAS = _core.isas()
SMALL = np.float32(1e-39)  # denormal
FTZ, DAZ = 0x8000, 0x40

KNOWN = platform.machine() in ("x86_64", "AMD64") and platform.libc_ver()[0] == "glibc"
x86 = pytest.mark.skipif(not KNOWN, reason="reads MXCSR out of glibc's fenv_t")


@pytest.fixture()
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings, "core_count", lambda: 4)
    _core.set_cores(4)
    yield
    _core.set_cores(0)


def mxcsr() -> int:
    """Of this thread: the last word of glibc's fenv_t, without the sticky bits."""
    env = (ctypes.c_uint32 * 8)()
    ctypes.CDLL(None).fegetenv(env)
    return int(env[7]) & ~0x3F


def set_mxcsr(word: int) -> None:
    env = (ctypes.c_uint32 * 8)()
    library = ctypes.CDLL(None)
    library.fegetenv(env)
    env[7] = word
    library.fesetenv(env)


@pytest.fixture()
def own_mode() -> Iterator[int]:
    """The caller flushes and rounds towards 0."""
    before = mxcsr()
    word = 0x1F80 | FTZ | DAZ | 0x6000
    set_mxcsr(word)
    yield word
    set_mxcsr(before)


def small(shape: tuple[int, ...]) -> np.ndarray:
    """Denormal numbers of both signs."""
    rng = np.random.default_rng(0)
    return (rng.integers(1, 1 << 23, shape) | rng.integers(0, 2, shape) << 31).astype(np.uint32).view(np.float32)


# ---- what is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_denormal_operands_and_results_are_0(isa: str) -> None:
    x, y = gl.input("x", (300,)), gl.input("y", (300,))
    operands = {"x": small((300,)), "y": np.full(300, 3, np.float32)}
    results = {"x": np.full(300, 1e-20, np.float32), "y": np.full(300, 1e-20, np.float32)}
    for feeds in (operands, results):
        exact, flushed = (gl.compile(x * y, isa=isa, flush=flush)(**feeds)[0] for flush in (False, True))
        with np.errstate(under="ignore"):
            want = feeds["x"] * feeds["y"]
        assert exact.tobytes() == want.tobytes() and want.all()
        assert not flushed.any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_product_in_every_thread(four_cores: None, isa: str, threads: int) -> None:
    """Helpers flush as the caller does; and they do not where the run does not."""
    x, y = gl.input("x", (192, 64)), gl.input("y", (64, 256))
    feeds = {"x": small((192, 64)), "y": np.ones((64, 256), np.float32)}
    runs = {flush: gl.compile(x @ y, isa=isa, threads=threads, flush=flush) for flush in (False, True)}
    assert max(runs[True].plan.bytecode.instructions[0]["parts"]) > 1
    want = feeds["x"].astype(np.float64) @ feeds["y"]
    for _ in range(3):
        assert not runs[True](**feeds)[0].any()
        got = runs[False](**feeds)[0]
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("build", [block, images])
def test_ordinary_numbers_keep_their_bits(four_cores: None, build: Callable[[], Any]) -> None:
    made = build()
    right = bits(made, threads=1, flush=False)
    assert all(bits(made, threads=threads, flush=True) == right for threads in (1, 2, 3))


def test_bf16_flushes_unless_it_is_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLOOM_FLUSH", raising=False)
    monkeypatch.delenv("GRADLOOM_PRECISION", raising=False)
    assert not switches().flush and not switches(precision="f32").flush
    assert switches(precision="bf16").flush and not switches(precision="bf16", flush=False).flush
    x = gl.input("x", (4,))
    feeds = {"x": np.full(4, SMALL)}
    assert not gl.compile(x * 3.0, precision="bf16")(**feeds)[0].any()
    assert gl.compile(x * 3.0, precision="bf16", flush=False)(**feeds)[0].all()
    assert gl.compile(x * 3.0)(**feeds)[0].all()
    monkeypatch.setenv("GRADLOOM_FLUSH", "1")
    assert not gl.compile(x * 3.0)(**feeds)[0].any()
    monkeypatch.setenv("GRADLOOM_FLUSH", "0")
    assert gl.compile(x * 3.0, precision="bf16")(**feeds)[0].all()
    with pytest.raises(gl.SettingError, match="flush"):
        gl.compile(x * 3.0, flush="no")  # type: ignore[arg-type]


def test_training_takes_it() -> None:
    """A trainer's steps, evaluations and predictions."""
    x = np.full((8, 2), SMALL)

    def net() -> gl.nn.Module:
        layer = gl.nn.Linear(2, 1, bias=False)
        layer.weight.assign(np.full((1, 2), 0.5, np.float32))
        return layer

    assert gl.predict(net(), x).all() and not gl.predict(net(), x, flush=True).any()
    changed = {}
    for flush in (False, True):
        model = net()
        trainer = gl.Trainer(model, lambda y, t: ops.reshape(y - t, (8,)), gl.optim.SGD(lr=1e38), flush=flush)
        trainer.step(x, np.zeros((8, 1), np.float32))
        changed[flush] = model.weight.numpy()
    assert (changed[True] == 0.5).all() and (changed[False] != 0.5).all()


def test_a_walk_flushes_as_its_program_does() -> None:
    y = gl.input("x", (300,)) * 3.0
    for flush in (False, True):
        walk = Walk(gather([y], []), Switches(flush=flush))
        walk.begin({"x": small((300,))}, {})
        (written,) = walk.run_all()
        assert written[0].view(np.float32).any() == (not flush)


# ---- the caller's own mode -------------------------------------------------------------------------------------------


@x86
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_mode_of_the_caller_stays(own_mode: int, threads: int, flush: bool) -> None:
    """After a return, a guard, an index that is out of range and an error; and it changes no bit of the run."""
    x, y = gl.input("x", (192, 64)), gl.input("y", (64, 256))
    feeds = {"x": small((192, 64)), "y": np.ones((64, 256), np.float32)}
    run = gl.compile(x @ y, threads=threads, flush=flush)
    record = run(**feeds)[0]
    assert mxcsr() == own_mode
    set_mxcsr(0x1F80)
    plain = run(**feeds)[0]
    assert record.tobytes() == plain.tobytes() and plain.any() == (not flush)

    set_mxcsr(own_mode)
    w = gl.parameter(np.ones(4, np.float32), "w")
    loss = ops.sum(gl.input("x", (4,)) * w)
    update = ops.sgd(1.0, 0.0, 0.0, 1.0, w, w, None)
    guarded = gl.compile([ops.guard(loss, gl.constant(1.0), w)], [update[0]], threads=threads, flush=flush)
    with pytest.raises(gl.NonFiniteError):
        guarded(x=np.full(4, np.inf, np.float32))
    assert mxcsr() == own_mode
    rows = gl.compile(ops.get_rows(gl.input("x", (4, 2)), gl.input("i", (3,), "i32")), threads=threads, flush=flush)
    with pytest.raises(gl.DataError):
        rows(x=np.ones((4, 2), np.float32), i=np.array([0, 9, 1], np.int32))
    assert mxcsr() == own_mode
    with pytest.raises(ValueError):
        run._native.run(1, threads=0, flush=flush)
    assert mxcsr() == own_mode


@x86
def test_the_mode_of_the_caller_stays_after_an_interrupt(own_mode: int) -> None:
    """The handler runs in the caller's mode, in the middle of the run."""
    seen = []

    def handler(*_: Any) -> None:
        seen.append(mxcsr())
        raise KeyboardInterrupt

    x = y = gl.input("x", (768, 768))
    for _ in range(100):
        y = y @ x
    run = gl.compile(ops.sum(y), threads=2, flush=False)
    old = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.15, lambda: signal.raise_signal(signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(100):
                run(x=np.eye(768, dtype=np.float32))
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, old)
    assert seen == [own_mode] and mxcsr() == own_mode


# ---- who has met denormal numbers ------------------------------------------------------------------------------------


def deep(layers: int, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The gradients of an MLP of tanh layers, each of which makes them about half as large."""
    rng = np.random.default_rng(0)
    weights = [gl.parameter(rng.normal(0, 0.5 / 4, (16, 16)), f"w{i}") for i in range(layers)]
    x = h = gl.input("x", (8, 16))
    for w in weights:
        h = ops.tanh(h @ w + 0.1)
    loss = ops.sum(h * h)
    grads = [g for g in gl.gradients(loss, weights) if g is not None]
    run = gl.compile([loss, *grads], **options)
    return run, {x.node.attrs["key"]: rng.standard_normal((8, 16)).astype(np.float32)}


@x86
@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_names_what_ran_on_denormal_numbers(threads: int) -> None:
    run, feeds = deep(150, threads=threads)
    run.collect_times()
    run(**feeds)
    named = run.denormals()
    known = [what for what, _, _ in run.timings()]
    assert set(named) < set(known) and any(what.startswith("matmul") for what in named)
    forward = [what for what in known if what.startswith("tanh ")]
    assert len(forward) == 150 and not set(forward) & set(named)  # the gradients alone become so small
    marked = [line for line in run.report().splitlines() if "on denormal numbers" in line]
    assert len(marked) == len(named)

    for layers, options in ((150, {"flush": True}), (50, {})):
        other, feeds = deep(layers, threads=threads, **options)
        other.collect_times()
        other(**feeds)
        assert other.denormals() == [] and "denormal" not in other.report()
    run.collect_times()  # begins anew
    run(**{key: np.zeros_like(array) for key, array in feeds.items()})
    assert len(run.denormals()) <= len(named)
