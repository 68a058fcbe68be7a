import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.model import Model, load_model
from gradloom.data import Preprocess
from gradloom.files import load_arrays, save_arrays
from gradloom.tables.perceptron import perceptron
from tests import processes
from tests.cli.command import run

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "data" / "digits.npz"
ENV = processes.environment()


def write(path, text):
    path.write_text(text)
    return str(path)


# -- the command itself ------------------------------------------------------------------------------------------------


def test_help_is_quick_to_start():
    code = "import sys; from gradloom.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True)
    assert "fit" in done.stdout and "predict" in done.stdout
    for heavy in ("'numpy'", "'gguf'", "'tokenizers'", "'safetensors'", "'torch'", "'sklearn'", "'msgspec'"):
        assert heavy not in done.stdout


def test_a_command_imports_no_other():
    code = (
        "import sys; from gradloom.cli.main import main; main(['runs'])\n"
        "print([name for name in ('runs', 'fit', 'finetune', 'chat') if f'gradloom.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['runs']"


def test_version_and_module():
    done = subprocess.run([sys.executable, "-m", "gradloom", "--version"], env=ENV, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("gradloom ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "x.csv", "--finesse", "3"], "gradloom: No such option: --finesse; see gradloom fit --help"),
        (["fit", "x.csv", "--epochs", "many"], "gradloom: Invalid value for '--epochs': "),
        (["fit"], "gradloom: Missing argument "),
        (["fly"], "gradloom: No such command 'fly'; see gradloom --help"),
        (["fit", "x.csv", "--lr", "-0.1"], "gradloom: --lr -0.1: must be a finite number above 0"),
        (["fit", "x.csv", "--lr", "nan"], "gradloom: --lr nan: must be a finite number above 0"),
        (["fit", "x.csv", "--epochs", "0"], "gradloom: --epochs 0: must be a whole number of at least 1"),
        (["fit", "x.csv", "--batch-size", "-5"], "gradloom: --batch-size -5: must be a whole number of at least 1"),
        (
            ["fit", "x.csv", "--micro-batch-size", "0"],
            "gradloom: --micro-batch-size 0: must be a whole number of at lea",
        ),
        (["fit", "x.csv", "--threads", "0"], "gradloom: --threads 0: must be a whole number of at least 1"),
        (["fit", "x.csv", "--seed", "-1"], "gradloom: --seed -1: must be a whole number of at least 0"),
        (["fit", "x.csv", "--val-split", "1"], "gradloom: --val-split 1: must be a number of at least 0 and below 1"),
        (
            ["fit", "x.csv", "--hidden", "64,x"],
            "gradloom: --hidden 64,x: must be whole numbers of at least 1, such as 64",
        ),
        (
            ["fit", "x.csv", "--hidden", "999999999999"],
            "gradloom: --hidden 999999999999: must be whole numbers of at least 1, such as 64,64, below 2**31",
        ),
        (["fit", "x.csv", "--hidden", f"64,{10**30}"], "gradloom: --hidden 64,10000"),
        (["fit", "x.csv", "--hidden", "0"], "gradloom: --hidden 0: must be whole numbers of at least 1, such as 64,64"),
        (
            ["fit", "x.csv", "--optimizer", "lino"],
            "gradloom: --optimizer lino: must be adamw or adam or sgd or",
        ),
        (["fit", "x.csv", "--loss", "hinge"], "gradloom: --loss hinge: must be cross_entropy or mse or l1 or huber"),
        (
            ["fit", "x.csv", "--task", "guess"],
            "gradloom: --task guess: must be classification or regression",
        ),
        (
            ["fit", "x.csv", "--metric", "f1"],
            "gradloom: --metric f1: must be accuracy or balanced_accuracy or f1_macro or roc_auc or log_loss or brier "
            "or rmse or mae or r2; did you mean f1_macro?\n",
        ),
        (["fit", "x.csv"], "gradloom: x.csv: no such file or folder"),
        (["predict", "m.safetensors", "x.csv"], "gradloom: m.safetensors: no such file or directory"),
        (["predict", "m", "x.csv"], "gradloom: m: no such file or folder"),
    ],
)
def test_bad_options(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith(message) and err.count("\n") == 1
    assert not any(tmp_path.iterdir())


def rows(text, count):
    return "".join(text.format(i=i, c=i % 2) for i in range(count))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "t.csv: is empty (0 bytes); need a CSV file"),
        ("a,b,y\n1,2,0\n3,4\n", [], "t.csv line 3: 2 cells, needs 3 as in line 1; fix or remove that line"),
        (
            "size,price\n" + rows("{i},{i}.5\n", 30),
            ["--target", "prize"],
            "t.csv: no column 'prize'; the nearest is 'price' (columns: size, price); see --target",
        ),
        ("a,b,y\n" + rows("{i},,{c}\n", 30), [], "t.csv: column 'b' is empty in all 30 rows; remove it from the file"),
        ("a,y\n" + rows("{i},1\n", 30), [], "t.csv: a single class, '1', in all 24 training rows; need at least 2"),
        (
            "a,y\n" + rows("{i},{c}\n", 30),
            ["--batch-size", "8", "--micro-batch-size", "9"],
            "--micro-batch-size 9: must be at most 8, the batch size",
        ),
        (
            "a,y\n" + rows("{i},{i}.5\n", 30),
            ["--loss", "cross_entropy"],
            "--loss cross_entropy requires --task classification; use mse for a regression",
        ),
        (
            "a,y\n" + rows("{i},{c}\n", 30),
            ["--loss", "l1"],
            "--loss l1 requires --task regression; use cross_entropy or mse for classes",
        ),
    ],
)
def test_bad_data(capsys, tmp_path, text, options, message):
    path = write(tmp_path / "t.csv", text)
    code, out, err = run(capsys, "fit", path, *options, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and err.endswith(f"{message}\n") and err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["t.csv"]


def test_bad_arrays(capsys, tmp_path):
    whole = DIGITS.read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    x = np.arange(40.0).reshape(20, 2)
    np.savez(tmp_path / "range.npz", x=x, y=np.arange(20) % 4, classes=["a", "b", "c"])
    folder = tmp_path / "images"
    folder.mkdir()
    head = bytes([0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 2])
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(30))
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(9))
    for name, message in (
        ("cut.npz", "is truncated or damaged"),
        ("range.npz", "row 3: 'y' is 3; need 0..2, the 3 classes that the file names"),
        ("images", "train-images-idx3-ubyte: is truncated: 30 bytes of elements; its head needs 36 (9 x 2 x 2 uint8)"),
    ):
        code, out, err = run(capsys, "fit", tmp_path / name, "--out", tmp_path / "out")
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_interrupted_before_there_is_anything_to_save(capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradloom.data.read_table", stop)
    assert run(capsys, "fit", DIGITS) == (130, "", "gradloom: interrupted\n")


def test_output_folder_that_cannot_be(capsys, tmp_path):
    write(tmp_path / "file", "")
    code, _, err = run(
        capsys, "fit", write(tmp_path / "t.csv", "a,y\n" + rows("{i},{c}\n", 30)), "--out", tmp_path / "file"
    )
    assert code == 2 and err == f"gradloom: {tmp_path / 'file'}: is no folder; need the name of a folder to write\n"


# -- the model file ----------------------------------------------------------------------------------------------------


def test_model_file(tmp_path):
    made = Preprocess("array", "classification", "y", shape=[4, 4], mean=1.0, std=2.0, classes=["a", "b"])
    net = perceptron(made, [3])
    net.init(0)
    path = tmp_path / "m.safetensors"
    gl.save(Model(net, made, {"seed": 0}), path)
    read = load_model(path)
    again = read.net
    assert read.preprocess == made
    for name, array in net.state_dict().items():
        assert array.tobytes() == again.state_dict()[name].tobytes()


def test_damaged_model_files(capsys, tmp_path):
    made = Preprocess("array", "classification", "y", shape=[4, 4], mean=1.0, std=2.0, classes=["a", "b"])
    path = tmp_path / "m.safetensors"
    net = perceptron(made, [3])
    gl.save(Model(net, made), path)
    arrays, metadata = load_arrays(path)
    whole = path.read_bytes()
    described = json.loads(metadata["gradloom.model"])
    del described["preprocess"]["columns"]
    cases = [
        (lambda: path.write_bytes(whole[:-100]), "is no whole safetensors file"),
        (
            lambda: save_arrays(path, arrays),
            "holds arrays but no model of gradloom; need a file that gl.save wrote",
        ),
        (
            lambda: save_arrays(path, {}, metadata),
            "its description is damaged (array '0.mean' is missing among )",
        ),
        (lambda: save_arrays(path, arrays, {"gradloom.model": "{"}), "its description is damaged"),
        (
            lambda: save_arrays(path, arrays, {"gradloom.model": '{"format": 9}'}),
            "format 9; this version reads formats 1 and 2",
        ),
        (
            lambda: save_arrays(path, arrays, {"gradloom.model": json.dumps(described)}),
            "its description is damaged (prepro",
        ),
    ]
    for damage, message in cases:
        damage()
        code, out, err = run(capsys, "predict", path, DIGITS)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1
