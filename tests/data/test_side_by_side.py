"""Columns of a large table are read and prepared on several threads: results, notes and errors are those of one."""

import numpy as np
import pytest

from gradloom.base.errors import DataError, FileError
from gradloom.data import read_table
from gradloom.data.encoding import side_by_side
from gradloom.data.reading.csv_file import read_csv


@pytest.fixture
def cores(monkeypatch):
    def given(count):
        monkeypatch.setattr(side_by_side, "_LARGE", 1)
        monkeypatch.setattr(side_by_side, "core_count", lambda: count)

    return given


def table(path, rows=400):
    rng = np.random.default_rng(3)
    lines = ["a,b,c,day,kind,city,y"]
    for i in range(rows):
        number = "" if i % 9 == 0 else f"{rng.normal():.4f}"
        skewed = f"{np.exp(3 * rng.normal()):.3f}"
        lines.append(f"{number},{skewed},{i % 7},2024-01-{1 + i % 28:02},{'xyz'[i % 3]},c{i % 150},{rng.normal():.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_same_table_for_any_number_of_threads(tmp_path, cores):
    path = table(tmp_path / "t.csv")
    seen = []
    for count in (1, 2, 5):
        cores(count)
        made = read_table(path, time="day")
        arrays = [made.train.data, made.train.labels, made.test.data]
        seen.append(([a.tobytes() for a in arrays], made.preprocess.to_json(), made.notes))
    assert seen[1:] == seen[:1] * 2
    assert any("filled" in note for note in seen[0][2])


def test_the_first_column_that_is_wrong_is_said(tmp_path, cores):
    rows = ["a,b,c,y"] + [f"{i},{i}.5,{i},{i}.25" for i in range(60)]
    rows[31] = "30,1e999,1e999,30.25"
    rows[11] = "10,10.5,1e999,30.25"
    (tmp_path / "t.csv").write_text("\n".join(rows))
    for count in (1, 2):
        cores(count)
        with pytest.raises(DataError, match="line 32: column 'b' is inf"):
            read_table(tmp_path / "t.csv")


def test_warnings_of_numpy_stay_silent_on_all_threads(cores, recwarn):
    cores(2)
    assert list(side_by_side.side_by_side(lambda x: x * 2, [1, 2, 3], 10)) == [2, 4, 6]
    with np.errstate(all="ignore"):
        assert list(side_by_side.side_by_side(lambda x: np.log(np.float64(x)), [0, 0], 10)) == [-np.inf] * 2
    assert not recwarn.list


def test_what_is_wrong_first_in_the_file_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("gradloom.data.reading.text_bytes._PIECE", 64)
    good = b"1.5,2\n" * 40
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n" + good + b"1,2,3\n" + good + b"\xff,1\n")
    with pytest.raises((DataError, FileError), match="line 42: 3 cells"):
        read_csv(path)
    path.write_bytes(b"a,b\n" + good + b"\xff,1\n" + good + b"1,2,3\n")
    with pytest.raises(FileError, match="not UTF-8"):
        read_csv(path)
