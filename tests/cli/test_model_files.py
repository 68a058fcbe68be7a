"""Files of `gradloom fit` that somebody changed: one FileError of one line, before anything is built from them."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import FileError
from gradloom.cli.main import main
from gradloom.cli.model import Model, load_model
from gradloom.data import Preprocess
from gradloom.data.encoding.preprocess import Column
from gradloom.files import load_arrays, save_arrays
from gradloom.tables.perceptron import perceptron

COLUMNS = [
    Column("size", "number", median=2.0, mean=2.5, std=1.5),
    Column("colour", "text", categories=["blue", "green", "red"]),
    Column("same", "unused", reason="constant"),
]


def table(**changes):
    made = Preprocess("columns", "classification", "y", columns=COLUMNS, classes=["a", "b"], target_index=3)
    return dataclasses.replace(made, **changes)


def images():
    return Preprocess("array", "classification", "y", shape=[4, 4], mean=1.0, std=2.0, classes=["a", "b"])


def saved(path, made, hidden=(3,)):
    """(arrays, description) of a model that is written to `path`."""
    net = perceptron(made, hidden)
    net.init(0)
    gl.save(Model(net, made, {"seed": 0}, {"test_accuracy": 0.5}), path)
    arrays, metadata = load_arrays(path)
    return arrays, json.loads(metadata["gradloom.model"])


def refused(path):
    """The message of load_model, which allocates little and says it in one line."""
    tracemalloc.start()
    try:
        with pytest.raises(FileError) as caught:
            load_model(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 600
    assert peak < 20 * path.stat().st_size + (4 << 20)
    return message


def saved_again(path, arrays, description, message):
    """Written with this description, the model is refused with this message, or read where there is none."""
    save_arrays(path, arrays, {"gradloom.model": json.dumps(description)})
    if message is None:
        load_model(path)
    else:
        assert message in refused(path)


@pytest.mark.parametrize(
    "made",
    [
        table(),
        images(),
        table(header=False, separator=";", target_index=0),
        table(task="regression", classes=[], target_mean=[1.0, 2.0], target_std=[1.0, 3.0]),
    ],
)
@pytest.mark.parametrize("hidden", [(), (3,), (3, 5)])
def test_what_is_saved_is_loaded(tmp_path, made, hidden):
    path = tmp_path / "m.safetensors"
    arrays, _ = saved(path, made, hidden)
    read = load_model(path)
    assert (read.preprocess, read.about, read.metrics) == (made, {"seed": 0}, {"test_accuracy": 0.5})
    assert {k: v.tobytes() for k, v in read.net.state_dict().items()} == {k: v.tobytes() for k, v in arrays.items()}


def old(description, hidden=(3,), **more):
    """The description that files of format 1 have."""
    kept = {key: description[key] for key in ("preprocess", "about")}
    return {"format": 1, "architecture": {"kind": "mlp", "hidden": list(hidden), **more}, **kept}


@pytest.mark.parametrize("made", [table(), images()])
@pytest.mark.parametrize("more", [{}, {"dropout": 0.5}])
def test_files_of_format_1_are_read(tmp_path, made, more):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, made, (3, 5))
    now = load_model(path)
    save_arrays(path, arrays, {"gradloom.model": json.dumps(old(description, (3, 5), **more))})
    then = load_model(path)
    x = np.ones((4, made.inputs), np.float32)
    np.testing.assert_array_equal(gl.predict(then.net, x), gl.predict(now.net, x))
    assert then.preprocess == made and then.about == {"seed": 0} and then.metrics == {}
    gl.save(then, path)
    assert load_model(path).preprocess == made


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("made", [table(), images()])
def test_weights_that_are_not_finite(tmp_path, made, bad):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, made)
    for name in arrays:
        changed = {n: a.copy() for n, a in arrays.items()}
        changed[name].reshape(-1)[-1] = bad
        save_arrays(path, changed, {"gradloom.model": json.dumps(description)})
        assert f"array '{name}' holds 1 of {arrays[name].size} numbers that are NaN or infinite" in refused(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_modules_do_not_load_weights_that_are_not_finite(tmp_path, suffix):
    net = gl.nn.Linear(2, 3)
    net.init(0)
    arrays = net.state_dict()
    before = {k: v.copy() for k, v in arrays.items()}
    bad = {k: v.copy() for k, v in arrays.items()}
    bad["bias"][1] = np.nan
    save_arrays(tmp_path / f"m{suffix}", bad)
    with pytest.raises(
        FileError, match=r"array 'bias' holds 1 of 3 numbers that are NaN or infinite; need finite ones"
    ):
        gl.load(net, tmp_path / f"m{suffix}")
    assert all((net.state_dict()[k] == before[k]).all() for k in before)


def put(*path, value):
    """A change of a description: the value at a path of keys."""

    def change(description):
        at = description
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def drop(*path):
    def change(description):
        at = description
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


PRE, FIRST = ("preprocess",), ("preprocess", "columns", 0)
NET, LAYER = ("network", "net"), ("network", "net", "layers", 0)
CHANGES = [
    (put("format", value=3), "format 3; this version reads formats 1 and 2"),
    (put("format", value=True), "format is true; need a whole number"),
    (put("network", value=[]), "network is a list; need an object"),
    (put(*NET, "layer", value="Lambda"), "layer is \"Lambda\"; need 'Linear'"),
    (put(*NET, "layers", value=3), "layers is 3; need a list"),
    (put(*NET, "layers", value=[]), "is of no layer; need the 0 arrays"),
    (put(*NET, "depth", value=1), "net: key 'depth' is not known"),
    (put(*LAYER, "n_out", value=float("inf")), "holds Infinity; need finite numbers"),
    (put(*LAYER, "n_out", value=float("nan")), "holds NaN; need finite numbers"),
    (put(*LAYER, "n_out", value=3.0), "n_out is 3.0; need a whole number of at least 1"),
    (put(*LAYER, "n_out", value="3"), 'n_out is "3"; need a whole number'),
    (put(*LAYER, "n_out", value=True), "n_out is true; need a whole number"),
    (put(*LAYER, "n_out", value=0), "n_out is 0; need a whole number of at least 1"),
    (put(*LAYER, "n_out", value=10**9), "0.weight has shape [3, 4]; need [1000000000, 4]"),
    (put(*LAYER, "n_out", value=10**30), "n_out is a whole number of 100 bits; need"),
    (put(*LAYER, "activation", value="eval"), "activation is \"eval\"; need 'relu'"),
    (
        put(*NET, "layers", value=[{"layer": "Linear", "n_in": 1, "n_out": 1}] * 50_000),
        "0.weight has shape [3, 4]; need [1, 1]",
    ),
    (put(*NET, "layers", value=[{"layer": "ReLU"}] * 50_000), "more than 4,096 layers"),
    (put("metrics", value={"a": "b"}), "metrics: 'a' is a str; need a number"),
    (put("about", value=[]), "about is a list; need an object"),
    (put("more", value=1), "key 'more' is not known"),
    (drop("about"), "key 'about' is missing"),
    (drop(*PRE, "columns"), "preprocess: key 'columns' is missing"),
    (put(*PRE, "mode", value=1), "preprocess: key 'mode' is not known"),
    (put(*PRE, "kind", value="array"), "3 columns and shape [] are not of one array"),
    (put(*PRE, "task", value="ranking"), 'task is "ranking"; need'),
    (put(*PRE, "columns", value={}), "columns is an object; need a list"),
    (put(*PRE, "columns", value=[]), "0 columns and shape [] are not of one columns"),
    (put(*PRE, "shape", value=[4]), "3 columns and shape [4] are not of one columns"),
    (put(*PRE, "classes", value=["a", "a"]), "classes names one text twice"),
    (
        put(*PRE, "classes", value=["a"]),
        "1 classes, 0 means and 0 deviations of targets are not those of a classification",
    ),
    (put(*PRE, "classes", value=["a", "b", "c"]), "the network makes [1, 2] of a row; need [1, 3]"),
    (put(*PRE, "classes", value=["a", 1]), "classes is 1; need a text"),
    (put(*PRE, "classes", value=["a", "\ud800"]), "need a text that UTF-8 can hold"),
    (put(*PRE, "target_mean", value=[1.0]), "2 classes, 1 means and 0 deviations of targets"),
    (put(*PRE, "target_std", value=[0.0]), "target_std is 0.0; need a finite number above 0"),
    (put(*PRE, "header", value=1), "header is 1; need true or false"),
    (put(*PRE, "header", value=False), None),  # by place: target_index says where the target is
    (put(*PRE, "separator", value=""), "separator is \"\"; need ',' or ';' or '\\t'"),
    (put(*PRE, "separator", value="\n"), "separator is \"\\n\"; need ',' or ';' or '\\t'"),
    (put(*PRE, "target_index", value=-1), "target_index is -1; need a whole number of at least 0"),
    (put(*FIRST, "kind", value="date"), 'kind is "date"; need'),
    (put(*FIRST, "kind", value="unused"), "matmul: inner sizes differ"),
    (put(*FIRST, "kind", value="text"), "0 categories of a column of kind 'text'"),
    (put(*FIRST, "mean", value=None), "mean is null; need a finite number"),
    (put(*FIRST, "mean", value="2"), 'mean is "2"; need a finite number'),
    (put(*FIRST, "mean", value=10**400), "mean is a whole number of 1329 bits; need a finite number"),
    (put(*FIRST, "median", value=float("nan")), "holds NaN; need finite numbers"),
    (put(*FIRST, "std", value=0), "std is 0; need a finite number above 0"),
    (put(*FIRST, "std", value=-1.5), "std is -1.5; need a finite number above 0"),
    (put(*FIRST, "name", value=["size"]), "name is a list; need a text"),
    (put(*FIRST, "categories", value=["x"]), "1 categories of a column of kind 'number'"),
    (put(*FIRST, "weight", value=1), "columns[0]: key 'weight' is not known"),
    (drop(*FIRST, "reason"), "columns[0]: key 'reason' is missing"),
    (put("preprocess", "columns", 1, "categories", value=["red", "green", "blue"]), "its categories are not in order"),
    (put("preprocess", "columns", 1, "categories", value=["blue", "red"]), "matmul: inner sizes differ"),
    (put("preprocess", "columns", 1, "categories", value=["blue", "blue", "red"]), "categories names one text twice"),
    (put("preprocess", "columns", 2, value=None), "columns[2] is null; need an object"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=range(len(CHANGES)))
def test_descriptions_that_are_changed(tmp_path, change, message):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, table())
    change(description)
    saved_again(path, arrays, description, message)


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ([1] * 100_000, "100000 hidden layers need 200002 arrays; the file holds 4"),
        ([10**9], "0.weight has shape [3, 4]; need [1000000000, 4]"),
        ([0], "hidden is 0; need a whole number of at least 1"),
        (["3"], 'hidden is "3"; need a whole number'),
        (3, "hidden is 3; need a list"),
    ],
)
def test_descriptions_of_format_1_that_are_changed(tmp_path, hidden, message):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, table())
    description = old(description)
    description["architecture"]["hidden"] = hidden
    saved_again(path, arrays, description, message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shape", [16], None),
        ("shape", [2, 2], "matmul: inner sizes differ"),
        ("shape", [10**9, 10**9], "no feature is made of a row, or too many"),
        ("shape", [2**52] * 50, "no feature is made of a row, or too many"),
        ("shape", [0], "shape is 0; need a whole number of at least 1"),
        ("mean", 1e300, "mean 1e+300 and std 2 are beyond float32"),
        ("std", 1e-300, "mean 1 and std 1e-300 are beyond float32"),
    ],
)
def test_descriptions_of_images_that_are_changed(tmp_path, key, value, message):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, images())
    description["preprocess"][key] = value
    saved_again(path, arrays, description, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the description: Expecting value"),
        ("[]", "the description is a list; need an object"),
        ("null", "the description is null; need an object"),
        ("[" * 100_000, "the description is nested too deeply"),
        ('{"a":' * 100_000, "the description is nested too deeply"),
        ('{"format": 1, "format": 1}', "key 'format' is there twice"),
        ('{"format": 1e999}', "format is Infinity; need a whole number"),
        ('{"format": ' + "9" * 5000 + "}", "the description: "),
        ('{"format": ' + "9" * 4000 + "}", "format is a whole number of 13288 bits"),
        ("[" + "[]," * (1 << 23) + "[]]", "its metadata has 25165"),
    ],
)
def test_descriptions_that_are_none(tmp_path, monkeypatch, text, message):
    path = tmp_path / "m.safetensors"
    arrays, _ = saved(path, table())
    monkeypatch.setattr("gradloom.files.arrays.LONGEST", 1 << 60)  # the writer refuses what the reader would
    save_arrays(path, arrays, {"gradloom.model": text})
    monkeypatch.undo()
    assert message in refused(path)


def test_metadata_that_is_nested(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "m.safetensors"
    for text, message in (
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1}', "metadata 'a' is no text"),
        ("1", "need an object"),
    ):
        save_file({"w": np.zeros(3, "f4")}, path, {"gradloom": text})
        assert message in refused(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {}, "array '0.weight' is missing among "),
        (lambda a: a | {"2.weight": a["1.weight"]}, "array '2.weight' is of no layer; need the 4 arrays"),
        (
            lambda a: {k.replace("1.", "2."): v for k, v in a.items()},
            "array '1.weight' is missing among 0.bias, 0.weight, 2.bias, 2.weight",
        ),
        (lambda a: a | {"0.weight": a["0.weight"].T.copy()}, "0.weight has shape [4, 3]; need [3, 4]"),
        (lambda a: a | {"0.weight": a["0.weight"].astype("f8")}, "0.weight is float64 [3, 4]; need float32"),
        (lambda a: a | {"0.bias": a["0.bias"] > 0}, "0.bias is bool [3]; need float32"),
        (lambda a: a | {"0.bias": a["0.bias"][:, None]}, "0.bias has shape [3, 1]; need [3]"),
    ],
)
def test_arrays_that_are_not_those_of_the_description(tmp_path, change, message):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, table())
    save_arrays(path, change(arrays), {"gradloom.model": json.dumps(description)})
    assert f"{path}: its description is damaged ({message}" in refused(path)


def test_predictions_that_are_not_finite(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    arrays, description = saved(path, table())
    for array in arrays.values():
        array[...] = 3e38
    save_arrays(path, arrays, {"gradloom.model": json.dumps(description)})
    (tmp_path / "t.csv").write_text("size,colour,same\n1,red,1\n2,blue,1\n")
    assert main(["predict", str(path), str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.csv")]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.count("\n") == 1
        and f"{tmp_path / 't.csv'}: the output of the model for row 0 is not finite" in err
    )
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    "made", [table(), table(task="regression", classes=[], target_mean=[1.0, 2.0], target_std=[1.0, 3.0])]
)
def test_predictions_are_written_some_rows_at_a_time(tmp_path, monkeypatch, capsys, made):
    saved(tmp_path / "m.safetensors", made)
    (tmp_path / "t.csv").write_text("size,colour,same\n" + "".join(f"{i},red,1\n" for i in range(50)))
    found = []
    for rows in (7, 50, 1000):
        monkeypatch.setattr("gradloom.cli.predict._ROWS", rows)
        for arguments in ([], ["--out", str(tmp_path / "p.csv")]):
            assert main(["predict", str(tmp_path / "m.safetensors"), str(tmp_path / "t.csv"), *arguments]) == 0
            found.append(capsys.readouterr().out or (tmp_path / "p.csv").read_text())
    assert (
        len(set(found)) == 1 and found[0].count("\n") == 51 and found[0].count("y") == 1 + (made.task == "regression")
    )
