import io
import math
from types import SimpleNamespace

import pytest

from gradloom.train.display import Display, StepDisplay, duration, plural, rate


class Terminal(io.StringIO):
    def isatty(self):
        return True


def result(loss, accuracy=math.nan, ndata=100):
    return SimpleNamespace(loss=loss, accuracy=accuracy, ndata=ndata)


def epoch(number, train, val=None):
    return SimpleNamespace(epoch=number, train=train, val=val, seconds=0.5)


def test_a_line_per_epoch_where_there_is_no_terminal():
    stream = io.StringIO()
    with Display(3, stream) as display:
        display.rows(SimpleNamespace(training=True, rows=10, rows_total=100, seconds=0.1, result=result(1.0)))
        display.epoch(epoch(1, result(0.5, 0.75), result(0.6, 0.7, 10)))
        display.epoch(epoch(2, result(0.25)))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/3  loss 0.5  accuracy 0.7500  val loss 0.6  val accuracy 0.7000  200 rows/s  ")
    assert lines[1].startswith("epoch 2/3  loss 0.25  200 rows/s  ") and lines[1].endswith(" s left")


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    with Display(2, stream) as display:
        display.rows(SimpleNamespace(training=True, rows=50, rows_total=100, seconds=0.1, result=result(1.5, 0.5)))
        display.rows(SimpleNamespace(training=False, rows=5, rows_total=10, seconds=0.1, result=result(1.4, 0.5)))
        display.epoch(epoch(1, result(0.5, 0.75)))
        display.epoch(epoch(2, result(0.4, 0.80)))
    shown = stream.getvalue()
    assert "2/2" in shown and "accuracy 0.8000" in shown and "rows/s" in shown and "left" in shown


class Steps(SimpleNamespace):
    def recent(self, batches):
        return self.loss


def at(training, rows, rows_total, result=None):
    return SimpleNamespace(training=training, rows=rows, rows_total=rows_total, result=result)


def test_a_line_now_and_then_for_a_run_of_steps(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("gradloom.train.display.time.perf_counter", lambda: clock[0])
    stream = io.StringIO()
    steps = Steps(loss=1.25, accuracy=math.nan, ndata=80)
    with StepDisplay(20, 2, 50, stream) as display:
        display.rows(at(False, 1, 9), 0)
        clock[0] += 11
        display.rows(at(False, 5, 9), 0)
        display.before(SimpleNamespace(loss=2.0, loss_unc=0.125))
        display.begin()
        clock[0] += 4
        display.rows(at(True, 8, 40, steps), 2)
        clock[0] += 8
        display.rows(at(True, 24, 40, steps), 6)
        display.rows(at(True, 28, 40, steps), 7)
        clock[0] += 12
        display.epoch(SimpleNamespace(epoch=1, train=steps, val=None))
        display.rows(at(True, 4, 40, steps), 12)
        clock[0] += 11
        display.rows(at(True, 40, 40, steps), 20)  # the last one is told by the epoch's line
    assert stream.getvalue().splitlines() == [
        "validation 5/9 rows",
        "before training: validation loss 2.0000 +- 0.12",
        "step 6/20  loss 1.2500  100 tokens/s  28 s left",
        "epoch 1/2  loss 1.25",
    ]


def test_a_bar_for_a_run_of_steps(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream = Terminal()
    steps = Steps(loss=1.25, accuracy=math.nan, ndata=80)
    with StepDisplay(20, 1, 50, stream) as display:
        display.rows(at(False, 3, 9), 0)
        display.begin()
        display.rows(at(True, 8, 40, steps), 20)
        display.epoch(SimpleNamespace(epoch=1, train=steps, val=steps))
    shown = stream.getvalue()
    assert "20/20" in shown and "tokens/s" in shown and "epoch 1/1  loss 1.25  validation loss 1.25" in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.96, "10.0 s"), (12.3, "12 s"), (75 + 60, "2:15"), (3700, "1:01:40")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert [rate(x) for x in (3.14159, 1234, 5.6e6, 7e9)] == ["3.14", "1.23 k", "5.6 M", "7 G"]
    assert [plural(1, "row"), plural(2000, "row")] == ["1 row", "2,000 rows"]
