"""The synthetic models that other tests train: complete, repeatable, weights of the same spread in every type."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from examples.random_gguf import ARCHS, SHAPES, TYPES, pieces, write_random
from gradloom import llm
from gradloom.llm import families

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_has_the_spread_that_was_asked(tmp_path: Path, kind: str) -> None:
    path = write_random(tmp_path / "m.gguf", kind=kind, std=0.03, **SHAPES["small"])
    matrices = [t for t in gguf.GGUFReader(path).tensors if len(t.shape) == 2]
    assert len(matrices) == 1 + 2 * 7
    for t in matrices:
        assert t.tensor_type.name == kind.upper()
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        assert np.isfinite(values).all() and abs(values.mean()) < 0.003 and 0.027 < values.std() < 0.033
        assert values.shape == tuple(reversed(t.shape))
        assert len(np.unique(values[0])) > 14, "a row of few values proves little"


@pytest.mark.parametrize("arch", ARCHS)
def test_equal_arguments_give_equal_bytes_and_other_seeds_do_not(tmp_path: Path, arch: str) -> None:
    first, again, other = (
        write_random(tmp_path / f"{i}.gguf", arch, "q5_k", **SHAPES["small"], tied=False, chat=True, seed=seed)
        for i, seed in enumerate((3, 3, 4))
    )
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    names = {t.name for t in gguf.GGUFReader(first).tensors}
    assert {"output.weight", "blk.1.attn_output.weight"} < names
    assert ("blk.1.attn_v.bias" in names) == (arch in ("qwen2", "glm4", "seed_oss"))
    normed = ("qwen3", "gemma3", "olmo2", "exaone4", "hunyuan-dense")
    assert ("blk.1.attn_k_norm.weight" in names) == (arch in normed)


def test_every_family_can_be_written(tmp_path: Path) -> None:
    assert set(ARCHS) == set(families.names())
    for arch in ARCHS:
        model = llm.load(write_random(tmp_path / "m.gguf", arch, **SHAPES["tiny"]))
        assert model.config.architecture == arch and set(model.weights) == {t.name for t in model.file.tensors.values()}


@pytest.mark.parametrize("vocab", [259, 300, 5000, 49152])
def test_every_word_is_two_shorter_pieces(vocab: int) -> None:
    texts, scores, types = pieces(vocab)
    assert len(texts) == len(set(texts)) == len(scores) == len(types) == vocab
    known = {t for t, kind in zip(texts, types, strict=True) if kind == gguf.TokenType.NORMAL}
    for word in (w for w in known if len(w) > 1):
        assert word[:-1] in known and word[-1] in known
    assert all(a > b for a, b in itertools.pairwise(scores[259:]))


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    for message, options in {
        "width = 64: need a multiple of 256": {"kind": "q4_k"},
        "need at least 259": {"vocab": 100},
        "arch 'gpt2'": {"arch": "gpt2"},
        "need heads to divide": {"heads": 4, "kv_heads": 3},
    }.items():
        with pytest.raises(ValueError, match=message):
            write_random(tmp_path / "m.gguf", **options)
    script = [sys.executable, str(ROOT / "examples" / "random_gguf.py"), str(tmp_path / "m.gguf")]
    assert subprocess.run([*script, "--type", "q6_k"], capture_output=True).returncode == 2
    assert subprocess.run([*script, "--shape", "small", "--type", "q6_k"], capture_output=True).returncode == 0
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["general.architecture"].contents() == "llama"
