"""fit, Trainer, evaluate and predict on a device, beside the CPU."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.nn.module import Module
from tests.noise import assert_noise

Data = tuple[np.ndarray, np.ndarray]

pytestmark = pytest.mark.usefixtures("bindings")


def net(seed: int = 4, dropout: float = 0.0) -> Module:
    layers = [gl.nn.Linear(6, 16, activation="relu"), gl.nn.Dropout(dropout), gl.nn.Linear(16, 3)]
    return gl.nn.Sequential(*layers).init(seed)


def rows(n: int = 60) -> Data:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    return x, np.argmax(x[:, :3] + 0.3 * x[:, 3:], 1)


def losses(device: str, optimizer: Any, steps: int = 20, **more: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    """The loss of each of the first steps, and the weights after them."""
    model, (x, y) = net(**more), rows()
    trainer = gl.train.Trainer(model, "cross_entropy", optimizer, seed=1, device=device)
    found = [trainer.step(x[at : at + 12], y[at : at + 12]).loss for at in np.arange(steps) * 12 % 60]
    return found, model.state_dict()


def test_twenty_losses_and_the_weights_are_those_of_the_cpu() -> None:
    """Plain SGD: to the noise of f32 around the float64 references."""
    double, cpu, gpu = (losses(device, gl.optim.SGD(lr=0.2)) for device in ("numpy", "cpu", "gpu"))
    assert_noise("losses", gpu[0], cpu[0], double[0], longest=36)
    for name in cpu[1]:
        assert_noise(name, gpu[1][name], cpu[1][name], double[1][name], longest=36)
    assert double[0][-1] < 0.7 * double[0][0]


class Heads(Module):
    """Numbers and ids into a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.embed = gl.nn.Linear(6, 8), gl.nn.Embedding(5, 8)
        self.ids, self.value = gl.nn.Linear(8, 3), gl.nn.Linear(8, 1)
        self.init(4)

    def forward(self, u: Any, v: Any) -> Any:
        hidden = gl.ops.tanh(self.body(u) + self.embed(v))
        return {"class": self.ids(hidden), "value": self.value(hidden)}


def test_several_inputs_and_outputs_are_those_of_the_cpu() -> None:
    x, y = rows()
    data = gl.data.Dataset({"u": x, "v": np.arange(60) % 5}, {"class": y, "value": x[:, 0]})
    loss = {"class": "cross_entropy", "value": "mse"}
    found = []
    for device in ("numpy", "cpu", "gpu"):
        model, optimizer = Heads(), gl.optim.SGD(lr=0.1)
        settings = {"epochs": 2, "batch_size": 20, "val_split": 0.2, "progress": False, "device": device}
        history = gl.fit(model, data, loss=loss, loss_weights={"value": 0.5}, optimizer=optimizer, **settings)
        last = history[-1].val
        assert last is not None
        found.append((np.array([last.loss, *last.losses.values()]), model.state_dict(), last.accuracies))
        assert gl.predict(model, {"u": x, "v": y}, device=device).keys() == loss.keys()
    double, cpu, gpu = found
    assert_noise("losses", gpu[0], cpu[0], double[0], longest=100)
    for name in cpu[1]:
        assert_noise(name, gpu[1][name], cpu[1][name], double[1][name], longest=100)
    assert gpu[2] == cpu[2]


OPTIMIZERS = {
    "sgd": lambda: gl.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: gl.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: gl.optim.AdamW(lr=1e-2),
    "lion": lambda: gl.optim.Lion(lr=1e-3),
    "rmsprop": lambda: gl.optim.RMSprop(lr=1e-3, momentum=0.5),
    "adafactor": lambda: gl.optim.Adafactor(),
    "muon": lambda: gl.optim.Muon(lr=1e-2, groups=[{"match": "not_2d", "optimizer": gl.optim.AdamW(lr=1e-2)}]),
}


@pytest.fixture
def small_parameters_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradloom.optim.moments.LEAST_SIZE", 1)


@pytest.mark.parametrize("kind", [gl.optim.AdamW, gl.optim.Adam, gl.optim.Lion])
@pytest.mark.usefixtures("small_parameters_in_8_bits")
def test_moments_in_8_bits_are_those_of_the_cpu(kind: Any) -> None:
    options = {"lr": 1e-3, "weight_decay": 0.1, "state_bits": 8}
    cpu, gpu, again = (losses(device, kind(**options), 8, dropout=0.25) for device in ("cpu", "gpu", "gpu"))
    assert np.allclose(cpu[0], gpu[0], rtol=2e-4), (cpu[0], gpu[0])
    assert gpu[0] == again[0] and all(gpu[1][k].tobytes() == again[1][k].tobytes() for k in gpu[1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_as_on_the_cpu(name: str) -> None:
    cpu, gpu = (losses(device, OPTIMIZERS[name](), 8, dropout=0.25) for device in ("cpu", "gpu"))
    assert np.allclose(cpu[0], gpu[0], rtol=2e-4), (cpu[0], gpu[0])


def fitted(device: str, seed: int = 3, **more: Any) -> tuple[Module, Any]:
    model = net(dropout=0.2)
    history = gl.fit(
        model, rows(), epochs=3, batch_size=16, micro_batch_size=6, val_split=0.2, max_norm=1.0, ema=0.9, seed=seed,
        progress=False, device=device, optimizer=gl.optim.AdamW(lr=1e-2), **more,
    )  # fmt: skip
    return model, history


def test_fit_is_the_same_to_the_bit_in_two_runs() -> None:
    first, second, cpu = fitted("gpu"), fitted("gpu"), fitted("cpu")
    one, two = first[0].state_dict(), second[0].state_dict()
    assert all(one[k].tobytes() == two[k].tobytes() for k in one)
    assert [e.train.loss for e in first[1]] == [e.train.loss for e in second[1]]
    assert np.allclose([e.train.loss for e in first[1]], [e.train.loss for e in cpu[1]], rtol=1e-4)
    assert np.isclose(first[1][-1].val.loss, cpu[1][-1].val.loss, rtol=1e-3)


def test_evaluate_and_predict_agree_with_the_cpu() -> None:
    model, (x, y) = net(), rows()
    cpu, gpu = (gl.evaluate(model, (x, y), batch_size=16, device=device) for device in ("cpu", "gpu"))
    assert np.isclose(cpu.loss, gpu.loss, rtol=1e-6) and cpu.accuracy == gpu.accuracy
    assert np.allclose(gl.predict(model, x, device="gpu"), gl.predict(model, x), atol=1e-5)


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path) -> None:
    """By a signal in the middle of an epoch."""
    heard = [-100]

    def listen(state: Any) -> None:
        heard[0] += 1
        if heard[0] == 7:
            signal.raise_signal(signal.SIGINT)

    whole = fitted("gpu", run=tmp_path / "a", on_train_batch=listen)[0].state_dict()
    heard[0] = 0
    with pytest.raises(KeyboardInterrupt):
        fitted("gpu", run=tmp_path / "b", on_train_batch=listen)
    heard[0] = -100
    resumed = fitted("gpu", run=tmp_path / "b", on_train_batch=listen, resume=True)[0].state_dict()
    assert -100 < heard[0] < -73 and all(whole[k].tobytes() == resumed[k].tobytes() for k in whole)


def test_a_step_that_is_not_finite_names_the_row_and_keeps_the_weights() -> None:
    x, y = rows()
    x[37, 2] = np.nan
    messages = []
    for device in ("cpu", "gpu"):
        model = net()
        with pytest.raises(gl.NonFiniteError) as caught:
            gl.fit(model, (x, y), epochs=1, batch_size=5, progress=False, device=device, optimizer=gl.optim.SGD())
        messages.append(str(caught.value))
        assert all(np.isfinite(w).all() for w in model.state_dict().values())
    assert messages[0] == messages[1] and "row 37 of the data is not finite" in messages[0]
    model = net()
    gl.fit(model, (x, y), epochs=1, batch_size=5, progress=False, device="gpu", on_nonfinite="skip")
    assert all(np.isfinite(w).all() for w in model.state_dict().values())


def test_a_batch_goes_on_elsewhere() -> None:
    """Steps on the CPU and on the device by turns: each takes up the weights and moments of the other."""
    model, (x, y) = net(), rows()
    optimizer = gl.optim.AdamW(model.parameters(), lr=1e-2)
    trainers = {d: gl.train.Trainer(model, "cross_entropy", optimizer, seed=1, device=d) for d in ("cpu", "gpu")}
    found = [trainers[("cpu", "gpu")[i % 2]].step(x, y).loss for i in range(6)]
    alone = net()
    optimizer = gl.optim.AdamW(alone.parameters(), lr=1e-2)
    trainer = gl.train.Trainer(alone, "cross_entropy", optimizer, seed=1)
    assert np.allclose(found, [trainer.step(x, y).loss for _ in range(6)], rtol=1e-4)


def test_convolutions_train_as_on_the_cpu() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((12, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 12)
    found = []
    for device in ("numpy", "cpu", "gpu"):
        model = gl.nn.Sequential(
            gl.nn.Conv2d(1, 4, 3, padding=1), gl.nn.BatchNorm(4), gl.nn.ReLU(), gl.nn.MaxPool2d(2), gl.nn.Flatten(),
            gl.nn.Linear(64, 3),
        ).init(5)  # fmt: skip
        trainer = gl.train.Trainer(model, "cross_entropy", gl.optim.SGD(lr=0.05), device=device)
        found.append([trainer.step(x, y).loss for _ in range(6)])
    assert_noise("losses", found[2], found[1], found[0], longest=128)


class Depth(Module):
    """A graph of another depth in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = gl.nn.Linear(6, 16), gl.nn.Linear(16, 16), gl.nn.Linear(16, 3)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        h = self.first(x)
        for _ in range(1 + self.calls % 3):
            h = gl.ops.tanh(self.again(h))
        return self.last(h)


def test_a_dynamic_fit_is_that_of_the_cpu() -> None:
    found = []
    for device in ("numpy", "cpu", "gpu"):
        history = gl.fit(
            Depth(), rows(), epochs=2, batch_size=20, progress=False, seed=2, dynamic=True, device=device,
            optimizer=gl.optim.SGD(lr=0.2),
        )  # fmt: skip
        found.append([e.train.loss for e in history])
    assert_noise("losses", found[2], found[1], found[0], longest=360)


def test_products_of_bf16_are_those_of_the_cpu() -> None:
    """The same rounding: losses in bf16 are nearer to one another than to those of f32."""
    found = {}
    for device, precision in (("cpu", "f32"), ("cpu", "bf16"), ("gpu", "bf16")):
        model, (x, y) = net(), rows()
        trainer = gl.train.Trainer(model, "cross_entropy", gl.optim.SGD(lr=0.2), device=device, precision=precision)
        found[device, precision] = np.array([trainer.step(x, y).loss for _ in range(8)])
    apart = np.abs(found["gpu", "bf16"] - found["cpu", "bf16"]).max()
    assert apart < 0.1 * np.abs(found["cpu", "f32"] - found["cpu", "bf16"]).max()


def test_what_a_run_says_of_its_device() -> None:
    from gradloom.gpu.backend import place_of
    from gradloom.runs.identity import environment_of

    assert environment_of({"backend": "gpu"})["device"] == place_of(0).device.name
    assert "device" not in environment_of({})
