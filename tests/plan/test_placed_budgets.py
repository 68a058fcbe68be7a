"""Memory budgets of several devices: each part is within its own, no bit changes, wrong clones are found."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.errors import BudgetError, PlanError, SettingError
from gradloom.graph.scope import on_device
from gradloom.graph.streams import fresh_streams
from gradloom.graph.value import Node, Value
from gradloom.plan.check_schedule import check_schedule
from gradloom.plan.plan import NOT_RECOMPUTED
from gradloom.plan.schedule import Part, Schedule
from gradloom.run.scheduled import schedule_for, scheduled
from tests.plan.devices import DEVICES, drawn, ended, placed, registered
from tests.plan.random_graphs import Made, build
from tests.plan.test_placements import computed
from tests.plan.test_properties import RECIPES, TRAIN, examples, same_bits

ROWS, WIDTH = 64, 16


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    with registered():
        yield


def stepping(layers: int = 16, devices: Sequence[str] = DEVICES) -> Made:
    """A training step with dropout whose second half is on the second device."""
    rng = np.random.default_rng(0)
    weights = [gl.parameter(rng.standard_normal((WIDTH, WIDTH)) / 3, f"w{i}") for i in range(layers)]
    with fresh_streams():
        h: Value = gl.input("x", (ROWS, WIDTH))
        for i, w in enumerate(weights):
            with on_device(devices[i >= layers // 2]):
                h = nn.Dropout(0.25)(ops.tanh(h @ w))
        outputs, updates = ended(h, gl.input("labels", (ROWS,), "i32"), weights)
    feeds = {
        "x": rng.standard_normal((ROWS, WIDTH)).astype("f4"),
        "labels": np.arange(ROWS, dtype=np.int32) % WIDTH,
        "lr": 0.1,
    }
    return Made(outputs, updates, feeds, weights)


def compiled(made: Made, **options: Any) -> Any:
    return gl.compile(made.outputs, made.updates, devices=DEVICES, threads=1, **options)


def peaks(schedule: Schedule) -> dict[str, int]:
    return {name: part.plan.peak_bytes for name, part in schedule.parts.items()}


def least_of(made: Made, device: str) -> int:
    """The least bytes that a device can meet, as an error reports them."""
    with pytest.raises(BudgetError, match=f"at least .* on '{device}'") as caught:
        compiled(made, memory={device: 1})
    return caught.value.least


@pytest.mark.parametrize("limited", [DEVICES[:1], DEVICES[1:], DEVICES], ids=str)
def test_budgets_from_the_least_to_the_whole(limited: tuple[str, ...]) -> None:
    made = stepping()
    whole = compiled(made)
    most, want = peaks(whole.plan), computed(made, whole)
    least = {name: least_of(made, name) for name in limited}
    assert all(least[name] < 0.8 * most[name] for name in limited)
    for share in (0.0, 0.5, 0.9, 1.0):
        budgets = {name: least[name] + int(share * (most[name] - least[name])) for name in limited}
        run = compiled(made, memory=budgets)
        found = peaks(run.plan)
        assert all(found[name] <= budgets[name] for name in limited)
        for name in DEVICES:
            is_small = name in limited and share < 1
            assert (run.plan.recomputed[name].nodes > 0) == is_small, (name, share)
            assert is_small or found[name] == most[name]
        assert same_bits(computed(made, run), want), budgets
        assert ("computed twice" in run.plan.summary()) == (share < 1)


def test_texts_and_the_names_of_devices() -> None:
    made = stepping()
    least = {name: least_of(made, name) for name in DEVICES}
    plan = compiled(made, memory={name: f"{-(-bytes // 1024)}KiB" for name, bytes in least.items()}).plan
    assert all(one != NOT_RECOMPUTED for one in plan.recomputed.values())
    x = gl.input("x", (64, 64))
    one = gl.compile([ops.exp(x)], memory={"cpu": "16KiB"})
    assert one.plan.peak_bytes <= 16 << 10
    with pytest.raises(BudgetError, match="at least 16384 bytes"):
        gl.compile([ops.exp(x)], device="cpu", memory={"cpu": 1})
    with pytest.raises(BudgetError, match="at least 16384 bytes .* on 'cpu2'"):  # the only device that computes
        gl.compile([ops.exp(x)], devices=("cpu2", "cpu1"), memory={"cpu2": 1})


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (1000, r"memory=1000: must be a budget for each device, such as \{'cpu1': '2GiB'\}"),
        ({"gpu": 1000}, "names 'gpu'; the devices of this program are 'cpu1', 'cpu2'"),
        ({"cpu1": "many"}, "memory='many': must be bytes"),
        ({"cpu1": 0}, "memory=0: must be bytes"),
        ({1: 1000}, "device=1: must be a name"),
    ],
)
def test_what_is_no_budget(memory: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        compiled(stepping(4), memory=memory)


def test_a_budget_has_no_effect_on_the_definition() -> None:
    with pytest.raises(SettingError, match="memory"):
        gl.compile([gl.input("x", (2,)) * 2], device="numpy", memory={"numpy": "1MiB"})


def test_plans_without_the_devices_are_those_of_the_run() -> None:
    """`null:` plans what the device would run."""
    made = stepping()
    budgets = {name: least_of(made, name) for name in DEVICES}
    here = compiled(made, memory=budgets).plan
    names = {name: f"null:{name}" for name in DEVICES}
    other = stepping(devices=tuple(names.values()))
    memory = {names[name]: bytes for name, bytes in budgets.items()}
    plan = gl.compile(other.outputs, other.updates, devices=[*memory], threads=1, memory=memory).plan
    assert {names[name]: one for name, one in here.recomputed.items()} == plan.recomputed
    assert {names[name]: bytes for name, bytes in peaks(here).items()} == peaks(plan)


@pytest.mark.slow
@examples(60)
@given(RECIPES, TRAIN, st.integers(0, 2**32), st.sampled_from([0.3, 1.0]), st.floats(0.2, 1.0), st.booleans())
def test_random_placements_within_budgets(
    recipe: list[int], train: int, seed: int, moved: float, share: float, checked: bool
) -> None:
    made, rng = build(recipe, train), random.Random(seed)
    options: dict[str, Any] = {"check": 2, "poison": True} if checked else {}
    parts = placed(made.outputs, made.updates, drawn(rng, moved), **options)
    whole = schedule_for(*parts)
    budgets = {name: max(1, int(share * bytes)) for name, bytes in peaks(whole).items() if rng.random() < 0.8}
    while True:
        try:
            small = schedule_for(*parts, budgets)
            break
        except BudgetError as error:
            failed = next(name for name in budgets if f"'{name}'" in str(error))
            assert error.least > budgets[failed], "the least bytes meet the next budget"
            budgets[failed] = error.least
    found = peaks(small)
    assert all(found[name] <= bytes for name, bytes in budgets.items()) and len(whole.parts) == len(small.parts)
    if len(whole.parts) > 1:
        want, got = (computed(made, scheduled(*parts, each)) for each in ({}, budgets))
        assert same_bits(got, want), small


def test_a_wrong_clone_is_found() -> None:
    """A node that stands for another one, or that is on two devices; an update that is there twice."""
    made = stepping()
    schedule = compiled(made, memory={name: least_of(made, name) for name in DEVICES}).plan
    check_schedule(schedule)
    device, part = next(iter(schedule.parts.items()))
    by_origin: dict[Node, list[Node]] = {}
    for node, origin in part.origins.items():
        by_origin.setdefault(origin, []).append(node)
    clone, original = next((nodes[1], origin) for origin, nodes in by_origin.items() if len(nodes) > 1)
    other = next(one for one in by_origin if one.op is original.op and one is not original)
    elsewhere = next(
        origin for name, each in schedule.parts.items() if name != device for origin in each.origins.values()
        if origin.op is original.op
    )  # fmt: skip
    for wrong, message in ((other, "computes"), (elsewhere, "computes")):
        with pytest.raises(PlanError, match=message):
            check_schedule(with_origin(schedule, device, clone, wrong))
    with pytest.raises(PlanError, match="runs on"):
        check_schedule(dataclasses.replace(schedule, device={**schedule.device, original: "another"}))
    update = next(node for node in part.origins if node.op.updates)
    twice = dataclasses.replace(part, origins=Twice(part.origins, part.origins[update]))
    with pytest.raises(PlanError, match=f"runs on {device} and again on {device}"):
        check_schedule(dataclasses.replace(schedule, parts={**schedule.parts, device: twice}))


def with_origin(schedule: Schedule, device: str, node: Node, origin: Node) -> Schedule:
    part = schedule.parts[device]
    changed = Part(part.program, part.plan, {**part.origins, node: origin})
    return dataclasses.replace(schedule, parts={**schedule.parts, device: changed})


class Twice(dict[Node, Node]):
    """The origins of a part, one of them twice."""

    def __init__(self, origins: Mapping[Node, Node], again: Node) -> None:
        super().__init__(origins)
        self.again = again

    def values(self) -> Any:
        return [*super().values(), self.again]
