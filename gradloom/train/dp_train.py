"""dp_train: replicas of a model, side by side, each with samples of its own and all with the same weights.

A replica is a thread of this process, or, under mpiexec, a process. At step i replica r takes sample i*R + r. It has a
model, programs, an arena and threads of its own; what it has computed (gradients of its loss, what it would leave in
running statistics, the loss and its weight) lies in one flat array. The flat arrays are folded in the order of the
replicas, and then every replica runs the same program on the sum: one guard, one clipping, one update. So all weights
stay equal, bit for bit, and equal to those of a plain loop that adds up the same samples in the same order.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base import locks
from ..base.arguments import as_bool, as_whole, what_is
from ..base.dtypes import dtype
from ..base.errors import (
    DataError,
    GradientError,
    GradloomError,
    GraphError,
    GuardTripped,
    NotFinite,
    SettingError,
    ShapeError,
    TrainError,
)
from ..base.settings import core_count, switches
from ..data.dataset import generator
from ..graph.grad import gradients
from ..graph.opspec import Parameter, constant
from ..graph.opspec import input as input_value
from ..graph.stored import Stored, before_write
from ..graph.structure import structure
from ..graph.value import Value, describe, graph_mode
from ..nn.module import Module
from ..optim.clip import check_max_norm
from ..optim.optimizer import Adam, Optimizer, Schedule
from ..optim.state import OptimizerState
from ..parallel.agree import threads_for
from ..parallel.communicator import TIMEOUT, Communicator, checksum, launched
from ..parallel.flat import take_effects
from ..parallel.join import communicator
from ..parallel.replicas import threads as thread_ranks
from ..run.cpu_backend import Arena, choose_isa
from ..run.diagnose import first_bad, stopped
from ..run.executable import compile as compile_program
from ..step.exchange import Exchange, check_exchange
from ..step.step import random_settings
from .arguments import check_options
from .display import rate
from .samples import Leaves, as_sample, flatten, rebuilt
from .trained import refuse_untrained

CHECK_STEPS = 100  # the weights of all replicas are compared by checksum after so many steps
_ORDER = 3  # the stream of generator(seed, _ORDER, pass)


@dataclass(frozen=True)
class DPResult:
    """What dp_train made.

    .model         replica 0's (under mpiexec this rank's); .models all of this process; their weights are equal
    .loss_history  the mean loss over replicas of each step; .loss the last of them
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
    def params(self) -> dict[str, np.ndarray]:
        return {name: p.numpy() for name, p in self.model.named_parameters().items()}

    @property
    def samples_per_second(self) -> float:
        return len(self.loss_history) * self.replicas / self.seconds

    def __repr__(self) -> str:
        steps = len(self.loss_history)
        return f"DPResult({steps} steps of {self.replicas} replicas, loss {self.loss:.6g}, {self.seconds:.3g} s)"


@dataclass(frozen=True)
class _Job:
    """What all replicas know."""

    samples: Sequence[Any]
    count: int
    loss_fn: Callable[..., Any]
    forward_fn: Callable[..., Any] | None
    target_fn: Callable[..., Any] | None
    iterations: int
    optimizer: Optimizer
    max_norm: float
    shuffle: bool
    seed: int
    exchange: str
    verbose: bool
    options: dict[str, Any]

    def settings(self) -> str:
        """What must be the same everywhere, as text."""
        chosen = switches(**self.options)
        rates = [(k, v(0, 0) if callable(v) else v) for k, v in sorted(self.optimizer.settings.items())]
        return repr((
            self.count, self.iterations, type(self.optimizer).__name__, rates, self.max_norm, self.shuffle, self.seed,
            self.exchange, choose_isa(chosen.isa),
        ))  # fmt: skip


def dp_train(
    make_model: Callable[[], Module],
    samples: Sequence[Any],
    *,
    loss_fn: Callable[[Value, Any], Any],
    forward_fn: Callable[[Any, Any], Any] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    replicas: int | None = None,
    iterations: int,
    lr: Schedule | None = None,
    optimizer: Optimizer | None = None,
    max_norm: float = math.inf,
    shuffle: bool = False,
    seed: int = 0,
    exchange: str = "ordered",
    verbose: bool = False,
    threads: int | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> DPResult:
    """Train replicas of a model, each on samples of its own, and keep their weights equal.

    make_model  gives a new model; called once per replica; replica 0's weights are copied to the others
    samples     a sequence of pairs (x, target) or dicts of arrays; one sample is one micro-batch, of any shape
    forward_fn  (model, sample) -> outputs; by default model(x) of a pair; gl.tensor(sample[...]) is sample[...]
    target_fn   (sample) -> target; by default the target of a pair
    loss_fn     (outputs, target) -> a scalar, or a pair (sum, weight); the loss of a step is sums / weights
    replicas    threads of this process, by default one per core; under mpiexec each process is one
    iterations  steps: at step i replica r takes sample (i*R + r) mod n; with `shuffle` each pass over the samples has
                an order of its own, by `seed`
    optimizer   by default Adam(lr), lr 1e-3; its schedules count a pass over the samples as an epoch. Gradients are
                added up in the order of replicas (exchange="ordered"; with "fast" in whichever is quickest, f32 noise
                apart), divided once, scaled down to the global norm max_norm, and applied in one step. A parameter
                without gradient in a replica counts as 0 there
    seed        also of parameters that are not initialised yet, and of dropout: sample j has masks of its own
    threads     of each replica; by default the cores, shared out
    timeout     seconds without a sign of life of a replica after which the others end
    verbose     show loss and rate on stderr

    options go to gl.compile. The functions build graphs: they are called once for each distinct shape of sample, in
    each replica, and what they and the models read must not change after that. Running statistics (batch norm) are
    averaged over the replicas at each step. Returns a DPResult.
    Raises what a replica raised, naming replica and sample; NonFiniteError, with the weights before that step kept.
    """
    check_options("dp_train", options, dp_train)
    iterations, seed = as_whole("iterations", iterations, 1), as_whole("seed", seed, 0)
    if optimizer is not None and lr is not None:
        raise SettingError(f"lr={lr!r} beside an optimizer, which has its own; need one of the two")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise SettingError(f"optimizer: got {what_is(optimizer)}; need one of gl.optim, such as AdamW(lr=1e-3)")
    if optimizer is not None and optimizer.state is not None:
        raise SettingError(
            f"optimizer: {type(optimizer).__name__} was made with parameters, but each replica has its own; need one "
            f"without: {type(optimizer).__name__}(lr=...)"
        )
    if "backend" in options or "arena" in options:
        raise SettingError(f"dp_train: {' and '.join({'backend', 'arena'} & set(options))} cannot be chosen here")
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__") or isinstance(samples, Mapping):
        raise DataError(f"samples: got {type(samples).__name__}; need a sequence of pairs or dicts")
    count = len(samples)
    if not count:
        raise DataError("samples: there are none; need at least one")
    job = _Job(
        samples, count, loss_fn, forward_fn, target_fn, iterations,
        optimizer if optimizer is not None else Adam(lr=1e-3 if lr is None else lr), check_max_norm(max_norm),
        as_bool("shuffle", shuffle), seed, check_exchange(exchange), as_bool("verbose", verbose), options,
    )  # fmt: skip
    ranks = _ranks(replicas, timeout)
    began = time.perf_counter()
    team = _Team(job, make_model, ranks, threads)
    history = team.run()
    models = tuple(team.models)
    return DPResult(models[0], history, ranks[0].size, time.perf_counter() - began, models, ranks[0].is_root)


def _ranks(replicas: int | None, timeout: float) -> list[Communicator]:
    """The communicators of this process's replicas."""
    if replicas is not None:
        replicas = as_whole("replicas", replicas, 1)
    started = launched(otherwise=0)
    if started > 1:
        if replicas not in (None, started):
            raise SettingError(
                f"replicas={replicas}, but {started} processes were started; need as many, or none given"
            )
        return [communicator("mpi", timeout)]
    return thread_ranks(replicas or started or core_count(), timeout)


class _Team:
    """The replicas of this process: the first runs in the calling thread, each other one in a thread of its own."""

    def __init__(
        self,
        job: _Job,
        make_model: Callable[[], Module],
        ranks: list[Communicator],
        threads: int | None,
    ) -> None:
        self.job, self.ranks, self.threads = job, ranks, threads
        self.models: list[Module] = []
        for rank in ranks:
            self.models.append(self._make(make_model, rank))
        # What eager computing still owes is done here, in its own thread.
        before_write([p.stored for model in self.models for _, p, _ in model._named_stored()])
        self.failures: list[BaseException] = []  # the first is the cause
        self.histories: dict[int, list[float]] = {}

    def _make(self, make_model: Callable[[], Module], rank: Communicator) -> Module:
        try:
            return _checked_model(make_model(), self.models)
        except BaseException as error:
            rank.fail(error)
            raise _named(error, f"make_model of {rank.kind} {rank.rank}") from error.__cause__

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
                self.histories[k] = _Replica(self.job, rank, self.models[k], self.threads).train()
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


class _Local(NamedTuple):
    """The program of one sample, for one shape of samples."""

    run: Any
    reached: np.ndarray  # f32 [parameters + buffers]: 1 where it writes something
    updates: tuple[Value, ...]


class _Replica:
    """One replica: model, programs, arena; used by one thread."""

    def __init__(self, job: _Job, ranks: Communicator, model: Module, threads: int | None) -> None:
        self.job, self.ranks, self.model = job, ranks, model
        self.options = job.options | {"threads": threads_for(ranks, threads), "arena": Arena()}
        with locks.building:
            model.ensure_init(job.seed)
        self.parameters = model.named_parameters()
        self.buffers = model.named_buffers()
        ranks.check("the settings", job.settings())
        shapes = [(n, p.shape, p.dtype.name) for n, p in (*self.parameters.items(), *self.buffers.items())]
        ranks.check("the model", checksum(repr(shapes)))
        self._share()
        self.state = OptimizerState(job.optimizer)
        reached = {"reached": (len(self.parameters) + len(self.buffers),)}
        self.exchange = Exchange(ranks, self.parameters.values(), self.buffers.values(), reached, job.exchange).join()
        self._locals: dict[Hashable, _Local] = {}
        self._updates: dict[bytes, Any] = {}
        self._pass, self._order = -1, np.arange(0)

    # ---- the loop --------------------------------------------------------------------------------------------

    def train(self) -> list[float]:
        """All steps; the loss of each."""
        job = self.job
        history: list[float] = []
        began = time.perf_counter()
        began_pass = 0
        for i in range(job.iterations):
            if i * self.ranks.size // job.count > self.state.epoch:
                self.state.observe(float(np.mean(history[began_pass:])))
                began_pass, self.state.epoch = i, i * self.ranks.size // job.count
            history.append(self._step(i))
            done = i + 1
            if done % CHECK_STEPS == 0 or done == 1:
                self._compare_graphs()
            if done % CHECK_STEPS == 0 or done == job.iterations:
                self.ranks.check("the weights", self._weights())
            tenth = max(1, job.iterations // 10)
            if job.verbose and self.ranks.is_root and (done % tenth == 0 or done == job.iterations):
                speed = done * self.ranks.size / (time.perf_counter() - began)
                mean = float(np.mean(history[-tenth:]))
                print(f"step {done}/{job.iterations}  loss {mean:.4g}  {rate(speed)} samples/s", file=sys.stderr)
        return history

    def _step(self, i: int) -> float:
        ranks, exchange = self.ranks, self.exchange
        base = i * ranks.size
        exchange.fold(ranks.size, lambda rank: self._compute(base + rank))
        update = self._update_for(exchange.numbers["reached"])
        try:
            update.run_many(1, self.state.settings())
        except (GuardTripped, NotFinite):
            cause = exchange.cause(
                ranks.size, lambda rank: self._compute(base + rank), lambda rank: self._first_bad(base + rank)
            )
            raise stopped(i + 1, cause) from None
        self.state.steps += 1
        return exchange.mean_loss

    def _sample(self, j: int) -> int:
        """The number of the j-th sample of the whole training."""
        turn, at = divmod(j, self.job.count)
        if not self.job.shuffle:
            return at
        if turn != self._pass:
            self._pass, self._order = turn, generator(self.job.seed, _ORDER, turn).permutation(self.job.count)
        return int(self._order[at])

    def _compute(self, j: int) -> None:
        """Run the j-th sample of the whole training; the result is in the flat array of the exchange."""
        number = self._sample(j)
        try:
            local, leaves = self._local(number)
            local.run.feed({name: array for name, array in leaves.items() if name in local.run.inputs})
            try:
                local.run.run_many(1, random_settings(self.job.seed, j + 1))
            except NotFinite:  # with check 2
                self.exchange.spoil()
            self.exchange.numbers["reached"][...] = local.reached
        except Exception as error:
            step = j // self.ranks.size + 1
            where = f"{self.ranks.kind} {self.ranks.rank}, sample {number}, step {step}"
            raise _named(error, where) from error.__cause__

    def _first_bad(self, j: int) -> str:
        number = self._sample(j)
        local, _ = self._local(number)

        def say(name: str, array: np.ndarray, at: int) -> str:
            return f"{name} of the sample is not finite"

        cause = first_bad(local.run, [], local.updates, random_settings(self.job.seed, j + 1), say, **self.options)
        return f"{cause}, in {self.ranks.kind} {self.ranks.rank}, sample {number}"

    # ---- building --------------------------------------------------------------------------------------------

    def _local(self, number: int) -> tuple[_Local, Leaves]:
        """The program for a sample, and the arrays to feed."""
        sample = self.job.samples[number]
        leaves: Leaves = {}
        layout = flatten(as_sample(sample), "", leaves)
        key = (layout, *((a.shape, a.dtype.str) for a in leaves.values()))
        if key not in self._locals:
            with locks.building, graph_mode():
                self._locals[key] = self._build(layout, leaves)
        return self._locals[key], leaves

    def _build(self, layout: Any, leaves: Leaves) -> _Local:
        job = self.job
        values = {name: input_value(name, a.shape, dtype(a.dtype)) for name, a in leaves.items()}
        sample = rebuilt(layout, values)
        if isinstance(sample, dict) and (job.forward_fn is None or job.target_fn is None):
            lacks = "forward_fn" if job.forward_fn is None else "target_fn"
            raise SettingError(f"samples are dicts of {sorted(sample)}; need {lacks}, which picks out of them")
        out = self.model(sample[0]) if job.forward_fn is None else job.forward_fn(self.model, sample)
        target = sample[1] if job.target_fn is None else job.target_fn(sample)
        total, weight = _loss_pair(job.loss_fn(out, target))
        refuse_untrained("dp_train", total, {p.stored for p in self.parameters.values()})
        grads = gradients(total, list(self.parameters.values()))
        nexts = take_effects([total, weight, *[g for g in grads if g is not None]])
        left = {s.name for s in nexts} - {p.stored.name for p in self.buffers.values()}
        if left:
            raise GraphError(f"the graph updates {', '.join(sorted(left))}, which is no buffer of the model")
        found = [*grads, *(nexts.get(p.stored) for p in self.buffers.values())]
        updates = self.exchange.collect([*found, total, weight])
        run = compile_program([], updates, **self.options)
        return _Local(run, np.array([v is not None for v in found], np.float32), updates)

    def _update_for(self, reached: np.ndarray) -> Any:
        """The program that ends a step in which so many replicas have reached each parameter and buffer."""
        key = reached.tobytes()
        if key not in self._updates:
            with locks.building, graph_mode():
                self._updates[key] = self._ending(reached)
        return self._updates[key]

    def _ending(self, reached: np.ndarray) -> Any:
        if not reached[: len(self.parameters)].any():
            raise GradientError("dp_train: the loss depends on no trainable parameter; need at least one")
        norm, updates = self.exchange.ending(self.state, max_norm=self.job.max_norm, reached=reached.tolist())
        return compile_program([norm], updates, **self.options)

    # ---- weights ---------------------------------------------------------------------------------------------

    def _all(self) -> list[Parameter]:
        return [*self.parameters.values(), *self.buffers.values()]

    def _share(self) -> None:
        """Replica 0's weights for all."""
        for p in self._all():
            if p.stored.role != "frozen":
                self.ranks.broadcast(p.stored.array)
                p.stored.version += 1

    def _compare_graphs(self) -> None:
        """TrainError when processes make different graphs of samples of the same form: they run different scripts.

        Threads run one script; what differs there is meant.
        """
        ranks = self.ranks
        if ranks.size == 1 or ranks.kind != "rank":
            return
        with locks.building:
            mine = {repr(key): checksum(repr(structure(one.updates, _called))) for key, one in self._locals.items()}
        seen: dict[str, str] = {}
        for rank, theirs in enumerate(ranks.gather(mine)):
            for key, outline in theirs.items():
                if seen.setdefault(key, outline) != outline:
                    raise TrainError(
                        f"rank {rank} makes another graph than those before it of samples {key}; need the same "
                        "forward_fn, loss_fn and target_fn on all"
                    )

    def _weights(self) -> str:
        return checksum(*(p.stored.array for p in self._all()))


def _called(stored: Stored) -> Hashable:
    return (stored.name, stored.shape, stored.dtype.name, stored.role)


def _loss_pair(found: Any) -> tuple[Value, Value]:
    """(sum, weight) of what loss_fn gave; a scalar weighs 1."""
    pair = found if isinstance(found, tuple) and len(found) == 2 else (found, constant(1.0))
    for v in pair:
        if not isinstance(v, Value):
            raise GraphError(f"loss_fn gave {type(v).__name__}; need a scalar of the graph, or a pair (sum, weight)")
        if v.shape:
            raise ShapeError(f"loss_fn gave {describe(v)}; need a scalar, or a pair of scalars (sum, weight)")
    return pair


def _named(error: BaseException, where: str) -> BaseException:
    """The same error, saying where it happened; an error that has no message of its own becomes the cause of one."""
    if not isinstance(error, Exception):
        return error
    if isinstance(error, GradloomError) or (len(error.args) == 1 and isinstance(error.args[0], str)):
        error.args = (f"{where}: {error}",)
        return error
    named = TrainError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
