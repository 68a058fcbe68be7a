"""Locks where signal handlers raise, as for Ctrl-C."""

from __future__ import annotations

import signal

import pytest

from gradloom.base.locks import Lock

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")


@pytest.mark.parametrize("nested", [False, True])
def test_no_interrupt_leaves_a_lock_locked(nested: bool) -> None:
    lock, armed = Lock(), False

    def stop(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(300):  # of which most are interrupted
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(20_000):
                    with lock:
                        if nested:
                            with lock:
                                pass
            except KeyboardInterrupt:
                pass
            assert not lock._is_owned()  # type: ignore[attr-defined]
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
