"""MemoryPlan: the planned memory of a fine-tuning, part by part, as text and for --json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..base.html import html_table
from ..base.memory import need_memory, show_bytes
from ..base.pages import Pages
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import DeviceBytes
from ..run.budget import about, with_reserve
from ..train.duration import Duration, approximate
from .gpu_layers import GpuLayers

# Reported by other functions, or not at all
APART = ("on_device", "layers", "transfers", "transferred", "duration", "curve", "programs", "held")
PLAIN = ("threads", "steps", "recompute_overhead", "device")  # no numbers of bytes
ON_DEVICE = {
    "arrays": "arrays", "activations": "arena", "inputs and constants": "fixed", "kernels' arguments": "code",
    "outputs": "records", "copies": "gathered", "transfers": "staging",
}  # fmt: skip
CURVE = "memory and time"
SMALL = 4 << 20  # bytes of copies that are not shown
FEWER_TRAINED = "need fewer trained tensors: --method lora, a smaller --rank, fewer --targets"


@dataclass(frozen=True)
class MemoryPlan(Pages):
    """Planned memory of a fine-tuning, in bytes. `save("plan.html")` writes the memory maps of its programs.

    weights        of the model, mapped from its file: memory that the system may reclaim, at the price of reading
                   them again
    copies         f32 copies of tensors of types that no kernel reads
    trained        the adapter, or the tensors that train
    state          the optimiser's moments
    gradients      accumulators, where several micro-batches make a step, and what ranks exchange; else gradients lie
                   in the arena
    inputs         the rows of the data (of plan, one batch), constants and settings; the cache of sampled texts
    arena          activations, gradients and workspace of the largest step, all of them in one block
    scratch        of each thread; threads: how many; steps: instructions of the largest step
    process        overhead: graphs, plans and bytecode of all steps, the scratch of all but the
                   largest, the rest of huge pages, the tokenizer
    lower_bound    the most bytes of the arena that are alive at once
    unshared       the arena if no two buffers shared bytes
    teacher        of the pass of a teacher, which precedes the first step: its weights, buffers and logits, in place of
                   `weights`, `arena` and `scratch`; 0 without a teacher
    base           resident memory of the process before the run: Python, libraries, and data of the caller
    reading        peak of resident memory of the process when the data has been read; 0 where no data is read
    recomputed     bytes of the values that the largest step computes again; recompute_overhead: the predicted share of
                   its time; with layers on a GPU both are of the part there
    available      of this machine (or of the limit that the process lives under), or None where it is not known
    device         where the steps run; on_device: the bytes of all buffers that they hold there, with the arena; None
                   where they compute in this process's memory
    layers         which blocks are there, the others on the CPU; transfers, transferred: values, and bytes, that cross
                   between the two in the step that moves most
    duration       predicted; None where it is not: on a GPU, with ranks, if the memory does not fit. Without data only
                   its `step` is meaningful
    curve          of `plan` on the CPU: (`need`, relative time of a step) without a budget and with ever smaller ones,
                   with the same rows at once
    copied         on top of `need` for a while: copies of trained arrays when a checkpoint or the result is written, in
                   callbacks and averages; tensors of the file that only the pass of reference log-probabilities reads
    programs       the plans, on several devices the schedules, of all programs
    left           of `plan`: memory that planning leaves in the process, as the run does, on top of `need`
    held           of `plan`: resident memory when the programs are planned and none has run
    """

    weights: int
    copies: int
    trained: int
    state: int
    gradients: int
    inputs: int
    arena: int
    scratch: int
    threads: int
    process: int
    lower_bound: int
    unshared: int
    steps: int
    available: int | None
    recomputed: int = 0
    recompute_overhead: float = 0.0
    base: int = field(default=0, compare=False)  # measured
    reading: int = field(default=0, compare=False)
    device: str = "cpu"
    on_device: DeviceBytes | None = None
    layers: GpuLayers | None = None
    transfers: int = 0
    transferred: int = 0
    duration: Duration | None = field(default=None, compare=False)  # of this machine
    curve: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    copied: int = field(default=0, compare=False)
    left: int = field(default=0, compare=False)
    held: int = field(default=0, compare=False)
    teacher: int = 0
    programs: tuple[Plan | Schedule, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_split(self) -> bool:
        """The steps run on a GPU and in this process."""
        return self.transfers > 0

    @property
    def own(self) -> int:
        """Bytes in memory here, without the mapped weights."""
        parts = (self.copies, self.trained, self.state, self.gradients, self.inputs)
        return sum(parts) + (self.planned if self.on_device is None or self.is_split else 0) + self.process

    @property
    def planned(self) -> int:
        """The arena and the scratch of all threads, in which a step is planned."""
        return self.arena + self.scratch * self.threads

    @property
    def need(self) -> int:
        """The memory of the run on top of `base`, without the memory of a device: the larger one of the training and
        the teacher's pass before it."""
        return max(self.weights + self.own, self.during_teacher)

    @property
    def during_teacher(self) -> int:
        """The memory of the teacher's pass, on top of `base`; 0 without a teacher."""
        if not self.teacher:
            return 0
        shared = (self.copies, self.trained, self.state, self.gradients, self.inputs, self.process)
        return sum(shared) + self.teacher

    @property
    def total(self) -> int:
        """The planned peak of resident memory of this process: `base`, `need`, `copied` and `left`, or `reading` if
        larger. Without data, reading is not included."""
        return self._peak(self.need)

    def _peak(self, need: int) -> int:
        return max(self.base + need + self.copied + self.left, self.reading)

    def budget(self, need: int | None = None, is_first: bool | None = None) -> int:
        """The least `memory` of a run that needs `need` bytes, by default this one. is_first: with_reserve."""
        need = self.need if need is None else need
        return with_reserve(self._peak(need), self.base, is_first)

    def curve_budgets(self) -> list[tuple[int, float]]:
        """(`memory` that a new process accepts, relative time of a step) of each point of `curve`."""
        then = replace(self, base=max(self.base, self.held), left=0)  # as the check of a budget counts
        needs = [max(need, self.during_teacher) for need, _ in self.curve]
        budgets = [about(then.budget(need, is_first=True)) for need in needs]
        return [(budget, time) for budget, (_, time) in zip(budgets, self.curve, strict=True)]

    @property
    def fits(self) -> bool:
        return self.available is None or self.need + self.copied <= self.available

    def check(self) -> None:
        """SettingError when this machine has not the memory: before anything runs."""
        if self.available is not None:
            most = self.need + self.copied
            what = f"plan: {show_bytes(most)} of memory are needed"
            need_memory(most, what, self.hint(), available=self.available)

    def hint(self) -> str:
        """What would need less, by what needs the most."""
        training = self.trained + self.state + self.gradients
        if training > self.arena or (self.available is not None and training > self.available):
            return FEWER_TRAINED
        if self.inputs > max(self.arena, self.weights):
            return "need a smaller --batch-size or --context"
        if self.arena > self.weights and self.on_device is None:
            return "need a smaller --context or --micro-batch-size"
        return "need a smaller model, or one of a smaller type, such as q8_0 or q4_0"

    def lines(self) -> list[tuple[str, str]]:
        """Lines to print: names and texts."""
        shared = f"; lower bound {show_bytes(self.lower_bound)}, without sharing {show_bytes(self.unshared)}"
        rows = [("weights", f"{show_bytes(self.weights)}, mapped from the file")]
        if self.copies:
            rows.append(("f32 copies", show_bytes(self.copies)))
        rows += [("trained", show_bytes(self.trained)), ("optimiser state", show_bytes(self.state))]
        if self.gradients:
            rows.append(("gradient sums", show_bytes(self.gradients)))
        rows += [
            ("inputs", show_bytes(self.inputs)),
            ("activations", show_bytes(self.arena) + shared),
        ]
        if self.recomputed:
            where = f"activations on {self.device}" if self.is_split else "them"
            share = f"time of {self.device}'s part" if self.is_split else "step's time"
            again = f"{show_bytes(self.recomputed)} of {where}, {self.recompute_overhead:+.1%} of the {share}"
            rows.append(("computed again", again))
        if self.on_device is None or self.is_split:
            rows.append(("scratch", f"{show_bytes(self.scratch)} for each of {self.threads} threads"))
        if self.layers is not None:
            rows.append(("layers", str(self.layers)))
        if self.teacher:
            rows.append(("teacher", f"{show_bytes(self.teacher)} in its pass, which precedes the first step"))
        if self.is_split:
            moved = f"{self.transfers} values, {show_bytes(self.transferred)} a step"
            rows.append(("copied", f"{moved} between the CPU and {self.device}"))
        if self.on_device is not None:
            there = ", ".join(
                f"{name} {show_bytes(getattr(self.on_device, field))}"
                for name, field in ON_DEVICE.items()
                if getattr(self.on_device, field)
            )
            rows.append((f"on {self.device}", f"{show_bytes(self.on_device.total)}: {there}"))
            rows.append(("uploaded", f"{show_bytes(self.on_device.uploaded)} before the first step"))
        rows += [
            ("process", f"{show_bytes(self.process)}: graphs, bytecode, tokenizer, huge pages"),
            ("needed" if self.on_device is None else "needed here", show_bytes(self.need)),
            ("base", f"{show_bytes(self.base)}: Python and its libraries, held before the run"),
            ("peak" if self.on_device is None else "peak here", show_bytes(self.total) + self._reading()),
        ]
        if self.copied >= SMALL:
            rows.append(
                ("checkpoints", f"{show_bytes(self.copied)} of it: copies of trained arrays while one is written")
            )
        if self.available is not None:
            rows.append(("available", f"{show_bytes(self.available)}: {'it fits' if self.fits else 'it does not fit'}"))
        points = dict(zip((show_bytes(need) for need, _ in self.curve), self.curve_budgets(), strict=True))
        if len(points) > 1:
            shown = ", ".join(f"{show_bytes(budget)} x{time:.2f}" for budget, time in points.values())
            rows.append((CURVE, f"{shown}: --memory, and time of a step"))
        if self.duration is not None:
            rows.append(("time of a step", f"about {approximate(self.duration.step)}"))
            if self.reading:
                rows.append(("time", str(self.duration)))
        return rows

    def _repr_html_(self) -> str:
        return html_table((), self.lines())

    def report_programs(self) -> dict[str, Any]:
        """For the page of the plan: the arguments of report.plan_page.Programs."""
        rest = [line for line in self.lines() if line[0] != CURVE]  # which is drawn
        return {"plans": self.programs, "about": rest, "curve": self.curve_budgets()}

    def _reading(self) -> str:
        return ", while the data was read" if self.reading == self.total else ""

    def report(self) -> dict[str, Any]:
        """For --json: each number under <name>_bytes; if the steps run on a GPU, also the bytes there."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in APART}
        numbers = {f"{k}_bytes" if k not in PLAIN else k: v for k, v in own.items()}
        numbers |= {
            "needed_bytes": self.need,
            "peak_bytes": self.total,
            "planned_bytes": self.planned,
            "fits": self.fits,
        }
        curve = [{"needed_bytes": need, "relative_time": round(time, 4)} for need, time in self.curve]
        return numbers | device_report(self) | self._times() | ({"memory_curve": curve} if curve else {})

    def _times(self) -> dict[str, float]:
        """Predicted seconds."""
        if self.duration is None:
            return {}
        total = {"predicted_seconds": self.duration.seconds} if self.reading else {}
        return {"step_seconds": self.duration.step} | total


def device_report(plan: MemoryPlan) -> dict[str, Any]:
    """The entries of --json about a GPU's memory and layers; empty without a GPU."""
    there, layers = plan.on_device, plan.layers
    if there is None:
        return {}
    held = {f"{k}_bytes": v for k, v in asdict(there).items() if k != "uploaded"}
    report = {"device_bytes": there.total, "uploaded_bytes": there.uploaded, "on_device": held}
    if plan.is_split:
        report |= {"transfers": plan.transfers, "transferred_bytes": plan.transferred}
    return report if layers is None else report | {"gpu_layers": layers.count, "gpu_head": layers.head}
