"""Data whose rows are made when they are read: an object with __len__ and __getitem__."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.train import fetched_source
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
ROWS = 103
X, Y = RNG.normal(size=(ROWS, 6)).astype(np.float32), RNG.integers(0, 3, ROWS)
WEIGHTS = RNG.uniform(0.2, 2.0, ROWS)


class Rows:
    """Makes the rows of X and Y; keeps the numbers of those that it made."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < ROWS:
            raise IndexError(i)
        self.made.append(i)
        return X[i], Y[i]


class Noisy(Rows):
    """Adds noise to training rows."""

    def __getitem__(self, i: int, rng: np.random.Generator | None = None) -> Any:
        return X[i] if rng is None else X[i] + rng.normal(0, 0.1, 6).astype(np.float32), Y[i]


class Several:
    """Makes many rows at once, training rows mixed with others."""

    def __len__(self) -> int:
        return ROWS

    def fetch(self, rows: np.ndarray, draw: gl.data.Draw | None) -> Any:
        if draw is None:
            return X[rows], Y[rows]
        others = np.array([draw.of_row(row).choice(draw.rows) for row in rows])
        return X[rows] + 0.1 * X[others], Y[rows]

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


class Dicts:
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        return {"v": X[i, 4:].tolist(), "u": X[i, :4]}, {"id": int(Y[i]), "value": X[i, :1] ** 2}


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.u, self.v, self.value = nn.Linear(4, 3), nn.Linear(2, 3), nn.Linear(4, 1)
        self.init(0)

    def forward(self, u: Any, v: Any) -> Any:
        return {"id": self.u(u) + self.v(v), "value": self.value(u)}


def net() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    made.init(0)
    return made


def trained(data: Any, model: nn.Module | None = None, **options: Any) -> tuple[Any, dict[str, bytes]]:
    model = net() if model is None else model
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "val_split": 0.2, "progress": False} | options
    history = gl.fit(model, data, **settings)
    return [one.numbers() for one in history], {n: p.numpy().tobytes() for n, p in model.named_parameters().items()}


@pytest.fixture(params=[1, 1700, 1 << 23])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one batch, of some batches, and all in the buffers."""
    monkeypatch.setattr(fetched_source, "WINDOW_BYTES", request.param)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch_size": 6}, {"batch_size": 7}, {"eval_every": "2steps"}, {"metrics": ["f1"]}, {"epochs": 1}],
    ids=str,
)
def test_the_bits_of_arrays(options: dict[str, Any]) -> None:
    expected = trained((X, Y), **options)
    for workers in (0, 1, 3):
        assert trained(gl.data.MapDataset(Rows(), workers=workers), **options) == expected
    weighed = trained(gl.data.Dataset(X, Y, weights=WEIGHTS, shard_size=3), **options)
    assert trained(gl.data.MapDataset(Rows(), weights=WEIGHTS, shard_size=3), **options) == weighed != expected


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("source", [Noisy, Several])
def test_draws_of_a_row_depend_on_seed_and_epoch_alone(source: Any) -> None:
    first = trained(source())
    for options in ({"threads": 1}, {"micro_batch_size": 16, "eval_every": "1steps"}):
        again = trained(gl.data.MapDataset(source(), workers=4), **options)
        assert again[1] == first[1]
    assert trained(gl.data.MapDataset(source(), workers=0))[1] == first[1] != trained(Rows())[1]
    assert trained(source(), seed=1)[1] != first[1]


def test_draws_differ_by_epoch_and_not_in_evaluations() -> None:
    loader = gl.data.DataLoader(Noisy(), batch_size=ROWS)
    (first,), (second,) = list(loader), list(loader)
    assert not np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])
    loader.epoch = 0
    assert np.array_equal(next(iter(loader))[0], first[0])
    model = net()
    assert np.array_equal(gl.predict(model, Noisy()), gl.predict(model, X))
    a, b = (gl.evaluate(model, data, batch_size=20, metrics=["f1"]) for data in (Noisy(), (X, Y)))
    assert (a.loss, a.accuracy, a.metrics) == (b.loss, b.accuracy, b.metrics)


def test_a_loader_of_rows_that_are_made_is_resumed(tmp_path: Path) -> None:
    """Its data are identified by the contents of the source."""

    class Known(Noisy):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.contents = [name]

    def fit(run: str, name: str = "one", **options: Any) -> Any:
        model, data = net(), gl.data.DataLoader(Known(name), batch_size=8)
        settings: dict[str, Any] = {"steps_per_epoch": 4, "run": tmp_path / run, "epochs": 2} | options
        gl.fit(model, data, progress=False, checkpoint_every="1steps", **settings)
        return [p.numpy().tobytes() for p in model.parameters()]

    whole = fit("whole")
    fit("cut", epochs=1)
    with pytest.raises(gl.TrainError, match="cannot be resumed: the data"):
        fit("cut", "another", resume=True)
    assert fit("cut", resume=True) == whole


def test_callbacks_get_the_labels_of_the_rows() -> None:
    class Look(gl.train.Callback):
        def on_batch(self, batch: Any) -> None:
            assert np.array_equal(batch.labels, Y[batch.rows])
            seen.extend(batch.rows)

    seen: list[int] = []
    trained(Noisy(), callbacks=[Look()], val_split=0.0, epochs=1)
    assert sorted(seen) == [*range(ROWS)]


def test_rows_are_made_once_in_a_pass_and_no_more_than_needed() -> None:
    rows = Rows()
    trained(gl.data.MapDataset(rows, workers=0), val_split=0.0, epochs=3)
    assert sorted(rows.made) == sorted([0, *range(ROWS)] * 1 + [*range(ROWS)] * 2)


@pytest.mark.usefixtures("window")
def test_dicts_loaders_and_losses_by_output() -> None:
    arrays = gl.data.Dataset({"u": X[:, :4], "v": X[:, 4:]}, {"id": Y, "value": X[:, :1] ** 2})
    loss = {"id": "cross_entropy", "value": "mse"}
    assert trained(Dicts(), Towers(), loss=loss) == trained(arrays, Towers(), loss=loss)
    mine, theirs = (next(iter(gl.data.DataLoader(one, batch_size=9, shuffle=True))) for one in (Dicts(), arrays))
    assert all(np.array_equal(mine[i][key], theirs[i][key]) for i in (0, 1) for key in theirs[i])


class Spread(gl.train.BatchLoss):
    def values(self, outputs: Any, labels: Any, weights: Any = None) -> Any:
        return [outputs]

    def join(self, values: Any) -> Any:
        return [ops.broadcast_to(ops.mean(values[0], axes=0, keepdims=True), values[0].shape)]

    def loss(self, outputs: Any, labels: Any, joined: Any, weights: Any = None) -> Any:
        return ops.sum(ops.sqr(outputs - joined[0])), gl.constant(float(outputs.shape[0]))


@pytest.mark.usefixtures("window")
def test_batch_losses_in_micro_batches() -> None:
    options = {"loss": Spread(), "micro_batch_size": 6}
    assert trained(Rows(), **options) == trained((X, Y), **options)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("options", [{}, {"loss": Spread()}], ids=["rows", "batch"])
def test_ranks_give_the_same_bits(options: dict[str, Any]) -> None:
    def train(rank: Any) -> Any:
        return trained(Noisy(), micro_batch_size=4, parallel=rank, threads=1, **options)

    (one,), two = on_ranks(1, train), on_ranks(2, train)
    assert two == [one, one]


@pytest.mark.usefixtures("window")
def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    whole = trained(Noisy(), run=tmp_path / "whole", checkpoint_every="3steps")

    def stop(progress: gl.train.Progress) -> None:
        if steps.append(progress) or len(steps) == 8:
            raise ValueError("killed")

    steps: list[Any] = []
    with pytest.raises(ValueError, match="killed"):
        trained(Noisy(), run=tmp_path / "cut", checkpoint_every="3steps", on_train_batch=stop)
    assert trained(Noisy(), run=tmp_path / "cut", checkpoint_every="3steps", resume=True) == whole


def test_folds_and_class_weights_of_known_labels() -> None:
    known = gl.data.MapDataset(Rows(), labels=Y)
    balanced = {"class_weight": "balanced"}
    assert trained(known, **balanced) == trained((X, Y), **balanced)
    with pytest.raises(gl.DataError, match=r"class_weight: the labels are made with the rows"):
        trained(Rows(), **balanced)


def test_processes_make_the_same_rows() -> None:
    rows = gl.data.MapDataset(Noisy(), workers=2, processes=True)
    draw = gl.data.Draw(0, 1, np.arange(ROWS))
    made = rows.take(np.arange(9), None, draw)
    expected = gl.data.MapDataset(Noisy(), workers=0).take(np.arange(9), None, draw)
    assert np.array_equal(made.data, expected.data) and np.array_equal(made.labels, expected.labels)


@pytest.mark.slow
def test_a_source_may_use_an_array_again() -> None:
    class Again(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.row = np.empty(6, np.float32)

        def __getitem__(self, i: int) -> Any:
            self.row[:] = X[i]
            return self.row, Y[i]

    assert trained(gl.data.MapDataset(Again(), workers=1)) == trained((X, Y))


def test_rows_are_made_ahead() -> None:
    """While a step waits for nothing but the first rows."""

    class Slow(Rows):
        def __getitem__(self, i: int) -> Any:
            names.add(threading.current_thread().name)
            time.sleep(0.001)
            return X[i], Y[i]

    names: set[str] = set()
    trained(gl.data.MapDataset(Slow(), workers=3), epochs=1)
    assert len({name for name in names if name.startswith("gradloom rows")}) == 3


class Unpicklable(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.held = lambda: None


class Broken(Rows):
    """Row 50 is another one."""

    def __init__(self, row: Any) -> None:
        super().__init__()
        self.row = row

    def __getitem__(self, i: int) -> Any:
        if i != 50:
            return X[i], Y[i]
        if isinstance(self.row, Exception):
            raise self.row
        return self.row


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        (ValueError("no such\nfile"), gl.DataError, r"row 50: ValueError: no such file$"),
        ((np.ma.masked_less(X[0], 0), 1), gl.DTypeError, r"data of row 50: .* masked"),
        ((X[0] * np.nan, 1), gl.NonFiniteError, r"row 50 of the data is not finite"),
        ((X[0, :5], 1), gl.ShapeError, r"data of row 50: shape \[5\]; need \[6\], as row 0$"),
        ((X[0], -3), gl.GradloomError, r"id -3 at position \d+ is out of range; need 0..2, or -100"),
        ((X[0], 1.5), gl.DTypeError, r"labels of row 50: float64; need int64, as row 0"),
        ((X[0], 1, 2, 3), gl.DataError, r"row 50: a tuple of 4; need x, or \(x, y\)"),
        ((X[0], None), gl.ShapeError, r"labels of row 50: none; need an array, as row 0$"),
        (({"u": X[0]}, 1), gl.ShapeError, r"data of row 50: the keys u; need an array, as row 0$"),
        (("text", 1), gl.DTypeError, r"data of row 50: dtype <U4; need numbers"),
        ((X[0], 3), gl.GradloomError, r"id 3 at position \d+ is out of range; need 0..2"),
    ],
)
def test_rows_that_differ_from_the_first(row: Any, error: type, text: str) -> None:
    for workers in (0, 2):
        with pytest.raises(error, match=text) as found:
            trained(gl.data.MapDataset(Broken(row), workers=workers))
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: gl.data.MapDataset(3), gl.DataError, r"data: an int; need an object with __len__ and __getitem__"),
        (lambda: gl.data.MapDataset(Rows(), workers=-1), gl.SettingError, "workers"),
        (lambda: gl.data.MapDataset(Rows(), labels=Y[:5]), gl.ShapeError, r"labels: 5 rows; need 103"),
        (lambda: gl.data.MapDataset(Rows(), labels=X), gl.ShapeError, r"labels: .*; need labels int64\[\]"),
        (lambda: gl.data.MapDataset(Unpicklable(), processes=True), gl.DataError, r"cannot be pickled \(.*\); need a"),
        (lambda: gl.data.DataLoader(Rows(), Y), gl.DataError, "y: a data set has its own labels"),
    ],
)
def test_wrong_use(make: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        make()
