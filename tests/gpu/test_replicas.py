"""dp_train over devices: equal weights, bit for bit, and the CPU's numbers to the noise of f32."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.nn.module import Module
from gradloom.run import backend as backends
from gradloom.train.replica_steps import ReplicaSteps
from tests.noise import assert_noise

RNG = np.random.default_rng(4)
SAMPLES = [(RNG.standard_normal((n, 4)).astype(np.float32), RNG.integers(0, 3, n)) for n in (8, 12, 8, 8, 12)]


def net(norm: bool = False, dropout: float = 0.0) -> Module:
    middle = [gl.nn.BatchNorm(16)] if norm else []
    return gl.nn.Sequential(
        gl.nn.Linear(4, 16), *middle, gl.nn.ReLU(), gl.nn.Dropout(dropout), gl.nn.Linear(16, 3)
    )  # fmt: skip


def train(devices: list[str] | None, samples: Any = SAMPLES, model: Any = net, **more: Any) -> Any:
    chosen = {"optimizer": gl.optim.SGD(lr=0.1), "iterations": 12, "max_norm": 1.0} | more
    return gl.dp_train(model, samples, loss_fn=ops.cross_entropy, devices=devices, **chosen)


def bits(result: Any) -> list[dict[str, bytes]]:
    return [{name: array.tobytes() for name, array in model.state_dict().items()} for model in result.models]


@pytest.mark.parametrize("devices", [["gpu", "gpu"], ["cpu", "gpu"], ["gpu", "cpu"], ["gpu", "cpu", "gpu"]])
def test_weights_are_equal_and_losses_those_of_the_cpu(devices: list[str]) -> None:
    cpu, found, again = train(["cpu"] * len(devices)), train(devices), train(devices)
    models = bits(found)
    assert len(models) == len(devices) and all(weights == models[0] for weights in models)
    assert bits(again) == models and again.loss_history == found.loss_history
    assert np.allclose(found.loss_history, cpu.loss_history, rtol=1e-5)
    assert models[0] != bits(cpu)[0]


def test_losses_differ_by_the_noise_of_f32() -> None:
    double = exact_losses()
    cpu, gpu = (train([device] * 2).loss_history for device in ("cpu", "gpu"))
    assert_noise("losses", gpu, cpu, double, longest=32)


def exact_losses() -> list[float]:
    """Of the same steps in float64: the samples of both replicas as one batch."""
    model, found = net().init(0), []
    for i in range(12):
        rows = [SAMPLES[(2 * i + r) % len(SAMPLES)] for r in range(2)]
        weights = np.concatenate([np.full(len(y), 0.5 / len(y)) for _, y in rows])
        x, y = (np.concatenate([pair[k] for pair in rows]) for k in range(2))
        if not found:
            trainer = gl.train.Trainer(
                model, "cross_entropy", gl.optim.SGD(lr=0.1), max_norm=1.0, device="numpy", seed=0
            )  # fmt: skip
        found.append(trainer.step(x, y, weights=weights).loss)
    return found


def test_like_devices_update_and_unlike_ones_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied is that of the first; each program of an update belongs to a replica that is like it."""
    updated: list[int] = []
    copied: list[int] = []
    ending, copy_first = ReplicaSteps._ending, ReplicaSteps.copy_first

    def _ending(self: ReplicaSteps, *given: Any) -> Any:
        updated.append(self.ranks.rank)
        return ending(self, *given)

    def _copy_first(self: ReplicaSteps, written: Any, everywhere: bool = False) -> None:
        if not everywhere:
            copied.append(self.ranks.rank)
        copy_first(self, written, everywhere)

    monkeypatch.setattr(ReplicaSteps, "_ending", _ending)
    monkeypatch.setattr(ReplicaSteps, "copy_first", _copy_first)
    for devices, update, copies in (
        (["gpu", "gpu"], [0, 1], 0), (["cpu", "cpu"], [0, 1], 0), (["gpu", "cpu", "gpu"], [0, 2], 9),
        (["cpu", "gpu"], [0], 6),
    ):  # fmt: skip
        updated.clear(), copied.clear()
        train(devices, iterations=3)
        assert sorted(updated) == update and len(copied) == copies, devices


@pytest.mark.parametrize("devices", [["gpu", "gpu"], ["gpu", "cpu"]])
def test_running_statistics_averages_and_masks(devices: list[str]) -> None:
    found = {}
    for chosen in (devices, ["cpu", "cpu"]):
        made = train(
            chosen, model=lambda: net(norm=True, dropout=0.2), ema=0.8, shuffle=True,
            optimizer=gl.optim.SGD(lr=0.1, momentum=0.9),
        )  # fmt: skip
        first, second = bits(made)
        assert first == second
        found[tuple(chosen)] = made
    gpu, cpu = found.values()
    assert np.allclose(gpu.loss_history, cpu.loss_history, rtol=1e-3)
    for name, array in cpu.model.state_dict().items():
        assert np.allclose(gpu.model.state_dict()[name], array, rtol=1e-2, atol=1e-3), name


@pytest.mark.parametrize("devices", [["gpu", "gpu"], ["cpu", "gpu"], ["gpu", "cpu"]])
def test_a_step_that_is_not_finite(devices: list[str]) -> None:
    samples = [(x.copy(), y) for x, y in SAMPLES]
    samples[3][0][2, 1] = np.nan
    messages = []
    for chosen in (["cpu", "cpu"], devices):
        with pytest.raises(gl.NonFiniteError) as caught:
            train(chosen, samples)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "in replica 1, sample 3" in messages[0]
    cpu, found = train(["cpu", "cpu"], samples, on_nonfinite="skip"), train(devices, samples, on_nonfinite="skip")
    assert found.skipped == cpu.skipped > 0
    assert np.allclose(found.loss_history, cpu.loss_history, rtol=1e-5, equal_nan=True)
    first, second = bits(found)
    assert first == second


@pytest.mark.parametrize("devices", [["gpu", "gpu"], ["cpu", "gpu"]])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, devices: list[str]) -> None:
    settings = {"optimizer": gl.optim.AdamW(lr=1e-2), "ema": 0.9, "checkpoint_every": "100steps"}
    whole = train(devices, run=tmp_path / "a", **settings)
    calls = [0]

    def rate(step: int, epoch: int) -> float:
        calls[0] += 1
        if calls[0] == 9:
            signal.raise_signal(signal.SIGINT)
        return 1e-2

    with pytest.raises(KeyboardInterrupt):
        train(devices, run=tmp_path / "b", **settings | {"optimizer": gl.optim.AdamW(lr=rate)})
    calls[0] = -1000
    resumed = train(devices, run=tmp_path / "b", resume=True, **settings | {"optimizer": gl.optim.AdamW(lr=rate)})
    assert bits(resumed) == bits(whole) and resumed.loss_history == whole.loss_history


def test_a_run_goes_on_elsewhere_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(["cpu", "gpu"], run=tmp_path, iterations=4)
    capsys.readouterr()
    train(["cpu", "cpu"], run=tmp_path, iterations=8, resume=True)
    said = capsys.readouterr().err
    assert "backend is cpu and was cpu, " in said and "same bits" in said, said


def test_one_name_for_all_takes_one_adapter_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    both = train(["gpu", "gpu"])
    assert bits(train(None, device="gpu", replicas=2)) == bits(train(None, backend="gpu", replicas=2)) == bits(both)
    monkeypatch.setitem(backends._alike, "gpu", lambda: [0, 2])
    names = [backends.device_of_rank("gpu", rank) for rank in range(3)]
    assert names == ["gpu", "gpu:2", "gpu"]
    assert [backends.device_of_rank(name, 1) for name in ("cpu", "gpu:1")] == ["cpu", "gpu:1"]


@pytest.mark.no_adapter
def test_what_is_refused() -> None:
    for message, more in (
        ("devices=['cpu', 'gpu'] must have a name for each of the 3 replicas", {"replicas": 3}),
        ("dp_train: device='gpu' and devices=['cpu', 'gpu'] are mutually exclusive", {"device": "gpu"}),
        ("dp_train: flush=True requires device 'cpu'; it has no effect on 'cpu', 'gpu'", {"flush": True}),
        ("dp_train: isa='avx2' requires device 'cpu'; it has no effect on 'cpu', 'gpu'", {"isa": "avx2"}),
    ):  # fmt: skip
        with pytest.raises(gl.SettingError) as caught:
            train(["cpu", "gpu"], **more)
        assert str(caught.value) == message
    for devices in ("gpu", [], ["cpu", 3], ["null"]):
        with pytest.raises(gl.SettingError, match=r"^dp_train: devices?( is empty;|=('gpu'|3|'null'):) must be "):
            train(devices)  # type: ignore[arg-type]


def test_an_adapter_that_is_not_there_is_named() -> None:
    with pytest.raises(gl.BackendError, match="gpu:7: there is no such adapter"):
        train(["cpu", "gpu:7"])
