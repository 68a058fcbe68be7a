"""gradloom predict: predictions of a saved model for the rows of a file."""

from __future__ import annotations

import contextlib
import itertools
import sys
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_tables import PREDICT
from ..base.sample_options import DataOptions
from ..base.settings import PRECISIONS
from .common import Device, Precision, Threads, json_text, need_one_of, need_whole, print_report, warn
from .config import with_options
from .csv_text import csv_line, not_a_formula
from .language import Lora, read_template
from .parser import Argument, Option
from .predict_scores import agreements, print_scores
from .run_settings import check_device
from .saved_settings import Inputs

_NO_CSV = (".parquet", ".gz", ".npz", ".json", ".jsonl", ".xlsx", ".safetensors", ".gguf")
_ROWS = 4096  # written at a time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ..tables.model import Model


HELP = """Predict the target of each row or image, as CSV: the prediction, and for classes the probability of each.

MODEL can also be a language model with a head, of finetune with --objective reward, classify or regress: then DATA is
a .csv, .parquet, .arrow, .jsonl or .json file of texts as in its training, or a .txt with a text in each line.

Where the file holds the target too, stderr shows the scores: of a file that the model was trained on separately for
training, validation and test rows.
"""


@with_options(DataOptions)
def predict(
    model: Annotated[
        str,
        Argument(help="A file that gradloom fit saved, or its folder; a GGUF model or a Hugging Face folder."),
    ],
    data: Annotated[
        list[str],
        Argument(
            help="A .csv, .csv.gz, .parquet or .npz file, a folder of idx files, or - for CSV on stdin; of texts a"
            " .csv, .parquet, .arrow, .jsonl, .json or .txt file; of a model of images any number of image files and"
            " folders."
        ),
    ],
    out: Annotated[str | None, Option(help="CSV file to write. [default: stdout]")] = None,
    keep: Annotated[
        list[str] | None, Option(help="Columns of DATA to write in front of the predictions, such as id,name.")
    ] = None,
    escape_formulas: Annotated[
        bool,
        Option(
            "--escape-formulas",
            help="Write ' in front of CSV texts that spreadsheets run as formulas: those that begin with = + - @.",
        ),
    ] = False,
    lora: Lora = None,
    context: Annotated[
        int | None, Option(help="Most tokens of a text, of which the first are read. [default: the model's context]")
    ] = None,
    tta: Annotated[
        int | None,
        Option(
            help="Views of each image whose probabilities are averaged: the image, and so it changed at random as in "
            "the training. [default: 1]"
        ),
    ] = None,
    threads: Threads = None,
    precision: Precision = None,
    device: Device = None,
    json: Annotated[
        bool,
        Option("--json", help="Print one JSON object, with the predictions in it where no CSV file is written."),
    ] = False,
    **reading: Any,
) -> int:
    """Run the command; returns its exit code."""
    need_one_of("precision", precision, PRECISIONS)
    for name, number in (("context", context), ("threads", threads), ("tta", tta)):
        need_whole(name, number)
    check_device(device)
    names = _names(keep)
    from ..base.errors import SettingError

    if escape_formulas and json and out is None:
        text = "{escape_formulas} requires CSV: {out}, or no {json}"
        raise SettingError(text, escape_formulas=True, out=..., json=...)
    encoding = reading.pop("encoding")
    given = {name: value for name, value in reading.items() if value not in (None, False)}
    if out is not None:
        _check_out(out, *([model] if lora is None else [model, lora]), data=data)
    if is_language_model(model):
        _check_one(model, data, tta)
        from .predict_texts import TextUse, predict_texts

        label = given.pop("label_key", "label")
        if "chat_template" in given:
            given["chat_template"] = read_template(given["chat_template"])
        cell = not_a_formula if escape_formulas else str
        options = {"context": context, "precision": precision, "device": device, "threads": threads}
        return predict_texts(TextUse(model, data[0], lora, out, names, encoding, cell, json, label, given, options))
    for name, value in {"lora": lora, "context": context, **given}.items():
        if value is not None:
            text = f"{{{name}}} requires a language model as MODEL: FILE.gguf or a Hugging Face folder"
            raise SettingError(text, {name: value})
    cell = not_a_formula if escape_formulas else str
    options = {"precision": precision, "device": device, "threads": threads}
    return _predict_rows(model, data, out, names, encoding, cell, json, tta, options)


def _predict_rows(
    model: str, data: list[str], out: str | None, names: list[str], encoding: str | None, cell: Callable[[str], str],
    json: bool, tta: int | None, options: dict[str, Any],
) -> int:  # fmt: skip
    """Predictions of a model that `gradloom fit` saved. options: of gl.compile."""
    from ..base.errors import SettingError
    from .model import load_model

    opened = load_model(model)
    if opened.preprocess.kind == "images":
        from .predict_images import predict_images

        for name, value in (("keep", names), ("encoding", encoding)):
            if value:
                raise SettingError(f"{{{name}}} requires a model of tables; this one is of images", {name: ...})
        return predict_images(opened, model, data, out, cell, json, tta or 1, options)
    _check_one(model, data, tta)
    return _predict_table(opened, model, data[0], out, names, encoding, cell, json, options)


def _predict_table(
    opened: Model, model: str, data: str, out: str | None, names: list[str], encoding: str | None,
    cell: Callable[[str], str], json: bool, options: dict[str, Any],
) -> int:  # fmt: skip
    """Predictions for the rows of a table or of arrays."""
    from ..base.errors import DataError
    from ..data.frames import as_file, features_of, kept_columns, with_encoding
    from ..files import atomic_write

    preprocess = with_encoding(opened.preprocess, encoding, data)
    if data == "-" and sys.stdin is None:
        raise DataError("stdin: is closed; need the rows of a CSV file there, or the name of a file")
    opened_data = as_file(sys.stdin.buffer, "stdin") if data == "-" else contextlib.nullcontext(data)
    with opened_data as path:
        inputs = Inputs(data=path)
        features, targets, notes, problems = features_of(path, preprocess)
        kept = kept_columns(path, names, preprocess) if names else {}
        uses, warnings = (
            (None, []) if targets is None else opened.uses_of(path, inputs.digests()["data"], features, targets)
        )
    _print_notes(notes, problems)
    try:
        outputs = opened.outputs(features, **options)
    except DataError as error:
        raise DataError(f"{model}, {data}: {error}") from None
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(text.encode() for text in _csv(opened, outputs, kept, cell))
        print_report(f"{len(outputs):,} predictions in {out}")
    elif not json:
        sys.stdout.writelines(_csv(opened, outputs, kept, cell))
    agreement: dict[str, Any] = {}
    if targets is not None:
        agreement = agreements(outputs, targets, preprocess, uses)
        print_scores(agreement, warnings, preprocess)
        agreement |= {"warnings": warnings} if warnings else {}
    if json:
        answer = {
            "model": model, "data": data, "task": preprocess.task, "target": preprocess.target,
            "rows": len(outputs), "out": out, "notes": notes + problems, **agreement,
        }  # fmt: skip
        if preprocess.targets:
            facts = {one.target: _facts_of_target(one, outputs[:, at], out is None) for one, at in opened.of_targets()}
            answer["targets"] = {name: of | answer.get("targets", {}).get(name, {}) for name, of in facts.items()}
        elif preprocess.task == "classification":
            answer["classes"] = preprocess.classes
        if out is None:
            answer |= ({"kept": kept} if names else {}) | _predictions(opened, outputs)
        print(json_text(PREDICT, answer))
    return 0


def _check_one(model: str, data: list[str], tta: int | None) -> None:
    """SettingError for several files, and for --tta: of a model that is not of images."""
    from ..base.errors import SettingError

    if tta is not None:
        raise SettingError("{tta} requires a model of images, of gradloom fit FOLDER", tta=tta)
    if len(data) > 1:
        raise SettingError(f"{model}, {data[1]}: several files require a model of images; this one reads one file")


def is_language_model(path: str) -> bool:
    """Whether this is the name of a GGUF file, or a Hugging Face folder."""
    from ..llm.hf_folder import is_folder_of_model

    return path.lower().endswith(".gguf") or is_folder_of_model(path)


def _check_out(out: str, *models: str, data: list[str]) -> None:
    """An error for a file that cannot be written, is no CSV, or is one of the inputs."""
    from ..base.errors import SettingError
    from ..files import check_target, refuse_input
    from .model import files_of_model

    inputs = [file for model in models for file in files_of_model(model)]
    refuse_input(out, *inputs, *(path for path in data if path != "-"))
    if out.lower().endswith(_NO_CSV):
        raise SettingError(setting="out", seen=out, need="the name of a CSV file, such as predicted.csv")
    check_target(out, streams=True)


def _print_notes(notes: list[str], problems: list[str]) -> None:
    for note in notes:
        print_report(note)
    for problem in problems:
        warn(problem)


def _predictions(opened: Model, outputs: np.ndarray) -> dict[str, Any]:
    """The predictions, and of classes the probabilities, as --json prints them."""
    answer = {"predictions": opened.decide(outputs).tolist()}
    if opened.preprocess.task == "classification" and not opened.preprocess.targets:
        answer["probabilities"] = opened.probabilities(outputs).tolist()
    return answer


def _facts_of_target(one: Model, outputs: np.ndarray, with_rows: bool) -> dict[str, Any]:
    """One of several targets, as --json prints it: task, classes, and the probabilities of the rows where asked for."""
    made: dict[str, Any] = {"task": one.task}
    if one.classes:
        made["classes"] = one.classes
        made |= {"probabilities": one.probabilities(outputs).tolist()} if with_rows else {}
    return made


def _names(keep: list[str] | None) -> list[str]:
    """The names of --keep; SettingError for an empty one, and for one that is there twice."""
    import csv

    from ..base.errors import SettingError

    names = [name.strip() for text in keep or () for name in next(csv.reader([text]), []) or [""]]
    if "" in names or len(set(names)) < len(names):
        raise SettingError(
            setting="keep", seen=",".join(keep or ()), need="different names of columns, such as id,name"
        )
    return names


def _csv(model: Model, outputs: np.ndarray, kept: dict[str, list[str]], cell: Callable[[str], str]) -> Iterator[str]:
    """A header, and a line for each row, some rows at a time. Numbers read back as they are. cell: how texts are
    written."""
    each = model.of_targets()
    is_one = len(each) == 1
    head: list[str] = []
    for one, _ in each:
        made = one.preprocess
        target = f"predicted {made.target}" if made.target in kept else made.target
        is_single = made.outputs == 1 or made.task == "classification"
        head += [target] if is_single else [f"{target} {i}" for i in range(made.outputs)]
        head += [f"p({name})" if is_one else f"p({made.target}={name})" for name in made.classes]
    for start in range(0, len(outputs), _ROWS):
        part = outputs[start : start + _ROWS]
        of_targets = [_csv_cells(one, part[:, at], cell) for one, at in each]
        rows = [[*itertools.chain(*row)] for row in zip(*of_targets, strict=True)]
        in_front: Any = [()] * len(part)
        if kept:
            in_front = zip(*(cells[start : start + _ROWS] for cells in kept.values()), strict=True)
        if start == 0:
            yield csv_line([*map(cell, (*kept, *head))])
        yield "".join(csv_line([*map(cell, cells), *row]) for cells, row in zip(in_front, rows, strict=True))


def _csv_cells(model: Model, outputs: np.ndarray, cell: Callable[[str], str]) -> list[list[str]]:
    """The cells of one target for each row: the prediction, and of classes the probabilities."""
    if model.task == "classification":
        shares = model.probabilities(outputs).tolist()
        return [[cell(name), *map(repr, row)] for name, row in zip(model.decide(outputs), shares, strict=True)]
    return [[*map(repr, row)] for row in model.decide(outputs).reshape(len(outputs), -1).tolist()]
