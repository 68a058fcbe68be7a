"""Messages of a chat whose tokens count with a weight: {"role", "content", "train": false} or {..., "weight": 0.5}."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .json_rows import BadRow

TRAIN, WEIGHT = "train", "weight"  # keys of a message; a line has a weight, too
MOST = 1e9  # of a weight: sums over a batch stay finite in f32


class Marked(dict[str, Any]):
    """A message without its marks; it equals the same message with other marks.

    weight  of its tokens: that of "weight", by default 1, and 0 where "train" is false
    seen    the mark, for messages: messages[2].weight is 0.5
    """

    weight: float
    seen: str


def without_marks(messages: Sequence[Any], key: str) -> list[Any]:
    """The messages under a key; those with marks become Marked. A null in place of a value is an absent key, but for
    a content. Raises BadRow for a mark of another type or out of range."""
    return [_unmarked(message, f"{key}[{i}]") for i, message in enumerate(messages)]


def _unmarked(message: Any, where: str) -> Any:
    if not isinstance(message, Mapping):
        return message
    if any(value is None for value in message.values()):
        message = {name: value for name, value in message.items() if value is not None or name == "content"}
    if TRAIN not in message and WEIGHT not in message:
        return message
    marked = Marked({name: value for name, value in message.items() if name not in (TRAIN, WEIGHT)})
    train = message.get(TRAIN, True)
    if not isinstance(train, (bool, np.bool_)):
        raise BadRow(f"{where}.{TRAIN} is {train!r:.60}; need true or false")
    marked.weight = weight_of(message.get(WEIGHT, 1.0), f"{where}.{WEIGHT}") * bool(train)
    shown = f"{WEIGHT} is {message[WEIGHT]!r:.60}" if train and WEIGHT in message else f"{TRAIN} is {_json(train)}"
    marked.seen = f"{where}.{shown}"
    return marked


def weight_of(value: Any, name: str) -> float:
    """A weight, rounded to f32. Raises BadRow for another value than a finite number from 0 to MOST."""
    if not is_number(value) or value < 0 or not value < math.inf:
        raise BadRow(f"{name} is {value!r:.60}; need a finite number of at least 0")
    if value > MOST:
        raise BadRow(f"{name} is {value!r:.60}; need at most {MOST:g}")
    return float(np.float32(value))


def is_number(value: object) -> bool:
    """Whether it is a number, and no truth value."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def weights_of_turns(messages: Sequence[Any], prompt: int, all_count: bool) -> list[float]:
    """The weight of each turn of the assistant; 0 in the `prompt` leading messages, unless all tokens count.

    Raises BadRow for a mark of another message that does not have the weight of the text around it.
    """
    weights = []
    for i, message in enumerate(messages):
        is_turn = message["role"] == "assistant"
        if is_turn:
            weights.append(0.0 if i < prompt and not all_count else getattr(message, WEIGHT, 1.0))
        elif isinstance(message, Marked) and message.weight != float(all_count):
            role = f"{message['role']!r:.40}"
            why = (
                "all tokens outside of the assistant's turns count" if all_count else "only the assistant's turns count"
            )
            raise BadRow(f"{message.seen}, in a message of the role {role}; {why}, leave it out")
    return weights


def plain(messages: Any) -> Any:
    """The messages as a template gets them."""
    if not isinstance(messages, (list, tuple)):
        return messages
    return [dict(message) if isinstance(message, Marked) else message for message in messages]


def _json(value: Any) -> str:
    return "true" if value else "false"
