"""gl.op: user-defined ops in compiled programs: numbers, gradients, all configurations, and what goes wrong."""

import copy
import pickle
import threading

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


def softsign(x):
    return x / (1 + abs(x))


def softsign_vjp(inputs, gradients):
    return gradients[0] / (1 + abs(inputs[0])) ** 2


def program(op, **options):
    """sum(op(x @ w)^2) and the gradient of w; the op's result."""
    w = gl.parameter(np.random.default_rng(0).standard_normal((3, 4)), name="w")
    y = op(gl.input("x", (2, 3)) @ w)
    loss = ops.sum(y * y)
    return gl.compile([loss, *gl.gradients(loss, [w]), y], **options), loss


X = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
CONFIGURATIONS = [
    {"check": 2}, {"poison": True}, {"poison": True, "check": 2}, {"reuse": False}, {"inplace": False}, {"threads": 2},
    {"fuse": False}, {"isa": "scalar"}, {"flush": True}, {"debug": 0}, {"devices": ("cpu",)},
]  # fmt: skip


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_an_op_is_the_same_op_of_gradloom(options):
    """softsign in NumPy against its composition, and the same bits in every configuration of one instruction set."""
    run, _ = program(gl.op(softsign, softsign_vjp), **options)
    composed, _ = program(lambda x: x / (1 + ops.abs(x)))
    for mine, theirs in zip(run(x=X), composed(x=X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    if options.get("isa") is None:
        for mine, plain in zip(run(x=X), program(gl.op(softsign, softsign_vjp))[0](x=X), strict=True):
            assert mine.tobytes() == plain.tobytes()


def test_references_and_finite_differences():
    op = gl.op(softsign, softsign_vjp)
    run, loss = program(op, backend="numpy")
    plain, _ = program(op)
    for mine, exact in zip(plain(x=X), run(x=X), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-5)
    assert gl.check_gradients(loss, {"x": X}) < 1e-6
    assert gl.compare(loss, {"x": X}) is None
    _, wrong = program(gl.op(softsign, lambda gradients: gradients[0]))
    with pytest.raises(gl.GradientError, match=r"check_gradients: w at .*need at most"):
        gl.check_gradients(wrong, {"x": X})


def test_several_inputs_and_results():
    """Whole numbers, results without a gradient, inputs without one, a gradient None."""

    def forward(x, ids, scale):
        return x[ids] * scale, np.argmax(x, axis=1), x.sum()

    def vjp(inputs, outputs, gradients):
        (x, ids, scale), (y, best, _), (g, nothing, total) = inputs, outputs, gradients
        assert nothing is None and best.dtype == np.int32 and y.shape == g.shape and x.dtype == g.dtype
        slope = np.zeros_like(x)
        np.add.at(slope, ids, g * scale)
        return slope + total, None, None

    pick = gl.op(forward, vjp, lambda x, ids, scale: [(ids.shape + x.shape[1:], x.dtype), ((x.shape[0],), "i32"), ()])
    w = gl.parameter(np.arange(6.0).reshape(3, 2), name="w")
    ids, scale = gl.input("ids", (4,), "i32"), gl.parameter(2.0, name="scale")
    y, best, total = pick(w, ids, scale)
    assert (y.shape, best.shape, best.dtype.name, total.shape) == ((4, 2), (3,), "i32", ())
    loss = ops.sum(y * y)  # total gets no gradient
    run = gl.compile([y, best, total, *gl.gradients(loss, [w, scale])])
    found = run(ids=[2, 0, 2, 1])
    np.testing.assert_array_equal(found[0], 2 * np.arange(6.0).reshape(3, 2)[[2, 0, 2, 1]])
    assert found[1].tolist() == [1, 1, 1] and found[2] == 15 and found[4] == 0
    np.testing.assert_array_equal(found[3], 2 * 2 * 2 * np.arange(6.0).reshape(3, 2) * [[1], [1], [2]])


def test_views_arrive_as_arrays():
    """Transposed, broadcast, sliced and empty operands; arrays and numbers of the caller."""
    seen = []

    def forward(*arrays):
        seen[:] = [a.copy() for a in arrays]
        assert all(a.flags.c_contiguous and not a.flags.writeable for a in arrays)
        return arrays[0] * 2

    op, x = gl.op(forward), gl.input("x", (2, 3))
    y = op(x.T, ops.broadcast_to(x[0], (4, 3)), x[:, 1:], x[:0], 3, np.ones(2), x[0, 0])
    np.testing.assert_array_equal(gl.compile(y)(x=X)[0], 2 * X.T)
    wanted = X.T, np.broadcast_to(X[0], (4, 3)), X[:, 1:], X[:0], 3, np.ones(2), X[0, 0]
    for mine, theirs in zip(seen, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_op_first_last_alone_and_without_readers():
    x, double = gl.input("x", (2, 3)), gl.op(lambda x: x * 2)
    both = gl.op(lambda x: (x, x + 1), shape=lambda x: [x, x])
    for options in ({}, {"poison": True, "check": 2}):
        np.testing.assert_array_equal(gl.compile(double(double(x)), **options)(x=X)[0], 4 * X)
        np.testing.assert_array_equal(gl.compile(double(double(x) + x), **options)(x=X)[0], 6 * X)
        np.testing.assert_array_equal(gl.compile(both(x)[1] * 1.5, **options)(x=X)[0], (X + 1) * np.float32(1.5))


def test_many_steps_and_their_settings():
    scaled = gl.op(lambda x, s: x * s)
    run = gl.compile(scaled(gl.input("x", (2,)), gl.setting("s")))
    done, (rows,) = run.run_many(4, {"s": np.arange(4.0)}, feeds={"x": [1.0, 2.0]})
    assert done == 4 and rows.tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]


def raising(x):
    raise RuntimeError("no\nluck")


class Unspeakable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self):
        raise ValueError("no")


def unspeakable(x):
    raise Unspeakable


weights = gl.parameter(np.ones((2, 4)), name="weights")

WRONG = {
    "raises": (raising, r"raising#\d+ at test_user_op.py:\d+: RuntimeError: no luck$"),
    "shape": (lambda x: x[:1], r"result 0 has shape \[1, 4\]; need f32\[2, 4\]$"),
    "dtype": (lambda x: x > 0, r"result 0 is of dtype bool; need f32\[2, 4\]$"),
    "count": (lambda x: (x, x), r"forward returned 2 results; need 1$"),
    "none": (lambda x: None, r"result 0 is None; need f32\[2, 4\]$"),
    "text": (lambda x: "x", r"need f32"),
    "uneven": (lambda x: [[1.0], [1.0, 2.0]], r"<lambda>#"),
    "masked": (lambda x: np.ma.masked_less(x, 9), r"8 elements are masked"),
    "writes": (lambda x: x.fill(0), r"ValueError: assignment destination is read-only$"),
    "graph": (lambda x: gl.input("z"), r"graph value \(f32\[\]\) has no array"),
    "runs": (lambda x: gl.compile(gl.input("z"))(z=1), r"a program is compiled within a function of gl.op"),
    "eager": (lambda x: (gl.tensor(x) * 2).numpy(), r"within a function of gl.op"),
    "arguments": (lambda x, y: x, r"TypeError: .*missing 1 required positional argument"),
    "unspeakable": (unspeakable, r"Unspeakable: its text cannot be made$"),
    "memory": (lambda x: np.empty(1 << 58), r"(MemoryError|ArrayMemoryError)"),
    "assigns": (lambda x: weights.assign(np.zeros((2, 4))), r"weights is written within a function of gl.op"),
    "object": (lambda x: {"y": x}, r"result 0 (has shape \[\]|is of dtype object); need f32\[2, 4\]$"),
    "silent": (lambda x: exec("raise StopIteration"), r"#\d+ at test_user_op.py:\d+: StopIteration$"),
}


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("case", WRONG)
def test_one_line_names_the_op(case, backend):
    """... and the weights are as before the step: updates come after every user-defined op."""
    forward, message = WRONG[case]
    w = gl.parameter(np.ones((3, 4)), name="w")
    y = gl.op(forward)(gl.input("x", (2, 3)) @ w)
    run = gl.compile(ops.sum(y), ops.assign(w, w * 2), backend=backend)
    with pytest.raises(gl.UserOpError, match=message) as caught:
        run(x=X)
    assert "\n" not in str(caught.value) and caught.value.steps_done == 0
    assert w.numpy().tolist() == np.ones((3, 4)).tolist()
    if case == "raises":
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_a_vjp_may_not_return():
    ids = gl.op(lambda x, i: x * i, lambda inputs, gradients: (gradients[0], gradients[0]))
    w, i = gl.parameter(np.ones(3), name="w"), gl.input("i", (3,), "i32")
    run = gl.compile(gl.gradients(ops.sum(ids(w, i)), [w]))
    with pytest.raises(
        gl.UserOpError, match=r"<lambda>.vjp#.*vjp returned a gradient of input 1, which is i32; need N"
    ):
        run(i=[1, 2, 3])
    two = gl.op(lambda x, y: x * y, lambda gradients: gradients[0])
    run = gl.compile(gl.gradients(ops.sum(two(w, w)), [w]))
    with pytest.raises(gl.UserOpError, match=r"vjp returned an? .*; need a tuple of 2 arrays"):
        run()
    two = gl.op(lambda x, y: x * y, lambda gradients: (None, gradients[0][:1]))
    run = gl.compile(gl.gradients(ops.sum(two(w, w)), [w]))
    with pytest.raises(gl.UserOpError, match=r"the gradient of input 1 has shape \[1\]; need f32\[3\]"):
        run()


def test_gradients_that_do_not_exist():
    w = gl.parameter(np.ones(3), name="w")
    with pytest.raises(gl.GradientError, match=r"softsign has no gradient: gl.op was given no vjp; node softsign#"):
        gl.gradients(ops.sum(gl.op(softsign)(w)), [w])
    (g,) = gl.gradients(ops.sum(gl.op(softsign, softsign_vjp)(w)), [w])
    with pytest.raises(gl.GradientError, match=r"softsign.vjp has no gradient: .* no second derivative"):
        gl.gradients(ops.sum(g), [w])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: gl.op(3), gl.SettingError, r"op: forward=3 is an? int.*; must be a function"),
        (lambda: gl.op(softsign, 3), gl.SettingError, r"op: vjp=3 is"),
        (
            lambda: gl.op(softsign, lambda x, g: g),
            gl.SettingError,
            r"op: vjp has a parameter 'x'; must have parameters am",
        ),
        (lambda: gl.op(softsign)(), gl.GraphError, r"softsign: got no inputs"),
        (lambda: gl.op(softsign)(gl.input("x"), None), gl.GraphError, r"softsign: got None among its inputs"),
        (lambda: gl.op(softsign)("text"), gl.DTypeError, r"need numbers"),
        (lambda: gl.op(softsign, shape=lambda x: 3)(gl.input("x")), gl.GraphError, r"shape of softsign returned"),
        (lambda: gl.op(softsign, shape=lambda x: (-1,))(gl.input("x")), gl.ShapeError, r"shape \[-1\]"),
        (lambda: gl.op(softsign, shape=lambda x: ((1,), "f99"))(gl.input("x")), gl.DTypeError, r"dtype 'f99'"),
        (lambda: gl.op(softsign, shape=lambda x: 1 // 0)(gl.input("x")), gl.ShapeError, r"shape of softsign: ZeroDiv"),
        (lambda: gl.op(softsign)(gl.input("x", (1,), "bf16")), gl.DTypeError, r"user_op: dtype bf16 is not taken"),
        (lambda: gl.op(softsign)(gl.input("x"), 1 + 2j), gl.DTypeError, r"complex"),
    ],
)
def test_refused_before_anything_runs(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_not_finite_names_the_op():
    w = gl.parameter(np.ones(3), name="w")
    run = gl.compile(gl.op(lambda x: x * np.nan)(w), check=2)
    with pytest.raises(
        gl.NonFiniteError, match=r"<lambda>#\d+ at test_user_op.py:\d+ produced a number that is not fin"
    ):
        run()


def test_kept_inputs_stay_as_they_were():
    """An op that keeps its inputs keeps copies: no later step changes them."""
    kept = []

    def forward(x):
        kept.append(x)
        return x * 2

    run = gl.compile(ops.exp(gl.op(forward)(ops.exp(gl.input("x", (3,))))))
    for value in (0.0, 1.0, 2.0):
        run(x=[value] * 3)
    assert [k[0] for k in kept] == pytest.approx([1.0, np.exp(1.0), np.exp(2.0)])


def test_results_may_be_inputs_and_one_another():
    """forward returns its input, a view of it, and one array twice."""
    op = gl.op(lambda x: (x, x.T, x.T), shape=lambda x: [x.shape, x.shape[::-1], x.shape[::-1]])
    x = gl.input("x", (2, 3))
    a, b, c = op(ops.exp(x))
    found = gl.compile([a * 1, b + 0.5, c])(x=X)
    np.testing.assert_allclose(found[0].T, found[2])
    np.testing.assert_allclose(found[1] - 0.5, found[2], rtol=1e-5)


def test_updates_cannot_come_before():
    w = gl.parameter(np.ones(3), name="w")
    (after,) = ops.assign(w, w * 2)
    y = gl.op(softsign)(after)
    with pytest.raises(gl.GraphError, match=r"order: softsign .* reads what assign .*a user-defined op comes before"):
        gl.compile(y, [after])


def test_a_program_within_itself_and_an_end_that_is_asked_for():
    x = gl.input("x", (2, 3))
    inner = gl.compile(gl.op(lambda x: inner(x=x)[0])(x))
    with pytest.raises(gl.UserOpError, match=r"a program runs within a function of gl.op"):
        inner(x=X)
    ending = gl.compile(gl.op(lambda x: (ending.stop(), x)[1])(x))
    assert ending.run_many(5, {}, feeds={"x": X})[0] == 1


def test_copies_and_pickles():
    """A copied model has the same op, another process an op of its own with the same fingerprint."""
    op = gl.op(softsign, softsign_vjp)
    assert copy.deepcopy(op) is op
    other = pickle.loads(pickle.dumps(op))
    assert other.forward is softsign and other.number != op.number and other.fingerprint == op.fingerprint
    assert gl.op(softsign, lambda gradients: gradients[0]).fingerprint != op.fingerprint
    error = pickle.loads(pickle.dumps(gl.UserOpError("a line")))
    assert isinstance(error, gl.UserOpError) and str(error) == "a line"


def test_two_closures_are_two_programs():
    """Nothing is merged or reused by name: identity is the object."""
    x = gl.input("x", (2,))
    ops_ = [gl.op(lambda x, k=k: x * k) for k in (2, 3)]
    assert gl.compile([op(x) for op in ops_])(x=[1.0, 1.0])[1].tolist() == [3, 3]
    count = []
    noisy = gl.op(lambda x: x + len(count) if count.append(0) is None else x)
    first, second = gl.compile([noisy(x), noisy(x)])(x=[0.0, 0.0])
    assert first.tolist() == [1, 1] and second.tolist() == [2, 2]  # twice the same call is called twice


def test_not_recomputed_under_a_budget():
    calls = []
    op = gl.op(lambda x: calls.append(1) or np.tanh(x), lambda outputs, gradients: gradients[0] * (1 - outputs[0] ** 2))
    weights = [gl.parameter(np.full((64, 64), 0.01)) for _ in range(6)]
    h = gl.input("x", (64, 64))
    for w in weights:
        h = op(h @ w)
        h = ops.tanh(ops.exp(h))
    loss = ops.sum(h)
    outputs = [loss, *gl.gradients(loss, weights)]
    run = gl.compile(outputs, reuse=True)
    least = gl.compile(outputs, reuse=True, memory=int(run.plan.peak_bytes * 0.75))
    x = np.random.default_rng(0).standard_normal((64, 64))
    wanted = run(x=x)
    calls.clear()
    for mine, theirs in zip(least(x=x), wanted, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert len(calls) == 6 and least.plan.peak_bytes < run.plan.peak_bytes


def test_reports():
    op = gl.op(softsign, softsign_vjp)
    run, loss = program(op)
    assert "user_op.f32" in str(run.plan) and "softsign" in str(run.plan)
    profile = run.profile({"x": X}, steps=3)
    by_op = {row.name: row.seconds for row in profile.by("op")}
    assert by_op["softsign"] > 0 and by_op["softsign.vjp"] > 0
    assert gl.compile(loss, backend="null").plan.peak_bytes
    with pytest.raises(gl.BackendError, match="it plans and does not run"):
        gl.compile(loss, backend="null")(x=X)
    watch = run.watch(loss, every=1)
    plain = program(op)[0](x=X)
    assert run(x=X)[0].tobytes() == plain[0].tobytes() and watch.records
    assert "user_op(%" in str(run.program) and "call=softsign" in str(run.program)


def test_a_capsule_refuses_python(tmp_path):
    run, _ = program(gl.op(softsign, softsign_vjp))
    with pytest.raises(gl.DataError, match=r"capsule: .*softsign"):
        gl.capsule(run, tmp_path / "a.capsule", {"x": X})


def test_threads_take_turns():
    run, _ = program(gl.op(softsign, softsign_vjp))
    wanted, found = run(x=X)[0], []

    def work():
        mine = [run(x=X * (1 + k % 2))[0] for k in range(50)]
        found.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200 and all(found[k] == wanted for k in range(0, 200, 2))


def test_ctrl_c_in_a_function_passes_through():
    w = gl.parameter(np.ones(3), name="w")

    def forward(x):
        raise KeyboardInterrupt

    run = gl.compile(gl.op(forward)(w), ops.assign(w, w * 2))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert w.numpy().tolist() == [1, 1, 1]
    assert gl.compile(w * 2)()[0].tolist() == [2, 2, 2]  # and the thread may run programs again
