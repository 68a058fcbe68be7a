"""Convolutions of rows, in groups and transposed: against PyTorch, with all settings, and their errors."""

import numpy as np
import pytest

import gradloom as gl
from tests.kept import torch
from tests.nn.torch_twins import compare_or_kept

nn = gl.nn


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# class, channels and kernel, ours beyond, the shape of x
LAYERS = [
    ("Conv1d", (3, 4, 3), {}, (2, 3, 7)),
    ("Conv1d", (1, 1, 1), {"bias": False}, (1, 1, 1)),
    ("Conv1d", (4, 6, 4), {"stride": 3, "padding": 2, "dilation": 2, "groups": 2}, (3, 4, 17)),
    ("Conv1d", (5, 10, 3), {"padding": "same", "groups": 5}, (2, 5, 9)),
    ("Conv1d", (2, 3, 4), {"padding": "same", "dilation": 3}, (2, 2, 11)),
    *[("Conv1d", (3, 4, 3), {"padding": p, "padding_mode": mode}, (2, 3, 7))
      for mode in ("reflect", "replicate", "circular") for p in (0, 2, "same")],
    ("Conv1d", (2, 4, 4), {"padding": "same", "padding_mode": "reflect", "dilation": 2, "groups": 2}, (2, 2, 11)),
    *[("Conv2d", (2, 3, (3, 2)), {"padding": p, "padding_mode": mode}, (2, 2, 5, 6))
      for mode in ("reflect", "replicate", "circular") for p in (1, (2, 0), "same")],
    ("Conv2d", (4, 4, 3), {"groups": 4, "padding": 1, "padding_mode": "circular", "stride": 2}, (1, 4, 5, 7)),
    ("Conv2d", (4, 6, 3), {"groups": 2, "padding": 1}, (2, 4, 5, 7)),
    ("Conv2d", (6, 3, (2, 3)), {"groups": 3, "stride": (2, 1), "bias": False}, (1, 6, 7, 6)),
    ("Conv2d", (5, 5, 3), {"groups": 5, "padding": 1, "stride": 2}, (2, 5, 7, 8)),
    ("Conv2d", (3, 9, (3, 2)), {"groups": 3, "padding": (2, 1), "dilation": (2, 3), "stride": (1, 2)}, (2, 3, 6, 9)),
    ("Conv2d", (4, 4, (2, 4)), {"groups": 4, "padding": "same", "bias": False}, (1, 4, 5, 5)),
    ("Conv2d", (4, 8, (2, 5)), {"groups": 2, "padding": "same"}, (1, 4, 5, 5)),
    ("ConvTranspose1d", (3, 4, 3), {}, (2, 3, 7)),
    ("ConvTranspose1d", (4, 6, 4), {"stride": 3, "padding": 2, "output_padding": 2, "dilation": 2, "groups": 2},
     (3, 4, 5)),
    ("ConvTranspose1d", (2, 2, 5), {"stride": 2, "groups": 2, "bias": False}, (1, 2, 1)),
    ("ConvTranspose2d", (3, 4, 3), {}, (2, 3, 4, 5)),
    ("ConvTranspose2d", (2, 3, (3, 2)), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 2, 4, 5)),
    ("ConvTranspose2d", (4, 2, 3), {"stride": (2, 3), "padding": (0, 2), "output_padding": (1, 2), "dilation": (1, 2),
                                    "groups": 2, "bias": False}, (1, 4, 3, 4)),
    ("ConvTranspose2d", (3, 3, 2), {"stride": 2, "groups": 3}, (2, 3, 3, 3)),
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_convolutions_are_those_of_pytorch(case):
    kind, arguments, options, shape = case
    net = getattr(nn, kind)(*arguments, **options).init(1)
    compare_or_kept(str(case), net, lambda: getattr(torch.nn, kind)(*arguments, **options), {"x": drawn(*shape)})


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Conv1d(30, 200, 5), 150), (nn.Conv1d(30, 300, 5, groups=10), 15), (nn.Conv2d(64, 128, 3, groups=64), 9),
        (nn.ConvTranspose1d(100, 20, 3), 60), (nn.ConvTranspose2d(100, 20, (2, 3), groups=2), 60),
    ],
)  # fmt: skip
def test_bounds_are_those_of_pytorch(layer, fan_in):
    layer.init(0)
    for array in (layer.weight.numpy(), layer.bias.numpy()):
        assert 0.8 < np.abs(array).max() * np.sqrt(fan_in) <= 1
    assert layer.weight.numpy().std() == pytest.approx(1 / np.sqrt(3 * fan_in), rel=0.15)


def test_a_depthwise_network_trains_with_the_same_bits_in_threads_and_in_bf16():
    def net():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, activation="relu"), nn.Conv2d(4, 4, 3, padding=1, groups=4),
            nn.Conv2d(4, 6, 1, groups=2), nn.ConvTranspose2d(6, 2, 2, stride=2), nn.Flatten(), nn.Linear(128, 3),
        ).init(0)  # fmt: skip

    x, y = drawn(24, 1, 6, 6), np.arange(24) % 3
    found = []
    for options in ({"threads": 1}, {"threads": 2}, {"precision": "bf16"}):
        model = net()
        history = gl.fit(model, (x, y), epochs=3, batch_size=6, seed=3, progress=False, **options)
        found.append((model.state_dict(), history[-1].train.loss))
    for name, array in found[0][0].items():
        np.testing.assert_array_equal(found[1][0][name], array)
    assert found[2][1] == pytest.approx(found[0][1], rel=0.05)


def image(*shape):
    return gl.input("x", shape)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Conv2d(4, 6, 3, groups=3), gl.ShapeError, "need groups to divide both channels"),
        (lambda: nn.Conv2d(4, 4, 3, groups=0), gl.ShapeError, "groups=0"),
        (lambda: nn.Conv2d(4, 4, 3, padding_mode="mirror"), gl.SettingError, "use 'reflect'"),
        (lambda: nn.Conv1d(4, 4, 3, padding_mode="constant"), gl.SettingError, "one of zeros, reflect"),
        (lambda: nn.Conv2d(4, 4, 9, padding=4, padding_mode="reflect")(image(1, 4, 9, 4)), gl.ShapeError,
         "too much for mode"),
        (lambda: nn.Conv2d(4, 4, 3, 2, "same", padding_mode="reflect")(image(1, 4, 9, 4)), gl.ShapeError,
         "need stride 1"),
        (lambda: nn.Conv1d(4, 4, 3, padding="valid", padding_mode="reflect")(image(1, 4, 5)), gl.ShapeError,
         "padding 'valid' is not known"),
        (lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect")(image(4, 5)), gl.ShapeError, "channels, H]"),
        (lambda: nn.Conv2d(4, 4, 3, groups=2)(image(1, 6, 5, 5)), gl.ShapeError, r"need w of shape \[O, 3, "),
        (lambda: nn.Conv2d(4, 4, 3, groups=4)(image(1, 4, 2, 5)), gl.ShapeError, "does not fit into the padded image"),
        (lambda: nn.Conv1d(4, 4, 0), gl.ShapeError, "kernel=0"),
        (lambda: nn.Conv1d(4, 4, 3, padding="valid")(image(1, 4, 5)), gl.ShapeError, "padding 'valid' is not known"),
        (lambda: nn.Conv1d(4, 4, 3)(image(1, 4, 5, 5)), gl.ShapeError, r"need x of shape \[N, I, L\]"),
        (lambda: nn.Conv1d(4, 4, 3)(image(1, 3, 5)), gl.ShapeError, "channels differ"),
        (lambda: nn.Conv1d(4, 4, 3, padding=-1), gl.SettingError, "padding"),
        (lambda: nn.ConvTranspose1d(4, 4, 3)(image(1, 4, 5, 5)), gl.ShapeError, r"need x of shape \[N, I, L\]"),
        (lambda: nn.ConvTranspose2d(4, 4, 3)(image(1, 3, 5, 5)), gl.ShapeError, "channels differ"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, output_padding=1)(image(1, 4, 5, 5)), gl.ShapeError, "below the stride"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, padding=9)(image(1, 4, 5, 5)), gl.ShapeError, "need less padding"),
        (lambda: nn.ConvTranspose2d(4, 4, 3, 0)(image(1, 4, 5, 5)), gl.ShapeError, r"stride \[0, 0\] is not usable"),
        (lambda: gl.ops.conv2d(image(1, 4, 5, 5), np.ones((4, 2, 3, 3)), groups=3), gl.ShapeError, "groups=3"),
    ],
)  # fmt: skip
def test_errors_are_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
