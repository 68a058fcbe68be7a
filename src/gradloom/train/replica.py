"""Replica: one of the models that dp_train trains: its arena and threads, its loop and its checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..base import locks
from ..base.errors import (
    NonFiniteError,
    TrainError,
)
from ..base.interrupts import Held, held_back
from ..base.settings import switches
from ..base.terminal import to_stderr
from ..graph.structure import named, structure
from ..nn.module import Module
from ..optim.average import Average
from ..optim.state import OptimizerState
from ..parallel.agree import agreed, threads_for
from ..parallel.communicator import Communicator, checksum
from ..plan.memory_map import program_maps
from ..run.backend import backend
from ..runs.identity import Identity, environment_of
from ..runs.module_state import MODULES, ModuleState
from ..runs.plan_file import PLANS, plan_file
from ..runs.saver import Saver
from ..runs.schemas import REPLICA_LOOP
from ..runs.state import (
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
from .display import rate
from .replica_job import ReplicaJob
from .replica_steps import ReplicaSteps
from .trained import UnreachedWarning

CHECK_STEPS = 100  # steps between two comparisons of the weights of all replicas, by checksum


class Replica:
    """One replica: model, programs, arena; used by one thread."""

    def __init__(
        self, job: ReplicaJob, ranks: Communicator, model: Module, threads: int | None, saver: Saver | None = None
    ) -> None:
        self.job, self.ranks, self.model, self.saver = job, ranks, model, saver
        device = job.device_of(ranks.rank)
        options = job.options | {
            "threads": threads_for(ranks, threads),
            "device": device,
            "arena": backend(device, switches()).allocate(0),
        }
        with locks.building:
            model.ensure_init(job.seed)
        self.modules = ModuleState(model)
        self.parameters = model.named_parameters()
        self.buffers = model.named_buffers()
        ranks.check("the settings", job.settings())
        shapes = [(n, p.shape, p.dtype.name) for n, p in (*self.parameters.items(), *self.buffers.items())]
        ranks.check("the model", checksum(repr(shapes)))
        self.state = OptimizerState(job.optimizer)
        self.steps = ReplicaSteps(job, ranks, model, self.state, options)
        stored = [p.stored for p in (*self.parameters.values(), *self.buffers.values())]
        self.steps.copy_first([one for one in stored if one.role != "frozen"], everywhere=True)
        self.state.average = Average(job.ema) if job.ema else None
        self.state.place([*self.parameters.items(), *self.buffers.items()])
        self.state.register(self.parameters.values())
        self._warn_unreached = UnreachedWarning("dp_train")
        self.history: list[float] = []  # the loss of each step
        self._began_pass = 0  # the step that began the pass under way
        self._saved = 0  # the step of the last checkpoint

    # ---- the loop --------------------------------------------------------------------------------------------

    def train(self) -> list[float]:
        """Take all remaining steps: the loss of each. With a saver Ctrl-C ends it between two steps. Afterwards the
        model holds the average of its weights, where there is one."""
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
                history.append(self.steps.step(i))
                held.check()
            except (TrainError, KeyboardInterrupt) as error:  # the last complete step
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
                self.steps.compare_graphs()
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
        """End a pass with these losses of its steps, nan where a step was skipped."""
        known = losses[~np.isnan(losses)]
        if not len(known):
            raise NonFiniteError(f"epoch {self.state.epoch + 1}: none of its {len(losses)} steps was finite")
        self.state.observe(float(np.mean(known)))

    def _is_up(self) -> bool:
        """Whether `stop_after` ends the training after this step; replica 0 decides."""
        if self.saver is None or not self.saver.has_limit:
            return False
        return bool(self.ranks.gather(self.saver.is_up())[0])

    def _save(self, identity: Identity) -> None:
        assert self.saver is not None
        self._saved = len(self.history)
        self.saver.write(self._saved, self._train_state(), identity)

    def _train_state(self) -> TrainState:
        """The state required for a bit-identical resume: weights, optimiser, losses, and the start of the pass."""
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
            raise TrainError(f"load: loop: began_pass is {began} of {done} steps; must be <= {done}")

        def load() -> None:
            self.history[:], self._began_pass = values["losses"].tolist(), values["began_pass"]

        return load

    def _resume(self, saver: Saver) -> Identity | None:
        """Load the saver's checkpoint; the identity of the run, on replica 0."""
        job, identity = self.job, None
        with agreed(self.ranks):
            if self.ranks.is_root:
                graph = self.steps.prepare(self.steps.samples(0))[0].updates
                settings = job.identity() | {
                    "replicas": self.ranks.size, "graph": checksum(repr(structure(graph, named))),
                    "model": {n: f"{p.dtype.name}{list(p.shape)}" for n, p in self.parameters.items()},
                }  # fmt: skip
                contents = {"samples": job.contents} if isinstance(job.samples, (list, tuple)) else {}
                identity = Identity(settings, environment_of(job.options, (), job.places) | self._devices(), contents)
                if saver.folder is not None:
                    saver.folder.files[PLANS] = lambda: plan_file(program_maps(self.steps.plans))
                if saver.entries is not None:
                    saver.compare(identity)
        if saver.entries is not None:
            with agreed(self.ranks):
                self._train_state().load(saver.entries)
        return identity

    def _devices(self) -> dict[str, str]:
        """The makes of devices that bits depend on, where not all replicas compute on the CPU."""
        return {} if set(self.steps.makes) == {"cpu"} else {"backend": ", ".join(self.steps.makes)}

    def _weights(self) -> str:
        return checksum(*(p.stored.read() for p in (*self.parameters.values(), *self.buffers.values())))
