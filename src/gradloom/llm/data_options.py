"""Options that apply to each kind of data; an option that would have no effect is rejected."""

from __future__ import annotations

from typing import Any

from ..base.errors import DataError, SettingError

# Options of each kind of data
_OF_LINES = {"skip_bad_lines", "encoding"}  # a file without an encoding of its own is refused where it is opened
OF_ONE_TEXT = {"special", "encoding"}
PAIR_OPTIONS = {"prompt_key", "completion_key", "separator", "as_chat"}  # one of them: lines are pairs
OF_TEXTS = _OF_LINES | {"text_key", "special"}
OF_PAIRS = _OF_LINES | {"prompt_key", "completion_key", "separator", "train_on_all", "special"}
OF_CHATS = _OF_LINES | {"messages_key", "chat_template", "train_on_all", "special"}
OF_PAIRS_AS_CHATS = _OF_LINES | {"prompt_key", "completion_key", "as_chat", "chat_template", "train_on_all", "special"}
# Of preferences and judged completions, whose sides are texts, texts as chats, or lists of messages
_OF_SIDES = _OF_LINES | {"prompt_key", "completion_key", "chosen_key", "rejected_key", "label_key", "special"}
OF_TEXT_SIDES = _OF_SIDES | {"separator"}
OF_TEXT_SIDES_AS_CHATS = _OF_SIDES | {"as_chat", "chat_template"}
OF_CHAT_SIDES = _OF_SIDES | {"chat_template"}
OF_EMBEDDED = _OF_LINES | {"anchor_key", "positive_key", "negative_key", "special"}
OF_JUDGED_CHATS = _OF_LINES | {"messages_key", "label_key", "chat_template", "special"}
# option -> the data that it requires
_REQUIRES = {
    "as_chat": "prompts and completions",
    "chat_template": "messages, or prompts and completions with {as_chat}",
    "text_key": "a .jsonl of texts",
    "prompt_key": "prompts and completions",
    "completion_key": "prompts and completions",
    "messages_key": "a .jsonl of messages",
    "chosen_key": "preferences: pairs of a chosen and a rejected completion",
    "rejected_key": "preferences: pairs of a chosen and a rejected completion",
    "label_key": "judged completions",
    "anchor_key": "pairs of an anchor and a positive text",
    "positive_key": "pairs of an anchor and a positive text",
    "negative_key": "pairs of an anchor and a positive text",
    "separator": "prompts and completions that are not chats",
    "train_on_all": "completions or chats: all tokens of a text count",
    "skip_bad_lines": "a .jsonl",
}


def prompt_keys(given: object) -> list[str] | None:
    """The keys of a prompt, of "a,b" or a list; SettingError for what names none."""
    if given is None:
        return None
    names: Any = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    usable = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    keys = [name for name in names if name] if usable else []
    if not keys:
        raise SettingError(setting="prompt_key", seen=given, need="a key, or several, such as a,b")
    return keys


def check_effective(where: str, what: str, asked: set[str], effective: set[str]) -> None:
    """DataError for the first given option that has no effect on such data."""
    for name, need in _REQUIRES.items():
        if name in asked - effective:
            seen = False if name == "train_on_all" else ...
            raise DataError(f"{where}: {what}; {{{name}}} requires {need}", {name: seen, "as_chat": ...})
