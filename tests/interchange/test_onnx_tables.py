"""Models of gradloom fit in onnxruntime: raw rows give the predictions of the command."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def seconds(text: str) -> float:
    return float((np.datetime64(text) - np.datetime64("1970-01-01")) / np.timedelta64(1, "s")) if text else math.nan


def raw(model: Any, rows: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """The inputs of the file, of the cells of a table."""
    made = {}
    for column in model.preprocess.columns:
        if column.kind == "unused":
            continue
        cells = [row[column.name] for row in rows]
        if column.kind in ("text", "encoded"):
            made[column.name] = np.array(cells, object)[:, None]
        elif column.kind == "time" and column.form != "number":
            made[column.name] = np.array([seconds(cell) for cell in cells])[:, None]
        else:
            made[column.name] = np.array([float(cell) if cell not in ("", "NA") else math.nan for cell in cells])[
                :, None
            ]
    return made


def table(rng: np.random.Generator, rows: int, new: bool = False) -> list[dict[str, str]]:
    """Numbers (skewed, missing, far from 0), categories (many, missing, true and false, codes), dates."""
    made = []
    for i in range(rows):
        x = rng.standard_normal()
        kind = str(rng.choice(["red", "green", "blue, dark", "größe"]))
        zip_code = f"{int(rng.integers(100, 225)):05d}"
        day = np.datetime64("1999-12-25") + int(rng.integers(0, 900))
        made.append({
            "x": f"{x:.6f}" if rng.random() > 0.1 else "", "far": f"{1e6 + 3 * rng.standard_normal():.3f}",
            "skewed": f"{math.exp(3 * rng.standard_normal()):.5g}", "kind": kind if rng.random() > 0.1 else "",
            "zip": zip_code, "flag": str(rng.choice(["True", "False"])), "level": str(rng.integers(1, 4)),
            "day": str(day) if rng.random() > 0.05 else "", "constant": "7",
            "price": f"{1000 + 250 * x + (80 if kind == 'red' else 0) + rng.standard_normal():.3f}",
            "class": "yes" if x + (kind == "red") > 0.3 else str(rng.choice(["no", "never"])),
        })  # fmt: skip
        if new and i % 3 == 0:
            made[-1] |= {"kind": "purple", "zip": "99999", "flag": "true"}
        if new and i % 4 == 0:
            made[-1] |= {"kind": "NA", "x": "NA", "level": "2.0"}
    return made


def write(path: Path, rows: list[dict[str, str]]) -> str:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tables")
    write(home / "data.csv", table(np.random.default_rng(0), 700))
    write(home / "new.csv", table(np.random.default_rng(1), 41, new=True))
    return home


def trained(folder: Path, *arguments: str) -> Any:
    out = folder / "-".join(arguments).replace("--", "")
    words = ["fit", str(folder / "data.csv"), "--out", str(out), "--epochs", "3", "--seed", "1", *arguments]
    assert main([*words, "--categorical", "zip", "--categorical", "level"]) == 0
    return gl.load(out)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--target", "class", "--drop", "price"),
        ("--target", "price", "--drop", "class"),
        ("--target", "class", "--target", "price"),
        ("--target", "class", "--hidden", "9", "--loss", "mse"),
    ],
    ids=["classes", "numbers", "several", "mse"],
)
def test_raw_rows_give_the_predictions_of_the_command(folder: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    model = trained(folder, *arguments)
    made = gl.export_onnx(model, tmp_path / "model.onnx")
    assert (
        not made.fixed and made.inputs["x"] == ("float64", ("rows", 1)) and made.inputs["kind"] == ("text", ("rows", 1))
    )
    run = session(tmp_path / "model.onnx")
    with open(folder / "new.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    inputs = raw(model, rows)
    assert {column.kind for column in model.preprocess.columns} >= {"number", "text", "encoded", "time"}
    assert set(inputs) == set(made.inputs)
    found = dict(zip(made.outputs, run.run(None, inputs), strict=True))
    wanted = model.predict(folder / "new.csv")
    for k, one in enumerate(model.targets):
        column = wanted[:, k] if len(model.targets) > 1 else wanted
        if made.outputs[one][0] == "text":
            assert found[one].tolist() == column.tolist()
            shares = model.predict_proba(folder / "new.csv")
            shares = shares[one] if isinstance(shares, dict) else shares
            np.testing.assert_allclose(found[f"{one}_probabilities"], shares, rtol=0, atol=1e-5)
        else:
            column = column.astype(np.float64)
            np.testing.assert_allclose(found[one], column, rtol=0, atol=1e-5 * np.abs(column).max())
    first = run.run(None, {name: array[:1] for name, array in inputs.items()})
    assert [a.shape for a in first] == [(1, *a.shape[1:]) for a in found.values()]


def test_arrays_and_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shape, name in (((6,), "rows"), ((9, 8, 3), "images")):
        x = rng.integers(0, 256, (80, *shape)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x.reshape(80, -1).mean(1) > 127).astype(np.int64))
        out = tmp_path / name
        assert main(["fit", str(tmp_path / f"{name}.npz"), "--out", str(out), "--epochs", "1", "--seed", "0"]) == 0
        model = gl.load(out)
        made = gl.export_onnx(model, tmp_path / "model.onnx")
        (given,) = made.inputs
        array = x if given == "image" else x.astype(np.float32)
        if len(made.inputs[given][1]) == 2:
            array = array.reshape(80, -1)
        labels, shares = session(tmp_path / "model.onnx").run(None, {given: array})
        np.testing.assert_allclose(shares, model.predict_proba(x), rtol=0, atol=1e-5)
        assert labels.tolist() == model.predict(x).tolist()


@pytest.mark.filterwarnings("ignore")
def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    trained(folder, "--target", "class", "--drop", "price")
    model, out = str(folder / "target-class-drop-price"), str(tmp_path / "m.onnx")
    capsys.readouterr()
    assert main(["export", model, "-o", out, "--json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert found["outputs"]["class_probabilities"] == {"dtype": "float64", "shape": ["rows", 3]}
    assert [note.split(":")[0] for note in found["notes"]] == ["'level'"]
    assert "input kind" in printed and found["bytes"] == Path(out).stat().st_size
    assert main(["export", model, "-o", str(folder / "target-class-drop-price" / "model.safetensors")]) == 2
    gl.save(gl.nn.Linear(2, 2).init(), tmp_path / "net.safetensors")
    assert main(["export", str(tmp_path / "net.safetensors"), "-o", out]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "is read; need another one" in lines[0] and "without the preprocessing of its rows" in lines[1]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 120)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(low, low + 130, (16, 16, 3)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    words = ["fit", str(tmp_path / "photos"), "--out", str(tmp_path / "out"), "--epochs", "1", "--image-size", "16"]
    assert main(words) == 0
    model = gl.load(tmp_path / "out")
    made = gl.export_onnx(model, tmp_path / "model.onnx")
    assert made.inputs == {"image": ("uint8", ("rows", 3, 16, 16))}
    files = sorted((tmp_path / "photos").glob("*/*.png"))
    pixels = np.stack([np.asarray(image.open(file)).transpose(2, 0, 1) for file in files])
    labels, shares = session(tmp_path / "model.onnx").run(None, {"image": pixels})
    wanted = model.predict_proba([str(file) for file in files])
    np.testing.assert_allclose(shares, wanted, rtol=0, atol=1e-5)
    assert labels.tolist() == [model.classes[i] for i in wanted.argmax(1)]


_NUMBERS = ["1", "1.0", "2.00", "+2", "1e0", "03", "3", "003", "1.", "1E0", "1.50", "01.5", "2.5e0", "1000.0", "1,000",
            "1e3", "-1.0", "(1)", "-0", "NA", "", "nA", "#NA", "Null", "x", "True", "tRUE", "FaLSE", "99"]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("cells", "spelled", "noted"),
    [
        (["\u00e9", "\u00c5", "\u03a9x", "K1", "\uac01", "\u01d6", "ab"],
         ["e\u0301", "A\u030a", "\u212b", "\u2126x", "\u212a1", "\u1100\u1161\u11a8", "u\u0308\u0304", "\u00fc\u0304",
          "ab", "e"], False),
        (["\u00e9" * 9, "e"], ["e\u0301" * 9, "\u00e9" * 9], False),
        (["1", "2", "03"], _NUMBERS, False),
        (["1", "2", "3"], _NUMBERS, True),
        (["-1", "0", "1000"], _NUMBERS, True),
        (["1.5", "2.5", "x", "NaN", "0.5", ""], [*_NUMBERS, ".5", "0.50"], False),
        (["1.5", "x", ""], _NUMBERS, True),
        (["True", "False", ""], _NUMBERS, False),
        (["red", "NA", "03"], [*_NUMBERS, "nan"], False),
    ],
    ids=["unicode", "many", "zero", "declared", "signs", "words", "empty", "truth", "marks"],
)  # fmt: skip
def test_other_texts_of_a_category(tmp_path: Path, cells: list[str], spelled: list[str], noted: bool) -> None:
    rows = [{"a": cells[i % len(cells)], "x": f"{i * 37 % 100}.5", "y": "pq"[i % 2]} for i in range(200)]
    out, new = tmp_path / "out", [{"a": one, "x": "0.5"} for one in spelled]
    words = ["fit", write(tmp_path / "data.csv", rows), "--target", "y", "--out", str(out), "--epochs", "1"]
    assert main([*words, "--categorical", "a"]) == 0
    model = gl.load(out)
    made = gl.export_onnx(model, tmp_path / "m.onnx")
    (found,) = session(tmp_path / "m.onnx").run(["y_probabilities"], raw(model, new))
    np.testing.assert_allclose(found, model.predict_proba(write(tmp_path / "new.csv", new)), rtol=0, atol=1e-5)
    assert [note.partition(":")[0] for note in made.notes] == ["'a'"] * noted
