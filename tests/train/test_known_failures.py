"""What the systems before us got wrong while training; one test each. (Dynamic accumulation: test_ggml_numbers.py.)"""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.philox import keep_mask
from tests.refused import refused


def mlp(seed=1, sizes=(5, 8, 3)):
    return gl.nn.Sequential(gl.nn.Linear(*sizes[:2]), gl.nn.Tanh(), gl.nn.Linear(*sizes[1:])).init(seed)


def rows(n=23, seed=0, weights=False):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 5)).astype(np.float32)
    y = rng.integers(0, 3, n)
    return gl.data.Dataset(x, y, weights=rng.uniform(0.1, 3, n) if weights else None)


def state(module):
    return {k: v.copy() for k, v in module.state_dict().items()}


# ---- micro-batches of unequal weight -----------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro", [1, 4, 5, 7, 22, 23])
@pytest.mark.parametrize("kind", ["ids", "rows", "mse", "mean", "own"])
def test_unequal_micro_batches_add_up(backend, kind, micro, weighted):
    """Sums of gradients over sums of weights: any micro-batches give the full batch's step, to f32 noise."""
    data = rows(weights=weighted)
    loss = "cross_entropy"
    if kind == "ids":
        labels = data.labels.copy()
        labels[[0, 3, 4, 5, 6, 9]] = -100  # a whole micro-batch without a row that counts, too
        data = gl.data.Dataset(data.data, labels, weights=data.weights)
    elif kind == "rows":
        data = gl.data.Dataset(
            data.data, np.random.default_rng(2).uniform(0, 1, (23, 3)).astype("f4"), weights=data.weights
        )
    elif kind == "mse":
        loss = kind
        data = gl.data.Dataset(
            data.data, np.random.default_rng(2).standard_normal((23, 3)).astype("f4"), weights=data.weights
        )
    elif kind == "mean":
        loss = kind
        data = gl.data.Dataset(data.data, weights=data.weights)
    else:

        def loss(out, labels):
            return gl.ops.sum(gl.ops.sqr(out), -1)

    found = []
    for size in (23, micro):
        net = mlp()
        trainer = gl.Trainer(net, loss, gl.optim.SGD(lr=0.5), accumulate=-(-23 // size), backend=backend)
        result, _ = gl.epoch(trainer, data, batch_size=23, micro_batch_size=size)
        assert trainer.steps == 1
        found.append((result.loss, state(net)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, whole in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], whole, rtol=0, atol=2e-6, err_msg=name)


def test_windows_of_different_graphs(backend):
    """Dynamic graphs that reach different parameters: a window holds its own sums, and updates all that it reached."""
    for windows in (
        ["ab", "ab"],
        ["ab", "a"],
        ["a", "ab"],
        ["a", "b"],
        ["ab", "ab", "a", "ab"],
        ["ab", "ab", "a", "a"],
    ):
        both = {name: gl.parameter(np.ones(2), name=name) for name in "ab"}
        used = []

        def model(x, both=both, used=used):
            terms = [x * both[name] for name in used[-1]]
            return sum(terms[1:], terms[0])

        trainer = gl.Trainer(model, "sum", gl.optim.SGD(lr=1.0), accumulate=2, dynamic=True, backend=backend)
        for names in windows:
            used.append(names)
            trainer.step(np.ones((1, 2)))
        assert [1 - both[name].numpy()[0] for name in "ab"] == ["".join(windows).count(name) for name in "ab"]


def test_a_batch_without_counting_rows_changes_nothing(backend):
    net = mlp()
    before = state(net)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=1.0), backend=backend)
    trainer.step(np.ones((4, 5)), np.full(4, -100))
    for name, array in state(net).items():
        np.testing.assert_array_equal(array, before[name])


def test_masked_rows_have_no_gradient(backend):
    """A masked row is as good as absent; a row of weight 2 as good as twice there."""
    data = rows(8)
    x, y = data.data, data.labels.copy()
    masked = y.copy()
    masked[[1, 5]] = -100
    keep = np.flatnonzero(masked != -100)
    double = np.r_[keep, 2]
    weights = np.ones(8, np.float32)
    weights[2] = 2
    found = []
    for batch, labels, w in ((x, masked, weights), (x[double], y[double], None)):
        net = mlp()
        gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.3), backend=backend).step(batch, labels, w)
        found.append(state(net))
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], atol=1e-6, rtol=0)


# ---- no row left out, no validation row trained on ----------------------------------------------------------


@pytest.mark.parametrize("shard", [1, 4, 10])
@pytest.mark.parametrize("batch", [1, 4, 7, 16])
@pytest.mark.parametrize("micro", [None, 3])
def test_every_row_trains_once_per_epoch(backend, shard, batch, micro):
    """w has one entry per row and gradient 1 for it, so that its value counts the row's visits."""
    n, epochs = 23, 2
    w = gl.parameter(np.zeros(n), name="w")
    data = gl.data.Dataset(np.eye(n, dtype=np.float32), shard_size=shard)
    history = gl.fit(
        lambda x: x * w,
        data,
        loss="sum",
        optimizer=gl.optim.SGD(lr=1.0),
        epochs=epochs,
        batch_size=batch,
        micro_batch_size=micro and min(micro, batch),
        progress=False,
        backend=backend,
    )
    assert [h.train.ndata for h in history] == [n] * epochs
    np.testing.assert_array_equal(w.numpy(), np.full(n, -epochs))


@pytest.mark.parametrize("shard", [1, 4])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_validation_rows_are_never_trained_on(backend, share, shard):
    n, epochs = 40, 3
    w = gl.parameter(np.zeros(n), name="w")
    data = gl.data.Dataset(np.eye(n, dtype=np.float32), shard_size=shard)
    history = gl.fit(
        lambda x: x * w,
        data,
        loss="sum",
        optimizer=gl.optim.SGD(lr=1.0),
        epochs=epochs,
        batch_size=7,
        val_split=share,
        seed=9,
        progress=False,
        backend=backend,
    )
    held = data.split(share, 9)[1]
    counts = np.full(n, -epochs)
    counts[held] = 0
    np.testing.assert_array_equal(w.numpy(), counts)
    assert history[0].val.ndata == len(held) > 0
    assert history[0].train.ndata == n - len(held)


def test_validation_is_not_one_class():
    labels = np.repeat([0, 1], 50)  # a class-sorted file
    held = gl.data.Dataset(np.zeros((100, 1), np.float32), labels).split(0.2, 0)[1]
    assert set(labels[held]) == {0, 1}


def test_evaluate_counts_every_row(backend):
    w = gl.parameter(0.0, name="w")
    result = gl.evaluate(
        lambda x: x + w, gl.data.Dataset(np.arange(23, dtype="f4")), loss="sum", batch_size=5, backend=backend
    )
    assert (result.ndata, result.loss, result.batches) == (23, 253, 5)
    x = np.arange(23, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(gl.predict(lambda v: v * 2, x, batch_size=5, backend=backend), x * 2)


# ---- schedules -----------------------------------------------------------------------------------------------


def test_a_schedule_reaches_every_parameter_and_setting(backend):
    """Every setting is a function of (step, epoch), for both optimisers; held against the formulas in float64."""
    n, batch, epochs = 12, 4, 2
    x = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)

    def lr(step, epoch):
        return 0.1 / (1 + step) + 0.01 * epoch

    def decay(step, epoch):
        return 0.05 * (step + 1)

    def beta(step, epoch):
        return 0.5 + 0.05 * step + 0.1 * epoch

    for name in ("sgd", "adamw"):
        a, b = gl.parameter(np.ones(3), name="a"), gl.parameter(np.full(3, 2.0), name="b")
        if name == "sgd":
            optimizer = gl.optim.SGD(lr=lr, momentum=beta, weight_decay=decay)
        else:
            optimizer = gl.optim.AdamW(
                lr=lr, beta1=beta, beta2=beta, eps=lambda s, e: 1e-3 * (s + 1), weight_decay=decay
            )
        trainer = gl.Trainer(lambda v, a=a, b=b: v * a * b, "mean", optimizer, backend=backend)
        w = {"a": np.ones(3), "b": np.full(3, 2.0)}
        m = {k: np.zeros(3) for k in w}
        s = {k: np.zeros(3) for k in w}
        for epoch in range(epochs):
            gl.epoch(trainer, gl.data.Dataset(x), batch_size=batch)
            for i in range(n // batch):
                step = epoch * (n // batch) + i
                mean = x[i * batch : (i + 1) * batch].astype(float).sum(0) / (3 * batch)
                grads = {"a": mean * w["b"], "b": mean * w["a"]}
                for k, g in grads.items():
                    bt, rate, wd = beta(step, epoch), lr(step, epoch), decay(step, epoch)
                    if name == "sgd":
                        m[k] = bt * m[k] + g
                        w[k] = w[k] * (1 - rate * wd) - rate * m[k]
                    else:
                        m[k] = bt * m[k] + (1 - bt) * g
                        s[k] = bt * s[k] + (1 - bt) * g * g
                        t = step + 1
                        root = np.sqrt(s[k] / (1 - bt**t)) + 1e-3 * t
                        w[k] = w[k] * (1 - rate * wd) - rate * m[k] / (1 - bt**t) / root
        np.testing.assert_allclose(a.numpy(), w["a"], rtol=2e-5)
        np.testing.assert_allclose(b.numpy(), w["b"], rtol=2e-5)


@pytest.mark.parametrize("micro", [4, 2])
def test_a_schedule_is_asked_once_per_optimiser_step(backend, micro):
    asked = []

    def lr(step, epoch):
        asked.append((step, epoch))
        return 0.0

    gl.fit(
        mlp(),
        rows(10),
        optimizer=gl.optim.SGD(lr=lr),
        batch_size=4,
        micro_batch_size=micro,
        epochs=2,
        progress=False,
        backend=backend,
    )
    assert sorted(set(asked)) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]


def test_a_schedule_out_of_range_is_refused(backend):
    net = mlp()
    with refused("lr", -1.0, place="SGD"):
        gl.fit(
            net, rows(10), optimizer=gl.optim.SGD(lr=lambda s, e: -1.0), batch_size=5, progress=False, backend=backend
        )


# ---- callbacks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_progress", [False, True])
@pytest.mark.parametrize(("batch", "micro"), [(4, None), (4, 2), (7, 3), (16, 16)])
def test_listeners_are_called_in_order_and_number(backend, batch, micro, with_progress, capsys):
    said = []

    def hear(name):
        return lambda at: said.append((name, at.rows, at.rows_total, at.training, at.result.ndata))

    data = rows(20)
    net = mlp()
    kept = {}
    gl.fit(
        net,
        data,
        epochs=2,
        batch_size=batch,
        micro_batch_size=micro,
        val_split=0.2,
        progress=with_progress,
        on_train_batch=hear("train"),
        on_eval_batch=hear("eval"),
        on_progress=hear("progress"),
        on_epoch=lambda result: (said.append(("epoch", result.epoch)), kept.update(last=result)),
        backend=backend,
    )
    size = micro or batch
    train = []
    for start in range(0, 16, batch):
        end = min(start + batch, 16)
        train += [min(i + size, end) for i in range(start, end, size)]
    held = [min(i + size, 4) for i in range(0, 4, size)]
    expected = []
    for epoch in (1, 2):
        for name, done, total in (("train", train, 16), ("eval", held, 4)):
            for at in done:
                expected += [(who, at, total, name == "train", at) for who in (name, "progress")]
        expected.append(("epoch", epoch))
    assert said == expected
    assert kept["last"].train.ndata == 16 and kept["last"].val.ndata == 4
    shown = capsys.readouterr().err
    assert ("epoch 2/2" in shown) == with_progress


def test_progress_alone_is_heard_at_the_end_of_each_pass(backend):
    said = []
    gl.fit(
        mlp(),
        rows(20),
        epochs=2,
        batch_size=4,
        val_split=0.2,
        progress=False,
        backend=backend,
        on_progress=lambda at: said.append((at.training, at.rows)),
    )
    assert [p for p in said if p in ((True, 16), (False, 4))] == [(True, 16), (False, 4)] * 2


# ---- dropout -------------------------------------------------------------------------------------------------


def test_dropout_drops_and_uses_one_mask_in_both_directions(backend):
    """y = dropout(x * w), loss = sum y: dloss/dw is x times the mask that the forward pass used."""
    x = np.random.default_rng(0).uniform(1, 2, (40, 30)).astype(np.float32)
    w = gl.parameter(np.ones((40, 30)), name="w")
    out = gl.ops.dropout(gl.input("x", (40, 30)) * w, 0.25, stream=7)
    (grad,) = gl.gradients(gl.ops.sum(out), [w])
    run = gl.compile([out, grad], backend=backend)
    y, dw = run(x=x, seed=3, step=5, row=0)
    mask = keep_mask(3, 5, 7, 0, (40, 30), 0.25)
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(dw, np.where(mask, x / 0.75, 0), rtol=1e-6)
    assert abs((y != 0).mean() - 0.75) < 0.05
    other = run(x=x, seed=3, step=6, row=0)[0]
    assert ((other != 0) != (y != 0)).any()


@pytest.mark.parametrize("micro", [1, 3, 5, 12])
def test_micro_batches_see_the_masks_of_the_whole(backend, micro):
    found = []
    for size in (12, micro):
        net = gl.nn.Sequential(gl.nn.Linear(5, 16), gl.nn.Dropout(0.5), gl.nn.Linear(16, 3)).init(2)
        gl.fit(
            net,
            rows(24),
            optimizer=gl.optim.SGD(lr=0.2),
            batch_size=12,
            micro_batch_size=size,
            epochs=2,
            seed=1,
            progress=False,
            backend=backend,
        )
        found.append(state(net))
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=2e-6, rtol=0, err_msg=name)


@pytest.mark.parametrize("micro", [1, 4])
def test_single_steps_see_the_masks_of_the_whole(backend, micro):
    """Trainer.step in micro-batches, too."""
    data = rows(12)
    found = []
    for size in (12, micro):
        net = gl.nn.Sequential(gl.nn.Linear(5, 16), gl.nn.Dropout(0.5), gl.nn.Linear(16, 3)).init(2)
        trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.2), accumulate=12 // size, backend=backend)
        for _ in range(2):
            for i in range(0, 12, size):
                trainer.step(data.data[i : i + size], data.labels[i : i + size])
        found.append(state(net))
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=2e-6, rtol=0, err_msg=name)


def test_dropout_is_off_where_nothing_trains(backend):
    net = gl.nn.Sequential(gl.nn.Linear(5, 16), gl.nn.Dropout(0.5), gl.nn.Linear(16, 3)).init(2)
    plain = gl.nn.Sequential(net[0], net[2])
    data = rows(12)
    np.testing.assert_array_equal(
        gl.predict(net, data.data, backend=backend), gl.predict(plain, data.data, backend=backend)
    )
    assert gl.evaluate(net, data, backend=backend).loss == gl.evaluate(plain, data, backend=backend).loss
    trainer = gl.Trainer(net, "cross_entropy", backend=backend)
    assert trainer.step(data.data, data.labels, backward=False).loss == gl.evaluate(net, data, backend=backend).loss
    assert net.training and net[1].training


class TwoDropouts(gl.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.first = gl.nn.Dropout(0.5)
        self.second = self.first if shared else gl.nn.Dropout(0.5)

    def forward(self, x):
        return self.first(x) - self.second(x)


@pytest.mark.parametrize("shared", [False, True])
def test_two_dropouts_have_two_masks(backend, shared):
    out = TwoDropouts(shared)(gl.input("x", (8, 50)))
    y = gl.compile(out, backend=backend)(x=np.ones((8, 50)), seed=1)[0]
    share = (y == 0).mean()
    assert 0.35 < share < 0.65  # equal masks: all of it is 0


def test_dropouts_of_a_function_have_masks_of_their_own(backend):
    first, second = gl.nn.Dropout(0.5), gl.nn.Dropout(0.5)
    out = second(first(gl.input("x", (8, 200))))
    y = gl.compile(out, backend=backend)(x=np.ones((8, 200)), seed=1)[0]
    assert 0.15 < (y != 0).mean() < 0.35


# ---- batch norm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 5), (6, 5, 4, 3)])
def test_batch_norm_has_its_full_gradient(backend, shape):
    """Against central differences: mean and variance depend on x. Without those terms dx would be g * weight / std."""
    rng = np.random.default_rng(1)
    x0 = rng.standard_normal(shape) * 2 + 3
    x = gl.parameter(x0, name="x")
    weight, bias = (
        gl.parameter(rng.uniform(0.5, 2, 5), name="weight"),
        gl.parameter(rng.standard_normal(5), name="bias"),
    )
    coefficients = gl.constant(rng.standard_normal(shape))
    y, _, _ = gl.ops.batch_norm(x, weight, bias)
    loss = gl.ops.sum(y * coefficients)
    assert gl.check_gradients(loss) < 1e-5
    (dx,) = gl.gradients(loss, [x])
    got = gl.compile(dx, backend=backend)()[0]
    axes = tuple(i for i in range(len(shape)) if i != 1)
    np.testing.assert_allclose(got.sum(axes), 0, atol=1e-4)  # a shift of x changes nothing
    np.testing.assert_allclose((got * x0).sum(axes), 0, atol=1e-3)  # nor does its scale


def test_batch_norm_running_statistics(backend):
    n, channels = 20, 3
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((n, channels, 2, 2)) * [[[[1]], [[2]], [[3]]]] + 5).astype(np.float32)
    norm = gl.nn.BatchNorm(channels, momentum=0.3)
    net = gl.nn.Sequential(norm, gl.nn.Flatten(), gl.nn.Linear(12, 2)).init(0)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.0), backend=backend)
    mean, var = np.zeros(channels), np.ones(channels)
    data = gl.data.Dataset(x, np.arange(n) % 2)
    for _ in range(2):
        gl.epoch(trainer, data, batch_size=8)
        for start in (0, 8, 16):
            part = x[start : start + 8].astype(float)
            mean = 0.7 * mean + 0.3 * part.mean((0, 2, 3))
            var = 0.7 * var + 0.3 * part.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), var, rtol=1e-5)
    before = state(net)
    gl.evaluate(net, data, backend=backend)
    gl.predict(net, x, backend=backend)
    trainer.step(x[:4], [0, 1, 0, 1], backward=False)
    for name, array in state(net).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    only = gl.nn.Sequential(norm)
    expected = (x - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5)
    np.testing.assert_allclose(gl.predict(only, x, backend=backend), expected, rtol=1e-4, atol=1e-5)


# ---- results -------------------------------------------------------------------------------------------------


def test_uncertainty_of_unequal_batches():
    """The standard error of a weighted mean, which for equal batches is ggml's formula."""
    result = gl.Result()
    losses, weights = np.array([4.0, 9.0, 2.0]), np.array([2.0, 3.0, 1.0])
    result.add(6, losses, weights)
    mean = losses.sum() / 6
    squares = (weights**2 * (losses / weights - mean) ** 2).sum()
    assert result.loss == pytest.approx(mean)
    assert result.loss_unc == pytest.approx(np.sqrt(squares / (36 - 14)))
    equal = gl.Result()
    equal.add(6, losses, np.full(3, 2.0))
    assert equal.loss_unc == pytest.approx(np.sqrt((losses / 2).var() / 2))


@pytest.mark.parametrize(("rows_per_step", "labelled"), [(n, k) for n in (1, 3, 7) for k in ("ids", "rows")])
def test_accuracy_and_predictions(backend, rows_per_step, labelled):
    n = 20
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    ids = rng.integers(0, 4, n)
    labels = ids.copy() if labelled == "ids" else np.eye(4, dtype=np.float32)[ids]
    if labelled == "ids":
        labels[[2, 11]] = -100
    counted = np.ones(n, bool) if labelled == "rows" else labels != -100
    weights = rng.integers(0, 3, n).astype(np.float32)
    counted &= weights != 0
    result = gl.evaluate(
        lambda v: v * 1.0, gl.data.Dataset(x, labels, weights=weights), batch_size=rows_per_step, backend=backend
    )
    a = (x.argmax(1) == ids)[counted].mean()
    np.testing.assert_array_equal(result.predictions, x.argmax(1))
    assert result.ndata == n
    assert result.accuracy == pytest.approx(a)
    assert result.accuracy_unc == pytest.approx(np.sqrt(a * (1 - a) / (counted.sum() - 1)))
    fed = gl.Trainer(lambda v: v * 1.0, "cross_entropy", build="forward", backend=backend).step(x, labels, weights)
    assert (fed.accuracy, fed.counted) == (result.accuracy, result.counted)
    assert fed.loss == pytest.approx(result.loss, rel=1e-6)


def test_what_a_listener_reads_is_the_sum_so_far():
    result = gl.Result()
    for i in range(1, 5):
        result.add(2, np.array([i, i]), np.array([1.0, 3.0]))
        assert result.loss == pytest.approx(np.arange(1, i + 1).mean() / 2)
        assert result.batches == 2 * i
