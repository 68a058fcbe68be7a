"""The command line of modules with random cases: python -m tests.losses.loss_cases --count 10000 [--first 0]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any


def run_cases(compare: Callable[[int], Any], description: str | None, count: int = 1000) -> None:
    """Call compare(number) for each case, print what fails, and exit with 1 where one does."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    failed = 0
    for done, number in enumerate(range(options.first, options.first + options.count), 1):
        try:
            compare(number)
        except Exception as error:
            failed += 1
            print(f"case {number}: {type(error).__name__}: {error}", file=sys.stderr)
        if done % 500 == 0:
            print(f"{done} cases, {failed} failed", flush=True)
    print(f"{options.count} cases, {failed} failed")
    sys.exit(failed > 0)
