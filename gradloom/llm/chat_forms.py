"""The forms in which people have chats and instructions: keys of .jsonl lines, and ShareGPT's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import DataError

MESSAGES = ("messages", "conversations")  # keys of a chat
PAIR = ("prompt", "completion")
ALPACA = ("instruction", "input", "output")  # the input may be missing or empty; the output completes both
SYSTEM = "system"  # key of a text beside ShareGPT's messages
# What a message of ShareGPT is from, and the role of it
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "model": "assistant", "system": "system", "tool": "tool", "observation": "tool",
}  # fmt: skip


def is_sharegpt(row: Mapping[str, Any], key: str) -> bool:
    """Whether the messages of a line are ShareGPT's: {"from", "value"} in place of {"role", "content"}."""
    messages = row.get(key)
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    return "from" in messages[0] and "role" not in messages[0]


def messages_of_sharegpt(row: Mapping[str, Any], key: str) -> list[dict[str, str]]:
    """The messages with roles and contents; the text under "system", where there is one, before them.

    DataError for a message that is from nobody known, or whose value is no text.
    """
    made = []
    system = row.get(SYSTEM)
    if isinstance(system, str) and system:
        made.append({"role": "system", "content": system})
    for i, message in enumerate(row[key]):
        where = f"message {i + 1} of {len(row[key])}"
        source = message.get("from") if isinstance(message, dict) else None
        if not isinstance(source, str) or source not in _ROLES:
            raise DataError(f"{where} is from {source!r:.60}; need one of {', '.join(_ROLES)}")
        if not isinstance(message.get("value"), str):
            raise DataError(f"{where} has no value; need a text")
        made.append({"role": _ROLES[source], "content": message["value"]})
    return made
