"""Files of `gradloom fit` that somebody changed: one FileError of one line, before anything is built from them."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import FileError
from gradloom.cli.main import main
from gradloom.cli.model import build_model, load_model, save_model
from gradloom.data import Preprocess
from gradloom.data.preprocess import Column
from gradloom.files import load_arrays, save_arrays

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
    net = build_model(made, hidden)
    net.init(0)
    save_model(path, net, made, hidden, {"seed": 0})
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
    net, preprocess = load_model(path)
    assert preprocess == made
    assert {k: v.tobytes() for k, v in net.state_dict().items()} == {k: v.tobytes() for k, v in arrays.items()}


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
CHANGES = [
    (put("format", value=2), "format 2; this version reads format 1"),
    (put("format", value=True), "format is true; need a whole number"),
    (put("architecture", value=[]), "architecture is a list; need an object"),
    (put("architecture", "kind", value="cnn"), "kind is \"cnn\"; need 'mlp'"),
    (put("architecture", "hidden", value=[float("inf")]), "holds Infinity; need finite numbers"),
    (put("architecture", "hidden", value=[float("nan")]), "holds NaN; need finite numbers"),
    (put("architecture", "hidden", value=[3.0]), "hidden is 3.0; need a whole number of at least 1"),
    (put("architecture", "hidden", value=["3"]), 'hidden is "3"; need a whole number'),
    (put("architecture", "hidden", value=[True]), "hidden is true; need a whole number"),
    (put("architecture", "hidden", value=[0]), "hidden is 0; need a whole number of at least 1"),
    (put("architecture", "hidden", value=[10**9]), "0.weight is float32 [3, 4]; need float32 [1000000000, 4]"),
    (put("architecture", "hidden", value=[10**30]), "hidden is a whole number of 100 bits; need"),
    (put("architecture", "hidden", value=[1] * 100_000), "100000 hidden layers need 200002 arrays; the file holds 4"),
    (put("architecture", "hidden", value=3), "hidden is 3; need a list"),
    (put("architecture", "depth", value=1), "architecture: key 'depth' is not known"),
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
    (put(*PRE, "classes", value=["a", "b", "c"]), "1.weight is float32 [2, 3]; need float32 [3, 3]"),
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
    (put(*FIRST, "kind", value="unused"), "0.weight is float32 [3, 4]; need float32 [3, 3]"),
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
    (put("preprocess", "columns", 1, "categories", value=["blue", "red"]), "need float32 [3, 3]"),
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
    ("key", "value", "message"),
    [
        ("shape", [16], None),
        ("shape", [2, 2], "1.weight is float32 [3, 16]; need float32 [3, 4]"),
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
        ('{"a": 1}', "metadata is damaged"),
        ("1", "need an object"),
    ):
        save_file({"w": np.zeros(3, "f4")}, path, {"gradloom": text})
        assert message in refused(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {}, "1 hidden layers need 4 arrays; the file holds 0"),
        (lambda a: a | {"2.weight": a["1.weight"]}, "1 hidden layers need 4 arrays; the file holds 5"),
        (
            lambda a: {k.replace("1.", "2."): v for k, v in a.items()},
            "array '1.weight' is missing among 0.bias, 0.weight, 2.bias, 2.weight",
        ),
        (lambda a: a | {"0.weight": a["0.weight"].T.copy()}, "0.weight is float32 [4, 3]; need float32 [3, 4]"),
        (lambda a: a | {"0.weight": a["0.weight"].astype("f8")}, "0.weight is float64 [3, 4]; need float32 [3, 4]"),
        (lambda a: a | {"0.bias": a["0.bias"] > 0}, "0.bias is bool [3]; need float32 [3]"),
        (lambda a: a | {"0.bias": a["0.bias"][:, None]}, "0.bias is float32 [3, 1]; need float32 [3]"),
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
    assert out == "" and err.count("\n") == 1 and f"what it says of row 0 of {tmp_path / 't.csv'} is not finite" in err
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
