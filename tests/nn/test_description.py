"""Models as plain data: what is built from a description is the model that was described, or there is none."""

import json

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.described import Described, parse
from gradloom.base.errors import GradloomError, GraphError
from gradloom.nn.description import build, described

nn = gl.nn


def shapes(net):
    return {name: p.shape for name, p, _ in net.named_stored()}


def again(net):
    """Through JSON and back, with the arrays."""
    made = build(parse(json.dumps(described(net)), "net"), shapes(net))
    made.load_state_dict(net.state_dict())
    return made


def shared():
    one, relu = nn.Linear(4, 4), nn.ReLU()
    return nn.Sequential(one, relu, nn.Sequential(one, relu), nn.Linear(4, 3))


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    return net


def frozen():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm(5), nn.Linear(5, 3))
    net[0].weight.trainable = False
    return net


def partly_eval():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm(5), nn.Dropout(0.5))
    net[1].eval()
    return net


def changed():
    """What attributes say counts, not what the constructor was given."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.LayerNorm(5))
    net[1].rate, net[2].eps, net[0].bias = 0.25, 0.5, None
    net.layers.append(nn.Linear(5, 2))
    return net


ROWS, IMAGES, TOKENS = (6, 4), (3, 2, 9, 9), (2, 5, 8)
NETS = {
    "linear": (lambda: nn.Linear(4, 3, activation="gelu_tanh", bias=False), ROWS),
    "activations": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.Softmax()),
        ROWS,
    ),
    "settings of activations": (
        lambda: nn.Sequential(
            nn.LeakyReLU(0.2), nn.PReLU(4, 0.5), nn.ELU(0.5), nn.Softplus(2.0), nn.Mish(), nn.Hardswish(),
            nn.Hardsigmoid(), nn.Softmax(0), nn.LogSoftmax(-2), nn.GLU(-1), nn.Identity(),
        ),
        ROWS,
    ),
    "residual": (lambda: nn.Residual(nn.Linear(4, 4), nn.Residual(nn.Tanh())), ROWS),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(4, eps=0.1), nn.RMSNorm(4, 0.2), nn.BatchNorm(4, 0.3, 0.4)), ROWS),
    "images": (
        lambda: nn.Sequential(
            nn.Standardize(np.ones((2, 1, 1)), np.full((2, 1, 1), 2.0)),
            nn.Conv2d(2, 4, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), activation="relu"),
            nn.Conv2d(4, 4, 3, padding="same", bias=False), nn.MaxPool2d(2, stride=1, padding=1), nn.AvgPool2d((2, 3)),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(12, 3),
        ),
        IMAGES,
    ),
    "channels last": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 2, 1)), nn.Permute((0, 3, 1, 2)), nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(3, 2)
        ),
        ROWS,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Conv2d(2, 4, 3, groups=2),
            nn.ConvTranspose2d(4, 2, (3, 2), (2, 3), (1, 0), (1, 2), (1, 2), "relu", False),
            nn.ConvTranspose2d(2, 2, 2, groups=2), nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten(),
        ),
        IMAGES,
    ),
    "convolutions of rows": (
        lambda: nn.Sequential(
            nn.Conv1d(5, 10, 3, 2, 1, 1, "gelu", False, groups=5), nn.Conv1d(10, 4, 2, padding="same"),
            nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, "relu", False, groups=2), nn.ConvTranspose1d(6, 1, 2),
            nn.Conv1d(1, 2, 3, padding="same", padding_mode="circular"), nn.AdaptiveAvgPool1d(3),
            nn.AdaptiveMaxPool1d(2), nn.Flatten(),
        ),
        TOKENS,
    ),
    "sizes": (
        lambda: nn.Sequential(
            nn.GroupNorm(1, 2), nn.GroupNorm(2, 2, eps=0.1, affine=False), nn.InstanceNorm(2), nn.Dropout2d(0.25),
            nn.InstanceNorm(2, 0.2, True), nn.Upsample(13), nn.Upsample((5, 7), mode="bilinear", align_corners=True),
            nn.Upsample(scale_factor=1.5), nn.Upsample(scale_factor=(2, 0.5)), nn.AdaptiveMaxPool2d((4, 3)),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3),
        ),
        IMAGES,
    ),
    "attention": (
        lambda: nn.Sequential(
            nn.MultiheadAttention(8, 4, kv_heads=2, bias=False, dropout=0.1, causal=True, window=3, softcap=5.0),
            nn.MultiheadAttention(8, 2),
        ),
        TOKENS,
    ),
    "transformer": (
        lambda: nn.Sequential(
            nn.PositionalEncoding(8), nn.TransformerEncoderLayer(8, 2, 12, 0.2, "gelu", 0.1, True, True),
            nn.TransformerEncoderLayer(8, 4),
        ),
        TOKENS,
    ),
    "hidden dropout": (
        lambda: nn.HiddenDropout(nn.Standardize(0.0, 2.0), nn.Linear(4, 5), nn.Linear(5, 3), rate=0.5), ROWS,
    ),
    "shared": (shared, ROWS),
    "tied": (tied, ROWS),
    "frozen": (frozen, ROWS),
    "eval": (partly_eval, ROWS),
    "changed": (changed, ROWS),
    "empty": (nn.Sequential, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_what_is_described_is_built_again(name):
    make, shape = NETS[name]
    net = make().init(3)
    back = again(net)
    assert type(back) is type(net)
    assert described(back) == described(net)
    before, after = net.named_stored(), back.named_stored()
    for (path, one, _), (other_path, other, _) in zip(before, after, strict=True):
        assert (path, one.trainable) == (other_path, other.trainable) and one.stored is not other.stored
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert [m.training for m in net.modules()] == [m.training for m in back.modules()]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(gl.predict(back, x), gl.predict(net, x))


@pytest.mark.parametrize("name", ["images", "tied", "frozen", "shared", "hidden dropout"])
def test_what_is_built_again_trains_as_the_model_does(name):
    make, shape = NETS[name]
    net = make().init(3)
    back = again(net)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for one in (net, back):
        gl.fit(one, (x, np.arange(len(x)) % 3), epochs=2, batch_size=3, seed=1, progress=False)
    for path, array in net.state_dict().items():
        assert array.tobytes() == back.state_dict()[path].tobytes(), path


@pytest.mark.parametrize(
    "make", [lambda: nn.ModuleDict({"10": nn.Linear(4, 3), "b": nn.Dropout(0.5).eval()}).eval(),
             lambda: nn.ModuleList([nn.Linear(4, 3), nn.ModuleDict({"b": nn.PReLU()})]), nn.ModuleDict, nn.ModuleList],
)  # fmt: skip
def test_containers_without_a_forward(make):
    net = make().init(1)
    back = again(net)
    assert described(back) == described(net) and [*back.state_dict()] == [*net.state_dict()]
    assert [m.training for m in back.modules()] == [m.training for m in net.modules()]


def test_names_of_a_dict_must_be_one_for_each():
    net = {"layer": "ModuleDict", "layers": [LINEAR], "names": ["a", "b"]}
    with pytest.raises(GradloomError, match="1 layers, 2 names; need one for each"):
        build(Described({"net": net}, "net"), {"a.weight": (3, 4), "a.bias": (3,)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.RNN(8, 3, 2, "relu", False, True, 0.25, True), lambda: nn.LSTM(8, 3),
        lambda: nn.GRU(8, 3, 2, False, True, 0.5, True), lambda: nn.LSTM(8, 3, 2, bidirectional=True).eval(),
        lambda: nn.LSTM(8, 3, proj_size=2),
    ],
)  # fmt: skip
def test_recurrent_layers(make):
    net = make().init(1)
    back = again(net)
    assert described(back) == described(net)
    x = np.random.default_rng(0).standard_normal(TOKENS).astype(np.float32)
    net.eval()
    back.eval()
    one, other = (gl.compile(layer(gl.input("x", x.shape))[0])(x=x)[0] for layer in (net, back))
    np.testing.assert_array_equal(one, other)


def test_ids():
    net = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)).init(0)
    x = np.array([[0, 4], [1, 2]], np.int32)
    np.testing.assert_array_equal(gl.predict(again(net), x), gl.predict(net, x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x)


class Linear(nn.Linear):
    """A class of the user's own with the name of a layer."""


def with_forward():
    net = nn.Sequential(nn.Linear(2, 2))
    net.forward = lambda x: x
    return net


def with_function():
    net = nn.Linear(2, 2)
    net.act = gl.ops.exp
    return net


def with_more():
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].adapter = nn.Linear(2, 2)
    return net


def with_array():
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].scale = gl.parameter([1.0, 2.0])
    return net


def with_half():
    net = nn.Linear(2, 2)
    net.weight = gl.parameter(np.zeros((2, 2)), dtype="bf16")
    return net


def with_other_shape():
    net = nn.LayerNorm(4)
    net.bias = gl.parameter(np.zeros(5))
    return net


def with_other_inside():
    net = nn.MultiheadAttention(4, 2)
    net.out = nn.Linear(4, 4, activation="relu")
    return net


def deep():
    net = nn.Sequential(nn.Linear(2, 2))
    for _ in range(60):
        net = nn.Sequential(net)
    return net


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Block, "the model is a Block, a class of its own and no layer of gradloom"),
        (lambda: nn.Sequential(nn.Linear(4, 4), Block()), "1 is a Block, a class of its own"),
        (lambda: nn.Sequential(Linear(4, 4)), "0 is a Linear, a class of its own"),
        (with_forward, "the model has a forward of its own"),
        (with_function, "activation is \"function\"; need 'relu'"),
        (with_more, "0"),
        (with_array, "0.scale"),
        (with_half, "weight is bf16"),
        (with_other_shape, "bias has shape [5]; need [4]"),
        (with_other_inside, "out is Linear"),
        (deep, "inside one another, are too many"),
    ],
)
def test_other_models_have_no_description_and_the_reason_is_said(make, message):
    with pytest.raises(GraphError) as caught:
        described(make())
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


LINEAR = {"layer": "Linear", "n_in": 4, "n_out": 3, "bias": True}
WHOLE = {"weight": (3, 4), "bias": (3,)}


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ({"layer": "os.system"}, "layer is"),
        ({"layer": "Module"}, "layer is"),
        ({**LINEAR, "n_in": 2**50}, "has shape"),
        ({**LINEAR, "n_in": 2**52, "n_out": 2**52}, "need fewer than 2.63 bytes"),
        ({**LINEAR, "n_in": -1}, "n_in is -1"),
        ({**LINEAR, "activation": "exp"}, "activation is"),
        ({**LINEAR, "extra": 1}, "key 'extra' is not known"),
        ({"layer": "Linear", "n_in": 4}, "needs more than n_in"),
        ({"layer": "Conv2d", "channels_in": 1, "channels_out": 1, "kernel": [0, 1]}, "kernel is 0"),
        ({"layer": "Conv2d", "channels_in": 1, "channels_out": 1, "kernel": [3]}, "kernel has 1 numbers"),
        ({"layer": "Standardize"}, "array 'mean' is missing"),
        ({"layer": "Dropout", "rate": 1.5}, "rate=1.5"),
        ({"same": "0"}, "there is no layer '0' before it"),
        ({"layer": "Sequential", "layers": [LINEAR]}, "array '0.weight' is missing"),
        ({"layer": "MultiheadAttention", "features": 4, "heads": 3}, "do not fit"),
        ({"layer": "Embedding", "count": 2**53 - 1, "features": 1}, "array 'weight'|has shape"),
    ],
)
def test_bad_descriptions_are_refused_before_memory_is_taken(net, message):
    with pytest.raises(GradloomError, match=message):
        build(Described({"net": net}, "net"), WHOLE)


def test_bad_ties_and_modes():
    for more, message in [
        ({"tied": [{"at": "weight", "to": "x"}]}, "need two parameters"),
        ({"tied": [{"at": "weight", "to": "weight"}]}, "need two parameters"),
        ({"trainable": [{"name": "x", "value": True}]}, "there is no array 'x'"),
        ({"trainable": [{"name": "bias", "value": 1}]}, "value is 1"),
        ({"more": 1}, "key 'more' is not known"),
    ]:
        with pytest.raises(GradloomError, match=message):
            build(Described({"net": LINEAR, **more}, "net"), WHOLE)


def test_many_layers_are_refused():
    relu = {"layer": "ReLU"}
    with pytest.raises(GradloomError, match="more than 4,096 layers"):
        build(Described({"net": {"layer": "Sequential", "layers": [relu] * 4097}}, "net"), {})


MORE = [
    nn.LSTM(3, 4), nn.LSTM(3, 4, 2, proj_size=2), nn.GRU(3, 4, bidirectional=True), nn.RNN(3, 4, nonlinearity="relu"),
    nn.TransformerDecoderLayer(8, 2), nn.MemberLinear(2, 3, 4), nn.Periodic(3, [0, 2]), nn.Embedding(3, 4),
]  # fmt: skip


def test_the_text_of_a_layer_is_python_code_that_makes_it():
    """Of each layer whose arguments are plain values; others hold modules or arrays."""
    names = {name: getattr(nn, name) for name in nn.__all__}
    layers = [layer for make, _ in NETS.values() for layer in make().modules()] + MORE
    texts = {repr(layer): layer for layer in layers if "\n" not in repr(layer)}
    for text, layer in texts.items():
        made = eval(text, names)
        assert type(made) is type(layer) and repr(made) == text and made.arguments() == layer.arguments()
    kinds = {name for name, kind in names.items() if isinstance(kind, type)}
    held = {"Ensemble", "HiddenDropout", "Module", "ModuleDict", "ModuleList", "Residual", "Standardize"}
    assert {type(layer).__name__ for layer in texts.values()} == kinds - held
