"""Intervals as texts."""

import pytest

from gradloom.base.errors import SettingError
from gradloom.base.interval import Interval, as_interval
from tests.refused import refused


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("10s", 10, "seconds"), ("5min", 300, "seconds"), ("1.5h", 5400, "seconds"), ("2 d", 172800, "seconds"),
        ("100steps", 100, "steps"), ("1 step", 1, "steps"), ("1epoch", 1, "epochs"), (" 3 epochs ", 3, "epochs"),
    ],
)  # fmt: skip
def test_a_text_says_how_often(text, number, unit):
    made = as_interval("every", text)
    assert made == Interval(number, unit) and as_interval("every", made) == made
    assert (made.seconds, made.steps, made.epochs) == tuple(
        number if unit == each else None for each in ("seconds", "steps", "epochs")
    )


@pytest.mark.parametrize(
    "text", ["", "5", "min", "0s", "-1s", "1.5steps", "0epoch", "5 minutes", "1e3steps", "9" * 99, 5]
)
def test_anything_else_is_refused(text):
    with refused("every", need="a text such as 10s, 5min or 3h, 100steps, 1epoch"):
        as_interval("every", text)


def test_units_that_make_no_sense_are_refused():
    with refused("stop_after", "100steps", need="a text such as 10s, 5min or 3h"):
        as_interval("stop_after", "100steps", "seconds")
    with pytest.raises(SettingError):
        as_interval("every", Interval(3, "epochs"), "seconds", "steps")
