"""Live lines, as a terminal shows them."""

import contextlib
import io
import sys
import threading

import pytest

from gradloom.base.live import Live, can_redraw

pyte = pytest.importorskip("pyte")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 20 columns."""
    monkeypatch.setenv("COLUMNS", "20")
    return Terminal()


@contextlib.contextmanager
def started(terminal):
    """Live lines on a terminal, which is stdout and stderr."""
    live = Live(terminal)
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        live.start()
        try:
            yield live
        finally:
            live.stop()


def screen(live):
    shown = pyte.Screen(20, 12)
    pyte.Stream(shown).feed(live.stream.getvalue().replace("\n", "\r\n"))
    lines = [line.rstrip() for line in shown.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_lines_are_replaced_and_printed_ones_stay_above(terminal):
    with started(terminal) as live:
        live.show(["epoch 1", "loss 2.5", "accuracy 0.5"])
        live.print("a\nb\n")
        live.show(["epoch 2", "loss 1"])
        assert screen(live) == ["a", "b", "epoch 2", "loss 1"]
        live.show([])
        assert screen(live) == ["a", "b"]


def test_what_a_program_prints_is_above_in_whole_lines(terminal):
    with started(terminal) as live:
        live.show(["epoch 1"])
        print("from stdout")
        print("half", end="", file=sys.stderr)
        assert screen(live) == ["from stdout", "epoch 1"]
        sys.stderr.writelines([" of it\n", "and the rest"])
        assert screen(live) == ["from stdout", "half of it", "epoch 1"]
        live.stop()
        assert sys.stdout is sys.stderr is live.stream
        print("after")
        assert screen(live) == ["from stdout", "half of it", "and the rest", "epoch 1", "after"]


@pytest.mark.parametrize("text", ["x" * 50, "語" * 25, "a語" * 17])
def test_lines_longer_than_the_terminal_are_erased_whole(terminal, text):
    with started(terminal) as live:
        for _ in range(3):
            live.show([text, "end"])
        assert "".join("".join(screen(live)).split()) == f"{text}end"
        live.show(["short"])
        assert screen(live) == ["short"]


def test_lines_of_other_threads_are_whole(terminal):
    with started(terminal) as live:

        def work(name):
            for i in range(50):
                print(f"{name} {i}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for i in range(50):
            live.show([f"step {i}", "loss"])
        for thread in threads:
            thread.join()
        live.show(["done"])
        shown = pyte.HistoryScreen(20, 200)
        pyte.Stream(shown).feed(live.stream.getvalue().replace("\n", "\r\n"))
        lines = [line.rstrip() for line in shown.display if line.strip()]
        assert sorted(lines[:-1]) == sorted(f"{name} {i}" for name in "ab" for i in range(50)) and lines[-1] == "done"


def test_the_width_of_a_terminal(terminal, monkeypatch):
    with started(terminal) as live:
        assert live.columns == 20
        monkeypatch.setenv("COLUMNS", "wide")
        assert live.columns == 80  # this terminal has no descriptor


def test_what_can_be_redrawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert can_redraw(Terminal()) and not can_redraw(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not can_redraw(Terminal())
