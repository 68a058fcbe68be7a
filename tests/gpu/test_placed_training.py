"""Training with layers on a GPU and on the CPU, against the CPU alone."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.plan.schedule import Schedule
from tests.train.test_devices import close, cnn, cut, losses, mlp, table

DEVICES = ("gpu", "cpu")


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_twenty_losses_of_an_mlp_at_every_cut(at: int) -> None:
    alone = losses(mlp(), table(), device="cpu")
    close(losses(cut(mlp(), at, "cpu", "gpu"), table(), devices=DEVICES), alone)
    close(losses(cut(mlp(), at, "gpu", "cpu"), table(), devices=DEVICES), alone)


def test_twenty_losses_of_a_cnn_at_every_cut() -> None:
    data = table(16, 1, 8, 8)
    alone = losses(cnn(), data, device="cpu")
    for at in range(1, 7):
        close(losses(cut(cnn(), at, "cpu", "gpu"), data, devices=DEVICES), alone)


def test_adamw_with_windows_clipping_and_batch_norm() -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    options = {"accumulate": 2, "max_norm": 0.5, "ema": 0.9}
    alone = losses(net(), table(), gl.optim.AdamW(lr=0.01), device="cpu", **options)
    found = losses(cut(net(), 2, "cpu", "gpu"), table(), gl.optim.AdamW(lr=0.01), devices=DEVICES, **options)
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-4)


def test_a_step_that_is_not_finite_leaves_the_weights_of_both_devices() -> None:
    x, y = table()
    net = cut(mlp(), 2, "cpu", "gpu")
    trainer = gl.Trainer(net, devices=DEVICES)
    trainer.step(x[:4], y[:4])
    before = net.state_dict()
    for name in ("0.weight", "4.weight"):  # of the CPU, of the GPU
        net.load_state_dict(before | {name: before[name] * np.nan})
        with pytest.raises(gl.NonFiniteError, match="training stopped at step 2"):
            trainer.step(x[:4], y[:4])
        assert all(np.array_equal(a, before[n]) for n, a in net.state_dict().items() if n != name)


def test_a_run_goes_on_with_the_same_bits_and_on_the_cpu_alone_it_says_so(tmp_path, capfd) -> None:
    data = table()

    def fit(net: nn.Sequential, epochs: int, **options: object) -> nn.Sequential:
        gl.fit(net, data, epochs=epochs, batch_size=8, progress=False, **options)  # type: ignore[arg-type]
        return net

    whole = fit(cut(mlp(), 2, "cpu", "gpu"), 4, devices=DEVICES)
    for devices in (DEVICES, ("cpu",)):
        run = tmp_path / devices[0]
        fit(cut(mlp(), 2, "cpu", "gpu"), 2, devices=DEVICES, run=run)
        capfd.readouterr()
        net = fit(cut(mlp(), 2 if "gpu" in devices else None, "cpu", "gpu"), 4, devices=devices, run=run, resume=True)
        said = capfd.readouterr().err
        if "gpu" in devices:
            assert "not promised" not in said
            assert all(np.array_equal(a, whole.state_dict()[n]) for n, a in net.state_dict().items())
        else:
            assert "backend is cpu and was gpu, cpu" in said and "the same bits are not promised" in said
            for name, array in net.state_dict().items():
                np.testing.assert_allclose(array, whole.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_what_is_said_is_heeded_without_devices_and_moving_a_layer_builds_anew() -> None:
    x, y = table()
    net = mlp()
    net.layers[4].to("gpu")
    trainer = gl.Trainer(net)
    trainer.step(x[:4], y[:4])
    (plan,) = trainer.plans
    assert isinstance(plan, Schedule) and set(plan.parts) == {"gpu", "cpu"}
    there = trainer.on_device
    assert there is not None and there.total > there.arena >= plan.parts["gpu"].plan.bytecode.arena_bytes > 0
    net.to(None)
    trainer.step(x[:4], y[:4])
    assert not isinstance(trainer.plans[-1], Schedule)
