"""einsum against numpy.einsum in float64: random subscripts, gradients, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.graph import reachable
from tests.ops.compositions import check, numbers

EXTENTS = {"i": 2, "j": 3, "k": 4, "l": 5, "m": 1, "b": 2}
FIXED = [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]),
    ("ij->ji", [(2, 3)]), ("ba", [(2, 3)]), ("ij->", [(2, 3)]), ("ij->i", [(2, 3)]), ("i,i", [(5,), (5,)]),
    ("i,j->ij", [(2,), (3,)]), ("i,j->ji", [(2,), (3,)]), ("ii", [(4, 4)]), ("ii->i", [(4, 4)]),
    ("ii,i->i", [(4, 4), (4,)]), ("iij->ij", [(3, 3, 2)]), ("iji->j", [(3, 2, 3)]), ("iii->i", [(3, 3, 3)]),
    ("ijij->ij", [(2, 3, 2, 3)]), ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 4)]),
    ("...ij,jk->...ik", [(5, 2, 2, 3), (3, 4)]), ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
    ("...i,...i->...", [(2, 3, 4), (3, 4)]), ("i...->...i", [(2, 3, 4)]), ("...ii->...i", [(2, 3, 3)]),
    ("...", [(2, 3)]), ("...,...", [(2, 3), (3,)]), ("i...,i...", [(2, 3), (2, 3)]), (",ij->ij", [(), (2, 3)]),
    (" i j , j k -> i k ", [(2, 3), (3, 4)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ij,jk,kl,l->i", [(7, 2), (2, 9), (9, 3), (3,)]), ("i,ij,j", [(3,), (3, 4), (4,)]),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 4), (2, 6, 3, 4)]), ("bhqk,bkhd->bqhd", [(2, 3, 5, 6), (2, 6, 3, 4)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]), ("ij,ij->i", [(2, 3), (2, 3)]), ("ij,kl->", [(2, 3), (4, 5)]),
    ("i,i->i", [(1,), (3,)]), ("ij,ij->", [(2, 1), (2, 3)]), ("ij,ij,ij->j", [(1, 3), (2, 1), (2, 3)]),
    ("Ab,bC->CA", [(2, 3), (3, 4)]), ("bA", [(2, 3)]), ("i,i,i->i", [(3,), (3,), (3,)]), ("->", [()]),
    ("abcd,efcd->abef", [(2, 1, 3, 2), (2, 2, 3, 2)]), ("i->i", [(0,)]), ("ij,jk->ik", [(2, 0), (0, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("subscripts", "shapes"), FIXED, ids=[f"{s} {i}" for i, (s, _) in enumerate(FIXED)])
def test_einsum_is_that_of_numpy(subscripts, shapes):
    arrays = numbers(shapes)
    check(lambda *x: gl.ops.einsum(subscripts, *x), lambda *x: np.einsum(subscripts, *x), arrays)


def drawn(rng: np.random.Generator) -> tuple[str, list[tuple[int, ...]]]:
    """Random subscripts with up to 4 operands, repeated letters, broadcast axes and "..."; the result has <= 5 axes."""
    letters, dots = list("ijklmb"), rng.random() < 0.4
    extents = {a: int(rng.integers(1, 5)) for a in letters}
    wide = [int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3)))] if dots else []
    terms, shapes, used = [], [], []
    for _ in range(int(rng.integers(1, 5))):
        names = [str(a) for a in rng.choice(letters, int(rng.integers(0, 4)))]
        twice = {a for a in names if names.count(a) > 1}
        shape = [1 if a not in twice and rng.random() < 0.1 else extents[a] for a in names]
        if dots and rng.random() < 0.8:
            at, own = int(rng.integers(0, len(names) + 1)), wide[int(rng.integers(0, len(wide) + 1)) :]
            own = [1 if rng.random() < 0.2 else n for n in own]
            shape[at:at] = own
            terms.append("".join([*names[:at], "...", *names[at:]]))
        else:
            terms.append("".join(names))
        used += names
        shapes.append(tuple(shape))
    left = ",".join(terms)
    if rng.random() < 0.3:
        return left, shapes
    kept = [a for a in dict.fromkeys(used) if rng.random() < 0.5][:3]
    rng.shuffle(kept)
    at = int(rng.integers(0, len(kept) + 1))
    return f"{left}->{''.join([*kept[:at], *(['...'] if '...' in left else []), *kept[at:]])}", shapes


@pytest.mark.parametrize("number", range(60))
def test_random_subscripts(number):
    subscripts, shapes = drawn(np.random.default_rng(number))
    arrays = numbers(shapes, number)
    try:
        want = np.einsum(subscripts, *arrays)
    except ValueError:
        with pytest.raises(gl.ShapeError, match="einsum"):
            gl.ops.einsum(subscripts, *[gl.input(f"x{i}", s) for i, s in enumerate(shapes)])
        return
    if want.ndim <= 6:
        check(lambda *x: gl.ops.einsum(subscripts, *x), lambda *x: want, arrays, second=number % 4 == 0, room=2e-5)


def test_most_random_subscripts_have_values():
    refused = 0
    for number in range(60):
        subscripts, shapes = drawn(np.random.default_rng(number))
        try:
            np.einsum(subscripts, *numbers(shapes))
        except ValueError:
            refused += 1
    assert refused < 20


def test_products_of_matrices_are_one_matrix_product():
    x, y = gl.input("x", (5, 3)), gl.input("y", (3, 4))
    for subscripts in ("ij,jk->ik", "ij,jk", "...ij,...jk->...ik"):
        names = [n.op.name for n in reachable([gl.ops.einsum(subscripts, x, y)])]
        assert names.count("matmul") == 1 and "sum" not in names and "mul" not in names


def test_the_smallest_product_is_computed_first():
    """A [100, 100] product of the two matrices would come first from left to right."""
    shapes = [(100, 2), (2, 100), (100, 1)]
    z = gl.ops.einsum("ij,jk,kl->il", *[gl.input(f"x{i}", s) for i, s in enumerate(shapes)])
    assert max(v.size for n in reachable([z]) if n.op.name == "matmul" for v in n.outputs) == 100


def test_in_a_tape_and_on_arrays():
    w = gl.parameter(np.ones((3, 2), np.float32))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    with gl.grad_tape() as tape:
        loss = gl.ops.sum(gl.ops.einsum("ij,jk->ik", x, w))
        grads = tape.backward(loss)
    np.testing.assert_array_equal(grads[w].numpy(), np.repeat(x.sum(0)[:, None], 2, 1))
    np.testing.assert_array_equal(gl.ops.einsum("i,i", gl.tensor([1, 2, 3]), gl.tensor([1, 2, 3])).numpy(), 14)


X, Y = (2, 3), (4, 5)
REFUSED = [
    ("ij,jk->ik", [X], "subscripts of 2 operands for 1"),
    ("ij,jk->ik", [X, Y], "axes j have extents 3 and 4"),
    ("ijk->i", [X], '"ijk" has 3 letters for an operand of 2 axes'),
    ("i->i", [X], '"i" has 1 letters for an operand of 2 axes'),
    ("ij->ik", [X], "the result has k, which no operand has"),
    ("ij->ii", [X], "the result has i twice"),
    ("ii->i", [X], "axes i of one operand have extents 2 and 3"),
    ("ij->i->j", [X], "the subscripts are not usable"),
    ("i1->i", [X], "the subscripts are not usable"),
    ("i..j->i", [X], "no \"...\""),
    ("......", [X], "no \"...\""),
    ("...j->j", [X], 'no place for the axes of "..."'),
    ("...j,...k->...jk", [X, Y], 'axes of "..." have extents 2 and 4'),
    ("abcdef,ghi->abcdefg", [(1,) * 6, (1,) * 3], "the result has 7 axes"),
    ("abcdef,gh,gabh->cdefg", [(2,) * 6, (9, 9), (9, 2, 2, 9)], None),
]  # fmt: skip


@pytest.mark.parametrize(("subscripts", "shapes", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_einsum_refuses(subscripts, shapes, message):
    values = [gl.input(f"x{i}", s) for i, s in enumerate(shapes)]
    if message is None:
        assert gl.ops.einsum(subscripts, *values).shape == (2, 2, 2, 2, 9)
        return
    with pytest.raises(gl.ShapeError) as caught:
        gl.ops.einsum(subscripts, *values)
    text = str(caught.value)
    assert text.startswith(f'einsum "{subscripts}": ') and message in text and "\n" not in text
    assert "; at test_einsum.py:" in text


def test_dtypes_that_einsum_refuses():
    with pytest.raises(gl.DTypeError, match='need a text such as "ij,jk->ik" first'):
        gl.ops.einsum(np.ones((2, 3)), "ij->i")
    with pytest.raises(gl.DTypeError, match="dtype f16 is not taken: f16.2.; need f32"):
        gl.ops.einsum("i->", gl.input("x", (2,), "f16"))
