"""held: the bytes of all buffers that programs hold on a device, before any is made."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.settings import Switches
from ..graph.graph import written
from ..graph.stored import Stored
from ..run.backend import DeviceBytes, PlanThere
from .device import Gpu, buffer_size
from .memory import DOWNLOAD, piece_sizes
from .program import LEAST_ARENA, Layout, Loader, Place
from .records import PAIRS, Records, staged_bytes
from .stored import aligned, groups


def held(plans: Sequence[PlanThere], device: Gpu, switches: Switches) -> DeviceBytes:
    """What programs of these plans hold together when they are loaded in this order and have run.

    Each is laid out as it would be loaded (backend.py), without its buffers and pipelines. Arrays that another program
    has placed already, and a larger arena, are not counted.
    """

    def memory(bytes: int) -> int:
        return sum(buffer_size(size) for size in piece_sizes(int(bytes), device.binding_bytes))

    places: dict[Stored, Place] = {}
    pools: list[int] = []
    changed: set[Stored] = set()
    fixed = code = records = gathered = 0
    for there in plans:
        plan, bytecode = there.plan, there.plan.bytecode
        for group, size in groups([s for s in bytecode.stored if s not in places], device.binding_bytes):
            offset = 0
            for stored in group:
                places[stored] = len(pools), offset
                offset += aligned(stored.bytes)
            pools.append(memory(size))
        changed |= set(written(plan.laid.program.nodes))
        layout = Layout(bytecode, [places[s] for s in bytecode.stored])
        loader = Loader(bytecode, device, layout, switches, compiles=False)
        loader.run()
        tape, calls = loader.tape.arrays()
        code += buffer_size(tape.nbytes) + buffer_size(len(calls))
        fixed += memory(layout.fixed_bytes)
        gathered += memory(layout.gathered_bytes) if layout.gathered_bytes else 0
        if there.fetched is not None:
            records += sum(buffer_size(staged_bytes(plan, layout, outputs)) for outputs in there.fetched)
            continue
        made = Records(plan, layout, device.binding_bytes)
        records += PAIRS * buffer_size(made.ahead * made.stride)
        records += PAIRS * buffer_size(made.ahead * made.row_bytes) if made.row_bytes else 0
    home = sum(aligned(stored.bytes) for stored in changed)
    return DeviceBytes(
        arrays=sum(pools),
        arena=memory(max([LEAST_ARENA, *[one.plan.bytecode.arena_bytes for one in plans]])),
        fixed=fixed,
        code=code,
        records=records,
        gathered=gathered,
        staging=buffer_size(min(DOWNLOAD, device.binding_bytes, home)) if home else 0,
        uploaded=sum(stored.bytes for stored in places),
    )
