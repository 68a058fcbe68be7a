"""What is said about odd columns and classes; and that ordinary columns are left in peace."""

import numpy as np
import pytest

from gradloom.data import read_table
from gradloom.data.column_warnings import column_warnings, imbalance, repeated_rows
from tests.real_data import need

ROWS = 400
RNG = np.random.default_rng(0)
X = RNG.standard_normal(ROWS)
CLASS = np.where(X + RNG.standard_normal(ROWS) > 0, "yes", "no")
PRICE = 3 * X + RNG.standard_normal(ROWS)
THREE = np.array(["a", "b", "c"])[np.digitize(X + RNG.standard_normal(ROWS), [-0.7, 0.7])]


def table(tmp_path, target, **columns):
    data = {"x": X, **columns, "target": target}
    lines = [",".join(data), *(",".join(str(v) for v in row) for row in zip(*data.values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return read_table(tmp_path / "t.csv")


def swapped(values, count):
    """The texts with those of a few rows exchanged for another."""
    values = values.copy()
    values[:count] = np.where(values[:count] == "no", "yes", "no")
    return values


LEAK = "alone predicts the class of 100 % of the training rows"
CODES = np.array([f"k{i}" for i in range(12)])
CASES = {
    "ordinary": (CLASS, RNG.integers(0, 50, ROWS), None),
    "row number": (CLASS, np.arange(ROWS) + 1000, "looks like a row number"),
    "row number from 0": (PRICE, RNG.permutation(ROWS), "looks like a row number"),
    "different whole numbers": (CLASS, RNG.permutation(ROWS * 40)[:ROWS], None),
    "constant": (CLASS, np.full(ROWS, 7), "is constant and left out"),
    "the class by a threshold": (CLASS, (CLASS == "yes") * 3 + RNG.random(ROWS), LEAK),
    "three classes in runs": (THREE, np.array([5.0, 1.0, 9.0])[np.searchsorted(["a", "b", "c"], THREE)] + X / 9, LEAK),
    "a copy of the class": (CLASS, np.where(CLASS == "yes", "Y", "N"), LEAK),
    "codes that tell the class": (CLASS, CODES[RNG.integers(0, 6, ROWS) * 2 + (CLASS == "yes")], LEAK),
    "a tenth of the rows wrong": (CLASS, swapped(CLASS, ROWS // 10), None),
    "the price in another unit": (PRICE, PRICE * 100 + 7, "alone predicts the numbers"),
    "the logarithm of the price": (PRICE, np.exp(PRICE), "alone predicts the numbers"),
    "the price with noise": (PRICE, PRICE + RNG.standard_normal(ROWS) / 5, None),
}


@pytest.mark.parametrize("case", CASES)
def test_columns(tmp_path, case):
    target, column, want = CASES[case]
    found = column_warnings(table(tmp_path, target, odd=column))
    assert [text for text in found if "'x'" in text] == []
    assert found == [] if want is None else len(found) == 1 and want in found[0] and "column 'odd'" in found[0]


@pytest.mark.parametrize("count", [3, 4])
def test_several_constant_columns(tmp_path, count):
    found = column_warnings(table(tmp_path, CLASS, **{f"c{i}": np.full(ROWS, i) for i in range(count)}))
    one = ["4 columns are constant and left out: 'c0', 'c1', 'c2', ..."]
    assert found == (one if count > 3 else [f"column 'c{i}' is constant and left out" for i in range(3)])


def test_a_rare_row_on_the_wrong_side(tmp_path):
    rows = 5000
    y = RNG.integers(0, 2, rows)
    column = y + RNG.random(rows) / 2
    column[:2] = 1.2 - column[:2]
    text = "\n".join(f"{a},{'yes' if b else 'no'}" for a, b in zip(column, y, strict=True))
    (tmp_path / "t.csv").write_text(f"late,target\n{text}\n")
    assert "of the training rows: is it known" in column_warnings(read_table(tmp_path / "t.csv"))[0]


def test_few_rows_tell_nothing(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(f"{i},{'no' if i < 20 else 'yes'}" for i in range(40)))
    assert column_warnings(read_table(tmp_path / "t.csv")) == []


@pytest.mark.parametrize(("share", "said"), [(0.5, False), (0.75, False), (0.9, True)])
def test_imbalance(tmp_path, share, said):
    y = np.where(np.arange(ROWS) < share * ROWS, "no", "yes")
    found = imbalance(table(tmp_path, y))
    assert bool(found) == said
    assert not said or found == ["classes are imbalanced: 'no' has 90 % of the training rows"]
    assert imbalance(table(tmp_path, PRICE)) == []


# ---- test rows that training rows repeat -----------------------------------------------------------------------------


def repeated(tmp_path, columns, task=None, **options):
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    names = ",".join(f"c{i}" for i in range(len(columns) - 1))
    (tmp_path / "t.csv").write_text("\n".join([f"{names},y", *lines]) + "\n")
    return repeated_rows(read_table(tmp_path / "t.csv", task=task, **options))


@pytest.mark.parametrize("times", [2, 5])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_that_are_twice_there(tmp_path, times, task):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).round(1)
    y = rng.integers(0, 2, 300) if task == "classification" else rng.normal(size=300).round(3)
    columns = [np.tile(c, times) for c in (*x.T, rng.choice(["a", "b"], 300), y)]
    found = repeated(tmp_path, columns, task)
    assert len(found) == 1 and "test rows" in found[0] and "duplicates" in found[0]
    assert repeated(tmp_path, [column[:300] for column in columns], task) == []
    columns[-1] = np.r_[columns[-1][:300], 5 + columns[-1][300:]]  # another target is another row
    if times == 2:
        assert repeated(tmp_path, columns, task) == []


def test_a_test_file_of_training_rows(tmp_path):
    x = np.random.default_rng(0).normal(size=200).round(3)
    lines = [f"{a},{i % 2}" for i, a in enumerate(x)]
    (tmp_path / "u.csv").write_text("\n".join(["c0,y", *lines[:60]]) + "\n")
    found = repeated(tmp_path, [x, np.arange(200) % 2], test=tmp_path / "u.csv")
    assert len(found) == 1 and found[0].startswith("60 of 60 test rows (100 %)")


@pytest.mark.parametrize("kind", ["categories", "few numbers", "a rounded number", "correlated"])
def test_rows_that_are_equal_by_themselves(tmp_path, kind):
    rng = np.random.default_rng(1)
    category = rng.integers(0, 4, 600)
    columns = {
        "categories": [rng.choice(["a", "b", "c"], 600), rng.choice(["u", "v"], 600)],
        "few numbers": [rng.integers(0, 9, 600), rng.integers(0, 5, 600)],
        "a rounded number": [rng.normal(size=600).round(1), rng.integers(0, 3, 600)],
        "correlated": [category, category * 2, np.array(["a", "b", "c", "d"])[category], category % 2],
    }[kind]
    assert repeated(tmp_path, [*columns, rng.integers(0, 2, 600)], "classification") == []


@pytest.mark.parametrize(("name", "fires"), [("iris.csv", False), ("winequality-red.csv", True)])
def test_real_tables(name, fires):
    """A seventh of the wines is there twice."""
    assert bool(repeated_rows(read_table(need(f"tabular/{name}")))) == fires
