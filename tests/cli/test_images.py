"""gradloom fit and predict with folders of images."""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gradloom as gl
from tests import processes
from tests.cli.command import FILES, run
from tests.data import broken_images

ENV = processes.environment(GRADLOOM_THREADS="1")
SHORT = ("--epochs", 2, "--threads", 1)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("GRADLOOM_THREADS", "1")


def picture(rng, kind):
    """16 x 16 pixels: a bright bar across ("wide"), or down ("tall"), at a random place, in noise."""
    pixels = rng.integers(0, 90, (16, 16), np.uint8)
    at = rng.integers(2, 12)
    if kind == "wide":
        pixels[at : at + 3] += 150
    else:
        pixels[:, at : at + 3] += 150
    return pixels


def bars(root, count=80, seed=0, colour=False):
    rng = np.random.default_rng(seed)
    for i in range(count):
        kind = ("tall", "wide")[i % 2]
        pixels = picture(rng, kind)
        (root / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.stack([pixels] * 3, -1) if colour else pixels).save(root / kind / f"{i:03d}.png")
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder of images, folder of the run): 80 images, of which 16 are test rows."""
    root = bars(tmp_path_factory.mktemp("images") / "bars")
    out = root.parent / "out"
    arguments = ["fit", root, "--epochs", 15, "--out", out, "--threads", 1, "--json"]
    made = subprocess.run(
        [sys.executable, "-m", "gradloom", *map(str, arguments)], capture_output=True, text=True, env=ENV
    )
    assert made.returncode == 0, made.stderr
    return root, out, json.loads(made.stdout.splitlines()[-1]), made.stderr


def test_fit_and_predict(capsys, trained):
    root, out, found, err = trained
    assert "64 rows (0.05 of them for validation), 16 test rows held out, grey images of 16 x 16" in err
    assert "training images changed by crop; convolutions 32-64, 2 outputs" in err
    assert (found["rows_train"], found["rows_val"], found["rows_test"]) == (61, 3, 16)
    assert found["test_accuracy"] >= 0.9 and found["hidden"] == [32, 64] and found["target"] == "class"
    assert sorted(set(os.listdir(out)) - {".lock"}) >= sorted(FILES)

    code, text, err = run(capsys, "predict", out, root)
    lines = list(csv.reader(io.StringIO(text)))
    assert code == 0 and lines[0] == ["file", "class", "p(tall)", "p(wide)"] and len(lines) == 81
    assert [line[0] for line in lines[1:]] == sorted(str(path) for path in root.rglob("*.png"))
    assert "test rows: accuracy" in err and "training rows: accuracy" in err and "validation rows: accuracy" in err
    right = sum(Path(line[0]).parent.name == line[1] for line in lines[1:])
    assert right >= 72

    some = [root / "wide" / "001.png", root / "tall" / "000.png"]
    code, text, err = run(capsys, "predict", out, *some, "--json")
    answer = json.loads(text)
    assert code == 0 and answer["kept"]["file"] == [str(path) for path in some]
    of_file = {line[0]: line for line in lines[1:]}
    assert answer["predictions"] == [of_file[str(path)][1] for path in some]
    np.testing.assert_allclose(
        answer["probabilities"], [[float(p) for p in of_file[str(path)][2:]] for path in some], atol=1e-6
    )


def test_python_reads_the_model(trained):
    root, out, _, _ = trained
    model = gl.load(out)
    paths = sorted(root.rglob("*.png"))
    shares = model.predict_proba(paths)
    np.testing.assert_array_equal(model.predict(root), np.array(model.classes)[shares.argmax(axis=1)])
    assert model.score(root) == np.mean(
        [a == path.parent.name for a, path in zip(model.predict(paths), paths, strict=True)]
    )
    assert "images, grey, resized to 16 x 16" in model.summary()
    with pytest.raises(gl.DataError, match="need the path of an image or of a folder"):
        model.predict(np.zeros((2, 256)))


def test_views_are_averaged(capsys, trained):
    """--tta 4: the mean of the probabilities of the image and of three shifted ones; the same in each run."""
    root, out, _, _ = trained
    answers = [json.loads(run(capsys, "predict", out, root, "--json", "--tta", n)[1]) for n in (1, 4, 4)]
    assert answers[1] == answers[2] and answers[1]["probabilities"] != answers[0]["probabilities"]
    model = gl.load(out)
    folder = gl.data.ImageFolder(root, [gl.data.transforms.RandomCrop(padding=2)])
    rows = np.arange(len(folder))
    views = [folder.fetch(rows)[0], *(folder.fetch(rows, gl.data.Draw(0, n, rows))[0] for n in (1, 2, 3))]
    wanted = np.mean([model.probabilities(gl.predict(model.net, x)) for x in views], axis=0)
    np.testing.assert_allclose(answers[1]["probabilities"], wanted, atol=1e-6)


@pytest.mark.slow
def test_parts_and_other_folders(capsys, tmp_path):
    root = tmp_path / "parts"
    bars(root / "train", 40)
    bars(root / "val", 12, seed=1)
    bars(root / "test", 14, seed=2)
    code, out, err = run(capsys, "fit", root, *SHORT, "--out", tmp_path / "a", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and (found["rows_train"], found["rows_val"], found["rows_test"]) == (40, 12, 14), err
    assert "14 test rows from the folder" in err and "val loss" in err
    code, out, err = run(capsys, "predict", tmp_path / "a", root)
    assert code == 0 and len(out.splitlines()) == 15 and "test rows: accuracy" in err
    more = ("--val", root / "val", "--test", root / "test")
    code, out, err = run(capsys, "fit", root / "train", *SHORT, *more, "--out", tmp_path / "b", "--json")
    again = json.loads(out.splitlines()[-1])
    assert code == 0 and again["test_loss"] == found["test_loss"] and again["val_loss"] == found["val_loss"], err


def test_broken_and_repeated_files(capsys, tmp_path):
    root = bars(tmp_path / "bars", 40)
    (root / "tall" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "wide" / "bomb\x1b[2J.png").write_bytes(broken_images.png(50_000, 50_000))
    for i in range(10):
        (root / "wide" / f"copy{i}.png").write_bytes((root / "wide" / "001.png").read_bytes())
    code, out, err = run(capsys, "fit", root, *SHORT, "--out", tmp_path / "out", "--json")
    assert code == 0 and "2 of 52 files skipped: tall/broken.png: " in err and r"bomb\x1b[2J.png" in err
    assert "test images are also training images, byte by byte" in err
    code, out, err = run(capsys, "fit", root, *SHORT, "--corrupt", "error", "--out", tmp_path / "none")
    assert code == 2 and err.startswith(f"gradloom: {root}/tall/broken.png: ") and err.count("\n") == 1
    assert not (tmp_path / "none").exists()
    code, out, err = run(capsys, "predict", tmp_path / "out", root / "tall", "--json")
    assert code == 0 and json.loads(out)["skipped"].keys() == {str(root / "tall" / "broken.png")}
    code, out, err = run(capsys, "predict", tmp_path / "out", root / "tall" / "broken.png")
    assert code == 2 and "no usable image" in err and err.count("\n") == 1


def test_a_single_class_names_the_files_that_were_skipped(capsys, tmp_path):
    root = bars(tmp_path / "bars", 8)
    for path in (root / "wide").iterdir():
        path.write_bytes(b"no image")
    code, _, err = run(capsys, "fit", root, "--out", tmp_path / "out")
    assert code == 2 and "a single class, 'tall'" in err and "; 4 of 8 files skipped: wide/" in err


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory):
    """Two classes of different sizes."""
    root = bars(tmp_path_factory.mktemp("lopsided") / "bars", 30)
    (root / "tall" / "000.png").unlink()
    return root


def loss_of(capsys, root, out, *more):
    code, text, err = run(capsys, "fit", root, "--epochs", 1, "--out", out, "--json", *more)
    assert code == 0, err
    return json.loads(text.splitlines()[-1])["train_loss"]


@pytest.mark.parametrize(
    "options",
    [
        ("--image-size", 12), ("--augment", "none"), ("--augment", "crop,flip"), ("--augment", "rotate"),
        ("--augment", "color"), ("--augment", "erase"), ("--hidden", "4,4"), ("--hidden", ""), ("--dropout", 0.5),
        ("--class-weight", "balanced"), ("--batch-size", 7), ("--val-split", 0.2), ("--seed", 5),
    ],
)  # fmt: skip
def test_options_change_the_training(capsys, tmp_path, lopsided, options):
    plain = lopsided.parent / "plain.txt"
    if not plain.exists():
        plain.write_text(repr(loss_of(capsys, lopsided, tmp_path / "plain")))
    assert loss_of(capsys, lopsided, tmp_path / "out", *options) != float(plain.read_text())


@pytest.mark.parametrize(
    "options, text",
    [
        (("--target", "x"), "--target x requires a table: this is a folder of images"),
        (("--drop", "x"), "--drop x requires a table: this is a folder of images"),
        (("--task", "regression"), "--task regression requires a table"),
        (("--loss", "mse"), "--loss mse: images of a folder have classes; use cross_entropy"),
        (("--ensemble", "4"), "--ensemble 4 requires a table: one network learns images"),
        (("--hidden", "4,4,4,4,4"), "must be at most 4 blocks for images of 16 x 16"),
        (("--augment", "crop,spin"), "--augment crop,spin: must be"),
        (("--image-size", "0"), "--image-size 0: must be a whole number from 1 to 4096"),
        (("--test", "nowhere"), "--test nowhere: no such folder"),
    ],
)
def test_refused(capsys, tmp_path, options, text):
    root = bars(tmp_path / "bars", 20)
    code, _, err = run(capsys, "fit", root, *SHORT, "--out", tmp_path / "out", *options)
    assert code == 2 and text in err and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists()


def test_refused_elsewhere(capsys, tmp_path, trained):
    root, out, _, _ = trained
    table = tmp_path / "t.csv"
    table.write_text("a,b\n" + "\n".join(f"{i},{'xy'[i % 2]}" for i in range(40)) + "\n")
    code, _, err = run(capsys, "fit", table, *SHORT, "--augment", "flip", "--out", tmp_path / "t")
    assert code == 2 and "--augment flip requires a folder of images, as FOLDER/CLASS/1.jpg" in err
    code, _, err = run(capsys, "fit", table, *SHORT, "--out", tmp_path / "t")
    assert code == 0
    code, _, err = run(capsys, "predict", tmp_path / "t", table, table)
    assert code == 2 and "several files require a model of images; this one reads one file" in err
    code, _, err = run(capsys, "predict", tmp_path / "t", table, "--tta", 3)
    assert code == 2 and "--tta 3 requires a model of images" in err
    code, _, err = run(capsys, "predict", out, root, "--keep", "a")
    assert code == 2 and "--keep requires a model of tables" in err
    code, _, err = run(capsys, "predict", out, tmp_path / "nowhere.png")
    assert code == 2 and "nowhere.png: no such file or folder" in err and err.count("\n") == 1
    one = tmp_path / "one"
    bars(one, 6)
    for path in (one / "wide").iterdir():
        path.unlink()
    code, _, err = run(capsys, "fit", one, *SHORT, "--out", tmp_path / "o")
    assert code == 2 and "a single class, 'tall', in all" in err and err.count("\n") == 1


def test_folders_without_classes(capsys, tmp_path):
    bars(tmp_path / "bars", 4)
    code, _, err = run(capsys, "fit", tmp_path / "bars" / "wide", "--out", tmp_path / "o")
    assert code == 2 and "wide: holds no folder for each class; need files such as" in err and err.count("\n") == 1
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, "fit", tmp_path / "empty", "--out", tmp_path / "o")
    assert code == 2 and "folder of images for each class" in err and err.count("\n") == 1


def test_colour(capsys, tmp_path):
    root = bars(tmp_path / "bars", 20, colour=True)
    code, _, err = run(capsys, "fit", root, *SHORT, "--augment", "color,flip", "--out", tmp_path / "out")
    assert code == 0 and "colour images of 16 x 16" in err
    code, out, err = run(capsys, "predict", tmp_path / "out", bars(tmp_path / "grey", 4))
    assert code == 0 and len(out.splitlines()) == 5  # grey images are taken, too


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_bit(tmp_path):
    root = bars(tmp_path / "bars", 400)
    common = ["--epochs", "8", "--augment", "crop,rotate,erase", "--checkpoint-every", "9steps"]

    def command(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "gradloom", *map(str, arguments)], env=ENV, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    whole = command("fit", root, *common, "--out", tmp_path / "whole")
    cut = command("fit", root, *common, "--out", tmp_path / "cut")
    end = time.monotonic() + 100
    while not list((tmp_path / "cut").glob("checkpoints/*.json")) and cut.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    was_running = cut.poll() is None
    cut.send_signal(signal.SIGKILL)
    cut.communicate()
    assert was_running and not (tmp_path / "cut" / "result.json").exists()
    resumed = command("fit", "--resume", "--out", tmp_path / "cut")
    assert [one.communicate()[0] is not None and one.returncode for one in (whole, resumed)] == [0, 0]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert hashlib.sha256(models[0]).digest() == hashlib.sha256(models[1]).digest()


def test_a_changed_image_stops_a_resume(capsys, tmp_path):
    root = bars(tmp_path / "bars", 40)
    code, _, err = run(capsys, "fit", root, *SHORT, "--out", tmp_path / "out")
    assert code == 0, err
    (root / "tall" / "000.png").write_bytes((root / "tall" / "002.png").read_bytes())
    code, _, err = run(capsys, "fit", "--resume", "--epochs", 4, "--out", tmp_path / "out")
    last = err.splitlines()[-1]
    assert code == 2 and last.startswith("gradloom: ") and "rows differ" in last, err


def test_report_shows_the_worst_images(capsys, tmp_path, trained):
    _, out, _, _ = trained
    code, text, err = run(capsys, "report", out, "-o", tmp_path / "r.html", "--json")
    page = (tmp_path / "r.html").read_text()
    assert code == 0 and page.count("data:image/png") >= 10 and ".png</td>" in page, err
    assert json.loads(text.splitlines()[-1])


def test_needs_pillow(capsys, tmp_path, monkeypatch, trained):
    root, out, _, _ = trained
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    for command in (("fit", root, "--out", tmp_path / "o"), ("predict", out, root)):
        code, _, err = run(capsys, *command)
        assert code == 2 and "requires pillow, not installed; run pip install 'gradloom[images]'" in err
        assert err.count("\n") == 1


# ---- arrays ----------------------------------------------------------------------------------------------------------


def arrays(count, last, channels, seed=0):
    """(u8 images, texts): bars in the last of the channels, noise in the others."""
    rng = np.random.default_rng(seed)
    names = np.array(["tall", "wide"])[np.arange(count) % 2]
    x = rng.integers(0, 255, (count, channels, 16, 16), np.uint8)
    x[:, -1] = [picture(rng, name) for name in names]
    return (x.transpose(0, 2, 3, 1) if last else x), names


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("last", [True, False])
def test_arrays_of_images(capsys, tmp_path, last, channels):
    """Channels last or first, with text labels; both orders train the same model."""
    (x, y), (test_x, test_y) = arrays(80, last, channels), arrays(20, last, channels, 1)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    code, out, err = run(capsys, "fit", tmp_path / "t.npz", "--epochs", 12, "--out", tmp_path / "out", "--json")
    found = json.loads(out.splitlines()[-1])
    kind = {1: "grey images", 3: "colour images", 4: "images with 4 channels"}[channels]
    assert code == 0 and f"{kind} of 16 x 16" in err and found["hidden"] == [32, 64], err
    assert found["test_accuracy"] >= 0.9 and found["test_classes"].keys() == {"tall", "wide"}
    code, out, err = run(capsys, "predict", tmp_path / "out", tmp_path / "t.npz")
    assert code == 0 and out.startswith("y_train,p(tall),p(wide)\n") and "test rows: accuracy" in err
    model, other = gl.load(tmp_path / "out"), np.moveaxis(x, (1, 3)[last], (3, 1)[last])
    assert model.predict(test_x).tolist() == [line.partition(",")[0] for line in out.splitlines()[1:]]
    net = model.net.layers[1:]
    assert [type(one).__name__ for one in net[:2]] == (["Unflatten", "Permute"] if last else ["Unflatten", "Conv2d"])
    if channels > 1:
        with pytest.raises(gl.DataError, match="need .* as in training"):
            model.predict(other)


def test_other_arrays_stay_perceptrons(capsys, tmp_path):
    rng = np.random.default_rng(0)
    for shape in ((16, 16), (16, 16, 2), (6, 6, 3), (2, 3, 4, 5)):
        np.savez(tmp_path / "t.npz", x=rng.integers(0, 255, (20, *shape), np.uint8), y=np.arange(20) % 2)
        out = tmp_path / "x".join(map(str, shape))
        code, text, err = run(capsys, "fit", tmp_path / "t.npz", *SHORT, "--out", out, "--json")
        assert code == 0 and json.loads(text.splitlines()[-1])["hidden"] == [500], err


@pytest.mark.slow
def test_regression_of_images(capsys, tmp_path):
    """The number of the row of a bar."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 90, (200, 16, 16, 1), np.uint8), rng.integers(2, 12, 200)
    for i, at in enumerate(y):
        x[i, at : at + 3] += 150
    np.savez(tmp_path / "t.npz", x=x, y=y.astype(np.float64))
    more = ("--task", "regression", "--epochs", 20, "--json", "--out", tmp_path / "out")
    code, out, err = run(capsys, "fit", tmp_path / "t.npz", *more)
    assert code == 0 and json.loads(out.splitlines()[-1])["test_r2"] > 0.8, err
