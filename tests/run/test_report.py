"""The table of times of a program: rates of what has run alone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.value import Node
from gradloom.run.cost import cost_table
from tests.plan.devices import DEVICES, registered

NONE = "no time was measured; need collect_times(), and then a run"


def compiled(**options: Any) -> Any:
    x = gl.input("x", (3, 4))
    return gl.compile(gl.ops.sin(x @ gl.ops.transpose(x)), **options)


def rows(run: Any) -> list[str]:
    title, *found = run.report().splitlines()
    assert title.split()[:3] == ["us", "GB/s", "GFLOP/s"]
    return list(found)


def test_nothing_is_said_of_what_has_not_run() -> None:
    run = compiled()
    assert run.timings() == [] and run.denormals() == []
    assert rows(run) == [NONE]
    run.collect_times()
    assert rows(run) == [NONE]
    run(x=np.ones((3, 4)))
    assert [row.split()[3] for row in rows(run)] == ["matmul", "sin"]
    run.collect_times()  # begins anew
    assert rows(run) == [NONE]


def test_on_several_devices() -> None:
    with registered():
        run = compiled(devices=DEVICES)
        run.collect_times()
        assert run.report().splitlines()[1] == NONE


def test_of_the_definition() -> None:
    run = compiled(backend="numpy")
    run.collect_times()
    run(x=np.ones((3, 4)))
    found = rows(run)
    assert [row.split()[3] for row in found if "matmul" in row or "sin" in row] == ["matmul", "sin"]
    with pytest.raises(gl.BackendError, match="need device='cpu'"):
        run.denormals()


def test_an_instruction_without_a_time_has_no_rates() -> None:
    node: Node = gl.ops.sin(gl.input("x", (256,))).node
    _, timed, other = cost_table("here", [(node, 1000, "first"), (node, 0, "second")]).splitlines()
    assert timed.split() == ["1.00", "2.0", "0.3", "first"] and other.split() == ["0.00", "-", "-", "second"]


def test_programs_whose_timings_are_printed_later_are_not_kept_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """debug=2 prints them when the process ends; of many programs those of the first before that."""
    x = gl.input("x", (2,))
    first = gl.compile(gl.ops.exp(x), debug=2)
    first(x=np.ones(2, np.float32))
    held = weakref.ref(first)
    del first
    for i in range(70):
        gl.compile(gl.ops.exp(x) * float(i), debug=2)
    gc.collect()
    assert held() is None
    assert capsys.readouterr().err.count("exp exp#") >= 1
