"""Replica: one of the models that dp_train trains side by side, with programs, an arena and threads of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base import locks
from ..base.dtypes import dtype
from ..base.errors import (
    GradientError,
    GradloomError,
    GraphError,
    GuardTripped,
    NotFinite,
    SettingError,
    ShapeError,
    TrainError,
)
from ..base.settings import switches
from ..data.dataset import generator
from ..graph.grad import gradients
from ..graph.leaves import Parameter, constant
from ..graph.leaves import input as input_value
from ..graph.streams import fresh_streams
from ..graph.structure import named, structure
from ..graph.value import Value, describe, graph_mode
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..optim.state import OptimizerState
from ..parallel.agree import threads_for
from ..parallel.communicator import Communicator, checksum
from ..parallel.flat import take_effects
from ..run.backend import backend
from ..run.compile import compile as compile_program
from ..run.cpu_backend import choose_isa
from ..run.diagnose import first_bad, stopped
from ..step.exchange import Exchange
from ..step.step import random_settings
from .display import rate
from .samples import Leaves, as_sample, flatten, rebuilt
from .trained import refuse_untrained

CHECK_STEPS = 100  # the weights of all replicas are compared by checksum after so many steps
_ORDER = 3  # the stream of generator(seed, _ORDER, pass)


@dataclass(frozen=True)
class Job:
    """What all replicas know."""

    samples: Sequence[Any]
    count: int
    loss_fn: Callable[..., Any]
    forward_fn: Callable[..., Any] | None
    target_fn: Callable[..., Any] | None
    iterations: int
    optimizer: Optimizer
    max_norm: float
    max_value: float
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
            self.count, self.iterations, type(self.optimizer).__name__, rates, self.max_norm, self.max_value,
            self.shuffle, self.seed, self.exchange, choose_isa(chosen.isa),
        ))  # fmt: skip


class _Local(NamedTuple):
    """The program of one sample, for one shape of samples."""

    run: Any
    reached: np.ndarray  # f32 [parameters + buffers]: 1 where it writes something
    updates: tuple[Value, ...]


class Replica:
    """One replica: model, programs, arena; used by one thread."""

    def __init__(self, job: Job, ranks: Communicator, model: Module, threads: int | None) -> None:
        self.job, self.ranks, self.model = job, ranks, model
        self.options = job.options | {
            "threads": threads_for(ranks, threads),
            "arena": backend("cpu", switches()).allocate(0),
        }
        with locks.building:
            model.ensure_init(job.seed)
        self.parameters = model.named_parameters()
        self.buffers = model.named_buffers()
        ranks.check("the settings", job.settings())
        shapes = [(n, p.shape, p.dtype.name) for n, p in (*self.parameters.items(), *self.buffers.items())]
        ranks.check("the model", checksum(repr(shapes)))
        self._share()
        self.state = OptimizerState(job.optimizer)
        self.state.place([*self.parameters.items(), *self.buffers.items()])
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
        number, at = divmod(j, self.job.count)
        if not self.job.shuffle:
            return at
        if number != self._pass:
            self._pass, self._order = number, generator(self.job.seed, _ORDER, number).permutation(self.job.count)
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
            raise error_at(error, where) from error.__cause__

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
        with fresh_streams():
            out = self.model(sample[0]) if job.forward_fn is None else job.forward_fn(self.model, sample)
            target = sample[1] if job.target_fn is None else job.target_fn(sample)
            total, weight = _loss_pair(job.loss_fn(out, target))
        refuse_untrained("dp_train", total, {p.stored for p in self.parameters.values()})
        grads = gradients(total, list(self.parameters.values()))
        nexts = take_effects([total, weight, *[g for g in grads if g is not None]])
        left = {s.name for s in nexts} - {p.stored.name for p in self.buffers.values()}
        if left:
            raise GraphError(f"the graph updates {', '.join(sorted(left))}, which is no buffer of the model")
        written = [*grads, *(nexts.get(p.stored) for p in self.buffers.values())]
        updates = self.exchange.collect([*written, total, weight])
        run = compile_program([], updates, **self.options)
        return _Local(run, np.array([v is not None for v in written], np.float32), updates)

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
        norms, updates = self.exchange.ending(
            self.state, max_norm=self.job.max_norm, max_value=self.job.max_value, reached=reached.tolist()
        )
        return compile_program(norms, updates, **self.options)

    # ---- weights ---------------------------------------------------------------------------------------------

    def _all(self) -> list[Parameter]:
        return [*self.parameters.values(), *self.buffers.values()]

    def _share(self) -> None:
        """Replica 0's weights for all."""
        for p in self._all():
            if p.stored.role != "frozen":
                array = p.stored.read().copy()
                self.ranks.broadcast(array)
                p.stored.write(array)

    def _compare_graphs(self) -> None:
        """TrainError when processes make different graphs of samples of the same form: they run different scripts.

        Threads run one script; what differs there is meant.
        """
        ranks = self.ranks
        if ranks.size == 1 or ranks.kind != "rank":
            return
        with locks.building:
            mine = {repr(key): checksum(repr(structure(one.updates, named))) for key, one in self._locals.items()}
        seen: dict[str, str] = {}
        for rank, theirs in enumerate(ranks.gather(mine)):
            for key, outline in theirs.items():
                if seen.setdefault(key, outline) != outline:
                    raise TrainError(
                        f"rank {rank} makes another graph than those before it of samples {key}; need the same "
                        "forward_fn, loss_fn and target_fn on all"
                    )

    def _weights(self) -> str:
        return checksum(*(p.stored.read() for p in self._all()))


def _loss_pair(loss: Any) -> tuple[Value, Value]:
    """(sum, weight) of what loss_fn gave; a scalar weighs 1."""
    pair = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, constant(1.0))
    for v in pair:
        if not isinstance(v, Value):
            raise GraphError(f"loss_fn gave {type(v).__name__}; need a scalar of the graph, or a pair (sum, weight)")
        if v.shape:
            raise ShapeError(f"loss_fn gave {describe(v)}; need a scalar, or a pair of scalars (sum, weight)")
    return pair


def error_at(error: BaseException, where: str) -> BaseException:
    """The same error, saying where it happened; an error that has no message of its own becomes the cause of one."""
    if not isinstance(error, Exception):
        return error
    if isinstance(error, GradloomError) or (len(error.args) == 1 and isinstance(error.args[0], str)):
        error.args = (f"{where}: {error}",)
        return error
    named = TrainError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
