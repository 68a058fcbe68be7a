"""Tokenizers of Hugging Face folders in GGUF files: notes of ids that differ there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradloom import llm
from gradloom.base.errors import FileError
from gradloom.files.gguf_fields import Metadata
from gradloom.llm.hf_export import tokenizer_fields
from gradloom.llm.hf_stated import unstated_tokenizer
from gradloom.llm.tokenizer import Tokenizer
from tests.llm.hf_tokenizers import LINES, edit_tokenizer, without_marks, write_tokenizer
from tests.llm.random_folders import write_folder
from tests.llm.test_hf_tokenizer import open_tokenizer

STATED = ("prepend", "gemma", "gpt-2", "llama-bpe", "smollm")


def note_of(folder: Path, **config: Any) -> str:
    tokenizer = open_tokenizer(folder, **config)
    return unstated_tokenizer(tokenizer, Metadata(tokenizer_fields(tokenizer, tokenizer.vocab_size)))


@pytest.mark.parametrize("form", STATED)
def test_a_tokenizer_that_a_file_states_has_no_note(form: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, form)
    without_marks(tmp_path)
    assert note_of(tmp_path) == ""


NORMALIZERS: dict[str, list[dict[str, Any]]] = {
    "NFC": [{"type": "NFC"}], "NFKC": [{"type": "NFKC"}], "Lowercase": [{"type": "Lowercase"}],
    "NFKD, StripAccents": [{"type": "NFKD"}, {"type": "StripAccents"}],
    "Strip": [{"type": "Strip", "strip_left": True, "strip_right": True}],
}  # fmt: skip


@pytest.mark.parametrize("form", ["gpt-2", "gemma"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_are_noted(form: str, name: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, form)
    without_marks(tmp_path)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [*NORMALIZERS[name], *([spaces] if form == "gemma" else [])]
    edit_tokenizer(tmp_path, normalizer={"type": "Sequence", "normalizers": steps})
    assert note_of(tmp_path).startswith(f"GGUF files do not state all of this tokenizer (normalizer {name}")


@pytest.mark.parametrize("mark", ["lstrip", "rstrip", "single_word"])
def test_marks_of_added_tokens_are_noted(mark: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "llama-bpe")
    without_marks(tmp_path, **{mark: True})
    note = note_of(tmp_path)
    assert note.startswith(f"GGUF files do not state all of this tokenizer ({mark} of added tokens)"), note
    assert "<|end|>" in note


def test_normalized_tokens_are_noted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "prepend")
    without_marks(tmp_path, normalized=True)
    assert "tokenizer (normalized of added tokens): " in note_of(tmp_path)


@pytest.mark.parametrize("form", ["first", "metaspace", "gpt-2"])
def test_spaces_before_a_text_are_noted(form: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, form)
    without_marks(tmp_path)
    if form == "gpt-2":
        prefix = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        edit_tokenizer(tmp_path, pre_tokenizer=prefix)
    named = {"first": "prepend_scheme first", "metaspace": "prepend_scheme always", "gpt-2": "add_prefix_space"}[form]
    assert f"tokenizer ({named}): " in note_of(tmp_path)


def test_merge_and_full_finetuning_show_the_note(tmp_path: Path, caplog: Any) -> None:
    folder = write_folder(tmp_path / "model")
    lower = {"type": "Lowercase"}
    edit_tokenizer(folder, normalizer=lower)
    model = llm.load(folder)
    adapter = llm.LoRA(rank=1, targets="attn_q")
    adapter.bind(model)
    adapter.save(tmp_path / "peft")
    notes = llm.merge(folder, tmp_path / "peft", tmp_path / "merged.gguf").notes
    assert "normalizer Lowercase" in notes[0] and "\n" not in notes[0]
    llm.TrainedTensors("attn_q").check_file(model)
    assert "normalizer Lowercase" in caplog.text
    assert not llm.merge(folder, tmp_path / "peft", tmp_path / "merged").notes


@pytest.mark.parametrize("bos", [None, "<absent>", "</s>"])
def test_the_first_token_of_the_post_processor_is_bos_of_the_file(bos: str | None, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "llama-bpe", bos_token=bos)
    without_marks(tmp_path)
    tokenizer = open_tokenizer(tmp_path)
    fields = Metadata(tokenizer_fields(tokenizer, tokenizer.vocab_size))
    assert fields["tokenizer.ggml.bos_token_id"] == 1 and fields["tokenizer.ggml.add_bos_token"]
    assert [Tokenizer(fields).encode(line) for line in LINES] == [tokenizer.encode(line) for line in LINES]
    assert note_of(tmp_path) == ""


@pytest.mark.parametrize(("eos", "note"), [("</s>", ""), (None, ""), ("<s>", "(a last token that is not eos): ")])
def test_a_last_token_that_is_not_eos_is_noted(eos: str | None, note: str, tmp_path: Path) -> None:
    made = write_tokenizer(tmp_path, "gpt-2", eos_token=eos)
    without_marks(tmp_path)
    last = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, last]}
    template["pair"] = [*template["single"], {"Sequence": {"id": "B", "type_id": 0}}]  # type: ignore[misc]
    number = made.token_to_id("</s>")
    template["special_tokens"] = {"</s>": {"id": "</s>", "ids": [number], "tokens": ["</s>"]}}  # type: ignore[assignment]
    edit_tokenizer(tmp_path, post_processor=template)
    assert open_tokenizer(tmp_path).encode("a")[-1] == number
    assert note in note_of(tmp_path) and bool(note) == bool(note_of(tmp_path))


@pytest.mark.parametrize("bos", [None, "<s>"])
def test_samples_begin_as_the_package_encodes_them(bos: str | None, tmp_path: Path) -> None:
    made = write_tokenizer(tmp_path, "llama-bpe", bos_token=bos)
    tokenizer = open_tokenizer(tmp_path)
    (tmp_path / "texts.jsonl").write_text('{"text": "once upon a time"}\n')
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "The quick", "completion": " dog"}\n')
    (text,), (pair,) = (llm.read_samples(tmp_path / f"{name}.jsonl", tokenizer) for name in ("texts", "pairs"))
    assert text[0].tolist() == made.encode("once upon a time").ids
    assert pair[0].tolist()[:1] == [1] and pair[0].tolist()[-1] == tokenizer.eos
    chat = llm.ChatTemplate("{{ messages[0].content }}", tokenizer)
    tokens = chat.encode([{"role": "user", "content": "The quick"}, {"role": "assistant", "content": "."}])[0]
    assert tokens[0] == 1


def test_patterns_without_a_name_are_rejected_for_gguf_files_only(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    model = llm.load(folder)
    adapter = llm.LoRA(rank=1, targets="attn_q")
    adapter.bind(model)
    adapter.save(tmp_path / "peft")
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+"}, "behavior": "Isolated", "invert": False}
    steps = [split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    edit_tokenizer(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    with pytest.raises(FileError, match=r"need an adapter \(PEFT\), or a merge into a folder"):
        llm.merge(folder, tmp_path / "peft", tmp_path / "merged.gguf")
    llm.merge(folder, tmp_path / "peft", tmp_path / "merged")
    assert llm.load(tmp_path / "merged").tokenizer.encode("a b") == llm.load(folder).tokenizer.encode("a b")
