"""run.watch: values and gradients of a program at some steps; the bits of a run are those without it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import BudgetError
from gradloom.graph.leaves import stored_value
from gradloom.graph.stored import Stored
from gradloom.graph.streams import fresh_streams
from gradloom.run.watch import histogram

ROWS, WIDE, STEPS = 12, 24, 10


class Block(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = gl.nn.Linear(WIDE, 2 * WIDE, activation="gelu"), gl.nn.Linear(2 * WIDE, WIDE)
        self.norm, self.drop = gl.nn.BatchNorm(WIDE), gl.nn.Dropout(0.2)

    def forward(self, x: gl.Value) -> gl.Value:
        return x + self.drop(self.down(self.up(self.norm(x))))


class Net(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = [Block() for _ in range(3)]
        self.head = gl.nn.Linear(WIDE, 5)

    def forward(self, x: gl.Value) -> gl.Value:
        for block in self.blk:
            x = block(x)
        return self.head(x)


@fresh_streams()
def compiled(**options: Any) -> tuple[Net, Any, dict[str, gl.Value]]:
    """A network, its compiled training step, and the values of its graph."""
    net = Net().init(2)
    x, labels = gl.input("x", (ROWS, WIDE)), gl.input("labels", (ROWS,), "i32")
    logits = net(x)
    loss = gl.named(ops.cross_entropy(logits, labels), "loss")
    parameters = net.parameters()
    gradients = gl.gradients(loss, [*parameters, logits])
    updates = [ops.assign(p, p - 0.05 * g)[0] for p, g in zip(parameters, gradients, strict=False) if g is not None]
    last = gradients[-1]
    assert last is not None
    return net, gl.compile(loss, updates, **options), {"logits": logits, "loss": loss, "gradient": last}


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"x": rng.standard_normal((ROWS, WIDE)).astype(np.float32), "labels": rng.integers(0, 5, ROWS)}


def steps(count: int = STEPS) -> dict[str, Any]:
    return {"seed": 7, "step": np.arange(1, count + 1), "row": 0}


def bits(net: gl.nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in net.state_dict().items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"threads": 1}, {"fuse": False}, {"precision": "bf16"}, {"reuse": False, "inplace": False},
     {"memory": "tight"}, {"precision": "bf16", "memory": "tight"}],
    ids=str,
)  # fmt: skip
def test_the_bits_of_a_run_are_those_without_watching(options: dict[str, Any]) -> None:
    if "memory" in options:  # which recomputes
        whole = compiled(**(options | {"memory": None}))[1].plan
        options = options | {"memory": whole.peak_bytes - (whole.peak_bytes - whole.lower_bound_bytes) // 2 - 64}
    net, run, _ = compiled(**options)
    other, plain, _ = compiled(**options)
    patterns = ["blk.*", "head*", "grad:head"] if "memory" in options else ["*", "grad:*"]
    watch = run.watch(patterns, every="3steps")
    third = run.watch("head", every=4, what="histogram")
    done, outputs = run.run_many(STEPS, steps(), feeds=feeds())
    expected, same = plain.run_many(STEPS, steps(), feeds=feeds())
    assert done == expected == STEPS and np.array_equal(outputs[0], same[0]) and run.steps_run == STEPS
    assert bits(net) == bits(other)
    assert [step for step, _ in watch.records] == [3, 6, 9] and [step for step, _ in third.records] == [4, 8]
    assert all(np.isfinite(value) for _, found in watch.records for value in found.values())
    assert {"blk.0", "blk.0.up", "blk.2.norm", "head", "head.weight", "grad:head"} <= {*watch.names}
    if "memory" in options:
        assert run.plan.recomputed.nodes and watch.run.plan.peak_bytes <= options["memory"]
    else:
        assert {"loss", "x", "grad:blk.1.down", "grad:blk.1.down.weight"} <= {*watch.names}


def test_the_values_are_those_of_the_step() -> None:
    net, run, values = compiled()
    watch = run.watch(["head", values["gradient"], "blk.0.up.weight", "grad:head", "grad:head.bias"], 2, "values")
    norms = run.watch(["head", "grad:head"], 2)
    other, whole, _ = compiled()
    expected = []
    for step in (1, 2, 3, 4):
        weight = other.state_dict()["blk.0.up.weight"]
        shown = gl.compile([values["logits"], values["gradient"]])
        state = {name: array.copy() for name, array in net.state_dict().items()}
        found = shown(**feeds(), seed=7, step=step)
        net.load_state_dict(state)  # running statistics
        expected.append((weight, *found))
        run(**feeds(), seed=7, step=step)
        whole(**feeds(), seed=7, step=step)
    assert [step for step, _ in watch.records] == [2, 4]
    for (step, found), (_, norm) in zip(watch.records, norms.records, strict=True):
        weight, logits, gradient = expected[step - 1]
        (name,) = {*watch.names} - {"head", "blk.0.up.weight", "grad:head", "grad:head.bias"}
        assert np.array_equal(found["blk.0.up.weight"], weight)  # before the step
        assert np.array_equal(found["head"], logits) and np.array_equal(found[name], gradient)
        assert np.array_equal(found["grad:head"], gradient)
        assert np.allclose(found["grad:head.bias"], gradient.sum(0), rtol=1e-5, atol=1e-7)
        assert norm["head"] == pytest.approx(np.linalg.norm(logits), rel=1e-6)
        assert norm["grad:head"] == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    assert watch.latest is watch.records[-1][1]
    watch.close()
    for step in (5, 6):
        run(**feeds(), seed=7, step=step)
    assert len(watch.records) == 2 and len(norms.records) == 3


def test_a_histogram_counts_all_numbers() -> None:
    found = histogram(np.array([[0.0, 1.0, 2.0], [np.nan, np.inf, 1.0]], np.float32))
    assert sum(found["counts"]) == 4 and found["not_finite"] == 2
    assert (found["edges"][0], found["edges"][-1], len(found["edges"])) == (0.0, 2.0, len(found["counts"]) + 1)
    assert histogram(np.full(3, np.nan)) == {"counts": [], "edges": [], "not_finite": 3}
    assert sum(histogram(np.full((5,), 3.0))["counts"]) == 5


def test_inputs_that_were_fed_before_and_a_listener() -> None:
    net, run, _ = compiled()
    seen: list[tuple[int, dict[str, float]]] = []
    watch = run.watch("head", on_values=lambda step, found: seen.append((step, dict(found))))
    run.feed(feeds())
    run.run_many(3, steps(3))
    other, plain, _ = compiled()
    plain.run_many(3, steps(3), feeds=feeds())
    assert bits(net) == bits(other) and [step for step, _ in seen] == [1, 2, 3] and not watch.records
    assert watch.latest == {}


def test_state_that_the_values_write_is_restored() -> None:
    count = Stored("count", np.zeros(3, np.float32))
    after = ops.assign(stored_value(count), stored_value(count) + 1.0)[0]
    run = gl.compile([ops.scale(after, 2.0)])
    watch = run.watch("count", what="values")
    assert [run()[0].tolist() for _ in range(3)] == [[2.0] * 3, [4.0] * 3, [6.0] * 3]
    assert [found["count"].tolist() for _, found in watch.records] == [[0] * 3, [1] * 3, [2] * 3]


def test_a_step_that_fails_is_reported_by_the_program() -> None:
    table = gl.parameter(np.ones((4, 2)), name="table")
    rows = gl.named(ops.get_rows(table, gl.input("ids", (2,), "i32")), "rows")
    updates = ops.assign(table, table * 2.0)
    run = gl.compile(ops.sum(rows), updates)
    watch = run.watch(["rows"])
    run(ids=[0, 3])
    with pytest.raises(gl.DataError, match="id 4 at position 1") as caught:
        run(ids=[0, 4])
    assert caught.value.steps_done == 0 and [step for step, _ in watch.records] == [1]  # type: ignore[attr-defined]
    assert (table.numpy() == 2).all()


def test_a_failure_in_a_later_call_counts_all_steps() -> None:
    w = gl.parameter(np.float32(1.0), name="w")
    grown = gl.named(w * 1e2, "grown")
    gradient = gl.gradients(ops.sqr(grown), [w])[0]
    assert gradient is not None
    norm = ops.guard(ops.sqr(grown), gl.constant(1.0), gradient)
    run = gl.compile([grown, norm], [ops.assign(w, grown)[0]])
    run.watch("grown", every=2)
    with pytest.raises(gl.NonFiniteError) as caught:
        run.run_many(12, {})
    failed: Any = caught.value
    steps_done, outputs = failed.steps_done, failed.outputs
    w.assign(np.float32(1.0))
    again = gl.compile([grown, norm], [ops.assign(w, grown)[0]])
    with pytest.raises(gl.NonFiniteError) as caught:
        again.run_many(12, {})
    failed = caught.value
    assert steps_done == failed.steps_done == 8 and all(map(np.array_equal, outputs, failed.outputs))


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads: int) -> None:
    _, run, _ = compiled(threads=threads)
    watch = run.watch("head", every=2, what="values")
    works = [threading.Thread(target=lambda: run.run_many(8, steps(8), feeds=feeds())) for _ in range(3)]
    for work in works:
        work.start()
    for work in works:
        work.join()
    assert run.steps_run == 24 and all(found["head"].shape == (ROWS, 5) for _, found in watch.records)
    assert len(watch.records) >= 8


def test_what_is_watched_is_planned_within_the_budget() -> None:
    x = gl.input("x", (64, 64))
    wide = gl.named(ops.matmul(x, gl.input("w", (64, 4096))), "wide")
    y = ops.sum(ops.matmul(wide, gl.input("v", (4096, 8))))
    run = gl.compile(y, memory="2MiB")
    watch = run.watch("wide", what="values")
    assert watch.run.plan.peak_bytes <= 2 << 20
    with pytest.raises(BudgetError, match="memory"):
        run.watch(["wide", "grad:wide"], what="values")
    assert run.watches == (watch,)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("hed", r"'hed' matches no module, node, input or parameter; did you mean head\?"),
        ("nothing at all", "'nothing at all' matches no module, node, input or parameter; names: "),
        ("grad:hed", r"'grad:hed' matches no .*; did you mean head\?"),
        ("grad:", "must be a pattern of names"),
        ("", "must be a pattern of names"),
        (3, "must be a pattern of names"),
        ([], "at least one pattern or node"),
        (["head", None], "must be a pattern of names"),
        ("a\x1b[31m\nb", r"a\\x1b\[31m\\nb"),
    ],
)
def test_wrong_patterns_are_named(pattern: Any, text: str) -> None:
    _, run, _ = compiled()
    with pytest.raises(gl.SettingError, match=text) as caught:
        run.watch(pattern)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and run.watches == ()


def test_other_wrong_arguments_are_named() -> None:
    _, run, _ = compiled()
    with pytest.raises(gl.SettingError, match="what.*must be 'norm' or 'histogram' or 'values'"):
        run.watch("head", what="mean")
    for every in ("10s", "steps", 0, -1, 1.5, True, "0steps"):
        with pytest.raises(gl.SettingError, match="every"):
            run.watch("head", every=every)
    with pytest.raises(gl.GraphError, match="is not a part of this program"):
        run.watch(ops.sin(gl.input("z", (3,))))
    two = gl.compile([ops.sin(gl.input("x", (3,)))])
    with pytest.raises(gl.SettingError, match=r"grad: requires a program whose first output is a loss, f32\[\]"):
        two.watch("grad:x")
    other = gl.named(ops.exp(gl.input("other", ())), "apart")
    both = gl.compile([ops.sum(gl.input("x", (3,))), other])
    with pytest.raises(gl.SettingError, match="grad:apart has no gradient: the loss does not depend on it"):
        both.watch("grad:apart")
    with pytest.raises(gl.BackendError, match="it plans and does not run"):
        gl.compile(ops.sin(gl.input("x", (3,))), backend="null").watch("x")


def test_odd_names_are_names() -> None:
    name = "a\x1b[31m b\u202e"
    y = gl.named(ops.sin(gl.input("x", (3,))), name)
    run = gl.compile(ops.sum(y))
    watch = run.watch(["a*", "grad:a*"])
    run(x=np.ones(3))
    assert {*watch.latest} == {name, f"grad:{name}"}


def test_the_definition_is_watched_too() -> None:
    net, run, _ = compiled(backend="numpy")
    other, plain, _ = compiled(backend="numpy")
    watch = run.watch(["head", "grad:head"], every=2)
    for step in (1, 2):
        run(**feeds(), seed=7, step=step)
        plain(**feeds(), seed=7, step=step)
    assert bits(net) == bits(other) and len(watch.records) == 1
