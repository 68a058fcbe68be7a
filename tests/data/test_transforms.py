"""Image transforms: each against a plain reference of one row; the same random numbers in any batch."""

import colorsys
import math

import numpy as np
import pytest

from gradloom.base.errors import SettingError, ShapeError
from gradloom.data.transforms import (
    ColorJitter,
    CutMix,
    Draws,
    MixUp,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
)
from gradloom.data.transforms.geometry import rotated
from gradloom.data.transforms.mixing import beta

ROWS = np.array([3, 0, 41, 7, 5_000_000_000, 12])


def draws(rows=ROWS, seed=5, epoch=2, position=1):
    return Draws(seed, epoch, position, np.asarray(rows, np.int64))


def images(channels=3, height=9, width=7, rows=6, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, channels, height, width), np.uint8)


def test_numbers_depend_on_seed_epoch_position_and_row_alone():
    many = draws(np.arange(4000)).uniform(6)
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01 and abs(np.corrcoef(many.T)[0, 1]) < 0.05
    pick = np.array([17, 3999, 0])
    np.testing.assert_array_equal(draws(pick).uniform(6), many[pick])
    np.testing.assert_array_equal(draws(pick).uniform(2), many[pick, :2])
    for other in ({"seed": 6}, {"epoch": 3}, {"position": 2}):
        assert (draws(np.arange(50), **other).uniform(6) != many[:50]).all()


EVERY = [
    RandomHorizontalFlip(), RandomVerticalFlip(0.3), RandomCrop(padding=3, fill=0.4), RandomCrop((6, 5)),
    RandomCrop(8, padding=2), RandomResizedCrop(), RandomResizedCrop((5, 11), scale=(0.2, 0.9)), RandomRotation(30),
    ColorJitter(0.3, 0.4, 0.5, 0.2), RandomErasing(), Normalize((0.1, 0.2, 0.3), 0.5),
]  # fmt: skip


@pytest.mark.parametrize("one", EVERY, ids=repr)
def test_rows_of_any_batch_are_the_same(one):
    x = images()
    whole = one.train(x.copy(), draws())
    assert whole.shape[1:] == one.shape(x.shape[1:]) == one.evaluate(x.copy()).shape[1:]
    for pick in ([2], [5, 0], [4, 3, 1]):
        part = one.train(x[pick], draws(ROWS[pick]))
        np.testing.assert_array_equal(part, whole[pick])
    strided = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(one.train(strided, draws()), whole)
    assert (one.train(x.copy(), draws(epoch=3)) != whole).any() or isinstance(one, Normalize)


@pytest.mark.parametrize("kind, axis", [(RandomHorizontalFlip, 2), (RandomVerticalFlip, 1)])
def test_flips(kind, axis):
    x, u = images(), draws().uniform(1)[:, 0]
    made = kind(0.6).train(x.copy(), draws())
    assert {n < 0.6 for n in u} == {True, False}
    for row in range(len(x)):
        np.testing.assert_array_equal(made[row], np.flip(x[row], axis) if u[row] < 0.6 else x[row])


def test_crop():
    x, u = images(), draws().uniform(2)
    made = RandomCrop((8, 6), padding=2, fill=1.0).train(x.copy(), draws())
    for row in range(len(x)):
        top, left = int(u[row, 0] * (9 + 4 - 8 + 1)) - 2, int(u[row, 1] * (7 + 4 - 6 + 1)) - 2
        for y in range(8):
            for z in range(6):
                inside = 0 <= top + y < 9 and 0 <= left + z < 7
                assert (made[row, :, y, z] == (x[row, :, top + y, left + z] if inside else 255)).all()
    np.testing.assert_array_equal(RandomCrop((5, 3)).evaluate(x), x[:, :, 2:7, 2:5])
    np.testing.assert_array_equal(RandomCrop(padding=4).evaluate(x), x)


def test_resized_crop_of_a_plane_and_of_a_constant():
    """Bilinear resizing keeps constants and, nearly, the values of a plane away from the borders."""
    y, z = np.mgrid[0:40, 0:50].astype(np.float32)
    plane = np.broadcast_to((2 * y + z) / 200, (len(ROWS), 1, 40, 50)).copy()
    one = RandomResizedCrop((20, 30), scale=(0.3, 1.0), ratio=(0.5, 2.0))
    made = one.train(plane, draws())
    u = draws().uniform(22)
    for row in range(len(ROWS)):
        for k in range(10):  # the first box that fits, as torchvision draws it
            area, ratio = 2000 * (0.3 + 0.7 * u[row, k]), math.exp(math.log(0.5) + math.log(4.0) * u[row, 10 + k])
            wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= 50 and 0 < tall <= 40:
                break
        else:
            raise AssertionError("no box: draw another seed")
        top, left = int(u[row, 20] * (40 - tall + 1)), int(u[row, 21] * (50 - wide + 1))
        rows = top + (np.arange(20) + 0.5) * tall / 20 - 0.5
        columns = left + (np.arange(30) + 0.5) * wide / 30 - 0.5
        wanted = (2 * rows[:, None] + columns) / 200
        np.testing.assert_allclose(made[row, 0, 3:-3, 3:-3], wanted[3:-3, 3:-3], atol=1.5e-3)  # a third of a column
    flat = np.full((3, 3, 16, 16), 77, np.uint8)
    assert (RandomResizedCrop().train(flat, draws(ROWS[:3])) == 77).all()
    assert one.evaluate(plane).shape == (len(ROWS), 1, 20, 30)


def test_rotation():
    x = images(2, 8, 8).astype(np.float32) / 255
    for turns in range(4):
        np.testing.assert_allclose(
            rotated(x, np.full(len(x), turns * math.pi / 2), 0.0), np.rot90(x, turns, (2, 3)), atol=1e-5
        )
    u = draws().uniform(1)[:, 0]
    made = RandomRotation((-20, 50), fill=0.5).train(x.copy(), draws())
    for row in range(len(x)):
        angle = math.radians(-20 + 70 * u[row])
        for y in range(8):
            for z in range(8):
                dy, dz = y - 3.5, z - 3.5
                sy = math.cos(angle) * dy + math.sin(angle) * dz + 3.5
                sz = math.cos(angle) * dz - math.sin(angle) * dy + 3.5
                total = np.zeros(2)
                for ky in (math.floor(sy), math.floor(sy) + 1):
                    for kz in (math.floor(sz), math.floor(sz) + 1):
                        pixel = x[row, :, ky, kz] if 0 <= ky < 8 and 0 <= kz < 8 else 0.5
                        total += (1 - abs(sy - ky)) * (1 - abs(sz - kz)) * pixel
                np.testing.assert_allclose(made[row, :, y, z], total, atol=2e-5)


def test_colours():
    x, u = images(3, 4, 4), 2 * draws().uniform(4) - 1
    made = ColorJitter(0.4, 0.5, 0.6, 0.3).train(x.copy(), draws())
    clip = lambda value: min(max(value, 0.0), 1.0)  # noqa: E731
    luma = lambda r, g, b: 0.299 * r + 0.587 * g + 0.114 * b  # noqa: E731
    for row in range(len(x)):
        bright, contrast, saturation = (1 + amount * u[row, i] for i, amount in enumerate((0.4, 0.5, 0.6)))
        pixels = [tuple(clip(c / 255 * bright) for c in pixel) for pixel in x[row].reshape(3, -1).T]
        mean = sum(luma(*pixel) for pixel in pixels) / len(pixels)
        pixels = [tuple(clip(contrast * c + (1 - contrast) * mean) for c in pixel) for pixel in pixels]
        pixels = [tuple(clip(saturation * c + (1 - saturation) * luma(*pixel)) for c in pixel) for pixel in pixels]
        shifted = []
        for pixel in pixels:
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            shifted.append(colorsys.hsv_to_rgb((h + 0.3 * u[row, 3]) % 1, s, v))
        np.testing.assert_allclose(made[row].reshape(3, -1).T, shifted, atol=3e-5)
    grey = images(1, 4, 4)
    bright = ColorJitter(brightness=0.5).train(grey.copy(), draws())
    np.testing.assert_allclose(bright[0], np.clip(grey[0] / 255 * (1 + 0.5 * u[0, 0]), 0, 1), atol=1e-6)


def test_erasing():
    x = images(3, 20, 16, 200)
    rows = np.arange(200)
    made = RandomErasing(0.7, scale=(0.1, 0.4), ratio=(0.5, 2.0), value=1.0).train(x.copy(), draws(rows))
    changed = (made != x).any(axis=1)
    count = 0
    for row in rows:
        ys, zs = np.nonzero(changed[row])
        if not len(ys):
            continue
        count += 1
        box = made[row, :, ys.min() : ys.max() + 1, zs.min() : zs.max() + 1]
        tall, wide = box.shape[1:]
        assert (box == 255).all() and 0.07 < tall * wide / 320 < 0.46 and 0.4 < tall / wide < 2.4
    assert 100 < count < 170


def test_normalisation():
    x = images()
    made = Normalize((0.1, 0.2, 0.3), (0.5, 0.4, 0.3)).evaluate(x)
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.4), (0.3, 0.3))):
        np.testing.assert_allclose(made[:, channel], (x[:, channel] / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    again = Normalize(0.25, 2.0).evaluate(x.astype(np.float32) / 255)
    np.testing.assert_allclose(again, (x / 255 - 0.25) / 2, rtol=1e-5, atol=1e-6)


def test_mixing():
    x, other, trained = images(seed=1), images(seed=2), np.array([100, 200, 300])
    for one in (MixUp(0.4, p=0.6), CutMix(p=0.6)):
        partners = one.partners(draws(), trained)
        u = draws().uniform(5)
        for row in range(len(x)):
            wanted = trained[int(u[row, 0] * 3)] if u[row, 1] < 0.6 else ROWS[row]
            assert partners[row] == wanted
        made, share = one.mix(x.copy(), other.copy(), draws())
        quantile = beta(u[:, 2], one.alpha)
        for row in range(len(x)):
            if isinstance(one, MixUp):
                wanted = quantile[row] * x[row] / 255 + (1 - quantile[row]) * other[row] / 255
                np.testing.assert_allclose(made[row], wanted, atol=1e-6)
                assert share[row] == pytest.approx(quantile[row], abs=1e-6)
            else:
                taken = (made[row] == other[row]).all(axis=0) & (x[row] != other[row]).any(axis=0)
                assert share[row] == pytest.approx(1 - taken.mean(), abs=0.02)
                assert ((made[row] == x[row]) | taken).all()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_beta(alpha):
    """Against the mean, the variance and NumPy's own sampler."""
    found = beta((np.arange(200_000) + 0.5) / 200_000, alpha)
    assert found.mean() == pytest.approx(0.5, abs=1e-4)
    assert found.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-3)
    sample = np.random.default_rng(0).beta(alpha, alpha, 200_000)
    for q in (0.05, 0.3, 0.8):
        assert np.quantile(found, q) == pytest.approx(np.quantile(sample, q), abs=0.01)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: RandomHorizontalFlip(1.5), SettingError, "RandomHorizontalFlip: p=1.5: must be a number from 0 to 1"),
        (lambda: RandomCrop(), SettingError, "RandomCrop: size is None and padding is 0: it would change nothing"),
        (lambda: RandomCrop(0), SettingError, "RandomCrop: size=0: must be a whole number from 1 to 4096"),
        (lambda: RandomCrop(padding=-1), SettingError, "RandomCrop: padding=-1: must be a whole number from 0"),
        (lambda: RandomCrop(20).shape((3, 9, 7)), ShapeError, "RandomCrop: size 20 x 20 of images of 9 x 7 with"),
        (lambda: RandomResizedCrop(scale=(2, 1)), SettingError, "RandomResizedCrop: scale=2: must be two numbers"),
        (lambda: RandomRotation(-3), SettingError, "RandomRotation: degrees=-3: must be a number from 0 to 360"),
        (lambda: ColorJitter(), SettingError, "are 0: it would change nothing"),
        (lambda: ColorJitter(hue=0.1).shape((1, 4, 4)), SettingError, "hue=0.1 requires images of 3 channels; these"),
        (lambda: Normalize((1, 2)).shape((3, 4, 4)), SettingError, "Normalize: mean=(1, 2): must be one number, or 3"),
        (lambda: Normalize(0.5, 0.0), SettingError, "Normalize: std=0.0: must be finite numbers above 0"),
        (lambda: MixUp(alpha=0), SettingError, "MixUp: alpha=0: must be a number from 0.001 to 1000"),
    ],
)  # fmt: skip
def test_bad_settings(make, error, text):
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value) and "\n" not in str(caught.value)
