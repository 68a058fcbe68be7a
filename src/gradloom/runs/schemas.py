"""Schemas of the saved state of a Loop and of dp_train: counts, the open pass, results, times.

Also the relations between values: counts that belong together, lengths of arrays, the numbers of passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.schema import (
    MOST,
    Schema,
    any_number,
    anything,
    array,
    both,
    different_texts,
    flag,
    mapping,
    number,
    optional,
    plain,
    shown_name,
    table,
    text,
    whole,
)
from .records import packed_records, unpacked

LARGEST = 1e39  # of values that are f32 in a program: sums and squares stay finite
_FLOATS = array("float64", ndim=1)


def _sums(value: Any, name: str) -> None:
    """Schema: f64[n], losses or norms; finite ones are as large as a sum of f32 numbers can be."""
    _FLOATS(value, name)
    if float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) > LARGEST:
        raise DataError(f"{shown_name(name)} has elements out of range; need from -{LARGEST} to {LARGEST}")


_RESULT: dict[str, Schema] = {
    "is_total": flag, "ndata": whole(), "counted": whole(), "correct": whole(), "skipped": whole(),
    "losses": _sums, "weights": array("float64", ndim=1, least=0, most=LARGEST), "grad_norms": _sums,
    "predictions": optional(array(("int32", "int64", "uint32", "uint8"), ndim=1)),
}  # fmt: skip
_NUMBERS = "measured.numbers"
_MEASURED: dict[str, Schema] = {
    r"measured\.numbers": mapping(any_number), r"measured\.row\..+": array(("float32", "float64"), ndim=1),
    r"measured\.(sum|weight)\..+": _sums, r"measured\.(counts|weights|labels|output\.[0-9]{1,4})": array(),
    r"measured\.labels(\..+|\[[0-9]{1,4}\])": array(),  # of several outputs
    r"part\..+": array("float64", ndim=3),  # of several losses: [batches, pairs, (sum, weight)]
    r"factors": mapping(optional(any_number)),  # of these in their sum; None: an accuracy
}  # fmt: skip


def _of_one_result(values: Mapping[str, Any], name: str) -> None:
    """Counts and lengths of one Result."""
    where = shown_name(name)
    if len(values["losses"]) != len(values["weights"]):
        raise DataError(f"{where}: {len(values['losses'])} losses with {len(values['weights'])} weights")
    if values["correct"] > values["counted"]:
        raise DataError(f"{where}: correct is {values['correct']}; must be <= {values['counted']} rows")
    for key, value in values.items():
        if key.startswith("part.") and (len(value) != len(values["losses"]) or value.shape[2] != 2):
            raise DataError(f"{where}: {shown_name(key)} has shape {list(value.shape)}; need a pair of each batch")
    measured = {key: value for key, value in values.items() if key.startswith("measured.")}
    if _NUMBERS in measured and len(measured) > 1:
        raise DataError(f"{where}: {_NUMBERS} together with the arrays that they are computed from")
    for key, value in measured.items():
        kind, _, metric = key.removeprefix("measured.").partition(".")
        other = {"row": "measured.counts", "sum": f"measured.weight.{metric}", "weight": f"measured.sum.{metric}"}
        if kind in other and metric and (other[kind] not in measured or len(measured[other[kind]]) != len(value)):
            raise DataError(f"{where}: {shown_name(key)} without {shown_name(other[kind])} of its length")


result_state: Schema = both(table(_RESULT, _MEASURED), _of_one_result)


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): one for key, one in values.items() if key.startswith(prefix)}


def _result_at(prefix: str) -> Schema:
    """A Result whose values have names that begin so."""

    def check(values: Any, name: str) -> None:
        result_state(_under(values, prefix), f"{name}.{prefix.removesuffix('.')}")

    return check


def _epoch_relations(values: Mapping[str, Any], name: str) -> None:
    if values["ended"] and not values["evaluations"]:
        raise DataError(f"{name}: ended with an evaluation, and has none")
    if any(key.startswith("val.") for key in values):
        _result_at("val.")(values, name)


epoch_state: Schema = both(
    table(
        {
            "epoch": whole(1), "planned_bytes": whole(), "rates": mapping(any_number), "ended": flag,
            "evaluations": whole(), "averaged": flag,
        },
        {r"(train|val)\..+": anything},
    ),
    _result_at("train."),
    _epoch_relations,
)  # fmt: skip


def evaluation_state(values: Any, name: str) -> None:
    """Schema: what Evaluation.state gives."""
    table({"step": whole(), "epoch": whole(1), "names": different_texts}, {".*": anything})(values, name)
    for one in values["names"]:
        _result_at(f"{one}.")(values, name)
    known = ("step", "epoch", "names", *(f"{one}." for one in values["names"]))
    unknown = [key for key in values if not key.startswith(known)]
    if unknown:
        raise DataError(f"{name}: key {shown_name(unknown[0])} is not known")


def records_of(schema: Schema) -> Schema:
    """Packed records (see records.py), each of which the schema takes."""

    def check(value: Any, name: str) -> None:
        packed_records(value, name)
        for i, record in enumerate(unpacked(value)):
            schema(record, f"{name}[{i}]")

    return check


_PASS = table({"number": whole(1), "rows": whole(-MOST), "before": whole(), "done": whole()})
_LOOP = table(
    {
        "seed": whole(-MOST), "steps": whole(), "steps_total": whole(), "passes": whole(), "first_pass": whole(),
        "batch_size": whole(1), "micro_batch_size": whole(1), "rows": whole(), "stopped": flag,
        "history": records_of(epoch_state), "has_before": flag, "pass": optional(_PASS),
        "evaluations": records_of(evaluation_state),
    },
    {r"(before|train)\..+": anything},
)  # fmt: skip


def _loop_relations(values: Mapping[str, Any], name: str) -> None:
    """The numbers of passes, steps and evaluations belong together."""
    for prefix, is_there in (("before.", values["has_before"]), ("train.", values["pass"] is not None)):
        if is_there:
            _result_at(prefix)(values, name)
        elif any(key.startswith(prefix) for key in values):
            raise DataError(f"{name}: values of {prefix.removesuffix('.')} without it")
    history, made = unpacked(values["history"]), unpacked(values["evaluations"])
    numbers = [values["first_pass"], *(one["epoch"] for one in history)]
    last = values["first_pass"] + values["passes"]
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        raise DataError(f"{name}.history: epochs {numbers[1:][:8]} do not increase from {numbers[0] + 1}")
    under_way = values["pass"]
    if under_way is not None and values["stopped"]:
        raise DataError(f"{name}.stopped: is true inside pass {under_way['number']}; a stopped run has no open pass")
    if under_way is not None:
        number, steps = under_way["number"], under_way["before"] + under_way["done"]
        if number != last or number <= numbers[-1] or steps != values["steps"]:
            raise DataError(f"{name}.pass: number {number} at step {steps}; need {last} at step {values['steps']}")
    elif numbers[-1] != last:
        raise DataError(f"{name}: {values['passes']} passes, and the history ends with epoch {numbers[-1]}")
    ended = sum(one["evaluations"] for one in history)
    if ended > len(made) or (ended < len(made) and under_way is None):
        raise DataError(f"{name}: {len(made)} evaluations, {ended} of them in the history")
    if values["rows"] > values["steps"] * values["batch_size"]:
        raise DataError(f"{name}: {values['rows']} rows in {values['steps']} steps of {values['batch_size']}")


LOOP: Schema = both(_LOOP, _loop_relations)
TIMES = table({"training": number(0), "pass": number(0), "epochs": array("float64", ndim=1, least=0, most=LARGEST)})
REPLICA_LOOP = table({"losses": _FLOATS, "began_pass": whole()})
CALLBACKS = mapping(anything, keys=r"(0|[1-9][0-9]{0,5})\..*")

# `about` of a checkpoint: settings in dicts of one level, see identity.py.
_SETTINGS = table({"exchange": text}, {".*": plain}, absent=("exchange",))
ABOUT = table({"settings": _SETTINGS, "environment": mapping(text), "digests": mapping(text)}, absent=("digests",))
ABOUT_LOOP = table({"environment": mapping(text)}, {".*": anything}, absent=("environment",))
