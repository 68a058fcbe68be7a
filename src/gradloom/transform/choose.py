"""Choose: which device each node of a program runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..base.errors import GraphError, SettingError
from ..graph.graph import storage_leaf, update_target, view_base, written
from ..graph.stored import Stored
from ..graph.value import Node, Value
from .program import Program, needed, rebuild

Runs = Callable[[str, Node], bool]  # (device, node): whether the device has a kernel for it
DEEP = 16  # length of chains of scalars that are computed where they are read; later nodes of a chain have a device


def explicit_devices(nodes: Iterable[Node]) -> list[str]:
    """The devices that are assigned to nodes and stored arrays, each once."""
    found: dict[str | None, None] = {}
    for node in nodes:
        found[node.device] = None
        if node.op.name == "parameter":
            found[node.attrs["stored"].device] = None
    return [name for name in found if name is not None]


def check_explicit_devices(nodes: Iterable[Node], devices: Sequence[str]) -> None:
    """SettingError where a node or a stored array is assigned to a device that is none of these."""
    for node in nodes:
        stored = node.attrs["stored"].device if node.op.name == "parameter" else None
        for assigned in (node.device, stored):
            if assigned is not None and assigned not in devices:
                raise SettingError(
                    f"devices: {node.op.name} {node.label} is assigned to {assigned!r}; must be one of "
                    f"{', '.join(map(repr, devices))}, or that device among devices="
                )


def without_devices(program: Program) -> Program:
    """The program without assigned devices."""
    if all(node.device is None for node in program.nodes):
        return program

    def replace(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.device is None or node.op.leaf or node.after:
            return None
        made = node.with_inputs(inputs, ())
        made.device = None
        return made.outputs

    return rebuild(program, replace)


class Choice:
    """The devices of a program's nodes.

    node    the device of each node that has one. The others are made on every device that reads them: leaves, views
            (they follow their base), and scalars that are computed from scalars alone
    groups  the device of each group of arrays of an update op that updates several
    home    the one device of each stored array that the program writes
    """

    def __init__(self, program: Program, devices: Sequence[str], runs: Runs) -> None:
        check_explicit_devices(program.nodes, devices)
        self.program, self.devices, self.runs = program, devices, runs
        self.node: dict[Node, str] = {}
        self.groups: dict[Node, list[str]] = {}
        self.home: dict[Stored, str] = {}
        # Of what updates alone need, the nodes that read nothing which has a device: they go with their first reader.
        self._open: dict[Node, None] = {}
        self._deep: dict[Node, int] = {}  # of scalars made of scalars
        self._near: dict[Node, str | None] = {}  # the device with most bytes of their inputs
        self._updates: dict[Stored, list[Node]] = {}
        for node in program.nodes:
            for stored in written((node,)):
                self._updates.setdefault(stored, []).append(node)
        guards = [node.outputs[0] for node in program.nodes if node.op.guard]
        early = {*needed(program.nodes, [*program.outputs, *guards])}
        for node in program.nodes:
            if node.op.updates:
                self._update(node)
            elif not node.op.leaf and node.op.view is None and not self._follows(node):
                device = self._wanted(node) or (self.devices[0] if node in early else None)
                if device is None:
                    self._open[node] = None
                else:
                    self._settle(node, device)
        for node in [*self._open]:
            self._settle(node, self.devices[0])

    def of(self, value: Value) -> str | None:
        """Where a value is computed; None of one that is made wherever it is read."""
        node = value.node
        if node.op.view is not None:
            return self.of(view_base(value))
        if node.op.name == "parameter":
            return self.home.get(node.attrs["stored"])
        if node in self.groups:
            return self.groups[node][value.index // len(node.op.outputs)]
        return self._near[node] if node in self._near else self.node.get(node)

    def updating(self) -> list[str]:
        """The devices that update stored arrays."""
        return list(dict.fromkeys(self.home.values()))

    def _follows(self, node: Node) -> bool:
        """Whether a node makes a scalar of scalars, of which each device may have its own."""
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        if node.device or node.op.guard or not node.op.foldable or any(v.shape for v in values):
            return False
        deep = 1 + max((self._deep.get(v.node, 0) for v in node.inputs if v is not None), default=0)
        if deep > DEEP or not all(self.runs(device, node) for device in self.devices):
            return False
        self._deep[node], self._near[node] = deep, self._among(node.inputs)
        return True

    def _settle(self, node: Node, device: str) -> None:
        """Assign the node to this device, or to the next one that can run it, and its unassigned inputs with it."""
        todo = [node]
        while todo:
            one = todo.pop()
            self._open.pop(one, None)
            self.node[one] = self._able(device, one)
            todo += self._opened(one.inputs)

    def _opened(self, values: Iterable[Value | None]) -> list[Node]:
        bases = (view_base(v).node for v in values if v is not None)
        return [base for base in bases if base in self._open]

    def _wanted(self, node: Node) -> str | None:
        """The assigned device, else that of its weights, else the one with most bytes of its inputs."""
        leaves = [(v, view_base(v).node) for v in node.inputs if v is not None]
        weights = [(v, n.attrs["stored"].device) for v, n in leaves if n.op.name == "parameter"]
        return node.device or _largest(weights) or self._among(node.inputs)

    def _among(self, values: Iterable[Value | None]) -> str | None:
        return _largest([(v, self.of(v)) for v in values if v is not None])

    def _able(self, wanted: str, node: Node) -> str:
        """The wanted device where it can run the node, by a kernel or by its composition; else the next that has a
        kernel; the wanted one where none has."""
        if node.op.composition is not None or self.runs(wanted, node):
            return wanted
        return next((d for d in self.devices if self.runs(d, node)), wanted)

    def _update(self, node: Node) -> None:
        """The devices of the arrays that an update op writes, group by group."""
        op = node.op
        groups = [node.inputs]
        if op.group_size:
            assert not op.fixed_outputs, f"{op.name} updates groups and has other outputs"
            fixed, size = op.fixed_inputs, op.group_size
            groups = [node.inputs[i : i + size] for i in range(fixed, len(node.inputs), size)]
        homes: list[list[Stored]] = [[] for _ in groups]
        for value in node.outputs:
            if (target := update_target(value)) is not None:
                homes[value.index // len(op.outputs)].append(storage_leaf(target).node.attrs["stored"])
        found = [self._home(node, group, arrays) for group, arrays in zip(groups, homes, strict=True)]
        if op.group_size:
            self.groups[node] = found
        else:
            self.node[node] = found[0]

    def _home(self, node: Node, group: Sequence[Value | None], arrays: Sequence[Stored]) -> str:
        """The device that updates a group of arrays: that of an earlier update, else the one assigned to the arrays or
        to the update, else the one with most bytes of its inputs; it must have kernels for all their updates."""
        assigned = {s.device: s for s in arrays if s.device is not None}
        if len(assigned) > 1:
            (one, first), (other, second) = list(assigned.items())[:2]
            raise GraphError(
                f"devices: {node.op.name} {node.label} updates {first.name}, which is assigned to {one!r}, and "
                f"{second.name} on {other!r}; need one device for both"
            )
        known = [self.home[s] for s in arrays if s in self.home]
        wanted = (*assigned, node.device, self._among(group), self._among(node.inputs), self.devices[0])
        device = next(d for d in (*known, *wanted) if d is not None)
        updates = {node, *(update for s in arrays for update in self._updates[s])}
        if not known and not all(self.runs(device, update) for update in updates):
            device = next((d for d in self.devices if all(self.runs(d, update) for update in updates)), device)
        self.home.update(dict.fromkeys(arrays, device))
        for before in self._opened((*group, *node.inputs[: node.op.fixed_inputs])):
            self._settle(before, device)
        return device


def _largest(placed: Iterable[tuple[Value, str | None]]) -> str | None:
    """The device with most bytes; of equal ones the first."""
    bytes_on: dict[str, int] = {}
    for value, device in placed:
        if device is not None:
            bytes_on[device] = bytes_on.get(device, 0) + value.bytes
    return max(bytes_on, key=bytes_on.__getitem__) if bytes_on else None
