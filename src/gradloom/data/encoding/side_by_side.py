"""Columns of a large table in parallel, one thread per core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from ...base.settings import core_count

_LARGE = 1 << 20  # cells from which on a thread is worth its start

Item = TypeVar("Item")
Made = TypeVar("Made")


def side_by_side(function: Callable[[Item], Made], items: Sequence[Item], rows: int) -> Iterator[Made]:
    """function(item) of each item; results and errors come in the order of the items.

    Items are columns of `rows` rows. The function must not modify anything that is shared."""
    threads = min(core_count(), len(items)) if rows * len(items) >= _LARGE else 1
    if threads < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        begun = [pool.submit(copy_context().run, function, item) for item in items]
        try:
            for one in begun:
                yield one.result()
        finally:
            for one in begun:
                one.cancel()
