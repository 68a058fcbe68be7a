"""The settings of gradloom fit, and what the data decide of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..base.defaults import (
    MEMBERS,
    MOST_MEMBERS,
    PATIENCE,
    batch_for,
    dropout_for,
    epochs_for,
    folds_for,
    hidden_for,
    rate_for,
)
from .common import Json
from .run_settings import (
    CheckpointEvery,
    Device,
    EvalEvery,
    EvalRows,
    Exchange,
    Keep,
    LogKinds,
    MaxNorm,
    OnNonfinite,
    Optimizer,
    Parallel,
    Precision,
    StopAfter,
    Threads,
    check_device,
    overwrite_option,
    resume_option,
)
from .setting import UNSAVED, Count, Decay, Limit, Name, Place, Rate, Share, Text, Whole, commas, decided

if TYPE_CHECKING:
    from ..data import Table
    from ..parallel.communicator import Communicator

Width = Annotated[int, Limit("a width", (("ge", 1), ("le", (1 << 31) - 1)))]
Widths = Annotated[list[Width], Limit("whole numbers of at least 1, such as 64,64, below 2**31; or nothing: no layer")]


@dataclass(frozen=True)
class Group:
    """[[groups]] of a settings file: other settings for the weights whose names match (see gl.optim.Optimizer)."""

    match: Annotated[str, Limit("a pattern such as *.bias", (("min_length", 1),))]
    lr: Rate | None = None
    weight_decay: Decay | None = None


def _named_file(text: str) -> dict[str, str]:
    """NAME=FILE, or FILE, whose name is "val"."""
    name, equals, file = text.partition("=")
    return {name: file} if equals and name.isidentifier() else {"val": text}


def _widths(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() and len(part) < 20 else part for part in commas(text)]


@dataclass(frozen=True)
class FitSettings:
    """What a fit does. None: the data decide (see settle)."""

    data: Annotated[Place, typer.Argument(help="A .csv, .csv.gz, .parquet or .npz file, or a folder of idx files.")]
    target: Annotated[str | None, typer.Option(help="Column or array to predict. [default: the last column]")] = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="classification or regression. [default: from the target]"),
    ] = None
    drop: Annotated[
        list[Name] | None, Text(commas), typer.Option(help="Columns that are not used, such as a,b. [default: none]")
    ] = None
    categorical: Annotated[
        list[Name] | None, Text(commas), typer.Option(help="Columns that are categories, whatever they hold.")
    ] = None
    numeric: Annotated[
        list[Name] | None, Text(commas), typer.Option(help="Columns that are numbers, whatever they look like.")
    ] = None
    time: Annotated[
        Name | None, typer.Option(help="A column of dates or times: the latest rows are those of the test.")
    ] = None
    weight_column: Annotated[
        Name | None, typer.Option(help="A column that says how much each row weighs in training.")
    ] = None
    missing: Annotated[
        list[Name] | None,
        Text(commas),
        typer.Option(help="Words that are missing values, such as unknown,-999, besides NA, ? and the like."),
    ] = None
    encoding: Annotated[
        Name | None, typer.Option(help="Encoding of the text files, such as cp1252. [default: utf-8]")
    ] = None
    test: Annotated[Place | None, typer.Option(help="A file of test rows. [default: a fifth of the rows]")] = None
    hidden: Annotated[
        Widths, Text(_widths),
        typer.Option(help="Widths of the hidden layers, such as 64,64. [default: 128,128; images 500]"),
    ] = decided  # fmt: skip
    dropout: Annotated[
        Share,
        typer.Option(
            help="Share of each hidden layer's outputs that a training step leaves out; 0: none. "
            "[default: 0.1; images 0]"
        ),
    ] = decided
    ensemble: Annotated[
        Whole, typer.Option(help="Networks that learn a table side by side and are averaged. [default: 8]")
    ] = decided
    epochs: Annotated[Whole, typer.Option(help="Passes over the training rows. [default: by their number]")] = decided
    batch_size: Annotated[Whole, typer.Option(help="Rows per step. [default: by their number]")] = decided
    micro_batch_size: Annotated[
        Whole,
        typer.Option(
            help="Rows computed at a time; gradients add up to the batch. [default: the batch, or a rank's share]"
        ),
    ] = decided
    lr: Annotated[
        Rate,
        typer.Option(
            help="Learning rate at the start; it falls to 0 by a cosine. [default: 0.002; images 0.003; sgd 0.05]"
        ),
    ] = decided
    optimizer: Annotated[
        Optimizer,
        Text(str.lower),
        typer.Option(
            help="adamw (weight decay 0.05, images 0.01), sgd (momentum 0.9), adam, lion, rmsprop, adafactor, muon."
        ),
    ] = "adamw"
    groups: list[Group] | None = None
    loss: Annotated[
        Literal["cross_entropy", "mse"],
        typer.Option(help="cross_entropy or mse. [default: cross_entropy for classes, else mse]"),
    ] = decided
    val_split: Annotated[
        Share, typer.Option(help="Share of the training rows to validate on. [default: none of a table, 0.05 of idx]")
    ] = decided
    folds: Annotated[
        Count,
        typer.Option(
            help="Parts of a table's training rows: each network trains without one, and that validates it; 0: none. "
            "[default: as many as networks]"
        ),
    ] = decided
    val: Annotated[
        dict[str, Place] | None,
        Text(_named_file),
        typer.Option(
            help="A file to validate on, in place of --val-split; several as NAME=FILE. May be given more than once."
        ),
    ] = None
    eval_every: EvalEvery = None
    eval_rows: EvalRows = None
    patience: Annotated[
        Count,
        typer.Option(
            help="End after so many evaluations without improvement, with the best weights; 0: never. "
            "[default: 15 for a table that is validated]"
        ),
    ] = decided
    monitor: Annotated[
        str | None, typer.Option(help="What is to improve: val_loss, val_accuracy, NAME.loss. [default: the loss]")
    ] = None
    metric: Annotated[
        Literal[
            "accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier", "rmse", "mae", "r2"
        ] | None,
        typer.Option(help="The score of the validation rows that --patience waits for. [default: the loss]"),
    ] = None  # fmt: skip
    max_norm: MaxNorm = None
    ema: Annotated[
        Share, typer.Option(help="Decay of a moving average of the weights, which is validated and saved; 0: none.")
    ] = 0.0
    freeze: Annotated[
        list[Name] | None,
        typer.Option(help="Weights that stay as they are: a pattern such as 0.*. May be given more than once."),
    ] = None
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="balanced: all classes weigh the same in training and its validation."),
    ] = None
    on_nonfinite: OnNonfinite = "stop"
    seed: Annotated[Count, typer.Option(help="Of the weights, the split and the order of the rows.")] = 0
    precision: Precision = decided
    device: Device = None
    threads: Threads = None
    parallel: Parallel = None
    exchange: Exchange = None
    checkpoint_every: CheckpointEvery = None
    keep: Keep = None
    stop_after: StopAfter = None
    log: LogKinds = None
    resume: Annotated[bool, UNSAVED, resume_option("--out")] = False
    overwrite: Annotated[bool, UNSAVED, overwrite_option("--out")] = False
    out: Annotated[Place, UNSAVED, typer.Option(help="Folder for model.safetensors and result.json.")] = "gradloom-out"
    json: Annotated[Json, UNSAVED] = False


# Settings that may be others when a run goes on, or of which it knows more than their text
MAY_CHANGE = (
    "out", "val", "test", "epochs", "micro_batch_size", "precision", "device", "checkpoint_every", "keep", "log",
    "groups",
)  # fmt: skip


def prepared(asked: FitSettings) -> FitSettings:
    """With what is decided before the data are read; SettingError for settings that exclude one another."""
    from ..base.errors import SettingError
    from ..base.settings import as_precision
    from ..data.text_bytes import encoding_of

    if asked.metric is not None and asked.monitor is not None:
        raise SettingError(f"--metric {asked.metric} beside --monitor {asked.monitor}: need one of them")
    if asked.metric is not None and asked.patience == 0:
        raise SettingError(f"--metric {asked.metric}: is what --patience waits for, and that is 0; need more")
    if asked.monitor is not None and asked.patience == 0:
        raise SettingError(f"--monitor {asked.monitor}: is what --patience waits for, and that is 0; need more")
    if asked.folds:
        for name, value in (("val-split", asked.val_split), ("time", asked.time), ("val", "val" in (asked.val or {}))):
            if value:
                said = "" if value is True else f" {value}"
                raise SettingError(f"--folds {asked.folds} beside --{name}{said}: need one of them")
    asked = replace(asked, precision=as_precision(asked.precision))
    if asked.encoding is not None:
        asked = replace(asked, encoding=encoding_of(asked.encoding))
    check_device(asked.device)
    if asked.val_split is None and os.path.isdir(asked.data):
        return replace(asked, val_split=0.05 if "val" not in (asked.val or {}) else 0.0)
    if asked.val_split is None and asked.val:
        asked = replace(asked, val_split=0.0)
    if asked.val_split is not None or asked.time is not None:
        return replace(asked, folds=asked.folds or 0)
    has_members = asked.hidden != [] and asked.ensemble != 1
    return replace(asked, val_split=0.0) if asked.folds or (asked.folds is None and has_members) else asked


def _check_validated(use: FitSettings, table: Table) -> bool:
    """Whether there are rows to validate on; SettingError for a setting that needs them, where there are none."""
    from ..base.errors import SettingError
    from ..train.scores import SCORES

    validates = bool(use.val or table.val is not None or use.val_split or use.folds)
    for name in ("eval_every", "eval_rows", "metric"):
        value = getattr(use, name)
        if value is not None and not validates:
            flag = name.replace("_", "-")
            raise SettingError(
                f"--{flag} {value}: there are no rows to validate on; need --val, --folds or --val-split"
            )
    if use.metric is not None and use.metric not in SCORES[table.task]:
        need = ", ".join(SCORES[table.task])
        raise SettingError(f"--metric {use.metric}: the task is a {table.task}; need one of {need}")
    if use.monitor is not None and use.patience is None and not validates:
        raise SettingError(f"--monitor {use.monitor}: is what --patience waits for; need both")
    return validates


def settle(asked: FitSettings, table: Table, ranks: Communicator | None) -> FitSettings:
    """With defaults for what was not said, by the kind and the number of the training rows."""
    from ..base.errors import SettingError
    from ..parallel.agree import share_of

    asked = replace(asked, val_split=table.val_split)
    if asked.dropout and asked.hidden == []:
        raise SettingError(f"--dropout {asked.dropout:g}: is of hidden layers, and --hidden has none; need one")
    images = table.preprocess.kind == "array"
    one = images or asked.hidden == []
    if one and (asked.ensemble or 1) > 1:
        what = "--hidden has no layer" if asked.hidden == [] else "images are learned by one network"
        raise SettingError(f"--ensemble {asked.ensemble}: {what}; need 1")
    if (asked.ensemble or 1) > MOST_MEMBERS:
        raise SettingError(f"--ensemble {asked.ensemble}: requires at most {MOST_MEMBERS:,} networks")
    members = 1 if one else asked.ensemble or MEMBERS
    asked = replace(asked, folds=_folds(asked.folds, members, table))
    validates = _check_validated(asked, table)
    hidden = asked.hidden if asked.hidden is not None else hidden_for(images)
    rows = rows_of(asked, table)[0]
    wanted = asked.batch_size or batch_for(rows, images)
    batch = min(wanted, rows)
    if asked.micro_batch_size is None:
        micro = share_of(batch, ranks)
    elif asked.micro_batch_size > wanted:
        raise SettingError(f"--micro-batch-size {asked.micro_batch_size}: need at most {wanted}, the batch size")
    else:
        micro = min(asked.micro_batch_size, batch)
    loss = asked.loss or ("cross_entropy" if table.task == "classification" else "mse")
    if loss == "cross_entropy" and table.task == "regression":
        raise SettingError("--loss cross_entropy: the task is a regression; need mse, or --task classification")
    stops = validates and (not images or asked.metric is not None)
    return replace(
        asked,
        hidden=hidden,
        dropout=asked.dropout if asked.dropout is not None else dropout_for(images) if hidden else 0.0,
        ensemble=members,
        epochs=asked.epochs or epochs_for(rows, images),
        batch_size=batch,
        micro_batch_size=micro,
        patience=asked.patience if asked.patience is not None else PATIENCE if stops else 0,
        checkpoint_every=asked.checkpoint_every or "5min",
        keep=asked.keep or 3,
        lr=asked.lr or rate_for(asked.optimizer, images),
        loss=loss,
    )


def _folds(asked: int | None, members: int, table: Table) -> int:
    """In how many folds the training rows are; SettingError for a number that the networks cannot leave out."""
    from ..base.errors import SettingError

    if asked is None:
        return folds_for(table.train.n, members)
    most = min(members, table.train.n)
    if asked and not 2 <= asked <= most:
        seen = f"{members} networks and {table.train.n} training rows"
        raise SettingError(
            f"--folds {asked}: there are {seen}; need 0, or from 2 to {most}"
            if most > 1
            else f"--folds {asked}: there is one network, or one row; need 0"
        )
    return asked


def rows_of(use: FitSettings, table: Table) -> tuple[int, int]:
    """(training rows, validation rows); those of folds are both."""
    if use.folds:
        return table.train.n, table.train.n
    if table.val is not None:
        return table.train.n, table.val.n
    val = len(table.train.split(use.val_split, use.seed)[1]) if use.val_split else 0
    return table.train.n - val, val
