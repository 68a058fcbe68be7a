"""dp_train: replicas of a model, side by side, each with samples of its own and all with the same weights.

A replica is a thread of this process, or, under mpiexec, a process. At step i replica r takes sample i*R + r. It has a
model, programs, an arena and threads of its own; its results (gradients of its loss, next values of running statistics,
the loss and its weight) are stored in one flat array. The flat arrays are summed in the order of the
replicas, and then every replica runs the same program on the sum: one guard, one clipping, one update. So all weights
stay equal, bit for bit, and equal to those of a plain loop that adds up the same samples in the same order.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, as_whole, what_is
from ..base.errors import (
    DataError,
    GradientError,
    GraphError,
    SettingError,
    TrainError,
)
from ..base.habits import hinted
from ..base.options import taken, takes
from ..base.settings import core_count
from ..base.training_options import ReplicaOptions
from ..graph.stored import before_write
from ..graph.value import Value
from ..losses import Loss
from ..losses import named as loss_named
from ..nn.module import Module
from ..optim.clip import check_max
from ..optim.optimizer import Adam, Optimizer, Schedule
from ..parallel.agree import agreed
from ..parallel.communicator import Communicator, launched
from ..parallel.join import communicator
from ..parallel.replicas import threads as thread_ranks
from ..run.backend import check_effect, is_device, named
from ..run.compile import names_in_order
from ..runs.saver import Saver, saver_of
from .arguments import check_options
from .batch_loss import BatchLoss
from .replica import Replica
from .replica_job import ReplicaJob
from .replica_steps import error_at

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import ReplicaArguments


@dataclass(frozen=True)
class DPResult:
    """The result of dp_train.

    .model         replica 0's (under mpiexec this rank's); .models all of this process; their weights are equal
    .loss_history  the mean loss over replicas of each step; .loss the last of them
    .skipped       steps that were left out (on_nonfinite="skip"); their losses are nan
    .params        name -> copy of each trained parameter
    .seconds       compiling included, as in .samples_per_second
    .is_root       whether this process has replica 0: the one that should print and write files
    """

    model: Module
    loss_history: list[float]
    replicas: int
    seconds: float
    models: tuple[Module, ...]
    is_root: bool = True

    @property
    def loss(self) -> float:
        return self.loss_history[-1]

    @property
    def skipped(self) -> int:
        return sum(map(math.isnan, self.loss_history))

    @property
    def params(self) -> dict[str, np.ndarray]:
        return {name: p.numpy() for name, p in self.model.named_parameters().items()}

    @property
    def samples_per_second(self) -> float:
        return len(self.loss_history) * self.replicas / self.seconds

    def __repr__(self) -> str:
        steps = len(self.loss_history)
        return f"DPResult({steps} steps of {self.replicas} replicas, loss {self.loss:.6g}, {self.seconds:.3g} s)"


@hinted
@takes(ReplicaOptions)
def dp_train(
    make_model: Callable[[], Module],
    samples: Sequence[Any],
    *,
    loss_fn: str | Loss | Callable[[Value, Any], Any],
    forward_fn: Callable[[Any, Any], Any] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    replicas: int | None = None,
    device: str | None = None,
    devices: Sequence[str] | None = None,
    iterations: int,
    lr: Schedule | None = None,
    optimizer: Optimizer | None = None,
    shuffle: bool = False,
    verbose: bool = False,
    threads: int | None = None,
    **settings: Unpack[ReplicaArguments],
) -> DPResult:
    """Train replicas of a model, each on samples of its own, and keep their weights equal.

    make_model  gives a new model; called once per replica; replica 0's weights are copied to the others
    samples     a sequence of pairs (x, target) or dicts of arrays; one sample is one micro-batch, of any shape
    forward_fn  (model, sample) -> outputs; by default model(x) of a pair; gl.tensor(sample[...]) is sample[...]
    target_fn   (sample) -> target; by default the target of a pair
    loss_fn     a name or an object of gl.losses, or a function (outputs, target) -> a scalar, or a pair (sum, weight);
                the loss of a step is sums / weights, where a scalar has weight 1
    replicas    threads of this process, by default one per core; under mpiexec each process is one
    device      where all replicas compute: "cpu" (when not given), or "gpu": on one adapter after the other where there
                are several of one make
    devices     or where each one computes, such as ["cpu", "gpu"]. On devices of one make each replica takes the
                optimiser's step; where the first one's is another, the weights are copied from the first. They are
                equal in any case, bit for bit; gradients are exchanged over the memory of the host
    iterations  steps: at step i replica r takes sample (i*R + r) mod n; with `shuffle` each pass over the samples has
                an order of its own, by `seed`
    optimizer   by default Adam(lr), lr 1e-3; its schedules count a pass over the samples as an epoch. Gradients are
                added up over the replicas, divided once, clipped, and applied in one step. A parameter without gradient
                in a replica counts as 0 there
    threads     of each replica; by default the cores, shared out
    verbose     show loss and rate on stderr

    {options}

    Dropout of sample j has masks of its own. A skipped step changes nothing, its loss is nan, and DPResult.skipped
    counts it; NonFiniteError when a pass is skipped as a whole. Checkpoints are written by replica 0, at intervals of a
    duration or of steps. A run is resumed with the same number of replicas, model and settings; iterations may be more.
    Samples are compared by content where they are a list or tuple, else by their number.

    options go to gl.compile. The functions build graphs: they are called once for each distinct shape of sample, in
    each replica, and objects that they and the models read must not change after that. Running statistics (batch norm)
    are averaged over the replicas at each step. Returns a DPResult.
    Raises what a replica raised, naming replica and sample; NonFiniteError, with the weights before that step kept.
    """
    use, options = taken(ReplicaOptions, settings)
    check_options("dp_train", options, dp_train)
    iterations = as_whole("iterations", iterations, 1)
    if optimizer is not None and lr is not None:
        raise SettingError("{lr} and {optimizer} are mutually exclusive", lr=lr, optimizer=...)
    if isinstance(loss_fn, BatchLoss):
        raise SettingError("{loss_fn}: dp_train cannot take a BatchLoss; use gl.fit(parallel=...)", loss_fn=...)
    if isinstance(loss_fn, str):
        loss_fn = loss_named(loss_fn)
    if not isinstance(loss_fn, Loss) and (not callable(loss_fn) or isinstance(loss_fn, type)):
        text = f"{{loss_fn}} is {what_is(loss_fn)}; must be a name or an object of gl.losses, or a function"
        raise SettingError(f"{text} (outputs, target)", setting="loss_fn")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        text = f"{{optimizer}} is {what_is(optimizer)}; must be one of gl.optim, such as AdamW(lr=1e-3)"
        raise SettingError(text, setting="optimizer")
    if optimizer is not None and optimizer.state is not None:
        name = type(optimizer).__name__
        text = f"{{optimizer}}: this {name} has parameters, but each replica has its own; use {name}(lr=...)"
        raise SettingError(text, setting="optimizer")
    if "arena" in options:
        raise SettingError("{arena} is not supported", setting="arena", place="dp_train")
    places = _devices(device, options.pop("backend", None), devices)
    check_effect("dp_train", [places] if isinstance(places, str) else places, options)
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__") or isinstance(samples, Mapping):
        raise DataError(f"samples: got {type(samples).__name__}; need a sequence of pairs or dicts")
    count = len(samples)
    if not count:
        raise DataError("samples: there are none; need at least one")
    job = ReplicaJob(
        samples, count, loss_fn, forward_fn, target_fn, iterations,
        optimizer if optimizer is not None else Adam(lr=1e-3 if lr is None else lr),
        check_max("max_norm", use.max_norm), check_max("max_value", use.max_value),
        as_bool("shuffle", shuffle), use.seed, use.exchange, as_bool("verbose", verbose),
        use.ema, use.on_nonfinite == "skip", places, options,
    )  # fmt: skip
    ranks = _ranks(replicas, places, use.timeout)
    began = time.perf_counter()
    mine = ranks[0] if len(ranks) < ranks[0].size else None  # the others are in other processes
    with contextlib.ExitStack() as stack:
        with agreed(mine):
            saver = saver_of("dp_train", mine, use)
            if saver is not None:
                stack.enter_context(saver)
                if saver.every.epochs is not None:
                    need = "a duration or a number of steps, not epochs"
                    raise SettingError(setting="checkpoint_every", seen=use.checkpoint_every, need=need)
        if saver is not None:
            saver.share()
        team = _Team(job, make_model, ranks, threads, saver)
        history = team.run()
    models = tuple(team.models)
    return DPResult(models[0], history, ranks[0].size, time.perf_counter() - began, models, ranks[0].is_root)


def _devices(device: str | None, backend: str | None, devices: Sequence[str] | None) -> str | tuple[str, ...]:
    """The device of all replicas, or of each."""
    if devices is None:
        made: str | tuple[str, ...] = named("dp_train", device, backend)
    elif device is not None or backend is not None:
        given = {"device": device or backend, "devices": devices}
        raise SettingError("{device} and {devices} are mutually exclusive", given, place="dp_train")
    else:
        made = tuple(names_in_order("dp_train", devices))
    for name in (made,) if isinstance(made, str) else made:
        if not isinstance(name, str) or not (name == "cpu" or is_device(name)):
            raise SettingError(setting="device", seen=name, need="'cpu', 'gpu', 'gpu:1'", place="dp_train")
    return made


def _ranks(replicas: int | None, devices: str | Sequence[str], timeout: float) -> list[Communicator]:
    """The communicators of this process's replicas."""
    if replicas is not None:
        replicas = as_whole("replicas", replicas, 1)
    started = launched(otherwise=0)
    if not isinstance(devices, str):
        count = started if started > 1 else replicas
        if count not in (None, len(devices)):
            text = f"{{devices}} must have a name for each of the {count} replicas"
            raise SettingError(text, devices=list(devices))
        replicas = replicas or len(devices)
    if started > 1:
        if replicas not in (None, started):
            text = f"{{replicas}} must be the number of processes, {started}, or omitted"
            raise SettingError(text, replicas=replicas)
        return [communicator("mpi", timeout)]
    return thread_ranks(replicas or started or core_count(), timeout)


class _Team:
    """The replicas of this process: the first runs in the calling thread, each other one in a thread of its own."""

    def __init__(
        self,
        job: ReplicaJob,
        make_model: Callable[[], Module],
        ranks: list[Communicator],
        threads: int | None,
        saver: Saver | None,
    ) -> None:
        self.job, self.ranks, self.threads, self.saver = job, ranks, threads, saver
        self.models: list[Module] = []
        for rank in ranks:
            self.models.append(self._make(make_model, rank))
        # What eager computing still owes is done here, in its own thread.
        before_write([p.stored for model in self.models for _, p, _ in model.named_stored()])
        self.failures: list[BaseException] = []  # the first is the cause
        self.histories: dict[int, list[float]] = {}

    def _make(self, make_model: Callable[[], Module], rank: Communicator) -> Module:
        try:
            return _checked_model(make_model(), self.models)
        except BaseException as error:
            rank.fail(error)
            raise error_at(error, f"make_model of {rank.kind} {rank.rank}") from error.__cause__

    def run(self) -> list[float]:
        others = [
            threading.Thread(target=self._run, args=(k,), name=f"replica {r.rank}", daemon=True)
            for k, r in enumerate(self.ranks[1:], 1)
        ]
        begun = []
        for thread, rank in zip(others, self.ranks[1:], strict=True):
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more
                self.failures.append(
                    TrainError(f"dp_train: there is no thread for replica {rank.rank} ({error}); need fewer replicas")
                )
                for each in self.ranks:
                    each.fail(self.failures[0])
                break
            begun.append(thread)
        self._run(0)
        for thread in begun:  # after a failure, one that hangs is left behind
            thread.join(self.ranks[0].timeout if self.failures else None)
        if self.failures:
            raise self.failures[0]
        return self.histories[0]

    def _run(self, k: int) -> None:
        with self.ranks[k] as rank:
            try:
                self.histories[k] = Replica(self.job, rank, self.models[k], self.threads, self.saver).train()
            except BaseException as error:
                self.failures.append(error)
                rank.fail(error)


def _checked_model(model: Any, others: Sequence[Module]) -> Module:
    if not isinstance(model, Module):
        raise GraphError(f"make_model gave {type(model).__name__}; need a gl.nn.Module")
    mine = {p.stored for p in model.parameters()}
    if not mine:
        raise GradientError("make_model gave a model without trainable parameters; need at least one")
    if any(p.stored in mine for other in others for p in other.parameters()):
        raise GraphError("make_model gave the same parameters twice; need a new model from each call")
    return model
