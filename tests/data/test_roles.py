"""What a user says of columns, and what is found out of them: dropped ones, categories, codes, times, weights."""

import itertools
import json

import numpy as np
import pytest

from gradloom.base.errors import DataError, SettingError
from gradloom.data import Preprocess, read_features, read_table
from gradloom.data.frames import features_of, learned
from tests.refused import refused


def write(path, names, *columns):
    rows = zip(*columns, strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def kinds(table):
    return {c.name: c.kind for c in table.preprocess.columns}


@pytest.fixture
def plain(tmp_path):
    n = 120
    rng = np.random.default_rng(0)
    names = ["a", "b", "w", "y"]
    return write(
        tmp_path / "t.csv", names, rng.normal(size=n).round(3), np.arange(n) % 5, 1 + np.arange(n), np.arange(n) % 2
    )


# ---- roles -----------------------------------------------------------------------------------------------------------


def test_dropped_columns_are_not_used(plain):
    table = read_table(plain, drop=["a", "w"])
    assert kinds(table) == {"a": "unused", "b": "number", "w": "unused"} and table.preprocess.inputs == 1
    assert "columns left out: a (dropped), w (dropped)" in table.notes
    plain.write_text("b,y\n1,0\n")
    assert read_features(plain, table.preprocess)[0].shape == (1, 1)


def test_numbers_as_categories_and_texts_as_numbers(plain, tmp_path):
    table = read_table(plain, categorical=["b"])
    assert kinds(table)["b"] == "text" and table.preprocess.columns[1].categories == ["0", "1", "2", "3", "4"]
    again = read_features(plain, table.preprocess)[0]
    assert again.shape == (120, 7) and (again[:, 1:6].sum(axis=1) == 1).all()
    write(tmp_path / "u.csv", ["zip", "z", "y"], ["02134", "98101", "00501"] * 20, ["1", "x", "2"] * 20, [0, 1, 1] * 20)
    assert kinds(read_table(tmp_path / "u.csv", numeric=["zip"])) == {"zip": "number", "z": "text"}
    with pytest.raises(DataError, match=r"u.csv line 3: column 'z': 'x' is no number, as 40 of its other cells are"):
        read_table(tmp_path / "u.csv", numeric=["z"])
    kept = read_table(tmp_path / "u.csv", categorical=["zip"]).preprocess.columns[0]
    assert kept.categories == ["00501", "02134", "98101"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drop": ["A"]}, DataError, "no column 'A'; the nearest is 'a' (columns: a, b, w, y); see drop"),
        ({"weight": "v"}, DataError, "; see weight_column"),
        ({"drop": ["y"]}, SettingError, "drop: 'y' is also the target"),
        ({"time": "a", "numeric": ["a"]}, SettingError, "time: 'a' is also the column of numbers"),
        ({"weight": "a"}, DataError, "weight column 'a' is -"),
    ],
)
def test_wrong_roles(plain, options, error, message):
    with pytest.raises(error) as caught:
        read_table(plain, **options)
    assert message in str(caught.value)


def test_roles_of_arrays(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(40) % 2, feature_names=["u", "v", "w"])
    assert kinds(read_table(tmp_path / "t.npz", drop=["v"])) == {"u": "number", "v": "unused", "w": "number"}
    np.savez(tmp_path / "t.npz", x=x.reshape(40, 3, 1), y=np.arange(40) % 2)
    with refused("drop", ...):
        read_table(tmp_path / "t.npz", drop=["v"])


def test_weights_of_rows(plain):
    table = read_table(plain, weight="w", target="y", seed=3)
    assert kinds(table)["w"] == "unused" and table.train.weights is not None and table.test.weights is None
    without = read_table(plain, target="y", seed=3)
    whole = without.train.data[:, 2] * without.preprocess.columns[2].std + without.preprocess.columns[2].mean
    np.testing.assert_allclose(table.train.weights, whole, atol=1e-3)
    assert "row weights in training: 'w'" in table.notes


def test_a_file_of_test_rows(plain, tmp_path):
    write(tmp_path / "u.csv", ["y", "b", "a", "w"], [0, 1, "", 2], [1, 2, 3, 4], [0.5] * 4, [1] * 4)
    table = read_table(plain, test=tmp_path / "u.csv")
    assert (table.train.n, table.test.n, table.test_from) == (120, 2, "--test")
    assert table.test.labels.tolist() == [0, 1]
    assert any(note.endswith("u.csv: 2 rows without a usable target left out") for note in table.notes)
    for text, message in (("a,b,w\n1,2,3\n", "has no 'y' to test on"), ("a,b,w,y\n1,2,3,7\n", "no row has a 'y' that")):
        (tmp_path / "u.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            read_table(plain, test=tmp_path / "u.csv")


# ---- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d %b %Y"]
)
def test_rows_are_split_by_time(tmp_path, form):
    days = np.datetime64("2020-01-01") + np.random.default_rng(1).permutation(200)
    texts = [day.item().strftime(form) for day in days]
    write(tmp_path / "t.csv", ["when", "a", "y"], texts, np.arange(200) % 7, (days - days.min()).astype(int) + 0.5)
    table = read_table(tmp_path / "t.csv", time="when", val_split=0.25)
    back = table.preprocess.outputs_to_targets
    train, val, test = back(table.train.labels), back(table.val.labels), table.test_targets
    assert (len(train), len(val), len(test), table.test_from) == (120, 40, 40, "the latest")
    assert train.max() < val.min() and val.max() < test.min() and (np.diff(train[:, 0]) > 0).all()
    column = table.preprocess.columns[0]
    assert (column.kind, column.parts) == ("time", ["year", "week"]) and column.width == 5
    np.testing.assert_allclose(table.train.data[:, 0].mean(), 0, atol=1e-5)
    again = Preprocess.from_json(table.preprocess.to_json())
    features, *_ = read_features(tmp_path / "t.csv", again)
    order = np.argsort(days)
    np.testing.assert_array_equal(features[order][:120], table.train.data)
    week = features[order][:, 3:5]
    np.testing.assert_allclose(week[7:14], week[:7], atol=1e-5)
    assert len(np.unique(week[:7].round(3), axis=0)) == 7


def test_years_and_steps_are_times_as_they_stand(tmp_path):
    write(tmp_path / "t.csv", ["year", "y"], np.arange(1990, 2020), np.arange(30) + 0.5)
    table = read_table(tmp_path / "t.csv", time="year")
    assert table.preprocess.inputs == 1 and table.test_targets.tolist() == [24.5, 25.5, 26.5, 27.5, 28.5, 29.5]


def test_hours_are_a_cycle(tmp_path):
    stamps = np.datetime64("2020-01-01T00:00") + 60 * np.arange(72)
    write(tmp_path / "t.csv", ["t", "y"], stamps, np.arange(72) % 24 + 0.5)
    table = read_table(tmp_path / "t.csv", time="t", test_split=0)
    assert "day" in table.preprocess.columns[0].parts
    sine = table.train.data[:, -2]
    np.testing.assert_allclose(sine[[0, 6, 12, 18, 24]], [0, 1, 0, -1, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["2020-01-01", "soon"] * 9, "line 3: time column 't': 'soon' is no time; need dates such as 2024-01-31"),
        (["2020-01-01", ""] * 9, "line 3: time column 't' is empty; need a time in each row to train on"),
        (["01/02/2020", "03/04/2020"] * 9, "line 2: time column 't': '01/02/2020' may be day or month first; need"),
        (["2020-13-01", "2020-01-01"] * 9, "line 2: time column 't': '2020-13-01' is no time"),
    ],
)
def test_cells_that_are_no_times(tmp_path, cells, message):
    write(tmp_path / "t.csv", ["t", "a", "y"], cells, range(18), np.arange(18) + 0.5)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / "t.csv", time="t")
    assert message in str(caught.value)


# ---- what is found out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("zip_code", np.arange(60) % 6 + 98101, "the name contains 'zip'"),
        ("StoreId", np.arange(60) % 6, "the name contains 'id'"),
        ("area", [f"{i % 6:03d}" for i in range(60)], "some begin with 0"),
        ("branch", [(10007, 99013, 45678, 23456, 77001, 50123)[i % 6] for i in range(60)], "all have 5 digits"),
        ("idle", np.arange(60) % 6, None),
        ("salary", [30000 + 700 * (i % 6) for i in range(60)], None),
        ("year", np.arange(60) % 6 + 2015, None),
        ("code", np.arange(60) % 6 + 0.5, None),
    ],
)
def test_codes_are_categories(tmp_path, name, values, why):
    table = read_table(write(tmp_path / "t.csv", [name, "a", "y"], values, range(60), np.arange(60) % 2), test_split=0)
    said = f"{name}: 6 different whole numbers are taken as categories, because {why} (--numeric {name})"
    assert (said in table.notes) is (why is not None) and kinds(table)[name] == ("number" if why is None else "text")
    assert kinds(read_table(tmp_path / "t.csv", numeric=[name]))[name] == "number"


def test_missing_values_have_an_indicator(tmp_path):
    cells = ["" if i % 4 == 0 else i for i in range(80)]
    path = write(tmp_path / "t.csv", ["a", "b", "y"], cells, range(80), np.arange(80) % 2)
    table = read_table(path, test_split=0)
    assert table.train.data[:, 1].tolist() == [float(i % 4 == 0) for i in range(80)]
    path.write_text("a,b\n,1\n5,\n")
    assert read_features(path, table.preprocess)[0][:, 1].tolist() == [1, 0]
    few = write(path, ["a", "b", "y"], ["", *range(79)], range(80), np.arange(80) % 2)
    assert read_table(few, test_split=0).preprocess.inputs == 2  # a row alone would be learned by heart


def test_skewed_numbers_are_transformed_by_the_training_rows(tmp_path):
    rng = np.random.default_rng(0)
    skewed = np.exp(2 * rng.normal(size=400)).round(4)
    path = write(tmp_path / "t.csv", ["s", "n", "y"], skewed, rng.normal(size=400).round(3), np.arange(400) % 2)
    table = read_table(path)
    column, other = table.preprocess.columns
    assert column.scale > 0 and other.scale == 0
    assert abs(table.train.data[:, 0]).max() < 0.7 * (skewed.max() - skewed.mean()) / skewed.std()
    features, *_ = read_features(path, table.preprocess)
    shaped = np.arcsinh((skewed - column.center) / column.scale)
    np.testing.assert_allclose(features[:, 0], (shaped - column.mean) / column.std, rtol=1e-4, atol=1e-5)
    changed = skewed.copy()
    held = np.setdiff1d(np.arange(400), np.flatnonzero(np.isin(features[:, 0], table.train.data[:, 0])))
    changed[held] = 1e6
    write(path, ["s", "n", "y"], changed, rng.normal(size=400).round(3), np.arange(400) % 2)
    assert read_table(path).preprocess.columns[0] == column  # no test row was looked at


def test_many_categories_are_few_features(tmp_path):
    rng = np.random.default_rng(0)
    n, count = 4000, 500
    place = rng.integers(0, count, n)
    effect = rng.normal(size=count)
    y = (effect[place] + 0.1 * rng.normal(size=n)).round(4)
    path = write(tmp_path / "t.csv", ["zip", "a", "y"], place + 10000, rng.normal(size=n).round(3), y)
    table = read_table(path)
    column = table.preprocess.columns[0]
    assert (column.kind, column.width, table.preprocess.inputs) == ("encoded", 2, 3)
    for rows, targets in ((table.train.data, table.train.labels[:, 0]), (table.test.data, table.test_targets)):
        assert np.corrcoef(rows[:, 0], targets)[0, 1] > 0.9
    again = Preprocess.from_json(table.preprocess.to_json())
    features, *_ = read_features(path, again)
    test = np.isin(features[:, 2], table.test.data[:, 2])
    assert test.sum() >= table.test.n
    path.write_text("zip,a\n99999,0\n")
    assert read_features(path, again)[0][0, :2].tolist() == [0, 0]


def test_no_row_is_encoded_by_its_own_target(tmp_path):
    """Targets of noise: codes that saw their own row would tell them."""
    rng = np.random.default_rng(0)
    n = 3000
    place = np.arange(n) % 600
    path = write(tmp_path / "t.csv", ["c", "a", "y"], [f"t{p}" for p in place], range(n), rng.normal(size=n).round(4))
    table = read_table(path)
    assert abs(np.corrcoef(table.train.data[:, 0], table.train.labels[:, 0])[0, 1]) < 0.1
    features, targets, *_ = read_features(path, table.preprocess)
    assert np.corrcoef(features[:, 0], targets[:, 0])[0, 1] > 0.3  # as they are for rows to predict
    same = read_table(path)
    assert np.array_equal(table.train.data, same.train.data)


@pytest.mark.parametrize("classes", [2, 3, 40])
def test_many_categories_of_classes(tmp_path, classes):
    n = 6000
    place = np.random.default_rng(0).permutation(n) % 300
    path = write(
        tmp_path / "t.csv", ["c", "a", "y"], [f"t{p}" for p in place], range(n), [f"k{p % classes}" for p in place]
    )
    made = read_table(path).preprocess
    assert made.columns[0].width == min(classes - 1, 20) + 1 and len(made.columns[0].categories) == 300


def test_damaged_columns_are_refused(tmp_path):
    cells = ["" if i % 4 == 0 else np.exp(i / 8) for i in range(80)]
    path = write(tmp_path / "t.csv", ["a", "y"], cells, np.arange(80) % 2)
    whole = json.loads(read_table(path).preprocess.to_json())
    assert {"has_missing", "scale", "center"} <= whole["columns"][0].keys()
    for key, value in (("scale", -1.0), ("has_missing", 1), ("codes", [1.0]), ("form", "iso"), ("parts", ["year"])):
        damaged = json.loads(json.dumps(whole))
        damaged["columns"][0][key] = value
        with pytest.raises(DataError):
            Preprocess.from_json(json.dumps(damaged))


# ---- rows that are no file -------------------------------------------------------------------------------------------


class Frame(dict):
    """As a DataFrame has them: columns, each of which to_numpy() gives."""

    class Column(list):
        def to_numpy(self):
            return np.array(self, dtype=object)

    columns = property(lambda self: list(self))

    def __getitem__(self, name):
        return Frame.Column(super().__getitem__(name))

    def to_numpy(self):
        raise AssertionError


def test_frames_are_read_as_files_are(tmp_path):
    columns = {"zip": ["02134", "98101", "00501"] * 20, "p": ["$1.5", "-", "3"] * 20, "t": ["a", "b", None] * 20}
    files = [["" if cell is None else cell for cell in column] for column in columns.values()]
    path = write(tmp_path / "t.csv", [*columns, "y"], *files, [0, 1, 2] * 20)
    made = read_table(path, test_split=0).preprocess
    features, targets, notes, _ = features_of(Frame(columns, y=["0", "1", "2"] * 20), made)
    again, of_file, said, _ = read_features(path, made)
    assert np.array_equal(features, again) and np.array_equal(targets, of_file) and notes == said
    with pytest.raises(DataError, match="rows row 1: column 'p': 'x' is no number"):
        features_of(Frame(columns, p=["1", "x", "3"] * 20), made)


def test_many_categories_of_a_frame_are_encoded_by_the_labels():
    rng = np.random.default_rng(0)
    place = rng.integers(0, 300, 3000)
    effect = rng.normal(size=300)
    frame = Frame(c=[f"t{p}" for p in place])
    made, features = learned(frame, None, effect[place][:, None], "regression", target_mean=[0.0], target_std=[1.0])
    assert made.columns[0].kind == "encoded" and np.corrcoef(features[:, 0], effect[place])[0, 1] > 0.9


def test_masked_elements_are_missing(tmp_path):
    path = write(tmp_path / "t.csv", ["a", "b", "y"], [*[""] * 6, *range(6, 41)], range(41), np.arange(41) % 2)
    made = read_table(path, test_split=0).preprocess
    rows = np.ma.masked_array([[5.0, 1.0], [7.0, 2.0]], mask=[[True, False], [False, False]])
    features, _, notes, _ = features_of(rows, made)
    assert features[:, 1].tolist() == [1, 0] and notes == ["a: 1 empty cell filled with the training median 23"]


@pytest.mark.parametrize(
    "cell, said",
    [
        ("1e300", "is 1e\\+300; need one that float32 holds"),
        ("1e-50", "is 1e-50; need one that float32 holds"),
        ("inf", "is inf; need a number of at least 0"),
        ("-1", "is -1; need a number of at least 0"),
        ("", "is missing; need a number of at least 0"),
    ],
)
def test_a_weight_that_training_cannot_take_is_named(tmp_path, cell, said):
    rows = ["x,w,y", *(f"{i},{cell if i == 5 else 2},{i % 2}" for i in range(12))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=f"t.csv line 7: weight column 'w' {said}"):
        read_table(tmp_path / "t.csv", weight="w")


# ---- rows of one time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 3, 7, 40])
@pytest.mark.parametrize("val_split", [0.0, 0.15])
def test_rows_of_one_time_stay_together(tmp_path, each, val_split):
    days = np.datetime64("2020-01-01") + np.arange(200) // each
    order = np.random.default_rng(0).permutation(200)
    write(tmp_path / "t.csv", ["when", "y"], days[order], np.arange(200)[order] + 0.5)
    table = read_table(tmp_path / "t.csv", time="when", val_split=val_split)
    back = table.preprocess.outputs_to_targets
    parts = [back(table.train.labels)[:, 0], table.test_targets]
    parts[1:1] = [back(table.val.labels)[:, 0]] if val_split else []
    on_days = [np.unique(np.rint(part - 0.5).astype(int) // each) for part in parts]
    for one, next_one in itertools.pairwise(on_days):
        assert one.max() < next_one.min()
    assert sum(map(len, parts)) == 200 and abs(len(parts[-1]) - 40) <= each / 2
    moved = [note for note in table.notes if "rows of the same time stay together" in note]
    assert bool(moved) == (
        len(parts[-1]) != 40 or (val_split > 0 and len(parts[1]) != round((200 - len(parts[-1])) * 0.15))
    )


def test_one_time_alone_cannot_be_split(tmp_path):
    write(tmp_path / "t.csv", ["when", "a", "y"], ["2020-01-01"] * 20, range(20), np.arange(20) + 0.5)
    with pytest.raises(DataError, match="all 20 rows that are left have the same time; the test rows require later"):
        read_table(tmp_path / "t.csv", time="when")
    days = ["2020-01-01"] * 16 + ["2020-01-02"] * 4
    write(tmp_path / "t.csv", ["when", "a", "y"], days, range(20), np.arange(20) + 0.5)
    with pytest.raises(DataError, match="all 16 rows that are left have the same time; the validation rows require"):
        read_table(tmp_path / "t.csv", time="when", val_split=0.2)
    assert read_table(tmp_path / "t.csv", time="when").test.n == 4
    days = [2020] * 160 + [2021] * 40
    write(tmp_path / "t.csv", ["when", "a", "y"], days, range(200), np.arange(200) + 0.5)
    table = read_table(tmp_path / "t.csv", time="when", val_split=None)
    assert (table.train.n, table.val, table.val_split, table.test.n) == (160, None, 0.0, 40)
