"""Norms of groups, adaptive pools, upsampling and dropout of channels: against PyTorch, and errors."""

import numpy as np
import pytest

import gradloom as gl
from tests.kept import torch
from tests.nn.torch_twins import compare_or_kept, spread

nn = gl.nn


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


POOLS = [
    (1, (2, 3, 5, 7)), (3, (2, 2, 6, 9)), ((3, 4), (2, 3, 7, 10)), ((1, 5), (1, 2, 4, 3)), (7, (1, 2, 5, 7)),
    (1, (1, 1, 17, 19)), ((2, 1), (2, 1, 40, 7)),
]  # fmt: skip
SIZES = [{"size": (8, 15)}, {"size": 3}, {"size": (3, 1)}, {"size": (9, 7)}, {"scale_factor": 2}, {"scale_factor": 1.6},
         {"scale_factor": (3, 1)}, {"scale_factor": (1.7, 2.3)}]  # fmt: skip
MODES = [{}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}]

# name -> class, its arguments, PyTorch's class, the shape of x
LAYERS = {
    "GroupNorm": ("GroupNorm", (2, 6), {}, "GroupNorm", (3, 6, 5, 2)),
    "GroupNorm of rows": ("GroupNorm", (3, 9, 0.1), {}, "GroupNorm", (4, 9)),
    "GroupNorm without weights": ("GroupNorm", (1, 3), {"affine": False}, "GroupNorm", (2, 3, 7)),
    "InstanceNorm": ("InstanceNorm", (3,), {}, "InstanceNorm2d", (2, 3, 4, 5)),
    "InstanceNorm of rows": ("InstanceNorm", (3, 0.01), {"affine": True}, "InstanceNorm1d", (2, 3, 7)),
    **{f"{kind}({size}) of {shape}": (kind, (size,), {}, kind, shape)
       for kind in ("AdaptiveAvgPool2d", "AdaptiveMaxPool2d") for size, shape in POOLS},
    **{f"{kind}({size}) of {shape}": (kind, (size,), {}, kind, shape)
       for kind in ("AdaptiveAvgPool1d", "AdaptiveMaxPool1d")
       for size, shape in ((1, (2, 3, 7)), (3, (2, 2, 9)), (4, (1, 3, 10)), (7, (2, 1, 5)))},
    **{f"Upsample({size | mode}) of {shape}": ("Upsample", (), size | mode, "Upsample", shape)
       for shape in ((2, 3, 4, 5), (1, 1, 7, 1)) for size in SIZES for mode in MODES},
}  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_pytorch(name):
    kind, arguments, options, theirs, shape = LAYERS[name]
    net = getattr(nn, kind)(*arguments, **options)
    spread(net, np.random.default_rng(1))
    compare_or_kept(name, net, lambda: getattr(torch.nn, theirs)(*arguments, **options), {"x": drawn(*shape)})


NORMS = [("BatchNorm", (3,), "BatchNorm1d", (5, 3)), ("BatchNorm", (3, 0.01, 0.2), "BatchNorm1d", (5, 3)),
         ("BatchNorm", (3,), "BatchNorm2d", (2, 3, 4, 5)), ("LayerNorm", (6,), "LayerNorm", (2, 5, 6)),
         ("RMSNorm", (6, 0.1), "RMSNorm", (4, 6))]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.cheap
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_norms_are_those_of_pytorch(case, training):
    kind, arguments, theirs, shape = case
    net = getattr(nn, kind)(*arguments)
    spread(net, np.random.default_rng(1))
    net.train(training)
    compare_or_kept(str(case), net, lambda: getattr(torch.nn, theirs)(*arguments), {"x": drawn(*shape)})


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_move_by_the_momentum(momentum):
    net = nn.BatchNorm(3, momentum=momentum).init(0)
    x = drawn(7, 3) + 2
    gl.fit(nn.Sequential(net, nn.Linear(3, 2)), (x, np.arange(7) % 2), epochs=1, batch_size=7, progress=False)
    np.testing.assert_allclose(net.running_mean.numpy(), momentum * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(net.running_var.numpy(), 1 - momentum + momentum * x.var(0, ddof=1), rtol=1e-5)


def test_a_global_pool_is_the_mean_and_the_largest():
    x = drawn(2, 3, 33, 41)
    np.testing.assert_allclose(gl.predict(nn.AdaptiveAvgPool2d(1), x)[..., 0, 0], x.mean((2, 3)), atol=1e-6)
    np.testing.assert_array_equal(gl.predict(nn.AdaptiveMaxPool2d(1), x)[..., 0, 0], x.max((2, 3)))


def test_nearest_pixels_are_copied_bit_for_bit_in_bf16_too():
    x = drawn(2, 3, 5, 7)
    for how, ids in (({"scale_factor": 3}, 3), ({"size": (10, 7)}, None)):
        run = gl.compile(nn.Upsample(**how)(gl.input("x", x.shape)), precision="bf16")
        want = x.repeat(ids, 2).repeat(ids, 3) if ids else x.repeat(2, 2)
        np.testing.assert_array_equal(run(x=x)[0], want)


def test_dropout2d_drops_whole_channels_by_row():
    net = nn.Dropout2d(0.5)
    x = np.ones((64, 10, 3, 3), np.float32)
    run = gl.compile(net(gl.input("x", x.shape)))
    y, again, other = (run(x=x, seed=seed, step=0, row=0)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(y, again)
    assert (y != other).any()
    channels = y.reshape(640, 9)
    assert set(np.unique(channels)) == {0.0, 2.0} and (channels == channels[:, :1]).all()
    assert 0.4 < (channels[:, 0] == 0).mean() < 0.6
    np.testing.assert_array_equal(gl.predict(net, x), x)


def test_they_train_in_micro_batches_as_in_whole_ones():
    def trained(**options):
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(4), nn.Dropout2d(0.3), nn.Upsample(scale_factor=2),
            nn.InstanceNorm(4, affine=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
        ).init(0)  # fmt: skip
        gl.fit(net, (drawn(12, 1, 6, 7), np.arange(12) % 3), batch_size=6, seed=3, progress=False, **options)
        return net.state_dict()

    whole, parts = trained(), trained(micro_batch_size=2)
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.GroupNorm(2, 3), gl.ShapeError, "need a divisor"),
        (lambda: nn.GroupNorm(2, 4)(gl.input("x", (2, 6, 3))), gl.ShapeError, r"need \[N, 4, \.\.\.\]"),
        (lambda: nn.InstanceNorm(4)(gl.input("x", (2, 4, 1, 1))), gl.ShapeError, "one value per channel"),
        (lambda: nn.AdaptiveAvgPool2d(0), gl.ShapeError, "output_size=0"),
        (lambda: nn.AdaptiveAvgPool1d(0), gl.ShapeError, "output_size=0"),
        (lambda: nn.AdaptiveMaxPool1d(2)(gl.input("x", (3, 4))), gl.ShapeError, "need .N, C, L."),
        (lambda: nn.AdaptiveAvgPool2d((1, 2, 3)), gl.ShapeError, "a whole number or a pair"),
        (lambda: nn.AdaptiveMaxPool2d(2)(gl.input("x", (2, 3, 4))), gl.ShapeError, "no batch of images"),
        (lambda: nn.Upsample(), gl.SettingError, "neither size nor scale_factor"),
        (lambda: nn.Upsample(2, 2), gl.SettingError, "requires exactly one of them"),
        (lambda: nn.Upsample(2, mode="cubic"), gl.SettingError, "one of nearest, bilinear"),
        (lambda: nn.Upsample(2, align_corners=True), gl.SettingError, "has no effect"),
        (lambda: nn.Upsample(scale_factor=-1), gl.SettingError, "one or two numbers > 0"),
        (lambda: nn.Upsample(scale_factor="2"), gl.SettingError, "scale_factor"),
        (lambda: nn.Upsample(scale_factor=0.1)(gl.input("x", (1, 1, 4, 4))), gl.ShapeError, r"\[0, 0\] is not usable"),
        (lambda: nn.Upsample(2)(gl.input("x", (1, 4, 4))), gl.ShapeError, "no batch of images"),
        (lambda: nn.Dropout2d(0.5)(gl.input("x", (1, 4))), gl.ShapeError, "need .N, C, "),
        (lambda: nn.Dropout2d(1.0), gl.SettingError, "rate"),
    ],
)  # fmt: skip
def test_errors_are_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
