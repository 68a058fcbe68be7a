"""Tokenizer from the metadata of a GGUF file; the same ids as llama.cpp.

Two kinds exist. "llama" is SentencePiece's byte-pair merging: the neighbours whose joint piece has the highest score
are merged first. "gpt2" is byte-level BPE: the text is split into words by regular expressions that the key
`tokenizer.ggml.pre` names, and merges are ranked. Both are implemented in bpe.py; this file reads the metadata, and
handles special tokens and leading spaces as llama.cpp does.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import DataError, FileError, SettingError
from ..base.extras import need_llm
from ..base.habits import AttributeHints, hinted, not_callable
from . import bpe
from .bpe import SPACE, Bpe, id_array
from .pretokenizers import PRE_TOKENIZERS, Pre
from .special_tokens import (
    BLANKS,
    BYTE,
    CONTROL,
    ENDS,
    FILE_ENDS,
    MARKED,
    NORMAL,
    TURN_ENDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    RenderedText,
    SpecialTokens,
    strips_blanks,
    without_inner_marks,
)

_BEGIN, _TEXT = -1, -2  # no special token precedes a part: nothing does, or text


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class Tokenizer(AttributeHints):
    """Text to ids and back, according to the metadata of a GGUF file.

    metadata  the file's keys; used are tokenizer.ggml.{model, pre, tokens, scores, token_type, merges, *_token_id,
              add_bos_token, add_eos_token, add_space_prefix}, tokenizer.chat_template and general.name
    name      the file's name, for messages
    bos, eos, eot, eom, unk, sep, pad   ids, or None if the file has none
    end_ids   ids that end a generation: eos, eot and other known ones
    turn_ends the texts of those that end a chat's turn
    add_bos, add_eos   defaults of encode()
    first_ids, last_ids   the ids that these add

    Raises FileError for metadata that does not describe a tokenizer.
    """

    def __init__(self, metadata: Mapping[str, Any], name: str = "") -> None:
        need_llm()
        self.name = name
        self._where = f"{name}: " if name else ""
        model = metadata.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model not in ("llama", "gpt2"):
            seen = "is missing" if model is None else f"is {_shown(model)}"
            raise FileError(
                f"{self._where}tokenizer.ggml.model {seen}; need 'llama' (SentencePiece) or 'gpt2' (byte-level BPE)"
            )
        self.kind = "spm" if model == "llama" else "bpe"
        tokens = self._texts(metadata, "tokenizer.ggml.tokens")
        if not tokens:
            raise FileError(f"{self._where}tokenizer.ggml.tokens is missing or empty; need the vocabulary's pieces")
        self.pieces: list[str] = tokens
        n: int = len(self.pieces)
        self.vocab_size = n
        for i, piece in enumerate(self.pieces):
            if not piece:
                self.pieces[i] = f"[EMPTY_{i}]"
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        types = self._numbers(metadata, "tokenizer.ggml.token_type", np.int32)
        self._types = np.full(n, NORMAL, np.int32) if types is None else types
        of_files = (
            t for key, texts in FILE_ENDS.items() if f"tokenizer.ggml.{key}_token_id" not in metadata for t in texts
        )
        for text in (*ENDS, *MARKED, *of_files):
            known = self._ids.get(text)
            if known is not None and self._types[known] in (NORMAL, USER_DEFINED):
                self._types[known] = CONTROL

        self.pre = ""
        pre = Pre(())
        if self.kind == "bpe":
            given = metadata.get("tokenizer.ggml.pre")
            self.pre = given if isinstance(given, str) and given else "default"
            if self.pre not in PRE_TOKENIZERS or not isinstance(given, (str, type(None))):
                raise FileError(
                    f"{self._where}tokenizer.ggml.pre is {_shown(given)}, which is not supported;"
                    f" supported are {' '.join(sorted(PRE_TOKENIZERS))}"
                )
            pre = PRE_TOKENIZERS[self.pre]

        self._find_special(metadata)

        def flag(key: str, default: bool) -> bool:
            given = metadata.get(f"tokenizer.ggml.{key}")
            if not isinstance(given, (bool, int, np.bool_, np.integer, type(None))):
                raise FileError(f"{self._where}tokenizer.ggml.{key} is {_shown(given)}; need true or false")
            return default if given is None else bool(given)

        self.add_bos = flag("add_bos_token", self.kind == "spm" or pre.add_bos) and self.bos is not None
        self.add_eos = flag("add_eos_token", False) and self.eos is not None
        self.first_ids = [self.bos] if self.add_bos and self.bos is not None else []
        self.last_ids = [self.eos] if self.add_eos and self.eos is not None else []
        self.add_space_prefix = self.kind == "spm" and flag("add_space_prefix", True)
        template = metadata.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) and template else None

        self._strips = strips_blanks(metadata.get("general.name"), self.pieces, self._types)
        self._special = SpecialTokens(self.pieces, self._types, (CONTROL, USER_DEFINED, UNKNOWN))
        self._defined = SpecialTokens(self.pieces, self._types, (USER_DEFINED,))
        self._control = SpecialTokens(self.pieces, self._types, (CONTROL, UNKNOWN))
        # no text is merged into a control token
        mergeable = {piece: i for piece, i in self._ids.items() if self._types[i] not in (CONTROL, UNKNOWN)}
        self.bpe = Bpe(self.pieces, mergeable, self.unk, None if self.kind == "spm" else pre, self._where)
        if self.kind == "spm":
            scores = self._numbers(metadata, "tokenizer.ggml.scores", np.float32)
            self.bpe.load_scores(np.zeros(n, np.float32) if scores is None else scores)
        else:
            merges = self._texts(metadata, "tokenizer.ggml.merges")
            if merges is None:
                raise FileError(f"{self._where}tokenizer.ggml.merges is missing; a byte-level BPE tokenizer needs it")
            self.bpe.load_merges(merges)
        self._piece_bytes: dict[int, bytes] = {}

    def _find_special(self, metadata: Mapping[str, Any]) -> None:
        """The ids of special tokens, and those that end a generation or a chat's turn."""
        defaults: tuple[int | None, int, int | None] = (1, 2, 0)
        if self.kind == "bpe":
            defaults = (11 if PRE_TOKENIZERS[self.pre].has_bos else None, 11, None)

        def special(key: str, default: int | None = None) -> int | None:
            given = metadata.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(given, (int, np.integer)) and 0 <= given < self.vocab_size:
                return int(given)
            return default if default is not None and default < self.vocab_size else None

        self.bos = special("bos", defaults[0])
        self.eos = special("eos", defaults[1])
        self.unk = special("unknown", defaults[2])
        self.eot, self.eom = special("eot"), special("eom")
        self.sep, self.pad = special("seperator"), special("padding")
        if self.eot is None:
            self.eot = next((self._ids[t] for t in TURN_ENDS if t in self._ids), None)
        if self.eom is None:
            self.eom = self._ids.get("<|eom_id|>")
        ends = {self.eos, self.eot, self.eom, *(self._ids.get(t) for t in ENDS)}
        for key, texts in FILE_ENDS.items():
            given = special(key)
            ends |= {self._ids.get(t) for t in texts} if given is None else {given}
        self.end_ids = without_inner_marks({i for i in ends if i is not None}, self._ids, self._types)
        own = (self.eos, self.eot, self.eom)
        self.turn_ends = tuple(self.pieces[i] for i in sorted(self.end_ids) if i in own or self.pieces[i] in TURN_ENDS)

    def __repr__(self) -> str:
        kind = "SentencePiece" if self.kind == "spm" else f"byte-level BPE, pre-tokenizer {self.pre}"
        return f"Tokenizer({self.vocab_size} tokens, {kind}, bos {self.bos}, eos {self.eos})"

    def _texts(self, metadata: Mapping[str, Any], key: str) -> list[str] | None:
        """A list of texts, or None if the key is missing. Raises FileError for anything else."""
        given = metadata.get(key)
        if given is None:
            return None
        if not isinstance(given, (list, tuple)) or not all(isinstance(t, (str, bytes)) for t in given):
            raise FileError(f"{self._where}{key} is {_shown(given)}; need a list of texts")
        return [t if isinstance(t, str) else t.decode("utf-8", "surrogateescape") for t in given]

    def _numbers(self, metadata: Mapping[str, Any], key: str, kind: Any) -> np.ndarray | None:
        given = metadata.get(key)
        if given is None:
            return None
        try:
            with np.errstate(invalid="raise", over="ignore"):  # NaN has no integer
                array = np.array(given, dtype=kind)
        except (TypeError, ValueError, OverflowError, FloatingPointError):
            raise FileError(f"{self._where}{key} is not a list of numbers; need one for each token") from None
        if array.ndim != 1 or len(array) < self.vocab_size:
            raise FileError(
                f"{self._where}{key} has {array.size} entries; need {self.vocab_size}, one for each of the tokens"
            )
        return array[: self.vocab_size]

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """TypeError that names `encode`: tokenizers of other libraries are called."""
        raise not_callable(self, "tokenizer.encode(text)")

    # -- text to ids ---------------------------------------------------------------------------------------------

    @hinted
    def encode(self, text: str, special: bool = True, bos: bool | None = None, eos: bool | None = None) -> list[int]:
        """Ids of a text, as in llama.cpp.

        special   True: the names of control tokens in the text become these tokens; False: they are text. In a result
                  of ChatTemplate.render they are text if they come from messages
        bos, eos  whether the text begins and ends with the model's tokens for that; None: as in the file
        """
        return self.encode_batch([text], special, bos, eos)[0].tolist()

    def encode_batch(
        self, texts: Sequence[str], special: bool = True, bos: bool | None = None, eos: bool | None = None
    ) -> list[np.ndarray]:
        """Ids of several texts, i32 each; options as in encode. Large batches use every core."""
        first, last = self.around(bos, eos)
        first_ids, last_ids = np.array(first, np.int32), np.array(last, np.int32)
        encoded = self.encode_parts([(text,) for text in texts], as_bool("special", special))
        return [np.concatenate([first_ids, *parts, last_ids]) for parts in encoded]

    def encode_parts(self, texts: Sequence[Sequence[str]], special: bool = True) -> list[list[np.ndarray]]:
        """Ids of texts in parts, i32 for each part, without bos and eos.

        No token extends across two parts, such as a prompt and its answer; otherwise the ids are those of the
        concatenated parts.
        """
        jobs: list[str] = []
        plans: list[list[list[int]]] = []
        for parts in texts:
            last, plan = _BEGIN, []
            for part in parts:
                steps, last = self._queue(part, special, last, jobs)
                plan.append(steps)
            plans.append(plan)
        ids = self.bpe.encode(jobs)
        return [[_join(steps, ids) for steps in plan] for plan in plans]

    def encode_stream(
        self, blocks: Iterable[str], special: bool = True, bos: bool | None = None, eos: bool | None = None
    ) -> Iterator[np.ndarray]:
        """Ids of one long text in blocks of any size, as i32 arrays.

        Concatenated, they are the result of encode for the whole text.
        """
        first, last = self.around(bos, eos)
        if first:
            yield np.array(first, dtype=np.int32)
        known = self._special if special else self._defined
        last_id = _BEGIN
        # a special token may continue after the end
        for text in bpe.pieces_of(
            blocks, lambda text, near, end: self.bpe.cut(text, 0, near, end, known), known.longest
        ):
            jobs: list[str] = []
            steps, last_id = self._queue(text, special, last_id, jobs)
            if steps:
                yield _join(steps, self.bpe.encode(jobs))
        if last:
            yield np.array(last, dtype=np.int32)

    def token_id(self, piece: str) -> int | None:
        """The id of a piece in the vocabulary's spelling, or None."""
        return self._ids.get(piece)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The texts of control tokens and of the unknown token."""
        return self._control.texts

    @property
    def longest_control(self) -> int:
        """The length of the longest of them."""
        return self._control.longest

    def control_in(self, text: str) -> str | None:
        """A control token whose text this text contains, or None."""
        return self._control.find(text)

    def begins_with_bos(self, text: str) -> bool:
        """Whether encode reads the first characters of a text as the bos token."""
        pieces = [self.pieces[i] for i in (self.bos, *self.first_ids[:1]) if i is not None]
        written = [len(piece) for piece in pieces if text.startswith(piece)]
        return bool(written) and (not isinstance(text, RenderedText) or text.plain[0] >= min(written))

    def is_special(self, token: int) -> bool:
        """True for control tokens and the unknown token, which are not text."""
        return bool(self._types[self._checked_id(token)] in (CONTROL, UNKNOWN))

    def around(self, bos: bool | None, eos: bool | None) -> tuple[list[int], list[int]]:
        """The ids before and after a text, for these arguments of encode."""
        around: list[list[int]] = []
        for what, wanted, default, token in (
            ("bos", bos, self.first_ids, self.bos),
            ("eos", eos, self.last_ids, self.eos),
        ):
            if wanted is None or not as_bool(what, wanted):
                around.append(default if wanted is None else [])
            elif not default and token is None:
                raise SettingError(f"{what}=True: this tokenizer has no {what} token; need {what}=False")
            else:
                around.append(default or [token])  # type: ignore[list-item]
        return around[0], around[1]

    def _queue(self, text: str, special: bool, last: int, jobs: list[str]) -> tuple[list[int], int]:
        """(ids in order, with -1 - k for those of jobs[k]; the special token at the end, _BEGIN or _TEXT), after a
        text with such an end. Appends to jobs."""
        steps = []
        for part in (self._special if special else self._defined).split(checked_text(text)):
            if isinstance(part, int):
                steps.append(part)
                last = part
                continue
            if last in self._strips:
                part = part.lstrip(BLANKS)
                if not part:
                    continue
            if self.kind == "spm":
                part = (" " * (self.add_space_prefix and last != _TEXT) + part).replace(" ", SPACE)
            for block in self.bpe.blocks(part):
                steps.append(-1 - len(jobs))
                jobs.append(block)
            last = _TEXT
        return steps, last

    # -- ids to text ---------------------------------------------------------------------------------------------

    @hinted
    def decode(self, ids: Iterable[int], skip_special: bool = False, continued: bool = False) -> str:
        """The text of ids, the inverse of encode if one exists. Bytes that are not UTF-8 become U+FFFD.

        skip_special  leave control tokens out
        continued     the ids continue a text: keep a leading space, which a SentencePiece tokenizer otherwise removes
                      because encode adds it
        """
        stream = self.stream(skip_special, continued)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, skip_special: bool = True, continued: bool = False) -> TextStream:
        """Ids to text one by one, in whole characters: `push(id)` returns the new text."""
        return TextStream(self, as_bool("skip_special", skip_special), as_bool("continued", continued))

    def piece_bytes(self, token: int) -> bytes:
        """The bytes of a token; of a control token, its name."""
        token = self._checked_id(token)
        done = self._piece_bytes.get(token)
        if done is None:
            done = self._piece_bytes[token] = self._to_bytes(token)
        return done

    def _to_bytes(self, token: int) -> bytes:
        piece, kind = self.pieces[token], int(self._types[token])
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return piece.encode("utf-8", "surrogateescape")
        if kind == BYTE and re.fullmatch("<0x[0-9A-Fa-f]{2}>", piece):
            return bytes([int(piece[3:5], 16)])
        if kind == UNUSED:
            return b""
        if self.kind == "spm":
            return piece.replace(SPACE, " ").encode("utf-8", "surrogateescape")
        return b"".join(bytes([_BYTE_OF[c]]) if c in _BYTE_OF else c.encode("utf-8", "surrogateescape") for c in piece)

    def _checked_id(self, token: int) -> int:
        try:
            i = int(token)
        except (TypeError, ValueError):
            raise DataError(f"{self._where}{token!r} is not a token id; need whole numbers") from None
        if not 0 <= i < self.vocab_size:
            raise DataError(f"{self._where}token id {i} is not in the vocabulary; need 0..{self.vocab_size - 1}")
        return i


class TextStream:
    """Decodes ids one by one."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, continued: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.add_space_prefix and not continued

    def push(self, token: int) -> str:
        """The text up to this token; bytes of an incomplete character are kept for the next."""
        tokenizer = self._tokenizer
        data = tokenizer.piece_bytes(token)
        if tokenizer.is_special(token):
            text = self._decoder.decode(b"", final=True)
            self._strip = tokenizer.add_space_prefix
            return text if self._skip else text + data.decode("utf-8", "replace")
        if self._strip and data:
            data = data[1:] if data[:1] == b" " else data
            self._strip = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest of the text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def _join(steps: list[int], ids: list[np.ndarray]) -> np.ndarray:
    return joined([ids[-1 - step] if step < 0 else step for step in steps])


def joined(parts: Sequence[np.ndarray | int]) -> np.ndarray:
    """Ids and arrays of ids as one array, i32."""
    return np.concatenate([np.atleast_1d(part).astype(np.int32, copy=False) for part in parts] or [id_array(())])


def checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{type(text).__name__} is not a text; need str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, half of a pair;"
            " need whole characters"
        ) from None
    return text


def _byte_characters() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, as in GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


_BYTE_OF = _byte_characters()
