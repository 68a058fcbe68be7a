"""Several devices out of one CPU: "cpu1", "cpu2" compute as "cpu" does, in arenas of their own. So what a schedule does
is held against a run on one device to the bit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gradloom as gl
from gradloom import ops
from gradloom.base.settings import Switches, switches
from gradloom.graph.leaves import setting
from gradloom.graph.value import Node, Value
from gradloom.plan.plan import Plan
from gradloom.plan.schedule import Schedule
from gradloom.run import backend as backends
from gradloom.run.backend import Buffer, has_kernel, register
from gradloom.run.cpu_backend import CpuBackend, CpuExecutable
from gradloom.run.scheduled import ScheduledExecutable, schedule_for, scheduled
from gradloom.transform.passes import rewrite
from gradloom.transform.place import Placed, place
from gradloom.transform.program import Program, gather


class Cpu1(CpuBackend):
    name: ClassVar[str] = "cpu1"

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> CpuExecutable:
        return super().load(program, plan, self.allocate(0) if arena is None else arena)


class Cpu2(Cpu1):
    name: ClassVar[str] = "cpu2"


DEVICES = ("cpu1", "cpu2")


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Inside, compile(devices=("cpu1", "cpu2")) knows them."""
    before = dict(backends._registered)
    for one in (Cpu1, Cpu2):
        register(one)
    try:
        yield
    finally:
        backends._registered.clear()
        backends._registered.update(before)


def drawn(rng: random.Random, moved: float) -> Callable[[int, Node], str | None]:
    """Places a share `moved` of the nodes at random; see `placed`."""
    return lambda i, node: rng.choice(DEVICES) if rng.random() < moved else None


def placed(
    outputs: list[Value], updates: list[Value], said: Callable[[int, Node], str | None], **options: Any
) -> tuple[Placed, dict[str, Any], Switches]:
    """A program on two devices. said(i, node): where node i of the rewritten program runs, None: wherever `place` puts
    it. And the backends, by name; the switches."""
    chosen = switches(**{"threads": 1, **options})
    program = rewrite(gather(outputs, updates), chosen.fuse)
    made = {"cpu1": Cpu1(chosen), "cpu2": Cpu2(chosen)}
    for i, node in enumerate(program.nodes):
        node.device = None if node.op.leaf else said(i, node)
    try:
        return place(program, list(made), lambda name, node: has_kernel(made[name], node)), made, chosen
    finally:
        for node in program.nodes:
            node.device = None


def schedule_of(
    outputs: list[Value], updates: list[Value], said: Callable[[int, Node], str | None], **options: Any
) -> Schedule:
    """The proved schedule of a program on two devices."""
    return schedule_for(*placed(outputs, updates, said, **options))


def loaded(
    outputs: list[Value], updates: list[Value], said: Callable[[int, Node], str | None], **options: Any
) -> ScheduledExecutable:
    """The same, ready to run."""
    return scheduled(*placed(outputs, updates, said, **options))


def ended(h: Value, labels: Value, weights: list[Value]) -> tuple[list[Value], list[Value]]:
    """(outputs, updates) of a step of plain SGD on the cross entropy of logits: loss, logits, guard; the weights."""
    total, weight, _ = ops.cross_entropy_sum(h, labels, None)
    grads = [g for g in gl.gradients(total, weights) if g is not None]
    guard, zero = ops.guard(total, weight, *grads), gl.constant(0.0)
    groups = [v for w, g in zip(weights, grads, strict=True) for v in (w, g, None)]
    return [total, h, guard], list(ops.sgd(setting("lr"), zero, zero, weight, *groups)[::2])
