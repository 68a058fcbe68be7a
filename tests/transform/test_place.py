"""Place: who runs where, what is copied, and that the updates of all devices wait for all gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.settings import switches
from gradloom.graph.graph import check_graph, reachable, storage_leaf, update_target
from gradloom.graph.scope import on_device
from gradloom.graph.value import Node, Value
from gradloom.optim.state import OptimizerState
from gradloom.run.backend import backend, plan_for
from gradloom.step.step import end_step
from gradloom.transform.passes import rewrite
from gradloom.transform.place import Placed, place
from gradloom.transform.program import Program, gather
from tests.plan.random_graphs import build


def everywhere(device: str, node: Node) -> bool:
    return True


def lacks(**ops_of: str) -> Callable[[str, Node], bool]:
    """Devices without kernels for some ops: lacks(gpu="exp log")."""
    return lambda device, node: node.op.name not in ops_of.get(device, "").split()


def placed(
    outputs: Sequence[Value],
    updates: Sequence[Value] = (),
    runs: Callable[[str, Node], bool] = everywhere,
    devices: Sequence[str] = ("gpu", "cpu"),
) -> Placed:
    return checked(place(rewrite(gather(outputs, updates)), devices, runs), devices)


def checked(made: Placed, devices: Sequence[str] = ("gpu", "cpu")) -> Placed:
    """The promises of Placed, by a walk of its own."""
    check_graph(made.program.nodes)
    written = {storage_leaf(v) for n in made.program.nodes for v in n.outputs if update_target(v) is not None}
    seen: set[Node] = set()
    copied: set[tuple[Value, str]] = set()
    for node in made.program.nodes:
        assert set(node.after) <= seen
        seen.add(node)
        if node.op.leaf:
            assert (node in made.device) == (node.outputs[0] in written), node
            continue
        assert made.device[node] in devices
        across = [
            v for v in node.inputs if v is not None and made.device.get(v.node, made.device[node]) != made.device[node]
        ]
        if across:
            assert node.op.name == "copy" and node in made.copies()
            (value,) = across
            assert (value, made.device[node]) not in copied, "copied twice"
            copied.add((value, made.device[node]))
    assert set(made.device) <= seen
    assert len(made.copies()) == len(copied)
    return made


def where(made: Placed, op: str) -> list[str]:
    return [made.device[n] for n in made.program.nodes if n.op.name == op and n not in made.copies()]


def copied(made: Placed) -> list[tuple[str, str, str]]:
    """(op, from, to) of each copy."""
    pairs = [(n.inputs[0].node, n) for n in made.copies() if n.inputs[0] is not None]
    return [(source.op.name, made.device[source], made.device[n]) for source, n in pairs]


def run(program: Program, **feeds: Any) -> list[np.ndarray]:
    """A placed program is a program like any other: on one device it computes the same."""
    chosen = switches(threads=1, isa="scalar")
    made = backend("cpu", chosen)
    return made.load(program, plan_for(made, program, chosen))(**feeds)


# ---- rules ------------------------------------------------------------------------------------------------


def test_what_nobody_says_runs_on_the_first_device() -> None:
    x = gl.input("x", (4, 3))
    made = placed([ops.sum(ops.exp(x) @ gl.parameter(np.ones((3, 2))))])
    assert set(made.device.values()) == {"gpu"} and not made.copies()


def test_a_node_runs_where_it_is_said_to_and_others_follow_their_inputs() -> None:
    x = gl.input("x", (4, 3))
    with on_device("cpu"):
        h = ops.exp(x)
    made = placed([ops.log(h)])
    assert where(made, "exp") == where(made, "log") == ["cpu"] and not made.copies()
    with on_device("gpu"):
        y = ops.log(h)
    made = placed([y])
    assert (where(made, "exp"), where(made, "log")) == (["cpu"], ["gpu"])
    assert copied(made) == [("exp", "cpu", "gpu")]


def test_assigned_devices_outlive_the_passes() -> None:
    """Fusion, merging and the gradient keep them."""
    x, w, b = gl.input("x", (4, 3)), gl.parameter(np.ones((3, 2))), gl.parameter(np.ones(2))
    with on_device("cpu"):
        h = ops.relu(x @ w + b)
    with on_device("gpu"):
        y = ops.sum(ops.exp(h))
    gradients = gl.gradients(y, [w, b])
    made = placed([y, *[g for g in gradients if g is not None]])
    assert where(made, "matmul_act") == ["cpu"]
    assert set(where(made, "exp")) == {"gpu"}
    assert [made.device[v.node] for v in made.program.outputs] == ["gpu", "cpu", "cpu"]
    assert sorted(copied(made)) == [("exp", "gpu", "cpu"), ("matmul_act", "cpu", "gpu")]
    with on_device("cpu"):
        one = ops.exp(x)
    with on_device("gpu"):
        two = ops.exp(x)
    assert sorted(where(placed([one, two]), "exp")) == ["cpu", "gpu"]


def test_gradients_of_a_value_are_summed_before_they_are_copied() -> None:
    """As at the border of two blocks with residual streams: one copy forward, one backward."""
    x, w, v = gl.input("x", (4, 3)), gl.parameter(np.ones((3, 3)), "w"), gl.parameter(np.ones((3, 3)), "v")
    with on_device("cpu"):
        h = ops.tanh(x @ w)
    with on_device("gpu"):
        y = ops.sum(ops.exp(h + ops.tanh(h @ v)))
    gradients = [g for g in gl.gradients(y, [w, v]) if g is not None]
    made = placed([y, *gradients])
    assert [(a, b) for _, a, b in copied(made)] == [("cpu", "gpu"), ("gpu", "cpu")]


def test_a_node_runs_where_its_weights_are_said_to_lie() -> None:
    x, w = gl.input("x", (400, 3)), gl.parameter(np.ones((3, 2)))
    w.stored.device = "cpu"
    with on_device("gpu"):
        h = ops.exp(x)  # more bytes than the weights
    made = placed([h @ w])
    assert where(made, "matmul") == ["cpu"] and copied(made) == [("exp", "gpu", "cpu")]


def test_a_node_runs_where_most_bytes_of_its_inputs_lie() -> None:
    x, y = gl.input("x", (4, 3)), gl.input("y", (1, 3))
    with on_device("gpu"):
        small = ops.exp(y)
    with on_device("cpu"):
        large = ops.exp(x)
    made = placed([small + large])
    assert where(made, "add") == ["cpu"] and copied(made) == [("exp", "gpu", "cpu")]


def test_what_is_before_a_node_that_is_said_stays_on_the_first_device() -> None:
    h = ops.exp(gl.input("x", (4, 3)) @ gl.parameter(np.ones((3, 2))))
    with on_device("cpu"):
        y = ops.log(h)
    made = placed([y])
    assert where(made, "exp") == where(made, "matmul") == ["gpu"] and copied(made) == [("exp", "gpu", "cpu")]


def test_without_a_kernel_the_composition_runs_there_else_the_next_device() -> None:
    x = gl.input("x", (4, 3))
    made = placed([ops.exp(ops.log_softmax(x)), ops.sin(x)], runs=lacks(gpu="log_softmax sin"))
    assert not where(made, "log_softmax") and where(made, "sin") == ["cpu"]
    assert len(where(made, "exp")) >= 2 and set(where(made, "exp")) == {"gpu"}
    made = placed([ops.exp(ops.log_softmax(x))], runs=lacks(gpu="log_softmax exp"))  # its composition has an exp
    assert set(where(made, "exp")) == {"cpu"} and made.copies()


def test_leaves_views_and_scalars_are_on_each_device_that_reads_them() -> None:
    x, w = gl.input("x", (4, 3)), gl.parameter(np.ones((2, 3)))
    rate = gl.graph.leaves.setting("rate")
    scale = 1.0 / (rate + 1.0)
    found = []
    for device in ("gpu", "cpu"):
        with on_device(device):
            found.append(ops.exp(x) @ w.T * scale)
    made = placed(found)
    assert not made.copies()
    assert sorted(where(made, "div")) == ["cpu", "gpu"]
    assert all(not n.op.leaf for n in made.device)


def test_a_view_of_a_copy_costs_no_second_copy_and_a_part_is_copied_alone() -> None:
    x = gl.input("x", (40, 3))
    with on_device("cpu"):
        h = ops.exp(x)
    with on_device("gpu"):
        y, z = ops.log(h.T), ops.sin(h)
    assert copied(placed([y, z])) == [("exp", "cpu", "gpu")]
    with on_device("gpu"):
        part = ops.log(h[:2])
    made = placed([part])
    assert copied(made) == [("slice", "cpu", "gpu")]
    assert made.copies()[0].outputs[0].shape == (2, 3)


def test_halves_are_copied_as_halves() -> None:
    with on_device("cpu"):
        half = ops.cast(ops.exp(gl.input("x", (4, 3))), "f16")
    with on_device("gpu"):
        y = ops.exp(ops.cast(half.T, "f32"))
    made = placed([y, ops.cast(half, "f32")])
    assert copied(made) == [("cast", "cpu", "gpu")]


def test_a_device_that_is_not_there_is_refused() -> None:
    x = gl.input("x", (4, 3))
    with on_device("gpu:1"):
        y = ops.exp(x)
    with pytest.raises(gl.SettingError, match=r"devices: exp .* is assigned to 'gpu:1'; must be one of 'gpu', 'cpu'"):
        placed([y])
    w = gl.parameter(np.ones(3), "w")
    w.stored.device = "gpu:1"
    with pytest.raises(gl.SettingError, match="devices: parameter w .* is assigned to 'gpu:1'"):
        placed([x * w])


# ---- updates ----------------------------------------------------------------------------------------------


def network(cut: int) -> tuple[list[Value], list[Any]]:
    """(outputs loss and weight, parameters) of three layers, the first `cut` of them on the CPU."""
    rng = np.random.default_rng(0)
    x, labels = gl.input("x", (5, 4)), gl.input("labels", (5,), "i32")
    sizes, h, parameters = (4, 6, 6, 3), x, []
    for i in range(3):
        w = gl.parameter(rng.standard_normal((sizes[i], sizes[i + 1])) / 2, f"w{i}")
        b = gl.parameter(np.zeros(sizes[i + 1]), f"b{i}")
        parameters += [w, b]
        with on_device("cpu" if i < cut else "gpu"):
            h = h @ w + b
            h = ops.relu(h) if i < 2 else h
    loss, weight = ops.cross_entropy_pair(h, labels)
    return [loss, weight], parameters


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: gl.optim.SGD(lr=0.1),
    "momentum": lambda: gl.optim.SGD(lr=0.1, momentum=0.9),
    "nesterov": lambda: gl.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: gl.optim.AdamW(lr=0.01),
    "lion": lambda: gl.optim.Lion(lr=0.01),
    "rmsprop": lambda: gl.optim.RMSprop(lr=0.01, momentum=0.9),
    "adafactor": lambda: gl.optim.Adafactor(lr=0.01),
    "muon": lambda: gl.optim.Muon(lr=0.01, groups=[{"match": "b*", "optimizer": gl.optim.AdamW(lr=0.01)}]),
    "groups": lambda: gl.optim.SGD(lr=0.1, groups=[{"match": "b*", "lr": 0.2}]),
}


def step(cut: int, optimizer: str = "sgd", average: bool = False, **options: Any) -> tuple[list[Value], list[Value]]:
    (loss, weight), parameters = network(cut)
    state = OptimizerState(OPTIMIZERS[optimizer](), parameters)
    state.place([(p.stored.name, p) for p in parameters])
    if average:
        state.average = gl.optim.average.Average(0.9)
    gradients = gl.gradients(loss, parameters)
    norms, updates = end_step(state, parameters, gradients, loss, weight, **options)
    return [loss, *norms], list(updates)


def ancestors(node: Node) -> set[Node]:
    return set(reachable(node.outputs))


def guarded(made: Placed, update: Node) -> set[Value]:
    """The gradients and losses that the guards look at behind which an update comes, through copies and norms."""
    behind: set[Value] = set()
    for guard in (n for n in ancestors(update) if n.op.guard and made.device[n] == made.device[update]):
        todo = [v for i, v in enumerate(guard.inputs) if v is not None and i != 1]
        while todo:
            value = todo.pop()
            node = value.node
            if node.op.name in ("copy", "grad_norm", "where"):
                todo += [v for v in node.inputs if v is not None]
            elif not node.op.leaf and node.op.name != "less":
                behind.add(value)
    return behind


def numbers(values: Iterable[Value]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((v.node.op.name, v.shape) for v in values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_every_update_waits_for_all_gradients_of_all_devices(cut: int, optimizer: str) -> None:
    made = placed(*step(cut, optimizer, max_norm=1.0))
    whole = rewrite(gather(*step(cut, optimizer, max_norm=1.0)))
    (guard,) = [n for n in whole.nodes if n.op.guard]
    expected = numbers(v for i, v in enumerate(guard.inputs) if v is not None and i != 1)
    assert len(expected) == 7  # the loss, six gradients
    updates = [n for n in made.program.nodes if n.op.updates]
    assert {made.device[n] for n in updates} == ({"gpu", "cpu"} if 0 < cut < 3 else {"gpu"} if cut == 0 else {"cpu"})
    for update in updates:
        if 0 < cut < 3:
            assert numbers(guarded(made, update)) == expected, update
    assert len({v for n in updates for v in n.outputs} & {*made.program.effects}) == len(whole.effects)


@pytest.mark.parametrize("cut", [1, 2])
def test_nothing_of_the_size_of_a_gradient_or_weight_crosses_a_border(cut: int) -> None:
    made = placed(*step(cut, "adamw", max_norm=1.0))
    sizes = sorted(n.outputs[0].shape for n in made.copies() if n.outputs[0].shape)
    assert sizes == [(5, 6), (5, 6)]  # the activations forward, their gradient backward
    scalars = [n.inputs[0].node.op.name for n in made.copies() if not n.outputs[0].shape and n.inputs[0] is not None]
    assert sorted(scalars) == ["cross_entropy_sum", "cross_entropy_sum", "where", "where"]


CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "clip": {"max_norm": 0.01}, "value": {"max_value": 0.01}, "average": {"average": True},
    "window": {"accumulates": True, "updates": False}, "last": {"accumulates": True, "max_norm": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "groups"])
def test_a_placed_step_computes_what_the_step_computes(optimizer: str, case: str) -> None:
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((5, 4)).astype(np.float32), "labels": np.arange(5, dtype=np.int32) % 3}
    settings = {"keep": 0.0, "opt.step": 1, **OPTIMIZERS[optimizer]().at(0, 0)}
    results = []
    for cut in (None, 1, 2):
        outputs, updates = step(cut or 0, optimizer, **CASES[case])
        program = rewrite(gather(outputs, updates))
        if cut is not None:
            program = checked(place(program, ("gpu", "cpu"), everywhere)).program
        known = {n.attrs["key"] for n in program.nodes if n.op.name == "setting"}
        computed = run(program, **feeds, **{k: v for k, v in settings.items() if k in known})
        written = {storage_leaf(v).node.attrs["stored"].name: storage_leaf(v).node for v in program.effects}
        results.append((computed, {k: n.attrs["stored"].numpy() for k, n in sorted(written.items())}))
    for computed, arrays in results[1:]:
        np.testing.assert_allclose(computed, results[0][0], rtol=1e-6)
        assert arrays.keys() == results[0][1].keys()
        for name, array in arrays.items():
            np.testing.assert_allclose(array, results[0][1][name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("where_bad", ["w0", "w2"])
def test_a_gradient_that_is_not_finite_stops_all_updates(where_bad: str) -> None:
    """Also where a device's gradient is large and not infinite: its square is no f32."""
    outputs, updates = step(1)
    made = placed(outputs, updates)
    stored = {n.name: n.attrs["stored"] for n in made.program.nodes if n.op.name == "parameter"}
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    feeds = {"x": x, "labels": np.zeros(5, np.int32)}
    rates = {"opt.lr": 0.1, "opt.momentum": 0.0, "opt.weight_decay": 0.0}
    for bad in (math.nan, math.inf, 1e25):
        before = {name: s.numpy() for name, s in stored.items()}
        weights = before[where_bad] * bad
        stored[where_bad].assign(weights)
        with pytest.raises(gl.TrainError, match="not finite"):
            run(made.program, **feeds, **rates)
        assert all(np.array_equal(s.numpy(), before[n]) for n, s in stored.items() if n != where_bad)
        stored[where_bad].assign(before[where_bad])


def test_a_written_array_has_one_home_and_is_copied_to_its_readers() -> None:
    x, w = gl.input("x", (4,)), gl.parameter(np.zeros(4), "w")
    with on_device("gpu"):
        y = ops.exp(x) + w
    with on_device("cpu"):
        update = ops.assign(w, ops.log(x))
    made = placed([y], [update[0]])
    assert copied(made) == [("parameter", "cpu", "gpu")]
    assert where(made, "assign") == ["cpu"]
    leaf = next(n for n in made.program.nodes if n.op.name == "parameter")
    assert made.device[leaf] == "cpu"


def test_two_updates_of_an_array_on_two_devices_are_refused() -> None:
    a, b = gl.parameter(np.zeros(3), "a"), gl.parameter(np.zeros(3), "b")
    a.stored.device, b.stored.device = "cpu", "gpu"
    first = ops.sgd(0.1, 0.9, 0.0, 1.0, a, gl.input("x", (3,)), b)
    with pytest.raises(gl.GraphError, match="updates a, which is assigned to 'cpu', and b on 'gpu'; need one device"):
        placed([], first)


def test_running_statistics_are_updated_where_their_layer_is() -> None:
    norm = nn.BatchNorm(3)
    x = gl.input("x", (4, 3))
    with on_device("cpu"):
        h = norm(x)
    with on_device("gpu"):
        y = ops.sum(ops.exp(h))
    made = placed([y])
    assert set(where(made, "assign")) == {"cpu"}


# ---- any program -------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    recipe=st.lists(st.integers(0, 2**31), min_size=1, max_size=12),
    train=st.integers(0, 3),
    devices=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7),
    lacking=st.sets(st.sampled_from(["matmul", "add", "sum", "exp", "layer_norm", "softmax", "mul", "gather"])),
)
def test_any_program_on_any_devices_computes_the_same(
    recipe: list[int], train: int, devices: list[str | None], lacking: set[str]
) -> None:
    """Nodes are said to run anywhere; device a lacks some kernels."""
    made = build(recipe, train)
    program = rewrite(gather(made.outputs, made.updates))
    for i, node in enumerate(program.nodes):
        node.device = devices[i % len(devices)]
    result = place(program, ("a", "b", "c"), lambda device, node: device != "a" or node.op.name not in lacking)
    checked(result, ("a", "b", "c"))
    keys = {n.attrs["key"] for n in program.nodes if n.op.name == "input"}
    feeds = {k: v for k, v in made.feeds.items() if k in keys} | {
        n.attrs["key"]: 0.5 if n.outputs[0].dtype.is_float else 3 for n in program.nodes if n.op.name == "setting"
    }
    guards = [n for n in program.nodes if n.op.guard]
    if guards and len({result.device[n] for n in result.program.nodes if n.op.updates}) > 1:
        looked_at = {v.shape for i, v in enumerate(guards[0].inputs) if v is not None and i != 1 and not v.node.op.leaf}
        for update in (n for n in result.program.nodes if n.op.updates):
            assert looked_at <= {v.shape for v in guarded(result, update)}
    broken = {k: np.full_like(v, np.nan) if np.asarray(v).dtype.kind == "f" else v for k, v in feeds.items()}
    for fed in (feeds, broken | {k: v for k, v in feeds.items() if np.ndim(v) == 0}):
        one, other = outcome(program, made.parameters, fed), outcome(result.program, made.parameters, fed)
        assert (one is None) == (other is None), "one of the two was stopped by its guard"
        for a, b in zip(one or (), other or (), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def outcome(program: Program, parameters: Sequence[gl.Parameter], feeds: dict[str, Any]) -> list[np.ndarray] | None:
    """Outputs and weights after a run, which begins with the same weights each time; None where its guard trips: then
    the weights are those before."""
    before = [p.numpy() for p in parameters]
    try:
        found = run(program, **feeds)
        return [*found, *(p.numpy() for p in parameters)]
    except gl.NonFiniteError:
        assert all(np.array_equal(p.numpy(), array) for p, array in zip(parameters, before, strict=True))
        return None
    finally:
        for p, array in zip(parameters, before, strict=True):
            p.assign(array)
