"""The tokenizer files of a Hugging Face folder, checked before the `tokenizers` package reads them: untrusted input."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import FileError, one_line
from ..files.gguf_types import show_name
from .bpe import SPACE
from .hf_settings import read_if_there, read_json, read_text
from .pretokenizers import PRE_TOKENIZERS, gpt2_pattern

TOKENIZER, SETTINGS, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_TEMPLATES = "chat_template.jinja", "chat_template.json"
TOKENIZER_FILES = (TOKENIZER, SETTINGS, GENERATION, *_TEMPLATES)
_MOST_BYTES = 1 << 26
_NESTED = 16  # sequences of steps
_PATTERN = 4096  # characters of a regular expression
_NORMALIZERS = {"Sequence", "Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents"}
_PRE_TOKENIZERS = {
    "Sequence", "ByteLevel", "Split", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
    "UnicodeScripts",
}  # fmt: skip
_POST_PROCESSORS = {"Sequence", "ByteLevel", "TemplateProcessing"}


@dataclass(frozen=True)
class Added:
    """An added token, which is found in a text before it is merged."""

    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


@dataclass(frozen=True)
class Merging:
    """A BPE model: piece -> id; merges by rank."""

    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    byte_fallback: bool
    ignore_merges: bool
    unk: str | None


class TokenizerFile:
    """The checked tokenizer.json, tokenizer_config.json and generation_config.json of a folder.

    prefix         where the package puts a space before a text: "never", "first" (at the start of the whole text), or
                   "always" (also after added tokens)
    is_byte_level  pieces are bytes; otherwise as in SentencePiece
    pre            the name of its pre-tokenizer in GGUF files, "" if there is none
    """

    def __init__(self, folder: Path, name: str, config_ids: dict[str, Any]) -> None:
        """name: of the model, for messages; config_ids: the ids of special tokens in config.json."""
        self.folder, self.name, self.path = folder, name, folder / TOKENIZER
        if not os.path.lexists(self.path):
            others = [n for n in ("tokenizer.model", "vocab.json", "tekken.json") if os.path.lexists(folder / n)]
            seen = f"has no {TOKENIZER}" + (f", but {others[0]}" if others else "")
            raise FileError(f"{folder}: {seen}; need {TOKENIZER}: save_pretrained of a fast tokenizer writes it")
        self._given = read_json(self.path, _MOST_BYTES)
        self._settings = read_if_there(folder / SETTINGS)
        self._generation = read_if_there(folder / GENERATION)
        self._config_ids = config_ids
        self._check_steps()
        self.model = self._model()
        self.merge_count = len(self.model.merges)
        self.added = self._added()
        self.vocab_size = 1 + max([*self.model.vocab.values(), *(token.id for token in self.added)])
        if self.vocab_size > len(self.model.vocab) + len(self.added) + (1 << 16):
            self._fail(f"the largest id is {self.vocab_size - 1} of {len(self.model.vocab)} pieces", "fewer gaps")

    def _fail(self, seen: str, need: str) -> NoReturn:
        raise FileError(f"{self.path}: {seen}; need {need}")

    # ---- checks -------------------------------------------------------------------------------------------------

    def _check_steps(self) -> None:
        for key, known in (
            ("normalizer", _NORMALIZERS), ("pre_tokenizer", _PRE_TOKENIZERS), ("post_processor", _POST_PROCESSORS),
        ):  # fmt: skip
            for step in self.steps(key):
                kind = step.get("type")
                if not isinstance(kind, str) or kind not in known:
                    self._fail(f"{key} has the type {one_line(kind)}, which is not supported", ", ".join(sorted(known)))
                pattern = step.get("pattern")
                if isinstance(pattern, dict):
                    for text in pattern.values():
                        if not isinstance(text, str) or len(text) > _PATTERN:
                            self._fail(f"{key} has the pattern {one_line(text)}", f"at most {_PATTERN} characters")
        kinds = [step["type"] for step in self.steps("pre_tokenizer")]
        self.is_byte_level = "ByteLevel" in kinds
        self.prefix = self._prefix()

    def steps(self, key: str) -> list[dict[str, Any]]:
        """The steps of normalizer, pre_tokenizer or post_processor, without the sequences around them."""
        done: list[dict[str, Any]] = []
        inner = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}[key]

        def add(step: Any, depth: int) -> None:
            if step is None and not depth:
                return
            if not isinstance(step, dict) or depth > _NESTED or len(done) > 256:
                self._fail(f"{key} has the step {one_line(step)}", "an object with a type")
            if step.get("type") != "Sequence":
                done.append(step)
                return
            if not isinstance(step.get(inner), list):
                self._fail(f"{inner} is {one_line(step.get(inner))}", "a list")
            for one in step[inner]:
                add(one, depth + 1)

        add(self._given.get(key), 0)
        return done

    def _prefix(self) -> str:
        """Where the package puts a space before a text."""
        if any(step["type"] == "Prepend" for step in self.steps("normalizer")):
            return "always"
        for step in self.steps("pre_tokenizer"):
            if step["type"] == "Metaspace":
                scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
                if scheme not in ("always", "first", "never"):
                    self._fail(f"prepend_scheme is {one_line(scheme)}", "always, first or never")
                return str(scheme)
            if step["type"] == "ByteLevel" and step.get("add_prefix_space", True):
                return "always"
        return "never"

    def _model(self) -> Merging:
        given = self._given.get("model")
        if not isinstance(given, dict):
            self._fail(f"model is {one_line(given)}", "an object")
        kind = given.get("type", "BPE" if "merges" in given else None)
        if kind != "BPE":
            self._fail(f"model.type is {one_line(kind)}, which is not supported", "BPE")
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if given.get(key):
                self._fail(f"model.{key} is {one_line(given[key])}, which is not supported", "none")
        for key in ("byte_fallback", "ignore_merges", "fuse_unk"):
            if not isinstance(given.get(key), (bool, type(None))):
                self._fail(f"model.{key} is {one_line(given[key])}", "true or false")
        vocab, merges, unk = given.get("vocab"), given.get("merges"), given.get("unk_token")
        if (
            not isinstance(vocab, dict)
            or not vocab
            or not all(type(i) is int and 0 <= i < 1 << 24 for i in vocab.values())
        ):
            self._fail(f"model.vocab is {one_line(vocab)}", "ids by piece, whole numbers from 0 on")
        if len(set(vocab.values())) != len(vocab):
            self._fail("model.vocab gives two pieces one id", "an id for each piece")
        if not isinstance(merges, list) or not merges:
            self._fail(f"model.merges is {one_line(merges)}", "the merges of the vocabulary")
        pairs = [_pair(merge) for merge in merges]
        bad = next((i for i, p in enumerate(pairs) if p is None or not {p[0], p[1], p[0] + p[1]} <= vocab.keys()), None)
        if bad is not None:
            self._fail(f"model.merges has {one_line(merges[bad])} at place {bad}", "two pieces that give a piece")
        if unk is not None and (not isinstance(unk, str) or unk not in vocab):
            self._fail(f"model.unk_token is {one_line(unk)}", "a piece of the vocabulary")
        _need_text(self._fail, vocab)
        return Merging(vocab, pairs, bool(given.get("byte_fallback")), bool(given.get("ignore_merges")), unk)  # type: ignore[arg-type]

    def _added(self) -> list[Added]:
        given = self._given.get("added_tokens") or []
        if not isinstance(given, list) or len(given) > 1 << 20:
            self._fail(f"added_tokens is {one_line(given)}", "a list")
        found: dict[str, Added] = {}
        taken = {i: piece for piece, i in self.model.vocab.items()}
        for token in given:
            number, content = (token.get("id"), token.get("content")) if isinstance(token, dict) else (None, None)
            if type(number) is not int or not 0 <= number < 1 << 24 or not isinstance(content, str) or not content:
                self._fail(f"added_tokens has {one_line(token)}", "an id and a content")
            assert content is not None
            marks = [token.get(key, False) for key in ("special", "single_word", "lstrip", "rstrip", "normalized")]
            if not all(isinstance(mark, bool) for mark in marks):
                self._fail(f"added_tokens has {one_line(token)}", "true or false for its marks")
            if taken.setdefault(number, content) != content or self.model.vocab.get(content, number) != number:
                self._fail(f"id {number} is that of {show_name(content)} and of another token", "an id for each token")
            found[content] = Added(number, content, *marks)
        _need_text(self._fail, found)
        self._check_order(found)
        return list(found.values())

    def _check_order(self, found: dict[str, Added]) -> None:
        """The package numbers added tokens itself: raise FileError where their ids would differ."""
        following = len(self.model.vocab)
        for token in sorted(found.values(), key=lambda one: one.id):
            if token.content not in self.model.vocab:
                if token.id != following:
                    self._fail(
                        f"added token {show_name(token.content)} has id {token.id}", f"{following}, the next one"
                    )
                following += 1

    # ---- contents -----------------------------------------------------------------------------------------------

    def ids(self) -> dict[str, int]:
        """Piece -> id, added tokens too."""
        return self.model.vocab | {token.content: token.id for token in self.added}

    def pieces(self) -> list[str]:
        """The piece of each id."""
        made = [f"[EMPTY_{i}]" for i in range(self.vocab_size)]
        for piece, i in self.ids().items():
            made[i] = piece
        return made

    @functools.cached_property
    def pre(self) -> str:
        """tokenizer.ggml.pre of GGUF files, "" if the patterns have no name there."""
        if not self.is_byte_level:
            return ""
        patterns = []
        for step in self.steps("pre_tokenizer"):
            kind = step["type"]
            if kind == "Split" and _is_isolated(step) and "Regex" in step["pattern"]:
                patterns.append(step["pattern"]["Regex"])
            elif kind == "Digits" and step.get("individual_digits"):
                patterns.append(r"\p{N}")
            elif kind == "ByteLevel":
                patterns += [gpt2_pattern()] if step.get("use_regex", True) else []
            else:
                return ""
        for name, pre in PRE_TOKENIZERS.items():
            if pre.patterns == tuple(patterns) and pre.whole_words == self.model.ignore_merges:
                return name
        return ""

    @functools.cached_property
    def is_plain_spm(self) -> bool:
        """Spaces become SPACE, and nothing else changes: words begin at spaces."""
        steps = [step for step in self.steps("normalizer") if step["type"] != "Prepend"]
        replaced = [(step.get("pattern"), step.get("content")) for step in steps]
        splits = {step["type"] for step in self.steps("pre_tokenizer")} <= {"Metaspace", "Split"}
        return splits and all(one == ({"String": " "}, SPACE) for one in replaced)

    def named(self, name: str) -> int | None:
        """The id of a special token: bos, eos, unk, pad, sep."""
        given = self._settings.get(f"{name}_token")
        given = given.get("content") if isinstance(given, dict) else given
        if isinstance(given, str):
            return self.ids().get(given)
        if f"{name}_token" in self._settings:  # null: none
            return None
        if name == "unk":
            return None if self.model.unk is None else self.model.vocab[self.model.unk]
        ids = self._id_list(self._config_ids.get(f"{name}_token_id"))
        return ids[0] if ids else None

    def _id_list(self, given: Any) -> list[int]:
        values = given if isinstance(given, list) else [given]
        return [i for i in values if type(i) is int and 0 <= i < self.vocab_size]

    @property
    def end_ids(self) -> list[int]:
        """Ids that end a generation: those of generation_config.json, else of config.json."""
        key = "eos_token_id"
        return self._id_list(self._generation.get(key, self._config_ids.get(key)))

    def around(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text, by the post-processor. transformers ignores add_bos_token and add_eos_token
        of tokenizer_config.json where there is a tokenizer.json."""
        templates = [s for s in self.steps("post_processor") if s["type"] == "TemplateProcessing"]
        if not templates:
            return [], []
        single = templates[0].get("single")
        tokens: list[list[int]] = [[], []]
        after = False
        for step in single if isinstance(single, list) else self._fail(f"single is {one_line(single)}", "a list"):
            kind = next(iter(step), None) if isinstance(step, dict) and len(step) == 1 else None
            inner = step[kind] if kind is not None else None
            number = self.ids().get(inner.get("id", "")) if isinstance(inner, dict) and _is_name(inner) else None
            if kind == "Sequence" and not after:
                after = True
            elif kind == "SpecialToken" and number is not None:
                tokens[after].append(number)
            else:
                self._fail(f"post_processor has the step {one_line(step)}", "one sequence and known special tokens")
        return tokens[0], tokens[1]

    @functools.cached_property
    def chat_template(self) -> str | None:
        """The default chat template: chat_template.jinja, else that of tokenizer_config.json or chat_template.json."""
        path = self.folder / _TEMPLATES[0]
        if os.path.lexists(path):
            return read_text(path) or None
        given = self._settings.get("chat_template")
        if given is None:
            given = read_if_there(self.folder / _TEMPLATES[1]).get("chat_template")
        if isinstance(given, list):
            named = [one for one in given if isinstance(one, dict)]
            default = [one for one in named if one.get("name") == "default"] or named[:1]
            given = default[0].get("template") if default else None
        return given if isinstance(given, str) and given else None

    # ---- the package --------------------------------------------------------------------------------------------

    def engine(self, special: bool, continued: bool) -> Any:
        """A tokenizer of the package. special: special tokens in a text become tokens; continued: no space is put
        before a text. Raises FileError if the package cannot use the file."""
        from tokenizers import Tokenizer as Engine

        given = {**self._given, "truncation": None, "padding": None, "post_processor": None, "decoder": None}
        if continued:
            given = _without_prefix(given)
        if not special:
            given = self._without_control(given)
        try:
            made = Engine.from_str(json.dumps(given))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the package raises bare Exceptions, and panics that are none
            raise FileError(f"{self.path}: the tokenizers package cannot use it: {one_line(str(error))}") from None
        made.encode_special_tokens = not special
        return made

    def _without_control(self, given: dict[str, Any]) -> dict[str, Any]:
        """The file with other names for control tokens that are pieces, so that no text is merged into one."""
        names = {t.content: _hidden(t.id) for t in self.added if t.special and t.content in self.model.vocab}
        if not names:
            return given
        model, unk = given["model"], self.model.unk
        vocab = {names.get(piece, piece): i for piece, i in self.model.vocab.items()}
        merges = [list(pair) for pair in self.model.merges if not names.keys() & {*pair, pair[0] + pair[1]}]
        more = {"vocab": vocab, "merges": merges, "unk_token": None if unk is None else names.get(unk, unk)}
        added = [{**t, "content": names.get(t["content"], t["content"])} for t in given["added_tokens"]]
        return given | {"model": model | more, "added_tokens": added}


def _hidden(number: int) -> str:
    """The name of a control token in an engine for which these are text: no text contains it."""
    return f"\ufdd0{number}"


def _pair(merge: Any) -> tuple[str, str] | None:
    """A merge: "left right", or [left, right]."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    known = isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) and part for part in parts)
    return (parts[0], parts[1]) if known else None


def _is_name(inner: dict[str, Any]) -> bool:
    return isinstance(inner.get("id", ""), str)


def _is_isolated(step: dict[str, Any]) -> bool:
    return step.get("behavior") == "Isolated" and not step.get("invert") and isinstance(step.get("pattern"), dict)


def _need_text(fail: Any, pieces: Any) -> None:
    """Raise FileError unless all pieces are UTF-8 texts."""
    try:
        "".join(pieces).encode()
    except UnicodeEncodeError:
        fail("a piece of the vocabulary has half of a pair", "UTF-8 texts")


def _without_prefix(step: Any) -> Any:
    """A tokenizer, or a step of it, that puts no space before a text."""
    if isinstance(step, list):
        return [_without_prefix(one) for one in step if not (isinstance(one, dict) and one.get("type") == "Prepend")]
    if not isinstance(step, dict):
        return step
    made = {k: _without_prefix(v) if k in _NESTING else v for k, v in step.items()}
    if isinstance(made.get("normalizer"), dict) and made["normalizer"].get("type") == "Prepend":
        made["normalizer"] = None
    if step.get("type") == "Metaspace":
        made["prepend_scheme"] = "never"
        made.pop("add_prefix_space", None)
    if step.get("type") == "ByteLevel":
        made["add_prefix_space"] = False
    return made


_NESTING = ("normalizer", "pre_tokenizer", "normalizers", "pretokenizers")
