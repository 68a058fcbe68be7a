"""gradloom predict: predictions of a saved model for the rows of a file."""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_documents import PREDICT
from ..base.settings import PRECISIONS
from .common import Device, Precision, Threads, json_text, need_one_of, need_whole, print_report, warn
from .csv_text import csv_line, not_a_formula
from .language import (
    AsChat,
    CompletionKey,
    LabelKey,
    Lora,
    MessagesKey,
    PromptKey,
    Special,
    Template,
    TextKey,
    read_template,
)
from .parser import Argument, Option
from .run_settings import check_device
from .saved_settings import Inputs

_NO_CSV = (".parquet", ".gz", ".npz", ".json", ".jsonl", ".xlsx", ".safetensors", ".gguf")
_ROWS = 4096  # written at a time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ..data import Preprocess
    from ..tables.model import Model


HELP = """Predict the target of each row, as CSV: the prediction, and for classes the probability of each.

MODEL can also be a language model with a head, of finetune with --objective reward, classify or regress: then DATA is
a .csv, .parquet, .arrow, .jsonl or .json file of texts as in its training, or a .txt with a text in each line.

Where the file holds the target too, stderr shows the scores: of a file that the model was trained on separately for
training, validation and test rows.
"""


def predict(
    model: Annotated[
        str,
        Argument(help="A file that gradloom fit saved, or its folder; a GGUF model or a Hugging Face folder."),
    ],
    data: Annotated[
        str,
        Argument(
            help="A .csv, .csv.gz, .parquet or .npz file, a folder of idx files, or - for CSV on stdin; of texts a"
            " .csv, .parquet, .arrow, .jsonl, .json or .txt file."
        ),
    ],
    out: Annotated[str | None, Option(help="CSV file to write. [default: stdout]")] = None,
    keep: Annotated[
        str | None, Option(help="Columns of DATA to write in front of the predictions, such as id,name.")
    ] = None,
    encoding: Annotated[
        str | None, Option(help="Encoding of a text file, such as cp1252. [default: as in training]")
    ] = None,
    escape_formulas: Annotated[
        bool,
        Option(
            "--escape-formulas",
            help="Write ' in front of CSV texts that spreadsheets run as formulas: those that begin with = + - @.",
        ),
    ] = False,
    lora: Lora = None,
    text_key: TextKey = None,
    prompt_key: PromptKey = None,
    completion_key: CompletionKey = None,
    messages_key: MessagesKey = None,
    label_key: LabelKey = None,
    as_chat: AsChat = False,
    chat_template: Template = None,
    special: Special = False,
    context: Annotated[
        int | None, Option(help="Most tokens of a text, of which the first are read. [default: the model's context]")
    ] = None,
    threads: Threads = None,
    precision: Precision = None,
    device: Device = None,
    json: Annotated[
        bool,
        Option("--json", help="Print one JSON object, with the predictions in it where no CSV file is written."),
    ] = False,
) -> int:
    """Run the command; returns its exit code."""
    need_one_of("precision", precision, PRECISIONS)
    for name, number in (("context", context), ("threads", threads)):
        need_whole(name, number)
    check_device(device)
    names = _names(keep)
    from ..base.errors import SettingError

    if escape_formulas and json and out is None:
        text = "{escape_formulas} requires CSV: {out}, or no {json}"
        raise SettingError(text, escape_formulas=True, out=..., json=...)
    of_texts = {
        "lora": lora, "text_key": text_key, "prompt_key": prompt_key, "completion_key": completion_key,
        "messages_key": messages_key, "label_key": label_key, "as_chat": as_chat or None,
        "chat_template": chat_template, "special": special or None, "context": context,
    }  # fmt: skip
    if out is not None:
        _check_out(out, *([model] if lora is None else [model, lora]), data=data)
    if is_language_model(model):
        from .predict_texts import TextUse, predict_texts

        reading: dict[str, Any] = {name: value for name, value in of_texts.items() if value is not None}
        reading = {name: value for name, value in reading.items() if name not in ("lora", "label_key", "context")}
        if chat_template is not None:
            reading["chat_template"] = read_template(chat_template)
        cell = not_a_formula if escape_formulas else str
        options = {"context": context, "precision": precision, "device": device, "threads": threads}
        return predict_texts(
            TextUse(model, data, lora, out, names, encoding, cell, json, label_key or "label", reading, options)
        )
    for name, value in of_texts.items():
        if value is not None:
            text = f"{{{name}}} requires a language model as MODEL: FILE.gguf or a Hugging Face folder"
            raise SettingError(text, {name: value})
    return _predict_table(model, data, out, names, encoding, escape_formulas, precision, device, threads, json)


def _predict_table(
    model: str, data: str, out: str | None, names: list[str], encoding: str | None, escape_formulas: bool,
    precision: str | None, device: str | None, threads: int | None, json: bool,
) -> int:  # fmt: skip
    """Predictions of a model that `gradloom fit` saved."""
    from ..base.errors import DataError
    from ..data.frames import as_file, features_of, kept_columns, with_encoding
    from ..files import atomic_write
    from .model import load_model

    opened = load_model(model)
    preprocess = with_encoding(opened.preprocess, encoding, data)
    if data == "-" and sys.stdin is None:
        raise DataError("stdin: is closed; need the rows of a CSV file there, or the name of a file")
    opened_data = as_file(sys.stdin.buffer, "stdin") if data == "-" else contextlib.nullcontext(data)
    with opened_data as path:
        inputs = Inputs(data=path)
        features, targets, notes, problems = features_of(path, preprocess)
        kept = kept_columns(path, names, preprocess) if names else {}
        uses, warnings = (None, []) if targets is None else _uses(opened, path, inputs, features, targets)
    _print_notes(notes, problems)
    try:
        outputs = opened.outputs(features, precision=precision, device=device, threads=threads)
    except DataError as error:
        raise DataError(f"{model}, {data}: {error}") from None
    cell = not_a_formula if escape_formulas else str
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(text.encode() for text in _csv(opened, outputs, kept, cell))
        print_report(f"{len(outputs):,} predictions in {out}")
    elif not json:
        sys.stdout.writelines(_csv(opened, outputs, kept, cell))
    agreement: dict[str, Any] = {}
    if targets is not None:
        agreement = _agreements(outputs, targets, preprocess, uses)
        _print_scores(agreement, warnings, preprocess)
        agreement |= {"warnings": warnings} if warnings else {}
    if json:
        answer = {
            "model": model, "data": data, "task": preprocess.task, "target": preprocess.target,
            "rows": len(outputs), "out": out, "notes": notes + problems, **agreement,
        }  # fmt: skip
        if preprocess.task == "classification":
            answer["classes"] = preprocess.classes
        if out is None:
            answer |= ({"kept": kept} if names else {}) | _predictions(opened, outputs)
        print(json_text(PREDICT, answer))
    return 0


def is_language_model(path: str) -> bool:
    """Whether this is the name of a GGUF file, or a Hugging Face folder."""
    from ..llm.hf_folder import is_folder_of_model

    return path.lower().endswith(".gguf") or is_folder_of_model(path)


def _check_out(out: str, *models: str, data: str) -> None:
    """An error for a file that cannot be written, is no CSV, or is one of the inputs."""
    from ..base.errors import SettingError
    from ..files import check_target, refuse_input
    from .model import files_of_model

    inputs = [file for model in models for file in files_of_model(model)]
    refuse_input(out, *inputs, *([] if data == "-" else [data]))
    if out.lower().endswith(_NO_CSV):
        raise SettingError(setting="out", seen=out, need="the name of a CSV file, such as predicted.csv")
    check_target(out, streams=True)


def _print_notes(notes: list[str], problems: list[str]) -> None:
    for note in notes:
        print_report(note)
    for problem in problems:
        warn(problem)


def _print_scores(agreement: dict[str, Any], warnings: list[str], preprocess: Preprocess) -> None:
    """The scores of each part of the file, and of all rows where there is more than one part."""
    parts = agreement.get("scores", {})
    everything = {"all rows" if parts else "": agreement} if len(parts) != 1 else {}
    for part, scores in {**parts, **everything}.items():
        print_report(f"{_PARTS[part]}{_shown(scores, preprocess)}")
    for text in warnings:
        warn(f"warning: {text}")


def _predictions(opened: Model, outputs: np.ndarray) -> dict[str, Any]:
    """The predictions, and of classes the probabilities, as --json prints them."""
    answer = {"predictions": opened.decide(outputs).tolist()}
    if opened.preprocess.task == "classification":
        answer["probabilities"] = opened.probabilities(outputs).tolist()
    return answer


def _names(keep: str | None) -> list[str]:
    """The names of --keep; SettingError for an empty one, and for one that is there twice."""
    import csv

    from ..base.errors import SettingError

    names = [] if keep is None else [name.strip() for name in next(csv.reader([keep]), []) or [""]]
    if keep is not None and ("" in names or len(set(names)) < len(names)):
        raise SettingError(setting="keep", seen=keep, need="different names of columns, such as id,name")
    return names


def _csv(model: Model, outputs: np.ndarray, kept: dict[str, list[str]], cell: Callable[[str], str]) -> Iterator[str]:
    """A header, and a line for each row, some rows at a time. Numbers read back as they are. cell: how texts are
    written."""
    made = model.preprocess
    target = f"predicted {made.target}" if made.target in kept else made.target
    is_classes = made.task == "classification"
    head = [target] if made.outputs == 1 or is_classes else [f"{target} {i}" for i in range(made.outputs)]
    head += [f"p({name})" for name in made.classes]
    for start in range(0, len(outputs), _ROWS):
        part = outputs[start : start + _ROWS]
        if is_classes:
            shares = model.probabilities(part)
            rows = [
                [cell(name), *map(repr, row)] for name, row in zip(model.decide(part), shares.tolist(), strict=True)
            ]
        else:
            rows = [[*map(repr, row)] for row in model.decide(part).reshape(len(part), -1).tolist()]
        in_front: Any = [()] * len(part)
        if kept:
            in_front = zip(*(cells[start : start + _ROWS] for cells in kept.values()), strict=True)
        if start == 0:
            yield csv_line([*map(cell, (*kept, *head))])
        yield "".join(csv_line([*map(cell, cells), *row]) for cells, row in zip(in_front, rows, strict=True))


_PARTS = {"": "", "train": "training rows: ", "val": "validation rows: ", "test": "test rows: "}
_PARTS |= {"left_out": "rows left out of the training: ", "all rows": "all rows, those of the training among them: "}


def _uses(
    model: Model, path: str, inputs: Inputs, features: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray | None, list[str]]:
    """(the use of each row of the file in training, None for another file; warnings)."""
    from ..base.errors import DataError
    from ..data.reading.raw_table import array_to_predict

    digest = inputs.digests()["data"]
    seen = "the model was trained on this file"
    try:
        uses = None if model.uses is None else model.uses.of_file(digest, array_to_predict(Path(path)), len(features))
    except DataError as error:
        return None, [f"{seen}, and its rows differ from those of the training ({error}): scores may include these"]
    if uses is None and model.uses is None and model.about.get("data") == digest:
        return None, [f"{seen} and does not hold which rows: scores include training rows"]
    if uses is None and model.uses is not None and (count := model.uses.found_in(features, targets)):
        what = f"{count:,} of {len(model.uses.sample):,} training rows that were compared"
        return None, [f"{what} are in this file, with their targets: scores include training rows"]
    return uses, []


def _agreements(
    outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess, uses: np.ndarray | None
) -> dict[str, Any]:
    """The scores as --json has them: of all rows; and "scores" of each part of a file that the training used."""
    from ..data.row_uses import NAMES, TRAIN

    whole = _agreement(outputs, targets, preprocess)
    if uses is None:
        return whole
    order = (*range(TRAIN, len(NAMES)), 0)
    parts = {NAMES[use]: _agreement(outputs[uses == use], targets[uses == use], preprocess) for use in order}
    scores = {name: part for name, part in parts.items() if part["rows_with_target"]}
    return whole | {"scores": scores}


def _agreement(outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess) -> dict[str, Any]:
    """Scores of the predictions against the targets of the file, as --json prints them."""
    import numpy as np

    from ..tables.scores import regression_scores

    if preprocess.task == "classification":
        known = targets >= 0
        n = int(known.sum())
        if n == 0:
            return {"rows_with_target": 0}
        accuracy = float((outputs.argmax(axis=1) == targets)[known].mean())
        unc = math.sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else math.nan
        return {"rows_with_target": n, "accuracy": accuracy, "accuracy_unc": unc}
    known = np.isfinite(targets).all(axis=1)
    n = int(known.sum())
    scores = regression_scores(preprocess.outputs_to_targets(outputs)[known], targets[known]) if n else {}
    return {"rows_with_target": n, **scores}


def _shown(agreement: dict[str, Any], preprocess: Preprocess) -> str:
    from ..train.display import plural

    n, target = agreement["rows_with_target"], preprocess.target
    if preprocess.task == "classification":
        if n == 0:
            return f"no row has a {target!r} that the model knows"
        unc = agreement["accuracy_unc"]
        shown = f"accuracy {agreement['accuracy']:.4f}" + ("" if math.isnan(unc) else f" +- {unc:.4f}")
    else:
        if n == 0:
            return f"no row has a {target!r}"
        shown = f"R2 {agreement['r2']:.6g}, rmse {agreement['rmse']:.6g}"
    return f"{shown} on {plural(n, 'row')} that {'has' if n == 1 else 'have'} a {target!r}"
