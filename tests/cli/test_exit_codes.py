"""Exit codes: one enum, which docs/command.md documents."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from gradloom.base.exit_codes import Exit, of_signal
from gradloom.base.interrupts import SIGNALS, interrupt

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def test_the_page_documents_every_code() -> None:
    table = re.search(r"\| exit code \| \|\n((?:\|.*\n)+)", PAGE.read_text())
    assert table
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", table[1], re.M))) == sorted(Exit)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_has_its_code(number: int) -> None:
    stop = interrupt(number)
    assert of_signal(stop) == 128 + number and of_signal(None) == 128 + signal.SIGINT == Exit.INTERRUPTED
