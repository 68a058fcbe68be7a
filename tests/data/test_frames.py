"""Rows that a program holds, read as the columns of the model say."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.data.frames import features_of
from gradloom.data.preprocess import Preprocess
from gradloom.data.readers import read_table


class Frame:
    """A DataFrame: columns by name, each with to_numpy."""

    def __init__(self, **columns):
        self._columns = {name: Values(cells) for name, cells in columns.items()}
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(self._columns[self.columns[0]].to_numpy())

    def to_numpy(self):
        return np.stack([self._columns[name].to_numpy() for name in self.columns], axis=1)


class Values:
    def __init__(self, cells):
        self._cells = np.array(cells, object)

    def to_numpy(self):
        return self._cells


def model_of(path, text) -> tuple[Preprocess, list[str]]:
    path.write_text(text)
    table = read_table(path, test_split=0)
    return Preprocess.from_json(table.preprocess.to_json()), table.notes


MARKED = "kind,a,y\n" + "".join(f"{kind},{i}.5,{i % 2}\n" for i in range(9) for kind in ("NA", "-", "?", "null", "red"))


@pytest.mark.parametrize("mark", ["NA", "-", "?", "null"])
def test_a_mark_is_the_category_that_it_was_in_training(tmp_path, mark):
    made, _ = model_of(tmp_path / "t.csv", MARKED)
    (tmp_path / "p.csv").write_text(f"kind,a\n{mark},1.5\n")
    want = features_of(str(tmp_path / "p.csv"), made)[0]
    assert want[0, : made.columns[0].width].sum() == 1
    for rows in ([[mark, 1.5]], Frame(kind=[mark], a=[1.5])):
        assert np.array_equal(features_of(rows, made)[0], want)
    assert np.array_equal(features_of([["red", 2.5], [mark, 1.5]], made)[0][1:], want)


def test_a_category_of_numbers_takes_each_way_to_write_the_number(tmp_path):
    made, _ = model_of(tmp_path / "t.csv", "a,b,y\n" + "".join(f"{1 + i % 2}.0,{i}.5,{i % 2}\n" for i in range(40)))
    made.columns[0].kind, made.columns[0].categories = "text", ["1", "2"]
    (tmp_path / "p.csv").write_text("a,b\n1.0,1.5\n2,1.5\n")
    want = [[1, 0], [0, 1]]
    for rows in ([["1.0", "1.5"], ["2", "1.5"]], [[1.0, "1.5"], [2, "1.5"]], str(tmp_path / "p.csv")):
        assert features_of(rows, made)[0][:, :2].tolist() == want


DECIMAL = "a;y\n" + "".join(f"{i},5;{i % 2}\n" for i in range(30))
POINT = "a,y\n" + "".join(f'"{i},500",{i % 2}\n' for i in range(1, 31))
GROUPED = "a;y\n" + "".join(f"{i},234,500;{i % 2}\n" for i in range(1, 15)) + "5,000;1\n7,000;0\n"


@pytest.mark.parametrize(("text", "value"), [(DECIMAL, 5.0), (POINT, 5000.0), (GROUPED, 5000.0)])
def test_commas_mean_what_they_meant_in_training(tmp_path, text, value):
    """A file with either separator, other rows below, a list and a frame."""
    made, _ = model_of(tmp_path / "t.csv", text)
    want = features_of([[value]], made)[0]
    for name, text in {
        "a.csv": "a;z\n5,000;1\n", "b.csv": 'a,z\n"5,000",1\n', "c.csv": 'a,z\n"5,000",1\n"1,234,567",2\n',
        "d.csv": "a;z\n5,000;1\n1,234,567;2\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
        assert np.array_equal(features_of(str(tmp_path / name), made)[0][:1], want), name
    assert np.array_equal(features_of([["5,000"]], made)[0], want)
    assert np.array_equal(features_of(Frame(a=["5,000"]), made)[0], want)


@pytest.mark.parametrize(
    ("cells", "value", "note"),
    [
        (["1,234", "2,345"], 1.234, "a: 3 digits follow each comma, which is taken as decimal: 1.234, not 1234"),
        (["$1,234", "$2,345"], 1234, "a: commas cut thousands, because of the currency sign: 1234, not 1.234"),
        (["$0,234", "$2,345"], 0.234, "a: 3 digits follow each comma, which is taken as decimal: 0.234, not 234"),
        (["1,5", "2,345"], 1.5, "a: commas are decimal"),
        (["1,234", "1,234,567"], 1234, "a: commas cut thousands, as in 1,234,567"),
        (["1.5", "2.345"], 1.5, None),
    ],
)
def test_a_note_says_what_commas_were_taken_as(tmp_path, cells, value, note):
    rows = "".join(f"{cells[i % 2]};{i},5\n" for i in range(40))
    made, notes = model_of(tmp_path / "t.csv", "a;y\n" + rows)
    assert [said for said in notes if "comma" in said and said[:2] == "a:"] == ([note] if note else [])
    column = made.columns[0]
    low = column.median if column.scale == 0 and column.median == value else column.mean - column.std
    assert low == pytest.approx(value)
    plain = features_of([[value]], made)[0]
    assert np.array_equal(features_of([[cells[0]]], made)[0], plain)


def test_another_unit_than_that_of_the_training_is_an_error(tmp_path):
    made, _ = model_of(tmp_path / "t.csv", "a,y\n" + "".join(f"${i}.5,{i % 2}\n" for i in range(30)))
    (tmp_path / "p.csv").write_text("a\n1\n€2\n")
    message = r"line 3: column 'a': a number has '€', those of the training '\$'; need one unit"
    with pytest.raises(DataError, match=message):
        features_of(str(tmp_path / "p.csv"), made)
    for cell in ("€5", "5%"):
        with pytest.raises(DataError, match="row 0: column 'a': a number has"):
            features_of([[cell]], made)
    assert np.array_equal(features_of([["$5"]], made)[0], features_of([["5"]], made)[0])
