"""Training on several devices: the losses, weights, errors and checkpoints of one device. The devices are of the CPU
(tests/plan/devices.py); tests/gpu/test_placed_training.py has a GPU and the CPU."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.parallel.replicas import threads as thread_ranks
from gradloom.plan.schedule import Schedule
from tests.plan.devices import DEVICES, registered


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    with registered():
        yield


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip


def cut(net: nn.Sequential, at: int | None, first: str = "cpu1", then: str = "cpu2") -> nn.Sequential:
    """The layers before `at` on the first device, the others on the second; None: nothing is said."""
    for i, layer in enumerate(net.layers):
        if at is not None:
            layer.to(first if i < at else then)
    return net


def table(rows: int = 40, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((rows, *(shape or (4,)))).astype(np.float32), rng.integers(0, 3, rows).astype(np.int32)


def losses(net: nn.Sequential, data: Any, optimizer: Any = None, **options: Any) -> tuple[list[float], dict[str, Any]]:
    """The losses of 20 optimiser steps, and the weights after them."""
    seen: list[float] = []
    trainer = gl.Trainer(net, optimizer=optimizer or gl.optim.SGD(lr=0.1, momentum=0.9), **options)
    x, y = data
    for i in range(20):
        for j in range(trainer.accumulate):
            k = (i * trainer.accumulate + j) * 4 % len(x)
            seen.append(trainer.step(x[k : k + 4], y[k : k + 4]).loss)
    return seen, net.state_dict()


def close(one: tuple[list[float], dict[str, Any]], other: tuple[list[float], dict[str, Any]]) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=2e-5)
    for name, array in one[1].items():
        np.testing.assert_allclose(array, other[1][name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("make", [mlp, normed])
def test_losses_of_every_cut_are_those_of_one_device(make: Callable[[], nn.Sequential]) -> None:
    alone = losses(make(), table(), device="cpu")
    for at in range(6):
        net = cut(make(), at)
        found = losses(net, table(), devices=DEVICES)
        close(found, alone)


def test_losses_of_the_cnn_at_every_cut() -> None:
    data = table(16, 1, 8, 8)
    alone = losses(cnn(), data, device="cpu")
    for at in range(8):
        close(losses(cut(cnn(), at), data, devices=DEVICES), alone)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: gl.optim.AdamW(lr=0.01),
    "lion": lambda: gl.optim.Lion(lr=0.01),
    "rmsprop": lambda: gl.optim.RMSprop(lr=0.01),
    "adafactor": lambda: gl.optim.Adafactor(lr=0.01),
    "muon": lambda: gl.optim.Muon(lr=0.01, groups=[{"match": "not_2d", "optimizer": gl.optim.AdamW(lr=0.01)}]),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rules_windows_clipping_and_averages_on_two_devices(optimizer: str) -> None:
    options = {"accumulate": 2, "max_norm": 0.5, "ema": 0.9}
    alone = losses(mlp(), table(), OPTIMIZERS[optimizer](), device="cpu", **options)
    found = losses(cut(mlp(), 2), table(), OPTIMIZERS[optimizer](), devices=DEVICES, **options)
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-4)


def test_one_device_among_several_has_the_bits_of_that_device() -> None:
    alone = losses(mlp(), table(), device="cpu")
    for devices in (("cpu",), ("cpu", "cpu1")):
        seen, weights = losses(mlp(), table(), devices=devices)
        assert seen == alone[0]
        assert all(np.array_equal(weights[name], alone[1][name]) for name in weights)


def test_what_modules_and_nodes_say_is_heeded_without_devices() -> None:
    x, y = table()
    trainer = gl.Trainer(cut(mlp(), 2, "cpu", "cpu2"))
    trainer.step(x[:4], y[:4])
    (plan,) = trainer.plans
    assert isinstance(plan, Schedule) and set(plan.parts) == {"cpu", "cpu2"}
    value = gl.input("x", (4,))
    with gl.device("cpu1"):
        out = value * 2.0
    assert isinstance(gl.compile([out, value + 1.0]).plan, Schedule)
    assert not isinstance(gl.compile([out, value + 1.0], device="cpu").plan, Schedule)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_that_is_moved_is_built_anew(dynamic: bool) -> None:
    x, y = table()
    net = mlp()
    trainer = gl.Trainer(net, devices=DEVICES, dynamic=dynamic)
    trainer.step(x[:4], y[:4])
    cut(net, 2)
    trainer.step(x[:4], y[:4])
    assert [isinstance(plan, Schedule) for plan in trainer.plans] == [False, True]
    trainer.step(x[:4], y[:4])
    cut(net, 6)
    trainer.step(x[:4], y[:4])
    assert [isinstance(plan, Schedule) for plan in trainer.plans] == [False, True, False]


def test_a_step_that_is_not_finite_leaves_all_weights_of_both_devices() -> None:
    x, y = table()
    bad = x.copy()
    bad[5, 1] = np.nan
    for at in (1, 2, 4):
        net = cut(mlp(), at)
        trainer = gl.Trainer(net, devices=DEVICES)
        trainer.step(x[:4], y[:4])
        before = net.state_dict()
        with pytest.raises(gl.NonFiniteError, match="training stopped at step 2 .*row 1 of the .* is not finite"):
            trainer.step(bad[4:8], y[4:8])
        assert all(np.array_equal(array, before[name]) for name, array in net.state_dict().items())
        for name in ("0.weight", "4.weight"):
            net.load_state_dict(before | {name: before[name] * np.nan})
            with pytest.raises(gl.NonFiniteError):
                trainer.step(x[:4], y[:4])
            assert all(np.array_equal(a, before[n]) for n, a in net.state_dict().items() if n != name)


def test_a_batch_that_is_skipped_is_skipped_on_both_devices() -> None:
    x, y = table()
    x[13, 0] = np.inf
    skipped = [
        gl.fit(net, (x, y), batch_size=8, progress=False, on_nonfinite="skip", **options)[-1].train
        for net, options in ((mlp(), {"device": "cpu"}), (cut(mlp(), 2), {"devices": DEVICES}))
    ]
    assert [result.skipped for result in skipped] == [1, 1]
    assert skipped[0].loss == pytest.approx(skipped[1].loss, rel=1e-5)


def test_fit_evaluate_and_predict_take_devices() -> None:
    data = table()
    alone, net = mlp(), cut(mlp(), 2)
    one = gl.fit(alone, data, epochs=2, batch_size=8, val_split=0.2, progress=False)
    two = gl.fit(net, data, epochs=2, batch_size=8, val_split=0.2, progress=False, devices=DEVICES)
    for a, b in zip(one, two, strict=True):
        assert a.train.loss == pytest.approx(b.train.loss, rel=1e-5)
    assert gl.evaluate(net, data, devices=DEVICES).loss == pytest.approx(gl.evaluate(alone, data).loss, rel=1e-5)
    np.testing.assert_allclose(
        gl.predict(net, data[0], devices=DEVICES), gl.predict(alone, data[0]), rtol=1e-3, atol=1e-5
    )


def test_a_run_goes_on_with_the_same_bits_and_under_another_placement_it_says_so(tmp_path, capfd) -> None:
    data = table()
    whole = cut(normed(), 2)
    gl.fit(whole, data, epochs=4, batch_size=8, progress=False, devices=DEVICES)
    for at, devices in ((2, DEVICES), (3, DEVICES), (None, ("cpu",))):
        run = tmp_path / f"run{at}"
        gl.fit(cut(normed(), 2), data, epochs=2, batch_size=8, progress=False, devices=DEVICES, run=run)
        capfd.readouterr()
        net = cut(normed(), at)
        gl.fit(net, data, epochs=4, batch_size=8, progress=False, devices=devices, run=run, resume=True)
        said = capfd.readouterr().err
        if at == 2:
            assert "the same bits are not promised" not in said
            assert all(np.array_equal(a, whole.state_dict()[n]) for n, a in net.state_dict().items())
        else:
            what = "placement is" if at else "backend is cpu and was cpu1, cpu2"
            assert what in said and "the run continues, the same bits are not promised" in said
            for name, array in net.state_dict().items():
                np.testing.assert_allclose(array, whole.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_what_does_not_go_with_devices_is_refused() -> None:
    net = mlp()
    for options, message in (
        ({"device": "cpu", "devices": DEVICES}, "Trainer: device and devices are mutually exclusive"),
        ({"backend": "cpu", "devices": DEVICES}, "Trainer: backend and devices are mutually"),
        ({"devices": ()}, "Trainer: devices is empty"),
        ({"devices": ("cpu1", "cpu1")}, "Trainer: devices has 'cpu1' twice"),
        ({"devices": ("cpu1", 3)}, "Trainer: device=3: must be"),
    ):
        with pytest.raises(gl.SettingError, match=message):
            gl.Trainer(net, **options)
    with pytest.raises(gl.SettingError, match="is assigned to 'cpu2'; must be one of 'cpu', 'cpu1'"):
        gl.Trainer(cut(net, 2), devices=("cpu", "cpu1")).step(*[a[:4] for a in table()])


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        (3, "devices=3: must be a list or tuple of names, such as ('gpu', 'cpu')"),
        (False, "devices=False: must be a list or tuple"),
        ({"cpu1": 1, "cpu2": 2}, "devices={'cpu1': 1, 'cpu2': 2}: must be a list or tuple"),
        ({"cpu1", "cpu2"}, "}: must be a list or tuple of names"),
        (np.array(["cpu1", "cpu2"]), ": must be a list or tuple of names"),
        (iter(("cpu1", "cpu2")), ": must be a list or tuple of names"),
        ((), "devices is empty; must be names, such as ('gpu', 'cpu')"),
        ([], "devices is empty; must be names"),
        ((None, "cpu1"), "device=None: must be a name, such as 'cpu' or 'gpu'"),
        ((["cpu1"],), "device=['cpu1']: must be a name"),
        ("", "device='': must be a name"),
    ],
)
def test_every_function_refuses_what_names_no_devices(devices: Any, seen: str) -> None:
    data, x = table(), gl.input("x", (4,))
    asked: dict[str, Callable[[], Any]] = {
        "compile": lambda: gl.compile(x * 2.0, devices=devices),
        "Trainer": lambda: gl.Trainer(mlp(), devices=devices),
        "fit": lambda: gl.fit(mlp(), data, progress=False, devices=devices),
        "evaluate": lambda: gl.evaluate(mlp(), data, devices=devices),
        "predict": lambda: gl.predict(mlp(), data[0], devices=devices),
    }
    if not isinstance(devices, str):
        given: dict[str, Any] = {"devices": devices, "loss_fn": "cross_entropy", "iterations": 1}
        asked["dp_train"] = lambda: gl.dp_train(mlp, [(data[0], data[1])], **given)
    for name, ask in asked.items():
        with pytest.raises(gl.SettingError) as caught:
            ask()
        assert seen in str(caught.value) and "\n" not in str(caught.value), name


def test_one_name_among_devices_does_not_outweigh_what_was_said() -> None:
    """As several do not; device= does, and that is what it is for."""
    x, y = table()
    with pytest.raises(gl.SettingError, match=r"parameter 2\.weight at test_devices\.py:\d+ is assigned to 'cpu2'"):
        gl.Trainer(cut(mlp(), 2, "cpu", "cpu2"), devices=("cpu",)).step(x[:4], y[:4])
    value = gl.input("x", (4,))
    with gl.device("cpu1"):
        out = gl.ops.exp(value)
    message = r"devices: exp \S* ?at test_devices\.py:\d+ is assigned to 'cpu1'; must be one of 'cpu', or that device"
    for one in (("cpu",), ["cpu"], "cpu"):
        with pytest.raises(gl.SettingError, match=message):
            gl.compile(out, devices=one)
    assert gl.compile(out, device="cpu")(x=np.zeros(4))[0].tolist() == [1.0] * 4


def test_ranks_and_several_devices_are_refused() -> None:
    (rank,) = thread_ranks(1)
    for net, options in ((mlp(), {"devices": DEVICES}), (cut(mlp(), 2), {})):
        with pytest.raises(gl.SettingError, match=r"(devices|Module.to) requires one process; a rank computes"):
            gl.Trainer(net, communicator=rank, **options)
    gl.Trainer(cut(mlp(), 2), communicator=rank, device="cpu")


def test_a_run_that_is_stopped_inside_an_epoch_goes_on_with_the_same_bits(tmp_path) -> None:
    data = table()

    def fit(**options: Any) -> dict[str, Any]:
        net = cut(normed(), 2)
        optimizer = gl.optim.AdamW(lr=0.01)
        gl.fit(
            net, data, optimizer=optimizer, epochs=3, batch_size=8, micro_batch_size=4, progress=False, ema=0.9,
            max_norm=0.5, devices=DEVICES, **options,
        )  # fmt: skip
        return net.state_dict()

    whole = fit()
    for stop in (1, 3, 7):
        seen = iter(range(stop))

        def leave(_: Any, seen: Iterator[int] = seen) -> None:
            if next(seen, None) is None:
                signal.raise_signal(signal.SIGINT)

        run = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            fit(run=run, checkpoint_every="1steps", on_train_batch=leave)
        resumed = fit(run=run, resume=True)
        assert all(np.array_equal(array, whole[name]) for name, array in resumed.items()), stop


@pytest.mark.parametrize("given", [{"device": "nowhere"}, {"backend": "nowhere:9"}, {"devices": ("cpu1", "nowhere")}])
def test_a_device_that_is_not_there_is_refused_when_the_trainer_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(gl.BackendError, match="backend: 'nowhere.*' is not known"):
        gl.Trainer(mlp(), **given)
