"""Ctrl-C inside one long step: the step is given up before anything that outlives it has been written."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops

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
    except KeyboardInterrupt:  # it came late
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert hits
