"""A short run of tests.fuzz.checkpoints, and the single cases that it came from."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom.base.errors import GradloomError
from tests.fuzz import checkpoints
from tests.fuzz.checkpoints import Seed, _quiet, _renamed, write_signed
from tests.fuzz.limits import Costs, one_input

CASES = int(os.environ.get("FUZZ_CHECKPOINTS", "2000"))  # more of them: FUZZ_CHECKPOINTS=100000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, which Linux tells")


@pytest.mark.slow
def test_changed_checkpoints_load_or_are_refused() -> None:
    told = checkpoints.run(0, CASES)
    for name in ("steered", "plain", "tuned", "own"):
        assert told[f"{name}: loaded"] > CASES // 200 and told[f"{name}: refused"] > CASES // 20, told
    assert told["trained"] > CASES // 1000, told


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seed]]:
    yield {seed.name: seed for seed in checkpoints.seeds(tmp_path_factory.mktemp("seeds"))}


def refused(seed: Seed, run: Path, body: dict[str, Any], arrays: bytes | None = None) -> str:
    """The error and the lines that a load of this checkpoint gives; within the limits of a fuzzed file."""
    path = write_signed(run, body, seed.arrays if arrays is None else arrays)
    costs, errors = Costs(), []
    with _quiet() as said, one_input(path, costs):
        try:
            seed.load(run)
        except GradloomError as error:
            errors.append(str(error))
            raise
    assert costs.refused == 1, "it was loaded"
    return f"{errors[0]} {said.getvalue()}"


def changed(seed: Seed, path: str, value: Any) -> dict[str, Any]:
    """The checkpoint with another value at entries[name]/key/key."""
    body = _renamed(seed.body)
    name, *keys = path.split("/")
    holder: Any = body["entries"]
    for key in keys:
        holder, name = holder[int(name) if isinstance(holder, list) else name], key
    before = holder[int(name) if isinstance(holder, list) else name]
    assert before != value
    holder[int(name) if isinstance(holder, list) else name] = value
    return body


VALUES: list[tuple[str, str, Any]] = [
    ("plain", "loop.history/records", 2**63), ("plain", "loop.history/records", 10**9),
    ("plain", "loop.history/records", -1), ("plain", "loop.passes", 10**9), ("plain", "loop.passes", 2**63),
    ("plain", "loop.steps", -1), ("plain", "loop.rows", 2**50), ("plain", "loop.first_pass", 5),
    ("steered", "loop.stopped", True),
    ("steered", "loop.pass/number", 10**9), ("steered", "loop.pass/done", 2**40), ("steered", "loop.pass", None),
    ("plain", "loop.history", {"records": 10**7, "columns": [{"name": "a", "of": None, "value": None}]}),
    ("plain", "callbacks.0.size", 2**62), ("plain", "callbacks.0.told", [0, 0]), ("plain", "callbacks.0.seconds", "x"),
    ("plain", "optimizer.steps", 2**63), ("plain", "optimizer.settings/opt.momentum", "0.9"),
    ("plain", "optimizer.settings/opt.momentum", {"$float": "nan"}), ("plain", "optimizer.trainable", [["0.weight"]]),
    ("steered", "optimizer.plateaus/lr", {}), ("steered", "optimizer.plateaus/lr/rate", {"$float": "nan"}),
    ("steered", "average.shown", [99]), ("steered", "average.shown", [-1]), ("plain", "rows.in_window", 3),
    ("steered", "callbacks.1.best", {"$float": "nan"}), ("steered", "callbacks.1.waited", -1),
    ("plain", "eager draws.seed", 2**63), ("plain", "time.training", {"$float": "inf"}),
    ("steered", "modules.attributes/scale", ["at", "nowhere"]), ("steered", "modules.holders", {"words": [1, 2]}),
    ("steered", "modules.attributes", {"__class__": 3}), ("steered", "modules.attributes", {"forward": 3}),
    ("steered", "modules.attributes", {"body.3.rate": "much"}), ("steered", "modules.attributes", {"training": 7}),
    ("tuned", "finetune.samples", [{"step": 1}]), ("tuned", "finetune.first_step", "0"),
    ("own", "loader.batches", 10**6), ("own", "loader.rows", [1]), ("own", "model trainable.body.0.weight", "yes"),
    ("own", "twister.state/state/pos", 10**6), ("own", "noise.state/state/inc", -1),
    ("own", "optimizer window.options", [1]),
]  # fmt: skip


@pytest.mark.parametrize("name, path, value", VALUES, ids=[f"{path}={str(value)[:30]}" for _, path, value in VALUES])
def test_a_value_out_of_the_schema(seeds, tmp_path, name, path, value):
    said = refused(seeds[name], tmp_path / "run", changed(seeds[name], path, value))
    words = [*re.split(r"[./]", path), *map(str, value if isinstance(value, (dict, list)) else ())]
    assert any(word in said for word in words if len(word) > 3), said


def with_array(seed: Seed, name: str, change: Any) -> bytes:
    """The file of arrays in which one array has other numbers of the same shape."""
    size = struct.unpack("<Q", seed.arrays[:8])[0]
    head = json.loads(seed.arrays[8 : 8 + size])
    kinds = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32}
    begin, end = (8 + size + at for at in head[name]["data_offsets"])
    array = np.frombuffer(seed.arrays[begin:end], kinds[head[name]["dtype"]]).copy()
    change(array)
    return seed.arrays[:begin] + array.tobytes() + seed.arrays[end:]


@pytest.mark.parametrize("name, value", [("model.0.weight", np.nan), ("optimizer.m.0", np.inf), ("time.epochs", -1.0)])
def test_numbers_that_no_run_goes_on_from(seeds, tmp_path, name, value):
    seed = seeds["plain"]
    name = next(n for n in (name, name.replace(".m.", ".momentum."), "optimizer.v.0") if n in str(seed.body["entries"]))
    arrays = with_array(seed, name, lambda array: array.fill(value))
    assert name.partition(".")[0] in refused(seed, tmp_path / "run", _renamed(seed.body), arrays)


@pytest.mark.parametrize("count", [2**20, 2**44])
def test_an_array_that_is_larger_than_its_file_takes_no_memory(seeds, tmp_path, count):
    seed = seeds["plain"]
    size = struct.unpack("<Q", seed.arrays[:8])[0]
    head = json.loads(seed.arrays[8 : 8 + size])
    last = max(head.values(), key=lambda one: one["data_offsets"][1])
    begin = last["data_offsets"][0]
    last |= {"dtype": "F32", "shape": [count], "data_offsets": [begin, begin + 4 * count]}
    text = json.dumps(head).encode()
    arrays = struct.pack("<Q", len(text)) + text + seed.arrays[8 + size :]
    assert "leaves a gap or has no room" in refused(seed, tmp_path / "run", _renamed(seed.body), arrays)


def test_what_is_hashed_is_what_is_read(seeds, tmp_path, monkeypatch):
    """A file of arrays that is exchanged while it is read: its bytes are those of the manifest, or it is refused."""
    seed, run = seeds["plain"], tmp_path / "run"
    manifest = write_signed(run, _renamed(seed.body), seed.arrays)
    place = manifest.with_suffix(".safetensors")
    other = with_array(seed, "model.0.weight", lambda array: array.fill(7.0))
    honest, exchanged = os.fstat, []

    def exchange(handle: int) -> os.stat_result:
        if not exchanged and os.path.samestat(honest(handle), os.stat(place)):
            exchanged.append(True)
            place.unlink()
            place.write_bytes(other)
        return honest(handle)

    monkeypatch.setattr(os, "fstat", exchange)
    saved = checkpoints.Checkpoints(run / "checkpoints").latest()
    assert exchanged and saved is not None
    assert not (saved.entries["model.0.weight"] == 7.0).any()
