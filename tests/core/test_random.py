"""Dropout and its generator."""

import numpy as np
import pytest

from gradloom.base.philox import keep_mask, philox, row_words
from tests.core.harness import isas, run


def dropout(x, seed=1, step=2, row=3, rate=0.25, stream=4, **options):
    scalars = [np.array(v, np.int64) for v in (seed, step, row)]
    (y,) = run("dropout", [x, *scalars], [("f32", x.shape)], [float(rate), stream], **options)
    return y


def expected(x, seed=1, step=2, row=3, rate=0.25, stream=4):
    scale = np.float32(1 / (1 - rate)) if rate < 1 else np.float32(0)
    return np.where(keep_mask(seed, step, stream, row, x.shape, rate), x * scale, np.float32(0))


def test_philox_known_answers():
    """The three vectors that the generator's authors publish (Random123, kat_vectors, philox4x32 10)."""
    zeros, ones = np.zeros(4, np.uint32), np.full(4, 0xFFFFFFFF, np.uint32)
    pi = np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], np.uint32)
    assert [hex(w) for w in philox(zeros, (0, 0))] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    full = philox(ones, (0xFFFFFFFF, 0xFFFFFFFF))
    assert [hex(w) for w in full] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]
    words = philox(pi, (0xA4093822, 0x299F31D0))
    assert [hex(w) for w in words] == ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (0, 3), (3, 0), (2, 1), (5, 3), (4, 63), (3, 64), (3, 65), (3, 2, 37), (2, 9000)]
)
def test_dropout_is_the_numpy_generator_bit_for_bit(isa, shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert np.array_equal(dropout(x, isa=isa), expected(x))
    big = {"seed": -5, "step": 2**40 + 1, "row": 2**32 - 2, "stream": 2**33 + 7}
    assert np.array_equal(dropout(x, isa=isa, **big), expected(x, **big))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.1, 0.5, 0.999, 1.0])
def test_rates(isa, rate):
    x = np.random.default_rng(1).normal(size=(64, 200)).astype(np.float32)
    y = dropout(x, isa=isa, rate=rate)
    assert np.array_equal(y, expected(x, rate=rate))
    assert abs(np.mean(y != 0) - (1 - rate)) < 0.02


@pytest.mark.parametrize("isa", isas())
def test_threads_alias_and_strides_change_nothing(isa):
    x = np.random.default_rng(2).normal(size=(300, 700)).astype(np.float32)
    one = dropout(x, isa=isa)
    assert np.array_equal(one, dropout(x, isa=isa, threads=2))
    assert np.array_equal(one, dropout(x.copy(), isa=isa, alias={0: 0}))
    assert np.array_equal(dropout(x.T, isa=isa), expected(x.T))
    row = np.broadcast_to(x[:1], (40, 700))
    assert np.array_equal(dropout(row, isa=isa), expected(row))


def test_a_row_keeps_its_mask_in_any_batch():
    x = np.ones((50, 37), np.float32)
    whole = dropout(x, row=10)
    assert np.array_equal(whole[20:30], dropout(x[:10], row=30))
    masks = [dropout(x, seed=1, step=s, stream=t) != 0 for s in (0, 1) for t in (0, 1)]
    assert all(0.3 < np.mean(a == b) < 0.8 for i, a in enumerate(masks) for b in masks[:i])


def test_words_are_uniform():
    words = row_words(3, 1, 0, 0, 200, 500)
    assert abs(words.mean() / 2**32 - 0.5) < 0.003
    counts = np.histogram(words, 16, (0, 2**32))[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 45  # chi squared, 15 degrees of freedom
    assert abs(np.corrcoef(words[:, 0].astype(float), words[:, 1].astype(float))[0, 1]) < 0.25
