"""Reduce a capsule to the instruction that differs: its node alone, with the values that it read as stored arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..base.aligned import aligned_empty
from ..base.errors import GradloomError
from ..base.settings import Switches
from ..graph.graph import storage_leaf, update_target, view_base
from ..graph.leaves import stored_value
from ..graph.stored import Stored
from ..graph.value import Node, Value
from ..transform.program import Program, gather
from .capsule import Call, Capsule, Outcome, Planned
from .replay import DEFINITION, Found, chosen_for, plans_of, prepared
from .walk import Stepped, walk_on


def reduced(capsule: Capsule, found: Found, isa: str | None = None, device: str | None = None) -> Capsule | None:
    """A capsule of the instruction that a replay has found, with the inputs that it has here; None where the difference
    is not that of one instruction. Its results are the saved digest of the instruction, where bits were compared, else
    its definition."""
    if found.step < 0:
        return None
    chosen, where = chosen_for(capsule, isa, device)
    numbers: dict[Value, np.ndarray] = {}
    held: dict[Stored, np.ndarray] = {}
    try:
        for i in range(found.call + 1):
            call = capsule.calls[i]
            program = prepared(capsule.programs[call.program], chosen, where)
            walk = walk_on(program, chosen, where)
            for stored in walk.writes:
                held.setdefault(stored, stored.read().copy())
            walk.begin({key: array for key, array in call.inputs.items() if key in walk.inputs}, call.settings)
            numbers = _run_to(walk, found.step if i == found.call else len(walk.steps))
        return _alone(capsule, found, walk, numbers, where, chosen)
    finally:
        for stored, array in held.items():
            stored.write(array)


def _run_to(walk: Stepped, step: int) -> dict[Value, np.ndarray]:
    """Run the instructions before `step`; the values that it reads."""
    wanted = {view_base(v) for v in walk.steps[step].inputs if v is not None} if step < len(walk.steps) else set()
    numbers: dict[Value, np.ndarray] = {}
    for k in range(step):
        walk.run_step(k)
        numbers.update((value, array.copy()) for value, array in walk.written(k) if value in wanted)
    return numbers


def _alone(
    capsule: Capsule, found: Found, walk: Stepped, numbers: Mapping[Value, np.ndarray], device: str, chosen: Switches
) -> Capsule | None:  # fmt: skip
    """The capsule of one instruction of a walk that has run up to it."""
    call, node = capsule.calls[found.call], walk.steps[found.step]
    leaves = _Leaves(walk, numbers)
    made = node.with_inputs([leaves.of(v) for v in node.inputs], ())
    written = [v for v in made.outputs if update_target(v) is not None]
    outputs = [] if node.op.updates else [v for v in made.outputs if not v.dtype.is_quantised]
    try:
        program = gather(outputs, written)
    except GradloomError:  # an output that is not written
        return None
    saved = call.outcome
    outcome = Outcome(steps=[saved.steps[found.step]]) if found.by_bits else Outcome()
    if found.by_bits and saved.not_finite == found.step:
        outcome.not_finite = 0
    fed = {key: value for key, value in call.inputs.items() if _reads(program, "input", key)}
    settings = {key: value for key, value in call.settings.items() if _reads(program, "setting", key)}
    about = {**capsule.about, "reduced": found.text}
    stored = list(dict.fromkeys(n.attrs["stored"] for n in program.nodes if n.op.name == "parameter"))
    one = Call(0, fed, settings, outcome)
    switches = capsule.switches if found.by_bits else capsule.switches | {"isa": ""}
    origin = capsule.device if found.by_bits else DEFINITION
    result = Capsule([program], stored, [one], [Planned()], dict(switches), origin, about)
    result.plans = plans_of(result, chosen, device)
    return None if any(plan.error for plan in result.plans) else result


def _reads(program: Program, kind: str, key: str) -> list[Node]:
    return [node for node in program.nodes if node.op.name == kind and node.attrs["key"] == key]


class _Leaves:
    """The values that an instruction reads, as leaves that hold their numbers, seen through the same views."""

    def __init__(self, walk: Stepped, numbers: Mapping[Value, np.ndarray]) -> None:
        self.walk, self.numbers = walk, numbers
        self.made: dict[Value, Value] = {}
        self.copies: dict[Stored, Stored] = {}

    def of(self, value: Value | None) -> Value | None:
        if value is None:
            return None
        if value not in self.made:
            self.made[value] = self.leaf(value)
        return self.made[value]

    def leaf(self, value: Value) -> Value:
        node = value.node
        if node.op.view is not None:
            view = node.with_inputs([self.of(v) for v in node.inputs], ())
            return view.outputs[value.index]
        if node.op.name == "parameter" or update_target(value) is not None:
            stored = storage_leaf(value).node.attrs["stored"]
            if stored not in self.copies:
                frozen = stored.role == "frozen"
                own = stored if frozen else Stored(stored.name, stored.read().copy(), stored.dtype, stored.role)
                self.copies[stored] = own
            return stored_value(self.copies[stored])
        if node.op.leaf:
            return value
        name = f"{node.op.name}_{len(self.made)}"
        array = aligned_empty(value.shape, value.dtype.numpy)
        array[...] = self.numbers[value]
        return stored_value(Stored.wrap(node.name or name, array, "frozen"))
