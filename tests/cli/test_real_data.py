"""Real files beside the project; each test is skipped where its file is not there."""

import json

import numpy as np

from gradloom.cli.main import main
from gradloom.data import read_table
from tests.real_data import need


def test_mnist():
    table = read_table(need("mnist"), val_split=0.05)
    assert (table.train.n, table.test.n, table.test_from) == (60000, 10000, "file")
    assert table.train.data.dtype == np.uint8 and table.preprocess.shape == [28, 28]
    assert table.preprocess.classes == list("0123456789") and 33 < table.preprocess.mean < 34
    assert np.bincount(table.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_california_housing():
    table = read_table(need("tabular/california-housing.csv"), target="median_house_value")
    assert (table.task, table.train.n, table.test.n) == ("regression", 16512, 4128)
    kinds = [c.kind for c in table.preprocess.columns]
    assert kinds == ["number"] * 8 + ["text"] and len(table.preprocess.columns[8].categories) == 5
    assert any(note.startswith("total_bedrooms: 207 empty cells") for note in table.notes)
    assert np.isfinite(table.train.data).all()


def test_winequality():
    table = read_table(need("tabular/winequality-red.csv"))
    assert (table.task, table.train.n + table.test.n, table.preprocess.inputs) == ("classification", 1599, 11)
    assert table.preprocess.classes == list("345678")


def test_iris_reaches_what_it_should(capsys, tmp_path):
    code = main(["fit", str(need("tabular/iris.csv")), "--json", "--out", str(tmp_path)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0 and found["rows_test"] == 30 and found["test_accuracy"] >= 0.9
