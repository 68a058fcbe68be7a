"""Rows that a program holds, read as the columns of the model say."""

from __future__ import annotations

import numpy as np
import pytest

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
