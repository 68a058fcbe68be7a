"""The range test of rates: the losses of a training whose rate grows, and nothing of it stays."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.train import Callback, find_rate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6)).astype(np.float32)
Y = (X @ RNG.standard_normal((6, 3))).argmax(1)


def net(seed=0):
    nn = gl.nn
    made = nn.Sequential(nn.Linear(6, 32, activation="relu"), nn.BatchNorm(32), nn.Dropout(0.1), nn.Linear(32, 3))
    return made.init(seed)


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def on_batch(self, batch):
        self.seen.append(batch.loss)


@pytest.mark.parametrize("optimizer", [None, gl.optim.SGD(lr=0.3, momentum=0.9)], ids=["default", "sgd"])
def test_losses_are_those_of_a_growing_rate(optimizer):
    curve = find_rate(net(), (X, Y), optimizer=optimizer, batch_size=30, lowest=1e-5, highest=1.0, steps=60)
    rates = 1e-5 * 1e5 ** (np.arange(len(curve.rates)) / 59)
    np.testing.assert_allclose(curve.rates, rates, rtol=1e-12)
    losses, schedule = Losses(), lambda step, epoch: 1e-5 * 1e5 ** (step / 59)
    kind = gl.optim.AdamW(lr=schedule) if optimizer is None else gl.optim.SGD(lr=schedule, momentum=0.9)
    gl.fit(net(), (X, Y), optimizer=kind, batch_size=30, epochs=6, progress=False, callbacks=[losses])
    np.testing.assert_allclose(curve.losses, losses.seen[: len(curve.losses)], rtol=1e-6)
    mean, smoothed = 0.0, []
    for i, loss in enumerate(curve.losses):
        mean = 0.98 * mean + 0.02 * loss
        smoothed.append(mean / (1 - 0.98 ** (i + 1)))
    np.testing.assert_allclose(curve.smoothed, smoothed, rtol=1e-12)


def test_the_suggestion_trains():
    """Where the loss falls fastest; training with it is better than with rates far from it."""
    curve = find_rate(net(), (X, Y), optimizer=gl.optim.SGD(), batch_size=30)
    parts = [curve.losses[i : i + 13] for i in range(len(curve.losses) - 12)]
    least = int(np.argmin([part.mean() for part in parts]))
    slopes = [np.polyfit(np.arange(13), part, 1)[0] for part in parts[: least + 1]]
    assert curve.suggestion == curve.rates[6 + np.argmin(slopes)] and 1e-3 < curve.suggestion < 10
    loss = {
        rate: gl.fit(net(), (X, Y), optimizer=gl.optim.SGD(lr=rate), batch_size=30, epochs=5, progress=False)[
            -1
        ].train.loss
        for rate in (curve.suggestion, curve.suggestion / 1e4)
    }
    assert loss[curve.suggestion] < 0.7 * loss[curve.suggestion / 1e4]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_the_suggestion_is_no_accident_of_the_seed(depth, loss):
    """Of 10 seeds: before the loss diverges, and behind the plateau of small rates."""
    nn, y = gl.nn, Y if loss == "cross_entropy" else X[:, :3]
    hidden = [layer for i in range(depth) for layer in (nn.Linear(64 if i else 6, 64), nn.ReLU(), nn.LayerNorm(64))]
    found = [
        find_rate(nn.Sequential(*hidden, nn.Linear(64, 3)), (X, y), loss=loss, batch_size=30, seed=seed).suggestion
        for seed in range(10)
    ]
    assert min(found) > 3e-4 and max(found) < 0.1, found


def diverging():
    return find_rate(net(), (X, Y), optimizer=gl.optim.SGD(), batch_size=30, lowest=1e-3, highest=1e6)


def test_it_ends_when_the_loss_diverges():
    curve = diverging()
    assert curve.diverged and len(curve.rates) == len(curve.losses) == len(curve.smoothed) < 100
    assert "diverged" in repr(curve) and curve.suggestion is not None
    assert not find_rate(net(), (X, Y), batch_size=30, highest=1e-3, steps=20).diverged


def test_an_overflow_is_a_divergence():
    x = X * np.float32(1e18)
    curve = find_rate(gl.nn.Linear(6, 3).init(0), (x, x[:, :3]), loss="mse", optimizer=gl.optim.SGD(), batch_size=30)
    assert curve.diverged and len(curve.rates) < 100


def test_everything_is_as_it_was():
    model = net()
    optimizer = gl.optim.AdamW(model.parameters(), lr=0.01)
    gl.fit(model, (X, Y), optimizer=optimizer, epochs=2, progress=False)
    before, state = model.state_dict(), optimizer.state_dict()
    twin = net()
    other = gl.optim.AdamW(twin.parameters(), lr=0.01)
    gl.fit(twin, (X, Y), optimizer=other, epochs=2, progress=False)
    find_rate(model, (X, Y), optimizer=optimizer)
    assert same(model.state_dict(), before) and same(optimizer.state_dict(), state) and optimizer.lr == 0.01
    a = gl.fit(model, (X, Y), optimizer=optimizer, epochs=2, progress=False)
    b = gl.fit(twin, (X, Y), optimizer=other, epochs=2, progress=False)
    assert same(model.state_dict(), twin.state_dict()) and [e.train.loss for e in a] == [e.train.loss for e in b]


def test_groups_hold():
    """A group without a rate of its own takes the growing one; a group matches the names of the optimiser."""
    groups = [{"match": "head.*", "lr": 0.0}, {"match": "trunk.*", "weight_decay": 0.5}]

    def losses(model, **options):
        own = model.named_parameters()
        named = {("head." if name.startswith("3.") else "trunk.") + name: p for name, p in own.items()}
        return find_rate(model, (X, Y), optimizer=gl.optim.SGD(named, **options), batch_size=30, steps=20).losses

    model = net()
    before, found = model.state_dict(), losses(model, groups=groups)
    assert same(model.state_dict(), before)
    heads = net()
    for name, p in heads.named_parameters().items():
        p.trainable = not name.startswith("3.")
    trunk = {f"trunk.{name}": p for name, p in heads.named_parameters().items() if p.trainable}
    alone = find_rate(heads, (X, Y), optimizer=gl.optim.SGD(trunk, weight_decay=0.5), batch_size=30, steps=20).losses
    assert np.array_equal(found, alone) and not np.array_equal(found, losses(net()))


def test_an_interruption_leaves_everything_as_it_was(monkeypatch):
    from gradloom.train import rate_finder

    def interrupt(self, batch):
        raise KeyboardInterrupt

    model, optimizer = net(), gl.optim.SGD(lr=0.5)
    before = model.state_dict()
    monkeypatch.setattr(rate_finder._Watch, "on_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_rate(model, (X, Y), optimizer=optimizer)
    assert same(model.state_dict(), before) and optimizer.lr == 0.5


def test_a_function_is_as_it_was():
    w = gl.parameter(np.ones((6, 3), np.float32), name="w")
    find_rate(lambda x: x @ w, (X, Y), batch_size=30)
    assert np.array_equal(w.numpy(), np.ones((6, 3), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 1.0, "highest": 0.1}, "lowest=1.0, highest=0.1; need 0 < lowest < highest"),
        ({"steps": 1}, "steps=1: must be a whole number of at least 2"),
        ({"epochs": 1}, "find_rate: epochs is not an argument"),
    ],
)
def test_it_refuses(options, message):
    with pytest.raises(gl.SettingError, match=message):
        find_rate(net(), (X, Y), **options)


def test_plot():
    pytest.importorskip("matplotlib").use("Agg")
    figure = find_rate(net(), (X, Y), batch_size=30).plot()
    axis = figure.axes[0]
    assert axis.get_xscale() == "log" and len(axis.lines) == 3
