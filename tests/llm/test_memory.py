"""memory=: a fine-tuning stays below its budget, with the bytes of a run without one, or is rejected at once."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.base.errors import BudgetError, SettingError
from gradloom.llm.planned_job import memory_of, planned
from gradloom.llm.tuning import TuningJob
from tests.llm.random_models import rows_of
from tests.train.split_training import on_ranks

MIB = 1 << 20
SHAPE = {"layers": 12, "width": 128, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 1024}
OPTIONS = ("--steps", "2", "--batch-size", "8", "--context", "256", "--val-split", "0", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("budget")
    write_random(made / "model.gguf", kind="q8_0", **SHAPE)
    (made / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 600)
    return made


def finetune(folder: Path, out: str, *options: str) -> dict[str, Any]:
    """A process of its own; {} and its last line of stderr where it fails."""
    command = [sys.executable, "-m", "gradloom", "finetune", "model.gguf", "text.txt", *OPTIONS, "--out", out, *options]
    done = subprocess.run([*command, "--json"], cwd=folder, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr.splitlines()[-1]}


@pytest.mark.slow
def test_a_run_stays_below_its_budget_with_the_same_bytes(folder: Path) -> None:
    rows = ("--micro-batch-size", "8")
    whole = finetune(folder, "whole.gguf", *rows)
    least = finetune(folder, "none.gguf", *rows, "--memory", "64MiB")["error"]
    assert "at least about" in least and not (folder / "none.gguf").exists()
    budget = int(float(least.split("at least about ")[1].split(" MiB")[0]) * 1.3) * MIB
    small = finetune(folder, "small.gguf", *rows, "--memory", str(budget))
    assert "error" not in small, small
    assert small["peak_bytes"] <= budget and small["planned_bytes"] < whole["planned_bytes"] / 2
    assert (folder / "small.gguf").read_bytes() == (folder / "whole.gguf").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_budget_of_ranks_has_room_for_all_their_programs(tmp_path: Path, method: str) -> None:
    """The least one that an error names is enough, on all ranks alike, with the bytes of a run without a budget."""
    path = write_random(
        tmp_path / "model.gguf", kind="f32", layers=8, width=64, heads=4, kv_heads=2, ffn=192, vocab=512
    )
    settings: dict[str, Any] = {"steps": 2, "batch_size": 8, "micro_batch_size": 2, "threads": 1, "val_split": 0.2}

    def run(ranks: Any, limit: int | None) -> Any:
        adapter = gl.llm.TrainedTensors() if method == "full" else gl.llm.LoRA(rank=2, seed=0)
        rows = rows_of(16, 128, 512)
        found = gl.llm.finetune(str(path), rows, adapter, parallel=ranks, memory=limit, progress=False, **settings)
        return found.trainer.planned_bytes, {
            name: p.numpy().tobytes() for name, p in found.adapter.parameters().items()
        }

    whole = on_ranks(2, lambda ranks: run(ranks, None))
    refused = on_ranks(2, lambda ranks: run(ranks, MIB))
    assert all(isinstance(error, BudgetError) for error in refused), refused
    least = refused[0].least
    small = on_ranks(2, lambda ranks: run(ranks, least))
    assert small[0][0] == small[1][0] <= whole[0][0]
    assert small[0][1] == small[1][1] == whole[0][1]


@pytest.mark.slow
def test_fewer_rows_at_once_where_that_is_needed(folder: Path) -> None:
    """A budget that two rows at once exceed: one row, and the bytes of a run with one row."""
    least = finetune(folder, "none.gguf", "--micro-batch-size", "2", "--memory", "64MiB")["error"]
    found = float(least.split("at least about ")[1].split(" MiB")[0])
    sizes = {}
    for budget in (found * 1.3, found * 0.97, found * 0.94):
        got = finetune(folder, "small.gguf", "--memory", str(int(budget * MIB)))
        if "error" not in got:
            assert got["peak_bytes"] <= budget * MIB
            sizes[got["micro_batch_size"]] = (folder / "small.gguf").read_bytes()
    assert 2 in sizes
    for size, trained in sizes.items():
        finetune(folder, "same.gguf", "--micro-batch-size", str(size))
        assert (folder / "same.gguf").read_bytes() == trained


@pytest.mark.parametrize("given", ["few", -1, 0, "0"])
def test_budgets_that_are_no_bytes(folder: Path, given: object) -> None:
    with pytest.raises(SettingError, match="memory"):
        gl.llm.plan(folder / "model.gguf", memory=given)


@pytest.mark.slow
def test_auto_is_what_is_available(folder: Path) -> None:
    assert gl.llm.plan(folder / "model.gguf", memory="auto").planned == gl.llm.plan(folder / "model.gguf").planned


def test_a_budget_is_for_steps_on_the_cpu(folder: Path) -> None:
    with pytest.raises(SettingError, match="requires device 'cpu'"):
        gl.llm.plan(folder / "model.gguf", memory="1GiB", device="gpu")


def test_functions_without_a_budget_of_the_process_refuse_it() -> None:
    with pytest.raises(SettingError, match="memory is not an argument"):
        gl.dp_train(gl.nn.Linear(2, 2), [], loss_fn=None, iterations=1, memory="1GiB")


def command(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """As `finetune`, of another command."""
    done = subprocess.run(
        [sys.executable, "-m", "gradloom", name, "model.gguf", *options, "--json"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr.splitlines()[-1]}


def least_of(error: str) -> int:
    return int(float(error.split("at least about ")[1].split(" MiB")[0]) * MIB)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "same"),
    [
        ("evaluate", ("text.txt", "--context", "256", "--batch-size", "16"), ("perplexity", "tokens")),
        ("generate", ("--prompt", "the quick", "-n", "8", "--temperature", "0"), ("tokens", "text")),
    ],
)
def test_evaluate_and_generate_stay_below_their_budget(
    folder: Path, name: str, options: tuple[str, ...], same: tuple[str, ...]
) -> None:
    whole = command(folder, name, *options)
    refused = command(folder, name, *options, "--memory", "24MiB")["error"]
    budget = least_of(refused) + 4 * MIB
    small = command(folder, name, *options, "--memory", str(budget))
    assert "error" not in small, small
    assert all(small[key] == whole[key] for key in same)
    if name == "generate":
        assert small["peak_bytes"] <= budget
    assert (
        "--memory 1GiB requires device 'cpu'"
        in command(folder, name, *options, "--memory", "1GiB", "--device", "gpu")["error"]
    )
    assert "--memory x" in command(folder, name, *options, "--memory", "x")["error"]


@pytest.mark.slow
def test_evaluate_takes_fewer_rows_at_once_where_none_are_asked_for(folder: Path) -> None:
    """In a process of its own, which measures its peak."""
    code = """
import json, sys
import gradloom as gl
from gradloom.base.memory import resident_peak
memory = int(sys.argv[1]) or None
found = {}
try:
    found["nll"] = gl.llm.evaluate("model.gguf", "text.txt", context=32, memory=memory).nll
except gl.GradloomError as error:
    found["error"] = str(error)
print(json.dumps(found | {"peak": resident_peak()}))
"""

    def run(memory: int) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-c", code, str(memory)], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole, refused = run(0), run(24 * MIB)
    budget = least_of(refused["error"]) + 2 * MIB
    small = run(budget)
    assert "error" not in small and small["peak"] <= budget
    assert small["nll"] == pytest.approx(whole["nll"], rel=1e-6)


@pytest.mark.slow
def test_a_refusal_names_settings_that_are_enough(folder: Path) -> None:
    """Each is accepted with this budget."""
    given = {"context": 256, "batch-size": 8, "micro-batch-size": 8, "val-split": 0, "threads": 1}

    def plan(memory: int, **changed: object) -> str:
        """The error, or nothing."""
        flags = [word for name, value in (given | changed).items() for word in (f"--{name}", str(value))]
        return command(folder, "plan", *flags, "--memory", str(memory)).get("error", "")

    budget = least_of(plan(64 * MIB)) - 6 * MIB
    enough = plan(budget).split("it is enough for ")[1].split(", or ")
    assert enough
    for proposal in enough:
        name, value = proposal.rsplit(" ", 1)
        assert plan(int(budget * 1.01), **{name.removeprefix("--"): value}) == ""


@pytest.mark.slow
def test_a_proposal_that_does_not_go_with_other_settings_is_left_out(tmp_path: Path) -> None:
    """No pair of a LoRA has enough elements for states in 8 bits."""
    write_random(tmp_path / "model.gguf", kind="f32", **SHAPE)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 60)
    options = ("--method", "full", "--state-bits", "8", "--batch-size", "8", "--context", "128", "--threads", "1")
    least = least_of(command(tmp_path, "plan", *options, "--memory", "80MiB")["error"])
    assert "at least about" in command(tmp_path, "plan", *options, "--memory", str(least - 4 * MIB))["error"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/smaps")
def test_full_training_keeps_no_second_model_for_its_reference(folder: Path, tmp_path: Path) -> None:
    """The pass of the base model reads all of its file; the steps read none of it."""
    path = tmp_path / "base.gguf"
    write_random(path, kind="f32", **SHAPE)
    pairs = [{"prompt": "the quick ", "chosen": f"fox {i}", "rejected": f"dog {i}"} for i in range(4)]
    run = gl.llm.finetune(
        path, pairs, objective="dpo", method="full", steps=1, batch_size=2, val_split=0, context=64, progress=False
    )
    mapped = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1:]
    resident = sum(1024 * int(part.split("Rss:")[1].split()[0]) for part in mapped)
    assert mapped and resident < path.stat().st_size / 4
    assert run.memory().weights == 0 and run.memory().copied >= 4 * path.stat().st_size / 5


LINES: dict[str, Any] = {
    "sft": lambda text, i: {"prompt": text[:20], "completion": text[20:]},
    "dpo": lambda text, i: {"prompt": text[:10], "chosen": text[10:], "rejected": text[12:]},
    "kto": lambda text, i: {"prompt": text[:10], "completion": text[10:], "label": i % 2 == 0},
    "classify": lambda text, i: {"text": text, "label": "ab"[i % 2]},
    "regress": lambda text, i: {"text": text, "label": i},
    "reward": lambda text, i: {"chosen": text, "rejected": text[3:]},
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", list(LINES))
def test_a_shorter_context_that_an_error_proposes_is_an_upper_bound(
    folder: Path, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are packed anew then: there are more, which fill their last batches or not."""
    text = (folder / "text.txt").read_text()
    rows = [LINES[objective](text[i : i + 24 + i * 7 % 60], i) for i in range(90)]
    jobs = list[TuningJob]()

    def taken(who: str, job: TuningJob, *more: object) -> TuningJob:
        jobs.append(job)
        return job

    monkeypatch.setattr(importlib.import_module("gradloom.llm.plan"), "within", taken)
    options: dict[str, Any] = {"objective": objective, "batch_size": 4, "micro_batch_size": 2, "threads": 1}
    for context in (512, 64, 32):
        gl.llm.plan(folder / "model.gguf", data=rows, context=context, **options)
    for real in jobs[1:]:
        bound = jobs[0].with_context(real.context)
        need, found = (memory_of(planned(job)[0], True) for job in (real, bound))
        assert bound.samples >= real.samples
        assert bound.all_rows >= real.all_rows
        assert found.need >= need.need


@pytest.mark.slow
def test_rows_that_are_packed_have_their_context(folder: Path) -> None:
    data = gl.llm.pack(gl.llm.read_samples(folder / "text.txt", gl.llm.load(folder / "model.gguf").tokenizer), 512)
    with pytest.raises(SettingError, match="must be at least") as error:
        gl.llm.plan(folder / "model.gguf", data=data, memory=gl.llm.plan(folder / "model.gguf").base + 25 * MIB)
    assert "context" not in str(error.value)
