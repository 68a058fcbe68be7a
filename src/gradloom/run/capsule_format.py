"""A capsule as a JSON object and arrays, and back.

A capsule that is read is untrusted: `restored` checks a schema before any object is built, then each node is made by
its op, which checks attributes and infers shapes and dtypes; these must be the stated ones. An array must have the
bytes that its shape needs, and is referred to once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops  # noqa: F401 (fills the registry)
from ..base.aligned import aligned_empty
from ..base.dtypes import ALL, DType, dtype
from ..base.errors import DataError, GradloomError
from ..base.schema import Schema, both, flag, items, mapping, one_of, optional, plain, shown, table, text, whole, wrong
from ..base.settings import PRECISIONS
from ..graph.declaration import Attr
from ..graph.graph import check_graph
from ..graph.leaves import stored_value
from ..graph.numbers import addressable
from ..graph.opspec import MAX_RANK, REGISTRY, OpSpec
from ..graph.scope import device_name
from ..graph.stored import Stored, arrays_locked
from ..graph.value import Node, Value
from ..transform.program import Program, gather
from .capsule import Call, Capsule, Number, Outcome, Planned, digest

FORMAT = 1
PLAN_TEXT = 1 << 24  # characters of a plan; the rest is cut
INLINE = 64  # bytes of an array that is written into the JSON object
Read = Callable[[int, np.dtype, tuple[int, ...]], np.ndarray]  # the array of a number; DataError for another one


def carrier(kind: DType, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """dtype and shape of the NumPy array that holds such an array in a file: bf16 as u2, blocks as bytes."""
    if kind.is_quantised:
        return np.dtype("u1"), (kind.bytes_of(math.prod(shape)),)
    return np.dtype("<u2") if kind.name == "bf16" else kind.numpy.newbyteorder("<"), shape


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Arrays:
    """Arrays as the JSON object refers to them: short ones inside of it, others by number."""

    def __init__(self, with_data: bool) -> None:
        self.with_data = with_data
        self.members: list[np.ndarray] = []

    def entry(self, array: np.ndarray, kind: DType, shape: Sequence[int], keep: bool = False) -> dict[str, Any]:
        """keep: also in a capsule without data."""
        extents = tuple(int(n) for n in shape)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made: dict[str, Any] = {"dtype": kind.name, "shape": [*extents], "sha256": digest(flat)}
        if self.with_data or keep:
            if flat.nbytes <= INLINE:
                made["hex"] = flat.tobytes().hex()
            else:
                made["member"] = len(self.members)
                as_kind, as_shape = carrier(kind, extents)
                self.members.append(flat.view(as_kind).reshape(as_shape))
        return made


def described(capsule: Capsule, with_data: bool = True) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The JSON object of a capsule, and the arrays that it refers to. with_data=False: names, shapes, digests in place
    of inputs, stored arrays and outputs; constants and bytecode are part of the program and stay."""
    arrays = _Arrays(with_data and capsule.has_data)
    numbers = {stored: i for i, stored in enumerate(capsule.stored)}
    with arrays_locked(capsule.stored):
        stored = [
            {"name": one.name, "role": one.role, "data": arrays.entry(one.read(), one.dtype, one.shape)}
            for one in capsule.stored
        ]
    return {
        "format": FORMAT,
        "about": capsule.about,
        "device": capsule.device,
        "switches": capsule.switches,
        "has_data": arrays.with_data,
        "stored": stored,
        "programs": [_described_program(one, numbers, arrays) for one in capsule.programs],
        "plans": [_described_plan(one, arrays) for one in capsule.plans],
        "calls": [_described_call(one, capsule.programs[one.program], arrays) for one in capsule.calls],
    }, arrays.members


def _described_program(program: Program, stored: Mapping[Stored, int], arrays: _Arrays) -> dict[str, Any]:
    places = {node: i for i, node in enumerate(program.nodes)}

    def wire(value: Value | None) -> list[int] | None:
        return None if value is None else [places[value.node], value.index]

    nodes = []
    for node in program.nodes:
        made: dict[str, Any] = {"op": node.op.name, "outputs": [[v.dtype.name, [*v.shape]] for v in node.outputs]}
        if node.inputs:
            made["inputs"] = [wire(v) for v in node.inputs]
        if node.attrs:
            made["attrs"] = {a.name: _described_attr(a, node.attrs[a.name], stored, arrays) for a in node.op.attrs}
        if node.after:
            made["after"] = [places[before] for before in node.after]
        made |= {key: value for key in ("name", "where", "device") if (value := getattr(node, key))}
        nodes.append(made)
    wires = {"outputs": [wire(v) for v in program.outputs], "effects": [wire(v) for v in program.effects]}
    return {"nodes": nodes, **wires}


def _described_attr(attr: Attr, value: Any, stored: Mapping[Stored, int], arrays: _Arrays) -> Any:
    if value is None:
        return None
    if attr.kind == "object":
        if attr.name == "stored":
            return stored[value]
        if attr.name == "data":
            return arrays.entry(value, dtype(value.dtype), value.shape, keep=True)
        if attr.name == "call":
            text = f"capsule: the program calls the Python function {value.name}, which a file cannot hold"
            raise DataError(f"{text}; need a program without user-defined ops (gl.op)")
        if attr.name != "key":
            raise DataError(f"capsule: attribute {attr.name} is a Python object; need a program of gradloom's own ops")
    if attr.kind == "dtype":
        return value.name
    if attr.kind == "float":
        return number_text(value)
    return [*value] if attr.kind == "ints" else value


def number_text(value: Any) -> Any:
    """A number of JSON, or the name of one that JSON lacks."""
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _described_plan(plan: Planned, arrays: _Arrays) -> dict[str, Any]:
    code = {name: arrays.entry(a, dtype(a.dtype), a.shape, keep=True) for name, a in plan.bytecode.items()}
    return {"text": plan.text[:PLAN_TEXT], "digest": plan.digest, "error": plan.error, "bytecode": code}


def _described_call(call: Call, program: Program, arrays: _Arrays) -> dict[str, Any]:
    found = call.outcome
    pairs = zip(program.outputs, found.outputs, strict=False)
    outputs = [arrays.entry(array, value.dtype, value.shape) for value, array in pairs if array is not None]
    return {
        "program": call.program,
        "inputs": {key: arrays.entry(array, dtype(array.dtype), array.shape) for key, array in call.inputs.items()},
        "settings": {key: number_text(value) for key, value in call.settings.items()},
        "outputs": outputs,
        "steps": found.steps,
        "updated": {str(i): one for i, one in found.updated.items()},
        "error": found.error,
        "failed": found.failed,
        "not_finite": found.not_finite,
    }


# ---- the schema of the JSON object -----------------------------------------------------------------------------------

_COUNT = whole(0, 1 << 30)
_OR_NONE = whole(-1, 1 << 30)
_NAMES = tuple(kind.name for kind in ALL)
_NOT_FINITE = ("nan", "inf", "-inf")


def _short(most: int) -> Schema:
    def check(value: Any, name: str) -> None:
        text(value, name)
        if len(value) > most:
            raise DataError(f"{name} has {len(value)} characters; need at most {most}")

    return check


def _hex_of(most: int) -> Schema:
    def check(value: Any, name: str) -> None:
        text(value, name)
        if len(value) > 2 * most or len(value) % 2 or not set(value) <= set("0123456789abcdef"):
            raise wrong(name, value, f"at most {most} bytes as hexadecimal digits")

    return check


def _shape(value: Any, name: str) -> None:
    items(whole(0, 1 << 62))(value, name)
    if len(value) > MAX_RANK or not addressable(value, 8):
        raise wrong(name, value, f"a shape of at most {MAX_RANK} axes and fewer than 2^63 bytes")


def _spec(value: Any, name: str) -> None:
    if type(value) is not list or len(value) != 2:
        raise wrong(name, value, "a dtype and a shape")
    one_of(*_NAMES)(value[0], f"{name}[0]")
    _shape(value[1], f"{name}[1]")


def _number(value: Any, name: str) -> None:
    is_float = type(value) is float and math.isfinite(value)
    if not is_float and not (type(value) in (bool, int) and abs(value) <= 2**63) and value not in _NOT_FINITE:
        raise wrong(name, value, "a number")


_ARRAY = table(
    {"dtype": one_of(*_NAMES), "shape": _shape, "sha256": _hex_of(32), "hex": _hex_of(INLINE), "member": _COUNT},
    absent=("hex", "member"),
)  # fmt: skip
_WIRE = items(_COUNT, 2)
_NODE = table(
    {
        "op": _short(64), "outputs": items(_spec), "inputs": items(optional(_WIRE)), "attrs": mapping(plain),
        "after": items(_COUNT), "name": _short(4096), "where": _short(4096), "device": _short(64),
    },
    absent=("inputs", "attrs", "after", "name", "where", "device"),
)  # fmt: skip
_PROGRAM = table({"nodes": items(_NODE), "outputs": items(_WIRE), "effects": items(_WIRE)})
_PLAN = table(
    {"text": _short(PLAN_TEXT), "digest": _hex_of(32), "error": _short(1 << 16),
     "bytecode": mapping(_ARRAY, "[a-z]+")}
)  # fmt: skip
_CALL = table(
    {
        "program": _COUNT, "inputs": mapping(_ARRAY), "settings": mapping(_number), "outputs": items(_ARRAY),
        "steps": items(_hex_of(8)), "updated": mapping(_hex_of(32), "0|[1-9][0-9]{0,8}"), "error": _short(1 << 16),
        "failed": _OR_NONE, "not_finite": _OR_NONE,
    }
)  # fmt: skip
_SWITCHES = table(
    {
        "reuse": flag, "inplace": flag, "fuse": flag, "poison": flag, "flush": flag, "isa": _short(32),
        "precision": one_of(*PRECISIONS), "check": whole(0, 2),
    }
)  # fmt: skip
_CAPSULE = table(
    {
        "format": one_of(FORMAT), "about": both(mapping(plain), plain), "device": _short(64), "switches": _SWITCHES,
        "has_data": flag,
        "stored": items(table({"name": _short(4096), "role": one_of("trained", "state", "frozen"), "data": _ARRAY})),
        "programs": items(_PROGRAM), "plans": items(_PLAN), "calls": items(_CALL),
    }
)  # fmt: skip


# ---- reading ---------------------------------------------------------------------------------------------------------


def restored(head: Mapping[str, Any], read: Read) -> Capsule:
    """The capsule of a JSON object. read(number, dtype, shape): the array of a number, in memory of its own.

    DataError for an object of another version, one that does not fit its schema, a graph that its ops refuse, and an
    array that does not have the stated bytes or digest.
    """
    if type(head.get("format")) is int and head["format"] > FORMAT:
        raise DataError(f"is of format {head['format']}; this gradloom reads {FORMAT}: need a newer one")
    _CAPSULE(head, "capsule")
    reader = _Reader(read, head["has_data"])
    stored = [reader.stored(one, f"stored[{i}]") for i, one in enumerate(head["stored"])]
    programs = [_Builder(reader, stored, f"programs[{i}]").program(one) for i, one in enumerate(head["programs"])]
    if not programs or len(head["plans"]) != len(programs):
        raise DataError(f"has {len(programs)} programs and {len(head['plans'])} plans; need one plan for each program")
    plans = [
        Planned(one["text"], one["digest"], reader.arrays(one["bytecode"], f"plans[{i}].bytecode"), one["error"])
        for i, one in enumerate(head["plans"])
    ]
    calls = [_call(one, programs, len(stored), reader, f"calls[{i}]") for i, one in enumerate(head["calls"])]
    return Capsule(
        programs, stored, calls, plans, dict(head["switches"]), _device(head["device"]), dict(head["about"]),
        head["has_data"],
    )  # fmt: skip


def _device(name: str) -> str:
    return name if name == "numpy" else device_name("capsule", name)


class _Reader:
    """Arrays out of their descriptions, each once."""

    def __init__(self, read: Read, has_data: bool) -> None:
        self._read, self.has_data = read, has_data
        self._used: set[int] = set()

    def array(self, entry: Mapping[str, Any], name: str, keep: bool = False) -> np.ndarray | None:
        """Of its dtype and shape (of a quantised one its bytes); None in a capsule without data, unless `keep`."""
        kind, shape = dtype(entry["dtype"]), tuple(entry["shape"])
        as_kind, as_shape = carrier(kind, shape)
        if kind.is_quantised and (not shape or shape[-1] % kind.block):
            raise DataError(f"{name} is {kind.name}{list(shape)}; need a last axis of whole blocks of {kind.block}")
        if ("hex" in entry) + ("member" in entry) != (self.has_data or keep):
            need = "its bytes, in `hex` or a member" if self.has_data or keep else "no bytes in a capsule without data"
            raise DataError(f"{name}: need {need}")
        if "hex" in entry:
            flat = np.frombuffer(bytes.fromhex(entry["hex"]), np.uint8)
            if flat.nbytes != math.prod(as_shape) * as_kind.itemsize:
                raise DataError(f"{name}: {flat.nbytes} bytes; {kind.name}{list(shape)} needs another number")
            found = aligned_empty(as_shape, as_kind)
            found.reshape(-1).view(np.uint8)[...] = flat
        elif "member" in entry:
            if entry["member"] in self._used:
                raise DataError(f"{name}: array {entry['member']} is used twice")
            self._used.add(entry["member"])
            found = self._read(entry["member"], as_kind, as_shape)
        else:
            return None
        if digest(found) != entry["sha256"]:
            raise DataError(f"{name}: its SHA-256 is not the stated one")
        return found if kind.is_quantised else found.view(kind.numpy)

    def arrays(self, entries: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
        found = {key: self.array(entry, f"{name}.{key}", keep=True) for key, entry in entries.items()}
        return {key: array for key, array in found.items() if array is not None}

    def stored(self, entry: Mapping[str, Any], name: str) -> Stored:
        kind, shape, role = dtype(entry["data"]["dtype"]), tuple(entry["data"]["shape"]), entry["role"]
        if kind.is_quantised and role != "frozen":
            raise DataError(f"{name} is {kind.name} and {role}; need the role frozen")
        array = self.array(entry["data"], name)
        if array is None:
            return Stored.deferred(entry["name"], shape, lambda: aligned_empty(shape, kind.numpy), kind, role)
        if kind.is_quantised:
            return Stored.map(entry["name"], array, kind, shape)
        return Stored.wrap(entry["name"], array, role)


class _Builder:
    """The nodes of a program out of their descriptions."""

    def __init__(self, reader: _Reader, stored: Sequence[Stored], name: str) -> None:
        self.reader, self.stored, self.name = reader, stored, name
        self.nodes: list[Node] = []

    def program(self, entry: Mapping[str, Any]) -> Program:
        for i, one in enumerate(entry["nodes"]):
            self.nodes.append(self.node(one, f"{self.name}.nodes[{i}]"))
        outputs, effects = (
            [self.value(wire, f"{self.name}.{key}[{i}]") for i, wire in enumerate(entry[key])]
            for key in ("outputs", "effects")
        )
        for value in effects:
            if not value.node.op.updates:
                raise DataError(f"{self.name}: effect {value.node.op.name} writes nothing; need an update")
        if any(value.dtype.is_quantised for value in outputs) or not (outputs or effects):
            raise DataError(f"{self.name}: need outputs that are not quantised, or effects")
        try:
            check_graph(self.nodes)
            made = gather(outputs, effects)
        except GradloomError as error:
            raise DataError(f"{self.name}: {error}") from None
        if len(made.nodes) != len(self.nodes):
            raise DataError(f"{self.name}: {len(self.nodes)} nodes; outputs and effects need {len(made.nodes)} of them")
        return made

    def value(self, wire: Sequence[int], name: str) -> Value:
        at, index = wire
        if at >= len(self.nodes) or index >= len(self.nodes[at].outputs):
            raise DataError(f"{name}: output {index} of node {at} does not exist before it")
        return self.nodes[at].outputs[index]

    def node(self, entry: Mapping[str, Any], name: str) -> Node:
        op = REGISTRY.get(entry["op"])
        if op is None:
            raise DataError(f"{name}: op {shown(entry['op'])} is not known to this version")
        wires = entry.get("inputs", [])
        inputs = [None if w is None else self.value(w, f"{name}.inputs[{i}]") for i, w in enumerate(wires)]
        attrs = self.attrs(op, entry.get("attrs", {}), name)
        try:
            if op.name == "parameter":
                made = stored_value(attrs["stored"]).node
            else:
                made = op.node(inputs, attrs, entry.get("name", ""), entry.get("where", ""))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # shape rules see what no caller writes
            raise DataError(f"{name}: {op.name}: {shown(str(error))}") from None
        stated = [(dtype(kind), tuple(shape)) for kind, shape in entry["outputs"]]
        if [(v.dtype, v.shape) for v in made.outputs] != stated:
            raise DataError(f"{name}: {op.name}: states {shown(entry['outputs'])}; its op infers {shown(made.outputs)}")
        if any(at >= len(self.nodes) for at in entry.get("after", ())):
            raise DataError(f"{name}: comes after a node that does not exist before it")
        made.after = tuple(self.nodes[at] for at in entry.get("after", ()))
        made.name, made.where = entry.get("name", ""), entry.get("where", "")
        if "device" in entry:
            made.device = _device(entry["device"])
        return made

    def attrs(self, op: OpSpec, given: Mapping[str, Any], name: str) -> dict[str, Any]:
        if given.keys() != {attr.name for attr in op.attrs}:
            need = ", ".join(attr.name for attr in op.attrs) or "none"
            raise DataError(f"{name}: {op.name} has the attributes {shown([*given])}; need {need}")
        return {attr.name: self.attr(attr, given[attr.name], f"{name}.{attr.name}") for attr in op.attrs}

    def attr(self, attr: Attr, value: Any, name: str) -> Any:
        if value is None and attr.optional:
            return None
        if attr.kind == "object" and attr.name == "stored":
            whole(0, len(self.stored) - 1)(value, name)
            return self.stored[value]
        if attr.kind == "object" and attr.name == "data":
            _ARRAY(value, name)
            array = self.reader.array(value, name, keep=True)
            if array is None or dtype(value["dtype"]).is_quantised:
                raise DataError(f"{name}: is {value['dtype']}; need a plain dtype")
            array.setflags(write=False)
            return array
        if attr.kind == "float":
            _number(value, name)
            return float(value)
        if attr.kind == "ints":
            items(whole(-(1 << 63), (1 << 63) - 1))(value, name)
            return tuple(value)
        {"int": whole(-(1 << 63), (1 << 63) - 1), "stream": whole(0, (1 << 63) - 1), "bool": flag}.get(
            attr.kind, _short(4096)
        )(value, name)  # fmt: skip
        return value


def _call(
    entry: Mapping[str, Any], programs: Sequence[Program], stored: int, reader: _Reader, name: str
) -> Call:  # fmt: skip
    if entry["program"] >= len(programs):
        raise DataError(f"{name}.program is {entry['program']}; the capsule has {len(programs)}")
    program = programs[entry["program"]]
    arrays = {key: reader.array(one, f"{name}.inputs.{key}") for key, one in entry["inputs"].items()}
    results = [reader.array(one, f"{name}.outputs[{i}]") for i, one in enumerate(entry["outputs"])]
    specs = [(dtype(one["dtype"]), tuple(one["shape"])) for one in entry["outputs"]]
    if specs and specs != [(v.dtype, v.shape) for v in program.outputs]:
        raise DataError(f"{name}.outputs: have other shapes than those of the program")
    updated = {int(key): one for key, one in entry["updated"].items()}
    if any(i >= stored for i in updated):
        raise DataError(f"{name}.updated: names an array that the capsule does not have")
    outcome = Outcome(
        results, [one["sha256"] for one in entry["outputs"]], entry["steps"], updated, entry["error"], entry["failed"],
        entry["not_finite"],
    )  # fmt: skip
    settings: dict[str, Number] = {k: float(v) if type(v) is str else v for k, v in entry["settings"].items()}
    inputs = {key: array for key, array in arrays.items() if array is not None}
    return Call(entry["program"], inputs, settings, outcome)
