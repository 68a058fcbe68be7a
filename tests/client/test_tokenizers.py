"""Ids of texts, and the tokens that end a reply, in llama.cpp and here, from the same small vocabularies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest

llama_cpp = pytest.importorskip("llama_cpp", reason="the package llama-cpp-python is not installed")

from gradloom.llm.pretokenizers import PRE_TOKENIZERS  # noqa: E402
from gradloom.llm.special_tokens import ENDS, FILE_ENDS, MARKED  # noqa: E402
from gradloom.llm.tokenizer import Tokenizer  # noqa: E402
from tests.llm.small_tokenizers import byte_bpe, spm  # noqa: E402

WORDS = "a B foo Bar XML iOS . ... !? 1 12 1234567 ½ ² 's 'LL 're n't é ü 漢字 日本語 한국어 русский עברית ไทย हिन्दी"
WORDS += ' 🦙 👍🏽 $ € + = < > _ - / // \\ " | ( ) { } ` ~ ^ İ ñ e\u0301 \u0300 ǅ ʰ Ⅷ ٣ „ … ー \u200d \u00ad'
BITS = [*WORDS.split(), " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x0b", "\x1c"]


def odd_texts(count: int = 3000, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(BITS, k=1 + k % 13)) for k in range(count)]


@cache
def vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary whose merges cross the ends of words: other words give other ids."""
    from tokenizers import Tokenizer as Model
    from tokenizers import models, pre_tokenizers, trainers

    model = Model(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=2500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator(odd_texts(6000, 2), trainer)
    merges = json.loads(model.to_str())["model"]["merges"]
    return byte_bpe([" ".join(pair) for pair in merges])


def write(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of a tokenizer alone."""
    writer = gguf.GGUFWriter(path, "llama")
    one = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    for key, value in metadata.items():
        one.get(type(value), writer.add_array)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Theirs:
    """llama.cpp's tokenizer of a file."""

    def __init__(self, path: Path) -> None:
        self._llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)

    def encode(self, text: str, special: bool, bos: bool = False) -> list[int]:
        return self._llama.tokenize(text.encode(), add_bos=bos, special=special) if text else []

    def ends(self) -> set[int]:
        vocab = llama_cpp.llama_model_get_vocab(self._llama.model)
        return {i for i in range(self._llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)}

    def bos(self) -> int:
        return self._llama.token_bos()


def differing(theirs: Theirs, ours: Tokenizer, texts: list[str], special: bool) -> Iterator[str]:
    encoded = ours.encode_batch(texts, special=special, bos=False)
    return (t for t, ids in zip(texts, encoded, strict=True) if theirs.encode(t, special) != ids.tolist())


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_words_of_every_pre_tokenizer(tmp_path: Path, pre: str) -> None:
    made = vocabulary() | {"tokenizer.ggml.pre": pre}
    theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
    assert list(differing(theirs, ours, odd_texts(), False)) == []
    del made["tokenizer.ggml.bos_token_id"]
    theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
    assert theirs.bos() == (-1 if ours.bos is None else ours.bos)
    with_bos = theirs.encode("a", False, ours.add_bos)
    assert with_bos == ours.encode("a", special=False)
    assert ours.add_bos == bool(llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(theirs._llama.model)))


def test_bytes_that_are_no_tokens(tmp_path: Path) -> None:
    """Falcon's vocabulary has none for some control characters: what stands beside them is not merged."""
    made = vocabulary() | {"tokenizer.ggml.pre": "falcon"}
    absent = {"ċ", "ľ", "-", "]"}  # vertical tab, a byte of other scripts, and two with a meaning in patterns
    kept = [i for i, piece in enumerate(made["tokenizer.ggml.tokens"]) if not absent & set(piece)]
    for key in ("tokens", "token_type"):
        made[f"tokenizer.ggml.{key}"] = [made[f"tokenizer.ggml.{key}"][i] for i in kept]
    made["tokenizer.ggml.merges"] = [one for one in made["tokenizer.ggml.merges"] if not absent & set(one)]
    for key in ("bos", "eos"):
        made[f"tokenizer.ggml.{key}_token_id"] = kept.index(made[f"tokenizer.ggml.{key}_token_id"])
    theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
    assert list(differing(theirs, ours, [*odd_texts(), "\n\x0b\n", " \x0b  a", "a-a]b"], False)) == []


MARKS = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")


@pytest.mark.parametrize("name", ["Phi 3 Mini", "Phi-3 mini", "my PHI3", None])
@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_blanks_behind_the_special_tokens_of_phi3(tmp_path: Path, name: str | None, kind: str) -> None:
    words = ["\u2581", "a", "b", "ab", "\u2581a", "\u2581\u2581", "\n"]
    made = spm(words, control=MARKS) if kind == "spm" else byte_bpe(["a b", "Ġ a"], control=MARKS)
    made |= {} if name is None else {"general.name": name}
    theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
    rng = random.Random(3)
    parts = [*MARKS, " ", "\n", "\t", "\u00a0", "\x0b", "  ", "a", "ab", " b"]
    texts = ["".join(rng.choices(parts, k=1 + k % 9)) for k in range(2000)]
    for special in (True, False):
        assert list(differing(theirs, ours, texts, special)) == []


def test_spaces_and_lines_that_are_tokens_of_their_own(tmp_path: Path) -> None:
    """As in Gemma's vocabulary: no space before a text, and runs of line ends and of spaces are found first."""
    own = ["\n", "\n\n", "\n\n\n", "  ", "    ", "<table>"]
    made = spm([*own, "\u2581", "a", "b", "ab", "\u2581a", "ba"], control=("<pad>", "<eos>", "<bos>", "<unk>"))
    types = made["tokenizer.ggml.token_type"]
    types[:4] = [3, 3, 3, 2]
    types[260 : 260 + len(own)] = [4] * len(own)
    made |= {
        "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }  # fmt: skip
    theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
    rng = random.Random(4)
    texts = ["".join(rng.choices([*own, "<bos>", " ", "a", "ab", "ba", "é", "\t"], k=1 + k % 9)) for k in range(2000)]
    for special in (True, False):
        assert list(differing(theirs, ours, texts, special)) == []
    assert theirs.ends() == ours.end_ids


PARTS = (("pre", "begin"), ("suf", "hole"), ("mid", "end"))  # of names of marks in code


def test_tokens_that_end_a_reply(tmp_path: Path) -> None:
    """Random choices of the known names; each group of names has at most one member, as llama.cpp takes any one."""
    code = [t for texts in FILE_ENDS.values() for t in texts]
    groups = [[t for t in MARKED if any(p in t.lower() for p in parts)] for parts in PARTS]
    assert sum(map(len, groups)) == len(MARKED)
    others = [*ENDS, "<|plamo:eos|>", "<|channel|>", "<|start|>", "<|user|>"]
    rng = random.Random(5)
    for k in range(150):
        some = [*rng.sample(others, rng.randrange(1, 9)), *rng.sample(code, k % 2), *map(rng.choice, groups[: k % 4])]
        made = byte_bpe(["a b"], control=dict.fromkeys(["<first>", *some]))
        types = made["tokenizer.ggml.token_type"]
        for i in range(256, len(types)):
            types[i] = rng.choice((1, 3, 4))
        made["tokenizer.ggml.eos_token_id"] = 256 if k % 3 else len(types) - 1
        if k % 5 == 0:
            made["tokenizer.ggml.fim_pad_token_id"] = 257
        theirs, ours = Theirs(write(tmp_path / "vocabulary.gguf", made)), Tokenizer(made)
        assert theirs.ends() == ours.end_ids, some
        texts = ["a" + "b".join(rng.sample(some, len(some))) for _ in range(20)]
        for special in (True, False):
            assert list(differing(theirs, ours, texts, special)) == [], (some, types[256:])
