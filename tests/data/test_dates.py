"""Columns of dates become features, in rows that are split at random, too."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError, SettingError
from gradloom.data import Preprocess, read_features, read_table
from gradloom.data.encoding.times import FORMS
from tests.cli.command import run

ROWS = 240
DAYS = [datetime(2021, 3, 1, 8, 30) + timedelta(days=int(i) * 5, hours=int(i) % 7) for i in
        np.random.default_rng(3).permutation(ROWS)]  # fmt: skip
DATE_FORMS = [form for form in FORMS if "%y" in form.lower() and "%d/%m" not in form]


def written(form: str) -> list[str]:
    return [day.strftime("%Y-%m-%dT%H:%M" if form == "iso" else form) for day in DAYS]


def table(path: Path, cells: list[str], more: str = "") -> Path:
    rows = (f'"{cell}",{i % 7}.5,{day.month % 2}' for i, (cell, day) in enumerate(zip(cells, DAYS, strict=True)))
    path.write_text("\n".join(["sold,x,y", *rows]) + "\n" + more)
    return path


@pytest.mark.parametrize("form", ["iso", *DATE_FORMS])
def test_dates_of_all_forms(tmp_path, form):
    """The same features as the column of --time has, and the calendar year."""
    made = read_table(table(tmp_path / "t.csv", written(form)))
    column = made.preprocess.columns[0]
    plain = "%Y-%m-%dT%H:%M" if form == "iso" else form
    seconds = [(datetime.strptime(t, plain) - datetime(1970, 1, 1)).total_seconds() for t in written(form)]
    assert (column.kind, column.form) == ("time", form) and column.parts[-1] == "calendar year"
    notes = [note for note in made.notes if note.startswith("sold: dates such as ")]
    assert len(notes) == 1 and f"become {column.width} features: days since 2021-03-01" in notes[0]
    assert "month" in notes[0] and ("weekday" in notes[0]) == ("week" in column.parts)
    features = read_features(tmp_path / "t.csv", Preprocess.from_json(made.preprocess.to_json()))[0]
    np.testing.assert_allclose(features[:, 0] * column.std + column.mean, seconds, atol=500)
    years = features[:, column.width - 1] * column.std + column.mean
    want = [(datetime(day.year, 1, 1) - datetime(1970, 1, 1)).total_seconds() for day in DAYS]
    np.testing.assert_allclose(years, want, atol=500)
    np.testing.assert_allclose(features[:, 1] ** 2 + features[:, 2] ** 2, 1, atol=1e-5)
    same = read_table(tmp_path / "t.csv", time="sold").preprocess
    again = read_features(tmp_path / "t.csv", same)[0]
    for feature in range(1, column.width - 1):
        np.testing.assert_allclose(features[:, feature], again[:, feature], atol=1e-6)


@pytest.mark.parametrize(("zone", "minutes"), [("+05:30", 330), ("-0330", -210), ("Z", 0), ("+02:00", 120)])
def test_zones(tmp_path, zone, minutes):
    made = []
    for name, cells in (("here", [f"{day:%Y-%m-%dT%H:%M}{zone}" for day in DAYS]),
                        ("utc", [f"{day - timedelta(minutes=minutes):%Y-%m-%dT%H:%M}" for day in DAYS])):  # fmt: skip
        column = read_table(table(tmp_path / f"{name}.csv", cells), time="sold").preprocess.columns[0]
        made.append((column.mean, column.std))
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "parquet"])
def test_dates_of_tables(tmp_path, kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sold": DAYS, "x": np.arange(ROWS) / 2, "y": [day.month % 2 for day in DAYS]})
    made = read_table(frame).preprocess
    assert made.columns[0].kind == "time"
    data = frame
    if kind == "parquet":
        data = tmp_path / "t.parquet"
        frame.to_parquet(data)
    if kind == "arrow":
        data = pytest.importorskip("pyarrow").Table.from_pandas(frame)
    np.testing.assert_array_equal(read_features(data, made)[0], read_features(frame, made)[0])


def test_missing_dates(tmp_path):
    cells = [cell if i % 20 else ("" if i % 40 else "unknown") for i, cell in enumerate(written("iso"))]
    made = read_table(table(tmp_path / "t.csv", cells), missing=["unknown"])
    column = made.preprocess.columns[0]
    assert column.has_missing and any("whether it is missing" in note for note in made.notes)
    assert any(note.startswith("sold: 12 empty cells (6 'unknown' among them) filled") and "T" in note
               for note in made.notes), made.notes  # fmt: skip
    features = read_features(tmp_path / "t.csv", Preprocess.from_json(made.preprocess.to_json()))[0]
    np.testing.assert_array_equal(features[:, column.width - 1], np.arange(ROWS) % 20 == 0)
    assert (features[::20, : column.width] == features[0, : column.width]).all()


@pytest.mark.parametrize("cell", ["2023-02-30", "soon"])
def test_a_cell_that_is_no_date(tmp_path, cell):
    cells = written("%Y-%m-%d")
    good = read_table(table(tmp_path / "t.csv", cells)).preprocess
    cells[50] = cell
    with pytest.raises(DataError, match=rf"t.csv line 52: column 'sold': '{cell}' is no date.*missing {cell}"):
        read_table(table(tmp_path / "t.csv", cells))
    assert read_table(tmp_path / "t.csv", missing=[cell]).preprocess.columns[0].kind == "time"
    assert read_table(tmp_path / "t.csv", categorical=["sold"]).preprocess.columns[0].kind != "time"
    with pytest.raises(DataError, match=rf"t.csv line 52: .*'sold': '{cell}' is no"):
        read_features(tmp_path / "t.csv", good)


def test_a_new_form_is_refused(tmp_path):
    good = read_table(table(tmp_path / "t.csv", written("%d.%m.%Y"))).preprocess
    with pytest.raises(DataError, match=r"line 2: .*'sold'.*need dates such as 31.01.2024"):
        read_features(table(tmp_path / "u.csv", written("%Y/%m/%d")), good)


def test_dates_that_can_be_read_in_two_ways(tmp_path):
    cells = [f"{1 + i % 9:02d}/{1 + i % 11:02d}/2023" for i in range(ROWS)]
    made = read_table(table(tmp_path / "t.csv", cells))
    assert made.preprocess.columns[0].kind == "text"
    assert any(note.startswith("sold: dates such as '01/01/2023' may be day or month first") for note in made.notes)


@pytest.mark.parametrize(
    "cells",
    [
        [f"{i % 9}:{i % 8}" for i in range(ROWS)],
        [f"1.{i % 3}.{i % 30}" for i in range(ROWS)],
        ["2021-03-01", "2021-03-02"] * (ROWS // 2),
        [f"20{i % 20:02d}{13 + i % 9}11" for i in range(ROWS)],
        [str(1990 + i % 30) for i in range(ROWS)],
        [f"item {i % 20}" for i in range(ROWS)],
        [f"555-{i % 90:04d}" for i in range(ROWS)],
    ],
)
def test_cells_that_are_no_dates(tmp_path, cells):
    assert read_table(table(tmp_path / "t.csv", cells)).preprocess.columns[0].kind != "time"


def test_roles_overrule(tmp_path):
    path = table(tmp_path / "t.csv", written("%Y%m%d"))
    assert read_table(path).preprocess.columns[0].kind == "time"
    assert read_table(path, numeric=["sold"]).preprocess.columns[0].kind == "number"
    assert read_table(path, drop=["sold"]).preprocess.columns[0].kind == "unused"
    with pytest.raises(SettingError):
        read_table(path, time="sold", categorical=["sold"])


@pytest.mark.parametrize(
    "wrong",
    [{"form": "number"}, {"parts": ["calendar"]}, {"has_missing": 1}, {"form": "%Q"}, {"parts": ["year", "year"]}],
)
def test_damaged_descriptions(tmp_path, wrong):
    cells = [cell if i % 20 else "" for i, cell in enumerate(written("iso"))]
    said = json.loads(read_table(table(tmp_path / "t.csv", cells)).preprocess.to_json())
    assert Preprocess.from_json(json.dumps(said)).columns[0].has_missing
    said["columns"][0] |= wrong
    with pytest.raises(DataError):
        Preprocess.from_json(json.dumps(said))


def test_the_command_reports_the_features(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), written("%d-%b-%Y"))
    code, _, err = run(capsys, "fit", "t.csv", "--epochs", 1, "--hidden", 4, "--ensemble", 1, "--out", "out")
    assert code == 0 and "sold: dates such as 31-Jan-2024 become 6 features: days since 2021-03-01" in err, err
    before = gl.load("out").predict_proba("t.csv")
    order = np.random.default_rng(0).permutation(ROWS)
    lines = Path("t.csv").read_text().splitlines()
    Path("t.csv").write_text("\n".join([lines[0], *(lines[1 + i] for i in order)]) + "\n")
    np.testing.assert_allclose(gl.load("out").predict_proba("t.csv"), before[order], atol=1e-6)
