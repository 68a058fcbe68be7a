"""Activations and containers: against PyTorch, their settings and errors."""

import numpy as np
import pytest

import gradloom as gl
from tests.kept import torch
from tests.nn.torch_twins import compare_or_kept

nn = gl.nn


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-4, 4, shape).astype(np.float32)


LAYERS = {
    "LeakyReLU": (lambda: nn.LeakyReLU(), lambda t: t.LeakyReLU(), (3, 7)),
    "LeakyReLU 0.3": (lambda: nn.LeakyReLU(0.3), lambda t: t.LeakyReLU(0.3), (5,)),
    "PReLU": (lambda: nn.PReLU(), lambda t: t.PReLU(), (3, 5)),
    "PReLU of channels": (lambda: nn.PReLU(3, 0.1), lambda t: t.PReLU(3, 0.1), (2, 3, 5, 1)),
    "PReLU of features": (lambda: nn.PReLU(7), lambda t: t.PReLU(7), (4, 7)),
    "ELU": (lambda: nn.ELU(), lambda t: t.ELU(), (3, 7)),
    "ELU 0.7": (lambda: nn.ELU(0.7), lambda t: t.ELU(0.7), (1, 9)),
    "Mish": (lambda: nn.Mish(), lambda t: t.Mish(), (3, 7)),
    "Hardswish": (lambda: nn.Hardswish(), lambda t: t.Hardswish(), (3, 7)),
    "Hardsigmoid": (lambda: nn.Hardsigmoid(), lambda t: t.Hardsigmoid(), (3, 7)),
    "Softplus": (lambda: nn.Softplus(), lambda t: t.Softplus(), (3, 7)),
    "Softplus 2.5": (lambda: nn.Softplus(2.5), lambda t: t.Softplus(2.5, threshold=1000), (3, 7)),
    "Softmax": (lambda: nn.Softmax(1), lambda t: t.Softmax(1), (3, 4, 5)),
    "LogSoftmax": (lambda: nn.LogSoftmax(), lambda t: t.LogSoftmax(-1), (3, 7)),
    "LogSoftmax 0": (lambda: nn.LogSoftmax(0), lambda t: t.LogSoftmax(0), (3, 7)),
    "GLU": (lambda: nn.GLU(), lambda t: t.GLU(), (3, 6)),
    "GLU 1": (lambda: nn.GLU(1), lambda t: t.GLU(1), (3, 4, 5)),
    "Identity": (lambda: nn.Identity(), lambda t: t.Identity(), (3, 7)),
}  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("name", LAYERS)
def test_activations_are_those_of_pytorch(name):
    ours, theirs, shape = LAYERS[name]
    second = name != "Hardsigmoid"  # PyTorch has none there
    compare_or_kept(name, ours().init(0), lambda: theirs(torch.nn), {"x": drawn(*shape)}, second=second)


def test_large_values_are_finite():
    """e^x overflows in f32 from x = 89."""
    x = np.array([-1e4, -100, -20, 0, 20, 100, 1e4], np.float32)
    np.testing.assert_allclose(gl.predict(nn.Softplus(3.0), x[:, None])[:, 0], np.maximum(x, 0), atol=0.24)
    np.testing.assert_allclose(gl.predict(nn.Mish(), x[:, None])[:, 0], [0, 0, 0, 0, 20, 100, 1e4], atol=1e-6)
    np.testing.assert_array_equal(gl.predict(nn.Hardswish(), x[:, None])[:, 0], [0, 0, 0, 0, 20, 100, 1e4])


def test_prelu_begins_with_its_number_and_trains():
    net = nn.Sequential(nn.PReLU(4, 0.5), nn.Linear(4, 3))
    np.testing.assert_array_equal(net.init(0).state_dict()["0.weight"], np.full(4, 0.5, np.float32))
    gl.fit(net, (drawn(8, 4), np.arange(8) % 3), epochs=2, batch_size=4, progress=False)
    assert (net.state_dict()["0.weight"] != 0.5).all()


class Blocks(nn.Module):
    def __init__(self, kind):
        super().__init__()
        layers = [nn.Linear(4, 4), nn.Residual(nn.Linear(4, 4), nn.Tanh())]
        self.blocks = (
            nn.ModuleList(layers) if kind is nn.ModuleList else nn.ModuleDict({"a": layers[0], "b": layers[1]})
        )
        self.kind = kind

    def forward(self, x):
        for block in self.blocks if self.kind is nn.ModuleList else self.blocks.values():
            x = block(x)
        return x


@pytest.mark.parametrize(("kind", "keys"), [(nn.ModuleList, "01"), (nn.ModuleDict, "ab")])
def test_contents_of_containers_train_under_their_names(kind, keys):
    net = Blocks(kind).init(0)
    a, b = keys
    names = [f"blocks.{a}.weight", f"blocks.{a}.bias", f"blocks.{b}.0.weight", f"blocks.{b}.0.bias"]
    assert list(net.named_parameters()) == names
    before = net.state_dict()
    gl.fit(net, (drawn(8, 4), drawn(8, 4, seed=1)), loss="mse", batch_size=4, progress=False)
    assert all((array != before[name]).any() for name, array in net.state_dict().items())
    assert len(net.blocks) == 2


def test_lists_and_dicts_grow():
    one, two, three = nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(3, 1)
    grown = nn.ModuleList([one]).append(two).extend([three])
    assert list(grown) == [one, two, three] and grown[-1] is three
    assert list(grown.named_parameters())[-1] == "2.bias"
    heads = nn.ModuleDict({"a": one})
    heads["b"] = two
    assert list(heads) == ["a", "b"] == list(heads.keys()) and "b" in heads and heads["b"] is two
    assert [name for name, _ in heads.items()] == ["a", "b"]
    assert list(heads.named_parameters()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_a_residual_adds_what_goes_in():
    net = nn.Residual(nn.Linear(3, 3)).init(0)
    x = drawn(4, 3)
    expected = x + x @ net[0].weight.numpy().T + net[0].bias.numpy()
    np.testing.assert_allclose(gl.predict(net, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.LeakyReLU("a"), gl.SettingError, "slope"),
        (lambda: nn.ELU(float("nan")), gl.SettingError, "alpha"),
        (lambda: nn.Softplus(0.0), gl.SettingError, "a number above 0"),
        (lambda: nn.PReLU(0), gl.ShapeError, "count=0"),
        (lambda: nn.PReLU(3)(gl.input("x", (2, 4))), gl.ShapeError, r"need weight of shape \[1\] or \[4\]"),
        (lambda: nn.GLU()(gl.input("x", (2, 3))), gl.ShapeError, "odd extent 3"),
        (lambda: nn.LogSoftmax(2)(gl.input("x", (2, 3))), gl.ShapeError, "axis 2 does not exist"),
        (lambda: nn.Residual(nn.Linear(3, 1))(gl.input("x", (2, 3))), gl.ShapeError, "need the same shape"),
        (lambda: nn.ModuleList([gl.ops.relu]), gl.GraphError, "ModuleList: got .*need modules"),
        (lambda: nn.ModuleDict({"a.b": nn.ReLU()}), gl.GraphError, "without a dot"),
        (lambda: nn.ModuleDict({"a": 3}), gl.GraphError, "need modules"),
        (lambda: nn.Residual([nn.ReLU()]), gl.GraphError, "need modules"),
    ],
)  # fmt: skip
def test_errors_are_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
