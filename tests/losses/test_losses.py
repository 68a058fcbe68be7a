"""Named losses against PyTorch; in training; extreme outputs; labels and options that are refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import gradloom as gl
from gradloom import losses
from gradloom.run.numpy_backend import evaluate
from tests.losses.loss_cases import LOSSES, compare
from tests.train.split_training import on_ranks

ops = gl.ops
RNG = np.random.default_rng(0)
N = 24
X = RNG.standard_normal((N, 4)).astype(np.float32)
BITS = RNG.integers(0, 2, N)
IDS = RNG.integers(0, 3, N)
NUMBERS = RNG.standard_normal((N, 2)).astype(np.float32)
COUNTS = RNG.integers(0, 4, (N, 2)).astype(np.float32)
WHOLE = RNG.integers(-3, 4, (N, 2))
MANY = RNG.integers(0, 2, (N, 2))
SHARES = RNG.dirichlet(np.ones(3), N).astype(np.float32)
W = RNG.uniform(0.2, 3, N).astype(np.float32)
W[[3, 8]] = 0
TWICE = np.concatenate([np.arange(N), np.arange(N)[W > 1]])


def views(x):
    """Three outputs [rows, 2]."""
    return ops.reshape(x, (x.shape[0], 2, 2))[:, 0] * 1.5, ops.sqr(x[:, 2:]), ops.sin(x[:, :2])


def two(x):
    return views(x)[:2]


FITS = [  # loss, outputs of the model [rows, n] or a function of them, labels
    ("mse", 2, NUMBERS), ("l1", 2, NUMBERS), ("huber", 2, NUMBERS), ("smooth_l1", 2, NUMBERS), ("quantile", 2, NUMBERS),
    (losses.Huber(delta=0.5), 2, NUMBERS), (losses.Quantile((0.1, 0.5, 0.9)), 3, NUMBERS[:, 0]),
    ("poisson_nll", 2, COUNTS), ("cross_entropy", 3, IDS), (losses.CrossEntropy(label_smoothing=0.1), 3, IDS),
    (losses.CrossEntropy(label_smoothing=0.1), 3, SHARES), ("nll", 3, IDS), ("kl", 3, SHARES), ("bce", 1, BITS),
    ("bce", 3, SHARES), (losses.BCE(pos_weight=3.0), 1, BITS), ("focal", 3, IDS), ("focal", 1, BITS),
    (losses.Focal(gamma=1.5, alpha=0.25), 3, np.round(SHARES)), ("hinge", 1, BITS), ("hinge", 2, np.sign(NUMBERS)),
    ("gaussian_nll", lambda x: (x[:, :2], ops.sqr(x[:, 2:]) + 0.1), NUMBERS), ("triplet", views, None),
    ("cosine", two, BITS), ("mean", 2, None),
    ("mse", 2, WHOLE), ("l1", 2, WHOLE), ("huber", 1, WHOLE[:, 0]), ("smooth_l1", 2, WHOLE), ("quantile", 2, WHOLE),
    (losses.Quantile((0.1, 0.9)), 2, WHOLE[:, 0]), ("poisson_nll", 2, np.abs(WHOLE)), ("hinge", 2, 2 * MANY - 1),
    ("gaussian_nll", lambda x: (x[:, :2], ops.sqr(x[:, 2:]) + 0.1), WHOLE), ("cosine", two, 2 * BITS - 1),
    ("bce", 2, MANY), ("focal", 2, MANY), ("cross_entropy", lambda x: ops.reshape(x, (x.shape[0], 2, 2)), MANY),
]  # fmt: skip


def case_name(case):
    return f"{case[0]}-{case[1] if isinstance(case[1], int) else case[1].__name__}"


def model_of(outputs, seed=0):
    if isinstance(outputs, int):
        return gl.nn.Sequential(gl.nn.Linear(4, 6, activation="tanh"), gl.nn.Linear(6, outputs)).init(seed)
    first = gl.nn.Linear(4, 4).init(seed)

    class Net(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = first

        def forward(self, x):
            return outputs(self.first(x))

    return Net()


def data_of(labels, rows=slice(None), weights=None):
    return gl.data.Dataset(X[rows], None if labels is None else labels[rows], weights=weights)


@pytest.fixture(params=["numpy", "cpu"])
def backend(request):
    return request.param


# ---- against PyTorch -------------------------------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_cases_are_pytorchs(first):
    """Value, gradient and second derivative in float64, with weights, ignored labels and options."""
    seen = Counter(compare(seed, keep=True) for seed in range(first, first + 50))
    assert set(seen) == set(LOSSES)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_many_random_cases_are_pytorchs(first):
    pytest.importorskip("torch")
    for seed in range(first, first + 250):
        compare(seed)


# ---- in a training ---------------------------------------------------------------------------------------------------


def trained(case, micro, rows=slice(None), weights=None, **options):
    loss, outputs, labels = case
    model = model_of(outputs)
    options = {"optimizer": gl.optim.SGD(lr=0.05), "epochs": 2, "batch_size": 12, "progress": False} | options
    history = gl.fit(model, data_of(labels, rows, weights), loss=loss, micro_batch_size=micro, **options)
    return [e.train.loss for e in history], model.state_dict()


@pytest.mark.parametrize("case", FITS, ids=map(case_name, FITS))
def test_micro_batches_and_ranks_add_up(case):
    """With row weights: the mean of a batch is that of its micro-batches, of any size and on any number of ranks."""
    whole, weights = trained(case, None, weights=W)
    parts, same = trained(case, 5, weights=W)
    np.testing.assert_allclose(parts, whole, rtol=2e-5, atol=1e-6)
    for name, value in weights.items():
        np.testing.assert_allclose(same[name], value, rtol=1e-3, atol=1e-5)
    found = on_ranks(2, lambda ranks: trained(case, 5, weights=W, parallel=ranks)[0])
    assert found == [parts, parts]


@pytest.mark.parametrize("case", FITS, ids=map(case_name, FITS))
def test_a_row_of_weight_two_is_two_rows(case):
    loss, outputs, labels = case
    model, doubled = model_of(outputs), np.where(W > 1, 2, 1)
    weighted = gl.evaluate(model, data_of(labels, weights=doubled), loss=loss).loss
    repeated = gl.evaluate(model, data_of(labels, TWICE), loss=loss).loss
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)
    assert abs(weighted - gl.evaluate(model, data_of(labels), loss=loss).loss) > 1e-5 * abs(weighted)


def test_labels_that_are_ignored_have_no_effect():
    """Nor have the outputs of their rows."""
    x = X.copy()
    x[[2, 5]] = 1e3
    for loss, outputs, labels in FITS:
        if labels is None or labels.dtype.kind == "f" or outputs is two:
            continue
        ids = labels.copy()
        ids[[2, 5]] = -100
        model = model_of(outputs)
        rest = np.delete(np.arange(N), [2, 5])
        found = gl.evaluate(model, (x, ids), loss=loss).loss
        np.testing.assert_allclose(found, gl.evaluate(model, (X[rest], labels[rest]), loss=loss).loss, rtol=1e-5)


def test_outputs_at_ignored_labels_may_be_not_finite():
    for loss, outputs, labels in FITS:
        if labels is None or labels.dtype.kind == "f" or not isinstance(outputs, int):
            continue
        x, ids = RNG.standard_normal((N, outputs)).astype("f4"), labels.astype("i4")
        rest = (losses.named(loss) if isinstance(loss, str) else loss)(gl.constant(x[2:]), gl.constant(ids[2:]))
        x[:2], ids[:2] = [[np.nan], [np.inf]], -100
        leaf = gl.parameter(np.zeros_like(x), "x")
        mean = (losses.named(loss) if isinstance(loss, str) else loss)(leaf + gl.constant(x), gl.constant(ids))
        (slope,) = gl.gradients(mean, [leaf])
        found = evaluate([mean, slope, rest])
        np.testing.assert_allclose(found[mean], found[rest], rtol=1e-9, err_msg=str(loss))
        assert np.isfinite(found[slope]).all() and not found[slope][:2].any(), loss


def test_class_weights_multiply_rows():
    for loss in ("cross_entropy", "nll", "focal", losses.CrossEntropy(label_smoothing=0.1)):
        options = {"loss": loss, "epochs": 1, "batch_size": N, "progress": False, "optimizer": gl.optim.SGD(lr=0.0)}
        by_class = gl.fit(model_of(3), (X, IDS), class_weight=[1.0, 2.0, 0.5], **options)
        by_row = gl.fit(model_of(3), data_of(IDS, weights=np.array([1.0, 2.0, 0.5])[IDS]), **options)
        np.testing.assert_allclose(by_class[0].train.loss, by_row[0].train.loss, rtol=1e-6)


def test_names_and_objects_are_the_same():
    model = model_of(1)
    by_name = gl.evaluate(model, (X, BITS), loss="bce").loss
    assert by_name == gl.evaluate(model, (X, BITS), loss=losses.BCE()).loss
    assert repr(losses.BCE()) == "bce" and repr(losses.Huber(2.0)) == "huber(delta=2.0)"
    with gl.grad_tape() as tape:
        loss = losses.BCE()(model(gl.tensor(X)), gl.tensor(BITS.astype(np.int32)))
        slopes = tape.backward(loss)
    np.testing.assert_allclose(float(loss), by_name, rtol=1e-6)
    assert all(np.isfinite(np.asarray(slopes[p])).all() for p in model.parameters())


def test_a_mean_of_a_named_loss_is_a_part_of_a_loss_function():
    """Also with a penalty, and with row weights."""
    model = model_of(2)

    def own(outputs, labels):
        return losses.Huber()(outputs, labels) + 0.1 * ops.sum(ops.sqr(model[0].weight))

    alone = gl.evaluate(model, (X, NUMBERS), loss="huber", batch_size=7).loss
    penalty = 0.1 * float((model.state_dict()["0.weight"].astype(np.float64) ** 2).sum())
    np.testing.assert_allclose(
        gl.evaluate(model, (X, NUMBERS), loss=own, batch_size=7).loss, alone + penalty, rtol=1e-5
    )


def test_a_weighted_mean_of_a_named_loss_is_a_part_of_a_loss_function():
    """Of a function that takes the row weights."""
    for loss, outputs, labels in FITS:
        if loss in ("mean", "sum", "triplet"):
            continue
        data, made = data_of(labels, weights=W), losses.named(loss) if isinstance(loss, str) else loss

        def own(outputs, labels, weights, made=made):
            return 0.5 * made(outputs, labels, weights)

        found = gl.evaluate(model_of(outputs), data, loss=own, batch_size=7).loss
        expected = gl.evaluate(model_of(outputs), data, loss=loss, batch_size=7).loss
        np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-5, err_msg=str(loss))

    def unweighted(outputs, labels, weights):
        return ops.mean(ops.abs(outputs - labels))

    with pytest.raises(gl.ShapeError, match="need one value per row .* or a pair"):
        gl.evaluate(model_of(2), data_of(NUMBERS, weights=W), loss=unweighted)


def test_accuracy_of_log_probabilities():
    def log_probabilities(x):
        return ops.log_softmax(net(x))

    net = model_of(3)
    result = gl.evaluate(log_probabilities, (X, IDS), loss="nll")
    expected = gl.evaluate(net, (X, IDS))
    assert result.accuracy == expected.accuracy
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)


def test_an_ensemble_learns_by_a_named_loss():
    def ensemble(average):
        layers = gl.nn.MemberLinear(3, 4, 5, activation="relu"), gl.nn.MemberLinear(3, 5, 2)
        return gl.nn.Ensemble(*layers, average=average).init(0)

    history = gl.fit(ensemble("outputs"), (X, NUMBERS), loss="huber", epochs=5, progress=False)
    assert history[-1].train.loss < history[0].train.loss
    labelled = gl.nn.Ensemble(gl.nn.MemberLinear(3, 4, 1), average="outputs").init(0)
    members = labelled.state_dict()
    found = gl.fit(
        labelled, (X, BITS), loss="bce", epochs=1, batch_size=N, optimizer=gl.optim.SGD(lr=0.0), progress=False
    )
    (w, b) = (members[name].astype(np.float64) for name in ("0.weight", "0.bias"))
    logits = np.einsum("ni,mio->nm", X, w) + b.reshape(1, 3)
    each = np.log1p(np.exp(-np.where(BITS[:, None] == 1, logits, -logits)))
    np.testing.assert_allclose(found[0].train.loss, each.mean(), rtol=1e-5)
    with pytest.raises(gl.SettingError, match=r"loss='huber' requires nn.Ensemble\(..., average='outputs'\)"):
        gl.fit(ensemble("probabilities"), (X, NUMBERS), loss="huber", progress=False)


# ---- extreme outputs -------------------------------------------------------------------------------------------------

FAR = np.array([[1e4], [-1e4], [1e4], [-1e4], [30], [-30]], np.float32)
TRUE = np.array([1, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.BCE(), [0, 0, 1e4, 1e4, 30, 30]),
        (losses.BCE(pos_weight=2.0), [0, 0, 1e4, 2e4, 30, 60]),
        (losses.Focal(), [0, 0, 1e4, 1e4, 30, 30]),
        (losses.Hinge(), [0, 0, 10001, 10001, 31, 31]),
    ],
    ids=str,
)
@pytest.mark.parametrize("labels", [TRUE, TRUE[:, None].astype(np.float32)], ids=["ids", "floats"])
def test_far_logits_of_one_output(loss, expected, labels, backend):
    x = gl.parameter(FAR, "x")
    mean = loss(x, gl.constant(labels.astype("i4" if labels.ndim == 1 else "f4")))
    (slope,) = gl.gradients(mean, [x])
    found, slopes = gl.compile([mean, slope], backend=backend)()
    np.testing.assert_allclose(found, np.mean(expected), rtol=1e-6)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("loss", [losses.CrossEntropy(0.1), losses.Focal(0.5), losses.Focal(), losses.CrossEntropy()])
def test_far_logits_of_classes(loss, backend):
    x = gl.parameter(np.array([[1e4, 0, -1e4], [1e4, 0, -1e4], [0, 0, 0]], np.float32), "x")
    mean = loss(x, gl.constant(np.array([0, 2, 1], np.int32)))
    found, slopes = gl.compile([mean, *gl.gradients(mean, [x])], backend=backend)()
    assert np.isfinite(found) and np.isfinite(slopes).all() and 5e3 < found < 7e3


def test_probabilities_of_zero_and_one(backend):
    y = np.array([[1, 0, 0], [0.5, 0.5, 0]], np.float32)
    x = gl.parameter(np.array([[0, -np.inf, -np.inf], [np.log(0.5), np.log(0.5), -np.inf]], np.float32), "x")
    mean = losses.KL()(x, gl.constant(y))
    found, slopes = gl.compile([mean, *gl.gradients(mean, [x])], backend=backend)()
    assert abs(found) < 1e-6 and np.isfinite(slopes).all()
    nll = losses.NLL()(x, gl.constant(np.array([0, 1], np.int32)))
    found, slopes = gl.compile([nll, *gl.gradients(nll, [x])], backend=backend)()
    np.testing.assert_allclose(found, np.log(2) / 2, rtol=1e-6)
    assert np.isfinite(slopes).all()


def test_a_batch_without_weight_has_the_sum_zero():
    w = gl.constant(np.zeros(N, np.float32))
    for loss, outputs, labels in FITS:
        x = gl.constant(X)
        kind = None if labels is None else "f4" if labels.dtype.kind == "f" else "i4"
        pair = losses.named(loss) if isinstance(loss, str) else loss
        y = None if labels is None else gl.constant(labels.astype(kind))
        total, weight = gl.compile(list(pair.pair(model_of(outputs)(x), y, w)))()
        assert float(total) == 0 and (float(weight) == 0 or loss == "sum"), loss


# ---- refused ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ("bce", 1, IDS, "bce: label 2 in row .*; need 0 or 1, or a probability between them"),
    ("bce", 1, NUMBERS[:, :1], "bce: label .* in row .*; need 0 or 1, or a probability"),
    ("bce", 3, BITS, r"bce: shapes differ: outputs f32\[24,3\], labels i32\[24\]; need one output per label"),
    ("focal", 2, IDS, "labels: id 2 in row .*; need 0..1 for 2 classes, or -100 for a row to ignore"),
    ("nll", 2, IDS, "labels: id 2 in row .*; need 0..1 for 2 classes"),
    ("hinge", 2, NUMBERS, "hinge: label .* in row 0; need 1, 0 or -1"),
    ("poisson_nll", 2, NUMBERS, "poisson_nll: label -.* in row .*; need counts of at least 0"),
    ("kl", 2, NUMBERS, "kl: label -.* in row .*; need probabilities of at least 0"),
    ("kl", 3, IDS, r"kl: shapes differ: outputs f32\[24,3\], labels i32\[24\]; need \[rows, ..., classes\] for both"),
    ("huber", 3, NUMBERS, r"huber: shapes differ: outputs f32\[24,3\], labels f32\[24,2\]; need one output per"),
    ("nll", 3, SHARES, r"nll: labels do not fit: outputs f32\[24,3\], labels f32\[24,3\]; need ids"),
    ("focal", 3, NUMBERS, r"focal: labels do not fit: outputs f32\[24,3\], labels f32\[24,2\]; need ids"),
    (losses.Focal(alpha=0.3), 3, IDS, "Focal: alpha=0.3 requires labels of the outputs' shape; use class_weight="),
    (losses.Quantile((0.1, 0.9)), 3, NUMBERS, r"quantile: shapes do not fit: .*; need outputs \[..., 2\] for labels"),
    (losses.BCE(pos_weight=[1, 2]), 1, BITS, r"bce: 2 pos_weight, outputs f32\[24,1\]; need one for each output"),
    ("gaussian_nll", 3, NUMBERS, r"gaussian_nll: the outputs are f32\[24,3\]; need 2 outputs, or one of shape"),
    ("triplet", two, None, "triplet: 2 outputs; need 3"),
    ("triplet", views, BITS, "loss triplet: it does not look at labels, and the data have some"),
    ("cosine", two, NUMBERS, r"cosine: labels do not fit: outputs f32\[24,2\], labels f32\[24,2\]; need a label per"),
    ("cosine", two, None, "loss cosine: the data have no labels; need labels, or a loss without"),
    ("huber", two, NUMBERS, "loss huber: the model gives 2 outputs"),
    (losses.Huber, 2, NUMBERS, r"loss: got the class Huber; need an instance: gl.losses.Huber\(\)"),
    ("huberr", 2, NUMBERS, "loss: 'huberr' is not known; .*did you mean huber"),
    ("kl_div", 2, NUMBERS, "loss: 'kl_div' is not known; .*use 'kl'"),
    ("mae", 2, NUMBERS, "loss: 'mae' is not known; .*use 'l1'"),
    ("binary_cross_entropy", 2, NUMBERS, "loss: 'binary_cross_entropy' is not known; .*use 'bce'"),
    ("binary_crossentropy", 2, NUMBERS, "loss: 'binary_crossentropy' is not known; .*use 'bce'"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "outputs", "labels", "message"), REFUSED, ids=[str(r[3][:40]) for r in REFUSED])
def test_refused(loss, outputs, labels, message):
    with pytest.raises(gl.GradloomError, match=message):
        gl.evaluate(model_of(outputs), data_of(labels), loss=loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.Huber(delta=0), "Huber: delta=0: must be a finite number above 0"),
        (lambda: losses.SmoothL1(beta=float("nan")), "SmoothL1: beta=nan: must be a finite number above 0"),
        (lambda: losses.Quantile(1.0), "Quantile: q=1.0: must be above 0 and below 1"),
        (lambda: losses.Quantile(()), r"Quantile: q=\(\): must be at least one quantile"),
        (lambda: losses.CrossEntropy(1.0), "CrossEntropy: label_smoothing=1.0: must be at least 0 and below 1"),
        (lambda: losses.Focal(gamma=-1), "Focal: gamma=-1: must be a finite number of at least 0"),
        (lambda: losses.Focal(alpha=1), "Focal: alpha=1: must be above 0 and below 1, or None"),
        (lambda: losses.Focal(alpha=[0.1, 0.2]), r"Focal: alpha=\[0.1, 0.2\]: must be above 0 and below 1, or None"),
        (lambda: losses.BCE(pos_weight="x"), "BCE: pos_weight='x': must be a finite number above 0"),
        (lambda: losses.BCE(pos_weight=[1, 0]), "BCE: pos_weight=0: must be a finite number above 0"),
        (lambda: losses.BCE(pos_weight=[]), r"BCE: pos_weight=\(\): must be at least one number"),
        (lambda: losses.Cosine(margin="x"), "Cosine: margin='x': must be a number from -1 to 1"),
        (lambda: losses.GaussianNLL(eps=0), "GaussianNLL: eps=0: must be a finite number above 0"),
        (lambda: losses.Cosine(margin=2), "Cosine: margin=2: must be a number from -1 to 1"),
        (lambda: losses.KL(log_target=1), "KL: log_target=1: must be"),
    ],
)
def test_options(make, message):
    with pytest.raises(gl.SettingError, match=message):
        make()


@pytest.mark.parametrize("loss", ["cross_entropy", losses.CrossEntropy(label_smoothing=0.1), "nll", "focal"], ids=str)
@pytest.mark.parametrize("wrong", [3, -1])
def test_ids_that_are_no_classes(loss, wrong):
    """In a step, a function of a training and a graph: they never count as a row without a loss."""
    labels = np.array([0, -100, wrong, 1])
    pair = losses.named(loss) if isinstance(loss, str) else loss
    x, y = gl.input("x", (4, 3)), gl.input("y", (4,), "i32")
    for run in (
        lambda: gl.Trainer(model_of(3), loss).step(X[:4], labels),
        lambda: gl.fit(model_of(3), (X[:4], labels), loss=lambda x, y: pair(x, y), progress=False),
        lambda: gl.compile([pair(x, y)])(x=X[:4, :3], y=labels.astype("i4")),
        lambda: evaluate([pair(x, y)], {"x": X[:4, :3], "y": labels.astype("i4")}),
    ):
        with pytest.raises(gl.GradloomError, match=f"id {wrong} at position . is out of range; need 0..2"):
            run()


def test_equal_options_have_equal_texts():
    """A run is resumed with the same loss, however its numbers are written."""
    for make, one, other in (
        (losses.Huber, 2, np.float32(2)), (losses.SmoothL1, 2, 2.0), (losses.Hinge, 2, np.int64(2)),
        (losses.Focal, 3, 3.0), (losses.Triplet, 2, 2.0), (losses.Cosine, 1, np.float32(1)), (losses.BCE, 3, 3.0),
        (losses.BCE, [1, 2], np.array([1.0, 2.0])), (losses.Quantile, [0.25, 0.5], np.array([0.25, 0.5], "f4")),
        (losses.CrossEntropy, 0, np.float32(0)), (gl.metrics.FBeta, {"beta": 2}, {"beta": np.float32(2)}),
        (gl.metrics.F1, {"zero_division": 1}, {"zero_division": 1.0}),
    ):  # fmt: skip
        first, second = (make(**o) if isinstance(o, dict) else make(o) for o in (one, other))
        assert first == second and repr(first) == repr(second) and "np." not in repr(first), repr((first, second))


def test_an_infinite_rate_is_named():
    with pytest.raises(gl.NonFiniteError, match="exp poisson_nll rate at .* produced a number that is not finite"):
        gl.fit(model_of(lambda x: x[:, :2] * 1e4), (X, COUNTS), loss="poisson_nll", progress=False)


def test_class_weights_and_losses_without_labels():
    with pytest.raises(gl.SettingError, match="class_weights cannot be combined with loss='triplet', which reads no"):
        gl.Trainer(views, "triplet", class_weights=np.ones(2, np.float32))


def test_a_scalar_whose_weight_is_not_known():
    with pytest.raises(gl.ShapeError, match="loss: the weight of a scalar is not known"):
        gl.evaluate(model_of(2), (X, NUMBERS), loss=lambda x, y: ops.sqrt(losses.MSE()(x, y)))
