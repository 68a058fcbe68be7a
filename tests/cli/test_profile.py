"""gradloom profile: times of a model's step, of generation, of a run; nothing else comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradloom.cli.main import main
from tests.cli.command import run
from tests.cli.test_fit import flowers
from tests.cli.test_language import TEXT
from tests.llm.random_models import write

Found = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, texts, pairs, a table, and a run of each."""
    made = tmp_path_factory.mktemp("profile")
    write(made, "llama", chat=True, context=128).rename(made / "m.gguf")
    (made / "t.txt").write_text(" ".join(TEXT.split() * 100))
    pairs = [{"prompt": "once", "chosen": " upon a time", "rejected": " there"} for _ in range(12)]
    (made / "d.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    flowers(made / "t.csv")
    common = ["--context", "32", "--steps", "1"]
    sizes = ["--batch-size", "4", "--micro-batch-size", "2"]
    for line in (
        ["finetune", made / "m.gguf", made / "t.txt", *common, *sizes, "--out", made / "a.gguf", "--log", "csv"],
        ["finetune", made / "m.gguf", made / "d.jsonl", *common, "--objective", "dpo", "--out", made / "p.gguf"],
        ["fit", made / "t.csv", "--epochs", "1", "--out", made / "fitted"],
        ["fit", made / "t.csv", "--epochs", "1", "--out", made / "one", "--ensemble", "1", "--micro-batch-size", "8"],
    ):
        assert main([str(word) for word in line]) == 0
    return made


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Found:
    """The JSON object of a profile."""

    def profiled(*words: object) -> dict[str, Any]:
        code, out, err = run(capsys, "profile", *words, "--steps", 2, "--json")
        assert code == 0, err
        assert "by op" in out and "GFLOP/s" in out and "limits measured here" in out
        last: dict[str, Any] = json.loads(out.splitlines()[-1])
        return last

    return profiled


def only(document: dict[str, Any]) -> dict[str, Any]:
    (one,) = document["profiles"].values()
    return one


def work(document: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on times."""
    by_op = sorted((row["name"], row["count"], row["flops"], row["bytes"]) for row in only(document)["by_op"])
    return {"instructions": only(document)["instructions"], "where": only(document)["where"], "by_op": by_op}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_step_of_a_model(folder: Path, found: Found, tmp_path: Path) -> None:
    before, trace = contents(folder), tmp_path / "trace.json"
    document = found(folder / "m.gguf", "--context", 32, "--batch-size", 2, "--trace", trace)
    one = only(document)
    assert list(document["profiles"]) == ["step of 2 x 32 tokens"] and one["steps"] == 2
    assert sum(row["seconds"] for row in one["by_op"]) == pytest.approx(one["seconds"])
    assert {"matmul", "attention_back", "adamw"} <= {row["name"] for row in one["by_op"]}
    assert {"blk.*.attn_q", "blk.*.ffn_up"} <= {row["name"] for row in one["by_pattern"]}
    assert {"blk.0.attn_q", "blk.1.attn_q"} <= {row["name"] for row in one["by_module"]}
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(events) == one["instructions"] and document["trace"] == str(trace)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "option",
    ["--method full", "--rank 3", "--targets attn_q", "--context 48", "--batch-size 2", "--optimizer sgd",
     "--precision bf16", "--threads 1", "--lora a.gguf"],
)  # fmt: skip
def test_each_option_changes_what_is_timed(option: str, folder: Path, found: Found) -> None:
    words = [folder / word if word.endswith(".gguf") else word for word in option.split()]
    words = [*words, "--targets", "attn_k"] if option == "--lora" else words
    base = [] if option == "--threads 1" else ["--threads", 2]
    more = ["--rank", 5] if option.startswith("--lora") else []
    plain = work(found(folder / "m.gguf", *more, *base, *([] if "--context" in option else ["--context", 32])))
    words = [*words, *base, *([] if "--context" in option else ["--context", 32])]
    assert work(found(folder / "m.gguf", *words)) != plain


def test_generation(folder: Path, found: Found) -> None:
    document = found(folder / "m.gguf", "--generate", "--context", 100)
    assert list(document["profiles"]) == ["prompt of 64", "token"]
    prompt, token = document["profiles"].values()
    assert prompt["instructions"] > 10 < token["instructions"]

    def flops(one: dict[str, Any]) -> float:
        return sum(row["flops"] for row in one["by_op"])

    assert flops(prompt) > 20 * flops(token) > 0
    other = found(folder / "m.gguf", "--generate", "--lora", folder / "a.gguf", "--context", 100)
    assert flops(other["profiles"]["token"]) > flops(token)
    assert list(found(folder / "m.gguf", "--generate", "--context", 2)["profiles"]) == ["prompt of 64", "token"]


@pytest.mark.parametrize(
    ("name", "title"),
    [("a.run", "micro-batch of 2 of 4 x 32 tokens, with the update"), ("p.run", "x 64 tokens, with the update"),
     ("fitted", "rows, with the update"), ("one", "micro-batch of 8 of 32 rows, with the update")],
)  # fmt: skip
def test_a_step_of_a_run(name: str, title: str, folder: Path, found: Found) -> None:
    before = contents(folder)
    document = found(folder / name)
    (called,) = document["profiles"]
    assert called.endswith(title) and "adamw" in {row["name"] for row in only(document)["by_op"]}
    assert contents(folder) == before
    assert "1 thread)" in only(found(folder / name, "--threads", 1))["where"]


def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = folder / "m.gguf"

    def refused(text: str, *words: object) -> None:
        code, out, err = run(capsys, "profile", *words)
        assert code == 2 and not out and text in err.splitlines()[-1], err

    refused("--batch-size 2: a run has its own settings; leave it out", folder / "a.run", "--batch-size", 2)
    refused("--generate: a run has its own settings", folder / "fitted", "--generate")
    refused("--rank 2 and --generate are mutually exclusive", model, "--generate", "--rank", 2)
    refused("--steps 0: must be a whole number of at least 1", model, "--steps", 0)
    refused("--context 1: must be 2 to 128, the model's context", model, "--context", 1)
    refused("--context 129: must be 2 to 128", model, "--context", 129, "--generate")
    refused("--method half: must be lora or full", model, "--method", "half")
    refused("--precision f16: must be f32 or bf16", model, "--precision", "f16")
    refused("nowhere.gguf: ", tmp_path / "nowhere.gguf")
    refused("--train-dtype f32 requires --method full", model, "--train-dtype", "f32")
    refused("--optimizer", model, "--optimizer", "adamx")
    refused("--device nowhere", model, "--device", "nowhere")
    refused("--device null", model, "--device", "null")
    refused("nowhere", model, "--trace", tmp_path / "nowhere" / "t.json")
    refused("m.gguf", model, "--trace", model)
    assert model.stat().st_size > 1000 and not list(tmp_path.iterdir())
    settings = folder / "a.run" / "settings.toml"
    text = settings.read_text()
    several = tmp_path / "several"
    several.mkdir()
    assert "\nranks = 1\n" in text
    (several / "settings.toml").write_text(text.replace("\nranks = 1\n", "\nranks = 2\n"))
    refused("a run of 2 ranks; a profile requires a run of one process", several)
    (several / "settings.toml").write_text("x = 1\n")
    refused("has no table [run]", several)


def test_a_full_training_needs_copies_of_quantised_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path, "qwen2", kind="f16", context=64)
    code, _, err = run(capsys, "profile", model, "--method", "full", "--context", 16)
    assert code == 2 and "--train-dtype f32" in err
    words = ["profile", model, "--method", "full", "--context", 16, "--steps", 1, "--train-dtype", "f32"]
    code, out, _ = run(capsys, *words)
    assert code == 0 and "by op" in out
