"""gl.op in eager computing: each call is a call, and a function that uses gradloom leaves all other tensors as they
are."""

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


def noise():
    rng = np.random.default_rng(0)
    return gl.op(lambda a: a + rng.standard_normal(a.shape).astype("f4"), lambda gradients: gradients[0])


def test_equal_calls_are_called_each():
    calls, x = [], gl.tensor(np.ones(3, "f4"))

    def counted(a):
        calls.append(1)
        return a * len(calls)

    count = gl.op(counted)
    first, second = count(x), count(x)
    assert sorted([first.numpy()[0], second.numpy()[0]]) == [1, 2] and len(calls) == 2
    n = noise()
    assert np.all((n(x) - n(x)).numpy() != 0)
    p = gl.parameter(np.ones(3), name="p")
    with gl.grad_tape() as tape:
        a, b = n(p), n(p)
        y = ops.sum(a * b)
    slope = tape.backward(y)[p].numpy()
    np.testing.assert_allclose(slope, a.numpy() + b.numpy(), rtol=1e-6)
    assert np.all(a.numpy() != b.numpy())


@pytest.mark.parametrize("looks", [False, True])
def test_a_loop_with_equal_calls_compiles_once(looks):
    n, p = noise(), gl.parameter(np.ones(3), name="p")
    opt = gl.optim.SGD([p], lr=0.1)

    def step():
        with gl.grad_tape() as tape:
            a, b = n(p), n(p)
            if looks:
                assert np.all(a.numpy() != b.numpy())
            loss = ops.sum(ops.sqr(a - 2 * b))
        opt.step(tape.backward(loss))

    for _ in range(2):
        step()
    before = gl.stats()
    for _ in range(5):
        step()
    assert gl.stats().compiled == before.compiled and gl.stats().nodes == before.nodes


def test_a_tape_with_a_loop_of_equal_calls_compiles_once():
    """One recording of many iterations, cut where values were read."""
    n, x = noise(), gl.tensor(np.ones(3, "f4"))
    with gl.grad_tape():
        found = []
        for k in range(8):
            if k == 2:
                before = gl.stats().compiled
            found.append((n(x) + n(x)).numpy()[0])
    assert gl.stats().compiled == before and len(set(found)) == 8
