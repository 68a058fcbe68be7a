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


def refused_cases():
    """name -> a function of (x, pending tensor) that makes the forward function."""
    return {
        "records": lambda x, pending: lambda a: ops.exp(gl.tensor(a)).numpy(),
        "returns": lambda x, pending: lambda a: gl.tensor(a) * 2,
        "reads": lambda x, pending: lambda a: a + pending.numpy(),
        "returns what is pending": lambda x, pending: lambda a: pending,
        "prints": lambda x, pending: lambda a: (str(pending), a)[1],
        "an op of arrays": lambda x, pending: lambda a: ops.exp(a).numpy(),
        "a tape": lambda x, pending: lambda a: (gl.grad_tape().__enter__(), a)[1],
    }


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("case", refused_cases())
def test_a_function_that_uses_gradloom_is_one_error(case, taped):
    """... and every other tensor is computed afterwards."""
    x = gl.tensor(np.ones(3, "f4"))
    with gl.grad_tape() if taped else gl.no_grad():
        other, pending = x * 7, x * 13
        op = gl.op(refused_cases()[case](x, pending), lambda gradients: gradients[0])
        bad = op(x)
        with pytest.raises(gl.UserOpError, match=r"^<lambda>#\d+ at test_user_op.py:\d+: ") as caught:
            bad.numpy()
        assert "\n" not in str(caught.value)
        if case not in ("an op of arrays",):
            assert "within a function of gl.op" in str(caught.value) and "use NumPy there" in str(caught.value)
        assert other.numpy().tolist() == [7] * 3 and pending.numpy().tolist() == [13] * 3
        assert (other + x).numpy().tolist() == [8] * 3
        with pytest.raises(gl.UserOpError):
            bad.numpy()
    assert (other * 2).numpy().tolist() == [14] * 3


def test_computed_tensors_may_be_read():
    x = gl.tensor(np.ones(3, "f4"))
    read = x * 13
    read.numpy()
    op = gl.op(lambda a: gl.tensor(a + read.numpy() + x.numpy()))
    for _ in range(200):
        pending = x + 1
        found = op(x)
    assert found.numpy().tolist() == [15] * 3 and pending.numpy().tolist() == [2] * 3


def test_a_function_that_catches_the_error():
    """Nothing of what it tried is left behind: in its own recording, in others and in compiled programs."""
    x, p = gl.tensor(np.ones(3, "f4")), gl.parameter(np.ones(3), name="p")
    opt = gl.optim.SGD([p], lr=1.0)
    with gl.grad_tape() as tape:
        loss = ops.sum(p * x)
    grads = tape.backward(loss)
    inner = gl.compile(gl.input("z", (3,)) * 2)
    pending = x * 13

    def tries(a):
        for attempt in (
            lambda: gl.tensor(a) * 2,
            lambda: pending.numpy(),
            lambda: opt.step(grads),
            lambda: grads[p],
            lambda: tape.backward(loss),
            lambda: p.assign(np.zeros(3)),
            lambda: inner(z=a),
            lambda: outer(z=np.zeros(3)),
            lambda: loss.numpy(),
        ):
            with pytest.raises(gl.TrainError, match="within a function of gl.op"):
                attempt()
        return a

    op = gl.op(tries, lambda gradients: gradients[0])
    outer = gl.compile(op(gl.input("z", (3,))) + gl.input("z", (3,)))
    assert outer(z=np.ones(3))[0].tolist() == [2] * 3
    assert (op(x) + x).numpy().tolist() == [2] * 3
    assert pending.numpy().tolist() == [13] * 3 and loss.numpy() == 3
    opt.step(grads)
    assert p.numpy().tolist() == [0] * 3


def test_a_shape_that_uses_tensors():
    x = gl.tensor(np.ones(3, "f4"))
    other = x * 7
    with pytest.raises(gl.ShapeError, match="shape of <lambda>: TrainError: .* within a function of gl.op"):
        gl.op(lambda a: a, shape=lambda a: (int(gl.tensor(3.0) * 1),))(x)
    assert other.numpy().tolist() == [7] * 3
