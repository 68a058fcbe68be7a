"""Programs on a device: stored arrays here and there, steps that are encoded ahead, runs that stop."""

from __future__ import annotations

import copy
import gc
import itertools
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import GuardTripped, IndexOutOfRange, NotFinite
from gradloom.base.settings import Switches
from gradloom.run.backend import backend

F32 = np.float32

pytestmark = pytest.mark.usefixtures("bindings")


def counter(device: str, by: float) -> Callable[[Any], Any]:
    """A program that adds a number to an array and returns what it was."""

    def make(w: Any) -> Any:
        return gl.compile([w * 1.0], ops.assign(w, w + by), device=device)

    return make


def test_two_devices_write_one_array_in_every_order() -> None:
    """Runs here and there, assignments and reads: each sees what the last one wrote."""
    for order in itertools.product(("cpu", "gpu", "assign", "read", "state"), repeat=3):
        w = gl.parameter(np.array([1.0, 2.0, 3.0], F32), name="w")
        runs = {device: counter(device, by)(w) for device, by in (("cpu", 1.0), ("gpu", 10.0))}
        want = np.array([1.0, 2.0, 3.0], F32)
        for what in (*order, "gpu", "cpu"):
            version = w.stored.version
            if what == "assign":
                want = want * 2
                w.assign(want)
            elif what == "read":
                assert np.array_equal(w.stored.read(), want), order
            elif what == "state":
                assert np.array_equal(copy.deepcopy(w.stored).numpy(), want), order
            else:
                assert np.array_equal(runs[what]()[0], want), order
                want = want + F32(10.0 if what == "gpu" else 1.0)
            assert (w.stored.version > version) == (what in ("cpu", "gpu", "assign"))
        assert np.array_equal(w.numpy(), want), order


def test_an_array_is_uploaded_only_when_the_host_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradloom.gpu import stored as on_device

    uploads: list[str] = []
    upload = on_device.Copy.upload
    monkeypatch.setattr(
        on_device.Copy, "upload", lambda self, s, heard: (uploads.append(s.name), upload(self, s, heard))[1]
    )
    w, table = gl.parameter(np.ones(5, F32), name="w"), gl.parameter(np.ones(5, F32), name="table", trainable=False)
    run = gl.compile([w * table], ops.assign(w, w + 1.0), device="gpu")
    run.run_many(3, {})
    run.run_many(3, {})
    other = gl.compile([w + table], device="gpu")
    assert other()[0].tolist() == [8.0] * 5 and sorted(uploads) == ["table", "w"]
    assert w.numpy().tolist() == [7.0] * 5
    run()
    assert sorted(uploads) == ["table", "w"]  # the host has only read
    w.assign(np.zeros(5))
    run()
    assert uploads[2:] == ["w"] and w.numpy().tolist() == [1.0] * 5


def test_eager_reads_what_a_device_has_written() -> None:
    net = gl.nn.Sequential(gl.nn.Linear(3, 2)).init(0)
    (weight,) = [p for p in net.parameters() if p.ndim == 2]
    before = weight.numpy()
    gl.compile([], ops.assign(weight, weight * 2.0), device="gpu")()
    x = np.ones((1, 3), F32)
    bias = next(p for p in net.parameters() if p.ndim == 1).numpy()
    want = x @ (2 * before).T + bias if before.shape == (2, 3) else x @ (2 * before) + bias
    assert np.allclose(net(gl.tensor(x)).numpy(), want, atol=1e-6)


def test_saved_and_loaded_states_are_those_of_the_last_run(tmp_path: Any) -> None:
    net = gl.nn.Sequential(gl.nn.Linear(3, 2)).init(0)
    (weight,) = [p for p in net.parameters() if p.ndim == 2]
    first = net.state_dict()
    gl.compile([], ops.assign(weight, weight * 2.0), device="gpu")()
    gl.save(net, tmp_path / "net.safetensors")
    later = net.state_dict()
    assert any(not np.array_equal(first[k], later[k]) for k in first)
    net.load_state_dict(first)
    run = gl.compile([weight * 1.0], device="gpu")
    assert any(np.array_equal(run()[0], first[k]) for k in first)
    gl.load(net, tmp_path / "net.safetensors")
    assert any(np.array_equal(run()[0], later[k]) for k in later)


def guarded(w: Any) -> Any:
    """A step that fails where x is not finite, and updates w behind the guard."""
    x = gl.setting("x")
    loss = ops.sum(w) * x
    norm = ops.guard(loss, 1.0, w)
    return gl.compile([loss, norm], ops.assign(w, w + x), device="gpu")


def test_what_is_encoded_behind_a_step_that_fails_does_nothing() -> None:
    w = gl.parameter(np.ones(4, F32), name="w")
    run = guarded(w)
    run.run_many(40, {"x": np.zeros(40)})  # so that the next call encodes many steps at once
    x = np.ones(64)
    x[40] = np.nan
    with pytest.raises(GuardTripped, match="the loss or a gradient is not finite") as caught:
        run.run_many(64, {"x": x})
    assert caught.value.steps_done == 40 and len(caught.value.outputs[0]) == 40 and run.steps_run == 80
    assert w.numpy().tolist() == [41.0] * 4
    done, outputs = run.run_many(3, {"x": np.ones(3)})  # and then it goes on
    assert done == 3 and outputs[0].tolist() == [164.0, 168.0, 172.0] and w.numpy().tolist() == [44.0] * 4


def test_an_id_out_of_range_ends_the_run_before_its_updates() -> None:
    w = gl.parameter(np.arange(6, dtype=F32).reshape(3, 2), name="w")
    ids = gl.input("ids", (2,), "i32")
    rows = ops.get_rows(w, ids)
    run = gl.compile([rows], ops.assign(w, w + ops.sum(rows)), device="gpu")
    with pytest.raises(IndexOutOfRange, match="id 3 at position 1 is out of range; need 0..2"):
        run(ids=[0, 3])
    assert w.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert run(ids=[0, 2])[0].tolist() == [[0, 1], [4, 5]]


def test_a_checked_run_names_the_first_node_that_is_not_finite() -> None:
    x = gl.input("x", (300,))
    y = ops.exp(ops.log(gl.named(x * 2.0, "doubled")))
    run = gl.compile(y, device="gpu", check=2, fuse=False)
    data = np.ones(300)
    assert np.allclose(run(x=data)[0], 2.0)
    data[271:] = -1.0
    with pytest.raises(NotFinite, match="log.* produced a number that is not finite, at element 271"):
        run(x=data)


def test_poison_and_unshared_buffers_change_nothing() -> None:
    x = gl.input("x", (33, 7))
    y = ops.softmax(ops.tanh(x) * 3.0) + ops.mean(x, axes=(1,), keepdims=True)
    data = np.random.default_rng(1).standard_normal((33, 7))
    want = gl.compile(y, device="gpu")(x=data)[0]
    for ways in ({"poison": True}, {"reuse": False}, {"inplace": False}, {"check": 2, "poison": True}):
        assert np.array_equal(gl.compile(y, device="gpu", **ways)(x=data)[0], want), ways
    assert np.allclose(want, gl.compile(y)(x=data)[0], atol=1e-6)


def test_guard_bytes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that writes one element too many is found by a checked run."""
    from gradloom.gpu import calls
    from gradloom.gpu.kernels import layout
    from gradloom.gpu.kernels.table import KERNELS, Kernel

    def wild(call: calls.Call) -> list[calls.Dispatch]:
        return [layout.filled(call[1].seen_as((call[1].size + 1,)), 2.0)]

    monkeypatch.setitem(KERNELS, ("sqr", "f32"), Kernel(wild, lambda call: 0))
    y = ops.sqr(gl.input("x", (16,)))
    gl.compile(y, device="gpu")(x=np.ones(16))
    with pytest.raises(gl.TrainError, match="wrote outside its output"):
        gl.compile(y, device="gpu", check=2)(x=np.ones(16))


def test_many_steps_are_those_of_single_calls() -> None:
    """Whatever is encoded together: outputs of each step, of several dtypes and sizes, and the state."""
    results = []
    for calls in ([1] * 150, [150], [7, 143], [64, 64, 22]):
        w = gl.parameter(np.linspace(0, 1, 5, dtype=F32), name="w")
        x = gl.setting("x")
        outputs = [ops.sum(w), w * x, ops.greater(w, 0.5), ops.argmax(w, axis=0)]
        run = gl.compile(outputs, ops.assign(w, ops.sin(w + x)), device="gpu")
        xs, at, parts = np.linspace(0, 2, 150), 0, []
        for count in calls:
            done, found = run.run_many(count, {"x": xs[at : at + count]})
            assert done == count
            at += count
            parts.append(found)
        results.append([np.concatenate([p[k] for p in parts]).tobytes() for k in range(4)] + [w.numpy().tobytes()])
    assert results[0] == results[1] == results[2] == results[3]


def test_a_run_ends_at_its_deadline_and_when_it_is_told() -> None:
    w = gl.parameter(np.zeros(4, F32))
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    done, _ = run.run_many(100_000, {}, deadline=1e-9)
    assert 1 <= done < 100_000 and w.numpy().tolist() == [done] * 4 and run.steps_run == done
    done, outputs = run.run_many(3, {})
    assert done == 3 and len(outputs[0]) == 3


def test_a_signal_waits_until_all_that_was_encoded_is_counted() -> None:
    w = gl.parameter(np.zeros(4, F32))
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    submit, count = run._submit, 0

    def then_signal(*given: Any) -> Any:
        nonlocal count
        count += 1
        promise = submit(*given)
        if count == 3:
            signal.raise_signal(signal.SIGINT)
        return promise

    run._submit = then_signal
    with pytest.raises(KeyboardInterrupt) as caught:
        run.run_many(1000, {})
    done = caught.value.steps_done  # type: ignore[attr-defined]
    assert 3 <= done < 1000 and run.steps_run == done and w.numpy().tolist() == [done] * 4


def test_the_arena_grows_under_programs_that_are_there() -> None:
    small = gl.input("x", (3,))
    first = gl.compile(ops.exp(ops.sin(small) * 2.0) + small, device="gpu")
    want = first(x=[1, 2, 3])[0]
    large = gl.input("x", (300_000,))
    second = gl.compile(ops.softmax(ops.exp(large) * 2.0), device="gpu")
    assert np.allclose(second(x=np.zeros(300_000))[0].sum(), 1.0, atol=1e-3)
    assert np.array_equal(first(x=[1, 2, 3])[0], want)


def test_a_program_may_have_memory_of_its_own() -> None:
    x = gl.input("x", (1000,))
    y = ops.exp(ops.sin(x)) + ops.cos(x)
    arena = backend("gpu", Switches()).allocate(64)
    run = gl.compile(y, device="gpu", arena=arena)
    assert arena.bytes >= run.plan.bytecode.arena_bytes
    assert np.array_equal(run(x=np.ones(1000))[0], gl.compile(y, device="gpu")(x=np.ones(1000))[0])


@pytest.mark.parametrize("stamped", [True, False])
def test_each_instruction_is_timed_while_a_run_is_profiled(stamped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By timestamps, in query sets of 32; and on an adapter without them, where the table says so."""
    from gradloom.gpu import timing
    from gradloom.gpu.backend import place_of

    device = place_of(0).device
    monkeypatch.setattr(timing, "QUERIES", 32)  # resolved at multiples of 256 bytes
    if not stamped:
        monkeypatch.setattr(device, "timestamps", False)
    elif not device.timestamps:
        pytest.skip("the adapter has no timestamp-query")
    x = gl.input("x", (3, 4))
    y = ops.softmax(x)
    for _ in range(10):
        y = ops.sin(ops.cos(y))
    names = ["softmax", *["cos", "sin"] * 10]
    run = gl.compile(y, device="gpu", fuse=False)
    (want,) = run(x=np.ones((3, 4)))
    run.collect_times()
    assert run.report().splitlines()[1:] == ["no time was measured; need collect_times(), and then a run"]
    waits, wait = [], device.wait
    monkeypatch.setattr(device, "wait", lambda: (waits.append(1), wait()))
    begun = time.perf_counter_ns()
    for _ in range(3):
        assert np.array_equal(run(x=np.ones((3, 4)))[0], want)
    passed = time.perf_counter_ns() - begun
    timed = run.timings()
    assert [what.split()[0] for what, _, _ in timed] == names
    assert all(0 < least <= total / 3 for _, least, total in timed)
    assert sum(total for _, _, total in timed) < passed and bool(waits) is not stamped
    title, *rows = run.report().splitlines()
    how = (
        "by timestamps of the device" if stamped else "each instruction waited for: the adapter has no timestamp-query"
    )
    assert title.split()[:3] == ["us", "GB/s", "GFLOP/s"] and title.endswith(how)
    assert [row.split()[3] for row in rows] == names
    run.collect_times(False)
    assert run.timings() == []


def test_times_are_those_of_the_work() -> None:
    """A product of 256 times the work of another one takes longer; both times are nanoseconds of the device."""
    small, large = gl.input("small", (8, 8)), gl.input("large", (256, 128))
    run = gl.compile([small @ small, large @ ops.transpose(large)], device="gpu", fuse=False)
    feeds = {"small": np.ones((8, 8)), "large": np.ones((256, 128))}
    run(**feeds)
    run.collect_times()
    begun = time.perf_counter_ns()
    run(**feeds)
    passed = time.perf_counter_ns() - begun
    (_, few, _), (_, many, _) = run.timings()
    assert 3 * few < many < passed


def test_dropout_draws_the_masks_of_the_cpu() -> None:
    x = gl.input("x", (5, 33))
    y = ops.dropout(x, 0.3, stream=4)
    runs = [gl.compile(y, device=device) for device in ("cpu", "gpu")]
    for seed, step, row in ((0, 1, 0), (2**40 + 3, 7, 2**33), (-1, 10**6, 2**32 - 2)):
        both = [run(x=np.ones((5, 33)), seed=seed, step=step, row=row)[0] for run in runs]
        assert np.array_equal(*both) and 0 < np.count_nonzero(both[0]) < both[0].size


@pytest.mark.parametrize("steps", [1, 3])
def test_programs_without_inputs_or_outputs(steps: int) -> None:
    w = gl.parameter(np.zeros(3, F32))
    run = gl.compile([], ops.assign(w, w + 1.0), device="gpu")
    assert run.run_many(steps, {}) == (steps, []) and w.numpy().tolist() == [steps] * 3


def test_the_memory_of_a_data_set_is_given_back() -> None:
    from gradloom.gpu.backend import place_of

    device = place_of(0).device
    net = gl.nn.Sequential(gl.nn.Linear(400, 2)).init(0)
    gc.collect()
    before = device.bytes
    rows = np.zeros((1000, 400), F32)
    gl.fit(net, (rows, np.zeros(1000, np.int64)), epochs=1, batch_size=250, progress=False, device="gpu")
    assert device.bytes > before + rows.nbytes
    del rows
    gc.collect()
    assert device.bytes < before + (1 << 20)


def test_a_large_upload_is_handed_over_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu keeps a copy of what is written until something is submitted: never of a whole model."""
    from gradloom.gpu.backend import place_of

    monkeypatch.setattr("gradloom.gpu.stored.UPLOAD", 1024)
    device, waits = place_of(0).device, []
    wait = device.wait
    monkeypatch.setattr(device, "wait", lambda: (waits.append(1), wait()))
    large = np.arange(1000, dtype=np.float32)
    w, small = gl.parameter(large, "w"), [gl.parameter(large[:100], f"v{i}") for i in range(6)]
    run = gl.compile([w * 2.0, *(v * 3.0 for v in small)], device="gpu")
    for _ in range(2):  # the second time all of it lies there
        found = run()
        assert np.array_equal(found[0], large * 2) and all(np.array_equal(one, large[:100] * 3) for one in found[1:])
        assert len(waits) == 6


@pytest.mark.parametrize("norm", [ops.layer_norm, ops.rms_norm])
def test_norms_of_rows_whose_squares_overflow(norm: Any) -> None:
    rng = np.random.default_rng(0)
    x, g = rng.normal(0.5, 2, (5, 300)).astype(F32), rng.normal(size=(5, 300)).astype(F32)
    x[1] *= F32(3e18)
    x[3] *= F32(2e37)
    given, slope = gl.input("x", x.shape), gl.input("g", g.shape)
    y = norm(given)
    outputs = [y, gl.gradients(ops.sum(y * slope), [given])[0]]
    feeds = {"x": x, "g": g}
    on_gpu, on_cpu, wanted = (
        gl.compile(outputs, **where)(**feeds) for where in ({"device": "gpu"}, {}, {"backend": "numpy"})
    )
    scale = np.abs(g).max(-1, keepdims=True) / np.abs(x).max(-1, keepdims=True)
    for got in (on_gpu, on_cpu):
        assert np.allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)
        assert np.all(np.abs(got[1] - wanted[1]) <= 1e-4 * scale + 1e-37)  # a device may take denormal numbers as 0


def test_batch_norm_and_the_guard_refuse_what_overflows() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(F32)
    x[:, 1] *= F32(1e20)
    given = gl.input("x", x.shape)
    y, _, var = gl.compile(list(ops.batch_norm(given)), device="gpu")(x=x)
    assert np.isnan(y[:, 1]).all() and np.isinf(var[1]) and np.isfinite(y[:, ::2]).all()
    w = gl.parameter(np.ones(4, F32), name="w")
    norm = ops.guard(gl.constant(1.0), gl.constant(1e-20), w * 1.0)
    with pytest.raises(GuardTripped):
        gl.compile([norm], device="gpu")()
