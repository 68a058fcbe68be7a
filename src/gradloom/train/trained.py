"""Parameters that a loss trains: those of the model; an error names others that it reaches and are not declared."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..base.errors import GraphError
from ..base.patterns import as_patterns
from ..base.warned import warn
from ..graph.grad import gradients
from ..graph.graph import reachable
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import Value, describe

Freeze = str | Sequence[str]


def reached_parameters(total: Value) -> list[Parameter]:
    """The trainable parameters that a value is computed from, each array once."""
    leaves = [v for n in reachable([total]) for v in n.outputs if isinstance(v, Parameter) and v.trainable]
    return list({v.stored: v for v in leaves}.values())


def refuse_untrained(who: str, total: Value, reached: Sequence[Parameter], known: Collection[Stored]) -> None:
    """GraphError naming a parameter not in `known` for which the loss has a gradient: it would not be trained.
    reached: the loss's `reached_parameters`."""
    others = [p for p in reached if p.stored not in known]
    if not others:
        return
    untrained = [p for p, g in zip(others, gradients(total, others), strict=True) if g is not None]
    if untrained:
        more = f" and {len(untrained) - 1} more" if len(untrained) > 1 else ""
        raise GraphError(
            f"{who}: the loss reaches a parameter that nobody trains: {describe(untrained[0])} "
            f"{untrained[0].node.label}{more}; need it as an attribute of the model (self.name = ...), among the "
            "parameters of the optimiser, or declared frozen (trainable=False)"
        )


class UnreachedWarning:
    """Warns, once, of parameters that a training does not train because its loss does not depend on them."""

    def __init__(self, who: str) -> None:
        self._who, self._is_done = who, False

    def __call__(self, names: Sequence[str]) -> None:
        """names: of the parameters that are to train, and for which the loss has no gradient."""
        if names and not self._is_done:
            self._is_done = True
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warn(
                f"{self._who}: the loss does not depend on {names[0]}{more}, which stays untrained; use it in the "
                "model's outputs, or freeze it (freeze=, trainable=False)"
            )


def check_freeze(freeze: Freeze) -> tuple[str, ...]:
    """The patterns, or SettingError."""
    return as_patterns("freeze", freeze)
