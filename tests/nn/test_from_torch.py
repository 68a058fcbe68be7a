"""Networks of torch.nn as ours: outputs, gradients, statistics, shared weights, state dicts both ways, errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.run.numpy_backend import evaluate

torch = pytest.importorskip("torch")
tnn = torch.nn
nn = gl.nn


def outputs(net: Any, x: np.ndarray) -> np.ndarray:
    y = net(gl.input("x", x.shape, "f32" if x.dtype == np.float32 else "i32"))
    return np.asarray(evaluate([y], {"x": x})[y])


def agree(found: np.ndarray, theirs: Any, room: float = 1e-5) -> None:
    want = theirs.detach().numpy()
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=0, atol=room * (1 + float(np.abs(want).max(initial=0))))


class Drawn:
    """Networks of torch.nn by number, from layers that we have."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one(self, things: Any) -> Any:
        return things[self.whole(0, len(things) - 1)]

    def flag(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def activation(self) -> Any:
        kinds = (tnn.ReLU, tnn.GELU, tnn.SiLU, tnn.Sigmoid, tnn.Tanh, tnn.Mish, tnn.Hardswish, tnn.Hardsigmoid,
                 tnn.LeakyReLU, tnn.PReLU, tnn.ELU, tnn.Softplus, tnn.Identity)  # fmt: skip
        return self.one((*(kind() for kind in kinds), tnn.GELU("tanh"), tnn.LeakyReLU(0.3), tnn.Softplus(2.0)))

    def rows(self) -> tuple[Any, np.ndarray]:
        width = self.whole(2, 9)
        layers, shape = [], (self.whole(3, 7), width)
        for _ in range(self.whole(1, 4)):
            out = 2 * self.whole(1, 5)
            layers += [tnn.Linear(width, out, bias=self.flag()), self.activation()]
            layers += [self.one((tnn.BatchNorm1d(out), tnn.LayerNorm(out), tnn.RMSNorm(out), tnn.GroupNorm(2, out),
                                 tnn.Dropout(0.0), tnn.Softmax(1), tnn.LogSoftmax(-1)))]  # fmt: skip
            width = out
        return tnn.Sequential(*layers, tnn.GLU(1)), self.rng.standard_normal(shape).astype(np.float32)

    def images(self) -> tuple[Any, np.ndarray]:
        c, out = 2 * self.whole(1, 2), 2 * self.whole(1, 3)
        shape = (self.whole(2, 4), c, self.whole(7, 11), self.whole(7, 11))
        conv = tnn.Conv2d(c, out, self.one((1, 2, 3, (3, 1))), self.one((1, 2, (1, 2))), self.one((0, 1, "valid")),
                          self.one((1, 2)), self.one((1, 2)), self.flag())  # fmt: skip
        if conv.padding == "valid":
            conv = tnn.Conv2d(c, out, 3, padding="same", groups=self.one((1, 2)))
        body = tnn.Sequential(
            conv, self.one((tnn.BatchNorm2d(out), tnn.InstanceNorm2d(out, affine=self.flag()), tnn.GroupNorm(2, out))),
            self.activation(), self.one((tnn.MaxPool2d(2), tnn.AvgPool2d(2, 1, 1), tnn.Dropout2d(0.0))),
        )  # fmt: skip
        up = tnn.ConvTranspose2d(out, 3, self.whole(1, 3), 2, output_padding=1, bias=self.flag())
        size = self.one((tnn.AdaptiveAvgPool2d(self.whole(1, 4)), tnn.AdaptiveMaxPool2d((2, 3)), tnn.Upsample((5, 4)),
                         tnn.Upsample(scale_factor=2, mode="bilinear", align_corners=self.flag())))  # fmt: skip
        net = tnn.Sequential(body, up, size, tnn.Flatten())
        return net, self.rng.standard_normal(shape).astype(np.float32)

    def tokens(self) -> tuple[Any, np.ndarray]:
        heads = self.whole(1, 3)
        width = heads * self.whole(1, 4) * 2
        how = {"dim_feedforward": self.whole(3, 9), "dropout": 0.0, "activation": self.one(("relu", "gelu")),
               "batch_first": True, "norm_first": self.flag()}  # fmt: skip
        layer = tnn.TransformerEncoderLayer(width, heads, **how)
        norm = tnn.LayerNorm(width) if self.flag() else None
        encoder = self.one((layer, tnn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)))
        net = tnn.Sequential(
            tnn.Embedding(11, width), encoder, tnn.Conv1d(5, 4, 3, padding=1), tnn.ConvTranspose1d(4, 2, 2)
        )
        return net, self.rng.integers(0, 11, (3, 5)).astype(np.int32)


@pytest.mark.parametrize("seed", range(50))
def test_random_networks(seed: int) -> None:
    drawn = Drawn(seed)
    module, x = (drawn.rows, drawn.images, drawn.tokens)[seed % 3]()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.tensor(drawn.rng.uniform(-1, 1, tuple(p.shape)).astype(np.float32)))
        for p in module.buffers():
            if p.is_floating_point():
                p.uniform_(0.5, 1.5)
    theirs = torch.tensor(x if x.dtype == np.float32 else x.astype(np.int64))
    module.eval()
    net = nn.from_torch(module)
    assert not any(one.training for one in net.modules())
    agree(outputs(net, x), module(theirs))
    made = module.load_state_dict(nn.torch_state_dict(net, module))
    assert not made.missing_keys and not made.unexpected_keys
    module.train()
    trained = nn.from_torch(module)
    agree(outputs(trained, x), module(theirs), 2e-5)


def test_statistics_and_weights_follow_pytorch_through_training() -> None:
    torch.manual_seed(0)
    module = tnn.Sequential(tnn.Linear(3, 4), tnn.BatchNorm1d(4), tnn.ReLU(), tnn.Linear(4, 1))
    net = nn.from_torch(module)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)).astype(np.float32), rng.standard_normal((40, 1)).astype(np.float32)
    opt = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        torch.nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
        opt.step()
    gl.fit(
        net, gl.data.Dataset(x, y), loss="mse", optimizer=gl.optim.SGD(lr=0.1), epochs=3, batch_size=40, progress=False
    )
    for name, tensor in nn.torch_state_dict(net, module).items():
        torch.testing.assert_close(tensor, module.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    torch.manual_seed(1)
    module = getattr(tnn, kind)(3, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=0.5).eval()
    net, x = nn.from_torch(module), np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    agree(np.asarray(evaluate([net(gl.input("x", x.shape))[0]], {"x": x}).popitem()[1]), module(torch.tensor(x))[0])
    module.load_state_dict(nn.torch_state_dict(net, module))


def test_attention_and_decoder() -> None:
    torch.manual_seed(2)
    q, m = (np.random.default_rng(i).standard_normal((2, 5, 6)).astype(np.float32) for i in (0, 1))
    leaves = gl.input("q", q.shape), gl.input("m", m.shape)
    attention = tnn.MultiheadAttention(6, 2, batch_first=True, bias=False)
    decoder = tnn.TransformerDecoderLayer(6, 3, 7, 0.0, "gelu", batch_first=True)
    for module in (attention, decoder):
        net = nn.from_torch(module)
        theirs = module(*map(torch.tensor, (q, m, m) if module is attention else (q, m)))
        y = net(*leaves)
        agree(np.asarray(evaluate([y], {"q": q, "m": m})[y]), theirs[0] if module is attention else theirs)
        other = nn.from_torch(module).init(5)
        other.load_state_dict(module.state_dict())
        for name, array in net.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[name], array)


def test_shared_layers_and_weights_frozen_ones_and_modes() -> None:
    shared = tnn.Linear(3, 3)
    tied = tnn.Linear(3, 3)
    tied.weight = shared.weight
    module = tnn.Sequential(shared, tnn.ReLU(), shared, tied, tnn.Dropout(0.5).eval())
    shared.bias.requires_grad_(False)
    net = nn.from_torch(module)
    assert net[0] is net[2] and net[3].weight is net[0].weight
    assert list(net.named_parameters()) == ["0.weight", "3.bias"] and list(net.named_buffers()) == ["0.bias"]
    assert net[0].training and not net[4].training
    assert set(nn.torch_state_dict(net, module)) == set(module.state_dict())


def test_names_of_a_sequential_and_halves(tmp_path: Any) -> None:
    from collections import OrderedDict

    module = tnn.Sequential(OrderedDict(first=tnn.Linear(2, 3), norm=tnn.BatchNorm1d(3))).to(torch.bfloat16)
    net = nn.from_torch(module)
    np.testing.assert_array_equal(net.state_dict()["0.weight"], module.first.weight.detach().float().numpy())
    loaded = nn.torch_state_dict(net, module)
    assert loaded["first.weight"].dtype == torch.bfloat16 and torch.equal(loaded["first.weight"], module.first.weight)
    gl.save(net, tmp_path / "net.safetensors")
    assert repr(gl.load(tmp_path / "net.safetensors")) == repr(net)


def test_a_state_dict_of_a_module_of_the_same_names() -> None:
    class Theirs(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm = tnn.MultiheadAttention(4, 2), tnn.BatchNorm1d(4)

        def forward(self, x: Any) -> Any:
            return x

    class Ours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.BatchNorm(4)

        def forward(self, x: Any) -> Any:
            return x

    module, net = Theirs(), Ours()
    net.load_state_dict(module.state_dict())
    assert module.load_state_dict(nn.torch_state_dict(net, module)).missing_keys == []
    np.testing.assert_array_equal(
        net.state_dict()["attention.key.weight"], module.attention.in_proj_weight[4:8].detach()
    )
    with pytest.raises(gl.GraphError, match=r"the module \(Theirs\) has a forward of its own.*write a gl.nn.Module"):
        nn.from_torch(module)
    net.extra = nn.Linear(1, 1)
    with pytest.raises(gl.GraphError, match=r"torch_state_dict: unknown extra.weight, extra.bias; need the 9 arrays"):
        nn.torch_state_dict(net, module)


def test_load_state_dict_lists_all_faults_in_one_line() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4))
    state = tnn.Sequential(tnn.Linear(2, 4), tnn.BatchNorm1d(4)).state_dict()
    with pytest.raises(gl.ShapeError, match=r"^load: 0.weight has shape \[4, 2\]; need \[4, 3\]$"):
        net.load_state_dict(state)
    state["other"] = state.pop("1.bias")
    match = r"^load: missing 1.bias; unknown other; need exactly the 6 arrays of this model; 0.weight has shape"
    with pytest.raises(gl.GraphError, match=match):
        net.load_state_dict(state)
    with pytest.raises(gl.ShapeError, match=r"torch_state_dict: 0.weight has shape \[4, 3\]; need \[4, 2\]"):
        nn.torch_state_dict(net, tnn.Sequential(tnn.Linear(2, 4), tnn.BatchNorm1d(4)))


def test_load_state_dict_takes_parameters_and_tensors_of_both_libraries() -> None:
    module, mine, net = tnn.Linear(3, 2), nn.Linear(3, 2).init(4), nn.Linear(3, 2)
    net.load_state_dict(mine.named_parameters())
    np.testing.assert_array_equal(net.weight.numpy(), mine.weight.numpy())
    net.load_state_dict({name: gl.tensor(p) for name, p in mine.named_parameters().items()})
    net.load_state_dict(dict(module.named_parameters()))
    np.testing.assert_array_equal(net.weight.numpy(), module.weight.detach().numpy())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: tnn.Sequential(tnn.Bilinear(2, 2, 2)), r"0 \(Bilinear\) is not supported: gl.nn has no such layer"),
        (lambda: tnn.BatchNorm1d(3, affine=False), r"the module \(BatchNorm1d\) has affine=False; need affine=True"),
        (lambda: tnn.MaxPool2d(3, dilation=2), r"\(MaxPool2d\) has dilation=2; need dilation=1"),
        (lambda: tnn.Softplus(2.5, threshold=1.0), "threshold=1.0; need threshold=20 or more"),
        (lambda: tnn.LayerNorm((2, 3)), r"normalized_shape=\(2, 3\); need one axis"),
        (lambda: tnn.MultiheadAttention(4, 2), "batch_first=False; need batch_first=True"),
        (lambda: tnn.MaxPool2d(2, ceil_mode=True), "ceil_mode=True; need ceil_mode=False"),
        (lambda: tnn.Embedding(3, 2, padding_idx=0), "padding_idx=0; need padding_idx=None"),
        (lambda: tnn.utils.parametrizations.weight_norm(tnn.Linear(2, 2)), "has hooks or parametrizations"),
    ],
)
def test_unsupported_modules_are_named(module: Any, message: str) -> None:
    with pytest.raises(gl.GraphError, match=message) as caught:
        nn.from_torch(module())
    assert "\n" not in str(caught.value)


def changed(name: str, value: Any, module: Any = None) -> Any:
    module = module or tnn.Linear(2, 2)
    *above, last = name.split(".")
    holder = module.get_submodule(".".join(above))
    setattr(holder, last, value)
    return module


def of_class(base: Any, *arguments: Any, **methods: Any) -> Any:
    return type("Mine", (base,), methods)(*arguments)


def encoder(kind: str = "Encoder") -> Any:
    return getattr(tnn, f"Transformer{kind}Layer")(4, 2, 8, 0.1, batch_first=True)


def hooked(name: str, module: Any) -> Any:
    module.get_submodule(name).register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: changed("forward", lambda x: x), "Linear.* has a forward of its own, set on the object"),
        (lambda: tnn.Sequential(changed("forward", lambda x: x)), r"0 \(Linear\) has a forward of its own, set on"),
        (lambda: changed("forward", lambda x: x, tnn.Sequential(tnn.ReLU())), r"\(Sequential\) has a forward of"),
        (lambda: changed("_call_impl", lambda x: x), "_call_impl of its own"),
        (lambda: of_class(tnn.Linear, 2, 2, __call__=lambda self, x: x), "__call__ of its own"),
        (lambda: of_class(tnn.Conv2d, 2, 2, 3, _conv_forward=lambda self, x, w, b: x), "_conv_forward of its own"),
        (lambda: changed("_sa_block", lambda *a: a[0], encoder()), "_sa_block of its own"),
        (lambda: hooked("linear1", encoder()), "linear1 with hooks or parametrizations"),
        (lambda: hooked("activation", changed("activation", tnn.ReLU(), encoder())), "activation changed=True"),
        (lambda: changed("bias", None, tnn.GroupNorm(1, 2)), "bias=False; need bias=True"),
        (lambda: changed("linear1", tnn.Sequential(), encoder()), "linear1=Sequential; need Linear"),
        (lambda: changed("linear1.forward", lambda x: x, encoder()), "linear1 with a forward of its own"),
        (lambda: changed("norm2.eps", 0.1, encoder()), "norm2.eps=0.1; need norm2.eps=1e-05"),
        (lambda: changed("norm3.eps", 0.1, encoder("Decoder")), "norm3.eps=0.1"),
        (lambda: changed("dropout3.p", 0.2, encoder("Decoder")), r"dropout rates \[0.1, 0.2\]; need one rate"),
        (lambda: changed("multihead_attn", tnn.MultiheadAttention(4, 1, 0.1, batch_first=True), encoder("Decoder")),
         "multihead_attn.num_heads=1; need multihead_attn.num_heads=2"),
        (lambda: changed("dropout.training", False, encoder()), "dropout.training=False; need dropout.training=True"),
        (lambda: tnn.TransformerEncoderLayer(4, 2, 8, activation=lambda x: x, batch_first=True), "activation=<lambda>"),
        (lambda: changed("extra", tnn.Parameter(torch.zeros(2))), "array 'extra' that its layer does not know"),
        (lambda: tnn.Sequential(__import__("collections").OrderedDict([("1", tnn.ReLU()), ("0", tnn.ReLU())])),
         "layer 1 at place 0; need the order"),
    ],
)  # fmt: skip
def test_what_a_module_computes_beyond_its_class_is_an_error(module: Any, message: str) -> None:
    with pytest.raises(gl.GraphError, match=message) as caught:
        nn.from_torch(module())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("padding", [2, "same"])
def test_modes_of_padding(mode: str, rank: int, padding: Any) -> None:
    torch.manual_seed(0)
    module = getattr(tnn, f"Conv{rank}d")(2, 3, 3, padding=padding, dilation=2, padding_mode=mode)
    x = np.random.default_rng(0).standard_normal((2, 2, *(7, 6)[:rank])).astype(np.float32)
    agree(outputs(nn.from_torch(module), x), module.double()(torch.tensor(x).double()))


@pytest.mark.parametrize("kind", ["AdaptiveAvgPool1d", "AdaptiveMaxPool1d"])
@pytest.mark.parametrize("size", [3, (4,)])
def test_adaptive_pools_of_rows(kind: str, size: Any) -> None:
    module, x = getattr(tnn, kind)(size), np.random.default_rng(0).standard_normal((2, 3, 10)).astype(np.float32)
    agree(outputs(nn.from_torch(module), x), module(torch.tensor(x).double()))


def test_a_projected_lstm() -> None:
    torch.manual_seed(1)
    module = tnn.LSTM(3, 5, num_layers=2, batch_first=True, bidirectional=True, proj_size=2)
    net, x = nn.from_torch(module), np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    y = net(gl.input("x", x.shape))[0]
    agree(np.asarray(evaluate([y], {"x": x})[y]), module.double()(torch.tensor(x).double())[0])
    module.load_state_dict(nn.torch_state_dict(net, module))


def tied() -> Any:
    module = tnn.Sequential(tnn.Linear(3, 3), tnn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    return module


def twice(layer: Any) -> Any:
    return tnn.Sequential(layer, tnn.ReLU(), layer)


def named_layers() -> Any:
    from collections import OrderedDict

    return tnn.Sequential(OrderedDict(first=tnn.Linear(2, 3), norm=tnn.BatchNorm1d(3), z=twice(tnn.Linear(3, 3))))


def stacked_encoder() -> Any:
    return tnn.TransformerEncoder(encoder(), 2, tnn.LayerNorm(4), enable_nested_tensor=False)


@pytest.mark.parametrize(
    "made", [tied, named_layers, stacked_encoder, lambda: tnn.Sequential(tnn.Embedding(5, 4), stacked_encoder()),
             lambda: twice(tnn.Linear(3, 3)), lambda: twice(encoder())],
    ids=["tied", "named", "encoder", "below", "shared", "shared encoder"],
)  # fmt: skip
def test_the_state_dict_of_any_converted_module_loads(made: Any) -> None:
    module = made()
    net, other = nn.from_torch(module), nn.from_torch(module).init(5)
    other.load_state_dict(module.state_dict())
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], array)
    other.init(6).load_state_dict(net.state_dict())
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], array)


def test_different_arrays_of_a_shared_layer_are_an_error() -> None:
    module = twice(tnn.Linear(2, 2))
    net, state = nn.from_torch(module), module.state_dict()
    state["2.bias"] = state["2.bias"] + 1
    before = net.state_dict()
    with pytest.raises(gl.GraphError, match="^load: 0.bias and 2.bias differ; need equal arrays, because this model"):
        net.load_state_dict(state)
    np.testing.assert_array_equal(net.state_dict()["0.bias"], before["0.bias"])
    del state["0.bias"]
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.state_dict()["0.bias"], state["2.bias"].numpy())


def test_other_errors() -> None:
    with pytest.raises(gl.DTypeError, match=r"weight is float64; need float32 or halves: module.float\(\)"):
        nn.from_torch(tnn.Linear(2, 2).double())
    with pytest.raises(gl.SettingError, match=r"from_torch: got a Linear; need a torch.nn.Module"):
        nn.from_torch(nn.Linear(2, 2))
    with pytest.raises(gl.SettingError, match=r"torch_state_dict: got a dict; need a gl.nn.Module"):
        nn.torch_state_dict({}, tnn.Linear(2, 2))


def test_torch_is_not_imported() -> None:
    code = "import gradloom as gl, sys; gl.nn.from_torch; gl.nn.Linear(2, 2).init(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
