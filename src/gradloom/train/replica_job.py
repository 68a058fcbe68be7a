"""ReplicaJob: the settings of all replicas of dp_train, the samples in their order, and the graph of a sample."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.dtypes import dtype
from ..base.errors import DataError, GraphError, SettingError, ShapeError
from ..base.settings import switches
from ..data.dataset import generator
from ..graph.grad import gradients
from ..graph.leaves import constant
from ..graph.leaves import input as input_value
from ..graph.numbers import kind_of
from ..graph.streams import fresh_streams
from ..graph.value import Value, describe
from ..losses import Loss
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..run.backend import device_of_rank
from ..run.cpu_backend import isa_of
from ..runs.identity import optimizer_of
from ..runs.state import shown
from .inputs import called
from .metrics import EMPTY
from .objective import BatchGraph
from .source import check_ids, numbers
from .trained import reached_parameters, refuse_untrained

Leaves = dict[str, np.ndarray]

_ORDER = 3  # the stream of generator(seed, _ORDER, pass)


@dataclass(frozen=True)
class ReplicaJob:
    """What all replicas know."""

    samples: Sequence[Any]
    count: int
    loss_fn: Loss | Callable[..., Any]
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
    ema: float
    skips: bool
    devices: str | tuple[str, ...]  # of all replicas, or of each
    options: dict[str, Any]

    def device_of(self, rank: int) -> str:
        """Where a replica computes."""
        return device_of_rank(self.devices, rank) if isinstance(self.devices, str) else self.devices[rank]

    @property
    def places(self) -> list[str]:
        """Where replicas compute, each device once."""
        return [self.devices] if isinstance(self.devices, str) else list(dict.fromkeys(self.devices))

    def settings(self) -> str:
        """What must be the same everywhere, as text."""
        chosen = switches(**self.options)
        rates = [(k, v(0, 0) if callable(v) else v) for k, v in sorted(self.optimizer.settings.items())]
        return repr((
            self.count, self.iterations, type(self.optimizer).__name__, rates, self.max_norm, self.max_value,
            self.shuffle, self.seed, self.exchange, isa_of(self.places, chosen.isa), chosen.precision, chosen.flush,
            self.ema, self.skips, self.devices,
        ))  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common, but for the models. Its end may be another one."""
        functions = {"loss_fn": self.loss_fn, "forward_fn": self.forward_fn, "target_fn": self.target_fn}
        named = {n: str(f) if isinstance(f, Loss) else None if f is None else shown(f) for n, f in functions.items()}
        return named | {
            "samples": self.count, "optimizer": optimizer_of(self.optimizer), "max_norm": self.max_norm,
            "max_value": self.max_value, "shuffle": self.shuffle, "seed": self.seed, "exchange": self.exchange,
            "ema": self.ema, "on_nonfinite": "skip" if self.skips else "stop",
        }  # fmt: skip

    def contents(self) -> list[Any]:
        """The arrays of all samples, for a digest."""
        leaves: Leaves = {}
        layouts = [flatten(as_sample(sample), f"{i}.", leaves) for i, sample in enumerate(self.samples)]
        return [repr(layouts), *leaves.values()]


# ---- samples ----


class Sample(NamedTuple):
    """A sample as named arrays, and how they form a pair or a dict: see samples.flatten."""

    number: int
    layout: Any
    leaves: Leaves

    @property
    def key(self) -> Hashable:
        """Equal keys, equal graphs."""
        return (self.layout, *((a.shape, a.dtype.str) for a in self.leaves.values()))


class SampleSource:
    """The samples of a whole training, one pass after the other. at: a position in it, from 0."""

    def __init__(self, job: ReplicaJob) -> None:
        self._job = job
        self._pass, self._order = -1, np.arange(0)

    def number(self, at: int) -> int:
        """The number of the sample among those of the job."""
        job = self._job
        number, at = divmod(at, job.count)
        if not job.shuffle:
            return at
        if number != self._pass:
            self._pass, self._order = number, generator(job.seed, _ORDER, number).permutation(job.count)
        return int(self._order[at])

    def sample(self, at: int) -> Sample:
        """The sample."""
        number, leaves = self.number(at), Leaves()
        return Sample(number, flatten(as_sample(self._job.samples[number]), "", leaves), leaves)


class SampleObjective:
    """The loss of one sample, with its gradients."""

    is_total = has_predictions = couples = False

    def __init__(self, job: ReplicaJob, model: Module) -> None:
        self._job, self._model = job, model
        self.parameters, self.buffers = model.named_parameters(), model.named_buffers()

    def graph(self, of: Sample) -> BatchGraph:
        """The graph of a sample: loss sum, weight, and the gradients of the parameters that the loss reaches."""
        job = self._job
        sample = rebuilt(of.layout, {n: input_value(n, a.shape, dtype(a.dtype)) for n, a in of.leaves.items()})
        if isinstance(sample, dict) and (job.forward_fn is None or job.target_fn is None):
            lacks = "forward_fn" if job.forward_fn is None else "target_fn"
            raise SettingError(f"samples are dicts of {sorted(sample)}; need {lacks}, which picks out of them")
        with fresh_streams():
            out = called(self._model, sample[0]) if job.forward_fn is None else job.forward_fn(self._model, sample)
            target = sample[1] if job.target_fn is None else job.target_fn(sample)
            loss = job.loss_fn
            total, weight = _loss_pair(loss.pair(out, target) if isinstance(loss, Loss) else loss(out, target))
        parameters = list(self.parameters.values())
        refuse_untrained("dp_train", total, reached_parameters(total), {p.stored for p in parameters})
        pairs = [(p, g) for p, g in zip(parameters, gradients(total, parameters), strict=True) if g is not None]
        return BatchGraph([total, weight], [g for _, g in pairs], tuple(p for p, _ in pairs), EMPTY)


def _loss_pair(loss: Any) -> tuple[Value, Value]:
    """(sum, weight) from the result of loss_fn; a scalar has weight 1."""
    pair = loss if isinstance(loss, tuple) and len(loss) == 2 else (loss, constant(1.0))
    for v in pair:
        if not isinstance(v, Value):
            raise GraphError(f"loss_fn gave {type(v).__name__}; need a scalar of the graph, or a pair (sum, weight)")
        if v.shape:
            raise ShapeError(f"loss_fn gave {describe(v)}; need a scalar, or a pair of scalars (sum, weight)")
    return pair


def as_sample(sample: Any) -> Any:
    """The sample as a pair or a dict; DataError for anything else."""
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return tuple(sample)
    seen = f"{type(sample).__name__} of {len(sample)}" if isinstance(sample, (tuple, list)) else type(sample).__name__
    raise DataError(f"got {seen}; need a pair (x, target) or a dict of arrays")


def flatten(part: Any, name: str, leaves: Leaves) -> Any:
    """Collect the arrays of tuples and dicts, and answer a hashable layout for `rebuilt`."""
    if isinstance(part, dict):
        keys = sorted(part, key=str)
        return ("dict", *((k, flatten(part[k], f"{name}.{k}" if name else str(k), leaves)) for k in keys))
    if isinstance(part, tuple):
        names = ("x", "target") if not name else [f"{name}[{i}]" for i in range(len(part))]
        return ("tuple", *(flatten(v, n, leaves) for n, v in zip(names, part, strict=True)))
    if name in leaves:
        raise DataError(f"{name} is there twice; need one array for a name")
    leaves[name] = _as_leaf(name, part)
    return name


def rebuilt(layout: Any, values: dict[str, Value]) -> Any:
    """The sample of a layout, with values in the place of its arrays."""
    if isinstance(layout, str):
        return values[layout]
    if layout[0] == "dict":
        return {k: rebuilt(v, values) for k, v in layout[1:]}
    return tuple(rebuilt(v, values) for v in layout[1:])


def _as_leaf(name: str, data: Any) -> np.ndarray:
    """Numbers in the dtype that gl.tensor gives them."""
    array, kind = numbers(name, data, ("bfloat16",)), kind_of(data)
    if not kind.is_float:
        check_ids(name, array, kind.numpy)
    return array.astype(kind.numpy, copy=False)
