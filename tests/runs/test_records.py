"""Records as columns: the same records come back, and a checkpoint does not grow by an entry for each epoch."""

import os

import numpy as np
import pytest

import gradloom as gl
from gradloom.files.checkpoint_files import manifests
from gradloom.runs.records import packed, unpacked

VALUES = [
    None, True, False, 0, 1, -7, 2**63, -(2**63), 0.0, -0.0, 0.5, float("nan"), float("inf"), "", "a", "lr",
    [], [1, 2], ["val"],
    ("a",), {}, np.zeros(0), np.arange(3.0), np.arange(2, dtype=np.float32), np.arange(4, dtype=np.int32),
    np.zeros((2, 2)), np.array([True]),
]  # fmt: skip


def drawn(rng, depth=1):
    """Some records of a few names, with values of all kinds."""
    values = [*VALUES, *(drawn(rng, 0) if depth else [])]
    names = rng.choice(list("abcde"), rng.integers(0, 6), replace=False)
    return [
        {str(n): values[rng.integers(len(values))] for n in names if rng.random() < 0.9}
        for _ in range(rng.integers(0, 7))
    ]


def alike(a, b):
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(alike(v, b[k]) for k, v in a.items())
    if isinstance(a, np.ndarray):
        return type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize("seed", range(200))
def test_the_same_records_come_back(seed):
    records = drawn(np.random.default_rng(seed))
    found = unpacked(packed(records))
    assert len(found) == len(records) and all(map(alike, records, found))


@pytest.mark.slow
@pytest.mark.parametrize("val_split", [0.0, 0.5])
def test_a_checkpoint_of_many_epochs_is_small(tmp_path, val_split):
    x, y = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2
    sizes = []
    for epochs in (2, 600):
        run = tmp_path / str(epochs)
        gl.fit(gl.nn.Linear(3, 2), (x, y), epochs=epochs, batch_size=2, val_split=val_split,
               eval_every="3steps" if val_split else "1epoch", run=run, progress=False)  # fmt: skip
        (last,), bad = manifests(run / "checkpoints")
        assert not bad
        sizes.append((os.path.getsize(last.path), os.path.getsize(last.arrays_path)))
    (few, few_bytes), (many, many_bytes) = sizes
    assert many < few * 1.2, "entries that grow with the epochs"
    assert (many_bytes - few_bytes) / 598 < 400, "bytes of an epoch of four steps, and of two and two evaluations"
