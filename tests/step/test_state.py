"""TrainState: equal for equal runs, and it names what differs."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.data.dataset import Dataset
from gradloom.step.state import TrainState, difference

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


def test_other_seeds_and_orders_are_other_states():
    one = passes(trainer(), 0).train_state.collect()
    assert "rows.seed: 4 against 5" in str(difference(one | {"x": 1}, one | {"x": 1, "rows.seed": 5}))
    first, second = trainer(), trainer()
    for made, order in ((first, np.arange(40)), (second, np.arange(40)[::-1])):
        made.source(DATA).order.write(order)
    assert (
        difference(first.train_state.collect(), second.train_state.collect()) == "rows.order.0: 40 of 40 numbers differ"
    )


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
    made = trainer()

    def stop(at):
        raise gl.train.StopTraining

    with pytest.raises(gl.train.StopTraining):
        passes(made, 1, on_train_batch=stop)
    assert made.train_state.entries()["rows.done"] == 8
    passes(made, 1)
    assert made.train_state.entries()["rows.done"] == 0


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
        return kept.last

    one = fitted(2)
    assert difference(one, fitted(2)) is None
    assert {name.split(".")[0] for name in one} == {"callbacks", "loop", "model", "optimizer", "rows", "window"}
    assert "callbacks.0.weights.model.0.weight" in one and one["loop.passes"] == 2
    assert difference(one, fitted(3)) is not None


def test_others_register_their_memory():
    kept = TrainState()
    memory = {"best": 1.0}
    kept.register("early stopping", lambda: memory)
    before = kept.collect()
    memory["best"] = 0.5
    assert difference(before, kept.collect()) == "early stopping.best: 1.0 against 0.5"
