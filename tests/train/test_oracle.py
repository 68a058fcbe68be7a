"""Against PyTorch: losses, gradients and steps agree to f32 noise (tests/noise.py)."""

import copy
import gzip

import numpy as np
import pytest

import gradloom as gl
from tests.core.harness import isas
from tests.noise import assert_all_noise, assert_noise
from tests.real_data import DATA

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
F = torch.nn.functional
MNIST = DATA / "mnist"


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=isas())
def isa(request):
    return request.param


def images(n):
    """Rows of MNIST, or noise where there is none."""
    file = MNIST / "train-images-idx3-ubyte.gz"
    if file.exists():
        with gzip.open(file) as data, gzip.open(MNIST / "train-labels-idx1-ubyte.gz") as labels:
            x = np.frombuffer(data.read(16 + 784 * n), np.uint8, offset=16).reshape(n, 784)
            return (x / 255).astype(np.float32), np.frombuffer(labels.read(8 + n), np.uint8, offset=8).astype(np.int64)
    rng = np.random.default_rng(0)
    return np.maximum(rng.standard_normal((n, 784)), 0).astype(np.float32), rng.integers(0, 10, n)


class Twin:
    """One model of ours and the same one in PyTorch's f32 and float64; parameters carry the same names."""

    def __init__(self, net, model, loss="cross_entropy", torch_loss=F.cross_entropy, **options):
        self.net = net.init(1)
        self.models = {np.float32: model, np.float64: copy.deepcopy(model).double()}
        self.torch_loss = torch_loss
        self.grads = gl.Trainer(net, loss, build="grad", **options)
        self.equal_weights()

    def equal_weights(self):
        for kind, model in self.models.items():
            held = {k: torch.tensor(v.astype(kind)) for k, v in self.net.state_dict().items()}
            model.load_state_dict(held, strict=False)

    def torch_step(self, kind, x, y, **more):
        model = self.models[kind]
        model.zero_grad()
        given = torch.tensor(x.astype(kind) if x.dtype.kind == "f" else x)
        target = torch.tensor(y.astype(kind) if y.dtype.kind == "f" else y)
        loss = self.torch_loss(model(given), target, **{k: torch.tensor(v.astype(kind)) for k, v in more.items()})
        loss.backward()
        return loss.item(), {k: p.grad.numpy() for k, p in model.named_parameters()}

    def compare(self, x, y, where="", **more):
        """Loss and all gradients on one batch."""
        self.grads.reset()
        loss = self.grads.step(x, None if self.grads.loss == "mean" else y, **more).loss
        found = {name: self.grads.grad_acc(name) for name in self.net.named_parameters()}
        (loss32, grads32), (loss64, grads64) = (self.torch_step(kind, x, y, **more) for kind in self.models)
        longest = max(len(x), x[0].size)
        assert_noise(f"{where} loss", loss, loss32, loss64, longest)
        assert_all_noise(found, grads32, grads64, longest, f"{where} gradient of")
        return found


def mlp(smooth=False):
    nn, tn = gl.nn, torch.nn
    return Twin(
        nn.Sequential(nn.Linear(784, 500), nn.Tanh() if smooth else nn.ReLU(), nn.Linear(500, 10)),
        tn.Sequential(tn.Linear(784, 500), tn.Tanh() if smooth else tn.ReLU(), tn.Linear(500, 10)),
    )


def cnn(smooth=False):
    def layers(nn):
        act, pool = (nn.Tanh, nn.AvgPool2d) if smooth else (nn.ReLU, nn.MaxPool2d)
        convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)]
        return [*(x for c in convolutions for x in (c, act(), pool(2))), nn.Flatten(), nn.Linear(784, 10)]

    return Twin(gl.nn.Sequential(*layers(gl.nn)), torch.nn.Sequential(*layers(torch.nn)))


def shaped(make, x):
    return x.reshape(-1, 1, 28, 28) if make is cnn else x


def clear_rows(model, x, count, margin=2e-6):
    """The first `count` rows that keep a distance from the kinks of ReLU and of max pooling: on a kink, the gradient of
    f32 may be the one of the other side, in PyTorch as here."""
    clear = np.ones(len(x), bool)

    def keep(distance):
        near = (distance > 0) & (distance < margin)  # equal numbers stay equal
        clear[near.flatten(1).any(1).numpy()] = False

    with torch.no_grad():
        at = torch.tensor(x.astype(np.float64))
        for layer in model:
            if isinstance(layer, torch.nn.ReLU):
                keep(at.abs())
            elif isinstance(layer, torch.nn.MaxPool2d):
                windows = at.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).sort(-1).values
                keep(windows[..., 3] - windows[..., 2])
            at = layer(at)
    found = np.flatnonzero(clear)[:count]
    assert len(found) == count
    return found


@pytest.mark.parametrize(("make", "batch"), [(mlp, 500), (cnn, 100)], ids=["mlp", "cnn"])
def test_ten_sgd_steps(make, batch):
    """Step by step from equal weights: every loss, every gradient; the step is w - lr * g to the last place."""
    twin = make()
    x, y = images(3000)
    x = shaped(make, x)
    trainer = gl.Trainer(twin.net, "cross_entropy", gl.optim.SGD(lr=0.25))
    losses = []
    for i in range(10):
        near = np.random.default_rng(i).permutation(len(x))[: 2 * batch]
        rows = near[clear_rows(twin.models[np.float64], x[near], batch)]
        before = twin.net.state_dict()
        grads = twin.compare(x[rows], y[rows], f"step {i}")
        losses.append(trainer.step(x[rows], y[rows]).loss)
        for name, after in twin.net.state_dict().items():
            expected = before[name] - np.float32(0.25) * grads[name]
            np.testing.assert_allclose(after, expected, rtol=0, atol=2.0**-22 * np.abs(expected).max())
        twin.equal_weights()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("make", "batch"), [(mlp, 250), (cnn, 100)], ids=["mlp", "cnn"])
def test_ten_sgd_steps_on_their_own(make, batch):
    """All three run on from the first weights, never set equal again; smooth, so that no kink tells them apart."""
    twin = make(smooth=True)
    x, y = images(10 * batch)
    x = shaped(make, x)
    trainer = gl.Trainer(twin.net, "cross_entropy", gl.optim.SGD(lr=0.1))
    gl.epoch(trainer, gl.data.Dataset(x, y), batch_size=batch)
    for kind, model in twin.models.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(10):
            twin.torch_step(kind, x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch])
            optimizer.step()
    single, double = (dict(m.named_parameters()) for m in twin.models.values())
    for name, ours in twin.net.state_dict().items():
        assert_noise(name, ours, single[name].detach().numpy(), double[name].detach().numpy(), longest=10)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_one_adamw_step(make):
    """Where a gradient is nearly 0, Adam makes its rounding large: the worst entry says nothing there."""
    twin = make()
    x, y = images(200)
    x = shaped(make, x)
    rows = clear_rows(twin.models[np.float64], x, 100)
    options = {"lr": 1e-3, "weight_decay": 0.01}
    gl.Trainer(twin.net, "cross_entropy", gl.optim.AdamW(**options)).step(x[rows], y[rows])
    for kind, model in twin.models.items():
        twin.torch_step(kind, x[rows], y[rows])
        torch.optim.AdamW(model.parameters(), **options).step()
    single, double = (dict(m.named_parameters()) for m in twin.models.values())
    for name, ours in twin.net.state_dict().items():
        assert_noise(name, ours, single[name].detach().numpy(), double[name].detach().numpy(), 100, worst=False)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (gl.optim.SGD, torch.optim.SGD, {"lr": 0.1}),
        (gl.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (gl.optim.AdamW, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
        (
            gl.optim.AdamW,
            torch.optim.AdamW,
            {"lr": 1e-2, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.0},
        ),
        (gl.optim.Adam, torch.optim.Adam, {"lr": 1e-2}),
    ],
)
def test_optimizers_on_given_gradients(isa, ours, theirs, options):
    """Loss sum(w * x): its gradient is x itself, so that only the optimisers differ. 20 steps."""
    xs = np.random.default_rng(0).standard_normal((20, 1, 50)).astype(np.float32)
    w0 = np.linspace(-1, 1, 50).astype(np.float32)
    w = gl.parameter(w0, name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", ours(**options), isa=isa)
    for x in xs:
        trainer.step(x)
    named = dict(options)
    if "beta1" in named:
        named["betas"] = (named.pop("beta1"), named.pop("beta2"))
    found = []
    for kind in (np.float32, np.float64):
        p = torch.nn.Parameter(torch.tensor(w0.astype(kind)))
        optimizer = theirs([p], **named)
        for x in xs:
            p.grad = torch.tensor(x[0].astype(kind))
            optimizer.step()
        found.append(p.detach().numpy())
    assert_noise("w", w.numpy(), *found, longest=20)


def weighted_cross_entropy(out, target, weights=None):
    losses = F.cross_entropy(out, target, reduction="none", ignore_index=-100) if target.ndim == 1 else None
    if losses is None:
        losses = -(target * torch.log_softmax(out, 1)).sum(1)
    w = torch.ones_like(losses) if weights is None else weights
    if target.ndim == 1:
        w = w * (target != -100)
    return (losses * w).sum() / w.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("labels", ["ids", "ignored", "soft", "any sum"])
def test_cross_entropy(isa, labels, weighted):
    nn, tn = gl.nn, torch.nn
    rng = np.random.default_rng(3)
    x = rng.standard_normal((37, 20)).astype(np.float32) * 3
    y = rng.integers(0, 7, 37)
    if labels == "ignored":
        y[::4] = -100
    elif labels != "ids":
        y = rng.uniform(0, 1, (37, 7)).astype(np.float32)
        if labels == "soft":
            y /= y.sum(1, keepdims=True)
        y[5] = 0
    more = {"weights": rng.uniform(0, 2, 37).astype(np.float32)} if weighted else {}
    Twin(
        nn.Sequential(nn.Linear(20, 7)), tn.Sequential(tn.Linear(20, 7)), torch_loss=weighted_cross_entropy, isa=isa
    ).compare(x, y, **more)


class TorchMean(torch.nn.Module):
    """Mean over axis 1."""

    def forward(self, x):
        return x.mean(1)


class Mean(gl.nn.Module):
    def forward(self, x):
        return gl.ops.mean(x, 1)


def nets():
    nn, tn = gl.nn, torch.nn
    flat, image, ids = (33, 20), (9, 3, 12, 10), (16, 5)
    return {
        "batch norm": (
            flat,
            nn.Sequential(nn.Linear(20, 12), nn.BatchNorm(12), nn.ReLU(), nn.Linear(12, 4)),
            tn.Sequential(tn.Linear(20, 12), tn.BatchNorm1d(12), tn.ReLU(), tn.Linear(12, 4)),
        ),
        "batch norm 2d": (
            image,
            nn.Sequential(
                nn.Conv2d(3, 6, 3), nn.BatchNorm(6, momentum=0.3), nn.ReLU(), nn.Flatten(), nn.Linear(480, 4)
            ),
            tn.Sequential(
                tn.Conv2d(3, 6, 3), tn.BatchNorm2d(6, momentum=0.3), tn.ReLU(), tn.Flatten(), tn.Linear(480, 4)
            ),
        ),
        "layer norm": (
            flat,
            nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)),
            tn.Sequential(tn.Linear(20, 16), tn.LayerNorm(16), tn.GELU(), tn.Linear(16, 4)),
        ),
        "rms norm": (
            flat,
            nn.Sequential(nn.Linear(20, 16), nn.RMSNorm(16, eps=1e-5), nn.SiLU(), nn.Linear(16, 4)),
            tn.Sequential(tn.Linear(20, 16), tn.RMSNorm(16, eps=1e-5), tn.SiLU(), tn.Linear(16, 4)),
        ),
        "sigmoid, tanh, softmax": (
            flat,
            nn.Sequential(
                nn.Linear(20, 16),
                nn.Sigmoid(),
                nn.Linear(16, 8),
                nn.Tanh(),
                nn.Linear(8, 6),
                nn.Softmax(),
                nn.Linear(6, 4),
            ),
            tn.Sequential(
                tn.Linear(20, 16),
                tn.Sigmoid(),
                tn.Linear(16, 8),
                tn.Tanh(),
                tn.Linear(8, 6),
                tn.Softmax(-1),
                tn.Linear(6, 4),
            ),
        ),
        "strided convolution, average pool": (
            image,
            nn.Sequential(
                nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
                nn.Tanh(),
                nn.AvgPool2d(2, 1, 1),
                nn.Flatten(),
                nn.Linear(315, 4, bias=False),
            ),
            tn.Sequential(
                tn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
                tn.Tanh(),
                tn.AvgPool2d(2, 1, 1),
                tn.Flatten(),
                tn.Linear(315, 4, bias=False),
            ),
        ),
        "overlapping max pool": (
            image,
            nn.Sequential(
                nn.Conv2d(3, 5, 3, padding="same", bias=False), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(150, 4)
            ),
            tn.Sequential(
                tn.Conv2d(3, 5, 3, padding="same", bias=False), tn.MaxPool2d(3, 2, 1), tn.Flatten(), tn.Linear(150, 4)
            ),
        ),
        "embedding": (
            ids,
            nn.Sequential(nn.Embedding(11, 6), Mean(), nn.Linear(6, 4)),
            tn.Sequential(tn.Embedding(11, 6), TorchMean(), tn.Linear(6, 4)),
        ),
    }


@pytest.mark.parametrize("name", list(nets()))
def test_layers(isa, name):
    shape, net, model = nets()[name]
    rng = np.random.default_rng(7)
    x = rng.integers(0, 11, shape) if name == "embedding" else rng.standard_normal(shape).astype(np.float32)
    y = rng.integers(0, 4, len(x))
    twin = Twin(net, model, isa=isa)
    twin.compare(x, y, name)
    buffers = {k: v.numpy() for k, v in net.named_buffers().items()}
    single, double = (dict(m.named_buffers()) for m in twin.models.values())
    assert set(buffers) == {k for k in double if not k.endswith("num_batches_tracked")}
    for key, ours in buffers.items():
        assert_noise(f"{name} {key}", ours, single[key].numpy(), double[key].numpy(), len(x))
    outputs = []
    for kind, m in twin.models.items():
        m.eval()
        with torch.no_grad():
            outputs.append(m(torch.tensor(x.astype(kind) if x.dtype.kind == "f" else x)).numpy())
    assert_noise(f"{name} in eval mode", gl.predict(net, x, isa=isa), *outputs, longest=x[0].size)


@pytest.mark.parametrize("reduction", ["mse", "mean"])
def test_other_losses(isa, reduction):
    nn, tn = gl.nn, torch.nn
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((37, 20)).astype(np.float32), rng.standard_normal((37, 7)).astype(np.float32)
    loss = F.mse_loss if reduction == "mse" else lambda out, target: out.mean()
    Twin(nn.Sequential(nn.Linear(20, 7)), tn.Sequential(tn.Linear(20, 7)), reduction, loss, isa=isa).compare(x, y)
