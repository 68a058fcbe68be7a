"""Exchange: the same sums for any number of ranks, one cause on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.parallel.replicas import threads
from gradloom.run.diagnose import OVERFLOW
from gradloom.step.exchange import Exchange
from tests.train.split_training import on_ranks

GRADS = (np.random.default_rng(0).standard_normal((7, 33)) * 10.0 ** np.arange(-3, 4)[:, None]).astype(np.float32)


def exchanged(size: int, work: Callable[[Exchange, gl.nn.Module], Any]) -> list[Any]:
    """What `work` gave on each rank, with an exchange of the gradient of one parameter."""

    def run(rank: Any) -> Any:
        w = gl.parameter(np.zeros(33), "w")
        return work(Exchange(rank, [w], [], {"seen": (7,)}, "ordered").join(), w)

    return on_ranks(size, run)


def fill(exchange: Exchange, j: int, scale: float = 1.0) -> None:
    grad, loss, weight, seen = exchange.flat.pieces
    grad[...], loss[...], weight[...] = GRADS[j] * np.float32(scale), j, 2.0
    seen[...] = 0
    seen[j] = 1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_micro_batches_are_folded_in_their_order(size: int) -> None:
    def work(exchange: Exchange, w: Any) -> Any:
        exchange.fold(7, lambda j: fill(exchange, j))
        return exchange.flat.whole.copy(), exchange.mean_loss

    total = GRADS[0].copy()
    for grad in GRADS[1:]:
        total += grad
    for whole, loss in exchanged(size, work):
        assert np.array_equal(whole[:33], total)
        assert loss == 21 / 14 and whole[-16:-9].tolist() == [1.0] * 7


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("bad", "cause"), [((5, 3), "micro-batch 3"), ((6,), "micro-batch 6"), ((), OVERFLOW)])
def test_all_ranks_name_the_first_bad_micro_batch(size: int, bad: tuple[int, ...], cause: str) -> None:
    def work(exchange: Exchange, w: Any) -> str:
        def compute(j: int) -> None:
            fill(exchange, j)
            if j in bad:
                exchange.spoil()

        return exchange.cause(7, compute, "micro-batch {}".format)

    assert exchanged(size, work) == [cause] * size


def test_what_no_micro_batch_reached_is_not_written() -> None:
    """Of two parameters and two buffers, micro-batches reached the first of each: 4 and 2 of them."""
    values = [gl.parameter(np.ones(3), name) for name in ("a", "b", "c", "d")]
    exchange = Exchange(threads(1)[0], values[:2], values[2:], {}, "ordered").join()
    state = gl.optim.OptimizerState(gl.optim.SGD(lr=1.0, weight_decay=0.5))
    norms, written = exchange.ending(state, reached=[4.0, 0.0, 2.0, 0.0])

    def fill(j: int) -> None:
        for piece, number in zip(exchange.flat.pieces, (8.0, 8.0, 6.0, 6.0, 1.0, 4.0), strict=True):
            piece[...] = number

    exchange.fold(1, fill)
    gl.compile(norms, written).run_many(1, state.settings())
    assert [v.numpy()[0] for v in values] == [0.5 - 2.0, 1.0, 3.0, 1.0]
