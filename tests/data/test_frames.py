"""Rows that a program holds, read as the columns of the model say."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom.base.errors import DataError, DTypeError
from gradloom.data import Dataset
from gradloom.data.encoding.preprocess import Preprocess
from gradloom.data.frames import features_of
from gradloom.data.table import read_features, read_table


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
        (["$0,234", "$2,345"], 0.234, "a: commas are decimal"),
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


def shop(rows=150):
    """A table of every kind of column, by name: lists of cells."""
    rng = np.random.default_rng(0)
    size = rng.normal(100, 20, rows).round(2).tolist()
    return {
        "day": (np.datetime64("2024-01-01") + np.arange(rows)).tolist(),
        "size": [None if i % 29 == 0 else x for i, x in enumerate(size)],
        "town": [None if i % 31 == 0 else x for i, x in enumerate(rng.choice(["Ulm", "Bern", "Graz"], rows).tolist())],
        "zip": rng.integers(10, 20, rows).tolist(),
        "open": (rng.random(rows) < 0.5).tolist(),  # True in a frame, true in the file
        "weight": rng.integers(1, 4, rows).astype(float).tolist(),
        "price": [3 * x + 0.5 for x in size],
        "kind": rng.choice(["dear", "cheap"], rows).tolist(),
    }


def tables_of(columns):
    """{kind: the same table of that kind}."""
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    return {
        "pandas": pandas.DataFrame(columns),
        "polars": polars.DataFrame(columns),
        "pyarrow": arrow.table(columns),
        "batch": arrow.RecordBatch.from_pydict(columns),
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "batch"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target": "price", "drop": ["kind"], "time": "day", "weight": "weight"},
        {"target": "zip", "val_split": None},
    ],
    ids=["classes", "numbers", "codes"],
)
def test_a_table_is_read_as_its_file_is(tmp_path, kind, options):
    columns = shop()
    tables_of(columns)["polars"].write_csv(tmp_path / "t.csv")
    tables_of({name: cells[:40] for name, cells in columns.items()})["polars"].write_csv(tmp_path / "test.csv")
    first = tables_of({name: cells[:40] for name, cells in columns.items()})[kind]
    for test in ((None, None), (tmp_path / "test.csv", first)):
        file = read_table(tmp_path / "t.csv", test=test[0], **options)
        read = read_table(tables_of(columns)[kind], test=test[1], **options)
        assert read.task == file.task and read.test_from == file.test_from and read.val_split == file.val_split
        for a, b in ((read.train, file.train), (read.test, file.test), (read.val, file.val)):
            assert (a is None) == (b is None)
            for name in ("data", "labels", "weights") if a is not None else ():
                one, other = getattr(a, name), getattr(b, name)
                assert (one is None) == (other is None) and (one is None or np.array_equal(one, other)), name
        said = [made.preprocess.to_json().replace('"False", "True"', '"false", "true"') for made in (read, file)]
        assert said[0] == said[1]
        assert [note for note in read.notes if "test" not in note] == [n for n in file.notes if "test" not in n]
        features, targets, _, _ = read_features(first, read.preprocess)
        for made in (read.preprocess, file.preprocess):
            wanted, answers, _, _ = read_features(tmp_path / "test.csv", made)
            assert np.array_equal(features, wanted) and np.array_equal(targets, answers)


def test_what_is_no_table_is_refused_in_one_line():
    polars = pytest.importorskip("polars")
    lazy = polars.DataFrame({"a": [1, 2], "y": [0, 1]}).lazy()
    for read in (read_table, lambda data: Dataset(data, None), lambda data: Dataset(np.zeros((2, 1)), data)):
        with pytest.raises(DTypeError, match=r"a LazyFrame, which holds no rows yet; need a DataFrame: .collect\(\)"):
            read(lazy)
    with pytest.raises(DataError, match=r"read_table: got a ndarray; need a path, or a DataFrame; gl.data.Dataset"):
        read_table(np.zeros((4, 2)))
    made = read_table(polars.DataFrame({"a": [1.5, 2.5] * 4, "y": [0, 1] * 4})).preprocess
    with pytest.raises(DataError, match="read_features: got a list; need a path, or a DataFrame"):
        read_features([[1.5]], made)
    for empty in (polars.DataFrame({"a": []}), polars.DataFrame()):
        with pytest.raises(DataError, match="rows: 0 (rows|columns); need at least 1"):
            read_features(empty, made)
    with pytest.raises(DataError, match="no column 'q'; the nearest is"):
        read_table(polars.DataFrame({"a": [1.5, 2.5] * 4, "y": [0, 1] * 4}), target="q")
    with pytest.raises(DTypeError, match="gl.data.read_table"):
        Dataset(polars.DataFrame({"a": [1.5], "t": ["x"]}), np.zeros(1))


@pytest.mark.parametrize(
    ("values", "said"),
    [([1e200, -1e200, 1e199], "as large as 1e"), ([1e-200, 3e-200, 2e-200], "that differ by 2e-200 at most")],
)
def test_targets_whose_spread_is_beyond_f64(values, said):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1.5, 2.5, 3.5] * 9, "y": values * 9})
    with pytest.raises(DataError, match=f"data: target 'y' has numbers {said}[^;]*; scale it"):
        read_table(frame, task="regression")


def test_truth_values_mean_what_they_meant_in_training(tmp_path):
    polars = pytest.importorskip("polars")
    for yes, no in (("true", "false"), ("True", "False"), ("TRUE", "FALSE")):
        text = "a,open,y\n" + "".join(f"{i}.5,{yes if i % 3 else no},{no if i % 2 else yes}\n" for i in range(60))
        made, _ = model_of(tmp_path / "t.csv", text)
        want = features_of(str(tmp_path / "t.csv"), made)
        for other in ((True, False), ("true", "false"), ("True", "False"), ("TRUE", "FALSE")):
            cells = [other[i % 3 == 0] for i in range(60)]
            answers = [other[i % 2] for i in range(60)]
            frame = polars.DataFrame({"a": [i + 0.5 for i in range(60)], "open": cells, "y": answers})
            features, targets, notes, problems = features_of(frame, made)
            assert np.array_equal(features, want[0]) and np.array_equal(targets, want[1]) and not notes + problems
    text = "a,b,y\n" + "".join(f"{i},{('true', 'True')[i % 2]},{i % 2}\n" for i in range(40))
    mixed, _ = model_of(tmp_path / "t.csv", text)
    assert mixed.columns[1].categories == ["True", "true"]
    assert features_of([[1.5, "TRUE"]], mixed)[2] == ["b: 1 row with a text unknown from training: TRUE"]
