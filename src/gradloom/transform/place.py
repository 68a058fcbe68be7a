"""Place: one program on several devices, with a copy at each border and the guard of a step split over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.composition import composed
from ..graph.leaves import constant
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Value
from .choose import Choice, Runs
from .program import Program, make, needed, rebuild
from .simplify import simplify

# A norm whose square is beyond f32: such a gradient is of no use to any update (csrc/kernels/update.h: finish_norm).
TOO_LARGE = np.float32(2.0**64)


@dataclass(frozen=True)
class Placed:
    """A program whose nodes each have a device.

    program  the placed program, with a node of the op `copy` at each border: it reads a value on one device and its
             output is on another; each value is copied once to a device
    device   of each node that is no leaf, and of the leaves of stored arrays that the program writes, which have one
             home. All other leaves are in none: each device that reads one has its own
    """

    program: Program
    device: Mapping[Node, str]

    def copies(self) -> list[Node]:
        """The nodes that copy a value to another device, in order."""
        found = []
        for node in self.program.nodes:
            if node.op.name == "copy":
                assert node.inputs[0] is not None
                source = self.device.get(node.inputs[0].node)
                if source is not None and source != self.device[node]:
                    found.append(node)
        return found


def place(program: Program, devices: Sequence[str], runs: Runs) -> Placed:
    """Give every node a device.

    devices: names, the preferred one first. runs(device, node): whether that device has a kernel for the node.

    A node runs on its assigned device (Node.device), else on that of its stored arrays (Stored.device), else
    where most bytes of its inputs lie, else on the first device; what updates alone need goes with its first reader
    before that. A device without the kernel computes the op's composition; where there is none, the next device with
    the kernel takes the node. Views follow their base; scalars computed from scalars alone are computed on each device
    that reads them. A stored array that the program writes is kept on one device, where all its updates run.

    A guard over gradients of several devices becomes a norm on each, which is copied to all that update anything;
    there each of these numbers, and the loss, is guarded, and the updates come after these guards. All devices look
    at the same numbers, so either all of them update or none, and no gradient is copied.

    Assumes that gradients, fusion and precision are done, and that no pass behind it merges nodes. Raises SettingError
    where an assigned device is not among these, GraphError where two arrays that one op updates together are assigned
    to lie on two."""
    while True:
        choice = Choice(program, devices, runs)

        def replace(node: Node, inputs: Sequence[Value | None], choice: Choice = choice) -> Sequence[Value] | None:
            device = choice.node.get(node)
            if device is None or node.op.composition is None or runs(device, node):
                return None
            return composed(node, inputs, device)

        expanded = rebuild(program, replace)
        if expanded is program:
            return _Placer(choice).placed()
        program = simplify(expanded)


class _Placer:
    """Rebuilds the program, node by node, with the inputs of each node on its device."""

    def __init__(self, choice: Choice) -> None:
        self.choice, self.program, self.devices = choice, choice.program, choice.devices
        self.nodes: dict[Node, None] = {}
        self.device: dict[Node, str] = {}
        self.new: dict[Value, Value] = {}  # values of nodes that have a device, and of leaves
        self.here: dict[tuple[Value, str], Value] = {}  # (old value, device) -> its counterpart there
        self.norms: dict[Value, tuple[Value, dict[str, Value]]] = {}  # split norm -> (weight, the norm of each device)
        self.guards: dict[str, list[Node]] = {}
        self.one, self.zero = constant(1.0), constant(0.0)

    def placed(self) -> Placed:
        late = self.late()
        for node in sorted(self.program.nodes, key=late.__contains__):  # a guard precedes all updates
            self.visit(node)
        outputs = tuple([self.at(v, self.choice.of(v) or self.devices[0]) for v in self.program.outputs])
        effects = tuple([self.new[v] for v in self.program.effects])
        program = Program(needed(self.nodes, (*outputs, *effects)), outputs, effects)
        return Placed(program, {n: self.device[n] for n in program.nodes if n in self.device})

    def late(self) -> set[Node]:
        """Updates and what depends on them."""
        late: set[Node] = set()
        for node in self.program.nodes:
            if node.op.updates or any(v is not None and v.node in late for v in node.inputs) or late & {*node.after}:
                late.add(node)
        return late

    def add(self, node: Node, device: str | None) -> Node:
        self.nodes[node] = None
        if device is not None:
            self.device[node] = device
        return node

    def visit(self, node: Node) -> None:
        if node.op.leaf:
            home = self.choice.home.get(node.attrs["stored"]) if node.op.name == "parameter" else None
            self.add(node, home)
            self.new[node.outputs[0]] = node.outputs[0]
        elif node in self.choice.groups:
            self.update(node)
        elif node.op.name in ("guard", "grad_norm"):
            self.norm(node)
        elif (device := self.choice.node.get(node)) is not None:
            self.take(node, device)

    def take(self, node: Node, device: str) -> None:
        """The node as it is, on its device."""
        made = node.with_inputs([v if v is None else self.at(v, device) for v in node.inputs], self.after(node, device))
        self.add(made, device)
        self.new.update(zip(node.outputs, made.outputs, strict=True))

    def after(self, node: Node, device: str) -> list[Node]:
        """The node that the counterpart on this device follows."""
        before = [self.at(b.outputs[0], device).node for b in node.after]
        return [*before, *self.guards.get(device, ())] if node.op.updates else before

    def at(self, value: Value, device: str) -> Value:
        """The counterpart of a value of the old program on a device, created on first use."""
        found = self.here.get((value, device))
        if found is None:
            found = self.here[value, device] = self.brought(value, device)
        return found

    def brought(self, value: Value, device: str) -> Value:
        node, home = value.node, self.choice.of(value)
        if value in self.norms:
            weight, norms = self.norms[value]
            inputs = [self.at(weight, device), *(self.copied(v, device) for v in norms.values())]
            return self.add(make("grad_norm", inputs, {}, node), device).outputs[0]
        copies = home == device or value.dtype in REGISTRY["copy"].dtypes["x"]
        if node.op.leaf or node in self.choice.groups or (node in self.choice.node and copies):
            return self.copied(self.new[value], device) if home else self.new[value]
        first = node.inputs[0] if node.op.view is not None else None
        if first is not None and copies and home not in (None, device) and value.bytes < first.bytes:
            return self.copied(self.at(value, home or device), device)  # a part: less to copy than the whole
        # A view, a scalar, or f64, which the op copy does not take: its inputs are copied.
        made = node.with_inputs([v if v is None else self.at(v, device) for v in node.inputs], ())
        return self.add(made, device).outputs[value.index]

    def copied(self, value: Value, device: str) -> Value:
        """A value of the new program on a device."""
        if self.device[value.node] == device:
            return value
        found = self.here.get((value, device))
        if found is None:
            found = self.here[value, device] = self.add(make("copy", [value], {}, value.node), device).outputs[0]
        return found

    def update(self, node: Node) -> None:
        """An update of several groups of arrays: one node for the groups of each device."""
        op, devices = node.op, self.choice.groups[node]
        width = len(op.outputs)
        for device in dict.fromkeys(devices):
            mine = [i for i, one in enumerate(devices) if one == device]
            inputs = list(node.inputs[: op.fixed_inputs])
            for i in mine:
                start = op.fixed_inputs + i * op.group_size
                inputs += node.inputs[start : start + op.group_size]
            made = make(op.name, [v if v is None else self.at(v, device) for v in inputs], node.attrs, node)
            made.after = tuple(self.after(node, device))
            self.add(made, device)
            for k, i in enumerate(mine):
                old, now = (n.outputs[j * width : (j + 1) * width] for n, j in ((node, i), (made, k)))
                self.new.update(zip(old, now, strict=True))

    def norm(self, node: Node) -> None:
        """A guard or a global norm: as it is where one device has all that it reads and guards; else split."""
        scalars, arrays = node.inputs[: node.op.fixed_inputs], node.inputs[node.op.fixed_inputs :]
        groups: dict[str, list[Value]] = {}
        for value in arrays:
            assert value is not None
            groups.setdefault(self.choice.of(value) or self.choice.node[node], []).append(value)
        guarded = dict.fromkeys([*groups, *self.choice.updating()]) if node.op.guard else groups
        if len(guarded) < 2:
            device = next(iter(guarded), self.choice.node[node])
            self.take(node, device)
            return
        loss, weight = scalars if node.op.guard else (None, scalars[0])
        assert weight is not None
        norms = {device: self.partial(node, device, values) for device, values in groups.items()}
        self.norms[node.outputs[0]] = weight, norms
        if loss is not None:
            for device in guarded:
                numbers = [self.at(loss, device), *(self.copied(v, device) for v in norms.values())]
                self.guards.setdefault(device, []).extend(self.guard(node, v, device) for v in numbers)

    def partial(self, node: Node, device: str, values: Sequence[Value]) -> Value:
        """The norm of the gradients on a device, infinite where its square is beyond f32: the value that is checked
        on all devices is this number, so they agree."""
        inputs = [self.leaf(self.one), *(self.at(v, device) for v in values)]
        norm = self.add(make("grad_norm", inputs, {}, node), device).outputs[0]
        if not node.op.guard:
            return norm
        fits = self.add(make("less", [norm, self.leaf(constant(TOO_LARGE))], {}, node), device).outputs[0]
        infinite = self.leaf(constant(np.float32(np.inf)))
        return self.add(make("where", [fits, norm, infinite], {}, node), device).outputs[0]

    def guard(self, node: Node, number: Value, device: str) -> Node:
        """Stops the device's part of the program where a number is not finite."""
        return self.add(make("guard", [number, self.leaf(self.one), self.leaf(self.zero)], {}, node), device)

    def leaf(self, value: Value) -> Value:
        self.add(value.node, None)
        return value
