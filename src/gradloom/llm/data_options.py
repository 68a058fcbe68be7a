"""Which options each kind of data heeds: an option that changes nothing is refused."""

from __future__ import annotations

from typing import Any

from ..base.errors import DataError, SettingError

# What each kind of data heeds of the options that were given
_OF_LINES = {"skip_bad_lines"}
OF_ONE_TEXT = {"special"}
PAIR_OPTIONS = {"prompt_key", "completion_key", "separator", "as_chat"}  # one of them: lines are pairs
OF_TEXTS = _OF_LINES | {"text_key", "special"}
OF_PAIRS = _OF_LINES | {"prompt_key", "completion_key", "separator", "train_on_all", "special"}
OF_CHATS = _OF_LINES | {"messages_key", "chat_template", "train_on_all", "special"}
OF_PAIRS_AS_CHATS = _OF_LINES | {"prompt_key", "completion_key", "as_chat", "chat_template", "train_on_all", "special"}
# option -> (how it is written in Python and as an option of a command, what it needs)
_NEEDS = {
    "as_chat": ("as_chat (--as-chat)", "prompts and completions"),
    "chat_template": (
        "chat_template (--chat-template)",
        "messages, or prompts and completions with as_chat (--as-chat)",
    ),
    "text_key": ("text_key (--text-key)", "a .jsonl of texts"),
    "prompt_key": ("prompt_key (--prompt-key)", "prompts and completions"),
    "completion_key": ("completion_key (--completion-key)", "prompts and completions"),
    "messages_key": ("messages_key (--messages-key)", "a .jsonl of messages"),
    "separator": ("separator", "prompts and completions that are no chats"),
    "train_on_all": ("train_on_all=False (--loss-on assistant)", "completions or chats: of a text all tokens count"),
    "skip_bad_lines": ("skip_bad_lines (--skip-bad-lines)", "a .jsonl"),
}


def prompt_keys(given: object) -> list[str] | None:
    """The keys of a prompt, of "a,b" or a list; SettingError for what names none."""
    if given is None:
        return None
    names: Any = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    usable = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    keys = [name for name in names if name] if usable else []
    if not keys:
        raise SettingError(f"prompt_key={given!r:.60} (--prompt-key) is not usable; need a key, or several, as a,b")
    return keys


def check_heeded(where: str, what: str, asked: set[str], heeded: set[str]) -> None:
    """DataError for the first option that was given and that such data do not heed."""
    for name, (shown, need) in _NEEDS.items():
        if name in asked - heeded:
            raise DataError(f"{where}: {what}, {shown} needs {need}")
