"""The report of gradloom fit: announcement, results, summary."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..base.json_tables import FIT
from ..base.terminal import plural
from .common import columns, json_text, print_report, saved_weights, to_paste, warn
from .fit_settings import MAY_CHANGE, FitSettings
from .saved_settings import Inputs, saved
from .setting import settings_of, shown

if TYPE_CHECKING:
    from ..data import Dataset, Table
    from ..parallel.communicator import Communicator
    from ..run.backend import DeviceBytes
    from ..tables.model import Model
    from ..tables.recipe import Recipe
    from .fit_watch import Watch


@dataclass
class FitJob:
    """A fit: its settings, its data, its model."""

    use: Any
    recipe: Recipe
    table: Table
    net: Any
    ranks: Communicator | None
    inputs: Inputs
    val: dict[str, Dataset] = field(default_factory=dict)  # validation sets that are files
    warnings: list[str] = field(default_factory=list)  # for the user
    announces: bool = True  # the settings, as decided, before the first step

    @cached_property
    def watch(self) -> Watch:
        """The callback that observes the training."""
        from .fit_watch import Watch

        contents = {"test rows": self.test_arrays}
        shown = (lambda: announce(self)) if self.announces else lambda: None
        return Watch(shown, self.inputs, self.settings, contents, self.options)

    def options(self) -> dict[str, str]:
        """The settings that a resumed run keeps, as text by flag."""
        values = vars(self.use) | {"task": self.table.task, "target": self.target}
        known = settings_of(FitSettings).values()
        kept = [one for one in known if one.is_saved and one.name not in MAY_CHANGE and one.flag.startswith("--")]
        return {one.flag: "none" if values[one.name] in (None, []) else shown(values[one.name]) for one in kept}

    @property
    def target(self) -> str | list[str]:
        """The name of the target, or the names of several."""
        made = self.table.preprocess
        return made.target_names if made.targets else made.target

    def test_arrays(self) -> list[Any]:
        """Test rows, labels, and targets in their units; empty without test rows."""
        from ..data import MapDataset

        test = self.table.test
        if isinstance(test, MapDataset):
            return test.contents
        if test is not None and self.table.preprocess.targets:
            test = for_loss(test, self)
        return [] if test is None else [test.data, test.labels, self.table.test_targets]

    def on_device(self) -> DeviceBytes | None:
        """Memory of the training on its device, if it uses one."""
        there: DeviceBytes | None = self.watch.loop.trainer.on_device if self.watch.loop else None
        return there

    def settings(self) -> bytes:
        """The text of settings.toml: every setting as it was decided."""
        ranks = 1 if self.ranks is None else self.ranks.size
        chosen = {"task": self.table.task, "target": self.target, "exchange": self.use.exchange}
        use = replace(self.use, micro_batch_size=self.sizes()["micro_batch_size"])
        return saved(use, "fit", self.inputs, ranks, out=os.path.abspath(self.use.out), **chosen)

    def check_columns(self) -> None:
        """Collect warnings about the training rows."""
        from ..data.column_warnings import column_warnings, imbalance, repeated_rows
        from ..data.image_table import repeated_images

        if self.use.class_weight is None:
            more = "; look at the balanced accuracy, or train with --class-weight balanced"
            self.warnings += [text + more for text in imbalance(self.table)]
        if self.table.preprocess.kind == "images":
            self.warnings += repeated_images(self.table)
        else:
            self.warnings += column_warnings(self.table) + repeated_rows(self.table)

    def warn(self, text: str) -> None:
        """Collect and print a warning about the results."""
        from ..parallel.agree import is_root

        self.warnings.append(text)
        if is_root(self.ranks):
            warn(f"warning: {text}")

    @cached_property
    def data(self) -> Dataset:
        """The rows to train and validate on."""
        return for_loss(self.table.train, self)

    @property
    def losses(self) -> str:
        """The names of the losses of the targets."""
        made = self.table.preprocess
        is_mixed = len({one.task for one in made.targets}) > 1
        return f"cross_entropy and {self.use.loss}" if is_mixed else str(self.use.loss)

    @property
    def class_weight(self) -> Any:
        """The class weights of a single target, as for gl.fit; those of several are part of their loss."""
        return None if self.table.preprocess.targets else self.use.class_weight

    @cached_property
    def loss(self) -> Any:
        """The loss of training and validation, with the class weights of several targets."""
        from .fit_targets import class_weights

        return self.recipe.loss_of(self.table.preprocess, class_weights(self))

    @cached_property
    def ending(self) -> tuple[list[Any], dict[str, Any] | None]:
        """(callbacks of early stopping, their metrics)."""
        return self.recipe.stopping(self.table.preprocess)

    @property
    def stopping(self) -> list[Any]:
        return self.ending[0]

    @property
    def time_is_up(self) -> bool:
        """--stop-after has ended the training before its last step."""
        loop = self.watch.loop
        return loop is not None and loop.stopped and not any(each.stopped for each in self.stopping)

    def about(self, ending: str) -> dict[str, Any]:
        """Facts about the training for the model file; data by their digest, without paths."""
        data = self.inputs.digests().get("data")
        about = {"data": data, "seed": self.use.seed, "ending": ending, **self.sizes()}
        more = {
            "dropout": self.use.dropout,
            "ensemble": self.use.ensemble,
            "folds": self.use.folds,
            "rows": self.table.train.n,
            "saved_epoch": self.watch.kept.epoch if self.watch.kept else None,
        }
        if self.table.preprocess.kind == "images":
            more["augment"] = self.use.augment
        return about | {"optimizer": self.use.optimizer, **more}

    def sizes(self) -> dict[str, Any]:
        """Sizes and settings of network and steps, as they were decided."""
        use, loop = self.use, self.watch.loop
        micro = use.micro_batch_size if loop is None else loop.micro_batch_size  # where a memory budget chooses it
        return {
            "hidden": use.hidden, "epochs": use.epochs, "batch_size": use.batch_size, "micro_batch_size": micro,
            "lr": use.lr, "loss": use.loss, "precision": use.precision,
        }  # fmt: skip

    def model(self, ending: str, result: dict[str, Any]) -> Model:
        """The model to save, with the numbers of this result that do not depend on the machine."""
        from ..tables.model import Model

        parts = ("train_", "val_", "test_", "baseline_")
        numbers = {name: value for name, value in result.items() if name.startswith(parts) or "." in name}
        metrics = {
            name: value for name, value in numbers.items() if isinstance(value, (int, float)) and math.isfinite(value)
        }
        uses = self.table.uses
        if uses is not None:
            uses.digests = self.inputs.digests()
        return Model(self.net, self.table.preprocess, self.about(ending), metrics, uses)


def for_loss(data: Dataset, job: FitJob) -> Dataset:
    """The data set with labels for the loss: mse over classes requires one-hot rows."""
    import numpy as np

    from ..data import Dataset
    from ..tables.target_loss import packed_dataset

    if job.table.preprocess.targets:
        return packed_dataset(data, job.table.preprocess)
    if job.use.loss != "mse" or job.table.task != "classification":
        return data
    labels = np.eye(job.table.preprocess.outputs, dtype=np.float32)[data.labels]
    made = Dataset(data.data, labels, weights=data.weights)
    made.records = data.records
    return made


def validation_sets(use: Any, table: Table) -> dict[str, Dataset]:
    """The encoded files of --val, by name; rows without a known target are left out, with a note.

    DataError for a file without targets."""
    from ..data.image_table import labelled_images
    from ..data.table import labelled
    from ..tables.target_loss import packed_dataset

    sets = {} if table.val is None else {"val": table.val}
    read = labelled_images if table.preprocess.kind == "images" else labelled
    sets |= {name: read(path, table)[0] for name, path in (use.val or {}).items()}
    made = table.preprocess
    return {name: packed_dataset(rows, made) for name, rows in sets.items()} if made.targets else sets


# ---- text for the terminal -------------------------------------------------------------------------------------------


def write_result(path: str, result: dict[str, Any]) -> None:
    """The numbers of a training as a file."""
    from ..files import atomic_write

    text = json_text(FIT, result, strict=False) + "\n"
    with atomic_write(path, len(text)) as file:
        file.write(text.encode())


def announce(job: FitJob) -> None:
    """Print the data, the network and all settings that were chosen."""
    from .fit_targets import class_lines

    use, table, made = job.use, job.table, job.table.preprocess
    what = f"{table.train.n:,} rows"
    if use.val_split and table.val is None:
        what += f" ({use.val_split:g} of them for validation)"
    if use.folds:
        what += f" in {use.folds} folds (a network trains without one, which validates it)"
    for name, rows in job.val.items():
        otherwise = "from the folder" if made.kind == "images" else "of later times"
        what += f", {rows.n:,} validation rows {f'from {use.val[name]}' if name in (use.val or {}) else otherwise}"
    if table.test is not None:
        sources = {"file": "from the file", "folder": "from the folder", "held out": "held out"}
        sources["the latest"] = "held out, the latest"
        what += f", {table.test.n:,} test rows {sources.get(table.test_from, f'from {use.test}')}"
    width = plural(made.inputs, "feature")
    if made.image_shape is not None:
        channels, height, columns_of = made.image_shape
        colours = {1: "grey images", 3: "colour images"}.get(channels, f"images with {channels} channels")
        width = f"{colours} of {height} x {columns_of}"
    print_report(f"{use.data}: {what}, {width}")
    for note in table.notes:
        print_report(f"  {note}")
    for text in class_lines(made):
        print_report(f"  {text}")
    for text in job.warnings:
        warn(f"  warning: {text}")
    sizes = "-".join(str(s) for s in (made.inputs, *use.hidden, made.outputs))
    if made.image_shape is not None:
        changes = f"training images changed by {', '.join(use.augment)}; " if use.augment else ""
        sizes = f"{changes}convolutions {'-'.join(map(str, use.hidden)) or 'none'}, {made.outputs} outputs"
    members = f"{use.ensemble} networks " if use.ensemble > 1 else ""
    dropout = f"dropout {use.dropout:g}, " if use.dropout else ""
    print_report(
        f"model: {members}{sizes}, {dropout}{job.net.parameter_count():,} parameters; {job.losses}, {use.optimizer},"
        f" rate {use.lr:g} falling, {plural(use.epochs, 'epoch')}, batches of {use.batch_size}, seed {use.seed}"
        f"{'' if use.precision == 'f32' else f', products in {use.precision}'}"
    )
    steering = {
        "max_norm": "gradients' norm at most {:g}", "ema": "weights averaged with decay {:g}", "freeze": "frozen: {}",
        "class_weight": "classes {}", "patience": "ends after {} evaluations without improvement",
    }  # fmt: skip
    chosen = {name: getattr(use, name) for name in steering}
    lines = [
        text.format(", ".join(v) if isinstance(v := chosen[n], list) else v)
        for n, text in steering.items()
        if chosen[n]
    ]
    if lines:
        print_report(f"  {'; '.join(lines)}")


_SHOWN = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced", "f1_macro": "F1", "roc_auc": "ROC AUC",
    "r2": "R2", "rmse": "rmse", "mae": "mae",
}  # fmt: skip
_SHARES = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "r2")


def summarise(job: FitJob, result: dict[str, Any]) -> None:
    """The numbers of the training in two columns."""
    from ..train.display import duration, rate

    def line(part: str) -> str:
        shown = f"loss {result[f'{part}_loss']:.4f}"
        if part == "test" and "test_targets" in result:
            shown += f"  means of {len(result['test_targets'])} targets:"
        for name, word in _SHOWN.items():
            if (value := result.get(f"{part}_{name}")) is not None and not math.isnan(value):
                shown += f"  {word} {value:.4f}" if name in _SHARES else f"  {word} {value:.6g}"
                unc = result[f"{part}_{name}_unc"]
                shown += "" if math.isnan(unc) else f" +- {unc:.2g}"
        return shown

    lines = [("weights", saved_weights(job.watch.loop, result["epochs"])), ("training", line("train"))]
    if "val_loss" in result:
        lines.append(("validation", line("val")))
    if "test_loss" in result:
        lines.append((f"test ({job.table.test_from})", line("test")))
        if "test_targets" in result:
            from .fit_targets import target_lines

            lines += target_lines(result)
        name = "accuracy" if "baseline_accuracy" in result else "rmse"
        lines.append(("baseline", f"{name} {result[f'baseline_{name}']:.4g}  ({result['baseline']})"))
    lines.append(("time", f"{duration(result['seconds'])}, {rate(result['rows_per_second'])} rows/s"))
    lines.append(("memory", f"{rate(result['peak_bytes'])}B, {rate(result['planned_bytes'])}B of them planned"))
    if "device_bytes" in result:
        lines.append((f"on {job.use.device}", f"{rate(result['device_bytes'])}B of its memory"))
    lines.append(("saved", result["model"]))
    lines.append(("use it", to_paste(["gradloom", "predict", result["model"], job.use.data])))
    columns(lines, sys.stderr if job.use.json else None)
