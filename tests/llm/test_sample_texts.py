"""Texts that are sampled while a model is fine-tuned: what they are, who hears of them; training stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradloom as gl
from gradloom import DataError, SettingError
from gradloom.llm import LoRA, finetune, generate, load
from gradloom.llm.finetune import Run
from gradloom.llm.plan import plan
from tests.llm.random_models import packed, write
from tests.train.split_training import on_ranks

PROMPTS = ["one two three", "x"]


def run_on(path: Path, steps: int = 6, **options: Any) -> Run:
    settings = {"val_split": 0.0, "batch_size": 4, "micro_batch_size": 2, "progress": False, "threads": 1}
    settings |= {"optimizer": gl.optim.AdamW(lr=3e-2)}
    return finetune(load(path), packed(9, 24), LoRA(rank=4, dropout=0.2, seed=1), steps=steps, **(settings | options))


def trained(run: Run) -> dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}


def test_texts_are_those_of_the_weights_at_that_step(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    run = run_on(path, 5, sample_prompt=PROMPTS, sample_every="2steps", sample_tokens=9)
    assert [(text.step, text.prompt) for text in run.samples] == [(s, p) for s in (2, 4, 5) for p in PROMPTS]
    for steps in (2, 4, 5):
        there = run_on(path, steps)
        for text in run.samples:
            if text.step == steps:
                again = generate(there.model, text.prompt, there.adapter, max_tokens=9, temperature=0, threads=1)
                assert text.text == again
    assert len({text.text for text in run.samples if text.prompt == PROMPTS[0]}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["llama", "qwen3_untied"])
def test_training_is_the_same_with_and_without(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, case)
    plain = run_on(path)
    for options in ({"sample_every": "1steps"}, {"sample_every": "1epoch", "sample_temperature": 0.9}):
        run = run_on(path, sample_prompt="some words", **options)
        assert run.samples and trained(run) == trained(plain)
        assert [e.train.loss for e in run.history] == [e.train.loss for e in plain.history]


@pytest.mark.slow
def test_texts_drawn_by_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    options = {"sample_prompt": "some words", "sample_every": "3steps", "sample_tokens": 12}
    one, two, other = (
        run_on(path, sample_temperature=1.0, seed=seed, optimizer=gl.optim.SGD(lr=0.0), **options) for seed in (3, 3, 4)
    )
    assert one.samples == two.samples and one.samples[0].text != other.samples[0].text
    greedy = run_on(path, optimizer=gl.optim.SGD(lr=0.0), **options)
    assert greedy.samples[0].text == greedy.samples[1].text != one.samples[0].text


def test_who_hears_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Heard(gl.train.Callback):
        def __init__(self) -> None:
            self.texts: list[Any] = []

        def on_sample(self, sample: Any) -> None:
            self.texts.append(sample)
            if sample.step == 4:
                raise gl.train.StopTraining("enough")

    path, heard = write(tmp_path, "llama"), Heard()
    run = run_on(path, 9, sample_prompt="a\nb", sample_every="2steps", callbacks=[heard], progress=True)
    assert run.stopped and run.steps == 4 and run.samples == heard.texts and len(heard.texts) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert [line for line in lines if " -> " in line] == [
        f"step {text.step}  {text.prompt!r} -> {text.text!r}" for text in run.samples
    ]


def test_ranks_sample_once(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    options = {"sample_prompt": "some words", "sample_every": "2steps"}
    plain = run_on(path, **options)
    found = on_ranks(2, lambda ranks: run_on(path, parallel=ranks, **options))
    assert found[0].samples == plain.samples and not found[1].samples
    assert trained(found[0]) == trained(found[1]) == trained(plain)


@pytest.mark.slow
def test_the_plan_counts_them(tmp_path: Path) -> None:
    """The cache of keys and values, and the arena where a text needs more than a step does."""
    path = write(tmp_path, "llama", context=4096)
    settings = {"context": 24, "batch_size": 4, "micro_batch_size": 2, "threads": 1}
    asked = {"sample_prompt": "some words", "sample_tokens": 3000}
    bare, planned = plan(load(path), LoRA(rank=4), **settings), plan(load(path), LoRA(rank=4), **settings, **asked)
    cache = 2 * 2 * 4 * 3000 * 2 * 8  # layers, keys and values, f32, tokens, heads, numbers of each
    assert cache <= planned.inputs - bare.inputs < 1.1 * cache + (1 << 16)
    run = Run(load(path), packed(4, 24), LoRA(rank=4), val_split=0.0, **settings | asked | {"context": None})
    run.prepare()
    assert (run.memory().arena, run.memory().scratch) == (planned.arena, planned.scratch)
    assert run.memory().inputs - bare.inputs >= cache


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sample_every": "9steps"}, SettingError, "sample_every='9steps' requires sample_prompt"),
        ({"sample_tokens": 9, "sample_temperature": 0.5}, SettingError, "sample_tokens=9 requires sample_prompt"),
        ({"sample_prompt": []}, SettingError, r"sample_prompt=\[\]: must be a text, or a list of texts"),
        ({"sample_prompt": [3]}, SettingError, "must be a text, or a list of texts"),
        ({"sample_prompt": "a", "sample_every": "9min"}, SettingError, "sample_every='9min': must be"),
        ({"sample_prompt": "a", "sample_tokens": 0}, SettingError, "sample_tokens=0: must be"),
        ({"sample_prompt": "a", "sample_temperature": -1}, SettingError, "temperature=-1: must be"),
        ({"sample_prompt": "a", "sample_tokens": 10**6}, DataError, "max_tokens=1000000; the context is"),
    ],
)
def test_what_cannot_be_sampled(tmp_path: Path, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        run_on(write(tmp_path, "llama"), **options)
