"""gradloom finetune: train an adapter for a GGUF model, or the model itself, and save it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.exit_codes import Exit
from ..base.json_documents import FINETUNE
from ..base.memory import resident_peak, show_bytes
from ..base.terminal import plural
from .common import (
    columns,
    exit_code,
    is_quiet,
    json_text,
    json_when_stopped,
    llama_server,
    print_report,
    raise_lost_signal,
    resume_line,
    saved_weights,
    shows_reports,
    to_paste,
    uninterrupted,
    warn,
    with_more,
)
from .config import Asked, command
from .finetune_settings import FinetuneSettings, inputs_of, reading, resumed, run_beside, settle, trained, training
from .run_settings import shown_layers
from .saved_settings import Inputs, saved

if TYPE_CHECKING:
    from ..llm.finetune import Run
    from ..llm.memory_plan import MemoryPlan
    from ..parallel.communicator import Communicator


_SCORES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced", "f1_macro": "F1", "roc_auc": "ROC AUC",
    "rewards_accuracy": "accuracy", "r2": "R2", "rmse": "rmse", "mae": "mae",
    "recall_at_1": "recall@1", "recall_at_5": "recall@5", "mrr": "MRR",
}  # fmt: skip

HELP = """Fine-tune a GGUF model on text, and save the adapter (or with --method full the model).

The trained tensors and the memory plan are printed before anything runs; on Ctrl-C, SIGTERM or SIGHUP the work so
far is saved, and --resume continues it.
"""


def run(asked: Asked[Any]) -> int:
    """Run the command; returns its exit code."""
    asked = resumed(asked)
    with asked.naming_places(), contextlib.ExitStack() as claimed:
        use = settle(asked)
        with json_when_stopped(use.json, FINETUNE, model=use.model, data_file=use.data, out=None):
            inputs = Inputs(
                model=use.model, data=use.data, val=use.val, lora=use.lora, chat_template=use.chat_template,
                teacher=use.teacher,
            )  # fmt: skip
            job, planned = _prepare(use, asked.ranks, inputs, claimed)
            raise_lost_signal()
        return _train(job, planned, use)


finetune = command(FinetuneSettings, run, "finetune")


def _prepare(
    use: Any, ranks: Communicator | None, inputs: Inputs, claimed: contextlib.ExitStack
) -> tuple[Run, MemoryPlan]:
    """Everything up to the first step: read, planned, announced; what cannot be is refused. The place to write is
    claimed until `claimed` is closed."""
    from ..files import claim, names_folder
    from ..llm.data_files import data_files, shards
    from ..llm.finetune import Run
    from ..llm.input_digest import digest
    from ..llm.lora import files_of_adapter
    from ..llm.model import load
    from ..parallel.agree import agreed, is_root
    from .fit_watch import RunInputs

    options = reading(use)
    with agreed(ranks):
        if is_root(ranks):
            _check_place(use, *inputs_of(use))
            is_folder = names_folder(use.out)
            names = [file.name for file in files_of_adapter(use.out)] if is_folder else []
            claimed.enter_context(claim(use.out, is_folder, names))
        loaded = load(use.model)
        given = trained(use, loaded, alpha=use.alpha, rslora=use.rslora)
        test = data_files(use.data).test  # measured at the end
    compared = {} if test is None else {"test rows": lambda: [digest(path) for path in shards(test)]}
    run: Run
    recorded = RunInputs(inputs, lambda: _settings(run, use, inputs), compared)
    run = Run(loaded, use.data, given, data_options=options, callbacks=[recorded], **training(use, ranks))
    if run.saver is not None and run.saver.folder is not None:
        claimed.push(run.saver)  # where it does not come to the training
    print_report(f"{use.model}: {loaded.config}")
    for report in run.data.reports:
        print_report(str(report))
    _announce(run, use.device)
    if use.gpu_layers is not None:
        print_report(shown_layers(run.layers))
    if use.lora is not None and not use.resume:
        print_report(f"a new run from the weights of {use.lora}: optimiser, schedule and order of rows begin anew")
    run.prepare()
    planned = run.memory()
    columns([(f"  {name}", text) for name, text in planned.lines()], sys.stderr)
    with agreed(ranks):
        planned.check()
        inputs.digests()
    return run, planned


def _check_place(use: Any, *inputs: str) -> None:
    """Check before the training that the output can be written there and replaces none of the inputs."""
    from ..base.errors import SettingError
    from ..files import check_target, names_folder, refuse_input
    from ..llm.hf_folder import refuse_models_folder
    from ..llm.lora import files_of_adapter
    from ..runs.files import OWN

    path = Path(use.out)
    if path.suffix != ".gguf" and (not names_folder(path) or use.method == "full"):
        need = "FILE.gguf (for llama.cpp) or a folder (for PEFT)"
        if use.method == "full":
            need = "FILE.gguf, as which a full fine-tuning is written, also of a Hugging Face folder"
        raise SettingError(setting="out", seen=use.out, need=need)
    if path.is_dir() and os.path.isdir(use.model) and path.samefile(use.model):
        raise SettingError(setting="out", seen=use.out, need="another folder than the model's")
    if names_folder(path):
        refuse_models_folder(path)
    for name, inside in OWN.items():
        if inside is None:
            refuse_input(Path(str(use.run)) / name, *inputs)
    for file in files_of_adapter(path):
        refuse_input(file, *inputs)
        if file.parent.is_dir():
            check_target(file)


def _announce(run: Run, device: str | None) -> None:
    """Which tensors train, which do not, how, and on what."""
    from ..base.settings import switches
    from ..run.backend import backend

    print_report(run.table)
    print_report(
        f"{plural(run.steps_total, 'step')} of {plural(run.batch_size, 'row')} of {run.job.row_tokens} tokens"
        f" ({run.micro_batch_size} at a time); {plural(len(run.val_rows), 'row')} for validation; rate "
        f"{run.settings.lr:g}, {run.settings.schedule}; seed {run.settings.seed}"
        f"{'' if run.precision == 'f32' else f'; products in {run.precision}'}"
    )
    if device is not None:
        print_report(f"on {device}: {backend(device, switches()).available()[1]}")


def _settings(run: Run, use: Any, inputs: Inputs) -> bytes:
    """The text of settings.toml: every setting as it was decided."""
    decided = {name: getattr(run, name) for name in ("context", "batch_size", "micro_batch_size")}
    ranks = 1 if run.ranks is None else run.ranks.size
    extra = {"out": os.path.abspath(use.out), "rows_val": len(run.val_rows), "exchange": use.exchange}
    return saved(replace(use, **decided), "finetune", inputs, ranks, **extra)


def _train(run: Run, planned: MemoryPlan, use: Any) -> int:
    from ..llm.memory_plan import device_report
    from ..runs.saver import failure_of

    before = resident_peak()
    with uninterrupted() as interruptible:
        interruption = _train_until_it_ends(run, use, interruptible)
        is_cut = run.interrupted or (run.saver is not None and run.saver.time_is_up)
        if is_cut and not run.steps:
            warn("there is nothing to save yet")
            _print_unsaved(run, use, interruption is not None)
            return 0 if interruption is None else exit_code(interruption)
        _save(run, use)
    if run.interrupted:
        warn(f"the weights so far are in {use.out}")
    if is_cut:
        places = ["--out", os.path.abspath(use.out)]
        if use.run != run_beside(use.out):
            places += ["--run", os.path.abspath(str(use.run))]
        warn(f"after step {run.steps:,}; resume with: {resume_line('finetune', places, run.ranks, use.exchange)}")
    report = run.report | {"data_file": use.data, "out": use.out}
    report |= {} if is_cut else _test_scores(run, use)
    report |= {"resident_before_bytes": before, "planned_total_bytes": planned.total}
    report |= device_report(planned)
    columns(_summary(run, planned, use, report), sys.stderr if use.json else None)
    if use.json and not is_quiet():
        print(json_text(FINETUNE, report))
    if interruption is not None:
        return exit_code(interruption)
    return Exit.DONE if failure_of(run.saver) is None else Exit.REFUSED


def _train_until_it_ends(run: Run, use: Any, interruptible: Any) -> KeyboardInterrupt | None:
    """Train; the interruption that ended it. An error after the first step raises when the weights are saved."""
    from ..base.errors import GradloomError, TrainError

    try:
        with interruptible():
            run.train(progress=shows_reports())
        return run.interruption
    except KeyboardInterrupt as stop:  # before the training began, or after its end
        if not run.steps:
            _print_unsaved(run, use, True)
            raise
        return stop
    except Exception as error:  # a non-finite loss, a changed model file: the trained weights are saved
        if not run.steps:
            if isinstance(error, TrainError) and not use.resume:
                error.extended(after="; this was before the first step was done, and nothing is saved")
            raise
        kept = f"the weights before it are in {use.out}"
        try:
            _save(run, use)
        except GradloomError as another:
            kept = f"the weights before it cannot be saved: {another}"
        raise with_more(error, kept) from None


def _save(run: Run, use: Any) -> None:
    """Save the trained tensors, and record in run.json which file that is, for reports."""
    from ..base.errors import FileError
    from ..llm.input_digest import digest
    from ..parallel.agree import is_root
    from ..runs.folder import note_output
    from ..runs.saver import saving_result

    with saving_result(run.saver):
        run.save(use.out)
    if is_root(run.ranks) and use.run is not None:
        try:
            note_output(use.run, os.path.abspath(use.out), digest(use.out))
        except (OSError, FileError) as error:
            warn(f"the digest of {use.out} is not recorded: {error}")


def _test_scores(run: Run, use: Any) -> dict[str, Any]:
    """The loss of the test rows, on the root; {} where the data have none."""
    from ..llm.data_files import data_files
    from ..llm.evaluate import evaluate
    from ..llm.finetune import metrics_of
    from ..parallel.agree import is_root

    test = data_files(use.data).test
    if test is None or not is_root(run.ranks):
        return {}
    if use.objective != "sft":
        scores = run.measure(test)
        return {"test_loss": scores.loss, "test_loss_unc": scores.loss_unc, **metrics_of(scores, "test_")}
    measured = evaluate(
        run.model,
        test,
        run.adapter,
        context=run.context,
        data_options=reading(use),
        precision=run.precision,
        device=use.device,
        gpu_layers=None if use.gpu_layers is None else run.layers.count if run.layers else 0,
        threads=use.threads,
    )
    return {"test_loss": measured.nll, "test_loss_unc": measured.nll_unc}


def _summary(run: Run, planned: MemoryPlan, use: Any, report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines that end the command: losses, time, memory, and how to use the result."""
    from ..run.machine import bf16_units
    from ..train.display import duration, rate

    lines = []
    measured = "validation" if "val_loss" in report else "training"  # the rows of the metrics
    for name, key in (
        ("before", "val_loss_before"),
        ("training", "train_loss"),
        ("validation", "val_loss"),
        ("test", "test_loss"),
    ):
        if key in report:
            spread = report[f"{key}_unc"]
            if name == "training" and use.keep_best:
                lines.append(("weights", saved_weights(run.loop, report["epochs"])))
            scores = _scores(report, "test_" * (name == "test")) if name in (measured, "test") else ""
            lines.append(
                (name, f"loss {report[key]:.4f}" + ("" if math.isnan(spread) else f" +- {spread:.4f}") + scores)
            )
    speed = report["tokens_per_second"] or 0
    lines.append(("time", f"{duration(run.seconds)}, {rate(speed)} tokens/s"))
    memory = f"{show_bytes(report['peak_bytes'])} at most; {show_bytes(planned.total)} planned"
    lines.append(("memory", f"{memory}, {show_bytes(report['resident_before_bytes'])} held before the first step"))
    if planned.on_device is not None:
        lines.append((f"on {planned.device}", f"{show_bytes(planned.on_device.total)} of its memory"))
    on_cpu = planned.on_device is None or run.layers is not None
    if on_cpu and run.precision == "f32" and (units := bf16_units()):
        lines.append(("bf16", f"this processor has units for it ({units}): --precision bf16 uses them"))
    lines.append(("saved", use.out))
    if use.chat_template is not None:
        own = "" if run.model.tokenizer.chat_template is None else ", in place of the model's own"
        lines.append(("template", f"{use.chat_template}, saved with it{own}"))
    lines.append(("use it", _use(run, use.out)))
    has_head = run.objective.form.last
    if not has_head and Path(use.out).suffix == ".gguf" and (run.method == "full" or not os.path.isdir(run.model.path)):
        served = (use.out,) if run.method == "full" else (run.model.path, use.out)
        lines.append(("elsewhere", llama_server(*served)))
    return lines


def _print_unsaved(run: Run, use: Any, interrupted: bool) -> None:
    """The JSON object of a run that ended before its first step: nothing is saved."""
    if use.json and not is_quiet():
        print(json_text(FINETUNE, run.report | {"data_file": use.data, "out": None, "interrupted": interrupted}))


def _scores(report: Mapping[str, Any], prefix: str) -> str:
    """The scores of classes or numbers, each with its uncertainty."""
    shown = ""
    for key, name in _SCORES.items():
        if prefix + key in report:
            spread = report.get(f"{prefix}{key}_unc")
            shown += f"  {name} {report[prefix + key]:.4g}" + ("" if spread is None else f" +- {spread:.2g}")
    return shown


def _use(run: Run, place: str) -> str:
    if run.objective.form.last:
        command = "predict" if run.objective.embedding is None else "embed"
        return to_paste(["gradloom", command, *_model_words(run, place)]) + " texts.csv"
    return to_paste(["gradloom", "generate", *_model_words(run, place)]) + ' --prompt "..."'


def _model_words(run: Run, place: str) -> list[str]:
    """The words of a command for the model with its adapter."""
    return [place] if run.method == "full" else [run.model.path, "--lora", place]
