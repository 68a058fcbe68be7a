"""The loop of fit and finetune: passes, the last one cut, validation before and after, interruptions, what it keeps."""

import tracemalloc

import numpy as np
import pytest

import gradloom as gl
from gradloom.runs.events import Subscriber
from gradloom.runs.state import difference

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.integers(0, 3, 50)


def loop(steps, rows=40, **options):
    net = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3)).init(0)
    trainer = gl.Trainer(net, optimizer=gl.optim.SGD(lr=0.1))
    sizes = {"batch_size": 10, "micro_batch_size": 10}
    train, val = np.arange(rows), np.arange(40, 50)
    return gl.train.Loop(trainer, gl.data.Dataset(X, Y), train, val, steps=steps, **sizes, **options)


def test_the_last_pass_is_cut_and_still_validated():
    passes = []
    run = loop(10, validates_first=True, before_pass=lambda: passes.append(len(run.history)))
    run.run()
    assert [e.train.ndata for e in run.history] == [40, 40, 20] and [e.val.ndata for e in run.history] == [10, 10, 10]
    assert (run.steps, run.rows, run.passes, passes) == (10, 100, 3, [0, 1, 2])
    assert run.before.ndata == 10 and run.before.loss != run.history[-1].val.loss
    run.run()
    assert run.steps == 10 and len(run.history) == 3  # nothing is left


def test_it_goes_on_after_an_interruption_with_a_new_pass():
    def interrupt(at):
        if run.passes == 2 and at.rows >= 20:
            raise KeyboardInterrupt

    run = loop(12, on_train_batch=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (run.steps, run.rows, len(run.history), run.trainer.epoch) == (6, 60, 1, 1)
    run.on_train_batch = None
    run.run()
    assert (run.steps, run.passes, [e.epoch for e in run.history]) == (12, 4, [1, 3, 4])
    assert run.history[-1].train.ndata == 20


def test_a_reset_optimiser_changes_no_count_of_steps():
    run = loop(8, on_epoch=lambda epoch: run.trainer.reset(optimizer=True))
    run.run()
    assert (run.steps, len(run.history)) == (8, 2)


def net():
    return gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3)).init(0)


@pytest.mark.parametrize("when", ["on_train_batch", "on_eval_batch"])
def test_steps_that_a_listener_takes_with_the_same_optimiser_end_no_pass(when):
    model = net()
    optimizer = gl.optim.SGD(model.parameters(), lr=0.05)

    def step(_):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X[:5])), gl.tensor(Y[:5]))
        optimizer.step(tape.backward(loss))

    options = {"epochs": 3, "batch_size": 10, "val_split": 0.2, "progress": False, when: step}
    history = gl.fit(model, (X, Y), optimizer=optimizer, **options)
    assert [e.train.ndata for e in history] == [40, 40, 40]
    assert optimizer.steps == (24 if when == "on_train_batch" else 15)


@pytest.mark.parametrize("steps", [0, 100])
def test_a_state_that_is_loaded_in_a_pass_ends_none(steps):
    model = net()
    optimizer = gl.optim.SGD(model.parameters(), lr=0.05)
    state, calls = optimizer.state_dict() | {"steps": np.int64(steps)}, []

    def load(_):
        calls.append(1)
        if len(calls) == 3:
            optimizer.load_state_dict(state)

    options = {"epochs": 4, "batch_size": 10, "progress": False}
    history = gl.fit(model, (X, Y), optimizer=optimizer, on_train_batch=load, **options)
    assert [e.train.ndata for e in history] == [50] * 4


def test_an_update_may_be_a_list_of_nodes():
    class Listed(gl.optim.SGD):
        def update(self, *args, **options):
            return list(super().update(*args, **options))

    weights = []
    for rule in (gl.optim.SGD, Listed):
        model = net()
        gl.fit(model, (X, Y), optimizer=rule(lr=0.1), batch_size=10, micro_batch_size=5, progress=False)
        weights.append(model.state_dict())
    assert all(np.array_equal(weights[0][k], weights[1][k]) for k in weights[0])


def test_an_epoch_leaves_no_predictions_behind():
    """100 000 rows have 400 kB of them; an epoch that is over keeps its losses alone."""
    rows = 100_000
    x, y = RNG.standard_normal((rows, 2)).astype(np.float32), RNG.integers(0, 2, rows)
    held = []
    tracemalloc.start()
    try:
        gl.fit(
            gl.nn.Linear(2, 2), (x, y), epochs=5, batch_size=5000, progress=False,
            on_epoch=lambda epoch: held.append(tracemalloc.get_traced_memory()[0]),
        )  # fmt: skip
    finally:
        tracemalloc.stop()
    assert held[4] - held[1] < 100_000


# ---- segments, and what a loop remembers ---------------------------------------------------------------------


def dropping_loop(**options):
    """A loop with all that has memory: dropout, batch norm, plateaus, accumulation."""
    layers = gl.nn.Linear(4, 8), gl.nn.BatchNorm(8), gl.nn.Dropout(0.3), gl.nn.Linear(8, 3)
    lr = gl.optim.schedules.Plateau(0.02, patience=0)
    trainer = gl.Trainer(gl.nn.Sequential(*layers), optimizer=gl.optim.AdamW(lr=lr), seed=2, accumulate=2)
    sizes = {"batch_size": 6, "micro_batch_size": 3}
    return gl.train.Loop(
        trainer, gl.data.Dataset(X, Y), np.arange(41), np.arange(41, 50), steps=25, seed=7, **sizes, **options
    )


def outcome(run):
    """Everything that a loop came to, apart from times."""
    return {name: v for name, v in run.trainer.train_state.collect().items() if not name.startswith("time.")}


class Segments(Subscriber):
    """Ends segments at these steps, and calls a function with the loop after each."""

    def __init__(self, ends, call=lambda loop: None):
        self._ends, self.call = ends, call

    @property
    def ends(self):
        return self._ends

    def begin(self, loop):
        self.loop = loop

    def on_segment(self):
        self.call(self.loop)


@pytest.mark.parametrize("ends", [[1], [2], [3, 5], [7], [100]])
def test_segments_change_no_bit(ends):
    seen = []
    segments = Segments(ends, lambda loop: seen.append((loop.steps, loop.trainer.driver.in_window)))
    whole, cut = dropping_loop(), dropping_loop(subscribers=[segments])
    whole.run()
    cut.run()
    assert difference(outcome(whole), outcome(cut)) is None
    passes = (7, 14, 21, 25)
    assert seen == [(step, 0) for step in range(1, 26) if step in passes or any(step % every == 0 for every in ends)]


def test_segments_are_told_as_one_pass():
    at = []
    dropping_loop(on_train_batch=at.append, subscribers=[Segments([2])]).run()
    first = [each for each in at if each.rows_total == 41][:14]
    assert [each.rows for each in first] == [*range(3, 40, 3), 41] and first[-1].seconds >= first[0].seconds
    assert at[-1].rows == at[-1].rows_total == 24


@pytest.mark.parametrize("step", [1, 6, 7, 8, 14, 20, 25])
def test_a_loop_goes_on_where_its_state_was_taken(step):
    """Inside a pass, after its last step, and after the last step of all: the same weights, history, predictions."""
    states = {}
    saves = Segments([1], lambda loop: states.update({loop.steps: loop.trainer.train_state.collect()}))
    whole = dropping_loop(validates_first=True, subscribers=[saves])
    whole.trainer.epoch = 3  # of an earlier training: the numbers of passes continue
    whole.run()
    other = dropping_loop(validates_first=True)
    source = other.trainer.source(other.data)
    other.trainer.prepare(source, 0, 41, batch_size=6, micro_batch_size=3)
    other.trainer.train_state.load(states[step])
    assert other.steps == step and other.before.loss == whole.before.loss
    other.run()
    assert difference(outcome(whole), outcome(other)) is None
    assert [e.train.loss for e in whole.history] == [e.train.loss for e in other.history]
    assert [e.epoch for e in other.history] == [4, 5, 6, 7]
    assert np.array_equal(whole.history[-1].train.predictions, other.history[-1].train.predictions)
    assert other.training_seconds > 0 and len(other.history) == len(whole.history) == 4


class AfterEvaluations(Subscriber):
    """Keeps the state after each evaluation inside of a pass, by steps."""

    def __init__(self):
        self.states = {}

    def begin(self, loop):
        self.loop = loop

    def between_steps(self, after):
        if after == "evaluation":
            self.states[self.loop.steps] = self.loop.trainer.train_state.collect()


def test_an_evaluation_before_the_state_was_taken_is_not_made_again():
    after = AfterEvaluations()
    whole = dropping_loop(eval_every="3steps", subscribers=[after])
    whole.run()
    assert sorted(after.states) == [3, 6, 9, 12, 15, 18, 24]  # 21 is the end of a pass
    other = dropping_loop(eval_every="3steps")
    other.trainer.prepare(other.trainer.source(other.data), 0, 41, batch_size=6, micro_batch_size=3)
    other.trainer.train_state.load(after.states[12])
    other.run()
    assert difference(outcome(whole), outcome(other)) is None
    steps = [[one.step for epoch in run.history for one in epoch.evaluations] for run in (whole, other)]
    assert steps[0] == steps[1] == sorted(set(steps[0]))


def test_a_loop_of_other_sizes_is_refused():
    whole, other = dropping_loop(), dropping_loop()
    whole.run()
    other.batch_size = 5
    with pytest.raises(gl.TrainError, match="load: loop: batch_size=5, in the state 6; need the same"):
        other.trainer.train_state.load(whole.trainer.train_state.collect())
