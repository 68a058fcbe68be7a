"""The collector of reference cycles is as it was after graphs were built, also after an error."""

import gc
import os
from collections.abc import Iterator

import pytest

import gradloom as gl
from gradloom.base.collector import LARGE, OLD, paused


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """As in a process of a user: tests/conftest.py freezes."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_it_pauses_inside_and_only_there() -> None:
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_disabled_where_the_user_has_disabled_it() -> None:
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_long_pause_leaves_is_old_and_was_not_visited() -> None:
    """It is garbage to a full collection alone; this comes when so many objects are old in this way."""
    collected = []
    gc.callbacks.append(lambda phase, about: collected.append(about["generation"]) if phase == "stop" else None)
    rounds = 0
    try:
        while not collected:
            gc.collect(0)
            collected.clear()
            with paused():
                made: list[list] = [[] for _ in range(2 * LARGE)]
                made.append(made)
            rounds += 1
        assert collected == [2] and OLD // (2 * LARGE) // 2 <= rounds <= OLD // (2 * LARGE) + 1
    finally:
        gc.callbacks.pop()


def test_what_the_caller_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with paused():
            made = [[] for _ in range(2 * LARGE)]
        assert made and gc.get_freeze_count() >= frozen - 100  # a frozen object may be freed
    finally:
        gc.unfreeze()


def test_errors_of_compile_enable_it_again() -> None:
    x = gl.input("x", (2, 3))
    with pytest.raises(gl.GradloomError):
        gl.compile(x, updates=[x])
    with pytest.raises(gl.GradloomError):
        gl.gradients((x > 0.0).sum(), [x])
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_beside_a_pause_collects() -> None:
    import threading

    inside, leave = threading.Event(), threading.Event()

    def pause() -> None:
        with paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=pause)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0 and gc.isenabled()
