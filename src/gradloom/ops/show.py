"""show: print a value of a graph when its program runs. The op is the identity; run/show.py prints."""

from __future__ import annotations

from typing import Any

from ..base.arguments import as_whole, what_is
from ..base.errors import SettingError
from ..base.hooks import print_value
from ..graph.declare import op
from ..graph.leaves import as_value, named
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Spec, bad, need


def _show_shape(x: Spec, every: int) -> Spec:
    need(every >= 1, f"every is {every}", "at least 1")
    return Spec(x.shape, x.dtype)


_show: OpSpec = op(
    "show", inputs="x", attrs="every:int=1", doc="y = x (a view); the program prints x at every n-th of its calls",
    dtypes="any", shape=_show_shape, view=lambda layout_shape, strides: (0, list(strides)),
    vjp=lambda g: [g], reference=lambda x, every: x, no_samples="the identity",
    bad_samples=[bad("show: every is 0: x f32[2]; need at least 1", (2,), every=0)],
)  # fmt: skip


def show(x: Any, name: str, every: int = 1) -> Value:
    """Print x when its program runs, and return x: dtype, shape, mean, least and largest number, the first numbers.

    x       of any shape and dtype but quantised ones; an eager tensor is computed and printed now
    name    printed before; also the name of the node
    every   print at each n-th call of the program, from the first one on

    Lines go to stderr before the step that they are of. The gradient is the identity, and no bit of a result changes:
    a second program computes the values first (run/watch.py), so a printed step takes up to twice the time of a
    forward pass. A step that is not finite has no line. Raises SettingError for a name that is no text.
    """
    if not isinstance(name, str) or not name:
        raise SettingError(f"show: {{name}} is {what_is(name)}; must be a text", setting="name", seen=name)
    every = as_whole("every", every, 1, "show")
    x = as_value(x)
    if x.recorder is not None:
        print_value(name, x.numpy())
        return x
    return named(_show(x, every=every), name)
