"""ggml's own training tests (test-opt.cpp) with their numbers: outputs = x + w, w = 3, x = 0..5, gradients of 1."""

import math

import numpy as np
import pytest

import gradloom as gl

X = np.arange(6, dtype=np.float32)
PAIRS = [(shard, batch) for shard in range(1, 7) for batch in range(1, 7) if batch % shard == 0]
NOT_DIVIDING = [(shard, batch) for shard in range(1, 8) for batch in range(1, 8) if batch % shard or 6 % batch]


def weight():
    return gl.parameter(3.0, name="w")


def unit_step(name, loss="sum", rows=1):
    """An optimiser that moves w by 1 for `rows` rows of gradient 1."""
    if name == "adamw":
        return gl.optim.AdamW(lr=1.0, beta1=0, beta2=0, eps=0)
    return gl.optim.SGD(lr=1 / rows if loss == "sum" else 1.0)


@pytest.fixture(params=["sgd", "adamw"])
def optimizer(request):
    return request.param


# ---- data order ------------------------------------------------------------------------------------------


def rows_16(shard_size):
    data = 16 * np.arange(6, dtype=np.float32)[:, None] + np.arange(2, dtype=np.float32)
    labels = 256 * np.arange(6, dtype=np.float32)[:, None]
    return gl.data.Dataset(data, labels, shard_size=shard_size)


def test_there_are_14_pairs():
    assert len(PAIRS) == 14


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("shard", "batch"), PAIRS + NOT_DIVIDING)
def test_data_order(shard, batch, shuffle):
    data = rows_16(shard)
    if shuffle:
        data.shuffle(np.random.default_rng(shard))
    found = []
    for i in range(-(-6 // batch)):
        got = data.get_batch(i, batch)
        ids = got.data[:, 0] / 16
        found += ids.tolist()
        np.testing.assert_array_equal(got.data[:, 1], 16 * ids + 1)
        np.testing.assert_array_equal(got.labels[:, 0], 256 * ids)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    if not shuffle:
        assert found == sorted(found)
    for start in range(0, 6, shard):  # a shard stays together, whatever the batches are
        at = found.index(start)
        assert found[at : at + min(shard, 6 - start)] == list(range(start, min(start + shard, 6)))


@pytest.mark.parametrize(("shard", "batch"), [*PAIRS, (4, 3), (4, 5), (5, 2), (6, 4)])
def test_order_that_training_sees(backend, shard, batch):
    """Row i is one-hot at i, so that the predictions say which rows came, in which order."""
    data = gl.data.Dataset(np.eye(6, dtype=np.float32), np.arange(6), shard_size=shard)
    data.shuffle(np.random.default_rng(3))
    w = gl.parameter(np.zeros(6), name="w")
    trainer = gl.Trainer(lambda x: x + w, "cross_entropy", gl.optim.SGD(lr=0.0), backend=backend)
    train, held = gl.epoch(trainer, data, split=4, batch_size=min(batch, 4))
    assert [*train.predictions, *held.predictions] == data.rows().tolist()
    assert (train.accuracy, held.accuracy) == (1, 1)


# ---- gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_accumulated_gradients(backend, loss):
    w = weight()
    trainer = gl.Trainer(lambda x: x + w, loss, build="grad", accumulate=6, backend=backend)
    found = []
    for x in X:
        trainer.step([x])
        found.append(float(trainer.grad_acc("w")))
    if loss == "sum":
        assert found == [1, 2, 3, 4, 5, 6]
    else:
        np.testing.assert_allclose(found, np.arange(1, 7) / 6, atol=1e-6, rtol=0)
    trainer.reset()
    assert trainer.grad_acc("w") == 0
    trainer.step([7.0])
    assert float(trainer.grad_acc("w")) == pytest.approx(1 if loss == "sum" else 1 / 6, abs=1e-6)


def test_graph_session_accumulates(backend):
    w, x = weight(), gl.input("x")
    graph = gl.Graph(gl.set_loss(x + w))
    graph.backward()
    run = graph.compile(backend=backend)
    run.reset()
    for i, value in enumerate(X):
        assert run(x=value)[0] == value + 3
        assert run.grad(w) == 1
        assert run.grad_acc(w) == i + 1
    run.reset()
    assert run.grad_acc(w) == 0


# ---- forward and backward ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("high_level", "shuffle"), [(False, False), (True, False), (True, True)])
def test_forward_backward(backend, optimizer, high_level, shuffle):
    w = weight()
    trainer = gl.Trainer(lambda x: x + w, "sum", unit_step(optimizer), backend=backend)
    data = gl.data.Dataset(X)

    def run(backward):
        result = gl.Result()
        if not high_level:
            for x in X:
                trainer.step([x], result=result, backward=backward)
            return result
        if shuffle:
            data.shuffle(np.random.default_rng(5))
        gl.epoch(trainer, data, result, result, split=6 if backward else 0, batch_size=1)
        return result

    forward = run(backward=False)
    assert w.numpy() == 3
    assert (forward.ndata, forward.loss) == (6, 33)
    assert forward.loss_unc == pytest.approx(math.sqrt(3.5), abs=1e-10)
    assert math.isnan(forward.accuracy) and math.isnan(forward.accuracy_unc)

    for _ in range(10):  # steps that are taken back must leave nothing behind
        trainer.step([5.0])
    w.assign(3.0)
    trainer.reset()

    done = run(backward=True)
    assert w.numpy() == -3
    assert (done.ndata, done.loss) == (6, 18)
    if not shuffle:
        assert done.loss_unc == 0
    assert math.isnan(done.accuracy)


def test_nothing_measured_yet():
    result = gl.Result()
    assert result.ndata == 0
    assert math.isnan(result.loss_unc) and math.isnan(result.accuracy) and math.isnan(result.accuracy_unc)


def test_forward_build_has_no_gradients(backend):
    w = weight()
    trainer = gl.Trainer(lambda x: x + w, "sum", build="forward", backend=backend)
    result = gl.Result()
    for x in X:
        trainer.step([x], result=result)
    assert (result.loss, float(w.numpy()), trainer.steps) == (33, 3, 0)
    with pytest.raises(gl.GradientError, match="not kept"):
        trainer.grad_acc("w")


def test_epoch_is_fit(backend):
    """fit is made of the public pieces: the same order gives the same bits."""
    data = gl.data.Dataset(X)
    a, b = weight(), weight()
    history = gl.fit(
        lambda x: x + a,
        data,
        loss="sum",
        optimizer=gl.optim.AdamW(),
        batch_size=1,
        seed=4,
        progress=False,
        epochs=2,
        backend=backend,
    )
    trainer = gl.Trainer(lambda x: x + b, "sum", gl.optim.AdamW(), seed=4, backend=backend)
    rows, _ = data.split(0, 4)
    for epoch in (1, 2):
        train, _ = gl.epoch(trainer, data, order=data.order(4, epoch, rows), batch_size=1)
    assert a.numpy() == b.numpy() != 3
    assert train.loss == history[-1].train.loss


# ---- validation split --------------------------------------------------------------------------------------


@pytest.mark.parametrize("high_level", [False, True])
def test_split(backend, optimizer, high_level):
    w = weight()
    trainer = gl.Trainer(lambda x: x + w, "sum", unit_step(optimizer), backend=backend)
    data = gl.data.Dataset(X)
    for epoch in range(1, 5):
        train, held = gl.Result(), gl.Result()
        if high_level:
            gl.epoch(trainer, data, train, held, split=4, batch_size=1)
        else:
            for i, x in enumerate(X):
                trainer.step([x], result=train if i < 4 else held, backward=i < 4)
        assert w.numpy() == 3 - 4 * epoch
        assert (train.ndata, train.loss, train.loss_unc) == (4, 28 - 16 * epoch, 0)
        assert (held.ndata, held.loss) == (2, 15 - 8 * epoch)
        assert held.loss_unc == pytest.approx(math.sqrt(0.5), abs=1e-10)
        assert math.isnan(train.accuracy) and math.isnan(held.accuracy)


# ---- accumulation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high_level", [False, True])
@pytest.mark.parametrize("physical", [1, 2, 3, 6])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_accumulation(backend, optimizer, loss, physical, high_level):
    w = weight()
    trainer = gl.Trainer(
        lambda x: x + w, loss, unit_step(optimizer, loss, 6), accumulate=6 // physical, backend=backend
    )
    divisor = 1 if loss == "sum" else 6
    for epoch in range(1, 5):
        result = gl.Result()
        if high_level:
            gl.epoch(trainer, gl.data.Dataset(X), result, batch_size=6, micro_batch_size=physical)
        else:
            for i in range(0, 6, physical):
                trainer.step(X[i : i + physical], result=result)
                if physical < 6:
                    acc = float(trainer.grad_acc("w"))
                    assert acc == pytest.approx((i + physical) / divisor, abs=1e-6)
        assert float(w.numpy()) == pytest.approx(3 - epoch, abs=1e-6)
        assert result.ndata == 6
        assert result.loss == pytest.approx((39 - 6 * epoch) / divisor, abs=1e-5)
        assert math.isnan(result.accuracy)


def test_dynamic_accumulation(backend):
    """Each call builds its graph anew: w goes 2, 1, 0, -1 (2, 0, -3, -7 when nobody clears the accumulators)."""
    w = weight()
    trainer = gl.Trainer(lambda x: x + w, "mean", gl.optim.SGD(lr=1.0), accumulate=6, dynamic=True, backend=backend)
    found = []
    for _ in range(4):
        for x in X:
            trainer.step([x])
        found.append(float(w.numpy()))
    np.testing.assert_allclose(found, [2, 1, 0, -1], atol=1e-6)


# ---- regression ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [201, 67, 50])
def test_regression(backend, batch):
    rng = np.random.default_rng(12345)
    x = np.linspace(-100, 100, 201, dtype=np.float32)
    y = (1.2 * x + 3.4 + 0.1 * rng.standard_normal(201)).astype(np.float32)
    a, b = gl.parameter(1.0, name="a"), gl.parameter(3.0, name="b")
    rate = gl.optim.AdamW(lr=lambda step, epoch: 0.1 * 0.95**epoch) if batch < 201 else gl.optim.AdamW(lr=0.1)
    gl.fit(
        lambda v: v * a + b,
        (x, y),
        loss="mse",
        optimizer=rate,
        epochs=100,
        batch_size=batch,
        progress=False,
        backend=backend,
    )
    assert float(a.numpy()) == pytest.approx(1.2, abs=1e-2)
    assert float(b.numpy()) == pytest.approx(3.4, abs=1e-2)
