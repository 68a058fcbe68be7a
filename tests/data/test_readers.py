import csv
import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from gradloom.base.errors import DataError, FileError, GradloomError, SettingError
from gradloom.data import Preprocess, read_features, read_table
from gradloom.data.encoding.targets import hold_out
from gradloom.data.idx import read_idx
from gradloom.data.reading.cell_rules import CellRules
from gradloom.data.reading.csv_file import read_csv
from tests.refused import refused

COLOURS = ["red", "green", "blue"]
DIGITS = Path(__file__).parents[2] / "examples" / "data" / "digits.npz"


def write(path, text):
    path.write_text(text)
    return path


def table_csv(tmp_path, rows=40, header="size,colour,empty?,price\n", name="t.csv"):
    lines = [f"{i},{COLOURS[i % 3]},{'' if i % 4 == 0 else i * 2},{i * 1.5}" for i in range(rows)]
    return write(tmp_path / name, header + "\n".join(lines) + "\n")


def idx_bytes(array, code=8):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def idx_folder(folder, train=50, test=20, gz=False, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("t10k", test)):
        if rows:
            labels = (np.arange(rows) % 10).astype("u1")
            images = rng.integers(0, 100, (rows, 4, 5), dtype="u1")
            images[np.arange(rows), labels % 4, labels // 4] += 150
            for part, array in (("images-idx3", images), ("labels-idx1", labels)):
                data = idx_bytes(array)
                (folder / f"{name}-{part}-ubyte{'.gz' * gz}").write_bytes(gzip.compress(data, 1) if gz else data)
    return folder


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [0, 100_000])  # the widest cells are kept in another way
def test_digits_with_an_underscore_are_a_text(tmp_path, wide):
    """Python reads 1_1 as 11, which is another text of the same column."""
    ids = ["1_1" if i % 2 else "11" for i in range(40)]
    ids[7] = "0" * wide + "1_1"
    rows = "\n".join(f"{one},{i // 2 % 7},{'2_0' if i % 2 else '20'}" for i, one in enumerate(ids))
    table = read_table(write(tmp_path / "t.csv", f"id,b,y\n{rows}\n"))
    made = table.preprocess
    assert (made.classes, table.task) == (["20", "2_0"], "classification")
    assert [c.kind for c in made.columns] == ["text", "number"] and {"11", "1_1"} <= {*made.columns[0].categories}
    features, *_ = read_features(tmp_path / "t.csv", made)
    assert np.array_equal(np.unique(features[:, 0]), np.unique(table.train.data[:, 0]))


def test_csv_regression_with_text_and_empty_cells(tmp_path):
    table = read_table(table_csv(tmp_path), target="price", test_split=0.25)
    made = table.preprocess
    assert (table.task, made.target, made.inputs, made.outputs) == ("regression", "price", 6, 1)
    assert [c.kind for c in made.columns] == ["number", "text", "number"] and made.columns[1].categories == [
        "blue",
        "green",
        "red",
    ]
    assert (table.train.n, table.test.n, table.test_from) == (30, 10, "held out")
    x, y = table.train.data, table.train.labels
    # statistics come from the training rows alone
    np.testing.assert_allclose(x[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose([x[:, 0].std(), y.std()], 1, rtol=1e-5)
    assert abs(table.test.data[:, 0].mean()) > 1e-3 and set(x[:, 1:4].sum(axis=1)) == {1}
    np.testing.assert_allclose(made.outputs_to_targets(table.test.labels), table.test_targets[:, None], atol=1e-5)
    median = made.columns[2].median
    assert made.columns[2].has_missing and x[:, 5].sum() + table.test.data[:, 5].sum() == 10
    assert f"empty?: 10 empty cells filled with the training median {median:g}" in table.notes
    assert "task: regression, because the target 'price' holds numbers with decimals" in table.notes


def test_validation_rows_are_kept_out_of_the_statistics(tmp_path):
    table = read_table(table_csv(tmp_path), target="price", val_split=0.2, test_split=0.25, seed=3)
    train, val = table.train.split(0.2, 3)
    np.testing.assert_allclose(table.train.data[train, 0].mean(), 0, atol=1e-6)
    assert len(val) == 6 and abs(table.train.data[:, 0].mean()) > 1e-3


def test_each_class_gives_its_share_to_the_test(tmp_path):
    rows = "".join(f"{i},{'aaaaaabbbc'[i % 10]}\n" for i in range(100)) + "100,rare\n"
    for seed in range(5):
        table = read_table(write(tmp_path / "t.csv", "x,y\n" + rows), seed=seed)
        assert np.bincount(table.test.labels, minlength=4).tolist() == [12, 6, 2, 0] and table.train.n == 81
    for n, share, test in ((3, 0.2, 1), (4, 0.5, 2), (9, 0.5, 4), (10, 0.2, 2)):
        write(tmp_path / "t.csv", "x,y\n" + "".join(f"{i},{i}.5\n" for i in range(n)))
        table = read_table(tmp_path / "t.csv", test_split=share)
        assert (table.train.n, table.test.n) == (n - test, test)


def test_same_seed_same_rows(tmp_path):
    path = table_csv(tmp_path)
    first, again, other = (read_table(path, target="price", seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.train.data, again.train.data)
    assert first.test_targets.tolist() != other.test_targets.tolist()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("packed", [True, False])
def test_separators_quotes_and_gzip(tmp_path, separator, packed):
    rows = [["name", "a b", "y"]] + [[f'"x{separator} ""{i % 3}"""', str(i), "u" if i % 2 else "v"] for i in range(20)]
    text = "\ufeff" + "\r\n".join(separator.join(r) for r in rows) + "\r\n\r\n"
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    table = read_table(path, target="y")
    assert table.preprocess.columns[0].categories == [f'x{separator} "{i}"' for i in range(3)]
    assert table.preprocess.classes == ["u", "v"] and table.preprocess.separator == separator


LETTER = "Dear Sir,\n" + "\n".join(f"line; with; many; parts {i}" for i in range(25))
MIXED = [
    ("a cell of more lines than are looked at", ",", [["id", "text", "y"], ["1", LETTER, "0"], ["2", "short", "1"]]),
    ("a cell longer than the sample", ",", [["id", "text", "y"], ["1", LETTER * 90, "0"], ["2", "short", "1"]]),
    ("a first cell longer than the sample", ",", [["1", LETTER * 90, "0"], ["2", "short", "1"]]),
    ("a sample that ends in a cell", ";", [["id", "text"], *([str(i), "a,b,c,d,e\n;" * 40] for i in range(600))]),
    ("blanks before quotes", ";", [["a", "y"], ["1", ' "x,y;z"'], ["2", ' "u,v;w,x"']]),
    *(
        (f"U+{ord(mark):04X}", ";", [["a", "b"], ["1", f"hello, my, friend{mark}x"], ["2", "y"]])
        for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    ),
]


@pytest.mark.parametrize(("separator", "rows"), [case[1:] for case in MIXED], ids=[case[0] for case in MIXED])
def test_separator_of_texts_with_other_separators(tmp_path, separator, rows):
    with open(tmp_path / "t.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    data = read_csv(tmp_path / "t.csv", header=False, rules=CellRules([f"column {i + 1}" for i in range(9)]))
    columns = [[texts[code].decode() for code in codes] for codes, texts in map(data.texts, range(len(data.names)))]
    read = [list(row) for row in zip(*columns, strict=True)]
    assert data.separator == separator and read == [[cell.strip() for cell in row] for row in rows]


def test_blank_lines_before_the_rows(tmp_path):
    data = read_csv(write(tmp_path / "t.csv", "\n" * 30 + "a;y\n1,5;2\n"))
    assert data.names == ["a", "y"] and list(data.lines) == [32]


def test_decimal_commas_where_the_separator_is_another(tmp_path):
    path = write(tmp_path / "t.csv", "a;y\n" + "".join(f"{i},5;{i},25\n" for i in range(30)))
    table = read_table(path)
    assert table.task == "regression" and table.preprocess.columns[0].kind == "number"


@pytest.mark.parametrize(
    ("text", "header", "names"),
    [
        ("1,2,a\n3,4,b\n", False, ["column 1", "column 2", "column 3"]),
        ("x,y,z\n1,2,a\n", True, ["x", "y", "z"]),
        ("x,,z\n1,2,a\n", True, ["x", "column 2", "z"]),
        ("colour,size\nred,big\nblue,small\n", True, ["colour", "size"]),
        ("red,big\nblue,small\nred,small\n", False, ["column 1", "column 2"]),
        ("name,2019,2020\na,1,2\n", True, ["name", "2019", "2020"]),
        ("2019,2020,2021\n1.5,2,3\n2,3,4\n", True, ["2019", "2020", "2021"]),
        ("2019,2020,2021\n2018,2020,2024\n2017,2018,2019\n", False, ["column 1", "column 2", "column 3"]),
        ("0,1,2\n0.5,1.5,1\n0.25,2,3\n", True, ["0", "1", "2"]),
        ("0,1,2\n3,4,5\n6,7,8\n", False, ["column 1", "column 2", "column 3"]),
        ("?,1\n2,3\n", False, ["column 1", "column 2"]),
    ],
)
def test_header_is_found_out(tmp_path, text, header, names):
    data = read_csv(write(tmp_path / "t.csv", text))
    assert data.header is header and data.names == names and data.rows == text.count("\n") - header
    assert read_csv(tmp_path / "t.csv", expect=(text.split(",")[0],)).header


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([f"{i % 3}" for i in range(60)], "classification"),
        ([f"{i % 20}.0" for i in range(60)], "classification"),
        ([f"{i % 21}" for i in range(60)], "regression"),
        ([f"{i % 3}.5" for i in range(60)], "regression"),
        ([f"c{i % 25}" for i in range(60)], "classification"),
    ],
)
def test_task_is_decided_by_the_target(tmp_path, values, task):
    path = write(tmp_path / "t.csv", "a,y\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
    table = read_table(path)
    assert table.task == task and table.notes[0].startswith(f"task: {task}, because the target 'y' ")
    if task == "classification":
        assert table.preprocess.classes[:2] in (["0", "1"], ["c0", "c1"])
    if values[0][0] != "c":
        other = {"classification": "regression", "regression": "classification"}[task]
        assert read_table(path, task=other).task == other


def test_target_of_a_file_without_header(tmp_path):
    path = write(tmp_path / "t.csv", "".join(f"{'ab'[i % 2]},{i},{i % 7}\n" for i in range(30)))
    assert read_table(path).preprocess.target_index == 2
    assert read_table(path, target="1").preprocess.classes == ["a", "b"]
    assert read_table(path, target="column 1").preprocess.classes == ["a", "b"]
    assert read_table(path, target="-1").preprocess.target_index == 2


def test_what_cannot_help_is_left_out_and_said(tmp_path):
    rows = "".join(f"{i},same,7,{'' if i % 2 else 'x'},id{i},{i % 2}\n" for i in range(220))
    table = read_table(write(tmp_path / "t.csv", "a,b,c,d,e,y\n" + rows + ",,,x,id,\n"))
    assert [c.kind for c in table.preprocess.columns] == ["number", "unused", "unused", "text", "unused"]
    assert table.preprocess.columns[3].categories == ["", "x"]
    texts = " | ".join(table.notes)
    assert "1 of 221 rows left out: their target 'y' is empty" in texts
    assert "columns left out: b (constant), c (constant), e (" in texts and "different texts in 176 rows)" in texts


@pytest.mark.parametrize("keys", ["x y", "X Y", "data target", "images labels", "x_train y_train", "features targets"])
def test_npz_keys(tmp_path, keys):
    x, y = keys.split()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", **{x: rng.normal(size=(30, 3)), y: np.arange(30) % 3})
    table = read_table(tmp_path / "t.npz", test_split=0.1)
    assert table.task == "classification" and table.preprocess.kind == "columns" and table.train.n == 27


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_npz_in_the_order_of_fortran(tmp_path, dtype):
    x = np.arange(90).reshape(30, 3).astype(dtype)
    for name, order in (("c", "C"), ("f", "F")):
        np.savez(tmp_path / f"{name}.npz", x=np.asarray(x, order=order), y=np.arange(30) % 3)
    rows, want = (read_table(tmp_path / f"{name}.npz", test_split=0.0).train.data for name in "fc")
    np.testing.assert_array_equal(rows, want)


def test_npz_with_its_own_test_rows(tmp_path):
    x = np.arange(80, dtype="f4").reshape(40, 2)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=x[:, :1] * 2, x_test=x[:5], y_test=x[:5, :1] * 2)
    table = read_table(tmp_path / "t.npz")
    assert (table.task, table.test_from, table.train.n, table.test.n) == ("regression", "file", 40, 5)
    np.testing.assert_allclose(table.preprocess.outputs_to_targets(table.test.labels)[:, 0], x[:5, 0] * 2, atol=1e-5)


def test_npz_of_several_kinds(tmp_path):
    path, x = tmp_path / "t.npz", np.random.default_rng(0).normal(size=(30, 2))
    np.savez(path, x=x, y=np.array(["a", "b", "c"] * 10))
    assert read_table(path).preprocess.classes == ["a", "b", "c"]
    np.savez(path, x=x, y=np.eye(3)[np.arange(30) % 3], classes=["p", "q", "r"])
    assert read_table(path).preprocess.classes == ["p", "q", "r"]
    np.savez(path, x=x, y=x * 3)
    table = read_table(path)
    assert table.task == "regression" and table.preprocess.outputs == 2 and table.train.labels.shape == (24, 2)
    np.savez(path, x=np.where(x > 1, np.nan, x), y=np.arange(30) % 2, feature_names=["u", "v"])
    table = read_table(path)
    assert table.preprocess.columns[0].name == "u" and np.isfinite(table.train.data).all()
    assert any(n.startswith("u: ") and "filled with the training median" in n for n in table.notes)
    np.savez(path, x=(x > 0), y=np.arange(30) % 2, other=x)
    assert read_table(path).train.data.dtype == np.uint8
    assert read_table(path, target="y").task == "classification"


def test_bundled_digits():
    table = read_table(DIGITS)
    assert (table.task, table.preprocess.kind, table.preprocess.shape) == ("classification", "array", [8, 8])
    assert table.train.data.dtype == np.uint8 and table.train.shape == (64,) and table.train.n + table.test.n == 1797
    assert table.preprocess.classes == list("0123456789") and 4 < table.preprocess.mean < 6


@pytest.mark.parametrize("gz", [True, False])
def test_idx_folder(tmp_path, gz):
    table = read_table(idx_folder(tmp_path / "d", gz=gz))
    assert (table.train.n, table.test.n, table.test_from) == (50, 20, "file")
    assert (
        table.train.data.dtype == np.uint8 and table.preprocess.shape == [4, 5] and len(table.preprocess.classes) == 10
    )
    table = read_table(idx_folder(tmp_path / "e", test=0, gz=gz))
    assert (table.train.n, table.test.n, table.test_from) == (40, 10, "held out")


@pytest.mark.parametrize("code", [8, 9, 11, 12, 13, 14])
def test_idx_types(tmp_path, code):
    kind = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}[code]
    array = np.arange(6).reshape(2, 3).astype(kind)
    (tmp_path / "a").write_bytes(idx_bytes(array, code))
    back = read_idx(tmp_path / "a")
    assert back.dtype.isnative and back.dtype.itemsize == array.dtype.itemsize
    np.testing.assert_array_equal(back, array)


# -- for a trained model -----------------------------------------------------------------------------------------------


def test_preprocess_survives_json(tmp_path):
    for path in (DIGITS, table_csv(tmp_path)):
        made = read_table(path).preprocess
        again = Preprocess.from_json(made.to_json())
        assert again == made and json.loads(made.to_json())["task"] == made.task
    for bad in ("", "{}", "[]", made.to_json().replace('"kind": "columns"', '"kind": "x"')):
        with pytest.raises(DataError, match="preprocess"):
            Preprocess.from_json(bad)


def test_features_of_a_file_to_predict(tmp_path):
    table = read_table(table_csv(tmp_path), target="price")
    made = table.preprocess
    whole, targets, notes, problems = read_features(tmp_path / "t.csv", made)
    assert whole.shape == (40, 6) and targets[:, 0].tolist() == [i * 1.5 for i in range(40)] and not problems
    # another order, no target, an unknown column, an unknown category, an empty cell
    path = write(tmp_path / "p.csv", "note,empty?,colour,size\nhi,3,violet,\nho,2,red,1\n")
    features, targets, notes, _ = read_features(path, made)
    assert targets is None and features.shape == (2, 6) and not features[0, 1:4].any()
    np.testing.assert_allclose(features[1, 0], whole[1, 0])
    assert notes[0] == "not used, because the model does not know them: note"
    assert notes[1].startswith("size: 1 empty cell filled with the training median ")
    assert notes[2] == "colour: 1 row with a text unknown from training: violet"
    with pytest.raises(
        DataError, match=r"p2.csv: no column 'size'; the nearest is 'sise' \(columns: sise, colour, empty\?\)"
    ):
        read_features(write(tmp_path / "p2.csv", "sise,colour,empty?\n1,red,2\n"), made)
    with pytest.raises(DataError, match=r"p3.csv line 3: column 'size': 'big' is no number"):
        read_features(write(tmp_path / "p3.csv", "size,colour,empty?\n1,red,2\nbig,red,2\n"), made)


def test_features_without_header(tmp_path):
    path = write(tmp_path / "t.csv", "".join(f"{i},{i * 2},{'ab'[i % 2]}\n" for i in range(30)))
    made = read_table(path).preprocess
    features, targets, _, _ = read_features(path, made)
    assert features.shape == (30, 2) and targets.tolist() == [i % 2 for i in range(30)]
    features, targets, _, _ = read_features(write(tmp_path / "p.csv", "1,2\n"), made)
    assert features.shape == (1, 2) and targets is None
    with pytest.raises(DataError, match=r"p.csv: 5 columns; need 2, or 3 with the target"):
        read_features(write(tmp_path / "p.csv", "1,2,3,4,5\n"), made)
    _, targets, _, problems = read_features(write(tmp_path / "p.csv", "1,2,b\n1,2,z\n"), made)
    need = "classes that the model does not know: z (1 row of 2, which counts in no score)"
    assert targets.tolist() == [1, -100] and problems == [need]


def test_features_of_arrays(tmp_path):
    made = read_table(DIGITS).preprocess
    features, targets, _, _ = read_features(DIGITS, made)
    assert features.shape == (1797, 64) and targets.shape == (1797,)
    np.savez(tmp_path / "p.npz", anything=np.zeros((3, 64), "f4"))
    assert read_features(tmp_path / "p.npz", made)[0].shape == (3, 64)
    np.savez(tmp_path / "p.npz", x=np.zeros((3, 5, 5), "f4"))
    with pytest.raises(DataError, match=r"input: rows of shape \[5, 5\]; need \[8, 8\] as in training"):
        read_features(tmp_path / "p.npz", made)
    made = read_table(idx_folder(tmp_path / "d")).preprocess
    features, targets, notes, _ = read_features(tmp_path / "d", made)
    assert features.shape == (20, 20) and len(targets) == 20 and notes == ["rows: t10k-images-idx3-ubyte"]
    assert read_features(tmp_path / "d" / "train-images-idx3-ubyte", made)[0].shape == (50, 20)


# -- bad files ---------------------------------------------------------------------------------------------------------

BAD_CSV = [
    ("", FileError, "t.csv: is empty (0 bytes); need a CSV file"),
    ("\n \n", DataError, "t.csv: holds no rows; need at least a row of numbers"),
    ("a,y\n", DataError, "t.csv: holds a header and no rows; need at least 1 row"),
    ("a,b,y\n1,2,0\n3,4\n5,6,1\n", DataError, "t.csv line 3: 2 cells, needs 3 as in line 1; fix or remove that line"),
    ("a,a,y\n1,2,0\n", DataError, "t.csv line 1: two columns are called 'a'; need different names"),
    ("a\n1\n2\n", DataError, "t.csv: 1 column; need at least 2, separated by a comma, a semicolon or a tab"),
    ("a,b,y\n" + "1,,0\n2,NA,1\n" * 5, DataError, "t.csv: column 'b' is empty in all 10 rows; remove it from the file"),
    ("a,y\n" + "1,0\n2,0\n" * 5, DataError, "t.csv: a single class, '0', in all 8 training rows; need at least 2"),
    ("a,y\n" + "1,0\n1,1\n" * 5, DataError, "t.csv: no column is left to learn from: a (constant)"),
    (
        "a,y\n1,0\ninf,1\n" + "2,0\n3,1\n" * 5,
        DataError,
        "t.csv line 3: column 'a' is inf; need a finite number or an empty",
    ),
    (
        "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)) + "oops,1\n",
        DataError,
        "t.csv line 42: column 'a': 'oops' is no",
    ),
    ("a,y\n" + "1,\n2,\n" * 5, DataError, "t.csv: target 'y' is empty in all 10 rows; name another with --target"),
    ("a,y\n" + "1,nan\n2,NA\n3,\n" * 3, DataError, "t.csv: target 'y' is empty in all 9 rows; name another with"),
    (
        "a,y\n" + "".join(f"{i},n{i}\n" for i in range(50)),
        DataError,
        "target 'y' has 50 classes in 50 rows; need far fewer",
    ),
    ('a,y\n1,"0\n2,1\n', DataError, "t.csv line 2: a quote in this row is not closed; close or remove it"),
    (
        'a;y\n1,5;0\n2;"1\n' + "3,5;1\n" * 40,
        DataError,
        "t.csv line 3: a quote in this row is not closed; close or remove it",
    ),
    (
        'a,y\n1,"0\n' + "2,1\n" * 40_000,
        DataError,
        "t.csv line 2: a cell of more than 131,072 characters, or a quote that is not closed; need shorter cells",
    ),
    (
        'a,y\n1,"0\n2,1\n3,"1"\n',
        DataError,
        "t.csv line 2: ',' expected after '\"' in line 4; fix or remove that line",
    ),
    ('a,y\n1,"0"1\n', DataError, "t.csv line 2: ',' expected after '\"'; fix or remove that line"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD_CSV, ids=range(len(BAD_CSV)))
def test_bad_csv(tmp_path, text, error, message):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(error) as caught:
        read_table(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"target": "prise"},
            DataError,
            "no column 'prise'; the nearest is 'price' (columns: size, colour, empty?, price)",
        ),
        ({"target": "Price"}, DataError, "no column 'Price'; the nearest is 'price'"),
        (
            {"target": "colour", "task": "regression"},
            DataError,
            "line 2: target 'colour' is 'red'; need numbers for a regre",
        ),
        ({"task": "guess"}, SettingError, "task='guess': must be classification or regression"),
        ({"seed": -1}, SettingError, "seed=-1: must be"),
        ({"val_split": 1.0}, SettingError, "val_split=1.0: must be a number in [0, 1)"),
    ],
)
def test_bad_wishes(tmp_path, options, error, message):
    path = table_csv(tmp_path)
    with pytest.raises(error) as caught:
        read_table(path, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_bad_wishes_without_header(tmp_path):
    path = write(tmp_path / "t.csv", "1,2,0\n2,3,1\n3,4,0\n")
    with pytest.raises(DataError, match=r"no column 'quality'; it has no header, need a column number 1\.\.3"):
        read_table(path, target="quality")


def test_constant_regression_target(tmp_path):
    path = write(tmp_path / "t.csv", "a,y\n" + "".join(f"{i},2.5\n" for i in range(9)))
    with pytest.raises(DataError, match=r"target 'y' is 2.5 in every training row"):
        read_table(path)


@pytest.mark.parametrize("name", ["none.csv", "none.npz", "none"])
def test_missing_files(tmp_path, name):
    with pytest.raises(FileError, match=f"{name}: no such file or folder"):
        read_table(tmp_path / name)


def test_a_pipe_is_no_empty_file(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(FileError, match="t.csv: is a pipe or a device; need a file, which can be read twice"):
        read_table(tmp_path / "t.csv")


def test_the_share_of_the_test_is_called_by_its_name(tmp_path):
    with refused("test_split", 1.0):
        read_table(write(tmp_path / "t.csv", "a,y\n1,2\n2,3\n3,5\n"), test_split=1.0)


def test_other_files(tmp_path):
    with pytest.raises(
        DataError, match=r"t.doc: suffix .doc is not known; need .csv, .csv.gz, .parquet, .npz or a folder"
    ):
        read_table(write(tmp_path / "t.doc", "x"))
    with pytest.raises(DataError, match="is one idx file; need the folder that holds images and labels"):
        read_table(write(tmp_path / "train-images-idx3-ubyte", "x"))
    with pytest.raises(FileError, match=r"t.csv line \d+: is not UTF-8 text \(byte 0xff\); save it as UTF-8"):
        (tmp_path / "t.csv").write_bytes(b"a,b\n\xff,1\n")
        read_table(tmp_path / "t.csv")


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(b"a,y\n" + b"".join(b"%d,%d\n" % (i * i * 7919 % 10007, i % 2) for i in range(2000)), mtime=0)
    path = tmp_path / "t.csv.gz"
    for data in (whole[: len(whole) // 2], whole[:500] + b"\0" * 50 + whole[550:], b"a,y\n1,2\n", whole[:-3]):
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"t.csv.gz: is truncated or damaged \(.*\); fetch it again"):
            read_table(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.zeros(3), "b": np.zeros((3, 2))},
            "t.npz: holds a [3], b [3, 2]; need arrays x and y, or x_train y_train",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "t.npz: 3 rows in 'x', 4 in 'y'; need one target for each row"),
        (
            {"x": np.zeros((3, 2)), "y": np.array([{}] * 3)},
            "t.npz: some array holds Python objects; save numbers or texts",
        ),
        ({"x": np.array(["a"] * 3), "y": np.zeros(3)}, "t.npz: 'x' is <U1; need numbers"),
        ({"x": np.float32(1), "y": np.zeros(3)}, "t.npz: 'x' is a single value; need an array"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "t.npz: 'x': 0 rows; need at least 2"),
        (
            {"x": np.full((9, 1), np.nan), "y": np.arange(9) % 2},
            "t.npz: column 'column 1' is NaN in all 9 rows; remove it",
        ),
        ({"x": np.full((9, 1), np.inf), "y": np.arange(9) % 2}, "t.npz row 0: column 'column 1' is inf; need a finite"),
        ({"x": np.full((9, 2, 2), np.nan), "y": np.arange(9) % 2}, "t.npz: some element is NaN or inf; need finite"),
        ({"x": np.ones((9, 2, 2)), "y": np.arange(9) % 2}, "t.npz: every element of every training row is 1"),
        (
            {"x": np.zeros((9, 2)), "y": np.ones(9)},
            "no column is left to learn from: column 1 (constant), column 2 (constant)",
        ),
        ({"x": np.eye(9), "y": np.arange(9) % 3, "classes": ["a", "b"]}, "row 2: 'y' is 2; need 0..1, the 2 classes"),
        (
            {"x": np.eye(9), "y": np.array([1.0, np.inf] + [0.5] * 7)},
            "target 'y' is inf in some row; need finite numbers",
        ),
        (
            {"x_train": np.eye(9), "y_train": np.arange(9) % 2, "x_test": np.eye(9), "y_test": np.arange(9) % 3},
            "row 2 of the test has class '2', which no training row has",
        ),
        (
            {"x_train": np.eye(9), "y_train": np.arange(9) % 2, "x_test": np.eye(8), "y_test": np.arange(8) % 2},
            "x_test has rows of shape [8]; need [9]",
        ),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "t.npz")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_npz_target_that_is_not_there(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.eye(4), label=np.arange(4))
    with pytest.raises(
        DataError, match=r"no array 'lable'; the nearest is 'label' \(arrays: x \[4, 4\], label \[4\]\)"
    ):
        read_table(tmp_path / "t.npz", target="lable")


def test_damaged_npz(tmp_path):
    path = tmp_path / "t.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    whole = path.read_bytes()
    for length in [0, 1, 30, *range(50, len(whole) - 1, 37)]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"t.npz: is (truncated or damaged|empty)"):
            read_table(path)
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_table(path)
        except GradloomError as error:
            assert "\n" not in str(error)
    np.save(tmp_path / "a.npy", np.eye(3))
    path.write_bytes((tmp_path / "a.npy").read_bytes())
    with pytest.raises(DataError, match="holds one array without a name"):
        read_table(path)


def test_damaged_idx(tmp_path):
    folder = idx_folder(tmp_path / "d")
    images = folder / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    need = "its head needs 1000 (50 x 4 x 5 uint8)"
    for data, message in (
        (whole[:500], f"is truncated: 484 bytes of elements; {need}"),
        (whole[:-1], f"is truncated: 999 bytes of elements; {need}"),
        (whole + b"\0", f"has more than 1000 bytes; {need}"),
        (whole[:10], "is truncated: its head has 10 bytes; need 16"),
        (whole[:2], "starts with bytes 00 00; an idx file starts with 00 00, a type, 1..8 axes"),
        (b"PNG?" + whole[4:], "starts with bytes 50 4e 47 3f;"),
        (whole[:4] + b"\xff" * 12 + whole[16:], "is truncated: 1000 bytes of elements; its head needs 7922816"),
        (b"", "is empty (0 bytes); need an idx file"),
    ):
        images.write_bytes(data)
        with pytest.raises(FileError) as caught:
            read_table(folder)
        assert str(caught.value).startswith(f"{images}: {message}")
    packed = gzip.compress(whole, mtime=0)
    images.unlink()
    images = folder / "train-images-idx3-ubyte.gz"
    for data in (packed[: len(packed) // 2], packed[:-4], packed[:60] + bytes(9) + packed[69:], whole):
        images.write_bytes(data)
        with pytest.raises(FileError, match=r"train-images-idx3-ubyte.gz: .*(damaged|truncated)"):
            read_table(folder)


def test_idx_folders_that_lack_something(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(
        DataError, match="no training images among nothing; need a file such as train-images-idx3-ubyte"
    ):
        read_table(tmp_path / "d")
    folder = idx_folder(tmp_path / "d")
    with refused("target", kind=DataError):
        read_table(folder, target="x")
    (folder / "t10k-labels-idx1-ubyte").rename(folder / "other")
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte without test labels; need both or neither"):
        read_table(folder)
    idx_folder(tmp_path / "d")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(49, "u1")))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: 49 labels for 50 training images; need one for each"):
        read_table(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes((np.arange(50) % 9).astype("u1")))
    with pytest.raises(DataError, match="row 9 of the test has class '9', which no training row has"):
        read_table(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(50, "u1")))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(20, "u1")))
    with pytest.raises(DataError, match="a single class, '0', in all 50 training rows"):
        read_table(folder)


def test_the_classes_with_the_largest_remainders_give_one_row_more():
    """Of what is left after whole rows, the classes with the largest remainders give one more."""
    ids = np.repeat([0, 1, 2], [7, 8, 25])
    rows, held = hold_out(ids, 0.2, 0)
    assert np.bincount(ids[held]).tolist() == [1, 2, 5]  # of 1.4, 1.6 and 5.0
    assert np.array_equal(np.sort(np.concatenate([rows, held])), np.arange(40))
