"""The live display on a terminal, as a terminal shows it, and the lines elsewhere."""

import io
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.terminal import plural
from gradloom.train.display import BAR, Display, StepDisplay, arranged, duration, numbers, rate
from gradloom.train.metric import Metric
from gradloom.train.metrics import Measures
from gradloom.train.result import Result


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("gradloom.train.display.resident", lambda: 1_234_567_890)
    monkeypatch.setattr("gradloom.train.display.time.perf_counter", lambda: now[0])
    return now


@pytest.fixture
def width(monkeypatch):
    """Sets the width of the terminal."""

    def set_width(columns):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "24")

    return set_width


def result(loss, accuracy=None, rows=1000):
    made = gl.train.Result()
    made.add(rows, np.full(2, loss), np.ones(2))
    if accuracy is not None:
        made.counted, made.correct = 10_000, round(accuracy * 10_000)
    return made


def epoch(number, train, val=None):
    return gl.EpochResult(number, train, val, 0.5)


def loop(steps, total, *callbacks, lr=0.00123):
    state = SimpleNamespace(rates=lambda step, epoch: {"lr": lr}, steps=steps, epoch=0)
    return SimpleNamespace(
        steps=steps,
        steps_total=total,
        trainer=SimpleNamespace(optimizer_state=state),
        callbacks=callbacks,
        rows_left=1,
    )


def at(training, rows, rows_total, result=None, seconds=1.0):
    return SimpleNamespace(training=training, rows=rows, rows_total=rows_total, seconds=seconds, result=result)


def screen(text, columns):
    """What a terminal of so many columns shows when it is sent this text: its lines."""
    pyte = pytest.importorskip("pyte")
    shown = pyte.Screen(columns, 40)
    pyte.Stream(shown).feed(text.replace("\n", "\r\n"))
    return [line.rstrip() for line in shown.display if line.strip()]


# ---- lines -------------------------------------------------------------------------------------------------------


def test_a_line_per_epoch_where_there_is_no_terminal(clock):
    stream, run = io.StringIO(), loop(0, 30)
    with Display(3, stream) as display:
        display.begin(run)
        display.start()
        display.on_progress(at(True, 10, 100, result(1.0)))
        run.steps, clock[0] = 10, 102.0
        display.on_pass(epoch(1, result(0.5, 0.75, 100), result(0.6, 0.7, 10)))
        run.steps, clock[0] = 20, 104.0
        display.on_pass(epoch(2, result(0.25, rows=100)))
    assert stream.getvalue().splitlines() == [
        "epoch 1/3  loss 0.5  accuracy 0.7500  val loss 0.6  val accuracy 0.7000  200 rows/s  1.23 GB  lr 0.00123  "
        "4.0 s left",
        "epoch 2/3  loss 0.25  200 rows/s  1.23 GB  lr 0.00123  2.0 s left",
    ]


@pytest.mark.parametrize("stops", [False, True])
def test_at_most_a_line_a_second_and_always_the_last(clock, stops):
    stream, run = io.StringIO(), loop(0, 1000)
    with Display(1000, stream) as display:
        display.begin(run)
        display.start()
        for number in range(1, 978 if stops else 1001):
            clock[0] += 0.01
            run.steps = number
            display.on_pass(epoch(number, result(0.5)))
    told = [int(line.split("/")[0].removeprefix("epoch ")) for line in stream.getvalue().splitlines()]
    assert told[0] == 1 and told[-1] == (977 if stops else 1000)
    assert len(told) in (10, 11, 12) and min(b - a for a, b in pairwise(told[:-1])) >= 99


def test_a_line_now_and_then_for_a_run_of_steps(clock):
    stream, run = io.StringIO(), loop(0, 20)
    steps = result(1.25)
    with StepDisplay(20, 2, 50, stream) as display:
        display.begin(run)
        display.on_progress(at(False, 1, 9))
        clock[0] += 11
        display.on_progress(at(False, 5, 9))
        before = gl.train.Result()
        before.add(10, np.array([1.875, 2.125]), np.ones(2))
        display.on_before(before)
        display.start()
        for seconds, rows, done in ((4, 8, 2), (8, 24, 6), (0, 28, 7)):
            clock[0] += seconds
            run.steps = done
            display.on_progress(at(True, rows, 40, steps, seconds=12.0))
        clock[0] += 12
        display.on_pass(epoch(1, steps))
        run.steps = 12
        display.on_progress(at(True, 4, 40, steps))
        clock[0] += 11
        run.steps = 20
        display.on_progress(at(True, 40, 40, steps))  # the last one is told by the epoch's line
    assert stream.getvalue().splitlines() == [
        "validation 5/9 rows",
        "before training: validation loss 2.0000 +- 0.12",
        "step 6/20  loss 1.2500  100 tokens/s  1.23 GB  lr 0.00123  28 s left",
        "epoch 1/2  loss 1.25",
    ]


def test_no_escape_codes_on_a_terminal_without_them(width, monkeypatch):
    width(80)
    monkeypatch.setenv("TERM", "dumb")
    stream, run = Terminal(), loop(0, 2)
    with Display(2, stream) as display:
        display.begin(run)
        display.start()
        run.steps = 1
        display.on_pass(epoch(1, result(0.5)))
    assert "\x1b" not in stream.getvalue() and stream.getvalue().startswith("epoch 1/2  loss 0.5  ")


# ---- the live display --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_live_display_of_epochs_is_whole_at_any_width(clock, width, columns):
    width(columns)
    stop = gl.train.EarlyStopping(patience=5)
    stop.best, stop.best_epoch = 0.0512, 97
    stream, run = Terminal(), loop(0, 100_000, stop)
    with Display(1000, stream) as display:
        display.begin(run)
        display.start()
        clock[0], run.steps = 1100.0, 9_900
        display.on_pass(epoch(99, result(0.0564, 0.9871), result(0.0812, 0.9712)))
        clock[0], run.steps = 1110.0, 10_000
        display.on_progress(at(True, 30_000, 60_000, result(0.0561, 0.9881), seconds=0.5))
    lines = screen(stream.getvalue(), columns)
    parts = [
        "epoch 100/1000", BAR, "2:31:30 left", "60 k rows/s", "1.23 GB", "lr 0.00123", "loss 0.0561", "accuracy 0.9881",
        "val loss 0.0812", "val accuracy 0.9712", "best loss 0.0512 in epoch 97",
    ]  # fmt: skip
    for part in parts:
        assert sum(part in line for line in lines) == 1, (part, lines)
    assert len(lines) == (1 if columns == 200 else 5)
    assert "\n".join(lines).split() == "  ".join(parts).split()  # nothing else, in this order


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_several_validation_sets_are_shown_whole(clock, width, columns):
    width(columns)
    sets = {"val": result(0.0812, 0.9712), "noisy": result(0.4, 0.5), "a_set_with_a_long_name": result(0.3, 0.25)}
    evaluation = gl.train.Evaluation(9_950, 100, sets)
    stream, run = Terminal(), loop(0, 100_000)
    with Display(1000, stream) as display:
        display.begin(run)
        display.start()
        clock[0], run.steps = 1100.0, 9_950
        display.on_progress(at(True, 30_000, 60_000, result(0.0561, 0.9881), seconds=0.5))
        clock[0] += 1
        display.on_evaluation(evaluation)
        clock[0] += 1
        display.on_pass(gl.EpochResult(100, result(0.0564), evaluation.val, 1.0, evaluations=(evaluation,)))
    shown = "\n".join(screen(stream.getvalue(), columns))
    for part in (
        "val loss 0.0812", "val accuracy 0.9712", "noisy loss 0.4", "noisy accuracy 0.5000",
        "a_set_with_a_long_name loss 0.3", "a_set_with_a_long_name accuracy 0.2500",
    ):  # fmt: skip
        assert shown.count(part) == 2, (part, shown)  # the line of the evaluation, and the display


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_live_display_of_steps_is_whole_at_any_width(clock, width, columns):
    width(columns)
    stream, run = Terminal(), loop(0, 100_000)
    with StepDisplay(100_000, 12, 512, stream) as display:
        display.begin(run)
        display.on_progress(at(False, 37, 100))
        display.on_before(result(2.0))
        display.start()
        clock[0], run.steps = 5100.0, 50_000
        display.on_progress(at(True, 40_000, 80_000, result(1.23456), seconds=2000.0))
        clock[0] += 1
        display.on_pass(epoch(6, result(1.5), result(1.75)))
        clock[0] += 1
        display.on_progress(at(False, 41, 100))
    lines = screen(stream.getvalue(), columns)
    shown = "\n".join(lines)
    assert lines[0] == "before training: validation loss 2.0000 +- 0"
    assert lines[1].startswith("epoch 6/12  loss 1.5  validation loss 1.75")
    for part in (
        "step 50000/100000", "1:23:22 left", "10.2 k tokens/s", "1.23 GB", "lr 0.00123", "loss 1.2346",
        "validation 41/100 rows",
    ):  # fmt: skip
        assert shown.count(part) == 1, (part, shown)


def test_a_refresh_comes_at_most_ten_times_a_second(clock, width):
    width(80)
    stream, run = Terminal(), loop(0, 1000)
    with Display(1, stream) as display:
        display.begin(run)
        display.start()
        for step in range(1000):
            clock[0] += 0.001
            run.steps = step + 1
            display.on_progress(at(True, step + 1, 1000, result(1.0)))
        assert stream.getvalue().count("left") < 15


def test_a_whole_fit_on_a_terminal(width, monkeypatch):
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)  # which writes to stderr, too
    width(60)
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((100, 4)).astype(np.float32), rng.integers(0, 3, 100)
    stop = gl.train.EarlyStopping(patience=50)
    adam = gl.optim.Adam(lr=0.01)
    history = gl.fit(gl.nn.Linear(4, 3), (x, y), optimizer=adam, epochs=4, val_split=0.2, callbacks=[stop])
    lines = screen(stream.getvalue(), 60)
    shown = "\n".join(lines)
    for part in (
        "epoch 4/4",
        "0.0 s left",
        "rows/s",
        "lr 0.01",
        f"best loss {stop.best:.4g} in epoch {stop.best_epoch}",
    ):
        assert part in shown
    assert f"accuracy {history[-1].train.accuracy:.4f}" in shown and f"val loss {history[-1].val.loss:.4g}" in shown
    assert lines[0].split("  ")[1] == BAR


def test_what_is_printed_to_a_file_does_not_go_to_the_terminal(width, capsys):
    width(60)
    stream = Terminal()
    with Display(1, stream) as display:
        display.begin(loop(0, 1))
        display.start()
        print("a result")
    assert capsys.readouterr().out == "a result\n" and "a result" not in stream.getvalue()


def test_parts_are_never_broken():
    groups = [["a" * 10, "b" * 10], [], ["c" * 30], ["d" * 10, "e" * 10, "f" * 5]]
    assert arranged(groups, 200) == ["  ".join(["a" * 10, "b" * 10, "c" * 30, "d" * 10, "e" * 10, "f" * 5])]
    assert arranged(groups, 24) == ["a" * 10 + "  " + "b" * 10, "c" * 30, "d" * 10 + "  " + "e" * 10, "  fffff"]
    assert arranged([], 10) == [""]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.96, "10.0 s"), (12.3, "12 s"), (75 + 60, "2:15"), (3700, "1:01:40")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert [rate(x) for x in (3.14159, 1234, 5.6e6, 7e9)] == ["3.14", "1.23 k", "5.6 M", "7 G"]
    assert [plural(1, "row"), plural(2000, "row")] == ["1 row", "2,000 rows"]


def test_a_long_upload_is_shown(clock, width):
    """On a terminal beside the rest until it is done; elsewhere as a line every ten seconds."""
    width(80)
    for stream in (Terminal(), io.StringIO()):
        with Display(3, stream) as display:
            display.begin(loop(0, 3))
            for done in (1 << 28, 3 << 28, 1 << 30):
                clock[0] += 6
                display._uploading("gpu", done, 1 << 30)
            display.on_progress(at(True, 10, 100, result(0.5)))
        text = stream.getvalue()
        assert text.count("uploading to gpu: 768.00 MiB of 1.00 GiB") == 1
        assert ("uploading to gpu: 256.00 MiB of 1.00 GiB" in text) is stream.isatty()
        assert "1.00 GiB of 1.00 GiB" not in text


@pytest.mark.parametrize(
    ("no_color", "encoding", "bar"),
    [
        (False, "utf-8", f"\x1b[35m{BAR[:5]}\x1b[90m{BAR[5:]}\x1b[0m"),
        (True, "utf-8", "#" * 5 + "-" * 15),
        (False, "ascii", "#" * 5 + "-" * 15),
    ],
)
def test_the_bar_with_and_without_colours(clock, width, monkeypatch, no_color, encoding, bar):
    width(80)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    stream, run = Terminal(), loop(0, 100)
    monkeypatch.setattr(Terminal, "encoding", encoding)
    with Display(1, stream) as display:
        display.begin(run)
        display.start()
        clock[0], run.steps = 101.0, 25
        display.on_progress(at(True, 25, 100, result(1.0)))
    assert f"epoch 1/1  {bar}  3.0 s left" in stream.getvalue()


def test_metrics_that_are_not_defined_are_left_out():
    measures = Measures((("auc", Metric(lambda outputs, labels: math.nan, whole=True)),))
    result = Result(measures=measures)
    result.ndata = 3
    assert numbers(result) == ["loss nan"]
