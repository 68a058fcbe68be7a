"""Replica: one of the models that dp_train trains side by side, with programs, an arena and threads of its own."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base import locks
from ..base.dtypes import dtype
from ..base.errors import (
    GradientError,
    GradloomError,
    GraphError,
    GuardTripped,
    NonFiniteError,
    NotFinite,
    SettingError,
    ShapeError,
    TrainError,
)
from ..base.interrupts import Held, held_back
from ..base.settings import switches
from ..base.terminal import to_stderr
from ..data.dataset import generator
from ..graph.grad import gradients
from ..graph.leaves import Parameter, constant
from ..graph.leaves import input as input_value
from ..graph.stored import Stored
from ..graph.streams import fresh_streams
from ..graph.structure import named, structure
from ..graph.value import Value, describe, graph_mode
from ..nn.module import Module
from ..optim.average import Average
from ..optim.state import OptimizerState
from ..parallel.agree import agreed, threads_for
from ..parallel.communicator import Communicator, checksum
from ..parallel.flat import take_effects
from ..run.backend import backend, make_of
from ..run.compile import compile as compile_program
from ..run.diagnose import Place, first_bad, place_in, stopped
from ..step.exchange import Exchange
from ..step.state import (
    AVERAGE,
    OPTIMIZER,
    PARAMETERS,
    TrainState,
    finite,
    load_average,
    load_optimizer,
    load_parameters,
    of_average,
    of_optimizer,
    of_parameters,
)
from ..step.step import random_settings
from .display import rate
from .identity import Identity, environment_of
from .module_state import MODULES, ModuleState
from .replica_job import ReplicaJob
from .samples import Leaves, as_sample, flatten, rebuilt
from .saver import Saver
from .state_schemas import REPLICA_LOOP
from .trained import UnreachedWarning, reached_parameters, refuse_untrained

CHECK_STEPS = 100  # the weights of all replicas are compared by checksum after so many steps
_ORDER = 3  # the stream of generator(seed, _ORDER, pass)


class _Local(NamedTuple):
    """The program of one sample, for one shape of samples."""

    run: Any
    reached: np.ndarray  # f32 [parameters + buffers]: 1 where it writes something
    updates: tuple[Value, ...]


class Replica:
    """One replica: model, programs, arena; used by one thread."""

    def __init__(
        self, job: ReplicaJob, ranks: Communicator, model: Module, threads: int | None, saver: Saver | None = None
    ) -> None:
        self.job, self.ranks, self.model, self.saver = job, ranks, model, saver
        device = job.device_of(ranks.rank)
        self.options = job.options | {
            "threads": threads_for(ranks, threads),
            "device": device,
            "arena": backend(device, switches()).allocate(0),
        }
        self.makes = ranks.gather(make_of(device))  # of all replicas
        self._is_like_first = self.makes[ranks.rank] == self.makes[0]
        with locks.building:
            model.ensure_init(job.seed)
        self.modules = ModuleState(model)
        self.parameters = model.named_parameters()
        self.buffers = model.named_buffers()
        ranks.check("the settings", job.settings())
        shapes = [(n, p.shape, p.dtype.name) for n, p in (*self.parameters.items(), *self.buffers.items())]
        ranks.check("the model", checksum(repr(shapes)))
        self._share()
        self.state = OptimizerState(job.optimizer)
        self.state.average = Average(job.ema) if job.ema else None
        self.state.place([*self.parameters.items(), *self.buffers.items()])
        self.state.register(self.parameters.values())
        reached = {"reached": (len(self.parameters) + len(self.buffers),)}
        self.exchange = Exchange(ranks, self.parameters.values(), self.buffers.values(), reached, job.exchange).join()
        self._locals: dict[Hashable, _Local] = {}
        self._updates: dict[Hashable, Any] = {}
        self._warn_unreached = UnreachedWarning("dp_train")
        self._pass, self._order = -1, np.arange(0)
        self.history: list[float] = []  # the loss of each step
        self._began_pass = 0  # the step that began the pass under way
        self._saved = 0  # the step of the last checkpoint

    # ---- the loop --------------------------------------------------------------------------------------------

    def train(self) -> list[float]:
        """All steps that are left; the loss of each. With a saver Ctrl-C ends it between two steps. Then the model
        holds the average of its weights, where there is one."""
        try:
            with held_back() if self.saver is not None else contextlib.nullcontext(Held()) as held:
                return self._train(held)
        finally:
            if self.state.average is not None:
                self.state.average.show(True)

    def _train(self, held: Held) -> list[float]:
        job, history = self.job, self.history
        identity = None if self.saver is None else self._resume(self.saver)
        first, began = len(history), time.perf_counter()
        for i in range(first, job.iterations):
            if i * self.ranks.size // job.count > self.state.epoch:
                self._observe(np.array(history[self._began_pass :]))
                self._began_pass, self.state.epoch = i, i * self.ranks.size // job.count
            try:
                history.append(self._step(i))
                held.check()
            except (TrainError, KeyboardInterrupt) as error:  # the last good step
                if identity is not None and not hasattr(error, "at_once") and len(history) > max(first, self._saved):
                    self._save(identity)
                raise
            done = i + 1
            if self.ranks.is_root and (done == job.iterations or done * self.ranks.size >= job.count):
                self._warn_unreached(
                    [n for n, p in self.parameters.items() if p.trainable and p.stored not in self.state.moments]
                )
            is_last = done == job.iterations or self._is_up()
            if self.saver is not None and identity is not None and (is_last or self.saver.is_due(done)):
                self._save(identity)
            if done % CHECK_STEPS == 0 or done == 1:
                self._compare_graphs()
            if done % CHECK_STEPS == 0 or is_last:
                self.ranks.check("the weights", self._weights())
            tenth = max(1, job.iterations // 10)
            if job.verbose and self.ranks.is_root and (done % tenth == 0 or done == job.iterations):
                speed = (done - first) * self.ranks.size / (time.perf_counter() - began)
                mean = float(np.mean(history[-tenth:]))
                to_stderr(f"step {done}/{job.iterations}  loss {mean:.4g}  {rate(speed)} samples/s")
            if is_last and done < job.iterations and self.saver is not None:
                self.saver.end_early()
                break
        return history

    def _observe(self, losses: np.ndarray) -> None:
        """A pass has ended, with these losses of its steps: nan for those that were skipped."""
        known = losses[~np.isnan(losses)]
        if not len(known):
            raise NonFiniteError(f"epoch {self.state.epoch + 1}: none of its {len(losses)} steps was finite")
        self.state.observe(float(np.mean(known)))

    def _is_up(self) -> bool:
        """`stop_after` ends the training after this step: replica 0 says so to all."""
        if self.saver is None or not self.saver.has_limit:
            return False
        return bool(self.ranks.gather(self.saver.is_up())[0])

    def _save(self, identity: Identity) -> None:
        assert self.saver is not None
        self._saved = len(self.history)
        self.saver.write(self._saved, self._train_state(), identity)

    def _train_state(self) -> TrainState:
        """What decides the rest of the run: weights, optimiser, the losses so far, and where the pass began."""
        own, state = TrainState(), self.state
        own.register(
            "model", self._model_part, lambda values: load_parameters(values, self._model_part()), finite,
            schema=PARAMETERS,
        )  # fmt: skip
        own.register("modules", self.modules.part, self.modules.load, schema=MODULES)
        own.register(
            "optimizer", lambda: of_optimizer(state), lambda values: load_optimizer(values, state), finite,
            schema=OPTIMIZER,
        )  # fmt: skip
        own.register(
            "average", lambda: of_average(state), lambda values: load_average(values, state), finite, schema=AVERAGE
        )
        own.register(
            "loop", lambda: {"losses": np.array(self.history), "began_pass": self._began_pass}, self._load_loop,
            schema=REPLICA_LOOP,
        )  # fmt: skip
        return own

    def _model_part(self) -> dict[str, Any]:
        return of_parameters({**self.parameters, **self.buffers})

    def _load_loop(self, values: Mapping[str, Any]) -> Callable[[], None]:
        if values["began_pass"] > len(values["losses"]):
            began, done = values["began_pass"], len(values["losses"])
            raise TrainError(f"load: loop: began_pass is {began} of {done} steps; need at most as many")

        def load() -> None:
            self.history[:], self._began_pass = values["losses"].tolist(), values["began_pass"]

        return load

    def _resume(self, saver: Saver) -> Identity | None:
        """Go on where the saver's checkpoint was taken; the identity of the run, of replica 0."""
        job, identity = self.job, None
        with agreed(self.ranks):
            if self.ranks.is_root:
                graph = self._local(self._sample(0))[0].updates
                settings = job.identity() | {
                    "replicas": self.ranks.size, "graph": checksum(repr(structure(graph, named))),
                    "model": {n: f"{p.dtype.name}{list(p.shape)}" for n, p in self.parameters.items()},
                }  # fmt: skip
                contents = {"samples": job.contents} if isinstance(job.samples, (list, tuple)) else {}
                identity = Identity(settings, environment_of(job.options, (), job.places) | self._devices(), contents)
                if saver.entries is not None:
                    saver.compare(identity)
        if saver.entries is not None:
            with agreed(self.ranks):
                self._train_state().load(saver.entries)
        return identity

    def _devices(self) -> dict[str, str]:
        """What the bits depend on, where not all replicas compute on the CPU."""
        return {} if set(self.makes) == {"cpu"} else {"backend": ", ".join(self.makes)}

    def _step(self, i: int) -> float:
        ranks, exchange = self.ranks, self.exchange
        base = i * ranks.size
        exchange.fold(ranks.size, lambda rank: self._compute(base + rank))
        if not self._update():
            if self.job.skips:  # nothing was written, in any replica
                return math.nan
            cause = exchange.cause(
                ranks.size, lambda rank: self._compute(base + rank), lambda rank: self._first_bad(base + rank)
            )
            raise stopped(i + 1, cause)
        self.state.advance(self._updated(exchange.numbers["reached"]))
        return exchange.mean_loss

    def _update(self) -> bool:
        """The optimiser's step on the sum; False where the guard has left it out. Equal work gives equal bits on
        devices of one make: those of another make than the first replica's copy what it has written."""
        reached, finite = self.exchange.numbers["reached"], True
        if self._is_like_first:
            try:
                self._update_for(reached).run_many(1, self.state.settings())
            except (GuardTripped, NotFinite):
                finite = False
        if len(set(self.makes)) > 1:
            finite = self.ranks.gather(finite)[0]
            if finite:
                self._take_over(self._updated(reached))
        return finite

    def _take_over(self, updated: Sequence[Parameter]) -> None:
        """These parameters, buffers and averages, as they are in the first replica, for those of other makes."""
        written, average = [*updated, *self.buffers.values()], self.state.average
        if average is not None:
            known = [i for i, p in enumerate(self.state.parameters) if p.stored in average.arrays]
            written += [average.of(self.state.parameters[i]) for i in self.ranks.gather(known)[0]]
        for p in written:
            self._broadcast(p.stored, takes=not self._is_like_first)

    def _broadcast(self, stored: Stored, takes: bool) -> None:
        """The contents in the first replica, for those that take them; all call it together."""
        array = stored.read().copy()
        self.ranks.broadcast(array)
        if takes:
            stored.write(array)

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

        def place(name: str, array: np.ndarray, at: int) -> Place:
            return f"{name} of the sample", place_in(array.shape, at)

        cause = first_bad(local.run, [], local.updates, random_settings(self.job.seed, j + 1), place, **self.options)
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
        refuse_untrained("dp_train", total, reached_parameters(total), {p.stored for p in self.parameters.values()})
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
        updated = self._updated(reached)
        key = reached.tobytes(), self.state.behind(updated), self.state.resting(updated)
        if key not in self._updates:
            with locks.building, graph_mode():
                self._updates[key] = self._ending(reached)
        return self._updates[key]

    def _updated(self, reached: np.ndarray) -> list[Parameter]:
        """The parameters that a step updates."""
        return [p for p, n in zip(self.parameters.values(), reached, strict=False) if n]

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
                self._broadcast(p.stored, takes=True)

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
    """The error with the place where it happened; an error without a message becomes the cause of a TrainError."""
    if not isinstance(error, Exception):
        return error
    if isinstance(error, GradloomError):
        return error.extended(f"{where}: ")
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{where}: {error}",)
        return error
    named = TrainError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
