"""What cells mean: labels that are codes, times of a few days, rows that weigh nothing, numbers far from all others."""

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.data import read_features, read_table


def write(path, text):
    path.write_text(text)
    return path


def labels_of(tmp_path, cells, **how):
    rows = "\n".join(f"{i % 7},{cell}" for i, cell in enumerate(cells))
    return read_table(write(tmp_path / "t.csv", f"a,y\n{rows}\n"), "y", test_split=0.0, **how)


@pytest.mark.parametrize("task", [None, "classification"])
def test_labels_with_leading_zeros_are_texts(tmp_path, task):
    """01 and 1 are two classes, as they are two categories of a feature; what is predicted is written so."""
    table = labels_of(tmp_path, ["01", "1", "2", "01", "2"] * 6, task=task)
    assert table.preprocess.classes == ["01", "1", "2"]
    assert ("holds codes with leading zeros" in " ".join(table.notes)) == (task is None)
    assert table.train.labels.tolist() == [0, 1, 2, 0, 2] * 6
    new = write(tmp_path / "n.csv", "a,y\n1,01\n2,1\n3,2\n4,002\n")
    _, targets, _, problems = read_features(new, table.preprocess)
    assert targets.tolist() == [0, 1, 2, 2] and problems == []


def test_zip_codes_are_predicted_as_they_are_written(tmp_path):
    assert labels_of(tmp_path, ["01234", "02345", "12345"] * 9).preprocess.classes == ["01234", "02345", "12345"]


def test_leading_zeros_may_be_numbers_to_regress(tmp_path):
    table = labels_of(tmp_path, [f"{i:03}" for i in range(60)], task="regression")
    assert table.task == "regression" and table.preprocess.target_mean == [29.5]


def test_classes_without_leading_zeros_stay_numbers(tmp_path):
    table = labels_of(tmp_path, ["1", "1.0", "2", "0.0", "0"] * 6)
    assert table.preprocess.classes == ["0", "1", "2"]
    new = write(tmp_path / "n.csv", "a,y\n1,01\n2,1\n")
    assert read_features(new, table.preprocess)[1].tolist() == [1, 1]


@pytest.mark.parametrize("times", [["2024-01-01", "2024-01-02", "2024-01-03"], ["14:30", "15:30", "16:30"]])
def test_times_of_a_few_days_have_no_waves(tmp_path, times):
    rows = "\n".join(f"{times[i * len(times) // 60]},{i % 5},{i % 2}" for i in range(60))
    table = read_table(write(tmp_path / "t.csv", f"t,a,y\n{rows}\n"), "y", time="t")
    column = table.preprocess.columns[0]
    assert (column.kind, column.parts, column.width) == ("time", [], 1) and np.isfinite(table.train.data).all()


def test_classes_that_training_did_not_have_are_counted(tmp_path):
    table = labels_of(tmp_path, ["no", "yes", "no"] * 9)
    new = write(tmp_path / "n.csv", "a,y\n1,no\n2,NEW\n3,NEW\n4,old\n5,\n6,yes\n")
    _, targets, _, problems = read_features(new, table.preprocess)
    assert targets.tolist() == [0, -100, -100, -100, -100, 1]
    need = "classes that the model does not know: NEW, old (3 rows of 6, which count in no score)"
    assert problems == [need]


def test_rows_that_weigh_nothing_are_left_out(tmp_path):
    """They are no part of scaling, baselines and test rows, as of no estimator."""
    lines = [f"{1e6 if i % 5 == 0 else i},{i % 2},{0 if i % 5 == 0 else 1}" for i in range(100)]
    whole = write(tmp_path / "t.csv", "a,y,w\n" + "\n".join(lines) + "\n")
    kept = write(tmp_path / "k.csv", "a,y,w\n" + "\n".join(x for x in lines if x[-1] == "1") + "\n")
    one, two = (read_table(path, "y", weight="w") for path in (whole, kept))
    np.testing.assert_array_equal(one.train.data, two.train.data)
    np.testing.assert_array_equal(one.test.data, two.test.data)
    assert "20 of 100 rows left out: they weigh 0" in one.notes
    none = write(tmp_path / "z.csv", "a,y,w\n" + "\n".join(x[:-1] + "0" for x in lines) + "\n")
    with pytest.raises(DataError, match="all 100 rows weigh 0; need some above 0"):
        read_table(none, "y", weight="w")


def test_numbers_far_from_all_others_are_said(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = x.sum(1)
    x[17, 0], y[30] = 1e30, -1e12
    rows = "\n".join(f"{a},{b},{c}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True))
    table = read_table(write(tmp_path / "t.csv", f"a,b,y\n{rows}\n"), "y", "regression", test_split=0.0)
    said = [note for note in table.notes if "far from all others" in note]
    end = "is it a slip, or a missing value?"
    assert said == [
        f"target 'y': a number is far from all others: -1e+12 in {tmp_path}/t.csv line 32; {end}",
        f"column 'a': a number is far from all others: 1e+30 in {tmp_path}/t.csv line 19; {end}",
    ]


@pytest.mark.parametrize("scale", [1, 1e-30, 1e30])
def test_skewed_and_sparse_numbers_are_not_far(tmp_path, scale):
    rng = np.random.default_rng(0)
    x = np.stack([rng.lognormal(0, 3, 2000), rng.normal(size=2000), np.arange(2000) % 500 == 3], 1) * scale
    rows = "\n".join(f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(x.tolist()))
    notes = read_table(write(tmp_path / "t.csv", f"a,b,c,y\n{rows}\n"), "y").notes
    assert not [note for note in notes if "far from" in note]
