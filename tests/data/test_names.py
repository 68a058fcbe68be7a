"""Names and texts in Unicode's different forms; a header that is repeated inside a file."""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError
from gradloom.data import Preprocess, read_features, read_table
from tests.cli.command import run

ROWS = 60
FORMS = ["NFC", "NFD"]


def cells() -> dict[str, list[object]]:
    return {
        "größe": [i % 7 + 0.5 for i in range(ROWS)],
        "café": [("Kö", "Łé", "Aß")[i % 3] for i in range(ROWS)],
        "prix à": [("né", "mort")[i % 2] for i in range(ROWS)],
    }


def table(path: Path, form: str) -> Path:
    columns = cells()
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text(normalize(form, "\n".join([",".join(columns), *rows]) + "\n"), encoding="utf-8")
    return path


@pytest.mark.parametrize("trained", FORMS)
@pytest.mark.parametrize("asked", FORMS)
@pytest.mark.parametrize("new", FORMS)
def test_forms_of_names_and_texts_are_one(tmp_path, trained, asked, new):
    made = read_table(
        table(tmp_path / "t.csv", trained), target=normalize(asked, "prix à"), categorical=[normalize(asked, "größe")]
    ).preprocess
    assert (made.target, made.classes) == ("prix à", ["mort", "né"]) and made.columns[0].kind == "text"
    assert [column.name for column in made.columns] == ["größe", "café"]
    features, targets, notes, problems = read_features(table(tmp_path / "u.csv", new), made)
    assert notes == [] and problems == [] and (features.sum(axis=1) == 2).all() and sorted(set(targets)) == [0, 1]


@pytest.mark.parametrize("kind", ["pandas", "parquet"])
def test_forms_in_tables(tmp_path, kind):
    pandas = pytest.importorskip("pandas")
    frames = {form: pandas.DataFrame({normalize(form, k): [normalize(form, v) if isinstance(v, str) else v for v in vs]
                                      for k, vs in cells().items()}) for form in FORMS}  # fmt: skip
    made = read_table(frames["NFD"], target="prix à").preprocess
    assert made.target == "prix à" and made.columns[1].categories == ["Aß", "Kö", "Łé"]
    want = read_features(frames["NFD"], made)
    data = frames["NFC"]
    if kind == "parquet":
        data = tmp_path / "t.parquet"
        frames["NFC"].to_parquet(data)
    np.testing.assert_array_equal(read_features(data, made)[0], want[0])
    both = frames["NFC"].assign(**{normalize("NFD", "café"): 1})
    with pytest.raises(DataError, match="two columns are called 'café', in different Unicode forms"):
        read_table(both)


def test_two_columns_that_differ_in_form(tmp_path):
    (tmp_path / "t.csv").write_text(f"é,{normalize('NFD', 'é')},y\n" + "1,2,0\n2,3,1\n" * 9, encoding="utf-8")
    with pytest.raises(DataError, match="t.csv line 1: two columns are called 'é', in different Unicode forms"):
        read_table(tmp_path / "t.csv")


def test_both_forms_in_one_column(tmp_path):
    words = ["é", normalize("NFD", "é"), "b"]
    rows = [f"{words[i % 3]},{i % 5},{words[i % 2]}" for i in range(ROWS)]
    rows = [*rows, *(f"b,{i},b" for i in range(ROWS))]
    (tmp_path / "t.csv").write_text("a,x,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    made = read_table(tmp_path / "t.csv").preprocess
    assert made.columns[0].categories == ["b", "é"] and made.classes == ["b", "é"]
    assert (read_features(tmp_path / "t.csv", made)[0][:, :2].sum(axis=1) == 1).all()


def test_a_model_with_decomposed_names(tmp_path):
    """As versions before wrote it."""
    made = read_table(table(tmp_path / "t.csv", "NFC"))
    text = normalize("NFD", made.preprocess.to_json())
    old = json.loads(text)
    for column in old["columns"]:
        column["categories"] = sorted(column["categories"], key=str.encode)
    again = Preprocess.from_json(json.dumps(old))
    for form in FORMS:
        features, targets, notes, _ = read_features(table(tmp_path / "u.csv", form), again)
        assert notes == [] and targets is not None and (targets >= 0).all() and (features[:, 1:].sum(axis=1) == 1).all()


def test_the_command_finds_the_column(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), "NFD")
    line = ["--epochs", 1, "--hidden", 4, "--ensemble", 1, "--out", "out"]
    code, _, err = run(capsys, "fit", "t.csv", "--target", "prix à", *line)
    assert code == 0, err
    table(Path("u.csv"), "NFC")
    code, out, err = run(capsys, "predict", "out", "u.csv", "--keep", normalize("NFD", "café"))
    assert code == 0 and "unknown" not in err and "Łé" in out, err
    assert list(gl.load("out").predict("u.csv")) == list(gl.load("out").predict("t.csv"))


# ---- a repeated header -----------------------------------------------------------------------------------------------


def joined(path: Path, head: str, row: str, at: tuple[int, ...]) -> Path:
    rows = [row.format(i % 7, i % 3, "ab"[i % 2]) for i in range(ROWS)]
    for place in at:
        rows.insert(place, head)
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.mark.parametrize(("head", "target"), [("u,v,y", None), ("u,v,y", "y"), ('"u", v ,y', None), ("u,2019,y", "y")])
@pytest.mark.parametrize("at", [(0,), (30,), (20, 40), (60,)])
def test_a_repeated_header_is_named(tmp_path, head, target, at):
    joined(tmp_path / "t.csv", head, "{}.5,{},{}", at)
    more = "as 1 more do" if len(at) > 1 else "as joined files do"
    with pytest.raises(DataError, match=rf"t.csv line {at[0] + 2}: repeats the column names of line 1, {more}.*remove"):
        read_table(tmp_path / "t.csv", target)
    good = read_table(joined(tmp_path / "u.csv", head, "{}.5,{},{}", ()), target).preprocess
    with pytest.raises(DataError, match=rf"t.csv line {at[0] + 2}: repeats the column names"):
        read_features(tmp_path / "t.csv", good)


@pytest.mark.parametrize(
    ("head", "again", "row"),
    [
        ("u,v,y", "v,u,y", "{}.5,{},{}"), ("u,v,y", "y,u,v", "{}.5,{},{}"), ("u,v,y", " U,v ,Y", "{}.5,{},{}"),
        ("u,v,y", "\ufeffu,v,y", "{}.5,{},{}"), ("u,2019,y", "Y,2019,U", "{}.5,{},{}"),
        ("u,v,y", "u,v,y", "p{},q{},{}"), ("u,v,y", "Y,u,v", "p{},q{},{}"), ("u,y", "u,y", "p{0},{2}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [(0,), (30,), (20, 40)])
def test_a_repeated_header_of_a_joined_file(tmp_path, head, again, row, at):
    """Also where all columns hold texts, and with another order of columns, case or blanks."""
    rows = [row.format(i % 7, i % 3, "ab"[i % 2]) for i in range(ROWS)]
    text = "\n".join([head, *rows, ""])
    for place in at:
        rows.insert(place, again)
    (tmp_path / "t.csv").write_text("\n".join([head, *rows, ""]))
    (tmp_path / "u.csv").write_text(text)
    is_moved = again.strip(" \ufeff").lower()[0] != "u"
    seen = "holds the column names of line 1 in another order" if is_moved else "repeats the column names of line 1"
    for target in (None, "y"):
        with pytest.raises(DataError, match=rf"t.csv line {at[0] + 2}: {seen}.*remove the line"):
            read_table(tmp_path / "t.csv", target)
    good = read_table(tmp_path / "u.csv", "y").preprocess
    with pytest.raises(DataError, match=rf"t.csv line {at[0] + 2}: {seen}"):
        read_features(tmp_path / "t.csv", good)


def test_rows_that_hold_the_names_of_columns_as_values_are_rows(tmp_path):
    """In another order than the first line, beside other rows with these texts."""
    rows = [
        "left,right,y",
        *(f"{['left', 'right'][i % 2]},{['right', 'left', 'up'][i % 3]},{i % 2}" for i in range(60)),
    ]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "right,left,y"]) + "\n")
    assert read_table(tmp_path / "t.csv", "y", test_split=0).train.n == 61


@pytest.mark.parametrize("head", ["x,y,z", "x,y"])
def test_rows_of_texts_that_are_equal_are_no_header(tmp_path, head):
    """Without numbers and without a name to look for, the first line of a file may be a row, and twice there."""
    rows = [head, *(",".join("pqxyz"[(i + j) % 5] for j in range(len(head.split(",")))) for i in range(ROWS)), head]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    made = read_table(tmp_path / "t.csv")
    assert not made.preprocess.header and made.train.n + made.test.n == ROWS + 2
