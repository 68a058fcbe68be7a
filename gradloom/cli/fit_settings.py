"""The settings of gradloom fit, and what the data decide of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .common import Exchange, Parallel
from .config import UNSAVED, Count, Limit, Place, Rate, Share, Text, Whole, commas, decided

if TYPE_CHECKING:
    from ..data import Table
    from ..parallel.communicator import Communicator

Width = Annotated[int, Limit("a width", (("ge", 1), ("le", (1 << 31) - 1)))]
Widths = Annotated[list[Width], Limit("whole numbers of at least 1, such as 64,64, or nothing for no hidden layer")]


def _widths(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() and len(part) < 20 else part for part in commas(text)]


@dataclass(frozen=True)
class FitSettings:
    """What a fit does. None: the data decide (see settle)."""

    data: Annotated[Place, typer.Argument(help="A .csv or .csv.gz file, an .npz file, or a folder of idx files.")]
    target: Annotated[str | None, typer.Option(help="Column or array to predict. [default: the last column]")] = None
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="classification or regression. [default: from the target]"),
    ] = None
    hidden: Annotated[
        Widths, Text(_widths),
        typer.Option(help="Widths of the hidden layers, such as 64,64. [default: 64,64; images 500]"),
    ] = decided  # fmt: skip
    epochs: Annotated[Whole, typer.Option(help="Passes over the training rows. [default: by their number]")] = decided
    batch_size: Annotated[Whole, typer.Option(help="Rows per step. [default: by their number]")] = decided
    micro_batch_size: Annotated[
        Whole,
        typer.Option(
            help="Rows computed at a time; gradients add up to the batch. [default: the batch, or a rank's share]"
        ),
    ] = decided
    lr: Annotated[
        Rate, typer.Option(help="Learning rate at the start; it falls to 0 by a cosine. [default: 0.003; sgd 0.05]")
    ] = decided
    optimizer: Annotated[
        Literal["adamw", "sgd"], typer.Option(help="adamw (weight decay 0.01) or sgd (momentum 0.9).")
    ] = "adamw"
    loss: Annotated[
        Literal["cross_entropy", "mse"],
        typer.Option(help="cross_entropy or mse. [default: cross_entropy for classes, else mse]"),
    ] = decided
    val_split: Annotated[
        Share, typer.Option(help="Share of the training rows to validate on. [default: 0.05 for idx, else 0]")
    ] = decided
    seed: Annotated[Count, typer.Option(help="Of the weights, the split and the order of the rows.")] = 0
    threads: Annotated[Whole | None, UNSAVED, typer.Option(help="[default: the machine's cores]")] = None
    parallel: Annotated[Parallel, UNSAVED] = None
    exchange: Annotated[Exchange, UNSAVED] = None
    out: Annotated[Place, UNSAVED, typer.Option(help="Folder for model.safetensors and result.json.")] = "gradloom-out"
    json: Annotated[bool, UNSAVED, typer.Option("--json", help="Print one JSON object as the last line of stdout.")] = (
        False
    )


def with_split(asked: FitSettings) -> FitSettings:
    """With the share of validation rows, which is decided before the data are read."""
    if asked.val_split is not None:
        return asked
    return replace(asked, val_split=0.05 if os.path.isdir(asked.data) else 0.0)


def settle(asked: FitSettings, table: Table, ranks: Communicator | None) -> FitSettings:
    """With defaults for what was not said, by the kind and the number of the training rows."""
    from ..base.errors import SettingError
    from ..parallel.agree import share_of

    rows = rows_of(asked, table)[0]
    images = table.preprocess.kind == "array"
    wanted = asked.batch_size or (32 if rows < 5000 else 500 if images else 128)
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
    return replace(
        asked,
        hidden=asked.hidden if asked.hidden is not None else [500] if images else [64, 64],
        epochs=asked.epochs or (100 if rows < 1000 else 10 if images and rows >= 20000 else 50),
        batch_size=batch,
        micro_batch_size=micro,
        lr=asked.lr or (0.003 if asked.optimizer == "adamw" else 0.05),
        loss=loss,
    )


def rows_of(use: FitSettings, table: Table) -> tuple[int, int]:
    """(training rows, validation rows)."""
    val = len(table.train.split(use.val_split, use.seed)[1]) if use.val_split else 0
    return table.train.n - val, val
