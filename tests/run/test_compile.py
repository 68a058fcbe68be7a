"""gl.compile and what it gives back: values, feeds, settings, switches, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.settings import core_count
from tests.core.harness import isas
from tests.refused import refused

BACKENDS = ("cpu", "numpy")
ISAS = isas()


# ---- interface.md, section 1 -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"isa": isa} for isa in ISAS] + [{"backend": "numpy"}])
def test_the_first_example(options: dict[str, Any]) -> None:
    x = gl.parameter(2.0, name="x")
    a, b = gl.input("a"), gl.input("b")
    f = a * x * x + b
    (df,) = gl.gradients(f, [x])
    run = gl.compile([f, df], **options)
    found = run(a=3.0, b=4.0)
    assert [float(v) for v in found] == [16.0, 12.0]
    assert all(v.shape == () for v in found)
    if "isa" in options:
        text = str(run.plan)
        assert "steps; peak" in text and "mul.f32" in text and "@arena+" in text
        assert run.plan.peak_bytes >= run.plan.lower_bound_bytes > 0


def test_the_first_example_in_a_fresh_process() -> None:
    """Arithmetic works on the first value ever made."""
    code = (
        "import gradloom as gl\nx = gl.parameter(2.0)\na = gl.input('a')\nf = a * x * x\n"
        "print(float(gl.compile(f)(a=3.0)[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12.0"]


# ---- outputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_every_kind(backend: str) -> None:
    """A parameter, an input, a constant, a view, one value twice, a scalar, another dtype, nothing at all."""
    p, x, c = gl.parameter([[1.0, 2.0], [3.0, 4.0]], "p"), gl.input("x", (2,)), gl.constant([5.0, 6.0])
    y = p * x
    outputs = [
        p,
        x,
        c,
        ops.transpose(p),
        p[1],
        y,
        y,
        ops.sum(y),
        ops.argmax(y, 1),
        y[:, 0:0],
        gl.constant(np.int32([7])),
    ]
    found = gl.compile(outputs, backend=backend)(x=[10, 20])
    right = [
        [[1, 2], [3, 4]], [10, 20], [5, 6], [[1, 3], [2, 4]], [3, 4], [[10, 40], [30, 80]], [[10, 40], [30, 80]], 160,
        [1, 1], [[], []], [7],
    ]  # fmt: skip
    for a, b in zip(found, right, strict=True):
        assert np.array_equal(a, np.asarray(b).reshape(a.shape)) and np.shape(a) == np.shape(b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_as_an_output_is_its_value_before_the_step(backend: str) -> None:
    w = gl.parameter([1.0, 2.0], "w")
    (new,) = ops.assign(w, w * 2.0)
    (newer,) = ops.assign(new, new + 1.0)
    run = gl.compile([w, new, newer, w[:: -1 * -1]], [newer], backend=backend)
    found = run()
    assert [v.tolist() for v in found] == [[1, 2], [2, 4], [3, 5], [1, 2]]
    assert w.numpy().tolist() == [3, 5]
    assert run()[0].tolist() == [3, 5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_the_callers_own(backend: str) -> None:
    x = gl.input("x", (3,))
    run = gl.compile(x * 2.0, backend=backend)
    fed = np.float32([1, 2, 3])
    (first,) = run(x=fed)
    first[:] = 0
    fed[:] = 7
    (second,) = run(x=[1, 2, 3])
    assert second.tolist() == [2, 4, 6] and fed.tolist() == [7, 7, 7]


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_keep_their_values_between_runs(backend: str) -> None:
    """What a run feeds stays what it is; overwriting in place never reaches it."""
    x = gl.input("x", (4,))
    run = gl.compile([ops.exp(ops.sin(x)), ops.neg(x)], backend=backend)
    run.feed({"x": np.float32([1, 2, 3, 4])})
    first = run.run_many(3, {})[1]
    assert all(np.array_equal(column[0], column[2]) for column in first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_parameters_themselves(backend: str) -> None:
    """d(u v)/du = v: each update reads what the other writes; in one op and in two, both see the values before."""
    for together in (True, False):
        u, v = gl.parameter(2.0, "u"), gl.parameter(3.0, "v")
        gu, gv = gl.gradients(u * v, [u, v])
        lr, none, one = gl.constant(0.5), gl.constant(0.0), gl.constant(1.0)
        if together:
            updates = ops.sgd(lr, none, none, one, u, gu, None, v, gv, None)[::2]
        else:
            updates = ops.sgd(lr, none, none, one, u, gu, None)[:1] + ops.sgd(lr, none, none, one, v, gv, None)[:1]
        assert gl.compile(u * v, updates, backend=backend)()[0] == 6
        assert (float(u.numpy()), float(v.numpy())) == (0.5, 2.0)


def test_an_update_reached_as_an_output_is_carried_out_whole() -> None:
    for backend in BACKENDS:
        w, m = gl.parameter([1.0, 1.0], "w"), gl.parameter([0.0, 2.0], "m")
        one = gl.constant(1.0)
        new, _ = ops.sgd(one, one, gl.constant(0.0), one, w, gl.constant([1.0, 2.0]), m)
        found = gl.compile(new, backend=backend)()
        assert found[0].tolist() == w.numpy().tolist() == [0, -3]
        assert m.numpy().tolist() == [1, 4]


# ---- feeds and settings -----------------------------------------------------------------------------------


def graph() -> Any:
    x, ids = gl.input("features", (2, 3)), gl.input("labels", (2,), "i32")
    return ops.cross_entropy(x * gl.setting("rate"), ids)


GOOD = {"features": np.zeros((2, 3), np.float32), "labels": [0, 2], "rate": 1.0}
FEEDS = {
    "missing input": ({"labels": [0, 1], "rate": 1.0}, gl.GraphError, r"features is not fed; need features=f32\[2,3\]"),
    "missing setting": ({k: GOOD[k] for k in ("features", "labels")}, gl.GraphError, r"rate is not fed; need rate=f32"),
    "nothing": ({}, gl.GraphError, "is not fed.*got nothing"),
    "unknown": (GOOD | {"feature": 1.0}, gl.GraphError, "feature is not an input of .*did you mean features?"),
    "unknown, nothing near": (GOOD | {"zzz": 1.0}, gl.GraphError, "zzz is not an input of this graph; it has "),
    "shape": (GOOD | {"features": np.zeros((3, 2))}, gl.ShapeError, r"features has shape \[3, 2\]; need f32\[2, 3\]"),
    "scalar for an array": (GOOD | {"features": 1.0}, gl.ShapeError, r"features has shape \[\]; need f32\[2, 3\]"),
    "text": (GOOD | {"features": [["a", "b", "c"]] * 2}, gl.DTypeError, "features is <U1; need numbers for f32"),
    "ragged": (GOOD | {"features": [[1, 2, 3], [1]]}, gl.ShapeError, "features has rows of different lengths"),
    "fractions as ids": (GOOD | {"labels": [0.5, 1.0]}, gl.DTypeError, "labels is float64; need whole numbers for i32"),
    "ids too large": (GOOD | {"labels": [0, 2**40]}, gl.DataError, "labels: 1099511627776 at position 1"),
    "a setting of many": (GOOD | {"rate": [1.0, 2.0]}, gl.ShapeError, r"rate has shape \[2\]; need f32\[\]"),
    "a setting of text": (GOOD | {"rate": "fast"}, gl.DTypeError, "rate is <U4; need numbers"),
    "an id out of range": (GOOD | {"labels": [0, 3]}, gl.DataError, "3"),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", FEEDS)
def test_bad_feeds(case: str, backend: str) -> None:
    feeds, kind, message = FEEDS[case]
    run = gl.compile(graph(), backend=backend)
    run(**GOOD)
    with pytest.raises(kind, match=message) as refused:
        run(**feeds)
    assert "\n" not in str(refused.value)
    run(**GOOD)  # and it works again


@pytest.mark.parametrize("backend", BACKENDS)
def test_feeds_are_converted(backend: str) -> None:
    x, n = gl.input("x", (2,)), gl.input("n", (2,), "i32")
    run = gl.compile([x * 1.0, ops.cast(n, "f32")], backend=backend)
    for data in (
        [1, 2],
        np.array([1, 2], np.float16),
        np.array([True, True]) * [1, 2],
        np.array([1, 2], np.int64)[::1],
    ):
        assert run(x=data, n=np.array([3, 4], np.uint8))[0].tolist() == [1, 2]
    strided = np.arange(8.0)[::4]
    assert run(x=strided, n=[3, 4])[0].tolist() == [0, 4]


def test_settings_have_defaults_and_types() -> None:
    x = gl.input("x", (64,))
    run = gl.compile(ops.dropout(x, 0.5))
    feeds = {"x": np.ones(64, np.float32)}
    assert np.array_equal(run(**feeds)[0], run(**feeds, seed=0, step=1, row=0)[0])
    assert not np.array_equal(run(**feeds)[0], run(**feeds, seed=1)[0])
    assert not np.array_equal(run(**feeds)[0], run(**feeds, step=2)[0])
    with pytest.raises(gl.DTypeError, match="seed is float64; need whole numbers for i64"):
        run(**feeds, seed=0.5)


def test_one_name_for_two_things() -> None:
    x = ops.sum(gl.input("x", (2,))) + ops.sum(gl.input("x", (3,)))
    for backend in BACKENDS:
        with pytest.raises(
            gl.GraphError, match=r"input 'x' is f32\[2\] at .* and f32\[3\] at .*; need one shape and dtype"
        ):
            gl.compile(x, backend=backend)
    twice = gl.input("x", (2,)) + gl.input("x", (2,))  # the same thing twice is one input
    assert gl.compile(twice)(x=[1, 2])[0].tolist() == [2, 4]


# ---- compile errors ---------------------------------------------------------------------------------------


def test_what_cannot_be_compiled() -> None:
    x = gl.input("x", (3,))
    w = gl.parameter(np.ones(3), "w")
    frozen = gl.graph.leaves.stored_value(
        gl.graph.stored.Stored.wrap("frozen", np.frombuffer(bytes(12), np.float32), "frozen")
    )
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: gl.compile([]), gl.GraphError, "compile: no outputs and no updates"),
        (lambda: gl.compile([x, 3.0]), gl.GraphError, "compile: got float; need values of a graph"),
        (lambda: gl.compile(np.ones(3)), gl.GraphError, "compile: got (ndarray|float)"),
        (lambda: gl.compile(x, [x * 2.0]), gl.GraphError, "compile: the update mul .* writes to nothing"),
        (
            lambda: gl.compile(x, backend="tpu"),
            gl.BackendError,
            "backend: 'tpu' is not known; must be one of cpu, numpy, null",
        ),
        (lambda: gl.compile(x, isa="sse9"), gl.BackendError, "isa: 'sse9' cannot run here; must be one of "),
        (lambda: gl.compile(x, threads=0), gl.SettingError, "threads=0: must be"),
        (lambda: gl.compile(x, threads=True), gl.SettingError, "threads=True: must be"),
        (lambda: gl.compile(x, threads=1.5), gl.SettingError, "threads=1.5: must be"),
        (
            lambda: gl.compile([], ops.zero(x)),
            gl.GraphError,
            r"zero: it would write to f32\[3\] of input x .*need a parameter",
        ),
        (
            lambda: gl.compile([], ops.zero(w[::1].reshape(1, 3))),
            gl.GraphError,
            "zero: it would write to .* of reshape",
        ),
        (lambda: gl.compile([], ops.zero(frozen)), gl.GraphError, "zero: frozen at .* is read-only"),
        (lambda: gl.compile(x, backend="null")(x=1), gl.BackendError, "null: it plans and does not run"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_all_missing_kernels_are_listed_at_once() -> None:
    """An op without a kernel, two of them, is named before anything runs; the reference computes it anyway."""
    from gradloom.graph.declare import op
    from gradloom.graph.opspec import REGISTRY

    name = "no_kernel_for_this"
    made = op(
        name, inputs="x", doc="y = 2 x", dtypes="f32", shape=lambda x: x, vjp=lambda g: [g], reference=lambda x: 2 * x,
        no_samples="made by a test",
    )  # fmt: skip
    try:
        x = gl.input("x", (2,))
        y = made(x) + ops.cast(ops.cast(x, "f16"), "f32") + ops.sum(made(ops.neg(x)))
        with pytest.raises(
            gl.BackendError, match=rf"cpu \w+ has no kernel for: {name} f32 \({name}#\d+ at .*backend='numpy'"
        ):
            gl.compile(y)
        assert gl.compile(y, backend="numpy")(x=[1, 2])[0].tolist() == [-3, 0]
    finally:
        del REGISTRY[name]


def test_a_value_needed_before_and_after_its_update() -> None:
    w = gl.parameter([1.0], "w")
    (new,) = ops.assign(w, w * 2.0)
    with pytest.raises(gl.GraphError, match="needs a parameter's value both before and after its update"):
        gl.compile(w * new)
    kept = ops.copy(w)
    assert gl.compile(kept * new)()[0].tolist() == [2]


def test_two_updates_of_one_value() -> None:
    """Neither comes first: both start from the same value."""
    w = gl.parameter([1.0], "w")
    with pytest.raises(gl.GraphError):
        gl.compile([], [*ops.assign(w, w * 2.0), *ops.zero(w)])


# ---- switches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "field", "seen"),
    [
        ("GRADLOOM_REUSE", "0", "reuse", False), ("GRADLOOM_INPLACE", "0", "inplace", False),
        ("GRADLOOM_FUSE", "0", "fuse", False), ("GRADLOOM_POISON", "1", "poison", True),
        ("GRADLOOM_CHECK", "2", "check", 2), ("GRADLOOM_FLUSH", "1", "flush", True),
        ("GRADLOOM_THREADS", "1", "threads", 1), ("GRADLOOM_ISA", "scalar", "isa", "scalar"),
    ],
)  # fmt: skip
def test_the_environment_sets_defaults(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, seen: Any
) -> None:
    for variable in [v for v in os.environ if v.startswith("GRADLOOM_")]:
        monkeypatch.delenv(variable)
    x = gl.input("x", (40,))
    y = ops.relu(ops.exp(ops.sin(x)) + 1.0)
    plain = gl.compile(y)
    monkeypatch.setenv(name, value)
    run = gl.compile(y)
    assert getattr(run.switches, field) == seen
    assert run.isa == (seen if field == "isa" else plain.isa)
    data = np.linspace(-1, 1, 40)
    if field != "isa":
        assert run(x=data)[0].tobytes() == plain(x=data)[0].tobytes()
    other = {"isa": plain.isa, "threads": core_count(), "check": 0}.get(field, not seen)
    assert getattr(gl.compile(y, **{field: other}).switches, field) == other


@pytest.mark.parametrize(
    ("name", "value"),
    [("GRADLOOM_REUSE", "2"), ("GRADLOOM_FUSE", "yes"), ("GRADLOOM_CHECK", "3"), ("GRADLOOM_FLUSH", "2"),
     ("GRADLOOM_THREADS", "0"), ("GRADLOOM_DEBUG", "x")],
)  # fmt: skip
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with refused(name, value, need="a whole number"):
        gl.compile(gl.input("x") * 2.0)


def test_reuse_and_in_place_do_what_they_say() -> None:
    x = gl.input("x", (1000,))
    y = ops.exp(ops.sin(ops.cos(ops.tanh(x))))
    plans = {
        name: gl.compile(y, **options).plan
        for name, options in {"all": {}, "no reuse": {"reuse": False}, "no inplace": {"inplace": False}}.items()
    }
    assert plans["all"].peak_bytes < plans["no inplace"].peak_bytes < plans["no reuse"].peak_bytes
    assert plans["no reuse"].peak_bytes == plans["no reuse"].unshared_bytes
    assert plans["all"].placement.inplace and not plans["no inplace"].placement.inplace


def test_more_threads_than_cores_are_not_started() -> None:
    run = gl.compile(gl.input("x", (4,)) * 2.0, threads=1000)
    assert run.switches.threads == core_count()
    assert run(x=[1, 2, 3, 4])[0].tolist() == [2, 4, 6, 8]


# ---- checked runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"reuse": False}, {"poison": True}, {"poison": True, "reuse": False}])
def test_a_checked_run_names_the_first_bad_node(options: dict[str, Any]) -> None:
    x = gl.input("x", (5,))
    with gl.scope("layer"):
        y = ops.log(x)
    run = gl.compile(ops.sum(ops.exp(y) * 2.0), check=2, **options)
    assert run(x=[1, 1, 1, 1, 1])[0] == 10
    with pytest.raises(gl.NonFiniteError, match=r"log layer at .* produced a number that is not finite, at element 3"):
        run(x=[1, 1, 1, -1, 1])
    assert run(x=[1, 1, 1, 1, 1])[0] == 10


def test_guard_bytes_lie_between_buffers_only() -> None:
    """With reuse a buffer may lie where another's guard would be: such guards are left out, the rest stand."""
    x = gl.input("x", (3, 7))
    a = ops.exp(x)
    y = ops.concat([a, ops.sin(a), ops.sum(a, 0, keepdims=True)], 0) @ ops.transpose(a)
    plain, checked = gl.compile([y, a]), gl.compile([y, a], check=2)
    assert checked.plan.bytecode.guards and not plain.plan.bytecode.guards
    data = np.linspace(-1, 1, 21).reshape(3, 7)
    assert all(p.tobytes() == c.tobytes() for p, c in zip(plain(x=data), checked(x=data), strict=True))
    offsets = [(checked.plan.placement.offsets[v], v.bytes) for v in checked.plan.order.buffers]
    for _, start, size in checked.plan.bytecode.guards:
        assert all(start + size <= o or o + n <= start for o, n in offsets)
    for offset, n in offsets:  # the byte after each buffer is a guard's or another buffer's
        after = offset + n
        guarded = any(s <= after < s + size for _, s, size in checked.plan.bytecode.guards)
        assert guarded or any(o <= after < o + m for o, m in offsets)


# ---- null: plans of any size --------------------------------------------------------------------------------


def test_null_plans_what_no_machine_could_hold() -> None:
    x, w = gl.input("x", (10**6, 10**6)), gl.parameter(np.ones((4, 4)), "w")
    big = ops.transpose(ops.exp(x)) * 2.0
    y = ops.sum(big[5:, ::3]) + ops.sum(w)
    plan = gl.compile([y, *gl.gradients(y, [w])], backend="null").plan
    assert plan.peak_bytes >= 4 * 10**12 and plan.peak_bytes >= plan.lower_bound_bytes
    assert "TiB" in plan.summary() or "GiB" in plan.summary()


def test_null_has_no_kernels_to_miss() -> None:
    y = ops.cast(gl.input("x", (3,), "f16"), "f32")
    assert len(gl.compile(y, backend="null").plan.order.steps) == 1


def test_null_plans_what_the_cpu_would_run() -> None:
    x, w = gl.input("x", (300, 400)), gl.parameter(np.ones((400, 500)), "w")
    y = ops.sum(ops.softmax(x @ w))
    values = [y, *gl.gradients(y, [w])]
    null, cpu = (gl.compile(values, backend=name, threads=2).plan for name in ("null", "cpu"))
    assert (
        null.bytecode.args.tobytes() == cpu.bytecode.args.tobytes()
        and null.bytecode.scratch_bytes == cpu.bytecode.scratch_bytes
    )
    assert null.bytecode.instructions["parts"].tolist() == cpu.bytecode.instructions["parts"].tolist()
    assert null.peak_bytes == cpu.peak_bytes and null.bytecode.instructions["parts"].max() > 1


def test_more_memory_than_there_is_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradloom.base import memory
    from gradloom.run import cpu_backend

    x = gl.input("x", (64, 1 << 20))
    y = ops.sum(ops.exp(x) * ops.sin(x))
    before = cpu_backend.arena().bytes
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 100 << 20))
    with pytest.raises(gl.BackendError, match=r"plan: .*MiB more of memory are needed, 100.00 MiB are available; need"):
        gl.compile(y)
    assert cpu_backend.arena().bytes == before
