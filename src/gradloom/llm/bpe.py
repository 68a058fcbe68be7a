"""Byte-pair encoding of parts of a text; the same ids as llama.cpp."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import DataError, FileError
from ..base.memory import need_left
from .pretokenizers import ASCII_WORD, CASED, THREES, Pre, kind_of_character
from .special_tokens import SpecialTokens

SPACE = "\u2581"  # how SentencePiece writes a space

# Where a long text may be cut without changing its tokens: every pattern of pretokenizers.py ends a word at these
# places, and does not read beyond them. The first form is preferred.
CUT_BPE = re.compile(r"(?<=\w\n)(?=[^\W\d_])|(?<=[^\W\d_])(?= [^\W\d_])")
_SPM_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
CUT_SPM = re.compile(f"(?<=[^ {SPACE}])(?=[ {SPACE}])")
BLOCK = 1 << 16  # characters that are tokenised as one
GROUP = 8 * BLOCK  # characters that go to the package at once, which spreads their blocks over the cores
# measured memory of the package: in total, for each token and merge of a vocabulary, for each character of a text
MODEL_BYTES, TOKEN_BYTES, CHARACTER_BYTES = 16 << 20, 480, 250
_WORDS_CACHED = 1 << 18  # words whose tokens are cached
_LINE_ENDS = re.compile(r"[\r\n]*")
_MOST_MERGES = 1 << 27  # characters of all merges of a vocabulary with scores; Llama 2's have 1 million


class Bpe:
    """Text to ids by merging neighbours: byte-level BPE with ranked merges, or SentencePiece's with scores.

    A BPE model of the `tokenizers` package does most of the work. This class adds merges that follow from scores, and
    texts that are too long to be tokenised at once. Special tokens are handled by Tokenizer.

    pieces  the vocabulary; ids: piece -> id
    unk     the id for text outside of the vocabulary, or None
    pre     how text is split into words; None: SentencePiece, whose words begin at spaces
    where   "file: ", for messages
    """

    def __init__(self, pieces: list[str], ids: dict[str, int], unk: int | None, pre: Pre | None, where: str) -> None:
        self.pieces, self.ids, self.unk, self.pre, self.where = pieces, ids, unk, pre, where
        self.vocab_size = len(pieces)
        self._longest = max(map(len, pieces))
        self._score_merger: _ScoreMerger | None = None  # for merges that the package cannot express
        self._pairs: set[str] | None = None  # neighbours inside pieces, if words have no borders

    def load_merges(self, merges: Iterable[str]) -> None:
        """Byte-level BPE: "left right" each, the first rank first."""
        from tokenizers import Regex, pre_tokenizers

        assert self.pre is not None
        ranked: dict[tuple[str, str], None] = {}  # the first rank of a repeated merge counts
        for text in merges:
            at = text.find(" ", 1)
            if at > 0:
                ranked[text[:at], text[at + 1 :]] = None
        self._load(ranked, ignore_merges=self.pre.whole_words)
        splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.pre.patterns]
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        absent = set(pre_tokenizers.ByteLevel.alphabet()).difference(*self.pieces, *map("".join, ranked))
        if absent:  # the package drops bytes that no token has before it merges: their neighbours stay apart
            splits.append(pre_tokenizers.Split(Regex(f"[{re.escape(''.join(sorted(absent)))}]"), "isolated"))
        self._hf.pre_tokenizer = pre_tokenizers.Sequence(splits)

    def load_scores(self, scores: np.ndarray) -> None:
        """SentencePiece: every way to put a piece together from two pieces, the highest score first."""
        from tokenizers import Regex, pre_tokenizers

        if np.isnan(scores).any():
            at = int(np.flatnonzero(np.isnan(scores))[0])
            raise FileError(f"{self.where}tokenizer.ggml.scores: entry {at} is not a number; need finite scores")
        ids = self.ids
        long = [(i, p) for p, i in ids.items() if len(p) > 1]
        # Their merges hold each piece once for each way to cut it: no real vocabulary comes near this bound.
        costly = sum(len(p) ** 2 for _, p in long) > _MOST_MERGES
        ties: dict[float, set[str]] = {}
        splits: list[tuple[float, int, int, str, str]] = []
        for i, piece in [] if costly else long:
            ways = [k for k in range(1, len(piece)) if _known(piece[:k], ids) and _known(piece[k:], ids)]
            score = float(scores[i])
            splits += [(-score, -len(piece), -k, piece[:k], piece[k:]) for k in ways]
            if ways:
                ties.setdefault(score, set()).add(piece)
        splits.sort()
        self._load(dict.fromkeys((a, b) for *_, a, b in splits), byte_fallback=True)
        # No piece holds a space behind anything but spaces: then words can be merged one by one.
        if any(SPACE in piece.lstrip(SPACE) for _, piece in long):
            self._pairs = {p[k : k + 2] for _, p in long for k in range(len(p) - 1)}
        else:
            self._hf.pre_tokenizer = pre_tokenizers.Split(Regex(_SPM_WORDS.pattern), "isolated")
        # The leftmost of tied neighbours are merged first. Ranks cannot express this, except for runs of one
        # character, where the order above, the longest first, is equivalent. The package also fails for bytes that
        # are not tokens.
        tied = any(len(group) > 1 and len(set("".join(group))) > 1 for group in ties.values())
        if costly or tied or any(f"<0x{byte:02X}>" not in ids for byte in range(256)):
            self._score_merger = _ScoreMerger(ids, scores, self._bytes_of)

    def _load(self, merges: Mapping[tuple[str, str], None], **options: Any) -> None:
        """self._hf: a BPE model of the package. Parts that are not tokens get ids above the vocabulary."""
        from tokenizers import Tokenizer as Model
        from tokenizers import models

        vocab = self.ids
        extra = {part: None for a, b in merges for part in (a, b, a + b) if part not in vocab}
        if extra or not _is_text("".join(self.pieces)):
            vocab = {p: i for p, i in vocab.items() if _is_text(p)}
            n = self.vocab_size
            vocab |= {p: n + k for k, p in enumerate(p for p in extra if _is_text(p))}
            merges = {(a, b): None for a, b in merges if _is_text(a) and _is_text(b)}
        self._parts = {i: p for p, i in vocab.items() if i >= self.vocab_size}
        need = MODEL_BYTES + TOKEN_BYTES * (len(vocab) + len(merges))
        need_left(need, f"{self.where}a tokenizer of {len(vocab):,} tokens")
        try:
            self._hf = Model(models.BPE(vocab, list(merges), **options))
        except Exception as error:  # the package raises bare Exceptions
            raise FileError(f"{self.where}the tokenizer's merges cannot be used: {error}") from None

    def blocks(self, text: str) -> Iterator[str]:
        """The text in blocks, cut without changing a token."""
        begin = 0
        while len(text) - begin > 2 * BLOCK:
            cut = self.cut(text, begin, begin + BLOCK, len(text))
            yield text[begin:cut]
            begin = cut
        yield text[begin:]

    def cut(self, text: str, begin: int, near: int, end: int, known: SpecialTokens | None = None) -> int:
        """An index in text[begin:end], after `near` if possible, where cutting changes no token; otherwise end."""
        for start, stop, last in ((near, end, False), (begin + 1, near, True)):
            cuts = self._cuts(text, start, stop)
            for at in reversed([*cuts]) if last else cuts:
                if known is None or not known.covers(text, at):
                    return at
        return end

    def _cuts(self, text: str, start: int, stop: int) -> Iterator[int]:
        if self._pairs is not None:
            return (k for k in range(start, stop) if text[k - 1 : k + 1].replace(" ", SPACE) not in self._pairs)
        pattern = CUT_SPM if self.pre is None else CUT_BPE
        return (m.start() for m in pattern.finditer(text, start, stop))

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, i32; about GROUP characters at a time: see CHARACTER_BYTES."""
        ids: list[np.ndarray] = []
        group: list[str] = []
        size = 0
        for text in texts:
            if len(text) > 2 * BLOCK or size + len(text) > GROUP:
                ids += self.encode_whole(group)
                group, size = [], 0
            if len(text) > 2 * BLOCK:
                ids.append(self.encode_in_windows(text))
            else:
                group.append(text)
                size += len(text)
        return ids + self.encode_whole(group)

    def encode_whole(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, in one call of the package."""
        if not texts:
            return []
        if self._score_merger is not None:
            words = ([text] if self._pairs is not None else _SPM_WORDS.findall(text) for text in texts)
            return [id_array(i for word in of_text for i in self._score_merger.encode(word)) for of_text in words]
        self._need_memory(sum(map(len, texts)))
        encoded = self._hf.encode_batch_fast(texts, add_special_tokens=False)
        return [id_array(self._as_bytes(e.ids) if self._parts else e.ids) for e in encoded]

    def _need_memory(self, size: int) -> None:
        """Raise MemoryError if the package cannot allocate memory for `size` characters: it would end the process."""
        need_left(MODEL_BYTES + CHARACTER_BYTES * size, f"{self.where}the tokenizer, for {size:,} characters,")

    def encode_in_windows(self, text: str) -> np.ndarray:
        """Ids of a text without a place to cut it (see _cuts), in windows, equal to those of the whole text.

        A window ends at the end of a word that no later text can change; or inside a word, at the end of a token, if
        the next window begins with the same next token. The latter is correct for any merging that takes the best pair
        first, of equal pairs the leftmost: two tokens that are adjacent in the result for some text are adjacent in
        every text that contains both, if this also holds for their neighbours. If there is neither, the window is
        doubled.
        """
        parts: list[np.ndarray] = []
        begin, size = 0, max(BLOCK, 8 * self._longest)
        now = self._tokens(text[:size])
        while begin + size < len(text):
            window = text[begin : begin + size]
            at = self._word_end(window, now)
            following = None
            if not at:
                at = self._token_end(text, begin, window, now)
                if at:
                    start = begin + int(now.ends[at - 1])
                    following = self._tokens(text[start : start + size])
                    if (following.ids[0], following.ends[0]) != (now.ids[at], now.ends[at] - now.ends[at - 1]):
                        at, following = 0, None
            if not at:
                size *= 2
                now = self._tokens(text[begin : begin + size])
                continue
            parts.append(id_array(self._as_bytes(now.ids[:at].tolist())))
            begin += int(now.ends[at - 1])
            now = following or self._tokens(text[begin : begin + size])
        return np.concatenate([*parts, id_array(self._as_bytes(now.ids.tolist()))])

    def _tokens(self, text: str) -> _Tokens:
        if self._score_merger is not None:
            words = [text] if self._pairs is not None else _SPM_WORDS.findall(text)
            pieces = [(number, piece) for number, word in enumerate(words) for piece in self._score_merger.merge(word)]
            given = [(i, len(piece), n) for n, piece in pieces for i in self._score_merger.ids_of(piece)]
            ends = np.cumsum([0] + [len(piece) for _, piece in pieces])[1:]
            of = [k for k, (_, piece) in enumerate(pieces) for _ in self._score_merger.ids_of(piece)]
            starts = ends - [len(piece) for _, piece in pieces]
            return _Tokens(np.array([g[0] for g in given]), starts[of], ends[of], np.array([g[2] for g in given]))
        self._need_memory(len(text))
        encoded = self._hf.encode(text, add_special_tokens=False)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        return _Tokens(np.array(encoded.ids), offsets[:, 0], offsets[:, 1], np.array(encoded.word_ids, dtype=object))

    def _word_end(self, window: str, tokens: _Tokens) -> int:
        """The number of tokens up to the last end of a word that no text after the window can change, or 0.

        A pattern reads at most four runs of characters of one class after the end of a word, and three of digits."""
        if self._pairs is not None:
            return 0
        end, runs, kind = len(window), 0, ""
        while end and runs < 7:
            end -= 1
            now = kind_of_character(window[end])
            if now != kind:
                runs, kind = runs + 1, now
        if runs < 7:
            end = len(window) - 4 if kind == "digit" and runs == 1 else 0
        for at in range(len(tokens.ids) - 1, 0, -1):
            if tokens.ends[at - 1] <= end and tokens.words[at] != tokens.words[at - 1]:
                return at
        return 0

    def _token_end(self, text: str, begin: int, window: str, tokens: _Tokens) -> int:
        """The number of tokens up to the end of one inside a word that continues after the window, if the rest of the
        word is also a word and longer than any token; otherwise 0.

        The rest is a word if the pattern for these characters accepts any number of them."""
        for at in range(np.searchsorted(tokens.ends, len(window) // 2), len(tokens.ids) - 1):
            place = int(tokens.ends[at - 1]) if at else 0
            if not place or tokens.starts[at] != place or tokens.words[at - 1] != tokens.words[-1]:
                continue
            if self.pre is None:
                return at
            patterns = self.pre.patterns
            cased = patterns[-1].startswith(CASED[:20])
            kinds = {kind_of_character(c) for c in window[place - 1 :]}
            if len(window) - place <= self._longest:
                safe = False
            elif "line" in kinds:
                stop = _LINE_ENDS.match(text, begin + place).end()  # type: ignore[union-attr]
                behind = text[stop : stop + 1]
                safe = kinds == {"line"} and not behind.isspace() and not (cased and behind == "/")
            elif "digit" in kinds:
                safe = len(kinds) == 1 and not any(three in pattern for pattern in patterns for three in THREES)
            elif "letter" in kinds and cased:
                safe = False
            elif not kinds.isdisjoint(("small", "letter")) and ASCII_WORD in patterns[-1]:
                first = window[tokens.starts[np.searchsorted(tokens.words, tokens.words[-1])]]
                safe = kinds <= {"small", "letter"} and kind_of_character(first) in ("small", "letter")
            else:
                safe = len(kinds) == 1 or kinds == {"small", "letter"}
            return at if safe else 0
        return 0

    def _as_bytes(self, ids: list[int]) -> list[int]:
        """Ids with parts of merges that are not tokens replaced by bytes."""
        done: list[int] = []
        for i in ids:
            if i < self.vocab_size:
                done.append(i)
            elif self.pre is None:
                done += self._bytes_of(self._parts[i])
            else:
                done += [self.ids[c] for c in self._parts[i] if c in self.ids]
        return done

    def _bytes_of(self, text: str) -> list[int]:
        done = []
        for byte in text.encode():
            i = self.ids.get(f"<0x{byte:02X}>", self.unk)
            if i is None:
                raise DataError(
                    f"{self.where}{text!r} is not in the vocabulary, which has neither the byte <0x{byte:02X}>"
                    " nor an unknown token"
                )
            done.append(i)
        return done


class _ScoreMerger:
    """Merges the pair with the highest score first, the leftmost of equal ones. Ranks cannot express such ties."""

    def __init__(self, ids: Mapping[str, int], scores: np.ndarray, to_bytes: Callable[[str], list[int]]) -> None:
        self._ids = ids
        self._scores = scores
        self._to_bytes = to_bytes
        self._cached: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        done = self._cached.get(text)
        if done is None:
            done = [i for piece in self.merge(text) for i in self.ids_of(piece)]
            if len(self._cached) >= _WORDS_CACHED:
                self._cached.clear()
            self._cached[text] = done
        return done

    def ids_of(self, piece: str) -> list[int]:
        i = self._ids.get(piece)
        return self._to_bytes(piece) if i is None else [i]

    def merge(self, text: str) -> list[str]:
        pieces: list[str] = list(text)  # "" once it is merged into its left neighbour
        before, after = list(range(-1, len(text) - 1)), [*range(1, len(text)), -1]
        queue: list[tuple[float, int, int, int]] = []  # (-score, left, right, length)

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                i = self._ids.get(pieces[left] + pieces[right])
                if i is not None:
                    heapq.heappush(queue, (-float(self._scores[i]), left, right, len(pieces[left] + pieces[right])))

        for k in range(len(text) - 1):
            offer(k, k + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [p for p in pieces if p]


class _Tokens(NamedTuple):
    """Tokens of a text: ids (before _as_bytes), the indices of the first character and after the last, and the indices
    of their words."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray


def pieces_of(blocks: Iterable[str], cut: Callable[[str, int, int], int], kept: int) -> Iterator[str]:
    """A text that arrives in blocks, in pieces of about GROUP characters.

    cut(text, near, end): an index in text[:end] to cut at, after `near` if possible; `end` if there is none
    kept: the number of last characters that may belong to a token with those that follow
    The text up to the next place is buffered; most texts have one every few characters.
    """
    source, rest, done, need = iter(blocks), "", False, 2 * GROUP
    while not done:
        parts, have = [rest], len(rest)
        while have < need and not done:
            block = next(source, None)
            done = block is None
            parts.append(block or "")
            have += len(parts[-1])
        rest = "".join(parts)
        end = len(rest) if done else max(len(rest) - kept, 0)
        at = len(rest) if done else cut(rest, min(GROUP, end), end)
        if at == end and not done:  # no place to cut: read more
            need = max(2 * len(rest), 2 * GROUP)
            continue
        yield rest[:at]
        rest, need = rest[at:], 2 * GROUP


def id_array(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int32)


def _known(part: str, ids: Mapping[str, int]) -> bool:
    return len(part) == 1 or part in ids


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
