"""Random cases of named losses: value, gradient and second derivative by the float64 references, against PyTorch's in
float64.

    python -m tests.losses.loss_cases --count 10000 [--first 0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import losses
from gradloom.run.numpy_backend import evaluate
from tests import kept
from tests.kept import torch
from tests.random_cases import run_cases

Drawn = tuple[losses.Loss, list[np.ndarray], Any, Callable[..., Any], bool]


class Draw:
    """The loss of a case: our object, arrays of outputs, labels, and PyTorch's loss per element."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = int(self.rng.integers(1, 7))
        self.shape = (self.rows, *(int(n) for n in self.rng.integers(1, 5, int(self.rng.integers(0, 3)))))

    def chance(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def number(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def array(self, *shape: int, low: float = -3, high: float = 3) -> np.ndarray:
        return self.rng.uniform(low, high, shape or self.shape).astype(np.float32)

    def bits(self, shape: tuple[int, ...]) -> np.ndarray:
        """0 and 1, whole numbers some of which are ignored, or floats."""
        bits = self.rng.integers(0, 2, shape)
        if self.chance():
            return bits.astype(np.float32)
        return np.where(self.rng.random(shape) < 0.2, -100, bits).astype(np.int32)

    def targets(self, low: int = -3) -> np.ndarray:
        """Floats, or whole numbers some of which are ignored."""
        if self.chance():
            return self.array(low=low)
        return np.where(self.rng.random(self.shape) < 0.2, -100, self.rng.integers(low, 4, self.shape)).astype(np.int32)

    def ids(self, shape: tuple[int, ...], classes: int) -> np.ndarray:
        ids = self.rng.integers(0, classes, shape)
        return np.where(self.rng.random(shape) < 0.2, -100, ids).astype(np.int32)

    def shares(self, shape: tuple[int, ...]) -> np.ndarray:
        """Probabilities along the last axis, some of them 0."""
        shares = self.rng.uniform(0, 1, shape) * (self.rng.random(shape) < 0.8)
        return (shares / np.maximum(shares.sum(-1, keepdims=True), 1e-3)).astype(np.float32)

    # ---- the losses: (ours, outputs, labels, PyTorch's values for (outputs, labels), one number per label) -----------

    def mse(self) -> Drawn:
        return losses.MSE(), [self.array()], self.targets(), self._plain("mse_loss"), False

    def l1(self) -> Drawn:
        return losses.L1(), [self.array()], self.targets(), self._plain("l1_loss"), False

    def huber(self) -> Drawn:
        delta = self.number(0.2, 3)
        return losses.Huber(delta), [self.array()], self.targets(), self._plain("huber_loss", delta=delta), False

    def smooth_l1(self) -> Drawn:
        beta = self.number(0.2, 3)
        return losses.SmoothL1(beta), [self.array()], self.targets(), self._plain("smooth_l1_loss", beta=beta), False

    def quantile(self) -> Drawn:
        several = self.chance()
        q = np.array([self.number(0.05, 0.95) for _ in range(int(self.rng.integers(1, 4)) if several else 1)], "f4")

        def values(x: Any, y: Any) -> Any:
            error = (y[..., None] if several else y) - x
            return torch.maximum(self._tensor(q) * error, (self._tensor(q) - 1) * error)

        x = self.array(*self.shape, *([len(q)] * several))
        return losses.Quantile(tuple(map(float, q)) if several else float(q[0])), [x], self.targets(), values, False

    def poisson_nll(self) -> Drawn:
        log_input, full = self.chance(), self.chance()
        y = self.targets(0)
        values = self._plain("poisson_nll_loss", log_input=log_input, full=full)
        x = self.array(low=-2 if log_input else 0.1, high=2)
        return losses.PoissonNLL(log_input, full), [x], y, values, False

    def gaussian_nll(self) -> Drawn:
        full = self.chance()
        variance = np.where(self.rng.random(self.shape) < 0.2, 1e-8, self.array(low=0.1)).astype(np.float32)

        def values(x: tuple[Any, Any], y: Any) -> Any:
            return torch.nn.functional.gaussian_nll_loss(x[0], y, x[1], full=full, eps=0.015625, reduction="none")

        eps = 0.015625  # 2^-6: a constant that f32 holds
        variance[variance < 0.05] = 0
        return losses.GaussianNLL(eps, full), [self.array(), variance], self.targets(), values, False

    def cross_entropy(self) -> Drawn:
        classes, smoothing = int(self.rng.integers(1, 6)), self.number(0, 0.9) * self.chance()
        return self._of_ids(losses.CrossEntropy(smoothing), classes, "cross_entropy", label_smoothing=smoothing)

    def soft_cross_entropy(self) -> Drawn:
        classes, smoothing = int(self.rng.integers(1, 6)), self.number(0, 0.9) * self.chance()
        y = self.shares((self.rows, classes))
        values = self._plain("cross_entropy", label_smoothing=smoothing)
        return losses.CrossEntropy(smoothing), [self.array(*y.shape)], y, values, True

    def nll(self) -> Drawn:
        return self._of_ids(losses.NLL(), int(self.rng.integers(1, 6)), "nll_loss")

    def kl(self) -> Drawn:
        log_target = self.chance()
        y = self.shares((*self.shape, 4))
        y = np.log(np.maximum(y, 1e-3)) if log_target else y

        def values(x: Any, y: Any) -> Any:
            return torch.nn.functional.kl_div(x, y, reduction="none", log_target=log_target).sum(-1)

        return losses.KL(log_target), [self.array(*y.shape)], y, values, False

    def bce(self) -> Drawn:
        y = self.array(low=0, high=1) if self.chance() else self.bits(self.shape)
        several = self.chance()
        weight = self.array(self.shape[-1] if several and len(self.shape) > 1 else 1, low=0.3, high=3)
        given = tuple(map(float, weight)) if len(weight) > 1 else float(weight[0])
        values = self._plain("binary_cross_entropy_with_logits", pos_weight=weight)
        return losses.BCE(given), [self.array()], y, values, False

    def binary_focal(self) -> Drawn:
        gamma, alpha = self.number(1, 4), self.number(0.1, 0.9) if self.chance() else None

        def values(x: Any, y: Any) -> Any:  # torchvision.ops.sigmoid_focal_loss
            p = torch.sigmoid(x)
            cross = torch.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none")
            made = cross * (1 - (p * y + (1 - p) * (1 - y))) ** gamma
            return made if alpha is None else made * (alpha * y + (1 - alpha) * (1 - y))

        return losses.Focal(gamma, alpha), [self.array()], self.bits(self.shape), values, False

    def focal(self) -> Drawn:
        gamma = self.number(1, 4)

        def values(x: Any, y: Any) -> Any:
            own = torch.nn.functional.log_softmax(x, -1).gather(-1, y.clamp(min=0)[:, None])[:, 0]
            return -own * (1 - own.exp()) ** gamma

        y = self.ids((self.rows,), 4)
        return losses.Focal(gamma), [self.array(self.rows, 4)], y, values, False

    def hinge(self) -> Drawn:
        margin = self.number(0.5, 2)

        def values(x: Any, y: Any) -> Any:
            return torch.clamp(margin - torch.where(y > 0, 1.0, -1.0) * x, min=0)

        return losses.Hinge(margin), [self.array()], self.bits(self.shape), values, False

    def triplet(self) -> Drawn:
        margin, shape = self.number(0.5, 2), (self.rows, int(self.rng.integers(1, 5)))

        def values(x: tuple[Any, ...], y: Any) -> Any:
            return torch.nn.functional.triplet_margin_loss(*x, margin=margin, reduction="none")

        return losses.Triplet(margin), [self.array(*shape) for _ in range(3)], None, values, False

    def cosine(self) -> Drawn:
        margin, shape = self.number(-0.5, 0.5), (self.rows, int(self.rng.integers(1, 5)))

        def values(x: tuple[Any, ...], y: Any) -> Any:
            sign = torch.where(y > 0, 1.0, -1.0)
            return torch.nn.functional.cosine_embedding_loss(*x, sign, margin=margin, reduction="none")

        return losses.Cosine(margin), [self.array(*shape) for _ in range(2)], self.bits(shape[:1]), values, False

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _tensor(self, array: np.ndarray) -> Any:
        return torch.tensor(array.astype(np.float64))

    def _plain(self, name: str, **options: Any) -> Callable[..., Any]:
        def values(x: Any, y: Any) -> Any:
            given = {n: self._tensor(o) if isinstance(o, np.ndarray) else o for n, o in options.items()}
            return getattr(torch.nn.functional, name)(x, y, reduction="none", **given)

        return values

    def _of_ids(self, ours: losses.Loss, classes: int, name: str, **options: Any) -> Drawn:
        shape = self.shape if len(self.shape) < 3 else self.shape[:2]
        x, y = self.array(*shape, classes), self.ids(shape, classes)

        def values(x: Any, y: Any) -> Any:
            function = getattr(torch.nn.functional, name)
            flat = function(x.reshape(-1, classes), y.reshape(-1), reduction="none", ignore_index=-100, **options)
            return flat.reshape(y.shape)

        return ours, [x], y, values, False


LOSSES = [name for name in vars(Draw) if not name.startswith("_") and name not in
          ("chance", "number", "array", "bits", "targets", "ids", "shares")]  # fmt: skip


def compare(seed: int, name: str | None = None, keep: bool = False) -> str:
    """Compare the case of this number, and return the name of its loss. AssertionError where it differs.

    keep: compare with the kept answers too; without PyTorch they take its place.
    """
    draw = Draw(seed)
    name = name or LOSSES[seed % len(LOSSES)]
    ours, outputs, labels, values, _ = getattr(draw, name)()
    weights = draw.rng.uniform(0, 2, draw.rows).astype(np.float32) if draw.chance() else None
    if weights is not None and draw.rows > 1:
        weights[0] = 0
    counted = np.ones(0) if labels is None else labels != -100
    if labels is not None and (not counted.any() or (weights is not None and not (counted.any(
            tuple(range(1, counted.ndim))) & (weights > 0)).any())):  # fmt: skip
        return name  # no label counts
    if weights is not None and not weights.any():
        return name

    leaves = [gl.parameter(x, f"x{i}") for i, x in enumerate(outputs)]
    y = None if labels is None else gl.input("y", labels.shape, "f32" if labels.dtype.kind == "f" else "i32")
    w = None if weights is None else gl.input("w", weights.shape)
    mean = ours(leaves[0] if len(leaves) == 1 else tuple(leaves), y, w)
    slopes = gl.gradients(mean, leaves)
    direction = [draw.array(*x.shape).astype(np.float32) for x in outputs]
    along = [gl.ops.sum(g * d) for g, d in zip(slopes, direction, strict=True) if g is not None]
    second = gl.gradients(sum(along[1:], along[0]), leaves)
    wanted = [v for v in (mean, *slopes, *second) if v is not None]
    feeds = {} if labels is None else {"y": labels}
    found = evaluate(wanted, feeds if weights is None else feeds | {"w": weights})
    if keep:
        kept.check_kept(found[v] for v in wanted)
        if not kept.INSTALLED:
            return name

    twins = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in outputs]
    target = None if labels is None else torch.tensor(labels.astype(np.float64 if labels.dtype.kind == "f" else "i8"))
    if labels is not None and labels.dtype.kind == "i" and name not in ("cross_entropy", "nll", "focal"):
        target = torch.where(target == -100, 0, target).double()
    each = values(twins[0] if len(twins) == 1 else tuple(twins), target)
    mask = np.ones(tuple(each.shape)) if labels is None or labels.dtype.kind == "f" else (labels != -100).reshape(
        labels.shape + (1,) * (each.ndim - labels.ndim))  # fmt: skip
    share = torch.tensor(np.broadcast_to(mask, tuple(each.shape)).astype(np.float64))
    if weights is not None:
        share = share * torch.tensor(weights.astype(np.float64)).reshape(-1, *(1,) * (each.ndim - 1))
    expected = (each * share).sum() / share.sum()
    grads = torch.autograd.grad(expected, twins, create_graph=True)
    dotted = sum((g * torch.tensor(d.astype(np.float64))).sum() for g, d in zip(grads, direction, strict=True))
    doubles = torch.autograd.grad(dotted, twins, allow_unused=True) if dotted.requires_grad else [None] * len(twins)

    def near(ours: Any, theirs: Any, what: str) -> None:
        theirs = 0.0 if theirs is None else theirs.detach().numpy(force=True)
        mine = 0.0 if ours is None else found[ours]
        np.testing.assert_allclose(mine, theirs, rtol=2e-7, atol=2e-7, err_msg=f"case {seed}: {name}, {what}")

    near(mean, expected, "value")
    for i in range(len(leaves)):
        near(slopes[i], grads[i], f"gradient of output {i}")
        near(second[i], doubles[i], f"second derivative by output {i}")
    return name


if __name__ == "__main__":
    run_cases(compare, __doc__)
