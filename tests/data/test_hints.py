"""Columns that are not what they were taken as, or that nothing can be learned from; tables of few rows."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.data import Preprocess, read_features, read_table
from gradloom.data.column_warnings import column_warnings

ROWS = 60
X = np.random.default_rng(0).standard_normal(ROWS).round(3)
SIGN = np.where(X > 0, "up", "down")


def table(tmp_path, cells, **roles):
    rows = ["a,x,y", *(f'"{cell}",{x},{sign}' for cell, x, sign in zip(cells, X, SIGN, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    return read_table(tmp_path / "t.csv", **roles)


UNIT = "look like numbers with a unit, and are taken as categories; write the numbers without"


@pytest.mark.parametrize(
    "odd", ["{:.3f}x", "−{:.3f}", "{:.3f}-", "USD {:.2f}", "1'{:07.3f}", "1\u202f{:07.3f}", "1_{:07.3f}"]
)
@pytest.mark.parametrize("share", [1, 2])
def test_numbers_in_another_notation_are_hinted_at(tmp_path, odd, share):
    cells = [odd.format(abs(x)) if i % share == 0 else str(x) for i, x in enumerate(X)]
    made = table(tmp_path, cells)
    assert made.preprocess.columns[0].kind == "text"
    notes = [note for note in made.notes if "look like numbers" in note]
    assert len(notes) == 1 and notes[0].startswith("a: texts such as "), made.notes
    said = table(tmp_path, cells, categorical=["a"]).notes
    assert not any("look like" in note for note in said)


@pytest.mark.parametrize("name", ["A/5 {}", "AB{}", "{}-{}", "{}th street", "x{}"])
def test_names_with_digits_are_no_numbers(tmp_path, name):
    made = table(tmp_path, [name.format(i % 20, i % 7) for i in range(ROWS)])
    assert not any("look like numbers in" in note or "another notation" in note for note in made.notes), made.notes
    assert name == "{}-{}" or not any("look like numbers, " in note for note in made.notes), made.notes


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([f"{i % 9}.5 kg" for i in range(ROWS)], f"a: texts such as '0.5 kg' {UNIT} 'kg'"),
        ([f"{i % 9}cm" if i else "" for i in range(ROWS)], f"a: texts such as '1cm' {UNIT} 'cm'"),
        ([f"{i % 9}{'ab'[i % 2]}" for i in range(ROWS)], None),
        ([f"km {i % 9}" for i in range(ROWS)], None),
        (["1 kg", "2 kg"] * (ROWS // 2), None),
        (["red", "green", "blue"] * (ROWS // 3), None),
    ],
)
def test_texts_that_may_be_numbers(tmp_path, cells, said):
    found = [note for note in table(tmp_path, cells).notes if "look like" in note]
    assert found == [] if said is None else len(found) == 1 and said in found[0]
    assert not any("look like" in note for note in table(tmp_path, cells, categorical=["a"]).notes)


MOMENTS = [datetime(2023, 1, 25, 9, 30) + timedelta(days=13 * i, minutes=7 * i) for i in range(ROWS)]


@pytest.mark.parametrize(
    "form",
    [
        "%d-%b-%Y", "%d-%b-%y", "%d-%B-%Y", "%d-%b-%Y %H:%M", "%d %b %Y %H:%M:%S", "%Y.%m.%d", "%m/%d/%y",
        "%d-%m-%Y %H:%M", "%m/%d/%Y %I:%M %p",
    ],
)  # fmt: skip
def test_dates_as_programs_write_them(tmp_path, form):
    texts = [moment.strftime(form) for moment in MOMENTS]
    made = table(tmp_path, texts, time="a")
    column = made.preprocess.columns[0]
    seconds = [(datetime.strptime(text, form) - datetime(1970, 1, 1)).total_seconds() for text in texts]
    assert column.kind == "time" and column.form.lower() == form.lower()
    read = read_features(tmp_path / "t.csv", made.preprocess)[0][:, 0] * column.std + column.mean
    assert np.allclose(read, seconds, atol=200)


@pytest.mark.parametrize("form", ["%H:%M", "%H:%M:%S", "%I:%M %p"])
def test_times_of_day(tmp_path, form):
    made = table(tmp_path, [moment.strftime(form) for moment in MOMENTS], time="a")
    assert made.preprocess.columns[0].parts == ["day"]
    assert any(f"'a' holds times of day without a date, {form}" in note for note in made.notes)


def test_a_text_behind_many_times(tmp_path):
    cells = [moment.strftime("%d-%b-%Y") for moment in MOMENTS]
    cells[50] = "soon"
    with pytest.raises(DataError, match="line 52: time column 'a': 'soon' is no time"):
        table(tmp_path, cells, time="a")


@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        ([f"name {i}" for i in range(ROWS)], True),
        ([f"name {i}" if i % 3 else "" for i in range(ROWS)], True),
        ([f"name {i // 2}" for i in range(ROWS)], False),
    ],
)
def test_identifiers_of_few_rows(tmp_path, cells, odd):
    found = [text for text in column_warnings(table(tmp_path, cells)) if "like identifiers" in text]
    assert (found != []) == odd


@pytest.mark.parametrize("kind", ["parquet", "arrow", "frame"])
def test_nested_columns_may_be_dropped(tmp_path, kind):
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"x": X, "tags": [[1, 2]] * ROWS, "raw": [b"\xff"] * ROWS, "y": SIGN})
    data = frame if kind == "frame" else arrow.Table.from_pandas(frame)
    if kind == "parquet":
        frame.to_parquet(tmp_path / "t.parquet")
        data = tmp_path / "t.parquet"
    with pytest.raises(DataError, match=r"column 'tags' holds .*leave it out \((--)?drop\)"):
        read_table(data, drop=["raw"])
    with pytest.raises(DataError, match="column 'raw' holds bytes that are no UTF-8 text"):
        read_table(data, drop=["tags"])
    made = read_table(data, drop=["tags", "raw"]).preprocess
    assert [column.kind for column in made.columns] == ["number", "unused", "unused"]
    features, targets, _, _ = read_features(data, made)
    assert features.shape == (ROWS, 1) and len(targets) == ROWS


@pytest.mark.parametrize("more", [",", ",,"])
def test_lines_that_end_with_a_separator(tmp_path, more):
    rows = ["a,x,y", *(f"{i},{x},{sign}" for i, x, sign in zip(range(ROWS), X, SIGN, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(row + more for row in rows) + "\n")
    made = read_table(tmp_path / "t.csv").preprocess
    assert made.target == "y" and [column.name for column in made.columns] == ["a", "x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,x,y\n", "holds a header and no rows; need at least 1 row"),
        ("1,2,3\n", "1 row; need at least 2, one of them for the test"),
        ("a,x,y\n1,2,3\n4,5,6\n", "2 rows, of which 1 remains for training after test and validation; need"),
    ],
)
def test_tables_of_few_rows(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.csv")


def test_texts_that_repeat_among_many_others(tmp_path):
    """A column of more than 100 texts, most of one row each, is dropped unless some are frequent."""
    words = [("red", "blue", "", f"only {i}")[i % 4] if i % 5 > 2 else f"other {i}" for i in range(400)]
    x = np.random.default_rng(0).standard_normal(400).round(3)

    def made_of(cells, name="t.csv"):
        lines = [f'"{cell}",{number},{"up" if number > 0 else "down"}' for cell, number in zip(cells, x, strict=True)]
        (tmp_path / name).write_text("\n".join(["a,x,y", *lines]) + "\n")
        return read_table(tmp_path / name)

    made = made_of(words)
    column = made.preprocess.columns[0]
    assert (column.kind, column.categories, column.others) == ("text", ["", "blue", "red"], True)
    assert any(note.startswith("a: 3 texts of 5 rows or more are categories") and "--drop a" in note
               for note in made.notes)  # fmt: skip
    assert not any("unknown from training" in note for note in made.notes)
    again = Preprocess.from_json(made.preprocess.to_json())
    features, _, notes, _ = read_features(tmp_path / "t.csv", again)
    assert notes == [] and features[:, :3].sum() == sum(word in ("", "red", "blue") for word in words)
    assert made_of([f"{word} {i // 3}" for i, word in enumerate(words)]).preprocess.columns[0].kind == "unused"
    few = made_of(["red" if i < 10 else f"only {i}" for i in range(400)])
    assert few.preprocess.columns[0].kind == "unused"
    many = made_of([f"word {i % 50}" for i in range(400)])
    assert many.preprocess.columns[0].others is False


@pytest.mark.parametrize(
    ("cells", "two"), [(["+1", "1", "a"], "'+1' and '1'"), (["1e5", "100000", "b"], "'100000' and '1e5'"),
                       (["01", "1", "b"], None), (["1", "2", "b"], None), (["+1", "1", "2"], None)],
)  # fmt: skip
def test_classes_that_are_one_number(tmp_path, cells, two):
    """Beside texts they are two classes, which is reported; as numbers they are one."""
    rows = [f"{x},{cells[i % 3]}" for i, x in enumerate(X)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    made = read_table(tmp_path / "t.csv")
    found = [note for note in made.notes if "are one number" in note]
    assert (two is None and not found) or (len(found) == 1 and two in found[0]), made.notes
    assert len(made.preprocess.classes) == (2 if cells[2] == "2" else 3)


def test_a_target_with_a_unit(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{x},{10 + i % 2 * 10}%\n" for i, x in enumerate(X)))
    made = read_table(tmp_path / "t.csv")
    assert made.preprocess.classes == ["10", "20"] and any("'%' of 60 cells" in note for note in made.notes)


def test_byte_order_marks_inside(tmp_path):
    """Of files that were joined, one behind the other."""
    rows = "".join(f"{i % 7}.5,{x}\n" for i, x in enumerate(X))
    (tmp_path / "t.csv").write_text(f"\ufeff\ufeffa,y\n{rows}\ufeff{rows}", encoding="utf-8")
    made = read_table(tmp_path / "t.csv").preprocess
    assert (made.columns[0].name, made.columns[0].kind, made.task) == ("a", "number", "regression")


# ---- cells that Python holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "shown"), [("x\udc80", "lone surrogate"), (object(), "type object"), ({"a": 1}, "dict"), ([1, 2], "list")],
)  # fmt: skip
@pytest.mark.parametrize("column", ["a", "y"])
def test_objects_that_are_no_cells(cell, shown, column):
    pandas = pytest.importorskip("pandas")
    cells = pandas.Series(np.array([None] * ROWS, object))
    cells[:] = [cell if i % 2 else "b" for i in range(ROWS)]
    frame = pandas.DataFrame({"x": X, "a": SIGN, "y": SIGN}).assign(**{column: cells.astype(object)})
    with pytest.raises(DataError, match=rf"column '{column}' holds .*{shown}"):
        read_table(frame)
    if column == "a":
        assert read_table(frame, drop=["a"]).preprocess.inputs == 1


def test_durations_are_days():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.to_timedelta(np.r_[np.nan, np.arange(ROWS - 1)] * 12, unit="h"), "y": SIGN})
    made = read_table(frame).preprocess
    assert made.columns[0].kind == "number" and made.columns[0].median < ROWS / 2
    features = read_features(frame, made)[0]
    np.testing.assert_allclose(np.diff(features[1:, 0]) * made.columns[0].std, 0.5, atol=1e-4)


class Touches:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("key", ["x", "y", "more"])
def test_objects_in_an_npz_are_never_unpickled(tmp_path, key):
    arrays = {"x": np.arange(40.0).reshape(20, 2), "y": np.arange(20) % 2}
    arrays[key] = np.array([Touches(str(tmp_path / "touched"))] * 20, object)
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match="Python objects"):
        read_table(tmp_path / "t.npz")
    assert not (tmp_path / "touched").exists()
