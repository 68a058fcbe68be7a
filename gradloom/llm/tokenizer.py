"""The tokenizer that a GGUF file describes in its own metadata; the same ids as llama.cpp gives.

Two kinds exist. "llama" is SentencePiece's byte-pair merging: the neighbours whose joint piece has the highest score
are merged first. "gpt2" is byte-level BPE: the text is split into words by regular expressions that the key
`tokenizer.ggml.pre` names, and merges are ranked. Both run as a BPE model of the `tokenizers` package; what is written
here is what that package does not know: merges that follow from scores, and llama.cpp's treatment of special tokens and
of leading spaces.
"""

from __future__ import annotations

import codecs
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import DataError, FileError, SettingError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
SPACE = "\u2581"  # how SentencePiece writes a space

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Words in which capitals come first, as llama.cpp has them: any letter but a-z, any letter but A-Z
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_THREES = r"\p{N}{1,3}", r"[0-9][0-9][0-9]"  # patterns of digits that do not take any number of them
_ASCII_WORD = "][A-Za-z]+"  # letters that only some letters follow in one word, behind a mark
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pre(NamedTuple):
    """How a byte-level tokenizer splits text into words."""

    patterns: tuple[str, ...]  # applied one after the other, each inside the words of the one before
    whole_words: bool = False  # a word that is a token is taken whole, whatever the merges say
    add_bos: bool = False  # unless the file says otherwise


def _pres() -> dict[str, Pre]:
    families = {
        "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "gpt-2 phi-2 mpt olmo exaone4 mellum gigachat a.x-4.0 trillion": Pre((_GPT2,)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b": Pre((r"\p{N}", _GPT2)),
        "falcon": Pre((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        "llama-bpe llama3 llama-v3 falcon3 lfm2 pixtral midm-2.0": Pre((_LLAMA3,), whole_words=True, add_bos=True),
        "dbrx smaug-bpe": Pre((_LLAMA3,)),
        "qwen2 stablelm2 deepseek-r1-qwen megrez kormo hunyuan": Pre((_QWEN2,)),
        "deepseek-v3": Pre(
            (
                r"\p{N}{1,3}",
                r"[一-龥぀-ゟ゠-ヿ]+",
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
        "seed-coder": Pre(
            (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
        ),
        "tekken": Pre((_CASED.replace("END", "").replace("DIGITS", r"\p{N}"),), whole_words=True, add_bos=True),
        "gpt-4o llama4 kanana2": Pre((_CASED.replace("END", _CONTRACTIONS + "?").replace("DIGITS", r"\p{N}{1,3}"),)),
    }
    return {name: pre for names, pre in families.items() for name in names.split()}


PRE_TOKENIZERS = _pres()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Tokens known by their text, as llama.cpp knows them; files forget to mark them.
_ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT]"
    " [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <｜end▁of▁sentence｜>"
    " <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>"
)
_TURN_ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT]"
    " <｜end▁of▁sentence｜> <end_of_utterance>"
)
_MARKED = _words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|fim_suffix|> <fim-suffix> <fim_suffix>"
    " <｜fim▁hole｜> <SUF> ▁<SUF> <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID>"
)

# Where a long text may be cut without changing its tokens: every pattern above ends a word at these places, and looks
# at nothing beyond them. The first form is preferred.
_CUT_BPE = re.compile(r"(?<=\w\n)(?=[^\W\d_])|(?<=[^\W\d_])(?= [^\W\d_])")
_SPM_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_CUT_SPM = re.compile(f"(?<=[^ {SPACE}])(?=[ {SPACE}])")
_BLOCK = 1 << 16  # characters that are tokenised as one
_GROUP = 8 * _BLOCK  # characters that go to the package at once, which spreads their blocks over the cores
_LINE_ENDS = re.compile(r"[\r\n]*")
_MOST_MERGES = 1 << 27  # characters of all merges of a vocabulary with scores; Llama 2's have 1 million
_WORDS_KEPT = 1 << 18  # words whose tokens are remembered where scores are tied


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class Tokenizer:
    """Text to ids and back, as the metadata of a GGUF file says.

    metadata  the file's keys; used are tokenizer.ggml.{model, pre, tokens, scores, token_type, merges, *_token_id,
              add_bos_token, add_eos_token, add_space_prefix} and tokenizer.chat_template
    name      the file's name, for messages
    bos, eos, eot, eom, unk, sep, pad   ids, or None where the file has none
    end_ids   ids that end a generation: eos, eot and what else is known to end one
    turn_ends the texts of those of them that end a chat's turn
    add_bos, add_eos   what encode() puts around a text unless told otherwise

    Raises FileError for metadata that describes no tokenizer.
    """

    def __init__(self, metadata: Mapping[str, Any], name: str = "") -> None:
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
        for text in (*_ENDS, *_MARKED):
            known = self._ids.get(text)
            if known is not None and self._types[known] == NORMAL:
                self._types[known] = CONTROL

        self.pre = ""
        pre = Pre(())
        if self.kind == "bpe":
            given = metadata.get("tokenizer.ggml.pre")
            self.pre = given if isinstance(given, str) and given else "default"
            if self.pre not in PRE_TOKENIZERS or not isinstance(given, (str, type(None))):
                raise FileError(
                    f"{self._where}tokenizer.ggml.pre is {_shown(given)}, a way to split text that is not known here;"
                    f" known are {' '.join(sorted(PRE_TOKENIZERS))}"
                )
            pre = PRE_TOKENIZERS[self.pre]

        defaults = (1, 2, 0) if self.kind == "spm" else (11, 11, None)

        def special(key: str, default: int | None = None) -> int | None:
            given = metadata.get(f"tokenizer.ggml.{key}_token_id")
            if isinstance(given, (int, np.integer)) and 0 <= given < n:
                return int(given)
            return default if default is not None and default < n else None

        self.bos = special("bos", defaults[0])
        self.eos = special("eos", defaults[1])
        self.unk = special("unknown", defaults[2])
        self.eot, self.eom = special("eot"), special("eom")
        self.sep, self.pad = special("seperator"), special("padding")
        if self.eot is None:
            self.eot = next((self._ids[t] for t in _TURN_ENDS if t in self._ids), None)
        if self.eom is None:
            self.eom = self._ids.get("<|eom_id|>")
        ends = [self.eos, self.eot, self.eom, *(self._ids.get(t) for t in _ENDS)]
        self.end_ids = frozenset(i for i in ends if i is not None)
        own = (self.eos, self.eot, self.eom)
        self.turn_ends = tuple(self.pieces[i] for i in sorted(self.end_ids) if i in own or self.pieces[i] in _TURN_ENDS)

        def flag(key: str, default: bool) -> bool:
            given = metadata.get(f"tokenizer.ggml.{key}")
            if not isinstance(given, (bool, int, np.bool_, np.integer, type(None))):
                raise FileError(f"{self._where}tokenizer.ggml.{key} is {_shown(given)}; need true or false")
            return default if given is None else bool(given)

        self.add_bos = flag("add_bos_token", self.kind == "spm" or pre.add_bos) and self.bos is not None
        self.add_eos = flag("add_eos_token", False) and self.eos is not None
        self.add_space_prefix = self.kind == "spm" and flag("add_space_prefix", True)
        template = metadata.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) and template else None

        self._special = _Specials(self.pieces, self._types, (CONTROL, USER_DEFINED, UNKNOWN))
        self._defined = _Specials(self.pieces, self._types, (USER_DEFINED,))
        self._longest = max(map(len, self.pieces))
        self._by_hand: _ScoreMerger | None = None  # merges what the package cannot
        self._pairs: set[str] | None = None  # neighbours inside pieces, where words cannot be told apart
        if self.kind == "spm":
            self._build_spm(metadata)
        else:
            self._build_bpe(metadata, pre)
        self._piece_bytes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        kind = "SentencePiece" if self.kind == "spm" else f"byte-level BPE, pre-tokenizer {self.pre}"
        return f"Tokenizer({self.vocab_size} tokens, {kind}, bos {self.bos}, eos {self.eos})"

    def _texts(self, metadata: Mapping[str, Any], key: str) -> list[str] | None:
        """A list of texts, or None where there is no such key; FileError for anything else."""
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
            with np.errstate(invalid="raise", over="ignore"):  # what is no number has no integer
                array = np.array(given, dtype=kind)
        except (TypeError, ValueError, OverflowError, FloatingPointError):
            raise FileError(f"{self._where}{key} is not a list of numbers; need one for each token") from None
        if array.ndim != 1 or len(array) < self.vocab_size:
            raise FileError(
                f"{self._where}{key} has {array.size} entries; need {self.vocab_size}, one for each of the tokens"
            )
        return array[: self.vocab_size]

    # -- building ------------------------------------------------------------------------------------------------

    def _build_bpe(self, metadata: Mapping[str, Any], pre: Pre) -> None:
        from tokenizers import Regex, pre_tokenizers

        given = self._texts(metadata, "tokenizer.ggml.merges")
        if given is None:
            raise FileError(f"{self._where}tokenizer.ggml.merges is missing; a byte-level BPE tokenizer needs it")
        merges: dict[tuple[str, str], None] = {}  # of a merge named twice the first rank counts
        for text in given:
            at = text.find(" ", 1)
            if at > 0:
                merges[text[:at], text[at + 1 :]] = None
        self._load(merges, ignore_merges=pre.whole_words)
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
        self._hf.pre_tokenizer = pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def _build_spm(self, metadata: Mapping[str, Any]) -> None:
        """Merges from scores: every way to put a piece together from two pieces, the highest score first."""
        from tokenizers import Regex, pre_tokenizers

        scores = self._numbers(metadata, "tokenizer.ggml.scores", np.float32)
        if scores is None:
            scores = np.zeros(self.vocab_size, np.float32)
        if np.isnan(scores).any():
            at = int(np.flatnonzero(np.isnan(scores))[0])
            raise FileError(f"{self._where}tokenizer.ggml.scores: entry {at} is not a number; need finite scores")
        ids = self._ids
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
        # Of tied neighbours the leftmost are merged first, which ranks cannot say; runs of one character excepted,
        # where the order of ranks above, the longest first, comes to the same. Nor does the package know what to do
        # with a byte that is no token.
        tied = any(len(group) > 1 and len(set("".join(group))) > 1 for group in ties.values())
        if costly or tied or any(f"<0x{byte:02X}>" not in ids for byte in range(256)):
            self._by_hand = _ScoreMerger(ids, scores, self._bytes_of)

    def _load(self, merges: Mapping[tuple[str, str], None], **options: Any) -> None:
        """self._hf: a BPE model of the package. Parts that are no tokens get ids of their own, above the vocabulary."""
        from tokenizers import Tokenizer as Model
        from tokenizers import models

        vocab = self._ids
        extra = {part: None for a, b in merges for part in (a, b, a + b) if part not in vocab}
        if extra or not _is_text("".join(self.pieces)):
            vocab = {p: i for p, i in vocab.items() if _is_text(p)}
            n = self.vocab_size
            vocab |= {p: n + k for k, p in enumerate(p for p in extra if _is_text(p))}
            merges = {(a, b): None for a, b in merges if _is_text(a) and _is_text(b)}
        self._parts = {i: p for p, i in vocab.items() if i >= self.vocab_size}
        try:
            self._hf = Model(models.BPE(vocab, list(merges), **options))
        except Exception as error:  # the package raises bare Exceptions
            raise FileError(f"{self._where}the tokenizer's merges cannot be used: {error}") from None

    # -- text to ids ---------------------------------------------------------------------------------------------

    def encode(self, text: str, special: bool = True, bos: bool | None = None, eos: bool | None = None) -> list[int]:
        """Ids of a text, as llama.cpp gives them.

        special   True: the names of control tokens in the text become these tokens; False: they are text
        bos, eos  whether the text begins and ends with the model's tokens for that; None: as the file says
        """
        return self.encode_batch([text], special, bos, eos)[0].tolist()

    def encode_batch(
        self, texts: Sequence[str], special: bool = True, bos: bool | None = None, eos: bool | None = None
    ) -> list[np.ndarray]:
        """Ids of several texts, i32 each; options as in encode. Large batches use every core."""
        first, last = self._around(bos, eos)
        first_ids, last_ids = np.array(first, np.int32), np.array(last, np.int32)
        found = self.encode_parts([(text,) for text in texts], as_bool("special", special))
        return [np.concatenate([first_ids, *parts, last_ids]) for parts in found]

    def encode_parts(self, texts: Sequence[Sequence[str]], special: bool = True) -> list[list[np.ndarray]]:
        """Ids of texts that come in parts, i32 for each part; nothing is put around them.

        No token reaches over the border of two parts, as when the first part is a prompt and the second its answer;
        otherwise the ids are those of the parts written one after the other.
        """
        jobs: list[str] = []
        plans: list[list[list[int]]] = []
        for parts in texts:
            after_special, plan = True, []
            for part in parts:
                steps, after_special = self._queue(part, special, after_special, jobs)
                plan.append(steps)
            plans.append(plan)
        ids = self._run(jobs)
        return [[_joined(steps, ids) for steps in plan] for plan in plans]

    def encode_stream(
        self, blocks: Iterable[str], special: bool = True, bos: bool | None = None, eos: bool | None = None
    ) -> Iterator[np.ndarray]:
        """Ids of one long text that comes in blocks of any size, i32 arrays one after the other.

        Together they are what encode gives for the whole text. Holds the text up to the next place where it may be cut,
        which most texts have every few characters.
        """
        first, last = self._around(bos, eos)
        if first:
            yield np.array(first, dtype=np.int32)
        known = self._special if special else self._defined
        rest, after_special, done, need = "", True, False, 2 * _GROUP
        source = iter(blocks)
        while not done:
            parts, have = [rest], len(rest)
            while have < need and not done:
                block = next(source, None)
                done = block is None
                parts.append(block or "")
                have += len(parts[-1])
            rest = "".join(parts)
            end = len(rest) if done else max(len(rest) - known.longest, 0)  # a special token may go on behind the end
            cut = self._cut(rest, 0, min(_GROUP, end), end, known) if not done else len(rest)
            if cut == end and not done:  # no place to cut: read on
                need = max(2 * len(rest), 2 * _GROUP)
                continue
            jobs: list[str] = []
            steps, after_special = self._queue(rest[:cut], special, after_special, jobs)
            if steps:
                yield _joined(steps, self._run(jobs))
            rest, need = rest[cut:], 2 * _GROUP
        if last:
            yield np.array(last, dtype=np.int32)

    def token_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary writes it, or None."""
        return self._ids.get(piece)

    def is_special(self, token: int) -> bool:
        """True for control tokens and the unknown token: they are no text."""
        return bool(self._types[self._checked_id(token)] in (CONTROL, UNKNOWN))

    def _around(self, bos: bool | None, eos: bool | None) -> tuple[list[int], list[int]]:
        around: list[list[int]] = []
        for what, wanted, default, token in (
            ("bos", bos, self.add_bos, self.bos),
            ("eos", eos, self.add_eos, self.eos),
        ):
            wanted = default if wanted is None else as_bool(what, wanted)
            if wanted and token is None:
                raise SettingError(f"{what}=True: this tokenizer has no {what} token; need {what}=False")
            around.append([token] if wanted and token is not None else [])
        return around[0], around[1]

    def _queue(self, text: str, special: bool, after_special: bool, jobs: list[str]) -> tuple[list[int], bool]:
        """(ids in order, -1 - k standing for those of jobs[k]; whether a special token is the last); adds to jobs."""
        steps = []
        for part in (self._special if special else self._defined).split(_checked(text)):
            if isinstance(part, int):
                steps.append(part)
                after_special = True
                continue
            if self.kind == "spm":
                part = (" " * (self.add_space_prefix and after_special) + part).replace(" ", SPACE)
            for block in self._blocks(part):
                steps.append(-1 - len(jobs))
                jobs.append(block)
            after_special = False
        return steps, after_special

    def _blocks(self, text: str) -> Iterator[str]:
        begin = 0
        while len(text) - begin > 2 * _BLOCK:
            cut = self._cut(text, begin, begin + _BLOCK, len(text))
            yield text[begin:cut]
            begin = cut
        yield text[begin:]

    def _cut(self, text: str, begin: int, near: int, end: int, known: _Specials | None = None) -> int:
        """A place in text[begin:end], behind `near` if there is one, where cutting changes no token; else the end."""
        for start, stop, last in ((near, end, False), (begin + 1, near, True)):
            cuts = self._cuts(text, start, stop)
            for at in reversed([*cuts]) if last else cuts:
                if known is None or not known.covers(text, at):
                    return at
        return end

    def _cuts(self, text: str, start: int, stop: int) -> Iterator[int]:
        if self._pairs is not None:
            return (k for k in range(start, stop) if text[k - 1 : k + 1].replace(" ", SPACE) not in self._pairs)
        pattern = _CUT_BPE if self.kind == "bpe" else _CUT_SPM
        return (m.start() for m in pattern.finditer(text, start, stop))

    def _run(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, i32; about _GROUP characters at a time: the package holds 250 bytes for each."""
        found: list[np.ndarray] = []
        group: list[str] = []
        size = 0
        for text in texts:
            if len(text) > 2 * _BLOCK or size + len(text) > _GROUP:
                found += self._run_group(group)
                group, size = [], 0
            if len(text) > 2 * _BLOCK:
                found.append(self._run_long(text))
            else:
                group.append(text)
                size += len(text)
        return found + self._run_group(group)

    def _run_group(self, texts: list[str]) -> list[np.ndarray]:
        if not texts:
            return []
        if self._by_hand is not None:
            words = ([text] if self._pairs is not None else _SPM_WORDS.findall(text) for text in texts)
            return [_array(i for word in found for i in self._by_hand.encode(word)) for found in words]
        found = (e.ids for e in self._hf.encode_batch_fast(texts, add_special_tokens=False))
        return [_array(self._as_bytes(ids) if self._parts else ids) for ids in found]

    def _run_long(self, text: str) -> np.ndarray:
        """Ids of a text without a place to cut it (see _cuts), as of the whole, in windows.

        A window is left where a word ends and nothing behind the window can change that; or inside of a word, at the
        end of a token, where the next window begins with the token that this one has there. The latter is right for any
        merging that takes the best pair first, of equal ones the leftmost: two tokens that stand side by side in the
        result for some text do so in every text in which both are found, each beside neighbours of which that is true.
        Where neither is found, the window is doubled.
        """
        found: list[np.ndarray] = []
        begin, size = 0, max(_BLOCK, 8 * self._longest)
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
            found.append(_array(self._as_bytes(now.ids[:at].tolist())))
            begin += int(now.ends[at - 1])
            now = following or self._tokens(text[begin : begin + size])
        return np.concatenate([*found, _array(self._as_bytes(now.ids.tolist()))])

    def _tokens(self, text: str) -> _Tokens:
        if self._by_hand is not None:
            words = [text] if self._pairs is not None else _SPM_WORDS.findall(text)
            pieces = [(number, piece) for number, word in enumerate(words) for piece in self._by_hand.merge(word)]
            given = [(i, len(piece), n) for n, piece in pieces for i in self._by_hand.ids_of(piece)]
            ends = np.cumsum([0] + [len(piece) for _, piece in pieces])[1:]
            of = [k for k, (_, piece) in enumerate(pieces) for _ in self._by_hand.ids_of(piece)]
            starts = ends - [len(piece) for _, piece in pieces]
            return _Tokens(np.array([g[0] for g in given]), starts[of], ends[of], np.array([g[2] for g in given]))
        found = self._hf.encode(text, add_special_tokens=False)
        offsets = np.array(found.offsets, np.int64).reshape(-1, 2)
        return _Tokens(np.array(found.ids), offsets[:, 0], offsets[:, 1], np.array(found.word_ids, dtype=object))

    def _word_end(self, window: str, tokens: _Tokens) -> int:
        """The number of tokens up to the last end of a word that no text behind the window can change; 0 for none.

        A pattern reads at most four runs of characters of one class behind the end of a word, and of digits three."""
        if self._pairs is not None:
            return 0
        end, runs, kind = len(window), 0, ""
        while end and runs < 7:
            end -= 1
            now = _kind(window[end])
            if now != kind:
                runs, kind = runs + 1, now
        if runs < 7:
            end = len(window) - 4 if kind == "digit" and runs == 1 else 0
        for at in range(len(tokens.ids) - 1, 0, -1):
            if tokens.ends[at - 1] <= end and tokens.words[at] != tokens.words[at - 1]:
                return at
        return 0

    def _token_end(self, text: str, begin: int, window: str, tokens: _Tokens) -> int:
        """The number of tokens up to the end of one in the middle of a word that goes on behind the window, where the
        rest of the word is a word by itself, and longer than any token; 0 for none.

        The rest is a word where the pattern that takes these characters takes any number of them."""
        for at in range(np.searchsorted(tokens.ends, len(window) // 2), len(tokens.ids) - 1):
            place = int(tokens.ends[at - 1]) if at else 0
            if not place or tokens.starts[at] != place or tokens.words[at - 1] != tokens.words[-1]:
                continue
            if self.kind == "spm":
                return at
            patterns = PRE_TOKENIZERS[self.pre].patterns
            cased = patterns[-1].startswith(_CASED[:20])
            kinds = {_kind(c) for c in window[place - 1 :]}
            if len(window) - place <= self._longest:
                safe = False
            elif "line" in kinds:
                stop = _LINE_ENDS.match(text, begin + place).end()  # type: ignore[union-attr]
                behind = text[stop : stop + 1]
                safe = kinds == {"line"} and not behind.isspace() and not (cased and behind == "/")
            elif "digit" in kinds:
                safe = len(kinds) == 1 and not any(three in pattern for pattern in patterns for three in _THREES)
            elif "letter" in kinds and cased:
                safe = False
            elif not kinds.isdisjoint(("small", "letter")) and _ASCII_WORD in patterns[-1]:
                first = window[tokens.starts[np.searchsorted(tokens.words, tokens.words[-1])]]
                safe = kinds <= {"small", "letter"} and _kind(first) in ("small", "letter")
            else:
                safe = len(kinds) == 1 or kinds == {"small", "letter"}
            return at if safe else 0
        return 0

    def _as_bytes(self, ids: list[int]) -> list[int]:
        """Parts of merges that are no tokens themselves, written in bytes."""
        done: list[int] = []
        for i in ids:
            if i < self.vocab_size:
                done.append(i)
            elif self.kind == "spm":
                done += self._bytes_of(self._parts[i])
            else:
                done += [self._ids[c] for c in self._parts[i] if c in self._ids]
        return done

    def _bytes_of(self, text: str) -> list[int]:
        done = []
        for byte in text.encode():
            i = self._ids.get(f"<0x{byte:02X}>", self.unk)
            if i is None:
                raise DataError(
                    f"{self._where}{text!r} is not in the vocabulary, which has neither the byte <0x{byte:02X}>"
                    " nor an unknown token"
                )
            done.append(i)
        return done

    # -- ids to text ---------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_special: bool = False, continued: bool = False) -> str:
        """The text of ids; the inverse of encode wherever one exists. Bytes that are not UTF-8 become U+FFFD.

        skip_special  leave control tokens out
        continued     the ids continue a text: a leading space is kept, which a SentencePiece tokenizer otherwise
                      takes for the one that encode put there
        """
        stream = self.stream(skip_special, continued)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, skip_special: bool = True, continued: bool = False) -> TextStream:
        """Ids to text one by one, never half a character: `push(id)` returns what became readable."""
        return TextStream(self, as_bool("skip_special", skip_special), as_bool("continued", continued))

    def piece_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; of a control token, its name."""
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
            raise DataError(f"{self._where}{token!r} is no token id; need whole numbers") from None
        if not 0 <= i < self.vocab_size:
            raise DataError(f"{self._where}token id {i} is not in the vocabulary; need 0..{self.vocab_size - 1}")
        return i


class TextStream:
    """Text of ids that come one by one."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, continued: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.add_space_prefix and not continued

    def push(self, token: int) -> str:
        """What this token makes readable; bytes of an unfinished character wait for the next."""
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
        """What is left when no more ids come: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class _Specials:
    """Tokens that are found in a text before anything else is done to it."""

    def __init__(self, pieces: list[str], types: np.ndarray, kinds: tuple[int, ...]) -> None:
        ids = [int(i) for i in np.flatnonzero(np.isin(types, kinds))]
        # the longest in bytes comes first, all over the text, as in llama.cpp
        self._tokens = sorted(
            ((pieces[i], i) for i in ids), key=lambda t: -len(t[0].encode("utf-8", "surrogateescape"))
        )
        self.longest = max((len(token) for token, _ in self._tokens), default=0)
        self._any = re.compile("|".join(re.escape(t) for t, _ in self._tokens)) if self._tokens else None

    def split(self, text: str) -> list[str | int]:
        """The text in order: stretches of text, and the ids of tokens between them."""
        if not text:
            return []
        if self._any is None or self._any.search(text) is None:
            return [text]
        parts: list[str | int] = [text]
        for token, i in self._tokens:
            if token not in text:
                continue
            found: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    found.append(part)
                    continue
                first, *others = part.split(token)
                found.append(first)
                for other in others:
                    found += [i, other]
            parts = [p for p in found if p != ""]
        return parts

    def covers(self, text: str, at: int) -> bool:
        """True when a token in the text lies on both sides of this place."""
        return any(text.startswith(t, k) for t, _ in self._tokens for k in range(max(0, at - len(t) + 1), at))


class _ScoreMerger:
    """Merges by score, of equal scores the leftmost: what ranks cannot express when different pieces are tied."""

    def __init__(self, ids: Mapping[str, int], scores: np.ndarray, to_bytes: Callable[[str], list[int]]) -> None:
        self._ids = ids
        self._scores = scores
        self._to_bytes = to_bytes
        self._kept: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        done = self._kept.get(text)
        if done is None:
            done = [i for piece in self.merge(text) for i in self.ids_of(piece)]
            if len(self._kept) >= _WORDS_KEPT:
                self._kept.clear()
            self._kept[text] = done
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
    """Tokens of a text: ids (before what stands for bytes is written in them), the characters that they begin and end
    at, and the numbers of their words."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray


def _kind(character: str) -> str:
    """What the patterns above tell apart."""
    if "a" <= character <= "z" or "A" <= character <= "Z":
        return "small" if character >= "a" else "letter"
    if character.isalpha():
        return "letter"
    if character.isnumeric():
        return "digit"
    return "space" if character in " \t" else "line" if character.isspace() else "other"


def _array(ids: Iterable[int]) -> np.ndarray:
    return np.fromiter(ids, np.int32)


def _joined(steps: list[int], ids: list[np.ndarray]) -> np.ndarray:
    parts = [ids[-1 - step] if step < 0 else step for step in steps]
    return np.concatenate([np.atleast_1d(part).astype(np.int32, copy=False) for part in parts] or [_array(())])


def _known(part: str, ids: Mapping[str, int]) -> bool:
    return len(part) == 1 or part in ids


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(text: str) -> str:
    if not isinstance(text, str):
        raise DataError(f"{type(text).__name__} is no text to encode; need str")
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
