"""The same bits of every weight, whatever does not change the arithmetic."""

import os

import numpy as np
import pytest

import gradloom as gl
from tests.core.harness import isas
from tests.train.small_models import cnn, data, mlp

SWITCHES = [
    {"threads": 2},
    {"reuse": False},
    {"inplace": False},
    {"fuse": False},
    {"poison": True},
    {"check": 2},
    {"reuse": False, "inplace": False, "fuse": False, "threads": 2},
]


@pytest.fixture(params=isas())
def isa(request):
    return request.param


def train(make, optimizer=None, seed=3, rows=150, **options):
    """Weights, buffers and losses after two epochs with a short last batch."""
    net = make()
    options = {"threads": 1, "batch_size": 64, "epochs": 2, "progress": False} | options
    history = gl.fit(net, data(make, rows), optimizer=optimizer or gl.optim.AdamW(lr=0.01), seed=seed, **options)
    return net.state_dict() | {f"loss {h.epoch}": np.array([h.train.loss]) for h in history}


def assert_same_bits(found, expected, what):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.isfinite(array).all(), name
        assert found[name].tobytes() == array.tobytes(), f"{what}: {name}"


def differ(found, expected):
    return any(found[name].tobytes() != array.tobytes() for name, array in expected.items())


@pytest.mark.parametrize("make", [mlp, cnn])
def test_switches(isa, make):
    rows = 150 if isa != "scalar" else 70
    plain = train(make, isa=isa, rows=rows)
    for switches in SWITCHES:
        if switches.get("threads", 1) > len(os.sched_getaffinity(0)):
            continue
        assert_same_bits(train(make, isa=isa, rows=rows, **switches), plain, f"{make.__name__} {isa} {switches}")


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("optimizer", [gl.optim.SGD(lr=0.05), gl.optim.SGD(lr=0.05, momentum=0.9)])
def test_switches_with_sgd(make, optimizer):
    plain = train(make, optimizer)
    for switches in ({"fuse": False, "reuse": False, "inplace": False}, {"poison": True, "threads": 2}):
        assert_same_bits(train(make, optimizer, **switches), plain, str(switches))


@pytest.mark.parametrize("micro", [None, 20])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_listeners_change_nothing(make, micro):
    heard = []
    plain = train(make, micro_batch_size=micro, val_split=0.1)
    listened = train(
        make, micro_batch_size=micro, val_split=0.1, on_train_batch=heard.append, on_eval_batch=heard.append
    )
    assert len(heard) >= 2 * 3
    assert_same_bits(listened, plain, "listeners")


@pytest.mark.parametrize("make", [mlp, cnn])
def test_steps_of_the_callers_own_are_those_of_an_epoch(make):
    """Trainer.step with arrays against the tape that gathers its rows itself."""
    rows = data(make)
    order = np.random.default_rng(1).permutation(150)
    found = []
    for low_level in (False, True):
        net = make().init(5)
        trainer = gl.Trainer(net, "cross_entropy", gl.optim.AdamW(), seed=2, threads=1)
        if low_level:
            for start in range(0, 150, 40):
                pick = order[start : start + 40]
                trainer.step(rows.data[pick], rows.labels[pick], rows.weights[pick])
        else:
            gl.epoch(trainer, rows, order=order, batch_size=40)
        found.append(net.state_dict())
    assert_same_bits(found[1], found[0], "Trainer.step")


@pytest.mark.parametrize("make", [mlp, cnn])
def test_seeds(make):
    first = train(make, seed=3)
    assert_same_bits(train(make, seed=3), first, "the same seed")
    other = train(make, seed=4)
    assert all(other[k].tobytes() != v.tobytes() for k, v in first.items() if v.size > 100)


def test_the_seed_reaches_order_and_dropout():
    """With equal weights to begin with, two seeds still differ: by the order, and without shuffling by the masks."""

    def run(seed, net):
        trainer = gl.Trainer(net.init(1), "cross_entropy", gl.optim.SGD(lr=0.1), seed=seed, threads=1)
        gl.epoch(trainer, data(mlp), batch_size=50)
        return net.state_dict()

    assert differ(run(1, mlp()), run(0, mlp()))
    plain = gl.nn.Sequential(gl.nn.Linear(50, 10))
    assert not differ(run(1, plain), run(0, plain))
    rows = data(mlp)
    assert not np.array_equal(rows.order(0, 1), rows.order(1, 1))
    assert not np.array_equal(rows.order(0, 1), rows.order(0, 2))


def test_an_environment_switch_is_an_argument(monkeypatch):
    plain = train(mlp)
    for name in ("REUSE", "INPLACE", "FUSE"):
        monkeypatch.setenv(f"GRADLOOM_{name}", "0")
    monkeypatch.setenv("GRADLOOM_POISON", "1")
    assert_same_bits(train(mlp), plain, "environment")
    monkeypatch.setenv("GRADLOOM_REUSE", "maybe")
    with pytest.raises(gl.SettingError, match="GRADLOOM_REUSE"):
        train(mlp)


@pytest.mark.parametrize("micro", [1, 13, 32])
def test_micro_batches_are_f32_noise_away(micro):
    whole = train(mlp, gl.optim.SGD(lr=0.05))
    found = train(mlp, gl.optim.SGD(lr=0.05), micro_batch_size=micro)
    for name, array in whole.items():
        np.testing.assert_allclose(found[name], array, atol=5e-6, rtol=1e-5, err_msg=name)


def test_micro_batches_do_not_depend_on_threads_or_listeners():
    options = {"optimizer": gl.optim.AdamW(lr=0.01), "micro_batch_size": 13}
    plain = train(mlp, **options)
    assert_same_bits(train(mlp, **options, threads=2, on_train_batch=lambda at: None), plain, "micro")


def test_isas_agree_to_f32_noise():
    """And all of them with the float64 references."""
    found = {i: train(mlp, gl.optim.SGD(lr=0.05), isa=i, rows=70) for i in isas()}
    found["numpy"] = train(mlp, gl.optim.SGD(lr=0.05), rows=70, backend="numpy")
    for which, arrays in found.items():
        for name, array in arrays.items():
            np.testing.assert_allclose(array, found["scalar"][name], atol=1e-5, rtol=1e-5, err_msg=f"{which} {name}")


def test_deterministic_with_many_parts():
    """Wide enough that every reduction has several parts."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((600, 784)).astype(np.float32), rng.integers(0, 10, 600)
    found = []
    for threads in (1, 2):
        net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10)).init(0)
        gl.fit(net, (x, y), epochs=1, batch_size=300, threads=threads, progress=False)
        found.append(net.state_dict())
    assert_same_bits(found[1], found[0], "threads")
