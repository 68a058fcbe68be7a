"""Models of `gradloom fit` in ONNX: from cells, arrays or pixels to classes, probabilities and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.errors import GraphError
from ..data.encoding.column import Column
from ..data.encoding.features import as_number, truth_words
from ..data.encoding.preprocess import Preprocess
from ..data.encoding.times import CALENDAR, NUMBER
from ..data.reading.cells import composed
from ..nn.module import Module
from ..tables.model import Model
from . import spellings
from .graph_writer import TABLES, GraphWriter
from .trace import forward_of, write

_DAY = 86400.0
_LARGE = 1e300


def write_table_model(w: GraphWriter, model: Model, names: dict[Any, str]) -> None:
    """Inputs, nodes and outputs of a model. names: those of the parameters of its network."""
    made = model.preprocess
    if made.kind == "columns":
        features = _of_columns(w, made)
    elif made.kind == "images":
        pixels = w.add_input("image", np.uint8, ["rows", *made.shape])
        features = w("Div", w.cast(pixels, np.float32), w.number(255))
    else:
        array = w.add_input("array", np.float32, ["rows", *made.shape])
        features = w("Reshape", array, w.wholes([-1, made.inputs]))
    if not w.rows_of:
        w.rows_of = w.inputs[0].name
    outputs = _network(w, model.net, features, made, names)
    each = model.of_targets()
    for one, at in each:
        part = outputs if len(each) == 1 else w("Slice", outputs, *(w.wholes([n]) for n in (at.start, at.stop, 1)))
        _write_target(w, one, part)


def _network(w: GraphWriter, net: Module, features: str, made: Preprocess, names: dict[Any, str]) -> str:
    example = {"features": np.zeros((2, *made.row_shape), np.float32)}
    forward = forward_of(net, example, lambda leaves: leaves["features"])
    if not forward.is_free:
        raise GraphError(
            f"export_onnx: the network does not treat rows alike: {forward.why}; export it with an example"
        )
    ((name, _, _),) = write(forward, w, {"features": features}, names).values()
    return name


# ---- columns ---------------------------------------------------------------------------------------------------------


def _of_columns(w: GraphWriter, made: Preprocess) -> str:
    """The features of all columns, f32 [rows, features]."""
    parts = []
    for column in made.columns:
        if column.kind == "unused":
            continue
        is_text = column.kind in ("text", "encoded")
        name = w.add_input(column.name, object if is_text else np.float64, ["rows", 1])
        w.rows_of = w.rows_of or name
        with w.within(name):
            parts += [_texts(w, column, made, name)] if is_text else _numbers(w, column, name)
    return w("Concat", *parts, axis=1)


def _texts(w: GraphWriter, column: Column, made: Preprocess, cell: str) -> str:
    """One-hot, or the codes of a target encoding; a text that is no category makes zeros."""
    places = _places(column, made)
    place = w(
        "LabelEncoder", cell, domain=TABLES, keys_strings=list(places), values_int64s=list(places.values()),
        default_int64=-1,
    )  # fmt: skip
    if column.kind == "text":
        return w.cast(w("Equal", place, w.wholes(range(len(column.categories)))), np.float32)
    codes = np.array(column.codes, np.float32).reshape(len(column.categories), -1)
    table = w.array(np.concatenate([np.zeros((1, codes.shape[1]), np.float32), codes]), f"{cell}.codes")
    return w("Squeeze", w("Gather", table, w("Add", place, w.wholes([1])), axis=0), w.wholes([1]))


def _places(column: Column, made: Preprocess) -> dict[str, int]:
    """Text -> place among the categories, with the other texts that are one category to data/encoding/features.py."""
    known = {composed(text): place for place, text in enumerate(column.categories)}
    more = dict.fromkeys(made.missing, known[""]) if "" in known else {}
    if reads_numbers(known):  # 3.0 is the category 3, NA the empty one
        for text, place in known.items():
            more |= dict.fromkeys(spellings.of_number(text), place) if spellings.is_number(text) else {}
        if "" in known:
            more |= dict.fromkeys(spellings.marks(), known[""])
    for word, text in truth_words(list(known)).items():
        more |= dict.fromkeys(spellings.in_cases(word), known[text])
    more |= known
    every = {one: place for text, place in more.items() for one in spellings.canonical(text)}
    return every | more


def reads_numbers(categories: Iterable[str]) -> bool:
    """Whether cells are compared as numbers: no category is a number in another form, such as 03, or a word of missing
    cells."""
    return all(as_number(text.encode()) == text.encode() for text in categories)


def notes_of(made: Preprocess) -> list[str]:
    """A note for each column whose cells the file cannot compare as `gradloom predict` does."""
    noted = []
    for column in made.columns:
        numbers = [text for text in column.categories if spellings.is_number(text)]
        if numbers and reads_numbers(column.categories):
            some = ", ".join([one for one in spellings.of_number(numbers[-1]) if one != numbers[-1]][:3])
            noted.append(
                f"{column.name!r:.60}: categories that are numbers match as texts in ONNX: {numbers[-1]}, also {some} "
                f"and the like; write cells as in the training data"
            )
    return noted


def _numbers(w: GraphWriter, column: Column, cell: str) -> list[str]:
    """The features of a number or a time, f32 [rows, 1] each, computed in f64."""
    is_missing = w("IsNaN", cell)
    value = w("Where", is_missing, _f64(w, column.median), cell)
    shaped = value
    if column.scale:
        shaped = _asinh(w, w("Sub", w("Div", value, _f64(w, column.scale)), _f64(w, column.center / column.scale)))
    parts = [_standardised(w, shaped, column)]
    if column.kind == "time" and column.form != NUMBER:
        for part in column.parts:
            if part != CALENDAR:
                parts += _waves(w, value, part)
        if CALENDAR in column.parts:
            parts.append(_standardised(w, _year(w, value), column))
    return parts + ([w.cast(is_missing, np.float32)] if column.has_missing else [])


def _f64(w: GraphWriter, value: float) -> str:
    return w.number(value, np.float64)


def _asinh(w: GraphWriter, x: str) -> str:
    """sign(x) log(|x| + sqrt(x^2 + 1)), beyond 1e150, where squares overflow, sign(x) log(2 |x|)."""
    size = w("Abs", x)
    held = w("Min", size, _f64(w, 1e150))
    usual = w("Log", w("Add", held, w("Sqrt", w("Add", w("Mul", held, held), _f64(w, 1)))))
    return w("Mul", w("Sign", x), w("Add", usual, w("Log", w("Max", w("Div", size, _f64(w, 1e150)), _f64(w, 1)))))


def _standardised(w: GraphWriter, x: str, column: Column) -> str:
    if column.std > _LARGE:
        made = w("Sub", w("Div", x, _f64(w, column.std)), _f64(w, column.mean / column.std))
    else:
        made = w("Div", w("Sub", x, _f64(w, column.mean)), _f64(w, column.std))
    return w.cast(made, np.float32)


def _waves(w: GraphWriter, seconds: str, part: str) -> list[str]:
    """A sine and a cosine of the time in a cycle (data/encoding/times.py: phases)."""
    period, shift = {"year": (365.2425 * _DAY, 0.0), "week": (7 * _DAY, 3 / 7), "day": (_DAY, 0.0)}[part]
    cycles = w("Div", seconds, _f64(w, period))
    cycles = w("Add", cycles, _f64(w, shift)) if shift else cycles
    angle = w.cast(w("Mul", w("Sub", cycles, w("Floor", cycles)), _f64(w, 2 * np.pi)), np.float32)
    return [w("Sin", angle), w("Cos", angle)]


def _year(w: GraphWriter, seconds: str) -> str:
    """The beginning of the calendar year in seconds since 1970, f64, for years from 0 on (Hinnant, "chrono-Compatible
    Low-Level Date Algorithms": civil_from_days and days_from_civil)."""

    def add(x: str, n: int) -> str:
        return w("Add", x, w.number(n, np.int64))

    def times(x: str, n: int) -> str:
        return w("Mul", x, w.number(n, np.int64))

    def over(x: str, n: int) -> str:
        return w("Div", x, w.number(n, np.int64))

    days = add(w.cast(w("Floor", w("Div", seconds, _f64(w, _DAY))), np.int64), 719468)
    era = over(days, 146097)
    day = w("Sub", days, times(era, 146097))
    leap = w("Sub", w("Add", w("Sub", day, over(day, 1460)), over(day, 36524)), over(day, 146096))
    year = over(leap, 365)
    before = w("Sub", w("Add", times(year, 365), over(year, 4)), over(year, 100))
    is_next = w.cast(w("GreaterOrEqual", w("Sub", day, before), w.number(306, np.int64)), np.int64)  # from January on
    last = add(w("Add", w("Add", times(era, 400), year), is_next), -1)
    start = w("Add", w("Add", times(last, 365), over(last, 4)), w("Sub", over(last, 400), over(last, 100)))
    return w("Mul", w.cast(add(start, 306 - 719468), np.float64), _f64(w, _DAY))


# ---- outputs ---------------------------------------------------------------------------------------------------------


def _write_target(w: GraphWriter, model: Model, outputs: str) -> None:
    """The prediction of one target, under its name, and the probabilities of its classes, NAME_probabilities."""
    made = model.preprocess
    if model.task == "regression":
        mean, std = (np.array(values, np.float64) for values in (made.target_mean, made.target_std))
        numbers = w("Add", w("Mul", w.cast(outputs, np.float64), w.array(std)), w.array(mean))
        if len(mean) == 1:
            numbers = w("Squeeze", numbers, w.wholes([1]))
        w.add_output(numbers, made.target, np.float64, ["rows", *([len(mean)] * (len(mean) > 1))])
        return
    chosen = w("ArgMax", outputs, axis=1, keepdims=0)
    classes = w.array(np.array(made.classes, object), f"{made.target}.classes")
    w.add_output(w("Gather", classes, chosen, axis=0), made.target, object, ["rows"])
    values = w.cast(outputs, np.float64)
    if model.about.get("loss", "cross_entropy") == "mse":
        shares = w("Clip", values, _f64(w, 0), _f64(w, 1))
        is_empty = w("Equal", w("ReduceSum", shares, w.wholes([1])), _f64(w, 0))
        shares = w("Where", is_empty, _f64(w, 1), shares)
        shares = w("Div", shares, w("ReduceSum", shares, w.wholes([1])))
    else:
        shares = w("Softmax", values, axis=1)
    w.add_output(shares, f"{made.target}_probabilities", np.float64, ["rows", len(made.classes)])
