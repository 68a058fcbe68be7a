"""A run that is stopped at any moment and resumed ends with the bits of the run that never stopped."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.runs.checkpoint import Checkpoints
from tests import processes
from tests.parallel import mpi
from tests.parallel.mpi import needs_mpi
from tests.train.small_models import Interrupt

sys.path.insert(0, str(Path(__file__).parent))

from resuming import IMAGES, RUNS, X, Y, cnn, mlp, on_ranks, outcome, same


@pytest.fixture(scope="module")
def whole():
    """The outcome of each run that was never stopped and has no folder."""
    return {name: outcome(*run()) for name, run in RUNS.items()}


def stopping(count, error):
    """A listener that raises the error at the so-many-th call."""
    calls = []

    def listener(at):
        calls.append(at)
        if len(calls) == count:
            raise error

    return listener


def steps_in(folder):
    return sorted(int(path.stem.removeprefix("step-")) for path in (Path(folder) / "checkpoints").glob("*.json"))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("every", ["1epoch", "1steps", "3steps", "5min"])
def test_checkpoints_change_no_bit(name, every, whole, tmp_path):
    assert same(whole[name], outcome(*RUNS[name](run=tmp_path / "run", checkpoint_every=every)))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 13, 14, 25, 31])
def test_ctrl_c_in_a_pass(name, count, whole, tmp_path):
    """Inside a window, after its last micro-batch, at the end of a pass: one checkpoint, between two steps."""
    with pytest.raises(KeyboardInterrupt):
        RUNS[name](run=tmp_path, on_train_batch=stopping(count, KeyboardInterrupt))
    per_step = 3 if name == "cnn" else 2
    assert len(steps_in(tmp_path)) == (1 if count >= per_step else 0)
    if count >= per_step:
        assert json.loads((tmp_path / "run.json").read_text())["state"] == "interrupted"
    assert same(whole[name], outcome(*RUNS[name](run=tmp_path, resume=True)))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 9])
def test_ctrl_c_in_a_validation(count, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, on_eval_batch=stopping(count, KeyboardInterrupt))
    assert steps_in(tmp_path) == [6 * -(-count // 3)]
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path, resume=True)))


def test_ctrl_c_many_times(whole, tmp_path):
    """Each session makes a few steps; threads change from one to the next."""
    for session in range(20):
        try:
            options = {"run": tmp_path, "resume": bool(session), "threads": 1 + session % 2}
            found = outcome(*mlp(on_train_batch=stopping(9, KeyboardInterrupt), **options))
            break
        except KeyboardInterrupt:
            continue
    assert session > 3 and same(whole["mlp"], found)


def test_stop_after_and_its_exit(whole, tmp_path):
    """It ends in order, a part of the epoch in the history; resumed, it is as if it never stopped."""
    for _ in range(2):
        _, history = mlp(run=tmp_path, resume=True, stop_after="0.001s", on_train_batch=lambda at: None)
        assert history[-1].train.ndata == 20 * steps_in(tmp_path)[-1]
        assert json.loads((tmp_path / "run.json").read_text())["state"] == "interrupted"
    assert steps_in(tmp_path) == [1, 2]
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path, resume=True)))
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "finished"


def test_a_finished_run_is_as_it_was(whole, tmp_path):
    mlp(run=tmp_path)
    before = steps_in(tmp_path)
    calls = []
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path, resume=True, on_train_batch=calls.append)))
    assert not calls and steps_in(tmp_path) == before


def test_more_epochs(whole, tmp_path):
    mlp(run=tmp_path, epochs=3)
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path, resume=True)))


def test_a_listener_that_stops_the_training_ends_the_run(tmp_path, capsys):
    net, history = mlp(run=tmp_path, on_epoch=stopping(2, gl.train.StopTraining))
    again = mlp(run=tmp_path, resume=True, on_epoch=stopping(2, gl.train.StopTraining))
    assert len(history) == 2 and same(outcome(net, history), outcome(*again))
    said = f"{tmp_path}: a callback has ended this run after 12 steps: it is finished"
    assert capsys.readouterr().err.count(said) == 1


def test_a_batch_that_is_not_finite_leaves_the_last_good_step(tmp_path):
    """A run that fails is resumed with the batch left out, as if that had been asked for from the beginning... but it
    was not: another setting is refused. With the same, it fails again at once, with nothing lost."""
    x = X.copy()
    x[77] = np.nan

    def run(**options):
        net = gl.nn.Sequential(gl.nn.Linear(6, 3)).init(0)
        settings = {"epochs": 2, "batch_size": 10, "seed": 1, "progress": False, "run": tmp_path}
        return gl.fit(net, (x, Y), **settings | options)

    with pytest.raises(gl.NonFiniteError) as first:
        run()
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "failed"
    (step,) = steps_in(tmp_path)
    with pytest.raises(gl.NonFiniteError) as second:
        run(resume=True)
    assert str(first.value) == str(second.value) and steps_in(tmp_path) == [step]
    with pytest.raises(gl.TrainError, match="cannot be resumed: on_nonfinite is skip and was stop; need the same"):
        run(resume=True, on_nonfinite="skip")


def test_skipped_batches_are_remembered(tmp_path):
    x = X.copy()
    x[[7, 77]] = np.nan

    def run(**options):
        net = gl.nn.Sequential(gl.nn.Linear(6, 8), gl.nn.Dropout(0.3), gl.nn.Linear(8, 3)).init(0)
        settings = {"epochs": 3, "batch_size": 10, "seed": 1, "progress": False, "on_nonfinite": "skip"}
        return outcome(net, gl.fit(net, (x, Y), **settings | options))

    expected, sessions, found = run(), 0, None
    while found is None:
        try:
            found = run(run=tmp_path, resume=True, on_train_batch=stopping(8, KeyboardInterrupt))
        except KeyboardInterrupt:
            sessions += 1
    assert sessions > 3 and same(expected, found)


# ---- ranks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_ranks_go_on_with_another_number(name, tmp_path):
    """1, 2 and 3 ranks: sessions of five steps each, stopped by a listener on rank 0."""
    expected = on_ranks(name, 2)
    sessions = 0
    while sessions < 12:
        try:
            stop = stopping(5, KeyboardInterrupt)
            found = on_ranks(name, 1 + sessions % 3, run=tmp_path, resume=True, on_train_batch=stop)
            break
        except KeyboardInterrupt:
            sessions += 1
    assert sessions >= 2 and same(expected, found)


def test_the_resolved_micro_batch_is_kept(tmp_path):
    """It follows from the number of ranks; a run goes on with the one that it began with."""
    options = {"micro_batch_size": None, "run": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        on_ranks("cnn", 2, on_train_batch=stopping(5, KeyboardInterrupt), **options)
    assert same(on_ranks("cnn", 2, micro_batch_size=10), on_ranks("cnn", 3, resume=True, **options))


def test_ranks_and_one_process_are_two_things(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        on_ranks("cnn", 2, run=tmp_path, on_train_batch=stopping(5, KeyboardInterrupt))
    with pytest.raises(
        gl.TrainError, match="cannot be resumed: the run was begun with parallel= and is resumed without"
    ):
        cnn(run=tmp_path, resume=True)


# ---- what must be the same -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        mlp(run=folder, on_train_batch=stopping(9, KeyboardInterrupt))
    return folder


def other_data():
    x = X.copy()
    x[149, 5] += 1e-6
    return x, Y


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 30}, "batch_size is 30 and was 20"),
        ({"micro_batch_size": 20}, "micro_batch_size is 20 and was 10"),
        ({"seed": 4}, "seed is 4 and was 3; seed of the rows is 4 and was 3"),
        ({"val_split": 0.3}, "training rows is 105 and was 120"),
        ({"max_norm": 2.0}, "max_norm is 2.0 and was inf"),
        ({"freeze": "0.*"}, r"freeze is \['0\.\*'\] and was \[\]"),
        ({"loss": "mse"}, "loss is mse and was cross_entropy"),
        ({"optimizer": gl.optim.SGD(lr=0.1)}, "optimizer.kind is SGD and was AdamW"),
        ({"optimizer": gl.optim.AdamW(lr=0.1)}, r"optimizer.lr is 0\.1 and was Plateau\(0\.02"),
        ({"class_weight": "balanced"}, r"class_weights is \[1.0256410837173462, .*\] and was none"),
        ({"callbacks": [gl.train.EarlyStopping(9)]}, r"callbacks is \['EarlyStopping\(patience=9"),
        ({"data": other_data()}, r"the data differ \(\w{16}, was \w{16}\)"),
        ({"net": gl.nn.Linear(6, 3)}, "model.weight is .* and was none.* model.0.weight is none and was "),
        ({"dropout": 0.3}, "the graph of a step differs"),
        ({"momentum": 0.2}, "the graph of a step differs"),
    ],
)
def test_what_differs_is_refused(change, said, stopped):
    before = {path.name: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    options = dict(change)
    net = options.pop("net", None)
    if net is None:
        rate, momentum = options.pop("dropout", 0.2), options.pop("momentum", 0.1)
        layers = (
            gl.nn.Linear(6, 16),
            gl.nn.BatchNorm(16, momentum=momentum),
            gl.nn.ReLU(),
            gl.nn.Dropout(rate),
            gl.nn.Linear(16, 3),
        )
        net = gl.nn.Sequential(*layers)
    settings = {
        "data": (X, Y), "epochs": 7, "batch_size": 20, "micro_batch_size": 10, "val_split": 0.2, "seed": 3,
        "progress": False, "optimizer": gl.optim.AdamW(lr=gl.optim.schedules.Plateau(0.02, patience=0, factor=0.5)),
        "callbacks": [gl.train.EarlyStopping(4, restore_best=True)], "run": stopped, "resume": True,
    }  # fmt: skip
    if options.get("loss") == "mse":
        settings["data"] = X, np.eye(3, dtype=np.float32)[Y]
    with pytest.raises(gl.TrainError, match=f"{stopped}: cannot be resumed: .*{said}.*; need the same, or --overwrite"):
        gl.fit(net, **settings | options)
    assert before == {path.name: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_another_instruction_set_goes_on_and_says_so(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, isa="avx2", on_train_batch=stopping(9, KeyboardInterrupt))
    mlp(run=tmp_path, isa="scalar", resume=True)
    said = f"{tmp_path}: isa is scalar and was avx2: the run continues, the same bits are not promised"
    assert said in capsys.readouterr().err


def test_without_a_checkpoint_it_starts_anew_and_says_so(tmp_path, whole, capsys):
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path / "new", resume=True)))
    assert "there is no checkpoint to resume from; the run starts anew" in capsys.readouterr().err


def test_an_unfinished_run_is_not_replaced_unless_asked(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, on_train_batch=stopping(9, KeyboardInterrupt))
    with pytest.raises(gl.FileError, match="resume=True, overwrite=True"):
        mlp(run=tmp_path)
    assert same(whole["mlp"], outcome(*mlp(run=tmp_path, overwrite=True)))


class Counting(gl.train.Callback):
    def __init__(self):
        self.batches = 0

    def on_batch(self, batch):
        self.batches += 1


class Remembering(Counting):
    def state(self):
        return {"batches": self.batches}

    def load_state(self, values):
        self.batches = values["batches"]


def test_callbacks_that_cannot_resume_are_refused(tmp_path):
    with pytest.raises(gl.SettingError, match=r"Counting cannot resume: it has no state\(\) and load_state\(\)"):
        mlp(run=tmp_path, resume=True, callbacks=[Counting()])
    assert not (tmp_path / "run.json").exists()


def test_callbacks_remember(tmp_path):
    first, second = Remembering(), Remembering()
    with pytest.raises(KeyboardInterrupt):
        cnn(run=tmp_path, callbacks=[first], on_train_batch=stopping(13, KeyboardInterrupt))
    cnn(run=tmp_path, resume=True, callbacks=[second])
    assert first.batches == 5 and second.batches == 20


class Thawing(gl.train.Callback):
    """Trains the first layer from the third epoch on, and freezes the last one in the fifth."""

    stateless = True

    def begin(self, loop):
        self.net = loop.trainer.model
        self.net[0].weight.trainable = False

    def on_epoch(self, result):
        self.net[0].weight.trainable = result.epoch >= 2
        self.net[4].weight.trainable = result.epoch != 4


@pytest.mark.parametrize("count", [13, 25, 40, 41, 55, 60])
def test_what_a_callback_freezes_and_thaws(count, tmp_path):
    options = {"callbacks": [Thawing()]}
    whole = outcome(*mlp(**options))
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, on_train_batch=stopping(count, KeyboardInterrupt), **options)
    assert same(whole, outcome(*mlp(run=tmp_path, resume=True, **options)))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_evaluations_inside_of_epochs(name, count, tmp_path):
    """Early stopping and plateaus hear of them; an evaluation is made once, also where it is the last thing done."""
    other = (IMAGES[:20], Y[:20]) if name == "cnn" else (X[:20], Y[:20])
    options = {"eval_every": "2steps", "val": {"other": other}, "eval_rows": 7}
    whole = RUNS[name](**options)
    with pytest.raises(KeyboardInterrupt):
        RUNS[name](run=tmp_path, on_eval_batch=stopping(count, KeyboardInterrupt), **options)
    again = RUNS[name](run=tmp_path, resume=True, **options)
    assert same(outcome(*whole), outcome(*again))
    told = [[(one.step, one.epoch, one.numbers()) for e in h for one in e.evaluations] for _, h in (whole, again)]
    assert str(told[0]) == str(told[1]) and len(told[0]) > 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resume": True}, "resume=True requires run"),
        ({"keep": 3}, "keep=3 requires run"),
        ({"stop_after": "3h"}, "stop_after='3h' requires run"),
        (
            {"run": "{}", "checkpoint_every": "5 apples"},
            "checkpoint_every='5 apples': must be a text such as 5min",
        ),
        ({"run": "{}", "checkpoint_every": "0steps"}, "checkpoint_every='0steps': must be"),
        ({"run": "{}", "checkpoint_every": "1.5epochs"}, "checkpoint_every='1.5epochs': must be"),
        ({"run": "{}", "stop_after": "10steps"}, "stop_after='10steps': must be a duration such as 90s"),
        ({"run": "{}", "keep": 0}, "keep"),
        ({"run": 3}, "run=3: must be the path of a folder"),
        ({"run": ""}, "run='': must be the path of a folder"),
        ({"run": "{}", "resume": True, "overwrite": True}, "resume and overwrite"),
    ],
)
def test_arguments_that_are_not_usable(options, said, tmp_path):
    given = {name: str(tmp_path / "r") if value == "{}" else value for name, value in options.items()}
    with pytest.raises(gl.SettingError, match=said):
        mlp(**given)
    assert not (tmp_path / "r").exists()


def test_how_often_and_how_many(tmp_path):
    mlp(run=tmp_path / "steps", checkpoint_every="10steps", epochs=4)
    assert steps_in(tmp_path / "steps") == [10, 20, 24]
    mlp(run=tmp_path / "epochs", checkpoint_every="2epochs", epochs=7, keep=2, callbacks=[])
    assert steps_in(tmp_path / "epochs")[-2:] == [36, 42]


def test_the_best_stays(tmp_path):
    """Losses of validation grow after the first epochs; the checkpoint of the best one is kept beside the newest."""
    _, history = mlp(run=tmp_path, checkpoint_every="1epoch", keep=1, callbacks=None, epochs=30)
    best = 1 + int(np.argmin([epoch.val.loss for epoch in history]))
    assert best < 30 and steps_in(tmp_path) == [6 * best, 180]


@pytest.mark.parametrize("step", [None, 3, 20])
def test_the_best_evaluation_inside_of_an_epoch_stays(step, tmp_path):
    """Of a run that was stopped in between, too, and its weights are those that EarlyStopping would bring back."""
    stop = gl.train.EarlyStopping(1000, restore_best=True)
    options = {"eval_every": "4steps", "epochs": 30}
    net, history = mlp(callbacks=[stop], **options)
    options |= {"run": tmp_path, "checkpoint_every": "2steps", "keep": 1}
    found = [one for epoch in history for one in epoch.evaluations]
    best = min(found, key=lambda one: one.val.loss)
    assert best.step == stop.best_step and best.step % 6
    if step is not None:
        with pytest.raises(KeyboardInterrupt):
            mlp(callbacks=[Interrupt(step)], **options)
    mlp(callbacks=[Interrupt()], resume=step is not None, **options)
    assert steps_in(tmp_path) == [best.step, 180]
    saved = Checkpoints(tmp_path / "checkpoints").best()
    assert saved.step == best.step
    weights = net.state_dict()
    assert all(saved.entries[f"model.{name}"].tobytes() == weights[name].tobytes() for name in weights)
    assert json.loads((tmp_path / "run.json").read_text())["best"]["val_loss"] == best.val.loss


# ---- killed --------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).with_name("resuming.py")


def session(name, folder, out, *options):
    """One process; whether it came to its end."""
    process = processes.start([sys.executable, PROGRAM, name, folder, out, *options], env=processes.environment())
    _, said = process.communicate(timeout=120)
    assert process.returncode in (0, -9) or (process.returncode and "KeyboardInterrupt" in said), said
    return process.returncode == 0


@pytest.mark.parametrize(("name", "seed"), [("mlp", 0), ("cnn", 1), ("heads", 2)])
@pytest.mark.slow
def test_killed_in_listeners(name, seed, whole, tmp_path):
    """SIGKILL in the listener of a drawn micro-batch: in windows, in validation, while a checkpoint is written."""
    rng, kills = random.Random(seed), 0
    while kills < 4 and not session(name, tmp_path / "run", tmp_path / "out.npz", "--kill-at", rng.randint(1, 30)):
        kills += 1
    if kills == 4:
        assert session(name, tmp_path / "run", tmp_path / "out.npz", "--threads", 2)
    assert kills and same(whole[name], dict(np.load(tmp_path / "out.npz")))


@pytest.mark.slow
def test_ctrl_c_comes_as_a_signal(whole, tmp_path):
    """In windows: it waits for a place between two steps, and the last checkpoint is taken there."""
    for at in (5, 28):
        assert not session("mlp", tmp_path / "run", tmp_path / "out.npz", "--kill-at", at, "--signal", 2)
        assert json.loads((tmp_path / "run/run.json").read_text())["state"] == "interrupted"
    assert session("mlp", tmp_path / "run", tmp_path / "out.npz")
    assert same(whole["mlp"], dict(np.load(tmp_path / "out.npz")))


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.slow
def test_killed_at_any_moment(ranks, whole, tmp_path):
    rng, kills = random.Random(ranks), 0
    expected = on_ranks("mlp", ranks) if ranks else whole["mlp"]
    while kills < 4:
        options = ("--kill", rng.uniform(0, 0.3), "--ranks", ranks and rng.randint(1, 3), "--threads", 1 + kills % 2)
        if session("mlp", tmp_path / "run", tmp_path / "out.npz", *options):
            break
        kills += 1
    if kills == 4:
        assert session("mlp", tmp_path / "run", tmp_path / "out.npz", "--ranks", ranks)
    assert kills and same(expected, dict(np.load(tmp_path / "out.npz")))


@needs_mpi
@pytest.mark.slow
def test_processes_are_killed_and_go_on_as_more_or_fewer(tmp_path):
    """Rank 0 is killed in a listener; the others end with it. Then three processes, then one."""
    expected, out = on_ranks("mlp", 2), tmp_path / "out.npz"
    for ranks, at in ((2, 9), (3, 8), (1, 0)):
        ended = mpi.run(ranks, PROGRAM, "mlp", tmp_path / "run", out, "--mpi", "--kill-at", at)
        assert (ended.code == 0) == (at == 0), ended.err
    assert same(expected, dict(np.load(out)))
