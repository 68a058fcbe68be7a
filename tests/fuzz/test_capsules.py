"""Damaged and hostile capsules: an error of one line or a result; no other exception, no hang, bounded memory.

A failing case is its number: `mutated(files, number)` makes the same bytes again.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import zipfile

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import FileError
from gradloom.files.capsule_file import write_archive
from gradloom.graph.opspec import REGISTRY
from gradloom.run.capsule_format import described
from gradloom.run.replay import replay
from gradloom.runs.capsules import capsule_of, load
from tests.fuzz.limits import Costs, one_input

CASES = int(os.environ.get("FUZZ_CASES", "2000"))
EDGES = [0, 1, -1, 2, 7, 63, 64, 255, 2**16, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, 1e308, -0.0]
ODD = [
    *EDGES,
    None,
    True,
    "",
    "x",
    "nan",
    "inf",
    "f32",
    "q8_0",
    "i64",
    [],
    {},
    [[]],
    [0, 0],
    ["f32", [2, 2]],
    "\n\x1b[2J",
]


@pytest.fixture(scope="module")
def seeds():
    """(JSON object, arrays) of two capsules: a step with dropout, and a product with quantised weights."""
    rng = np.random.default_rng(0)
    x, y = gl.input("x", (6, 8)), gl.input("y", (6,), "i32")
    w = gl.parameter(rng.standard_normal((8, 4)), "w")
    hidden = gl.ops.dropout(gl.ops.reshape(x, shape=(6, 8)) @ w, 0.2, stream=1) + rng.standard_normal((6, 4))
    loss, weight = gl.ops.cross_entropy_pair(hidden, y)
    (grad,) = gl.gradients(loss, [w])
    optimizer = gl.optim.AdamW()
    updates = optimizer.update(gl.optim.UpdateInputs([w], [grad], weight, optimizer.make_state([w])))
    run = gl.compile([loss, gl.ops.guard(loss, weight, grad)], updates)
    feeds = {"x": rng.standard_normal((6, 8)), "y": rng.integers(0, 4, 6)} | optimizer.at(0, 0) | {"opt.t": 1}
    q = gl.ops.common.Quantised.draw(rng, "q4_0", (4, 64)).value()
    other = gl.compile([gl.input("x", (2, 64)) @ gl.ops.permute(q, axes=(1, 0))])
    made = capsule_of(run, feeds), capsule_of(other, {"x": rng.standard_normal((2, 64))})
    return [described(made[0]), described(made[1]), described(made[0], False)]


def leaves(value, path=()):
    """The paths to all values inside a JSON object."""
    found = [path]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        found += leaves(one, (*path, key))
    return found


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutated(seeds, number):
    """Case `number`: one to three changes of the object, or of the bytes of the file."""
    draw = random.Random(number)
    head, arrays = copy.deepcopy(draw.choice(seeds))
    for _ in range(draw.choice([1, 1, 2, 3])) if number % 4 else ():
        path = draw.choice(leaves(head)[1:])
        parent, key, old = at(head, path[:-1]), path[-1], at(head, path)
        how = draw.randrange(6)
        if how == 0:
            del parent[key]
        elif how == 1 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(draw.choice(parent)))
        elif how == 2 and type(old) is int:
            parent[key] = old + draw.choice([-2, -1, 1, 2])
        elif how == 3 and key == "op":
            parent[key] = draw.choice([*REGISTRY])
        elif how == 4:
            parent[key] = copy.deepcopy(at(head, draw.choice(leaves(head)[1:])))
        else:
            parent[key] = copy.deepcopy(draw.choice(ODD))
    if number % 7 == 0 and arrays:
        i = draw.randrange(len(arrays))
        arrays[i] = draw.choice([arrays[i][:0], np.zeros((3, 3)), np.zeros(3, "O"), arrays[i].astype("f8")])
    file = io.BytesIO()
    usable = [a if a.dtype != object else np.zeros(1, "M8[s]") for a in arrays]
    write_archive(file, json.dumps(head).encode(), usable)
    data = bytearray(file.getvalue())
    if number % 4 == 0:
        for _ in range(draw.choice([1, 2, 4])):
            place = draw.randrange(len(data)) if draw.random() < 0.5 else len(data) - 1 - draw.randrange(600)
            data[place] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
    return bytes(data)


@pytest.mark.slow
def test_mutated_capsules_are_refused_or_replayed(tmp_path, seeds):
    file, costs, ran = tmp_path / "a.capsule", Costs(), 0
    for number in range(CASES):
        file.write_bytes(mutated(seeds, number))
        with one_input(file, costs):
            made = load(file)
            replay(made, isa="scalar" if number % 2 else None)
            ran += 1
    print(costs)
    assert ran > CASES // 50 and costs.refused > CASES // 3


def bombs():
    """Archives that claim more than they hold, by name."""
    head = json.dumps({"format": 1}).encode()

    def archive(names, kind=zipfile.ZIP_STORED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", kind) as made:
            for name, data in names:
                made.writestr(name, data)
        return file.getvalue()

    yield "compressed", archive([("capsule.json", b" " * 50_000_000)], zipfile.ZIP_DEFLATED), "compressed"
    yield "empty", archive([]), "has no capsule.json"
    yield "other names", archive([("../x", b"")]), "is not known"
    yield "deep", archive([("capsule.json", b"[" * 100_000)]), "nested too deeply"
    yield "no text", archive([("capsule.json", b"\xff\xfe")]), "no text of UTF-8"
    yield "newer", archive([("capsule.json", b'{"format": 2}')]), "of format 2"
    yield "lacking", archive([("capsule.json", head)]), "is missing"
    yield "not a zip", b"PK" * 100, "not a zip"


@pytest.mark.parametrize("name", [name for name, _, _ in bombs()])
def test_archives_that_are_no_capsules(tmp_path, name):
    data, text = next((d, t) for n, d, t in bombs() if n == name)
    (tmp_path / "a").write_bytes(data)
    with one_input(tmp_path / "a", costs := Costs()):
        load(tmp_path / "a")
    assert costs.refused == 1 and costs.bytes < 100_000_000
    with pytest.raises(FileError, match=text):
        load(tmp_path / "a")


def test_an_array_counts_once(tmp_path, seeds):
    """A member that many entries name would be read as often."""
    head, arrays = copy.deepcopy(seeds[0])
    member = next(one["data"] for one in head["stored"] if "member" in one["data"])
    head["stored"] += [{"name": f"s{i}", "role": "state", "data": member} for i in range(3)]
    with open(tmp_path / "a", "wb") as file:
        write_archive(file, json.dumps(head).encode(), arrays)
    with pytest.raises(FileError, match="is used twice"):
        load(tmp_path / "a")
