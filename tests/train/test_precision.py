"""Training with precision="bf16": against PyTorch, on ranks and replicas, resumed, and as far as f32 comes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import TrainError
from gradloom.data.idx import read_idx_folder
from gradloom.parallel import threads
from tests.real_data import DATA
from tests.train.small_models import cnn, data, mlp
from tests.train.split_training import on_ranks, train

MNIST = DATA / "mnist"


# ---- against PyTorch -------------------------------------------------------------------------------------------------


def models(torch: Any, kind: str) -> tuple[gl.nn.Module, Any, np.ndarray]:
    """(ours, PyTorch's, inputs) of one structure."""

    def layers(nn: Any) -> list[Any]:
        if kind == "mlp":
            return [nn.Linear(50, 80), nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 10)]
        images = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
        return [*images, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)]

    ours = gl.nn.Sequential(*layers(gl.nn)).init(1)
    theirs = torch.nn.Sequential(*layers(torch.nn))
    theirs.load_state_dict({k: torch.tensor(v) for k, v in ours.state_dict().items()})
    shape = (64, 50) if kind == "mlp" else (64, 2, 8, 8)
    return ours, theirs, np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def by_hand(torch: Any, model: Any, x: Any) -> Any:
    """The model's outputs; each product reads rounded operands, forward and backward."""

    def rounded(t: Any) -> Any:
        return t.to(torch.bfloat16).to(t.dtype)

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            return rounded(t)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class RoundedBack(torch.autograd.Function):
        """The gradient that comes back into a product."""

        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return rounded(g)

    for layer in model:
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            is_linear, w = isinstance(layer, torch.nn.Linear), Rounded.apply(layer.weight)
            f = torch.nn.functional
            z = f.linear(Rounded.apply(x), w) if is_linear else f.conv2d(Rounded.apply(x), w, padding=1)
            bias = layer.bias if is_linear else layer.bias[:, None, None]
            # the gradient of a convolution's bias is the sum of the rounded gradient
            x = RoundedBack.apply(z) + bias if is_linear else RoundedBack.apply(z + bias)
        else:
            x = layer(x)
    return x


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_losses_and_gradients_are_those_of_pytorch_on_rounded_operands(kind: str) -> None:
    """To what f32 sums cost; and the gradients are at least as near to float64 as those of PyTorch's autocast."""
    torch = pytest.importorskip("torch")
    ours, theirs, x = models(torch, kind)
    y = np.random.default_rng(1).integers(0, 10, len(x))
    trainer = gl.Trainer(ours, "cross_entropy", build="grad", precision="bf16", threads=1)
    loss = trainer.step(x, y).loss
    found = {name: trainer.grad_acc(name) for name in ours.named_parameters()}

    def gradients(model: Any, forward: Any, kind: Any) -> tuple[float, dict[str, np.ndarray]]:
        model = model.to(kind)
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(torch.tensor(x).to(kind)).to(kind), torch.tensor(y))
        loss.backward()
        return loss.item(), {name: p.grad.double().numpy() for name, p in model.named_parameters()}

    with torch.autocast("cpu", torch.bfloat16):
        _, autocast = gradients(theirs, theirs, torch.float32)
    hand_loss, hand = gradients(theirs, lambda t: by_hand(torch, theirs, t), torch.float64)
    exact_loss, exact = gradients(theirs, theirs, torch.float64)
    assert abs(loss - hand_loss) <= 2e-6 * abs(hand_loss) < 0.2 * abs(hand_loss - exact_loss)

    def error(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
        each = [np.linalg.norm(one[k] - other[k]) / np.linalg.norm(other[k]) for k in other]
        return float(np.median(each))

    assert error(found, hand) <= 0.2 * error(found, exact)
    assert 1e-4 < error(found, exact) <= error(autocast, exact)


# ---- ranks and replicas ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_same_bits_for_any_ranks(make: Any) -> None:
    one = train(make, threads(1)[0], 16, precision="bf16")
    assert one != train(make, threads(1)[0], 16)
    for count in (2, 3):
        assert on_ranks(count, lambda ranks: train(make, ranks, 16, precision="bf16")) == [one] * count
    if make is mlp:
        assert train(make, None, 16, precision="bf16", threads=2) == one


def test_ranks_of_different_precision_are_refused() -> None:
    kinds = iter(("f32", "bf16"))
    for found in on_ranks(2, lambda ranks: train(mlp, ranks, 16, precision=next(kinds))):
        assert isinstance(found, TrainError) and "precision" in str(found), found
    flushes = iter((True, False))
    for found in on_ranks(2, lambda ranks: train(mlp, ranks, 16, flush=next(flushes))):
        assert isinstance(found, TrainError) and "flush" in str(found), found


def replicas(**options: Any) -> Any:
    rng = np.random.default_rng(0)
    samples = [(rng.standard_normal((8, 4)).astype(np.float32), rng.integers(0, 3, 8)) for _ in range(6)]

    def made() -> gl.nn.Module:
        return gl.nn.Sequential(gl.nn.Linear(4, 32, activation="relu"), gl.nn.Linear(32, 3))

    def loss(outputs: Any, target: Any) -> Any:
        return gl.ops.cross_entropy(outputs, target)

    return gl.dp_train(made, samples, loss_fn=loss, replicas=2, iterations=6, lr=0.01, verbose=False, **options).params


def test_replicas() -> None:
    """Against a loop over the same samples."""
    plain, found, again = replicas(), replicas(precision="bf16"), replicas(precision="bf16")
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert any(not np.array_equal(found[name], plain[name]) for name in found)
    assert all(np.allclose(found[name], plain[name], atol=0.02) for name in found)


# ---- resumed ---------------------------------------------------------------------------------------------------------


def run(folder: Path | None = None, stop: int = 0, **options: Any) -> tuple[gl.nn.Module, gl.train.History]:
    """Three epochs with dropout and windows; `stop`: Ctrl-C in the so-many-th batch."""
    net, calls = mlp(), []

    def listener(at: Any) -> None:
        calls.append(at)
        if len(calls) == stop:
            signal.raise_signal(signal.SIGINT)

    settings: dict[str, Any] = {"epochs": 3, "batch_size": 32, "micro_batch_size": 16, "val_split": 0.2, "seed": 2}
    settings |= {"optimizer": gl.optim.AdamW(lr=0.01), "progress": False, "threads": 1, "precision": "bf16"}
    if stop:
        settings["on_train_batch"] = listener
    return net, gl.fit(net, data(mlp), run=folder, **settings | options)


@pytest.mark.parametrize("stop", [3, 8, 13])
def test_a_resumed_run_has_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole, history = run()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop)
    net, resumed = run(tmp_path, resume=True)
    assert all(np.array_equal(a, net.state_dict()[name]) for name, a in whole.state_dict().items())
    assert [e.val.loss for e in resumed if e.val] == [e.val.loss for e in history if e.val]


def test_another_precision_goes_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 8)
    capsys.readouterr()
    _, history = run(tmp_path, resume=True, precision="f32")
    other = "precision is f32 and was bf16; flush is False and was True"
    said = f"{tmp_path}: {other}: the run continues, the same bits are not promised"
    assert capsys.readouterr().err.splitlines() == [said]
    assert len(history) == 3


class Weighted(gl.nn.Module):
    """x * w, from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.w = gl.parameter(np.zeros(5, np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.w


@pytest.mark.parametrize(("x", "rate"), [(1e-39, 1.0), (1.0, 1e-39)])
def test_replicas_flush_in_both_programs(x: float, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Denormal numbers are in the sample, whose gradient is 0 then, or in the program that ends the step."""
    monkeypatch.delenv("GRADLOOM_FLUSH", raising=False)
    samples = [(np.full(5, x, np.float32), np.zeros(5, np.float32))] * 4
    found = {}
    for flush in (None, False, True):
        result = gl.dp_train(
            Weighted, samples, loss_fn=lambda y, _: gl.ops.sum(y), replicas=2, iterations=2, flush=flush,
            optimizer=gl.optim.SGD(lr=rate),
        )  # fmt: skip
        found[flush] = bool(result.params["w"].any())
    assert found == {None: True, False: True, True: False}


def test_another_flush_goes_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 8)
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1, resume=True)
    assert "flush" not in capsys.readouterr().err
    run(tmp_path, resume=True, flush=False)
    said = f"{tmp_path}: flush is False and was True: the run continues, the same bits are not promised"
    assert capsys.readouterr().err.splitlines() == [said]


def test_a_checkpoint_of_before_was_f32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 8, precision="f32")
    for path in (tmp_path / "checkpoints").glob("*.json"):
        about = json.loads(path.read_text())
        assert '"precision": "f32"' in json.dumps(about)
    capsys.readouterr()
    run(tmp_path, resume=True, precision="f32")
    assert capsys.readouterr().err == ""


# ---- what trains, what predicts --------------------------------------------------------------------------------------


def test_what_was_trained_predicts_in_f32_unless_asked() -> None:
    net, _ = run()
    x = data(mlp).data[:20]
    plain, rounded = gl.predict(net, x), gl.predict(net, x, precision="bf16")
    assert np.array_equal(plain, gl.predict(net, x, precision="f32"))
    assert 0 < np.abs(plain - rounded).max() < 0.05 * np.abs(plain).max()
    found = [
        gl.evaluate(net, data(mlp), **options).loss for options in ({}, {"precision": "f32"}, {"precision": "bf16"})
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.skipif(not MNIST.exists(), reason="MNIST is not in shared/data")
def test_mnist_trains_as_far_as_in_f32() -> None:
    """The loss of validation is that of f32 within its uncertainty."""
    parts = read_idx_folder(MNIST)
    images = (parts["training images"][:20_000].reshape(-1, 784) / 255).astype(np.float32)
    rows = gl.data.Dataset(images, parts["training labels"][:20_000].astype(np.int32))
    found = {}
    for precision in ("f32", "bf16"):
        net = gl.nn.Sequential(gl.nn.Linear(784, 100), gl.nn.ReLU(), gl.nn.Linear(100, 10))
        history = gl.fit(
            net, rows, optimizer=gl.optim.AdamW(lr=1e-3), epochs=3, batch_size=500, val_split=0.1, progress=False,
            precision=precision,
        )  # fmt: skip
        found[precision] = history[-1].val
    plain, rounded = found["f32"], found["bf16"]
    assert abs(plain.loss - rounded.loss) <= max(plain.loss_unc, rounded.loss_unc)
    assert rounded.accuracy > 0.85 and plain.loss != rounded.loss
