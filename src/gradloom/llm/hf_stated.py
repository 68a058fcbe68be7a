"""How much of a folder's tokenizer GGUF files state: ids of test texts by both tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.errors import DataError, one_line
from .bpe import SPACE
from .hf_tokenizer import FolderTokenizer
from .hf_tokenizer_file import Added
from .tokenizer import Tokenizer

_TEXTS = (
    "", "a", " ", " a", "a ", "  a  b", "a   b    c\n\n\nd", "\ta\t\tb", "a\r\nb\r\n\r\n  c", "\n a\n", "Hello World",
    "Été, STRAßE", "naïve café Größe", "e\u0301te\u0301 a\u030a", "ＡＢＣ１２３", "ﬁne ½ ① Å",
    "日本語のテキスト、漢字。", "한국어 문장", "مُحَمَّد", "हिन्दी क्षत्रिय",
    "👨\u200d👩\u200d👧 🏳\ufe0f\u200d🌈", "12345678 1,000.50", "don't WE'LL I'm",
    "x = foo(bar[1:], **kw)  # y", "\u00a0a\u3000b", "a\u200bb\ufeff", "!!!???... ---", "https://example.com/?a=b#c",
    "    indented\n\tmore", "▁a▁b", "Ġ <0x41>", "İi ß",
)  # fmt: skip
_AROUND = ("{}", "a {} b", "a{}b", "a  {}\n\n{}  b")  # an added token in a text
_MOST_ADDED = 12


def unstated_tokenizer(tokenizer: FolderTokenizer, metadata: Mapping[str, Any]) -> str:
    """A report of test texts with other ids in a GGUF file of this metadata, in one line; "" if there are none."""
    stated = Tokenizer(metadata)
    texts = [*_TEXTS, *_of_added(tokenizer, stated)]
    differ = [text for text in texts if not _same(text, tokenizer, stated)]
    if not differ:
        return ""
    which = "; ".join(_unstated(tokenizer, not set(differ) <= set(_TEXTS)))
    count = f"{len(differ)} of {len(texts)} test texts get other ids there, such as {one_line(differ[0])}"
    return f"GGUF files do not state all of this tokenizer{which and f' ({which})'}: {count}"


def _same(text: str, tokenizer: FolderTokenizer, stated: Tokenizer) -> bool:
    """Whether a text has the same ids, with special tokens and as text."""
    try:
        return all(tokenizer.encode(text, special) == stated.encode(text, special) for special in (True, False))
    except DataError:  # a vocabulary without some bytes
        return False


def _of_added(tokenizer: FolderTokenizer, stated: Tokenizer) -> list[str]:
    """Texts with added tokens: the first two of each combination of marks, and those that are control tokens in one of
    both tokenizers only."""
    groups: dict[Any, list[Added]] = {}
    for token in tokenizer.file.added:
        other = tokenizer.is_special(token.id) != stated.is_special(token.id)
        key = (other, token.special, token.single_word, token.lstrip, token.rstrip, token.normalized)
        groups.setdefault(key, []).append(token)
    chosen = [token for rank in (0, 1) for group in groups.values() for token in group[rank : rank + 1]]
    texts = [around.replace("{}", token.content) for token in chosen[:_MOST_ADDED] for around in _AROUND]
    cased = [token.content.swapcase() for token in chosen[:_MOST_ADDED] if token.normalized]
    return list(dict.fromkeys([*texts, *cased]))


def _unstated(tokenizer: FolderTokenizer, added: bool) -> list[str]:
    """Parts of tokenizer.json without a key in GGUF files; added: those of added tokens, too."""
    file = tokenizer.file
    kinds = [step["type"] for step in file.steps("normalizer") if not _is_stated(step, file.is_byte_level)]
    parts = [f"normalizer {', '.join(dict.fromkeys(kinds))}"] if kinds else []
    if file.is_byte_level and file.prefix == "always":
        parts.append("add_prefix_space")
    elif file.prefix != "never" and any(step["type"] == "Metaspace" for step in file.steps("pre_tokenizer")):
        parts.append(f"prepend_scheme {file.prefix}")
    if tokenizer.last_ids not in ([], [tokenizer.eos]) and tokenizer.eos is not None:
        parts.append("a last token that is not eos")
    marks = _marks(file.added, bool(file.steps("normalizer"))) if added else []
    return [*parts, f"{', '.join(marks)} of added tokens"] if marks else parts


def _is_stated(step: Mapping[str, Any], is_byte_level: bool) -> bool:
    """Whether every file with its kind of tokenizer has this step of a normalizer."""
    replaces = (step.get("pattern"), step.get("content")) == ({"String": " "}, SPACE)
    return not is_byte_level and (step["type"] == "Prepend" or (step["type"] == "Replace" and replaces))


def _marks(added: Sequence[Added], normalizes: bool) -> list[str]:
    names = ["lstrip", "rstrip", "single_word", *["normalized"][: int(normalizes)]]
    return [name for name in names if any(getattr(token, name) for token in added)]
