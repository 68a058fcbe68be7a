"""gl.load of what `gradloom fit` saved: the predictions of `gradloom predict`, from files, frames and rows."""

import json
import warnings

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main

SEPARABLE = 200


def mixed(path, task="classification"):
    """A table with numbers, texts, empty cells and an unused column, as (path, columns)."""
    rng = np.random.default_rng(0)
    size, colour = rng.normal(5, 2, SEPARABLE).round(3), rng.choice(["red", "green", "blue"], SEPARABLE)
    label = np.where(size + 3 * (colour == "red") > 6, "yes", "no")
    price = (10 * size + 100 * (colour == "red")).round(2)
    lines = [
        f"{i},{'' if i % 17 == 3 else s},{c},1,{label[i] if task == 'classification' else price[i]}"
        for i, (s, c) in enumerate(zip(size, colour, strict=True))
    ]
    path.write_text("id,size,colour,same,target\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    made = {}
    for task in ("classification", "regression"):
        data = mixed(folder / f"{task}.csv", task)
        assert main(["fit", str(data), "--epochs", "5", "--hidden", "8", "--out", str(folder / task)]) == 0
        made[task] = data, folder / task
    return made


def predicted(capsys, model, data, *options):
    """What the command says, as --json."""
    capsys.readouterr()
    assert main(["predict", str(model), str(data), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_what_the_command_says_of_rows_is_a_warning(capsys, fitted):
    data, folder = fitted["classification"]
    model = gl.load(folder)
    rows = [[0, 5.0, "violet", 1], [1, "", "red", 1]]

    path = data.with_name("odd.csv")
    path.write_text("id,size,colour,same\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    notes = predicted(capsys, folder, path)["notes"]
    assert len(notes) >= 2
    for ask in (model.predict, model.predict_proba):
        for given in (path, rows):
            with pytest.warns(UserWarning) as caught:
                ask(given)
            assert [str(each.message) for each in caught] == notes, given
            assert {each.filename for each in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict([[0, 5.0, "red", 1]])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_predictions_are_those_of_the_command(capsys, fitted, task):
    data, folder = fitted[task]
    said = predicted(capsys, folder, data)
    model = gl.load(folder)
    assert gl.load(str(folder / "model.safetensors")).predict(data).tolist() == said["predictions"]
    assert (model.task, model.target) == (task, "target")
    if task == "classification":
        assert model.classes == ["no", "yes"]
        np.testing.assert_array_equal(model.predict_proba(data), said["probabilities"])
    else:
        assert model.predict(data).dtype == np.float64
        with pytest.raises(gl.SettingError, match="predict_proba: the model is a regression"):
            model.predict_proba(data)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.slow
def test_frames_and_rows_are_read_as_the_file_is(fitted, task):
    pandas = pytest.importorskip("pandas")
    data, folder = fitted[task]
    model, frame = gl.load(folder), pandas.read_csv(data)
    expected = model.predict(data)
    np.testing.assert_array_equal(model.predict(frame), expected)
    np.testing.assert_array_equal(
        model.predict(frame.drop(columns="target")[["same", "colour", "id", "size"]]), expected
    )
    rows = frame.drop(columns="target").to_numpy().tolist()  # texts and numbers, NaN for an empty cell
    np.testing.assert_array_equal(model.predict(rows), expected)
    with pytest.raises(gl.DataError, match="no column 'colour'"):
        model.predict(frame.drop(columns="colour"))
    with pytest.raises(gl.DataError, match="rows: 3 columns; need 4 as in training"):
        model.predict([row[:3] for row in rows])
    with pytest.raises(gl.DataError, match=r"rows: an array of shape \[4\]; need rows along the first axis"):
        model.predict(rows[0])
    with pytest.raises(gl.DataError, match="of rows of different lengths"):
        model.predict([rows[0], rows[1][:2]])


def test_kinds_of_columns_that_pandas_has(fitted):
    """Nullable numbers, texts, categories and missing values of each."""
    pandas = pytest.importorskip("pandas")
    data, folder = fitted["classification"]
    model, frame = gl.load(folder), pandas.read_csv(data)
    frame.loc[5, "colour"] = None
    expected = model.predict_proba(frame)
    for kinds in ({"size": "Float64", "id": "Int64", "colour": "string"}, {"colour": "category", "id": "float32"}):
        np.testing.assert_array_equal(model.predict_proba(frame.astype(kinds)), expected)
    assert not np.array_equal(model.predict_proba(frame.assign(size=1.0)), expected)


def test_numbers_alone(capsys, tmp_path):
    """An array of the right columns, and the DataFrame with them in another order."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame["y"] = frame.a - frame.b
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert main(["fit", str(tmp_path / "t.csv"), "--epochs", "2", "--out", str(tmp_path / "out")]) == 0
    model = gl.load(tmp_path / "out")
    expected = model.predict(tmp_path / "t.csv")
    np.testing.assert_array_equal(model.predict(frame[["a", "b"]].to_numpy()), expected)
    np.testing.assert_array_equal(model.predict(frame[["b", "a"]]), expected)
    np.testing.assert_array_equal(model.predict(frame[["a", "b"]].to_numpy().tolist()), expected)


def test_what_was_measured_and_how_it_was_trained_is_in_the_file(capsys, fitted):
    folder = fitted["classification"][1]
    model = gl.load(folder)
    result = json.loads((folder / "result.json").read_text())
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_accuracy_unc"):
        assert model.metrics[name] == result[name]
    assert model.about["epochs"] == 5 and model.about["seed"] == 0 and model.about["optimizer"] == "adamw"
    said = model.summary()
    for part in ("classification of target", "size, colour (text)", "2: no, yes", "test_accuracy", "n_out=8", "seed 0"):
        assert part in said
    assert repr(model).startswith("Model(classification of target; ") and "0x" not in repr(model)
    assert "<table>" in model._repr_html_() and "Linear" in model._repr_html_()


def test_a_model_is_saved_again(capsys, fitted, tmp_path):
    data, folder = fitted["classification"]
    model = gl.load(folder)
    gl.save(model, tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    model.net.init(5)
    gl.save(model, tmp_path / "other.gguf")
    other = gl.load(tmp_path / "other.gguf")
    np.testing.assert_array_equal(other.predict_proba(data), model.predict_proba(data))
    assert not np.array_equal(other.predict_proba(data), gl.load(folder).predict_proba(data))


def test_a_network_alone_does_not_predict_tables(capsys, tmp_path):
    gl.save(gl.nn.Sequential(gl.nn.Linear(2, 2)), tmp_path / "net.safetensors")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "net.safetensors"), str(tmp_path / "t.csv")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "holds a network without the preprocessing of its rows; need a model of gradloom fit" in err


@pytest.fixture(scope="module", params=[3, 0], ids=["target last", "target first"])
def without_header(request, tmp_path_factory):
    """(model of a file without column names, its rows with the target where the file has it, the target's place)."""
    path, place = tmp_path_factory.mktemp("plain"), request.param
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)) * [1, 3, 10]
    rows = np.insert(x, place, x @ [3.0, -1.0, 0.1], axis=1)
    np.savetxt(path / "t.csv", rows, delimiter=",")
    options = ("--target", str(place + 1), "--epochs", "3", "--hidden", "8", "--ensemble", "1")
    assert main(["fit", str(path / "t.csv"), *options, "--out", str(path / "m")]) == 0
    np.savetxt(path / "x.csv", x, delimiter=",")
    model = gl.load(path / "m")
    return model, rows, place, model.predict(path / "x.csv"), model.score(path / "t.csv")


def frames_of(array, names):
    pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    made = [pandas.DataFrame(array, columns=names)]
    if all(isinstance(name, str) for name in names):
        made.append(polars.DataFrame({name: array[:, i] for i, name in enumerate(names)}))
        made.append(pyarrow.table({name: array[:, i] for i, name in enumerate(names)}))
    return made


def test_names_of_columns_count_where_the_file_of_the_training_had_none(without_header, tmp_path):
    pandas = pytest.importorskip("pandas")
    model, rows, place, expected, score = without_header
    x, places = np.delete(rows, place, axis=1), [2, 0, 1]
    own = [f"column {i + 1}" for i in range(4) if i != place]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for names in (own, [0, 1, 2], ["column_0", "column_1", "column_2"], [i for i in range(4) if i != place]):
            for order in ([0, 1, 2], places):
                for frame in frames_of(x[:, order], [names[i] for i in order]):
                    np.testing.assert_array_equal(model.predict(frame), expected)
        for names in ([f"column {i + 1}" for i in range(4)], [0, 1, 2, 3]):
            for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
                for frame in frames_of(rows[:, order], [names[i] for i in order]):
                    assert model.score(frame) == pytest.approx(score) and len(model.predict(frame)) == len(rows)
        pandas.DataFrame(x[:, places], columns=[own[i] for i in places]).to_parquet(tmp_path / "p.parquet")
        np.testing.assert_array_equal(model.predict(tmp_path / "p.parquet"), expected)
        np.testing.assert_array_equal(model.predict(pandas.DataFrame(x, columns=[5, 7, 9])), expected)
    for frame in frames_of(x, ["a", "b", "c"]):
        with pytest.warns(UserWarning, match="column names ignored") as seen:
            np.testing.assert_array_equal(model.predict(frame), expected)
        assert len(seen) == 1
    with pytest.warns(UserWarning, match="not used, because the model does not know them: id"):
        frame = pandas.DataFrame(x[:, places], columns=[own[i] for i in places]).assign(id=1)
        np.testing.assert_array_equal(model.predict(frame), expected)
    with pytest.raises(gl.DataError, match="labelled 9, 5, 7; requires the labels 0 to 2"):
        model.predict(pandas.DataFrame(x, columns=[9, 5, 7]))
    with pytest.raises(gl.DataError, match=f"no column '{own[0]}'"):
        model.predict(pandas.DataFrame(x, columns=["a", *own[1:]]))
