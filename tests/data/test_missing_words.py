"""Words that a user declares missing values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError
from gradloom.data import Preprocess, read_features, read_table
from gradloom.data.reading.array_cells import array_columns
from gradloom.files.toml_file import parse_toml
from tests.cli.command import run
from tests.refused import refused

ROWS = 1400
X = np.random.default_rng(0).standard_normal(ROWS).round(3)


def table(path: Path, odd: dict[int, str], column: str = "x", colours: tuple[str, ...] = ("red", "blue")) -> Path:
    cells = {
        "x": [str(x) for x in X],
        "colour": [colours[i % len(colours)] for i in range(ROWS)],
        "y": ["up" if x > 0 else "down" for x in X],
    }
    for row, cell in odd.items():
        cells[column][row] = cell
    path.write_text("\n".join([",".join(cells), *map(",".join, zip(*cells.values(), strict=True))]) + "\n")
    return path


def test_the_error_of_an_odd_word_names_the_option(tmp_path):
    table(tmp_path / "t.csv", {700: "unknown"})
    with pytest.raises(DataError, match=r"t.csv line 702: column 'x': 'unknown' is no number.*missing unknown"):
        read_table(tmp_path / "t.csv")
    made = read_table(tmp_path / "t.csv", missing=["unknown"])
    column = made.preprocess.columns[0]
    assert column.kind == "number" and "missing values: 'unknown' in 1 cell" in made.notes
    empty = read_table(table(tmp_path / "u.csv", {700: ""}))
    np.testing.assert_array_equal(made.train.data, empty.train.data)
    assert read_table(tmp_path / "t.csv", missing="unknown").preprocess == made.preprocess
    with pytest.raises(DataError) as caught:  # new rows: the option is of training
        read_features(table(tmp_path / "v.csv", {3: "unknown"}), empty.preprocess)
    assert "line 5" in str(caught.value) and "missing " not in str(caught.value)


@pytest.mark.parametrize("first", [0, 1399])
def test_new_rows_are_read_with_the_words(tmp_path, first):
    made = read_table(table(tmp_path / "t.csv", {first: "n/k", 9: "unknown"}), missing=["unknown", " n/k "]).preprocess
    assert made.missing == ["unknown", "n/k"]
    again = Preprocess.from_json(made.to_json())
    new, _, notes, _ = read_features(table(tmp_path / "u.csv", {2: "n/k", 5: "unknown", 7: ""}), again)
    plain = read_features(table(tmp_path / "v.csv", {2: "", 5: "", 7: ""}), again)[0]
    np.testing.assert_array_equal(new, plain)
    assert any("1 'n/k'" in note and "1 'unknown'" in note for note in notes), notes


def test_a_number_stands_for_its_spellings(tmp_path):
    odd = {3: "-999", 4: "-999.0", 5: "-9.99e2", 6: "-999.5"}
    made = read_table(table(tmp_path / "t.csv", odd), missing=["-999"])
    assert "missing values: '-999' in 3 cells" in made.notes
    column = made.preprocess.columns[0]
    features = read_features(tmp_path / "t.csv", made.preprocess)[0][:, 0]
    assert (features[3:6] == features[3]).all() and features[6] < features[3]
    assert column.median == np.median(np.r_[X[:3], X[7:]]) or abs(column.median) < 0.2


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "parquet", "npz"])
def test_tables_that_are_no_text(tmp_path, kind):
    numbers = np.where(np.arange(ROWS) % 100 == 0, -999.0, X)
    words = np.array(["unknown" if i % 50 == 0 else "red" if i % 3 else "blue" for i in range(ROWS)], object)
    data = {"x": numbers, "whole": np.where(X > 1, -999, np.arange(ROWS)), "word": words, "y": (X > 0).astype(int)}
    if kind == "npz":
        arrays = np.stack([data["x"], data["whole"]], axis=1)
        np.savez(tmp_path / "t.npz", x=arrays, y=data["y"])
        made = read_table(tmp_path / "t.npz", missing=["-999"]).preprocess
        np.testing.assert_array_equal(made.apply(arrays)[0], made.apply(np.where(arrays == -999, np.nan, arrays))[0])
        columns = array_columns("t", arrays, missing=["-999", "word"])
        assert columns.marks(0) == {"-999": 14} and columns.missing(1).sum() == (X > 1).sum()
        return
    module = pytest.importorskip({"arrow": "pyarrow", "parquet": "pyarrow"}.get(kind, kind))
    rows = module.table(data) if kind in ("arrow", "parquet") else module.DataFrame(data)
    if kind == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, tmp_path / "t.parquet")
        rows = tmp_path / "t.parquet"
    made = read_table(rows, target="y", missing=["-999", "unknown"])
    known = made.preprocess.columns
    assert [c.has_missing for c in known] == [True, True, False] and known[2].categories == ["", "blue", "red"]
    features = read_features(rows, made.preprocess)[0]
    np.testing.assert_array_equal(features[:, 1], numbers == -999)
    np.testing.assert_array_equal(features[:, 4], words == "unknown")


def test_categories_and_targets(tmp_path):
    """A category becomes that of an empty cell; a row without a target is left out; texts are held whole."""
    made = read_table(table(tmp_path / "t.csv", {8: "none known"}, "colour"), missing=["none known"])
    assert made.preprocess.columns[1].categories == ["", "blue", "red"]
    read = read_features(table(tmp_path / "u.csv", {1: "none known", 2: "", 3: "other"}, "colour"), made.preprocess)
    assert read[0][1, 1] == read[0][2, 1] == 1 and (read[0][3, 1:] == 0).all()
    made = read_table(table(tmp_path / "t.csv", {8: "unknown", 9: "Unknown"}, "y"), missing=["unknown"])
    assert made.preprocess.classes == ["Unknown", "down", "up"]
    assert any(note.startswith("1 of 1400 rows left out") for note in made.notes)


def test_words_that_are_nowhere_are_counted_as_such(tmp_path):
    assert "missing values: 'unknwon' in 0 cells" in read_table(table(tmp_path / "t.csv", {}), missing="unknwon").notes


@pytest.mark.parametrize("words", [[""], [" "], [3], 3, {"a": 1}, ["\udc80"]])
def test_words_that_are_none(tmp_path, words):
    with refused("missing"):
        read_table(table(tmp_path / "t.csv", {}), missing=words)
    made = json.loads(read_table(tmp_path / "t.csv").preprocess.to_json())
    with pytest.raises(DataError, match="missing"):
        Preprocess.from_json(json.dumps(made | {"missing": words}))


def test_images_have_no_words(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((20, 3, 3)) + np.arange(3), y=np.arange(20) % 2)
    with refused("missing", ...):
        read_table(tmp_path / "t.npz", missing=["0"])


def test_a_table_without_a_header(tmp_path):
    rows = [f"{'unknown' if i in (0, 7) else x},{i % 5},{i % 2}" for i, x in enumerate(X[:60])]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    made = read_table(tmp_path / "t.csv", missing=["unknown"])
    assert not made.preprocess.header and "missing values: 'unknown' in 2 cells" in made.notes
    assert made.preprocess.columns[0].kind == "number" and made.train.n + made.test.n == 60


def test_the_command_saves_the_words(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), {3: "unknown", 8: "n.k."})
    line = ["--epochs", 1, "--hidden", 4, "--ensemble", 1]
    code, _, err = run(capsys, "fit", "t.csv", "--missing", "unknown,n.k.", *line, "--out", "out")
    assert code == 0 and "missing values: 'unknown' in 1 cell, 'n.k.' in 1 cell" in err, err
    assert parse_toml("out/settings.toml")["missing"] == ["unknown", "n.k."]
    assert run(capsys, "predict", "out", "t.csv")[0] == 0 and len(gl.load("out").predict("t.csv")) == ROWS
    assert "missing 'unknown', 'n.k.'" in gl.load("out").summary()
    code, _, err = run(capsys, "fit", "--out", "out", "--resume", "--missing", "unknown,n.k.,red")
    assert code == 2 and "--missing" in err.splitlines()[-1], err
    assert run(capsys, "fit", "--out", "out", "--resume")[0] == 0
