"""SampleSource and SampleObjective: the samples of dp_train in their order, and the graph of one sample."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from ..base.dtypes import dtype
from ..base.errors import GraphError, SettingError, ShapeError
from ..data.dataset import generator
from ..graph.grad import gradients
from ..graph.leaves import constant
from ..graph.leaves import input as input_value
from ..graph.streams import fresh_streams
from ..graph.value import Value, describe
from ..nn.module import Module
from .batches import Truth
from .metrics import EMPTY, NOTHING, Measures
from .objective import BatchGraph
from .replica_job import ReplicaJob
from .samples import Leaves, as_sample, flatten, rebuilt
from .trained import reached_parameters, refuse_untrained

_ORDER = 3  # the stream of generator(seed, _ORDER, pass)


class Sample(NamedTuple):
    """A sample as named arrays, and how they form a pair or a dict: see samples.flatten."""

    number: int
    layout: Any
    leaves: Leaves

    @property
    def key(self) -> Hashable:
        """Equal keys, equal graphs."""
        return (self.layout, *((a.shape, a.dtype.str) for a in self.leaves.values()))


class SampleSource(Truth):
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

    def truth(self, start: int, stop: int) -> tuple[None, None]:
        """None: the job's functions read the targets."""
        return None, None


class SampleObjective:
    """The loss of one sample, with its gradients."""

    is_total = has_predictions = False

    def __init__(self, job: ReplicaJob, model: Module) -> None:
        self._job, self._model = job, model
        self.parameters, self.buffers = model.named_parameters(), model.named_buffers()

    def graph(self, source: Sample, rows: int = 1, backward: bool = True, measures: Measures = NOTHING) -> BatchGraph:
        """The graph of a sample: loss sum, weight, and the gradients of the parameters that the loss reaches."""
        job = self._job
        sample = rebuilt(source.layout, {n: input_value(n, a.shape, dtype(a.dtype)) for n, a in source.leaves.items()})
        if isinstance(sample, dict) and (job.forward_fn is None or job.target_fn is None):
            lacks = "forward_fn" if job.forward_fn is None else "target_fn"
            raise SettingError(f"samples are dicts of {sorted(sample)}; need {lacks}, which picks out of them")
        with fresh_streams():
            out = self._model(sample[0]) if job.forward_fn is None else job.forward_fn(self._model, sample)
            target = sample[1] if job.target_fn is None else job.target_fn(sample)
            total, weight = _loss_pair(job.loss_fn(out, target))
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
