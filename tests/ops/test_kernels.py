"""Every kernel of every instruction set against the references: op x sample x layout x threads x aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradloom import _core
from gradloom.base.errors import DataError, GradloomError
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.plan.bytecode import signature
from tests.core.harness import isas, run
from tests.ops.cases import (
    LAYOUTS,
    SMALL,
    aliases_of,
    arranged,
    attr_list,
    call_line,
    case_id,
    check,
    kernel_ops,
    node_of,
    reference,
    samples_of,
    update_aliases,
    without_rows,
)

ISAS = _core.isas()
KERNELS = {isa: set(_core.kernels(isa)) for isa in ISAS}
OWN = {isa: {name for name, _ in _core.kernels(isa, own=True)} for isa in ISAS}  # ops
CASES = [(spec.name, i) for spec in kernel_ops() for i in range(len(samples_of(spec.name)))]
TWINS = {"avx2", "amx-twin", "avx512bf16-twin"}  # the kernels of avx512, amx and avx512bf16 with other vectors
TAKES_VIEWS = [(n, i) for n, i in CASES if {s.name for s in REGISTRY[n].inputs} - REGISTRY[n].dense]
OVERWRITES = [(n, i) for n, i in CASES if REGISTRY[n].may_overwrite]


def on_isas(cases: list[tuple[str, int]]) -> list[Any]:
    """Each case on each instruction set that has kernels of its own for the op."""
    return [pytest.param(c, isa, id=f"{case_id(c)}-{isa}") for c in cases for isa in ISAS if c[0] in OWN[isa]]


def size_of(case: tuple[str, int]) -> int:
    return sum(x.size for x in samples_of(case[0])[case[1]].inputs if x is not None)


def same_bits(want: list, case: tuple[str, int], isa: str, **options) -> None:
    """The case run with these options gives the very bits of `want`."""
    got = check(*case, isa, compare=False, **options)
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        assert a is None or a.tobytes() == b.tobytes(), (
            f"{case[0]}: output {k} has other bits than one thread with a separate output\n"
            f"repeat: {call_line(*case, isa, **options)}"
        )


def in_threads(case: tuple[str, int], isa: str, layout: str = "dense") -> None:
    """One thread against the reference; two give the same bits."""
    same_bits(check(*case, isa, layout=layout), case, isa, layout=layout, threads=2)


@pytest.mark.parametrize("case, isa", on_isas(CASES))
def test_kernel(case, isa):
    in_threads(case, isa)


@pytest.fixture
def finely() -> Iterator[None]:
    """Kernels divide small arrays, too, into as many parts as they do with large ones."""
    _core.set_division(1e5)
    yield
    _core.set_division(1)


@pytest.mark.parametrize("case, isa", [one for one in on_isas(CASES) if one.values[1] not in TWINS])
def test_kernel_in_parts(case, isa, finely):
    in_threads(case, isa)


@pytest.mark.parametrize("case, isa", on_isas(TAKES_VIEWS))
def test_kernel_on_strided_inputs(case, isa):
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    for layout in LAYOUTS[1:]:
        if (size_of(case) <= SMALL or layout == "reversed") and arranged(spec, sample.inputs, layout) is not None:
            if case[0] == "max_pool2d" and layout == "repeated":
                continue
            in_threads(case, isa, layout=layout)


@pytest.mark.parametrize("case, isa", on_isas(OVERWRITES))
def test_kernel_over_its_inputs(case, isa):
    """The output in the place of each input that may_overwrite names; also where two such inputs are one value."""
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    node = node_of(spec, sample.inputs, sample.attrs)
    aliases = aliases_of(node, sample.inputs)
    twins = [(i, j) for a in aliases for b in aliases for k, i in a.items() for m, j in b.items() if k == m and i < j]
    for twice in ((), *twins):
        separate = check(*case, isa, twice=twice, compare=not twice)
        for alias in aliases:
            for threads in (1, 2):
                same_bits(separate, case, isa, threads=threads, alias=alias, twice=twice)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("spec", kernel_ops(), ids=lambda s: s.name)
def test_kernel_on_no_rows(spec, isa):
    """Every input without its rows, where the op takes that: nothing is touched, sums are 0."""
    sample = samples_of(spec.name)[-1]
    inputs = [x if x is None or x.ndim == 0 else without_rows(x) for x in sample.inputs]
    try:
        node = node_of(spec, inputs, sample.attrs)
    except GradloomError:
        return
    shared, unwanted = update_aliases(node, inputs)
    outputs = [(v.dtype.name, v.shape) for v in node.outputs]
    got = run(
        spec.name, inputs, outputs, attr_list(node), isa=isa, sig=signature(node), alias=shared, unwanted=unwanted
    )
    for k, want in enumerate(reference(node, inputs)):
        assert k in unwanted or np.allclose(got[k], want, 1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_no_kernel_is_missing(isa):
    """Every signature of every sample of every op that is no view has a kernel."""
    needed = set()
    for name, i in CASES:
        sample = samples_of(name)[i]
        needed.add((name, signature(node_of(REGISTRY[name], sample.inputs, sample.attrs))))
    assert sorted(needed - KERNELS[isa]) == []


@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_has_an_op(isa):
    names = {name for name, _ in KERNELS[isa] if not name.startswith("limit_")}  # yardsticks of the benchmarks
    assert sorted(names - set(REGISTRY)) == []


def test_kernels_are_the_same_on_every_isa():
    assert all(KERNELS[isa] == KERNELS[ISAS[0]] for isa in ISAS)


def reading_ids(spec: OpSpec) -> list[int]:
    """The samples in which the op reads row numbers, of each dtype and kind the first; all small."""
    kinds: dict[Any, int] = {}
    for i, sample in enumerate(samples_of(spec.name)):
        node = node_of(spec, sample.inputs, sample.attrs)
        among = spec.id_range(node.inputs, node.attrs)
        if among is not None and size_of((spec.name, i)) <= SMALL:
            kinds.setdefault((among.count is None, among.ignored), i)
    return list(kinds.values())


IDS = [(spec.name, i) for spec in kernel_ops() if spec.ids is not None for i in reading_ids(spec)]


@pytest.mark.parametrize("case, isa", on_isas(IDS))
def test_an_id_out_of_range_stops_the_run(case, isa):
    """One beyond each end of the range that the op declares, in every kernel and in the reference."""
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    node = node_of(spec, sample.inputs, sample.attrs)
    among = spec.id_range(node.inputs, node.attrs)
    at = [s.name for s in spec.inputs].index(among.input)
    ids = sample.inputs[at]
    place = int(sample.inputs[2]) if spec.name == "take_batch" else ids.size - 1
    for wrong in (-1, ids.shape[-1] if among.count is None else among.count):
        inputs = list(sample.inputs)
        inputs[at] = ids.copy()
        inputs[at].flat[place] = wrong
        shared, unwanted = update_aliases(node, inputs)
        outputs = [(v.dtype.name, v.shape) for v in node.outputs]
        _, result, _ = run(
            spec.name, inputs, outputs, attr_list(node), isa=isa, sig=signature(node), alias=shared, unwanted=unwanted,
            full=True,
        )  # fmt: skip
        assert _core.STOP_NAMES[result[1]] == "index"
        assert result[4] == wrong and (result[3] == place or spec.name == "take_batch")
        with pytest.raises(DataError, match=re.escape(f"id {wrong} at position")):
            reference(node, inputs)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["loss", "small", "large"])
def test_the_guard_stops_for_what_is_not_finite(where, wrong, isa):
    loss, weight = np.array(1.0, np.float32), np.array(2.0, np.float32)
    small, large = np.ones(3, np.float32), np.ones((401, 301), np.float32)
    {"loss": loss, "small": small, "large": large}[where].flat[-1] = wrong
    inputs = [loss, weight, small, large]
    node = node_of(REGISTRY["guard"], inputs, {})
    _, result, _ = run("guard", inputs, [("f32", ())], [], isa=isa, sig=signature(node), full=True, threads=2)
    assert _core.STOP_NAMES[result[1]] == "guard"
