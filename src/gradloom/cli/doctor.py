"""gradloom doctor: report on this machine and this installation, measured rates, and problems."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any

from ..base.exit_codes import Exit
from ..base.extras import EXTRAS, REQUIRED, broken_requirement, install, outdated_requirements
from ..base.json_facts import DOCTOR
from ..base.platforms import untested
from .common import Json, columns, json_text, need_whole
from .parser import Option

_MEASURING_BYTES = 512 << 20  # of checking the kernels, about


HELP = """Report on this machine and this installation, measure them, and check the kernels.

Exit code 0: all is well; 1: something is missing, stale or wrong; the last lines give the remedy.
"""


def doctor(
    threads: Annotated[int | None, Option(help="Threads to measure. [default: the machine's cores]")] = None,
    quick: Annotated[bool, Option("--quick", help="Skip measurements.")] = False,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..base.errors import SettingError

    need_whole("threads", threads)
    if quick and threads is not None:
        raise SettingError("{threads} and {quick} are mutually exclusive", threads=threads, quick=True)
    facts, lines, wrong = examine(threads, quick)
    columns(lines)
    for line in wrong:
        print(f"problem: {line}")
    print("all is well" if not wrong else f"{len(wrong)} problem{'s' * (len(wrong) > 1)}")
    if json:
        print(json_text(DOCTOR, facts | {"problems": wrong}))
    return Exit.FAILED if wrong else Exit.DONE


def examine(threads: int | None, quick: bool) -> tuple[dict[str, Any], list[tuple[str, str]], list[str]]:
    """(numbers by name, lines to show, problems)."""
    from .. import __version__

    system = f"{platform.system()} {platform.machine()}"
    facts: dict[str, Any] = {"gradloom": __version__, "python": platform.python_version(), "system": system}
    label = untested()
    facts["tested"] = not label
    lines = [("gradloom", f"{__version__}, Python {facts['python']}, {system}")]
    if label:
        lines.append(("platform", label))
    facts["packages"], wrong = _packages()
    lines.append(("packages", _versions(facts["packages"])))
    facts["extras"] = {}
    for extra, packages in EXTRAS.items():
        facts["extras"][extra] = found = {name: _version(name) for name in packages}
        lines.append((f"[{extra}]", _versions(found) if all(found.values()) else f"not installed: {install(extra)}"))
    try:
        import gradloom.ops  # noqa: F401 (fills the registry of ops)

        from ..run import machine
    except (ImportError, AttributeError) as error:
        lines.append(("core", "none"))
        reason = broken_requirement(error) or str(error)
        return facts, lines, wrong or [" ".join(reason.split())]
    _core(machine, facts, lines, wrong)
    _memory(machine, facts, lines)
    _gpus(facts, lines, wrong, not quick)
    if not quick:
        _limits(machine, facts, lines, threads)
        _kernels(machine, facts, lines, wrong, threads)
    return facts, lines, wrong


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions(packages: Mapping[str, str | None]) -> str:
    return "  ".join(f"{name} {version or '-'}" for name, version in packages.items())


def _packages() -> tuple[dict[str, str | None], list[str]]:
    versions = {name: _version(name) for name in REQUIRED}
    wrong = []
    for name, (module, use) in REQUIRED.items():
        if versions[name] is None:
            wrong.append(f"the package {name} ({use}) is not installed; run `pip install {name}`")
        elif find_spec(module) is None:
            remedy = f"run `pip install --force-reinstall {name}`"
            wrong.append(f"the package {name} ({use}) is installed without its module {module}; {remedy}")
    return versions, wrong + outdated_requirements()


def _core(machine: Any, facts: dict[str, Any], lines: list[tuple[str, str]], wrong: list[str]) -> None:
    from ..base.errors import GradloomError
    from ..base.settings import switches

    facts["core"] = str(machine.core_path())
    facts["stale_sources"] = machine.stale_sources()
    lines.append(("core", facts["core"]))
    if facts["stale_sources"]:
        newest = ", ".join(facts["stale_sources"][:3]) + (", ..." if len(facts["stale_sources"]) > 3 else "")
        wrong.append(f"the core is older than its sources ({newest}); build it again (CONTRIBUTING.md)")
    facts["isas"] = machine.isas()
    try:
        chosen = switches()
        facts["isa"], facts["threads"] = machine.choose_isa(chosen.isa), chosen.threads
    except GradloomError as error:
        facts["isa"], facts["threads"] = facts["isas"][0], machine.core_count()
        wrong.append(f"the environment: {error}")
    others = [isa for isa in facts["isas"] if isa != facts["isa"]]
    also = f" (this machine also runs {', '.join(others)})" if others else ""
    lines.append(("isa", f"the kernels of {facts['isa']} are used{also}"))
    lines.append(("cores", f"{machine.core_count()}, of which {facts['threads']} are used"))
    facts["cores"] = machine.core_count()
    _processor(machine, facts, lines)
    facts["bf16_units"] = machine.bf16_units(facts["isa"])
    units = facts["bf16_units"] or "no units: --precision bf16 saves memory, and no time"
    lines.append(("bf16 products", units))


def _processor(machine: Any, facts: dict[str, Any], lines: list[tuple[str, str]]) -> None:
    from dataclasses import asdict

    from ..base.memory import show_bytes

    cpu = machine.processor()
    facts["processor"], facts["tuning"] = asdict(cpu), machine.tuning()
    text = "unknown"
    if cpu.vendor:
        text = f"{cpu.vendor}, family {cpu.family}, model {cpu.model}"
        caches = [(n, b) for n, b in ((1, cpu.l1_bytes), (2, cpu.l2_bytes)) if b]
        text += "".join(f", {show_bytes(b)} of L{n}" for n, b in caches)
    lines.append(("processor", f"{text}; matrix products tuned as {facts['tuning']}"))


def _memory(machine: Any, facts: dict[str, Any], lines: list[tuple[str, str]]) -> None:
    from ..base.memory import memory, show_bytes

    there, facts["huge_pages"] = memory(), machine.huge_pages()
    text = "unknown"
    if there is not None:
        facts["memory_bytes"], facts["memory_available_bytes"] = there.total, there.available
        text = f"{show_bytes(there.total)}, {show_bytes(there.available)} available"
    lines.append(("memory", f"{text}; huge pages: {facts['huge_pages']}"))


def _gpus(facts: dict[str, Any], lines: list[tuple[str, str]], wrong: list[str], measure: bool) -> None:
    """The adapters, their limits and rates. No adapter is no problem of this installation."""
    from dataclasses import asdict

    from ..base.errors import GradloomError
    from ..base.memory import show_bytes
    from ..gpu.devices import devices, why_no_gpu

    facts["gpus"] = {}
    try:
        found = devices(measure)
    except GradloomError as error:
        wrong.append(f"{error}")
        found = devices()
    for one in found[1:]:
        most = one.limits["max-storage-buffer-binding-size"]
        facts["gpus"][one.name] = {"hardware": one.hardware, "kind": one.kind, "driver": one.driver} | one.limits
        lines.append((one.name, f"{one.hardware}, {one.kind}, {one.driver}; arrays of {show_bytes(most)} at most"))
        if one.peak is not None:
            facts["gpus"][one.name]["peak"] = {key: float(f"{rate:.4g}") for key, rate in asdict(one.peak).items()}
            lines.append((f"{one.name} reaches", f"{one.peak}"))
    if not facts["gpus"]:
        lines.append(("gpu", why_no_gpu()))


def _limits(machine: Any, facts: dict[str, Any], lines: list[tuple[str, str]], threads: int | None) -> None:
    from ..base.memory import need_memory, show_bytes

    most = min(threads or facts["threads"], machine.core_count())
    need = _MEASURING_BYTES + machine.COPY_BYTES * most
    what = f"doctor: measuring with {most} thread{'s' * (most > 1)} takes {show_bytes(need)} of memory"
    need_memory(need, what, "--quick measures nothing")
    for key, name, unit, measure in (
        ("fma_gflops", "multiply-add", "GFLOP/s", machine.fma_peak),
        ("copy_gbs", "copy", "GB/s", machine.copy_rate),
    ):
        measured = {n: measure(n, facts["isa"]) for n in sorted({1, most})}
        facts[key] = {str(n): round(value, 1) for n, value in measured.items()}
        shown = [f"{value:.0f} {unit} with {n} thread{'s' * (n > 1)}" for n, value in measured.items()]
        lines.append((name, ", ".join(shown)))

    if facts["bf16_units"]:
        facts["bf16_gain"] = round(machine.bf16_gain(most, facts["isa"]), 2)
        times = f"{facts['bf16_gain']:.1f} times as fast as in f32 with {most} thread{'s' * (most > 1)}"
        lines.append(("--precision bf16", f"matrix products {times}"))


def _kernels(
    machine: Any, facts: dict[str, Any], lines: list[tuple[str, str]], wrong: list[str], threads: int | None
) -> None:
    facts["kernels"] = {}
    for isa in facts["isas"]:
        result = machine.self_check(isa, min(threads or facts["threads"], machine.core_count()))
        facts["kernels"][isa] = result.checked
        good = result.checked - len(result.failed)
        worst = f"the largest error is {result.worst:.1e} ({result.worst_op})"
        skipped = f"; without the extra llm not checked: {', '.join(result.skipped)}" if result.skipped else ""
        lines.append((f"kernels {isa}", f"{good} ops agree with their definitions; {worst}{skipped}"))
        wrong += [f"{isa}: {failure}; build the core again, and report it if it stays" for failure in result.failed]
        if result.missing:
            listed = ", ".join(result.missing)
            wrong.append(f"{isa}: the core has no kernel for {listed}; it belongs to other sources: build it again")
