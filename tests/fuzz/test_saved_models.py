"""Files of `gradloom fit` with changed bytes, descriptions, tensors: a FileError of one line, or a model that predicts.

A failing case is its number: `changed(seeds(folder), number)` makes the same bytes again.
"""

import copy
import json
import random
import re
import struct

import numpy as np

import gradloom as gl
from gradloom.cli.model import Model, load_model
from gradloom.data import Preprocess, read_features
from gradloom.data.encoding.preprocess import Column
from gradloom.tables.perceptron import perceptron
from tests.fuzz.limits import CASES, Costs, one_input

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    100,
    2**31,
    2**53,
    2**63,
    10**18,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e-40,
    1e30,
    1e300,
    True,
    False,
]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    "a",
    "b",
    "\ud800",
    "\0",
    "array",
    "columns",
    "text",
    "number",
    "unused",
    "regression",
    "classification",
    ",",
]
TEXTS += [";", "x" * 5000, "\n", "é", "2", "size"]
OTHERS = [None, [], {}, [[]], [1], ["a"], [None], {"a": 1}, [3] * 9, [0.5], ["a", "b"], ["b", "a"], ["a", "a"]]
DTYPES = ["F32", "F64", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "U64", "C64", "F4", "X"]


def dumps(tree):
    """JSON, in which a text such as "@0 3" stands for what json.dumps cannot write: nested deeply, not finished."""

    def raw(found):
        depth = int(found[2])
        whole = ["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "9" * depth, "[" * depth]
        return whole[int(found[1])]

    return re.sub(r'"@(\d) (\d+)"', raw, json.dumps(tree))


def models():
    """(network, preprocessing) for tables and images, classes and numbers."""
    columns = [
        Column("size", "number", median=2.0, mean=2.5, std=1.5),
        Column("colour", "text", categories=["blue", "green", "red"]),
        Column("same", "unused", reason="constant"),
    ]
    classes = ["a", "b"]
    made = [
        (Preprocess("columns", "classification", "y", columns=columns, classes=classes, target_index=3), [3]),
        (
            Preprocess(
                "columns", "regression", "y", columns=columns, target_mean=[1.0], target_std=[2.0], target_index=0
            ),
            [],
        ),
        (Preprocess("array", "classification", "y", shape=[2, 2], mean=1.0, std=2.0, classes=classes), [3, 2]),
        (
            Preprocess(
                "columns", "classification", "y", columns=columns[:1], classes=classes, header=False, target_index=1
            ),
            [4],
        ),
    ]
    return [(perceptron(preprocess, hidden), preprocess) for preprocess, hidden in made]


def parts(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header, data):
    text = dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def seeds(folder):
    """Whole files as (header, data)."""
    path = folder / "m.safetensors"
    made = []
    for net, preprocess in models():
        net.init(0)
        gl.save(Model(net, preprocess, {"seed": 0}, {"test_loss": 0.5}), path)
        made.append(parts(path))
    return made


def value(draw):
    how = draw.randrange(10)
    if how < 4:
        return draw.choice(NUMBERS)
    if how < 6:
        return draw.choice(TEXTS)
    if how < 8:
        return copy.deepcopy(draw.choice(OTHERS))
    return f"@{draw.randrange(4)} {draw.choice([3, 50, 900, 5000, 50_000])}"


def change(draw, tree):
    """One change somewhere in a tree of lists and dicts; see dumps."""
    at = tree
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(at[key], (dict, list)) and at[key] and draw.random() < 0.75:
            at = at[key]
            continue
        how = draw.randrange(8)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        elif how == 1:
            at[draw.choice(TEXTS)] = value(draw)
        elif how == 2 and isinstance(at, list):
            draw.shuffle(at)
        elif how == 3 and isinstance(at, list):
            at.extend([at[key]] * draw.choice([1, 10, 3000]))
        else:
            at[key] = value(draw)
        return


def described(draw, header):
    """Changes of the description, which is a text in a text in the header."""
    inner = json.loads(header["__metadata__"]["gradloom"])
    tree = json.loads(inner["gradloom.model"])
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        change(draw, tree)
    text = dumps(tree)
    if draw.random() < 0.1:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(['"', "}", "[" * 9000, "NaN", "\\", "1e999", ",", "\\ud800"]) + text[at + 1 :]
    inner["gradloom.model"] = text
    if draw.random() < 0.1:
        change(draw, inner)
    header["__metadata__"]["gradloom"] = dumps(inner)
    if draw.random() < 0.05:
        change(draw, header["__metadata__"])


def retensored(draw, header, data):
    """Changes of tensors: their names, shapes, types, places and numbers."""
    names = [name for name in header if name != "__metadata__"]
    places = [tuple(header[name]["data_offsets"]) for name in names]
    for _ in range(draw.choice([1, 1, 2, 3])):
        name = draw.choice(names)
        how = draw.randrange(8)
        entry = header.get(name)
        if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
            continue
        if how == 0:
            header[draw.choice([*names, "9.weight", "", "0.weight ", "x" * 3000])] = header.pop(name)
        elif how == 1:
            entry["shape"] = draw.choice(
                [entry["shape"][::-1], [*entry["shape"], 1], [2**31, 2**31], [0], [0, 2**62], []]
            )
        elif how == 2:
            entry["dtype"] = draw.choice(DTYPES)
        elif how == 3:
            entry["data_offsets"] = list(draw.choice(places))
        elif how == 4:
            begin, end = draw.choice(places)
            entry["data_offsets"] = draw.choice([[end, begin], [begin, end + 4], [0, 2**63], [begin, begin], [-1, 3]])
        elif how == 5:
            header["extra"] = {"dtype": draw.choice(DTYPES), "shape": [0], "data_offsets": [len(data), len(data)]}
        elif how == 6 and data:
            at = draw.randrange(len(data) // 4) * 4
            number = struct.pack("<f", draw.choice([float("nan"), float("inf"), -float("inf"), 3e38, 0, 1e-45]))
            data = data[:at] + number + data[at + 4 :]
        else:
            change(draw, header)
    return data


def rebyted(draw, whole):
    """Changes of bytes, most of them in the header."""
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(8 if draw.random() < 0.2 else len(data))
        how = draw.randrange(5)
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            data[at : at + 8] = struct.pack("<Q", draw.choice([0, 1, 2**20, 2**31, 2**32, 2**63, 2**64 - 1]))
        elif how == 2:
            del data[at : at + draw.choice([1, 8, 300])]
        elif how == 3:
            data[at:at] = draw.choice([b"[" * 3000, b"{", b'"', b"\\", b"\0", b"9" * 30, draw.randbytes(8)])
        else:
            other = draw.randrange(len(data))
            data[at : at + 16] = data[other : other + 16]
        if not data:
            return b"{"
    return bytes(data)


def changed(wholes, number):
    """The bytes of case `number`."""
    draw = random.Random(number)
    header, data = copy.deepcopy(draw.choice(wholes))
    how = draw.randrange(4)
    if how == 0:
        return rebyted(draw, joined(header, data))
    if how in (1, 3):
        described(draw, header)
    if how in (2, 3):
        data = retensored(draw, header, data)
    return joined(header, data)


def read_all(wholes, folder, numbers, costs):
    """Load the files of these cases, make features of data with what is loaded, and predict with one of 20."""
    (folder / "t.csv").write_text("size,colour,same,y\n1,red,1,a\n2,blue,1,b\n3,,1,c\n")
    (folder / "u.csv").write_text("1,a\n2,b\n")
    np.savez(folder / "x.npz", x=np.arange(8.0).reshape(2, 2, 2), y=np.arange(2))
    path = folder / "m.safetensors"
    for number in numbers:
        path.write_bytes(changed(wholes, number))
        try:
            with one_input(path, costs):
                read = load_model(path)
                net, preprocess = read.net, read.preprocess
                assert all(np.isfinite(array).all() for array in net.state_dict().values())
                data = {"array": "x.npz"}.get(preprocess.kind, "t.csv" if preprocess.header else "u.csv")
                features = read_features(folder / data, preprocess)[0]
                assert features.dtype == np.uint8 or np.isfinite(features).all()
                if number % 20 == 0:
                    assert gl.predict(net, features).shape == (len(features), preprocess.outputs)
        except BaseException as error:
            raise AssertionError(f"case {number}: {error!r}") from error


def test_saved_models_that_are_changed(tmp_path):
    costs = Costs()
    read_all(seeds(tmp_path), tmp_path, range(CASES), costs)
    print(f"\nsaved models: {CASES} inputs: {costs}")
    assert 0 < costs.read < costs.refused


def networks():
    """Networks of every layer, with shared and tied parts, and rows that they take."""
    nn = gl.nn
    relu, one = nn.ReLU(), nn.Linear(4, 4)
    shared = nn.Sequential(one, relu, nn.Sequential(one, relu), nn.LayerNorm(4), nn.RMSNorm(4), nn.Linear(4, 4))
    shared[5].weight, shared[3].eps = one.weight, 0.25
    shared[4].weight.trainable = False
    images = nn.Sequential(
        nn.Standardize(np.zeros((2, 1, 1)), np.ones((2, 1, 1))), nn.Conv2d(2, 3, (3, 2), stride=2, padding="same"),
        nn.BatchNorm(3), nn.GELU(), nn.MaxPool2d(2, 1), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Dropout(0.2),
    )  # fmt: skip
    images[2].eval()
    tokens = nn.Sequential(nn.Embedding(5, 8), nn.MultiheadAttention(8, 4, 2, window=3, causal=True), nn.Tanh())
    hidden = nn.HiddenDropout(nn.Linear(4, 3, activation="silu"), nn.Linear(3, 2), nn.Softmax(), rate=0.5)
    rows = np.ones((2, 4), np.float32)
    return [
        (shared, rows), (images, np.ones((2, 2, 6, 6), np.float32)), (tokens, np.ones((2, 3), np.int32)),
        (hidden, rows),
    ]  # fmt: skip


def test_saved_networks_that_are_changed(tmp_path):
    """Those that are read predict, or say in one line why not."""
    path, costs, wholes = tmp_path / "n.safetensors", Costs(), []
    made = networks()
    for net, _ in made:
        gl.save(net.init(0), path)
        wholes.append(parts(path))
    for number in range(CASES):
        path.write_bytes(changed(wholes, number))
        try:
            with one_input(path, costs):
                net = gl.load(path)
                assert all(np.isfinite(array).all() for array in net.state_dict().values())
                if number % 20 == 0:
                    kind = next((i for i, (known, _) in enumerate(made) if type(known[0]) is type(net[0])), 0)
                    gl.predict(net, made[kind][1])
        except BaseException as error:
            raise AssertionError(f"case {number}: {error!r}") from error
    print(f"\nsaved networks: {CASES} inputs: {costs}")
    assert 0 < costs.read < costs.refused
