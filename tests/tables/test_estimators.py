"""gl.sklearn inside of scikit-learn: its own checks, pipelines, searches and cross-validation."""

# ruff: noqa: E402

import inspect
import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")
pandas = pytest.importorskip("pandas")

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import gradloom as gl
from gradloom.base.errors import SettingError
from gradloom.cli.main import main
from tests.refused import refused

Classifier, Regressor = gl.sklearn.Classifier, gl.sklearn.Regressor

EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": "a repeated row is another batch of steps than a row of weight 2; "
    "rows of weight 0 are left out, to the bit (see test_weights)"
}


@pytest.mark.parametrize("estimator", [Classifier(epochs=30), Regressor(epochs=30)], ids=["classifier", "regressor"])
@pytest.mark.slow
def test_scikit_learns_own_checks(estimator):
    done = check_estimator(estimator, expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None)
    status = {one["check_name"]: one["status"] for one in done}
    assert [name for name, what in status.items() if what == "xfail"] == list(EXPECTED_TO_FAIL)
    skipped = {name for name, what in status.items() if what == "skipped"}
    assert skipped <= {"check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"}
    assert len(status) > 40


def flowers():
    data = load_iris(as_frame=True)
    return data.data, data.target_names[data.target]


@pytest.mark.slow
def test_cross_validation_and_a_pipeline():
    x, y = flowers()
    pipeline = make_pipeline(StandardScaler(), Classifier(epochs=40))
    scores = cross_val_score(pipeline, x, y, cv=3)
    assert scores.min() > 0.9
    np.testing.assert_array_equal(cross_val_score(pipeline, x, y, cv=3), scores)  # to the bit
    numbers = load_diabetes(return_X_y=True)
    assert cross_val_score(Regressor(epochs=10), *numbers, cv=3).mean() > 0.4


def test_a_search_over_settings():
    x, y = flowers()
    search = GridSearchCV(Classifier(epochs=20), {"hidden": [(), (8,)], "lr": [1e-6, 0.01]}, cv=2).fit(x, y)
    assert search.best_params_["lr"] == 0.01 and search.best_score_ > 0.8
    assert search.best_estimator_.model_.about["hidden"] == list(search.best_params_["hidden"])


def test_settings_are_heeded():
    x, y = flowers()
    base = Classifier(epochs=3)
    probabilities = base.fit(x, y).predict_proba(x)
    for name, value in [
        ("hidden", (5,)), ("epochs", 4), ("batch_size", 50), ("lr", 0.01), ("optimizer", "muon"), ("dropout", 0.5),
        ("class_weight", {"setosa": 5.0}), ("precision", "bf16"), ("seed", 1),
    ]:  # fmt: skip
        other = clone(base).set_params(**{name: value}).fit(x, y)
        assert not np.array_equal(other.predict_proba(x), probabilities), name
        assert other.get_params()[name] == value
    np.testing.assert_array_equal(clone(base).set_params(threads=1).fit(x, y).predict_proba(x), probabilities)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(base)).predict_proba(x), probabilities)
    with refused("optimizer", "ada", need="adamw or adam"):
        Classifier(optimizer="ada").fit(x, y)
    with pytest.raises(gl.SettingError, match="class_weight: 'rose' is not a class of y"):
        Classifier(class_weight={"rose": 1.0}).fit(x, y)
    with pytest.raises(gl.BackendError, match="nowhere"):
        Classifier(epochs=1, device="nowhere").fit(x, y)


def test_what_a_fit_knows():
    x, y = flowers()
    one = Classifier(epochs=2).fit(x, y)
    assert one.n_features_in_ == 4 and list(one.feature_names_in_) == list(x.columns)
    assert list(one.classes_) == ["setosa", "versicolor", "virginica"]
    assert [c.name for c in one.model_.preprocess.columns] == list(x.columns) and len(one.history_) == 2
    with pytest.raises(ValueError, match="feature names"):
        one.predict(x.rename(columns={x.columns[0]: "other"}))
    numbered = Classifier(epochs=2).fit(x.to_numpy(), np.array([10, 20, 30]).repeat(50))
    assert set(numbered.predict(x.to_numpy()).tolist()) <= {10, 20, 30} and numbered.classes_.dtype.kind == "i"


def test_weights():
    """A row of weight 0 is no row, to the bit; weights move what is learned; all alike change nothing."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:120], y[:120]
    weights = np.tile([1.0, 1.0, 0.0], 40)
    for make, target in ((Regressor, y), (Classifier, y > 100)):
        few = make(epochs=3).fit(x[weights > 0], target[weights > 0])
        np.testing.assert_array_equal(make(epochs=3).fit(x, target, weights).predict(x), few.predict(x))
    plain = Regressor(epochs=3).fit(x, y).predict(x)
    np.testing.assert_array_equal(Regressor(epochs=3).fit(x, y, np.ones(120)).predict(x), plain)
    assert not np.array_equal(Regressor(epochs=3).fit(x, y, weights + 0.5).predict(x), plain)
    for bad in (np.ones(3), -np.ones(120), np.full(120, np.nan)):
        with pytest.raises(gl.DataError, match="sample_weight"):
            Regressor(epochs=1).fit(x, y, bad)


def houses():
    """A DataFrame of numbers, texts and empty cells, and what a house costs."""
    rng = np.random.default_rng(0)
    size, town = rng.normal(100, 20, 300), rng.choice(["Ulm", "Bern", "Graz"], 300)
    frame = pandas.DataFrame({"size": size, "town": town, "floor": rng.integers(0, 5, 300)})
    price = 3 * size + 200 * (town == "Bern")
    frame.loc[::29, "size"] = np.nan
    frame.loc[::31, "town"] = None
    return frame, price


def test_texts_and_empty_cells_in_a_frame():
    frame, price = houses()
    regressor = Regressor(epochs=30).fit(frame[:200], price[:200])
    assert regressor.score(frame[200:], price[200:]) > 0.6 and regressor.n_features_in_ == 3
    kinds = {c.name: c.kind for c in regressor.model_.preprocess.columns}
    assert kinds["town"] == "text" and kinds["size"] == "number"
    blind = Regressor(epochs=30).fit(frame[["size", "floor"]][:200], price[:200])
    assert blind.score(frame[["size", "floor"]][200:], price[200:]) < 0.5
    classes = Classifier(epochs=30).fit(frame[:200], np.where(price[:200] > 350, "dear", "cheap"))
    assert classes.score(frame[200:], np.where(price[200:] > 350, "dear", "cheap")) > 0.8
    encoded = make_pipeline(
        ColumnTransformer([("town", OneHotEncoder(handle_unknown="ignore"), ["town"])], remainder="passthrough"),
        Regressor(epochs=30),
    )
    assert encoded.fit(frame[:200], price[:200]).score(frame[200:], price[200:]) > 0.6


def test_several_targets():
    x, y = load_diabetes(return_X_y=True)
    both = np.stack([y, -2 * y], axis=1)
    fitted = Regressor(epochs=5).fit(x, both)
    assert fitted.predict(x).shape == both.shape and fitted.predict(x)[:, 1].mean() < 0 < fitted.predict(x)[:, 0].mean()
    assert Regressor(epochs=5).fit(x, y).predict(x).shape == y.shape


def test_the_model_of_an_estimator_is_a_file_that_the_command_reads(capsys, tmp_path):
    frame, price = houses()
    fitted = Regressor(epochs=3).fit(frame, price)
    gl.save(fitted.model_, tmp_path / "m.safetensors")
    frame.to_csv(tmp_path / "t.csv", index=False)
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "m.safetensors"), str(tmp_path / "t.csv"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    np.testing.assert_array_equal(said["predictions"], fitted.predict(frame))
    np.testing.assert_array_equal(gl.load(tmp_path / "m.safetensors").predict(frame), fitted.predict(frame))


def test_without_scikit_learn_one_line_says_what_to_install(tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError('not here')")
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport gradloom as gl\n"
        "try: gl.sklearn.Classifier\nexcept gl.BackendError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "gl.sklearn: requires scikit-learn, not installed; run pip install 'gradloom[sklearn]'\n"


@pytest.mark.parametrize("kind", [gl.sklearn.Classifier, gl.sklearn.Regressor])
def test_masked_cells_are_empty(kind):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((120, 3)), rng.integers(0, 2, 120)
    mask = rng.random(X.shape) < 0.1
    masked = np.ma.masked_array(np.where(mask, 1e9, X), mask)
    empty = np.where(mask, np.nan, X)
    a, b = (kind(epochs=3).fit(one, y) for one in (masked, empty))
    np.testing.assert_array_equal(a.predict(masked), b.predict(empty))
    np.testing.assert_array_equal(b.predict(masked), b.predict(empty))
    with pytest.raises(gl.DataError, match="y has masked elements"):
        kind(epochs=3).fit(X, np.ma.masked_array(y, y == 1))


def test_hidden_is_a_list_of_widths():
    X = np.random.default_rng(0).standard_normal((40, 2))
    with refused("hidden", 64, need="widths, such as (64, 64)"):
        gl.sklearn.Classifier(hidden=64).fit(X, X[:, 0] > 0)


def test_widths_are_no_text():
    X, y = np.arange(8.0).reshape(4, 2), [0, 1, 0, 1]
    with pytest.raises(ValueError, match="hidden='64': must be"):
        gl.sklearn.Classifier(hidden="64").fit(X, y)


def test_what_ends_a_training():
    x, y = flowers()
    whole = Classifier(hidden=(8,), epochs=6, val_split=0.0).fit(x, y)
    assert len(whole.history_) == 6 and whole.history_[-1].val is None
    by_loss = Classifier(hidden=(8,), epochs=200, lr=0.05, patience=2, ensemble=2).fit(x, y)
    assert by_loss.model_.net.members == 2 and by_loss.history_[-1].val is not None and len(by_loss.history_) < 200
    losses, kept = [one.val.loss for one in by_loss.history_], by_loss.model_
    best = by_loss.history_[int(np.argmin(losses))]
    assert kept.metrics["val_loss"] == min(losses) and kept.metrics["train_loss"] == best.train.loss
    assert kept.about["saved_epoch"] == best.epoch < len(losses)
    never = Classifier(hidden=(8,), epochs=30, lr=0.05, patience=0).fit(x, y)
    assert len(never.history_) == 30
    by_score = Classifier(hidden=(8,), epochs=200, lr=0.05, patience=2, metric="roc_auc").fit(x, y)
    values = [one.val.metrics["roc_auc"] for one in by_score.history_]
    assert len(values) - 1 - int(np.argmax(values)) == 2
    for wrong in ({"metric": "rmse"}, {"metric": "roc_auc", "val_split": 0.0}, {"metric": "roc_auc", "patience": 0}):
        with pytest.raises(SettingError, match="metric="):
            Classifier(**wrong).fit(x, y)


@pytest.mark.slow
def test_tables_of_pyarrow_and_polars_are_learned_as_those_of_pandas_are():
    arrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    frame, price = houses()
    label = np.where(price > 350, "dear", "cheap")
    weights = np.tile([1.0, 0.0, 2.0], 100)
    for columns in (["size", "town", "floor"], ["floor", "size"]):
        rows = frame[columns]
        table = arrow.Table.from_pandas(rows)
        probabilities = Classifier(epochs=2).fit(rows, label, weights).predict_proba(rows)
        for other in (table, table.to_batches()[0], polars.from_arrow(table)):
            fitted = Classifier(epochs=2).fit(other, label, weights)
            assert list(fitted.feature_names_in_) == columns
            np.testing.assert_array_equal(fitted.predict_proba(other), probabilities)
            np.testing.assert_array_equal(fitted.predict_proba(rows), probabilities)
            regressor = Regressor(epochs=2).fit(other, price)
            np.testing.assert_array_equal(regressor.predict(rows), regressor.predict(other))
            with pytest.raises(ValueError, match="feature names"):
                fitted.predict(other.select(columns[::-1]) if hasattr(other, "select") else other)
    lazy = polars.from_arrow(table).lazy()
    for ask in (fitted.predict, fitted.predict_proba, lambda rows: Classifier().fit(rows, label)):
        with pytest.raises(gl.DTypeError, match=r"X: a LazyFrame.*need a DataFrame: .collect\(\)"):
            ask(lazy)


def test_tables_of_texts_are_checked_as_arrays_are():
    frame, price = houses()
    fitted = Regressor(epochs=1).fit(frame, price)
    with pytest.raises(gl.DataError, match="rows: 0 rows; need at least 1"):
        fitted.predict(frame[:0])
    for rows, target, said in (
        (frame[:0], price[:0], "0 sample"),
        (frame, price[:-1], "inconsistent numbers of samples"),
        (frame, np.where(price > 300, np.nan, price), "contains NaN"),
        (frame, None, "requires y"),
        (frame, price * 1e200, "y has numbers as large as .*; scale it"),
        (frame, price * 1e-200, "y has numbers that differ by .* at most; scale it"),
    ):
        with pytest.raises(ValueError, match=said):
            Regressor(epochs=1).fit(rows, target)
    with pytest.raises(ValueError, match="contains NaN"):
        Classifier(epochs=1).fit(frame, np.where(price > 300, np.nan, 1.0))
    still = Regressor(epochs=20).fit(frame, np.full(300, 0.1))
    np.testing.assert_allclose(still.predict(frame), 0.1, atol=0.1)
    assert still.model_.preprocess.target_mean == [0.1]


@pytest.mark.parametrize(
    ("setting", "need"),
    [
        ({"epochs": 0}, "epochs=0: must be a whole number of at least 1"),
        ({"epochs": "3"}, "epochs='3': must be"), ({"epochs": 2.5}, "epochs=2.5: must be"),
        ({"batch_size": 0}, "batch_size=0: must be"), ({"batch_size": -5}, "batch_size=-5: must be"),
        ({"lr": 0}, "lr=0: must be a finite number above 0"), ({"lr": "x"}, "lr='x': must be"),
        ({"lr": np.nan}, "lr=nan: must be"), ({"lr": True}, "lr=True: must be"),
        ({"dropout": "x"}, "dropout='x': must be a number of at least 0 and below 1"),
        ({"dropout": 1.0}, "dropout=1.0: must be"), ({"patience": -1}, "patience=-1: must be"),
        ({"val_split": 1.0}, "val_split=1.0: must be a number of at least 0 and below 1"),
        ({"val_split": "x"}, "val_split='x': must be"), ({"val_split": True}, "val_split=True: must be"),
        ({"hidden": (2.5,)}, "hidden=2.5: must be a whole number of at least 1"),
        ({"hidden": ("a",)}, "hidden='a': must be"),
        ({"hidden": (0,)}, "hidden=0: must be"),
        ({"seed": None}, "seed=None: must be"),
        ({"hidden": (), "ensemble": 4}, "ensemble=4 requires at least one hidden layer"),
        ({"hidden": (), "dropout": 0.5}, "dropout=0.5 requires at least one hidden layer"),
    ],
    ids=lambda one: repr(one) if isinstance(one, dict) else "",
)  # fmt: skip
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_a_setting_that_cannot_be_is_refused_by_name(kind, setting, need):
    """0 is no way to say None."""
    x = np.random.default_rng(0).standard_normal((120, 2))
    with pytest.raises(gl.SettingError) as error:
        kind(**({"hidden": (4,)} | setting)).fit(x, (x[:, 0] > 0).astype(float))
    assert str(error.value).startswith(need)


def test_the_rate_falls_over_the_steps_that_are_done():
    """The schedule counts the rows that are trained on as the split does."""
    x = np.random.default_rng(0).standard_normal((130, 2))
    fitted = Classifier(hidden=(4,), epochs=3, batch_size=1, patience=0).fit(x, x[:, 0] > 0)
    steps = 3 * fitted.history_[-1].train.ndata
    assert fitted.history_[-1].rates["lr"] == pytest.approx(fitted.model_.about["lr"] * half_cosine(steps - 1, steps))


def half_cosine(step, steps):
    return 0.5 * (1 + np.cos(np.pi * step / steps))


def test_weights_and_columns_that_are_no_numbers():
    x = np.random.default_rng(0).standard_normal((40, 2))
    with pytest.raises(gl.DataError, match="sample_weight: is a list of no numbers; need .40., a weight for each row"):
        Regressor().fit(x, x[:, 0], sample_weight=["a"] * 40)
    with pytest.raises(ValueError, match="column 'a' holds complex numbers; need real ones"):
        Regressor().fit(pandas.DataFrame({"a": x[:, 0] + 1j, "b": x[:, 1]}), x[:, 0])


@pytest.mark.parametrize("labels", [["a", "b", None, "a"], [1, 2, None, 1]])
def test_a_class_that_is_missing(labels):
    x = np.random.default_rng(0).standard_normal((4, 3))
    with pytest.raises(gl.DataError, match="row 2"):
        gl.sklearn.Classifier(epochs=1).fit(x, np.array(labels, object))


def test_the_order_of_the_settings_is_public() -> None:
    shared = "hidden epochs batch_size lr optimizer dropout ensemble val_split folds patience metric"
    computing = "precision device threads seed"
    assert " ".join(inspect.signature(gl.sklearn.Classifier).parameters) == f"{shared} class_weight {computing}"
    assert " ".join(inspect.signature(gl.sklearn.Regressor).parameters) == f"{shared} {computing}"
    assert clone(gl.sklearn.Classifier((3,), class_weight="balanced")).get_params()["class_weight"] == "balanced"


def labels_of_rows():
    """(x, y): three labels of which a row has any number."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    return x, np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] > 1], axis=1).astype(int)


def test_a_classifier_of_several_targets():
    """The conventions of scikit-learn's MultiOutputClassifier."""
    x, y = labels_of_rows()
    one = Classifier(epochs=20, hidden=(16,)).fit(x, y)
    predicted, shares = one.predict(x), one.predict_proba(x)
    assert predicted.shape == y.shape and predicted.dtype == y.dtype and (predicted == y).mean() > 0.9
    assert [share.shape for share in shares] == [(240, 2)] * 3 and len(one.classes_) == 3
    np.testing.assert_array_equal(predicted, np.stack([share.argmax(axis=1) for share in shares], axis=1))
    assert one.score(x, y) == (predicted == y).all(axis=1).mean()
    np.testing.assert_array_equal(one.fit(x, y).predict_proba(x), shares)  # to the bit
    texts = np.where(y[:, :2] == 1, [["warm", "wet"]], [["cold", "dry"]])
    named = Classifier(epochs=20, hidden=(16,)).fit(x, texts)
    assert [list(classes) for classes in named.classes_] == [["cold", "warm"], ["dry", "wet"]]
    assert set(named.predict(x)[:, 1].tolist()) == {"dry", "wet"}


def test_class_weights_of_several_targets():
    x, y = labels_of_rows()
    plain, third = (Classifier(epochs=5, class_weight=w).fit(x, y) for w in (None, [{}, {}, {1: 20.0}]))
    assert third.predict(x)[:, 2].sum() > plain.predict(x)[:, 2].sum()
    balanced = Classifier(epochs=5, class_weight="balanced", metric="f1_macro").fit(x, y)
    assert balanced.predict(x)[:, 2].sum() > plain.predict(x)[:, 2].sum()
    for weight, text in (
        ({1: 2.0}, "class_weight is a dict; must be"), ([{}, {}], "a dict for each of 3 targets"),
        ([{}, {5: 1.0}, {}], "5 is not a class of column 1"), ([{}, {}, {1: -1.0}], "finite numbers of at least 0"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=re.escape(text)):
            Classifier(epochs=1, class_weight=weight).fit(x, y)
    texts = np.array([["a", "b"], ["c", "d"]] * 120, object)
    texts[7, 1] = None
    with pytest.raises(gl.DataError, match="y is missing in row 7"):
        Classifier(epochs=1).fit(x, texts)
    with pytest.raises(gl.DataError, match="column 2 of y holds one class, '0'"):
        Classifier(epochs=1).fit(x, y * [1, 1, 0])


def test_a_saved_classifier_of_several_targets(tmp_path):
    x, y = labels_of_rows()
    one = Classifier(epochs=3).fit(x, y)
    gl.save(one.model_, tmp_path / "m.safetensors")
    model = gl.load(tmp_path / "m.safetensors")
    assert model.targets == ["y 0", "y 1", "y 2"]
    np.testing.assert_array_equal(model.predict(x), one.predict(x).astype(str))
    assert model.score(x, y) == pytest.approx((one.predict(x) == y).mean())
