"""The yardstick itself: luck of the other f32 changes nothing, and what is wrong is found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.noise import UNIT, assert_all_noise, assert_noise


def test_an_exact_other_leaves_eight_units() -> None:
    double = np.array([1.0, -0.25])
    assert_noise("it", double + 8 * UNIT, double, double)
    assert_noise("it", double + 24 * UNIT, double, double, longest=9)
    for wrong, longest in ((9 * UNIT, 1), (25 * UNIT, 9)):
        with pytest.raises(AssertionError, match=r"it: root mean square error .* of 1; allowed"):
            assert_noise("it", double + wrong, double, double, longest)


def test_a_rough_other_leaves_four_times_its_error() -> None:
    double = np.array([1.0, -0.25])
    assert_noise("it", double + 3.9e-5, double + 1e-5, double)
    with pytest.raises(AssertionError, match=r"error 4.1e-05, PyTorch's 1e-05"):
        assert_noise("it", double + 4.1e-5, double - 1e-5, double)


def test_one_wrong_element_of_many_is_found() -> None:
    double = np.zeros(100_000)
    double[0] = 1
    wrong = double.copy()
    wrong[7] = 20 * UNIT
    assert_noise("it", wrong, double, double, worst=False)
    with pytest.raises(AssertionError, match="it: worst error"):
        assert_noise("it", wrong, double, double)


def test_what_vanishes_is_measured_by_the_others() -> None:
    double = {"w": np.ones(3), "b": np.zeros(3), "small": np.full(3, 1e-6)}
    assert_all_noise(double | {"b": np.full(3, 7 * UNIT)}, double, double)
    with pytest.raises(AssertionError, match="small: root mean square error"):
        assert_all_noise(double | {"small": double["small"] + 7 * UNIT}, double, double)
    with pytest.raises(AssertionError):
        assert_all_noise({"w": double["w"]}, double, double)
