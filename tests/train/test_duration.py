"""Predicted duration of a training: what it counts, when it is announced, and that it changes nothing."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.run.cost import Rates, program_seconds
from gradloom.runs.events import Subscriber
from gradloom.train import prediction as module
from gradloom.train.display import Display
from gradloom.train.duration import GROUP_SECONDS, Duration, approximate, seconds_of, work
from gradloom.train.fit import as_dataset

RATES = Rates(threads=1, product=1e11, product_bf16=1e11, cached=1e11, memory=1e10, cache_bytes=1 << 20)
X = np.random.default_rng(0).standard_normal((100, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
DATA = as_dataset((X, Y))


@pytest.fixture(autouse=True)
def without_checks(monkeypatch):
    """Programs with checks have no prediction."""
    for name in ("GRADLOOM_CHECK", "GRADLOOM_POISON"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def announced(monkeypatch):
    """Every training counts as long."""
    monkeypatch.setattr(module, "LONG", 0.0)


def loop(steps=30, batch_size=10, micro_batch_size=10, subscribers=(), callbacks=(), train=80, **options):
    settings = {name: options.pop(name) for name in ("eval_every", "validates_first", "saver") if name in options}
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
    accumulate = -(-batch_size // micro_batch_size)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.1), accumulate=accumulate, **options)
    return gl.train.Loop(
        trainer, DATA, np.arange(train), np.arange(train, 100), batch_size=batch_size,
        micro_batch_size=micro_batch_size, steps=steps, subscribers=subscribers, callbacks=callbacks, **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (0.01234, "0.012 s"), (1.04, "1 s"), (16.7, "17 s"), (59.7, "1 min"), (203, "3 min 20 s"),
        (3599, "1 h"), (8150, "2 h 17 min"), (360000, "100 h"),
    ],
)  # fmt: skip
def test_durations_have_two_digits(seconds, text):
    assert approximate(seconds) == text


def test_the_line_counts_epochs_or_steps():
    assert str(Duration(0.1, 2000, 166)) == "about 3 min 20 s: 13 epochs of 17 s"
    assert str(Duration(0.5, 60, 100, 2.0, 3)) == "about 36 s: 60 steps of 0.5 s, 3 evaluations of 2 s"
    limit = Duration(1.0, 10, 10, is_limit=True, apart=("sampled texts", "checkpoints"))
    assert str(limit) == "at most about 10 s: 10 steps of 1 s; sampled texts and checkpoints not included"


@pytest.mark.parametrize(("batch_size", "micro_batch_size"), [(10, 10), (30, 30), (30, 8), (100, 100)])
def test_the_work_of_a_pass_is_what_runs(batch_size, micro_batch_size):
    made = loop(batch_size=batch_size, micro_batch_size=micro_batch_size, train=80, threads=1)
    found = work(made.trainer, made.trainer.source(DATA), 0, 80, min(batch_size, 80), micro_batch_size)
    expected = sum(count * program_seconds(plan, RATES) + groups * GROUP_SECONDS for plan, count, groups in found)
    assert seconds_of(found, RATES) == pytest.approx(expected)
    counts, run = {}, made.trainer.driver._run

    def counted(step, micro, count, *more):
        counts[id(step.run.plan)] = counts.get(id(step.run.plan), 0) + count
        return run(step, micro, count, *more)

    made.trainer.driver._run = counted
    made.steps_total = -(-80 // min(batch_size, 80))
    made.evaluator._sets = {}
    made.run()
    planned = {}
    for plan, count, _ in found:
        planned[id(plan)] = planned.get(id(plan), 0) + count
    assert counts == {plan: count for plan, count in planned.items() if count}


@pytest.mark.parametrize(
    ("every", "steps", "first"),
    [
        ("1epochs", 24, 0),
        ("1epochs", 20, 0),
        ("2epochs", 40, 0),
        ("3steps", 24, 0),
        ("3steps", 21, 0),
        ("8steps", 30, 0),
    ],
)
def test_evaluations_are_counted(every, steps, first):
    seen = []

    class Counts(gl.train.Callback):
        def on_evaluation(self, evaluation):
            seen.append(evaluation.step)

    made = loop(steps=steps, eval_every=every, callbacks=[Counts()])
    assert made.evaluator.count(first, steps, 8) > 1
    made.run()
    assert len(seen) == made.evaluator.count(first, steps, 8)


def test_a_long_training_announces_its_duration(announced):
    seen = []

    class Sees(Subscriber):
        apart = ("pictures",)

        def on_predicted(self, duration):
            seen.append(duration)

    stream = io.StringIO()
    stop = gl.train.EarlyStopping(patience=3)
    made = loop(steps=20, subscribers=[Sees()], callbacks=[stop], validates_first=True)
    made.run(Display(3, stream))
    (found,) = seen
    assert made.predicted is found and found.steps == 20 and found.per_epoch == 8 and found.is_limit
    assert found.evaluations == 4 and found.step > 0 and found.evaluation > 0
    first = stream.getvalue().splitlines()[0]
    assert re.fullmatch(r"at most about [\d.]+ s: 3 epochs of [\d.]+ s; pictures not included", first), first


def test_short_trainings_measure_nothing_and_announce_nothing(monkeypatch):
    monkeypatch.setattr("gradloom.run.rates.measured_rates", None)
    stream, made = io.StringIO(), loop()
    made.run(Display(1, stream))
    assert made.predicted is None and "about" not in stream.getvalue()


@pytest.mark.parametrize("options", [{"dynamic": True}, {"check": 2}, {"poison": True}, {"backend": "numpy"}])
def test_what_cannot_be_predicted_is_not(announced, options):
    made = loop(steps=3, **options)
    made.run()
    assert made.predicted is None


def test_a_training_that_continues_predicts_what_remains(announced, tmp_path):
    with gl.train.Saver(tmp_path / "run") as saver:
        made = loop(steps=24, saver=saver)
        made.run()
    assert made.predicted.apart == ("checkpoints",)
    assert made.predicted.steps == 24 and made.predicted.evaluations == 3
    with gl.train.Saver(tmp_path / "run", resume=True) as saver:
        saver.share()
        again = loop(steps=40, saver=saver)
        again.run()
    assert again.predicted.steps == 16 and again.predicted.evaluations == 2


def test_an_error_of_compilation_is_that_of_the_training(announced):
    net = nn.Linear(5, 2)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.1))
    made = gl.train.Loop(trainer, DATA, np.arange(80), np.arange(80, 100), batch_size=10, micro_batch_size=10, steps=3)
    with pytest.raises(gl.ShapeError, match="inner sizes differ"):
        made.run()


def test_weights_have_the_same_bits_with_and_without_a_prediction(monkeypatch):
    weights = []
    for long in (1e9, 0.0):
        monkeypatch.setattr(module, "LONG", long)
        made = loop(steps=20)
        made.run()
        assert (made.predicted is None) == (long > 0)
        weights.append([p.numpy() for p in made.trainer.model.parameters()])
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
