"""op: user-defined ops in NumPy, with a gradient of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base import locks
from ..base.arguments import what_is
from ..base.dtypes import DType, dtype, f32
from ..base.errors import DTypeError, GradientError, GraphError, SettingError, UserOpError
from ..graph.calls import Call, code_digest, function_name, is_taken, several
from ..graph.declaration import Reject, Spec
from ..graph.declare import op as declare
from ..graph.opspec import OpSpec
from ..graph.value import Node, Value, describe_spec
from .common import bad, need
from .layout import broadcast_to

GIVEN = ("inputs", "outputs", "gradients")  # what a vjp is called with, as far as it has parameters of these names


def _shape(x: list[Spec], call: Call) -> list[Spec]:
    need(isinstance(call, Call), f"call is {what_is(call)}", "an op that gl.op has made")
    return call.infer(x)


def _vjp(x: list[Value], y: list[Value], g_y: list[Value | None], call: Any) -> list[list[Value | None]]:
    return [call.gradients(x, y, g_y)]


user_op: OpSpec = declare(
    "user_op", inputs="| x", outputs="| y", attrs="call:object", python=True, foldable=False,
    dtypes="f32|f64|f16|i32|i64|i8|u8",
    doc="a user-defined op: gl.op(forward, vjp, shape) calls Python functions", shape=_shape, vjp=_vjp,
    no_gradient_to={"x": "whole numbers"}, no_samples="its function is the user's",
    bad_samples=[bad("user_op: call is an int: x0 f32[2]; need an op that gl.op has made", (2,), call=3)],
)  # fmt: skip


class UserOp(Call):
    """A user-defined op; see gl.op. Call it with values of a graph, eager tensors, arrays or numbers."""

    def __init__(
        self, forward: Callable[..., Any], vjp: Callable[..., Any] | None, shape: Callable[..., Any] | None
    ) -> None:
        super().__init__()
        self.forward, self.vjp, self.shape = forward, vjp, shape
        self.name = self.__name__ = function_name(forward)
        self.__doc__ = getattr(forward, "__doc__", None)
        self.fingerprint = f"{self.name} {code_digest(forward, vjp, shape)}"
        self.wants = _wanted(vjp)
        self._backward: dict[tuple[int, tuple[Spec, ...], tuple[Spec, ...]], _Backward] = {}

    def __call__(self, *inputs: Any) -> Any:
        """The result, or a tuple of several."""
        if not inputs or any(x is None for x in inputs):
            seen = "None among its inputs" if inputs else "no inputs"
            raise GraphError(f"{self.name}: got {seen}; need at least one value, tensor or array")
        made = user_op(*inputs, call=self)
        return made[0] if len(made) == 1 else made

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: object) -> UserOp:
        return self  # the identity of its programs

    def __reduce__(self) -> Any:
        return op, (self.forward, self.vjp, self.shape)

    def infer(self, inputs: Sequence[Spec]) -> list[Spec]:
        if self.shape is None:
            return [Spec(inputs[0].shape, inputs[0].dtype)]
        try:
            with locks.user_code():
                made = self.shape(*inputs)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise Reject(f"shape of {self.name}: {text:.200}", "inputs that the function takes") from error
        return self._specs(made)

    def _specs(self, made: Any) -> list[Spec]:
        """What `shape` returned: one shape, (shape, dtype) or object with both, or a tuple or list of several."""
        alone = _spec(made)
        specs = (
            [alone] if alone is not None else [_spec(one) for one in made] if isinstance(made, (tuple, list)) else []
        )
        found = [spec for spec in specs if spec is not None]
        if not found or len(found) < len(specs):
            seen = f"shape of {self.name} returned {what_is(made)} {made!r:.60}"
            raise Reject(seen, "a shape such as (2, 3), a pair ((2, 3), 'i32'), or a list of these", GraphError)
        for spec in found:
            if not is_taken(spec.dtype):
                raise Reject(f"shape of {self.name} returned dtype {spec.dtype.name}", "one of NumPy's", DTypeError)
        return found

    def compute(self, arrays: Sequence[np.ndarray], outputs: Sequence[Spec]) -> Sequence[Any]:
        return several(self.forward(*arrays), len(outputs), "forward")

    def gradients(self, x: list[Value], y: list[Value], g_y: list[Value | None]) -> list[Value | None]:
        """The gradients of the inputs: of the real ones results of one node that calls vjp."""
        if self.vjp is None:
            raise _no_gradient(y[0].node, "gl.op was given no vjp")
        inputs, outputs = (tuple(Spec(v.shape, v.dtype) for v in values) for values in (x, y))
        key = (len(x), inputs, outputs)
        backward = self._backward.get(key)
        if backward is None:
            backward = self._backward[key] = _Backward(self, inputs, outputs)
        given = [*(x if "inputs" in self.wants else ()), *(y if "outputs" in self.wants else ())]
        for value, g in zip(y, g_y, strict=True):
            if value.dtype.is_float:
                given.append(broadcast_to(0.0, value.shape) if g is None else g)
        slopes = user_op(*given, call=backward)
        if slopes:
            slopes[0].node.where = y[0].node.where  # its functions were given together
        each = iter(slopes)
        return [next(each) if v.dtype.is_float else None for v in x]


class _Backward(Call):
    """The vjp of a user-defined op for inputs and results of these shapes and dtypes."""

    def __init__(self, op: UserOp, inputs: tuple[Spec, ...], outputs: tuple[Spec, ...]) -> None:
        super().__init__()
        self.op, self.inputs, self.outputs = op, inputs, outputs
        self.name, self.fingerprint = f"{op.name}.vjp", f"{op.fingerprint} vjp"
        self.__name__ = self.name

    def __deepcopy__(self, memo: object) -> _Backward:
        return self

    def infer(self, inputs: Sequence[Spec]) -> list[Spec]:
        expected = [*(self.inputs if "inputs" in self.op.wants else ())]
        expected += self.outputs if "outputs" in self.op.wants else ()
        expected += [Spec(spec.shape, f32) for spec in self.outputs if spec.dtype.is_float]
        if [*inputs] != expected:
            raise Reject(
                f"{self.name} was made for other shapes", f"{[describe_spec(s.shape, s.dtype) for s in expected]}"
            )
        return [Spec(spec.shape, f32) for spec in self.inputs if spec.dtype.is_float]

    def compute(self, arrays: Sequence[np.ndarray], outputs: Sequence[Spec]) -> Sequence[Any]:
        wants, rest, given = self.op.wants, list(arrays), dict[str, tuple[np.ndarray | None, ...]]()
        for name, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            if name in wants:
                given[name], rest = tuple(rest[: len(specs)]), rest[len(specs) :]
        slopes = iter(rest)
        if "gradients" in wants:
            given["gradients"] = tuple(next(slopes) if spec.dtype.is_float else None for spec in self.outputs)
        assert self.op.vjp is not None
        made = several(self.op.vjp(**given), len(self.inputs), "vjp")
        real = next((a.dtype for a in reversed(arrays) if a.dtype.kind == "f"), np.dtype(np.float32))
        found: list[Any] = []
        for i, (one, spec) in enumerate(zip(made, self.inputs, strict=True)):
            if spec.dtype.is_float:
                found.append(np.zeros(spec.shape, real) if one is None else one)
            elif one is not None:
                raise UserOpError(f"vjp returned a gradient of input {i}, which is {spec.dtype.name}; need None")
        return found

    def result(self, i: int) -> str:
        return f"the gradient of input {[k for k, spec in enumerate(self.inputs) if spec.dtype.is_float][i]}"

    def gradients(self, x: list[Value], y: list[Value], g_y: list[Value | None]) -> list[Value | None]:
        raise _no_gradient(y[0].node, "its vjp is a function of NumPy, which has no second derivative")


def op(
    forward: Callable[..., Any],
    vjp: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
) -> UserOp:
    """A user-defined op: a function of values, tensors and arrays that Python computes with NumPy.

    forward(*inputs)  arrays (f32 in a program, f64 in gl.check_gradients and with backend="numpy") -> an array, or a
                      tuple of several
    vjp(...)          the gradients of the inputs: an array of the shape of each, or None for 0, in a tuple where there
                      are several. It is called with those of the keywords inputs, outputs, gradients that it has as
                      parameters, each a tuple of arrays; gradients are those of the loss by the results, None for whole
                      numbers. Without it a gradient is a GradientError
    shape(*inputs)    objects with .shape and .dtype -> the shape of the result (f32), or (shape, dtype), or a list of
                      these where there are several results; by default those of the first input. It is called when a
                      graph is built

        softsign = gl.op(lambda x: x / (1 + abs(x)), lambda inputs, gradients: gradients[0] / (1 + abs(inputs[0])) ** 2)

    Arrays are copies, marked read-only. The functions run on the CPU, while no other program of the process runs. They
    cannot run programs, use ops on tensors or read tensors that are not computed yet; they may be called more often
    than there are steps. A program belongs to this op object: make it once, outside of loops. Whatever the functions
    raise, and results of another number, shape or kind, are a UserOpError that names op and line; the weights are as
    before the step. See docs/user_ops.md.

    Raises SettingError for functions that cannot be called so.
    """
    for name, function in (("forward", forward), ("vjp", vjp), ("shape", shape)):
        if not callable(function) and (function is not None or name == "forward"):
            raise SettingError(
                f"op: {{{name}}} is {what_is(function)}; must be a function", setting=name, seen=function
            )
    return UserOp(forward, vjp, shape)


def _wanted(vjp: Callable[..., Any] | None) -> tuple[str, ...]:
    """The keywords that a vjp is called with. SettingError for a function that cannot be called with some of these."""
    if vjp is None:
        return ()
    try:
        parameters = inspect.signature(vjp).parameters.values()
    except (TypeError, ValueError):
        return GIVEN
    names = []
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            return GIVEN
        if p.name in GIVEN and p.kind is not p.POSITIONAL_ONLY and p.kind is not p.VAR_POSITIONAL:
            names.append(p.name)
        elif p.default is p.empty or p.kind is p.POSITIONAL_ONLY:
            need = "parameters among inputs, outputs, gradients"
            raise SettingError(f"op: {{vjp}} has a parameter {p.name!r}; must have {need}", setting="vjp")
    return tuple(names)


def _spec(made: Any) -> Spec | None:
    """A shape, a pair of shape and dtype, or an object with both; None for anything else."""
    if _is_shape(made):
        return Spec(_extents(made))
    if isinstance(made, (tuple, list)):
        if len(made) != 2 or not _is_shape(made[0]) or isinstance(made[1], (tuple, list)):
            return None
        shape, kind = made
    else:
        shape, kind = getattr(made, "shape", None), getattr(made, "dtype", None)
    if not _is_shape(shape) or kind is None:
        return None
    try:
        return Spec(_extents(shape), kind if isinstance(kind, DType) else dtype(kind))
    except (DTypeError, TypeError):
        raise Reject(f"dtype {kind!r:.40} is not known", "a dtype such as 'f32' or 'i32'", DTypeError) from None


def _is_shape(made: Any) -> bool:
    whole = (int, np.integer)
    return isinstance(made, (tuple, list)) and all(isinstance(n, whole) and not isinstance(n, bool) for n in made)


def _extents(shape: Sequence[Any]) -> tuple[int, ...]:
    if any(n < 0 for n in shape):
        raise Reject(f"the result has shape {list(shape)}", "extents of at least 0")
    return tuple(int(n) for n in shape)


def _no_gradient(node: Node, why: str) -> GradientError:
    return GradientError(
        f"{node.attrs['call'].name} has no gradient: {why}; node {node.label}; keep it out of the path from the loss "
        "to the parameters, or detach the values computed from it"
    )
