"""Small tokenizer.json files, trained by the tokenizers package in the forms that model folders have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gradloom.llm.pretokenizers import PRE_TOKENIZERS

LINES = [
    "The quick brown fox jumps over the lazy dog, 12345 times; isn't it? I've seen it.",
    "def f(x):\n    return x ** 2  # squares\n\n\n",
    "Straße, naïve café, Ünïcödé — “quotes” … 你好，世界 こんにちは 🙂🙃",
    "a  b   c    d\t\te\r\nf", "once upon a time there was a little girl who lived in a village near the forest",
]  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def build(form: str, size: int = 500) -> Tokenizer:
    """A tokenizer of one of FORMS, of about `size` tokens."""
    trainer: dict[str, Any] = {"vocab_size": size, "special_tokens": SPECIAL, "show_progress": False}
    if form in ("prepend", "metaspace", "first", "gemma"):
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        replace = normalizers.Replace(" ", "▁")
        if form == "prepend":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        elif form == "gemma":
            made.normalizer = replace
            made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        else:
            scheme = "always" if form == "metaspace" else "first"
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=form != "first")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer["special_tokens"] = SPECIAL + [f"<0x{b:02X}>" for b in range(256)]
        trainer["vocab_size"] = size + 200
        made.train_from_iterator(LINES * 4, trainers.BpeTrainer(**trainer))
        given = json.loads(made.to_str())
        given["added_tokens"] = [t for t in given["added_tokens"] if not t["content"].startswith("<0x")]
        made = Tokenizer.from_str(json.dumps(given))
    else:
        made = Tokenizer(models.BPE(ignore_merges=form == "llama-bpe"))
        names = {"qwen2": "qwen2", "llama-bpe": "llama-bpe", "smollm": "smollm"}
        if form in names:
            splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[names[form]].patterns]
        else:
            splits = [pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{2}|[^\p{L}\p{N}]"), "isolated")]
        if form == "gpt-2":
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            made.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
        if form == "qwen2":
            made.normalizer = normalizers.NFC()
        made.decoder = decoders.ByteLevel()
        trainer["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(LINES * 4, trainers.BpeTrainer(**trainer))
    bos = made.token_to_id("<s>")
    if form not in ("qwen2", "gpt-2"):
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    made.add_special_tokens([AddedToken("<|end|>", rstrip=True), AddedToken("<mask>", lstrip=True)])
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("word", single_word=True, normalized=False)])
    return made


FORMS = ("prepend", "metaspace", "first", "gemma", "qwen2", "llama-bpe", "gpt-2", "smollm", "own")
CHAT = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_tokenizer(folder: Path, form: str, size: int = 500, **settings: Any) -> Tokenizer:
    """Write tokenizer.json and tokenizer_config.json into a folder."""
    made = build(form, size)
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    given = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": {"content": "<unk>"}, "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(given | settings))
    return made


def edit_tokenizer(folder: Path, **changes: Any) -> None:
    """Replace parts of a tokenizer.json."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_marks(folder: Path, **changes: Any) -> None:
    """Remove the marks of added tokens, of which GGUF files have none; `changes` are marks of <|end|>."""
    path = folder / "tokenizer.json"
    given = json.loads(path.read_text())
    for token in given["added_tokens"]:
        token |= {"lstrip": False, "rstrip": False, "single_word": False}
        token |= changes if token["content"] == "<|end|>" else {}
    path.write_text(json.dumps(given))
