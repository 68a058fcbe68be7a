"""Evaluations inside of epochs, on subsets, and of several sets: what they measure, who hears, what they change."""

import threading

import numpy as np
import pytest

import gradloom as gl
from gradloom.parallel import threads
from gradloom.runs.events import Subscriber
from gradloom.runs.state import difference
from gradloom.train import Callback, EarlyStopping, Metric, StopTraining
from tests.train import small_models
from tests.train.small_models import Interrupt, net, same, saved_steps

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 4)).astype(np.float32), RNG.integers(0, 3, 60)
CLEAN = gl.data.Dataset(RNG.standard_normal((31, 4)).astype(np.float32), RNG.integers(0, 3, 31))
NOISY = gl.data.Dataset(RNG.standard_normal((17, 4)).astype(np.float32), RNG.integers(0, 3, 17))


def fit(model, data=(X, Y), **options):
    return small_models.fit(model, data, **{"epochs": 2, "optimizer": gl.optim.AdamW(lr=0.02)} | options)


class Heard(Callback):
    def __init__(self, stop_at=None):
        self.seen, self.stop_at, self.weights = [], stop_at, {}

    def begin(self, loop):
        self.model = loop.trainer.model

    def on_evaluation(self, evaluation):
        self.seen.append(("evaluation", evaluation.step, evaluation.epoch))
        self.weights[evaluation.step] = self.model.state_dict()
        if evaluation.step == self.stop_at:
            raise StopTraining

    def on_epoch(self, result):
        self.seen.append(("epoch", result.epoch))


def test_every_so_many_steps():
    """Five steps an epoch: the second one ends with an evaluation of its own, which is not made twice."""
    heard, a, b = Heard(), net(), net()
    history = fit(a, val_split=0.2, eval_every="2steps", callbacks=[heard])
    plain = fit(b, val_split=0.2)
    assert heard.seen == [
        ("evaluation", 2, 1), ("evaluation", 4, 1), ("evaluation", 5, 1), ("epoch", 1),
        ("evaluation", 6, 2), ("evaluation", 8, 2), ("evaluation", 10, 2), ("epoch", 2),
    ]  # fmt: skip
    assert [[e.step for e in h.evaluations] for h in history] == [[2, 4, 5], [6, 8, 10]]
    assert same(a, b) and [h.val.loss for h in history] == [h.val.loss for h in plain]
    assert [h.train.loss for h in history] == [h.train.loss for h in plain]
    assert all(h.val is h.evaluations[-1].val and h.evaluations[-1].epoch == h.epoch for h in history)
    _, rows = gl.data.Dataset(X, Y).split(0.2, 0)
    for evaluation in (one for h in history for one in h.evaluations):
        then = net()
        then.load_state_dict(heard.weights[evaluation.step])
        expected = gl.evaluate(then, (X[rows], Y[rows]))
        np.testing.assert_allclose(evaluation.numbers()["val_loss"], expected.loss, rtol=1e-6)
        assert evaluation.numbers()["val_accuracy"] == expected.accuracy


def test_several_sets():
    model = net()
    history = fit(model, val_split=0.2, val={"clean": CLEAN, "noisy": (NOISY.data, NOISY.labels)}, eval_every="2steps")
    last = history[-1].evaluations[-1]
    assert list(last.results) == ["val", "clean", "noisy"] and last.val is history[-1].val
    for name, data in (("clean", CLEAN), ("noisy", NOISY)):
        expected = gl.evaluate(model, data, batch_size=10).numbers()
        found = {k.removeprefix(f"{name}."): v for k, v in history[-1].numbers().items() if k.startswith(f"{name}.")}
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-6)
    assert history.to_dict()["clean.loss"] == [h.evaluations[-1].results["clean"].loss for h in history]
    assert not same(model, net())


def test_a_set_of_its_own_in_place_of_a_split():
    model = net()
    history = fit(model, val=CLEAN)
    expected = gl.evaluate(model, CLEAN)
    np.testing.assert_allclose(history[-1].val.loss, expected.loss, rtol=1e-6)
    assert history[-1].train.ndata == 60 and "val_loss" in history[-1].numbers() and history[-1].val.ndata == 31
    named = fit(net(), val={"clean": CLEAN})
    assert named[-1].val.loss == history[-1].val.loss == named[-1].numbers()["clean.loss"]
    assert named[-1].numbers()["val_loss"] == history[-1].val.loss


@pytest.mark.parametrize("where", ["split", "set"])
def test_a_fixed_subset(where):
    sets = {"val_split": 0.5} if where == "split" else {"val": {"clean": CLEAN}}
    model = net()
    history = fit(model, eval_rows=13, eval_every="1steps", optimizer=gl.optim.SGD(lr=0.0), **sets)
    evaluations = [one for h in history for one in h.evaluations]
    assert {one.val.ndata for one in evaluations} == {13} and len(evaluations) == (6 if where == "split" else 12)
    if where == "split":
        rows = gl.data.Dataset(X, Y).split(0.5, 0)[1][:13]
        expected = gl.evaluate(model, (X[rows], Y[rows])).loss
        np.testing.assert_allclose(evaluations[-1].val.loss, expected, rtol=1e-6)
    else:
        losses = [gl.evaluate(model, (CLEAN.data[[i]], CLEAN.labels[[i]])).loss for i in range(31)]
        assert not np.isclose(evaluations[-1].val.loss, np.mean(losses))
    again = fit(net(), eval_rows=13, eval_every="1steps", optimizer=gl.optim.SGD(lr=0.0), **sets)
    assert [e.val.loss for h in again for e in h.evaluations] == [e.val.loss for e in evaluations]
    other = fit(net(), eval_rows=13, seed=1, optimizer=gl.optim.SGD(lr=0.0), **sets)
    assert other[-1].val.loss != history[-1].val.loss


def test_every_so_many_epochs():
    history = fit(net(), val_split=0.2, eval_every="2epochs", epochs=5)
    assert [h.val is not None for h in history] == [False, True, False, True, True]
    assert [len(h.evaluations) for h in history] == [0, 1, 0, 1, 1]
    stop = EarlyStopping(patience=99)
    fit(net(), val_split=0.2, eval_every="2epochs", epochs=5, callbacks=[stop])
    assert stop.best == min(h.val.loss for h in history if h.val is not None)


def test_more_epochs_after_an_evaluation_of_the_last_one_alone(tmp_path):
    """A plateau does not hear of it; a callback that remembers it cannot go on as if there had been none."""

    def run(folder, epochs, *callbacks, lr=0.01):
        model = net()
        optimizer = gl.optim.Adam(lr=lr() if callable(lr) else lr)
        options = {"val_split": 0.2, "eval_every": "2epochs", "optimizer": optimizer, "callbacks": callbacks}
        history = fit(model, epochs=epochs, run=tmp_path / folder, resume=True, **options)
        return {name: a.tobytes() for name, a in model.state_dict().items()}, [h.val is not None for h in history]

    def plateau():
        return gl.optim.schedules.Plateau(0.01, patience=0, threshold=0.5)

    whole, _ = run("whole", 8, lr=plateau)
    run("more", 3, lr=plateau)
    more, measured = run("more", 8, lr=plateau)
    assert more == whole and measured == [False, True, True, True, False, True, False, True]
    run("stop", 3, EarlyStopping(patience=9))
    message = (
        r"cannot be resumed: EarlyStopping\(.*\) has received the evaluation of epoch 3, which was made because "
        r"the run ended there \(one every 2 epochs\); requires its length as it was \(15 steps\), or --overwrite "
        r"\(overwrite=True\) to start anew"
    )
    with pytest.raises(gl.TrainError, match=message):
        run("stop", 8, EarlyStopping(patience=9))
    run("stop", 3, EarlyStopping(patience=9))
    run("even", 4, EarlyStopping(patience=9))
    assert run("even", 8, EarlyStopping(patience=9)) == run("never", 8, EarlyStopping(patience=9))


def test_one_may_stop_inside_of_an_epoch():
    heard, model = Heard(stop_at=7), net()
    history = fit(model, val_split=0.2, eval_every="1steps", callbacks=[heard], epochs=4)
    assert [h.train.ndata for h in history] == [48, 20] and heard.seen[-1] == ("evaluation", 7, 2)
    assert history[-1].val is None and [e.step for e in history[-1].evaluations] == [6, 7]


def test_one_that_stops_at_the_end_of_an_epoch_lets_all_hear_of_it():
    first, second = Heard(stop_at=5), Heard()
    history = fit(net(), val_split=0.2, callbacks=[first, second], epochs=4)
    assert len(history) == 1 and first.seen == second.seen == [("evaluation", 5, 1), ("epoch", 1)]


@pytest.mark.parametrize("monitor", [None, "val_loss", "clean.loss"])
def test_early_stopping_counts_evaluations(monitor):
    stop, heard, model = EarlyStopping(patience=3, restore_best=True, monitor=monitor), Heard(), net()
    history = fit(
        model, val_split=0.2, val={"clean": CLEAN}, eval_every="1steps", epochs=20, callbacks=[heard, stop],
        optimizer=gl.optim.AdamW(lr=0.05),
    )  # fmt: skip
    numbers = [e.numbers()[monitor or "val_loss"] for h in history for e in h.evaluations]
    best = int(np.argmin(numbers))
    assert stop.stopped and len(numbers) == best + 4 and (stop.best, stop.best_step) == (numbers[best], best + 1)
    state, kept = model.state_dict(), heard.weights[stop.best_step]
    assert all(np.array_equal(state[k], kept[k]) for k in state)
    told = history.kept  # what was measured of the weights that the model has
    assert told.epoch == stop.best_epoch and told.numbers()[monitor or "val_loss"] == numbers[best]
    assert told.train is history[told.epoch - 1].train
    assert gl.evaluate(model, CLEAN).loss == pytest.approx(told.numbers()["clean.loss"], rel=1e-5)


def test_what_was_measured_of_the_last_weights():
    """No validation is told of weights that it did not measure."""
    history = fit(net(), val_split=0.2, epochs=2)
    assert history.kept is history[-1] and history.kept.val is not None

    seen = []

    def stops(at):
        seen.append(at.rows)
        if len(seen) == 7:
            raise StopTraining

    cut = fit(net(), val_split=0.2, epochs=3, on_train_batch=stops)
    assert cut.kept is cut[-1] and cut.kept.val is None and "val_loss" not in cut.kept.numbers()


def test_the_loss_of_training_is_counted_by_epochs():
    stop = EarlyStopping(patience=2, monitor="loss", mode="max")
    history = fit(net(), val_split=0.2, eval_every="1steps", epochs=20, callbacks=[stop])
    assert stop.stopped and len(history) == stop.best_epoch + 2


def test_plateaus_see_epochs():
    def rates(**options):
        plateau = gl.optim.schedules.Plateau(0.05, patience=0)
        return [h.rates for h in fit(net(), val_split=0.2, epochs=6, optimizer=gl.optim.SGD(lr=plateau), **options)]

    assert rates() == rates(eval_every="1steps") and len({r["lr"] for r in rates()}) > 1


def loop(**options):
    layers = gl.nn.Linear(4, 8), gl.nn.BatchNorm(8), gl.nn.Dropout(0.3), gl.nn.Linear(8, 3)
    lr = gl.optim.schedules.Plateau(0.02, patience=0)
    trainer = gl.Trainer(gl.nn.Sequential(*layers), optimizer=gl.optim.AdamW(lr=lr), seed=2, accumulate=2)
    return gl.train.Loop(
        trainer, gl.data.Dataset(X, Y), np.arange(41), np.arange(41, 60), steps=25, seed=7, batch_size=6,
        micro_batch_size=3, val_sets={"clean": CLEAN}, eval_every="3steps", eval_rows=11,
        metrics={"top": Metric(lambda outputs, labels: gl.ops.max(outputs, (1,)), train=True)},
        callbacks=[EarlyStopping(patience=99, restore_best=True, monitor="val_top", mode="max")], **options,
    )  # fmt: skip


@pytest.mark.parametrize("step", [1, 3, 6, 7, 9, 14, 25])
def test_a_resume_makes_each_evaluation_once(step):
    """Also where the state was taken between a step and the evaluation that follows it."""
    states = {}

    class Saves(Subscriber):
        ends = (1,)

        def on_segment(self):
            states[whole.steps] = whole.trainer.train_state.collect()

    whole = loop(subscribers=[Saves()])
    whole.run()
    other = loop()
    options = {"batch_size": 6, "micro_batch_size": 3, "measures": whole.history[-1].train.measures}
    other.trainer.prepare(other.trainer.source(other.data), 0, 41, **options)
    other.trainer.train_state.load(states[step])
    other.run()
    mine, theirs = (
        {name: v for name, v in run.trainer.train_state.collect().items() if not name.startswith("time.")}
        for run in (whole, other)
    )
    assert difference(mine, theirs) is None
    assert [[e.step for e in h.evaluations] for h in other.history] == [
        [3, 6, 7], [9, 12, 14], [15, 18, 21], [24, 25]
    ]  # fmt: skip
    assert [h.numbers() for h in whole.history] == [h.numbers() for h in other.history]


def run_of(*callbacks, **options):
    stop, model = EarlyStopping(patience=5, restore_best=True, monitor="clean.top", mode="max"), net()
    metrics = {"top": Metric(lambda outputs, labels: gl.ops.max(outputs, (1,)))}
    lr = gl.optim.schedules.Plateau(0.05, patience=0)
    history = fit(
        model, val_split=0.2, val={"clean": CLEAN}, eval_every="2steps", eval_rows=9, epochs=12, metrics=metrics,
        callbacks=[stop, *callbacks], optimizer=gl.optim.AdamW(lr=lr), **options,
    )  # fmt: skip
    evaluations = [(e.step, e.epoch, e.numbers()) for h in history for e in h.evaluations]
    return model.state_dict(), [h.numbers() for h in history], evaluations, (stop.best, stop.best_step, stop.stopped)


@pytest.mark.parametrize("step", [2, 4, 5, 6, 10])
@pytest.mark.parametrize("inside", [True, False])
def test_ctrl_c_in_an_evaluation(inside, step, tmp_path):
    whole = run_of()
    assert whole[3][2] and whole[2][-1][0] > 10
    with pytest.raises(KeyboardInterrupt):
        run_of(Interrupt(**{"measuring" if inside else "evaluation": step}), run=tmp_path)
    assert saved_steps(tmp_path)[0] in (step, step + 1)  # the step that was begun when the signal came is ended
    found = run_of(Interrupt(), run=tmp_path, resume=True)
    assert found[1:] == whole[1:] and all(np.array_equal(found[0][k], whole[0][k]) for k in whole[0])


def test_ranks_evaluate_the_same():
    found = {}

    def work(rank, ranks):
        stop = EarlyStopping(patience=2, restore_best=True)
        model = net()
        history = fit(
            model, val_split=0.2, val={"clean": CLEAN}, eval_every="2steps", eval_rows=11, micro_batch_size=5, epochs=9,
            callbacks=[stop], parallel=ranks, optimizer=gl.optim.AdamW(lr=0.1),
        )  # fmt: skip
        found[rank] = [e.numbers() for h in history for e in h.evaluations], model.state_dict()

    for count in (1, 2):
        workers = [
            threading.Thread(target=work, args=(count * 10 + r, c)) for r, c in enumerate(threads(count, timeout=60))
        ]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    assert len(found) == 3 and len(found[10][0]) < 27
    for numbers, weights in found.values():
        assert numbers == found[10][0] and all(np.array_equal(weights[k], found[10][1][k]) for k in weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_every": "5min"}, "eval_every='5min': must be a text such as 100steps, 1epoch"),
        ({"eval_rows": 0}, "eval_rows=0: must be a whole number of at least 1"),
        ({"val": {"a.b": CLEAN}}, "val: the name 'a.b' must be a word"),
        (
            {"val": CLEAN, "val_split": 0.2},
            "val: the name 'val' is that of the rows of val_split or folds",
        ),
        ({"val": 3}, "data: got int; need a Dataset"),
    ],
)
def test_it_refuses(options, message):
    with pytest.raises(gl.GradloomError, match=message):
        fit(net(), **options)


UNMEASURED = [
    (
        {"eval_every": "1steps"},
        r"eval_every='1steps' requires validation rows: val, or val_split or folds above 0",
    ),
    ({"eval_every": "2epochs"}, r"eval_every='2epochs' requires validation rows"),
    ({"eval_rows": 3}, r"eval_rows=3 requires validation rows: val, or val_split or folds above 0"),
    (
        {"metrics": {"top": lambda outputs, labels: outputs[:, 0]}},
        r"metrics requires validation rows: val, or val_split or folds above 0: top .*train=True",
    ),
    (
        {"metrics": {"a": Metric(lambda o, l: o[:, 0], train=True), "b": Metric(lambda o, l: o[:, 0])}},
        r"metrics requires validation rows: .*: b ",
    ),
    ({"val": {}}, r"val=\{\}: must be a validation set, such as \{'clean': \(x, y\)\}, or None"),
]


@pytest.mark.parametrize(("options", "message"), UNMEASURED)
def test_what_would_measure_nothing_is_refused(options, message):
    with pytest.raises(gl.SettingError, match=message):
        fit(net(), **options)


def test_what_is_measured_is_not_refused():
    top = Metric(lambda outputs, labels: outputs[:, 0], train=True)
    (epoch,) = fit(net(), metrics={"top": top}, eval_every="1epoch", epochs=1)
    assert "top" in epoch.train.metrics
    (epoch,) = fit(net(), val={"clean": CLEAN}, eval_every="2steps", eval_rows=3, epochs=1)
    assert len(epoch.evaluations) == 3 and epoch.val.ndata == 3
