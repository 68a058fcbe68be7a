"""Listeners are called, may end a training, and end it in order; early stopping stops, and brings the best back."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.train import EarlyStopping, EpochResult, Result, StopTraining

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 4)), RNG.integers(0, 3, 60)


def net():
    made = gl.nn.Sequential(gl.nn.Linear(4, 16, activation="relu"), gl.nn.BatchNorm(16), gl.nn.Linear(16, 3))
    return made.init(0)


def fit(model, **options):
    options = {"epochs": 5, "batch_size": 10, "progress": False, "optimizer": gl.optim.SGD(lr=0.05)} | options
    return gl.fit(model, (X, Y), **options)


def weights(model):
    return {k: v.copy() for k, v in model.state_dict().items()}


def same(a, b):
    return all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("listener", ["on_epoch", "on_progress", "on_train_batch", "on_eval_batch"])
def test_every_listener_is_called_and_may_stop(listener):
    calls = []

    def stop(at):
        calls.append(at)
        if len(calls) == 3:
            raise StopTraining

    model = net()
    history = fit(model, val_split=0.2, **{listener: stop})
    assert len(calls) == 3 and history and history[-1].train.ndata
    assert not same(weights(model), weights(net()))
    if listener == "on_epoch":
        assert [h.epoch for h in history] == [1, 2, 3] == [c.epoch for c in calls]
    elif listener == "on_train_batch":
        assert len(history) == 1 and history[0].train.ndata == 30 and history[0].val is None


def test_stopping_after_an_epoch_is_training_so_long():
    def stop(at):
        if at.epoch == 2:
            raise StopTraining("enough")

    a, b = net(), net()
    stopped, short = fit(a, on_epoch=stop), fit(b, epochs=2)
    assert len(stopped) == 2 and same(weights(a), weights(b)) and stopped[-1].train.loss == short[-1].train.loss


def test_several_listeners_are_all_heard():
    seen = []

    def stop(at):
        seen.append("first")
        raise StopTraining

    fit(net(), on_epoch=[stop, lambda at: seen.append(at.epoch)])
    assert seen == ["first", 1]
    with pytest.raises(gl.SettingError, match="on_epoch: got int; need a function of an EpochResult, or several"):
        fit(net(), on_epoch=3)


def test_errors_of_listeners_are_not_swallowed():
    def broken(at):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(net(), on_epoch=broken)


class Told:
    """An EpochResult of given losses."""

    def __init__(self, epoch, val):
        train = Result()
        train.add(2, np.array([1.0]), np.array([1.0]), None, None, None)
        self.epoch, self.train, self.val = epoch, train, type("R", (), {"loss": val})()
        self.evaluations = ()


@pytest.mark.parametrize(
    ("losses", "patience", "min_delta", "stops_at", "best"),
    [
        ([3, 2, 1, 2, 2, 2], 1, 0.0, 4, 3),
        ([3, 2, 1, 2, 2, 2], 2, 0.0, 5, 3),
        ([3, 2, 1, 2, 0.5, 2, 2], 2, 0.0, 7, 5),
        ([3, 2.9, 2.8, 2.9], 2, 0.25, 3, 1),
        ([3, 3, 3], 0, 0.0, 2, 1),
        ([float("nan")] * 3, 3, 0.0, 3, 0),
        ([5, 4, 3, 2, 1], 1, 0.0, None, 5),
    ],
)
def test_patience_and_min_delta(losses, patience, min_delta, stops_at, best):
    stop = EarlyStopping(patience, min_delta)
    at = None
    for epoch, loss in enumerate(losses, 1):
        try:
            stop(Told(epoch, loss))
        except StopTraining:
            at = epoch
            break
    assert (at, stop.best_epoch, stop.stopped) == (stops_at, best, stops_at is not None)


@pytest.mark.parametrize("val_split", [0.0, 0.3])
def test_early_stopping_stops_a_fit(val_split):
    """A known fault elsewhere: early stopping that is accepted and does nothing. A rate of 0 never gets better."""
    stop = EarlyStopping(patience=3)
    model = gl.nn.Sequential(gl.nn.Linear(4, 3)).init(0)
    history = fit(
        model,
        epochs=50,
        val_split=val_split,
        optimizer=gl.optim.SGD(lr=0.0),
        on_epoch=stop,
        batch_size=60 if not val_split else 10,
    )
    assert len(history) < 10 and stop.stopped


@pytest.mark.parametrize("epochs", [9, 60])
def test_restore_best(epochs):
    """The weights, and running statistics, after the best epoch: also when the training runs to its end."""
    seen = {}
    model = net()
    stop = EarlyStopping(patience=20 if epochs == 9 else 4, restore_best=True)
    history = fit(
        model, epochs=epochs, val_split=0.3, optimizer=gl.optim.AdamW(lr=0.05),
        on_epoch=[stop, lambda at: seen.update({at.epoch: weights(model)})],
    )  # fmt: skip
    losses = [h.val.loss for h in history]
    assert stop.stopped == (epochs == 60) and stop.best_epoch == 1 + int(np.argmin(losses)) < len(history)
    assert same(weights(model), seen[stop.best_epoch]) and not same(weights(model), seen[len(history)])


def test_restore_best_says_what_it_needs():
    stop = EarlyStopping(restore_best=True)
    with pytest.raises(gl.TrainError, match=r"EarlyStopping: restore_best requires the trained parameters; .* begin"):
        fit(net(), on_epoch=lambda at: stop(at))


def test_one_early_stopping_serves_two_fits():
    stop = EarlyStopping(patience=2)
    a = fit(net(), on_epoch=stop, epochs=3)
    b = fit(net(), on_epoch=stop, epochs=3)
    assert [h.train.loss for h in a] == [h.train.loss for h in b] and stop.best_epoch == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping(-1), "EarlyStopping: patience=-1: must be a whole number of at least 0"),
        (lambda: EarlyStopping(1.5), "EarlyStopping: patience=1.5: must be"),
        (lambda: EarlyStopping(min_delta=float("nan")), "EarlyStopping: min_delta=nan: must be a number of"),
    ],
)
def test_early_stopping_refuses(make, message):
    with pytest.raises(gl.SettingError, match=message):
        make()


def test_results_are_results():
    assert EpochResult(1, Result(), None, 0.0).val is None and repr(EarlyStopping(3)) == (
        "EarlyStopping(patience=3, min_delta=0)"
    )


def test_ranks_stop_together():
    """With ranks, rank 0 alone listens, and all end after the same epoch with the same weights."""
    import threading

    from gradloom.parallel import threads

    found = {}

    def work(rank, ranks):
        model = net()
        stop = EarlyStopping(patience=1, restore_best=True)
        history = fit(
            model,
            epochs=30,
            val_split=0.3,
            optimizer=gl.optim.AdamW(lr=0.1),
            on_epoch=stop,
            parallel=ranks,
            micro_batch_size=5,
        )
        found[rank] = (len(history), weights(model), [h.val.loss for h in history])

    workers = [threading.Thread(target=work, args=(r, ranks)) for r, ranks in enumerate(threads(2, timeout=60))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(found) == 2 and found[0][0] == found[1][0] < 30 and found[0][2] == found[1][2]
    assert same(found[0][1], found[1][1])


def mine(outputs, labels):
    return gl.ops.max(outputs, axes=1)


@pytest.mark.parametrize("monitor, metrics, mode, is_noted", [
    ("val_mine", {"mine": mine}, "min", True), ("mine", {"mine": gl.train.Metric(mine, train=True)}, "min", True),
    ("val_my_error", {"my_error": mine}, "min", False), ("val_my_recall", {"my_recall": mine}, "max", False),
    ("val_f1_macro", {"f1_macro": gl.metrics.F1(average="macro")}, "max", False), ("val_ece", ["ece"], "min", False),
    ("val_top_2", [gl.metrics.TopK(k=2)], "max", False), ("val_loss", None, "min", False),
])  # fmt: skip
def test_the_direction_of_a_number(monitor, metrics, mode, is_noted, caplog):
    stop = EarlyStopping(patience=3, monitor=monitor)
    fit(net(), epochs=2, val_split=0.2, metrics=metrics, callbacks=[stop])
    note = f"monitor='{monitor}' is assumed to improve when it falls; mode='max' or mode='min' states the direction"
    assert stop.mode == mode and (note in caplog.text) == is_noted
    caplog.clear()
    fit(net(), epochs=2, val_split=0.2, metrics=metrics, callbacks=[EarlyStopping(3, monitor=monitor, mode="max")])
    assert "is assumed" not in caplog.text


@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy", "val_f1"])
def test_a_number_of_validation_requires_its_rows(monitor):
    need = f"monitor='{monitor}' requires validation rows: val_split above 0, or val"
    with pytest.raises(gl.SettingError, match=need):
        fit(net(), callbacks=[EarlyStopping(monitor=monitor)])
