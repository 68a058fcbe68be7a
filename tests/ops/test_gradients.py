"""Every vjp against central differences of the float64 references, along one random direction."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.dtypes import bf16, f16, f32
from gradloom.base.dtypes import dtype as dtype_of
from gradloom.base.errors import GradientError
from gradloom.graph.declaration import Sample
from gradloom.graph.grad import gradients
from gradloom.graph.graph import reachable
from gradloom.graph.leaves import input
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.value import Value
from gradloom.ops import add, cast, detach, mul
from gradloom.ops import sum as sum_over
from gradloom.ops.common import Quantised
from gradloom.run.compare import check_gradients
from gradloom.run.feeds import leaves
from gradloom.run.numpy_backend import evaluate
from tests.ops.cases import case_id, node_of, operand, rounds_inside, sampled_ops, samples_of

MOST = 2500  # elements in all inputs together

PICKERS = {"max", "min", "max_pool2d"}
STEPS = {
    "conv2d_max_pool": 1e-6,  # which element of a window is the largest may change within a step
    "matmul_act": 1e-6,  # relu has a kink
    "rope": 1e-6,  # positions multiply a frequency by thousands
}
# No second derivatives: op -> why.
FIRST_ORDER_ONLY = {"attention": "attention_back has no gradient: it would need T x T numbers"}


def is_float(x: Any) -> bool:
    """Whether an input of a sample can be differentiated: f32, or halves, which a cast from f32 stands for."""
    return x is not None and not isinstance(x, Quantised) and dtype_of(x.dtype) in (f32, f16, bf16)


def rounds(name: str, sample: Sample) -> bool:
    """Whether the op rounds an operand (the first is bf16, another one is not) or what it computes: it has steps."""
    spec = REGISTRY[name]
    if name == "linear_cross_entropy_rows" and dtype_of(sample.inputs[0].dtype) is bf16:
        return True  # its gradient is that of an op that rounds the slopes of the logits
    if rounds_inside(node_of(spec, sample.inputs, sample.attrs)):
        return True
    kinds = [dtype_of(x.dtype) for key, x in spec.named_inputs(sample.inputs) if key in spec.rounds and x is not None]
    return len(kinds) > 1 and kinds[0] is bf16 and any(kind is not bf16 for kind in kinds)


def usable(name: str) -> list[int]:
    """Samples small and tame enough for finite differences."""
    found = []
    for i, sample in enumerate(samples_of(name)):
        floats = [x for x in sample.inputs if is_float(x)]
        tame = all(np.isfinite(x).all() and (x.size == 0 or np.abs(x).max() <= 100) for x in floats)
        if name in PICKERS:
            tame = tame and all(np.unique(x).size == x.size for x in floats)  # a tie is a kink
        if name == "cast":
            tame = tame and sample.attrs["dtype"].is_float
        if name == "attention":
            tame = tame and not sample.attrs.get("cached")  # a cache is not trained through
        if floats and tame and not rounds(name, sample) and sum(x.size for x in floats) <= MOST:
            found.append(i)
    return found


CASES = [(s.name, i) for s in sampled_ops() if s.vjp is not None for i in usable(s.name)]


class Differentiated:
    """A sample as a graph with a scalar loss: the outputs weighted with random numbers."""

    def __init__(self, name: str, number: int) -> None:
        self.rng = np.random.default_rng(zlib.crc32(f"{name}{number}".encode()))
        spec, sample = REGISTRY[name], samples_of(name)[number]
        self.names: dict[Value, str] = {}
        self.at: dict[str, np.ndarray] = {}
        values: list[Value | None] = []
        for key, x in spec.named_inputs(sample.inputs):
            if x is None:
                values.append(None)
            elif is_float(x):
                value = input(key, x.shape)
                self.names[value], self.at[key] = key, x.astype(np.float64)
                values.append(cast(value, dtype_of(x.dtype)))
            else:
                values.append(operand(x))
        self.node = spec.node(values, sample.attrs)
        outputs = [v for v in self.node.outputs if v.dtype.is_float]
        self.loss = self.weighted(outputs)
        self.wrt = list(self.names)
        self.grads = gradients(self.loss, self.wrt)

    def weighted(self, values: list[Value]) -> Value:
        total = None
        for value in values:
            term = sum_over(mul(cast(value, "f32"), self.rng.uniform(0.5, 1.5, value.shape)))
            total = term if total is None else add(total, term)
        assert total is not None
        return total

    def slope(self, loss: Value, direction: dict[str, np.ndarray]) -> float:
        """d loss / d direction, by central differences of fourth order."""
        h, total = STEPS.get(self.node.op.name, 1e-3), 0.0
        for k, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = {n: x + k * h * direction[n] if n in direction else x for n, x in self.at.items()}
            total += weight * float(self.evaluate([loss], moved)[loss])
        return total / (12 * h)

    def evaluate(self, values: list[Value], at: dict[str, np.ndarray]) -> dict[Value, np.ndarray]:
        used = leaves(reachable(values), "input")
        return evaluate(values, {k: x for k, x in at.items() if k in used})

    def check(self, loss: Value, grads: list[Value | None], what: str) -> None:
        """The gradients that exist agree; those that do not are 0, as the op declares."""
        known = self.evaluate([loss, *[g for g in grads if g is not None]], self.at)
        direction = {}
        expected = size = 0.0
        for value, g in zip(self.wrt, grads, strict=True):
            if g is not None:
                d = self.rng.uniform(-1, 1, value.shape) * 0.1
                direction[self.names[value]] = d
                expected += float(np.sum(known[g] * d))
                size += float(np.sum(np.abs(known[g] * d)))
        room = 2e-8 * size + 1e-9 * (1 + abs(float(known[loss])))
        if direction:
            measured = self.slope(loss, direction)
            assert abs(measured - expected) <= room, (
                f"{what}: vjp {expected}, finite differences {measured}, room {room:.2g}"
            )
        for value, g in zip(self.wrt, grads, strict=True):
            name = self.names[value]
            if g is None:
                measured = self.slope(loss, {name: self.rng.uniform(-1, 1, value.shape) * 0.1})
                assert abs(measured) <= room, f"{what}: no gradient for {name}, but the slope is {measured}"


@pytest.mark.cheap
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gradient(case):
    made = Differentiated(*case)
    made.check(made.loss, made.grads, "gradient")


@pytest.mark.cheap
@pytest.mark.parametrize("case", [c for c in CASES if c[0] not in FIRST_ORDER_ONLY], ids=case_id)
def test_second_gradient(case):
    """Gradients are nodes like any other: differentiate their weighted sum again."""
    made = Differentiated(*case)
    present = [g for g in made.grads if g is not None]
    if not present:
        return  # slope 0 everywhere; test_gradient has seen that
    again = made.weighted(present)
    made.check(again, gradients(again, made.wrt), "second gradient")


def test_every_vjp_is_checked_and_says_something():
    """Each op with a vjp has cases, and at least one whose gradients are not all zero."""
    silent = []
    for spec in sampled_ops():
        if spec.vjp is None or spec.name in ("sgn", "step", "floor", "ceil", "round", "trunc"):  # slope 0 everywhere
            continue
        heard = False
        for number in usable(spec.name):
            made = Differentiated(spec.name, number)
            grads = [g for g in made.grads if g is not None]
            known = made.evaluate(grads, made.at) if grads else {}
            heard = any(np.any(known[g] != 0) for g in grads)
            if heard:
                break
        if not heard:
            silent.append(spec.name)
    assert silent == []


def walk() -> list[tuple[str, str, str]]:
    """(op, float input, its gradient): "checked", "none: why" where the op declares it, or "refused: why"."""
    found = []
    for spec in sampled_ops():
        told: dict[str, str] = {}
        for number, sample in enumerate(samples_of(spec.name)):
            for i, x in enumerate(sample.inputs):
                if not is_float(x):
                    continue
                name = spec.slot(spec.inputs, i).name
                if spec.vjp is None:
                    told[name] = f"refused: {spec.no_gradient}"
                elif (spec.name, number) in CASES and told.get(name) != "checked":
                    made = Differentiated(spec.name, number)
                    key = spec.named_inputs(sample.inputs)[i][0]
                    g = next(g for v, g in zip(made.wrt, made.grads, strict=True) if made.names[v] == key)
                    told[name] = "checked" if g is not None else f"none: {spec.no_gradient_to.get(name, '')}"
                else:
                    told.setdefault(name, "never checked")
        found += [(spec.name, name, how) for name, how in told.items()]
    return found


def test_every_float_input_has_a_gradient_that_is_checked_or_an_op_that_says_why_not():
    table = walk()
    print("\n".join(f"{op:20} {name:12} {how}" for op, name, how in table))
    assert [row for row in table if row[2] in ("never checked", "none: ")] == []
    assert {op for op, _, how in table if how.startswith("none")} == {
        "sgn", "step", "floor", "ceil", "round", "trunc", "relu_back",
        "leaky_relu_back", "clamp_back", "matmul_relu_back", "conv2d_pool_back_weight",
    }  # fmt: skip
    for op_name in ("matmul", "matmul_act", "matmul_relu_back", "get_rows", "linear_cross_entropy", "cast"):
        kinds = {
            dtype_of(x.dtype) for _, n in CASES if _ == op_name for x in samples_of(op_name)[n].inputs if is_float(x)
        }
        assert {f16, bf16} <= kinds, f"{op_name} is never differentiated for halves"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_check_gradients_accepts_it_and_finds_half_of_it(case):
    """However small the loss is, whose gradient is in the same proportion to it."""
    made = Differentiated(*case)
    used = leaves(reachable([made.loss]), "input")
    feeds = {k: x for k, x in made.at.items() if k in used}
    wrt = [value for value in made.wrt if made.names[value] in used]
    for scale in (1.0, 1e-9):
        loss = mul(made.loss, scale)
        found = check_gradients(loss, feeds, parameters=wrt, entries=2)
        assert 0 < found.tried <= found.size == sum(v.size for v in wrt)
    if any(g is not None and np.abs(made.evaluate([g], made.at)[g]).max() > 1e-3 for g in made.grads):
        half = add(mul(loss, 0.5), mul(detach(loss), 0.5))  # its value, and half of its gradient
        with pytest.raises(GradientError, match="tried"):
            check_gradients(half, feeds, parameters=wrt, entries=1)


@pytest.mark.cheap
@pytest.mark.parametrize("size", [3e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("function", [ops.log, ops.sqrt, lambda x: 1.0 / x])
def test_gradients_at_small_entries_are_resolved(size, function):
    p = gl.parameter(np.array([size, 1.0]), name="p")
    assert gl.check_gradients(ops.sum(function(p))) < 1e-5
    half = 0.5 * ops.sum(function(p)) + 0.5 * ops.sum(function(ops.detach(p)))
    with pytest.raises(gl.GradientError, match="p at"):
        gl.check_gradients(half)
