"""Files without names of columns: a column too many is not taken for the target, or for another one, in silence."""

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.data import read_features, read_table

ROWS = 60
RNG = np.random.default_rng(0)
AGE = RNG.normal(40, 9, ROWS).round(1)
COLOUR = RNG.choice(["red", "green", "blue"], ROWS)
SIZE = RNG.normal(0, 1, ROWS).round(3)
SIGN = np.where(SIZE > 0, "up", "down")
PRICE = (1e5 + 1e4 * RNG.standard_normal(ROWS)).round()
IDS = np.arange(ROWS) + 7001


def write(tmp_path, *columns, rows=ROWS):
    text = "\n".join(",".join(map(str, row)) for row in list(zip(*columns, strict=True))[:rows])
    (tmp_path / "t.csv").write_text(text + "\n")
    return tmp_path / "t.csv"


@pytest.fixture(params=["last", "first", "numbers"])
def made(request, tmp_path):
    """(the preprocessing, the columns without the target, those with it)."""
    inputs = [AGE, COLOUR, SIZE]
    y = PRICE if request.param == "numbers" else SIGN
    with_target = [y, *inputs] if request.param == "first" else [*inputs, y]
    table = read_table(write(tmp_path, *with_target), target="1" if request.param == "first" else None)
    assert not table.preprocess.header
    return table.preprocess, inputs, with_target


def test_the_columns_of_the_training(tmp_path, made):
    preprocess, inputs, with_target = made
    for columns in (inputs, with_target):
        for rows in (ROWS, 2, 1):
            features, targets, notes, _ = read_features(write(tmp_path, *columns, rows=rows), preprocess)
            assert (targets is not None) == (columns is with_target) and notes == [] and len(features) == rows


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_column_too_many(tmp_path, made, place):
    preprocess, inputs, _ = made
    columns = [*inputs[:place], IDS, *inputs[place:]]
    if place == preprocess.target_index:  # in place of the target, whose values it does not have
        targets, problems = read_features(write(tmp_path, *columns), preprocess)[1::2]
        assert preprocess.task == "regression" or ((targets < 0).all() and "does not know" in problems[0])
        return
    with pytest.raises(DataError) as caught:
        read_features(write(tmp_path, *columns), preprocess)
    assert f"t.csv: 4 columns without names; with the target as column {preprocess.target_index + 1}" in str(
        caught.value
    )
    assert f"and without column {place + 1}, 0 are; remove that column" in str(caught.value)


def test_columns_in_another_order_are_said(tmp_path, made):
    preprocess, (age, colour, size), _ = made
    with pytest.raises(DataError, match="is no number"):
        read_features(write(tmp_path, colour, age, size), preprocess)
    notes = read_features(write(tmp_path, age * 1000, colour, size), preprocess)[2]
    assert notes == ["unlike the column of the training at its place: column 1"]
