"""Backend: who computes a program. compile() looks one up by its name.

A new backend implements Backend and Executable (run/executable.py) and is registered; nothing else changes for it
(tests/run/test_backend.py makes one).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ..base.errors import BackendError, SettingError
from ..base.habits import value_hint
from ..base.hooks import device_backends
from ..base.settings import Switches, switches
from ..graph.value import Node
from ..plan.bytecode import KernelNeeds, signature
from ..plan.plan import Plan, make_plan
from ..plan.schedule import Schedule
from ..transform.program import Program
from .executable import Executable
from .feeds import leaves


class Buffer(Protocol):
    """Memory that a backend has allocated."""

    @property
    def bytes(self) -> int:
        """How many bytes it has now."""

    def ensure(self, bytes: int) -> None:
        """Grow to at least `bytes`; earlier contents are lost."""


class Backend(Protocol):
    """Who computes. compile() makes one from its switches, and all answers are for these: the instruction set, the
    number of threads."""

    name: ClassVar[str]  # as in compile(backend=name)
    planned: ClassVar[bool]  # load takes a rewritten program and its plan; else the program as it was written, no plan

    def __init__(self, switches: Switches) -> None: ...

    @property
    def piece_bytes(self) -> int:
        """Bytes of each piece of an arena: a value is whole in one, or begins with one; 0: the arena is one piece."""

    def available(self) -> tuple[bool, str]:
        """Whether it can compute here; and its description, or the reason why it cannot."""

    def signatures(self) -> Collection[tuple[str, str]] | None:
        """(op, dtypes) of every kernel that it has; None: no op needs one."""

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        """Parts, scratch and workspace of an instruction. args: its operands as in the bytecode."""

    def allocate(self, bytes: int) -> Buffer:
        """Memory for programs that are not to wait for others: compile(arena=...)."""

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> Executable:
        """Make it run. plan: the proved plan of the program where the backend is `planned`. arena: memory that
        `allocate` gave, instead of the memory that all programs of the backend share."""


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes of the buffers that programs hold together on a device, by kind.

    arrays    the stored arrays: weights, the optimiser's moments, rows of data
    arena     activations, gradients and workspace of the largest program
    fixed     inputs, constants and settings of each program
    code      the arguments that the kernels of all programs read
    records   outputs of the steps that are on their way, and their settings
    gathered  copies of operands that lie in too many pieces
    staging   the largest transfer to the host, while it lasts
    uploaded  of the arrays: bytes that are uploaded before the first step; part of `arrays`
    """

    arrays: int
    arena: int
    fixed: int
    code: int
    records: int
    gathered: int
    staging: int
    uploaded: int

    @property
    def lasting(self) -> int:
        """Bytes that stay between two transfers."""
        return self.total - self.staging

    @property
    def total(self) -> int:
        """The peak: all of it."""
        return self.arrays + self.arena + self.fixed + self.code + self.records + self.gathered + self.staging


@dataclass(frozen=True)
class PlanThere:
    """A plan of a program on a device. fetched: where other devices compute the rest of the program, the outputs of
    each fetch from it; None: it is a whole program."""

    plan: Plan
    fetched: tuple[tuple[int, ...], ...] | None = None


class DeviceBackend(Backend, Protocol):
    """A backend whose programs compute in memory of its own."""

    def held(self, plans: Sequence[PlanThere]) -> DeviceBytes:
        """What programs of these plans, loaded in this order where nothing is loaded yet, hold together."""


_registered: dict[str, type[Backend]] = {}
_devices: dict[str, Callable[[Switches, int], DeviceBackend]] = {}
_alike: dict[str, Callable[[], list[int]]] = {}
_count: dict[str, Callable[[], int]] = {}
_planning: dict[str, Callable[[Switches, Backend], Backend]] = {}
# Settings of compile that would change numbers and that a backend does not support, by the first part of its name.
UNSUPPORTED = {"numpy": ("isa", "flush", "memory"), "gpu": ("isa", "flush")}
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # of a device


def register(made: type[Backend]) -> None:
    """Add a backend: from now on compile(backend=made.name) uses it."""
    _registered[made.name] = made


def register_device(
    name: str,
    make: Callable[[Switches, int], DeviceBackend],
    alike: Callable[[], list[int]],
    count: Callable[[], int],
) -> None:
    """Add a backend of which a machine may have several: "name" is number 0, "name:1" the next one. count() returns
    their number, alike() the numbers of those that are of the same make as number 0; both raise BackendError if there
    is none."""
    _devices[name], _alike[name], _count[name] = make, alike, count


def register_planning(name: str, make: Callable[[Switches, Backend], Backend]) -> None:
    """Add a backend that only plans: "name:gpu" makes the plans of "gpu"."""
    _planning[name] = make


def named(who: str, device: str | None, backend: str | None, default: str = "cpu") -> str:
    """The name under either word; SettingError when both are given. who: the function, for the message."""
    if device is not None and backend is not None:
        given = {"device": device, "backend": backend}
        raise SettingError("{device} and {backend} are mutually exclusive", given, place=who)
    name = next((one for one in (device, backend) if one is not None), default)
    if not isinstance(name, str):
        raise SettingError(setting="device", seen=name, need="a name, such as 'cpu' or 'gpu'", place=who)
    return name


def backend(name: str, switches: Switches) -> Backend:
    """The backend of this name; BackendError when there is none, or when it cannot compute here."""
    kind, _, place = name.partition(":")
    _import(kind)
    if kind in _planning and place:
        made = _planning[kind](switches, backend(place, switches))
    elif kind in _devices:
        made = _devices[kind](switches, _number(name))
    elif name in _registered:
        made = _registered[name](switches)
    else:
        hint = value_hint("device", kind, [*_registered, *device_backends])
        known = ", ".join([*_registered, *device_backends])
        raise BackendError(f"backend: {name!r} is not known; must be one of {known}{hint}")
    there, why = made.available()
    if not there:
        raise BackendError(why)
    return made


def has_effect(name: str, setting: str) -> bool:
    """Whether a setting of compile has an effect on the backend of this name."""
    return setting not in UNSUPPORTED.get(computing(name).partition(":")[0], ())


def _number(name: str) -> int:
    """Of "gpu" 0, of "gpu:1" 1; BackendError for anything else."""
    kind, colon, place = name.partition(":")
    if colon and not _NUMBER.fullmatch(place):
        raise BackendError(f"backend: {name!r} is not usable; need '{kind}', or '{kind}:1' for the second one, ...")
    return int(place or 0)


def check_effect(who: str, names: Sequence[str], settings: Mapping[str, Any]) -> None:
    """SettingError for the first given setting that has no effect on one of these backends."""
    for setting, given in settings.items():
        if given is not None and not all(has_effect(name, setting) for name in names):
            text = f"{{{setting}}} requires device 'cpu'; it has no effect on {', '.join(map(repr, names))}"
            raise SettingError(text, setting=setting, seen=given, place=who)


def need_there(who: str, name: str) -> None:
    """SettingError, which names the devices that are there, where this one cannot compute a part of a program here."""
    try:
        if backend(name, switches()).planned:
            return
        why = "{device} runs whole programs only"
    except BackendError as error:
        there = _there()
        if name in there or is_device(name):
            raise SettingError(f"{who}: {error}") from None
        why = "{device} does not exist here"
    raise SettingError(f"{why}; use {' or '.join(map(repr, _there()))}", device=name, place=who)


def _there() -> list[str]:
    """The names of the devices that compute parts of programs here."""
    found = [name for name, one in _registered.items() if one.planned and name not in _planning]
    for kind in device_backends:
        _import(kind)
        with contextlib.suppress(BackendError):
            found += [f"{kind}:{number}" if number else kind for number in range(_count[kind]())]
    return found


def _import(kind: str) -> None:
    if kind in device_backends and kind not in _devices:
        device_backends[kind]()


def device_bytes(name: str, plans: Sequence[Plan | Schedule], switches: Switches) -> DeviceBytes | None:
    """What programs of these plans, or their parts there, hold on the device of this name, or on the one that
    "null:NAME" plans for; None: they compute in the memory of this process alone."""
    there = computing(name)
    kind = there.partition(":")[0]
    if kind not in device_backends:
        return None
    _import(kind)
    parts = []
    for plan in plans:
        if isinstance(plan, Plan):
            parts += [PlanThere(plan)] if plan.device in ("", name) else []
        elif name in plan.parts:
            parts.append(PlanThere(plan.parts[name].plan, plan.fetched(name)))
    return None if plans and not parts else _devices[kind](switches, _number(there)).held(parts)


def device_of(plans: Sequence[Plan | Schedule], default: str) -> str:
    """The device other than the CPU that these programs run on, the first of several; the default is that of
    plans for one device, and of no plans."""
    names = [name for p in plans for name in ([p.device or default] if isinstance(p, Plan) else p.parts)]
    return next((name for name in names or [default] if is_device(computing(name))), "cpu")


def computing(name: str) -> str:
    """The device itself, of the name of one that is only planned for: "gpu" of "null:gpu"."""
    kind, _, place = name.partition(":")
    return place if kind in _planning and place else name


def is_device(name: str) -> bool:
    """Whether the name is that of a device other than the CPU: "gpu", "gpu:1"."""
    return name.partition(":")[0] in device_backends


def device_of_rank(name: str, rank: int) -> str:
    """Where a rank computes that is asked to compute on `name`: "gpu" is one adapter after the other, of those of the
    same make as the first. BackendError where there is none."""
    if name not in device_backends:
        return name
    _import(name)
    numbers = _alike[name]()
    number = numbers[rank % len(numbers)]
    return f"{name}:{number}" if number else name


def make_of(name: str) -> str:
    """What computes under a name: two devices of one make give the same bits. BackendError where it is not there."""
    return backend(name, switches()).available()[1] if is_device(name) else name


def has_kernel(chosen: Backend, node: Node) -> bool:
    """Whether a backend can run a node: it has a kernel for its dtypes, or the node needs none."""
    known = chosen.signatures()
    if node.op.python:
        return known is None or getattr(chosen, "calls_python", False)
    return known is None or node.op.leaf or node.op.view is not None or (node.op.name, signature(node)) in known


def plan_for(chosen: Backend, program: Program, switches: Switches) -> Plan:
    """Plan and prove a program for a backend. Raises GraphError when one name is two inputs, BackendError with every
    kernel that is missing: before anything is planned."""
    for kind in ("input", "setting"):
        leaves(program.nodes, kind)
    missing: dict[tuple[str, str], Node] = {}
    for node in program.nodes:
        if not has_kernel(chosen, node):
            missing.setdefault((node.op.name, signature(node)), node)
    if missing:
        listed = ", ".join(f"{op} {dtypes} ({node.label})" for (op, dtypes), node in missing.items())
        here = f"{chosen.name} {chosen.available()[1]}"
        remedy = "backend='numpy' computes everything"
        if any(node.op.python for node in missing.values()):
            remedy = f"user-defined ops run on the CPU: use devices=({chosen.name!r}, 'cpu')"
        raise BackendError(f"{here} has no kernel for: {listed}; {remedy}")
    try:
        return make_plan(program, chosen.needs, switches, chosen.piece_bytes)
    except MemoryError:
        raise no_memory("compile") from None


def no_memory(what: str) -> BackendError:
    """The error for a MemoryError."""
    return BackendError(
        f"{what}: the system gives no more memory; need smaller batches, a shorter context or a machine with more"
    )
