"""Predicted seconds of nodes and programs, and the speeds that they follow from."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.settings import core_count
from gradloom.graph.leaves import stored_value
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.stored import Stored
from gradloom.ops.common import Quantised
from gradloom.run.cost import (
    HANDOVER_SECONDS,
    INSTRUCTION_SECONDS,
    SHARES,
    Rates,
    node_cost,
    node_seconds,
    program_seconds,
)
from gradloom.run.rates import measure_early, measured_rates, rates_for, slow_rates

RATES = Rates(threads=2, product=2e11, product_bf16=6e11, cached=2e11, memory=1e10, cache_bytes=1 << 20)


def _zeros(*shape: int) -> gl.Value:
    return gl.constant(np.zeros(shape, np.float32))


def test_a_product_takes_its_arithmetic_at_the_rate_of_products() -> None:
    large = ops.matmul(_zeros(512, 1024), _zeros(1024, 512)).node
    took = node_seconds(large, RATES, (16,))
    ideal = 2 * 512 * 1024 * 512 / RATES.product
    assert ideal < took < 1.1 * ideal
    assert node_seconds(large, replace(RATES, product=1e11), (16,)) == pytest.approx(2 * took, rel=0.02)
    assert node_seconds(large, RATES, (1,)) == pytest.approx(2 * took, rel=0.02), "one of two threads"
    narrow = ops.matmul(_zeros(512, 8), _zeros(8, 512)).node
    assert node_seconds(narrow, RATES, (16,)) > 2 * took * 8 / 1024, "few terms do not fill the tiles"


def test_a_product_of_bf16_operands_runs_on_its_unit() -> None:
    def product(x: gl.Value) -> float:
        return node_seconds(ops.matmul(x, _zeros(512, 512)).node, RATES, (16,))

    assert product(ops.cast(_zeros(512, 512), "bf16")) < 0.5 * product(_zeros(512, 512))


def test_quantised_weights_are_decoded_once() -> None:
    x, plain = _zeros(8, 64), _zeros(64, 64)
    quantised = Quantised.draw(np.random.default_rng(0), "q8_0", (64, 64), (1, 0)).value()
    took, longer = (node_seconds(ops.matmul(x, w).node, RATES, (1,)) for w in (plain, quantised))
    assert 1.5 * took < longer < 10 * took
    rows = ops.matmul(_zeros(4000, 64), quantised).node
    assert node_seconds(rows, RATES, (1,)) < 1.1 * node_seconds(ops.matmul(_zeros(4000, 64), plain).node, RATES, (1,))


def test_bytes_decide_for_a_sum_and_their_place_counts() -> None:
    small, large = ((ops.add(x, x)).node for x in (_zeros(100, 100), _zeros(1000, 4000)))
    assert node_seconds(small, RATES, (1,)) == pytest.approx(INSTRUCTION_SECONDS + 2 * 120_000 / RATES.cached)
    moved = node_cost(large)[1]
    far = (moved - RATES.cache_bytes) / RATES.memory + RATES.cache_bytes / RATES.cached
    assert node_seconds(large, RATES, (64,)) == pytest.approx(INSTRUCTION_SECONDS + HANDOVER_SECONDS + far)


def test_parts_are_assumed_where_no_plan_states_them() -> None:
    small, large = ((ops.exp(x)).node for x in (_zeros(10, 10), _zeros(1000, 1000)))
    assert node_seconds(small, RATES) == node_seconds(small, RATES, (1,))
    assert node_seconds(large, RATES) == node_seconds(large, RATES, (2,)) < node_seconds(large, RATES, (1,))


def test_views_and_leaves_take_no_time() -> None:
    x = _zeros(4, 6)
    assert node_seconds(x.node, RATES) == node_seconds(ops.transpose(x).node, RATES) == 0


def test_a_program_takes_the_sum_of_its_instructions() -> None:
    x = gl.input("x", (64, 32))
    net = gl.nn.Sequential(gl.nn.Linear(32, 100), gl.nn.GELU(), gl.nn.Linear(100, 5))
    plan = gl.compile(net(x), threads=2).plan
    parts = [node_seconds(node, RATES, needs.parts) for node, needs in zip(plan.order.steps, plan.needs, strict=True)]
    assert len(parts) > 2 and min(parts) > 0
    assert program_seconds(plan, RATES) == pytest.approx(sum(parts))


def test_the_cost_of_a_batch_does_not_grow_with_the_data() -> None:
    def moved(rows: int) -> float:
        arrays = (np.zeros((rows, 10), np.uint8), np.arange(rows), np.array(0))
        data, order, at = (stored_value(Stored.wrap("data", array, "state")) for array in arrays)
        batch = REGISTRY["take_batch"](data, order, at, rows=5)
        return node_cost(batch.node)[1]

    assert moved(10) == moved(1000) == 5 * 10 * (1 + 4)


def test_shares_belong_to_ops() -> None:
    assert REGISTRY.keys() >= SHARES.keys()
    assert all(0 < share <= 1 for share in SHARES.values())


def test_measuring_leaves_no_arrays() -> None:
    measured_rates.cache_clear()
    measured_rates(2, is_large=True)
    assert not [one for one in gc.get_objects() if isinstance(one, Stored) and one.name == "rate"]


def test_large_programs_are_measured_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and for the same rates as later."""
    asked = []
    monkeypatch.setattr("gradloom.run.rates.measured_rates", lambda *how: asked.append(how) or slow_rates(2))
    plans = [gl.compile(ops.exp(gl.input("x", (n,))), backend="null", threads=2).plan for n in (64, 64 << 20)]
    measure_early(plans[:1])
    assert asked == []
    measure_early(plans)
    rates_for(plans, None, lambda _: 1.0, 0.0)
    assert asked == [(2, None, False, True)] * 2


def test_measured_rates_are_those_of_this_machine_and_measured_once() -> None:
    found = measured_rates(2)
    assert found is measured_rates(2)
    assert found.threads == min(2, core_count())
    assert 1e9 < found.product < 1e13 and 1e9 < found.memory < 1e13 and found.cached > 1e9
    scalar = measured_rates(1, "scalar")
    assert scalar.product <= found.product and scalar.threads == 1


def test_slow_rates_are_slower_than_the_measured_ones() -> None:
    slow, found = slow_rates(1), measured_rates(1)
    for name in ("product", "product_bf16", "cached", "memory"):
        assert getattr(slow, name) < getattr(found, name), name
