"""Formats of chats and instructions: keys of .jsonl lines, and ShareGPT's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.errors import DataError

MESSAGES = ("messages", "conversations")  # keys of a chat
PAIR = ("prompt", "completion")
ALPACA = ("instruction", "input", "output")  # the input may be missing or empty; the output is the completion of both
SYSTEM = "system"  # key of the system prompt of ShareGPT's format
# "from" of ShareGPT -> role
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "model": "assistant", "system": "system", "tool": "tool", "observation": "tool",
}  # fmt: skip

_MARKS = ("train", "weight")  # see message_marks.py
_INSTEAD = ("tool_calls", "tool_responses")  # keys that replace the content of a message


def is_sharegpt(row: Mapping[str, Any], key: str) -> bool:
    """Whether the messages of a line are in ShareGPT's format: {"from", "value"} instead of {"role", "content"}."""
    messages = row.get(key)
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    return "from" in messages[0] and "role" not in messages[0]


def messages_of_sharegpt(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Messages with roles and contents (and marks, see message_marks.py), after the text under "system", if any.

    Raises DataError for an unknown "from", or a value that is not a text.
    """
    messages: list[dict[str, Any]] = []
    system = row.get(SYSTEM)
    if not isinstance(system, str | None):
        raise DataError(f"{SYSTEM} is {system!r:.60}; need a text")
    if system:
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(row[key]):
        where = f"message {i + 1} of {len(row[key])}"
        source = message.get("from") if isinstance(message, dict) else None
        if not isinstance(source, str) or source not in _ROLES:
            raise DataError(f"{where} is from {source!r:.60}; possible are {', '.join(_ROLES)}")
        if not isinstance(message.get("value"), str):
            raise DataError(f"{where} has no value; need a text")
        marks = {name: message[name] for name in _MARKS if name in message}
        messages.append({"role": _ROLES[source], "content": message["value"], **marks})
    return messages


def messages_to_render(messages: Any) -> tuple[Sequence[Mapping[str, Any]], int]:
    """(messages for a template, number of the assistant's turns).

    A content that is a list of {"type": "text", "text": ...} is concatenated. Raises DataError for malformed messages,
    and for a content that a template would print as Python does: None, 5, an object, an image.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        seen = "an empty list" if isinstance(messages, (list, tuple)) else type(messages).__name__
        raise DataError(f"messages is {seen}; need a list of messages such as {{'role': 'user', 'content': '...'}}")
    turns, rendered = 0, list(messages)
    for i, message in enumerate(messages):
        where = f"message {i + 1} of {len(messages)}"
        role = message.get("role") if type(message) is dict or isinstance(message, Mapping) else None
        if not isinstance(role, str) or not role:
            raise DataError(f"{where} has no role; need a text such as user or assistant")
        if role == "assistant":
            turns += 1
            where += ", of the assistant,"
        content = message.get("content")
        if type(content) is str:
            continue
        if isinstance(content, (list, tuple)):
            rendered[i] = {**message, "content": "".join(_text_of(part, where) for part in content)}
        elif content is None and not any(message.get(key) for key in _INSTEAD):
            raise DataError(f"{where} has no content; need a text")
        elif isinstance(content, Mapping):
            raise DataError(f"{where} has a content that is an object; need a text, or a list of parts of type 'text'")
        elif isinstance(content, (bool, int, float)):
            raise DataError(f"{where} has a content that is {content!r:.60}; need a text")
    return rendered, turns


def _text_of(part: Any, where: str) -> str:
    """A part of a content: a text, or {"type": "text", "text": ...}, OpenAI's format."""
    is_object = isinstance(part, Mapping)
    if is_object and part.get("type", "text") != "text":
        raise DataError(f"{where} has a part of type {part['type']!r:.60} in its content; only 'text' is supported")
    text = part.get("text") if is_object else part
    if not isinstance(text, str):
        what = f"part of type 'text' whose text is {text!r:.60}" if is_object else f"part {part!r:.60}"
        raise DataError(f"{where} has a {what} in its content; need texts")
    return text
