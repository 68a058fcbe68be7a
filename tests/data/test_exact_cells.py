"""What cells tell beyond their number: digits that float64 rounds, blanks that are kept, numbers in brackets."""

import csv
from pathlib import Path

import numpy as np
import pytest

from gradloom import _cells
from gradloom.base.errors import DataError
from gradloom.data import read_features, read_table
from gradloom.data.frames import kept_columns

ROWS = 60
X = np.random.default_rng(0).standard_normal(ROWS)
SIGN = np.where(X > 0, "up", "down")
BIG = 1 << 60


def write(path, header, *columns):
    rows = [header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("9007199254740993", 2),  # 2**53 + 1
        ("-9007199254740993", 2),
        ("9007199254740992", 0),
        (str(BIG), 0),
        (str(BIG + 1), 2),
        ("12345678901234567", 2),
        ("123456789012345680000", 0),  # as JavaScript writes a float64
        ("1" + "0" * 300, 0),
        ("007", 1),
        ("0", 0),
        ("9007199254740993.0", 0),
        ("0.12345678901234567891", 0),
        ("NA", 0),
    ],
)
def test_digits_that_tell_more_than_the_number(text, code):
    assert _cells.code_of(text) == code


def table_of_ids(tmp_path, kind, ids):
    if kind == "csv":
        return write(tmp_path / "t.csv", "who,x,y", ids, X, SIGN)
    if kind == "npz":
        np.savez(tmp_path / "t.npz", x=np.stack([ids, np.arange(ROWS)], axis=1).astype(np.uint64), y=(X > 0) * 1)
        return tmp_path / "t.npz"
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": np.array(ids, np.uint64), "x": X, "y": SIGN})
    if kind == "frame":
        return frame
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet", "frame"])
def test_identifiers_that_float64_merges_are_categories(tmp_path, kind):
    data = table_of_ids(tmp_path, kind, [BIG + i % 3 for i in range(ROWS)])
    table = read_table(data)
    column = table.preprocess.columns[0]
    assert (column.kind, column.categories) == ("text", [str(BIG), str(BIG + 1), str(BIG + 2)])
    assert any("more digits than float64 keeps, which makes different ones the same" in note for note in table.notes)
    features = read_features(data, table.preprocess)[0]
    assert np.array_equal(features[:, :3].argmax(axis=1), np.arange(ROWS) % 3)


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet", "frame"])
def test_large_numbers_that_stay_different_are_numbers(tmp_path, kind):
    table = read_table(table_of_ids(tmp_path, kind, [BIG + 77777 * i for i in range(ROWS)]))
    assert table.preprocess.columns[0].kind == "number"
    assert any("some have more digits than float64 keeps, and are rounded" in note for note in table.notes)


def test_columns_of_arrays_keep_u32(tmp_path):
    """A column of float32 would have one value."""
    x = np.stack([4_000_000_000 + np.arange(ROWS) % 2, np.arange(ROWS)], axis=1).astype(np.uint32)
    np.savez(tmp_path / "t.npz", x=x, y=(X > 0) * 1)
    assert [column.kind for column in read_table(tmp_path / "t.npz").preprocess.columns] == ["number", "number"]


def test_classes_that_float64_merges(tmp_path):
    data = write(tmp_path / "t.csv", "x,y", X, [BIG + i % 3 for i in range(ROWS)])
    table = read_table(data)
    assert table.task == "classification" and table.preprocess.classes == [str(BIG + i) for i in range(3)]
    assert np.array_equal(read_features(data, table.preprocess)[1], np.arange(ROWS) % 3)


def test_times_of_many_digits(tmp_path):
    data = write(tmp_path / "t.csv", "when,x,y", [1700000000123456789 + 10**9 * i for i in range(ROWS)], X, SIGN)
    assert read_table(data, time="when").preprocess.columns[0].form == "number"


@pytest.mark.parametrize("text", ["(3.50)", "($3.50)", "$(3.50)", "( 3.50 )"])
def test_numbers_in_brackets(tmp_path, text):
    assert _cells.read_cell(text, False) == -3.5
    table = read_table(write(tmp_path / "t.csv", "a,x,y", [text if i % 4 == 0 else i for i in range(ROWS)], X, SIGN))
    assert table.preprocess.columns[0].kind == "number"
    assert any("a: 15 numbers in brackets are negative, as accountants write them" in note for note in table.notes)


def test_the_first_row_of_a_file_without_a_header_is_noted_as_the_others(tmp_path):
    names = ("column 1", "column 2", "column 3")
    columns = ["(3.50)" if i % 4 == 0 else i for i in range(ROWS)], ["NA" if i % 5 == 0 else v for i, v in enumerate(X)]
    named = write(tmp_path / "named.csv", ",".join(names), *columns, SIGN)
    plain = tmp_path / "plain.csv"
    plain.write_text(Path(named).read_text().split("\n", 1)[1])
    notes = [
        [note for note in read_table(file, target=names[2]).notes if note.startswith(names[:2])]
        for file in (named, plain)
    ]
    assert notes[0] == notes[1] and len(notes[0]) == 2, notes


@pytest.mark.parametrize("text", ["()", "(-3)", "(3", "3)", "(a)", "((3))", "(inf)"])
def test_what_is_no_number_in_brackets(text):
    assert _cells.read_cell(text, False) is False


CELLS = [
    "  left",
    "right  ",
    "\tboth\t",
    "plain",
    " two\u00a0",
    "",
    "  ",
    '"quoted" ',
    "a,b",
    "line\nbreak",
    "cr\rhere",
]


@pytest.mark.parametrize("kind", ["csv", "gz", "parquet"])
def test_kept_cells_are_those_of_the_file(tmp_path, kind):
    """A cell as it is between two separators, or between its quotes."""
    rows = [(cell, x, y) for cell, x, y in zip(CELLS, X, SIGN, strict=False)]
    if kind == "parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        path = tmp_path / "t.parquet"
        pandas.DataFrame(rows, columns=["name", "x", "y"]).to_parquet(path)
    else:
        import gzip

        path = tmp_path / ("t.csv" if kind == "csv" else "t.csv.gz")
        with (open if kind == "csv" else gzip.open)(path, "wt", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
            writer.writerows([["name", "x", "y"], *rows])
    made = read_table(path).preprocess
    assert kept_columns(str(path), ["name"], made) == {"name": CELLS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# by a tool\na,b,y\n1,2,3\n", "line 2: 3 cells, needs 1 as in line 1; line 1 begins with '#': remove it if"),
        ("a,b,y\n1,2,3,\n", "line 2: 4 cells, needs 3 as in line 1; that line ends with ',', which begins one more"),
        ("a,b,y\n1,2,3,4\n", "line 2: 4 cells, needs 3 as in line 1; fix or remove that line"),
    ],
)
def test_rows_of_another_width(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        read_table(tmp_path / "t.csv")


def test_bytes_that_are_no_text(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": [b"\xff"] * ROWS, "x": X, "y": SIGN})
    with pytest.raises(DataError, match="column 'name' holds bytes that are no UTF-8 text"):
        read_table(frame)
