"""Lines of data before their texts are tokenised, and the values of their keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .chat_forms import ALPACA, MESSAGES, PAIR
from .data_options import PAIR_OPTIONS
from .json_rows import JSON_NAMES, BadRow

# Parts of a line's text, and the weight of each: 1 (True) counts, 0 (False) does not; None: text around the turns of a
# chat. bos and eos are added according to the kind of sample.
Parts = tuple[list[str], Sequence[float | None]]


class ChatLine(NamedTuple):
    """A chat before it is rendered. prompt: leading messages whose turns of the assistant do not count."""

    messages: Any
    tools: Any
    prompt: int = 0


class Line(NamedTuple):
    """The token sequences of a sample (one, or one for each side of a preference), its numbers, and its weight."""

    sequences: list[Parts | ChatLine]
    values: tuple[float, ...] = ()
    weight: float = 1.0


class Keys(NamedTuple):
    """Names of keys that the caller gave; None: the default."""

    text: str | None = None
    prompts: list[str] | None = None
    completion: str | None = None
    messages: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    label: str | None = None
    anchor: str | None = None
    positive: str | None = None
    negative: str | None = None


def keys_of_kinds(row: dict[str, Any], keys: Keys) -> tuple[str, list[str], str, str]:
    """The keys of messages, of a prompt, of its completion and of a text: those given, else those of the row."""
    messages = keys.messages or next((key for key in MESSAGES if key in row), MESSAGES[0])
    prompts, completion = keys.prompts or [PAIR[0]], keys.completion or PAIR[1]
    if keys.prompts is None and keys.completion is None and {ALPACA[0], ALPACA[2]} <= set(row) - set(PAIR):
        *prompts, completion = ALPACA
    return messages, prompts, completion, keys.text or "text"


def kind_of(
    row: dict[str, Any], asked: set[str], messages: str, prompts: list[str], completion: str, text: str | None = None
) -> str:
    """ "chat", "pair" or "text", the first whose keys the row has, or that whose option is given; "" for none."""
    possible = {
        "chat": (messages in row, {"messages_key"}),
        "pair": (completion in row and any(key in row for key in prompts), PAIR_OPTIONS),
        "text": (text in row, {"text_key"}),
    }
    kinds = [kind for kind, (there, _) in possible.items() if there]
    return next((kind for kind in kinds if possible[kind][1] & asked), kinds[0] if kinds else "")


def text_of(row: dict[str, Any], key: str, first: str) -> str:
    """The text under a key. Raises BadRow for a missing key, another value, or half a character; first: line 1."""
    if not isinstance(value_of(row, key, first), str):
        raise BadRow(f"{key} is a {name_of(row[key])}; need a text")
    return whole_text(row[key], key)


def value_of(row: dict[str, Any], key: str, first: str) -> Any:
    """The value of a key. Raises BadRow if it is missing; first: the line that decides the keys, such as line 1."""
    if key not in row:
        raise BadRow(f"the keys are {keys_of(row)}; need {key}, as in {first}")
    return row[key]


def name_of(value: object) -> str:
    """The type of a value, for messages: that of JSON, or of Python where JSON has none."""
    return JSON_NAMES.get(type(value), "JSON object" if isinstance(value, Mapping) else type(value).__name__)


def whole_text(text: str, name: str) -> str:
    """The text. Raises BadRow if it contains half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"{name} holds U+{ord(text[error.start]):04X}, half of a pair; need whole characters") from None
    return text


def keys_of(row: dict[str, Any]) -> str:
    """The keys of a row, for messages."""
    return ascii(", ".join(row))[1:-1][:100] or "none"


def prompt_of(row: dict[str, Any], keys: list[str], first: str) -> str:
    """The texts of these keys that are not empty, joined by line ends. Raises BadRow if the row has none of the keys,
    or a value that is not a text."""
    given = [text_of(row, key, first) for key in keys if row.get(key) not in (None, "")]
    if not given and not any(key in row for key in keys):
        text_of(row, keys[0], first)
    return "\n".join(given)


def pair_of(prompt: str, completion: str, separator: str) -> Parts:
    """A prompt and its completion; the separator, inserted if neither has a blank there, belongs to the completion."""
    if prompt and completion and not prompt[-1].isspace() and not completion[0].isspace():
        completion = separator + completion
    return [prompt, completion], [False, True]


def turns_of(prompt: str, completion: str) -> ChatLine:
    """A prompt and its completion as a chat of two turns."""
    return ChatLine([{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}], None, 1)


def number_of(row: dict[str, Any], key: str, first: str, dtype: type[np.floating[Any]] = np.float32) -> float:
    """A number that is finite in this type."""
    number = value_of(row, key, first)
    if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
        raise BadRow(f"{key} is a {name_of(number)}; need a number")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    most = float(np.finfo(dtype).max)
    if not abs(value) <= most:
        limit = "" if math.isnan(value) or dtype is np.float64 else f" of at most {most:.5g}"
        raise BadRow(f"{key} is {value!r}; need a finite number{limit}")
    return value
