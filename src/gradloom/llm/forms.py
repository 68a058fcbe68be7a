"""Forms of samples: the keys of a line of data, and the token sequences of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Form:
    """Samples of an objective: the keys of a line, and how its token sequences become rows.

    kind     "texts": texts, prompts with completions, or chats; "preferences": a prompt with a chosen and a rejected
             completion; "judged": a prompt, a completion, and the label good or bad
    parts    token sequences of a sample: 2 of preferences, chosen and rejected; of judged completions 1, or 2: the
             second one is the prompt with the completion of another sample; else 1
    prompts  labels at all places of a part, its prompt included
    """

    kind: Literal["texts", "preferences", "judged"]
    parts: int = 1
    prompts: bool = False

    @property
    def numbers(self) -> int:
        """Numbers that each sample has at least: its label."""
        return int(self.kind == "judged")


TEXTS = Form("texts")
