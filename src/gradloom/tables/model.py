"""Model: a network with its preprocessing; files of models and of networks alone."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..base.arguments import what_is
from ..base.arrays import place_in
from ..base.described import LONGEST, Described, parse
from ..base.errors import DataError, FileError, GradloomError, GraphError, SettingError
from ..base.habits import AttributeHints, not_callable
from ..base.html import html_table, html_text
from ..base.terminal import in_one_line
from ..data.encoding.preprocess import Preprocess
from ..data.encoding.several import given_targets
from ..data.encoding.target import MIXED
from ..data.frames import features_of, features_with_warnings, with_encoding
from ..data.image_table import image_part
from ..data.reading.cell_rules import UTF_8
from ..data.reading.raw_table import array_to_predict, class_name
from ..data.row_uses import RowUses
from ..data.table import known_rows
from ..files import load_arrays, load_metadata, need_finite, save_arrays
from ..graph.leaves import input as input_value
from ..graph.value import graph_mode
from ..nn.description import build, described
from ..nn.module import Module, mode
from ..run.compile import compile as compile_program
from ..run.diagnose import Place, first_bad
from ..train.fit import predict
from .perceptron import perceptron
from .scores import class_probabilities, regression_scores
from .target_scores import Cells, cells_of_targets

MODEL = "model.safetensors"  # in the folder of a `gradloom fit`
DESCRIPTION = "gradloom.model"  # the key of a file's metadata
ROWS = "gradloom.rows"  # that of RowUses, which versions without them do not read
_FORMAT = 2  # 1 knew the perceptrons of `gradloom fit` alone


@dataclass(repr=False)
class Model(AttributeHints):
    """A trained network with the preprocessing of rows and outputs: saved by `gradloom fit`, read by gl.load.

    net         the network: features f32 [rows, features] -> logits, or standardised targets
    preprocess  from the cells of a table to features, and from outputs to targets
    about       how it was trained: settings, seed, digest of the data
    metrics     what training, validation and test rows measured, by name: test_accuracy, ...
    """

    net: Module
    preprocess: Preprocess
    about: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    uses: RowUses | None = None  # of the rows of its data file; a model of an earlier version has none

    @property
    def task(self) -> str:
        """ "classification" or "regression"; "mixed" for several targets of both kinds."""
        return self.preprocess.task

    @property
    def target(self) -> str:
        """The name of the target; of several their names, as text."""
        return self.preprocess.target

    @property
    def targets(self) -> list[str]:
        """The names of the targets, in the order of predictions."""
        return self.preprocess.target_names

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of predict_proba's columns; none of a regression, and of several
        targets, see of_targets."""
        return list(self.preprocess.classes)

    def of_targets(self) -> list[tuple[Model, slice]]:
        """(the model as if this were its only target, its columns among the outputs) of each target: `decide` and
        `probabilities` of such a model take these columns; its network has the outputs of all."""
        if not self.preprocess.targets:
            return [(self, slice(0, self.preprocess.outputs))]
        about = self.about | {"loss": "cross_entropy"}
        return [(replace(self, preprocess=one, about=about), at) for one, at in self.preprocess.each_target]

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """TypeError that names `predict`: the network alone is called with features."""
        raise not_callable(self, "model.predict(rows), or model.net(features)")

    def predict(self, rows: Any, *, encoding: str | None = None, **options: Any) -> np.ndarray:
        """The class (a text) of each row, [rows]; of a regression numbers in the units of the target, f64 [rows], or
        [rows, targets] where there are several. Several targets with classes: texts [rows, targets], or texts and
        numbers, of dtype object, for both kinds.

        rows: the path of a file (.csv, .parquet, .npz, a folder of idx files; of a model of images a file or folder, or
        a list of them); a DataFrame of pandas or polars or a
        table of pyarrow, whose columns are found by name; an array or a list of rows, in the order of the columns of
        the training. encoding: of a text file, such as "cp1252"; None: as in training. options go to gl.compile
        (device=, precision=, threads=). Unusual rows, such as those with a text unknown from training, cause a warning
        (warnings.warn). DataError for rows that do not match the training data.
        """
        made = with_encoding(self.preprocess, encoding, rows)
        return self.decide(self.outputs(features_with_warnings(rows, made), **options))

    def predict_proba(
        self, rows: Any, *, encoding: str | None = None, **options: Any
    ) -> np.ndarray | dict[str, np.ndarray]:
        """The probability of each class, f64 [rows, classes]; of several targets such an array by the name of each
        that has classes. SettingError for a regression. Arguments as for predict."""
        if self.task == "regression":
            raise SettingError("predict_proba: the model is a regression, which has no classes; need predict")
        made = with_encoding(self.preprocess, encoding, rows)
        outputs = self.outputs(features_with_warnings(rows, made), **options)
        if not self.preprocess.targets:
            return self.probabilities(outputs)
        return {one.target: one.probabilities(outputs[:, at]) for one, at in self.of_targets() if one.classes}

    def score(self, rows: Any, targets: Any = None, *, encoding: str | None = None, **options: Any) -> float:
        """The accuracy of a classification, R2 of a regression (the mean of the targets' R2), as scikit-learn's
        estimators have it; of several targets the mean of the accuracy or R2 of each, over the rows that have it.

        rows: as for predict. targets: the class or the number of each row, [rows] or [rows, targets]; None: those of
        the file or table, in its column of the target's name. Rows without a target, and those of a class that the
        model does not know, do not count, which is a warning with their number. DataError where no row has a target,
        for a target that is infinite or too large for a score, and for R2 of targets that are all equal, which is not
        defined.
        """
        made = with_encoding(self.preprocess, encoding, rows)
        features, found, notes, problems = features_of(rows, made)
        if targets is not None:
            found, problems = given_targets(_targets(targets, len(features), self.task), made)
        if found is None:
            given = "are of another kind" if targets is not None else "are missing"
            raise DataError(f"score: targets {given}; requires the {self.target!r:.60} of each row")
        known = known_rows(found, made)
        if not known.any():
            raise DataError(f"score: no row has a {self.target!r:.60} that the model knows")
        lost = int((~known).sum())
        left_out = f"{lost:,} of {len(found):,} rows count in no score: no {self.target!r:.60} that the model knows"
        for note in [*notes, *problems, *[left_out] * bool(lost)]:
            warnings.warn(note, stacklevel=2)
        outputs = self.outputs(features, **options)
        if made.targets:
            return _mean_score(cells_of_targets(made, outputs, found))
        if self.task == "classification":
            return float((outputs.argmax(axis=1) == found)[known].mean())
        numbers = made.outputs_to_targets(outputs)[known]
        score = regression_scores(numbers, found[known], uncertainties=False)["r2"]
        if np.isnan(score):
            raise DataError(f"score: {self.target!r:.60} is the same in all rows; R2 requires different numbers")
        return score

    def outputs(self, features: Any, **options: Any) -> np.ndarray:
        """The outputs of the network, f32 [rows, outputs]; DataError if they are not finite: it names the row and the
        first such node."""
        outputs = predict(self.net, features, **options)
        bad = why_not_finite(self.net, features, outputs, **options)
        if bad is not None:
            raise DataError(f"the output of the model for {bad}; train it again, or check that row")
        return np.asarray(outputs)

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        """The predictions for these outputs, as `predict` returns them."""
        if self.preprocess.targets:
            columns = [one.decide(outputs[:, at]) for one, at in self.of_targets()]
            return np.stack([c.astype(object) for c in columns] if self.task == MIXED else columns, axis=1)
        if self.task == "classification":
            return np.array(self.classes)[outputs.argmax(axis=1)]
        values = self.preprocess.outputs_to_targets(outputs)
        return values[:, 0] if values.shape[1] == 1 else values

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """f64 [rows, classes]: the softmax of logits; see class_probabilities for the loss mse."""
        return class_probabilities(outputs, str(self.about.get("loss", "cross_entropy")))

    def uses_of(
        self, path: str | os.PathLike[str], digest: str, features: Any, targets: np.ndarray
    ) -> tuple[np.ndarray | None, list[str]]:
        """(the use of each row of a file in the training, u8 [rows], see RowUses; None where it is not known; warnings
        on training rows in such a file).

        path, digest: of the file. features, targets: of its rows, as features_of returns them.
        """
        seen = "the model was trained on this file"
        if self.uses is None:
            is_own = self.about.get("data") == digest
            return None, [f"{seen} and does not hold which rows: scores include training rows"] * is_own
        try:
            uses = self.uses.of_file(digest, self._part(path), len(features))
        except DataError as error:
            return None, [f"{seen}, and its rows differ from those of the training ({error}): scores may include these"]
        if uses is None and (count := self.uses.found_in(features, targets)):
            what = f"{count:,} of {len(self.uses.sample):,} training rows that were compared"
            return None, [f"{what} are in this file, with their targets: scores include training rows"]
        return uses, []

    def _part(self, path: str | os.PathLike[str]) -> str:
        """The array, or the part of a folder of images, that predict reads."""
        return image_part(path) if self.preprocess.kind == "images" else array_to_predict(Path(path))

    def facts(self) -> dict[str, str]:
        """A description: text by name."""
        made = self.preprocess
        if made.kind == "array":
            inputs = f"arrays of shape {made.shape}"
        elif made.kind == "images":
            channels, height, width = made.shape
            inputs = f"images, {'grey' if channels == 1 else 'colour'}, resized to {height} x {width}"
        else:
            used = [c for c in made.columns if c.kind != "unused"]
            names = ", ".join(c.name if c.kind == "number" else f"{c.name} ({c.kind})" for c in used[:20])
            inputs = f"{len(used)} columns: {names}{', ...' if len(used) > 20 else ''}"
        facts = {"task": f"{self.task} of {self.target}", "inputs": f"{inputs}; {made.inputs:,} features"}
        if made.missing or made.encoding != UTF_8:
            words = [f"missing {', '.join(map(repr, made.missing))}"] * bool(made.missing)
            facts["cells"] = "; ".join([*words, f"encoding {made.encoding}"])
        if self.classes:
            more = ", ..." if len(self.classes) > 20 else ""
            facts["classes"] = f"{len(self.classes)}: {', '.join(self.classes[:20])}{more}"
        for one in self.preprocess.targets:
            classes = f": {', '.join(one.classes[:20])}{', ...' if len(one.classes) > 20 else ''}"
            about = f"{len(one.classes)} classes{classes}" if one.classes else "numbers"
            facts[f"target {in_one_line(one.name)}"] = about
        facts["network"] = f"{self.net.parameter_count():,} parameters"
        if self.metrics:
            shown = (f"{name} {value:.6g}" for name, value in self.metrics.items() if not name.endswith("_unc"))
            facts["metrics"] = ", ".join(shown)
        if self.about:
            facts["trained"] = ", ".join(f"{name} {_shown(value)}" for name, value in self.about.items())
        return facts

    def summary(self) -> str:
        """A description, and the layers of the network, as text."""
        facts = self.facts()
        width = max(map(len, facts))
        lines = [f"{name:<{width}}  {in_one_line(text)}" for name, text in facts.items()]
        return "\n".join([*lines, "", self.net.summary()])

    def __repr__(self) -> str:
        facts = self.facts()
        return in_one_line(f"Model({facts['task']}; {facts['inputs']}; {facts['network']})")

    def _repr_html_(self) -> str:
        return html_table((), self.facts().items()) + html_text(repr(self.net))


def _mean_score(cells: Sequence[Cells]) -> float:
    """The mean over the targets of the accuracy, or of R2."""
    made = []
    for one in cells:
        name = one.preprocess.target
        if not len(one.rows):
            warnings.warn(f"score: no row has a {name!r:.60} that the model knows; it does not count", stacklevel=3)
            continue
        if one.preprocess.task == "classification":
            made.append(float((one.outputs.argmax(axis=1) == one.targets).mean()))
            continue
        made.append(regression_scores(one.numbers, one.targets, uncertainties=False)["r2"])
        if np.isnan(made[-1]):
            raise DataError(f"score: {name!r:.60} is the same in all rows; R2 requires different numbers")
    return float(np.mean(made))


def _targets(given: Any, rows: int, task: str) -> np.ndarray:
    """Targets that a caller gives, as an array; DataError unless there is one for each row."""
    targets = np.asarray(given)
    if targets.ndim < 1 or len(targets) != rows:
        raise DataError(f"score: targets of shape {list(targets.shape)}; requires one for each of {rows} rows")
    if targets.dtype.kind != "O":
        return targets
    if task == MIXED:
        return targets
    if task == "classification":
        names = [class_name(value) for value in targets.reshape(-1).tolist()]
        return np.array(names).reshape(targets.shape)
    try:
        return targets.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError("score: targets are no numbers; requires numbers for a regression") from None


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def why_not_finite(net: Module, features: Any, outputs: np.ndarray, **options: Any) -> str | None:
    """ "row 7 is not finite: ...": the first row of outputs that is not, and the first node that is not for it; None
    where all are finite. features, outputs: of `predict`, with these options of gl.compile. Features may be an object
    that makes rows."""
    bad = np.flatnonzero(~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1))
    if not bad.size:
        return None
    row = int(bad[0])
    one = features[row : row + 1] if isinstance(features, np.ndarray) else features[row][None]
    one = np.ascontiguousarray(one, np.float32)
    with graph_mode(), mode(False):
        value = net(input_value("features", one.shape))
    run = compile_program([value], **options)
    if np.isfinite(run(features=one)[0]).all():  # of several rows, products take their sums in another order
        return f"row {row} is not finite"

    def place(name: str, array: np.ndarray, at: int) -> Place:
        return f"row {row} of the {name}", place_in(array.shape[1:], at)

    return f"row {row} is not finite: {first_bad(run, [value], (), {}, place, **options)}"


# ---- the file --------------------------------------------------------------------------------------------------------


def write_model(what: Model | Module, path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    """Write weights, architecture and, of a Model, all else that it holds into one file, whole or not at all.

    A network with classes of the user's own is written without its architecture, and with the reason. The uses of rows
    are left out where a file cannot hold them (from about 20 million rows on). FileError where a number is not finite:
    read_model would refuse the file.
    """
    if taken := {DESCRIPTION, ROWS} & set(metadata):
        raise SettingError(f"save: metadata key {min(taken)!r} is that of the model itself; need another name")
    net = what.net if isinstance(what, Model) else what
    entry: dict[str, Any] = {"format": _FORMAT}
    try:
        entry["network"] = described(net)
    except GraphError as error:
        if isinstance(what, Model):
            raise
        entry["undescribed"] = str(error)
    if isinstance(what, Model):
        entry |= {"preprocess": json.loads(what.preprocess.to_json()), "about": what.about, "metrics": what.metrics}
    try:
        text = json.dumps(entry, ensure_ascii=False, allow_nan=False)
        if isinstance(what, Model):
            Preprocess.from_json(what.preprocess.to_json())
            _metrics(parse(text, "the description"))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{path}: the description of the model cannot be saved ({reason:.160})") from None
    arrays = net.state_dict()
    need_finite(path, arrays)
    everything = {**metadata, DESCRIPTION: text}
    if isinstance(what, Model) and what.uses is not None:
        rows = what.uses.to_json()
        if len(rows) < LONGEST // 2 and len(rows) + len(json.dumps(everything)) < LONGEST - (1 << 10):
            everything[ROWS] = rows
    save_arrays(path, arrays, everything)


def read_model(path: str | os.PathLike[str]) -> Model | Module:
    """The Model or the network of a file that write_model wrote, or of the folder of a `gradloom fit`.

    FileError for any other file. Nothing is built before the arrays are those that the description needs; no code of
    the file is run.
    """
    where = Path(path)
    if not where.suffix and not where.exists():
        raise FileError(f"{path}: no such file or folder")
    if where.is_dir():
        where = where / MODEL
    if DESCRIPTION not in load_metadata(where):  # before the arrays, which may be those of a large language model
        hint = "gl.load(net, path) reads arrays into a network that is there"
        if where.suffix.lower() == ".gguf":
            hint = "gl.llm.load reads language models, gl.load_gguf arrays"
        raise FileError(f"{where}: holds arrays but no model of gradloom; need a file that gl.save wrote ({hint})")
    arrays, metadata = load_arrays(where)
    try:
        read = _described(metadata.get(DESCRIPTION, ""), arrays)  # "": the file was replaced meanwhile
    except GradloomError as error:
        raise FileError(f"{where}: its description is damaged ({error}); train and save it again") from None
    if isinstance(read, str):
        raise FileError(f"{where}: {read}; need that class: make the network, then gl.load(network, path)")
    if isinstance(read, Model) and ROWS in metadata:
        try:
            read.uses = RowUses.from_json(metadata[ROWS])
        except DataError as error:
            raise FileError(f"{where}: its row uses are damaged ({error}); train and save it again") from None
    need_finite(where, arrays)
    (read.net if isinstance(read, Model) else read).load_state_dict(arrays)
    if isinstance(read, Model):
        try:
            _check_network(read)
        except GradloomError as error:
            raise FileError(f"{where}: its description is damaged ({error}); train and save it again") from None
    return read


def _described(text: str, arrays: Mapping[str, np.ndarray]) -> Model | Module | str:
    """The saved model or network, before its arrays are loaded; a text: the reason why there is no description."""
    entry = parse(text, "the description")
    version = entry.whole("format", 0)
    if version not in (1, _FORMAT):
        raise DataError(f"format {version}; this version reads formats 1 and {_FORMAT}")
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise DataError(f"{name} is {array.dtype} {list(array.shape)}; need float32")
    if entry.has("undescribed"):
        return entry.text("undescribed")
    shapes = {name: array.shape for name, array in arrays.items()}
    if version == 1:
        hidden = _hidden_of_format_1(entry.part("architecture"))
        preprocess = Preprocess.from_described(entry.part("preprocess"))
        count = 2 * (preprocess.kind == "array") + 2 * (len(hidden) + 1)
        if len(arrays) != count:
            raise DataError(f"{len(hidden)} hidden layers need {count} arrays; the file holds {len(arrays)}")
        net = build(Described(described(perceptron(preprocess, hidden)), "architecture"), shapes)
    else:
        net = build(entry.part("network"), shapes)
        if not entry.has("preprocess"):
            entry.end()
            return net
        preprocess = Preprocess.from_described(entry.part("preprocess"))
    about = entry.plain("about")
    metrics = _metrics(entry)
    entry.end()
    return Model(net, preprocess, about, metrics)


def _metrics(entry: Described) -> dict[str, float]:
    """Measured numbers by name; DataError for other values."""
    metrics = entry.plain("metrics") if entry.has("metrics") else {}
    odd = next((name for name, value in metrics.items() if not isinstance(value, (int, float))), None)
    if odd is not None:
        raise DataError(f"metrics: {odd!r:.60} is {what_is(metrics[odd])}; need a number")
    return metrics


def _hidden_of_format_1(entry: Described) -> list[int]:
    """The widths of the hidden layers. Dropout, which predictions do not have, is left out: its arrays have the same
    names."""
    entry.text("kind", ("mlp",))
    if entry.has("dropout"):
        entry.number("dropout")
    hidden = entry.wholes("hidden", 1)
    entry.end()
    return hidden


def _check_network(model: Model) -> None:
    """DataError unless inputs and outputs of the network match the preprocessing."""
    made = model.preprocess
    with graph_mode(), mode(False):
        outputs: Any = model.net(input_value("x", (1, *made.row_shape)))
    if outputs.shape != (1, made.outputs):
        raise DataError(f"the network makes {list(outputs.shape)} of a row; need {[1, made.outputs]}")
