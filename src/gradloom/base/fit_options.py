"""Options of gl.fit and of the command fit, which adds columns, a network and an ensemble."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Annotated, Literal

from .options import (
    Count,
    Decay,
    Flag,
    Limit,
    Name,
    Names,
    Place,
    Rate,
    Share,
    Whole,
    command_option,
    commas,
    decided,
    option,
    whole_numbers,
)
from .training_options import (
    JSON_HELP,
    OPTIMIZERS,
    EvalOptions,
    LogOptions,
    MemoryOptions,
    RankOptions,
    SaveOptions,
    StepOptions,
    WatchOptions,
)

Width = Annotated[int, Limit("a whole number of at least 1, below 2**31", (("ge", 1), ("le", (1 << 31) - 1)))]
Widths = Annotated[list[Width], Limit("whole numbers of at least 1, such as 64,64, below 2**31; or nothing: no layer")]
Members = Annotated[int, Limit("a whole number from 1 to 10,000", (("ge", 1), ("le", 10_000)))]
Side = Annotated[int, Limit("a whole number from 1 to 4096", (("ge", 1), ("le", 4096)))]
AUGMENT = Literal["crop", "flip", "rotate", "color", "erase"]
SCORES = Literal[
    "accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier", "rmse", "mae", "r2"
]  # fmt: skip


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


@dataclass(frozen=True)
class PassOptions:
    """Epochs, batches and validation rows of gl.fit."""

    epochs: Count = option(
        1,
        "passes over the training rows; 0 trains nothing",
        Flag("fit", "Passes over the training rows. [default: depends on the number of rows]", Whole, decided),
    )
    steps_per_epoch: Whole | None = option(
        None,
        "of an iterable of batches: batches of an epoch, by default all of an iteration. The next epoch continues the "
        "iteration, and begins another one where it ends",
        compared_as="steps per epoch",
    )
    batch_size: Whole = option(
        32,
        "rows per optimiser step; fewer training rows than that are one smaller batch",
        Flag("fit", "Rows per step. [default: depends on the number of rows]", default=decided),
        compared_as="batch_size",
    )
    micro_batch_size: Whole | None = option(
        None,
        "maximum number of rows computed at once, by default the batch or a rank's equal share of it; gradients add up",
        Flag("fit", "Rows computed at a time; gradients add up to the batch. [default: the batch, or a rank's share]"),
        compared_as="micro_batch_size",
    )
    val_split: Share = option(
        0.0,
        "share of the rows, the last in the order by the seed, that is for validation and never trained on",
        Flag(
            "fit",
            "Share of the training rows to validate on. [default: none of a table, 0.05 of a folder]",
            default=decided,
        ),
        compared_as="rows",
    )
    folds: Count = option(
        0,
        "of an nn.Ensemble, which then trains on all rows: number of folds, drawn by the seed. Member m trains on no "
        'row of fold m (modulo folds); validation ("val") measures each row by the members that were not trained on it',
        Flag(
            "fit",
            "Number of folds of a table's training rows: each network trains without one fold, which validates it; "
            "0: none. [default: the number of networks]",
            default=decided,
        ),
        compared_as="folds",
    )


@dataclass(frozen=True)
class FitOptions(
    PassOptions, EvalOptions, StepOptions, RankOptions, SaveOptions, LogOptions, WatchOptions, MemoryOptions
):  # fmt: skip
    """Options of gl.fit."""


@dataclass(frozen=True)
class TableOptions:
    """Columns of a table."""

    data: Place = command_option(
        "fit",
        "A .csv, .csv.gz, .parquet or .npz file, a folder of idx files, or one of images: FOLDER/CLASS/1.jpg.",
        MISSING,
        is_argument=True,
    )
    target: Names | None = command_option(
        "fit",
        "Column or array to predict; several columns of a table: once for each. [default: the last column]",
        parse=str,
    )
    task: Literal["classification", "regression"] | None = command_option(
        "fit", "classification or regression. [default: from the target]"
    )
    drop: list[Name] | None = command_option(
        "fit", "Columns that are not used, such as a,b. [default: none]", parse=commas
    )
    categorical: list[Name] | None = command_option("fit", "Columns to read as categories.", parse=commas)
    numeric: list[Name] | None = command_option("fit", "Columns to read as numbers.", parse=commas)
    time: Name | None = command_option("fit", "A column of dates or times: the latest rows are the test rows.")
    weight_column: Name | None = command_option("fit", "A column with the weight of each row in training.")
    missing: list[Name] | None = command_option(
        "fit", "Words that are missing values, such as unknown,-999, besides NA, ? and the like.", parse=commas
    )
    encoding: Name | None = command_option("fit", "Encoding of the text files, such as cp1252. [default: utf-8]")
    test: Place | None = command_option("fit", "A file of test rows. [default: a fifth of the rows]")


def _names_or_none(text: str) -> list[str]:
    """a,b; no name for "none"."""
    return [] if text.strip().lower() == "none" else commas(text.lower())


@dataclass(frozen=True)
class ImageOptions:
    """Images of a folder."""

    image_size: Side | None = command_option(
        "fit",
        "Pixels of a side to which the images of a folder are resized and cut. [default: their common size up to 256, "
        "else the median of their shorter sides, at most 128]",
    )
    augment: list[AUGMENT] = command_option(
        "fit",
        "Random changes of the training images of a folder: crop (shifts by up to an eighth), flip (left and right), "
        "rotate (up to 15 degrees), color (brightness, contrast, saturation), erase (a box); or none. [default: crop]",
        decided,
        parse=_names_or_none,
    )
    corrupt: Literal["skip", "error"] = command_option(
        "fit", "Images of a folder that cannot be decoded: skip or error. [default: skip]", decided
    )


@dataclass(frozen=True)
class NetworkOptions:
    """The network of the command, its optimiser and its loss."""

    hidden: Widths = command_option(
        "fit",
        "Widths of the hidden layers, such as 64,64; of images the channels of the convolutions. "
        "[default: 128,128; arrays 500; of images by their size and number]",
        decided,
        parse=whole_numbers,
    )
    dropout: Share = command_option(
        "fit",
        "Share of each hidden layer's outputs that a training step leaves out; 0: none. [default: 0.1; arrays 0; of "
        "the last block of images 0.2]",
        decided,
    )
    ensemble: Members = command_option(
        "fit", "Networks that learn a table side by side and are averaged. [default: 8]", decided
    )
    lr: Rate = command_option(
        "fit",
        "Learning rate at the start; it falls to 0 by a cosine. [default: 0.002; images 0.003; sgd 0.05]",
        decided,
    )
    optimizer: OPTIMIZERS = command_option(
        "fit",
        "adamw (weight decay 0.05, images 0.01), sgd (momentum 0.9), adam, lion, rmsprop, adafactor, muon.",
        "adamw",
        parse=str.lower,
    )
    groups: list[Group] | None = command_option("fit", None)
    loss: Literal["cross_entropy", "mse", "l1", "huber"] = command_option(
        "fit",
        "cross_entropy or mse; of a regression mse, l1 or huber. [default: cross_entropy for classes, else mse]",
        decided,
    )
    val: dict[str, Place] | None = command_option(
        "fit",
        "A file to validate on, in place of --val-split; several as NAME=FILE. May be given more than once.",
        parse=_named_file,
    )
    patience: Count = command_option(
        "fit",
        "Number of evaluations without improvement after which training ends, with the best weights; 0: never. "
        "[default: 15 for a table that is validated]",
        decided,
    )
    monitor: str | None = command_option(
        "fit", "Quantity for --patience: val_loss, val_accuracy, NAME.loss. [default: the loss]"
    )
    metric: SCORES | None = command_option("fit", "Score of the validation rows for --patience. [default: the loss]")
    class_weight: Literal["balanced"] | None = command_option(
        "fit", "balanced: all classes weigh the same in training and its validation."
    )


@dataclass(frozen=True)
class FitOutput:
    """Output of the command."""

    out: Place = command_option("fit", "Folder for model.safetensors and result.json.", "gradloom-out", saved=False)
    json: bool = command_option("fit", JSON_HELP, False, saved=False)
