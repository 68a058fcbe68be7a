"""Model.score; tables and paths that gl.fit is given in place of a network or arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError
from tests.cli.command import run

ROWS = 120


@pytest.fixture(scope="module", params=["classification", "regression"])
def fitted(request, tmp_path_factory):
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp(request.param)
    x = np.random.default_rng(0).standard_normal((ROWS, 2))
    y = x[:, 0] - x[:, 1]
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1]})
    frame["y"] = np.where(y > 0, "up", "down") if request.param == "classification" else y
    frame.to_csv(folder / "t.csv", index=False)
    table = gl.data.read_table(folder / "t.csv")
    net = gl.nn.Linear(2, table.preprocess.outputs)
    loss = "mse" if request.param == "regression" else "cross_entropy"
    gl.fit(net, table.train, loss=loss, epochs=9, optimizer=gl.optim.SGD(lr=0.05), progress=False)
    return gl.train.Model(net, table.preprocess), frame, folder


def test_the_score_is_that_of_scikit_learn(fitted):
    metrics = pytest.importorskip("sklearn.metrics")
    model, frame, folder = fitted
    score = metrics.accuracy_score if model.task == "classification" else metrics.r2_score
    expected = score(frame["y"], model.predict(frame))
    assert 0.5 < expected < 1
    array = frame[["a", "b"]].to_numpy()
    for found in (
        model.score(folder / "t.csv"),
        model.score(frame),
        model.score(array, frame["y"]),
        model.score(array, frame["y"].tolist()),
        model.score(array, frame["y"].to_numpy(object)),
        model.score(frame.drop(columns="y"), frame["y"].to_numpy()),
    ):
        assert type(found) is float and found == pytest.approx(expected, abs=1e-12)
    half = frame["y"].to_numpy(object)[: ROWS // 2]
    assert model.score(array[: ROWS // 2], half) == pytest.approx(
        score(half.tolist(), model.predict(frame)[: ROWS // 2])
    )


def test_rows_that_do_not_count(fitted):
    model, frame, _ = fitted
    changed = frame.copy()
    changed["y"] = changed["y"].astype(object)
    changed.loc[:9, "y"] = None
    with pytest.warns(UserWarning, match=f"10 of {ROWS} rows"):
        assert model.score(changed) == pytest.approx(model.score(frame[10:]), abs=1e-12)
    if model.task == "classification":
        changed.loc[:9, "y"] = "level"
        with pytest.warns(UserWarning, match="level"):
            assert model.score(changed) == model.score(frame[10:])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 2e200])
def test_a_target_that_no_score_can_be_computed_from(fitted, capsys, tmp_path, value):
    model, frame, _ = fitted
    if model.task == "classification":
        pytest.skip("classes are texts")
    changed = frame.copy()
    changed.loc[7, "y"] = value
    changed.to_csv(tmp_path / "new.csv", index=False)
    gl.save(model, tmp_path / "m.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, targets in ((changed, None), (tmp_path / "new.csv", None), (frame[["a", "b"]], changed["y"])):
            with pytest.raises(DataError, match=r"(row 7|line 9): .*'y'"):
                model.score(rows, targets)
        for more in ([], ["--json"], ["--out", tmp_path / "p.csv"]):
            code, out, err = run(capsys, "predict", tmp_path / "m.safetensors", tmp_path / "new.csv", *more)
            assert (code, out) == (2, "") and "line 9" in err and "'y'" in err and err.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("targets", "error"),
    [(None, "requires the 'y' of each row"), (["?"] * ROWS, "'y'|no numbers|another kind"), (["up"], "one for each"),
     (3, "one for each"), ([None] * ROWS, "no row has a 'y'|'y'")],
)  # fmt: skip
def test_targets_that_are_none(fitted, targets, error):
    model, frame, _ = fitted
    with pytest.raises(DataError, match=error):
        model.score(frame[["a", "b"]], targets)


def test_the_same_target_in_all_rows(fitted):
    model, frame, _ = fitted
    if model.task == "regression":
        with pytest.raises(DataError, match="R2"):
            model.score(frame.assign(y=1.0))
    else:
        assert 0 <= model.score(frame.assign(y="up")) <= 1


def test_a_table_or_a_path_in_place_of_a_network(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "y": [0, 1]})
    net = gl.nn.Linear(1, 2)
    for given in (frame, frame.to_dict("list")):
        with pytest.raises(DataError, match=r"gl.sklearn.Classifier.*table\['y'\]"):
            gl.fit(given, target="y")
        with pytest.raises(DataError, match=r"gl.data.read_table"):
            gl.fit(net, given)
    for path in ("t.csv", tmp_path / "t.csv"):
        with pytest.raises(DataError, match=r"gradloom fit .*t.csv --target y$"):
            gl.fit(path, target="y")
        with pytest.raises(DataError, match=r"gl.data.read_table"):
            gl.fit(net, path)
    with pytest.raises(DataError, match="gl.sklearn"):
        gl.fit(frame, "y")
    with pytest.raises(DataError, match="data is missing"):
        gl.fit(net)


def test_the_score_of_a_saved_model_is_the_command_s(tmp_path, capsys, fitted):
    _, frame, folder = fitted
    line = ["--epochs", 2, "--hidden", 4, "--ensemble", 1, "--json", "--out", tmp_path / "out"]
    assert run(capsys, "fit", folder / "t.csv", *line)[0] == 0
    code, _, err = run(capsys, "predict", tmp_path / "out", folder / "t.csv", "--out", tmp_path / "p.csv")
    assert code == 0 and f"{gl.load(tmp_path / 'out').score(frame):.4f}" in err
