"""ImageFolder: files, decoding, faults, and rows that depend on nothing but their number and the pass."""

import io
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import gradloom as gl
from gradloom.base.errors import DataError, FileError, IndexOutOfRange, SettingError
from gradloom.data import image_files
from gradloom.data import transforms as T
from gradloom.data.image_files import is_image_folder, list_files, parts_of, pillow
from gradloom.data.transforms.geometry import covering
from tests import processes
from tests.data import broken_images

PILLOW = pillow("tests")
ROOT = Path(__file__).parents[2]


def save(path, pixels, **options):
    """Pixels u8 [height, width] or [height, width, channels]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def photos(root, count=40, shape=(12, 10, 3), classes=("cat", "dog", "emu")):
    """Images of noise, their class and number in the file name."""
    for i in range(count):
        save(root / classes[i % len(classes)] / f"{i:03d}.png", noise(i, *shape))
    return root


def a_draw(rows, seed=3, epoch=1):
    return SimpleNamespace(seed=seed, epoch=epoch, rows=np.asarray(rows, np.int64))


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_classes_and_rows_are_sorted(tmp_path):
    for i, path in enumerate(
        ("dog/b.png", "dog/deep/er/a.PNG", "cat/2.png", "cat/10.png", "dog/.hidden.png", ".x/a.png")
    ):
        save(tmp_path / path, noise(i, 4, 6))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "list.csv").write_text("file,class\n")
    found = gl.data.ImageFolder(tmp_path)
    assert found.classes == ["cat", "dog"] and found.labels.tolist() == [0, 0, 1, 1] and found.labels.dtype == np.int32
    assert found.files == ["cat/10.png", "cat/2.png", "dog/b.png", "dog/deep/er/a.PNG"]
    assert (found.shape, len(found)) == ((1, 4, 6), 4)
    assert found.notes == ["1 file of other kinds ignored, such as 'cat/notes.txt'"]
    x, y = found[1]
    assert (x.dtype, y) == (np.float32, 0)
    np.testing.assert_array_equal(x, noise(2, 4, 6)[None] * np.float32(1 / 255))
    assert repr(found).endswith("4 images [1, 4, 6], 2 classes)")
    assert is_image_folder(tmp_path) and not is_image_folder(tmp_path / "cat")


def test_parts(tmp_path):
    photos(tmp_path / "train", 6)
    photos(tmp_path / "valid", 4, shape=(7, 7, 3), classes=("dog", "cat"))
    assert list(parts_of(tmp_path)) == ["train", "val"] and parts_of(tmp_path / "train") == {}
    train = gl.data.ImageFolder(tmp_path, [T.Normalize()])
    assert len(train) == len(gl.data.ImageFolder(tmp_path, split="train")) == 6
    val = gl.data.ImageFolder(tmp_path, split="val", like=train)
    assert (val.shape, val.classes, val.transforms) == (train.shape, ["cat", "dog", "emu"], train.transforms)
    assert val.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(SettingError, match=r"has the parts train, val; split='test' requires such a subfolder"):
        gl.data.ImageFolder(tmp_path, split="test")
    save(tmp_path / "valid" / "fox" / "1.png", noise(1, 4, 4))
    with pytest.raises(DataError, match=r"the class 'fox' is not one of 'cat', 'dog', 'emu'"):
        gl.data.ImageFolder(tmp_path, split="val", like=train)
    save(tmp_path / "truck" / "1.png", noise(1, 4, 4))  # now "train" is a class, beside trucks
    assert parts_of(tmp_path) == {}


def test_links_and_other_entries(tmp_path):
    root = photos(tmp_path / "root", 4, classes=("cat", "dog"))
    outside = save(tmp_path / "secret.png", noise(9, 5, 5))
    (root / "cat" / "inside.png").symlink_to(root / "dog" / "001.png")
    (root / "cat" / "leaves.png").symlink_to(outside)
    (root / "cat" / "dangles.png").symlink_to(tmp_path / "nothing.png")
    (root / "cat" / "loop").symlink_to(root)
    (root / "emu").symlink_to(tmp_path)
    os.mkfifo(root / "dog" / "pipe.png")
    with pytest.warns(UserWarning, match="5 of 10 files skipped: cat/dangles.png: is a link to a file that does not"):
        found = gl.data.ImageFolder(root)
    assert found.files == ["cat/000.png", "cat/002.png", "cat/inside.png", "dog/001.png", "dog/003.png"]
    assert dict(found.skipped) == {
        "cat/dangles.png": "is a link to a file that does not exist",
        "cat/leaves.png": "is a link that leaves the folder",
        "cat/loop": "is a link to a folder",
        "dog/pipe.png": "is no regular file",
        "emu": "is a link; need a folder of a class",
    }


def test_empty_classes_and_folders(tmp_path):
    root = photos(tmp_path / "root", 6)
    (root / "bat").mkdir()
    (root / "zoo").mkdir()
    found = gl.data.ImageFolder(root)
    assert found.classes == ["cat", "dog", "emu"] and found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.notes == ["2 classes without an image left out: 'bat', 'zoo'"]
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="holds no folder for each class; need files such as"):
        gl.data.ImageFolder(tmp_path / "bare")
    (tmp_path / "bare" / "cat").mkdir()
    with pytest.raises(DataError, match="holds no usable image; need at least 1"):
        gl.data.ImageFolder(tmp_path / "bare")
    with pytest.raises(FileError, match="no such folder"):
        gl.data.ImageFolder(tmp_path / "nowhere")
    with pytest.raises(FileError, match="is a file; need a folder of images"):
        gl.data.ImageFolder(root / "cat" / "000.png")


# ---- decoding --------------------------------------------------------------------------------------------------------


def test_size_and_channels_follow_from_the_data(tmp_path):
    assert gl.data.ImageFolder(photos(tmp_path / "a", 3, (20, 14, 3))).shape == (3, 20, 14)
    mixed = photos(tmp_path / "b", 3, (20, 14))
    save(mixed / "cat" / "x.png", noise(1, 30, 40))
    save(mixed / "cat" / "y.png", noise(1, 30, 40))
    assert gl.data.ImageFolder(mixed).shape == (1, 14, 14)  # shorter sides 14, 14, 14, 30, 30
    large = photos(tmp_path / "c", 3, (300, 400))
    assert gl.data.ImageFolder(large).shape == (1, 128, 128)
    assert gl.data.ImageFolder(large, size=(30, 20), channels=3).shape == (3, 30, 20)
    save(large / "cat" / "colour.png", noise(1, 300, 400, 3))
    assert gl.data.ImageFolder(large, size=30).shape == (3, 30, 30)


def test_modes(tmp_path):
    """Each mode of pixels against its definition."""
    colour, alpha = noise(1, 6, 5, 3), noise(2, 6, 5)

    def pixels(image, kind="png", channels=3, **options):
        path = tmp_path / f"a.{kind}"
        image.save(path, **options)
        return image_files.decoded(PILLOW, path, (6, 5), channels)[0]

    np.testing.assert_array_equal(pixels(Image.fromarray(colour)), colour)
    luma = colour @ (0.299, 0.587, 0.114)
    np.testing.assert_allclose(pixels(Image.fromarray(colour), channels=1)[..., 0], luma, atol=1)
    np.testing.assert_array_equal(pixels(Image.fromarray(alpha)), np.stack([alpha] * 3, -1))
    share = alpha[..., None] / 255
    transparent = Image.fromarray(np.concatenate([colour, alpha[..., None]], -1))
    np.testing.assert_allclose(pixels(transparent), colour * share + 255 * (1 - share), atol=1.01)
    grey = Image.merge("LA", [Image.fromarray(colour[..., 0]), Image.fromarray(alpha)])
    wanted = (colour[..., :1] * share + 255 * (1 - share))[..., 0]
    np.testing.assert_allclose(pixels(grey, channels=1)[..., 0], wanted, atol=1.01)
    deep = (noise(3, 6, 5).astype(np.uint16) << 8) + noise(4, 6, 5)
    np.testing.assert_array_equal(pixels(Image.fromarray(deep), channels=1)[..., 0], deep >> 8)
    palette = Image.fromarray(colour).quantize(4)
    np.testing.assert_array_equal(pixels(palette), np.asarray(palette.convert("RGB")))
    np.testing.assert_array_equal(pixels(Image.fromarray(alpha > 99), channels=1)[..., 0], (alpha > 99) * 255)
    ink = Image.fromarray(colour).convert("CMYK")
    np.testing.assert_allclose(pixels(ink, "tif"), np.asarray(ink.convert("RGB")))
    frames = [Image.fromarray(noise(i, 6, 5)) for i in range(3)]
    first = pixels(frames[0], "gif", 1, save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(first[..., 0], noise(0, 6, 5))


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tmp_path, orientation, kind):
    """The tag of EXIF names the sides of the scene at row 0 and column 0."""
    scene = np.kron(noise(1, 4, 3), np.ones((8, 8), np.uint8))
    stored = {
        1: scene, 2: scene[:, ::-1], 3: scene[::-1, ::-1], 4: scene[::-1], 5: scene.T, 6: np.rot90(scene),
        7: scene[::-1, ::-1].T, 8: np.rot90(scene, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a" / f"x.{kind}"
    save(path, np.ascontiguousarray(stored), exif=exif, quality=100)
    np.testing.assert_allclose(image_files.decoded(PILLOW, path, (32, 24), 1)[0][..., 0], scene, atol=4)
    assert gl.data.ImageFolder(tmp_path).shape[1:] == (32, 24)


def test_sizes_of_all_shapes():
    """The box that is cut out lies inside the image, also where a side is rounded."""
    for height in range(1, 120):
        for width in (1, 37, 40, 59, 90, 113):
            for size in ((56, 56), (28, 31), (7, 3)):
                left, top, right, bottom = covering(height, width, size)
                assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_resizing_covers_and_cuts_the_middle(tmp_path):
    z = np.mgrid[0:60, 0:100][1]
    save(tmp_path / "a" / "x.png", (z * 2).astype(np.uint8))
    made = image_files.decoded(PILLOW, tmp_path / "a" / "x.png", (30, 20), 1)[0][..., 0]
    wanted = 2 * (50 + (np.arange(20) - 9.5) * 2 - 0.5)  # columns 30..70, at half the size
    np.testing.assert_allclose(made[:, 2:-2], np.broadcast_to(wanted[2:-2], (30, 16)), atol=1)
    blocks = np.kron(noise(5, 8, 8), np.ones((200, 200), np.uint8))  # decoded at an eighth of its size
    big = save(tmp_path / "a" / "big.jpg", blocks, quality=95)
    wanted = np.asarray(Image.fromarray(blocks).resize((8, 8), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(image_files.decoded(PILLOW, big, (8, 8), 1)[0][..., 0], wanted, atol=6)


# ---- rows ------------------------------------------------------------------------------------------------------------

TRANSFORMS = [T.RandomHorizontalFlip(), T.RandomCrop(padding=2), T.ColorJitter(0.2), T.Normalize(), T.RandomErasing()]
MIXED = [T.RandomHorizontalFlip(), T.CutMix(p=0.5), T.RandomCrop(padding=2), T.MixUp(0.4)]


@pytest.mark.parametrize("transforms", [TRANSFORMS, MIXED], ids=["single", "mixed"])
def test_rows_depend_on_pass_and_number_alone(tmp_path, transforms):
    """Not on batches, threads, the cache, or the thread that asks."""
    root = photos(tmp_path)
    whole = gl.data.ImageFolder(root, transforms, threads=1)
    rows = np.random.default_rng(0).permutation(40)
    draw = a_draw(np.arange(5, 40))
    x, y = whole.fetch(rows, draw)
    assert x.flags.c_contiguous and x.dtype == np.float32 and x.shape == (40, *whole.shape)
    for threads, cache in ((2, "256MiB"), (4, 1), (1, 3600)):  # all rows, none and ten of them in memory
        other = gl.data.ImageFolder(root, transforms, threads=threads, cache=cache)
        assert (other.digest, other.transforms) == (whole.digest, whole.transforms)
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(lambda part: other.fetch(part, draw), np.array_split(rows, 7)))  # noqa: B023
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), x)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), y)
    assert (whole.fetch(rows, a_draw(draw.rows, epoch=2))[0] != x).any()
    assert (whole.fetch(rows, a_draw(draw.rows, seed=4))[0] != x).any()
    plain, labels = whole.fetch(rows)
    assert labels.dtype == y.dtype == (np.int32 if transforms is TRANSFORMS else np.float32)
    assert (whole.labels is None) == (transforms is MIXED)
    ids = whole.class_ids[rows]
    np.testing.assert_array_equal(labels, ids if transforms is TRANSFORMS else np.eye(3)[ids])
    np.testing.assert_array_equal(plain[3], whole[int(rows[3])][0])


def test_mixtures_come_from_training_rows(tmp_path):
    """Each row is a mixture of itself and one of the training rows, as its labels state."""
    for i in range(12):
        save(tmp_path / f"{i:02d}" / "x.png", np.full((4, 4), 20 * i, np.uint8))
    found = gl.data.ImageFolder(tmp_path, [T.MixUp(1.0)])
    x, y = found.fetch(np.arange(12), a_draw([7, 9, 11]))
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(x[:, 0, 0, 0], y @ (20 * np.arange(12) / 255), atol=1e-5)
    for row in range(12):
        assert set(np.flatnonzero(y[row])) <= {row, 7, 9, 11}
    assert (np.count_nonzero(y, axis=1) == 2).sum() >= 8


def test_mean_and_deviation(tmp_path):
    root = photos(tmp_path)
    found = gl.data.ImageFolder(root, [T.Normalize()])
    pixels = np.stack([noise(i, 12, 10, 3) for i in range(40)]) / 255
    np.testing.assert_allclose(found.mean, pixels.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.std, pixels.std((0, 1, 2)), rtol=1e-9)
    x, _ = found.fetch(np.arange(40))
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 2, 3)), 1, atol=1e-5)


def test_subset(tmp_path):
    found = gl.data.ImageFolder(photos(tmp_path), [T.RandomHorizontalFlip()], cache=4000)  # 11 rows of 40 in memory
    rows = np.array([30, 2, 17, 8])
    some = found.subset(rows)
    assert some.files == [found.files[row] for row in rows] and some.labels.tolist() == found.labels[rows].tolist()
    np.testing.assert_array_equal(some.fetch([3, 0])[0], found.fetch([8, 30])[0])
    pixels = np.stack([found[int(row)][0] for row in rows]).astype(np.float64)
    np.testing.assert_allclose(some.mean, pixels.mean((0, 2, 3)), rtol=1e-6)
    assert len({found.digest, some.digest, found.subset(rows[::-1]).digest}) == 3
    with pytest.raises(IndexOutOfRange, match=r"subset: row 40; need 0\.\.39"):
        found.subset([40])


def test_digest_follows_names_and_contents(tmp_path):
    root = photos(tmp_path)
    first = gl.data.ImageFolder(root).digest
    save(root / "cat" / "000.png", noise(77, 12, 10, 3))
    changed = gl.data.ImageFolder(root).digest
    (root / "cat" / "000.png").rename(root / "cat" / "0000.png")
    assert len({first, changed, gl.data.ImageFolder(root).digest}) == 3


@pytest.mark.parametrize(
    "options, text",
    [
        ({"size": 0}, "ImageFolder: size=0: must be a whole number from 1 to 4096"),
        ({"channels": 4}, "ImageFolder: channels=4: must be 1 or 3"),
        ({"corrupt": "ignore"}, "ImageFolder: corrupt='ignore': must be skip or error"),
        ({"cache": "much"}, "ImageFolder: cache='much': must be bytes"),
        ({"transforms": [T.RandomCrop]}, "must be a list of gl.data.transforms, made by a call: RandomCrop(padding=4)"),
        ({"transforms": T.RandomCrop(4)}, "must be a list of gl.data.transforms"),
        ({"transforms": [T.Normalize(), T.ColorJitter(0.1)]}, "ColorJitter requires pixels in 0..1, before Normalize"),
        ({"split": "all"}, "ImageFolder: split='all': must be train, val or test"),
        ({"like": "b"}, "ImageFolder: like='b': must be an ImageFolder"),
        ({"like": ..., "size": 4}, "like and size=4 are mutually exclusive"),
    ],
)
def test_bad_settings(tmp_path, options, text):
    root = photos(tmp_path, 4)
    if options.get("like") is ...:
        options = options | {"like": gl.data.ImageFolder(root)}
    with pytest.raises(SettingError) as caught:
        gl.data.ImageFolder(root, **options)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_bad_rows_and_changed_files(tmp_path):
    root = photos(tmp_path, 4)
    found = gl.data.ImageFolder(root, cache=1)
    with pytest.raises(IndexOutOfRange, match=r"fetch: row 4; need 0\.\.3"):
        found.fetch([0, 4])
    with pytest.raises(DataError, match="fetch: rows of float64"):
        found.fetch([0.5])
    (root / "cat" / "000.png").unlink()
    with pytest.raises(DataError, match=r"cat/000\.png: cannot be read: no such file.*when the folder was opened"):
        found.fetch([0])
    assert found.fetch([1])[1] == [0]


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_damaged_files_are_named_and_skipped(tmp_path):
    root = photos(tmp_path, 8, classes=("cat", "dog"))
    stream = io.BytesIO()
    Image.fromarray(noise(1, 12, 10, 3)).save(stream, "PNG")
    (root / "cat" / "cut.png").write_bytes(stream.getvalue()[:-60])
    (root / "cat" / "empty.jpg").write_bytes(b"")
    (root / "dog" / "text.png").write_text("no image")
    (root / "dog" / "bomb.png").write_bytes(broken_images.png(60_000, 60_000))
    (root / "dog" / "large.png").write_bytes(broken_images.png(9000, 9000))  # which Pillow would decode
    with pytest.warns(UserWarning) as caught:
        found = gl.data.ImageFolder(root)
    assert len(found) == 8 and len(caught) == 1
    assert str(caught[0].message).startswith(f"{root}: 5 of 13 files skipped: cat/cut.png: is truncated or damaged (")
    assert str(caught[0].message).endswith("; and 2 more") and caught[0].filename == __file__
    reasons = dict(found.skipped)
    assert reasons["cat/empty.jpg"] == "is empty (0 bytes)"
    assert reasons["dog/text.png"] == "is no image of a known format"
    assert "pixels; need at most 67,108,864" in reasons["dog/bomb.png"]
    assert reasons["dog/large.png"] == "has 9000 x 9000 pixels; need at most 67,108,864"
    with pytest.raises(DataError, match=r"repair or remove it, or use corrupt='skip'"):
        gl.data.ImageFolder(root, corrupt="error")


@pytest.mark.slow
def test_drawn_files(tmp_path):
    """300 damaged, odd and hostile files: each is used, or named in one line; nothing else is raised or printed."""
    wanted = {}
    for number in range(300):
        name, content, usable = broken_images.draw(number)
        path = tmp_path / ("cat", "dog\x1b[2J")[number % 2] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        wanted[f"{path.parent.name}/{name}"] = usable
    save(tmp_path / "cat" / "good.png", noise(1, 8, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gl.data.ImageFolder(tmp_path, size=16, threads=2)
    assert len(caught) == 1 and "\n" not in str(caught[0].message) and len(str(caught[0].message)) < 1200
    skipped = dict(found.skipped)
    assert len(found) + len(skipped) == 301 and not set(found.files) & set(skipped)
    for name, usable in wanted.items():
        assert usable is None or usable == (name in found.files), (name, skipped.get(name))
    assert all("\n" not in reason and len(reason) < 140 for reason in skipped.values())
    x, _ = found.fetch(np.arange(len(found)))
    assert x.shape[1:] == (3, 16, 16) and np.isfinite(x).all()


BOUNDED = """
import sys, warnings
import numpy as np
import gradloom as gl
from gradloom.base.memory import resident_peak
from PIL import Image
warnings.simplefilter("ignore")
gl.data.ImageFolder(sys.argv[1] + "/small", threads=4)
before = resident_peak()
found = gl.data.ImageFolder(sys.argv[1] + "/large", size=16, threads=4)
print(len(found), resident_peak() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    """Images of 35 million pixels are decoded one at a time by any number of threads; text is not unpacked."""
    photos(tmp_path / "small", 3)
    (tmp_path / "large" / "cat").mkdir(parents=True)
    stream = io.BytesIO()
    Image.new("RGB", (7_000, 5_000)).save(stream, "PNG", compress_level=1)
    for i in range(97):  # each for another thread
        (tmp_path / "large" / "cat" / f"{i:02d}.png").write_bytes(stream.getvalue() if i % 48 == 0 else b"\x89PNG")
    (tmp_path / "large" / "cat" / "text.png").write_bytes(broken_images.text_bomb(np.random.default_rng(0))[1])
    made = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path)], capture_output=True, text=True, env=processes.environment()
    )
    assert made.returncode == 0 and made.stderr == "", made.stderr
    count, grown = map(int, made.stdout.split())
    assert count in (3, 4) and grown < 230 << 20  # one takes 140 MB


def test_files_without_classes(tmp_path):
    photos(tmp_path, 4)
    save(tmp_path / "top.png", noise(1, 4, 4))
    assert list_files(tmp_path).files == ["cat/000.png", "cat/003.png", "dog/001.png", "emu/002.png", "top.png"]


def test_needs_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        gl.BackendError, match=r"ImageFolder: requires pillow, not installed; run pip install 'gradloom\[images\]'"
    ):
        gl.data.ImageFolder(photos(tmp_path, 4))


def test_pillow_is_imported_when_it_is_needed():
    code = "import sys, gradloom as gl; gl.data.transforms.RandomCrop(4); print('PIL' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=processes.environment())
    assert made.stdout == "False\n", made.stderr


def test_many_threads_ask_at_once(tmp_path):
    found = gl.data.ImageFolder(photos(tmp_path), TRANSFORMS, cache=1)
    draw, rows = a_draw(np.arange(40)), np.arange(40)
    wanted, _ = found.fetch(rows, draw)
    faults = []

    def ask():
        faults.extend(_ for _ in range(3) if not np.array_equal(found.fetch(rows, draw)[0], wanted))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("transforms", [TRANSFORMS, MIXED], ids=["single", "mixed"])
def test_training(tmp_path, transforms):
    """gl.fit takes a folder as it is; the same weights for any number of workers, and for any cache."""
    weights = []
    for workers, cache in ((0, "1MB"), (3, 1)):
        folder = gl.data.ImageFolder(photos(tmp_path), transforms, cache=cache)
        rows = folder if workers else gl.data.MapDataset(folder, workers=0)
        net = gl.nn.Sequential(gl.nn.Conv2d(3, 4, 3), gl.nn.ReLU(), gl.nn.Flatten(), gl.nn.Linear(320, 3)).init(0)
        history = gl.fit(net, rows, epochs=2, batch_size=7, val_split=0.2, progress=False)
        weights.append({name: array.tobytes() for name, array in net.state_dict().items()})
        assert np.isfinite(history[-1].val.loss) and 0 <= history[-1].val.accuracy <= 1
        assert gl.evaluate(net, folder).ndata == 40 and gl.predict(net, folder).shape == (40, 3)
    assert weights[0] == weights[1]


def test_files_that_are_replaced_are_named(tmp_path):
    """Of images that are not kept."""
    for i in range(4):
        save(tmp_path / "ab"[i % 2] / f"{i}.png", noise(i, 6, 5))
    rows = gl.data.ImageFolder(tmp_path, cache=1)
    save(tmp_path / "b" / "3.png", noise(9, 6, 5))
    assert rows.fetch(np.arange(3), None)[0].shape == (3, 1, 6, 5)
    with pytest.raises(DataError, match=r"b/3.png: has changed since the folder was opened"):
        rows.fetch(np.arange(4), None)
