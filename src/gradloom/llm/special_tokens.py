"""Special tokens: their types, and those that llama.cpp recognises by their text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Tokens recognised by their text, as in llama.cpp, because some files do not mark them.
ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT]"
    " [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <｜end▁of▁sentence｜> <|flush|> <|calls|> <|tool_response>"
    " [e~["
)
FILE_ENDS = {  # of code; the key tokenizer.ggml.NAME_token_id replaces them
    "fim_pad": _words("<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    "fim_rep": _words("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    "fim_sep": _words("<|file_sep|>"),
}
TURN_ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT]"
    " <｜end▁of▁sentence｜> <end_of_utterance>"
)
MARKED = _words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|fim_suffix|> <fim-suffix> <fim_suffix>"
    " <｜fim▁hole｜> <SUF> ▁<SUF> <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID>"
    " <|code_prefix|> <|prefix|> <|code_suffix|> <|suffix|> <|code_middle|> <|middle|>"
)
_IN_MESSAGES = _words("<|channel|> <|message|> <|start|> <|constrain|>")
BLANKS = " \t\n\v\f\r"  # ASCII only


def without_inner_marks(ends: set[int], ids: Mapping[str, int], types: np.ndarray) -> frozenset[int]:
    """The tokens that end a generation, without those that the other tokens of the vocabulary show to be text or to
    occur inside of a reply. Sets the types of these (i32 [V])."""
    for text in _IN_MESSAGES:
        if text in ids:
            types[ids[text]] = USER_DEFINED

    def found(*texts: str) -> bool:
        return any(ids.get(text, -1) in ends for text in texts)

    if found("<|end|>") and found("<|call|>", "<|calls|>") and found("<|return|>", "<|flush|>"):
        ends = ends - {ids["<|end|>"]}
        types[ids["<|end|>"]] = USER_DEFINED
    if found("</s>") and found("<|tool_response>", "<|plamo:eos|>"):
        ends = ends - {ids["</s>"]}
        types[ids["</s>"]] = NORMAL
    return frozenset(ends)


def strips_blanks(name: object, pieces: list[str], types: np.ndarray) -> frozenset[int]:
    """Ids of the special tokens behind which blanks are removed: those of Phi-3, which its name identifies."""
    if not isinstance(name, str) or not any(known in name.lower() for known in ("phi-3", "phi3")):
        return frozenset()
    special = np.flatnonzero(np.isin(types, (CONTROL, USER_DEFINED, UNKNOWN)))
    ids = {int(i) for i in special if pieces[i] not in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset(ids | {i for i, piece in enumerate(pieces) if piece == "</s>"})


class RenderedText(str):
    """A text in which control tokens with a character at one of the `plain` indices are text."""

    plain: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str, plain: Sequence[int]) -> str:
        """A RenderedText, or the text itself if there are no such indices."""
        if not plain:
            return text
        rendered = cls(text)
        rendered.plain = tuple(plain)
        return rendered


class SpecialTokens:
    """Tokens at which a text is split before it is tokenised."""

    def __init__(self, pieces: list[str], types: np.ndarray, kinds: tuple[int, ...]) -> None:
        self._is_text = {pieces[i] for i in np.flatnonzero(types == USER_DEFINED)}  # recognised in messages, too
        ids = [int(i) for i in np.flatnonzero(np.isin(types, kinds))]
        # the longest in bytes first, as in llama.cpp
        self._tokens = sorted(
            ((pieces[i], i) for i in ids), key=lambda t: -len(t[0].encode("utf-8", "surrogateescape"))
        )
        self.texts = tuple(token for token, _ in self._tokens)
        self.longest = max((len(token) for token, _ in self._tokens), default=0)
        self._any = re.compile("|".join(re.escape(t) for t, _ in self._tokens)) if self._tokens else None

    def split(self, text: str) -> list[str | int]:
        """Split a text at special tokens: texts and ids, in order."""
        if not text:
            return []
        if self.find(text) is None:
            return [text]
        if isinstance(text, RenderedText):
            return self._split_rendered(text)
        parts: list[str | int] = [text]
        for token, i in self._tokens:
            if token not in text:
                continue
            pieces: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    pieces.append(part)
                    continue
                first, *others = part.split(token)
                pieces.append(first)
                for other in others:
                    pieces += [i, other]
            parts = [p for p in pieces if p != ""]
        return parts

    def find(self, text: str) -> str | None:
        """A special token that the text contains, or None."""
        found = None if self._any is None else self._any.search(text)
        return None if found is None else found[0]

    def _split_rendered(self, text: RenderedText) -> list[str | int]:
        """`split` for a text with plain indices."""
        parts: list[tuple[int, int, int | None]] = [(0, len(text), None)]  # start, stop, id of a token
        for token, i in self._tokens:
            if token not in text:
                continue
            pieces: list[tuple[int, int, int | None]] = []
            for start, stop, known in parts:
                at = start if known is None else stop
                while (at := text.find(token, at, stop)) >= 0:
                    end = at + len(token)
                    place = bisect_left(text.plain, at)
                    if token not in self._is_text and place < len(text.plain) and text.plain[place] < end:
                        at += 1
                        continue
                    pieces += [(start, at, None), (at, end, i)]
                    start = at = end
                pieces.append((start, stop, known))
            parts = [one for one in pieces if one[0] < one[1]]
        return [str(text[start:stop]) if known is None else known for start, stop, known in parts]

    def covers(self, text: str, at: int) -> bool:
        """Whether a special token of the text extends across this index."""
        return any(text.startswith(t, k) for t, _ in self._tokens for k in range(max(0, at - len(t) + 1), at))
