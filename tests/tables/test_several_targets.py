"""Several targets of a table: reading, loss, scores, files, predictions, resuming, errors."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.data.encoding.preprocess import Preprocess
from gradloom.data.encoding.target import Target
from gradloom.graph.leaves import input as input_value
from gradloom.nn.description import described as described_network
from gradloom.run.compile import compile as compile_program
from gradloom.tables.target_loss import TargetLoss, balanced, packed, unpacked
from gradloom.tables.target_scores import cells_of_targets, target_scores
from tests.json_checks import check_document

ROWS = 240
KINDS = {"price.eur": "regression", "sold": "classification", "grade, final": "classification", "age": "regression"}


def cells():
    """Columns of a table: three inputs and the targets of KINDS, some of them empty."""
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, ROWS)).round(3)
    made = {"a": a, "b": b, "c": c, "price.eur": (3 * a + 50).round(3), "sold": (b > 0).astype(int)}
    made["grade, final"] = np.array(["low", "mid", "high"])[(c > -0.5).astype(int) + (c > 0.6)]
    made["age"] = (a - b).round(3)
    made = {name: [str(value) for value in column] for name, column in made.items()}
    for name, every in (("sold", 3), ("age", 5)):
        made[name] = ["" if i % every == 1 else cell for i, cell in enumerate(made[name])]
    for name in KINDS:
        made[name][7] = ""
    return made


def write(path, columns, order=None, header=True):
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        names = order or list(columns)
        if header:
            out.writerow(names)
        out.writerows(zip(*(columns[name] for name in names), strict=True))
    return path


def flags(*names):
    return [part for name in names for part in ("--target", name)]


FIT = ["--hidden", "16", "--epochs", "8", "--threads", "1", "--checkpoint-every", "10steps"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    data = write(folder / "t.csv", cells())
    assert main(["fit", str(data), *flags(*KINDS), *FIT, "--out", str(folder / "m")]) == 0
    return data, folder / "m"


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_table_with_several_targets(tmp_path):
    data = write(tmp_path / "t.csv", cells())
    table = gl.data.read_table(data, list(KINDS))
    made = table.preprocess
    assert table.task == made.task == "mixed" and made.target_names == list(KINDS)
    assert {one.name: one.task for one in made.targets} == KINDS
    assert [column.name for column in made.columns] == ["a", "b", "c"]
    assert made.outputs == 1 + 2 + 3 + 1 and made.targets[2].classes == ["high", "low", "mid"]
    assert "1 of 240 rows left out: all their targets are empty" in table.notes
    assert "target 'sold': empty in 79 of 239 rows, which train the other targets alone" in table.notes
    price, sold, grade, age = table.train.labels
    assert sold.dtype == grade.dtype == np.int32 and price.dtype == age.dtype == np.float32
    assert set(sold.tolist()) == {-100, 0, 1} and -100 not in grade and np.isnan(age).any()
    known = age[~np.isnan(age)]
    assert abs(known.mean()) < 1e-5 and abs(known.std() - 1) < 1e-4
    assert table.test_targets.shape == (table.test.n, 4) and np.isnan(table.test_targets[:, 1]).any()
    assert gl.data.read_table(data, ["price.eur"]).preprocess == gl.data.read_table(data, "price.eur").preprocess
    numbers = gl.data.read_table(data, ("age", "price.eur"))
    assert numbers.task == "regression" and numbers.train.labels.shape == (numbers.train.n, 2)


def test_the_tuple_of_labels_trains_a_model_of_ones_own(tmp_path):
    table = gl.data.read_table(write(tmp_path / "t.csv", cells()), ["price.eur", "sold", "grade, final"], drop=["age"])

    class Heads(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = [gl.nn.Linear(3, width) for width in (1, 2, 3)]

        def forward(self, x):
            return tuple(head(x) for head in self.heads)

    losses = ("mse", "cross_entropy", "cross_entropy")
    history = gl.fit(Heads(), table.train, loss=losses, epochs=3, progress=False)
    assert history[-1].train.loss < history[0].train.loss


def test_files_without_column_names(tmp_path, capsys):
    data = write(tmp_path / "n.csv", cells(), header=False)
    out = tmp_path / "n"
    assert main(["fit", str(data), *flags("4", "-1", "5"), *FIT, "--out", str(out)]) == 0
    model = gl.load(out)
    assert model.targets == ["column 4", "column 7", "column 5"]
    inputs = [list(map(float, row)) for row in zip(*(cells()[name] for name in "abc"), strict=True)]
    short = write(tmp_path / "s.csv", {n: c for n, c in cells().items() if n in {"a", "b", "c", "grade, final"}},
                  header=False)  # fmt: skip
    np.testing.assert_array_equal(model.predict(data), model.predict(short))
    assert model.predict(short).shape == (ROWS, 3) and len(inputs) == ROWS
    bare = write(tmp_path / "b.csv", {n: cells()[n] for n in ("a", "b")}, header=False)
    capsys.readouterr()
    assert main(["predict", str(out), str(bare)]) == 2
    assert "2 columns; need 4, or 7 with the targets" in capsys.readouterr().err


ERRORS = [
    (("age", "age"), "--target: 'age' is named twice"),
    (("age", "agee"), "no column 'agee'; the nearest is 'age'"),
    (("a", "b", "c", *KINDS), "all 7 columns are targets"),
    (("age", "sold", "--task", "regression", "--loss", "cross_entropy"), "--loss cross_entropy requires"),
    (("age", "sold", "--metric", "rmse"), "--metric rmse requires targets that are all classes, or all numbers"),
    (("age", "price.eur", "--class-weight", "balanced"), "requires a target with classes"),
    (("sold", "grade, final", "--loss", "mse"), "--loss mse: mse of classes requires a single --target"),
    (("sold", "age", "--loss", "cross_entropy"), "with numbers among them it must be mse, l1 or huber"),
    (("sold", "age", "--drop", "age"), "--drop: 'age' is also the target"),
    (("sold", "none"), "target 'none' is empty in all 240 rows"),
    (("sold", "one"), "target 'one': a single class, 'x'"),
    (("age", "same"), "target 'same' is 2.5 in every training row"),
    (("age", "far"), "target 'far' is inf in some row"),
]


@pytest.mark.parametrize(("given", "text"), ERRORS, ids=[text[:30] for _, text in ERRORS])
def test_errors_are_one_line(tmp_path, capsys, given, text):
    more = {"none": [""] * ROWS, "one": ["x"] * ROWS, "same": ["2.5"] * ROWS, "far": ["inf", *["1.5"] * (ROWS - 1)]}
    if given[-1] not in more:
        more = {}
    data = write(tmp_path / "t.csv", cells() | {name: more[name] for name in more if name == given[-1]})
    at = next((i for i, one in enumerate(given) if one.startswith("--")), len(given))
    code = main(["fit", str(data), *flags(*given[:at]), *given[at:], "--out", str(tmp_path / "m"), "--epochs", "1"])
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gradloom:")]
    assert code == 2 and len(error) == 1 and text in error[0]
    assert not (tmp_path / "m" / "model.safetensors").exists()


@pytest.mark.parametrize("target", [5, {"age"}, [], ["age", 3], ["age", ""], ["age", "age"]], ids=repr)
def test_names_of_targets_are_a_list(tmp_path, target):
    data = write(tmp_path / "t.csv", cells())
    with pytest.raises(gl.SettingError, match="target"):
        gl.data.read_table(data, target)


def test_arrays_have_their_targets_in_one_array(tmp_path, capsys):
    np.savez(tmp_path / "t.npz", x=np.eye(20, dtype="f4"), y=np.arange(20.0), z=np.arange(20.0))
    assert main(["fit", str(tmp_path / "t.npz"), *flags("y", "z"), "--out", str(tmp_path / "m")]) == 2
    assert "several targets are one array of several columns" in capsys.readouterr().err


# ---- the loss --------------------------------------------------------------------------------------------------------


def described(**kinds):
    """A preprocessing with targets: name=classes, 0 for a number."""
    targets = [
        Target(name, "classification", [str(i) for i in range(n)]) if n else Target(name, "regression", [], 2.0, 3.0)
        for name, n in kinds.items()
    ]
    tasks = {one.task for one in targets}
    task = tasks.pop() if len(tasks) == 1 else "mixed"
    return Preprocess("columns", task, ", ".join(kinds), targets=targets)


def by_hand(outputs, targets, made, numbers, weights, factors):
    """The loss in float64, cell by cell."""
    total = count = 0.0
    for (one, at), column in zip(made.each_target, targets.T, strict=True):
        for row, value in enumerate(column):
            if np.isnan(value):
                continue
            x, weight = outputs[row, at].astype(np.float64), weights[row]
            if one.task == "classification":
                loss = np.log(np.exp(x - x.max()).sum()) + x.max() - x[int(value)]
                weight = weight * factors[at][int(value)]
            else:
                error = x[0] - (value - one.target_mean[0]) / one.target_std[0]
                loss = {"mse": error**2, "l1": abs(error)}[numbers]
            total, count = total + weight * loss, count + weight
    return total / count


@pytest.mark.parametrize("numbers", ["mse", "l1"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_loss_is_the_mean_over_known_cells(numbers, is_weighted):
    rng = np.random.default_rng(1)
    made = described(a=0, b=0, c=2, d=2, e=3, f=0)
    targets = np.stack([*rng.normal(2, 3, (2, 30)), *rng.integers(0, 2, (2, 30)), rng.integers(0, 3, 30),
                        rng.normal(2, 3, 30)], axis=1)  # fmt: skip
    targets[rng.random(targets.shape) < 0.3] = np.nan
    labels = packed(made.labels(targets), made)
    np.testing.assert_allclose(unpacked(labels, made), targets, rtol=1e-5, atol=1e-6)
    outputs = rng.normal(size=(30, made.outputs)).astype(np.float32)
    weights = rng.random(30) if is_weighted else np.ones(30)
    factors = np.array(balanced(labels, made)) if is_weighted else np.ones(made.outputs)
    loss = TargetLoss(made, numbers, factors.tolist() if is_weighted else None)
    x, y, w = (input_value(n, s) for n, s in (("x", outputs.shape), ("y", labels.shape), ("w", (30,))))
    run = compile_program(list(loss(x, y, w)))
    total, count = run(x=outputs, y=labels, w=weights.astype(np.float32))
    assert total / count == pytest.approx(by_hand(outputs, targets, made, numbers, weights, factors), rel=1e-5)
    assert repr(loss) == repr(TargetLoss(made, numbers, factors.tolist() if is_weighted else None))


def test_balanced_class_weights_of_each_target():
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    made = described(a=2, b=0, c=3)
    rng = np.random.default_rng(2)
    targets = np.stack([rng.random(50) < 0.1, rng.normal(size=50), rng.integers(0, 3, 50)], axis=1).astype(float)
    targets[:5, 0] = np.nan
    found = balanced(packed(made.labels(targets), made), made)
    for column, part in ((targets[5:, 0], found[:2]), (targets[:, 2], found[3:])):
        want = sklearn.compute_class_weight("balanced", classes=np.unique(column), y=column)
        np.testing.assert_allclose(part, want)
    assert found[2] == 1


def test_heads_of_an_ensemble_average_probabilities():
    rng = np.random.default_rng(3)
    heads = [1, 2, 2, 3]
    net = gl.nn.Ensemble(gl.nn.MemberLinear(4, 5, 8), heads=heads)
    net.init(0)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    weight, bias = (getattr(net.layers[0], name).numpy().astype(np.float64) for name in ("weight", "bias"))
    each = np.einsum("rn,mnk->rmk", x, weight) + bias.reshape(4, 1, 8).transpose(1, 0, 2)
    want, at = [], 0
    for width in heads:
        part = each[:, :, at : at + width]
        at += width
        shares = np.exp(part) / np.exp(part).sum(axis=2, keepdims=True)
        want.append(part.mean(axis=1) if width == 1 else np.log(shares.mean(axis=1)))
    np.testing.assert_allclose(gl.predict(net, x), np.concatenate(want, axis=1), rtol=1e-4, atol=1e-5)
    with pytest.raises(gl.SettingError, match="heads"):
        gl.nn.Ensemble(gl.nn.MemberLinear(4, 5, 8), heads=[1, 2])


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_scores_of_each_target_and_their_means():
    metrics = pytest.importorskip("sklearn.metrics")
    made = described(a=0, b=2, c=0)
    rng = np.random.default_rng(4)
    targets = np.stack([rng.normal(2, 3, 80), rng.integers(0, 2, 80), rng.normal(2, 3, 80)], axis=1)
    targets[rng.random(targets.shape) < 0.2] = np.nan
    outputs = rng.normal(size=(80, 4)).astype(np.float32)
    each, means = target_scores(cells_of_targets(made, outputs, targets))
    known = ~np.isnan(targets)
    for k, name, column in ((0, "a", 0), (2, "c", 3)):
        predicted = outputs[:, column].astype(np.float64) * 3 + 2
        assert each[name]["r2"] == pytest.approx(metrics.r2_score(targets[known[:, k], k], predicted[known[:, k]]))
    right = (outputs[:, 1:3].argmax(axis=1) == targets[:, 1])[known[:, 1]]
    assert each["b"]["accuracy"] == means["accuracy"] == pytest.approx(right.mean())
    assert means["r2"] == pytest.approx((each["a"]["r2"] + each["c"]["r2"]) / 2)
    assert each["a"]["r2_unc"] > 0 and means["r2_unc"] > 0 and means["accuracy_unc"] > 0


def test_results_are_those_of_the_predictions(fitted, capsys):
    metrics = pytest.importorskip("sklearn.metrics")
    data, out = fitted
    result = json.loads((out / "result.json").read_text())
    check_document(result)
    assert result["task"] == "mixed" and result["targets"] == list(KINDS)
    table = gl.data.read_table(data, list(KINDS))
    model = gl.load(out)
    outputs = model.outputs(table.test.data)
    for k, (one, at) in enumerate(model.of_targets()):
        known = ~np.isnan(table.test_targets[:, k])
        true, of = table.test_targets[known, k], result["test_targets"][one.target]
        assert of["rows"] == known.sum()
        if one.task == "regression":
            assert of["r2"] == pytest.approx(metrics.r2_score(true, one.decide(outputs[known][:, at])), rel=1e-9)
            assert of["baseline_rmse"] == pytest.approx(np.sqrt(np.square(true - one.preprocess.target_mean[0]).mean()))
        else:
            ids = [one.classes.index(name) for name in one.decide(outputs[known][:, at])]
            assert of["accuracy"] == pytest.approx(metrics.accuracy_score(true, ids))
            assert set(of["classes"]) == set(one.classes)
    shares = [of["accuracy"] for of in result["test_targets"].values() if "accuracy" in of]
    assert result["test_accuracy"] == pytest.approx(np.mean(shares))
    capsys.readouterr()
    assert main(["info", str(out), "--json"]) == 0
    info = json.loads(capsys.readouterr().out.splitlines()[-1])
    check_document(info)
    assert [one["name"] for one in info["targets"]] == list(KINDS)


# ---- predictions -----------------------------------------------------------------------------------------------------


def test_predictions_of_the_command(fitted, capsys, tmp_path):
    data, out = fitted
    file = tmp_path / "p.csv"
    assert main(["predict", str(out), str(data), "--out", str(file), "--keep", "a,age"]) == 0
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    model = gl.load(out)
    predicted, shares = model.predict(data), model.predict_proba(data)
    assert list(rows[0]) == [
        "a", "age", "price.eur", "sold", "p(sold=0)", "p(sold=1)", "grade, final", "p(grade, final=high)",
        "p(grade, final=low)", "p(grade, final=mid)", "predicted age",
    ]  # fmt: skip
    for row, values in zip(rows, predicted, strict=True):
        assert [float(row["price.eur"]), row["sold"], row["grade, final"], float(row["predicted age"])] == list(values)
    assert [float(row["p(sold=1)"]) for row in rows] == shares["sold"][:, 1].tolist()
    assert set(shares) == {"sold", "grade, final"} and np.allclose(shares["grade, final"].sum(axis=1), 1)
    capsys.readouterr()
    assert main(["predict", str(out), str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check_document(found)
    assert found["predictions"] == predicted.tolist()
    test = found["scores"]["test"]["targets"]
    result = json.loads((out / "result.json").read_text())["test_targets"]
    for name, key in (("price.eur", "r2"), ("sold", "accuracy"), ("grade, final", "accuracy"), ("age", "rmse")):
        assert test[name][key] == pytest.approx(result[name][key], rel=1e-6), name
    assert found["targets"]["sold"]["probabilities"] == shares["sold"].tolist()


def test_predict_finds_targets_by_name(fitted, tmp_path, capsys):
    data, out = fitted
    model, columns = gl.load(out), cells()
    names = ["age", "c", "sold", "b", "a", "grade, final", "price.eur"]
    other = write(tmp_path / "o.csv", columns, names)
    np.testing.assert_array_equal(model.predict(other), model.predict(data))
    assert model.score(other) == model.score(data)
    few = write(tmp_path / "f.csv", columns | {"sold": ["7", *columns["sold"][1:]]}, ["a", "b", "c", "sold"])
    assert main(["predict", str(out), str(few), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["targets"]["sold"]["rows_with_target"] == sum(map(bool, columns["sold"])) - 1
    assert found["targets"]["age"]["rows_with_target"] == 0 and "r2" not in found
    bare = write(tmp_path / "b.csv", columns, ["a", "b", "c"])
    assert main(["predict", str(out), str(bare), "--json"]) == 0
    assert "rows_with_target" not in json.loads(capsys.readouterr().out)
    with pytest.raises(gl.DataError, match="targets are missing"):
        model.score(bare)
    given = np.array(list(zip(*(columns[name] for name in KINDS), strict=True)), object)
    given[:, 0] = given[:, 3] = np.nan
    with pytest.warns(UserWarning, match="no row has a 'price.eur'"):
        assert 0.3 < model.score(bare, given) <= 1


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_one_target_is_as_it_was(fitted, tmp_path):
    """--target given once: settings, description and identity are those of a single target."""
    data, _ = fitted
    assert main(["fit", str(data), "--target", "sold", *FIT, "--out", str(tmp_path / "m")]) == 0
    assert 'target = "sold"' in (tmp_path / "m" / "settings.toml").read_text()
    model = gl.load(tmp_path / "m")
    assert "targets" not in json.loads(model.preprocess.to_json()) and model.targets == ["sold"]
    result = json.loads((tmp_path / "m" / "result.json").read_text())
    assert "targets" not in result and "test_targets" not in result and result["target"] == "sold"
    assert "heads" not in json.dumps(described_network(model.net))


@pytest.mark.slow
def test_a_stopped_fit_resumes_to_the_same_bytes(fitted, tmp_path, capsys):
    data, out = fitted
    again = tmp_path / "m"
    assert main(["fit", str(data), *flags(*KINDS), *FIT, "--out", str(again), "--stop-after", "0.001s"]) == 0
    assert main(["fit", "--out", str(again), "--resume"]) == 0
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    copy = tmp_path / "other"
    shutil.copytree(again, copy)
    names = list(reversed(KINDS))
    capsys.readouterr()
    assert main(["fit", str(data), *flags(*names), *FIT, "--out", str(copy), "--resume"]) == 2
    assert "--target is" in capsys.readouterr().err


def test_validation_by_a_score_and_files(fitted, tmp_path, capsys):
    data, _ = fitted
    given = [*flags("sold", "grade, final"), *FIT, "--class-weight", "balanced", "--metric", "f1_macro"]
    out = tmp_path / "m"
    assert main(["fit", str(data), *given, "--val", str(data), "--test", str(data), "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    check_document(result)
    assert result["task"] == "classification" and "val_mean_f1_macro" in result["history"][-1]
    assert result["rows_test"] == result["rows_val"] == ROWS - 1
    best = max(result["history"], key=lambda epoch: epoch["val_mean_f1_macro"])
    assert result["saved_epoch"] == best["epoch"]
    plain = tmp_path / "p"
    assert main(["fit", str(data), *given[:4], *FIT, "--out", str(plain)]) == 0
    assert (plain / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()


def test_a_report_measures_each_target(fitted, tmp_path, capsys):
    _, out = fitted
    assert main(["report", str(out), "--out", str(tmp_path / "r.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check_document(found)
    quality = found["runs"][0]["quality"]
    result = json.loads((out / "result.json").read_text())
    for name, of in quality["targets"].items():
        for key in ("accuracy", "r2", "rmse"):
            want = result["test_targets"][name].get(key)
            assert of["scores"].get(key) == (None if want is None else pytest.approx(want, rel=1e-6))
    assert quality["scores"]["accuracy"] == pytest.approx(result["test_accuracy"])
    assert [one["column"] for one in quality["importance"]][-1] in {"a", "b", "c"}
    assert "Model quality: grade, final" in found["sections"] and "Model quality: age" in found["sections"]


def test_descriptions_of_targets_are_checked(fitted):
    made = gl.load(fitted[1]).preprocess
    assert Preprocess.from_json(made.to_json()) == made
    first, *others = made.targets
    for odd in (
        replace(made, targets=[first]), replace(made, task="regression"), replace(made, classes=["x", "y"]),
        replace(made, targets=[replace(first, classes=["x", "y"]), *others]),
        replace(made, targets=[first, replace(others[0], name=first.name)]),
        replace(made, targets=[first, replace(others[0], classes=["x"])]),
    ):  # fmt: skip
        with pytest.raises(gl.DataError, match="preprocess"):
            Preprocess.from_json(odd.to_json())
