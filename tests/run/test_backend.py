"""Backends: a new one is a class that is registered, and nothing else changes for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.settings import Switches
from gradloom.graph.value import Node
from gradloom.plan.bytecode import KernelNeeds
from gradloom.plan.plan import Plan
from gradloom.run import backend as backends
from gradloom.run.backend import Buffer, backend, register
from gradloom.run.executable import Executable
from gradloom.transform.program import Program

Counts = dict[str, int]


class Counted:
    """Forwards to the CPU and counts the calls."""

    name: ClassVar[str] = "counted"
    planned: ClassVar[bool] = True
    piece_bytes: ClassVar[int] = 0
    counts: ClassVar[Counts] = {}
    missing: ClassVar[str] = ""  # why it is absent
    lacks: ClassVar[set[tuple[str, str]]] = set()  # kernels that it has not

    def __init__(self, switches: Switches) -> None:
        self.switches, self.cpu = switches, backend("cpu", switches)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def available(self) -> tuple[bool, str]:
        return not self.missing, self.missing or f"above {self.cpu.available()[1]}"

    def signatures(self) -> set[tuple[str, str]]:
        return set(self.cpu.signatures() or ()) - self.lacks

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        self.count("needs")
        return self.cpu.needs(node, args)

    def allocate(self, bytes: int) -> Buffer:
        self.count("allocate")
        return self.cpu.allocate(bytes)

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> Executable:
        self.count("load")
        return CountedExecutable(self, self.cpu.load(program, plan, arena))


class CountedExecutable(Executable):
    def __init__(self, made: Counted, inner: Executable) -> None:
        super().__init__(inner.program, inner.plan, inner.switches)
        self.made, self.inner = made, inner

    @property
    def steps_run(self) -> int:
        return self.inner.steps_run

    def fed(self) -> dict[str, Any]:
        return self.inner.fed()

    def copy_in(self, given: Mapping[str, np.ndarray]) -> None:
        self.inner.copy_in(given)

    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        self.made.count("run_steps")
        return self.inner.run_steps(steps, settings, deadline)

    def stop(self) -> None:
        self.inner.stop()

    def collect_times(self, on: bool = True) -> None:
        self.inner.collect_times(on)

    def timings(self) -> list[tuple[str, int, int]]:
        return self.inner.timings()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    monkeypatch.setattr(backends, "_registered", dict(backends._registered))
    register(Counted)
    Counted.counts.clear()
    return Counted.counts


def net() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(5, 7, activation="tanh"), gl.nn.BatchNorm(7), gl.nn.Linear(7, 3)).init(4)


def rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    return rng.standard_normal((n, 5)).astype(np.float32), rng.integers(0, 3, n)


def test_a_new_backend_compiles_runs_and_is_profiled(counts: Counts) -> None:
    x = gl.input("x", (3, 4))
    y = ops.softmax(x * 2.0)
    data = np.arange(12.0).reshape(3, 4)
    run = gl.compile(y, backend="counted")
    run.collect_times()
    assert np.array_equal(run(x=data)[0], gl.compile(y)(x=data)[0])
    assert counts["load"] == counts["run_steps"] == 1 and counts["needs"] == len(run.plan.order.steps)
    assert len(run.timings()) == len(run.plan.order.steps) and run.steps_run == 1


def test_a_new_backend_has_memory_of_its_own(counts: Counts) -> None:
    x = gl.input("x", (1000,))
    y = ops.exp(ops.sin(x)) + ops.cos(x)
    arena = backend("counted", Switches()).allocate(64)
    run = gl.compile(y, backend="counted", arena=arena)
    assert arena.bytes >= run.plan.bytecode.arena_bytes and counts["allocate"] == 1
    assert np.array_equal(run(x=np.ones(1000))[0], gl.compile(y)(x=np.ones(1000))[0])


def test_fit_and_trainer_take_a_new_backend_as_they_take_the_cpu(counts: Counts) -> None:
    weights = []
    for name in ("cpu", "counted"):
        model = net()
        gl.fit(
            model, rows(), epochs=2, batch_size=16, val_split=0.2, max_norm=1.0, seed=3, progress=False, backend=name
        )
        weights.append(model.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert counts["load"] >= 2 and counts["run_steps"] >= 4


def test_a_new_backend_names_the_bad_node_as_the_cpu_does(counts: Counts) -> None:
    messages = []
    for name in ("cpu", "counted"):
        x, y = rows(8)
        x[3, 1] = np.inf
        trainer = gl.train.Trainer(net(), "cross_entropy", gl.optim.SGD(), backend=name)
        with pytest.raises(gl.NonFiniteError) as caught:
            trainer.step(x, y)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and counts["run_steps"] >= 1


def test_absent_backends_explain_themselves(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    y = ops.exp(gl.input("x", (3,)))
    with pytest.raises(gl.BackendError, match="backend: 'tpu' is not known; must be one of cpu, numpy, null, counted"):
        gl.compile(y, backend="tpu")
    for name in ("cpu", "null"):
        with pytest.raises(gl.BackendError, match="isa: 'neon' cannot run here; must be one of"):
            gl.compile(y, backend=name, isa="neon")
    monkeypatch.setattr(Counted, "missing", "counted: its driver is not installed; pip install counted")
    with pytest.raises(gl.BackendError, match="its driver is not installed"):
        gl.compile(y, backend="counted")
    assert not counts


def test_missing_kernels_are_named_before_anything_is_planned(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "lacks", {("exp", "f32"), ("sin", "f32")})
    y = ops.sin(ops.exp(gl.input("x", (3,)))) + 1.0
    with pytest.raises(gl.BackendError, match=r"counted above \w+ has no kernel for: exp f32 \(exp#\d+.*\), sin f32 "):
        gl.compile(y, backend="counted", fuse=False)
    assert not counts


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_each_instruction_is_timed_while_a_run_is_profiled(name: str) -> None:
    y = ops.softmax(ops.exp(gl.input("x", (3, 4))) @ gl.input("w", (4, 5)))
    run = gl.compile(y, backend=name)
    run.collect_times()
    for _ in range(3):
        run(x=np.ones((3, 4)), w=np.ones((4, 5)))
    timed = run.timings()
    assert [what.split()[0] for what, _, _ in timed] == ["exp", "matmul", "softmax"]
    assert all(0 < least <= total / 3 for _, least, total in timed)


@pytest.mark.parametrize("name", ["numpy", "null"])
def test_what_has_no_arena_says_so(name: str) -> None:
    with pytest.raises(gl.BackendError, match=f"{name}: .*need backend='cpu'"):
        backend(name, Switches()).allocate(1 << 20)


def test_null_refuses_whatever_needs_a_run() -> None:
    run = gl.compile(ops.exp(gl.input("x", (3,))), backend="null")
    for call in (run, lambda: run(x=[1, 2, 3]), lambda: run.run_many(1, {}), run.fed, run.stop, run.profile):
        with pytest.raises(gl.BackendError, match="null: it plans and does not run"):
            call()


@pytest.mark.parametrize("name", ["cpu", "numpy", "counted"])
def test_a_run_ends_at_its_deadline_on_every_backend(name: str, counts: Counts) -> None:
    w = gl.parameter(np.zeros(4))
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), backend=name)
    done, outputs = run.run_many(5, {}, deadline=1e-9)
    assert done == 1 and len(outputs[0]) == 1 and run.steps_run == 1 and w.numpy().tolist() == [1, 1, 1, 1]
    done, outputs = run.run_many(5, {})
    assert done == 5 and outputs[0].tolist() == [4.0 * i for i in range(1, 6)] and run.steps_run == 6
