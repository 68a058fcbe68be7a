"""Training that is cut between two devices, against PyTorch on the same weights and data: losses of 20 steps of SGD,
and the weights after them. Two devices of the CPU (tests/plan/devices.py) where there is no adapter, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.graph.value import Value
from gradloom.plan.schedule import Schedule
from tests.gpu.adapter import need_adapter
from tests.noise import assert_all_noise, assert_noise
from tests.plan.devices import registered

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = [pytest.mark.oracle, pytest.mark.no_adapter]

STEPS, BATCH, RATE = 20, 4, 0.05
TOKENS, WIDTH, HEADS = 11, 16, 2
Parameters = Mapping[str, Any]  # PyTorch's, by our names


class Block(nn.Module):
    """x + attention(norm(x)), then x + down(gelu(up(norm(x))))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, causal=True)
        self.up, self.act, self.down = nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH)

    def forward(self, x: Value) -> Value:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """ids i32 [N, T] -> logits [N, T, TOKENS]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first, self.second = nn.Embedding(TOKENS, WIDTH), Block(), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Value) -> Value:
        return self.head(self.norm(self.second(self.first(self.embedding(x)))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3))


def mlp_of_torch(p: Parameters, x: Any) -> Any:
    h = torch.relu(x @ p["0.weight"].T + p["0.bias"])
    h = torch.tanh(h @ p["2.weight"].T + p["2.bias"])
    return h @ p["4.weight"].T + p["4.bias"]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip


def cnn_of_torch(p: Parameters, x: Any) -> Any:
    h = F.max_pool2d(torch.relu(F.conv2d(x, p["0.weight"], p["0.bias"], padding=1)), 2)
    h = torch.relu(F.conv2d(h, p["3.weight"], p["3.bias"], padding=1))
    return h.flatten(1) @ p["6.weight"].T + p["6.bias"]


def transformer_of_torch(p: Parameters, x: Any) -> Any:
    def linear(name: str, h: Any) -> Any:
        return h @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(name: str, h: Any) -> Any:
        return F.layer_norm(h, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"])

    h = p["embedding.weight"][x]
    n, t = x.shape
    for block in ("first", "second"):
        q, k, v = (
            linear(f"{block}.attention.{one}", norm(f"{block}.norm1", h)).view(n, t, HEADS, -1).transpose(1, 2)
            for one in ("query", "key", "value")
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, WIDTH)
        h = h + linear(f"{block}.attention.out", seen)
        h = h + linear(f"{block}.down", F.gelu(linear(f"{block}.up", norm(f"{block}.norm2", h))))
    return linear("head", norm("norm", h))


def rows(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((16, *shape)).astype(np.float32), rng.integers(0, 3, 16).astype(np.int32)


def text() -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(1).integers(0, TOKENS, (16, 8)).astype(np.int32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def modules(net: Any, *names: str) -> list[Any]:
    """Parts of a model: layers by their number, or attributes by their path."""
    found = []
    for name in names:
        one = net
        for part in name.split("."):
            one = one.layers[int(part)] if part.isdigit() else getattr(one, part)
        found.append(one)
    return found


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Parameters, Any], Any], Callable[[], Any], int]] = {
    "mlp": (mlp, mlp_of_torch, lambda: rows(6), 12),
    "cnn": (cnn, cnn_of_torch, lambda: rows(1, 8, 8), 256),
    "transformer": (Transformer, transformer_of_torch, text, BATCH * 7 * 4),
}
PLACED = [  # what is on the second device; all else is on the first
    ("mlp", ["2", "3", "4"]),
    ("mlp", ["0", "1"]),
    ("mlp", ["1", "2", "4"]),
    ("cnn", ["3", "4", "5", "6"]),
    ("cnn", ["0", "4"]),
    ("transformer", ["second", "norm", "head"]),
    ("transformer", ["first.attention", "second.norm2", "second.down"]),
]


@pytest.fixture(params=[("cpu1", "cpu2"), ("cpu", "gpu")], ids="-".join)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    if "gpu" in request.param:
        need_adapter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with registered():
        yield request.param
    torch.set_num_threads(threads)


def trained_by_torch(
    forward: Callable[[Parameters, Any], Any],
    weights: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    kind: Any,
) -> tuple[list[float], dict[str, np.ndarray]]:
    p = {name: torch.tensor(array.astype(kind), requires_grad=True) for name, array in weights.items()}
    optimizer = torch.optim.SGD(p.values(), lr=RATE, momentum=0.9)
    losses = []
    for i in range(STEPS):
        at = slice(i * BATCH % len(x), i * BATCH % len(x) + BATCH)
        given = torch.tensor(x[at].astype(kind) if x.dtype.kind == "f" else x[at].astype(np.int64))
        logits = forward(p, given)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), torch.tensor(y[at].astype(np.int64)).reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().numpy() for name, value in p.items()}


@pytest.mark.parametrize(
    ("name", "second"), PLACED, ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_losses_and_weights_are_those_of_pytorch(pair: tuple[str, str], name: str, second: list[str]) -> None:
    make, forward, data, longest = MODELS[name]
    x, y = data()
    net = make().init(2).to(pair[0])
    for module in modules(net, *second):
        module.to(pair[1])
    weights = {key: array.copy() for key, array in net.state_dict().items()}
    trainer = gl.Trainer(net, optimizer=gl.optim.SGD(lr=RATE, momentum=0.9), devices=pair[::-1])
    ours = []
    for i in range(STEPS):
        at = slice(i * BATCH % len(x), i * BATCH % len(x) + BATCH)
        ours.append(trainer.step(x[at], y[at]).loss)
    (plan,) = trainer.plans
    assert isinstance(plan, Schedule) and set(plan.parts) == set(pair)
    assert all(part.plan.bytecode.stored for part in plan.parts.values()), "each device updates weights of its own"
    single, double = (trained_by_torch(forward, weights, x, y, kind) for kind in (np.float32, np.float64))
    assert double[0][-1] < 0.95 * double[0][3], "nothing was learned of the same rows"
    assert_noise("losses", np.array(ours), np.array(single[0]), np.array(double[0]), longest)
    assert_all_noise(net.state_dict(), single[1], double[1], STEPS * longest, "weights")
