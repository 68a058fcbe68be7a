"""A folder with train, valid and test files, and a file to validate on: the rows are those of the files."""

import json

import numpy as np
import pytest

from gradloom.base.errors import DataError, SettingError
from gradloom.data.dataset import IGNORED
from gradloom.llm import Run, evaluate, load
from gradloom.llm.data_files import data_files
from gradloom.llm.rows import read_rows
from tests.cli.command import run
from tests.llm.random_models import write
from tests.refused import refused

WORDS = ["once", "upon", "a", "time", "there", "was", "a", "little", "girl", "who", "loved", "to", "play"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model"), "llama", context=64)


def folder(tmp_path, *names):
    made = tmp_path / "data"
    made.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        rng = np.random.default_rng(i)
        texts = [" ".join(rng.choice(WORDS, 9)) for _ in range(12)]
        lines = "\n".join(json.dumps({"text": text}) for text in texts) if "json" in name else " ".join(texts)
        (made / name).write_text(lines + "\n")
    return made


def same(rows, at, file, model):
    """The rows at these places are those of the file."""
    alone = read_rows(model, file, 32, 0.0)
    assert len(at) == len(alone.tokens) and (rows.tokens[at] == alone.tokens).all()
    assert (rows.labels[at] == alone.labels).all() and (alone.labels != IGNORED).any()


@pytest.mark.parametrize("valid", ["valid.jsonl", "validation.jsonl", "val.txt", "dev.ndjson"])
def test_the_parts_of_a_folder(tmp_path, path, valid):
    model, data = load(path), folder(tmp_path, "train.jsonl", valid, "test.jsonl", "readme.md")
    assert data_files(data).paths == [str(data / name) for name in ("train.jsonl", valid, "test.jsonl")]
    rows = read_rows(model, data, 32)
    same(rows, rows.train, data / "train.jsonl", model)
    same(rows, rows.val, data / valid, model)
    assert evaluate(model, data, context=32).nll == evaluate(model, data / "test.jsonl", context=32).nll
    other = read_rows(model, data, 32, val=data / "test.jsonl")
    same(other, other.val, data / "test.jsonl", model)


def test_a_file_to_validate_on(tmp_path, path):
    data = folder(tmp_path, "train.jsonl", "b.jsonl")
    done = Run(path, data / "train.jsonl", context=32, batch_size=4, steps=2, val=data / "b.jsonl")
    done.train(progress=False)
    same(done.data, done.val_rows, data / "b.jsonl", done.model)
    same(done.data, done.train_rows, data / "train.jsonl", done.model)
    assert done.history[-1].val.loss > 0
    with pytest.raises(SettingError, match=r"val_split=0.1 cannot be combined with .*b.jsonl"):
        Run(path, data / "train.jsonl", val=data / "b.jsonl", val_split=0.1)
    with refused("val", val_split=...):
        Run(path, done.data, val=data / "b.jsonl")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "the folder contains no train.jsonl or train.txt, which is required"),
        (["valid.jsonl", "test.jsonl"], "the folder contains no train.jsonl"),
        (["train.jsonl", "train.txt"], "contains train.jsonl and train.txt; remove one of them"),
        (["train.jsonl", "valid.jsonl", "val.jsonl"], "contains valid.jsonl and val.jsonl; remove one of them"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, path, names, why):
    data = folder(tmp_path, *names)
    with pytest.raises(DataError, match=why):
        read_rows(load(path), data, 32)
    with pytest.raises(DataError, match="contains no test.jsonl"):
        evaluate(load(path), folder(tmp_path / "..", "train.jsonl"))


def test_the_command(capsys, tmp_path, path):
    data, out = folder(tmp_path, "train.jsonl", "valid.jsonl", "test.jsonl"), tmp_path / "a.gguf"
    settings = ["--context", 32, "--batch-size", 4, "--steps", 3, "--json"]
    code, shown, err = run(capsys, "finetune", path, data, "--out", out, *settings)
    found = json.loads(shown.splitlines()[-1])
    assert code == 0 and "test        loss" in err
    want = evaluate(path, data / "test.jsonl", out, context=32)
    assert found["test_loss"] == pytest.approx(want.nll, rel=1e-6) and found["test_loss_unc"] > 0
    code, _, err = run(capsys, "finetune", "--out", out, "--resume", "--json")
    assert code == 0, err
    files = [data / "train.jsonl", "--val", data / "test.jsonl", "--out", tmp_path / "b.gguf"]
    code, shown, _ = run(capsys, "finetune", path, *files, *settings)
    again = json.loads(shown.splitlines()[-1])
    assert code == 0 and again["rows_val"] > 0 and "test_loss" not in again
    (data / "test.jsonl").write_text((data / "train.jsonl").read_text())
    code, _, err = run(capsys, "finetune", "--out", tmp_path / "b.gguf", "--resume")
    assert code == 2 and "test.jsonl" in err  # other rows to validate on
    code, _, err = run(capsys, "finetune", path, data, "--out", data / "valid.jsonl")
    assert code == 2
