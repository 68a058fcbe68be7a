"""gl.grad_tape(device="gpu"): an eager loop on a device, beside the CPU."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.nn.module import Module
from tests.noise import assert_noise
from tests.refused import refused

DIGITS = Path(__file__).parents[2] / "examples" / "data" / "digits.npz"
RNG = np.random.default_rng(8)
X = RNG.standard_normal((48, 6)).astype(np.float32)
Y = np.argmax(X[:, :3] + 0.3 * X[:, 3:], 1)


def net(dropout: float = 0.0) -> Module:
    layers = [gl.nn.Linear(6, 16, activation="relu"), gl.nn.Dropout(dropout), gl.nn.Linear(16, 3)]
    return gl.nn.Sequential(*layers).init(4)


def away(model: Module) -> bool:
    """Whether the newest weights lie on a device."""
    return all(p.stored.away is not None for p in model.parameters())


def loop(device: str | None, optimizer: Any, steps: int = 20, **more: Any) -> tuple[list[float], Module]:
    model = net(more.pop("dropout", 0.0))
    made = optimizer(model.parameters())
    losses = []
    for step in range(steps):
        rows = np.arange(step * 12, step * 12 + 12) % 48
        with gl.grad_tape(seed=3, step=step + 1, device=device, **more) as tape:
            loss = ops.cross_entropy(model(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        made.step(tape.backward(loss))
        losses.append(float(loss))
        assert away(model) == (device == "gpu")
    return losses, model


def graph_losses(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """The same steps as graphs."""
    model = net()
    trainer = gl.train.Trainer(model, "cross_entropy", gl.optim.SGD(lr=0.2), device=device)
    found = [trainer.step(X[rows], Y[rows]).loss for i in range(20) for rows in [np.arange(i * 12, i * 12 + 12) % 48]]
    return found, model.state_dict()


def test_twenty_losses_and_the_weights_are_those_of_the_cpu() -> None:
    """Plain SGD: to the noise of f32 around the float64 references. The weights stay on the device all the time."""
    double = graph_losses("numpy")
    (cpu, cpu_model), (gpu, gpu_model) = (loop(d, lambda p: gl.optim.SGD(p, lr=0.2)) for d in (None, "gpu"))
    assert_noise("losses", gpu, cpu, double[0], longest=36)
    weights = cpu_model.state_dict(), gpu_model.state_dict()
    for name, exact in double[1].items():
        assert_noise(name, weights[1][name], weights[0][name], exact, longest=36)


def test_a_loop_on_digits() -> None:
    """20 losses of plain SGD, a network with convolutions, batches from a loader: the CPU's to the noise of f32."""
    with np.load(DIGITS) as file:
        x, y = file["x"][:320].reshape(-1, 1, 8, 8).astype(np.float32) / 16, file["y"][:320].astype(np.int64)
    found: dict[str, list[float]] = {}
    for device in ("numpy", "cpu", "gpu"):
        model = gl.nn.Sequential(
            gl.nn.Conv2d(1, 4, 3, padding=1), gl.nn.ReLU(), gl.nn.MaxPool2d(2), gl.nn.Flatten(), gl.nn.Linear(64, 10)
        ).init(1)  # fmt: skip
        sgd = gl.optim.SGD(model.parameters(), lr=0.5)
        trainer = gl.train.Trainer(model, "cross_entropy", sgd, device="numpy")
        losses = found[device] = []
        for _ in range(2):
            for xb, yb in gl.data.DataLoader(x, y, batch_size=32, shuffle=True, seed=3):
                if device == "numpy":
                    losses.append(trainer.step(xb, yb).loss)
                    continue
                with gl.grad_tape(device=device) as tape:
                    loss = ops.cross_entropy(model(gl.tensor(xb)), gl.tensor(yb))
                sgd.step(tape.backward(loss))
                losses.append(float(loss))
    assert_noise("losses", found["gpu"], found["cpu"], found["numpy"], longest=2048)
    assert len(found["gpu"]) == 20 and found["gpu"][-1] < 0.7 * found["gpu"][0]


OPTIMIZERS = {
    "adamw": lambda p: gl.optim.AdamW(p, lr=1e-2),
    "momentum": lambda p: gl.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "lion": lambda p: gl.optim.Lion(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_train_with_dropout_as_on_the_cpu(name: str) -> None:
    """The masks are the CPU's."""
    cpu, gpu = (loop(device, OPTIMIZERS[name], 8, dropout=0.25)[0] for device in ("cpu", "gpu"))
    assert np.allclose(cpu, gpu, rtol=2e-4), (cpu, gpu)


def test_a_loop_compiles_once_and_gives_the_same_bits_again() -> None:
    runs = [loop("gpu", OPTIMIZERS["adamw"], 6)]
    before = gl.stats().compiled
    runs.append(loop("gpu", OPTIMIZERS["adamw"], 6))
    assert gl.stats().compiled - before <= 2 and runs[0][0] == runs[1][0]
    one, two = (model.state_dict() for _, model in runs)
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def gradients(device: str, look: bool) -> list[np.ndarray]:
    model = net()
    with gl.grad_tape(device=device) as tape:
        x = gl.tensor(X)
        tape.watch(x)
        hidden = model[0](x)
        seen = hidden.numpy() if look else None
        loss = ops.cross_entropy(model[2](hidden), gl.tensor(Y))
    grads = tape.backward(loss)
    found = [g.numpy() for g in (*(grads[p] for p in model.parameters()), grads[x])]
    return found if seen is None else [seen, *found]


@pytest.mark.parametrize("look", [False, True])
def test_gradients_are_those_of_the_cpu(look: bool) -> None:
    found = [gradients(device, look) for device in ("cpu", "gpu")]
    assert b"".join(x.tobytes() for x in found[0]) != b"".join(x.tobytes() for x in found[1])  # sums in another order
    for cpu, gpu in zip(*found, strict=True):
        assert np.allclose(cpu, gpu, rtol=1e-5, atol=1e-6)


def windows(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """Accumulation over two tapes, a global norm, gradients that are looked at, and clipped values."""
    model = net()
    optimizer = gl.optim.AdamW(model.parameters(), lr=1e-2)
    norms = []
    for step in range(4):
        for half in range(2):
            with gl.grad_tape(device=device) as tape:
                loss = ops.cross_entropy(model(gl.tensor(X[half::2])), gl.tensor(Y[half::2]))
            grads = tape.backward(loss)
            if step == 1:
                gl.optim.clip_grad_value(grads, 0.01)
            if step == 2:
                norms.append(float(np.abs(grads[model[0].weight].numpy()).max()))
            optimizer.accumulate(grads)
        norms.append(float(gl.optim.clip_grad_norm(optimizer, 0.1)))
        optimizer.step()
        assert away(model) == (device == "gpu")
    return norms, model.state_dict()


def test_accumulated_and_clipped_gradients_train_as_on_the_cpu() -> None:
    cpu, gpu = windows("cpu"), windows("gpu")
    assert np.allclose(cpu[0], gpu[0], rtol=1e-4)
    assert all(np.allclose(cpu[1][name], gpu[1][name], rtol=1e-3, atol=1e-5) for name in cpu[1])


def test_running_statistics_and_nested_tapes() -> None:
    found = {}
    for device in ("cpu", "gpu"):
        model = gl.nn.Sequential(gl.nn.Linear(6, 8), gl.nn.BatchNorm(8), gl.nn.Tanh(), gl.nn.Linear(8, 1)).init(1)
        with gl.grad_tape(device=device) as outer:
            with gl.grad_tape() as inner:
                loss = ops.sum(ops.sqr(model(gl.tensor(X))))
            slope = inner.backward(loss)[model[3].weight]
            total = ops.sum(ops.sqr(slope))
        second = outer.backward(total)[model[0].weight].numpy()
        found[device] = [second, *model.state_dict().values()]
    assert np.abs(found["cpu"][0]).max() > 0
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*found.values(), strict=True))


def test_a_step_that_is_not_finite_names_its_node_and_writes_nothing() -> None:
    model = net()
    before = model.state_dict()
    optimizer = gl.optim.SGD(model.parameters(), lr=0.1)
    x = X.copy()
    x[3, 2] = np.nan
    messages = []
    for device in ("cpu", "gpu"):
        with gl.grad_tape(device=device) as tape:
            loss = ops.cross_entropy(model(gl.tensor(x)), gl.tensor(Y))
        with pytest.raises(gl.NonFiniteError) as caught:
            optimizer.step(tape.backward(loss))
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "is not finite at [3, 2]" in messages[0]
    assert all(before[name].tobytes() == array.tobytes() for name, array in model.state_dict().items())


def test_steps_here_and_there_by_turns() -> None:
    """Each takes up the weights and moments of the other."""
    model, other = net(), net()
    losses = []
    for made, devices in ((model, ("cpu", "gpu")), (other, ("cpu", "cpu"))):
        optimizer = gl.optim.AdamW(made.parameters(), lr=1e-2)
        for step in range(6):
            with gl.grad_tape(device=devices[step % 2]) as tape:
                loss = ops.cross_entropy(made(gl.tensor(X)), gl.tensor(Y))
            optimizer.step(tape.backward(loss))
            losses.append(float(loss))
    assert np.allclose(losses[:6], losses[6:], rtol=1e-4)


def test_products_of_bf16_are_those_of_the_cpu() -> None:
    sgd = lambda p: gl.optim.SGD(p, lr=0.2)  # noqa: E731
    cpu, rounded, gpu = (
        np.array(loop(device, sgd, 8, precision=precision)[0])
        for device, precision in (("cpu", "f32"), ("cpu", "bf16"), ("gpu", "bf16"))
    )
    assert np.abs(gpu - rounded).max() < 0.1 * np.abs(cpu - rounded).max()


def wide() -> tuple[Module, Any]:
    model = gl.nn.Sequential(gl.nn.Linear(6, 128), gl.nn.Tanh(), gl.nn.Linear(128, 128), gl.nn.Linear(128, 3)).init(2)
    return model, gl.optim.SGD(model.parameters(), lr=0.1)


def wide_steps(model: Module, optimizer: Any, device: str, looks: bool) -> tuple[list[float], Any, Any]:
    """(losses, activations, slopes) of three steps with activations and gradients of 4 KiB and more."""
    losses = []
    for _ in range(3):
        with gl.grad_tape(device=device) as tape:
            hidden = model[1](model[0](gl.tensor(X)))
            loss = ops.cross_entropy(model[3](model[2](hidden)), gl.tensor(Y))
            if looks:
                float(loss)  # what follows begins with what was computed for that
        grads = tape.backward(loss)
        slope = grads[model[2].weight]
        if looks:
            float(ops.sum(slope))
        optimizer.step(grads)
        losses.append(float(loss))
    return losses, hidden, slope


@pytest.mark.parametrize("looks", [False, True])
def test_values_stay_on_the_device(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between programs of a tape only small ones are downloaded, and what the user gives is uploaded."""
    from gradloom.gpu import kept
    from gradloom.gpu.backend import place_of

    cpu, gpu = wide(), wide()
    wide_steps(*cpu, "cpu", looks)
    wide_steps(*gpu, "gpu", looks)  # compiles
    downloads, uploads = [], []
    read, upload = kept.read, place_of(0).device.queue.write_buffer

    def counted_upload(buffer: Any, offset: int, data: Any, *more: Any) -> None:
        uploads.append(np.asarray(data).nbytes)
        upload(buffer, offset, data, *more)

    monkeypatch.setattr(kept, "read", lambda *given: downloads.append(given[-1]) or read(*given))
    monkeypatch.setattr(place_of(0).device.queue, "write_buffer", counted_upload, raising=False)
    losses, hidden, slope = wide_steps(*gpu, "gpu", looks)
    assert not downloads and sum(uploads) < 50_000, uploads  # slopes alone are 64 KiB a step
    here = [hidden.numpy(), slope.numpy(), hidden.numpy()]
    assert downloads == [48 * 128 * 4, 128 * 128 * 4]
    want, *there = wide_steps(*cpu, "cpu", looks)
    assert np.allclose(losses, want, rtol=1e-5)
    assert all(np.allclose(a, b.numpy(), rtol=1e-4, atol=1e-6) for a, b in zip(here, there, strict=False))


def test_a_value_of_a_device_goes_into_other_programs() -> None:
    """Into a tape on the CPU, one outside of tapes, a tape on the device, pickle and a forked child."""
    x = np.linspace(-1, 1, 2048).astype(np.float32)
    with gl.grad_tape(device="gpu") as tape:
        y = ops.tanh(gl.tensor(x))
    other = ops.exp(gl.tensor(np.zeros(2048, np.float32)))
    tape.watch(y)
    y.trace.look()
    assert not isinstance(y.data, np.ndarray)
    with gl.grad_tape() as here:
        z = ops.sum(y * 2.0)
    with gl.grad_tape(device="gpu"):
        again = ops.sum(y * 2.0)
    want = 2 * np.tanh(x.astype(np.float64)).sum()
    assert np.allclose([float(z), float(again), float(ops.sum(y * other) * 2.0)], want, atol=1e-3)
    assert np.allclose(pickle.loads(pickle.dumps(y)).numpy(), np.tanh(x), atol=1e-6) and here is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_has_the_values() -> None:
    with gl.grad_tape(device="gpu"):
        y = ops.tanh(gl.tensor(np.ones(2048, np.float32)))
        y.trace.look()
    child = os.fork()
    if not child:
        try:
            os._exit(0 if np.allclose(y.numpy(), np.tanh(1.0)) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_step_that_is_not_finite_after_a_look() -> None:
    """The update begins with slopes that lie on the device, and the search for the cause needs them."""
    messages = []
    for device in ("cpu", "gpu"):
        model = gl.nn.Linear(6, 256).init(0)
        optimizer = gl.optim.SGD(model.parameters(), lr=0.1)
        before = model.state_dict()
        with gl.grad_tape(device=device) as tape:
            hidden = model(gl.tensor(X))
            loss = ops.sum(ops.log(hidden - hidden.numpy().min()))  # the slope of one of them is infinite
        grads = tape.backward(loss)
        slope = grads[model.weight]
        float(ops.sum(slope))
        with pytest.raises(gl.NonFiniteError) as caught:
            optimizer.step(grads)
        messages.append(str(caught.value).replace("-0", "0"))
        assert all(before[name].tobytes() == array.tobytes() for name, array in model.state_dict().items())
    assert messages[0] == messages[1] and "a tensor that goes in" in messages[0], messages


@pytest.mark.no_adapter
def test_what_is_refused() -> None:
    with pytest.raises(gl.SettingError, match=r"^grad_tape: flush=True requires device 'cpu'"):
        gl.grad_tape(device="gpu", flush=True)
    with refused("device", "numpy", need="'cpu', 'gpu', 'gpu:1'", place="grad_tape"):
        gl.grad_tape(device="numpy")
    with refused("device", 3, place="grad_tape"):
        gl.grad_tape(device=3)  # type: ignore[arg-type]
    with gl.grad_tape(device="cpu"), gl.grad_tape(device="cpu"), gl.grad_tape():
        pass


def test_an_inner_tape_computes_as_the_outer_one() -> None:
    with gl.grad_tape(device="gpu"), gl.grad_tape(device="gpu"):
        pass
    with gl.grad_tape(device="gpu"), pytest.raises(gl.SettingError, match="give the device to the outer one"):
        gl.grad_tape(device="cpu").__enter__()
    with pytest.raises(gl.BackendError, match="gpu:7: there is no such adapter"):
        gl.grad_tape(device="gpu:7")


def test_an_op_without_a_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradloom.gpu import backend

    monkeypatch.setattr(backend, "KERNELS", {k: v for k, v in backend.KERNELS.items() if k[0] != "sin"})
    with gl.grad_tape(device="gpu"):
        y = ops.sin(gl.tensor(X))
    with pytest.raises(gl.BackendError, match=r"gpu .* has no kernel for: sin f32 \(sin#"):
        y.numpy()
