"""Clipping by the global norm, in graph style: PyTorch's rule, and the same bits however a batch is cut."""

import math

import numpy as np
import pytest

import gradloom as gl
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)).astype(np.float32), RNG.integers(0, 3, 24)


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="relu"), gl.nn.Linear(8, 3)).init(1)


def weights(model):
    return [p.numpy() for p in model.parameters()]


@pytest.mark.parametrize("max_norm", [0.05, 0.15, 1e9])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_against_pytorch(kind, backend, max_norm):
    torch = pytest.importorskip("torch")
    model = net()
    linear = [torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)]
    theirs = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1]).double()
    with torch.no_grad():
        for p, mine in zip(theirs.parameters(), model.parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    if kind == "sgd":
        ours, other = gl.optim.SGD(lr=0.5, momentum=0.9), torch.optim.SGD(theirs.parameters(), lr=0.5, momentum=0.9)
    else:  # a large eps, so that the size of a gradient matters
        ours = gl.optim.AdamW(lr=0.05, eps=0.1, weight_decay=0.0)
        other = torch.optim.AdamW(theirs.parameters(), lr=0.05, eps=0.1, weight_decay=0.0)
    trainer = gl.Trainer(model, "cross_entropy", ours, max_norm=max_norm, backend=backend)
    clipped = 0
    for _ in range(4):
        trainer.step(X, Y)
        other.zero_grad()
        torch.nn.functional.cross_entropy(theirs(torch.tensor(X).double()), torch.tensor(Y)).backward()
        clipped += float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)) > max_norm
        other.step()
        for p, mine in zip(theirs.parameters(), model.parameters(), strict=True):
            # PyTorch divides by norm + 1e-6
            np.testing.assert_allclose(mine.numpy().reshape(p.shape), p.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert clipped == (0 if max_norm > 1 else 4)


@pytest.mark.parametrize("micro", [24, 8, 5])
def test_micro_batches_are_clipped_once(micro):
    """The norm is that of the whole batch: as one micro-batch, to f32 noise; and as asked for."""
    whole, cut = net(), net()
    before = weights(whole)
    options = {"batch_size": 24, "progress": False, "optimizer": gl.optim.SGD(lr=1.0), "max_norm": 0.05}
    gl.fit(whole, (X, Y), **options)
    gl.fit(cut, (X, Y), micro_batch_size=micro, **options)
    for a, b in zip(weights(whole), weights(cut), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    moved = math.sqrt(sum(float(np.sum((a.astype(float) - b) ** 2)) for a, b in zip(before, weights(cut), strict=True)))
    assert moved == pytest.approx(0.05, rel=1e-4)


def test_a_large_bound_changes_no_bit():
    a, b = net(), net()
    options = {"batch_size": 7, "epochs": 3, "progress": False}
    gl.fit(a, (X, Y), **options)
    gl.fit(b, (X, Y), max_norm=1e9, **options)
    assert all(np.array_equal(p, q) for p, q in zip(weights(a), weights(b), strict=True))


def test_rows_of_weight_zero_change_nothing():
    model = net()
    trainer = gl.Trainer(model, "cross_entropy", gl.optim.SGD(lr=1.0), max_norm=0.1)
    before = weights(model)
    trainer.step(X, Y, np.zeros(24, np.float32))
    assert all(np.array_equal(p, q) for p, q in zip(before, weights(model), strict=True))


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_ranks_clip_the_same(parallel):
    import threading

    from gradloom.parallel import threads

    def run(ranks):
        model = net()
        gl.fit(model, (X, Y), batch_size=12, micro_batch_size=4, epochs=2, progress=False, max_norm=0.1, parallel=ranks)
        return weights(model)

    alone = net()
    gl.fit(alone, (X, Y), batch_size=12, micro_batch_size=4, epochs=2, progress=False, max_norm=0.1)
    found = {}
    group = threads(parallel, timeout=60)
    workers = [threading.Thread(target=lambda r=r: found.update({r: run(group[r])})) for r in range(parallel)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(found) == parallel
    for mine in found.values():
        assert all(np.array_equal(p, q) for p, q in zip(mine, weights(alone), strict=True))


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "1", None, True])
def test_bounds_that_are_refused(bad):
    with refused("max_norm", need="a number above 0 (inf: no clipping)"):
        gl.Trainer(net(), max_norm=bad)


def test_in_a_graph():
    g = gl.input("g", (3,))
    w = gl.input("w", ())
    run = gl.compile([gl.optim.clip_weight([g, g * 2], w, 2.0), gl.optim.clip_weight([g], w, math.inf)])
    clipped, same = run(g=np.array([3.0, 0.0, 4.0]), w=2.0)
    assert clipped == np.float32(2 * math.sqrt(125) / 2 / 2) and same == 2
    clipped, _ = run(g=np.zeros(3), w=2.0)
    assert clipped == 2
