"""Ctrl-C inside one long step: the step is given up before anything that outlives it has been written."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.locks import has_memory

LENGTH = 400  # products of 768 x 768: seconds of work in one native call


@pytest.fixture()
def heeded():
    """A handler for SIGINT, also where the tests run in the background."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_step_is_given_up_and_nothing_is_written(heeded, threads: int) -> None:
    rng = np.random.default_rng(0)
    a = gl.parameter(rng.standard_normal((768, 768)) / 28, name="a", trainable=False)
    state = gl.parameter(np.zeros(()), name="state")
    x = gl.input("x", (768, 768))
    y = x
    for _ in range(LENGTH):
        y = y @ a
    total = ops.sum(y)
    update = ops.sgd(1.0, 0.0, 0.0, 1.0, state, total * 0 + 1, None)
    run = gl.compile([total], [update[0]], threads=threads)
    done = []
    timer = threading.Timer(0.15, lambda: (done.append(True), os.kill(os.getpid(), signal.SIGINT)))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(x=np.eye(768, dtype=np.float32))
    timer.join()
    assert done
    assert state.numpy() == 0  # the update at the end of the step did not happen


def test_a_program_survives_interrupts_at_any_moment():
    """Ctrl-C may come between any two steps of the interpreter; the program is called again as if nothing had been."""
    x = gl.input("x", (4,))
    run = gl.compile(x * 2)
    want = np.arange(4.0) * 2
    hits = 0

    def stop(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    try:
        for k in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + k * 1e-6)
                for _ in range(200):
                    run(x=np.arange(4.0))
            except KeyboardInterrupt:
                hits += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert np.array_equal(run(x=np.arange(4.0))[0], want)
            assert not has_memory()  # other threads can run programs
    except KeyboardInterrupt:  # it came late
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert hits


class Countdown(gl.nn.Module):
    """Its weight is minus the number of steps: the mean of w + 0 x has gradient 1, and the rate is 1."""

    def __init__(self):
        super().__init__()
        self.w = gl.parameter(np.zeros(()), name="w")

    def forward(self, x):
        return x * 0 + self.w


def test_steps_that_were_done_are_counted(heeded) -> None:
    """Ctrl-C that comes in a native call of many steps: the trainer's count is that of the weights."""
    model = Countdown()
    trainer = gl.Trainer(model, "mean", gl.optim.SGD(lr=1.0), threads=1)
    data = gl.data.Dataset(np.zeros((1_000_000, 1), np.float32))
    gl.epoch(trainer, gl.data.Dataset(data.data[:10]), batch_size=1)  # all that is imported and compiled is there
    interrupted = 0
    for k in range(8):
        model.w.assign(0.0)  # f32 counts up to 2**24
        before = trainer.steps
        timer = threading.Timer(0.11 + 0.017 * k, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        try:
            while True:
                gl.epoch(trainer, data, batch_size=1)
        except KeyboardInterrupt:
            interrupted += trainer.steps > before
        timer.join()
        assert float(-model.w.numpy()) == trainer.steps - before, k
    assert interrupted
