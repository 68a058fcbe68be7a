"""gradloom fit: train a model on a table, arrays or images, and save it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.memory import resident_peak
from .common import (
    Exchange,
    Parallel,
    columns,
    exit_code,
    heed_signals,
    join,
    json_text,
    need_one_of,
    need_place,
    need_rate,
    need_share,
    need_whole,
    say,
    uninterrupted,
    with_more,
)

if TYPE_CHECKING:
    from ..data import Dataset, Table
    from ..parallel.communicator import Communicator
    from ..train.epoch import Progress
    from ..train.result import EpochResult, Result


def fit(
    data: Annotated[str, typer.Argument(help="A .csv or .csv.gz file, an .npz file, or a folder of idx files.")],
    target: Annotated[str | None, typer.Option(help="Column or array to predict. [default: the last column]")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression. [default: from the target]")] = None,
    hidden: Annotated[
        str | None, typer.Option(help="Widths of the hidden layers, such as 64,64. [default: 64,64; images 500]")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training rows. [default: by their number]")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step. [default: by their number]")] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(
            help="Rows computed at a time; gradients add up to the batch. [default: the batch, or a rank's share]"
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at the start; it falls to 0 by a cosine. [default: 0.003; sgd 0.05]"),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw (weight decay 0.01) or sgd (momentum 0.9).")] = "adamw",
    loss: Annotated[
        str | None, typer.Option(help="cross_entropy or mse. [default: cross_entropy for classes, else mse]")
    ] = None,
    val_split: Annotated[
        float | None, typer.Option(help="Share of the training rows to validate on. [default: 0.05 for idx, else 0]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the split and the order of the rows.")] = 0,
    threads: Annotated[int | None, typer.Option(help="[default: the machine's cores]")] = None,
    parallel: Parallel = None,
    exchange: Exchange = None,
    out: Annotated[str, typer.Option(help="Folder for model.safetensors and result.json.")] = "gradloom-out",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")] = False,
) -> int:
    """Train a model on a table, arrays or images, and save it.

    Text targets and whole-number targets with at most 20 values are classes, other numbers a regression. Where the data
    bring no test rows, a fifth of them is held out and measured at the end.
    """
    ranks = join(parallel, exchange)
    for name, value in (
        ("epochs", epochs), ("batch-size", batch_size), ("micro-batch-size", micro_batch_size), ("threads", threads),
    ):  # fmt: skip
        need_whole(name, value)
    need_rate("lr", lr)
    need_whole("seed", seed, 0)
    need_share("val-split", val_split)
    need_one_of("optimizer", optimizer, ("adamw", "sgd"))
    need_place("out", out)
    need_one_of("loss", loss, ("cross_entropy", "mse"))
    need_one_of("task", task, ("classification", "regression"))
    widths = None if hidden is None else _widths(hidden)
    if val_split is None:
        val_split = 0.05 if os.path.isdir(data) else 0.0
    asked = _Options(
        data, target, task, widths, epochs, batch_size, micro_batch_size, lr, optimizer, loss, val_split, seed, threads,
        out, json, ranks, exchange or "ordered",
    )  # fmt: skip
    return _run(asked)


def _widths(text: str) -> list[int]:
    from ..base.errors import SettingError

    try:
        widths = [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        widths = [0]
    if any(not 1 <= w < 1 << 31 for w in widths):
        raise SettingError(
            f"--hidden {text:.80}: need whole numbers of at least 1, such as 64,64, or nothing for no hidden layer"
        )
    return widths


@dataclass
class _Options:
    """What the user asked for; None: not said."""

    data: str
    target: str | None
    task: str | None
    hidden: list[int] | None
    epochs: int | None
    batch_size: int | None
    micro_batch_size: int | None
    lr: float | None
    optimizer: str
    loss: str | None
    val_split: float
    seed: int
    threads: int | None
    out: str
    json: bool
    ranks: Communicator | None
    exchange: str


@dataclass
class _Settings:
    """What the run does."""

    hidden: list[int]
    epochs: int
    batch_size: int
    micro_batch_size: int
    lr: float
    loss: str


def _settle(asked: _Options, table: Table) -> _Settings:
    """Defaults for what was not said, by the kind and the number of the training rows."""
    from ..base.errors import SettingError
    from ..parallel.agree import share_of

    rows = _rows(asked, table)[0]
    images = table.preprocess.kind == "array"
    wanted = asked.batch_size or (32 if rows < 5000 else 500 if images else 128)
    batch = min(wanted, rows)
    if asked.micro_batch_size is None:
        micro = share_of(batch, asked.ranks)
    elif asked.micro_batch_size > wanted:
        raise SettingError(f"--micro-batch-size {asked.micro_batch_size}: need at most {wanted}, the batch size")
    else:
        micro = min(asked.micro_batch_size, batch)
    loss = asked.loss or ("cross_entropy" if table.task == "classification" else "mse")
    if loss == "cross_entropy" and table.task == "regression":
        raise SettingError("--loss cross_entropy: the task is a regression; need mse, or --task classification")
    return _Settings(
        hidden=asked.hidden if asked.hidden is not None else [500] if images else [64, 64],
        epochs=asked.epochs or (100 if rows < 1000 else 10 if images and rows >= 20000 else 50),
        batch_size=batch,
        micro_batch_size=micro,
        lr=asked.lr or (0.003 if asked.optimizer == "adamw" else 0.05),
        loss=loss,
    )


def _run(asked: _Options) -> int:
    from ..data import read_table
    from ..files import claim, refuse_input
    from ..parallel.agree import agreed, is_root
    from .model import MODEL, RESULT, build_model, need_room

    path, report = (os.path.join(asked.out, name) for name in (MODEL, RESULT))
    with contextlib.ExitStack() as claimed:
        with agreed(asked.ranks):
            if is_root(asked.ranks):
                for file in (path, report):
                    refuse_input(file, asked.data)
                claimed.enter_context(claim(asked.out, is_folder=True, names=(MODEL, RESULT)))
            table = read_table(asked.data, asked.target, asked.task, val_split=asked.val_split, seed=asked.seed)
            use = _settle(asked, table)
            need_room(table.preprocess, use.hidden)
            net = build_model(table.preprocess, use.hidden)
        _announce(asked, use, table, net)
        heed_signals()
        return _train_and_save(asked, use, table, net, path, report)


def _train_and_save(asked: _Options, use: _Settings, table: Table, net: Any, path: str, report: str) -> int:
    """Train, write model and result together (nothing before a step was done), then measure the test rows."""
    from ..base.errors import GradloomError, NonFiniteError, TrainError
    from ..files import not_finite, together
    from ..parallel.agree import is_root
    from .model import save_model

    watch = _Watch()
    optimizer = _optimizer(asked, use, table, net)
    stop: Exception | KeyboardInterrupt | None = None
    more: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        more["planned_bytes"] = _train(asked, use, table, net, optimizer, watch)[-1].planned_bytes
    except (Exception, KeyboardInterrupt) as error:  # whatever it was, the weights so far are not lost
        stop = error
    seconds = time.perf_counter() - start
    with uninterrupted():
        steps = optimizer.state.steps
        interrupted = isinstance(stop, KeyboardInterrupt)
        if stop is not None and not steps:
            if interrupted:
                say("interrupted before the first step; nothing is saved")
                return exit_code(stop)
            if isinstance(stop, TrainError):
                raise type(stop)(f"{stop}; this was before the first step was done, and nothing is saved") from None
            raise stop
        bad = not_finite(net.state_dict())
        if bad and stop is None:
            stop = NonFiniteError("the last step made weights that are not finite; a smaller learning rate may help")
        ending = "done" if stop is None else "interrupted" if interrupted else f"stopped: {stop}"
        result = _measure(asked, use, table, net, watch, seconds) | more
        result |= {"steps": steps, "ending": ending, "interrupted": interrupted, "model": path}
        kept = f"the {'weights so far' if interrupted or stop is None else 'last good weights'} are in {path}"
        if bad:
            kept = f"nothing is saved: {bad}"
        elif is_root(asked.ranks):
            try:
                with together(asked.out):
                    about = {"data": asked.data, "seed": asked.seed, "ending": ending, **asdict(use)}
                    save_model(path, net, table.preprocess, use.hidden, about)
                    _write_result(report, result)
            except GradloomError as error:
                if stop is None or interrupted:
                    raise
                kept = f"the last good weights cannot be saved: {error}"
    if isinstance(stop, Exception):
        raise with_more(stop, kept) from None
    if not interrupted:
        try:
            result |= _test(asked, use, table, net)
        except KeyboardInterrupt as error:
            stop, interrupted = error, True
            result["interrupted"] = True
        if is_root(asked.ranks):
            with uninterrupted():
                _write_result(report, result)
    if interrupted:
        say(f"interrupted; {kept}")
    if is_root(asked.ranks):
        if not interrupted:
            _summarise(asked, table, result)
        if asked.json:
            print(json_text(result))
    return exit_code(stop) if interrupted else 0


@dataclass
class _Watch:
    """Hears of the progress: what each pass has measured so far, also when the training is interrupted."""

    train: list[Result] = field(default_factory=list)  # one for each pass that was begun
    val: list[Result] = field(default_factory=list)

    def __call__(self, at: Progress) -> None:
        results = self.train if at.training else self.val
        if not results or results[-1] is not at.result:
            results.append(at.result)


def _rows(asked: _Options, table: Table) -> tuple[int, int]:
    """(training rows, validation rows)."""
    val = len(table.train.split(asked.val_split, asked.seed)[1]) if asked.val_split else 0
    return table.train.n - val, val


def _optimizer(asked: _Options, use: _Settings, table: Table, net: Any) -> Any:
    """With a state of its own, which says how many steps were done, however the training ends."""
    import gradloom as gl

    steps = use.epochs * -(-_rows(asked, table)[0] // use.batch_size)

    def cosine(step: int, epoch: int) -> float:
        return use.lr * 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))

    if asked.optimizer == "adamw":
        return gl.optim.AdamW(net.parameters(), lr=cosine, weight_decay=0.01)
    return gl.optim.SGD(net.parameters(), lr=cosine, momentum=0.9)


def _train(asked: _Options, use: _Settings, table: Table, net: Any, optimizer: Any, watch: _Watch) -> list[EpochResult]:
    import gradloom as gl

    return gl.fit(
        net,
        _for_loss(table.train, table, use.loss),
        loss=use.loss,
        optimizer=optimizer,
        epochs=use.epochs,
        batch_size=use.batch_size,
        micro_batch_size=use.micro_batch_size,
        val_split=asked.val_split,
        seed=asked.seed,
        parallel=asked.ranks,
        exchange=asked.exchange,
        on_progress=watch,
        threads=asked.threads,
    )


def _for_loss(data: Dataset, table: Table, loss: str) -> Dataset:
    """The data set with labels as the loss takes them: mse over classes compares with rows of 0 and 1."""
    import numpy as np

    from ..data import Dataset

    if loss != "mse" or table.task != "classification":
        return data
    return Dataset(data.data, np.eye(table.preprocess.outputs, dtype=np.float32)[data.labels])


def _measure(asked: _Options, use: _Settings, table: Table, net: Any, watch: _Watch, seconds: float) -> dict[str, Any]:
    """The numbers of the training: the last pass (when it was interrupted, as far as it came), time and memory."""
    train_rows, val_rows = _rows(asked, table)
    validated = [result for result in watch.val if result.ndata == val_rows]
    trained = [result for result in watch.train if result.ndata == train_rows]
    return {
        "data": asked.data,
        "task": table.task,
        "target": table.preprocess.target,
        "rows_train": train_rows,
        "rows_val": val_rows,
        "rows_test": 0 if table.test is None else table.test.n,
        **(_of(watch.train[-1], "train") if watch.train else {}),
        **(_of(validated[-1], "val") if validated else {}),
        **asdict(use),
        "epochs": len(validated if val_rows else trained),
        "optimizer": asked.optimizer,
        "seed": asked.seed,
        "ranks": 1 if asked.ranks is None else asked.ranks.size,
        "seconds": round(seconds, 3),
        "rows_per_second": round(sum(result.ndata for result in watch.train) / seconds),
        "parameters": net.parameter_count(),
        "peak_bytes": resident_peak(),
        "notes": table.notes,
    }


def _test(asked: _Options, use: _Settings, table: Table, net: Any) -> dict[str, Any]:
    """What the test rows measure, where there are some."""
    import gradloom as gl

    if table.test is None:
        return {}
    rows = _for_loss(table.test, table, use.loss)
    found = _of(gl.evaluate(net, rows, loss=use.loss, threads=asked.threads, parallel=asked.ranks), "test")
    if table.task == "regression":
        outputs = gl.predict(net, table.test.data, threads=asked.threads)
        found |= regression_scores(table.preprocess.outputs_to_targets(outputs), table.test_targets, "test_")
    return found


def _of(result: Any, name: str) -> dict[str, Any]:
    """Loss and accuracy of a Result with their uncertainties; accuracy where there are classes."""
    found = {f"{name}_loss": result.loss, f"{name}_loss_unc": result.loss_unc}
    if not math.isnan(result.accuracy):
        found |= {f"{name}_accuracy": result.accuracy, f"{name}_accuracy_unc": result.accuracy_unc}
    return found


def regression_scores(predicted: Any, true: Any, name: str = "") -> dict[str, float]:
    """r2 (share of the variance explained, 1 is perfect) and rmse in the units of the target, averaged over targets."""
    import numpy as np

    true = np.reshape(true, predicted.shape).astype(np.float64)
    error = np.square(predicted - true).mean(axis=0)
    spread = np.square(true - true.mean(axis=0)).mean(axis=0)
    r2 = float(np.mean(1 - error / spread)) if (spread > 0).all() else math.nan
    return {f"{name}r2": r2, f"{name}rmse": float(np.sqrt(error.mean()))}


def _write_result(path: str, result: dict[str, Any]) -> None:
    from ..files import atomic_write

    text = json_text(result) + "\n"
    with atomic_write(path, len(text)) as file:
        file.write(text.encode())


def _announce(asked: _Options, use: _Settings, table: Table, net: Any) -> None:
    """What is about to happen, and everything that was decided for the user."""
    from ..train.display import plural

    made = table.preprocess
    what = f"{table.train.n:,} rows"
    if asked.val_split:
        what += f" ({asked.val_split:g} of them for validation)"
    if table.test is not None:
        what += f", {table.test.n:,} test rows " + ("from the file" if table.test_from == "file" else "held out")
    say(f"{asked.data}: {what}, {plural(made.inputs, 'feature')}")
    for note in table.notes:
        say(f"  {note}")
    if table.task == "classification":
        classes = ", ".join(made.classes[:10]) + (", ..." if len(made.classes) > 10 else "")
        say(f"  {len(made.classes)} classes: {classes}")
    sizes = "-".join(str(s) for s in (made.inputs, *use.hidden, made.outputs))
    say(
        f"model: {sizes}, {net.parameter_count():,} parameters; {use.loss}, {asked.optimizer}, rate {use.lr:g} falling,"
        f" {plural(use.epochs, 'epoch')}, batches of {use.batch_size}, seed {asked.seed}"
    )


def _summarise(asked: _Options, table: Table, result: dict[str, Any]) -> None:
    from ..train.display import duration, rate

    def line(part: str) -> str:
        shown = f"loss {result[f'{part}_loss']:.4f}"
        if f"{part}_accuracy" in result:
            shown += f"  accuracy {result[f'{part}_accuracy']:.4f}"
            unc = result[f"{part}_accuracy_unc"]
            shown += "" if math.isnan(unc) else f" +- {unc:.4f}"
        if f"{part}_r2" in result:
            shown += f"  R2 {result[f'{part}_r2']:.4f}  rmse {result[f'{part}_rmse']:.6g}"
        return shown

    lines = [("training", line("train"))]
    if "val_loss" in result:
        lines.append(("validation", line("val")))
    if "test_loss" in result:
        lines.append((f"test ({table.test_from})", line("test")))
    lines.append(("time", f"{duration(result['seconds'])}, {rate(result['rows_per_second'])} rows/s"))
    lines.append(("memory", f"{rate(result['peak_bytes'])}B, {rate(result['planned_bytes'])}B of them planned"))
    lines.append(("saved", result["model"]))
    lines.append(("use it", f"gradloom predict {shlex.quote(result['model'])} {shlex.quote(asked.data)}"))
    columns(lines, sys.stderr if asked.json else None)
