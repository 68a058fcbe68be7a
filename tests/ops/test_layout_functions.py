"""roll, flip, triangles, diagonals, pads, windows: against NumPy and PyTorch in float64, with gradients; and errors."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.run.numpy_backend import evaluate
from tests.ops.compositions import check, numbers

ops = gl.ops

CASES = [
    ("roll 1", (7,), lambda x: ops.roll(x, 2), lambda x: np.roll(x, 2)),
    ("roll back", (7,), lambda x: ops.roll(x, -9), lambda x: np.roll(x, -9)),
    ("roll all", (3, 5), lambda x: ops.roll(x, 4), lambda x: np.roll(x, 4)),
    ("roll axis", (3, 5), lambda x: ops.roll(x, 1, 1), lambda x: np.roll(x, 1, 1)),
    ("roll first", (3, 5, 2), lambda x: ops.roll(x, -2, 0), lambda x: np.roll(x, -2, 0)),
    ("roll two", (3, 5, 2), lambda x: ops.roll(x, (1, -3), (0, -2)), lambda x: np.roll(x, (1, -3), (0, -2))),
    ("roll by one of both", (3, 5), lambda x: ops.roll(x, 1, (0, 1)), lambda x: np.roll(x, 1, (0, 1))),
    ("roll an axis twice", (5,), lambda x: ops.roll(x, (1, 1), (0, 0)), lambda x: np.roll(x, (1, 1), (0, 0))),
    ("roll by the extent", (4,), lambda x: ops.roll(x, 4, 0), lambda x: x),
    ("roll nothing", (0, 3), lambda x: ops.roll(x, 2, 0), lambda x: x),
    ("flip all", (3, 5), ops.flip, np.flip),
    ("flip last", (3, 5, 2), lambda x: ops.flip(x, -1), lambda x: np.flip(x, -1)),
    ("flip two", (3, 5, 2), lambda x: ops.flip(x, (0, 1)), lambda x: np.flip(x, (0, 1))),
    ("flip one element", (1, 1), ops.flip, np.flip),
    ("flip a scalar", (), ops.flip, np.flip),
    ("flip nothing", (0, 3), lambda x: ops.flip(x, 0), lambda x: x),
    *[(f"{name} {k} of {shape}", shape, lambda x, f=name, k=k: getattr(ops, f)(x, k),
       lambda x, f=name, k=k: getattr(np, f)(x, k))
      for name in ("tril", "triu") for k in (0, 1, -2, 9, -9) for shape in ((4, 4), (2, 3, 5), (5, 1))],
    *[(f"diag {k} of {shape}", shape, lambda x, k=k: ops.diag(x, k), lambda x, k=k: np.diag(x, k))
      for k in (0, 1, -1, 2) for shape in ((1,), (4,), (4, 4), (3, 6), (6, 3)) if not (k == 2 and shape == (4,))],
    ("diag of no elements", (0,), ops.diag, np.diag),
    ("diag 2 of no elements", (0,), lambda x: ops.diag(x, -2), lambda x: np.diag(x, -2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "function", "definition"), CASES, ids=[c[0] for c in CASES])
def test_like_numpy(name, shape, function, definition):
    check(function, definition, numbers([shape]))


def test_outer_is_that_of_numpy():
    check(ops.outer, np.outer, numbers([(3,), (5,)]))


def test_triangles_keep_what_is_not_finite_out():
    low = ops.tril(gl.constant(np.full((3, 3), np.nan)))
    np.testing.assert_array_equal(evaluate([low])[low], np.where(np.tri(3), np.nan, 0))


PADS = [
    ((5,), [(2, 3)]), ((5,), [(4, 0)]), ((2, 5), [(0, 1), (1, 4)]), ((4, 3, 2), [(3, 2), (0, 0), (1, 1)]),
    ((1, 7), [(0, 0), (0, 6)]), ((2, 2, 6, 5), [(0, 0), (0, 0), (2, 3), (4, 1)]),
]  # fmt: skip
NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", NUMPY_MODES)
@pytest.mark.parametrize(("shape", "pads"), PADS, ids=str)
def test_pads_are_those_of_numpy(shape, pads, mode):
    check(lambda x: ops.pad(x, pads, mode=mode), lambda x: np.pad(x, pads, NUMPY_MODES[mode]), numbers([shape]))


def test_pads_of_whole_extents():
    check(lambda x: ops.pad(x, [(3, 3)], mode="circular"), lambda x: np.pad(x, 3, "wrap"), numbers([(3,)]))
    check(lambda x: ops.pad(x, [(8, 9)], mode="replicate"), lambda x: np.pad(x, (8, 9), "edge"), numbers([(1,)]))
    check(lambda x: ops.pad(x, [(1, 2)], 2.5), lambda x: np.pad(x, (1, 2), constant_values=2.5), numbers([(3,)]))


WINDOWS = [
    ((2, 3, 5, 7), {"kernel": 3}), ((1, 2, 5, 6), {"kernel": (2, 3), "padding": (1, 2)}),
    ((2, 1, 9, 8), {"kernel": 2, "stride": (3, 2), "dilation": (2, 1)}), ((1, 1, 4, 4), {"kernel": (4, 4)}),
    ((1, 2, 7, 7), {"kernel": 3, "stride": 2, "padding": 1, "dilation": 2}), ((3, 2, 1, 1), {"kernel": 1}),
]  # fmt: skip


def windows(x, kernel, stride=1, padding=0, dilation=1):
    """unfold of NumPy, element by element."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (
        v if isinstance(v, tuple) else (v, v) for v in (kernel, stride, padding, dilation)
    )
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    rows = range(0, x.shape[2] - dh * (kh - 1), sh)
    columns = range(0, x.shape[3] - dw * (kw - 1), sw)
    return np.stack(
        [x[:, :, r : r + dh * (kh - 1) + 1 : dh, c : c + dw * (kw - 1) + 1 : dw].reshape(x.shape[0], -1)
         for r in rows for c in columns], -1)  # fmt: skip


@pytest.mark.parametrize(("shape", "how"), WINDOWS, ids=str)
def test_unfold_is_windows_as_columns_and_fold_its_transpose(shape, how):
    (x,) = numbers([shape])
    check(lambda x: ops.unfold(x, **how), lambda x: windows(x, **how), [x])
    (g,) = numbers([windows(x, **how).shape], 1)
    basis = np.eye(x[0].size).reshape(-1, *shape[1:])
    matrix = windows(basis, **how).reshape(len(basis), -1)  # row i: where element i of an image goes
    check(
        lambda g: ops.fold(g, shape[2:], **how),
        lambda g: (g.reshape(len(g), -1) @ matrix.T).reshape(len(g), *shape[1:]),
        [g],
    )


@pytest.mark.oracle
@pytest.mark.parametrize(("shape", "how"), WINDOWS, ids=str)
def test_unfold_and_fold_are_those_of_pytorch(shape, how):
    torch = pytest.importorskip("torch")
    x = gl.tensor(numbers([shape])[0].astype(np.float32))
    theirs = {{"kernel": "kernel_size"}.get(k, k): v for k, v in how.items()}
    columns = torch.nn.functional.unfold(torch.from_numpy(x.numpy()), **theirs)
    np.testing.assert_array_equal(ops.unfold(x, **how).numpy(), columns)
    back = torch.nn.functional.fold(columns, shape[2:], **theirs)
    np.testing.assert_allclose(ops.fold(gl.tensor(columns.numpy()), shape[2:], **how).numpy(), back, rtol=1e-6)


def test_a_convolution_is_a_product_with_windows():
    x, w = (a.astype(np.float32) for a in numbers([(2, 3, 6, 5), (4, 3, 3, 2)]))
    columns = ops.unfold(gl.tensor(x), (3, 2), padding=1)
    product = ops.einsum("ok,nkl->nol", w.reshape(4, -1), columns)
    whole = ops.conv2d(gl.tensor(x), gl.tensor(w), padding=1).numpy()
    np.testing.assert_allclose(product.numpy().reshape(whole.shape), whole, rtol=1e-5, atol=1e-5)


def value(*shape, kind="f32"):
    return gl.input("x", shape, kind)


REFUSED = [
    (lambda: ops.roll(value(3), 1, 1), gl.ShapeError, "roll: axis 1 does not exist: f32[3]; need an axis from -1 to 0"),
    (lambda: ops.roll(value(3, 2), (1, 2), 0), gl.ShapeError, "roll: 2 shifts for 1 axes: f32[3,2]"),
    (lambda: ops.roll(value(3), 1.5), gl.DTypeError, "roll: shift is a float; need a whole number"),
    (lambda: ops.roll(value(3, kind="i32"), 1), gl.DTypeError, "roll: dtype i32 is not taken: i32[3]; need f32"),
    (lambda: ops.flip(value(3), 2), gl.ShapeError, "flip: axis 2 does not exist"),
    (lambda: ops.flip(value(3), (0, 0)), gl.ShapeError, "flip: axes (0, 0) name one axis twice"),
    (lambda: ops.tril(value(3)), gl.ShapeError, "tril: x is no matrix: f32[3]; need at least 2 axes"),
    (lambda: ops.triu(value(3, 3), 0.5), gl.DTypeError, "triu: k is a float; need a whole number"),
    (lambda: ops.diag(value(3, 3, 3)), gl.ShapeError, "diag: x has 3 axes: f32[3,3,3]; need a vector or a matrix"),
    (lambda: ops.diag(value(3, 5), 5), gl.ShapeError, "diag: diagonal 5 does not exist: f32[3,5]; need k from -2 to 4"),
    (lambda: ops.outer(value(3), value(3, 1)), gl.ShapeError, "outer: x and y are not both vectors: f32[3], f32[3,1]"),
    (lambda: ops.pad(value(3), [(3, 0)], mode="reflect"), gl.ShapeError,
     'pad: (3, 0) along axis 0 is too much for mode "reflect": f32[3]; need at most 2 on each side'),
    (lambda: ops.pad(value(3), [(0, 4)], mode="circular"), gl.ShapeError, "need at most 3 on each side"),
    (lambda: ops.pad(value(0), [(0, 1)], mode="replicate"), gl.ShapeError, "need at most 0 on each side"),
    (lambda: ops.pad(value(3), [(1, 1)], 2.0, "reflect"), gl.SettingError, "value=2.0 has no effect"),
    (lambda: ops.pad(value(3, 2), (1, 1)), gl.DTypeError, "pad: pads (1, 1) are not usable; need a pair"),
    (lambda: ops.pad(value(3), 1), gl.DTypeError, "pad: pads 1 are not usable"),
    (lambda: ops.pad(value(3), [(-1, 1)], mode="reflect"), gl.ShapeError, "pad: pads [(-1, 1)] are not usable"),
    (lambda: ops.pad(value(3), [(1, 1), (1, 1)], mode="circular"), gl.ShapeError, "need 1 pairs"),
    (lambda: ops.pad(value(3), [(1, 1)], mode="edge"), gl.SettingError, "use 'replicate'"),
    (lambda: ops.pad(value(3), [(1, 1)], mode="wrap"), gl.SettingError, "use 'circular'"),
    (lambda: ops.pad(value(3), [(1, 1)], mode="symmetric"), gl.SettingError,
     "one of constant, reflect, replicate, circular"),
    (lambda: ops.unfold(value(2, 3, 4), 2), gl.ShapeError, "unfold: x is no batch of images: f32[2,3,4]"),
    (lambda: ops.unfold(value(1, 1, 4, 4), 5), gl.ShapeError, "unfold: kernel [5, 5] does not fit"),
    (lambda: ops.unfold(value(1, 1, 4, 4), 2, stride=0), gl.ShapeError, "unfold: stride [0, 0] is not usable"),
    (lambda: ops.fold(value(1, 5, 9), (4, 4), 2), gl.ShapeError,
     "fold: x does not hold windows of 4 elements at [3, 3]"),
    (lambda: ops.fold(value(1, 4), (4, 4), 2), gl.ShapeError, "fold: x and output_size [4, 4] are not usable"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), REFUSED, ids=[f"{i} {r[2][:30]}" for i, r in enumerate(REFUSED)])
def test_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "test_layout_functions.py:" in str(caught.value) or "need mode=" in str(caught.value)
