"""What is handed over is heeded, or an error names it: weights, labels, parameters, arguments."""

import functools

import numpy as np
import pytest

import gradloom as gl

torch = pytest.importorskip("torch")

nn = gl.nn
RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 24)
T = RNG.standard_normal((24, 3)).astype(np.float32)
W = RNG.uniform(0, 3, 24).astype(np.float32)
W[5] = 0


def net():
    return nn.Linear(4, 3).init(0)


def fit(model, data=(X, Y), **options):
    return gl.fit(model, data, **({"progress": False, "batch_size": 8} | options))


def per_row(pred, target):
    return gl.ops.sum(gl.ops.sqr(pred - target), (1,))


def weighted_pair(pred, target, weights=None):
    return gl.ops.mse_pair(pred, target, weights)


# ---- row weights and loss functions ----------------------------------------------------------------------------


def in_torch(weights, loss, steps, labels):
    """Weights after SGD steps of 8 rows on sum(w * loss) / sum(w)."""
    twin = torch.nn.Linear(4, 3)
    start = net()
    with torch.no_grad():
        twin.weight.copy_(torch.tensor(start.weight.numpy()))
        twin.bias.copy_(torch.tensor(start.bias.numpy()))
    opt = torch.optim.SGD(twin.parameters(), lr=0.1)
    for rows in steps:
        w = torch.tensor(weights[rows])
        values = loss(twin(torch.tensor(X[rows])), torch.tensor(labels[rows]))
        opt.zero_grad()
        ((w * values).sum() / w.sum()).backward()
        opt.step()
    return twin.weight.detach().numpy(), twin.bias.detach().numpy()


@pytest.mark.parametrize("how", ["run_rows", "step"])
@pytest.mark.parametrize(
    ("loss", "labels", "oracle"),
    [
        (gl.ops.cross_entropy_pair, Y, functools.partial(torch.nn.functional.cross_entropy, reduction="none")),
        (per_row, T, lambda p, t: ((p - t) ** 2).sum(1)),
        (weighted_pair, T, lambda p, t: ((p - t) ** 2).mean(1)),
        (lambda p, t, *, weights: gl.ops.mse_pair(p, t, weights), T, lambda p, t: ((p - t) ** 2).mean(1)),
    ],
)
def test_row_weights_reach_loss_functions(loss, labels, oracle, how):
    model = net()
    trainer = gl.Trainer(model, loss, gl.optim.SGD(lr=0.1))
    batches = [np.arange(8), np.arange(8, 16), np.arange(16, 24)]
    if how == "step":
        for rows in batches:
            trainer.step(X[rows], labels[rows], W[rows])
    else:
        gl.epoch(trainer, gl.data.Dataset(X, labels, weights=W), batch_size=8)
    expected = in_torch(W, oracle, batches, labels)
    np.testing.assert_allclose(model.weight.numpy(), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.bias.numpy(), expected[1], rtol=1e-5, atol=1e-6)


def test_evaluate_hands_row_weights_to_a_loss_function():
    data = gl.data.Dataset(X, Y, weights=W)
    model = net()
    named = gl.evaluate(model, data, loss="cross_entropy").loss
    assert gl.evaluate(model, data, loss=gl.ops.cross_entropy_pair).loss == named
    assert named != gl.evaluate(model, (X, Y)).loss


def test_a_loss_function_that_would_ignore_row_weights_is_refused():
    data = gl.data.Dataset(X, T, weights=W)
    with pytest.raises(gl.DataError, match=r"the data have row weights, and the function gave a pair \(sum, weight\)"):
        fit(net(), data, loss=lambda p, t: gl.ops.mse_pair(p, t))
    with pytest.raises(gl.DataError, match="takes the row weights and gave one value per row"):
        fit(net(), data, loss=lambda p, t, weights: per_row(p, t))
    bound = functools.partial(gl.ops.mse_pair, weights=gl.constant(np.ones(8, np.float32)))
    with pytest.raises(gl.DataError, match="the data have row weights"):  # those that are bound are not replaced
        fit(net(), data, loss=bound)
    fit(net(), (X, T), loss=bound)


def test_row_weights_of_another_length_are_refused():
    trainer = gl.Trainer(net(), per_row)
    for weights in (W[:7], W[:8, None], np.float32(2)):
        with pytest.raises(gl.ShapeError, match=r"weights: shape .*; need \[8\], one for each row of the batch"):
            trainer.step(X[:8], T[:8], weights)
    with pytest.raises(gl.ShapeError, match=r"labels: shape \[7, 3\]; need 8 rows"):
        trainer.step(X[:8], T[:7])
    with pytest.raises(gl.ShapeError, match=r"the function gave f32\[4\]; need one value per row \[8\]"):
        gl.Trainer(net(), lambda p, t: per_row(p, t)[:4]).step(X[:8], T[:8], W[:8])


def test_labels_that_a_loss_does_not_look_at_are_refused():
    for loss in ("mean", "sum"):
        with pytest.raises(gl.DataError, match=f"loss {loss}: it does not look at labels, and the data have some"):
            fit(net(), loss=loss)
        fit(net(), X, loss=loss)
    with pytest.raises(gl.SettingError, match=r"loss: the function is called with \(outputs, labels\): too many pos"):
        fit(net(), loss=lambda p: gl.ops.sum(p, (1,)))
    with pytest.raises(gl.SettingError, match="the outputs alone, as the data have no labels: missing a required arg"):
        fit(net(), X, loss=per_row)


# ---- parameters that nobody trains -----------------------------------------------------------------------------


class Hidden(nn.Module):
    """Holds a parameter where nothing looks for it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        held = gl.parameter(np.ones(3), name="scale")
        self.scale = lambda: held

    def forward(self, x):
        return self.linear(x) * self.scale()


SCALE = gl.parameter(np.full(3, 2.0), name="scale")


def scaled_loss(p, y):
    return gl.ops.cross_entropy_pair(p * SCALE, y)


def test_a_parameter_that_nobody_trains_is_named():
    untrained = r"the loss reaches a parameter that nobody trains: f32\[3\] scale at test_heeded\.py:\d+"
    for start in (lambda: fit(Hidden()), lambda: fit(net(), loss=scaled_loss)):
        with pytest.raises(gl.GraphError, match=f"train: {untrained}"):
            start()
    samples = [(X[:8], Y[:8].astype(np.int32)), (X[8:16], Y[8:16].astype(np.int32))]
    with pytest.raises(gl.GraphError, match=f"dp_train: {untrained}"):
        gl.dp_train(Hidden, samples, loss_fn=gl.ops.cross_entropy, replicas=1, iterations=1)
    assert np.isfinite(gl.evaluate(Hidden(), (X, Y)).loss)


def test_a_parameter_of_a_loss_function_trains_with_an_optimiser_that_has_it():
    model, scale = net(), gl.parameter(np.full(3, 2.0), name="scale")
    before = model.state_dict()
    loss = lambda p, y: gl.ops.cross_entropy_pair(p * scale, y)  # noqa: E731
    fit(model, loss=loss, optimizer=gl.optim.SGD([*model.parameters(), scale], lr=0.1))
    assert (scale.numpy() != 2).all() and (model.state_dict()["weight"] != before["weight"]).any()
    before = model.state_dict()
    fit(model, loss=loss, optimizer=gl.optim.SGD([scale], lr=0.1))  # the rest is frozen by that
    np.testing.assert_array_equal(model.state_dict()["weight"], before["weight"])


def test_what_is_declared_frozen_stays_as_it_is():
    scale = gl.parameter(np.full(3, 2.0), name="scale")
    loss = lambda p, y: gl.ops.cross_entropy_pair(p * scale, y)  # noqa: E731
    for freeze in ("scale", ["sc*", "1.*"], ("scale", "*.weight")):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).init(0)
        before = model.state_dict()
        fit(model, loss=loss, freeze=freeze)
        changed = {name for name, array in model.state_dict().items() if (array != before[name]).any()}
        patterns = [freeze] if isinstance(freeze, str) else freeze
        expected = {n for n in before if not any(p in ("1.*", "*.weight") and (
            n.startswith("1.") if p == "1.*" else n.endswith(".weight")) for p in patterns)}  # fmt: skip
        assert changed == expected and (scale.numpy() == 2).all()
    scale.trainable = False
    fit(net(), loss=loss)
    assert (scale.numpy() == 2).all()


def test_a_frozen_parameter_may_be_trained_again():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).init(0)
    trainer = gl.Trainer(model, optimizer=gl.optim.SGD(lr=0.1))
    for trainable in (True, False, True):
        model[0].weight.trainable = trainable
        before = model[0].weight.numpy()
        trainer.step(X, Y)
        assert (model[0].weight.numpy() != before).any() == trainable
    assert list(model.named_parameters()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(gl.SettingError, match=r"freeze: 'wieght' matches no parameter; did you mean weight\?"):
        fit(net(), freeze="wieght")
    for freeze in (3, [""], {"weight": 1}):
        with pytest.raises(gl.SettingError, match="must be a pattern of names"):
            fit(net(), freeze=freeze)
    with pytest.raises(gl.GradientError, match="depends on no trainable parameter"):
        fit(net(), freeze="*")


# ---- outputs ---------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.a(x), {"value": self.b(x), "list": [gl.ops.relu(self.a(x))]}


def two_losses(outputs, labels, weights=None):
    logits, rest = outputs
    total, weight = gl.ops.cross_entropy_pair(logits, labels, weights)
    return total + gl.ops.sum(gl.ops.sqr(rest["value"])), weight


def test_predict_gives_all_outputs_as_the_model_does():
    model = Two().init(0)
    a, rest = gl.predict(model, X, batch_size=10)
    np.testing.assert_array_equal(a, gl.predict(model.a, X, batch_size=10))
    np.testing.assert_array_equal(rest["value"], gl.predict(model.b, X, batch_size=10))
    np.testing.assert_array_equal(rest["list"][0], np.maximum(a, 0))
    leaf = gl.input("x", (10, 4))
    pair = gl.predict((leaf, model(leaf)), X, batch_size=10)
    np.testing.assert_array_equal(pair[0], a)
    np.testing.assert_array_equal(pair[1]["list"][0], rest["list"][0])
    assert isinstance(gl.predict(lambda x: x * 2, X), np.ndarray)


def test_losses_get_all_outputs():
    model = Two().init(0)
    before = model.state_dict()
    fit(model, loss=two_losses)
    assert all((array != before[name]).any() for name, array in model.state_dict().items())
    a, rest = gl.predict(model, X)
    logs = a - np.log(np.exp(a).sum(1, keepdims=True))
    expected = (-logs[np.arange(24), Y].sum() + (rest["value"] ** 2).sum()) / 24
    assert gl.evaluate(model, (X, Y), loss=two_losses).loss == pytest.approx(expected, rel=1e-5)


def test_outputs_that_do_not_fit():
    with pytest.raises(gl.GraphError, match=r"loss cross_entropy: the model gives 3 outputs \(f32\[8,3\], f32\[8,1\]"):
        fit(Two())
    with pytest.raises(gl.ShapeError, match=r"predict: an output f32\[\] of a batch of 24 rows; need the rows along"):
        gl.predict(lambda x: (x, gl.ops.sum(x)), X)
    for model in (lambda x: None, lambda x: (x, 3)):
        with pytest.raises(gl.GraphError, match="model: it gave (NoneType|int); need a value of a graph"):
            gl.predict(model, X)
    with pytest.raises(gl.GraphError, match="model: it gave an empty tuple"):
        gl.predict(lambda x: (), X)
    with pytest.raises(gl.DataError, match="predict: got a Dataset; need its rows alone"):
        gl.predict(net(), gl.data.Dataset(X, Y))


# ---- batches and graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [None, 10])
def test_fewer_rows_than_a_batch_train_as_one_smaller_batch(micro):
    few, many = net(), net()
    data = (X, Y)
    history = fit(few, data, batch_size=100, micro_batch_size=micro, optimizer=gl.optim.SGD(lr=0.1), epochs=2)
    fit(many, data, batch_size=24, micro_batch_size=micro, optimizer=gl.optim.SGD(lr=0.1), epochs=2)
    assert history[-1].train.ndata == 24
    np.testing.assert_array_equal(few.weight.numpy(), many.weight.numpy())
    gl.epoch(gl.Trainer(few), gl.data.Dataset(X, Y), batch_size=100)


def cnn(rows):
    leaf = gl.input("x", (rows, 1, 4, 4))
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, activation="relu"), nn.Flatten(), nn.Linear(32, 3)).init(0)
    return model, leaf, model(leaf)


@pytest.mark.parametrize("form", ["pair", "graph"])
def test_a_graph_takes_a_short_last_batch(form):
    images = RNG.standard_normal((22, 1, 4, 4)).astype(np.float32)
    labels = RNG.integers(0, 3, 22)
    model, leaf, out = cnn(8)
    twin, _, _ = cnn(8)
    given = (leaf, out) if form == "pair" else gl.Graph(out)
    mine = fit(given, (images, labels), epochs=2, optimizer=gl.optim.SGD(lr=0.1))
    theirs = fit(twin, (images, labels), epochs=2, optimizer=gl.optim.SGD(lr=0.1))
    assert mine[-1].train.ndata == 22 and mine[-1].train.loss == theirs[-1].train.loss
    for name, array in twin.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], array)
    np.testing.assert_array_equal(gl.predict(given, images), gl.predict(twin, images))


def test_a_graph_that_mixes_rows_refuses_another_number_of_them():
    leaf = gl.input("x", (8, 4))
    linear = net()
    tokens = linear(leaf)
    for mixed in (
        tokens - gl.ops.mean(tokens, (0,)),
        tokens / gl.ops.sum(tokens),
        gl.ops.matmul(tokens, gl.ops.matmul(tokens, tokens, transpose_x=True)),
        tokens + gl.constant(np.ones((8, 3), np.float32)),
        gl.ops.concat([tokens[:4], tokens[4:]], 0),
    ):
        fit((leaf, mixed), (X[:16], Y[:16]))
        with pytest.raises(gl.ShapeError, match="step: the graph was made for 8 rows and cannot take 4"):
            fit((leaf, mixed), (X[:12], Y[:12]))
    norm = nn.BatchNorm(4)
    with pytest.raises(gl.ShapeError, match="mixes rows"):
        fit((leaf, linear(norm(leaf))), (X[:12], Y[:12]))


def test_rows_times_positions_in_a_graph():
    leaf = gl.input("x", (8, 4))
    linear, short = nn.Linear(2, 3).init(0), X[:20]
    out = linear(leaf.reshape(16, 2)).reshape(8, 6)[:, :3]
    expected = np.concatenate([gl.predict((leaf, out), short[:8]), gl.predict((leaf, out), short[8:16])])
    np.testing.assert_array_equal(gl.predict((leaf, out), short, batch_size=8)[:16], expected)
    whole = (short.reshape(40, 2) @ linear.weight.numpy().T + linear.bias.numpy()).reshape(20, 6)[:, :3]
    np.testing.assert_allclose(gl.predict((leaf, out), short, batch_size=20), whole, rtol=1e-5, atol=1e-6)


def test_graphs_that_are_no_model():
    x = gl.input("x", (8, 4))
    for graph, message in (
        (gl.Graph(x + gl.input("z", (1, 4))), r"x f32\[8,4\] and z f32\[1,4\], have different rows"),
        (gl.Graph(gl.parameter(1.0) * 2), "the graph has the inputs none; need one"),
        (gl.Graph(gl.set_loss(gl.ops.sum(x))), "the weight of a scalar is not known"),
        ((x * 2, x), r"the first of the pair is f32\[8,4\], no input"),
        ((x, (x, 3)), "it gave int; need a value"),
    ):
        with pytest.raises(gl.GradloomError, match=message):
            gl.Trainer(graph)


def test_graph_takes_a_list_of_losses():
    w = gl.parameter([1.0, 2.0])
    runs = []
    for graph in (gl.Graph([gl.ops.sum(w * w), gl.ops.sum(w)]), gl.Graph(gl.ops.sum(w * w), gl.ops.sum(w))):
        graph.backward()
        run = graph.compile()
        found = [run(), run.grad(w)]
        runs.append(found)
    np.testing.assert_array_equal(runs[0][1], [3, 5])
    np.testing.assert_array_equal(runs[1][1], [3, 5])
    for bad in ([], [3]):
        with pytest.raises(gl.GraphError, match="Graph: (no outputs|got int)"):
            gl.Graph(bad)


# ---- arguments -------------------------------------------------------------------------------------------------


def test_unknown_arguments_are_named_with_the_nearest_known():
    samples = [(X[:8], Y[:8])]
    for call, message in (
        (lambda: gl.fit(net(), (X, Y), batchsize=8), r"fit: batchsize is not an argument; did you mean batch_size\?"),
        (lambda: gl.fit(net(), (X, Y), epoch=8), r"fit: epoch is not an argument; use epochs="),
        (lambda: gl.fit(net(), (X, Y), thread=1), r"fit: thread is not an argument; did you mean threads\?"),
        (lambda: gl.evaluate(net(), (X, Y), batch=8), r"evaluate: batch is not an arg.*; use batch_size="),
        (lambda: gl.predict(net(), X, weights=W), r"predict: weights is not an argument"),
        (lambda: gl.Trainer(net(), optimiser=None), r"Trainer: optimiser is not an arg.*; did you mean optimizer\?"),
        (
            lambda: gl.dp_train(net, samples, loss_fn=gl.ops.cross_entropy, iterations=1, maxnorm=1.0),
            r"dp_train: maxnorm is not an argument; did you mean max_norm\?",
        ),
        (lambda: gl.fit(net(), (X, Y), qwerty=8), "fit: qwerty is not an argument; use arena, backend"),
    ):
        with pytest.raises(gl.SettingError, match=message):
            call()


def test_a_dynamic_model_may_be_handed_to_all():
    made = []

    def model(x):
        made.append(x.shape[0])
        return x * 2

    w = gl.parameter(np.ones(4))
    history = fit(lambda x: model(x) * w, X, loss="mean", dynamic=True)
    assert made == [8, 8, 8] and history[-1].train.ndata == 24
    assert np.isfinite(gl.evaluate(model, X, loss="mean", dynamic=True).loss)
    made.clear()
    np.testing.assert_array_equal(gl.predict(model, X, batch_size=8, dynamic=True), X * 2)
    assert made == [8, 8, 8]


def test_fit_keeps_the_predictions_of_its_last_epoch():
    seen = []
    history = fit(net(), epochs=3, val_split=0.25, on_epoch=lambda e: seen.append(len(e.train.predictions)))
    assert seen == [18, 18, 18]
    assert len(history[-1].train.predictions) == 18 and len(history[-1].val.predictions) == 6
    for early in history[:-1]:
        for result in (early.train, early.val):
            assert result._predictions is None and 0 <= result.accuracy <= 1
            with pytest.raises(gl.TrainError, match="predictions: fit keeps those of its last epoch alone"):
                _ = result.predictions


def test_forward_functions_of_dp_train_may_be_those_of_eager_loops():
    samples = [{"x": X[i : i + 8], "y": Y[i : i + 8]} for i in (0, 8, 16)]
    options = {"loss_fn": gl.ops.cross_entropy, "replicas": 1, "iterations": 3, "optimizer": gl.optim.SGD(lr=0.1)}
    made = gl.dp_train(
        net, samples, forward_fn=lambda m, s: m(gl.tensor(s["x"])), target_fn=lambda s: gl.tensor(s["y"]), **options
    )
    plain = gl.dp_train(net, samples, forward_fn=lambda m, s: m(s["x"]), target_fn=lambda s: s["y"], **options)
    assert made.loss_history == plain.loss_history
    x = gl.input("x", (3,))
    assert gl.tensor(x) is x and gl.tensor(x, "f32") is x
    assert gl.tensor(x, "i32").dtype.name == "i32"


@pytest.mark.parametrize("call", [gl.fit, gl.evaluate])
def test_settings_of_several_processes_need_several(call):
    net = gl.nn.Linear(3, 2)
    data = np.zeros((4, 3), np.float32), np.zeros(4, np.int32)
    settings = [{"timeout": 5.0}] + [{"exchange": "fast"}] * (call is gl.fit)
    for setting in settings:
        with pytest.raises(gl.SettingError, match="(exchange|timeout)=.* requires parallel='mpi'"):
            call(net, data, **setting)
