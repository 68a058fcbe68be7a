"""Whole GGUF files that make no sense: other values and kinds for their keys, other tensors.

Loading answers with an error of one line, or with a model whose tokenizer works; nothing large is allocated.
"""

import random
import tracemalloc

import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.base.errors import GradloomError
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.llm import load
from tests.llm.small_tokenizers import byte_bpe_fields

CASES = 150
TEXTS = ["", "x", "llama", "gpt2", "bert", "\n", "{{ x }}", "{% for %}", "qwen2", "yarn", "linear"]
VALUES = [field("string", v) for v in TEXTS]
VALUES += [field("u32", v) for v in (0, 1, 2, 3, 7, 32, 512, 2**31 - 1, 2**31, 2**32 - 1)]
VALUES += [field("i32", -1), field("u64", 2**64 - 1), field("i64", -5), field("bool", True), field("bool", False)]
VALUES += [field("f32", v) for v in (0, -1, 1e30, 1e-30, float("nan"), float("inf"), 0.5)]
VALUES += [field("array", v, "i32") for v in ([], [1, 2, 3], [3] * 512, [99] * 512, [2**31 - 1])]
VALUES += [field("array", v, "string") for v in ([], [""], ["a", "b"], ["a"] * 512, ["a b", "b c"])]
VALUES += [field("array", v, "f32") for v in ([1.5] * 512, [float("nan")] * 512)]
VALUES += [field("array", [True], "bool")]
MORE = ["rope.scaling.type", "rope.scaling.factor", "attention.key_length", "rope.dimension_count", "expert_count"]
MORE += ["attention.scale", "attention.causal"]
TOKENIZER = ["merges", "pre", "add_bos_token", "eot_token_id", "tokens", "scores", "token_type"]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.slow
def test_files_that_make_no_sense(tmp_path, arch):
    base = open_gguf(write_random(tmp_path / "seed.gguf", arch, "q8_0", chat=True, **SHAPES["tiny"]))
    size, draw, whole = base.size, random.Random(arch), 0
    for number in range(CASES):
        fields = dict(base.fields)
        if number % 3 == 0:
            fields = {k: f for k, f in fields.items() if not k.startswith("tokenizer.")} | byte_bpe_fields()
        keys = [*fields, *(f"{arch}.{key}" for key in MORE), *(f"tokenizer.ggml.{key}" for key in TOKENIZER)]
        said = []
        for _ in range(draw.choice([0, 1, 1, 2, 3]) if number else 0):
            key = draw.choice(keys)
            if draw.random() < 0.2:
                fields.pop(key, None)
            else:
                fields[key] = draw.choice(VALUES)
            said.append((key, fields.get(key)))
        tensors = {n: (t.kind, t.shape, base.bytes(n)) for n, t in base.tensors.items()}
        if draw.random() < 0.1:
            tensors.pop(draw.choice(list(tensors)))
        if draw.random() < 0.1:
            tensors[draw.choice(list(tensors))] = np.ones(draw.choice([(1,), (64,), (64, 64), (2, 2, 2)]), "f4")
        try:
            write_gguf(tmp_path / "m.gguf", fields, tensors)
        except GradloomError:
            continue
        tracemalloc.start()
        try:
            model = load(tmp_path / "m.gguf")
            ids = model.tokenizer.encode("Once upon a time")
            model.tokenizer.decode(ids)
            assert all(0 <= i < model.tokenizer.vocab_size for i in ids)
            whole += 1
        except GradloomError as error:
            assert "\n" not in str(error), (number, said)
        except Exception as error:
            raise AssertionError(f"case {number}, {said}: {error!r}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 30 * size + 20_000_000, f"case {number}, {said}: {peak} bytes"
    assert CASES / 10 < whole < CASES * 0.9
