"""Tokenizers of Hugging Face folders against the tokenizers package."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (True, False)), ({"add_eos_token": False}, (True, False)), ({"add_eos_token": True}, (True, True)),
        ({"add_bos_token": False}, (False, False)), ({"add_bos_token": True}, (True, False)),
    ],
)  # fmt: skip
def test_flags_change_their_own_side_of_the_template(
    settings: dict[str, bool], expected: tuple[bool, bool], tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "llama-bpe", **settings)
    ours = open_tokenizer(tmp_path)
    ids = list(ours.encode("a b"))
    assert (ids[0] == ours.bos, ids[-1] == ours.eos) == expected
