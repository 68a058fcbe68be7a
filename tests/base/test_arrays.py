"""Whole numbers that a narrower dtype cannot hold."""

import numpy as np
import pytest

from gradloom.base.arrays import check_whole
from gradloom.base.errors import IndexOutOfRange

WHOLE = [f"{order}{sign}{size}" for order in "<>" for sign in "iu" for size in (1, 2, 4, 8)]


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.int64])
@pytest.mark.parametrize("given", WHOLE)
def test_whole_numbers_beyond_a_dtype(given, kind):
    own, limit = np.iinfo(np.dtype(given)), np.iinfo(kind)
    check_whole("x", np.zeros((2, 0), given), kind)
    for number in {own.min, own.max, 0, -1, 127, 128, limit.min - 1, limit.min, limit.max, limit.max + 1}:
        if not own.min <= number <= own.max:
            continue
        array = np.array([[0, 1], [number, 2]], given)[:, ::-1]
        if limit.min <= number <= limit.max:
            check_whole("x", array, kind)
        else:
            with pytest.raises(IndexOutOfRange, match=f"x: {number} at position 3 "):
                check_whole("x", array, kind)
