"""The functions that users call, against NumPy; and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from gradloom import ops
from gradloom.base.errors import DTypeError, GradientError, GradloomError, GraphError, SettingError, ShapeError
from gradloom.graph.grad import gradients
from gradloom.graph.graph import reachable
from gradloom.graph.leaves import constant, input
from gradloom.run.numpy_backend import evaluate

RNG = np.random.default_rng(0)
A = RNG.normal(size=(2, 3, 4)).astype(np.float32)
M, N = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4, 5)).astype(np.float32)
V4, V3 = RNG.normal(size=4).astype(np.float32), RNG.normal(size=3).astype(np.float32)
IMG = RNG.normal(size=(2, 3, 7, 8)).astype(np.float32)


def c(x):
    return constant(x, x.dtype)


def value_of(value):
    return evaluate([value])[value]


def soft(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


SAME = [
    ("sum all", lambda: ops.sum(c(A)), A.sum()),
    ("sum one", lambda: ops.sum(c(A), 1), A.sum(1)),
    ("sum last", lambda: ops.sum(c(A), -1, keepdims=True), A.sum(-1, keepdims=True)),
    ("sum several", lambda: c(A).sum((2, 0)), A.sum((0, 2))),
    ("sum none", lambda: ops.sum(c(A), ()), A),
    ("sum of a scalar", lambda: ops.sum(2.0), 2.0),
    ("mean", lambda: c(A).mean(0), A.mean(0)),
    ("max", lambda: ops.max(c(A), (0, 1)), A.max((0, 1))),
    ("min", lambda: ops.min(c(A)), A.min()),
    ("argmax", lambda: ops.argmax(c(A)), A.argmax(-1)),
    ("argmax axis", lambda: ops.argmax(c(A), 0), A.argmax(0)),
    ("operators", lambda: -c(A) * 2 + 1 / (abs(c(A)) + 1) - c(A) ** 2, -A * 2 + 1 / (abs(A) + 1) - A**2),
    ("array left", lambda: A - c(A) / 2, A / 2),
    ("power", lambda: 2.0 ** c(A), 2.0**A),
    ("sqrt", lambda: abs(c(A)) ** 0.5, abs(A) ** 0.5),
    ("mask", lambda: ops.mask(c(A), A > 0, -1.0), np.where(A > 0, -1, A)),
    ("where", lambda: ops.where(A > 0, c(A), 0.0), np.where(A > 0, A, 0)),
    ("matmul", lambda: c(M) @ c(N), M @ N),
    ("matmul tn", lambda: ops.matmul(c(M.T.copy()), c(N), transpose_x=True), M @ N),
    ("matmul nt", lambda: ops.matmul(c(M), c(N.T.copy()), transpose_y=True), M @ N),
    ("matmul batch", lambda: c(A) @ c(N), A @ N),
    ("matmul left", lambda: c(V3) @ c(M), V3 @ M),
    ("matmul right", lambda: c(M) @ c(V4), M @ V4),
    ("matmul batch right", lambda: c(A) @ c(V4), A @ V4),
    ("matmul dot", lambda: c(V4) @ c(V4), V4 @ V4),
    ("reshape", lambda: c(A).reshape(4, -1), A.reshape(4, -1)),
    ("reshape scalar", lambda: ops.reshape(c(A), -1), A.ravel()),
    ("transpose", lambda: c(A).transpose(), A.transpose()),
    ("transpose axes", lambda: c(A).transpose(1, 2, 0), A.transpose(1, 2, 0)),
    ("T", lambda: c(M).T, M.T),
    ("permute", lambda: ops.permute(c(A), (-1, 0, 1)), A.transpose(2, 0, 1)),
    ("flatten", lambda: ops.flatten(c(A)), A.reshape(2, 12)),
    ("flatten vector", lambda: ops.flatten(c(V4)), V4.reshape(4, 1)),
    ("squeeze", lambda: ops.squeeze(c(A.reshape(1, 24, 1))), A.reshape(24)),
    ("squeeze one", lambda: ops.squeeze(c(A.reshape(1, 24, 1)), -1), A.reshape(1, 24)),
    ("expand_dims", lambda: ops.expand_dims(c(M), -1), M[..., None]),
    ("broadcast_to", lambda: ops.broadcast_to(c(V4), (3, 4)), np.broadcast_to(V4, (3, 4))),
    ("repeat", lambda: ops.repeat(c(M), (2, 3)), np.tile(M, (2, 3))),
    ("repeat more axes", lambda: ops.repeat(c(M), (2, 1, 3)), np.tile(M, (2, 1, 3))),
    ("repeat six axes", lambda: ops.repeat(c(A.reshape(1, 2, 1, 3, 4, 1)), (2, 1, 3, 1, 2, 2)),
     np.tile(A.reshape(1, 2, 1, 3, 4, 1), (2, 1, 3, 1, 2, 2))),
    ("concat", lambda: ops.concat([c(M), c(M)], -1), np.concatenate([M, M], -1)),
    ("stack", lambda: ops.stack([c(M), c(M), c(M)], 1), np.stack([M, M, M], 1)),
    ("split", lambda: ops.split(c(A), [1, 3], 2)[1], A[:, :, 1:]),
    ("split equal", lambda: ops.split(c(A), 2, -1)[0], A[:, :, :2]),
    ("pad", lambda: ops.pad(c(M), [(1, 0), (0, 2)], 3.0), np.pad(M, [(1, 0), (0, 2)], constant_values=3)),
    ("slice", lambda: ops.slice(c(A), (0, 1, -3), (2, 3, 4), (1, 1, 2)), A[:, 1:, -3::2]),
    ("contiguous", lambda: ops.contiguous(c(A).T), A.T),
    ("cast", lambda: ops.cast(c(np.arange(3)), "f32"), np.arange(3)),
    ("softmax", lambda: ops.softmax(c(A), 1, scale=0.5), soft(A * 0.5, 1)),
    ("softmax mask", lambda: ops.softmax(c(M), mask=c(V4)), soft(M + V4, -1)),
    ("log_softmax", lambda: ops.log_softmax(c(A), 0), np.log(soft(A, 0))),
    ("layer_norm", lambda: ops.layer_norm(c(M), c(V4), c(V4), eps=0.1),
     (M - M.mean(1, keepdims=True)) / np.sqrt(M.var(1, keepdims=True) + 0.1) * V4 + V4),
    ("rms_norm", lambda: ops.rms_norm(c(M), c(V4)), M / np.sqrt((M**2).mean(1, keepdims=True) + 1e-5) * V4),
    ("group_norm", lambda: ops.group_norm(c(A.reshape(2, 4, 3)), 2, c(V4)), (
        lambda x: (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
    )(A.reshape(2, 2, 6)).reshape(2, 4, 3) * V4[:, None]),
    ("batch_norm_eval", lambda: ops.batch_norm_eval(c(IMG), c(V3), c(V3), c(V3), c(V3**2)),
     (IMG - V3[:, None, None]) / np.sqrt(V3**2 + 1e-5)[:, None, None] * V3[:, None, None] + V3[:, None, None]),
    ("batch_norm", lambda: ops.batch_norm(c(M))[0], (M - M.mean(0)) / np.sqrt(M.var(0) + 1e-5)),
    ("avg_pool2d", lambda: ops.avg_pool2d(c(IMG), (7, 8)), IMG.mean((2, 3), keepdims=True)),
    ("max_pool2d", lambda: ops.max_pool2d(c(IMG), 2, stride=(5, 6)), np.maximum.reduceat(
        np.maximum.reduceat(IMG, [0, 2, 5], 2)[:, :, ::2], [0, 2, 6], 3)[..., ::2]),
    ("embedding", lambda: ops.embedding(c(M), c(np.array([[2, 0], [1, 1]]))), M[[[2, 0], [1, 1]]]),
    ("mse", lambda: ops.mse(c(M), c(M * 2)), (M**2).mean()),
    ("mse column", lambda: ops.mse(c(V4[:, None]), c(V4 * 3)), (4 * V4**2).mean()),
    ("mse weights", lambda: ops.mse(c(M), c(M * 2), c(abs(V3))), ((M**2).mean(1) * abs(V3)).sum() / abs(V3).sum()),
    ("cross_entropy", lambda: ops.cross_entropy(c(A), c(np.array([[0, 1, 2], [3, -100, 1]]))),
     -np.log(soft(A, -1).reshape(6, 4)[[0, 1, 2, 3, 5], [0, 1, 2, 3, 1]]).mean()),
    ("correct", lambda: ops.correct(c(M), c(M.argmax(1).astype(np.int32))), 3),
    ("full_like", lambda: ops.full_like(c(M), 2.5), np.full((3, 4), 2.5)),
]  # fmt: skip


@pytest.mark.parametrize("name,build,want", SAME, ids=[s[0] for s in SAME])
def test_like_numpy(name, build, want):
    got = value_of(build())
    assert got.shape == np.shape(want)
    assert np.allclose(got, want, rtol=1e-5, atol=1e-6)


KINKS = [  # the documented gradient where finite differences have none: ties, and the ends of ranges
    ("max", lambda x: ops.max(x, -1), [[3, 1, 3, 2], [1, 1, 1, 1]], [[0.5, 0, 0.5, 0], [0.25, 0.25, 0.25, 0.25]]),
    ("min", lambda x: ops.min(x, 0), [[3, 1], [2, 1], [2, 4]], [[0, 0.5], [0.5, 0.5], [0.5, 0]]),
    ("maximum", lambda x: ops.maximum(x, [2, 2, 2]), [1, 2, 3], [0, 0.5, 1]),
    ("minimum", lambda x: ops.minimum([2, 2, 2], x), [1, 2, 3], [1, 0.5, 0]),
    ("maximum of itself", lambda x: ops.maximum(x, x), [1, 2], [1, 1]),
    ("abs", ops.abs, [-1, 0, 2], [-1, 0, 1]),
    ("relu", ops.relu, [-1, 0, 2], [0, 0, 1]),
    ("leaky_relu", lambda x: ops.leaky_relu(x, 0.5), [-1, 0, 2], [0.5, 0.5, 1]),
    ("clamp", lambda x: ops.clamp(x, -1, 1), [-2, -1, 1, 2], [0, 1, 1, 0]),
]


@pytest.mark.parametrize("name,function,at,want", KINKS, ids=[k[0] for k in KINKS])
def test_gradients_at_kinks(name, function, at, want):
    x = c(np.array(at, np.float32))
    (gradient,) = gradients(function(x), [x])
    assert np.array_equal(value_of(gradient), want)


INDICES = [
    0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(-2, -1), None, ..., (0, 1), (0, 1, 2), (..., 0),
    (slice(None), None, 1), (None, ..., slice(0, 3, 2)), (1, ..., None), (slice(5, 9),), (slice(2, 1),), np.int64(1),
    (),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_getitem(index):
    got = value_of(c(A)[index])
    assert np.array_equal(got, A[index]) and got.shape == A[index].shape


def test_values_iterate_along_the_first_axis():
    assert len(list(c(M))) == 3


@pytest.mark.parametrize(
    "padding,dilation,k",
    [(0, 1, (3, 3)), ((1, 2), 1, (3, 2)), ("same", 1, (3, 3)), ("same", 2, (3, 5)), ("same", 1, (2, 4))],
)
def test_conv2d_is_a_sum_over_windows(padding, dilation, k):
    w = RNG.normal(size=(5, 3, *k)).astype(np.float32)
    b = RNG.normal(size=5).astype(np.float32)
    got = value_of(ops.conv2d(c(IMG), c(w), c(b), padding=padding, dilation=dilation))
    reach = [dilation * (n - 1) for n in k]
    if padding == "same":
        sides = [(r // 2, r - r // 2) for r in reach]
    else:
        sides = [(p, p) for p in ((padding, padding) if isinstance(padding, int) else padding)]
    x = np.pad(IMG, [(0, 0), (0, 0), *sides])
    out = [n - r for n, r in zip(x.shape[2:], reach, strict=True)]
    want = np.zeros((2, 5, *out)) + b[:, None, None]
    for o in np.ndindex(*out):
        window = x[:, :, o[0] : o[0] + reach[0] + 1 : dilation, o[1] : o[1] + reach[1] + 1 : dilation]
        want[:, :, o[0], o[1]] += np.einsum("ncyx,ocyx->no", window, w)
    assert np.allclose(got, want, atol=1e-5)
    assert padding != "same" or got.shape[2:] == IMG.shape[2:]


def test_loss_pairs_are_sums_and_weights():
    ids, weights = np.array([0, -100, 2], np.int32), np.array([1, 5, 3], np.float32)
    for name, inputs, want in [
        ("cross_entropy", (c(M), c(ids)), (None, 2)),
        ("cross_entropy", (c(M), c(ids), c(weights)), (None, 4)),
        ("mse", (c(M), c(M * 3)), (4 * (M.astype(float) ** 2).sum(), 12)),
        ("mse", (c(M), c(M * 3), c(weights)), (4 * ((M.astype(float) ** 2).sum(1) * weights).sum(), 36)),
        ("mean", (c(M),), (M.sum(), 12)),
        ("sum", (c(M),), (M.sum(), 1)),
    ]:
        loss, weight = ops.loss_pair(name)(*inputs)
        assert loss.shape == weight.shape == ()
        assert value_of(weight) == want[1]
        assert want[0] is None or np.isclose(value_of(loss), want[0])


def test_products_with_weights_are_flat_matrix_products():
    """Batches times one matrix: one product, so that its gradient is one as well."""
    x, w = input("x", (6, 5, 4)), input("w", (4, 3))
    nodes = reachable(gradients(ops.sum(ops.sqr(x @ w)), [x, w]))
    assert {v.ndim for n in nodes if n.op.name == "matmul" for v in n.outputs} == {2}


REFUSED = [
    (lambda: ops.matmul(c(M), c(M)), ShapeError, "matmul: inner sizes differ: x f32[3,4], y f32[3,4]; need 4 == 3"),
    (lambda: c(M) + c(V3), ShapeError, "add: shapes do not broadcast: x f32[3,4], y f32[3]; need extents"),
    (lambda: c(M) + "one", DTypeError, "constant: got <U3 data; need numbers"),
    (lambda: ops.sum(c(M), 2), ShapeError, "sum: axis 2 does not exist: f32[3,4]; need an axis from -2 to 1"),
    (lambda: ops.sum(c(M), (0, -2)), ShapeError,
     "sum: axes (0, -2) name one axis twice: f32[3,4]; need each axis once"),
    (lambda: c(M)[3], ShapeError, "getitem: index 3 leaves axis 0: f32[3,4]; need -3 to 2"),
    (lambda: c(M)[0, 0, 0], ShapeError, "getitem: 3 indices: f32[3,4]; need at most 2"),
    (lambda: c(M)[::-1], ShapeError, "getitem: step -1: f32[3,4]; need a step >= 1"),
    (lambda: c(M)[[0, 1]], ShapeError, "getitem: index of type list: f32[3,4]; need whole numbers, slices"),
    (lambda: c(M)[..., ...], ShapeError, "getitem: two ... in one index: f32[3,4]; need at most one"),
    (lambda: c(M)[True], ShapeError, "getitem: index of type bool: f32[3,4]; need whole numbers"),
    (lambda: c(M)[0.5:], ShapeError,
     "getitem: slice slice(0.5, None, None) is not usable: f32[3,4]; need whole numbers"),
    (lambda: ops.reshape(c(M), (5, -1)), ShapeError, "reshape: 12 elements do not fill shape [5, -1]: f32[3,4]; need"),
    (lambda: ops.squeeze(c(M), 0), ShapeError, "squeeze: axis 0 has extent 3: f32[3,4]; need extent 1"),
    (lambda: ops.split(c(M), 5), ShapeError,
     "split: axis 0 does not split into 5 equal pieces: f32[3,4]; need a divisor of 3"),
    (lambda: ops.split(c(M), [1, 1]), ShapeError,
     "split: sizes [1, 1] do not add up to axis 0: f32[3,4]; need a sum of 3"),
    (lambda: ops.repeat(c(M), (2,)), ShapeError, "repeat: reps [2] are not usable: f32[3,4]; need at least 2"),
    (lambda: ops.concat([]), GraphError, "concat: nothing to join; need at least one value"),
    (lambda: ops.concat([c(M), c(N)]), ShapeError, "concat: shapes differ outside axis 0: x0 f32[3,4], x1 f32[4,5]"),
    (lambda: ops.slice(c(M), (0,), (1,)), ShapeError, "slice: 1 starts, 1 stops, 2 steps: f32[3,4]; need 2 of each"),
    (lambda: ops.mse(c(M), c(V3)), ShapeError, "mse: shapes differ: pred f32[3,4], target f32[3]; need one shape"),
    (lambda: ops.mse(c(M), c(M), c(V4)), ShapeError,
     "mse: weights do not fit: f32[3,4], weights f32[4]; need a weight per row"),
    (lambda: ops.cross_entropy(c(M), c(V3)), ShapeError,
     "cross_entropy_sum: labels do not fit: logits f32[3,4], labels f32[3]"),
    (lambda: ops.loss_pair("hinge"), SettingError,
     "loss: 'hinge' is not known; must be one of cross_entropy, mse, mean, sum; gl.losses.named(name).pair has others"),
    (lambda: ops.group_norm(c(A), 2), ShapeError,
     "group_norm: channels do not form 2 groups: f32[2,3,4]; need [N, C, ...]"),
    (lambda: ops.conv2d(c(IMG), c(N)), ShapeError,
     "conv2d: w is no set of kernels: x f32[2,3,7,8], w f32[4,5]; need w of shape"),
    (lambda: ops.conv2d(c(IMG), c(IMG), padding="valid"), ShapeError,
     "conv2d: padding 'valid' is not known; need a number"),
    (lambda: ops.conv2d(c(IMG), c(IMG), stride=2, padding="same"), ShapeError,
     'conv2d: padding "same": x f32[2,3,7,8], w'),
    (lambda: ops.dropout(c(M), 2), ShapeError,
     "dropout: rate 2.0 is not usable: x f32[3,4], seed i64[], step i64[], row i64[]"),
    (lambda: ops.relu(), GraphError, "relu: input x is missing; need x"),
    (lambda: ops.relu(c(M), c(M)), GraphError, "relu: 2 inputs: x f32[3,4]"),
    (lambda: ops.relu(c(M), slope=1), GraphError, "relu: slope is not an attribute: x f32[3,4]; need one of: none"),
    (lambda: ops.leaky_relu(c(M), slope="steep"), GraphError,
     "leaky_relu: slope='steep' is not usable: x f32[3,4]; need slope"),
    (lambda: ops.softmax(c(M), 2), ShapeError, "softmax: axis 2 does not exist: f32[3,4]; need an axis from -2 to 1"),
    (lambda: ops.softmax(2.0), ShapeError, "softmax: no last axis to work along: x f32[]; need a last axis"),
    (lambda: ops.embedding(c(M), c(V3)), DTypeError,
     "get_rows: dtype f32 is not taken: table f32[3,4], ids f32[3]; need i32"),
    (lambda: ops.pad(c(M), [(1, 1)]), ShapeError,
     "pad: before [1], after [1], interior [0] are not 2 each: x f32[3,4]"),
]  # fmt: skip


@pytest.mark.parametrize("build,kind,message", REFUSED, ids=[r[2].split(";")[0][:50] for r in REFUSED])
def test_refused(build, kind, message):
    with pytest.raises(GradloomError) as caught:
        build()
    assert type(caught.value) is kind
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_messages_name_the_users_line():
    with pytest.raises(ShapeError, match=r"; at test_functions\.py:\d+$"):
        c(M) @ c(M)
    with pytest.raises(ShapeError, match=r"; at test_functions\.py:\d+$"):
        c(M)[7]


@pytest.mark.parametrize("build", [
    lambda x: ops.sum(ops.cast(ops.argmax(x), "f32")), lambda x: ops.sum(ops.cast(ops.greater(x, 0.0), "f32")),
], ids=["argmax", "greater"])  # fmt: skip
def test_positions_and_comparisons_have_no_gradient_and_say_so(build):
    x = input("x", (3, 4))
    with pytest.raises(GradientError, match="has no gradient: a (position|comparison) has no slope"):
        gradients(build(x), [x])


def test_an_op_without_gradient_says_so():
    x = input("x", (3, 4))
    count = ops.correct(x, c(np.zeros(3, np.int32)))
    with pytest.raises(
        GradientError, match=r"correct has no gradient: a count has no slope; node correct#\d+ at test_fun"
    ):
        gradients(count, [x])
