"""Bad input is refused in one line; what was trained is kept."""

import signal
import sys
import time

import numpy as np
import pytest

import gradloom as gl
from tests import processes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 50)


def net():
    return gl.nn.Sequential(gl.nn.Linear(4, 8), gl.nn.ReLU(), gl.nn.Linear(8, 3)).init(0)


def fit(model, data=(X, Y), **options):
    return gl.fit(model, data, **({"progress": False, "batch_size": 10} | options))


def bits(module):
    return {k: v.tobytes() for k, v in module.state_dict().items()}


class Recorder:
    """The weights before each step, kept by a listener."""

    def __init__(self, module):
        self.module, self.seen = module, [bits(module)]

    def __call__(self, at):
        self.seen.append(bits(self.module))


# ---- numbers that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [gl.optim.SGD(lr=0.1, momentum=0.9), gl.optim.AdamW(lr=0.1)])
@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_are_not_finite(backend, bad, micro, optimizer):
    """Names the step and the row; the weights before that step are kept, to the bit, running statistics included."""
    data = X.copy()
    data[33, 2] = bad

    def make():  # a micro-batch of one row is nothing to batch norm
        return gl.nn.Sequential(*([] if micro else [gl.nn.BatchNorm(4)]), net()).init(0)

    model, twin = make(), make()
    rows = gl.data.Dataset(data, Y)
    order = rows.order(0, 1, rows.split(0, 0)[0])
    step = int(np.flatnonzero(order == 33)[0]) // 10
    trainer = gl.Trainer(twin, optimizer=optimizer, accumulate=4 if micro else 1, backend=backend)
    for start in range(0, step * 10, 10):
        for i in range(start, start + 10, micro or 10):
            part = order[i : min(i + (micro or 10), start + 10)]
            trainer.step(data[part], Y[part])
    with pytest.raises(
        gl.NonFiniteError, match=rf"step {step + 1} \(epoch 1\): row 33 of the data is not finite"
    ) as error:
        fit(model, rows, micro_batch_size=micro, optimizer=optimizer, backend=backend)
    assert step > 0 and "\n" not in str(error.value)
    assert all(np.isfinite(a).all() for a in model.state_dict().values())
    assert bits(model) == bits(twin)


@pytest.mark.parametrize("listening", [False, True])
def test_a_loss_that_explodes(backend, listening):
    """The first bad node has a name, nothing of the bad step is applied, and training goes on at a lower rate."""
    model = net()
    recorder = Recorder(model)
    rate = {"lr": 1e25}
    optimizer = gl.optim.SGD(lr=lambda step, epoch: rate["lr"])
    trainer = gl.Trainer(model, "cross_entropy", optimizer, backend=backend)
    data = gl.data.Dataset(X * 1e3, Y)
    with pytest.raises(
        gl.NonFiniteError, match=r"training stopped at step 2 \(epoch 1\): matmul(_act)? \S+ at \S+:\d+ produced"
    ):
        gl.epoch(trainer, data, batch_size=10, on_train_batch=recorder if listening else None)
    assert trainer.steps == 1
    if listening:
        assert bits(model) == recorder.seen[-1]
    kept = model.state_dict()
    for array in kept.values():
        assert np.isfinite(array).all()
    model.init(0)
    rate["lr"] = 1e-6
    losses = [gl.epoch(trainer, data, batch_size=10)[0].loss for _ in range(3)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_going_on_after_a_bad_micro_batch(backend):
    """The window that failed leaves nothing in the accumulators."""
    model, twin = net(), net()
    bad = X.copy()
    bad[7] = np.nan
    optimizer = gl.optim.SGD(lr=0.1)
    trainer = gl.Trainer(model, "cross_entropy", optimizer, accumulate=5, backend=backend)
    before = bits(model)
    with pytest.raises(gl.NonFiniteError):
        gl.epoch(trainer, gl.data.Dataset(bad, Y), batch_size=10, micro_batch_size=2)
    assert bits(model) == before
    gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=10, micro_batch_size=2)
    gl.epoch(
        gl.Trainer(twin, "cross_entropy", optimizer, accumulate=5, backend=backend),
        gl.data.Dataset(X, Y),
        batch_size=10,
        micro_batch_size=2,
    )
    assert bits(model) == bits(twin)


def test_a_gradient_that_overflows_without_the_loss(backend):
    w = gl.parameter(np.zeros(3), name="w")
    trainer = gl.Trainer(lambda x: x * 1e30 * w, "sum", gl.optim.SGD(lr=1.0), backend=backend)
    with pytest.raises(gl.NonFiniteError, match="step 1"):
        trainer.step(np.full((2, 3), 1e5))
    np.testing.assert_array_equal(w.numpy(), 0)
    trainer.step(np.full((2, 3), 1e-30))
    np.testing.assert_allclose(w.numpy(), -2, rtol=1e-6)


@pytest.mark.parametrize("check", [0, 2])
def test_a_fed_batch_that_is_not_finite(backend, check):
    trainer = gl.Trainer(net(), backend=backend, check=check)
    bad = X[:5].copy()
    bad[3, 1] = np.inf
    with pytest.raises(gl.NonFiniteError, match=r"step 1 .*: row 3 of the batch is not finite"):
        trainer.step(bad, Y[:5])
    trainer.step(X[:5], Y[:5])
    assert trainer.steps == 1


# ---- refused before anything trains ------------------------------------------------------------------------------


def mse_pair(out, labels):
    return gl.ops.sum(out), gl.ops.sum(out, -1)


REFUSED = {
    "a label too large": (
        lambda **o: fit(net(), (X, np.where(Y == 2, 3, Y)), **o),
        gl.DataError,
        r"labels: id 3 in row \d+; need 0\.\.2 for 3 classes",
    ),
    "a negative label": (
        lambda **o: fit(net(), (X, np.where(Y == 2, -1, Y)), **o),
        gl.DataError,
        r"labels: id -1 in row \d+",
    ),
    "a fed label too large": (
        lambda **o: gl.Trainer(net(), **o).step(X[:3], [0, 5, 1]),
        gl.DataError,
        r"id 5 at position 1.*need 0\.\.2",
    ),
    "a fed label beyond i32": (
        lambda **o: gl.Trainer(net(), **o).step(X[:2], [0, 2**32]),
        gl.DataError,
        "labels: 4294967296 at position 1",
    ),
    "no labels": (lambda **o: fit(net(), gl.data.Dataset(X), **o), gl.GraphError, "the data have no labels"),
    "no labels fed": (lambda **o: gl.Trainer(net(), **o).step(X), gl.GraphError, "the data have no labels"),
    "too few labels": (
        lambda **o: gl.Trainer(net(), **o).step(X, Y[:3]),
        gl.ShapeError,
        r"labels: shape \[3\]; need 50 rows, one for each of the batch",
    ),
    "float ids": (lambda **o: gl.Trainer(net(), **o).step(X[:2], [0.0, 1.0]), gl.ShapeError, "labels do not fit"),
    "labels of text": (
        lambda **o: gl.Trainer(net(), **o).step(X[:2], ["a", "b"]),
        gl.DTypeError,
        "labels: dtype <U1; need numbers",
    ),
    "batch 0": (lambda **o: fit(net(), batch_size=0, **o), gl.SettingError, "batch_size=0"),
    "batch 2.5": (lambda **o: fit(net(), batch_size=2.5, **o), gl.SettingError, "batch_size=2.5"),
    "micro above batch": (
        lambda **o: fit(net(), micro_batch_size=11, **o),
        gl.SettingError,
        "micro_batch_size=11 must be at most batch_size=10",
    ),
    "batch 0 to evaluate": (lambda **o: gl.evaluate(net(), (X, Y), batch_size=0, **o), gl.SettingError, "batch_size=0"),
    "batch 0 to predict": (lambda **o: gl.predict(net(), X, batch_size=0, **o), gl.SettingError, "batch_size=0"),
    "a negative rate": (
        lambda **o: gl.optim.AdamW(lr=-1),
        gl.SettingError,
        "AdamW: lr=-1: must be a finite number of at least 0",
    ),
    "a rate of nan": (lambda **o: gl.optim.SGD(lr=float("nan")), gl.SettingError, "SGD: lr=nan"),
    "a rate of text": (lambda **o: gl.optim.SGD(lr="0.1"), gl.SettingError, "SGD: lr='0.1'"),
    "beta 1": (lambda **o: gl.optim.AdamW(beta2=1.0), gl.SettingError, "beta2=1.0: must be at least 0 and below 1"),
    "negative decay": (lambda **o: gl.optim.AdamW(weight_decay=-0.1), gl.SettingError, "weight_decay=-0.1"),
    "no optimiser": (lambda **o: fit(net(), optimizer="adam", **o), gl.SettingError, "optimizer is a str"),
    "a loss without rows": (
        lambda **o: fit(net(), loss=lambda out, y: gl.ops.sum(out), **o),
        gl.ShapeError,
        r"weight of a scalar is not known .*; need one value per row",
    ),
    "a loss of the outputs' shape": (
        lambda **o: fit(net(), loss=lambda out, y: out, **o),
        gl.ShapeError,
        r"the function gave f32\[10,3\]",
    ),
    "a pair that is no scalars": (lambda **o: fit(net(), loss=mse_pair, **o), gl.ShapeError, "need two scalars"),
    "a loss of nothing": (lambda **o: fit(net(), loss=lambda out, y: None, **o), gl.ShapeError, "NoneType"),
    "an unknown loss": (
        lambda **o: fit(net(), loss="crossentropy", **o),
        gl.SettingError,
        "must be one of cross_entropy, nll, kl, bce, focal",
    ),
    "targets of another shape": (
        lambda **o: fit(net(), (X, X[:, :2]), loss="mse", **o),
        gl.ShapeError,
        "mse: shapes differ",
    ),
    "nothing to train": (lambda **o: fit(lambda x: x * 2, **o), gl.GradientError, "no trainable parameter"),
    "a frozen model": (
        lambda **o: fit(gl.nn.Sequential(gl.nn.Standardize([0] * 4, [1] * 4)), **o),
        gl.GradientError,
        "no trainable parameter",
    ),
    "rows of another width": (
        lambda **o: fit(net(), (X[:, :3], Y), **o),
        gl.ShapeError,
        r"matmul: inner sizes differ: x f32\[10,3\]",
    ),
    "fed rows of another width": (
        lambda **o: gl.Trainer(net(), **o).step(X[:, :3], Y),
        gl.ShapeError,
        "inner sizes differ",
    ),
    "rows of another width to predict": (
        lambda **o: gl.predict(net(), X[:, :3], **o),
        gl.ShapeError,
        "inner sizes differ",
    ),
    "a batch without rows": (
        lambda **o: gl.Trainer(net(), **o).step(X[:0], Y[:0]),
        gl.ShapeError,
        r"batch: shape \[0, 4\]",
    ),
    "a batch of one number": (lambda **o: gl.Trainer(net(), **o).step(3.0, Y[:1]), gl.ShapeError, r"batch: shape \[\]"),
    "ragged rows": (
        lambda **o: gl.Trainer(net(), **o).step([[1.0, 2.0], [1.0]], [0, 1]),
        gl.ShapeError,
        "rows of different lengths",
    ),
    "a batch of text": (lambda **o: gl.Trainer(net(), **o).step([["a"]], [0]), gl.DTypeError, "batch: dtype <U1"),
    "negative weights": (
        lambda **o: gl.Trainer(net(), **o).step(X[:2], Y[:2], [1, -1]),
        gl.DataError,
        "weights: -1.0 in row 1",
    ),
    "weights of nan": (
        lambda **o: gl.Trainer(net(), **o).step(X[:2], Y[:2], [np.nan, 1]),
        gl.DataError,
        "weights: nan in row 0",
    ),
    "too few weights": (
        lambda **o: gl.Trainer(net(), **o).step(X[:2], Y[:2], [1]),
        gl.ShapeError,
        r"weights: shape \[1\]; need \[2\], one for each row of the batch",
    ),
    "no data": (lambda **o: fit(net(), (X[:0], Y[:0]), **o), gl.DataError, "0 rows"),
    "data of text": (lambda **o: fit(net(), "data.csv", **o), gl.DataError, "data: got str"),
    "a model of text": (lambda **o: fit("net", **o), gl.DataError, "got a path"),
    "a function of nothing": (
        lambda **o: fit(lambda x: None, **o),
        gl.GraphError,
        "model: it gave NoneType; need a value",
    ),
    "negative epochs": (lambda **o: fit(net(), epochs=-1, **o), gl.SettingError, "epochs=-1"),
    "all rows held back": (lambda **o: fit(net(), val_split=1, **o), gl.SettingError, "val_split=1"),
    "a negative seed": (lambda **o: fit(net(), seed=-1, **o), gl.SettingError, "seed=-1"),
    "no accumulation": (lambda **o: gl.Trainer(net(), accumulate=0, **o), gl.SettingError, "accumulate=0"),
    "an unknown build": (
        lambda **o: gl.Trainer(net(), build="train", **o),
        gl.SettingError,
        "must be forward, grad or opt",
    ),
    "micro-batches without accumulation": (
        lambda **o: gl.epoch(gl.Trainer(net(), **o), gl.data.Dataset(X, Y), batch_size=10, micro_batch_size=5),
        gl.SettingError,
        "requires accumulate > 1",
    ),
    "an order with a row twice": (
        lambda **o: gl.epoch(gl.Trainer(net(), **o), gl.data.Dataset(X, Y), batch_size=10, order=np.zeros(50, int)),
        gl.DataError,
        r"need each of the rows 0\.\.49 once",
    ),
    "a split beyond the rows": (
        lambda **o: gl.epoch(gl.Trainer(net(), **o), gl.data.Dataset(X, Y), batch_size=10, split=51),
        gl.SettingError,
        "split=51",
    ),
    "gradients that are not kept": (
        lambda **o: gl.Trainer(net(), **o).grad_acc("0.weight"),
        gl.GradientError,
        "gradients are not kept",
    ),
    "a gradient of nothing": (
        lambda **o: gl.Trainer(net(), accumulate=2, **o).grad_acc("nope"),
        gl.GradientError,
        "no gradient of 'nope'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(backend, what):
    call, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message) as error:
        call(backend=backend)
    assert isinstance(error.value, gl.GradloomError)
    assert "\n" not in str(error.value)


def test_an_unknown_isa_and_backend():
    with pytest.raises(gl.BackendError, match="isa: 'sse' cannot run here; must be one of"):
        fit(net(), isa="sse")
    with pytest.raises(gl.BackendError, match="backend: 'tpu' is not known"):
        fit(net(), backend="tpu")
    with pytest.raises(gl.SettingError, match="threads=0"):
        fit(net(), threads=0)


@pytest.mark.parametrize("bad", [{"precision": "bf8"}, {"threads": 0}, {"flush": "no"}, {"check": 9}])
def test_a_switch_that_is_not_usable_is_refused_at_once(bad):
    with pytest.raises(gl.SettingError, match=next(iter(bad))):
        gl.Trainer(gl.nn.Linear(2, 3), **bad)


def test_a_short_last_batch_is_built_before_the_first_step(backend):
    """21 rows leave one for the last batch, which batch norm refuses: before anything is trained."""
    model = gl.nn.Sequential(gl.nn.Linear(4, 4), gl.nn.BatchNorm(4)).init(0)
    before = bits(model)
    with pytest.raises(gl.ShapeError, match=r"BatchNorm: f32\[1,4\] has 1 value per channel.*no single row"):
        fit(model, (X[:21], Y[:21]), backend=backend)
    assert bits(model) == before


def test_a_bad_id_in_the_data_stops_before_its_step(backend):
    """Ids are read while the tape runs; the steps before it stay, and the count of steps is theirs."""
    ids = np.random.default_rng(0).integers(0, 7, (40, 3))
    ids[25, 1] = 7
    model = gl.nn.Sequential(gl.nn.Embedding(7, 4), gl.nn.Flatten(), gl.nn.Linear(12, 3)).init(0)
    trainer = gl.Trainer(model, "cross_entropy", gl.optim.SGD(lr=0.1), backend=backend)
    with pytest.raises(gl.DataError, match="id 7"):
        gl.epoch(trainer, gl.data.Dataset(ids, Y[:40]), batch_size=10)
    twin = gl.nn.Sequential(gl.nn.Embedding(7, 4), gl.nn.Flatten(), gl.nn.Linear(12, 3)).init(0)
    gl.epoch(
        gl.Trainer(twin, "cross_entropy", gl.optim.SGD(lr=0.1), backend=backend),
        gl.data.Dataset(ids[:20], Y[:20]),
        batch_size=10,
    )
    assert bits(model) == bits(twin)
    assert trainer.steps == 2


# ---- Ctrl-C ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["on_progress", "on_train_batch", "on_epoch"])
def test_a_listener_may_stop_a_fit(backend, listener):
    model = net()
    recorder = Recorder(model)

    def stop(at):
        recorder(at)
        if len(recorder.seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=10, backend=backend, **{listener: stop})
    assert bits(model) == recorder.seen[-1] != recorder.seen[0]
    fit(model, backend=backend)


CTRL_C = """
import sys, time
import numpy as np
import gradloom as gl
rng = np.random.default_rng(0)
x, y = rng.standard_normal((20000, 784), dtype=np.float32), rng.integers(0, 10, 20000)
net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10)).init(0)
before = net.state_dict()
gl.fit(net, (x[:500], y[:500]), batch_size=500, progress=False, threads=2)
print("ready", flush=True)
try:
    gl.fit(net, (x, y), batch_size=500, epochs=1000, progress=False, threads=2)
except KeyboardInterrupt:
    stopped = time.monotonic()
    after = net.state_dict()
    assert all(np.isfinite(a).all() for a in after.values())
    assert any((after[k] != before[k]).any() for k in after)
    gl.save(net, sys.argv[1])
    print(stopped, flush=True)
    sys.exit(130)
"""


@pytest.mark.slow
def test_ctrl_c(tmp_path):
    """A real SIGINT in the middle of a long fit: within half a second the caller has finite weights and saves them."""
    file = tmp_path / "weights.safetensors"
    env = processes.environment()
    process = processes.start([sys.executable, "-c", CTRL_C, file], env=env, stderr=None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    stopped = float(process.stdout.readline())
    assert process.wait(30) == 130
    assert 0 < stopped - sent < 0.5
    loaded = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
    gl.load(loaded, file)
    assert np.isfinite(loaded[0].weight.numpy()).all()
