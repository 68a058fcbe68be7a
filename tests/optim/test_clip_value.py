"""Clipping by value: PyTorch's rule on the mean gradient, before clipping by the norm."""

import math

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import SGD, AdamW, clip_grad_norm, clip_grad_value
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)).astype(np.float32), RNG.integers(0, 3, 24)


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="relu"), gl.nn.Linear(8, 3)).init(1)


def weights(model):
    return [p.numpy() for p in model.parameters()]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def by_torch(order, steps=4, rows=24):
    """Weights after steps whose gradients are clipped in this order of functions and bounds."""
    torch = pytest.importorskip("torch")
    linear = [torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)]
    twin = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1]).double()
    with torch.no_grad():
        for p, mine in zip(twin.parameters(), net().parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    opt = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        opt.zero_grad()
        x, y = torch.tensor(X[:rows]).double(), torch.tensor(Y[:rows])
        torch.nn.functional.cross_entropy(twin(x), y).backward()
        for what, bound in order:
            getattr(torch.nn.utils, f"clip_grad_{what}_")(twin.parameters(), bound)
        opt.step()
    return [p.detach().numpy() for p in twin.parameters()]


def check(model, expected):
    for mine, other in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(mine.reshape(other.shape), other, rtol=1e-4, atol=1e-5)


def loop(model, clip, steps=4, optimizer=None):
    opt = optimizer or SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
        grads = tape.backward(loss)
        clip(grads)
        opt.step(grads)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("how", ["fit", "fit in micro-batches", "step", "accumulated", "ranks", "numpy"])
def test_against_pytorch(how, both):
    order = [("value", 0.02), *[("norm", 0.05)] * both]
    options = {"max_value": 0.02, "max_norm": 0.05 if both else math.inf}
    model, opt = net(), SGD(lr=0.5, momentum=0.9)
    if how.startswith("fit"):
        micro = 7 if "micro" in how else None
        gl.fit(model, (X, Y), optimizer=opt, epochs=4, batch_size=24, micro_batch_size=micro, progress=False, **options)
    elif how == "ranks":
        samples = [(X[i : i + 12], Y[i : i + 12]) for i in (0, 12)]
        done = gl.dp_train(
            net, samples, loss_fn=gl.ops.cross_entropy, replicas=2, iterations=4, optimizer=opt, **options
        )
        model = done.model
    else:
        accumulate = 2 if how == "accumulated" else 1
        options |= {"backend": "numpy"} if how == "numpy" else {}
        trainer = gl.Trainer(model, optimizer=opt, accumulate=accumulate, **options)
        for _ in range(4):
            for at in range(0, 24, 24 // accumulate):
                trainer.step(X[at : at + 24 // accumulate], Y[at : at + 24 // accumulate])
    check(model, by_torch(order))
    plain = net()
    gl.fit(plain, (X, Y), optimizer=SGD(lr=0.5, momentum=0.9), epochs=4, batch_size=24, progress=False)
    assert np.abs(weights(plain)[0] - weights(model)[0]).max() > 1e-2


@pytest.mark.parametrize(
    "order",
    [
        [("value", 0.02)],
        [("value", 0.02), ("norm", 0.05)],
        [("norm", 0.05), ("value", 0.02)],
        [("value", 0.05), ("norm", 0.1), ("value", 0.015), ("value", 0.03)],
    ],
)
@pytest.mark.parametrize("looks", ["never", "before", "after"])
def test_the_gradients_of_a_tape(order, looks):
    """In the order of the calls, whether somebody looks at the gradients or not."""
    model, seen = net(), []

    def clip(grads):
        if looks == "before":
            seen.append(max(float(np.abs(g.numpy()).max()) for g in grads.values()))
        for what, bound in order:
            (clip_grad_value if what == "value" else clip_grad_norm)(grads, bound)
        if looks == "after":
            seen.append(max(float(np.abs(g.numpy()).max()) for g in grads.values()))

    loop(model, clip)
    check(model, by_torch(order))
    bound = min(v for what, v in order if what == "value")
    if looks == "after":
        assert max(seen) <= bound * 1.0001
    if looks == "before":
        assert max(seen) > bound


@pytest.mark.parametrize("both", [False, True])
def test_an_optimiser_that_has_accumulated(both):
    model = net()
    opt = SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(4):
        for at in (0, 12):
            with gl.grad_tape() as tape:
                pair = gl.ops.cross_entropy_pair(model(gl.tensor(X[at : at + 12])), gl.tensor(Y[at : at + 12]))
            opt.accumulate(tape.backward(pair[0]), weight=12)
        assert clip_grad_value(opt, 0.02) is None
        if both:
            assert clip_grad_norm(opt, 0.05) > 0.05
        opt.step()
    check(model, by_torch([("value", 0.02), *[("norm", 0.05)] * both]))


def test_gradients_that_were_clipped_add_up():
    model = net()
    opt = SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(4):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
        grads = tape.backward(loss)
        clip_grad_value(grads, 0.02)
        opt.accumulate(grads)
        opt.step()
    check(model, by_torch([("value", 0.02)]))


def test_a_bound_that_nothing_reaches_changes_no_bit():
    a, b, c = net(), net(), net()
    gl.fit(a, (X, Y), batch_size=7, epochs=3, progress=False)
    gl.fit(b, (X, Y), batch_size=7, epochs=3, progress=False, max_value=1e9)
    gl.fit(c, (X, Y), batch_size=7, epochs=3, progress=False, max_value=math.inf)
    assert same(a, b) and same(a, c)


def test_without_a_weight_nothing_moves_and_what_is_not_finite_is_refused():
    model = net()
    trainer = gl.Trainer(model, optimizer=AdamW(lr=0.1), max_value=0.01, max_norm=0.01)
    trainer.step(X[:4], np.full(4, -100))
    assert same(model, net())
    with pytest.raises(gl.NonFiniteError):
        trainer.step(np.full((4, 5), np.inf, np.float32), Y[:4])
    assert same(model, net())


@pytest.mark.parametrize("bad", [0, -1, math.nan, True, "1"])
def test_bounds_that_are_refused(bad):
    with refused("max_value", need="a number above 0"):
        gl.fit(net(), (X, Y), max_value=bad)
    with refused("max_value"):
        clip_grad_value(SGD(net().parameters()), bad)


def test_what_is_no_gradient():
    with pytest.raises(gl.GradientError, match="clip_grad_value: got a dict; need what tape.backward"):
        clip_grad_value({}, 1.0)
    with pytest.raises(gl.GradientError, match="clip_grad_value: there are no gradients"):
        clip_grad_value(SGD(net().parameters()), 1.0)
