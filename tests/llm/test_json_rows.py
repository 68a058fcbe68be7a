"""Samples of a JSON array, of JSON lines and of dicts in memory are the same samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError
from gradloom.llm.data import read_samples
from gradloom.llm.json_rows import JsonRows
from tests.llm.random_models import write

ALPACA = [{"instruction": "say", "input": f"a {i}", "output": "one two three"} for i in range(6)]
TEXTS = [{"text": f'{i} snow \u2603 \U0001f642 [], {{}} \\" and more'} for i in range(7)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gl.llm.load(write(tmp_path_factory.mktemp("models")))


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("tokens", "counted", "starts"))


@pytest.mark.parametrize("rows", [ALPACA, TEXTS], ids=["pairs", "texts"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_lines_and_dicts_are_the_same_samples(model, tmp_path, rows, indent):
    (tmp_path / "d.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=indent is None))
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = read_samples(tmp_path / "d.jsonl", model.tokenizer)
    for other in (tmp_path / "d.json", tmp_path / "lines.json", rows, tuple(rows)):
        assert same(read_samples(other, model.tokenizer), lines)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_blocks_of_any_size_make_the_same_elements(tmp_path, monkeypatch, block):
    monkeypatch.setattr("gradloom.llm.json_rows._READ", block)
    rows = [*TEXTS, {"text": "x" * 300, "n": [1, 2.5, None, True]}, {}]
    path = tmp_path / "d.json"
    path.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(rows, indent=1, ensure_ascii=False).encode() + b" \n")
    assert list(JsonRows(str(path))) == list(enumerate(rows, 1))
    path.write_text("[ ]")
    assert list(JsonRows(str(path))) == []


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("", "empty"), ("  ", "begins with ''"), ('"a"', "array of objects"), ('[{"text": "a b"}', "after sample 1"),
        ('[{"text": "a b"} {"text": "c"}]', "after sample 1"), ('[{"text": "a b"},]', "sample 2"),
        ('[{"text": "a b"}, {"text": ]', "sample 2"), ('[{"text": "a b"}, 5]', "sample 2: a JSON number"),
        ('[{"text": "a b"}, {"t": 1}]', "sample 2: the keys are t"), ('[{"text": "a b"}] x', "after the end"),
        ("[" * 100000, "layers"), ('[{"text": "a b"}, {"n": ' + "1" * 5000 + "}]", "digits"),
        ('{"text": "a b"}\n[1]', ":2: "), ("[1]", "sample 1: a JSON number"),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_is_no_array_of_objects_is_named(model, tmp_path, text, needed):
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(DataError) as error:
        read_samples(tmp_path / "d.json", model.tokenizer)
    assert needed in str(error.value) and "d.json" in str(error.value) and "\n" not in str(error.value)


def test_elements_that_are_no_samples_are_skipped_when_asked(model, tmp_path):
    (tmp_path / "d.json").write_text(json.dumps([TEXTS[0], 5, {"t": 1}, TEXTS[1]]))
    made = read_samples(tmp_path / "d.json", model.tokenizer, skip_bad_lines=True)
    assert len(made) == 2 and made.report.bad_lines == 2 and "sample 2" in made.report.bad[0]


def test_dicts_in_memory(model):
    kw = {"steps": 2, "context": 32, "batch_size": 2, "val_split": 0.0, "progress": False}
    run = gl.llm.finetune(model, TEXTS, gl.llm.LoRA(2), val=TEXTS[:2], **{**kw, "val_split": None})
    assert run.steps == 2 and len(run.val_rows) >= 1
    assert gl.llm.evaluate(model, TEXTS, context=32).tokens > 0
    assert gl.llm.plan(model, gl.llm.LoRA(2), TEXTS, context=32).total > 0
    for wrong, needed in (
        (["a text"], "{'text': ...}"),
        ([5], "an int"),
        ([{1: "a"}], "texts as keys"),
        ([], "0 samples"),
    ):
        with pytest.raises(DataError) as error:
            gl.llm.finetune(model, wrong, gl.llm.LoRA(2), **kw)
        assert needed in str(error.value) and str(error.value).startswith("data")


def test_a_folder_may_hold_arrays(model, tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(TEXTS))
    (tmp_path / "test.json").write_text(json.dumps(TEXTS[:3]))
    run = gl.llm.finetune(model, tmp_path, gl.llm.LoRA(2), steps=1, context=32, progress=False, val_split=0.0)
    assert run.steps == 1 and gl.llm.evaluate(model, tmp_path, context=32).tokens > 0
