"""Objective: a model, its loss, and its trained parameters: the graph of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from .. import losses, ops
from ..base.dtypes import DType, f32, i32
from ..base.errors import DTypeError, GradientError, GraphError, SettingError, ShapeError
from ..base.patterns import matched
from ..base.structures import Key, Structure, by_key, is_plain, leaves, mapped
from ..graph.grad import gradients
from ..graph.graph import reachable
from ..graph.leaves import Parameter, constant
from ..graph.stored import next_serial
from ..graph.streams import fresh_streams
from ..graph.value import Value, describe
from ..nn.ensemble import Ensemble
from ..nn.module import Module, mode
from ..optim.state import OptimizerState
from ..transform.substitute import with_batch
from .batch_loss import BatchLoss, batch_pair, batch_values, joined_values
from .class_weight import Tables, class_weighted
from .inputs import called, of_graph, rows_of
from .losses import check_labels, loss_of_members, loss_pair
from .marked import MarkedGraph
from .metrics import NOTHING, Measures, MetricLayout
from .output_losses import Losses, LossWeights, OutputLosses, losses_of
from .outputs import Outputs, values_of
from .session import Graph
from .source import NO_KINDS, FeedSource, Join, Kinds, Leaves, RowSource
from .terms import combined
from .trained import Freeze, UnreachedWarning, check_freeze, reached_parameters, refuse_untrained

T = TypeVar("T")
Model = Module | Callable[..., Outputs] | Graph | tuple[Value, Outputs]


class _Losses(NamedTuple):
    """The outputs of a batch, loss sum, weight, values of metrics, their layout, and BatchGraph.adds_up."""

    outputs: Outputs
    total: Value
    weight: Value
    extra: list[Value]
    layout: MetricLayout
    adds_up: bool = True


@dataclass(frozen=True)
class BatchGraph:
    """The graph of a batch: loss sum f32[], weight f32[], predicted classes [rows, ...] where there are some, and the
    values of the layout; gradients of the loss sum, one for each parameter that it reaches."""

    outputs: list[Value]
    grads: list[Value] | None
    parameters: tuple[Parameter, ...]
    layout: MetricLayout
    adds_up: bool = True  # sums and weights of micro-batches add up to those of the batch
    join: Join | None = None  # whose joined rows it reads


class Objective:
    """Builds the graph of a batch: model, loss and gradients.

    loss           a name, an object of gl.losses, a function, a BatchLoss, or a dict or tuple of losses by output;
                   None: the marked losses of a graph, else cross_entropy
    state          of the optimiser, with the parameters chosen to train
    class_weights  f32 [classes], weights of labels in the loss; of losses by output such arrays by output
    loss_weights   of losses by output, 1 where there is none
    """

    def __init__(
        self,
        model: Model,
        loss: Losses | None,
        freeze: Freeze,
        state: OptimizerState,
        class_weights: Tables = None,
        loss_weights: LossWeights = None,
    ) -> None:
        self.model, self.freeze, self.state = _usable_model(model), check_freeze(freeze), state
        if loss is None:
            loss = repr(self.model) if isinstance(self.model, MarkedGraph) else "cross_entropy"
        elif isinstance(self.model, MarkedGraph):
            text = f"{{loss}} and the {self.model!r} of the graph are mutually exclusive"
            raise SettingError(text, loss=loss)
        self.loss = losses_of(loss, loss_weights)  # a str, Loss, function, BatchLoss or OutputLosses
        if class_weights is not None and isinstance(self.loss, OutputLosses):
            self.loss.weigh(class_weights)
            class_weights = None
        if isinstance(class_weights, dict):
            text = "{class_weights} by output requires {loss} by output"
            raise SettingError(text, class_weights=..., loss=...)
        self.class_weights = class_weights
        is_marked = isinstance(self.model, MarkedGraph)
        given = losses.named(loss) if isinstance(loss, str) and not is_marked else self.loss
        self.named_loss = given if isinstance(given, losses.Loss) else None
        self.couples = isinstance(self.loss, BatchLoss)  # the rows of a batch
        if not isinstance(self.loss, (BatchLoss, OutputLosses)) and not isinstance(self.model, MarkedGraph):
            self.loss_pair = loss_pair(self.loss)
        self._warn_unreached = UnreachedWarning("train")
        _need_averages(self.model, self.loss, self.named_loss)
        self.is_total = isinstance(self.named_loss, losses.Sum)  # a total is never divided by a weight
        self.has_predictions = isinstance(self.named_loss, (losses.CrossEntropy, losses.NLL))

    def mode(self, backward: bool) -> contextlib.AbstractContextManager[None]:
        """The mode in which the model builds: training, where parts in eval mode stay as they are, or evaluation."""
        as_set = isinstance(self.model, Module) and backward and self.model.training
        return contextlib.nullcontext() if as_set else mode(backward)

    def outputs(self, x: Structure, backward: bool) -> Outputs:
        """The model's outputs for a batch."""
        if isinstance(self.model, Module):
            with self.mode(backward):
                outputs = called(self.model, x)
        elif isinstance(self.model, MarkedGraph):
            outputs = self.model.outputs_of(x)
            outputs = outputs[0] if len(outputs) == 1 else tuple(outputs)
        elif isinstance(self.model, tuple):
            inputs, made = self.model
            new = iter(with_batch(values_of(made), of_graph(inputs, x)))
            return mapped(lambda _: next(new), made)
        else:
            outputs = called(self.model, x)
        values_of(outputs)
        return outputs

    def graph(
        self, source: RowSource | FeedSource, rows: int, backward: bool, measures: Measures = NOTHING
    ) -> BatchGraph:
        """The graph of `rows` rows; backward: with gradients; measures: the metrics."""
        mark = next_serial()
        pred, total, weight, extra, layout, adds_up = self._losses_of(source, rows, backward, measures)
        reached = reached_parameters(total) if backward else []
        if _made_since(mark, reached):  # once, to be kept, or at each call
            mark = next_serial()
            pred, total, weight, extra, layout, adds_up = self._losses_of(source, rows, backward, measures)
            reached = reached_parameters(total)
        outputs = [total, weight]
        if self.named_loss is not None and isinstance(source, RowSource):
            check_labels(self.named_loss, pred, source.data)
        if self.has_predictions:
            outputs.append(ops.argmax(pred, -1))
        if isinstance(self.loss, OutputLosses) and isinstance(source, RowSource):
            self.loss.check_labels(pred, source.data)
        outputs += extra
        if not backward:
            return BatchGraph(outputs, None, (), layout, adds_up, source.join)
        trained = self._trained(total, reached)
        anew = _made_since(mark, reached)
        if anew:
            raise GraphError(
                f"train: a parameter is made anew at each call of the model or the loss: {describe(anew[0])} "
                f"{anew[0].node.label}; need it made once, outside of them"
            )
        grads = gradients(total, [p for _, p in trained])
        pairs = [(p, g) for (_, p), g in zip(trained, grads, strict=True) if g is not None]
        if not pairs:
            raise GradientError("train: the loss depends on no trainable parameter; need at least one")
        self._warn_unreached([name for (name, _), g in zip(trained, grads, strict=True) if g is None])
        return BatchGraph(outputs, [g for _, g in pairs], tuple(p for p, _ in pairs), layout, adds_up, source.join)

    def predicted(self, source: FeedSource) -> Outputs:
        """The outputs for a batch in evaluation. ShapeError for one without the rows along its first axis."""

        def build(kinds: Kinds) -> Outputs:
            x = source.leaves(source.rows, self.input_kinds | kinds)[0]
            outputs = self.outputs(x, False)
            floats = read_as_floats(x, values_of(outputs))
            return build(kinds | floats) if floats else outputs

        outputs = as_ids_if_needed(source, build)
        for v in values_of(outputs):
            if v.shape[:1] != (source.rows,):
                seen = f"an output {describe(v)} of a batch of {source.rows} rows"
                raise ShapeError(f"predict: {seen}; need the rows along the first axis; node {v.node.label}")
        return outputs

    def values(self, source: RowSource, rows: int, backward: bool) -> list[Value]:
        """The values of a BatchLoss for `rows` rows, without updates of running statistics."""
        return as_ids_if_needed(source, lambda kinds: self._values(source, rows, backward, kinds))

    @fresh_streams()
    def _values(self, source: RowSource, rows: int, backward: bool, kinds: Kinds) -> list[Value]:
        assert isinstance(self.loss, BatchLoss)
        x, labels, weights = source.leaves(rows, self.input_kinds | kinds)
        outputs = self.outputs(x, backward)
        if floats := read_as_floats(x, values_of(outputs)):
            return self._values(source, rows, backward, kinds | floats)
        values = batch_values(self.loss, outputs, labels, self._class_weighted(labels, weights), rows)
        for node in reachable(values, effects=True):
            node.effects = ()
        return values

    @property
    def named_losses(self) -> dict[Key, losses.Loss | None]:
        """The objects of gl.losses by output, None for a function; of a single loss at None."""
        if not isinstance(self.loss, OutputLosses):
            return {None: self.named_loss}
        return {key: one if isinstance(one, losses.Loss) else None for key, one in self.loss.losses.items()}

    @property
    def measured(self) -> list[str]:
        """Names of the numbers that a Result holds without metrics, uncertainties aside."""
        if isinstance(self.loss, OutputLosses):
            return ["loss", *self.loss.measured]
        names = self.model.names if isinstance(self.model, MarkedGraph) else []
        return ["loss", *(names if len(names) > 1 else []), *["accuracy"] * self.has_predictions]

    @property
    def looks_at_labels(self) -> bool:
        """Whether ignored labels affect the graph: by the weights of several means."""
        return isinstance(self.model, MarkedGraph) or self.named_loss is None

    @property
    def input_kinds(self) -> dict[Key, DType]:
        """The dtypes of the model's inputs where the model declares them: those of a graph."""
        inputs = self.model.inputs if isinstance(self.model, MarkedGraph) else {}
        inputs = self.model[0] if isinstance(self.model, tuple) else inputs
        kinds: dict[Key, DType] = {name: leaf.dtype for name, leaf in inputs.items()}
        return kinds | ({None: next(iter(kinds.values()))} if len(kinds) == 1 else {})

    def _losses_of(self, source: RowSource | FeedSource, rows: int, backward: bool, measures: Measures) -> _Losses:
        return as_ids_if_needed(source, lambda kinds: self._losses(source, rows, backward, measures, kinds))

    @fresh_streams()
    def _losses(
        self, source: RowSource | FeedSource, rows: int, backward: bool, measures: Measures, kinds: Kinds
    ) -> _Losses:
        """The outputs and losses of a batch. kinds: of its data."""
        x, labels, weights = source.leaves(rows, self.input_kinds | kinds)
        if isinstance(self.model, MarkedGraph):
            return self._marked(self.model, source, rows, (x, labels, weights), measures)
        left_out = source.left_out(rows, self.model.members) if isinstance(self.model, Ensemble) else None
        given = self.outputs(x, backward) if backward or left_out is None else self._by_others(x, left_out)
        if floats := read_as_floats(x, values_of(given)):  # then the data are converted as the batch is gathered
            return self._losses(source, rows, backward, measures, kinds | floats)
        if isinstance(self.loss, OutputLosses):
            return self._by_output(self.loss, rows, given, (labels, weights), source.all_count, measures)
        pred = ops.mean(given, axes=1) if self._has_members(given, labels) else given
        extra, layout = measures.nodes(rows, pred, labels, weights)
        weights = self._class_weighted(labels, weights)
        if isinstance(self.loss, BatchLoss):
            return _Losses(pred, *self._coupled(self.loss, source, rows, given, labels, weights), extra, layout)
        if pred is not given and labels is not None:
            counted = None if left_out is None else 1.0 - left_out
            return _Losses(pred, *loss_of_members(self.loss_pair, given, labels, weights, counted), extra, layout)
        all_count = self.named_loss is None and source.all_count
        return _Losses(pred, *self.loss_pair(pred, labels, weights, all_count), extra, layout)

    def _by_output(
        self, losses: OutputLosses, rows: int, outputs: Outputs, truth: tuple[Structure | None, Value | None],
        all_count: bool, measures: Measures,
    ) -> _Losses:  # fmt: skip
        """The losses of outputs: their weighted sum, and each by its name, before the values of metrics."""
        pairs = losses.pairs(outputs, *truth, rows, all_count)
        _refuse_names(measures, losses.measured)
        extra, layout = measures.nodes(rows, outputs, *truth)
        total, weight, adds_up = combined(losses.scaled(pairs), rows)
        each = [(s, w) for _, s, w in pairs.values()] + losses.right(outputs, *truth)
        extra = [value for pair in each for value in pair if value is not None] + extra
        layout = replace(layout, losses=tuple((name, 1) for name in losses.measured), factors=losses.weighting)
        return _Losses(outputs, total, weight, extra, layout, adds_up)

    def _coupled(
        self, loss: BatchLoss, source: RowSource | FeedSource, rows: int, outputs: Outputs, labels: Structure | None,
        weights: Value | None,
    ) -> tuple[Value, Value]:  # fmt: skip
        """(sum, weight) of a BatchLoss for a micro-batch, with the rows of its batch's join; a batch by itself is
        joined here."""
        if source.join is not None:
            return batch_pair(loss, outputs, labels, source.join.leaves(rows), weights)
        values = batch_values(loss, outputs, labels, weights, rows)
        return batch_pair(loss, outputs, labels, joined_values(loss, values, rows), weights)

    def _class_weighted(self, labels: Structure | None, weights: Value | None) -> Value | None:
        """Weights of the loss: those of the rows, times those of their classes."""
        if self.class_weights is None or labels is None:
            return weights
        if not is_plain(labels):
            raise SettingError("{class_weights} requires one array of labels", class_weights=...)
        return class_weighted(self.class_weights, labels, weights)

    def _marked(
        self, graph: MarkedGraph, source: RowSource | FeedSource, rows: int, leaves: Leaves, measures: Measures
    ) -> _Losses:
        """The marked losses of a graph: their sum, and several ones each, before the values of metrics."""
        x, labels, weights = leaves
        weights = self._class_weighted(labels, weights)
        outputs, losses = graph.losses(x, labels, weights, rows, source.all_count)
        pred = outputs[0] if len(outputs) == 1 else tuple(outputs)
        if measures and not outputs:
            raise GraphError("metrics: the graph has losses alone; need outputs, too: Graph(logits, loss)")
        _refuse_names(measures, graph.names)
        extra, layout = measures.nodes(rows, pred, labels, leaves[2])
        total, weight, adds_up = combined([pair for pairs in losses for pair in pairs], rows)
        if len(losses) > 1:
            full = constant(float(rows))  # a penalty counts like a mean over the rows
            each = [[(s * full, full) if w is None else (s, w) for _, s, w in pairs] for pairs in losses]
            extra = [value for pairs in each for pair in pairs for value in pair] + extra
            layout = replace(layout, losses=tuple((n, len(p)) for n, p in zip(graph.names, each, strict=True)))
        return _Losses(pred, total, weight, extra, layout, adds_up)

    def _by_others(self, x: Structure, left_out: Value) -> Value:
        """The mean output for each row of the members that are not trained on it: [rows, outputs]."""
        assert isinstance(self.model, Ensemble)
        (only,) = leaves(x)
        with self.mode(False):
            return self.model.averaged(self.model.of_each(only), left_out)

    def _has_members(self, outputs: Outputs, labels: Structure | None) -> bool:
        """Whether the outputs are those of an ensemble in training, [rows, members, ...]."""
        if not isinstance(self.model, Module) or not isinstance(outputs, Value) or not isinstance(labels, Value):
            return False
        of_ids = self.named_loss is not None and self.named_loss.kind == "classes" and not labels.dtype.is_float
        of_one = outputs.shape[-1:] == (1,) and labels.ndim == 1  # labels [rows] fit outputs [rows, 1]
        of_each = outputs.ndim == labels.ndim + (2 if of_ids or of_one else 1)
        return of_each and any(isinstance(one, Ensemble) and one.training for one in self.model.modules())

    def named(self) -> dict[str, Parameter]:
        """The parameters and buffers of a Module in the order of its tree, trainable or not; a function has none."""
        model = self.model
        if not isinstance(model, Module):
            return {}
        tree = {name: p for name, p, _ in model.named_stored()}
        methods = (model.named_parameters, model.named_buffers)  # which a module may write itself
        if all(getattr(m, "__func__", None) in (Module.named_parameters, Module.named_buffers) for m in methods):
            return tree
        named = model.named_parameters() | model.named_buffers()
        order = {p.stored: i for i, p in enumerate(tree.values())}
        return dict(sorted(named.items(), key=lambda one: order.get(one[1].stored, len(order))))

    def _trained(self, total: Value, reached: Sequence[Parameter]) -> list[tuple[str, Parameter]]:
        """The parameters to train, with their names; GraphError for one that the loss reaches and nothing trains."""
        own = self.named()
        mine = {p.stored for p in own.values()}
        named = [*own.items(), *((p.name, p) for p in reached if p.stored not in mine)]
        hits = matched("freeze", self.freeze, [name for name, _ in named])
        frozen = {p.stored for name, p in named if name in hits}
        chosen = self.state.chosen
        if chosen is None and isinstance(self.model, Module):
            refuse_untrained("train", total, reached, mine | frozen)
            chosen = frozenset(mine)
        free = [(name, p) for name, p in named if p.trainable and p.stored not in frozen]
        return [(name, p) for name, p in free if chosen is None or p.stored in chosen]


def as_ids_if_needed(source: RowSource | FeedSource, build: Callable[[Kinds], T]) -> T:
    """The result of `build(kinds)`, kinds: dtypes of data by key. Data of u8, i8 and bool are f32, as those of images;
    where an op of the model takes whole numbers alone, as that of an embedding, they are i32 instead."""
    try:
        return build(NO_KINDS)
    except DTypeError:
        ids = dict.fromkeys(source.narrow, i32)
        if ids:
            with contextlib.suppress(DTypeError):  # the first error is that of the data as they are
                return build(ids)
        raise


def read_as_floats(x: Structure, outputs: Sequence[Value]) -> Kinds:
    """f32 for each input of whole numbers where all that reads it converts it to f32."""
    return {key: f32 for key, one in by_key(x).items() if _is_read_as_floats(one, outputs)}


def _refuse_names(measures: Measures, names: Sequence[str]) -> None:
    """SettingError for a metric with the name of a loss."""
    taken = {name for name, _ in measures.metrics} & set(names)
    if taken:
        text = f"{{metrics}}: the name {min(taken)!r} is that of a loss; use another"
        raise SettingError(text, setting="metrics")


def _is_read_as_floats(x: Value, outputs: Sequence[Value]) -> bool:
    if x.dtype.is_float:
        return False
    same, found = {x}, False
    for node in reachable(outputs, effects=True):
        if not any(v in same for v in node.inputs if v is not None):
            continue
        if node.op.view is not None:
            same.update(node.outputs)
        elif node.op.name == "cast" and node.outputs[0].dtype is f32:
            found = True
        else:
            return False
    return found and not any(v in same for v in outputs)


def _made_since(serial: int, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Those whose arrays are younger than this serial."""
    return [p for p in parameters if p.stored.serial > serial]


def _need_averages(model: Any, loss: Any, named: losses.Loss | None) -> None:
    """SettingError where an ensemble's outputs, averaged as probabilities of classes, are measured as numbers, and for
    an ensemble with a BatchLoss."""
    ensembles = [one for one in model.modules() if isinstance(one, Ensemble)] if isinstance(model, Module) else []
    if ensembles and isinstance(loss, BatchLoss):
        raise SettingError("{loss}: a BatchLoss cannot be combined with nn.Ensemble", loss=...)
    of_outputs = named is not None and named.kind in ("numbers", "binary")
    if of_outputs and any(one.average == "probabilities" for one in ensembles):
        text = "{loss} requires nn.Ensemble(..., average='outputs'): this one averages probabilities of classes"
        raise SettingError(text, loss=loss if isinstance(loss, str) else str(named))


def _usable_model(model: Any) -> Module | Callable[..., Outputs] | MarkedGraph | tuple[dict[str, Value], Outputs]:
    """The model of a trainer: a graph as MarkedGraph or (inputs by name, outputs), others unchanged; GraphError for
    another type."""
    if isinstance(model, Graph):
        made = MarkedGraph(model) if model.is_marked else model.as_pair()
        if isinstance(made, tuple) and len(made[0]) > 1:
            rows_of(made[0])
        return made
    if isinstance(model, type):
        raise GraphError(f"model: got the class {model.__name__}; need one that is made: {model.__name__}(...)")
    is_pair = isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Value)
    if hasattr(type(model), "predict_proba") and hasattr(model, "net"):
        need = "use model.predict(rows) or model.score(rows, targets) for tables, and model.net for its network"
        raise GraphError(f"model: got the {type(model).__name__} of a table; {need}")
    if not callable(model) and not is_pair:
        need = "a module, a function, a gl.Graph or a pair (input, outputs)"
        raise GraphError(f"model: got {type(model).__name__}; need {need}")
    if is_pair:
        values_of(model[1])
        if model[0].node.op.name != "input":
            raise GraphError(f"model: the first of the pair is {describe(model[0])}, no input; need gl.input(...)")
        return {model[0].node.attrs["key"]: model[0]}, model[1]
    return model
