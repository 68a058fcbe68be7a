"""Labelled texts: rows of JSON as samples with a class, several classes, or a number.

{"text", "label"}, {"prompt", "completion", "label"}, or {"messages", "label"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import DataError
from .chat_forms import SYSTEM, is_sharegpt
from .data_options import OF_CHATS, OF_PAIRS, OF_PAIRS_AS_CHATS, OF_TEXTS, check_effective
from .labels import Labels
from .preferences import LABEL, completion_of, messages_of
from .sample_lines import (
    ChatLine,
    Keys,
    Line,
    keys_of,
    keys_of_kinds,
    kind_of,
    pair_of,
    prompt_of,
    text_of,
    turns_of,
)


class Labelled:
    """Reads lines with a label; the first of them decides keys and options.

    kind, counts, used: for the report; chats: whether the chat template is required.
    """

    counts = "all tokens"

    def __init__(
        self, row: dict[str, Any], where: str, first: str, keys: Keys, separator: str, as_chat: bool, asked: set[str],
        labels: Labels,
    ) -> None:  # fmt: skip
        self.first, self.separator, self.as_chat, self.labels = first, separator, as_chat, labels
        self.label = keys.label or LABEL
        self.messages, self.prompts, self.completion, self.text = keys_of_kinds(row, keys)
        self.of = kind_of(row, asked, self.messages, self.prompts, self.completion, self.text)
        if not self.of or (self.label not in row and labels.kind != "none"):
            also = "" if labels.kind == "none" else f" and {self.label}"
            names = "text_key=, label_key=, ... (--text-key, --label-key, ...)" if also else "text_key= (--text-key)"
            raise DataError(
                f"{where}: the keys are {keys_of(row)}; need {self.text}{also}, {' or '.join(self.prompts)} with"
                f" {self.completion}{also}, or {self.messages}{also}; name others by {names}"
            )
        self.chats = self.of == "chat" or (self.of == "pair" and as_chat)
        options = {"chat": OF_CHATS, "pair": OF_PAIRS_AS_CHATS if as_chat else OF_PAIRS, "text": OF_TEXTS}[self.of]
        what = {"chat": "is a labelled chat", "pair": "is a prompt and its completion", "text": "is a labelled text"}
        check_effective(where, what[self.of], asked, (options - {"train_on_all"}) | {"label_key"})
        read = {"chat": [self.messages], "pair": [*self.prompts, self.completion], "text": [self.text]}[self.of]
        read += [self.label] * (labels.kind != "none")
        more = ["tools", *[SYSTEM] * is_sharegpt(row, self.messages)] if self.of == "chat" else []
        self.used = [*read, *more]
        shown = ", ".join(key for key in read if key in row)
        name = {"chat": "chats", "pair": "prompts and completions", "text": "texts"}[self.of]
        self.kind = f"{'' if labels.kind == 'none' else 'labelled '}{name} ({shown})"
        self.kind += ", as chats" * (self.of == "pair" and as_chat)

    def take(self, row: dict[str, Any]) -> Line:
        """A sample. Raises BadRow for a line that is none."""
        values = self.labels.take(row, self.label, self.first)
        if self.of == "text":
            return Line([([text_of(row, self.text, self.first)], [True])], values)
        if self.of == "chat":
            chat: list[Mapping[str, Any]] = messages_of(row, self.messages, self.first, True)
            return Line([ChatLine(chat, row.get("tools"))], values)
        prompt = prompt_of(row, self.prompts, self.first)
        completion = completion_of(row, self.completion, self.first)
        if self.as_chat:
            return Line([turns_of(prompt, completion)], values)
        return Line([pair_of(prompt, completion, self.separator)], values)
