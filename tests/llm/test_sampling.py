import re

import numpy as np
import pytest

from gradloom.base.errors import NonFiniteError, SettingError
from gradloom.llm.sampling import Sampling, candidates, sample, uniform

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 0.0], np.float32)


def shares(**settings):
    ids, share = candidates(LOGITS, Sampling(**settings))
    return dict(zip(ids.tolist(), share.tolist(), strict=True))


def softmax(logits):
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return e / e.sum()


def test_temperature_0_takes_the_first_of_the_largest():
    assert shares(temperature=0) == {1: 1.0}
    assert {sample(LOGITS, Sampling(temperature=0, seed=s), p) for s in range(5) for p in range(5)} == {1}


def test_temperature_1_is_the_models_own_distribution():
    found = shares(temperature=1, top_k=0, top_p=1)
    np.testing.assert_allclose([found[i] for i in range(6)], softmax(LOGITS), rtol=1e-12)


def test_temperature_divides_the_logits():
    found = shares(temperature=0.5, top_k=0, top_p=1)
    np.testing.assert_allclose([found[i] for i in range(6)], softmax(2 * LOGITS), rtol=1e-12)
    assert shares(temperature=1e-9, top_k=0, top_p=1)[1] == pytest.approx(0.5)  # two equal ones stay equal
    assert np.isfinite(list(shares(temperature=1e9, top_k=0, top_p=1).values())).all()


@pytest.mark.parametrize(("k", "ids"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 2]), (6, [1, 3, 2, 0, 5, 4]), (99, None)])
def test_top_k(k, ids):
    found = shares(temperature=1, top_k=k, top_p=1)
    assert list(found) == (ids or [1, 3, 2, 0, 5, 4]) and sum(found.values()) == pytest.approx(1)


def test_top_k_takes_lower_ids_of_equal_logits():
    ids, share = candidates(np.zeros(1000, np.float32), Sampling(temperature=1, top_k=7, top_p=1))
    assert ids.tolist() == list(range(7)) and np.allclose(share, 1 / 7)


PARTS = np.array([0.5, 0.25, 0.125, 0.125])


@pytest.mark.parametrize(
    ("p", "kept"), [(1e-9, 1), (0.5, 1), (0.500001, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.999, 4), (1, 4)]
)
def test_top_p_is_the_smallest_set_that_reaches_it(p, kept):
    logits = np.log2(PARTS) * np.log(2)
    ids, share = candidates(logits, Sampling(temperature=1, top_k=0, top_p=p))
    assert ids.tolist() == list(range(kept))
    np.testing.assert_allclose(share, PARTS[:kept] / PARTS[:kept].sum())


def test_top_p_looks_at_what_top_k_left():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    ids, share = candidates(logits, Sampling(temperature=1, top_k=2, top_p=0.5))
    assert ids.tolist() == [0] and share.tolist() == [1.0]  # 0.4 / 0.7 is above 0.5


def test_draws_follow_the_distribution():
    logits = np.log([0.5, 0.3, 0.15, 0.05]).astype(np.float32)
    how, n = Sampling(temperature=1, top_k=0, top_p=1, seed=3), 4000
    counts = np.bincount([sample(logits, how, position) for position in range(n)], minlength=4)
    expected = n * np.array([0.5, 0.3, 0.15, 0.05])
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.3  # chi-square, 3 degrees of freedom, 0.1 %


def test_draws_depend_on_seed_and_position_alone():
    flat = np.zeros(1000, np.float32)

    def text(seed):
        return [sample(flat, Sampling(1.0, 0, 1.0, seed), position) for position in range(20)]

    assert text(5) == text(5) and text(5) != text(6) and len(set(text(5))) > 15
    assert uniform(5, 1) != uniform(5, 2) and all(0 <= uniform(s, p) < 1 for s in (-1, 0, 2**63) for p in range(50))


def test_a_token_of_probability_0_is_never_drawn(monkeypatch):
    monkeypatch.setattr("gradloom.llm.sampling.uniform", lambda seed, position: 1 - 2.0**-53)
    logits = np.array([0.1] * 9 + [-np.inf] * 3, np.float32)
    assert sample(logits, Sampling(1.0, 0, 1.0), 0) == 8
    monkeypatch.setattr("gradloom.llm.sampling.uniform", lambda seed, position: 0.0)
    assert sample(logits, Sampling(1.0, 0, 1.0), 0) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad):
    with pytest.raises(NonFiniteError, match=re.escape("the logits of position 7 contain")):
        sample(np.array([0, bad, 1], np.float32), Sampling(), 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature=-1: must be a finite number of at least 0"),
        ({"temperature": float("nan")}, "temperature=nan: must be"),
        ({"temperature": "hot"}, "temperature='hot': must be"),
        ({"top_k": -1}, "top_k=-1: must be a whole number of at least 0 (0: all tokens)"),
        ({"top_k": 1.5}, "top_k=1.5: must be"),
        ({"top_p": 0}, "top_p=0: must be a number above 0 and up to 1 (1: all tokens)"),
        ({"top_p": 1.1}, "top_p=1.1: must be"),
        ({"seed": 0.5}, "seed=0.5: must be a whole number"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Sampling(**settings)
