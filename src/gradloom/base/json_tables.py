"""JSON documents of models of tables and images: fit and predict."""

from __future__ import annotations

from typing import Any

from .json_documents import EPOCH, INTERRUPTED, PEAK, PREDICTED_SECONDS, READ, SPREADS, Document, Key, Number, when

_CLASSES = "for classification"
_SEVERAL = "with several targets"
_CLASSES_OF_ONE = "for classification with one target"
_ROW_LOSS = (
    "nats/row; of mse and huber squared standard deviations of the target, of l1 standard deviations; of several "
    "targets the mean over all known cells"
)
_OF_A_CLASS = (
    Key("precision", float, "correct rows among those predicted as this class"),
    Key("recall", float, "rows of this class that were predicted as it"),
    Key("f1", float, "harmonic mean of both"),
    Key("rows", int, "test rows of this class"),
)
_OF_A_TARGET = (
    Key("task", str, "classification or regression"),
    Key("rows", int, "test rows in which it is known"),
    *when(
        "with such rows",
        Key(r"(accuracy|balanced_accuracy|f1_macro|roc_auc|log_loss|brier|r2|rmse|mae)(_unc)?", Number, "scores, and "
            "their uncertainties", pattern=True),
        Key("baseline", str, "the constant prediction that the scores are compared with"),
        Key(r"baseline_(accuracy|log_loss|rmse|mae)", float, "its scores", pattern=True),
        Key("classes", {str: _OF_A_CLASS}, "scores of each class by its name", when=_CLASSES),
        Key(
            "confusion", list[list[int]], "test rows by true class (first index) and predicted class", "rows",
            f"{_CLASSES}, up to 50 classes",
        ),
    ),
)  # fmt: skip
FIT = Document(
    "gradloom.fit/1",
    "`gradloom fit --json`, `gradloom rerun --json` of a fit, `result.json`",
    (
        Key("data", str, "DATA as given"),
        Key("model", str | None, "the saved model; null if nothing was saved"),
        Key("steps", int, "optimiser steps done"),
        INTERRUPTED,
        *when(
            READ,
            Key("ending", str, "done, stopped after a time, interrupted, or stopped by an error"),
            Key("task", str, "classification or regression; mixed: targets of both kinds"),
            Key("target", str, "name of the target column; of several targets their names, as text"),
            Key("targets", list[str], "names of the target columns", when=_SEVERAL),
            Key("rows_train", int, "rows trained on"),
            Key("rows_val", int, "rows validated on"),
            Key("rows_test", int, "test rows"),
            Key("folds", int | None, "folds of an ensemble, each left out by one network"),
            Key("train_loss", Number, "training loss in the epoch of the saved weights", _ROW_LOSS, "after a step"),
            Key("val_loss", Number, "the same of the validation rows", _ROW_LOSS, "with validation rows"),
            Key("test_loss", Number, "loss of the test rows", _ROW_LOSS, "at the end, with test rows"),
            Key(r"(train|val)_accuracy", float, "share of correct rows", when=_CLASSES, pattern=True),
            Key(r"(train|val|test)_.+_unc", Number, SPREADS, when="if defined", pattern=True),
            Key(
                r"test_(accuracy|balanced_accuracy|f1_macro|roc_auc|log_loss|brier)", Number,
                "scores of the test rows, by scikit-learn's definitions; of several targets the means",
                when=f"at the end, {_CLASSES}", pattern=True,
            ),
            Key(
                r"test_(r2|rmse|mae)", Number, "scores of the test rows, in units of the target; of several the means",
                when="at the end, for regression", pattern=True,
            ),
            Key("test_classes", {str: _OF_A_CLASS}, "scores of each class by its name", when=f"at the end, {_CLASSES}"),
            Key(
                "test_confusion", list[list[int]], "test rows by true class (first index) and predicted class", "rows",
                f"at the end, {_CLASSES}, up to 50 classes",
            ),
            Key(
                "test_targets", {str: _OF_A_TARGET}, "scores of each target by its name",
                when=f"at the end, {_SEVERAL}",
            ),
            Key("baseline", str, "the constant prediction that the test scores are compared with", when="at the end"),
            Key(r"baseline_(accuracy|log_loss|rmse|mae)", float, "its scores", when="at the end", pattern=True),
            Key(r".+\..+", Number, "NAME.loss, ... of a validation set", when="with `--val`", pattern=True),
            Key("saved_epoch", int | None, "epoch of the saved weights"),
            Key("hidden", list[int], "widths of the hidden layers; of images channels of convolutions"),
            Key("epochs", int, "whole epochs done"),
            Key("batch_size", int, "rows per step"),
            Key("micro_batch_size", int | None, "rows computed at a time; null: the batch"),
            Key("lr", float, "learning rate at the start"),
            Key("loss", str, "name of the loss"),
            Key("precision", str, "f32 or bf16"),
            Key("optimizer", str, "its name"),
            Key("seed", int, "random seed"),
            Key("ranks", int, "processes"),
            Key("seconds", float, "of training and validation", "s"),
            PREDICTED_SECONDS,
            Key("rows_per_second", int | None, "rows trained on", "1/s"),
            Key("parameters", int, "numbers in the network's parameters"),
            PEAK,
            Key("planned_bytes", int, "planned memory of a step", "bytes", "after an epoch"),
            Key("device_bytes", int, "memory of the GPU", "bytes", "with `--device gpu`"),
            Key("notes", list[str], "decisions on the data"),
            Key("warnings", list[str], "warnings about data and results"),
            Key("history", [EPOCH], "an object for each whole epoch"),
        ),
    ),
)  # fmt: skip
_KNOWN_TARGET = "if DATA has the target"
_SCORES = (
    Key("rows_with_target", int, "rows with a known target"),
    *when(
        "with such rows",
        Key("accuracy", float, "share of correct rows", when=_CLASSES),
        Key(r"r2|rmse|mae", Number, "scores, in units of the target", when="for regression", pattern=True),
        Key(r".+_unc", Number, SPREADS, when="if defined", pattern=True),
    ),
)
_OF_EACH = (
    Key("task", str, "classification or regression"),
    Key("classes", list[str], "names, in the order of `probabilities`", when=_CLASSES),
    Key("probabilities", list[list[float]], "of each row and class", when=f"without `--out`, {_CLASSES}"),
    *when(_KNOWN_TARGET, *_SCORES),
)
_SCORES_OF_TARGETS = (*_SCORES, Key("targets", {str: _SCORES}, "of each target by its name", when=_SEVERAL))
PREDICT = Document(
    "gradloom.predict/1",
    "`gradloom predict --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("data", str, "DATA as given"),
        Key("task", str, "classification or regression; mixed: targets of both kinds; of texts also reward"),
        Key("target", str, "name of the target column; of several targets their names, as text"),
        Key("lora", str | None, "the adapter", when="with a language model"),
        Key("rows", int, "rows of DATA"),
        Key("out", str | None, "the CSV file; null without `--out`"),
        Key("notes", list[str], "decisions on the data"),
        *when(_KNOWN_TARGET, *_SCORES),
        Key("targets", {str: _OF_EACH}, "each target by its name; the scores above are means", when=_SEVERAL),
        Key(
            "scores",
            {str: _SCORES_OF_TARGETS},
            "by part: train, val, test, left_out",
            when="if the model was trained on DATA",
        ),
        Key("warnings", list[str], "rows that were trained on", when="if there are such rows"),
        Key("classes", list[str], "names, in the order of `probabilities`", when=_CLASSES_OF_ONE),
        Key("skipped", dict[str, str], "images that cannot be read: file and reason", when="of images"),
        Key("kept", dict[str, list[str]], "cells of columns; of images `file`", when="with `--keep`, without `--out`"),
        Key("predictions", list[str | float | list[float | str]], "of each row", when="without `--out`"),
        Key("probabilities", list[list[float]], "of each row and class", when=f"without `--out`, {_CLASSES_OF_ONE}"),
    ),
)
EXPORT = Document(
    "gradloom.export/1",
    "`gradloom export --json`",
    (
        Key("model", str, "MODEL as given"),
        Key("out", str, "the ONNX file"),
        Key("bytes", int, "size of the file", "bytes"),
        Key("inputs", dict[str, dict[str, Any]], 'inputs of the file by name: `dtype`, and `shape` with "rows"'),
        Key("outputs", dict[str, dict[str, Any]], "likewise, the outputs"),
        Key("notes", list[str], "columns of texts whose cells are not compared as by `gradloom predict`"),
        Key("seconds", float, "wall-clock time", "s"),
    ),
)
