"""Data sets in files that need not fit in memory."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.data.file_rows import FileRows

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")

RNG = np.random.default_rng(0)
ROWS = 230
X, IDS = RNG.normal(size=(ROWS, 6)).astype(np.float32), RNG.integers(0, 3, ROWS)
NAMES = np.array(["ant", "bee", "cat"])[IDS]
COUNTS = RNG.integers(0, 100, ROWS)


def table(names: bool = False) -> Any:
    columns = {"a": X[:, 0], "b": COUNTS, "kind": NAMES if names else IDS, "v": list(X), "w": X[:, :1] ** 2 + X[:, 1:3]}
    columns["w"] = list(columns["w"])
    return arrow.table({name: list(one) if isinstance(one, list) else one for name, one in columns.items()})


def written(folder: Path, kind: str, shards: int = 3, **options: Any) -> Path:
    """The rows in so many files."""
    folder.mkdir()
    bounds = np.linspace(0, ROWS, shards + 1).astype(int)
    for i, (first, last) in enumerate(itertools.pairwise(bounds)):
        part = slice(first, last)
        if kind == "npz":
            np.savez(folder / f"part{i}.npz", x=X[part], y=IDS[part], other=COUNTS[part])
        elif kind == "parquet":
            parquet.write_table(
                table(**options).slice(first, last - first), folder / f"part{i}.parquet", row_group_size=17
            )
        else:
            rows = table(**options).slice(first, last - first)
            with ipc.new_file(folder / f"part{i}.arrow", rows.schema) as out:
                out.write_table(rows, max_chunksize=13)
    return folder


def trained(data: Any, **options: Any) -> Any:
    width = data.shape[0] if isinstance(data, gl.data.Dataset) else 6
    net = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = {"epochs": 2, "batch_size": 20, "val_split": 0.2, "progress": False} | options
    history = gl.fit(net, data, **settings)
    return [one.numbers() for one in history], [p.numpy().tobytes() for p in net.parameters()]


@pytest.mark.parametrize("kind", ["npz", "parquet", "arrow"])
def test_the_bits_of_arrays(tmp_path: Path, kind: str) -> None:
    expected = trained((X, IDS))
    folder = written(tmp_path / "data", kind)
    options = {} if kind == "npz" else {"columns": "v", "labels": "kind"}
    files = sorted(folder.iterdir())
    for path in (folder, files, [str(file) for file in files]):
        for workers in (0, 2):
            assert trained(gl.data.open_dataset(path, workers=workers, **options)) == expected
    one = gl.data.open_dataset(written(tmp_path / "one", kind, 1) / f"part0.{kind}", **options)
    assert trained(one) == expected == trained(pickle.loads(pickle.dumps(one)))
    if kind != "npz":
        small = gl.data.open_dataset(folder, cache=1000, **options)
        assert np.array_equal(small.take(np.arange(ROWS)).data, X)  # each column is decoded again and again


def test_one_npy_file_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", IDS)
    data = gl.data.open_dataset(tmp_path / "x.npy", tmp_path / "y.npy")
    assert isinstance(data.data, np.memmap)
    assert trained(data) == trained((X, IDS))
    for i in (0, 1):
        np.save(tmp_path / f"x{i}.npy", X[i * 100 : i * 130 + 100])
        np.save(tmp_path / f"y{i}.npy", IDS[i * 100 : i * 130 + 100])
    several = gl.data.open_dataset(
        [tmp_path / "x0.npy", tmp_path / "x1.npy"], [tmp_path / "y0.npy", tmp_path / "y1.npy"]
    )
    assert trained(several) == trained((X, IDS))


def test_columns_side_by_side_texts_as_classes_and_several_inputs(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", "parquet", names=True)
    data = gl.data.open_dataset(folder, labels="kind", columns=["a", "b", "v"])
    assert isinstance(data, FileRows) and data.classes == ["ant", "bee", "cat"]
    made = data.take(np.arange(ROWS)[::-1])
    assert np.array_equal(made.data, np.concatenate([X[:, :1], COUNTS[:, None], X], 1).astype(np.float32)[::-1])
    assert np.array_equal(made.labels, IDS[::-1])
    assert gl.data.open_dataset(folder, labels="kind").shape == (1 + 1 + 6 + 2,)
    dicts = gl.data.open_dataset(folder, {"v": "a", "w": "w"}, columns={"u": "v", "z": ["a", "b"]})
    batch = dicts.take(np.array([5, 200]))
    assert np.array_equal(batch.data["z"], np.stack([X[[5, 200], 0], COUNTS[[5, 200]]], 1))
    assert batch.labels["w"].shape == (2, 2) and np.array_equal(batch.labels["v"], X[[5, 200], 0])
    assert trained(data, class_weight="balanced")


def test_rows_of_neighbouring_groups_are_mixed(tmp_path: Path) -> None:
    """Where not all fit into the cache: each group is decoded once in a pass."""
    folder = written(tmp_path / "data", "parquet")
    data = gl.data.open_dataset(folder, "kind", columns="v", cache=4000)
    trained_rows, held = data.split(0.2, 0)
    assert np.array_equal(held, np.sort(held))
    first, second = data.order(0, 1, trained_rows), data.order(0, 2, trained_rows)
    assert np.array_equal(np.sort(first), np.sort(trained_rows)) and not np.array_equal(first, second)
    assert np.array_equal(first, data.order(0, 1, trained_rows))
    group = first // 17
    changes = np.flatnonzero(group[1:] != group[:-1]).size
    assert ROWS // 17 < changes < 0.9 * len(first)
    spread = [np.ptp(np.unique(first[i : i + 30] // 17)) for i in range(0, 150, 30)]
    assert max(spread) > 3
    assert trained(data) == trained(gl.data.open_dataset(folder, "kind", columns="v", cache=4000, workers=0))


def test_a_run_of_files_is_resumed_to_the_bit(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", "parquet")

    def fit(run: str, **options: Any) -> Any:
        data = gl.data.open_dataset(folder, "kind", columns="v", cache=options.pop("cache", 4000))
        return trained(data, run=tmp_path / run, checkpoint_every="3steps", **options)

    def stop(_: Any) -> None:
        steps.append(1)
        if len(steps) == 14:
            raise ValueError("killed")

    whole, steps = fit("whole"), []
    with pytest.raises(ValueError, match="killed"):
        fit("cut", on_train_batch=stop)
    with pytest.raises(gl.TrainError, match="cannot be resumed"):
        fit("cut", resume=True, cache=3000)
    assert fit("cut", resume=True) == whole


opened = gl.data.open_dataset


def damaged(folder: Path) -> Path:
    """The folder, whose second file is cut."""
    path = sorted(folder.iterdir())[1]
    path.write_bytes(path.read_bytes()[:200])
    return folder


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda d: opened(d / "no.parquet"), gl.FileError, r"no.parquet: no such file"),
        (lambda d: opened(d), gl.DataError, r"no file of .npy, .npz, .parquet"),
        (lambda d: opened(written(d / "p", "parquet"), "kinds"), gl.DataError, r"no 'kinds'; there are a, b"),
        (lambda d: opened(written(d / "p", "npz"), columns="z"), gl.DataError, r"no 'z'; there are x, y"),
        (lambda d: opened(written(d / "p", "parquet", names=True)), gl.DataError, "'kind' holds texts; need num"),
        (lambda d: opened(damaged(written(d / "p", "parquet"))), gl.FileError, r"part1.parquet: is damaged"),
        (lambda d: opened(damaged(written(d / "p", "arrow"))), gl.FileError, "part1.arrow: is"),
        (lambda d: opened(damaged(written(d / "p", "npz"))), gl.FileError, "part1.npz: is"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, make: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as found:
        make(tmp_path)
    assert "\n" not in str(found.value)


def test_wrong_contents(tmp_path: Path) -> None:
    def refused(error: type, text: str, columns: dict[str, Any], **options: Any) -> None:
        parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
        with pytest.raises(error, match=text):
            gl.data.open_dataset(tmp_path / "t.parquet", **options).take(np.arange(2))

    refused(gl.DataError, r"column 'a': 1 missing values in row group 0", {"a": [1.0, None], "b": [1, 2]})
    refused(gl.ShapeError, r"column 'a': lists of different lengths, \[1, 2\]", {"a": [[1.0], [1.0, 2.0]]})
    refused(gl.DataError, r"column 'a': .*date", {"a": np.array(["2020-01-01", "2021-01-01"], "M8[D]")})
    np.savez_compressed(tmp_path / "c.npz", x=X, y=IDS)
    with pytest.raises(gl.DataError, match=r"'x' is compressed; need np.savez"):
        gl.data.open_dataset(tmp_path / "c.npz")
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    with pytest.raises(gl.DataError, match=r"is in Fortran order"):
        gl.data.open_dataset(tmp_path / "f.npy")
    np.savez(tmp_path / "s.npz", x=X, y=IDS[:5])
    with pytest.raises(gl.ShapeError, match=r"'y' has 5 rows; need 230"):
        gl.data.open_dataset(tmp_path / "s.npz")


def test_files_that_change(tmp_path: Path) -> None:
    """Before and between the runs of a program, and between two trainings of a run."""
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", NAMES)
    named = opened(tmp_path / "x.npy", tmp_path / "y.npy")
    assert named.classes == ["ant", "bee", "cat"] and trained(named) == trained((X, IDS))
    mapped = opened(tmp_path / "x.npy")
    net = nn.Linear(6, 6)
    np.save(tmp_path / "x.npy", X[:9])
    for data in (mapped, named):
        with pytest.raises(gl.FileError, match="has changed since it was"):
            gl.fit(net, data, loss="mse" if data is mapped else "cross_entropy", epochs=1, progress=False)
    folder = written(tmp_path / "data", "parquet")
    first = trained(opened(folder, "kind", columns="v"), run=tmp_path / "run", epochs=1)
    data = opened(folder, "kind", columns="v")
    parquet.write_table(parquet.read_table(folder / "part1.parquet"), folder / "part1.parquet", row_group_size=17)
    with pytest.raises(gl.FileError, match=r"part1.parquet: has changed since it was opened"):
        trained(data)
    table = parquet.read_table(folder / "part1.parquet")
    other = table.set_column(3, "v", arrow.array([row + 1 for row in X[: len(table)]]))
    parquet.write_table(other, folder / "part1.parquet", row_group_size=17)
    with pytest.raises(gl.TrainError, match="cannot be resumed"):
        trained(opened(folder, "kind", columns="v"), run=tmp_path / "run", epochs=2, resume=True)
    assert first
