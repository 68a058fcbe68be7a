"""gradloom profile: where the time of a training step, or of generation, goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import SettingError
from ..base.hooks import save_profiles
from ..base.json_facts import PROFILE
from ..base.options import values_of
from ..base.settings import PRECISIONS
from .common import (
    Device,
    Json,
    Precision,
    Threads,
    is_quiet,
    json_text,
    need_one_of,
    need_place,
    need_whole,
    print_report,
)
from .config import Asked
from .finetune_settings import FinetuneSettings, reading, trained, training
from .finetune_settings import settle as settle_finetune
from .fit_settings import prepared
from .language import Lora, adapter_for, load_adapter
from .parser import Argument, Option
from .rerun import read_saved
from .run_settings import check_device
from .saved_settings import SETTINGS

if TYPE_CHECKING:
    from ..run.profile import Profile

HELP = """Time each instruction of a training step, or of generation: by op, line and module.

MODEL is a GGUF model or a Hugging Face folder: a fine-tuning step on random tokens is timed, with --generate the
programs of generation. RUN is the folder of a fit or a finetune with its settings.toml: its step is timed, on its data.
Nothing is trained or saved.
"""

STEPS = 10

# Options of a run that write files, that other processes take part in, or that end it
_NOT_OF_A_STEP = (
    "run", "resume", "overwrite", "checkpoint_every", "keep", "stop_after", "log", "log_every", "parallel", "exchange",
    "continue_from", "keep_optimizer", "sample_prompt", "sample_every", "sample_tokens", "sample_temperature", "watch",
    "watch_every", "watch_what",
)  # fmt: skip


def profile(
    subject: Annotated[str, Argument(help="MODEL: a GGUF model or a Hugging Face folder; RUN: the folder of a run.")],
    generate: Annotated[bool, Option("--generate", help="Of a MODEL: time generation in place of training.")] = False,
    lora: Lora = None,
    method: Annotated[str | None, Option(help="lora, or full: the model's own tensors. [default: lora]")] = None,
    rank: Annotated[int | None, Option(help="Rank of a new adapter. [default: 8]")] = None,
    targets: Annotated[str | None, Option(help="Tensors to adapt or train: names, patterns, or all.")] = None,
    context: Annotated[int | None, Option(help="Tokens per row, or of the text. [default: 512]")] = None,
    batch_size: Annotated[int | None, Option(help="Rows of the step. [default: 1]")] = None,
    optimizer: Annotated[str | None, Option(help="A name of gl.optim. [default: adamw]")] = None,
    train_dtype: Annotated[str | None, Option(help="f32: quantised and half tensors train as copies.")] = None,
    precision: Precision = None,
    threads: Threads = None,
    device: Device = None,
    steps: Annotated[int, Option(help="Steps that are timed, after one that is not.")] = STEPS,
    trace: Annotated[str | None, Option(help="A file for the step as trace JSON, for ui.perfetto.dev.")] = None,
    html: Annotated[str | None, Option(help="An HTML file with rooflines and tables.", metavar="FILE")] = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    for name, number in {"rank": rank, "context": context, "batch_size": batch_size, "threads": threads}.items():
        need_whole(name, number)
    need_whole("steps", steps)
    need_place("trace", trace)
    need_place("html", html)
    need_one_of("precision", precision, PRECISIONS)
    check_device(device)
    of_model = {
        "lora": lora, "method": method, "rank": rank, "targets": targets, "context": context, "batch_size": batch_size,
        "optimizer": optimizer, "train_dtype": train_dtype, "precision": precision, "device": device,
    }  # fmt: skip
    for out in (trace, html):
        if out is not None:
            from ..files import check_target, refuse_input

            refuse_input(out, subject)
            check_target(out)
    if os.path.exists(Path(subject, SETTINGS)):
        for name, value in {"generate": generate or None, **of_model}.items():
            if value is not None:
                raise SettingError(f"{{{name}}}: a run has its own settings; leave it out", {name: value})
        profiles = _of_run(Path(subject, SETTINGS), threads, steps)
    elif os.path.exists(Path(subject, "run.json")):
        need = "there run.profile(feeds) of a compiled program measures it"
        raise SettingError(f"{subject}: is a run of a Python program, without a {SETTINGS}; {need}")
    else:
        where = {name: of_model.pop(name) for name in ("precision", "device")} | {"threads": threads}
        options = {name: value for name, value in where.items() if value is not None}
        profiles = _of_model(subject, generate, of_model, options, steps)
    if trace is not None:
        from ..run.profile import save_trace

        save_trace(trace, profiles)
    if html is not None:
        save_profiles(html, profiles)
    written = {name: path for name, path in (("trace", trace), ("html", html)) if path is not None}
    _print(profiles, {"subject": subject, **written}, json)
    return 0


def _print(profiles: dict[str, Profile], about: dict[str, Any], json: bool) -> None:
    """Print the tables, or the JSON object. about: the subject and the files that were written."""
    if is_quiet():
        return
    for name, one in profiles.items():
        print(f"{name}\n{one}\n")
    if "trace" in about:
        print_report(f"{about['trace']}: open it in ui.perfetto.dev or chrome://tracing")
    if "html" in about:
        print_report(f"{about['html']}: open it in a browser")
    if json:
        print(json_text(PROFILE, about | {"profiles": {name: one.as_dict() for name, one in profiles.items()}}))


def _of_model(
    path: str, generate: bool, given: dict[str, Any], options: dict[str, Any], steps: int
) -> dict[str, Profile]:
    """Profiles of a model. given: options of a training; options: for gl.compile."""
    from ..llm.finetune import Run
    from ..llm.model import load
    from ..llm.profile import profile_generation, profile_tuning, random_rows

    if generate:
        for name in ("method", "rank", "targets", "batch_size", "optimizer", "train_dtype"):
            if given[name] is not None:
                text = f"{{{name}}} and {{generate}} are mutually exclusive"
                raise SettingError(text, {name: given[name], "generate": True})
    loaded = load(path)
    print_report(f"{path}: {loaded.config}")
    if generate:
        return profile_generation(loaded, load_adapter(loaded, given["lora"]), given["context"], steps, **options)
    need_one_of("method", given["method"], ("lora", "full"))
    method, targets = given["method"] or "lora", given["targets"]
    adapter = adapter_for(loaded, method, targets, given["train_dtype"], given["lora"], 0, rank=given["rank"])
    size = given["batch_size"] or 1
    rows = random_rows(loaded, given["context"], size, 0)
    run = Run(
        loaded, rows, adapter, batch_size=size, micro_batch_size=size, val_split=0.0,
        **({} if given["optimizer"] is None else {"optimizer": given["optimizer"]}), **options,
    )  # fmt: skip
    return {f"step of {size} x {run.context} tokens": profile_tuning(run, steps)}


def profile_of_run(file: str | os.PathLike[str]) -> dict[str, Profile]:
    """The profiles of a step of a run by its settings.toml, on its data and on this machine; nothing is printed.

    FileError where its data or model is missing, SettingError for a run of several ranks.
    """
    from . import main  # noqa: F401  connects the loader of all commands, which a settings file needs

    return _of_run(Path(file), None, STEPS)


def _of_run(file: Path, threads: int | None, steps: int) -> dict[str, Profile]:
    """The profile of a step of a run, by its saved settings."""
    kind, _, about, values = read_saved(file)
    if about.get("ranks", 1) != 1:
        raise SettingError(f"{file}: a run of {about['ranks']} ranks; a profile requires a run of one process")
    if threads is not None:
        values["threads"] = threads
    asked = Asked(kind, values, None, dict.fromkeys(values, str(file)))
    with asked.naming_places():
        return _of_finetune(asked, steps) if kind is FinetuneSettings else _of_fit(asked, steps)


def _of_finetune(asked: Asked[Any], steps: int) -> dict[str, Profile]:
    from ..llm.finetune import Run
    from ..llm.model import load
    from ..llm.profile import profile_tuning

    use = settle_finetune(asked)
    loaded = load(use.model)
    given = trained(use, loaded, alpha=use.alpha, rslora=use.rslora)
    arguments = {name: value for name, value in training(use, None).items() if name not in _NOT_OF_A_STEP}
    run = Run(loaded, use.data, given, data_options=reading(use), **arguments)
    size, of = run.micro_batch_size, f" of {run.batch_size}" * (run.micro_batch_size < run.batch_size)
    return {f"micro-batch of {size}{of} x {run.job.row_tokens} tokens, with the update": profile_tuning(run, steps)}


def _of_fit(asked: Asked[Any], steps: int) -> dict[str, Profile]:
    from ..base.training_options import DeviceOptions, StepOptions
    from ..train.class_weight import weights_of_classes
    from ..train.profile import profile_step
    from ..train.trainer import Trainer
    from .fit import inputs_of, job_of, optimizer_of

    use = prepared(asked.settings())
    job = job_of(use, None, inputs_of(use))
    use, recipe, data = job.use, job.recipe, job.data
    train_rows, _ = data.split(recipe.val_split, recipe.seed)
    if recipe.folds:
        data = data.in_folds(recipe.folds, recipe.seed)
    batch = min(recipe.batch_size, len(train_rows))
    micro = min(use.micro_batch_size or batch, batch)
    options = values_of(use, StepOptions, DeviceOptions)
    trainer = Trainer(
        job.net, job.loss, optimizer_of(job), accumulate=-(-batch // micro),
        class_weights=weights_of_classes(job.class_weight, data, train_rows, ()),
        **{name: value for name, value in options.items() if value is not None},
    )  # fmt: skip
    of = f" of {batch}" * (micro < batch)
    return {f"micro-batch of {micro}{of} rows, with the update": profile_step(trainer, data, batch, micro, steps)}
