"""Programs on a GPU and the CPU together: the numbers of the CPU to f32 noise, its errors, equal bits run after run."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import GuardTripped, IndexOutOfRange, NotFinite
from gradloom.gpu.backend import place_of
from gradloom.graph.graph import reachable
from gradloom.graph.scope import on_device
from gradloom.graph.value import Value
from gradloom.run.scheduled import ScheduledExecutable
from tests.plan.devices import ended
from tests.plan.random_graphs import build
from tests.plan.test_placements import computed
from tests.plan.test_properties import RECIPES, TRAIN, examples, run

DEVICES = ("gpu", "cpu")
MANY = 1000 if os.environ.get("GRADLOOM_GPU_ALL") == "1" else 8  # set by `run_tests.sh --long`


class Step:
    """A training step of a small CNN whose layers from `cut` on are on the GPU. images: 2 of 8 x 8."""

    LAYERS = 4

    def __init__(self, cut: int | None) -> None:
        rng = np.random.default_rng(0)

        def made(name: str, *shape: int) -> gl.Parameter:
            return gl.parameter(rng.standard_normal(shape) / 3, name)

        self.weights = [made("k1", 4, 1, 3, 3), made("k2", 6, 4, 3, 3), made("w1", 96, 8), made("w2", 8, 5)]
        layers = [
            lambda h: ops.relu(ops.conv2d(h, self.weights[0], None, padding=1)),
            lambda h: ops.max_pool2d(ops.relu(ops.conv2d(h, self.weights[1], None, padding=1)), 2),
            lambda h: ops.tanh(ops.reshape(h, (2, 96)) @ self.weights[2]),
            lambda h: h @ self.weights[3],
        ]
        h: Value = gl.input("x", (2, 1, 8, 8))
        for i, layer in enumerate(layers):
            with on_device(None if cut is None else "gpu" if i >= cut else "cpu"):
                h = layer(h)
        self.outputs, self.updates = ended(h, gl.input("labels", (2,), "i32"), self.weights)

    def compiled(self, **options: Any) -> Any:
        return gl.compile(self.outputs, self.updates, **options)

    def kept(self) -> list[np.ndarray]:
        return [w.numpy() for w in self.weights]


def feeds(bad: str = "") -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((2, 1, 8, 8)).astype("f4")
    if bad == "nan":
        x[1, 0, 2, 3] = np.nan
    return {"x": x, "labels": np.array([1, 5 if bad == "id" else 4], np.int32)}


@pytest.mark.parametrize("cut", range(Step.LAYERS + 1))
def test_every_cut_between_two_layers(cut: int) -> None:
    one, two = Step(None), Step(cut)
    single, several = one.compiled(), two.compiled(devices=DEVICES)
    assert isinstance(several, ScheduledExecutable) == (0 < cut < Step.LAYERS)
    rates = np.linspace(0.5, 0.1, 3)
    for each in (single, several):
        each.feed(feeds())
    _, wanted = single.run_many(3, {"lr": rates})
    _, found = several.run_many(3, {"lr": rates})
    for a, b in zip([*wanted, *one.kept()], [*found, *two.kept()], strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)
    again = Step(cut)
    same = again.compiled(devices=DEVICES)
    same.feed(feeds())
    _, repeated = same.run_many(3, {"lr": rates})
    for a, b in zip([*found, *two.kept()], [*repeated, *again.kept()], strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("bad", "error"), [("nan", GuardTripped), ("id", IndexOutOfRange)])
@pytest.mark.parametrize("cut", [1, 3])
def test_what_fails_on_one_device_stops_all_updates(cut: int, bad: str, error: type[Exception]) -> None:
    step = Step(cut)
    stepping, before = step.compiled(devices=DEVICES, check=0), step.kept()
    with pytest.raises(error):
        stepping(**feeds(bad), lr=0.1)
    assert [w.tobytes() for w in step.kept()] == [b.tobytes() for b in before]
    stepping(**feeds(), lr=0.1)
    assert all((w != b).any() for w, b in zip(step.kept(), before, strict=True))


def test_a_checked_run_names_the_node() -> None:
    step = Step(2)
    with pytest.raises(NotFinite, match="conv2d"):
        step.compiled(devices=DEVICES, check=2, poison=True)(**feeds("nan"), lr=0.1)
    step.compiled(devices=DEVICES, check=2, poison=True)(**feeds(), lr=0.1)


def test_timings_of_each_device() -> None:
    stepping = Step(2).compiled(devices=DEVICES)
    stepping.collect_times()
    stepping(**feeds(), lr=0.1)
    timed = stepping.timings()
    assert len(timed) == sum(len(part.plan.order.steps) for part in stepping.plan.parts.values())
    assert any(what.startswith("gpu: matmul") and total > 0 for what, _, total in timed)


@examples(MANY)
@given(RECIPES, TRAIN, st.integers(0, 2**32))
def test_random_placements_have_the_numbers_of_the_cpu(recipe: list[int], train: int, seed: int) -> None:
    made, rng = build(recipe, train), random.Random(seed)
    for node in reachable([*made.outputs, *made.updates]):
        node.device = None if node.op.leaf else rng.choice([*DEVICES, None])
    executable = gl.compile(made.outputs, made.updates, devices=DEVICES)
    found = computed(made, executable)
    _, right = run(made)
    _, exact = run(made, backend="numpy")
    for i, (a, b, c) in enumerate(zip(found, right, exact, strict=True)):
        size = float(np.abs(c).max(initial=0.0))
        noise = max(16 * float(np.abs(b - c).max(initial=0.0)), 3e-5 * size, 1e-5)
        assert float(np.abs(a - c).max(initial=0.0)) <= noise, (i, executable.plan)


def test_a_lost_device_leaves_what_the_others_hold() -> None:
    step = Step(2)
    stepping = step.compiled(devices=DEVICES)
    stepping(**feeds(), lr=0.1)
    on_cpu, on_gpu = (stepping.parts[device].writes for device in ("cpu", "gpu"))
    assert len(on_cpu) == len(on_gpu) == 2
    before = [s.numpy() for s in on_cpu]
    place_of(0).device.raw.destroy()
    with pytest.raises(gl.DeviceLost, match="need a checkpoint to resume from"):
        stepping(**feeds(), lr=0.1)
    assert [s.numpy().tobytes() for s in on_cpu] == [b.tobytes() for b in before] and stepping.steps_run == 1
    with pytest.raises(gl.DeviceLost, match="was lost during a download"):
        on_gpu[0].numpy()
    Step(2).compiled(devices=DEVICES)(**feeds(), lr=0.1)  # on a new device


def test_a_device_holds_what_its_part_reads() -> None:
    """A weight of 4 MiB on each: the GPU takes memory for its own, and for the arena that was planned."""
    weights = [gl.parameter(np.full((1024, 1024), 1e-3), name) for name in ("here", "there")]
    h: Value = gl.input("x", (2, 1024))
    for w, device in zip(weights, ("cpu", "gpu"), strict=True):
        with on_device(device):
            h = ops.tanh(h @ w)
    gpu = place_of(0).device
    before = gpu.bytes - place_of(0).arena.bytes
    run = gl.compile(ops.sum(h), devices=DEVICES)
    run(x=np.ones((2, 1024), "f4"))
    plans = {device: part.plan for device, part in run.plan.parts.items()}
    assert [plans[d].stored_bytes for d in ("cpu", "gpu")] == [4 << 20] * 2
    taken = gpu.bytes - place_of(0).arena.bytes - before
    assert 4 << 20 <= taken < 5 << 20
    assert place_of(0).arena.bytes >= plans["gpu"].bytecode.arena_bytes
    assert run.plan.peak_bytes == sum(plan.peak_bytes for plan in plans.values())


def test_values_in_pieces_go_to_and_fro(bindings: None) -> None:
    """Values of 256 KiB, of which a small binding takes a half: from the GPU, to it, and to the caller."""
    h: Value = gl.input("x", (256, 256))
    kept = []
    for i in range(4):
        with on_device(DEVICES[i % 2]):
            h = ops.tanh(h * 1.5)
            kept.append(h[1:, ::2])
    x = np.random.default_rng(0).standard_normal((256, 256)).astype("f4")
    run = gl.compile([h, *kept], devices=DEVICES)
    assert len(run.plan.transfers) == 3
    for found, wanted in zip(run(x=x), gl.compile([h, *kept])(x=x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
