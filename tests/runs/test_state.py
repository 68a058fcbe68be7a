"""TrainState: equal for equal runs, and it names what differs."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.data.dataset import Dataset
from gradloom.runs.state import TrainState, difference

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 40)
DATA = Dataset(X, Y)


def trainer(**changes) -> gl.Trainer:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm(8), nn.Dropout(0.3), nn.Linear(8, 3))
    lr = gl.optim.schedules.Plateau(changes.pop("lr", 0.01), patience=0)
    return gl.Trainer(net, optimizer=gl.optim.AdamW(lr=lr), **{"seed": 4, "accumulate": 2} | changes)


def passes(made: gl.Trainer, count: int, **options) -> gl.Trainer:
    for number in range(count):
        order = np.random.default_rng(number).permutation(40)
        gl.epoch(made, DATA, batch_size=16, order=order, **options)
        made.optimizer_state.observe(1.0 + number)
    return made


def test_equal_runs_have_equal_states():
    one, other = passes(trainer(), 2), passes(trainer(), 2)
    assert difference(one.train_state.collect(), other.train_state.collect()) is None
    assert one.train_state.digest() == other.train_state.digest()


def test_nothing_else_decides_the_rest_of_a_run():
    """A trainer with another past goes on like the first once it has that one's state."""
    one, other = passes(trainer(), 2), passes(trainer(), 1, split=24)
    there = one.train_state.collect()
    assert difference(there, other.train_state.collect()) is not None
    for name, stored in other.train_state.arrays().items():
        stored.write(there[name])
    state = other.optimizer_state
    state.steps, state.epoch = there["optimizer.steps"], there["optimizer.epoch"]
    state.memories = {name: dict(memory) for name, memory in there["optimizer.plateaus"].items()}
    assert difference(there, other.train_state.collect()) is None
    assert difference(passes(one, 2).train_state.collect(), passes(other, 2).train_state.collect()) is None


def test_it_holds_all_that_a_step_writes():
    made = passes(trainer(), 1)
    written = set(made.written()) | {p.stored for arrays in made.state.values() for p in arrays.values()}
    assert written and written <= set(made.train_state.arrays().values())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.objective.model[0].weight.stored.assign(t.objective.model[0].weight.numpy() * 1.5), "0.weight"),
        (lambda t: next(iter(t.objective.model.named_buffers().values())).stored.write(7.0), "model.1"),
        (lambda t: next(iter(t.state.values()))["v"].stored.write(0.5), "optimizer.v.0: 48 of 48"),
        (lambda t: t.optimizer_state.observe(9.0), "optimizer.plateaus"),
        (lambda t: setattr(t, "epoch", 7), "optimizer.epoch: 1 against 7"),
        (lambda t: setattr(t.optimizer, "beta1", 0.8), "optimizer.settings"),
        (lambda t: passes(t, 1), ""),
        (lambda t: t.step(X[:3], Y[:3]), "model.1"),
    ],
)
def test_what_differs_is_named(change, named):
    one, other = passes(trainer(), 1), passes(trainer(), 1)
    change(other)
    found = difference(one.train_state.collect(), other.train_state.collect())
    assert found is not None and named in found
    assert one.train_state.digest() != other.train_state.digest()


def test_other_seeds_are_other_states():
    one = passes(trainer(), 0).train_state.collect()
    assert "rows.seed: 4 against 5" in str(difference(one | {"x": 1}, one | {"x": 1, "rows.seed": 5}))


def test_an_open_window_is_part_of_it():
    one, other = passes(trainer(), 1), passes(trainer(), 1)
    for made in (one, other):
        made.step(X[:5], Y[:5])
    assert difference(one.train_state.collect(), other.train_state.collect()) is None
    sums = [name for name in one.train_state.entries() if name.startswith("window.sum.")]
    assert len(sums) == 6 and "window.weight" in one.train_state.entries()
    other.optimizer_state.sums[next(iter(other.optimizer_state.sums))].stored.write(3.0)
    assert str(difference(one.train_state.collect(), other.train_state.collect())).startswith("window.sum.0")


def test_where_a_pass_was_interrupted():
    """Its rows are those of whole optimiser steps: here two micro-batches of eight rows."""
    made = trainer()
    for batches, rows in ((1, 0), (2, 16), (3, 16)):
        heard = []

        def stop(at, heard=heard, batches=batches):
            heard.append(at)
            if len(heard) == batches:
                raise gl.train.StopTraining

        with pytest.raises(gl.train.StopTraining):
            passes(made, 1, on_train_batch=stop)
        assert made.driver.done == rows
    passes(made, 1)
    assert made.driver.done == 40


def test_a_fit_in_all_its_parts():
    """Early stopping, the loop, and a fit that ended an epoch earlier."""

    class Kept:
        def begin(self, trainer):
            self.state = trainer.train_state

        def __call__(self, result):
            self.last = self.state.collect()

    def fitted(epochs):
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm(8), nn.Linear(8, 3))
        kept, stop = Kept(), gl.train.EarlyStopping(patience=9, restore_best=True)
        gl.fit(net, (X, Y), epochs=epochs, batch_size=16, val_split=0.2, progress=False, on_epoch=[stop, kept])
        return {name: value for name, value in kept.last.items() if not name.startswith("time.")}

    one = fitted(2)
    assert difference(one, fitted(2)) is None
    parts = {"callbacks", "eager draws", "loop", "model", "modules", "optimizer", "rows", "window"}
    assert {name.split(".")[0] for name in one} == parts
    assert "callbacks.0.weights.model.0.weight" in one and one["loop.passes"] == 2
    assert difference(one, fitted(3)) is not None


def test_a_state_is_loaded_into_the_same_objects():
    """A new trainer with the state of another one goes on like it; moments that it does not have yet are made."""
    one, other, third = passes(trainer(), 2), trainer(), passes(trainer(seed=4), 1, split=24)
    there = one.train_state.collect()
    goal = passes(one, 2).train_state.collect()
    for made in (other, third):
        made.train_state.load(there)
        assert difference(there, made.train_state.collect()) is None
        assert difference(goal, passes(made, 2).train_state.collect()) is None


def test_an_open_window_is_loaded():
    one, other = passes(trainer(), 1), passes(trainer(), 2)
    one.step(X[:5], Y[:5])
    there = one.train_state.collect()
    other.train_state.load(there)
    assert difference(there, other.train_state.collect()) is None
    for made in (one, other):
        made.step(X[5:9], Y[5:9])
    assert other.driver.in_window == 0 and difference(one.train_state.collect(), other.train_state.collect()) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("model.0.weight"), r"load: model: 0\.weight is missing; need the state of the same model"),
        (lambda s: s.update({"model.9.weight": X}), r"load: model: 9\.weight is in the state alone"),
        (lambda s: s.update({"model.0.weight": X}), r"load: model: 0\.weight is float32\[40, 6\] and here f32\[8, 6\]"),
        (lambda s: s.update({"model.0.bias": np.zeros(8)}), r"load: model: 0\.bias is float64\[8\] and here f32\[8\]"),
        (lambda s: s.update({"loop.steps": 3}), r"load: the state has the parts loop, which this run does not have"),
        (lambda s: s.update({"rows.seed": 5}), r"load: rows: seed=4, in the state 5; need the same"),
        (lambda s: s.pop("rows.held"), r"load: rows: held is missing"),
        (lambda s: s.update({"optimizer.kind": "SGD"}), r"load: optimizer: kind='AdamW', in the state 'SGD'"),
        (lambda s: s.pop("optimizer.v.0"), r"load: m\.0 without v\.0"),
        (
            lambda s: s.update({"window.sum.77": X, "window.weight": np.zeros((), np.float32)}),
            r"load: window: sum\.77 of 6 parameters",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, said):
    made = passes(trainer(), 1)
    state = passes(trainer(), 2).train_state.collect()
    before = made.train_state.collect()
    change(state)
    with pytest.raises(gl.GradloomError, match=said):
        made.train_state.load(state)
    assert difference(before, made.train_state.collect()) is None


def test_a_part_that_cannot_be_loaded_is_refused():
    made = trainer()
    made.train_state.register("mine", lambda: {"best": 1.0})
    with pytest.raises(gl.TrainError, match="load: mine can be saved and not loaded; requires load_state"):
        made.train_state.load(made.train_state.collect())


def test_others_register_their_memory():
    kept = TrainState()
    memory = {"best": 1.0}
    kept.register("early stopping", lambda: memory)
    before = kept.collect()
    memory["best"] = 0.5
    assert difference(before, kept.collect()) == "early stopping.best: 1.0 against 0.5"
