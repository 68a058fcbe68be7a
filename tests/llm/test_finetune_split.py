"""Fine-tuning split over ranks: the same bits for any number of them. Ranks are threads here."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import SettingError, TrainError
from tests.llm.random_models import rows_of, write
from tests.llm.short_finetune import finetune
from tests.real_data import need
from tests.train.split_training import on_ranks


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_lora_gives_the_same_bits_for_any_ranks(tmp_path, arch):
    path, data = write(tmp_path, arch), rows_of(17)
    plain = finetune(path, data, None)
    for count in (1, 2, 3):
        for found in on_ranks(count, lambda ranks: finetune(path, data, ranks)):
            assert found[:2] == plain[:2]
            assert found[2] == plain[2] | {"ranks": count}


def test_full_fine_tuning_too(tmp_path):
    path, data = write(tmp_path), rows_of(12)

    def full():
        return gl.llm.TrainedTensors(["attn_q", "ffn_down", "attn_norm"])

    plain = finetune(path, data, None, full, steps=3, epochs=None)
    for found in on_ranks(2, lambda ranks: finetune(path, data, ranks, full, steps=3, epochs=None)):
        assert found[:2] == plain[:2]


@pytest.mark.slow
def test_stories(tmp_path):
    path, text = need("gguf/stories260K.gguf"), tmp_path / "text.txt"
    text.write_text(need("text/tinyshakespeare.txt").read_text()[:6000])
    options = {"context": 64, "batch_size": 8, "micro_batch_size": 3, "steps": 3, "epochs": None}
    plain = finetune(path, text, None, **options)
    for found in on_ranks(3, lambda ranks: finetune(path, text, ranks, **options)):
        assert found[:2] == plain[:2]
    fast = on_ranks(2, lambda ranks: finetune(path, text, ranks, exchange="fast", **options))
    assert fast[0] == fast[1]
    np.testing.assert_allclose(fast[0][2]["train_loss"], plain[2]["train_loss"], rtol=1e-4)


def test_the_share_of_a_rank_is_the_default(tmp_path):
    path, data = write(tmp_path), rows_of(12)
    found = on_ranks(2, lambda ranks: finetune(path, data, ranks, micro_batch_size=None, steps=1, epochs=None))
    assert found[0][2]["micro_batch_size"] == 3
    assert finetune(path, data, None, micro_batch_size=None, steps=1, epochs=None)[2]["micro_batch_size"] == 5


def test_what_one_rank_refuses_ends_all(tmp_path):
    path = write(tmp_path)

    def run(ranks):
        finetune(path, rows_of(12), ranks, context=1 if ranks.rank == 1 else None)

    found = on_ranks(3, run)
    assert isinstance(found[1], SettingError) and "context=1: must be" in str(found[1])
    for error in (found[0], found[2]):
        assert isinstance(error, TrainError) and "replica 1: context=1: must be" in str(error)


def test_models_that_differ_are_named(tmp_path):
    (tmp_path / "other").mkdir()
    paths = [write(tmp_path), write(tmp_path / "other", seed=5)]
    for error in on_ranks(2, lambda ranks: finetune(paths[ranks.rank], rows_of(12), ranks)):
        assert isinstance(error, TrainError) and "replica 1 differs from replica 0 in the graph" in str(error)


def test_rank_0_alone_saves(tmp_path):
    path = write(tmp_path)

    def run(ranks):
        made = gl.llm.finetune(path, rows_of(12), parallel=ranks, steps=1, progress=False, threads=1)
        made.save(tmp_path / f"{ranks.rank}.gguf")

    assert on_ranks(2, run) == [None, None]
    assert (tmp_path / "0.gguf").exists() and not (tmp_path / "1.gguf").exists()


@pytest.mark.parametrize("where", ["on_epoch", "on_progress"])
def test_a_listener_on_rank_0_stops_all(tmp_path, where):
    path = write(tmp_path)

    def heard(at):
        raise gl.train.StopTraining

    def run(ranks):
        settings = {"epochs": 5, "batch_size": 4, "micro_batch_size": 2, "threads": 1, "progress": False, where: heard}
        made = gl.llm.finetune(path, rows_of(17), gl.llm.LoRA(rank=2), parallel=ranks, **settings)
        arrays = {name: p.numpy().tobytes() for name, p in made.adapter.parameters().items()}
        return made.stopped, made.steps, len(made.history), arrays

    found = on_ranks(2, run)
    assert found[0] == found[1] and found[0][0] and found[0][2] == 1


def test_the_plan_counts_what_is_exchanged(tmp_path):
    path = write(tmp_path)

    def run(ranks):
        made = gl.llm.finetune(path, rows_of(12), parallel=ranks, steps=1, progress=False, threads=1)
        planned = made.memory()
        return planned.trained, planned.gradients, planned.inputs

    trained, gradients, inputs = on_ranks(2, run)[0]
    assert gradients >= 2 * trained  # the sum, and what the reduction of threads holds
    assert inputs < trained + (1 << 16)
