"""What steers a run, stopped in the middle and gone on with: groups, an average of the weights, frozen parameters."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import Adafactor, AdamW, Lion, Muon, schedules
from tests.train.small_models import Interrupt, saved_steps

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((90, 5)).astype(np.float32), RNG.integers(0, 3, 90)

OPTIMIZERS = {
    "groups": lambda: AdamW(
        lr=schedules.Cosine(0.05, steps=40), weight_decay=0.1, no_decay="norms_and_biases",
        groups=[{"match": "0.*", "lr": schedules.Plateau(0.02, 0.5, 0)}, {"match": "1.bias", "optimizer": Lion()}],
    ),
    "muon": lambda: Muon(lr=0.02, groups=[{"match": "not_2d", "optimizer": AdamW(lr=0.01)}]),
    "adafactor": lambda: Adafactor(weight_decay=0.1),
}  # fmt: skip


def net():
    return gl.nn.Sequential(
        gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 8), gl.nn.Dropout(0.2), gl.nn.Linear(8, 3)
    ).init(1)


class Freezes(gl.train.Callback):
    """Freezes the first layer in the second epoch, and thaws it after that."""

    stateless = True

    def __init__(self, model):
        self.first = model[0].parameters()

    def on_epoch(self, result):
        for p in self.first:
            p.trainable = result.epoch != 1


def fit(kind, model, folder, stop=None, **options):
    callbacks = [Freezes(model), Interrupt(stop)]
    return gl.fit(
        model, (X, Y), optimizer=OPTIMIZERS[kind](), epochs=4, batch_size=20, micro_batch_size=8, val_split=0.2, seed=3,
        ema=0.9, max_value=0.1, max_norm=0.5, run=folder, checkpoint_every="1steps", callbacks=callbacks,
        progress=False, **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stops"), [("groups", (4, 6)), ("muon", (5,)), ("adafactor", (9,))])
def test_the_end_is_that_of_a_run_that_was_never_stopped(kind, stops, tmp_path):
    whole = net()
    expected = fit(kind, whole, tmp_path / "whole")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            fit(kind, net(), tmp_path / f"run{stop}", stop)
        assert saved_steps(tmp_path / f"run{stop}")[-1] == stop
        again = net()
        history = fit(kind, again, tmp_path / f"run{stop}", resume=True)
        mine, theirs = again.state_dict(), whole.state_dict()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
        assert [e.numbers() for e in history] == [e.numbers() for e in expected]
        assert all(e.averaged for e in history)


class Raises(gl.train.Callback):
    """Raises an error when it hears of so many epochs, or evaluations."""

    stateless = True

    def __init__(self, error=None, event="epoch", at=3):
        self.error, self.event, self.left = error, event, at

    def _heard(self, event):
        if event == self.event and self.error is not None:
            self.left -= 1
            if not self.left:
                raise self.error

    def on_epoch(self, result):
        self._heard("epoch")

    def on_evaluation(self, evaluation):
        self._heard("evaluation")


class Hears(gl.train.Callback):
    """Remembers what it has heard of."""

    def __init__(self):
        self.heard = []

    def on_epoch(self, result):
        self.heard.append(("epoch", result.epoch))

    def on_evaluation(self, evaluation):
        self.heard.append(("evaluation", evaluation.step))

    def state(self):
        return {"heard": [list(pair) for pair in self.heard]}

    def load_state(self, values):
        self.heard = [tuple(pair) for pair in values["heard"]]


def _heard(folder, raises, *, resume=False, every="1steps"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype(np.float32)
    hears, net = Hears(), gl.nn.Sequential(gl.nn.Linear(4, 4))
    try:
        gl.fit(net, (x, x), loss="mse", epochs=5, batch_size=12, val_split=0.25, progress=False, run=folder,
               resume=resume, checkpoint_every=every, callbacks=[raises, hears])  # fmt: skip
    except (KeyboardInterrupt, gl.NonFiniteError):
        return None
    return hears.heard, net[0].weight.numpy().tobytes()


@pytest.mark.parametrize("every", ["1steps", "5min"])
@pytest.mark.parametrize("event", ["epoch", "evaluation"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, gl.NonFiniteError])
def test_what_a_callback_raises_leaves_no_checkpoint_that_others_have_heard_half_of(tmp_path, error, event, every):
    whole = _heard(tmp_path / "whole", Raises())
    assert _heard(tmp_path / "cut", Raises(error("stop"), event), every=every) is None
    assert _heard(tmp_path / "cut", Raises(), resume=True, every=every) == whole


class Number(gl.train.Callback):
    """Sets a number where a schedule was, in the second epoch; raises in the fourth."""

    def __init__(self, fails=False):
        self.fails, self.epochs = fails, 0

    def begin(self, loop):
        self.optimizer = loop.trainer.optimizer

    def on_epoch(self, result):
        self.epochs += 1
        if self.epochs == 2:
            self.optimizer.lr = 0.01
        if self.epochs == 4 and self.fails:
            raise RuntimeError("stop")

    def state(self):
        return {"epochs": self.epochs}

    def load_state(self, values):
        self.epochs = values["epochs"]


@pytest.mark.parametrize("plateau", [False, True])
def test_a_number_that_was_set_in_place_of_a_schedule_is_resumed(tmp_path, plateau):
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    schedules = gl.optim.schedules

    def fit(folder, fails=False, resume=False, lr=None):
        net = gl.nn.Sequential(gl.nn.Linear(4, 4))
        lr = lr or (schedules.Plateau(0.1, patience=1) if plateau else schedules.Cosine(0.1, steps=20))
        opt = gl.optim.SGD(lr=lr)
        gl.fit(net, (x, x), loss="mse", optimizer=opt, epochs=6, batch_size=16, progress=False, run=folder,
               resume=resume, checkpoint_every="1steps", callbacks=[Number(fails)])  # fmt: skip
        return net[0].weight.numpy().tobytes()

    whole = fit(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stop"):
        fit(tmp_path / "cut", fails=True)
    assert fit(tmp_path / "cut", resume=True) == whole


def test_a_schedule_in_the_state_where_the_script_has_a_number_is_refused(tmp_path):
    def checkpoint(lr):
        net = gl.nn.Linear(2, 2)
        return gl.train.Checkpoint(tmp_path, optimizer=gl.optim.SGD(net.parameters(), lr=lr))

    with checkpoint(gl.optim.schedules.Cosine(0.1, steps=9)) as saved:
        saved.save(1)
    with pytest.raises(gl.TrainError, match="load: optimizer: schedules={}, in the state {'lr': .*Cosine"):
        checkpoint(0.1).load()


def test_weights_that_the_last_step_has_spoiled_are_not_saved(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("GRADLOOM_CHECK", raising=False)  # which looks at weights, too
    x = np.ones((8, 2), np.float32)

    class Spoils(gl.train.Callback):
        stateless = True

        def on_batch(self, batch):
            if batch.step == 3:
                opt.lr = 3e38

    net = gl.nn.Sequential(gl.nn.Linear(2, 2))
    opt = gl.optim.SGD(lr=0.1)
    gl.fit(net, (x, x * 1000), loss="mse", optimizer=opt, epochs=2, batch_size=4, progress=False, run=tmp_path,
           checkpoint_every="1steps", callbacks=[Spoils()])  # fmt: skip
    assert not np.isfinite(net[0].weight.numpy()).all()
    said = capfd.readouterr().err
    assert "the checkpoint of step 4 was not saved, the last one is that of step 3" in said
    assert "its end (step 4) was not saved; its newest checkpoint is that of step 3" in said
    assert [path.name for path in sorted((tmp_path / "checkpoints").glob("*.json"))][-1] == "step-000003.json"
