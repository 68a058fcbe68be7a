"""Transformer layers and positions: against PyTorch, with masks, and their errors."""

import numpy as np
import pytest

import gradloom as gl
from tests.kept import torch
from tests.nn.torch_twins import compare_or_kept, spread

nn = gl.nn
B, T, S, E, HEADS = 2, 3, 5, 6, 2


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


PADDING = np.array([[False, False, True], [False, True, False]])  # of tokens
OTHERS = np.array([[False, True, False, False, False], [False, False, False, True, True]])  # of the memory


def later():
    return np.triu(np.ones((T, T), bool), 1)


@pytest.mark.oracle
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_layer_is_that_of_pytorch(norm_first, causal, padded):
    net = nn.TransformerEncoderLayer(E, HEADS, 7, 0.0, "gelu", 1e-3, norm_first, causal)
    spread(net, np.random.default_rng(1))

    def twin():
        return torch.nn.TransformerEncoderLayer(
            E, HEADS, 7, 0.0, "gelu", layer_norm_eps=1e-3, batch_first=True, norm_first=norm_first
        )

    def twin_call(layer, x):
        hidden = torch.tensor(later()) if causal else None
        return layer(x, src_mask=hidden, src_key_padding_mask=torch.tensor(PADDING) if padded else None)

    compare_or_kept(
        f"encoder layer {norm_first} {causal} {padded}", net, twin, {"x": drawn(B, T, E)},
        lambda x: net(x, key_padding_mask=PADDING if padded else None), twin_call, second=False,
    )  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "causal", "all"])
def test_a_decoder_layer_is_that_of_pytorch(norm_first, masks):
    net = nn.TransformerDecoderLayer(E, HEADS, 7, 0.0, norm_first=norm_first, causal=masks != "none")
    spread(net, np.random.default_rng(1))
    added, less = drawn(T, S, seed=3), OTHERS.astype(np.float32) * -3
    mine = {
        "key_padding_mask": PADDING,
        "memory_key_padding_mask": less,
        "memory_mask": added,
    }
    theirs = {
        "tgt_key_padding_mask": PADDING, "memory_mask": added.astype(np.float64),
        "memory_key_padding_mask": less.astype(np.float64),
    }  # fmt: skip
    if masks != "all":
        mine, theirs = {}, {}
    if masks != "none":
        theirs["tgt_mask"] = later()

    def twin():
        return torch.nn.TransformerDecoderLayer(E, HEADS, 7, 0.0, batch_first=True, norm_first=norm_first)

    def twin_call(layer, x, memory):
        return layer(x, memory, **{name: torch.tensor(mask) for name, mask in theirs.items()})

    compare_or_kept(
        f"decoder layer {norm_first} {masks}", net, twin, {"x": drawn(B, T, E), "memory": drawn(B, S, E, seed=2)},
        lambda x, memory: net(x, memory, **mine), twin_call, second=False,
    )  # fmt: skip


def test_hidden_tokens_change_nothing():
    net = nn.TransformerEncoderLayer(E, HEADS, 8).init(0)
    net.eval()
    padding = gl.input("padding", (B, T), "u8")
    run = gl.compile(net(gl.input("x", (B, T, E)), key_padding_mask=padding))
    x = drawn(B, T, E)
    other = np.where(PADDING[..., None], 7.0, x).astype(np.float32)
    one, two = (run(x=a, padding=PADDING.astype(np.uint8))[0] for a in (x, other))
    np.testing.assert_array_equal(one[~PADDING], two[~PADDING])
    assert (run(x=other, padding=np.zeros((B, T), np.uint8))[0][~PADDING] != one[~PADDING]).any()


@pytest.mark.parametrize("features", [1, 6, 7])
def test_positions_follow_the_formula(features):
    x = drawn(2, 5, features)
    added = gl.predict(nn.PositionalEncoding(features), x) - x
    for t in range(5):
        for i in range(features):
            angle = t / 10000 ** ((i - i % 2) / features)
            assert added[1, t, i] == pytest.approx(np.cos(angle) if i % 2 else np.sin(angle), abs=1e-6)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.at = nn.Embedding(9, E), nn.PositionalEncoding(E)
        self.encode = nn.TransformerEncoderLayer(E, HEADS, 16, dropout=0.1, norm_first=True, causal=True)
        self.decode = nn.TransformerDecoderLayer(E, HEADS, 16, dropout=0.1)
        self.head = nn.Linear(E, 3)

    def forward(self, ids):
        x = self.at(self.embed(ids))
        return self.head(gl.ops.mean(self.decode(x, self.encode(x)), 1))


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}], ids=str)
def test_they_learn(options):
    ids = np.random.default_rng(0).integers(0, 9, (48, 4)).astype(np.int32)
    net = Tagger().init(0)
    history = gl.fit(net, (ids, ids[:, 2] % 3), optimizer=gl.optim.Adam(lr=0.01), epochs=25, batch_size=16, seed=1,
                     progress=False, **options)  # fmt: skip
    assert history[-1].train.loss < 0.6 * history[0].train.loss


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.TransformerEncoderLayer(6, 4), gl.ShapeError, "need heads to divide features"),
        (lambda: nn.TransformerEncoderLayer(6, 2, 0), gl.ShapeError, "hidden=0"),
        (lambda: nn.TransformerEncoderLayer(6, 2, activation="x"), gl.SettingError, "'x' is not known"),
        (lambda: nn.TransformerEncoderLayer(6, 2, norm_first=1), gl.SettingError, "norm_first"),
        (
            lambda: nn.TransformerEncoderLayer(6, 2)(gl.input("x", (2, 3, 6)), key_padding_mask=PADDING[:, :2]),
            gl.ShapeError, r"key_padding_mask is u8\[2,2\]; need \[2, 3\]",
        ),
        (
            lambda: nn.TransformerEncoderLayer(6, 2)(gl.input("x", (2, 3, 6)), np.ones((2, 2), bool)),
            gl.ShapeError, "MultiheadAttention: mask is ",
        ),
        (lambda: nn.PositionalEncoding(6)(gl.input("x", (3, 6))), gl.ShapeError, r"need \[rows, tokens, 6\]"),
    ],
)  # fmt: skip
def test_errors_are_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_dropout_is_in_training_only():
    net, plain = (nn.TransformerEncoderLayer(E, HEADS, 8, rate).init(1) for rate in (0.5, 0.0))
    x = drawn(16, T, E)
    run = gl.compile(net(gl.input("x", x.shape)))
    one, other = (run(x=x, seed=seed, step=0, row=0)[0] for seed in (1, 2))
    assert (one != other).any()
    np.testing.assert_array_equal(gl.predict(net, x), gl.predict(plain, x))
