"""Class weights weigh labels in the losses of training and validation, times the weights of rows, and nowhere else."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.train.class_weight import weights_of_classes

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4)).astype(np.float32)
Y = RNG.choice(3, 40, p=[0.7, 0.2, 0.1])
Y[[3, 17]] = -100
W = RNG.uniform(0.2, 3, 40).astype(np.float32)
TABLE = [0.5, 2.0, 7.0]


def net():
    return gl.nn.Linear(4, 3).init(0)


def in_torch(x, y, row_weights, table, steps, lr=0.1):
    """Weights after full-batch SGD steps on sum(w[row] * table[label] * loss) / sum(w * table)."""
    start, twin = net(), torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        twin.weight.copy_(torch.tensor(start.weight.numpy()))
        twin.bias.copy_(torch.tensor(start.bias.numpy()))
    keep = y != -100
    x, y, own = torch.tensor(x).double(), torch.tensor(y), np.asarray(table, np.float64)[np.where(keep, y, 0)]
    own = torch.tensor(np.where(keep, own * row_weights.reshape(-1, *(1,) * (y.ndim - 1)), 0.0))
    opt = torch.optim.SGD(twin.parameters(), lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        losses = torch.nn.functional.cross_entropy(twin(x).reshape(-1, 3), y.reshape(-1), reduction="none")
        ((losses * own.reshape(-1)).sum() / own.sum()).backward()
        opt.step()
    return twin.weight.detach().numpy(), twin.bias.detach().numpy()


def fit(model, data, **options):
    options = {"batch_size": 40, "epochs": 3, "progress": False, "optimizer": gl.optim.SGD(lr=0.1)} | options
    return gl.fit(model, data, **options)


def per_row(pred, labels):
    return gl.ops.sum(gl.ops.sqr(pred - gl.ops.reshape(gl.ops.cast(labels, "f32"), (labels.shape[0], 1))), (1,))


@pytest.mark.parametrize(
    "given", ["balanced", dict(enumerate(TABLE)), {2: 7.0}, TABLE, np.array([*TABLE, 9.0])], ids=str
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro", [None, 11])
def test_labels_weigh_in_training(given, weighted, micro):
    if isinstance(given, str):
        from_counts = np.bincount(Y[Y >= 0])
        table = from_counts.sum() / (3 * from_counts)
    else:
        table = [1.0, 1.0, 7.0] if isinstance(given, dict) and len(given) == 1 else TABLE
    model, data = net(), gl.data.Dataset(X, Y, weights=W if weighted else None)
    fit(model, data, class_weight=given, micro_batch_size=micro)
    expected = in_torch(X, Y, W if weighted else np.ones(40, np.float32), table, 3)
    np.testing.assert_allclose(model.weight.numpy(), expected[0], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(model.bias.numpy(), expected[1], rtol=2e-5, atol=1e-6)
    plain = net()
    fit(plain, data, micro_batch_size=micro)
    assert not np.allclose(plain.weight.numpy(), expected[0], rtol=1e-3)


@pytest.mark.parametrize("weights", [None, W[:12]], ids=["alone", "with row weights"])
def test_labels_of_sequences_weigh_one_by_one(weights):
    x = RNG.standard_normal((12, 5, 4)).astype(np.float32)
    y = RNG.choice(3, (12, 5), p=[0.6, 0.3, 0.1])
    y[0, 2], y[4] = -100, -100
    model = net()
    data = gl.data.Dataset(x.transpose(0, 2, 1).copy(), y, weights=weights)
    fit(lambda v: model(gl.ops.permute(v, (0, 2, 1))), data, class_weight=TABLE, batch_size=12)
    expected = in_torch(x, y, np.ones(12, np.float32) if weights is None else weights, TABLE, 3)
    np.testing.assert_allclose(model.weight.numpy(), expected[0], rtol=2e-5, atol=1e-6)
    with pytest.raises(gl.DataError, match=r"class weights of sequences are f32\[12,5\].*need 'cross_entropy', or a"):
        fit(lambda v: model(gl.ops.permute(v, (0, 2, 1))), data, class_weight=TABLE, batch_size=12, loss=per_row)
    with pytest.raises(
        gl.DataError, match=r"^loss mse: class weights of sequences are f32\[12,5\], one for each label; need"
    ):
        fit(lambda v: gl.ops.sum(v, (1,)), data, class_weight=TABLE, batch_size=12, loss="mse")


def test_loss_functions_are_weighted_too():
    y = np.where(Y < 0, 0, Y)
    own = np.asarray(TABLE, np.float32)[y]
    one, other = net(), net()
    fit(one, gl.data.Dataset(X, y, weights=W), class_weight=TABLE, loss=per_row)
    fit(other, gl.data.Dataset(X, y, weights=W * own), loss=per_row)
    np.testing.assert_allclose(one.weight.numpy(), other.weight.numpy(), rtol=1e-5)


def test_validation_is_weighted_as_training_and_accuracy_is_not():
    data, model = gl.data.Dataset(X, Y, weights=W), net()
    history = fit(model, data, class_weight=TABLE, val_split=0.3, epochs=1)
    _, rows = data.split(0.3, 0)
    own = W[rows] * np.array(TABLE, np.float32)[np.maximum(Y[rows], 0)]
    weighted = gl.evaluate(model, gl.data.Dataset(X[rows], Y[rows], weights=own))
    plain = gl.evaluate(model, gl.data.Dataset(X[rows], Y[rows], weights=W[rows]))
    np.testing.assert_allclose(history[0].val.loss, weighted.loss, rtol=1e-6)
    assert history[0].val.accuracy == plain.accuracy and weighted.loss != plain.loss
    assert history[0].train.accuracy == fit(net(), data, val_split=0.3, epochs=1)[0].train.accuracy
    assert history[0].train.loss != fit(net(), data, val_split=0.3, epochs=1)[0].train.loss


@pytest.mark.parametrize("given", ["balanced", {0: 0.5}])
def test_a_class_that_is_only_validated_weighs_one(given):
    y, model = np.where(Y == 2, 1, Y), net()
    table = [*weights_of_classes(given, gl.data.Dataset(X, y), np.arange(40)), 1.0]
    history = fit(model, (X, y), class_weight=given, val={"other": (X, Y)}, epochs=1)
    own = np.array(table, np.float32)[np.maximum(Y, 0)]
    assert len(table) == 3
    np.testing.assert_allclose(
        history[0].val.loss, gl.evaluate(model, gl.data.Dataset(X, Y, weights=own)).loss, rtol=1e-6
    )
    with pytest.raises(gl.SettingError, match="must be a weight for each of the 3 classes"):
        fit(net(), (X, y), class_weight=[1.0, 2.0], val={"other": (X, Y)})


def test_balanced_is_that_of_scikit_learn():
    rows = np.flatnonzero(np.arange(40) % 3)
    table = weights_of_classes("balanced", gl.data.Dataset(X, Y), rows)
    mine = Y[rows][Y[rows] >= 0]
    expected = len(mine) / (len(np.unique(mine)) * np.bincount(mine, minlength=3))
    np.testing.assert_allclose(table, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "labels", "message"),
    [
        ("balance", Y, "class_weight='balance': must be 'balanced', a dict or an array"),
        ({7: 2.0}, Y, "class_weight: no label is 7; need classes of the data, such as 0, 1, 2"),
        ({1: -2.0}, Y, "class_weight: -2.0 of class 1 must be a finite number of at least 0"),
        ([1.0, np.nan, 1.0], Y, "class_weight: .*nan.* of class 1 must be a finite number"),
        ([1.0, 2.0], Y, r"class_weight is float64\[2\]; must be a weight for each of the 3 classes"),
        ([0.0, 0.0, 0.0], Y, "class_weight: every label has weight 0; need a class that counts"),
        ("balanced", X, "class_weight: the data have labels of float32; need class ids"),
    ],
)
def test_what_cannot_weigh_is_refused(given, labels, message):
    with pytest.raises(gl.GradloomError, match=message):
        fit(net(), gl.data.Dataset(X, labels), class_weight=given)


class Heads(gl.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = gl.nn.Linear(6, 2), gl.nn.Linear(6, 3)

    def forward(self, x):
        return {"first": self.first(x), "second": self.second(x)}


def of_heads():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    first, second = (rng.random(40) < 0.2).astype(np.int32), rng.integers(0, 3, 40).astype(np.int32)
    second[::7] = -100
    return x, first, second


def test_classes_of_one_output_are_weighted():
    """The loss of that output is sum of w ce / sum of w, those of the others stay; ignored labels count for nothing."""
    x, first, second = of_heads()
    data = gl.data.Dataset(x, {"first": first, "second": second})
    losses = {"first": "cross_entropy", "second": "cross_entropy"}
    table = {0: 1.0, 1: 5.0, 2: 0.5}
    for given, w_first, w_second in (
        ({"second": table}, np.ones(40), np.array([1.0, 5.0, 0.5])[np.maximum(second, 0)]),
        ({"first": "balanced"}, (40 / (2 * np.bincount(first)))[first], np.ones(40)),
    ):
        net = Heads().init(0)
        out = gl.predict(net, x)
        result = fit(net, data, loss=losses, class_weight=given, batch_size=40, epochs=1)[0].numbers()
        want = []
        for name, labels, weight in (("first", first, w_first), ("second", second, w_second)):
            logits = out[name].astype(np.float64)
            each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(40), np.maximum(labels, 0)]
            weight = np.where(labels < 0, 0, weight)
            want.append((weight * each).sum() / weight.sum())
            assert result[name] == pytest.approx(want[-1], rel=1e-5)
        assert result["loss"] == pytest.approx(sum(want), rel=1e-5)


def test_classes_of_an_output_by_position():
    x, first, second = of_heads()
    losses = ("cross_entropy", "cross_entropy")
    data = gl.data.Dataset(x, {"first": first, "second": second})
    of_keys = dict(zip(data.labels, losses, strict=True))
    by_key = fit(Heads().init(0), data, loss=of_keys, class_weight={"first": "balanced"})

    class Tuples(Heads):
        def forward(self, v):
            return tuple(super().forward(v).values())

    made = fit(Tuples().init(0), gl.data.Dataset(x, (first, second)), loss=losses, class_weight=("balanced", None))
    assert made[-1].train.loss == by_key[-1].train.loss


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("balanced", "several arrays of labels, and it is"),
        ({"third": "balanced"}, "class_weight 'third': no such label; the data have first, second"),
        ({"second": {7: 2.0}}, "class_weight 'second': no label is 7"),
        ({"second": "balance"}, "must be 'balanced', a dict or an array"),
        ({"first": [0.0, 0.0]}, "class_weight 'first': every label has weight 0"),
    ],
)
def test_what_is_refused_by_output(given, text):
    x, first, second = of_heads()
    losses = {"first": "cross_entropy", "second": "cross_entropy"}
    with pytest.raises((gl.SettingError, gl.DataError), match=text):
        fit(Heads(), gl.data.Dataset(x, {"first": first, "second": second}), loss=losses, class_weight=given)


def test_an_output_without_a_loss_or_ids_has_no_class_weights():
    x, first, second = of_heads()
    with pytest.raises(gl.SettingError, match="no loss for output 'second'"):
        fit(Heads(), gl.data.Dataset(x, {"first": first, "second": second}), loss={"first": "cross_entropy"},
            class_weight={"second": "balanced"})  # fmt: skip
    with pytest.raises(gl.DataError, match="class_weight 'first': the data have labels of float32; need class ids"):
        fit(Heads(), gl.data.Dataset(x, {"first": x[:, :2], "second": second}), loss={"first": "mse"},
            class_weight={"first": "balanced"})  # fmt: skip
