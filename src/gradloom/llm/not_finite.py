"""Error for results of a language model that are not finite, naming the first tensor or operation that is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.arrays import place_in
from ..base.errors import NonFiniteError
from ..files.gguf_types import first_not_finite
from ..graph.value import Value
from ..run.diagnose import first_bad
from .model import Adapter, Model


def not_finite(
    what: str,
    model: Model,
    adapter: Adapter | None,
    run: Any,
    outputs: Sequence[Value],
    settings: Mapping[str, Any],
    **options: Any,
) -> NonFiniteError:
    """The error for a result `what` that is not finite. It names the first tensor of the adapter or of the model file
    that is not, or the first operation whose result is not.

    run: the executable of outputs, compiled with `options`, whose last run returned the result. settings: of that run.
    """
    cause = _tensor(model, adapter) or first_bad(run, outputs, (), settings, **options)
    return NonFiniteError(f"{what} is not finite: {cause}")


def _tensor(model: Model, adapter: Adapter | None) -> str | None:
    """The first tensor that is not finite, of the adapter and then of the model file."""
    for name, parameter in adapter.parameters().items() if adapter is not None else ():
        array = parameter.stored.read()
        bad = np.flatnonzero(~np.isfinite(array))
        if bad.size:
            return f"tensor {name} of the adapter holds {array.flat[bad[0]]:g}{place_in(array.shape, int(bad[0]))}"
    for name in model.weights:
        tensor = model.file.tensors[name]
        found = first_not_finite(tensor.kind, model.file.bytes(name))
        if found is not None:
            return f"{model.path}: tensor {name} ({tensor.kind}) holds {found[1]}{place_in(tensor.shape, found[0])}"
    return None
