"""Callbacks hear of steps, epochs and the end, may stop a training, change none of its bits, and have a state()."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.structure import named, structure
from gradloom.train import BatchResult, Callback, EarlyStopping, StopTraining
from tests.refused import refused
from tests.train import small_models
from tests.train.small_models import Interrupt, net, same, saved_steps

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.integers(0, 3, 50)
W = RNG.uniform(0.5, 2, 50).astype(np.float32)


def fit(model, data=(X, Y), **options):
    return small_models.fit(model, data, **options)


class Heard(Callback):
    """Writes down what it hears of."""

    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def hear(self, *what):
        self.seen.append(what)
        if self.stop_at == what[:2]:
            raise StopTraining

    def begin(self, loop):
        self.hear("begin", loop.steps)

    def on_batch(self, batch):
        self.hear("batch", batch.step, batch)

    def on_epoch(self, result):
        self.hear("epoch", result.epoch)

    def end(self, history):
        self.hear("end", len(history))


def test_events_come_in_order_and_change_no_bit():
    heard, a, b = Heard(), net(), net()
    with_it, without = fit(a, callbacks=[heard], val_split=0.2), fit(b, val_split=0.2)
    expected = [("begin", 0)]
    for epoch in (1, 2, 3):
        expected += [("batch", 4 * epoch - 3 + i) for i in range(4)] + [("epoch", epoch)]
    assert [one[:2] for one in heard.seen] == [*expected, ("end", 3)]
    assert same(a, b) and [h.train.loss for h in with_it] == [h.train.loss for h in without]
    assert [h.val.loss for h in with_it] == [h.val.loss for h in without]


@pytest.mark.parametrize("micro", [None, 5])
def test_batches_are_those_of_optimiser_steps(micro):
    heard, history = Heard(), []
    data = gl.data.Dataset(X, Y, weights=W)
    history = fit(net(), data, callbacks=[heard], micro_batch_size=micro, batch_size=15, epochs=2)
    batches = [one[2] for one in heard.seen if one[0] == "batch"]
    assert all(isinstance(batch, BatchResult) for batch in batches)
    assert [(b.step, b.epoch, len(b.rows)) for b in batches] == [
        (1, 1, 15), (2, 1, 15), (3, 1, 15), (4, 1, 5), (5, 2, 15), (6, 2, 15), (7, 2, 15), (8, 2, 5)
    ]  # fmt: skip
    train, _ = data.split(0.0, 0)
    for epoch in (1, 2):
        mine = [b for b in batches if b.epoch == epoch]
        rows = np.concatenate([b.rows for b in mine])
        assert rows.dtype == np.int64 and np.array_equal(rows, data.order(0, epoch, train))
        assert all(np.array_equal(b.labels, Y[b.rows]) for b in mine)
        np.testing.assert_allclose([b.weight for b in mine], [W[b.rows].sum() for b in mine], rtol=1e-6)
        loss = np.average([b.loss for b in mine], weights=[b.weight for b in mine])
        np.testing.assert_allclose(loss, history[epoch - 1].train.loss, rtol=1e-6)


def test_the_loss_of_a_batch_is_that_before_its_step():
    heard, model = Heard(), gl.nn.Linear(4, 3).init(0)
    twin = gl.nn.Linear(4, 3).init(0)
    fit(model, callbacks=[heard], epochs=1, batch_size=25)
    first = next(one[2] for one in heard.seen if one[0] == "batch")
    before = gl.evaluate(twin, (X[first.rows], Y[first.rows])).loss
    np.testing.assert_allclose(first.loss, before, rtol=1e-6)


@pytest.mark.parametrize(
    ("at", "epochs", "rows"),
    [(("begin", 0), 0, 0), (("batch", 7), 2, 20), (("epoch", 2), 2, 50), (("end", 3), 3, 50)],
)
def test_any_of_them_may_stop(at, epochs, rows):
    other = Heard()
    history = fit(net(), callbacks=[Heard(at), other])
    assert len(history) == epochs and (not history or history[-1].train.ndata == rows)
    assert other.seen[-1] == ("end", epochs) and at in [one[:2] for one in other.seen]


def test_errors_are_not_swallowed():
    class Broken(Callback):
        def on_batch(self, batch):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(net(), callbacks=[Broken()])


def test_what_is_no_callback_is_refused():
    with pytest.raises(gl.SettingError, match=r"callbacks: got a function; .* goes to on_epoch="):
        fit(net(), callbacks=[lambda result: None])
    with pytest.raises(gl.SettingError, match="callbacks: got the class Heard; need instances of gl.train.Callback"):
        fit(net(), callbacks=[Heard])


def loop(*callbacks, on_epoch=None):
    trainer = gl.Trainer(net(), optimizer=gl.optim.SGD(lr=0.05))
    return gl.train.Loop(
        trainer, gl.data.Dataset(X, Y), np.arange(40), np.arange(40, 50), batch_size=10, micro_batch_size=10, steps=8,
        callbacks=callbacks, on_epoch=on_epoch,
    )  # fmt: skip


class Remembers(Heard):
    def state(self):
        return {"seen": len(self.seen)}

    def load_state(self, values):
        self.loaded = dict(values)


class Stateless(Heard):
    stateless = True


def test_one_that_may_forget_cannot_resume():
    with pytest.raises(
        gl.SettingError, match=r"callbacks: Heard cannot resume: it has no state\(\) and load_state\(\)"
    ):
        loop(EarlyStopping(), Heard()).callbacks.check_resumable()
    loop(Remembers(), Stateless(), EarlyStopping(), Callback(), on_epoch=print).callbacks.check_resumable()


def test_what_they_remember_is_part_of_the_state_of_the_run():
    stop, remembers = EarlyStopping(patience=9, restore_best=True), Remembers()
    run = loop(remembers, on_epoch=stop)
    states = []
    tell = run.callbacks.notify

    def told(event, what):
        tell(event, what)
        if event == "on_epoch":
            states.append(run.trainer.train_state.collect("callbacks"))

    run.callbacks.notify = told
    run.run()
    state = states[-1]
    assert state["callbacks.0.best"] == min(h.val.loss for h in run.history)
    assert state["callbacks.0.best_epoch"] == 1 + int(np.argmin([h.val.loss for h in run.history]))
    assert state["callbacks.0.weights.model.0.weight"].shape == (16, 4)
    assert state["callbacks.1.seen"] == 11
    again = loop(Remembers(), on_epoch=EarlyStopping(patience=9, restore_best=True))
    again.callbacks.load_state({name.removeprefix("callbacks."): value for name, value in state.items()})
    again.callbacks.notify("begin", again)  # which would forget
    assert again.trainer.train_state.collect("callbacks").keys() == state.keys()
    mine, other = list(again.callbacks)
    assert (mine.best, mine.best_epoch) == (state["callbacks.0.best"], state["callbacks.0.best_epoch"])
    assert other.loaded == {"seen": 11}


def test_a_state_that_was_loaded_before_the_run_reaches_a_callback_without_begin():
    class Counts(Callback):
        def __init__(self):
            self.seen = 0

        def on_epoch(self, result):
            self.seen += 1

        def state(self):
            return {"seen": self.seen}

        def load_state(self, values):
            self.seen = values["seen"]

    counts = Counts()
    run = loop(counts)
    run.callbacks.load_state({"0.seen": 10})
    run.run()
    assert counts.seen == 10 + len(run.history)


def test_early_stopping_on_any_number():
    class Numbers:
        def __init__(self, epoch, **numbers):
            self.epoch, self.evaluations, self.numbers = epoch, (), lambda: numbers

    for mode, name in (("auto", "val_accuracy"), ("max", "loss")):
        stop = EarlyStopping(patience=2, monitor=name, mode=mode)
        at = None
        for epoch, number in enumerate([0.1, 0.5, 0.4, 0.5, 0.6], 1):
            try:
                stop(Numbers(epoch, **{name: number}))
            except StopTraining:
                at = epoch
                break
        assert (at, stop.best_epoch, stop.best) == (4, 2, 0.5)
    with pytest.raises(gl.SettingError, match="monitor='val_acuracy' is not measured; did you mean val_accuracy"):
        fit(net(), val_split=0.2, callbacks=[EarlyStopping(monitor="val_acuracy")])
    with refused("mode", "most", need="min, max or auto"):
        EarlyStopping(mode="most")


@pytest.mark.parametrize("where", ["callbacks", "on_epoch"])
def test_a_monitor_that_is_not_measured_is_refused_before_anything_is_trained(where, tmp_path):
    metrics = {"mae": lambda outputs, labels: gl.ops.sum(outputs, 1)}
    clean = {"val": {"clean": (X, Y)}}
    known = ["loss", "accuracy_unc", "clean.loss", "clean.accuracy", "clean.mae", "val_mae"]
    for name in known:
        fit(net(), epochs=1, metrics=metrics, **clean, **{where: EarlyStopping(monitor=name, patience=9)})
    for name, options in [
        ("val_f1", {"val_split": 0.2}), ("val_loss", {}), ("mae", {"metrics": metrics, **clean}),
        ("val.loss", {"val_split": 0.2}), ("val_accuracy", {"val_split": 0.2, "loss": "mse"}), ("dirty.loss", clean),
    ]:  # fmt: skip
        model, heard = net(), Heard()
        labels = np.eye(3, dtype=np.float32)[Y] if options.get("loss") == "mse" else Y
        before = model.state_dict()
        seen = "requires validation rows: val_split" if name == "val_loss" else "is not measured"
        with pytest.raises(gl.SettingError, match=f"monitor='{name}' {seen}"):
            stop = EarlyStopping(monitor=name)
            fit(model, (X, labels), callbacks=[heard, *[stop] * (where == "callbacks")],
                on_epoch=stop if where == "on_epoch" else None, run=tmp_path / "run", **options)  # fmt: skip
        assert all(one[0] == "begin" for one in heard.seen) and not list(tmp_path.glob("run/*"))
        assert all(np.array_equal(before[key], value) for key, value in model.state_dict().items())


def test_early_stopping_watches_what_it_is_told_to():
    """The accuracy of training rises when that of validation has long stopped to."""
    stop = EarlyStopping(patience=2, monitor="val_accuracy", restore_best=True)
    model = net()
    history = fit(model, epochs=60, val_split=0.4, callbacks=[stop], batch_size=30)
    values = [h.val.accuracy for h in history]
    assert stop.stopped and stop.best == max(values) and stop.best_epoch == 1 + int(np.argmax(values))
    assert len(history) == stop.best_epoch + 2


def test_progress_is_told_of_training_and_validation_and_may_stop():
    class Hears(Callback):
        def __init__(self, stop=False):
            self.seen, self.stop = [], stop

        def on_progress(self, progress):
            self.seen.append((progress.training, progress.rows, progress.rows_total))
            if self.stop:
                raise StopTraining

    heard, a, b = Hears(), net(), net()
    fit(a, callbacks=[heard], val_split=0.2, epochs=2), fit(b, val_split=0.2, epochs=2)
    ends = [one for one in heard.seen if one[1] == one[2]]
    assert ends == [(True, 40, 40), (False, 10, 10)] * 2 and same(a, b)
    history = fit(net(), callbacks=[Hears(stop=True)], epochs=3)
    assert len(history) == 1


class Outputs(Callback):
    needs_outputs = True

    def __init__(self):
        self.seen = []

    def on_batch(self, batch):
        self.seen.append(batch)


@pytest.mark.parametrize("micro", [None, 4])
def test_outputs_are_those_of_the_rows(micro):
    wants, plain, model = Outputs(), Heard(), gl.nn.Linear(4, 3).init(0)
    fit(model, callbacks=[wants, plain], optimizer=gl.optim.SGD(lr=0.0), micro_batch_size=micro, epochs=2)
    expected = gl.predict(model, X)
    assert len(wants.seen) == 10
    for batch in wants.seen:
        np.testing.assert_allclose(batch.outputs, expected[batch.rows], rtol=1e-6)
    fit(model, callbacks=[plain], epochs=1)
    assert plain.seen[-2][0] == "epoch" and plain.seen[-3][2].outputs is None


def test_who_wants_no_outputs_pays_nothing():
    """The programs of a training are the same with other callbacks and without any."""

    def programs(*callbacks, **options):
        run = loop(*callbacks, **options)
        run.run()
        return [structure([*s.outputs, *s.updates], named) for s in run.trainer.compiled if s.updates]

    plain = programs()
    assert plain and programs(Heard(), EarlyStopping(restore_best=True, patience=99)) == plain != programs(Outputs())


def test_outputs_change_no_bit_and_come_as_the_model_gives_them():
    a, b, wants = net(), net(), Outputs()
    with_it, without = fit(a, callbacks=[wants]), fit(b)
    assert same(a, b) and [h.train.loss for h in with_it] == [h.train.loss for h in without]
    w, wants = gl.parameter(np.ones((4, 3), np.float32), name="w"), Outputs()

    def loss(outputs, labels):
        return gl.ops.sum(gl.ops.sqr(outputs["a"]), (1,))

    fit(lambda x: {"a": x @ w, "b": (x,)}, loss=loss, callbacks=[wants], epochs=1)
    batch = wants.seen[0]
    assert batch.outputs.keys() == {"a", "b"} and np.array_equal(batch.outputs["b"][0], X[batch.rows])


def test_a_batch_that_is_skipped_has_no_outputs():
    x = X.copy()
    x[3] = np.nan
    wants = Outputs()
    fit(gl.nn.Linear(4, 3).init(0), (x, Y), callbacks=[wants], on_nonfinite="skip", micro_batch_size=5, epochs=1)
    skipped = [batch for batch in wants.seen if batch.skipped]
    assert len(skipped) == 1 and 3 in skipped[0].rows and skipped[0].outputs is None
    assert all(len(batch.outputs) == len(batch.rows) == 10 for batch in wants.seen if not batch.skipped)


def test_ranks_have_no_outputs():
    from gradloom.parallel import threads

    (ranks,) = threads(1, timeout=60)
    with pytest.raises(gl.SettingError, match="callbacks that need outputs, .* require one process"):
        fit(net(), callbacks=[Outputs()], parallel=ranks)


class Checkpoints(Callback):
    """Counts what it hears of; stops when a checkpoint of this step was written."""

    stateless = True

    def __init__(self, stop_at=None):
        self.paths, self.ended, self.stop_at = [], False, stop_at

    def on_checkpoint(self, path):
        assert path.exists() and not self.ended
        self.paths.append(path)
        if self.stop_at == path.stem:
            raise StopTraining

    def end(self, history):
        self.ended = True


def test_checkpoints_are_told_when_they_are_written(tmp_path):
    for _ in range(2):  # the second run replaces the first one
        heard, a, b = Checkpoints(), net(), net()
        fit(a, callbacks=[heard], run=tmp_path / "run", checkpoint_every="4steps", keep=9)
        assert heard.paths == [tmp_path / "run" / "checkpoints" / f"step-{at:06d}.json" for at in (4, 8, 12, 15)]
        assert heard.ended and all(path.exists() for path in heard.paths)
        fit(b)
        assert same(a, b)


def test_one_may_stop_at_a_checkpoint(tmp_path):
    heard = Checkpoints(stop_at="step-000004")
    history = fit(net(), callbacks=[heard], run=tmp_path, checkpoint_every="4steps", epochs=900)
    assert len(history) < 900 and heard.ended


def test_ranks_are_told_of_checkpoints_once(tmp_path):
    import threading

    from gradloom.parallel import threads

    heard = [Checkpoints(), Checkpoints()]

    def work(rank, ranks):
        options = {"parallel": ranks, "micro_batch_size": 5, "run": tmp_path, "checkpoint_every": "4steps", "keep": 9}
        fit(net(), callbacks=[heard[rank]], **options)

    workers = [threading.Thread(target=work, args=(r, ranks)) for r, ranks in enumerate(threads(2, timeout=60))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert [path.stem for path in heard[0].paths] == ["step-000004", "step-000008", "step-000012", "step-000015"]
    assert heard[1].paths == [] and heard[0].ended


class Rows(Callback):
    """How often each row was seen, and the sum of the losses."""

    def __init__(self):
        self.counts, self.loss = np.zeros(50, np.int64), 0.0

    def on_batch(self, batch):
        self.counts[batch.rows] += 1
        self.loss += batch.loss

    def state(self):
        return {"counts": self.counts, "loss": self.loss}

    def load_state(self, values):
        self.counts[:], self.loss = values["counts"], values["loss"]


@pytest.mark.parametrize("at", [1, 5, 7, 10, 14])
def test_what_they_remember_goes_on_after_a_resume(tmp_path, at):
    whole, a, b = Rows(), net(), net()
    fit(a, callbacks=[whole])
    with pytest.raises(KeyboardInterrupt):
        fit(net(), callbacks=[Rows(), Interrupt(at)], run=tmp_path)
    assert saved_steps(tmp_path) == [at]
    rest = Rows()
    fit(b, callbacks=[rest, Interrupt()], run=tmp_path, resume=True)
    assert same(a, b) and np.array_equal(whole.counts, rest.counts) and whole.loss == rest.loss
    assert rest.counts.tolist() == [3] * 50


def test_rank_0_alone_takes_its_state_back(tmp_path):
    import threading

    from gradloom.parallel import threads

    class Loads(Rows):
        def load_state(self, values):
            super().load_state(values)
            loads.append(self)

    loads, each, whole = [], {}, Rows()
    fit(net(), callbacks=[whole], micro_batch_size=5, epochs=2)

    def work(rank, ranks, epochs):
        each[rank] = Loads()
        options = {"epochs": epochs, "run": tmp_path, "resume": True, "parallel": ranks, "micro_batch_size": 5}
        fit(net(), callbacks=[each[rank]], **options)

    for epochs in (1, 2):
        workers = [threading.Thread(target=work, args=(r, c, epochs)) for r, c in enumerate(threads(2, timeout=60))]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    assert loads == [each[0]] and each[0].loss == whole.loss and each[1].loss == 0
    assert np.array_equal(each[0].counts, whole.counts)


def test_one_that_may_forget_is_refused_where_a_resume_is_asked_for(tmp_path):
    with pytest.raises(gl.SettingError, match="callbacks: Heard cannot resume"):
        fit(net(), callbacks=[Heard()], run=tmp_path, resume=True)
    fit(net(), callbacks=[Heard()], run=tmp_path)
