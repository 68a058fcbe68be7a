"""gradloom predict for language models with a head: classes, numbers and rewards of texts, as CSV and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gradloom as gl
from tests.cli.command import run
from tests.llm.random_models import write

TEXTS = ["fine day", "no, rain", "so glad", "it fell", "a joy", "=lost"]
LABELS = ["good", "bad"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads of each kind, and texts."""
    place = tmp_path_factory.mktemp("heads")
    write(place, "llama").rename(place / "m.gguf")
    lines = {
        "classify": [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
        "several": [{"text": t, "label": ["any"] if i % 2 else ["any", "odd"]} for i, t in enumerate(TEXTS)],
        "regress": [{"text": text, "label": float(i)} for i, text in enumerate(TEXTS)],
        "reward": [{"prompt": "Say: ", "chosen": t, "rejected": "no"} for t in TEXTS],
    }
    for name, rows in lines.items():
        objective = "classify" if name == "several" else name
        trained = gl.llm.finetune(
            place / "m.gguf", rows, objective=objective, epochs=20, lr=2e-2, context=32, batch_size=4, val_split=0.0,
            progress=False,
        )  # fmt: skip
        trained.save(place / f"{name}.gguf")
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cells = ['"no, rain"' if text == "no, rain" else text for text in TEXTS]
    rows_of_csv = [f"{i},{text},{label}" for i, (text, label) in enumerate(zip(cells, LABELS, strict=True))]
    (place / "t.csv").write_text("\n".join(["id,text,label", *rows_of_csv]) + "\n")
    (place / "t.txt").write_text("\n".join(TEXTS) + "\n\n")
    return place


@pytest.mark.parametrize("name", ["t.csv", "classify.jsonl", "t.txt"])
def test_classes_as_csv(capsys: Any, folder: Path, name: str) -> None:
    code, out, err = run(capsys, "predict", folder / "m.gguf", folder / name, "--lora", folder / "classify.gguf")
    assert code == 0, err
    lines = [line.split(",") for line in out.splitlines()]
    assert lines[0] == ["label", "p(bad)", "p(good)"]
    assert [line[0] for line in lines[1:]] == LABELS
    assert all(abs(float(a) + float(b) - 1) < 1e-12 for _, a, b in lines[1:])
    assert ("accuracy 1.0000 +- 0.0000 on 6 rows" in err) == (name != "t.txt")


def test_columns_are_kept_and_files_written(capsys: Any, folder: Path, tmp_path: Path) -> None:
    given = ("predict", folder / "m.gguf", folder / "t.csv", "--lora", folder / "classify.gguf", "--keep", "id,text")
    code, _, err = run(capsys, *given, "--out", tmp_path / "p.csv", "--escape-formulas")
    assert code == 0, err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "id,text,label,p(bad),p(good)"
    assert lines[2].startswith('1,"no, rain",bad,')
    assert lines[6].startswith("5,'=lost,bad,")


def test_predictions_as_json(capsys: Any, folder: Path) -> None:
    found = {}
    for name in ("classify", "several", "regress", "reward"):
        data = "t.txt" if name == "reward" else f"{name}.jsonl"
        code, out, err = run(
            capsys, "predict", folder / "m.gguf", folder / data, "--lora", folder / f"{name}.gguf", "--json"
        )
        assert code == 0, err
        found[name] = json.loads(out)
    assert found["classify"]["accuracy"] == 1
    assert found["classify"]["classes"] == ["bad", "good"]
    assert (found["several"]["predictions"][1], found["several"]["accuracy"]) == (["any"], 1)
    assert found["regress"]["task"] == "regression"
    assert found["regress"]["r2"] > 0.8
    assert (found["reward"]["task"], found["reward"]["target"]) == ("reward", "reward")
    direct = gl.llm.predict(folder / "m.gguf", TEXTS, folder / "reward.gguf")
    assert found["reward"]["predictions"] == direct.values


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m.gguf", "t.csv"], "has no head"),
        (["m.gguf", "t.csv", "--lora", "classify.gguf", "--text-key", "words"], "need words, prompt with completion"),
        (["m.gguf", "t.csv", "--lora", "classify.gguf", "--keep", "name"], "has no 'name'"),
        (["m.gguf", "t.csv", "--lora", "classify.gguf", "--out", "classify.gguf"], "classify.gguf"),
        (["m.gguf", "t.npz", "--lora", "classify.gguf"], "the name ends in .npz; possible are"),
        (["model.safetensors", "t.csv", "--lora", "classify.gguf"], "requires a language model as MODEL"),
        (["m.gguf", "classify.jsonl", "--lora", "classify.gguf", "--encoding", "cp1252"], "requires a .csv or .txt"),
    ],
)
def test_mistakes_are_one_line(capsys: Any, folder: Path, monkeypatch: Any, words: list[str], text: str) -> None:
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, "predict", *words)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_labels_of_csv(capsys: Any, folder: Path, tmp_path: Path) -> None:
    """Several labels in a cell are compared; those that the head does not know are counted."""
    found = {}
    for name, labels in (("several", ["any;odd", "any", "", "any;new"]), ("classify", ["good", "bad", "", "new"])):
        cells = zip(TEXTS[0:1] + TEXTS[3:6], labels, strict=True)
        (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in cells))
        given = ["predict", folder / "m.gguf", tmp_path / "t.csv", "--lora", folder / f"{name}.gguf", "--json"]
        code, out, err = run(capsys, *given)
        assert code == 0, err
        found[name] = json.loads(out)
        assert found[name]["notes"] == ["not compared: 1 row with another 'label' than the model knows"]
        assert found[name]["notes"][0] in err
    assert found["several"]["rows_with_target"] == 3  # a cell without a label is a text with none
    assert found["classify"]["rows_with_target"] == 2


def test_empty_texts(capsys: Any, folder: Path, tmp_path: Path) -> None:
    given = ["predict", folder / "m.gguf", tmp_path / "t.txt", "--lora", folder / "classify.gguf"]
    (tmp_path / "t.txt").write_text("fine day\n\nno, rain\n\n")
    code, out, err = run(capsys, *given)
    assert code == 0 and len(out.splitlines()) == 3 and "t.txt:2: is empty; such lines have no result" in err
    (tmp_path / "t.csv").write_text("text,id\nfine day,1\n,2\n")
    code, _, err = run(capsys, "predict", folder / "m.gguf", tmp_path / "t.csv", "--lora", folder / "classify.gguf")
    assert code == 2 and f"1 of 2 texts are empty, the first one is {tmp_path / 't.csv'}:3" in err


def test_a_merged_head_is_used_by_predict(capsys: Any, folder: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "merge", folder / "m.gguf", folder / "classify.gguf", "-o", tmp_path / "o.gguf")
    assert code == 0 and f"gradloom predict {tmp_path / 'o.gguf'} texts.csv" in out and "elsewhere" not in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "keys"),
    [("classify", ["accuracy", "balanced_accuracy", "f1_macro"]), ("regress", ["rmse", "mae", "r2"])],
)
def test_training_ends_with_scores(capsys: Any, folder: Path, tmp_path: Path, objective: str, keys: list[str]) -> None:
    """Of the validation and the test rows, with their uncertainties."""
    lines = [json.loads(line) for line in (folder / f"{objective}.jsonl").read_text().splitlines()]
    for name in ("train", "valid", "test"):
        rows = lines if name == "train" else lines[:4]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 8))
    code, out, err = run(
        capsys, "finetune", folder / "m.gguf", tmp_path, "--objective", objective, "--context", 16, "--lr", 0.02,
        "--epochs", 4, "--out", tmp_path / "o.gguf", "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    for key in keys:
        assert {key, f"test_{key}"} <= found.keys()
    assert f"test_{keys[0]}_unc" in found
    scores = next(line for line in err.splitlines() if line.startswith("test "))
    assert ("accuracy" if objective == "classify" else "R2") in scores
    used = next(line for line in err.splitlines() if line.startswith("use it"))
    assert used.endswith(f"gradloom predict {folder / 'm.gguf'} --lora {tmp_path / 'o.gguf'} texts.csv")
    assert not any(line.startswith("elsewhere") for line in err.splitlines())


def test_options_of_reading(capsys: Any, folder: Path, tmp_path: Path) -> None:
    """Each changes the numbers, but for --threads."""
    chats = [[{"role": "user", "content": f"{text} </s>"}, {"role": "assistant", "content": "yes"}] for text in TEXTS]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"talk": chat}) + "\n" for chat in chats))
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}"
    (tmp_path / "one.jinja").write_text(source)
    (tmp_path / "two.jinja").write_text(source.replace(": ", " - "))
    given = ["predict", folder / "m.gguf", tmp_path / "c.jsonl", "--lora", folder / "reward.gguf"]
    given += ["--messages-key", "talk", "--chat-template"]
    code, plain, err = run(capsys, *given, tmp_path / "one.jinja")
    assert code == 0, err
    assert run(capsys, *given, tmp_path / "one.jinja", "--threads", 2)[1] == plain
    changed = [
        [tmp_path / "two.jinja"],
        *([tmp_path / "one.jinja", *more] for more in (["--context", 4], ["--special"])),
    ]
    for words in changed:
        code, out, err = run(capsys, *given, *words)
        assert code == 0, err
        assert out != plain
    for words in (["--context", 0], ["--context", 10**6], ["--threads", 0]):
        code, _, err = run(capsys, *given, tmp_path / "one.jinja", *words)
        assert code == 2 and words[0] in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "words", "text"),
    [
        ("text\na\n\n", [], None),
        ("text,n\na,1\n,2\nb,3\n", [], "predict: 1 of 3 texts are empty, the first one is {file}:3; need at least one"),
        ("text\na\nb\n", ["--text-key", "nope"], "{file}:2: the keys are text; need nope, "),
        ("text\na\n", ["--encoding", ""], "--encoding: must be a character encoding"),
        ("text\na\n", ["--encoding", "utf-16"], "{file}: byte 0 is not utf-16 ("),
    ],
)
def test_rows_are_named_by_their_lines(
    capsys: Any, folder: Path, tmp_path: Path, lines: str, words: list[str], text: str | None
) -> None:
    file = tmp_path / "t.csv"
    file.write_text(lines)
    code, _, err = run(capsys, "predict", folder / "m.gguf", file, "--lora", folder / "classify.gguf", *words)
    assert code == (0 if text is None else 2), err
    assert text is None or (text.format(file=file) in err and err.count("\n") == 1), err
    file.with_suffix(".jsonl").write_text('\n{"text": "a"}\n{"text": 3}\n')
    for command, head in (("predict", "reward"), ("predict", "classify"), ("embed", "")):
        adapter = ["--lora", folder / f"{head}.gguf"] if head else []
        code, _, err = run(capsys, command, folder / "m.gguf", file.with_suffix(".jsonl"), *adapter)
        assert code == 2 and "t.jsonl:3: text is a number; need a text; mend the line\n" in err, err


def test_kept_values_are_written_as_labels_are(capsys: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    row = {"text": "a", "tags": ["x", "y"], "ok": True, "more": {"n": 1}, "n": 2, "none": None}
    file.write_text(json.dumps(row) + "\n")
    words = ["predict", folder / "m.gguf", file, "--lora", folder / "classify.gguf", "--keep"]
    code, out, err = run(capsys, *words, "tags,ok,more,n,none")
    assert code == 0 and out.splitlines()[1].startswith('x;y,true,"{""n"": 1}",2,,'), err
    file.write_text(json.dumps({"text": "a", "p(good)": 1}) + "\n")
    code, out, err = run(capsys, *words, "p(good)")
    assert (code, out) == (2, "") and "--keep" in err and "is the name of a column of predictions" in err
