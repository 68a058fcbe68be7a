"""Damaged adapters: a FileError of one line, or an adapter that fits its base; no other exception."""

import json
import random
import struct

import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.base.errors import FileError
from gradloom.files import open_gguf
from gradloom.llm.adapter_arrays import AdapterArrays
from gradloom.llm.adapter_files import read_adapter
from gradloom.llm.adapter_gguf import write_adapter_gguf
from gradloom.llm.adapter_peft import write_peft

CASES = 400
VALUES = [None, True, 0, -1, 1e400, float("nan"), 2**70, "", "LORA", [], [1], {}, {"q_proj": 2}, {"(": 2}, {"a": "b"}]


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """(base, folder with a.gguf, adapter_model.safetensors and adapter_config.json)."""
    folder = tmp_path_factory.mktemp("seed")
    base = open_gguf(write_random(folder / "m.gguf", "llama", tied=False, **SHAPES["tiny"]))
    rng = np.random.default_rng(0)
    pairs = {}
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight"):
        n_out, n_in = base.tensors[name].shape
        pairs[name] = rng.normal(size=(2, n_in)).astype("f4"), rng.normal(size=(n_out, 2)).astype("f4")
    adapter = AdapterArrays("llama", 4.0, pairs)
    write_adapter_gguf(folder / "a.gguf", adapter)
    write_peft(folder, adapter, base)
    return base, folder


def damage(draw, data):
    """One to three changes, most of them in the head."""
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(min(len(data), 700) if draw.random() < 0.8 else len(data))
        how = draw.randrange(4)
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            data[at : at + 4] = struct.pack("<I", draw.choice([0, 1, 2, 3, 8, 30, 255, 2**31, 2**32 - 1]))
        elif how == 2:
            del data[at : at + draw.choice([1, 8, 1000])]
        else:
            data[at:at] = draw.randbytes(draw.choice([1, 8]))
    return bytes(data)


def use(path, base):
    """True when the adapter is whole; all of it can be used."""
    try:
        adapter = read_adapter(path, base)
    except FileError as error:
        assert "\n" not in str(error) and str(path.parent) in str(error), str(error)
        return False
    for name in adapter.pairs:
        assert adapter.delta(name).shape == base.tensors[name].shape and np.isfinite(adapter.delta(name)).all()
    return True


def test_damaged_gguf_adapters(seed, tmp_path):
    base, folder = seed
    draw, data, whole = random.Random(1), (folder / "a.gguf").read_bytes(), 0
    for number in range(CASES):
        (tmp_path / "a.gguf").write_bytes(damage(draw, data))
        try:
            whole += use(tmp_path / "a.gguf", base)
        except Exception as error:
            raise AssertionError(f"case {number}: {error!r}") from error
    assert 0 < whole < CASES / 2


def test_damaged_peft_folders(seed, tmp_path):
    base, folder = seed
    draw, whole = random.Random(2), 0
    weights, text = ((folder / name).read_bytes() for name in ("adapter_model.safetensors", "adapter_config.json"))
    for number in range(CASES):
        config = json.loads(text)
        if draw.random() < 0.5:
            config[draw.choice(sorted(config))] = draw.choice(VALUES)
            shown = json.dumps(config).encode()
        else:
            shown = text if draw.random() < 0.5 else damage(draw, text)
        (tmp_path / "adapter_config.json").write_bytes(shown)
        (tmp_path / "adapter_model.safetensors").write_bytes(weights if shown != text else damage(draw, weights))
        try:
            whole += use(tmp_path / "adapter_model.safetensors", base)
        except Exception as error:
            raise AssertionError(f"case {number}: {error!r}\n{shown!r}") from error
    assert 0 < whole < CASES
