import json
import os
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradloom.base import memory
from gradloom.base.errors import BackendError
from gradloom.base.extras import REQUIRED
from gradloom.base.settings import Switches, core_count
from gradloom.cli.main import main
from gradloom.gpu import devices, measure
from gradloom.graph.opspec import REGISTRY
from gradloom.run import machine
from gradloom.run.cpu_backend import CpuBackend

ROOT = Path(__file__).parents[2]
LIMITS = {"max-storage-buffer-binding-size": 1 << 30}


def run(capsys, *arguments):
    code = main(["doctor", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


@pytest.fixture
def fresh(monkeypatch):
    """A core that is as new as its sources, whoever edits them meanwhile; no adapter is measured."""
    monkeypatch.setattr(machine, "stale_sources", list)
    monkeypatch.setattr(measure, "peak", lambda name, place: measure.Peak(1234.0, 4.0, 2.0, 300.0))


@pytest.mark.slow
def test_all_is_well(capsys, fresh, monkeypatch):
    monkeypatch.setattr(machine, "fma_peak", lambda n, isa: 100.0 * n)
    monkeypatch.setattr(machine, "copy_rate", lambda n, isa: 10.0 * n)
    monkeypatch.setattr(machine, "bf16_units", lambda isa: "AMX")
    monkeypatch.setattr(machine, "bf16_gain", lambda n, isa: 3.14)
    code, out = run(capsys, "--json", "--threads", "1")
    lines = out.splitlines()
    found = json.loads(lines[-1])
    assert found["problems"] == [] and code == 0 and lines[-2] == "all is well"
    assert found["isa"] in found["isas"] == list(found["kernels"])
    assert found["kernels"]["scalar"] > 50 and min(found["kernels"].values()) >= 3  # the products of bf16
    cpu = machine.processor()
    assert found["processor"]["vendor"] == cpu.vendor and found["processor"]["l2_bytes"] == cpu.l2_bytes
    assert found["tuning"] == machine.tuning() and f"; matrix products tuned as {machine.tuning()}\n" in out
    assert f"processor  {' ' * 3}" in out and f"{cpu.vendor}, family {cpu.family}, model {cpu.model}, " in out
    assert found["cores"] == core_count() and found["memory_bytes"] > found["memory_available_bytes"] > 0
    assert re.search(r"multiply-add +100 GFLOP/s with 1 thread", out) and found["copy_gbs"] == {"1": 10.0}
    assert re.search(r"kernels scalar +\d+ ops agree with their definitions; the largest error is \d\.\de-\d+ \(", out)

    assert (
        re.search(r"bf16 products +AMX\n", out) and "matrix products 3.1 times as fast as in f32 with 1 thread\n" in out
    )
    assert found["bf16_units"] == "AMX" and found["bf16_gain"] == 3.14


def test_other_platforms_are_marked(capsys, fresh, monkeypatch):
    code, out = run(capsys, "--json", "--quick")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and f"isa            the kernels of {found['isa']} are used" in out
    here = (*found["system"].split(" ", 1), platform.libc_ver()[0])
    assert found["tested"] is (here == ("Linux", "x86_64", "glibc")) and found["tested"] is ("\nplatform " not in out)
    for system, processor, libc, label in (
        ("Linux", "aarch64", "glibc", "tested in part, under emulation"),
        *(("Linux", "x86_64", name, "tested in part") for name in ("", "libc", "musl")),
        ("Linux", "aarch64", "musl", "built, not tested on this platform"),
        ("Darwin", "arm64", "", "built, not tested on this platform"),
    ):
        monkeypatch.setattr("platform.machine", lambda processor=processor: processor)
        monkeypatch.setattr("platform.system", lambda system=system: system)
        monkeypatch.setattr("platform.libc_ver", lambda libc=libc: (libc, ""))
        code, out = run(capsys, "--json", "--quick")
        assert code == 0 and f"platform       {label}\n" in out
        found = json.loads(out.splitlines()[-1])
        assert (found["system"], found["tested"]) == (f"{system} {processor}", False)


def test_adapters_are_measured(capsys, fresh, monkeypatch):
    """As they are listed: each with what it reaches, or why it cannot be measured."""
    there = devices.devices()[:1] + [devices.Device("gpu", "a card", "", "DiscreteGPU", "Vulkan", None, (), LIMITS)]

    def listed(measured=False):
        return [there[0], replace(there[1], peak=measure.peak("gpu", 0) if measured else None)]

    monkeypatch.setattr(devices, "devices", listed)
    for name in ("_limits", "_kernels"):  # of the CPU
        monkeypatch.setattr(f"gradloom.cli.doctor.{name}", lambda *given: None)
    _, out = run(capsys, "--json", "--threads", "1")
    said = "gpu reaches +matrix products 1234 GFLOP/s; copies of 300 GB/s inside, 4 to it, 2 from it\n"
    assert re.search(said, out)
    peak = {"gflops": 1234.0, "upload_gbs": 4.0, "download_gbs": 2.0, "copy_gbs": 300.0}
    assert json.loads(out.splitlines()[-1])["gpus"]["gpu"]["peak"] == peak

    def refuse(name, place):
        raise BackendError("gpu: a card gives no device: busy")

    monkeypatch.setattr(measure, "peak", refuse)
    code, out = run(capsys, "--threads", "1")
    assert code == 1 and "problem: gpu: a card gives no device: busy" in out and re.search("gpu +a card, Discrete", out)
    code, out = run(capsys, "--quick")
    assert code == 0 and "gpu reaches" not in out


def test_units_for_bf16(capsys, fresh, monkeypatch):
    assert machine.bf16_units("scalar") == "" and machine.bf16_units() == machine.BF16_UNITS.get(machine.isas()[0], "")
    assert machine.bf16_gain(1) > 0.05
    monkeypatch.setenv("GRADLOOM_ISA", "scalar")
    assert "no units: --precision bf16 saves memory, and no time" in run(capsys, "--quick")[1]


def test_the_limits_are_measured():
    assert machine.fma_peak(1) > 0.1 and machine.copy_rate(1) > 0.1


def test_threads_of_no_measurement(capsys):
    assert main(["doctor", "--quick", "--threads", "1"]) == 2
    assert "--threads 1 and --quick are mutually exclusive" in capsys.readouterr().err


def test_quick_measures_nothing(capsys, fresh):
    code, out = run(capsys, "--quick", "--json")
    assert code == 0 and "GFLOP/s" not in out and "kernels" not in json.loads(out.splitlines()[-1])


def test_a_core_older_than_its_sources(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "stale_sources", lambda: ["csrc/a.h", "csrc/b.h", "csrc/c.h", "csrc/d.h"])
    code, out = run(capsys, "--quick")
    said = "problem: the core is older than its sources (csrc/a.h, csrc/b.h, csrc/c.h, ...); build it again"
    assert code == 1 and said in out and out.endswith("1 problem\n")


def test_how_a_stale_core_is_found(tmp_path, monkeypatch):
    core, source = tmp_path / "core.so", tmp_path / "csrc" / "kernels" / "x.h"
    source.parent.mkdir(parents=True)
    for path in (core, source, source.with_suffix(".txt")):
        path.write_text("")
    monkeypatch.setattr(machine, "core_path", lambda: core)
    os.utime(core, (1000, 1000))
    os.utime(source, (999, 999))
    assert machine.stale_sources(tmp_path / "src" / "gradloom") == []
    os.utime(source, (1001, 1001))
    assert machine.stale_sources(tmp_path / "src" / "gradloom") == ["csrc/kernels/x.h"]
    assert machine.stale_sources(tmp_path / "elsewhere" / "src" / "gradloom") == []  # installed: no sources beside it


def test_missing_packages(capsys, fresh, monkeypatch):
    monkeypatch.setitem(REQUIRED, "no-such-package", ("nothing", "nothing"))
    code, out = run(capsys, "--quick")
    said = "problem: the package no-such-package (nothing) is not installed; run `pip install no-such-package`"
    assert code == 1 and said in out


def test_it_looks_for_every_package_that_gradloom_needs():
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)\]", text, re.M | re.S)
    assert listed
    needed = set(re.findall(r'"([\w-]+)', listed[1]))
    needed -= {"tomli"} if sys.version_info >= (3, 11) else set()
    needed -= {"colorama"} if sys.platform != "win32" else set()
    assert needed == set(REQUIRED)


def test_an_environment_that_cannot_be(capsys, fresh, monkeypatch):
    monkeypatch.setenv("GRADLOOM_ISA", "mmx")
    code, out = run(capsys, "--quick")
    assert code == 1 and "problem: the environment: GRADLOOM_ISA='mmx' cannot run here; must be one of " in out


@pytest.mark.slow
def test_kernels_that_are_wrong_or_missing_are_named(capsys, fresh, monkeypatch):
    """A core of other sources: its relu is another function, and an op has no kernel."""
    spec = REGISTRY["relu"]
    CpuBackend(Switches(isa="scalar")).signatures()  # the process remembers them: those of the real core
    monkeypatch.setattr(spec, "reference", lambda x: np.maximum(x, 0) + 1e-3)
    monkeypatch.setattr(machine._core, "kernels", without("tanh", machine._core.kernels))
    found = machine.self_check("scalar", 1)
    assert found.missing == ("tanh",)
    assert len(found.failed) == 1 and found.failed[0].startswith("relu: differs from its definition by ")


def without(op, kernels):
    return lambda isa, own=False: [row for row in kernels(isa, own) if row[0] != op]


def test_bad_options(capsys):
    code = main(["doctor", "--threads", "0"])
    assert code == 2 and capsys.readouterr().err == "gradloom: --threads 0: must be a whole number of at least 1\n"


# -- memory ------------------------------------------------------------------------------------------------------------


def system(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


INFO = {"proc/meminfo": "MemTotal:       8000 kB\nMemFree:  1000 kB\nMemAvailable:    6000 kB\n"}


def test_memory_of_the_machine(tmp_path):
    assert memory.memory(system(tmp_path, INFO)) == memory.Memory(8000 * 1024, 6000 * 1024)
    assert memory.memory(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize("version", [1, 2])
def test_memory_within_a_limit(tmp_path, version):
    top = "sys/fs/cgroup/" if version == 2 else "sys/fs/cgroup/memory/"
    limit, used = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    group = "0::/box/job\n" if version == 2 else "3:cpu:/x\n2:memory:/box/job\n"
    cached = ("" if version == 2 else "total_") + "inactive_file 96\n"
    files = INFO | {
        "proc/self/cgroup": group,
        f"{top}box/{limit}": "1000000",
        f"{top}box/{used}": "400096",
        f"{top}box/memory.stat": f"anon 7\n{cached}",
        f"{top}box/job/{limit}": "max" if version == 2 else str(2**63 - 4096),
        f"{top}box/job/{used}": "300000",
        f"{top}box/job/memory.stat": cached,
    }
    assert memory.memory(system(tmp_path, files)) == memory.Memory(1000000, 600000)
