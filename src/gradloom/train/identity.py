"""Identity of a Loop: every setting, graph and input that affects its result bits. See runs/identity.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..graph.graph import reachable, storage_leaf
from ..graph.stored import Stored
from ..graph.structure import digests
from ..graph.value import Value
from ..parallel.communicator import checksum
from ..runs.identity import Identity, environment_of, optimizer_of
from ..runs.module_state import attributes_kept
from ..runs.state import shown
from .batches import CompiledBatch
from .callbacks import Callback
from .output_losses import OutputLosses
from .trainer import Trainer

if TYPE_CHECKING:
    from .loop_state import LoopState

BUILDS = 4  # compilations of a dynamic model that must give the same graphs


def trainer_settings(trainer: Trainer) -> dict[str, Any]:
    """The part of a trainer: texts and numbers, in dicts of one level."""
    objective, optimizer = trainer.objective, trainer.optimizer
    weights = objective.class_weights
    loss = objective.loss
    of_loss = {"loss": loss if isinstance(loss, str) else shown(loss)}
    return {
        **(loss.settings() if isinstance(loss, OutputLosses) else of_loss),
        "model": {name: f"{p.dtype.name}{list(p.shape)}" for name, p in objective.named().items()},
        "frozen": sorted(name for name, p in objective.named().items() if not p.trainable),
        "optimizer": optimizer_of(optimizer),
        "accumulate": trainer.accumulate,
        **trainer.bits,
        "class_weights": None if weights is None else weights.tolist(),
        "dynamic": trainer.dynamic,
    }


def identity_of(loop: LoopState) -> Identity:
    """That of a loop; its steps and evaluations are compiled now."""
    trainer, source = loop.trainer, loop.trainer.source(loop.data)
    sizes = {"batch_size": loop.batch_size, "micro_batch_size": loop.micro_batch_size}
    attributes = trainer.modules.built()
    steps, graphs = _built(loop)
    values = [v for step in steps for v in (*step.outputs, *step.updates, *step.run.effects)]
    settings = {
        **loop.about,
        **{name: value for each in loop.subscribers for name, value in each.about().items()},
        **loop.data.records,
        **trainer_settings(trainer),
        **sizes,
        "attributes": attributes | _user_ops(values),
        "seed of the rows": loop.seed,
        "training rows": len(loop.train_rows),
        "validation rows": len(loop.val_rows),
        "rows": checksum(loop.train_rows, loop.val_rows),
        "evaluation": loop.evaluator.settings,
        "callbacks": [shown(each) for each in loop.callbacks if each.steers],
        **graphs,
        "statistics": any(stored not in trainer.state for stored in trainer.written()),  # running ones are written
    }
    leaves = {n.attrs["stored"]: None for n in reachable(values) if isinstance(n.attrs.get("stored"), Stored)}
    written = {storage_leaf(v).node.attrs["stored"] for step in steps for v in step.run.effects}
    joined = [stored for step in steps if step.join is not None for stored in step.join.stored]
    known = {*trainer.train_state.arrays().values(), *written, *source.stored, source.order, *joined}
    constant = [stored for stored in leaves if stored not in known]
    data, sets = source.contents, loop.evaluator.contents
    contents: dict[str, Callable[[], Any]] = {
        "data": lambda: data,
        "validation sets": lambda: sets,
        "frozen weights": lambda: [checksum(one.name, one.dtype.name, one.read()) for one in constant],
        **{name: value for each in loop.subscribers for name, value in each.contents().items()},
    }
    unknown = [] if loop.has_rows or data else ["the batches"]
    unknown += [] if graphs else ["the model's graph (dynamic=True: it is another one from call to call)"]
    metrics = loop.evaluator.measures.metrics
    unknown += [f"the metric {name} (whole=True)" for name, one in metrics if one.whole and one.score is None]
    own = [each for each in loop.callbacks if each.steers and not type(each).__module__.startswith("gradloom.")]
    own_text = (object.__repr__, Callback.__repr__)  # texts that do not depend on settings
    unknown += [f"the callback {type(each).__name__}" for each in own if type(each).__repr__ in own_text]
    environment = environment_of(trainer.options, [step.run for step in steps])
    return Identity(settings, environment, contents, unknown)


def _user_ops(values: Sequence[Value]) -> dict[str, str]:
    """Names of the functions of gl.op, and digests of their code."""
    calls = {n.attrs["call"].fingerprint.removesuffix(" vjp") for n in reachable(values) if n.op.python}
    return {"the code of gl.op": ", ".join(sorted(calls))} if calls else {}


def _built(loop: LoopState) -> tuple[list[CompiledBatch], dict[str, str]]:
    """The steps of a pass and of an evaluation; and digests by name: of all that the steps compute, of the losses and
    gradients of micro-batches, of evaluations, and of each metric. None where the graphs change by themselves.

    With ranks a step is ended by another graph, with the same bits; its micro-batches are the same.
    """
    trainer = loop.trainer

    def once() -> tuple[list[CompiledBatch], dict[str, str]]:
        trained = loop.programs(len(loop.train_rows))
        measured = loop.evaluator.prepare(loop.micro_batch_size)
        return trained, _digests(trained, measured)

    if not trainer.dynamic:
        return once()
    with attributes_kept(trainer.model, trainer.loss):
        steps, graphs = once()
        return (steps, graphs) if all(once()[1] == graphs for _ in range(BUILDS - 1)) else ([], {})


def _digests(trained: Sequence[CompiledBatch], measured: Sequence[CompiledBatch]) -> dict[str, str]:
    joins = {step.join: None for step in trained if step.join is not None}
    joined = [one for join in joins for one, _ in join.programs]
    values = [v for step in (*trained, *joined) for v in (*step.outputs, *step.updates, *step.run.effects)]
    metrics: dict[str, list[Value]] = {}
    for step in measured:
        extra = iter(step.extra(step.outputs))
        for name in step.layout.per_row:
            metrics.setdefault(f"metric {name}", []).append(next(extra))
        for name in step.layout.pairs:
            metrics.setdefault(f"metric {name}", []).extend((next(extra), next(extra)))
    return {
        "graph": checksum(*digests(values)),
        "micro-batch": checksum(*_distinct([[*step.outputs[:2], *step.grads] for step in trained])),
        "evaluation graph": checksum(*_distinct([step.outputs[:2] for step in measured])),
        **{name: checksum(*sorted(set(digests(values)))) for name, values in metrics.items()},
    }


def _distinct(each: Sequence[Sequence[Value]]) -> list[str]:
    """The digests of graphs, each once: how many were compiled decides nothing."""
    return sorted({" ".join(digests(values)) for values in each})
