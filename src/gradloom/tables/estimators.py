"""Classifier and Regressor: the networks of `gradloom fit` behind scikit-learn's fit and predict."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from ..base.arguments import what_is
from ..base.arrays import need_collected
from ..base.errors import DataError, SettingError
from ..base.fit_options import FitOptions, NetworkOptions, Width
from ..base.habits import AttributeHints, KeywordHints
from ..base.options import options_of, within
from ..data.dataset import Dataset
from ..data.encoding.preprocess import Preprocess
from ..data.encoding.target import Target
from ..data.encoding.targets import target_scales
from ..data.frames import features_of, learned
from ..data.reading.parquet import whole_table
from ..data.reading.raw_table import class_name
from ..data.reading.table_columns import has_texts, is_table, rows_of_table
from .model import Model
from .recipe import Recipe
from .target_loss import balanced, packed

_DESCRIBED = ("seed", "hidden", "batch_size", "lr", "loss", "optimizer", "dropout", "ensemble", "folds")


# Fields in the order of positional arguments: those of _Network, of _Weighted, of _Computing (the order of inheritance)


@dataclass(eq=False, repr=False)
class _Network:
    hidden: Sequence[int] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    optimizer: str = "adamw"
    dropout: float | None = None
    ensemble: int | None = None
    val_split: float | None = None
    folds: int | None = None
    patience: int | None = None
    metric: str | None = None


@dataclass(eq=False, repr=False)
class _Weighted(_Network):
    class_weight: str | Mapping[Any, float] | Sequence[Mapping[Any, float]] | None = None


@dataclass(eq=False, repr=False)
class _Computing:
    precision: str | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0


class _Perceptron(KeywordHints, AttributeHints, BaseEstimator, _Computing, _Network):
    """Shared by classifier and regressor: settings, rows, training."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # an empty cell is filled with the median of the training
        return tags

    def _rows(self, X: Any, y: Any = None, *, reset: bool) -> tuple[Any, Any]:
        """(X, y) as they are used: a table with texts as it is, else an array of numbers [rows, features]."""
        need_collected("X", X)
        X = whole_table(X)
        if isinstance(X, np.ma.MaskedArray):  # masked cells are empty
            X = np.ma.filled(X.astype(np.float64), np.nan)
        if np.ma.is_masked(y):
            raise DataError("fit: y has masked elements; need a target for each row")
        if has_texts(X):
            if not reset:
                return validate_data(self, X, reset=False, skip_check_array=True), None
            X, y = validate_data(self, X, y, skip_check_array=True)
            y = check_array(y, input_name="y", ensure_2d=False, dtype=None)
            check_consistent_length(X, y)
            return X, y
        more: dict[str, Any] = {"ensure_all_finite": "allow-nan", "reset": reset}
        if not reset:
            return validate_data(self, X, **more), None
        return validate_data(self, X, y, multi_output=True, dtype="numeric", y_numeric=False, **more)

    def _fit(self, X: Any, labels: np.ndarray, made: dict[str, Any], sample_weight: Any, **options: Any) -> Any:
        """Train on rows X and labels i32 [rows], or targets f64 [rows, targets], class ids of several targets. made:
        fields of Preprocess for the target; the names of several are its "target"."""
        chosen = self._recipe().with_validation()
        weights = _weights(sample_weight, len(labels))
        if weights is not None and not weights.all():  # a row that weighs nothing is no row
            used = np.flatnonzero(weights)
            X = rows_of_table(X, used) if is_table(X) else X[used]
            labels, weights = labels[used], weights[used]
        if len(labels) < 2:
            least = "need at least 2 whose weight is not zero"
            raise DataError(f"fit: {len(labels)} samples count (n_samples = {len(labels)}); {least}")
        names = list(map(str, getattr(self, "feature_names_in_", ()))) or None
        is_regression = made["task"] == "regression"
        if is_regression:
            mean, std = target_scales(labels, "y")
            made = made | {"target_mean": mean.tolist(), "target_std": np.where(std > 0, std, 1.0).tolist()}
        preprocess, features = learned(X, names, labels, **made)
        made_labels: Any = preprocess.labels(labels)
        rows = len(features)
        recipe = chosen.decided(preprocess, rows)
        if self.patience and not (recipe.val_split or recipe.folds):
            text = "{patience} requires validation rows: {folds} or {val_split} above 0"
            raise SettingError(text, patience=self.patience, folds=..., val_split=...)
        net = recipe.network(preprocess)
        optimizer = recipe.optimizer_for(net, preprocess, rows)
        stops, measured = recipe.stopping(preprocess)
        if preprocess.targets:
            made_labels = packed(made_labels, preprocess)
            factors = _factors(options["class_weight"], made_labels, preprocess)
            options = {"loss": recipe.loss_of(preprocess, factors)}
        data = Dataset(features, made_labels, weights=weights)
        self.history_ = recipe.fit(
            net, data, optimizer=optimizer, callbacks=stops, metrics=measured,
            progress=False, precision=self.precision, device=self.device, threads=self.threads, **options,
        )  # fmt: skip
        kept = self.history_.kept
        assert kept is not None
        about = {name: getattr(recipe, name) for name in _DESCRIBED}
        about |= {"epochs": len(self.history_), "saved_epoch": kept.epoch, "rows": rows}
        numbers = {n if n.startswith("val_") else f"train_{n}": v for n, v in kept.numbers().items()}
        metrics = {name: value for name, value in numbers.items() if np.isfinite(value)}
        self.model_ = Model(net, preprocess, about, metrics)
        return self

    def _recipe(self) -> Recipe:
        """The settings, each within the limits of the command's option."""
        every, made = options_of(FitOptions, NetworkOptions), {"hidden": self._widths()}
        for name in {one.name for one in fields(Recipe)} & set(self.get_params()) - set(made):
            flag = every[name].flag("fit")
            assert flag is not None
            has_default = getattr(type(self), name) is None  # the recipe's
            made[name] = within(name, getattr(self, name), flag.kind | None if has_default else flag.kind)
        return Recipe(**made)

    def _widths(self) -> Any:
        """Of the hidden layers; None: the default."""
        if self.hidden is None:
            return None
        if isinstance(self.hidden, (str, bytes)) or not isinstance(self.hidden, (Sequence, np.ndarray)):
            raise SettingError(setting="hidden", seen=self.hidden, need="widths, such as (64, 64)")
        return [within("hidden", width, Width) for width in self.hidden]

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        rows, _ = self._rows(X, reset=False)
        features = features_of(rows, self.model_.preprocess)[0]
        return self.model_.outputs(features, precision=self.precision, device=self.device, threads=self.threads)


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, _Perceptron, _Weighted):
    """A multilayer perceptron for classes, with the defaults of `gradloom fit`.

    X: an array of numbers [rows, features], or a DataFrame, whose columns may hold texts; empty cells are NaN or None.
    y: classes, [rows], of any kind; or of several targets, [rows, targets], such as 0 and 1 for labels of which a row
       has any number: one network with a head for each.

    hidden        widths of the hidden layers; None: (128, 128)
    epochs        passes over the rows at most; None: by their number
    batch_size    rows of a step; None: by the number of rows
    lr            the first learning rate, which falls to 0 along a cosine; None: by the optimiser
    optimizer     the name of one: adamw, adam, sgd, lion, rmsprop, adafactor, muon
    dropout       share of the hidden layers' outputs that a step leaves out; None: 0.1
    ensemble      networks that learn side by side and are averaged, nn.Ensemble; None: 8
    folds         parts of the rows: each network trains without one, and these rows end the training; None: the number
                  of networks for 100 rows and more, unless val_split is given; 0: none
    val_split     share of the rows that ends the training and is not trained on; None: 0.15 of 100 rows and more that
                  are in no folds
    patience      evaluations of these without improvement after which training ends; None: 15; 0: never
    metric        the score that is to improve, as of the command's --metric; None: the loss
    class_weight  None, "balanced", or {class: weight}; of several targets a list of these dicts
    precision, device, threads: as in gl.fit. seed: of weights, order of the rows and dropout

    Of several targets classes_ is a list, predict gives [rows, targets], predict_proba a list of an array for each, and
    score the share of the rows whose targets are all right.

    After fit: classes_, n_features_in_, feature_names_in_ (of a DataFrame), history_ (gl.fit's), and model_, a Model
    that gl.save writes and `gradloom predict` takes. The same seed and data give the same bits.
    Errors: those of scikit-learn for arrays that it refuses, DataError and SettingError (ValueErrors) otherwise.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Train anew. sample_weight: how much each row weighs in the loss, [rows]; a row of 0 is left out."""
        X, y = self._rows(X, y, reset=True)
        is_several = y.ndim == 2 and y.shape[1] > 1
        y = y if is_several else column_or_1d(y, warn=True)
        bad = next((i for i, row in enumerate(y.tolist()) if row is None or (is_several and None in row)), None)
        if y.dtype.kind == "O" and bad is not None:
            raise DataError(f"fit: y is missing in row {bad}; each row must have a class")
        if is_several:
            return self._fit_several(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_: Any
        self.classes_, ids = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"fit: y holds one class, {class_name(self.classes_[0])!r:.60}; need at least 2 classes")
        weight = self.class_weight
        if isinstance(weight, Mapping):
            known = {label: i for i, label in enumerate(self.classes_.tolist())}
            unknown = [label for label in weight if label not in known]
            if unknown:
                text = f"{{class_weight}}: {unknown[0]!r:.60} is not a class of y"
                raise SettingError(text, setting="class_weight")
            weight = dict.fromkeys(range(len(known)), 1.0) | {known[label]: w for label, w in weight.items()}
        made = {"task": "classification", "classes": [class_name(value) for value in self.classes_.tolist()]}
        return self._fit(X, ids.reshape(-1).astype(np.int32), made, sample_weight, class_weight=weight)

    def _fit_several(self, X: Any, y: np.ndarray, sample_weight: Any) -> Classifier:
        check_classification_targets(y)
        found = [np.unique(column, return_inverse=True) for column in y.T]
        self.classes_ = [classes for classes, _ in found]
        for k, classes in enumerate(self.classes_):
            if len(classes) < 2:
                one = f"{class_name(classes[0])!r:.60}"
                raise DataError(f"fit: column {k} of y holds one class, {one}; need at least 2 classes")
        names = [[class_name(value) for value in classes.tolist()] for classes in self.classes_]
        targets = [Target(f"y {k}", "classification", of) for k, of in enumerate(names)]
        made = {"task": "classification", "targets": targets}
        ids = np.stack([ids.reshape(-1) for _, ids in found], axis=1).astype(np.float64)
        weight: Any = self.class_weight
        if weight is not None and weight != "balanced":
            weight = _weights_of_targets(weight, self.classes_)
        return self._fit(X, ids, made, sample_weight, class_weight=weight)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row, [rows] or [rows, targets], of the dtype of y."""
        outputs = self._outputs(X)
        if isinstance(self.classes_, list):
            parts = zip(self.classes_, self.model_.of_targets(), strict=True)
            return np.stack([classes[outputs[:, at].argmax(axis=1)] for classes, (_, at) in parts], axis=1)
        return np.asarray(self.classes_[outputs.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray | list[np.ndarray]:
        """The probability of each class, f64 [rows, classes], in the order of classes_; of several targets a list."""
        outputs = self._outputs(X)
        if isinstance(self.classes_, list):
            return [one.probabilities(outputs[:, at]) for one, at in self.model_.of_targets()]
        return self.model_.probabilities(outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy; of several targets the share of the rows whose targets are all right."""
        check_is_fitted(self, "model_")
        if not isinstance(self.classes_, list):
            return float(super().score(X, y, sample_weight))
        right = (self.predict(X) == np.asarray(y)).all(axis=1)
        return float(np.average(right, weights=sample_weight))


def _weights_of_targets(given: Any, classes: Sequence[np.ndarray]) -> list[list[float]]:
    """The weight of each class of each target. given: class_weight of several targets."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or len(given) != len(classes):
        need = f"must be None, 'balanced', or a list of a dict for each of {len(classes)} targets"
        raise SettingError(f"{{class_weight}} is {what_is(given)}; {need}", setting="class_weight")
    made = []
    for k, (weights, own) in enumerate(zip(given, classes, strict=True)):
        if not isinstance(weights, Mapping):
            text = f"{{class_weight}}[{k}] is {what_is(weights)}; must be a dict of class and weight"
            raise SettingError(text, setting="class_weight")
        known = own.tolist()
        unknown = [label for label in weights if label not in known]
        if unknown:
            text = f"{{class_weight}}[{k}]: {unknown[0]!r:.60} is not a class of column {k} of y"
            raise SettingError(text, setting="class_weight")
        values = [weights.get(label, 1.0) for label in known]
        if not all(isinstance(v, (int, float, np.number)) and 0 <= v < np.inf for v in values) or not any(values):
            text = f"{{class_weight}}[{k}] is {weights!r:.60}; must hold finite numbers of at least 0, one above 0"
            raise SettingError(text, setting="class_weight")
        made.append(list(map(float, values)))
    return made


def _factors(weight: Any, labels: np.ndarray, preprocess: Preprocess) -> list[float] | None:
    """The factors of the classes of several targets, as TargetLoss takes them. labels: packed."""
    if weight is None:
        return None
    return balanced(labels, preprocess) if isinstance(weight, str) else [*itertools.chain(*weight)]


@dataclass(eq=False, repr=False)
class Regressor(RegressorMixin, _Perceptron):
    """A multilayer perceptron for numbers, with the defaults of `gradloom fit`.

    y: numbers, [rows] or [rows, targets]. X, settings, attributes and errors: as for Classifier.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train anew. sample_weight: how much each row weighs in the loss, [rows]; a row of 0 is left out."""
        X, y = self._rows(X, y, reset=True)
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        self._has_one_target = y.ndim == 1
        return self._fit(X, y.reshape(len(y), -1), {"task": "regression"}, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Numbers in the units of y, f64 [rows] or [rows, targets]."""
        outputs = self._outputs(X)
        values = self.model_.preprocess.outputs_to_targets(outputs)
        return values[:, 0] if self._has_one_target else values


def _weights(given: Any, rows: int) -> np.ndarray | None:
    if given is None:
        return None
    try:
        weights = np.asarray(given, np.float64)
    except (ValueError, TypeError):
        raise DataError(
            f"sample_weight: is {what_is(given)} of no numbers; need [{rows}], a weight for each row"
        ) from None
    if weights.shape != (rows,):
        raise DataError(f"sample_weight: shape {list(weights.shape)}; need [{rows}], a weight for each row")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError("sample_weight: some weight is negative or not finite; need weights of at least 0")
    return weights
