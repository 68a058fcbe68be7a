"""Other texts that `gradloom predict` reads as the same cell, for the exact keys of an ONNX LabelEncoder."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product

from ..data.reading.cells import composed, number_text, read_exactly

# Texts of missing cells, letters in either case (csrc/cells/cells.cpp: is_mark)
_MARKS = (
    "na", "n/a", "n.a.", "nan", "+nan", "-nan", "null", "none", "nil", "?", "-", "--", "---", ".", "..", "...", "#n/a",
    "#na", "<na>", "#null!", "#name?", "#div/0!", "#value!", "#ref!", "#num!", "missing", "\u2013", "\u2014",
)  # fmt: skip
_MOST = 128  # variants of one text that are listed


def in_cases(word: str) -> Iterator[str]:
    """A word with each letter in either case."""
    return map("".join, product(*(dict.fromkeys((c, c.upper())) for c in word.lower())))


@cache
def marks() -> tuple[str, ...]:
    """Texts of missing cells."""
    return tuple(text for mark in _MARKS for text in in_cases(mark) if read_exactly(text.encode()) is None)


def is_number(text: str) -> bool:
    """Whether a category is a number as `gradloom predict` writes it: 3, not 3.0."""
    value = read_exactly(text.encode())
    return isinstance(value, float) and number_text(value) == text


def of_number(text: str) -> Iterator[str]:
    """Usual ways to write a number: signs, zeros at both ends, exponents, thousands, percent, brackets."""
    value = read_exactly(text.encode())
    assert isinstance(value, float)
    size, minus = text.removeprefix("-"), text.startswith("-")
    whole = "." not in size and "e" not in size
    tails = ("", ".", ".0", ".00", ".000", ".0000") if whole else ("", "0", "00", "000")
    plain = [size] if "e" in size else [zeros + size + tail for zeros in ("", "0", "00") for tail in tails]
    if size.startswith("0."):
        plain += [one.removeprefix("0") for one in plain[: len(tails)]]
    for exponent in ("e0", "e+0", "e00", "e+00"):
        plain += [] if "e" in size else [size + exponent, *[f"{size}.0{exponent}"] * whole]
    for digits in range(17):  # 1e3, 1.0e+03 and so on
        mantissa, _, power = f"{abs(value):.{digits}e}".partition("e")
        if float(f"{mantissa}e{power}") == abs(value):
            plain += [f"{mantissa}e{power}", f"{mantissa}e{int(power)}", f"{mantissa}e+{int(power)}"]
            break
    if whole and abs(value) >= 1000:
        plain += [f"{abs(int(value)):,}{tail}" for tail in tails]
    signs = ["-"] if minus else ["", "+"]
    if value == 0:
        signs = ["", "+", "-"]
    found = [sign + one for sign in signs for one in plain] + [f"({one})" for one in plain] * minus
    found += [one.upper() for one in found if "e" in one]
    for one in dict.fromkeys(found):
        read = read_exactly(one.encode())
        if isinstance(read, float) and number_text(read) == text:
            yield one


@cache
def _singles() -> dict[str, tuple[str, ...]]:
    """NFC character -> other single characters that Unicode defines as the same one."""
    found: dict[str, tuple[str, ...]] = {}
    for code in range(0xA0, 0x30000):
        character = chr(code)
        if unicodedata.decomposition(character)[:1] not in ("", "<"):
            made = composed(character)
            if made != character and len(made) == 1:
                found[made] = (*found.get(made, ()), character)
    return found


def _of_character(character: str) -> Iterable[str]:
    """A character of NFC in all of its canonical spellings: singletons, and partly or fully decomposed."""
    found = [character, *_singles().get(character, ())]
    for one in tuple(found):
        parts = unicodedata.decomposition(one)
        if " " in parts and not parts.startswith("<"):
            base, *more = [chr(int(part, 16)) for part in parts.split()]
            found += [text for text in (head + "".join(more) for head in _of_character(base)) if text not in found]
    full = unicodedata.normalize("NFD", character)  # of Hangul, too
    return dict.fromkeys([*found, full])


def canonical(text: str) -> Iterator[str]:
    """Texts that are equal to a text of NFC by Unicode: all for a few such characters, else those in which all
    characters are written alike."""
    each = [list(_of_character(character)) for character in text]
    count = 1
    for spelled in each:
        count = min(count * len(spelled), _MOST + 1)
    made = list(map("".join, product(*each))) if count <= _MOST else []
    for i in range(max(map(len, each), default=0)):
        made.append("".join(several[min(i, len(several) - 1)] for several in each))
    for one in dict.fromkeys([text, *made, unicodedata.normalize("NFD", text)]):
        if composed(one) == text:
            yield one
