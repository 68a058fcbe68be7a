"""Preferences and judged completions: rows of JSON as samples.

    preferences  {"prompt", "chosen", "rejected"}, or {"chosen", "rejected"} whose common start is the prompt
    judged       {"prompt", "completion", "label"}, or {"messages", "label"}

Prompts and completions are texts, or lists of messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..base.errors import DataError
from .chat_forms import ALPACA, MESSAGES, PAIR, SYSTEM, is_sharegpt, messages_of_sharegpt
from .data_options import (
    OF_CHAT_SIDES,
    OF_JUDGED_CHATS,
    OF_TEXT_SIDES,
    OF_TEXT_SIDES_AS_CHATS,
    check_effective,
)
from .json_rows import BadRow
from .message_marks import without_marks
from .sample_lines import (
    ChatLine,
    Keys,
    Line,
    Parts,
    keys_of,
    kind_of,
    name_of,
    number_of,
    pair_of,
    prompt_of,
    text_of,
    turns_of,
    value_of,
)

CHOSEN, REJECTED, LABEL, MARGIN = "chosen", "rejected", "label", "margin"  # keys of a line

_Messages = list[Mapping[str, Any]]


class Preferences:
    """Reads lines with a chosen and a rejected completion; the first of them decides keys and options.

    kind, counts, used: for the report; chats: whether the chat template is required.
    """

    counts = "both completions"

    def __init__(
        self, row: dict[str, Any], where: str, first: str, keys: Keys, separator: str, as_chat: bool, asked: set[str]
    ) -> None:
        self.first, self.separator, self.as_chat = first, separator, as_chat
        self.sides = (keys.chosen or CHOSEN, keys.rejected or REJECTED)
        self.possible = _prompt_keys(row, keys.prompts)
        self.prompts = [key for key in self.possible if key in row] and self.possible
        if any(key not in row for key in self.sides) or (keys.prompts and not self.prompts):
            prompt = " or ".join(self.possible)
            raise DataError(
                f"{where}: the keys are {keys_of(row)}; need {' and '.join(self.sides)}, with {prompt} or a common"
                " start; name others by prompt_key=, chosen_key=, rejected_key= (--chosen-key, ...)"
            )
        self.are_messages = any(_are_messages(row, key) for key in self.sides)
        self.chats = self.are_messages or as_chat
        options = OF_CHAT_SIDES if self.are_messages else OF_TEXT_SIDES_AS_CHATS if as_chat else OF_TEXT_SIDES
        without = set() if self.prompts else {"prompt_key", "separator", "as_chat"}
        what = "is a preference" + " between chats" * self.are_messages + " without a prompt" * (not self.prompts)
        check_effective(where, what, asked, options - {"completion_key", "label_key"} - without)
        self.has_margin = MARGIN in row
        read = [*self.prompts, *self.sides]
        self.used = [*read, MARGIN, *_more_keys(row, read, self.are_messages)]
        self.kind = f"preferences ({', '.join(key for key in read if key in row)})" + ", as chats" * self.chats

    def take(self, row: dict[str, Any]) -> Line | None:
        """A sample; None if its sides are identical. Raises BadRow for a line that is none."""
        for key, there in ((MARGIN, self.has_margin), *((key, bool(self.prompts)) for key in self.possible)):
            if key in row and not there:
                raise BadRow(f"has {key}, which {self.first} does not have; need it in all lines or in none")
        values = (number_of(row, MARGIN, self.first),) if self.has_margin else ()
        sequences = self._chats(row) if self.are_messages else self._texts(row)
        return None if sequences is None else Line(cast("list[Parts | ChatLine]", sequences), values)

    def _texts(self, row: dict[str, Any]) -> list[Parts] | list[ChatLine] | None:
        prompt = prompt_of(row, self.prompts, self.first) if self.prompts else ""
        chosen, rejected = (completion_of(row, key, self.first) for key in self.sides)
        if chosen == rejected:
            return None
        if not self.prompts:
            at = common_prompt(chosen, rejected)
            split: list[Parts] = [([side[:at], side[at:]], [False, True]) for side in (chosen, rejected)]
            return split
        if self.as_chat:
            return [turns_of(prompt, side) for side in (chosen, rejected)]
        return [pair_of(prompt, side, self.separator) for side in (chosen, rejected)]

    def _chats(self, row: dict[str, Any]) -> list[ChatLine] | None:
        prompt = _prompt_messages(row, self.prompts, self.first)
        is_text = isinstance(prompt, str)
        sides = [messages_of(row, key, self.first, bool(is_text)) for key in self.sides]
        if sides[0] == sides[1]:
            return None
        if isinstance(prompt, str):  # each side is the complete conversation
            common = next((i for i, (a, b) in enumerate(zip(*sides, strict=False)) if a != b), min(map(len, sides)) - 1)
            start = sides[0][:common]
            if prompt and not any(_content(message) == prompt.strip() for message in start):
                raise BadRow(
                    f"{self.prompts[0]} is a text that the common messages of {' and '.join(self.sides)} do not"
                    " contain; need a list of messages, or complete conversations that begin with it"
                )
        else:
            start = prompt
            sides = [side[len(start) :] if _begins(side, start) else side for side in sides]
            if sides[0] == sides[1]:
                return None
            sides = [[*start, *side] for side in sides]
        for side, key in zip(sides, self.sides, strict=True):
            _check_reply(side[len(start) :], key)
        return [ChatLine(side, row.get("tools"), len(start)) for side in sides]


class Judged:
    """Reads lines with a completion and a label; the first of them decides keys and options. See Preferences."""

    def __init__(
        self, row: dict[str, Any], where: str, first: str, keys: Keys, separator: str, as_chat: bool, asked: set[str]
    ) -> None:
        self.first, self.separator, self.as_chat = first, separator, as_chat
        self.label = keys.label or LABEL
        self.messages = keys.messages or next((key for key in MESSAGES if key in row), MESSAGES[0])
        self.prompts, self.completion = _prompt_keys(row, keys.prompts), keys.completion or PAIR[1]
        if keys.completion is None and self.completion not in row and ALPACA[2] in row:
            self.completion = ALPACA[2]
        kind = kind_of(row, asked, self.messages, self.prompts, self.completion)
        if not kind or self.label not in row:
            raise DataError(
                f"{where}: the keys are {keys_of(row)}; need {' or '.join(self.prompts)} with {self.completion} and"
                f" {self.label}, or {self.messages} and {self.label}; name others by prompt_key=, completion_key=,"
                " messages_key=, label_key= (--label-key, ...)"
            )
        self.is_chat = kind == "chat"
        self.are_messages = not self.is_chat and _are_messages(row, self.completion)
        self.chats = self.is_chat or self.are_messages or as_chat
        options = OF_CHAT_SIDES if self.are_messages else OF_TEXT_SIDES_AS_CHATS if as_chat else OF_TEXT_SIDES
        options = OF_JUDGED_CHATS if self.is_chat else options - {"chosen_key", "rejected_key"}
        what = "is a judged chat" if self.is_chat else "is a judged completion" + " of a chat" * self.are_messages
        check_effective(where, what, asked, options)
        read = [self.messages, self.label] if self.is_chat else [*self.prompts, self.completion, self.label]
        self.used = [*read, *_more_keys(row, read, self.is_chat or self.are_messages)]
        shown = ", ".join(key for key in read if key in row)
        self.kind = f"judged chats ({shown})" if self.is_chat else f"judged completions ({shown})"
        self.kind += ", as chats" * (self.chats and not self.is_chat)
        self.counts = "the assistant's turns after the user's last one" if self.is_chat else "completions"

    def take(self, row: dict[str, Any]) -> Line:
        """A sample. Raises BadRow for a line that is none."""
        values = (_label(row, self.label, self.first),)
        if self.is_chat:
            chat = messages_of(row, self.messages, self.first, True)
            roles = [_role(message) for message in chat]
            start = len(roles) - roles[::-1].index("user") if "user" in roles else 0
            _check_reply(chat[start:], self.messages, " after the last turn of the user" * bool(start))
            return Line([ChatLine(chat, row.get("tools"), start)], values)
        if self.are_messages:
            prompt = _prompt_messages(row, self.prompts, self.first)
            if isinstance(prompt, str):
                raise BadRow(f"{self.prompts[0]} is a text and {self.completion} a list; need two lists of messages")
            reply = messages_of(row, self.completion, self.first)
            reply = reply[len(prompt) :] if _begins(reply, prompt) else reply
            _check_reply(reply, self.completion)
            return Line([ChatLine([*prompt, *reply], row.get("tools"), len(prompt))], values)
        text = prompt_of(row, self.prompts, self.first)
        completion = completion_of(row, self.completion, self.first)
        return Line([turns_of(text, completion) if self.as_chat else pair_of(text, completion, self.separator)], values)


def common_prompt(chosen: str, rejected: str) -> int:
    """The length of the prompt of two texts that contain it: their common start up to its last blank.

    A space there belongs to the completions, as it does to the tokens of words; other blanks to the prompt. At least
    one character of each text is completion.
    """
    at, most = 0, min(len(chosen), len(rejected)) - 1
    while at < most:  # binary search of the length of the common start
        middle = (at + most + 1) // 2
        at, most = (middle, most) if chosen[:middle] == rejected[:middle] else (at, middle - 1)
    while at and not chosen[at - 1].isspace():
        at -= 1
    return at - (at > 0 and chosen[at - 1] == " ")


# -- values of keys ----------------------------------------------------------------------------------------------------


def _prompt_keys(row: dict[str, Any], given: list[str] | None) -> list[str]:
    if given is None and PAIR[0] not in row and ALPACA[0] in row:
        return list(ALPACA[:2])
    return given or [PAIR[0]]


def _more_keys(row: dict[str, Any], keys: list[str], are_messages: bool) -> list[str]:
    """Keys that are read together with messages."""
    return ["tools", *[SYSTEM] * any(is_sharegpt(row, key) for key in keys)] if are_messages else []


def _are_messages(row: dict[str, Any], key: str) -> bool:
    """Whether a completion is a list of messages. Raises BadRow for a value that is neither that nor a text."""
    if isinstance(row[key], (list, tuple)):
        return True
    if not isinstance(row[key], str):
        raise BadRow(f"{key} is a {name_of(row[key])}; need a text or a list of messages")
    return False


def completion_of(row: dict[str, Any], key: str, first: str) -> str:
    text = text_of(row, key, first)
    if not text:
        raise BadRow(f"{key} is empty; need a completion")
    return text


def messages_of(row: dict[str, Any], key: str, first: str, with_system: bool = False) -> _Messages:
    """The messages under a key; with_system: after the text under "system" of ShareGPT's format, if any."""
    messages = value_of(row, key, first)
    if not isinstance(messages, (list, tuple)):
        raise BadRow(f"{key} is a {name_of(messages)}; need a list of messages, as in {first}")
    if not messages:
        raise BadRow(f"{key} is empty; need messages")
    try:
        if is_sharegpt(row, key):
            messages = messages_of_sharegpt(row if with_system else {key: messages}, key)
    except DataError as error:
        raise BadRow(f"{key}: {error}") from None
    return without_marks(messages, key)


def _prompt_messages(row: dict[str, Any], keys: list[str], first: str) -> str | _Messages:
    """The messages of a prompt, or its text; "" without keys."""
    if len(keys) == 1 and isinstance(row.get(keys[0]), (list, tuple)):
        return messages_of(row, keys[0], first, True)
    return prompt_of(row, keys, first) if keys else ""


def _begins(side: _Messages, start: _Messages) -> bool:
    """Whether a side is a complete conversation, with the messages of the prompt and more."""
    return len(side) > len(start) and side[: len(start)] == start


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _content(message: object) -> str | None:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content.strip() if isinstance(content, str) else None


def _check_reply(reply: Sequence[Any], key: str, where: str = "") -> None:
    """Raise BadRow if these messages, of a completion, contain nothing that the assistant wrote."""
    turns = [message for message in reply if _role(message) == "assistant"]
    if not turns and all(isinstance(_role(message), str) for message in reply):
        raise BadRow(f"{key} has no turn of the assistant{where}; need one to learn from")
    if turns and all(message.get("content") == "" and not message.get("tool_calls") for message in turns):
        raise BadRow(f"{key} is empty: the turns of the assistant have no text; need a completion")


def _label(row: dict[str, Any], key: str, first: str) -> float:
    label = value_of(row, key, first)
    if isinstance(label, (bool, np.bool_)) or (isinstance(label, (int, np.integer)) and label in (0, 1)):
        return float(label)
    seen = f"{label!r:.60}" if isinstance(label, (int, float, str)) else name_of(label)
    raise BadRow(f"{key} is {seen}; need true or false")
