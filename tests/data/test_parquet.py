"""Parquet files and tables of Arrow are read as the CSV file with the same cells is."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys

import numpy as np
import pytest

from gradloom.base.errors import BackendError, DataError, FileError
from gradloom.data.frames import features_of
from gradloom.data.table import read_features, read_table

ROWS = 60


@pytest.fixture
def files(tmp_path):
    """(a .csv, a .parquet, the table of pyarrow) with the same cells."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    numbers = range(ROWS)
    table = arrow.table({
        "color": arrow.array(["red", "blue", None] * (ROWS // 3)).dictionary_encode(),
        "big": arrow.array([None, *(2 * i for i in numbers[1:])], arrow.int64()),
        "price": arrow.array([decimal.Decimal(i) / 4 for i in numbers], arrow.decimal128(9, 2)),
        "ok": arrow.array([i % 3 == 0 for i in numbers]),
        "day": arrow.array([datetime.date(2024, 1, 1) + datetime.timedelta(i) for i in numbers]),
        "y": arrow.array([1.5 * i for i in numbers]),
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "t.parquet")
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in table.to_pylist()]
    (tmp_path / "t.csv").write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    return tmp_path / "t.csv", tmp_path / "t.parquet", table


def test_a_parquet_file_is_the_table_of_its_csv(files):
    by_text, packed = (read_table(path, time="day") for path in files[:2])
    assert packed.preprocess == by_text.preprocess
    assert np.array_equal(packed.train.data, by_text.train.data)
    assert np.array_equal(packed.test.data, by_text.test.data)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "polars", "pandas"])
def test_rows_to_predict_are_those_of_the_csv(files, kind):
    made = read_table(files[0], time="day").preprocess
    if kind in ("polars", "pandas"):
        pytest.importorskip(kind)
    rows = files[1] if kind == "parquet" else files[2]
    if kind == "polars":
        import polars

        rows = polars.from_arrow(files[2])
    elif kind == "pandas":
        rows = files[2].to_pandas()
    assert np.array_equal(features_of(rows, made)[0], read_features(files[0], made)[0])


def test_nested_columns_are_refused_by_name(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"tags": [[1], [2], [3]], "y": [1, 2, 1]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match=r"n.parquet: column 'tags' holds list<.*need numbers, texts, dates"):
        read_table(tmp_path / "n.parquet")


def test_a_damaged_file_is_one_line(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(FileError, match=r"b.parquet: is damaged or no Parquet file") as error:
        read_table(tmp_path / "b.parquet")
    assert "\n" not in str(error.value)


def test_without_pyarrow_the_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        BackendError, match=r"t.parquet: requires pyarrow, not installed; run pip install 'gradloom\[parquet\]'"
    ):
        read_table(tmp_path / "t.parquet")


def test_a_command_reads_whole_numbers_with_gaps(tmp_path):
    """In a process of its own: nothing else has imported what reads them."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    values = [None, *range(19)]
    table = pa.table({"a": pa.array(values, pa.int64()), "y": [0.1 * k for k in range(20)]})
    pq.write_table(table, tmp_path / "t.parquet")
    code = "import sys; from gradloom.data import read_table; print(read_table(sys.argv[1]).train.n)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.parquet")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr


def test_times_with_a_zone_in_a_polars_frame(tmp_path):
    pa, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    pq = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    days = [datetime.datetime(2024, 1 + i % 3, 1, 12, tzinfo=datetime.timezone.utc) for i in range(60)]
    zoned = pa.array(days, pa.timestamp("us", "Europe/Berlin"))
    table = pa.table({"when": zoned, "x": rng.normal(size=60), "y": [float(i % 3) for i in range(60)]})
    pq.write_table(table, tmp_path / "t.parquet")
    made = read_table(tmp_path / "t.parquet").preprocess
    rows = table.drop_columns("y")
    expected = features_of(rows, made)[0]
    assert len(np.unique(expected[:, :3], axis=0)) == 3
    assert np.array_equal(features_of(polars.from_arrow(rows), made)[0], expected)
