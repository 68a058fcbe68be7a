"""Tokenizers of Hugging Face folders against the tokenizers package."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Engine

from gradloom.llm import hf_tokenizer
from gradloom.llm.hf_tokenizer import FolderTokenizer
from gradloom.llm.hf_tokenizer_file import TokenizerFile
from gradloom.llm.special_tokens import RenderedText
from tests.llm.hf_tokenizers import FORMS, LINES, SPECIAL, write_tokenizer

PARTS = [*" \n\t", "  ", "a", "B", "the", " quick", "'ll", "12", "3", "é", "e\u0301", "ß", "你好", "🙂", "…", "\u200d"]
PARTS += ["▁", "<", "|", ">", "word", "words", "\r\n", "\u00a0", "\x00", "\ufdd0", "<0x41>"]
TOKENS = [*SPECIAL, "<|end|>", "<mask>", "<think>", "word"]


@pytest.fixture(params=FORMS, scope="module")
def pair(request: Any, tmp_path_factory: Any) -> tuple[FolderTokenizer, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    made = write_tokenizer(folder, request.param)
    return open_tokenizer(folder), made


def open_tokenizer(folder: Path, **config: Any) -> FolderTokenizer:
    return FolderTokenizer(TokenizerFile(folder, str(folder), config))


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        parts = draw.choices(PARTS + TOKENS + LINES[:2], k=draw.randint(0, 12))
        made.append("".join(parts))
    return made


def test_ids_equal_those_of_the_package(pair: tuple[FolderTokenizer, Any]) -> None:
    ours, theirs = pair
    given = [*LINES, *texts(1500, 1)]
    for text, ids in zip(given, ours.encode_batch(given), strict=True):
        assert ids.tolist() == theirs.encode(text).ids, text


def test_parts_and_blocks_join_to_the_whole(pair: tuple[FolderTokenizer, Any], monkeypatch: Any) -> None:
    """The path of long texts and of parts: texts split at added tokens by gradloom itself."""
    ours, theirs = pair
    monkeypatch.setattr(hf_tokenizer, "GROUP", 8)
    monkeypatch.setattr("gradloom.llm.bpe.GROUP", 8)
    for text in texts(600, 2):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(RenderedText(text), bos=False) == expected, text
        whole = np.concatenate([*ours.encode_stream(list(text), bos=False), np.zeros(0, np.int32)])
        assert whole.tolist() == expected, text


@pytest.mark.parametrize("form", ["prepend", "gemma", "qwen2", "gpt-2"])
def test_normalized_tokens_are_found_in_the_normalized_text(form: str, tmp_path: Path) -> None:
    """Behind Prepend, this is the start of a word only."""
    write_tokenizer(tmp_path, form)
    path = tmp_path / "tokenizer.json"
    given = json.loads(path.read_text())
    for token in given["added_tokens"]:
        token["normalized"] = not token["special"]
    path.write_text(json.dumps(given))
    ours, theirs = open_tokenizer(tmp_path), Engine.from_file(str(path))
    for text in texts(300, 3):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, bos=False) == expected, text
        assert ours.encode(RenderedText(text), bos=False) == expected, text


FLAGS: list[dict[str, Any]] = [{f"add_{name}_token": flag} for name in ("bos", "eos") for flag in (True, False)]


@pytest.mark.parametrize(
    "settings", [{}, *FLAGS, {"bos_token": None}, {"bos_token": "<absent>"}, {"bos_token": "</s>"}]
)
@pytest.mark.parametrize("form", ["llama-bpe", "gpt-2"])
def test_settings_do_not_change_the_tokens_around_a_text(form: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """A post-processor adds <s> in the first form only."""
    made = write_tokenizer(tmp_path, form, **settings)
    ours = open_tokenizer(tmp_path, bos_token_id=1)
    for text in ("a b", "", "<s> a"):
        assert ours.encode(text) == made.encode(text).ids
    assert ours.encode_batch(["a b"])[0].tolist() == made.encode("a b").ids
    assert np.concatenate([*ours.encode_stream(["a", " b"])]).tolist() == made.encode("a b").ids
    if ours.add_bos:
        assert ours.encode("a b", bos=True) == made.encode("a b").ids
        assert ours.begins_with_bos("<s> a")


@pytest.mark.parametrize("kind", [None, "LlamaTokenizerFast", "PreTrainedTokenizerFast", "Qwen2TokenizerFast"])
@pytest.mark.parametrize("settings", FLAGS)
def test_settings_do_not_change_the_ids_of_transformers(kind: str | None, settings: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tmp_path, "qwen2" if kind == "Qwen2TokenizerFast" else "llama-bpe", **settings)
    given = json.loads((tmp_path / "tokenizer_config.json").read_text())
    given |= {"unk_token": "<unk>", "pad_token": None} | ({"tokenizer_class": kind} if kind else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert open_tokenizer(tmp_path).encode("The quick a b") == theirs("The quick a b").input_ids
