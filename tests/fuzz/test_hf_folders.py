"""Hugging Face folders of strangers: other values in config.json, tokenizer.json and the index, torn weights.

Loading, its tokenizer and a conversion answer with a result or a GradloomError of one line; nothing large is allocated.
"""

import copy
import json
import random
import shutil
import struct
import tracemalloc

import numpy as np
import pytest

from gradloom.base.errors import GradloomError
from gradloom.files import save_arrays
from gradloom.llm import load
from gradloom.llm.hf_export import tokenizer_fields
from tests.fuzz.limits import CASES
from tests.llm.hf_tokenizers import write_tokenizer

VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    -1,
    7,
    2**31,
    2**63,
    10**40,
    0.5,
    -1.5,
    1e-300,
    1e300,
    "",
    "x",
    "yarn",
    "llama",
]
VALUES += ["../x.safetensors", "/etc/passwd", "gemma3_text", "\ud800", [], [1], [[]], {}, {"type": "BPE"}, ["a", "b"]]
VALUES += [{"rope_type": kind, "factor": 2.0} for kind in ("linear", "yarn", "llama3", "longrope", "dynamic", 3)]
KEYS = ["rope_scaling", "head_dim", "sliding_window", "layer_types", "text_config", "quantization_config", "rope_theta"]
JSONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")


def folder_of(place, kind="qwen2"):
    """A whole folder of a small model, in two files."""
    place.mkdir()
    config = {
        "model_type": kind, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
        "rope_theta": 100.0, "tie_word_embeddings": True,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (512, 16), "model.norm.weight": (16,)}
    linears = {"q": (16, 16), "k": (8, 16), "v": (8, 16), "o": (16, 16)}
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {f"{at}self_attn.{n}_proj.weight": shape for n, shape in linears.items()}
        shapes |= {f"{at}self_attn.{n}_proj.bias": linears[n][:1] for n in "qkv"}
        shapes |= {f"{at}mlp.{n}_proj.weight": (24, 16) for n in ("gate", "up")} | {
            f"{at}mlp.down_proj.weight": (16, 24)
        }
        shapes |= {f"{at}{n}_layernorm.weight": (16,) for n in ("input", "post_attention")}
    arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    halves = {f"model-{k}.safetensors": dict(list(arrays.items())[k::2]) for k in (0, 1)}
    for file, half in halves.items():
        save_arrays(place / file, half)
    index = {"weight_map": {name: file for file, half in halves.items() for name in half}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    write_tokenizer(place, "qwen2", 400)
    return place


def places(value, depth=0):
    """All (container, key) of a JSON value; of long ones the first."""
    pairs = list(value.items())[:40] if isinstance(value, dict) else list(enumerate(value))[:8]
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, (dict, list)) and depth < 5:
            yield from places(inner, depth + 1)


def change_json(path, draw):
    given = json.loads(path.read_text())
    for _ in range(draw.choice([1, 1, 2, 3])):
        found = list(places(given))
        if not found:  # an earlier change has removed everything
            break
        container, key = draw.choice(found)
        if draw.random() < 0.2 and path.name == "config.json":
            given[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))
        elif draw.random() < 0.2:
            del container[key]
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))
    path.write_text(json.dumps(given))


def tear(path, draw):
    data = bytearray(path.read_bytes())
    kind = draw.randrange(4)
    if kind == 0:
        data = data[: draw.randrange(len(data))]
    elif kind == 1:
        data[:8] = struct.pack("<Q", draw.choice([0, 1, 2**63, 2**64 - 1, len(data), len(data) - 8]))
    elif kind == 2:
        data += b"\0" * draw.choice([1, 8, 100])
    else:
        (size,) = struct.unpack("<Q", data[:8])
        for _ in range(draw.randint(1, 3)):
            data[8 + draw.randrange(size)] = draw.choice(b'0123456789"[]{},:FB\\')
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_folders_that_make_no_sense(tmp_path, seed):
    base, draw = folder_of(tmp_path / "base"), random.Random(seed)
    whole, refused = 0, 0
    for number in range(CASES):
        place = tmp_path / "case"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(base, place)
        if number:
            name = draw.choice(JSONS)
            if draw.random() < 0.3:
                tear(place / f"model-{draw.randrange(2)}.safetensors", draw)
            elif draw.random() < 0.1:
                (place / draw.choice([*JSONS, "model-0.safetensors"])).unlink()
            else:
                change_json(place / name, draw)
        tracemalloc.start()
        try:
            model = load(place)
            model.tokenizer.encode("once upon <|im_start|> a time 12")
            tokenizer_fields(model.tokenizer, model.config.vocab_size)
            whole += 1
        except GradloomError as error:
            refused += 1
            assert "\n" not in str(error) and 0 < len(str(error)) < 4000, repr(error)
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 50e6, (number, most)
    assert whole and refused
