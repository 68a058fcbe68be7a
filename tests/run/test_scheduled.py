"""One program on several devices: the same numbers, the same errors and the same calls as on one."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import BackendError, GuardTripped, IndexOutOfRange, NotFinite, SettingError
from gradloom.base.settings import switches
from gradloom.graph.scope import on_device
from gradloom.graph.value import Value
from gradloom.plan.schedule import Commit, Run, Schedule, Send
from gradloom.plan.split import make_schedule
from gradloom.run.backend import plan_for
from gradloom.run.cpu_backend import CpuBackend
from gradloom.run.scheduled import ScheduledExecutable
from tests.plan.devices import DEVICES, ended, placed, registered


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    with registered():
        yield


SIZES = (6, 8, 10, 7, 5)


class Step:
    """A training step of an MLP whose layers from `cut` on are on the second device. rows of x: 4."""

    def __init__(self, cut: int | None) -> None:
        rng = np.random.default_rng(0)
        shapes = list(itertools.pairwise(SIZES))
        self.weights = [gl.parameter(rng.standard_normal(s) / 3, f"w{i}") for i, s in enumerate(shapes)]
        h: Value = gl.input("x", (4, SIZES[0]))
        for i, w in enumerate(self.weights):
            with on_device(None if cut is None else DEVICES[i >= cut]):
                h = ops.tanh(h @ w)
        self.outputs, self.updates = ended(h, gl.input("labels", (4,), "i32"), self.weights)

    def compiled(self, **options: Any) -> Any:
        return gl.compile(self.outputs, self.updates, **({"threads": 1} | options))

    def kept(self) -> list[np.ndarray]:
        return [w.numpy() for w in self.weights]


def feeds(bad: str = "") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x, labels = rng.standard_normal((4, SIZES[0])).astype("f4"), np.array([0, 1, 2, 4], np.int32)
    if bad == "nan":
        x[2, 3] = np.nan
    if bad == "id":
        labels[1] = 5
    return {"x": x, "labels": labels}


@pytest.mark.parametrize("cut", range(len(SIZES)))
def test_every_cut_between_two_layers(cut: int) -> None:
    one, two = Step(None), Step(cut)
    single, several = one.compiled(), two.compiled(devices=DEVICES)
    assert isinstance(several, ScheduledExecutable) == (0 < cut < len(SIZES) - 1)
    rates = np.linspace(0.5, 0.1, 7)
    for run in (single, several):
        run.feed(feeds())
    _, wanted = single.run_many(7, {"lr": rates})
    _, found = several.run_many(7, {"lr": rates})
    for a, b in zip(wanted[:2], found[:2], strict=True):
        assert a.tobytes() == b.tobytes()
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-6)  # the norm of the norms of each device
    assert [w.tobytes() for w in one.kept()] == [w.tobytes() for w in two.kept()]
    assert several.steps_run == 7


def test_one_device_of_several_is_that_device() -> None:
    step = Step(None)
    for devices in (("cpu",), ("cpu1", "cpu2")):
        run, single = step.compiled(devices=devices), step.compiled()
        assert not isinstance(run, ScheduledExecutable)
        assert run.plan.bytecode.args.tobytes() == single.plan.bytecode.args.tobytes()


def test_what_runs_where_is_printed() -> None:
    run = Step(2).compiled(devices=DEVICES)
    assert isinstance(run.plan, Schedule)
    shown = str(run.plan)
    for text in ("cpu1: ", "cpu2: ", "5 matmul", "transfer 0: f32[4,10] (160 B) from cpu1 to cpu2", "commit"):
        assert text in shown, text
    assert f"{len(run.plan.transfers)} copies, {run.plan.transfer_bytes} B a step" in repr(run)
    for device, planned in run.plan.parts.items():
        assert f"{device}: {len(planned.plan.order.steps)} steps, peak " in repr(run)
    assert run.plan.transfer_bytes == sum(t.bytes for t in run.plan.transfers)
    for device, part in run.parts.items():
        assert part.arena.bytes >= run.plan.parts[device].plan.bytecode.arena_bytes


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_guard_on_any_device_stops_all_updates(cut: int) -> None:
    step = Step(cut)
    run, before = step.compiled(devices=DEVICES, check=0), step.kept()
    rates = [0.1, np.inf, 0.1]  # the second step makes the weights infinite: the third one is not finite
    with pytest.raises(GuardTripped) as stopped:
        run.feed(feeds())
        run.run_many(3, {"lr": rates})
    assert stopped.value.outputs[0].shape[0] == run.steps_run == 2
    step.weights[0].assign(before[0])
    for w, b in zip(step.weights, before, strict=True):
        w.assign(b)
    with pytest.raises(GuardTripped):
        run(**feeds("nan"), lr=0.1)
    assert [w.tobytes() for w in step.kept()] == [b.tobytes() for b in before]
    run(**feeds(), lr=0.1)
    assert all((w != b).any() for w, b in zip(step.kept(), before, strict=True))


def test_an_id_out_of_range_stops_all_updates() -> None:
    step = Step(2)
    run, before = step.compiled(devices=DEVICES), step.kept()
    with pytest.raises(IndexOutOfRange, match="id 5 at position 1 is out of range"):
        run(**feeds("id"), lr=0.1)
    assert [w.tobytes() for w in step.kept()] == [b.tobytes() for b in before]


def test_a_checked_run_names_the_node() -> None:
    step = Step(2)
    run = step.compiled(devices=DEVICES, check=2, poison=True)
    with pytest.raises(NotFinite, match="tanh|matmul"):
        run(**feeds("nan"), lr=0.1)
    run(**feeds(), lr=0.1)


def test_stop_and_deadline_end_between_steps() -> None:
    step = Step(2)
    run = step.compiled(devices=DEVICES)
    run.feed(feeds())
    done, outputs = run.run_many(100000, {"lr": 0.0}, deadline=0.05)
    assert 0 < done < 100000 and outputs[0].shape == (done,)


def test_a_signal_waits_for_the_end_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(2)
    run = step.compiled(devices=DEVICES)
    run.feed(feeds())
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    first, count = run.parts["cpu2"].run_range, [0]

    def interrupted(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 5:
            signal.raise_signal(signal.SIGINT)
        return first(*args)

    monkeypatch.setattr(run.parts["cpu2"], "run_range", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            run.run_many(1000, {"lr": 0.1})
    finally:
        signal.signal(signal.SIGINT, old)
    assert 0 < stopped.value.steps_done == run.steps_run < 5  # type: ignore[attr-defined]
    again = Step(2)
    same = again.compiled(devices=DEVICES)
    same.feed(feeds())
    same.run_many(run.steps_run, {"lr": 0.1})
    assert [w.tobytes() for w in step.kept()] == [w.tobytes() for w in again.kept()]


@pytest.mark.parametrize("trained", [True, False])
def test_a_long_step_is_given_up_and_nothing_is_written(trained: bool) -> None:
    """As on one device: the products would take seconds."""
    a = gl.parameter(np.random.default_rng(0).standard_normal((768, 768)) / 28, "a", trainable=False)
    states = [gl.parameter(np.zeros(()), f"state{i}") for i in range(2)]
    h: Value = gl.input("x", (768, 768))
    with on_device("cpu1"):
        for _ in range(400):
            h = h @ a
        total = ops.sum(h)
    updates = []
    for device, state in zip(DEVICES, states, strict=True):
        with on_device(device):
            updates.append(ops.sgd(1.0, 0.0, 0.0, 1.0, state, total * 0 + 1, None)[0])
    with on_device("cpu2"):
        last = ops.tanh(total)
    run = gl.compile([last], updates if trained else [], devices=DEVICES, threads=1)
    assert isinstance(run, ScheduledExecutable)
    run.collect_times()
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(x=np.eye(768, dtype=np.float32))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, old)
    assert run.steps_run == 0 and not any(state.numpy() for state in states)
    took = [total for what, _, total in run.timings() if what.startswith("cpu1: matmul")]
    assert len(took) == 400 and took[0] > 0 and not took[-1]  # inside of the range of instructions


def test_several_threads_get_what_they_asked_for() -> None:
    x = gl.input("x", (32,))
    with on_device("cpu1"):
        h = ops.tanh(x * 2.0)
    with on_device("cpu2"):
        run = gl.compile(ops.exp(h), devices=DEVICES)
    wrong: list[int] = []

    def call(k: int) -> None:
        array = np.full(32, k / 8, "f4")
        first = run(x=array)[0].tobytes()
        wrong.extend(k for _ in range(50) if run(x=array)[0].tobytes() != first)
        if not np.allclose(np.frombuffer(first, "f4"), np.exp(np.tanh(array * 2)), rtol=1e-5):
            wrong.append(k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and run.steps_run == 4 * 51


def test_timings_of_each_device() -> None:
    run = Step(2).compiled(devices=DEVICES)
    run.collect_times()
    run(**feeds(), lr=0.1)
    timed = run.timings()
    assert len(timed) == sum(len(part.plan.order.steps) for part in run.plan.parts.values())
    assert all(total > 0 for _, _, total in timed)
    assert any(what.startswith("cpu2: matmul") for what, _, _ in timed)
    assert run.report().count("\n") > len(timed)


class Lost(Exception):
    """Stands for what a device raises that the driver takes away."""


@pytest.mark.parametrize("call", ["run_range", "bytes_of"])
def test_a_device_that_is_lost_before_all_are_ready_stops_all_updates(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its calls in turn; the program runs again when it is back."""
    wanted = Step(2)
    wanted.compiled(devices=DEVICES)(**feeds(), lr=0.1)
    step, stopped = Step(2), 0
    run, before = step.compiled(devices=DEVICES), [w.tobytes() for w in step.kept()]
    part = run.parts["cpu2"]
    right, events = getattr(part, call), run.plan.events["cpu2"]
    kind = Run if call == "run_range" else Send
    count = sum(isinstance(e, kind) for e in events[: events.index(Commit())])
    for lost in range(count):
        calls = [0]

        def failing(*args: Any, lost: int = lost, calls: list[int] = calls) -> Any:
            calls[0] += 1
            if calls[0] > lost:
                raise Lost
            return right(*args)

        monkeypatch.setattr(part, call, failing)
        with pytest.raises(Lost):
            run(**feeds(), lr=0.1)
        monkeypatch.setattr(part, call, right)
        stopped += 1
        assert [w.tobytes() for w in step.kept()] == before, lost
        assert run.steps_run == 0
    assert stopped
    run(**feeds(), lr=0.1)
    assert [w.tobytes() for w in step.kept()] == [w.tobytes() for w in wanted.kept()]


def test_devices_that_work_on_their_own_come_first() -> None:
    """Independent halves: what the GPU is to do is handed over before the CPU computes."""
    x = gl.input("x", (3, 3))
    halves = []
    for device in ("cpu1", "cpu2"):
        with on_device(device):
            halves.append(ops.tanh(ops.exp(x) @ x))
    placed_, _, _ = placed(halves, [], lambda i, node: node.device)
    made = {name: CpuBackend(switches()) for name in DEVICES}
    for ahead in DEVICES:
        schedule = make_schedule(
            placed_.program,
            placed_.device,
            lambda name, program: (program, plan_for(made[name], program, switches())),
            [ahead],
        )
        assert schedule.walk[0] == (ahead, Run(0, 3)) and not schedule.transfers


def test_arguments() -> None:
    step = Step(2)
    for wrong, text in (
        ({"devices": DEVICES, "device": "cpu"}, "device and devices are mutually exclusive"),
        ({"devices": DEVICES, "backend": "cpu"}, "backend and devices are mutually exclusive"),
        ({"devices": ()}, "devices is empty"),
        ({"devices": ("cpu1", "cpu1")}, "devices has 'cpu1' twice"),
        ({"devices": DEVICES, "arena": object()}, "arena and several devices are mutually exclusive"),
    ):
        with pytest.raises(SettingError, match=text):
            step.compiled(**wrong)
    with pytest.raises(BackendError, match="'numpy' runs whole programs"):
        step.compiled(devices=("cpu1", "cpu2", "numpy"))


def test_a_range_of_instructions_is_a_range_of_one_step() -> None:
    x = gl.input("x", (3,))
    run = gl.compile(ops.tanh(ops.exp(x) * 2.0))
    whole = run(x=np.ones(3, "f4"))[0]
    count = len(run.plan.order.steps)
    before = run.steps_run
    for first in range(count):
        assert run.run_range(first, first + 1, None, None)[0] == 0
        assert run.steps_run == before + (first == count - 1)
    assert run.bytes_of(*run.plan.output_places[0], 12, None).tobytes() == whole.tobytes()
    with pytest.raises(ValueError, match="need a range of one step"):
        run.run_range(count + 1, count + 2, None, None)


@pytest.mark.parametrize("where", [{"devices": DEVICES}, {"device": DEVICES[0]}], ids=str)
def test_caches_that_nodes_read_are_written_on_the_device_of_their_layer(where: dict[str, Any]) -> None:
    """As in generation: what the second device writes depends on what the first one has written."""
    caches = [gl.parameter(np.zeros((4, 3)), f"cache{i}") for i in range(2)]
    h, position = gl.input("x", (1, 3)), gl.input("position", (), "i32")
    for name, cache in zip(DEVICES, caches, strict=True):
        with on_device(name):
            h = h + ops.sum(ops.tanh(ops.set_rows(cache, h, position)), 0, keepdims=True)
    run = gl.compile(h, **where)
    assert isinstance(run, ScheduledExecutable) == ("devices" in where)
    found = []
    for i in range(3):
        (y,) = run(x=np.full((1, 3), i + 1.0, np.float32), position=np.int32(i))
        found.append(y)
    rows = [np.zeros((4, 3)), np.zeros((4, 3))]
    for i, y in enumerate(found):
        right = np.full((1, 3), i + 1.0)
        for kept in rows:
            kept[i] = right
            right = right + np.tanh(kept).sum(0, keepdims=True)
        np.testing.assert_allclose(y, right, rtol=1e-6)
    for cache, kept in zip(caches, rows, strict=True):
        np.testing.assert_allclose(cache.numpy(), kept, rtol=1e-6)
