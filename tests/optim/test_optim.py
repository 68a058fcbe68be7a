"""The optimisers: their formulas, their settings, their state."""

import inspect

import numpy as np
import pytest

import gradloom as gl
from tests.refused import refused


@pytest.fixture(params=["numpy", "cpu"])
def backend(request):
    return request.param


def run(optimizer, gradients, backend, w0=(1.0, -2.0, 0.5)):
    """w after steps with these gradients: the loss sum(w * x) has gradient x."""
    w = gl.parameter(np.array(w0), name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", optimizer, backend=backend)
    found = []
    for g in gradients:
        trainer.step([g])
        found.append(w.numpy())
    return found, trainer, w


G = np.random.default_rng(0).standard_normal((6, 3))


def test_sgd(backend):
    w = np.array([1.0, -2.0, 0.5])
    found, _, _ = run(gl.optim.SGD(lr=0.1, weight_decay=0.2), G, backend)
    for got, g in zip(found, G, strict=True):
        w = w * (1 - 0.1 * 0.2) - 0.1 * g
        np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)


def test_momentum(backend):
    w, m = np.array([1.0, -2.0, 0.5]), 0
    found, trainer, p = run(gl.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.2), G, backend)
    for got, g in zip(found, G, strict=True):
        m = 0.9 * m + g
        w = w * (1 - 0.1 * 0.2) - 0.1 * m
        np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)
    trainer.reset(optimizer=True)
    trainer.step([G[0]])
    np.testing.assert_allclose(p.numpy(), w * (1 - 0.1 * 0.2) - 0.1 * G[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw(backend, decay):
    """Bias-corrected from t = 1, and from t = 1 again after a reset of the optimiser."""
    w, m, v = np.array([1.0, -2.0, 0.5]), 0, 0
    optimizer = gl.optim.AdamW(lr=0.05, beta1=0.8, beta2=0.9, eps=1e-2, weight_decay=decay)
    found, trainer, p = run(optimizer, G, backend)
    for t, (got, g) in enumerate(zip(found, G, strict=True), 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        w = w * (1 - 0.05 * decay) - 0.05 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-2)
        np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)
    trainer.reset(optimizer=True)
    assert trainer.steps == 0
    trainer.step([G[0]])
    first = w * (1 - 0.05 * decay) - 0.05 * G[0] / (np.abs(G[0]) + 1e-2)
    np.testing.assert_allclose(p.numpy(), first, rtol=1e-5, atol=1e-6)


def test_adam_is_adamw_without_decay(backend):
    a, _, _ = run(gl.optim.Adam(lr=0.05), G, backend)
    b, _, _ = run(gl.optim.AdamW(lr=0.05), G, backend)
    np.testing.assert_array_equal(a, b)


def test_defaults():
    assert gl.optim.AdamW().settings == {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    assert gl.optim.SGD().settings == {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}
    assert gl.optim.SGD().state_names == () and gl.optim.SGD(momentum=0.9).state_names == ("m",)


def test_one_optimiser_serves_two_trainers(backend):
    """State belongs to the trainer."""
    optimizer = gl.optim.AdamW(lr=0.05)
    first, _, _ = run(optimizer, G, backend)
    second, _, _ = run(optimizer, G, backend)
    np.testing.assert_array_equal(first, second)


def test_frozen_parameters_stay(backend):
    w = gl.parameter(np.ones(3), name="w")
    frozen = gl.parameter(np.ones(3), name="frozen", trainable=False)
    trainer = gl.Trainer(lambda x: x * w * frozen, "sum", gl.optim.AdamW(lr=0.1, weight_decay=0.5), backend=backend)
    trainer.step([G[0]])
    np.testing.assert_array_equal(frozen.numpy(), 1)
    assert (w.numpy() != 1).all()


def test_a_parameter_that_no_loss_reaches_stays(backend):
    net = gl.nn.Sequential(gl.nn.Linear(3, 2), gl.nn.Linear(2, 2)).init(0)

    class First(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net[0](x)

    before = net.state_dict()
    gl.Trainer(First(), "mean", gl.optim.AdamW(lr=0.1, weight_decay=0.5), backend=backend).step(G)
    after = net.state_dict()
    assert (after["0.weight"] != before["0.weight"]).any()
    np.testing.assert_array_equal(after["1.weight"], before["1.weight"])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), None, "x", 1j])
@pytest.mark.parametrize("name", ["lr", "weight_decay", "eps"])
def test_settings_out_of_range(name, value):
    with refused(name, need="a finite number of at least 0", place="AdamW"):
        gl.optim.AdamW(**{name: value})


@pytest.mark.parametrize(
    "schedule", [lambda step, epoch: -0.1, lambda step, epoch: float("nan"), lambda step, epoch: None]
)
def test_schedules_out_of_range(backend, schedule):
    w = gl.parameter(np.ones(3), name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", gl.optim.SGD(lr=schedule), backend=backend)
    with pytest.raises(gl.SettingError, match="SGD: lr="):
        trainer.step([G[0]])
    np.testing.assert_array_equal(w.numpy(), 1)


class Signs(gl.optim.Optimizer):
    """w <- w - lr * sign(g), or with `flip` + lr * sign(g)."""

    lr: gl.optim.Schedule = 0.5
    flip: bool = False

    def update(self, given: gl.optim.UpdateInputs) -> tuple[gl.graph.value.Value, ...]:
        rate = self.scalar("lr") * (-1.0 if self.flip else 1.0)
        pairs = zip(given.parameters, given.mean_gradients(), strict=True)
        return gl.ops.assign(*(v for w, g in pairs for v in (w, w - rate * (g / gl.ops.abs(g)))))


def test_an_optimiser_declares_its_arguments():
    assert list(inspect.signature(Signs).parameters) == ["parameters", "lr", "flip", "groups", "no_decay"]
    assert Signs().lr == 0.5 and not Signs().flip and Signs(lr=0.25, flip=True).flip
    with pytest.raises(TypeError, match=r"Signs\(\) got an unexpected keyword argument 'rate'"):
        Signs(rate=1.0)
    with refused("flip", "no", place="Signs"):
        Signs(flip="no")
    with pytest.raises(gl.SettingError, match="Signs: groups cannot be replaced"):
        Signs().groups = [{"match": "w", "lr": 1.0}]


@pytest.mark.parametrize(("flip", "expected"), [(False, [0.0, -4.0]), (True, [4.0, 0.0])])
def test_a_setting_that_a_class_declares_may_be_a_schedule(flip, expected):
    w = gl.parameter(np.array([2.0, -2.0]), "w")
    opt = Signs([w], lr=lambda step, epoch: 0.5 + step, flip=flip)
    for _ in range(2):
        with gl.grad_tape() as tape:
            loss = gl.ops.sum(gl.tensor([1.0, 3.0]) * w)
        opt.step(tape.backward(loss))
    np.testing.assert_array_equal(w.numpy(), expected)
