"""Result.grad_norms: the global norm of each optimiser step's gradient, before clipping."""

import math

import numpy as np
import pytest

import gradloom as gl
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.standard_normal((50, 3)).astype(np.float32)


def expected(net, batch):
    """The norm of each batch's gradient of the mean squared error, in float64."""
    w, b = (p.numpy().astype(np.float64) for p in net.named_parameters().values())
    norms = []
    for first in range(0, 50, batch):
        x, y = X[first : first + batch].astype(np.float64), Y[first : first + batch].astype(np.float64)
        slope = 2 * (x @ w.T + b - y) / y.size
        norms.append(math.sqrt(((slope.T @ x) ** 2).sum() + (slope.sum(0) ** 2).sum()))
    return norms


def trained(micro, loss="mse", ranks=None, **options):
    net = gl.nn.Linear(4, 3).init(0)
    accumulate = -(-20 // micro)
    sgd = gl.optim.SGD(lr=0.0)
    trainer = gl.Trainer(net, loss, sgd, accumulate=accumulate, communicator=ranks, **options)
    data = gl.data.Dataset(X, Y if loss == "mse" else None)
    result, _ = gl.epoch(trainer, data, batch_size=20, micro_batch_size=micro)
    return net, result


@pytest.mark.parametrize("max_norm", [math.inf, 0.01])
@pytest.mark.parametrize("micro", [20, 8, 3])
def test_it_is_that_of_the_whole_step(micro, max_norm):
    net, result = trained(micro, max_norm=max_norm)
    assert result.grad_norms == pytest.approx(expected(net, 20), rel=1e-5)
    assert result.grad_norms.dtype == np.float64 and result.grad_norm == result.grad_norms[-1]


@pytest.mark.parametrize("micro", [20, 8])
def test_it_is_the_same_on_ranks(micro):
    alone = trained(micro)[1]
    for norms in on_ranks(2, lambda ranks: trained(micro, ranks=ranks)[1].grad_norms):
        assert norms == pytest.approx(alone.grad_norms, rel=1e-6) and len(norms) == 3


@pytest.mark.parametrize("micro", [20, 8])
def test_that_of_a_total_is_divided_by_nothing(micro):
    _, result = trained(micro, "sum")
    batches = [X[first : first + 20].astype(np.float64) for first in (0, 20, 40)]
    norms = [math.sqrt(3 * (x.sum(0) ** 2).sum() + 3 * len(x) ** 2) for x in batches]
    assert result.grad_norms == pytest.approx(norms, rel=1e-5)
    assert (
        on_ranks(2, lambda ranks: list(trained(micro, "sum", ranks)[1].grad_norms))
        == [pytest.approx(norms, rel=1e-5)] * 2
    )


def test_nothing_is_measured_where_no_step_is_taken():
    net = gl.nn.Linear(4, 3).init(0)
    result = gl.evaluate(net, (X, Y), loss="mse")
    assert math.isnan(result.grad_norm) and result.grad_norms.shape == (0,)
    trainer = gl.Trainer(net, "mse", gl.optim.SGD(lr=0.0), accumulate=2)
    one = trainer.step(X[:10], Y[:10])
    assert math.isnan(one.grad_norm)  # of an open window
    assert trainer.step(X[10:20], Y[10:20]).grad_norm == pytest.approx(expected(net, 20)[0], rel=1e-5)
