"""Options that trainings share: gl.fit, gl.Trainer, gl.dp_train, gl.llm.finetune and their commands."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .interval import Interval as Every
from .options import (
    BytesOrAuto,
    Count,
    Duration,
    Flag,
    Interval,
    Name,
    Often,
    Place,
    Rate,
    Share,
    Whole,
    commas,
    decided,
    option,
)

OPTIMIZERS = Literal["adamw", "adam", "sgd", "lion", "rmsprop", "adafactor", "muon"]
TIMEOUT = 60.0  # seconds
BOTH = "fit finetune"
JSON_HELP = "Print one JSON object as the last line of stdout."


@dataclass(frozen=True)
class ClipOptions:
    """The end of an optimiser step."""

    max_norm: float = option(
        math.inf,
        "maximum global norm of the gradients of an optimiser step, which scales larger ones down to it; the members "
        "of an nn.Ensemble have norms of their own, and so have layers that they share",
        Flag(f"{BOTH} plan", "Clip the gradients' global norm to this. [default: no limit]", Rate, None),
        bits=True,
    )
    max_value: float = option(
        math.inf,
        "maximum absolute value of each element of the gradients, which larger ones are set to before the norm is "
        "computed",
        bits=True,
    )
    ema: Share = option(
        0.0,
        "decay of a moving average of the weights, 0 for none: it begins as the weights before the first step, and "
        "each optimiser step moves it by 1 - ema of the difference. Validation, predictions, sampled texts and "
        "listeners use it, and the trained model holds it; running statistics are the model's own. See "
        "optimizer.show_average",
        Flag("fit", "Decay of a moving average of the weights, which is validated and saved; 0: none."),
        Flag("finetune plan", "Decay of a moving average of the weights, which is validated and saved; 0: none."),
        bits=True,
    )
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop",
        '"stop": NonFiniteError at a batch whose loss or gradient is not finite; the weights before that step are '
        'kept. "skip": the batch is left out and counted (Result.skipped): its rows and random numbers are consumed; '
        "step count, moments and schedule of the optimiser stay",
        Flag(BOTH, "At a batch whose loss or gradient is not finite: stop, or skip it."),
        bits=True,
        typed="str",
    )
    seed: Count = option(
        0,
        "seed of dropout, of the order of the rows, of the split, and of parameters that are not initialised yet",
        Flag("fit", "Random seed of the weights, the split and the order of the rows."),
        Flag("finetune plan", "Random seed of the adapter, the split, the order of the rows and dropout."),
        bits=True,
    )


@dataclass(frozen=True)
class StepOptions(ClipOptions):
    """An optimiser step."""

    freeze: str | Sequence[str] = option(
        (),
        'patterns of names, such as "embed*" or "blk.[0-3].*", of parameters that are not trained',
        Flag(
            "fit",
            "Weights that are not trained: a pattern such as 0.*. May be given more than once.",
            list[Name],
            None,
        ),
        Flag(
            "finetune plan",
            "Parameters that are not trained: a pattern such as blk.0.*. May be given more than once.",
            list[Name],
            None,
        ),
        bits=True,
    )


@dataclass(frozen=True)
class ExchangeOptions:
    """Gradients that ranks exchange."""

    exchange: Literal["ordered", "fast"] = option(
        "ordered",
        '"ordered": the same bits for any number of ranks; "fast": sums in the quickest order, f32 rounding apart',
        Flag(
            BOTH,
            "ordered: the same bits for any number of processes; fast: sums in any order. [default: ordered]",
            default=None,
        ),
        saved=False,
        bits=True,
        typed="str",
    )


@dataclass(frozen=True)
class MemoryOptions:
    """Memory of the process."""

    memory: int | str | None = option(
        None,
        'most bytes that the process may hold in memory, or a text such as "6GiB", or "auto": those that are available '
        "now. Values of the forward part are computed again where that is needed, which changes no bit; where it does "
        "not suffice and micro_batch_size is not given, fewer rows are computed at once (docs/memory.md)",
        Flag(
            f"{BOTH} plan evaluate generate",
            "Most memory of the process: bytes, or 6G or 6GiB (of 1024), 6GB (of 1000); auto: all that is available.",
            BytesOrAuto,
            is_number=True,
            metavar="BYTES|auto",
        ),
    )


@dataclass(frozen=True)
class TrainerOptions(StepOptions, ExchangeOptions, MemoryOptions):
    """Options of gl.Trainer."""


@dataclass(frozen=True)
class EvalOptions:
    """Validation inside of a training."""

    eval_every: str | Every = option(
        "1epoch",
        '"200steps" evaluates after every 200th optimiser step, too, "2epochs" at the end of every second epoch only. '
        "See Evaluation",
        Flag(BOTH, "Validate inside epochs, too: 200steps; or 2epochs. [default: 1epoch]", Often, None),
        compared_as="evaluation",
    )
    eval_rows: Whole | None = option(
        None,
        "maximum number of rows of each validation set, drawn by the seed, the same each time",
        Flag(f"{BOTH} plan", "Number of rows to validate on, the same each time. [default: all]"),
        compared_as="evaluation",
    )


@dataclass(frozen=True)
class SaveOptions:
    """Checkpoints and resuming."""

    run: str | os.PathLike[str] | None = option(
        None,
        "folder for checkpoints and metrics.jsonl. There is always a checkpoint at the end, also after Ctrl-C, "
        "StopTraining, a loss that is not finite, or stop_after",
        Flag(
            "finetune",
            "Folder for checkpoints, settings.toml, metrics.jsonl. [default: FILE.run next to --out]",
            Place,
        ),
        saved=False,
    )
    resume: bool = option(
        False,
        "continue from the newest checkpoint in `run`, also inside an epoch, with the bits of a run that never "
        "stopped; without a checkpoint the run starts anew. TrainError names what differs of model, data, seeds, "
        "sizes, optimiser and other options that affect bits",
        Flag("fit", "Continue from the newest checkpoint in --out, with the settings of that run."),
        Flag("finetune", "Continue from the newest checkpoint in --run, with the settings of that run."),
        saved=False,
    )
    overwrite: bool = option(
        False,
        "replace an unfinished run in the folder, which is else a FileError",
        Flag("fit", "Replace an unfinished run in --out."),
        Flag("finetune", "Replace an unfinished run in --run."),
        saved=False,
    )
    checkpoint_every: Interval | None = option(
        None,
        'interval of checkpoints, "10min", "100steps" or "1epoch"; by default "5min"',
        Flag(BOTH, "Interval of checkpoints, such as 5min, 100steps or 1epoch. [default: 5min]"),
    )
    keep: Whole | None = option(
        None,
        "number of newest checkpoints that are kept besides the best, by default 3",
        Flag(BOTH, "Number of newest checkpoints to keep, besides the best. [default: 3]"),
    )
    stop_after: Duration | None = option(
        None,
        'duration, "3h", after which the run ends with a checkpoint',
        Flag(BOTH, "End with a checkpoint after 90s, 5min or 3h. [default: never]"),
        saved=False,
    )


@dataclass(frozen=True)
class LogOptions:
    """Files with the numbers of a run."""

    log: str | Sequence[str] = option(
        (),
        'further files in `run` with the lines of metrics.jsonl: "csv", "tensorboard"',
        Flag(
            BOTH,
            "Log formats in addition to metrics.jsonl: csv, tensorboard, or csv,tensorboard. [default: neither]",
            list[Literal["csv", "tensorboard"]],
            None,
            commas,
        ),
    )
    log_every: str | None = option(None, 'interval of these lines, "10s" or "50steps"; see Log')


@dataclass(frozen=True)
class WatchOptions:
    """Values of the model that are written to the log of a run."""

    watch: str | Sequence[str] = option(
        (),
        'patterns of modules, named nodes and parameters, such as "blk.*.attn_output", or with "grad:" of their '
        "gradients: norms in the last micro-batch of some optimiser steps, for metrics.jsonl; no bit of the run "
        "changes (docs/profiles.md)",
        Flag(
            f"{BOTH} plan",
            "Log norms of outputs of modules, parameters, or grad:NAME: a pattern such as blk.*.attn_q. May be given "
            "more than once.",
            list[Name],
            None,
        ),
    )
    watch_every: str | None = option(
        None,
        'interval of these norms, "10steps"; by default 100steps',
        Flag(BOTH, "Interval of --watch, such as 10steps. [default: 100steps]", Name),
    )
    watch_what: Literal["norm", "histogram"] = option(
        "norm",
        '"norm", or "histogram": log histograms of these values, too, for reports and TensorBoard',
        Flag(f"{BOTH} plan", "norm, or histogram: log histograms of the values of --watch, too."),
        typed="str",
    )


@dataclass(frozen=True)
class TimeoutOptions:
    """Ranks and replicas that stop."""

    timeout: float = option(
        TIMEOUT, "seconds without a sign of life after which a rank or replica is given up and all end"
    )


@dataclass(frozen=True)
class RankOptions(ExchangeOptions, TimeoutOptions):
    """Processes that train together."""

    parallel: Any = option(
        None,
        '"mpi", under mpiexec: each batch is split over the ranks, all of which hold the data and end with the same '
        "weights and results. Micro-batch j is computed by rank j mod N; where micro_batch_size is given the bits do "
        'not depend on N, unless exchange is "fast". Running statistics change once a step, without ranks once a '
        "micro-batch. Rank 0 alone shows progress, calls listeners and writes files",
        Flag(
            BOTH,
            "mpi: split each batch over the processes that mpiexec started, all on the same data.",
            Literal["mpi"],
        ),
        saved=False,
        typed="str | Communicator | None",
    )


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how a program computes (arguments of gl.compile)."""

    precision: Literal["f32", "bf16"] | None = option(
        None,
        '"f32", or "bf16": operands of products are rounded to bf16',
        Flag(
            f"{BOTH} plan",
            "f32, or bf16: operands of products are rounded to bf16. [default: f32]",
            default=decided,
        ),
    )
    device: Name | None = option(
        None,
        '"cpu", "gpu", or "gpu:1" for the second adapter',
        Flag(f"{BOTH} plan", "cpu, gpu, or gpu:1 for the second adapter. [default: cpu]"),
    )
    threads: Whole | None = option(
        None,
        "threads of the CPU, by default one per core",
        Flag(f"{BOTH} plan", "Threads of the CPU. [default: the machine's cores]"),
        saved=False,
    )


@dataclass(frozen=True)
class ReplicaOptions(ClipOptions, ExchangeOptions, TimeoutOptions, SaveOptions):
    """Options of gl.dp_train."""
