"""Random programs: proved, no live buffers overlap, and the same bits however they are planned and run."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradloom as gl
from gradloom.graph.graph import update_target
from gradloom.graph.value import Node, Value
from gradloom.plan.plan import Plan
from gradloom.run.numpy_backend import evaluate
from tests.core.harness import isas
from tests.plan.random_graphs import Made, build

MORE = int(os.environ.get("TEST_EXAMPLES_FACTOR", "1"))  # a longer search by hand
RECIPES = st.lists(st.integers(0, 2**40), min_size=12, max_size=26)
TRAIN = st.sampled_from([0, 1, 2, 3, 3])


def examples(n: int) -> Any:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=n * MORE, derandomize=MORE == 1, deadline=None, database=None, suppress_health_check=checks
    )


def run(made: Made, **options: Any) -> tuple[Plan, list[np.ndarray]]:
    """Outputs, and what the parameters hold afterwards; the parameters are put back."""
    before = [p.numpy() for p in made.parameters]
    executable = gl.compile(made.outputs, made.updates, **options)
    known = {*executable.inputs, *executable.settings}
    try:
        found = executable(**{k: v for k, v in made.feeds.items() if k in known})
        return getattr(executable, "plan", None), [*found, *[p.numpy() for p in made.parameters]]
    finally:
        for p, data in zip(made.parameters, before, strict=True):
            p.stored.write(data)


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(
        x.shape == y.shape and np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(a, b, strict=True)
    )


def base_of(value: Value) -> Value:
    while value.node.op.view is not None:
        source = value.node.inputs[0]
        assert source is not None
        value = source
    return value


def lifetimes(plan: Plan) -> dict[Value, tuple[int, int]]:
    """First and last step of every arena value, from the order and the graph alone."""
    at: dict[Node, int] = {node: i for i, node in enumerate(plan.order.steps)}
    lives = {v: (i, i) for node, i in at.items() for v in node.outputs if update_target(v) is None}
    for node, i in at.items():
        for value in node.inputs:
            if value is not None and base_of(value) in lives:
                birth, death = lives[base_of(value)]
                lives[base_of(value)] = birth, max(death, i)
    for value in plan.laid.program.outputs:
        if base_of(value) in lives:
            lives[base_of(value)] = lives[base_of(value)][0], len(at)
    return {v: life for v, life in lives.items() if v in plan.placement.offsets and v.bytes}


def check_plan(plan: Plan) -> None:
    lives = lifetimes(plan)
    for node in plan.order.steps:
        for value in node.inputs:
            if value is not None and base_of(value) in lives:
                assert lives[base_of(value)][0] < plan.order.steps.index(node), "read before it is written"
    values = list(lives)
    for i, a in enumerate(values):
        for b in values[:i]:
            first, second = (a, b) if lives[a] <= lives[b] else (b, a)
            starts = plan.placement.offsets[a], plan.placement.offsets[b]
            apart = starts[0] + a.bytes <= starts[1] or starts[1] + b.bytes <= starts[0]
            handed_over = lives[first][1] == lives[second][0] and starts[0] == starts[1] and a.bytes == b.bytes
            if lives[second][0] <= lives[first][1] and not apart:
                assert handed_over, f"{a!r} and {b!r} live at the same time on the same bytes"
    live = [
        sum(v.bytes for v, (birth, death) in lives.items() if birth <= i <= death) for i in range(len(plan.order.steps))
    ]
    handed = 64 * len(values) + sum(v.bytes for v in plan.placement.inplace)
    assert plan.peak_bytes >= plan.lower_bound_bytes >= max(live, default=0) - handed
    assert plan.peak_bytes <= plan.unshared_bytes + 64
    assert all(offset % 64 == 0 for offset in plan.placement.offsets.values())


@examples(60)
@given(RECIPES, TRAIN)
@pytest.mark.slow
def test_same_bits_however_planned(recipe: list[int], train: int) -> None:
    made = build(recipe, train)
    plan, right = run(made, threads=1)
    check_plan(plan)
    for options in (
        {"threads": 2},
        {"threads": 1, "reuse": False},
        {"threads": 2, "inplace": False},
        {"threads": 1, "poison": True},
        {"threads": 1, "fuse": False},
        {"threads": 2, "check": 2, "poison": True},
    ):
        other, found = run(made, **options)
        assert same_bits(found, right), options
        if "fuse" not in options and "check" not in options:
            assert other.peak_bytes >= plan.peak_bytes or options.get("threads") == 2


@pytest.mark.slow
@examples(40)
@given(RECIPES, TRAIN, st.sampled_from(isas()))
def test_close_to_the_references(recipe: list[int], train: int, isa: str) -> None:
    """Error against float64 within the tolerance, or not far beyond that of the references run in f32."""
    made = build(recipe, train)
    _, found = run(made, isa=isa)
    _, exact = run(made, backend="numpy")
    feeds = {k: v for k, v in made.feeds.items() if k in gl.compile(made.outputs, made.updates, backend="numpy").inputs}
    rough = evaluate(made.outputs, feeds, precision="f32")
    for i, (a, b) in enumerate(zip(found, exact, strict=True)):
        assert a.shape == b.shape and np.isfinite(b).all() and np.isfinite(a).all()
        if a.size == 0:
            continue
        error = float(np.max(np.abs(a - b)))
        noise = float(np.max(np.abs(rough[made.outputs[i]] - b))) if i < len(made.outputs) else 0.0
        noise = noise if np.isfinite(noise) else 0.0  # sqrt of a number that rounds to below 0
        scale = max(1.0, float(np.max(np.abs(b))))
        assert error <= 2e-5 * scale + 16 * noise, f"output {i}: {error} of {scale}, references in f32: {noise}"


@examples(40)
@given(st.lists(st.integers(0, 2**40), min_size=20, max_size=80), st.integers(1, 3))
def test_large_plans(recipe: list[int], train: int) -> None:
    """More nodes than are worth running: planned and proved by the null backend."""
    made = build(recipe, train)
    for reuse in (True, False):
        check_plan(gl.compile(made.outputs, made.updates, backend="null", reuse=reuse).plan)
