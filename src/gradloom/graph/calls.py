"""Call: the Python function of a node, and the checks of its arrays and results.

A node of an op with `python=True` has a Call as its attribute `call`. Executors call it between two ranges of native
instructions (run/calls.py); the float64 references call it like any other reference.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import locks
from ..base.arguments import what_is
from ..base.arrays import as_array
from ..base.dtypes import DType
from ..base.errors import UserOpError, one_line
from .declaration import Spec

if TYPE_CHECKING:
    from .value import Node

_numbers = itertools.count()


class Call:
    """A function of arrays that Python computes. Two calls are one function only if they are one object.

    name         as messages and listings call it
    number       of this object in this process
    fingerprint  the same in another process: name and digest of the functions' code, without the contents of closures
    """

    name: str
    fingerprint: str

    def __init__(self) -> None:
        self.number = next(_numbers)

    def infer(self, inputs: Sequence[Spec]) -> list[Spec]:
        """Shapes and dtypes of the results; raises Reject."""
        raise NotImplementedError

    def compute(self, arrays: Sequence[np.ndarray], outputs: Sequence[Spec]) -> Sequence[Any]:
        """The results as the user's function returns them, one for each output; UserOpError for another number."""
        raise NotImplementedError

    def result(self, i: int) -> str:
        """What messages call output i."""
        return f"result {i}"

    def __repr__(self) -> str:
        return self.name


def computed(node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a node of a Python function, of the shapes of the graph.

    The function gets read-only copies: it may keep them, and nothing that it does to them reaches the program. Real
    numbers are computed in the precision of its arrays; whole numbers are checked for the range of their dtype.
    UserOpError, in one line that names the function and the line of its call, for whatever goes wrong.
    """
    call: Call = node.attrs["call"]
    given = [np.array(array, order="C") for array in arrays]
    for array in given:
        array.flags.writeable = False
    outputs = [Spec(v.shape, v.dtype) for v in node.outputs]
    try:
        with locks.user_code():
            made = call.compute(given, outputs)
            results = [
                _as_result(call.result(i), one, spec) for i, (one, spec) in enumerate(zip(made, outputs, strict=True))
            ]
    except UserOpError as error:
        raise UserOpError(f"{_place(node)}: {error}") from error.__cause__
    except Exception as error:
        text = _text_of(error)
        seen = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise UserOpError(f"{_place(node)}: {seen if len(seen) <= 300 else seen[:297] + '...'}") from error
    return results


def _place(node: Node) -> str:
    return f"{node.title} {node.label}" if node.name else node.label


def _text_of(error: Exception) -> str:
    try:
        return " ".join(str(error).split())
    except Exception:
        return "its text cannot be made"


def _as_result(what: str, made: Any, spec: Spec) -> np.ndarray:
    """A result as an array. UserOpError for one of another shape or kind of numbers."""
    need = f"need {spec.dtype.name}{list(spec.shape)}"
    if made is None:
        raise UserOpError(f"{what} is None; {need}")
    array = as_array(what, made)
    if array.shape != spec.shape:
        raise UserOpError(f"{what} has shape {list(array.shape)}; {need}")
    if array.dtype.kind not in ("f" if spec.dtype.is_float else "iub"):
        raise UserOpError(f"{what} is of dtype {array.dtype}; {need}")
    if spec.dtype.is_float:
        return array
    bounds = np.iinfo(spec.dtype.numpy)
    if array.size and not (int(array.min()) >= bounds.min and int(array.max()) <= bounds.max):
        wrong = int(array.min()) if int(array.min()) < bounds.min else int(array.max())
        raise UserOpError(f"{what} holds {wrong}, which {spec.dtype.name} does not hold; {need}")
    return array


def several(made: Any, count: int, what: str) -> Sequence[Any]:
    """What a function returned for `count` results: one alone, or a tuple or list of them."""
    if count == 1 and not isinstance(made, tuple):
        return [made]
    if not isinstance(made, (tuple, list)):
        raise UserOpError(f"{what} returned {what_is(made)}; need a tuple of {count} arrays")
    if len(made) != count:
        raise UserOpError(f"{what} returned {len(made)} results; need {count}")
    return made


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, of a partial the name of its function, of another object the name of its class."""
    function = getattr(function, "func", function)
    return str(getattr(function, "__name__", type(function).__name__))


def code_digest(*functions: Callable[..., Any] | None) -> str:
    """Of what these functions do, as far as their code states it."""
    found = hashlib.sha256()
    for function in functions:
        function = getattr(function, "func", function)
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None and function is not None:
            code = getattr(vars(type(function)).get("__call__"), "__code__", None)
        found.update(_code_text(code).encode() if isinstance(code, CodeType) else b"-")
    return found.hexdigest()[:16]


def _code_text(code: CodeType) -> str:
    constants = [_code_text(one) if isinstance(one, CodeType) else one_line(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def is_taken(kind: DType) -> bool:
    """Whether arrays of this dtype are arrays of NumPy."""
    return not kind.is_quantised and kind.name != "bf16"
