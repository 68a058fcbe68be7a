"""What a machine has, and what is said where something is missing."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.hooks import device_backends
from gradloom.gpu import device as devices
from gradloom.gpu import stored as on_device
from gradloom.gpu.backend import GpuBackend, place_of
from gradloom.graph.stored import bring_home, copies
from gradloom.train.arguments import with_backend
from tests.cli.command import run
from tests.gpu.adapter import own_device
from tests.refused import refused


def test_devices_lists_the_cpu_and_every_adapter() -> None:
    cpu, gpu, *_ = gl.devices()
    assert (cpu.name, gpu.name) == ("cpu", "gpu") and cpu.memory_bytes
    assert gpu.limits["max-storage-buffer-binding-size"] >= 128 << 20 and gpu.hardware and gpu.kind


def test_an_adapter_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that a machine may have; the memory is given back; twice the time of a product is half the rate."""
    from gradloom.gpu import measure

    monkeypatch.setattr(measure, "SMALLEST", 64)
    monkeypatch.setattr(measure, "ENOUGH_NS", 0)
    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 20)
    cpu, gpu, *_ = gl.devices(measure=True)
    before = place_of(0).device.bytes
    assert cpu.peak is None and gl.devices()[1].peak is None and gpu.peak is not None
    rates = gpu.peak.gflops, gpu.peak.upload_gbs, gpu.peak.download_gbs, gpu.peak.copy_gbs
    assert all(1e-3 < rate < 1e6 for rate in rates) and f"{gpu.peak}".startswith("matrix products ")
    assert measure.peak("gpu").gflops > 0 and place_of(0).device.bytes <= before + 3 * 64 * 64 * 4
    took = {64: 1_000, 128: 20_000_000}
    monkeypatch.setattr(measure, "ENOUGH_NS", 10_000_000)
    monkeypatch.setattr(measure, "product_ns", lambda name, n: took[n])
    assert measure.peak("gpu").gflops == 2 * 128**3 / 20_000_000  # of the product that keeps the adapter busy


def test_a_trainer_of_an_adapter_that_is_not_there() -> None:
    net = gl.nn.Linear(2, 3)
    for given in ({"device": "gpu:99"}, {"devices": ("cpu", "gpu:99")}):
        with pytest.raises(gl.BackendError, match="gpu:99: there is no such adapter"):
            gl.Trainer(net, **given)
    gl.Trainer(net, device="gpu")


@pytest.mark.no_adapter
def test_device_and_backend_are_one_setting() -> None:
    y = ops.exp(gl.input("x", (3,)))
    with pytest.raises(gl.SettingError, match="compile: device='gpu' and backend='cpu' are mutually exclusive"):
        gl.compile(y, device="gpu", backend="cpu")
    with refused("device", 3, place="compile"):
        gl.compile(y, device=3)  # type: ignore[arg-type]
    with pytest.raises(gl.BackendError, match="backend: 'gpus' is not known; must be one of cpu, numpy, null.*, gpu"):
        gl.compile(y, device="gpus")
    assert with_backend("fit", {"device": "gpu", "threads": 2}) == {"backend": "gpu", "threads": 2}
    assert np.allclose(gl.compile(y, device="cpu")(x=np.zeros(3))[0], 1.0)


@pytest.mark.parametrize("given", [{"isa": "scalar"}, {"flush": True}])
@pytest.mark.no_adapter
def test_settings_of_the_cpu_are_refused_beside_a_device(given: dict[str, Any]) -> None:
    y = ops.exp(gl.input("x", (3,)))
    with pytest.raises(gl.SettingError, match=f"compile: {next(iter(given))}=.* requires device 'cpu'"):
        gl.compile(y, device="gpu:1", **given)
    with pytest.raises(gl.SettingError, match="requires device 'cpu'; it has no effect on 'cpu', 'gpu'"):
        gl.compile(y, devices=("cpu", "gpu"), **given)


def test_times_are_printed_where_they_are_asked_for() -> None:
    code = (
        "import numpy as np, gradloom as gl; x = gl.input('x', (2,));"
        "gl.compile(gl.ops.exp(x), device='gpu', debug=2)(x=np.ones(2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        re.search("GFLOP/s  .*, (by timestamps of the device|each instruction waited for)", done.stderr)
        and "  exp exp#" in done.stderr
    )


def test_an_adapter_that_is_not_there_is_named() -> None:
    with pytest.raises(gl.BackendError, match="gpu:7: there is no such adapter; use gpu:0 "):
        gl.compile(ops.exp(gl.input("x", (3,))), device="gpu:7")


@pytest.mark.parametrize(
    "name", ["gpu:-1", "gpu:00", "gpu:01", "gpu:\u0663", "gpu:x", "gpu:", "gpu: 1", "gpu:" + 5000 * "9"]
)
@pytest.mark.no_adapter
def test_what_is_no_number_of_an_adapter_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = gl.input("x", (3,))
    need = "is not usable; need 'gpu', or 'gpu:1' for the second one"
    for ask in (
        lambda: gl.compile(ops.exp(x), device=name),
        lambda: gl.compile(ops.exp(x), devices=("cpu", name)),
        lambda: gl.device(name).__enter__(),
        lambda: gl.nn.Linear(2, 3).to(name),
        lambda: gl.Trainer(gl.nn.Linear(2, 3), device=name),
        lambda: gl.grad_tape(device=name),
    ):
        with pytest.raises(gl.GradloomError) as caught:
            ask()
        assert need in str(caught.value) and "\n" not in str(caught.value), caught.value
    code, _, err = run(capsys, "plan", "no.gguf", "--device", name)
    assert code == 2 and need in err and "null" not in err, err


def test_an_adapter_that_is_not_there_is_named_where_devices_are_said() -> None:
    for ask in (lambda: gl.device("gpu:7").__enter__(), lambda: gl.nn.Linear(2, 3).to("gpu:7")):
        with pytest.raises(gl.SettingError, match="gpu:7: there is no such adapter; use gpu:0 "):
            ask()


@pytest.mark.no_adapter
def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.adapters.cache_clear()
    monkeypatch.setitem(sys.modules, "wgpu", None)
    monkeypatch.setattr(devices, "_devices", {})
    with pytest.raises(gl.BackendError, match=r"gpu: requires wgpu, not installed; run pip install 'gradloom\[gpu\]'"):
        gl.compile(ops.exp(gl.input("x", (3,))), device="gpu")
    assert [d.name for d in gl.devices()] == ["cpu"]
    devices.adapters.cache_clear()


def test_without_an_adapter_one_line_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    devices.adapters.cache_clear()
    monkeypatch.setattr(devices, "_devices", {})
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
    with pytest.raises(gl.BackendError, match="gpu: there is no adapter; need a driver for Vulkan"):
        gl.compile(ops.exp(gl.input("x", (3,))), device="gpu")
    devices.adapters.cache_clear()


def test_arrays_come_home_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a limit of bytes; beyond that of a binding one by one."""
    shapes = [(30_000,), (5,), (), (7, 3)]
    arrays = [gl.parameter(np.full(shape, k, np.float32), name=f"a{k}") for k, shape in enumerate(shapes)]
    run = gl.compile([], ops.assign(*(v for a in arrays for v in (a, a + 1.0))), device="gpu")
    groups: list[int] = []
    transfer = on_device.read_several

    def counted(device: Any, several: Any) -> list[np.ndarray]:
        groups.append(len(several))
        return transfer(device, several)

    monkeypatch.setattr(on_device, "read_several", counted)
    for limit, want in ((32 << 20, [4]), (256, [1, 3])):
        monkeypatch.setattr(on_device, "DOWNLOAD", limit)
        before = [a.numpy() for a in arrays]
        groups.clear()
        run()
        bring_home([a.stored for a in arrays])
        assert groups == want
        assert all((a.numpy() == b + 1).all() for a, b in zip(arrays, before, strict=True))
    run()
    groups.clear()
    assert len(copies([a.stored for a in arrays])) == 4 and groups == [1, 3]


def test_what_has_no_kernel_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradloom.gpu import backend

    few = {key: kernel for key, kernel in backend.KERNELS.items() if key[0] != "sin"}
    monkeypatch.setattr(backend, "KERNELS", few)
    with pytest.raises(gl.BackendError, match=r"gpu .* has no kernel for: sin f32 \(sin#"):
        gl.compile(ops.sin(gl.input("x", (3,))), device="gpu")


@pytest.mark.no_adapter
def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, numpy as np, gradloom as gl; x = gl.input('x', (2,)); gl.compile(x * 2.0)(x=np.ones(2));"
        "print([m for m in sys.modules if m.split('.')[0] == 'wgpu' or m.startswith('gradloom.gpu')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.no_adapter
def test_the_name_is_taken_from_the_registry() -> None:
    assert list(device_backends) == ["gpu"] == [GpuBackend.name]
    assert device_backends["gpu"]().GpuBackend is GpuBackend


def test_a_lost_device_says_so_and_the_next_program_gets_another() -> None:
    w, kept = (gl.parameter(np.ones(4, np.float32), name=name) for name in ("w", "kept"))
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    assert run()[0] == 4.0
    place_of(0).device.raw.destroy()
    with pytest.raises(gl.DeviceLost, match="was lost during a run: .* need a checkpoint to resume from"):
        run()
    with pytest.raises(gl.DeviceLost, match="was lost during a download of the array w"):
        w.numpy()
    again = gl.compile([ops.sum(kept)], ops.assign(kept, kept + 1.0), device="gpu")
    assert again()[0] == 4.0 and kept.numpy().tolist() == [2.0] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_has_the_arrays_and_refuses_the_device() -> None:
    w = gl.parameter(np.ones(4, np.float32), name="w")
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    run()
    child = os.fork()
    if not child:
        code = 1
        try:
            assert w.numpy().tolist() == [2.0] * 4
            assert gl.compile(w * 2.0)()[0].tolist() == [4.0] * 4
            with pytest.raises(gl.BackendError, match="was forked from the one that uses it; need device='cpu'"):
                run()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run()[0] == 8.0


def test_a_device_without_programs_is_freed() -> None:
    """A lost device is replaced by a new one: nothing may hold the old one and its memory."""
    with own_device() as device:
        w = gl.parameter(np.ones(4, np.float32), name="w")
        run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
        run()
        here = weakref.ref(device)
        place_of(0)
    del device, run, w
    place_of(0)  # the place of the device that is there again
    gc.collect()
    assert here() is None


def test_no_memory_of_this_machine() -> None:
    """In a process of its own with few addresses: inputs are laid out in this machine's memory."""
    text = (
        "import resource; import gradloom as gl; from gradloom import ops\n"
        "gl.compile(ops.sum(gl.input('x', (3,))), device='gpu')(x=[1, 2, 3])\n"
        "held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30),) * 2)\n"
        "try: gl.compile(ops.sum(ops.sqr(gl.input('x', (20000, 20000)))), device='gpu')\n"
        "except gl.BackendError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("compile: the system gives no more memory; need smaller batches"), done


@pytest.mark.parametrize("pieces", [1, 3])
def test_no_memory_names_what_it_was_for_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """The adapter gives some pieces of an array and no more: these are given back, and what ran before runs on."""
    import wgpu

    device = place_of(0).device
    w = gl.parameter(np.ones(4, np.float32), name="w")
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    run()
    table = gl.parameter(np.ones((3, 1 << 18), np.float32), name="table")  # 3 MiB
    monkeypatch.setattr(device, "binding_bytes", (3 << 20) // pieces)
    gc.collect()
    create, before, given = device.raw.create_buffer, device.bytes, []

    def out_of_memory(size: int, usage: int) -> Any:
        if size == device.binding_bytes and len(given) == pieces - 1:
            raise wgpu.GPUOutOfMemoryError("none")
        given.append(size)
        return create(size=size, usage=usage)

    monkeypatch.setattr(device.raw, "create_buffer", out_of_memory)
    with pytest.raises(gl.DeviceMemoryError) as caught:
        place_of(0).copies.place([table.stored])
    assert "no more memory for" in str(caught.value) and "the array table" in str(caught.value)
    assert ("3.00 MiB in all" if pieces > 1 else "(3.00 MiB)") in str(caught.value)
    assert "need smaller batches, a shorter context or a smaller model, or device='cpu'" in str(caught.value)
    del caught
    gc.collect()
    assert device.bytes == before and len(given) == pieces - 1
    monkeypatch.undo()
    assert run()[0] == 8.0 and w.numpy().tolist() == [3.0] * 4
    assert gl.compile(ops.sum(table), device="gpu")()[0] == 3 << 18


def test_a_device_that_is_lost_before_a_program_is_compiled() -> None:
    """It is not the kernel that is at fault."""
    place_of(0).device.lost = True  # the next one has compiled nothing
    device = place_of(0).device
    gl.compile(ops.sum(gl.input("x", (3,))), device="gpu")
    device.raw.destroy()
    with pytest.raises(gl.DeviceLost, match="was lost during compiling the kernel .*; need a checkpoint to resume"):
        gl.compile(ops.exp(gl.input("x", (3,))), device="gpu")
    assert place_of(0).device is not device, "who asks next gets another"


def test_what_a_lost_device_held_is_written_anew() -> None:
    """As a checkpoint is loaded: nobody asks the lost one for what is overwritten."""
    w = gl.parameter(np.ones(4, np.float32), name="w")
    run = gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")
    run()
    place_of(0).device.raw.destroy()
    with pytest.raises(gl.DeviceLost):
        run()
    w.assign(np.full(4, 5.0, np.float32))
    assert gl.compile([ops.sum(w)], ops.assign(w, w + 1.0), device="gpu")()[0] == 20.0
    assert w.numpy().tolist() == [6.0] * 4


def test_an_array_is_assigned_from_a_view_of_itself() -> None:
    """What the device has written since counts."""
    w = gl.parameter(np.ones(4, np.float32), name="w")
    view = w.stored.read()
    gl.compile([], ops.assign(w, w + 1.0), device="gpu")()
    w.assign(view)
    assert w.numpy().tolist() == [2.0] * 4


@pytest.mark.parametrize("limit", sorted(devices.LIMITS))
def test_an_adapter_below_webgpus_limits_is_refused_by_the_name_of_the_limit(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, least = devices.adapter(0), devices.LIMITS[limit]
    poor = SimpleNamespace(info=real.info, features=real.features, limits={**real.limits, limit: least - 1})
    monkeypatch.setattr(devices, "adapter", lambda place: poor)
    with pytest.raises(gl.BackendError, match=f"has {limit} {least - 1:,}; need {least:,}, as WebGPU promises"):
        devices.Gpu(0)


@pytest.mark.parametrize("limit", ["max-buffer-size", "max-storage-buffer-binding-size"])
def test_a_buffer_that_is_too_large_names_the_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of the two that is smaller, and what the buffer is for."""
    monkeypatch.setitem(devices.LIMITS, limit, 100 << 20)
    other = "max-storage-buffer-binding-size" if limit == "max-buffer-size" else "max-buffer-size"
    monkeypatch.setitem(devices.LIMITS, other, 128 << 20)
    device = devices.Gpu(0, default_limits=True)
    with pytest.raises(gl.BackendError) as caught:
        device.buffer(101 << 20, "the array table")
    assert "the array table is 101.00 MiB" in str(caught.value)
    assert f"takes 100.00 MiB in one piece ({limit}); need a smaller one, or device='cpu'" in str(caught.value)
