"""Tokenizers of Hugging Face folders: tokenizer.json, run by the `tokenizers` package; the same ids as there.

The file is untrusted input: hf_tokenizer_file.py checks it before the package reads it. This file adds to the
package: parts of a text, control tokens that are text, streams, and texts that are too long to be tokenised at
once.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import FileError
from ..base.extras import need_llm
from ..base.memory import need_left
from .bpe import (
    BLOCK,
    CHARACTER_BYTES,
    CUT_BPE,
    CUT_SPM,
    GROUP,
    MODEL_BYTES,
    SPACE,
    TOKEN_BYTES,
    id_array,
    pieces_of,
)
from .hf_tokenizer_file import Added, TokenizerFile
from .special_tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    TURN_ENDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    RenderedText,
    SpecialTokens,
)
from .tokenizer import Tokenizer, checked_text, joined

WHOLE, PLAIN, INNER = range(3)  # engines: with special tokens; special tokens are text; and the text is continued


class Segment(NamedTuple):
    """A part of a text between added tokens; begins: the package may put a space before it."""

    text: str
    begins: bool


class FolderTokenizer(Tokenizer):
    """Text to ids and back, according to the files of a Hugging Face folder.

    file  its checked tokenizer.json, tokenizer_config.json and generation_config.json

    Attributes are those of Tokenizer. Raises FileError for a file that the package cannot use.
    """

    def __init__(self, file: TokenizerFile) -> None:
        need_llm()
        self.file, self.name, self._where = file, file.name, f"{file.name}: "
        self.kind = "bpe" if file.is_byte_level else "spm"
        self.pieces = file.pieces()
        self.vocab_size = len(self.pieces)
        self._ids = file.ids()
        self._types = np.full(self.vocab_size, NORMAL, np.int32)
        for i, piece in enumerate(self.pieces):
            if file.model.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", piece):
                self._types[i] = BYTE
        self._types[[i for i in range(self.vocab_size) if self.pieces[i] not in self._ids]] = UNUSED
        for token in file.added:
            self._types[token.id] = CONTROL if token.special else USER_DEFINED
        self._find_ends()
        if self.unk is not None and self._types[self.unk] == CONTROL:
            self._types[self.unk] = UNKNOWN
        self.add_space_prefix = self.kind == "spm" and file.prefix != "never"
        self.chat_template = file.chat_template
        self._special = SpecialTokens(self.pieces, self._types, (CONTROL, USER_DEFINED, UNKNOWN))
        self._defined = SpecialTokens(self.pieces, self._types, (USER_DEFINED,))
        self._control = SpecialTokens(self.pieces, self._types, (CONTROL, UNKNOWN))
        self._piece_bytes: dict[int, bytes] = {}
        self._engines: dict[int, Any] = {}
        need_left(MODEL_BYTES + TOKEN_BYTES * (self.vocab_size + file.merge_count), f"{self._where}the tokenizer")
        self._added = {token.content: token for token in file.added}
        # engines find the others, in the normalized text
        texts = sorted((t.content for t in file.added if not _is_normalized(t, file)), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, texts))) if texts else None

    def _find_ends(self) -> None:
        file = self.file
        self.pre = file.pre
        self.bos, self.eos, self.unk, self.pad = (file.named(name) for name in ("bos", "eos", "unk", "pad"))
        self.sep = file.named("sep")
        self.first_ids, self.last_ids = file.around()
        self.add_bos, self.add_eos = bool(self.first_ids), bool(self.last_ids)
        self.eot = next((self._ids[t] for t in TURN_ENDS if t in self._ids), None)
        self.eom = self._ids.get("<|eom_id|>")
        own = {i for i in (self.eos, self.eot, self.eom, *file.end_ids) if i is not None}
        self.end_ids = frozenset(own)
        self.turn_ends = tuple(self.pieces[i] for i in sorted(own))

    def _engine(self, which: int) -> Any:
        """An engine, created when it is first used."""
        if which not in self._engines:
            self._engines[which] = self.file.engine(which == WHOLE, which == INNER)
        return self._engines[which]

    @property
    def types(self) -> np.ndarray:
        """tokenizer.ggml.token_type of each id, i32."""
        return self._types

    def __repr__(self) -> str:
        kind = "SentencePiece" if self.kind == "spm" else "byte-level BPE"
        return f"Tokenizer({self.vocab_size} tokens, {kind}, bos {self.bos}, eos {self.eos})"

    # -- text to ids ---------------------------------------------------------------------------------------------

    def encode_parts(self, texts: Sequence[Sequence[str]], special: bool = True) -> list[list[np.ndarray]]:
        """Ids of texts in parts, i32 for each part, without bos and eos.

        No token extends across two parts, such as a prompt and its answer; otherwise the ids are those of the
        concatenated parts.
        """
        jobs: tuple[list[str], list[str], list[str]] = ([], [], [])
        plans: list[list[list[int | tuple[int, int]]]] = []
        for parts in texts:
            begins, first, plan = True, True, []
            for part in parts:
                steps, begins = self._steps(part, special, begins, first, jobs)
                first = first and not part
                plan.append(steps)
            plans.append(plan)
        ids = [self._run(engine, engine_jobs) for engine, engine_jobs in enumerate(jobs)]
        return [
            [joined([ids[s[0]][s[1]] if isinstance(s, tuple) else s for s in steps]) for steps in plan]
            for plan in plans
        ]

    def _steps(
        self, part: str, special: bool, begins: bool, first: bool, jobs: tuple[list[str], list[str], list[str]]
    ) -> tuple[list[int | tuple[int, int]], bool]:
        """(ids and places in jobs, in order; whether an added token is the last). begins: the text starts here, or
        after an added token; first: it starts here. Appends to jobs."""
        text = checked_text(part)
        steps: list[int | tuple[int, int]] = []
        if first and special and not isinstance(text, RenderedText) and len(text) <= 2 * BLOCK:
            found = self._any is not None and self._any.search(text)
            if text:
                steps.append((WHOLE, len(jobs[WHOLE])))
                jobs[WHOLE].append(text)
            return steps, not text or bool(found and text.endswith(tuple(self._added)))
        for step in self._split(text, special):
            if isinstance(step, int):
                steps.append(step)
                begins = True
            else:
                wants = begins and (self.file.prefix == "always" or (first and not steps))
                for number, block in enumerate(self._blocks(step)):
                    engine = PLAIN if wants and not number else INNER
                    steps.append((engine, len(jobs[engine])))
                    jobs[engine].append(block)
                begins = False
        return steps, begins

    def _split(self, text: str, special: bool) -> Iterator[str | int]:
        """Texts and ids of added tokens, in order, as the package splits a text."""
        start = at = 0
        while self._any is not None and (match := self._any.search(text, at)) is not None:
            token = self._added[match[0]]
            begin, end = match.span()
            if token.special and not special:
                at = end
                continue
            if (token.special and _is_plain(text, begin, end)) or (token.single_word and _in_word(text, begin, end)):
                at = begin + 1
                continue
            if token.lstrip:
                begin = start + len(text[start:begin].rstrip())
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            if begin > start:
                yield str(text[start:begin])
            yield token.id
            start = at = end
        if start < len(text):
            yield str(text[start:])

    def _run(self, engine: int, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text by an engine, about GROUP characters at a time."""
        ids: list[np.ndarray] = []
        group: list[str] = []
        for number, text in enumerate(texts):
            group.append(text)
            size = sum(map(len, group))
            if size >= GROUP or number == len(texts) - 1:
                need_left(MODEL_BYTES + CHARACTER_BYTES * size, f"{self._where}the tokenizer, for {size:,} characters,")
                encoded = self._engine(engine).encode_batch_fast(group, add_special_tokens=False)
                ids += [id_array(one.ids) for one in encoded]
                group = []
        return ids

    # -- long texts ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def _cut(self) -> re.Pattern[str] | None:
        """Where a text may be cut without changing its tokens; None if no place is known."""
        if self.kind == "bpe":
            return CUT_BPE if self.pre else None
        words = not any(SPACE in piece.lstrip(SPACE) for piece in self.file.model.vocab if len(piece) > 1)
        return CUT_SPM if words and self.file.is_plain_spm else None

    def _place(self, text: str, near: int, end: int, covers: bool) -> int:
        """An index in text[:end] to cut at, after `near` if possible; otherwise `end`."""
        if self._cut is None:
            return end
        for start, stop, last in ((near, end, False), (1, near, True)):
            places = (m.start() for m in self._cut.finditer(text, start, stop))
            for at in reversed([*places]) if last else places:
                if not covers or not self._special.covers(text, at):
                    return at
        return end

    def _blocks(self, text: str) -> Iterator[str]:
        """A text without added tokens in blocks, cut without changing a token."""
        while len(text) > 2 * BLOCK:
            at = self._place(text, BLOCK, len(text), False)
            yield text[:at]
            text = text[at:]
        if text:
            yield text

    def encode_stream(
        self, blocks: Iterable[str], special: bool = True, bos: bool | None = None, eos: bool | None = None
    ) -> Iterator[np.ndarray]:
        """Ids of one long text in blocks of any size, as i32 arrays. Concatenated, they are the result of encode for
        the whole text."""
        before, behind = self.around(bos, eos)
        if before:
            yield id_array(before)
        special = as_bool("special", special)
        begins = first = True
        # an added token, and the spaces that it takes, may continue after the end
        kept = self._special.longest + 1
        for text in pieces_of(blocks, lambda text, near, end: self._place(text, near, end, True), kept):
            jobs: tuple[list[str], list[str], list[str]] = ([], [], [])
            steps, begins = self._steps(text, special, begins, first, jobs)
            first = first and not text
            ids = [self._run(engine, engine_jobs) for engine, engine_jobs in enumerate(jobs)]
            if steps:
                yield joined([ids[s[0]][s[1]] if isinstance(s, tuple) else s for s in steps])
        if behind:
            yield id_array(behind)


def _is_normalized(token: Added, file: TokenizerFile) -> bool:
    """Whether the package looks for this token after the normalizer; engines without control tokens do so, too."""
    return token.normalized and not token.special and bool(file.steps("normalizer"))


def _is_plain(text: str, begin: int, end: int) -> bool:
    """Whether a control token at this place comes from a message."""
    return isinstance(text, RenderedText) and any(begin <= at < end for at in text.plain)


def _in_word(text: str, begin: int, end: int) -> bool:
    """Whether a character of a word is next to text[begin:end]."""
    return any(_is_word(one) for one in text[max(begin - 1, 0) : begin] + text[end : end + 1])


def _is_word(character: str) -> bool:
    """\\w of the package: Unicode's Alphabetic, marks, decimal digits, connectors, joiners."""
    kind = unicodedata.category(character)
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or character in "\u200c\u200d" or "Ⓐ" <= character <= "ⓩ"


def tokenizer_of(file: TokenizerFile, rows: int) -> FolderTokenizer:
    """The tokenizer of a model with an embedding of `rows` rows. Raises FileError if it has more tokens."""
    if file.vocab_size > rows:
        raise FileError(
            f"{file.path}: has {file.vocab_size} tokens; need at most {rows}, the number of rows of embed_tokens.weight"
        )
    return FolderTokenizer(file)
