"""What a resumed run has in common with the one before: functions, long texts, ranks, dynamic graphs."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl

sys.path.insert(0, str(Path(__file__).parent))

from resuming import RUNS, X, Y, mlp, on_ranks, outcome, same


def stopping(count):
    """A listener that ends the run at the so-many-th call."""
    calls = []

    def listener(at):
        calls.append(at)
        if len(calls) == count:
            raise KeyboardInterrupt

    return listener


def steps_in(folder):
    return sorted(int(path.stem.removeprefix("step-")) for path in (Path(folder) / "checkpoints").glob("*.json"))


def plain(**options):
    """Dropout, windows of three micro-batches, clipping, averaged weights; no running statistics."""
    net = gl.nn.Sequential(gl.nn.Linear(6, 8), gl.nn.ReLU(), gl.nn.Dropout(0.2), gl.nn.Linear(8, 3))
    settings = {"epochs": 4, "batch_size": 20, "micro_batch_size": 8, "val_split": 0.1, "seed": 5, "progress": False}
    rule = gl.optim.AdamW(lr=gl.optim.schedules.Cosine(0.05, steps=28, warmup=3))
    return net, gl.fit(net, (X, Y), optimizer=rule, max_norm=1.0, ema=0.9, **settings | options)


@pytest.mark.parametrize("first", [0, 2])
def test_without_running_statistics_ranks_and_one_process_are_one_run(first, tmp_path, monkeypatch):
    """Begun by one process and resumed by two ranks, and the other way round."""
    monkeypatch.setitem(RUNS, "plain", plain)
    whole = outcome(*plain())

    def run(ranks, **options):
        return on_ranks("plain", ranks, **options) if ranks else outcome(*plain(**options))

    with pytest.raises(KeyboardInterrupt):
        run(first, run=tmp_path, on_train_batch=stopping(8))
    assert steps_in(tmp_path)[-1] < 28
    assert same(whole, run(2 - first, run=tmp_path, resume=True))
    assert steps_in(tmp_path)[-1] == 28


def test_other_folds_are_no_other_data(tmp_path):
    def ensemble(folds, **options):
        net = gl.nn.Ensemble(gl.nn.MemberLinear(4, 6, 3)).init(0)
        return gl.fit(net, (X, Y), folds=folds, epochs=2, progress=False, run=tmp_path, **options)

    with pytest.raises(KeyboardInterrupt):
        ensemble(4, on_train_batch=stopping(3))
    with pytest.raises(gl.TrainError, match="cannot be resumed: folds is 2 and was 4; need the same"):
        ensemble(2, resume=True)


class Drawn(gl.nn.Module):
    """A model that another attribute, or a generator of its own, changes."""

    def __init__(self, scale=1.0, draw=None):
        super().__init__()
        self.layer, self.scale, self.draw, self.calls = gl.nn.Linear(6, 3), scale, draw, 0

    def forward(self, x):
        self.calls += 1
        y = self.layer(x) * self.scale
        return y if self.draw is None or self.draw.random() < 0.5 else y * 1.5


def drawn(model, **options):
    settings = {"epochs": 3, "batch_size": 20, "val_split": 0.2, "seed": 3, "progress": False, "dynamic": True}
    return model, gl.fit(model, (X, Y), optimizer=gl.optim.AdamW(lr=0.05), **settings | options)


def test_a_dynamic_graph_is_compared_by_what_it_builds_at_first(tmp_path, capsys):
    whole = outcome(*drawn(Drawn()))
    with pytest.raises(KeyboardInterrupt):
        drawn(Drawn(), run=tmp_path, on_train_batch=stopping(8))
    with pytest.raises(gl.TrainError, match="cannot be resumed: the graph of a step differs"):
        drawn(Drawn(scale=2.0), run=tmp_path, resume=True)
    assert same(whole, outcome(*drawn(Drawn(), run=tmp_path, resume=True)))
    assert "not known" not in capsys.readouterr().err


def test_a_folder_changes_nothing_of_a_dynamic_model(tmp_path):
    """What the model counts and draws as it is called is as without a folder."""
    plain, kept = drawn(Drawn(draw=random.Random(0))), drawn(Drawn(draw=random.Random(0)), run=tmp_path)
    assert same(outcome(*plain), outcome(*kept)) and plain[0].calls == kept[0].calls > 0


def test_a_dynamic_graph_that_changes_by_itself_is_not_compared_which_is_said(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        drawn(Drawn(draw=np.random.default_rng(1)), run=tmp_path, on_train_batch=stopping(8))
    drawn(Drawn(draw=np.random.default_rng(2)), run=tmp_path, resume=True)
    said = f"{tmp_path}: whether these do the same as before is not known: the model's graph (dynamic=True"
    assert said in capsys.readouterr().err


def error_of(power):
    return lambda outputs, labels: gl.ops.mean(outputs * outputs if power == 2 else gl.ops.abs(outputs), (1,))


def loss_of(power):
    return lambda outputs, labels: gl.ops.mean(outputs * outputs * power, (1,))


@pytest.mark.parametrize("train", [False, True])
def test_a_metric_is_compared_by_what_it_computes(train, tmp_path):
    """Two functions of one name."""

    def run(power, **options):
        metrics = {"error": gl.train.Metric(error_of(power), train=train), "other": error_of(1)}
        return outcome(*plain(run=tmp_path, metrics=metrics, **options))

    with pytest.raises(KeyboardInterrupt):
        run(2, on_train_batch=stopping(8))
    with pytest.raises(gl.TrainError, match="cannot be resumed: the metric error differs;"):
        run(1, resume=True)
    run(2, resume=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_is_compared_by_what_it_computes(dynamic, tmp_path):
    def run(power, **options):
        return outcome(*plain(run=tmp_path, loss=loss_of(power), dynamic=dynamic, **options))

    with pytest.raises(KeyboardInterrupt):
        run(2.0, on_train_batch=stopping(8))
    with pytest.raises(gl.TrainError, match="cannot be resumed: the graph of a step differs"):
        run(3.0, resume=True)
    run(2.0, resume=True)


class Watching(gl.train.Callback):
    stateless = True

    def on_epoch(self, result):
        pass


def test_what_builds_no_graph_is_said(tmp_path, monkeypatch, capsys):
    """One line, with all of it; nothing where all is compared."""
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)  # which writes to stderr, too
    whole = gl.train.Metric(lambda outputs, labels: float(outputs.mean()), whole=True)
    options = {"run": tmp_path, "metrics": {"spread": whole}, "callbacks": [Watching()]}
    with pytest.raises(KeyboardInterrupt):
        plain(on_train_batch=stopping(8), **options)
    capsys.readouterr()
    plain(resume=True, **options)
    said = "whether these do the same as before is not known: the metric spread (whole=True), the callback Watching"
    assert capsys.readouterr().err == f"{tmp_path}: {said}\n"


def constant(rate):
    return lambda step, epoch: rate if epoch < 2 else rate / 10


def test_the_numbers_of_a_function_are_compared(tmp_path):
    """A learning rate that is a function: by what it gives, not by its name alone."""

    def run(rate, **options):
        return outcome(*mlp(run=tmp_path, optimizer=gl.optim.AdamW(lr=constant(rate)), **options))

    with pytest.raises(KeyboardInterrupt):
        run(0.1, on_train_batch=stopping(9))
    said = r"optimizer.lr is .*lambda> \(1.0 at step 0, .* and was .*lambda> \(0.1 at step 0"
    with pytest.raises(gl.TrainError, match=said):
        run(1.0, resume=True)
    run(0.1, resume=True)


def test_the_part_of_a_long_text_that_differs_is_shown(tmp_path):
    callbacks = [gl.train.EarlyStopping(4, 1e-4, restore_best=True), gl.train.EarlyStopping(5)]
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, callbacks=callbacks, on_train_batch=stopping(9))
    callbacks[1] = gl.train.EarlyStopping(6)
    with pytest.raises(gl.TrainError, match=r"callbacks is \.\.\..*patience=6.* and was \.\.\..*patience=5"):
        mlp(run=tmp_path, callbacks=callbacks, resume=True)


def test_names_of_a_table_are_compared(tmp_path):
    """Of data that read_table has read, in memory too; rows without names are not the rows of a table."""
    rng = np.random.default_rng(0)
    cells = "".join(f"{a:.3f},{b:.3f},{'xz'[int(a > b)]}\n" for a, b in rng.normal(size=(60, 2)))

    def run(header, classes="xz", **options):
        (tmp_path / "t.csv").write_text(f"{header}\n{cells.replace('z', classes[1])}")
        table = gl.data.read_table(tmp_path / "t.csv")
        rows = options.pop("rows", lambda train: train)(table.train)
        net = gl.nn.Sequential(gl.nn.Linear(2, 2))
        return gl.fit(net, rows, epochs=2, run=tmp_path / "run", progress=False, **options)

    run("a,b,y")
    for words, said in (
        ({"header": "b,a,y"}, "column 1 is 'b', number and was 'a', number; column 2 is 'a', number and was 'b', numb"),
        ({"header": "a,b,y", "classes": "xw"}, r"classes is \['w', 'x'\] and was \['x', 'z'\]"),
        ({"header": "a,b,z"}, "target is z and was y"),
        ({"header": "a,b,y", "rows": lambda train: (train.data, train.labels)}, "table is none and was {"),
    ):
        with pytest.raises(gl.TrainError, match=f"cannot be resumed: {said}"):
            run(**words, resume=True)
    assert len(run("a,b,y", resume=True)) == 2
