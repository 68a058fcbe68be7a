"""Networks drawn from all layers, with random settings and odd sizes: outputs and gradients against PyTorch's.

python -m tests.nn.random_networks --count 2000 [--first 0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import gradloom as gl
from tests.nn.torch_twins import compare, spread

nn = gl.nn
SMOOTH = ("Tanh", "Sigmoid", "SiLU", "GELU", "Mish", "Softplus", "ELU")
KINKED = ("ReLU", "LeakyReLU", "Hardswish", "Hardsigmoid")
RECURRENT = ("RNN", "LSTM", "GRU")


class Outputs(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Network:
    """A network under way and its twin; x is the shape of what it makes."""

    def __init__(self, seed: int) -> None:
        import torch

        class Residual(torch.nn.Sequential):
            def forward(self, x: Any) -> Any:
                return x + super().forward(x)

        class TwinOutputs(torch.nn.Module):
            def __init__(self, layer: Any) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Any) -> Any:
                return self.layer(x)[0]

        class Causal(torch.nn.TransformerEncoderLayer):
            def forward(self, x: Any) -> Any:
                return super().forward(x, src_mask=torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool())

        self.torch, self.residual, self.outputs, self.causal = torch.nn, Residual, TwinOutputs, Causal
        self.rng = np.random.default_rng(seed)
        self.layers: list[Any] = []
        self.twins: list[Any] = []
        self.used: list[str] = []
        self.may_tie = False  # equal elements, of which max pools of PyTorch pick another one
        self.second = True

    def whole(self, low: int, high: int) -> int:
        """From low to high, both possible."""
        return int(self.rng.integers(low, high + 1))

    def one(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def add(self, ours: Any, twin: Any) -> None:
        self.layers.append(ours)
        self.twins.append(twin)
        self.used.append(type(ours).__name__)

    def both(self, name: str, *arguments: Any, theirs: str = "", **options: Any) -> None:
        self.add(getattr(nn, name)(*arguments, **options), getattr(self.torch, theirs or name)(*arguments, **options))

    # ---- layers of any shape ---------------------------------------------------------------------------------

    def activation(self, x: tuple[int, ...]) -> tuple[int, ...]:
        name = self.one((*SMOOTH, *KINKED, "PReLU", "Identity", "Softmax", "LogSoftmax", "GLU"))
        if name == "PReLU":
            self.both(name, self.one((1, x[1])))
        elif name in ("Softmax", "LogSoftmax", "GLU"):
            axis = self.whole(1, len(x) - 1)
            if name == "GLU":
                if x[axis] % 2:
                    return x
                x = (*x[:axis], x[axis] // 2, *x[axis + 1 :])
            self.both(name, axis)
        else:
            self.both(name)
        self.may_tie |= name in ("ReLU", "Hardswish", "Hardsigmoid")
        self.second &= name != "Hardsigmoid"
        return x

    def norm(self, x: tuple[int, ...]) -> tuple[int, ...]:
        groups = self.one([g for g in range(1, x[1] + 1) if x[1] % g == 0])
        kind = self.one(("GroupNorm", "InstanceNorm", "BatchNorm", "LayerNorm"))
        each = int(np.prod(x[2:]))
        if kind == "GroupNorm" and x[1] // groups * each > 2:
            self.both(kind, groups, x[1], 0.1, affine=self.chance(0.5))
        elif kind == "InstanceNorm" and len(x) > 2 and each > 2:
            self.both(kind, x[1], 0.1, affine=self.chance(0.5), theirs=f"InstanceNorm{len(x) - 2}d")
        elif kind == "BatchNorm" and x[0] * each > 2:
            self.both(kind, x[1], 0.1, theirs="BatchNorm2d" if len(x) == 4 else "BatchNorm1d")
        elif kind == "LayerNorm" and x[-1] > 2:
            self.both(kind, x[-1], 0.1)
        return x

    def residual_of(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """A layer that keeps the shape, and its sum."""
        before = len(self.layers)
        name = self.one(SMOOTH)
        self.both(name)
        if len(x) == 2:
            self.both("Linear", x[1], x[1])
        elif len(x) == 4:
            self.both("Conv2d", x[1], x[1], 3, padding="same", groups=self.one((1, x[1])))
        else:
            self.both("Conv1d", x[1], x[1], 3, padding="same", groups=self.one((1, x[1])))
        ours, twins = self.layers[before:], self.twins[before:]
        del self.layers[before:], self.twins[before:], self.used[before:]
        self.add(nn.Residual(*ours), self.residual(*twins))
        return x

    # ---- rows [N, F], images [N, C, H, W], sequences [N, T, F] -------------------------------------------------

    def linear(self, x: tuple[int, ...]) -> tuple[int, ...]:
        width = self.whole(1, 7)
        self.both("Linear", x[-1], width, bias=self.chance(0.7))
        return (*x[:-1], width)

    def conv(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """Conv2d of images, Conv1d of sequences (their axis 1 as channels); transposed ones half the time."""
        rank, is_transposed = len(x) - 2, self.chance(0.4)
        groups = self.one([g for g in range(1, x[1] + 1) if x[1] % g == 0])
        out = groups * self.whole(1, 3)
        draw = [(self.whole(1, 3), self.whole(1, 2), self.whole(0, 1), self.whole(1, 2)) for _ in range(rank)]
        kernel, stride, padding, dilation = (tuple(column) for column in zip(*draw, strict=True))
        more = tuple(self.whole(0, s - 1) for s in stride)
        extents = []
        for n, k, s, p, d, m in zip(x[2:], kernel, stride, padding, dilation, more, strict=True):
            reach = d * (k - 1) + 1
            extents.append((n - 1) * s - 2 * p + reach + m if is_transposed else (n + 2 * p - reach) // s + 1)
        if min(extents) < 1:
            return x
        how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
        how |= {"output_padding": more} if is_transposed else {}
        if rank == 1:
            kernel, how = kernel[0], {name: value[0] for name, value in how.items()}
        name = f"Conv{'Transpose' * is_transposed}{rank}d"
        self.both(name, x[1], out, kernel, **how, groups=groups, bias=self.chance(0.7))
        self.may_tie = True  # outside of the image: the bias alone
        return (x[0], out, *extents)

    def pool(self, x: tuple[int, ...]) -> tuple[int, ...]:
        if self.chance(0.5):
            size = (self.whole(1, 5), self.whole(1, 5))
            self.both("AdaptiveAvgPool2d" if self.may_tie or self.chance(0.5) else "AdaptiveMaxPool2d", size)
            self.may_tie |= self.used[-1] == "AdaptiveMaxPool2d" or size[0] > x[2] or size[1] > x[3]
            return (*x[:2], *size)
        kernel = (self.whole(1, min(3, x[2])), self.whole(1, min(3, x[3])))
        stride = (self.whole(1, 2), self.whole(1, 2))
        self.both(self.one(("AvgPool2d", "MaxPool2d")), kernel, stride)
        self.may_tie |= self.used[-1] == "MaxPool2d"
        return (*x[:2], *((n - k) // s + 1 for n, k, s in zip(x[2:], kernel, stride, strict=True)))

    def upsample(self, x: tuple[int, ...]) -> tuple[int, ...]:
        how: dict[str, Any] = {"size": (self.whole(1, 7), self.whole(1, 7))}
        out = how["size"]
        if self.chance(0.4):
            factors = (self.one((1.0, 1.5, 2.0, 2.5)), self.one((1.0, 1.7, 3.0)))
            how, out = {"scale_factor": factors}, tuple(int(n * f) for n, f in zip(x[2:], factors, strict=True))
        if self.chance(0.5):
            how |= {"mode": "bilinear", "align_corners": self.chance(0.5)}
        self.both("Upsample", **how)
        self.may_tie = True
        return (*x[:2], *out)

    def recurrent(self, x: tuple[int, ...]) -> tuple[int, ...]:
        name, width = self.one(RECURRENT), self.whole(1, 4)
        options = {"num_layers": self.whole(1, 2), "bias": self.chance(0.7), "bidirectional": self.chance(0.5)}
        args = (x[2], width)
        ours = getattr(nn, name)(*args, batch_first=True, **options)
        self.add(Outputs(ours), self.outputs(getattr(self.torch, name)(*args, batch_first=True, **options)))
        self.used[-1] = name
        return (*x[:2], width * (2 if options["bidirectional"] else 1))

    def encoder(self, x: tuple[int, ...]) -> tuple[int, ...]:
        if x[2] < 3:
            return x
        heads = self.one([h for h in range(1, x[2] + 1) if x[2] % h == 0])
        hidden, activation, first, causal = (
            self.whole(1, 6),
            self.one(("relu", "gelu")),
            self.chance(0.5),
            self.chance(0.5),
        )
        ours = nn.TransformerEncoderLayer(x[2], heads, hidden, 0.0, activation, 0.1, first, causal)
        kind = self.causal if causal else self.torch.TransformerEncoderLayer
        self.add(ours, kind(x[2], heads, hidden, 0.0, activation, 0.1, True, first))
        self.second = False  # PyTorch's attention and our causal one have a first derivative only
        return x

    def flatten(self, x: tuple[int, ...]) -> tuple[int, ...]:
        self.both("Flatten")
        return (x[0], int(np.prod(x[1:])))


STEPS: dict[int, list[str]] = {
    2: ["linear", "linear", "activation", "norm", "residual_of"],
    3: ["linear", "conv", "activation", "norm", "residual_of", "recurrent", "encoder"],
    4: ["conv", "conv", "activation", "norm", "residual_of", "pool", "upsample"],
}
MOST = 600  # elements between two layers


def drawn(seed: int) -> tuple[Network, tuple[int, ...]]:
    """The network of this seed, and the shape of its input."""
    net = Network(seed)
    rank = net.one((2, 3, 4))
    shape: tuple[int, ...] = (net.whole(2, 3), *(net.whole(1, 6) for _ in range(rank - 1)))
    x = shape
    for _ in range(net.whole(1, 6)):
        step: Callable[[tuple[int, ...]], tuple[int, ...]] = getattr(net, net.one(STEPS[len(x)]))
        made = len(net.layers)
        after = step(x)
        if np.prod(after) > MOST:
            del net.layers[made:], net.twins[made:], net.used[made:]
            continue
        x = net.flatten(after) if len(after) > 2 and net.chance(0.1) else after
    return net, shape


def check(seed: int) -> None:
    """Compare the network of this seed with its twin; AssertionError."""
    net, shape = drawn(seed)
    ours, twin = nn.Sequential(*net.layers), net.torch.Sequential(*net.twins)
    spread(ours, net.rng)
    feeds = {"x": net.rng.standard_normal(shape).astype(np.float32)}
    what = f"seed {seed}: {list(shape)} {', '.join(net.used)}"
    compare(what, ours, twin, feeds, second=net.second and net.chance(0.3), seed=seed, cpu_room=1e-2)


def main() -> None:
    import warnings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of PyTorch
    failed = 0
    for seed in range(args.first, args.first + args.count):
        try:
            check(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - args.first} networks, {failed} failed", flush=True)
    print(f"{args.count} networks, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
