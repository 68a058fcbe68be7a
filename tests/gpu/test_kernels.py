"""Every kernel of the table against the references: op x sample x layout x aliases, as tests/ops/test_kernels.py does
on the CPU, on a device with no more than WebGPU promises everywhere; and on one with what the adapter has."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.gpu.backend import place_of
from gradloom.gpu.calls import Call, Dispatch
from gradloom.gpu.kernels.all import KERNELS
from gradloom.gpu.kernels.layout import filled
from gradloom.gpu.kernels.table import Kernel
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.plan.bytecode import signature
from gradloom.run.planned import STOP_GUARD
from tests.gpu.harness import default_place, run_node
from tests.ops.cases import (
    LAYOUTS,
    aliases_of,
    arranged,
    case_id,
    check,
    kernel_ops,
    node_of,
    reference,
    samples_of,
    update_aliases,
    without_rows,
)

EVERY = os.environ.get("GRADLOOM_GPU_ALL") == "1"  # set by `run_tests.sh --long`
MOST = 10_000_000 if EVERY else 70_000  # elements of the inputs: software adapters are slow
SMALL = 100_000 if EVERY else 4_000  # of those that also run strided, over their inputs, without optional outputs
OVER = 100 if EVERY else 3  # samples of an op that run over their inputs
# A kernel takes 50 ms to compile there. That of a product is the same code for each of its ops, so matmul stands for
# the formats of the others.
PRODUCTS = ("matmul_act", "matmul_relu_back", "linear_cross_entropy", "linear_cross_entropy_rows")
FORMATS = {"f32", "bf16", "f16", "i32", "q8_0", "q4_k"}


def _has(case: tuple[str, int]) -> bool:
    sample = samples_of(case[0])[case[1]]
    node = node_of(REGISTRY[case[0]], sample.inputs, sample.attrs)
    other = {v.dtype.name for v in node.inputs if v is not None} - FORMATS
    if case[0] in PRODUCTS and other and not EVERY:
        return False
    return (case[0], signature(node)) in KERNELS and size_of(case) <= MOST


def size_of(case: tuple[str, int]) -> int:
    return sum(x.size for x in samples_of(case[0])[case[1]].inputs if x is not None)


CASES = [
    (spec.name, i)
    for spec in kernel_ops()
    if any(spec.name == op for op, _ in KERNELS)
    for i in range(len(samples_of(spec.name)))
    if _has((spec.name, i))
]
NAMES = sorted({name for name, _ in CASES})


def of(name: str) -> list[tuple[str, int]]:
    return [case for case in CASES if case[0] == name]


@pytest.mark.parametrize("name", NAMES)
def test_kernel(name: str) -> None:
    for case in of(name):
        check(*case, "gpu")


@pytest.mark.parametrize("name", [n for n in NAMES if {s.name for s in REGISTRY[n].inputs} - REGISTRY[n].dense])
def test_kernel_on_strided_inputs(name: str) -> None:
    for case in of(name):
        for layout in LAYOUTS[1:]:
            if size_of(case) > SMALL or arranged(REGISTRY[name], samples_of(name)[case[1]].inputs, layout) is None:
                continue
            if name == "max_pool2d" and layout == "repeated":
                continue
            check(*case, "gpu", layout=layout)


@pytest.mark.parametrize("name", [n for n in NAMES if REGISTRY[n].may_overwrite])
def test_kernel_over_its_inputs(name: str) -> None:
    """The output in the place of each input that may_overwrite names; also where two such inputs are one value."""
    for case in [c for c in of(name) if size_of(c) <= SMALL][:OVER]:
        sample = samples_of(name)[case[1]]
        aliases = aliases_of(node_of(REGISTRY[name], sample.inputs, sample.attrs), sample.inputs)
        twins = [
            (i, j) for a in aliases for b in aliases for k, i in a.items() for m, j in b.items() if k == m and i < j
        ]
        for twice in ((), *twins):
            separate = check(*case, "gpu", twice=twice, compare=False)
            for alias in aliases:
                got = check(*case, "gpu", alias=alias, twice=twice, compare=False)
                for k, (a, b) in enumerate(zip(separate, got, strict=True)):
                    assert a is None or a.tobytes() == b.tobytes(), f"{case}: output {k} over {alias} {twice}"


@pytest.mark.parametrize("name", [n for n in NAMES if any(s.optional for s in REGISTRY[n].outputs)])
def test_kernel_without_its_optional_outputs(name: str) -> None:
    """Outputs that nobody wants have no memory; the others have the same bits."""
    spec = REGISTRY[name]
    for case in of(name):
        sample = samples_of(name)[case[1]]
        if size_of(case) > SMALL or any(s.name in spec.updates for s in spec.outputs):
            continue
        node = node_of(spec, sample.inputs, sample.attrs)
        every = run_node(node, sample.inputs)
        unwanted = [k for k, s in enumerate(spec.outputs) if s.optional]
        for without in {tuple(unwanted), *((k,) for k in unwanted)}:
            for a, b in zip(every, run_node(node, sample.inputs, unwanted=without), strict=True):
                assert b is None or a.tobytes() == b.tobytes(), f"{case} without {without}"


WITH_KERNELS = [s for s in kernel_ops() if any(s.name == op for op, _ in KERNELS)]


@pytest.mark.parametrize("spec", WITH_KERNELS, ids=lambda s: s.name)
def test_kernel_on_no_rows(spec: OpSpec) -> None:
    """Every input without its rows, where the op takes that: nothing is touched, sums are 0."""
    sample = samples_of(spec.name)[-1]
    inputs = [x if x is None or x.ndim == 0 else without_rows(x) for x in sample.inputs]
    try:
        node = node_of(spec, inputs, sample.attrs)
    except gl.GradloomError:
        return
    if (spec.name, signature(node)) not in KERNELS:
        return
    shared, unwanted = update_aliases(node, inputs)
    got = run_node(node, inputs, alias=shared, unwanted=unwanted)
    for k, want in enumerate(reference(node, inputs)):
        assert k in unwanted or np.allclose(got[k], want, 1e-5)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_a_long_fold_without_outputs(name: str) -> None:
    x = np.zeros((70_000, 0), np.float32)
    (got,) = run_node(node_of(REGISTRY[name], [x], {"axes": (0,)}), [x])
    assert got.shape == (0,)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_guard_stops_for_what_is_not_finite(wrong: float) -> None:
    """In the loss, or anywhere in a gradient: first, last, on both sides of a border of workgroups."""
    for which, place in [(0, 0), (2, 0), (2, 4), *[(3, at) for at in (0, 255, 256, 65_535, 65_536, 99_999)], (3, None)]:
        inputs = [np.array(n, np.float32) for n in (2.0, 1.0)] + [np.ones(n, np.float32) for n in (5, 100_000)]
        if place is not None:
            inputs[which].flat[place] = wrong
        node = node_of(REGISTRY["guard"], inputs, {})
        _, status = run_node(node, inputs, full=True)
        assert status[0] == (0 if place is None else STOP_GUARD), (which, place)


def test_what_a_kernel_must_not_write_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One number behind the output, one before it, and an input: each is found."""

    def rule(at: int, number: int) -> Kernel:
        def wild(call: Call) -> list[Dispatch]:
            arg = call[number]
            return [filled(arg.seen_as((1,), offset=at), 2.0)]

        return Kernel(wild, lambda call: 0)

    x = np.arange(16, dtype=np.float32)
    node = node_of(REGISTRY["sqr"], (x,), {})
    for at, number, what in ((16, 1, "guard byte"), (-1, 1, "guard byte"), (3, 0, "input 0 was changed")):
        monkeypatch.setitem(KERNELS, ("sqr", "f32"), rule(at, number))
        with pytest.raises(AssertionError, match=what):
            run_node(node, (x,))


@pytest.mark.parametrize("name", ["adamw_8bit", "lion_8bit"])
def test_blocks_of_codes_that_run_at_once_share_no_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workgroups of one dispatch may run at the same time: one of two that write bytes of a word would be lost."""
    made: list[Dispatch] = []
    for case in of(name):
        sample = samples_of(name)[case[1]]
        node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
        kernel = KERNELS[name, signature(node)]

        def kept(call: Call, kernel: Kernel = kernel) -> list[Dispatch]:
            made.extend(found := kernel.rule(call))
            return found

        monkeypatch.setitem(KERNELS, (name, signature(node)), Kernel(kept, kernel.workspace))
        run_node(node, sample.inputs, alias=update_aliases(node, sample.inputs)[0])
    ran: dict[tuple[int, int], set[int]] = {}
    for dispatch in made:
        blocks, each, total, apart, phase = map(int, dispatch.words)
        seen: set[int] = set()
        for block in range(phase, total, apart):
            first = block // blocks * each + block % blocks * 256
            words = set(range(first // 4, (min(first + 256, (block // blocks + 1) * each) - 1) // 4 + 1))
            assert not words & seen, (each, block)
            seen |= words
        ran.setdefault((each, total), set()).update(range(phase, total, apart))
    assert all(found == set(range(total)) for (_, total), found in ran.items())
    assert any(each % 4 and total > 4 for each, total in ran)


@pytest.mark.no_adapter
def test_every_kernel_has_an_op() -> None:
    """And every kernel of an op runs in these tests, or, of what products read, the same code for another op."""
    ran = {(n, signature(node_of(REGISTRY[n], s.inputs, s.attrs))) for n, i in CASES for s in [samples_of(n)[i]]}
    assert {name for name, _ in KERNELS} <= REGISTRY.keys()
    idle = KERNELS.keys() - ran
    assert all(op in PRODUCTS and set(kinds.split("_f32")[0].split("_")) - FORMATS for op, kinds in idle), idle
    assert not (EVERY and idle)


def reading_ids(name: str) -> list[int]:
    kinds: dict[Any, int] = {}
    for _, i in of(name):
        sample = samples_of(name)[i]
        node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
        among = REGISTRY[name].id_range(node.inputs, node.attrs)
        if among is not None and size_of((name, i)) <= SMALL:
            kinds.setdefault((among.count is None, among.ignored), i)
    return list(kinds.values())


IDS = [(name, i) for name in NAMES if REGISTRY[name].ids is not None for i in reading_ids(name)]


@pytest.mark.parametrize("case", IDS, ids=case_id)
def test_an_id_out_of_range_stops_the_run(case: tuple[str, int]) -> None:
    """One beyond each end of the range that the op declares."""
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    node = node_of(spec, sample.inputs, sample.attrs)
    among = spec.id_range(node.inputs, node.attrs)
    assert among is not None
    at = [s.name for s in spec.inputs].index(among.input)
    ids = sample.inputs[at]
    place = int(sample.inputs[2]) if spec.name == "take_batch" else ids.size - 1
    for wrong in (-1, ids.shape[-1] if among.count is None else among.count):
        inputs = list(sample.inputs)
        inputs[at] = ids.copy()
        inputs[at].flat[place] = wrong
        shared, unwanted = update_aliases(node, inputs)
        _, status = run_node(node, inputs, alias=shared, unwanted=unwanted, full=True)
        assert status[0] == 2 and np.int32(np.uint32(status[3])) == wrong
        assert status[4] == (0xFFFFFFFF if wrong < 0 else 0)
        assert status[2] == place or spec.name == "take_batch"


def test_adapters_own_limits_give_the_same_bits() -> None:
    """Every kernel on the other device, too: the first small case of each."""
    for name in NAMES:
        small = [case for case in of(name) if size_of(case) <= SMALL]
        if not small:
            continue
        sample = samples_of(name)[small[-1][1]]
        node = node_of(REGISTRY[name], sample.inputs, sample.attrs)
        shared, unwanted = update_aliases(node, sample.inputs)
        both = [
            run_node(node, sample.inputs, alias=shared, unwanted=unwanted, place=place)
            for place in (default_place(), place_of(0))
        ]
        for a, b in zip(*both, strict=True):
            assert a is None or a.tobytes() == b.tobytes(), name


def test_what_has_no_kernel_has_a_composition() -> None:
    """Of all that the samples need: these ops, which the CPU fuses, run as compositions. Others lack
    kernels for operands in bf16 alone, which the pass that rounds widens in front of them."""
    needed = set()
    for spec in kernel_ops():
        for sample in samples_of(spec.name):
            needed.add((spec.name, signature(node_of(spec, sample.inputs, sample.attrs))))
    composed = sorted({name for name, _ in needed} - {name for name, _ in KERNELS})
    assert composed == ["conv2d_max_pool", "conv2d_pool_back_input", "conv2d_pool_back_weight"]
    assert all(REGISTRY[name].composition is not None for name in composed)
    others = {(name, dtypes) for name, dtypes in needed - KERNELS.keys() if name not in composed}
    assert all("bf16" in dtypes and REGISTRY[name].rounds for name, dtypes in others), others
