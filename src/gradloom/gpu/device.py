"""Adapters, and devices made of them: limits, buffers, pipelines."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base.dtypes import DType
from ..base.errors import BackendError, DeviceLost, DeviceMemoryError, one_line
from ..base.extras import install, missing
from ..base.locks import Lock
from ..base.memory import show_bytes
from .calls import Dispatch, Limits
from .source import CALL_BYTES, Slots, module

# The limits that a device is asked for, by WebGPU's names, and what WebGPU promises everywhere.
LIMITS = {
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
}
OURS = 2  # storage buffers of each dispatch that are not data: `fixed` and the tape
TIMESTAMPS, SUBGROUPS = "timestamp-query", "subgroup"  # features
MOST_SUBGROUP = 32  # threads of a subgroup that trees use
MESA_ROUNDS = 65535  # after these Mesa's software adapter ends a kernel's loops without a word
DRIVER = "need a driver for Vulkan (on Debian without a GPU: apt install mesa-vulkan-drivers), Metal or DX12"


def _wgpu() -> Any:
    """The package; BackendError with the command that installs it."""
    try:
        import wgpu
        import wgpu.backends.wgpu_native
    except ImportError:
        raise missing("gpu", "gpu") from None
    except Exception as error:  # its library does not load on this system
        raise BackendError(f"gpu: the package wgpu cannot be used: {one_line(error)}; run {install('gpu')}") from None
    return wgpu


@contextlib.contextmanager
def _no_display() -> Iterator[None]:
    """Keeps drivers from printing that they find no display where the session has none: nothing is shown here."""
    unset = "XDG_RUNTIME_DIR" not in os.environ
    if unset:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if unset:
            os.environ.pop("XDG_RUNTIME_DIR", None)


@functools.cache
def adapters() -> tuple[Any, ...]:
    """The adapters of this machine, hardware first; one per piece of hardware. BackendError without wgpu or adapter."""
    wgpu = _wgpu()
    with contextlib.suppress(Exception):  # too late if wgpu is already in use in this process: then all are queried
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
    try:
        with _no_display():
            every = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        raise BackendError(f"gpu: no adapter: {one_line(error)}; {DRIVER}") from None
    seen = [a for a in every if a.info["backend_type"] in ("Vulkan", "Metal", "D3D12")]
    if not seen:
        raise BackendError(f"gpu: there is no adapter; {DRIVER}")
    order = {"DiscreteGPU": 0, "IntegratedGPU": 1, "CPU": 3}
    return tuple(sorted(seen, key=lambda a: order.get(a.info["adapter_type"], 2)))


def adapter(place: int) -> Any:
    """The adapter of this number."""
    there = adapters()
    if place >= len(there):
        names = ", ".join(f"gpu:{i} {name_of(a)}" for i, a in enumerate(there))
        raise BackendError(f"gpu:{place}: there is no such adapter; use {names}")
    return there[place]


def alike() -> list[int]:
    """The numbers of the adapters that are of the same make as the first."""
    makes = [(name_of(a), a.info["description"]) for a in adapters()]
    return [i for i, make in enumerate(makes) if make == makes[0]]


def name_of(made: Any) -> str:
    info = made.info
    return f"{info['device'] or info['vendor']} ({info['backend_type']})"


def subgroup_of(made: Any) -> int:
    """Threads of a subgroup at least, as far as trees use them; 0 where the adapter has none."""
    keys = ("subgroup_min_size", "stackgroup_min_size")  # wgpu 0.32 has the second
    least = next((int(made.info[key]) for key in keys if made.info.get(key)), 0) if SUBGROUPS in made.features else 0
    return min(least, MOST_SUBGROUP) if least > 1 and least & (least - 1) == 0 else 0


def buffer_size(bytes: int) -> int:
    """Allocated size of a buffer, in bytes."""
    return max(-(-bytes // 256) * 256, 256)


class Gpu:
    """An adapter in use. All programs on it share its arena (program.py) and the copies of stored arrays (stored.py).

    called: the name that `device=` takes. limits: the numbers that programs keep to. default_limits: ask for no more
    than WebGPU guarantees everywhere. lock: held to load, run, upload or download; its holder takes no other
    lock (base/locks.py).
    binding_bytes: of a buffer that kernels see, at most; a test asks for fewer than the adapter allows.
    workgroup: what a workgroup may have.
    subgroup: threads of a subgroup at least, whose numbers go from thread to thread; 0: it has none.
    tightest: the limit that a buffer has.
    segments: buffers that a dispatch may touch in addition to `fixed` and the tape.
    rounds: limit of a thread's loops, all together; None: no limit.
    timestamps: whether it writes times; period: nanoseconds of a unit of these.
    """

    def __init__(self, place: int = 0, default_limits: bool = False, binding_bytes: int | None = None) -> None:
        self.place, self.adapter = place, adapter(place)
        self.name = name_of(self.adapter)
        self.called = f"gpu:{place}" if place else "gpu"
        self.lock = Lock()
        wgpu = _wgpu()
        there = {k: int(self.adapter.limits[k]) for k in LIMITS}
        for limit, least in LIMITS.items():
            if there[limit] < least:
                seen = f"{self.name} has {limit} {there[limit]:,}"
                raise BackendError(f"gpu: {seen}; need {least:,}, as WebGPU promises, or device='cpu'")
        asked = LIMITS if default_limits else there
        self.timestamps = TIMESTAMPS in self.adapter.features and not default_limits
        self.subgroup = 0 if default_limits else subgroup_of(self.adapter)
        features = [TIMESTAMPS] * self.timestamps + [SUBGROUPS] * bool(self.subgroup)
        try:
            self.raw = self.adapter.request_device_sync(required_limits=asked, required_features=features)
        except Exception as error:
            raise BackendError(f"gpu: {self.name} gives no device: {one_line(error)}") from None
        self.limits: dict[str, int] = dict(self.raw.limits)
        self.tightest = min(("max-storage-buffer-binding-size", "max-buffer-size"), key=lambda k: self.limits[k])
        most = self.limits[self.tightest]
        self.buffer_bytes = most - most % 256
        self.binding_bytes = self.buffer_bytes if binding_bytes is None else binding_bytes
        self.workgroup = Limits(
            self.limits["max-compute-workgroup-storage-size"],
            self.limits["max-compute-invocations-per-workgroup"],
            self.limits["max-compute-workgroup-size-x"],
        )
        self.segments = self.limits["max-storage-buffers-per-shader-stage"] - OURS
        self.queue = self.raw.queue
        native = wgpu.backends.wgpu_native.lib
        self.period = float(native.wgpuQueueGetTimestampPeriod(self.queue._internal)) if self.timestamps else 0.0
        self.usage, self.stage = wgpu.BufferUsage, wgpu.ShaderStage
        self.rounds = MESA_ROUNDS if "llvmpipe" in self.name else None
        self.forked = (
            False  # this process is a child of the one that uses it: the threads that wait for it are not here
        )
        self.lost = False  # the driver took it away: the next caller gets a new one
        self.bytes = self.peak_bytes = 0  # of the buffers that are there now, and the most that were at once
        self._little: Any = None  # a buffer to wait with
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._pipelines: dict[tuple[Any, ...], Any] = {}

    # ---- buffers ---------------------------------------------------------------------------------------

    def buffer(self, bytes: int, what: str, usage: int = 0) -> Any:
        """Memory on the device, of zeros; BackendError where it is more than a binding takes, DeviceMemoryError where
        there is no more."""
        size = buffer_size(bytes)
        if size > self.buffer_bytes:
            most = f"{self.name} takes {show_bytes(self.buffer_bytes)} in one piece ({self.tightest})"
            raise BackendError(f"gpu: {what} is {show_bytes(bytes)}; {most}; need a smaller one, or device='cpu'")
        plain = self.usage.STORAGE | self.usage.COPY_SRC | self.usage.COPY_DST
        with self.errors(f"{what} ({show_bytes(bytes)})"):
            made = self.raw.create_buffer(size=size, usage=usage or plain)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return made

    def drop(self, buffer: Any) -> None:
        """Give the memory back."""
        self.bytes -= buffer.size
        buffer.destroy()

    def wait(self) -> None:
        """Until all that was submitted is done: a download behind it. (wgpu 0.32's on_submitted_work_done raises.)"""
        if self._little is None:
            self._little = self.buffer(4, "four bytes")
        self.queue.read_buffer(self._little, 0, 4)

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raise errors of the device as a BackendError of one line."""
        wgpu = _wgpu()
        if self.forked:
            raise BackendError(
                f"gpu: {self.name}: this process was forked from the one that uses it; need device='cpu'"
            )
        try:
            yield
        except wgpu.GPUOutOfMemoryError:
            held = f"{show_bytes(self.bytes)} are in use"
            raise DeviceMemoryError(
                f"gpu: {self.name} has no more memory for {what}; {held}; need smaller batches, a shorter context or a "
                "smaller model, or device='cpu'"
            ) from None
        except (wgpu.GPUError, RuntimeError) as error:
            text = " ".join(str(error).split())
            if "lost" in text.lower():
                self.lost = True
                raise DeviceLost(
                    f"gpu: {self.name} was lost during {what}: the driver took it away; what only it held is gone; "
                    "need a checkpoint to resume from, also with device='cpu'"
                ) from None
            raise BackendError(f"gpu: {self.name}, {what}: {text}") from None

    # ---- pipelines -------------------------------------------------------------------------------------

    def layout(self, segments: int) -> tuple[Any, Any]:
        """(layout of the bind group, of the pipeline) for this number of segments in addition to `fixed`."""
        if segments not in self._layouts:
            kinds = ["read-only-storage", "storage", *["storage"] * segments]
            entries: list[dict[str, Any]] = [
                {
                    "binding": 0,
                    "visibility": self.stage.COMPUTE,
                    "buffer": {"type": "uniform", "has_dynamic_offset": True, "min_binding_size": CALL_BYTES},
                }
            ]
            entries += [
                {"binding": i + 1, "visibility": self.stage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            group = self.raw.create_bind_group_layout(entries=entries)
            self._layouts[segments] = group, self.raw.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[segments]

    def pipeline(self, dispatch: Dispatch, slots: Sequence[Slots], kinds: Sequence[DType | None]) -> Any:
        """The compiled kernel of a dispatch whose arguments lie in these slots."""
        defines: Mapping[str, str] = dispatch.defines
        key = (dispatch.source, dispatch.entry, tuple(slots), tuple(kinds), tuple(sorted(defines.items())))
        if key not in self._pipelines:
            text = module(dispatch.source, slots, kinds, defines, self.binding_bytes // 4, self.subgroup)
            segments = max([s for spanned in slots for s in spanned], default=0)
            with self.errors(f"compiling the kernel {'+'.join(dispatch.source)}: {dispatch.entry}"):
                compiled = self.raw.create_shader_module(code=text)
                self._pipelines[key] = self.raw.create_compute_pipeline(
                    layout=self.layout(segments)[1], compute={"module": compiled, "entry_point": dispatch.entry}
                )
        return self._pipelines[key]


_devices: dict[int, Gpu] = {}
_making = Lock()


def _in_child() -> None:
    for one in _devices.values():
        one.forked, one.lock = True, Lock()  # a thread that held it is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def device(place: int = 0) -> Gpu:
    """The device of an adapter, made on first use and kept until it is lost."""
    with _making:
        if place not in _devices or _devices[place].lost:
            _devices[place] = Gpu(place)
        return _devices[place]
