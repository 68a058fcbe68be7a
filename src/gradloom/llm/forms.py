"""Forms of samples: the keys of a line of data, and the token sequences of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base.errors import SettingError


@dataclass(frozen=True)
class Form:
    """Samples of an objective: the keys of a line, and how its token sequences become rows.

    kind     "texts": texts, prompts with completions, or chats; "preferences": a prompt with a chosen and a rejected
             completion; "judged": a prompt, a completion, and the label good or bad; "labelled": a text, a prompt with
             its completion, or a chat, and a label; "pairs": an anchor and a positive text, and perhaps a negative one
    parts    token sequences of a sample: 2 of preferences, chosen and rejected; of judged completions 1, or 2: the
             second one is the prompt with the completion of another sample; of pairs 2, or 3 with negatives; else 1
    prompts  labels at all places of a part, its prompt included
    last     the last token of each part takes a place, too: its hidden state is read; there are no labels of tokens
    labels   of labelled texts: "classes" (texts, whole numbers, or lists of them), "numbers", or "none" (not read)
    end      a text ends with the token for end of text, also where the tokenizer does not add it
    """

    kind: Literal["texts", "preferences", "judged", "labelled", "pairs"]
    parts: int = 1
    prompts: bool = False
    last: bool = False
    labels: Literal["classes", "numbers", "none"] = "none"
    end: bool = False

    def __post_init__(self) -> None:
        possible = {"texts": (1,), "preferences": (2,), "judged": (1, 2), "labelled": (1,), "pairs": (2, 3)}
        if self.kind not in possible:
            raise SettingError(setting="kind", seen=self.kind, need=", ".join(possible), place="Form")
        if isinstance(self.parts, bool) or self.parts not in possible[self.kind]:
            need = " or ".join(map(str, possible[self.kind]))
            raise SettingError(f"Form: {{parts}} of {self.kind} must be {need}", parts=self.parts)

    @property
    def numbers(self) -> int:
        """Numbers that each sample has at least: its label."""
        return int(self.kind in ("judged", "labelled"))


TEXTS = Form("texts")
