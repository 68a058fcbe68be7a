"""Rotary positions and fused attention, against formulas and implementations that share nothing with ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gradloom as gl
from gradloom import _core, ops
from gradloom.base.errors import DataError, GradientError, GraphError
from gradloom.graph.leaves import stored_value
from gradloom.graph.stored import Stored
from tests.core.harness import isas, run
from tests.noise import assert_noise

ISAS = isas()


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# ---- rope --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dims", [64, 40])
def test_rope_is_multiplication_by_a_complex_number(pairing: str, dims: int, isa: str) -> None:
    rng = np.random.default_rng(0)
    x = f32(rng, 2, 50, 3, 64)
    positions = np.sort(rng.integers(0, 8192, (2, 50))).astype(np.int32)
    frequencies = ops.rope_frequencies(dims, 500000.0)
    value = ops.rope(gl.input("x", x.shape), positions, frequencies, pairing=pairing, scale=1.5)
    (y,) = gl.compile(value, isa=isa)(x=x)
    head = x[..., :dims].astype(np.float64)
    pairs = (
        head.reshape(2, 50, 3, -1, 2) if pairing == "interleaved" else head.reshape(2, 50, 3, 2, -1).swapaxes(-1, -2)
    )
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * 1.5
    turned = turned * np.exp(1j * positions[..., None, None] * frequencies.astype(np.float32).astype(np.float64))
    stacked = np.stack([turned.real, turned.imag], -1)
    want = stacked.reshape(head.shape) if pairing == "interleaved" else stacked.swapaxes(-1, -2).reshape(head.shape)
    assert np.abs(y[..., :dims] - want).max() < 2e-6
    assert np.array_equal(y[..., dims:], x[..., dims:])


@pytest.mark.parametrize("isa", ISAS)
def test_rope_has_the_same_bits_for_both_pairings(isa: str) -> None:
    """Each product is rounded: no compiler makes a multiply-add of it in one of the two."""
    x = f32(np.random.default_rng(0), 7, 3, 64)
    halves = np.concatenate([x[..., 0::2], x[..., 1::2]], -1)
    positions, frequencies, value = np.arange(7, dtype=np.int32), ops.rope_frequencies(64), gl.input("x", x.shape)
    (y,) = gl.compile(ops.rope(value, positions, frequencies, pairing="interleaved"), isa=isa)(x=x)
    (z,) = gl.compile(ops.rope(value, positions, frequencies, pairing="half"), isa=isa)(x=halves)
    assert np.array_equal(np.concatenate([y[..., 0::2], y[..., 1::2]], -1), z)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [8, 136])  # fewer pairs than a vector has lanes; some vectors and a rest
def test_rope_back_is_rope_backwards(width: int, isa: str) -> None:
    rng = np.random.default_rng(0)
    x, g = gl.input("x", (5, 2, width)), gl.input("g", (5, 2, width))
    positions, frequencies = np.arange(5, dtype=np.int32), ops.rope_frequencies(width)
    there = ops.rope(x, positions, frequencies, scale=2.0)
    (dx,) = gl.gradients(there, [x], [g])
    assert dx.node.op.name == "rope" and dx.node.attrs["inverse"] and dx.node.attrs["scale"] == 2.0
    feeds = {"x": f32(rng, 5, 2, width), "g": f32(rng, 5, 2, width)}
    y, back = gl.compile([there, dx], isa=isa)(**feeds)
    assert np.sum(y * feeds["g"]) == pytest.approx(np.sum(back * feeds["x"]), rel=1e-4)
    whole = ops.rope(ops.rope(x, positions, frequencies), positions, frequencies, inverse=True)
    assert np.abs(gl.compile(whole, isa=isa)(x=feeds["x"])[0] - feeds["x"]).max() < 1e-6


def test_rope_frequencies() -> None:
    plain = ops.rope_frequencies(64, 10000.0)
    assert plain.dtype == np.float64 and plain.shape == (32,)
    assert np.allclose(plain, [10000.0 ** (-i / 32) for i in range(32)], rtol=1e-15)
    assert np.allclose(ops.rope_frequencies(64, scaling="linear", factor=4), plain / 4, rtol=1e-15)
    ntk = ops.rope_frequencies(64, scaling="ntk", factor=4)
    assert ntk[0] == 1 and ntk[-1] == pytest.approx(
        plain[-1] / 4, rel=1e-12
    )  # the slowest is interpolated, no other is
    divisors = np.linspace(1, 8, 32)
    assert np.allclose(ops.rope_frequencies(64, factors=divisors), plain / divisors, rtol=1e-15)


def test_llama3_frequencies_are_those_of_hugging_face() -> None:
    """The steps of _compute_llama3_parameters, with the numbers of Llama 3.1."""
    base, factor, low, high, context = 500000.0, 8.0, 1.0, 4.0, 8192
    inv = 1.0 / base ** (np.arange(0, 128, 2) / 128)
    wavelen = 2 * math.pi / inv
    llama = np.where(wavelen > context / low, inv / factor, inv)
    smooth = (context / wavelen - low) / (high - low)
    smoothed = (1 - smooth) * llama / factor + smooth * llama
    medium = ~(wavelen < context / high) & ~(wavelen > context / low)
    want = np.where(medium, smoothed, llama)
    assert medium.any() and (llama != inv).any()
    got = ops.rope_frequencies(128, base, "llama3", factor, context=context, low=low, high=high)
    assert np.allclose(got, want, rtol=1e-14)


def test_yarn_frequencies_are_those_of_hugging_face() -> None:
    """The steps of _compute_yarn_parameters, written out."""
    base, factor, dims, context = 10000.0, 16.0, 128, 4096

    def correction(rotations: float) -> float:
        return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(correction(32)), 0), min(math.ceil(correction(1)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    positions = base ** (np.arange(0, dims, 2) / dims)
    extrapolation = 1 - ramp
    want = 1 / (factor * positions) * (1 - extrapolation) + 1 / positions * extrapolation
    assert np.allclose(ops.rope_frequencies(dims, base, "yarn", factor, context=context), want, rtol=1e-14)
    assert ops.rope_scale(16.0) == pytest.approx(1.2772588722239782) and ops.rope_scale(1.0) == 1.0


@pytest.mark.parametrize(
    "options,message",
    [
        ({"dims": 7}, "rope_frequencies: 7 dims; need an even number >= 2"),
        ({"dims": 8, "base": 0.0}, "rope_frequencies: base 0.0, factor 1.0; need numbers > 0"),
        (
            {"dims": 8, "base": 1.0, "scaling": "yarn", "context": 8},
            "rope_frequencies: base 1.0; yarn needs another one than 1",
        ),
        (
            {"dims": 8, "scaling": "su"},
            "rope_frequencies: scaling 'su'; must be one of none, linear, ntk, llama3, yarn",
        ),
        (
            {"dims": 8, "scaling": "llama3", "factor": 2.0},
            "rope_frequencies: context None; llama3 needs the length first trained for",
        ),
        ({"dims": 8, "factors": np.ones(3)}, "rope_frequencies: factors of shape [3]; need 4 numbers > 0"),
    ],
)
def test_rope_frequencies_refuses(options: dict, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        ops.rope_frequencies(**options)
    assert str(caught.value) == message


# ---- attention against PyTorch -----------------------------------------------------------------------------

# tokens, heads, key heads, D, lengths of the packed sequences (None: one)
ORACLE = (
    (1, 2, 1, 16, None),
    (33, 4, 2, 32, None),
    (100, 3, 3, 64, (1, 40, 7, 52)),
    (257, 9, 3, 64, None),
    (130, 6, 1, 80, (64, 66)),
    (61, 2, 2, 128, None),
)


def packed(lengths: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])


def with_torch(q, k, v, g, mask, real):
    """y, dq, dk, dv of PyTorch's own attention; heads of one group share their keys."""
    torch = pytest.importorskip("torch")
    kind = torch.float64 if real is np.float64 else torch.float32
    a, b, c = (torch.tensor(x, dtype=kind, requires_grad=True) for x in (q, k, v))
    share = q.shape[2] // k.shape[2]
    wide = [x.transpose(1, 2).repeat_interleave(r, 1) for x, r in ((a, 1), (b, share), (c, share))]
    y = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=torch.tensor(mask)[:, None]).transpose(1, 2)
    y.backward(torch.tensor(g, dtype=kind))
    return [x.detach().numpy() for x in (y, a.grad, b.grad, c.grad)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ORACLE, ids=str)
def test_attention_and_its_gradients_are_those_of_torch(case: tuple, isa: str) -> None:
    """To f32 noise. A query that sees one key has no gradient: what cancels is of the size of the operands."""
    t, heads, groups, d, lengths = case
    rng = np.random.default_rng(t)
    q, g = f32(rng, 2, t, heads, d), f32(rng, 2, t, heads, d)
    k, v = f32(rng, 2, t, groups, d), f32(rng, 2, t, groups, d)
    row = np.arange(t, dtype=np.int32) if lengths is None else packed(lengths)
    positions = np.stack([row, np.arange(t, dtype=np.int32)])
    own = np.arange(t)
    mask = (own[None, None] <= own[None, :, None]) & (own[None, None] >= (own - positions)[..., None])
    inputs = [gl.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    y, _ = ops.attention(*inputs, gl.input("p", (2, t), "i32"), scale=d**-0.5)
    grads = gl.gradients(y, inputs, [gl.input("g", q.shape)])
    got = gl.compile([y, *grads], isa=isa, threads=2)(q=q, k=k, v=v, g=g, p=positions)
    exact, rough = with_torch(q, k, v, g, mask, np.float64), with_torch(q, k, v, g, mask, np.float32)
    largest = max(float(np.abs(x).max()) for x in (q, k, v, g))
    for name, ours, right, other in zip(["y", "dq", "dk", "dv"], got, exact, rough, strict=True):
        assert_noise(name, ours, other, right, longest=max(t, d), largest=largest)


def seen_by(positions: np.ndarray, window: int | None) -> np.ndarray:
    """[B, T, T]: the keys of a query's own sequence up to itself, the last `window` of them."""
    own = np.arange(positions.shape[1])
    before = own[:, None] - own
    return (before >= 0) & (before <= positions[..., None]) & (before < (window or len(own)))


def formula(q, k, v, g, mask, scale, softcap, real):
    """y, dq, dk, dv by PyTorch's gradients of the formula, as Gemma 2 writes it: cap, then mask, then softmax."""
    torch = pytest.importorskip("torch")
    kind = torch.float64 if real is np.float64 else torch.float32
    a, b, c = (torch.tensor(x, dtype=kind, requires_grad=True) for x in (q, k, v))
    share = q.shape[2] // k.shape[2]
    scores = torch.einsum("bthd,bshd->bhts", a, b.repeat_interleave(share, 2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.masked_fill(~torch.tensor(mask)[:, None], -math.inf).softmax(-1)
    y = torch.einsum("bhts,bshd->bthd", weights, c.repeat_interleave(share, 2))
    y.backward(torch.tensor(g, dtype=kind))
    return [x.detach().numpy() for x in (y, a.grad, b.grad, c.grad)]


# tokens, heads, key heads, D, lengths of the first row's sequences, window, softcap
LIMITED = (
    (67, 6, 2, 16, (20, 47), 5, None), (67, 6, 2, 16, (20, 47), None, 2.0), (300, 3, 1, 64, (300,), 130, 20.0),
    (300, 2, 2, 33, (7, 200, 93), 64, 0.5), (130, 4, 1, 80, (130,), 1, 3.0), (259, 2, 1, 20, (259,), 258, None),
    (1000, 6, 2, 8, (1000,), 40, None),  # jobs of the gradient with keys that none of their queries sees
)  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", LIMITED, ids=str)
def test_windows_and_caps_are_those_of_the_formula_in_torch(case: tuple, isa: str) -> None:
    """To f32 noise, outputs and all gradients."""
    t, heads, groups, d, lengths, window, softcap = case
    rng = np.random.default_rng(t)
    q, g = f32(rng, 2, t, heads, d) * 3, f32(rng, 2, t, heads, d)
    k, v = f32(rng, 2, t, groups, d), f32(rng, 2, t, groups, d)
    positions = np.stack([packed(lengths), np.arange(t, dtype=np.int32)])
    inputs = [gl.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    y, _ = ops.attention(*inputs, gl.input("p", (2, t), "i32"), scale=d**-0.5, window=window, softcap=softcap)
    grads = gl.gradients(y, inputs, [gl.input("g", q.shape)])
    got = gl.compile([y, *grads], isa=isa, threads=2, poison=True)(q=q, k=k, v=v, g=g, p=positions)
    mask = seen_by(positions, window)
    exact, rough = (formula(q, k, v, g, mask, d**-0.5, softcap, real) for real in (np.float64, np.float32))
    largest = max(float(np.abs(x).max()) for x in (q, k, v, g))
    for name, ours, right, other in zip(["y", "dq", "dk", "dv"], got, exact, rough, strict=True):
        assert_noise(name, ours, other, right, longest=max(t, d), largest=largest)


def test_gradients_of_windows_and_caps_by_differences() -> None:
    rng = np.random.default_rng(8)
    parameters = [gl.parameter(f32(rng, 1, 9, h, 8), n) for n, h in (("q", 4), ("k", 2), ("v", 2))]
    y, lse = ops.attention(*parameters, packed((6, 3))[None], scale=0.7, window=3, softcap=1.5)
    loss = ops.sum(y * f32(rng, *y.shape)) + ops.sum(ops.sqr(lse))
    assert gl.check_gradients(loss, parameters=parameters) < 1e-6


@pytest.mark.parametrize("isa", ISAS)
def test_a_window_as_long_as_the_sequence_changes_no_bit(isa: str) -> None:
    rng = np.random.default_rng(9)
    t = 200
    feeds = {"q": f32(rng, 1, t, 4, 32), "k": f32(rng, 1, t, 2, 32), "v": f32(rng, 1, t, 2, 32)}
    inputs = [gl.input(n, x.shape) for n, x in feeds.items()]

    def results(**limits: int) -> list[np.ndarray]:
        y, lse = ops.attention(*inputs, np.arange(t, dtype=np.int32)[None], scale=0.2, **limits)
        return gl.compile([y, lse, *gl.gradients(ops.sum(ops.sqr(y)), inputs)], isa=isa)(**feeds)

    plain = results()
    for window in (t, 10**12):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(plain, results(window=window), strict=True))
    assert any((a != b).any() for a, b in zip(plain, results(window=t - 1), strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_what_lies_outside_of_all_windows_is_not_read(isa: str) -> None:
    """Keys and values of NaN: rows whose windows do not reach them keep their bits, forward and backward."""
    rng = np.random.default_rng(10)
    t, window, lost, clear = 1500, 100, 400, 700  # a block of queries is far shorter than clear - lost - window
    q, g, k, v = (f32(rng, 1, t, h, 32) for h in (2, 2, 1, 1))
    inputs = [gl.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    y, lse = ops.attention(*inputs, np.arange(t, dtype=np.int32)[None], scale=0.2, window=window, softcap=9.0)
    run_all = gl.compile([y, lse, *gl.gradients(y, inputs, [gl.input("g", q.shape)])], isa=isa)
    whole = [x[:, clear:].copy() for x in run_all(q=q, k=k, v=v, g=g)]
    k[:, :lost] = v[:, :lost] = np.nan
    holed = run_all(q=q, k=k, v=v, g=g)
    assert all(np.isnan(x[:, : lost // 2]).any() for x in holed)
    assert all(a.tobytes() == b[:, clear:].tobytes() for a, b in zip(whole, holed, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_lse_has_a_gradient_of_its_own(isa: str) -> None:
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 9, 4, 8), "k": (1, 9, 2, 8), "v": (1, 9, 2, 8)}
    parameters = [gl.parameter(f32(rng, *s), n) for n, s in shapes.items()]
    positions = packed((4, 5))[None]
    y, lse = ops.attention(*parameters, positions, scale=0.4)
    for loss in (ops.sum(y * f32(rng, *y.shape)) + ops.sum(ops.sqr(lse)), ops.sum(lse * f32(rng, *lse.shape))):
        assert gl.check_gradients(loss, parameters=parameters) < 1e-6
        grads = gl.gradients(loss, parameters)
        found = gl.compile(grads, isa=isa)()
        for a, b in zip(found, gl.compile(grads, backend="numpy")(), strict=True):
            assert np.abs(a - b).max() < 1e-5 * max(1.0, np.abs(b).max())


def test_gradients_through_a_whole_block() -> None:
    """Rope, attention and a gated unit, against central differences of the float64 references."""
    rng = np.random.default_rng(4)
    x = gl.parameter(f32(rng, 1, 7, 12), "x")
    w = [
        gl.parameter(f32(rng, 12, n) * 0.3, name)
        for name, n in (("wq", 16), ("wk", 8), ("wv", 8), ("wg", 10), ("wu", 10))
    ]
    positions = packed((3, 4))[None]
    frequencies = ops.rope_frequencies(4)
    q, k, v = (ops.matmul(x, m).reshape(1, 7, -1, 4) for m in w[:3])
    q, k = (ops.rope(a, positions, frequencies, pairing="half") for a in (q, k))
    y = ops.attention(q, k, v, positions, scale=0.5)[0].reshape(1, 7, 16)
    z = ops.swiglu(ops.matmul(x, w[3]), ops.matmul(x, w[4])) * ops.geglu(ops.matmul(x, w[4]), ops.matmul(x, w[3]))
    assert gl.check_gradients(ops.sum(ops.sqr(y)) + ops.sum(z), parameters=[x, *w], entries=20) < 1e-6


def test_second_derivatives_are_declined() -> None:
    q, k, v = (gl.input(n, (1, 4, 1, 8)) for n in "qkv")
    y, _ = ops.attention(q, k, v, np.arange(4, dtype=np.int32)[None], scale=1.0)
    (dq,) = gl.gradients(y, [q])
    with pytest.raises(GradientError, match="attention_back has no gradient: its second derivative would need T x T"):
        gl.gradients(dq, [k])


# ---- bits, memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("limits", [[], [70, 4.0]], ids=["all", "window and cap"])
@pytest.mark.parametrize("shape", [(1, 300, 9, 3, 64), (2, 65, 4, 4, 48), (3, 130, 2, 1, 20)], ids=str)
def test_same_bits_on_any_number_of_threads(shape: tuple, limits: list, isa: str) -> None:
    b, t, heads, groups, d = shape
    rng = np.random.default_rng(5)
    q, g, k, v = (
        f32(rng, b, t, heads, d),
        f32(rng, b, t, heads, d),
        f32(rng, b, t, groups, d),
        f32(rng, b, t, groups, d),
    )
    positions = np.stack([packed((t - 20, 20))] * b)
    outs = [("f32", q.shape), ("f32", k.shape), ("f32", v.shape)]
    results = []
    _core.set_cores(16)
    try:
        for threads in (1, 2, 3, 5, 16):
            y, lse = run(
                "attention", [q, k, v, positions], [("f32", q.shape), ("f32", q.shape[:3])],
                [0.2, 0, *limits],
                isa=isa, sig="f32_i32_f32", threads=threads,
            )  # fmt: skip
            back = run(
                "attention_back", [g, q, k, v, y, lse, positions, None], outs, [0.2, *limits],
                isa=isa, sig="f32_i32_f32", threads=threads,
            )  # fmt: skip
            results.append([x.copy() for x in (y, lse, *back)])
    finally:
        _core.set_cores(0)
    for other in results[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0], other, strict=True))


def bytes_needed(tokens: int, isa: str) -> int:
    """All that a plan of attention and its gradients takes beside its inputs."""
    shapes = {"q": (1, tokens, 9, 64), "k": (1, tokens, 3, 64), "v": (1, tokens, 3, 64)}
    inputs = [gl.input(n, s) for n, s in shapes.items()]
    y, _ = ops.attention(*inputs, np.arange(tokens, dtype=np.int32)[None], scale=0.125)
    plan = gl.compile([y, *gl.gradients(y, inputs)], isa=isa, threads=2).plan
    return plan.peak_bytes


@pytest.mark.parametrize("isa", ISAS)
def test_memory_grows_with_the_tokens_not_with_their_square(isa: str) -> None:
    small, large, huge = (bytes_needed(t, isa) for t in (1024, 4096, 16384))
    assert large < 4.2 * small and huge < 4.2 * large
    assert huge < 16384 * 16384 * 4 // 2  # less than half of one head's matrix, for nine heads


def test_a_long_sequence_in_little_memory() -> None:
    """4096 tokens run, and rows picked at random are those of the formula."""
    rng = np.random.default_rng(6)
    t = 4096
    q, k, v = f32(rng, 1, t, 2, 16), f32(rng, 1, t, 1, 16), f32(rng, 1, t, 1, 16)
    positions = packed((1000, t - 1000))[None]
    inputs = [gl.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    (y,) = gl.compile(ops.attention(*inputs, positions, scale=0.25)[0])(q=q, k=k, v=v)
    for row in (0, 999, 1000, 2500, 4095):
        keys = slice(row - positions[0, row], row + 1)
        z = np.einsum("hd,sd->hs", q[0, row].astype(np.float64), k[0, keys, 0]) * 0.25
        p = np.exp(z - z.max(1, keepdims=True))
        assert np.abs(y[0, row] - p @ v[0, keys, 0] / p.sum(1, keepdims=True)).max() < 2e-6


# ---- caches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("limits", [{}, {"window": 9}, {"window": 20, "softcap": 3.0}], ids=str)
def test_a_cache_filled_piece_by_piece_gives_what_the_whole_gives(limits: dict, isa: str) -> None:
    """A prompt in chunks, then token by token: set_rows and attention on the cache, one program per length."""
    rng = np.random.default_rng(7)
    t, heads, groups, d, room = 41, 6, 2, 32, 300
    q, k, v = f32(rng, 2, t, heads, d), f32(rng, 2, t, groups, d), f32(rng, 2, t, groups, d)
    whole = [gl.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    every = np.broadcast_to(np.arange(t, dtype=np.int32), (2, t))
    (want,) = gl.compile(ops.attention(*whole, every, scale=0.2, **limits)[0], isa=isa)(q=q, k=k, v=v)
    caches = [Stored(n, np.full((2, room, groups, d), np.nan, np.float32)) for n in ("keys", "values")]
    programs = {}
    at = 0
    for n in (32, 5, 1, 1, 1, 1):
        if n not in programs:
            parts = {"q": (2, n, heads, d), "k": (2, n, groups, d), "v": (2, n, groups, d)}
            new = {name: gl.input(name, s) for name, s in parts.items()}
            place = gl.input("at", (), "i64")
            held = [
                ops.set_rows(stored_value(c), new[name], place, axis=1) for c, name in zip(caches, "kv", strict=True)
            ]
            y, _ = ops.attention(new["q"], *held, gl.input("p", (2, n), "i32"), scale=0.2, cached=True, **limits)
            programs[n] = gl.compile(y, isa=isa, poison=True)
        rows = slice(at, at + n)
        feeds = {"q": q[:, rows], "k": k[:, rows], "v": v[:, rows], "p": every[:, rows], "at": np.array(at)}
        (y,) = programs[n](**feeds)
        assert np.abs(y - want[:, rows]).max() < 1e-5
        at += n
    assert np.array_equal(caches[0].read()[:, :t], k) and np.isnan(caches[0].read()[:, t:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (20, 1)])  # dot products, and a strip of heads
@pytest.mark.parametrize("window", [1, 255, 700, 1023])
def test_one_token_at_a_long_cache_sees_its_window(window: int, heads: int, groups: int, isa: str) -> None:
    """The window may lie anywhere in the cache; what is outside of it may be NaN."""
    rng = np.random.default_rng(11)
    keys, d = 1024, 24
    q, k, v = f32(rng, 3, 1, heads, d), f32(rng, 3, keys, groups, d), f32(rng, 3, keys, groups, d)
    positions = np.array([[keys - 1], [window // 2], [min(window + 100, keys - 1)]], np.int32)
    for row, last in enumerate(positions[:, 0]):
        for x in (k, v):
            x[row, last + 1 :] = x[row, : max(last - window + 1, 0)] = np.nan
    y, _ = ops.attention(
        gl.input("q", q.shape), gl.input("k", k.shape), gl.input("v", v.shape), positions,
        scale=0.3, cached=True, window=window, softcap=6.0,
    )  # fmt: skip
    (got,) = gl.compile(y, isa=isa, threads=2)(q=q, k=k, v=v)
    for row, last in enumerate(positions[:, 0]):
        held = slice(max(last - window + 1, 0), last + 1)
        wide = [np.repeat(x[row, held].astype(np.float64), heads // groups, 1) for x in (k, v)]
        z = np.tanh(np.einsum("hd,shd->hs", q[row, 0], wide[0]) * 0.3 / 6) * 6
        p = np.exp(z - z.max(1, keepdims=True))
        want = np.einsum("hs,shd->hd", p / p.sum(1, keepdims=True), wide[1])
        assert np.abs(got[row, 0] - want).max() < 2e-6 * max(1.0, np.abs(want).max())


def test_no_gradient_through_a_cache() -> None:
    q, k, v = gl.input("q", (1, 1, 2, 8)), gl.input("k", (1, 9, 2, 8)), gl.input("v", (1, 9, 2, 8))
    y, _ = ops.attention(q, k, v, np.array([[4]], np.int32), scale=1.0, cached=True)
    with pytest.raises(GradientError, match="attention has no gradient with cached=True; node attention#"):
        gl.gradients(y, [q])


# ---- positions that cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("bad", [-1, 3])
def test_a_position_out_of_range_is_named(bad: int, backend: str) -> None:
    x = [gl.input(n, (1, 4, 1, 8)) for n in "qkv"]
    y, _ = ops.attention(*x, gl.input("p", (1, 4), "i32"), scale=1.0)
    zeros = {n: np.zeros((1, 4, 1, 8), np.float32) for n in "qkv"}
    with pytest.raises(DataError, match=rf"{bad}.*; need .*0\.\.t"):
        gl.compile(y, backend=backend)(**zeros, p=np.array([[0, 1, bad, 3]], np.int32))


def test_a_cache_position_out_of_range_is_named() -> None:
    q, k, v = gl.input("q", (1, 1, 2, 8)), gl.input("k", (1, 9, 2, 8)), gl.input("v", (1, 9, 2, 8))
    y, _ = ops.attention(q, k, v, gl.input("p", (1, 1), "i32"), scale=1.0, cached=True)
    zeros = {n: np.zeros((1, s, 2, 8), np.float32) for n, s in (("q", 1), ("k", 9), ("v", 9))}
    with pytest.raises(DataError, match=r"id 9 at position 0 is out of range; need a position of 0\.\.8"):
        gl.compile(y)(**zeros, p=np.array([[9]], np.int32))


def test_set_rows_refuses_a_place_beyond_the_cache() -> None:
    cache = Stored("cache", np.zeros((5, 3), np.float32))
    update = ops.set_rows(stored_value(cache), gl.input("rows", (2, 3)), gl.input("at", (), "i32"))
    step = gl.compile(update * 1.0, [update])
    (seen,) = step(rows=np.ones((2, 3), np.float32), at=np.array(3))
    assert seen[3:].all() and not seen[:3].any() and cache.read()[3:].all()
    for at in (-1, 4):
        with pytest.raises(DataError, match=rf"id {at} at position 0 is out of range; need a position of 0\.\.3"):
            step(rows=np.full((2, 3), 7, np.float32), at=np.array(at))
    assert cache.read().max() == 1
