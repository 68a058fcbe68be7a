"""Adafactor and Muon: their steps look at a parameter as a matrix. They are compositions of ops that everybody has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_whole, f32_hint, in_f32
from ..base.errors import SettingError
from ..graph.value import Value
from .members import to_arrays
from .optimizer import Optimizer
from .rule import Schedule, UpdateInputs


class Adafactor(Optimizer):
    """Adam without m, whose v is the product of a row and a column: torch.optim.Adafactor, which follows Shazeer and
    Stern, arXiv 1804.04235. (Hugging Face's class of this name has other defaults and a rate of its own.)

    With t the parameter's step from 1, mix = t^beta2_decay, rho = min(lr, 1 / sqrt(t)) and
    alpha = max(eps2, rms(w)) * rho: w <- w(1 - lr*wd) - alpha * u / max(1, rms(u) / d), u = g / sqrt(max(v, eps1^2)).
    rms is over all elements of a parameter; of one that holds the members of an Ensemble, over those of each member.
    A parameter of two and more axes keeps r and c, means over its last and its last but one axis of g^2, each
    r + mix * (mean - r), and v is
    r*c / max(mean of r, eps1); others keep v itself. eps1: by default that of f32, 2^-23.
    """

    lr: Schedule = 1e-2
    beta2_decay: Schedule = -0.8
    eps1: Schedule = 2.0**-23
    eps2: Schedule = 1e-3
    d: Schedule = 1.0
    weight_decay: Schedule = 0.0

    state_names = nonnegative = ("r", "c", "v")
    counts_steps = True

    def check(self, name: str, value: float) -> float:
        """As ever; beta2_decay is at most 0, d at least 1."""
        low, high = {"beta2_decay": (-math.inf, 0.0), "d": (1.0, math.inf)}.get(name, (0.0, math.inf))
        usable = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if name in ("beta2_decay", "d") and not (usable and low <= value <= high and math.isfinite(in_f32(value))):
            need = f"a finite number of at {'most 0' if name == 'beta2_decay' else 'least 1'}{f32_hint(value)}"
            raise SettingError(setting=name, seen=value, need=need, place="Adafactor")
        return float(value) if name == "beta2_decay" else super().check(name, value)

    def shapes_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        if len(shape) < 2:
            return {"v": shape}
        return {"r": (*shape[:-1], 1), "c": (*shape[:-2], 1, shape[-1])}

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        lr, beta2_decay, eps1, eps2, d, decay = (self.scalar(name) for name in self.names)
        step = given.step
        mix = ops.exp(beta2_decay * ops.log(step))
        rho = ops.minimum(lr, 1.0 / ops.sqrt(step))
        kept = {name: iter(arrays) for name, arrays in given.state.items()}
        pairs: list[Value] = []
        for w, g in zip(given.parameters, given.mean_gradients(), strict=True):
            square = ops.sqr(g)
            if w.ndim < 2:
                v = next(kept["v"])
                estimate = _towards(v, square, mix)
                pairs += [v, estimate]
            else:
                r, c = next(kept["r"]), next(kept["c"])
                rows = _towards(r, ops.mean(square, -1, keepdims=True), mix)
                columns = _towards(c, ops.mean(square, -2, keepdims=True), mix)
                estimate = rows * columns / ops.maximum(ops.mean(rows, -2, keepdims=True), eps1)
                pairs += [r, rows, c, columns]
            u = g / ops.sqrt(ops.maximum(estimate, eps1 * eps1))
            members = w.stored.members
            alpha = ops.maximum(eps2, _rms(w, members)) * rho / ops.maximum(1.0, _rms(u, members) / d)
            pairs += [w, w * (1.0 - lr * decay) - alpha * u]
        return ops.assign(*pairs)


COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of Newton-Schulz: the steepest at 0 that keeps singular values near 1


class Muon(Optimizer):
    """SGD with momentum whose step is made orthogonal: torch.optim.Muon, after Jordan et al.,
    https://kellerjordan.github.io/posts/muon/, but with the iterations in f32 (there in bfloat16).

    m <- momentum*m + (1 - momentum)*g; u is m, with nesterov momentum*m + (1 - momentum)*g; x = u / max(|u|, eps), and
    ns_steps times x <- 3.4445 x - 4.775 (x x') x + 2.0315 (x x')^2 x, which brings singular values near 1;
    w <- w(1 - lr*wd) - lr*scale*x. adjust_lr_fn: scale, "original" sqrt(max(1, outputs / inputs)) of matrices
    [outputs, inputs] (of a stack that is declared transposed, [inputs, outputs]), or "match_rms_adamw"
    0.2 sqrt(max(rows, columns)), with which AdamW's rate and decay serve (Liu et al., arXiv 2502.16982).

    It is for the matrices of hidden layers, and steps each matrix of a stack (gl.nn.stacked, the layers of an
    nn.Ensemble) by itself. Other shapes are a SettingError: give these (and embeddings and the last layer) an
    optimiser of its own:

        Muon(lr=0.02, groups=[{"match": ["not_2d", "head.*"], "optimizer": AdamW(lr=3e-4)}])
    """

    lr: Schedule = 1e-3
    momentum: Schedule = 0.95
    eps: Schedule = 1e-7
    weight_decay: Schedule = 0.0
    nesterov: bool = True
    ns_steps: int = 5
    adjust_lr_fn: str = "original"

    state_names = ("m",)

    def prepare(self, given: Mapping[str, Any]) -> None:
        self.ns_steps = as_whole("ns_steps", self.ns_steps, 1, "Muon")
        if self.adjust_lr_fn not in ("original", "match_rms_adamw"):
            need = "original or match_rms_adamw"
            raise SettingError(setting="adjust_lr_fn", seen=self.adjust_lr_fn, need=need, place="Muon")

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        lr, momentum, eps, decay = (self.scalar(name) for name in self.names)
        pairs: list[Value] = []
        for w, g, m in zip(given.parameters, given.mean_gradients(), given.state["m"], strict=True):
            if len(w.stored.each) != 2:
                name: Any = w.name or "a parameter"
                raise SettingError(
                    f"Muon: {name} has shape {list(w.shape)}; need matrices (or a stack of them: gl.nn.stacked), and "
                    'for the rest groups=[{"match": "not_2d", "optimizer": AdamW(lr=...)}]'
                )
            new = momentum * m + (1.0 - momentum) * g
            step = momentum * new + (1.0 - momentum) * g if self.nesterov else new
            rows, columns = w.stored.each
            shape = (rows, columns) if w.stored.stack is None else (-1, rows, columns)
            step = ops.reshape(self._orthogonal(ops.reshape(step, shape), eps), w.shape)
            scale = 0.2 * math.sqrt(max(rows, columns))
            if self.adjust_lr_fn == "original":
                stack = w.stored.stack
                outputs, inputs = (columns, rows) if stack is not None and stack.transposed else (rows, columns)
                scale = math.sqrt(max(1.0, outputs / inputs))
            pairs += [m, new, w, w * (1.0 - lr * decay) - lr * scale * step]
        return ops.assign(*pairs)

    def _orthogonal(self, x: Value, eps: Value) -> Value:
        """Newton and Schulz's iteration on each matrix of x [..., rows, columns], on the side with fewer numbers."""
        a, b, c = COEFFICIENTS
        other_way = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        tall = x.shape[-2] > x.shape[-1]
        if tall:
            x = ops.permute(x, other_way)
        square = ops.sum(ops.sqr(x)) if x.ndim == 2 else ops.sum(ops.sqr(x), (-2, -1), keepdims=True)
        x = x / ops.maximum(ops.sqrt(square), eps)
        for _ in range(self.ns_steps):
            gram = ops.matmul(x, x, transpose_y=True)
            x = a * x + ops.matmul(b * gram + c * ops.matmul(gram, gram), x)
        return ops.permute(x, other_way) if tall else x


def _towards(old: Value, new: Value, share: Value) -> Value:
    return old + (new - old) * share


def _rms(x: Value, members: int) -> Value:
    """The root of the mean square, f32[]; of several members, each one's at each array along the first axis of x,
    f32[count, 1, ...]."""
    if members == 1:
        return ops.sqrt(ops.mean(ops.sqr(x)))
    return to_arrays(ops.sqrt(ops.mean(ops.reshape(ops.sqr(x), (members, -1)), 1)), x)
