"""Quantised leaves: bytes that exist already, whole blocks everywhere, one definition of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

import gradloom as gl
from gradloom import ops
from gradloom.base.dtypes import ALL, QUANTISED, dtype
from gradloom.graph.graph import listing
from gradloom.graph.leaves import stored_value
from gradloom.graph.stored import Stored
from gradloom.ops.common import draw_blocks
from gradloom.plan import check as proof
from gradloom.plan.bytecode import KernelNeeds, call_of, lower
from gradloom.run.machine import isas
from gradloom.run.null_backend import NullExecutable

KINDS = [k.name for k in QUANTISED]


def leaf(kind: str, shape: tuple[int, ...], name: str = "w", **options):
    data = draw_blocks(np.random.default_rng(3), kind, shape)
    return stored_value(Stored.map(name, data, kind, shape, **options)), data


def test_sizes_are_those_of_the_files() -> None:
    for kind in QUANTISED:
        assert (kind.block, kind.bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[kind.name.upper()]]
        assert kind.bytes_of(3 * kind.block) == 3 * kind.bytes and kind.bytes_of(1) == kind.bytes
        assert dtype(kind.name) is kind and not kind.is_float
    assert len({k.code for k in ALL}) == len(ALL)
    assert [k.code for k in QUANTISED] == list(range(16, 26))
    assert dtype(np.uint8).name == "u8"


@pytest.mark.parametrize("kind", KINDS)
def test_a_mapped_leaf_is_its_dequantised_array(kind: str) -> None:
    w, data = leaf(kind, (6, 512))
    want = quants.dequantize(data.reshape(6, -1), GGMLQuantizationType[kind.upper()])
    assert (w.shape, w.dtype.name, w.bytes) == ((6, 512), kind, data.nbytes) and not w.trainable
    assert np.shares_memory(w.stored.read(), data) and w.stored.role == "frozen"
    assert np.array_equal(w.numpy(), want)
    got = gl.compile(ops.cast(w, "f32"), backend="numpy")()[0]
    assert got.dtype == np.float64 and np.array_equal(got, want)
    assert f"{kind}[6,512] = parameter()  # w" in listing([ops.cast(w, "f32")])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_scales_of_any_half(kind: str, isa: str) -> None:
    # Subnormal, infinite and not a number among them; the last block ends where the bytes do.
    halves = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    w, data = leaf(kind, (len(halves), 32))
    blocks = data.reshape(len(halves), -1)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    if kind in ("q4_1", "q5_1"):
        blocks[:, 2:4] = halves[::-1].copy().view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        want = quants.dequantize(blocks, GGMLQuantizationType[kind.upper()])
    got = gl.compile(ops.cast(w, "f32"), isa=isa)()[0]
    assert np.array_equal(got, want, equal_nan=True) and np.array_equal(
        np.signbit(got[want == 0]), np.signbit(want[want == 0])
    )
    x = np.ones((1, 32), np.float32)  # a token's product decodes into registers
    sums = gl.compile(ops.matmul(gl.constant(x), ops.transpose(w)), isa=isa)()[0]
    with np.errstate(all="ignore"):
        finite = np.abs(want.astype(np.float64)).sum(1) < 1e38
        assert np.allclose(
            sums[0, finite], want[finite].astype(np.float64).sum(1), rtol=1e-4, atol=1e-4 * np.abs(want[finite]).max(1)
        )


def test_mapped_arrays_of_plain_types() -> None:
    data = np.arange(6, dtype=np.float16)
    halves = Stored.map("h", data.view(np.uint8), "f16", (2, 3))
    assert halves.read().tolist() == [[0, 1, 2], [3, 4, 5]] and np.shares_memory(halves.read(), data)
    typed = Stored.map("f", np.ones((2, 2), np.float32), "f32", (4,))
    assert typed.shape == (4,) and typed.role == "frozen"
    with pytest.raises(gl.GraphError, match="parameter f: it is read-only"):
        typed.assign(np.zeros(4))


def test_what_cannot_be_mapped() -> None:
    data = np.zeros(36, np.uint8)
    for arguments, message in [
        ((data, "q4_0", (1, 48)), r"w: q4_0\[1, 48\]; need a last axis of whole blocks of 32"),
        ((data, "q4_0", ()), r"w: q4_0\[\]; need a last axis of whole blocks of 32"),
        ((data, "q4_0", (3, 32)), r"w: 36 bytes; need 54 for q4_0\[3, 32\]"),
        ((data[::2], "q4_0", (1, 32)), r"w: got uint8\[18\]; need the bytes of q4_0 without gaps"),
        ((data.view(np.int16), "f32", (9,)), r"w: got int16\[18\]; need the bytes of f32 without gaps"),
        ((data[1:33], "f32", (8,)), r"w: its bytes begin at no multiple of 4, the size of f32"),
    ]:
        with pytest.raises(gl.ShapeError, match=message):
            Stored.map("w", *arguments)


def test_numbers_do_not_become_blocks() -> None:
    numbers = np.ones((2, 32), np.float32)
    for make in (
        lambda: gl.parameter(numbers, "w", "q8_0"),
        lambda: gl.constant(numbers, "q8_0"),
        lambda: gl.input("w", (2, 32), "q8_0"),
        lambda: leaf("q8_0", (2, 32))[0] * 2.0,
        lambda: ops.cast(gl.input("w", (2, 32)), "q8_0"),
        lambda: ops.cast(leaf("q8_0", (2, 32))[0], "f16"),
    ):
        with pytest.raises(gl.DTypeError, match="q8_0"):
            make()
    for backend in ("numpy", "null", "cpu"):
        with pytest.raises(gl.DTypeError, match=r"compile: the output w .*q8_0\[2,32\], which is not read out; need a"):
            gl.compile(leaf("q8_0", (2, 32))[0], backend=backend)


def test_gradients_need_f32() -> None:
    x = gl.parameter(np.ones((3, 32)), "x")
    w, _ = leaf("q4_0", (5, 32))
    half = gl.parameter(np.ones((32, 5)), "half", dtype="f16")
    for frozen, product in ((w, ops.matmul(x, w, transpose_y=True)), (half, ops.matmul(x, half))):
        message = r"gradients: (q4_0|f16)\[.*\] has no gradient: .*--train-dtype f32\); parameter (w|half) at "
        with pytest.raises(gl.GradientError, match=message):
            gl.gradients(product, [x, frozen])
        assert gl.gradients(product, [x])[0].shape == (3, 32)


def test_checks_run_before_each_run() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 2:
            raise gl.FileError("m.gguf: it has changed")

    w, v = (stored_value(Stored.map(n, np.ones((4, 32), np.float32), "f32", (4, 32), check)) for n in "wv")
    for backend in ("cpu", "numpy"):
        calls.clear()
        run = gl.compile(ops.add(w, v), backend=backend)
        assert not calls
        run()
        assert len(calls) == 1  # one check for one file
        run()
        with pytest.raises(gl.FileError, match="it has changed"):
            run()


# ---- views and the proof -----------------------------------------------------------------------------------

WHOLE = [
    ("turned", lambda w: ops.permute(w, (1, 0))),
    ("rows", lambda w: w[1:5]),
    ("every other row", lambda w: w[::2]),
    ("blocks", lambda w: w[:, 32:96]),
    ("one row", lambda w: w[3]),
    ("split", lambda w: ops.reshape(w, (6, 4, 32))),
    ("split and turned", lambda w: ops.permute(ops.reshape(w, (6, 4, 32)), (1, 0, 2))),
    ("repeated", lambda w: ops.broadcast_to(w, (2, 6, 128))),
]
TORN = [
    ("inside", lambda w: w[:, 16:48]),
    ("half", lambda w: w[:, :16]),
    ("steps", lambda w: w[:, ::2]),
    ("small", lambda w: ops.reshape(w, (6, 8, 16))),
    ("one", lambda w: w[:, 5]),
]


@pytest.mark.parametrize("view", WHOLE, ids=lambda v: v[0])
def test_views_of_whole_blocks_are_planned_and_proved(view) -> None:
    w, _ = leaf("q4_0", (6, 128))
    run = gl.compile(ops.cast(view[1](w), "f32"), backend="null")
    arg = run.plan.bytecode.args[0]
    assert arg["dtype"] == 16 and arg["bytes"] % 18 == 0 and arg["offset"] % 18 == 0
    assert run.plan.stored_bytes == 6 * 4 * 18 and [s.role for s in run.plan.bytecode.stored] == ["frozen"]


@pytest.mark.parametrize("view", TORN, ids=lambda v: v[0])
def test_views_that_cut_blocks_are_refused(view) -> None:
    w, _ = leaf("q4_0", (6, 128))
    made = ops.cast(view[1](w), "f32")
    with pytest.raises(gl.ShapeError, match=r"cuts blocks of q4_0\[6,128\]: .*; need whole blocks of 32 .*; node "):
        gl.compile(made, backend="null")
    assert gl.compile(made, backend="numpy")()[0].shape == made.shape  # the definition has no blocks


def test_a_view_that_cannot_be_read_in_place_is_refused() -> None:
    w, _ = leaf("q4_0", (6, 128))
    rows = ops.get_rows(ops.reshape(ops.permute(ops.reshape(w, (6, 2, 64)), (1, 0, 2)), (2, 384)), gl.constant([0, 1]))
    with pytest.raises(gl.ShapeError, match=r"is a view that cannot be read in place; need q4_0\[6,128\] as it is"):
        gl.compile(rows, backend="null")


MUTANTS = [
    ("offset", lambda a: a["offset"] + 9),
    ("offset", lambda a: a["offset"] + 18),
    ("bytes", lambda a: a["bytes"] - 18),
    ("bytes", lambda a: a["bytes"] + 2),
    ("dtype", lambda a: 17),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m[0])
def test_the_proof_counts_blocks(mutant) -> None:
    """Plans of quantised operands with one number changed are refused."""
    w, _ = leaf("q4_0", (6, 128))
    run: NullExecutable = gl.compile(ops.cast(w[1:4, 32:96], "f32"), backend="null")
    plan = run.plan
    needs = [KernelNeeds()] * len(plan.order.steps)
    calls = [call_of(plan.laid, node) for node in plan.order.steps]
    bytecode, places = lower(plan.laid, plan.order, calls, needs, plan.placement)
    program = plan.laid.program
    proof.check(bytecode, program, places)
    name, change = mutant
    bytecode.args[0][name] = change(bytecode.args[0])
    with pytest.raises(gl.PlanError, match="proof: cast"):
        proof.check(bytecode, program, places)


def test_the_proof_refuses_half_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the layouter and the kernels let them pass."""
    monkeypatch.setattr("gradloom.plan.layout.keeps_blocks", lambda *_: True)
    monkeypatch.setattr("gradloom.run.cpu_backend.CpuBackend.needs", lambda *_: KernelNeeds())
    w, _ = leaf("q4_0", (6, 128))
    for _, view in TORN:
        with pytest.raises(gl.PlanError, match="proof: .*(cuts blocks of 32|ends inside a block)"):
            gl.compile(ops.cast(view(w), "f32"), backend="null")
