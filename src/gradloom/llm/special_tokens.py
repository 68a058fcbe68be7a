"""Tokens that are no text: control tokens, which kinds there are, and those that llama.cpp knows by their text."""

from __future__ import annotations

import re

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Tokens known by their text, as llama.cpp knows them; files forget to mark them.
ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT]"
    " [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <｜end▁of▁sentence｜>"
    " <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>"
)
TURN_ENDS = _words(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT]"
    " <｜end▁of▁sentence｜> <end_of_utterance>"
)
MARKED = _words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|fim_suffix|> <fim-suffix> <fim_suffix>"
    " <｜fim▁hole｜> <SUF> ▁<SUF> <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID>"
)


class SpecialTokens:
    """Tokens that a text is searched for before anything else is done to it."""

    def __init__(self, pieces: list[str], types: np.ndarray, kinds: tuple[int, ...]) -> None:
        ids = [int(i) for i in np.flatnonzero(np.isin(types, kinds))]
        # the longest in bytes comes first, all over the text, as in llama.cpp
        self._tokens = sorted(
            ((pieces[i], i) for i in ids), key=lambda t: -len(t[0].encode("utf-8", "surrogateescape"))
        )
        self.longest = max((len(token) for token, _ in self._tokens), default=0)
        self._any = re.compile("|".join(re.escape(t) for t, _ in self._tokens)) if self._tokens else None

    def split(self, text: str) -> list[str | int]:
        """The text cut at special tokens: stretches of text and ids, in order."""
        if not text:
            return []
        if self._any is None or self._any.search(text) is None:
            return [text]
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

    def covers(self, text: str, at: int) -> bool:
        """Whether a special token of the text reaches over this place."""
        return any(text.startswith(t, k) for t, _ in self._tokens for k in range(max(0, at - len(t) + 1), at))
