"""gradloom predict: rows from stdin, columns that are kept, probabilities."""

import csv
import gzip
import io
import json
import sys

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.files import load_arrays, save_arrays
from tests.cli.command import run


def rows(kind, count=40):
    """A header and rows: an id with zeros in front, a name with a comma, two inputs, the target."""
    rng = np.random.default_rng(0)
    lines = ["id,name,size,colour,target"]
    for i in range(count):
        size, colour = rng.normal(5, 2), rng.choice(["red", "blue"])
        target = {"classes": "yes" if size > 5 else "no", "numbers": f"{3 * size:.2f}"}[kind]
        lines.append(f'{i:03d},"Doe, {i}",{size:.3f},{colour},{target}')
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    made = {}
    for kind in ("classes", "numbers"):
        data = folder / f"{kind}.csv"
        data.write_text("".join(",".join(line.rsplit(",", 3)[1:]) + "\n" for line in rows(kind).splitlines()))
        assert main(["fit", str(data), "--epochs", "3", "--hidden", "4", "--out", str(folder / kind)]) == 0
        (folder / f"all-{kind}.csv").write_text(rows(kind))
        made[kind] = folder / kind, folder / f"all-{kind}.csv"
    return made


def piped(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_rows_from_stdin(capsys, monkeypatch, fitted, kind):
    model, data = fitted[kind]
    capsys.readouterr()
    of_file = run(capsys, "predict", model, data)
    piped(monkeypatch, data.read_text())
    of_stdin = run(capsys, "predict", model, "-")
    assert of_file == of_stdin and of_file[0] == 0 and of_file[1].count("\n") == 41
    piped(monkeypatch, data.read_text())
    code, out, _ = run(capsys, "predict", model, "-", "--json")
    answer = json.loads(out.splitlines()[-1])
    assert code == 0 and answer["data"] == "-" and len(answer["predictions"]) == 40


def test_the_accuracy_and_its_standard_error(capsys, fitted, tmp_path):
    """Of rows with a target, some of them wrong: the mean of right and wrong, and the standard error of that mean."""
    model, data = fitted["classes"]
    lines = data.read_text().splitlines()
    for i in (3, 8, 21):
        lines[i] = lines[i].rpartition(",")[0] + (",no" if lines[i].endswith("yes") else ",yes")
    lines[5] = lines[5].rpartition(",")[0] + ","  # counts in no score
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    found = json.loads(run(capsys, "predict", model, tmp_path / "t.csv", "--json")[1])
    told = [line.rpartition(",")[2] for line in lines[1:]]
    right = [a == b for a, b in zip(told, found["predictions"], strict=True) if a]
    assert found["accuracy"] == np.mean(right) and 0 < np.mean(right) < 1 and found["rows_with_target"] == 39
    assert found["accuracy_unc"] == pytest.approx(np.std(right, ddof=1) / np.sqrt(39))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "gradloom: stdin: is empty (0 bytes)"),
        ("size,target\n1,2\n", "gradloom: stdin: no column 'colour'"),
        ("size,colour\n1,red\nx,red\n", "gradloom: stdin line 3: "),
    ],
)
def test_stdin_that_is_no_table(capsys, monkeypatch, fitted, text, message):
    piped(monkeypatch, text)
    capsys.readouterr()
    code, out, err = run(capsys, "predict", fitted["classes"][0], "-")
    assert (code, out) == (2, "") and err.startswith(message) and err.count("\n") == 1


def test_a_stdin_that_is_closed(capsys, monkeypatch, fitted):
    monkeypatch.setattr(sys, "stdin", None)
    capsys.readouterr()
    code, _, err = run(capsys, "predict", fitted["classes"][0], "-")
    assert code == 2 and err.startswith("gradloom: stdin: is closed; need")


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_columns_that_are_kept(capsys, monkeypatch, tmp_path, fitted, kind):
    """Their cells as they are in the file, in the order asked for, beside the same predictions, some rows at a time."""
    monkeypatch.setattr("gradloom.cli.predict._ROWS", 7)
    model, data = fitted[kind]
    capsys.readouterr()
    plain = list(csv.reader(io.StringIO(run(capsys, "predict", model, data)[1])))
    kept = list(csv.reader(io.StringIO(run(capsys, "predict", model, data, "--keep", "name,id")[1])))
    assert kept[0] == ["name", "id", *plain[0]] and kept[1][:2] == ["Doe, 0", "000"]
    assert [row[2:] for row in kept] == plain and [row[1] for row in kept[1:]] == [f"{i:03d}" for i in range(40)]
    assert kept == list(
        csv.reader(io.StringIO(run(capsys, "predict", model, data, "--keep", "name", "--keep", "id")[1]))
    )
    beside = list(csv.reader(io.StringIO(run(capsys, "predict", model, data, "--keep", "target")[1])))
    assert beside[0][:2] == ["target", "predicted target"]
    assert [row[0] for row in beside[1:]] == [line.rsplit(",", 1)[1] for line in data.read_text().splitlines()[1:]]
    code, _, _ = run(capsys, "predict", model, data, "--keep", "id", "--out", tmp_path / "p.csv")
    assert code == 0 and (tmp_path / "p.csv").read_text().startswith("id,target")
    answer = json.loads(run(capsys, "predict", model, data, "--keep", "id", "--json")[1].splitlines()[-1])
    assert answer["kept"] == {"id": [f"{i:03d}" for i in range(40)]}


def test_kept_cells_that_need_quotes(capsys, tmp_path, fitted):
    model, data = fitted["classes"]
    cells = ["  blank ", "cr\rhere", "line\nbreak", 'a "quote"', "a,b", ""]
    rows = list(csv.reader(io.StringIO(data.read_text())))[: len(cells) + 1]
    with open(tmp_path / "odd.csv", "w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([rows[0], *([cell, *row[1:]] for cell, row in zip(cells, rows[1:], strict=True))])
    out = tmp_path / "p.csv"
    assert run(capsys, "predict", model, tmp_path / "odd.csv", "--keep", "id", "--out", out)[0] == 0
    with open(out, newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["id", *cells]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("ID", "no column 'ID'; the nearest is 'id'"),
        ("id,", "--keep id,: must be different names of columns, such as id,name"),
        ("id,id", "--keep id,id: must be different names"),
        ("", "--keep: must be different names"),
    ],
)
def test_columns_that_cannot_be_kept(capsys, fitted, keep, message):
    capsys.readouterr()
    code, out, err = run(capsys, "predict", *fitted["classes"], "--keep", keep)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_arrays_have_no_columns_to_keep(capsys, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
    assert main(["fit", str(tmp_path / "t.npz"), "--epochs", "1", "--out", str(tmp_path / "o")]) == 0
    capsys.readouterr()
    code, out, err = run(capsys, "predict", tmp_path / "o", tmp_path / "t.npz", "--keep", "id")
    assert (code, out) == (2, "") and "t.npz: has no columns with names to keep; need a .csv file" in err


def test_probabilities_are_those_of_the_model(capsys, fitted):
    model, data = fitted["classes"]
    capsys.readouterr()
    table = list(csv.reader(io.StringIO(run(capsys, "predict", model, data)[1])))
    assert table[0] == ["target", "p(no)", "p(yes)"]
    shares = gl.load(model).predict_proba(data)
    assert [[float(p) for p in row[1:]] for row in table[1:]] == shares.tolist()
    assert all(sum(map(float, row[1:])) == pytest.approx(1, abs=1e-12) for row in table[1:])


def test_numbers_read_back_as_they_are(capsys, fitted):
    model, data = fitted["numbers"]
    capsys.readouterr()
    table = list(csv.reader(io.StringIO(run(capsys, "predict", model, data)[1])))
    assert [float(row[0]) for row in table[1:]] == gl.load(model).predict(data).tolist()


# ---- gradloom info of what was saved ---------------------------------------------------------------------------------


def test_info_of_a_model(capsys, fitted):
    model, _ = fitted["classes"]
    capsys.readouterr()
    code, out, err = run(capsys, "info", model)
    assert (code, err) == (0, "") and out == run(capsys, "info", model / "model.safetensors")[1]
    for part in (
        "a model of gradloom", "classification of target", "size, colour (text)", "2: no, yes", "test_accuracy",
        "epochs 3", "MemberLinear(members=8, n_in=7, n_out=4, activation='relu')",
    ):  # fmt: skip
        assert part in out, part
    code, out, _ = run(capsys, "info", model, "--tensors", "--json")
    facts, said = json.loads(out.splitlines()[-1]), json.loads((model / "result.json").read_text())
    assert "0.weight" in out and facts["kind"] == "model" and facts["classes"] == ["no", "yes"]
    assert facts["metrics"]["test_accuracy"] == said["test_accuracy"] and facts["about"]["epochs"] == 3
    assert [c["name"] for c in facts["columns"]] == ["size", "colour"]
    assert facts["parameters"] == said["parameters"] and facts["tensors"][0]["shape"] == [8, 1, 16]
    assert facts["network"]["net"]["layers"][1]["n_out"] == 4


def test_info_of_a_network_and_of_other_files(capsys, tmp_path):
    gl.save(gl.nn.Sequential(gl.nn.Linear(2, 3)), tmp_path / "net.safetensors", {"note": "kept"})
    code, out, _ = run(capsys, "info", tmp_path / "net.safetensors", "--keys")
    assert code == 0 and "a network of gradloom" in out and "9 parameters" in out and "note  kept" in out
    from gradloom.files import save_arrays

    save_arrays(tmp_path / "arrays.safetensors", {"a": np.zeros(3, np.float32)})
    code, out, err = run(capsys, "info", tmp_path / "arrays.safetensors")
    assert (code, out) == (2, "") and "holds arrays but no model of gradloom" in err


def test_predictions_are_csv(capsys, fitted):
    model, data = fitted["classes"]
    capsys.readouterr()
    for ending in ("parquet", "json", "safetensors", "xlsx"):
        code, _, err = run(capsys, "predict", model, data, "--out", f"predicted.{ending}")
        assert code == 2 and err == (
            f"gradloom: --out predicted.{ending}: must be the name of a CSV file, such as predicted.csv\n"
        )


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_a_parquet_file_trains_and_is_predicted(capsys, tmp_path, name):
    """As the CSV of the same rows: the same model, test rows and predictions."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    rng = np.random.default_rng(0)
    kinds, x = rng.choice(list("abc"), 150).tolist(), rng.normal(size=150).round(4).tolist()
    columns = {"kind": kinds, "x": x, "y": [round(v + (k == "a"), 4) for v, k in zip(x, kinds, strict=True)]}
    parquet.write_table(table(columns), tmp_path / "p.parquet")
    lines = ["kind,x,y", *(f"{k},{v},{y}" for k, v, y in zip(*columns.values(), strict=True))]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    made = {}
    for file in ("p.csv", name):
        out = tmp_path / f"o-{file}"
        options = ("--epochs", 2, "--out", out, "--test", tmp_path / file, "--val", tmp_path / file)
        assert run(capsys, "fit", tmp_path / file, *options)[0] == 0
        code, text, _ = run(capsys, "predict", out, tmp_path / file, "--keep", "kind")
        assert code == 0
        made[file] = text
    assert made["p.csv"] == made[name] and made[name].count("\n") == 151


@pytest.mark.parametrize("grouped", [False, True])
def test_commas_of_a_target_mean_what_they_meant_in_training(capsys, tmp_path, grouped):
    """Decimal commas beside semicolons, or thousands after a currency sign: also in a file with other separators."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=60).round(3)
    prices = [f"${1000 + 100 * v:,.0f}" if grouped else f"{10 + v:.3f}".replace(".", ",") for v in x]
    (tmp_path / "a.csv").write_text("x;y\n" + "".join(f"{v:.3f};{p}\n" for v, p in zip(x, prices, strict=True)))
    (tmp_path / "b.csv").write_text("x,y\n" + "".join(f'{v:.3f},"{p}"\n' for v, p in zip(x, prices, strict=True)))
    assert run(capsys, "fit", tmp_path / "a.csv", "--epochs", 30, "--out", tmp_path / "o")[0] == 0
    found = {}
    for name in "ab":
        code, out, _ = run(capsys, "predict", tmp_path / "o", tmp_path / f"{name}.csv", "--json")
        assert code == 0
        found[name] = json.loads(out.splitlines()[-1])
    assert found["a"]["rmse"] == pytest.approx(found["b"]["rmse"])


def test_words_of_odd_rows(capsys, tmp_path):
    """An empty text is shown; one row has a target."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{'pqr'[i % 3]},{'ab'[i % 2]}" for i in range(90)]
    (tmp_path / "t.csv").write_text("size,c,y\n" + "\n".join(rows) + "\n")
    assert run(capsys, "fit", tmp_path / "t.csv", "--epochs", 1, "--hidden", 4, "--out", tmp_path / "o")[0] == 0
    (tmp_path / "n.csv").write_text("size,c,y\n1,,a\n2,p,\n")
    code, _, err = run(capsys, "predict", tmp_path / "o", tmp_path / "n.csv")
    assert code == 0 and "c: 1 row with a text unknown from training: ''\n" in err, err
    assert " on 1 row that has a 'y'" in err


# -- scores of files that the model was trained on ---------------------------------------------------------------------


def scored(capsys, model, data):
    """(what --json prints, stderr) of predictions for a file."""
    code, out, err = run(capsys, "predict", model, data, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def trained(capsys, *words):
    """The numbers of a fit."""
    code, out, err = run(capsys, "fit", *words, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def labelled_rows(path, kind, count=90):
    """Rows in a file of this kind, of which some have no target."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 3)).round(3), rng.normal(size=count).round(2)
    y[[3, 40]] = np.nan
    path = path / f"t.{kind}"
    if kind == "npz":
        np.savez(path, x=x, y=y)
        return path
    lines = [f"{','.join(map(str, row))},{'' if np.isnan(of) else of}" for row, of in zip(x, y, strict=True)]
    text = ("a,b,c,y\n" + "\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "npz"])
@pytest.mark.parametrize("val", [(), ("--val-split", 0.2)])
def test_training_and_held_out_rows_are_scored_apart(capsys, monkeypatch, tmp_path, kind, val):
    """Each with the rows and the numbers that fit has measured, under any name of the file."""
    data = labelled_rows(tmp_path, kind)
    fitted = trained(capsys, data, "--hidden", 4, "--epochs", 3, *val, "--out", tmp_path / "a")
    data = data.rename(tmp_path / f"moved.{kind}")
    found, err = scored(capsys, tmp_path / "a", data)
    assert "r2" in found and found["rows_with_target"] == 88 and "warning" not in err
    rows = {"train": fitted["rows_train"], "val": fitted["rows_val"] if val else 0, "test": fitted["rows_test"]}
    assert {name: part["rows_with_target"] for name, part in found["scores"].items()} == {
        name: count for name, count in rows.items() if count
    }
    assert found["scores"]["test"]["rmse"] == pytest.approx(fitted["test_rmse"], rel=1e-6)
    assert "training rows: R2 " in err and "test rows: R2 " in err and ("validation rows: R2 " in err) == bool(val)
    if kind == "csv":
        piped(monkeypatch, data.read_text())
        assert scored(capsys, tmp_path / "a", "-")[0]["scores"] == found["scores"]
    names = ["column 1", "column 2", "column 3"] if kind == "npz" else ["a", "b", "c"]
    (tmp_path / "new.csv").write_text(f"{','.join(names)},y\n1,2,3,4\n2,3,4,5\n")
    other, err = scored(capsys, tmp_path / "a", tmp_path / "new.csv")
    assert "scores" not in other and other["rows_with_target"] == 2 and "r2" in other and "training" not in err


def test_files_of_test_and_validation_rows(capsys, tmp_path, fitted):
    """They are scored as a whole; the file of the training has no other rows then."""
    data = fitted["numbers"][1]
    lines = data.read_text().splitlines()
    for name, part in (("train", lines[1:21]), ("val", lines[21:31]), ("test", lines[31:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    names = [tmp_path / f"{name}.csv" for name in ("train", "val", "test")]
    words = (
        "--val",
        f"new={names[1]}",
        "--test",
        names[2],
        "--epochs",
        2,
        "--drop",
        "id,name",
        "--out",
        tmp_path / "a",
    )
    trained(capsys, names[0], *words)
    for name, path, count in zip(("train", "val", "test"), names, (20, 10, 10), strict=True):
        found, err = scored(capsys, tmp_path / "a", path)
        assert list(found["scores"]) == [name] and found["scores"][name]["rows_with_target"] == count
        assert found["r2"] == found["scores"][name]["r2"] and "all rows" not in err


@pytest.mark.parametrize("keys", [("x_train", "y_train", "x_test", "y_test"), ("x", "y", "x_test", "y_test")])
def test_arrays_with_test_rows_of_their_own(capsys, tmp_path, keys):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(30, 3)), np.arange(30) % 2, rng.normal(size=(30, 3)), np.arange(30) % 2]
    np.savez(tmp_path / "t.npz", **dict(zip(keys, arrays, strict=True)))
    fitted = trained(capsys, tmp_path / "t.npz", "--hidden", 4, "--epochs", 1, "--out", tmp_path / "a")
    found, _ = scored(capsys, tmp_path / "a", tmp_path / "t.npz")
    if keys[0] == "x":  # which is what predict reads
        assert list(found["scores"]) == ["train"]
    else:
        assert list(found["scores"]) == ["test"] and found["accuracy"] == fitted["test_accuracy"]


def test_rows_without_weight_are_left_out(capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{i % 3 and 1},{'xy'[int(a > 0)]}" for i, a in enumerate(rng.normal(size=90))]
    (tmp_path / "t.csv").write_text("a,w,y\n" + "\n".join(rows) + "\n")
    trained(capsys, tmp_path / "t.csv", "--weight-column", "w", "--epochs", 1, "--out", tmp_path / "a")
    found, err = scored(capsys, tmp_path / "a", tmp_path / "t.csv")
    assert {name: part["rows_with_target"] for name, part in found["scores"].items()} == {
        "train": 48, "test": 12, "left_out": 30
    }  # fmt: skip
    assert "rows left out of the training: accuracy " in err


def test_a_model_that_does_not_hold_its_rows(capsys, tmp_path, fitted):
    """As an earlier version has saved it: that it was trained on the file is all that it tells."""
    folder, data = fitted["classes"]
    opened, trained_on = gl.load(folder), data.with_name("classes.csv")
    assert opened.uses.digests == {"data": opened.about["data"]}
    opened.uses = None
    gl.save(opened, tmp_path / "old.safetensors")
    found, err = scored(capsys, tmp_path / "old.safetensors", trained_on)
    assert "scores" not in found and "accuracy" in found and len(found["warnings"]) == 1
    assert "warning: the model was trained on this file and does not hold which rows" in err
    assert "warnings" not in scored(capsys, tmp_path / "old.safetensors", data)[0]


@pytest.mark.parametrize("how", ["half", "packed", "sorted anew"])
def test_training_rows_in_another_file(capsys, tmp_path, how):
    """A warning counts them; rows that were held out are no training rows, however they are stored."""
    data = labelled_rows(tmp_path, "csv")
    fitted = trained(capsys, data, "--hidden", 4, "--epochs", 1, "--out", tmp_path / "a")
    header, *rows = data.read_text().splitlines()
    uses = gl.load(tmp_path / "a").uses.uses
    held, other = [row for row, use in zip(rows, uses, strict=True) if use == 3], tmp_path / "other.csv"
    other.write_text("\n".join([header, *held]) + "\n")
    assert "warnings" not in scored(capsys, tmp_path / "a", other)[0]
    rows = {"half": rows[:45], "packed": rows, "sorted anew": sorted(rows)}[how]
    count = sum(use == 1 for use in uses[: len(rows)])
    text = ("\n".join([header, *rows]) + "\n").encode()
    other = tmp_path / "other.csv.gz" if how == "packed" else other
    other.write_bytes(gzip.compress(text) if how == "packed" else text)
    found, err = scored(capsys, tmp_path / "a", other)
    assert "scores" not in found and "r2" in found and len(found["warnings"]) == 1
    assert f"warning: {count} of {fitted['rows_train']} training rows" in err


def test_training_rows_of_large_tables_and_of_rows_that_repeat(capsys, tmp_path):
    """A sample of them is compared; where rows equal one another, new ones would equal them, too."""
    rng = np.random.default_rng(0)
    lines = [f"{a:.4f},{b:.4f},{'xy'[int(a > b)]}" for a, b in rng.normal(size=(4000, 2))]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    trained(capsys, tmp_path / "t.csv", "--hidden", "", "--epochs", 1, "--out", tmp_path / "a")
    (tmp_path / "part.csv").write_text("a,b,y\n" + "\n".join(lines[:2000]) + "\n")
    found = scored(capsys, tmp_path / "a", tmp_path / "part.csv")[0]["warnings"][0]
    count, of = (int(text.replace(",", "")) for text in found.split()[0:3:2])
    assert of == 1024 and 400 < count < 624
    rows = [f"{'pq'[i % 2]},{i % 3},{'xy'[i % 5 > 2]}" for i in range(200)]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    trained(capsys, tmp_path / "t.csv", "--hidden", "", "--epochs", 1, "--out", tmp_path / "b")
    (tmp_path / "part.csv").write_text("a,b,y\n" + "\n".join(rows[:50]) + "\n")
    assert "warnings" not in scored(capsys, tmp_path / "b", tmp_path / "part.csv")[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 9, "uses": "AA==", "array": "", "test_array": ""}', "x"])
def test_uses_of_rows_that_are_damaged(capsys, tmp_path, fitted, text):
    arrays, metadata = load_arrays(fitted["classes"][0] / "model.safetensors")
    save_arrays(tmp_path / "m.safetensors", arrays, {**metadata, "gradloom.rows": text})
    code, out, err = run(capsys, "predict", tmp_path / "m.safetensors", fitted["classes"][1])
    assert (code, out) == (2, "") and "row uses" in err and err.count("\n") == 1
