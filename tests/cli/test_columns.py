"""The options of gradloom fit that say what columns are: heeded, saved, and the same in predict, resume and rerun."""

import json

import numpy as np
import pytest

from gradloom.files.toml_file import parse_toml
from tests.cli.command import run
from tests.cli.test_fit import one_thread  # noqa: F401


@pytest.fixture
def shop(tmp_path):
    """Sales by day: zip codes, a skewed price in dollars, an empty cell here and there, weights."""
    rng = np.random.default_rng(0)
    zips = ["02134", "98101", "00501", "60601"]
    rows = ["day,zip,price,note,w,sales"]
    for i in range(240):
        price = "" if i % 20 == 0 else f"${np.exp(1.5 * rng.normal()):.2f}"
        day = np.datetime64("2023-01-01") + i
        sales = 3 * (i % 4) + (i % 7 == 6) + 0.1 * rng.normal()
        rows.append(f"{day},{zips[i % 4]},{price},n{i % 3},{1 + i % 3},{sales:.3f}")
    path = tmp_path / "shop.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


OPTIONS = ["--time", "day", "--drop", "note", "--weight-column", "w", "--epochs", 4, "--val-split", 0.2, "--json"]


def fitted(capsys, path, out, *options):
    code, found, err = run(capsys, "fit", path, "--out", out, *options)
    assert code == 0, err
    return json.loads(found.splitlines()[-1]), err


def test_a_table_from_file_to_predictions(capsys, tmp_path, shop):
    found, err = fitted(capsys, shop, tmp_path / "a", *OPTIONS)
    assert (found["rows_train"], found["rows_val"], found["rows_test"]) == (154, 38, 48)
    for text in (
        "154 rows, 38 validation rows of later times, 48 test rows held out, the latest, 11 features",
        "time: 'day' holds dates of the form 2024-01-31; the rows are split by it, the latest last",
        "zip: 4 different whole numbers are taken as categories, because some begin with 0 (--numeric zip)",
        "columns left out: note (dropped)",
        "price: '$' of 228 cells is not part of the number",
        "price: 12 empty cells filled with the training median",
        "row weights in training: 'w'",
    ):
        assert text in err, (text, err)
    saved = parse_toml(tmp_path / "a" / "settings.toml")
    assert (saved["time"], saved["drop"], saved["weight_column"]) == ("day", ["note"], "w")
    lines = shop.read_text().splitlines()
    rest = [line.split(",") for line in lines]
    new = tmp_path / "new.csv"  # another order, without the columns that are not used
    new.write_text("\n".join(",".join([row[2], row[1], row[0]]) for row in rest) + "\n")
    outputs = []
    for path in (shop, new):
        code, out, _ = run(capsys, "predict", tmp_path / "a" / "model.safetensors", path)
        assert code == 0
        outputs.append(out)
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 241


def test_names_are_given_together_or_one_by_one(capsys, tmp_path, shop):
    """Of numbers, the last ones count."""
    base = ("--categorical", "w", "--epochs", 1, "--hidden", "7", "--hidden", "3,2")
    for name, given in (("a", (*base, "--drop", "note,day")), ("b", (*base, "--drop", "note", "--drop", "day"))):
        fitted(capsys, shop, tmp_path / name, *given, "--json")
    saved = [parse_toml(tmp_path / name / "settings.toml") for name in "ab"]
    assert saved[0]["drop"] == ["note", "day"] and saved[0]["hidden"] == [3, 2]
    assert all(saved[0][key] == saved[1][key] for key in ("categorical", "drop", "hidden"))


@pytest.mark.slow
def test_the_same_bytes_again(capsys, tmp_path, shop):
    fitted(capsys, shop, tmp_path / "a", *OPTIONS)
    whole = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert run(capsys, "rerun", tmp_path / "a", "--out", tmp_path / "b")[0] == 0
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole
    fitted(capsys, shop, tmp_path / "c", *OPTIONS, "--stop-after", "0.000001s")
    assert run(capsys, "fit", "--out", tmp_path / "c", "--resume")[0] == 0
    assert (tmp_path / "c" / "model.safetensors").read_bytes() == whole
    toml = tmp_path / "s.toml"
    toml.write_text('time = "day"\ndrop = ["note"]\nweight_column = "w"\nepochs = 4\nval_split = 0.2\n')
    fitted(capsys, shop, tmp_path / "d", "--config", toml, "--json")
    assert (tmp_path / "d" / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize(
    "options",
    [("--drop", "price"), ("--categorical", "w"), ("--numeric", "zip"), ("--time", "day"), ("--weight-column", "w")],
)
def test_each_option_changes_the_model(capsys, tmp_path, shop, options):
    fitted(capsys, shop, tmp_path / "a", "--epochs", 1, "--json")
    fitted(capsys, shop, tmp_path / "b", "--epochs", 1, "--json", *options)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert one != other


def test_test_rows_of_another_file(capsys, tmp_path, shop):
    lines = shop.read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join(lines[:200]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([lines[0], *lines[200:]]) + "\n")
    test = ("--test", tmp_path / "test.csv", "--drop", "day", "--epochs", 2, "--json")
    found, err = fitted(capsys, tmp_path / "train.csv", tmp_path / "a", *test)
    assert (found["rows_train"], found["rows_val"], found["rows_test"]) == (199, 199, 41) and "41 test rows from" in err
    assert "test_rmse" in found
    settings = parse_toml(tmp_path / "a" / "settings.toml")
    assert "test" in settings["run"]["digests"]
    (tmp_path / "test.csv").write_text("\n".join([lines[0], *lines[190:]]) + "\n")
    code, _, err = run(capsys, "rerun", tmp_path / "a", "--out", tmp_path / "b")
    assert code == 2 and "test.csv: has changed" in err
