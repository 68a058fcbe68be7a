"""Objectives with a head: losses by hand, gradients against PyTorch in float64, files, and other promises."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, FileError, SettingError, TrainError
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.graph.leaves import constant
from gradloom.llm.adapter_gguf import read_adapter_gguf
from gradloom.llm.finetune import Run
from gradloom.llm.head import CLASSIFIER, HEAD, Head
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.llm.objectives.classify import Classify
from gradloom.llm.objectives.regress import Regress
from gradloom.llm.objectives.reward import Reward
from gradloom.llm.rows import Rows
from gradloom.llm.scored import Scored
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm import head_rows
from tests.llm.random_models import write
from tests.llm.test_objectives import computed, run_of, trained
from tests.llm.test_resume import interrupted_at
from tests.train.split_training import on_ranks

DATA: dict[str, Any] = {
    "reward": head_rows.pairs, "classify": head_rows.classes, "regress": head_rows.numbers, "embed": head_rows.pairs
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "reward": {"center_rewards_coefficient": 0.1}, "classify": {"class_weight": "balanced"},
    "embed": {"temperature": 0.1},
}  # fmt: skip
THREE, SEVERAL = Head("classify", ("a", "b", "c")), Head("classify", ("a", "b", "c"), True)
POOLED = list(DATA)
HEADS = [name for name in POOLED if name != "embed"]  # test_embed.py has the rest of it


def scored(scores: Any, numbers: Any = (), head: Head | None = None) -> Scored:
    """Scores [parts, classes] of one sample."""
    a = np.array(scores, np.float32)
    number = np.array(numbers, np.float32).reshape(1, 1, -1)
    one = constant(np.ones((1, 1), np.float32))
    return Scored(constant(a.reshape(1, 1, *a.shape)), constant(number), one, head or Head("reward"))


@pytest.mark.parametrize(
    ("objective", "sample", "value"),
    [
        (Reward(), scored([[1.2], [0.4]]), 0.371101),
        (Reward(), scored([[1.2], [0.4]], [0.8]), np.log(2)),
        (Reward(0.01), scored([[1.2], [0.4]]), 0.371101 + 0.01 * 1.6**2),
        (Classify(), scored([[1.0, 2.0, 0.5]], [1], THREE), np.log(np.exp([-1, 0, -1.5]).sum())),
        (Classify(), scored([[1.0, -2.0, 0.0]], [1, 0, 1], SEVERAL), np.log1p(np.exp([-1, -2, 0])).mean()),
        (Regress(), scored([[0.5]], [1.0], Head("regress", mean=7.0, deviation=2.0)), 0.25),
    ],
)
def test_losses_are_those_by_hand(objective: Any, sample: Scored, value: float) -> None:
    assert computed(objective.loss_of(sample)) == pytest.approx(value, rel=2e-6)


def test_rows_have_the_places_of_the_last_tokens() -> None:
    """Two texts in one row, and one that is cut."""
    texts = [[5, 6, 7], [8, 9], list(range(10, 20)), [30]]
    data = head_rows.rows_of(texts, 2, None, context=6)
    assert data.tokens.shape[1] == 12
    assert (data.labels == -100).all()
    x, labels = Reward().arrays(data)
    assert data.parts is not None
    for sample, row in enumerate(((5, 6, 7), (8, 9))):
        r, k = np.argwhere(data.samples == 0)[0]
        last = x[r, 2, 2 * k + sample]
        assert x[r, 0, last - len(row) + 1 : last + 1].tolist() == list(row)
        assert x[r, 1, last] == len(row) - 1
        assert labels[r, k, 0] == 1
    r, k = np.argwhere(data.samples == 1)[0]
    assert x[r, 0, x[r, 2, 2 * k]] == 15
    assert x[r, 0, x[r, 2, 2 * k + 1]] == 30
    assert data.reports[0].cut == 1


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("objective", "data"),
    [
        ("reward", head_rows.pairs(6)),
        (Reward(0.05), head_rows.pairs(6, margins=True)),
        ("classify", head_rows.classes(7)),
        (Classify("balanced"), head_rows.classes(7)),
        (Classify({"good": 3.0}), head_rows.classes(7)),
        ("classify", head_rows.classes(7, several=True)),
        ("regress", head_rows.numbers(7)),
    ],
)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_gradients_are_those_of_float64(tmp_path: Path, objective: Any, data: Rows, method: str) -> None:
    """One step of SGD of rate 1: what it subtracts is the gradient."""
    torch = pytest.importorskip("torch")
    from tests.llm import head_oracle
    from tests.llm.torch_model import TorchModel

    path = write(tmp_path, "qwen2_partial")
    oracle = TorchModel(path, torch.float64)
    first: Any = TrainedTensors(["attn_q", "ffn_up"])
    pairs = None
    scale = 1.0
    if method == "lora":
        first = LoRA(rank=3, alpha=6, targets="all", seed=4)
        first.bind(load(path))
        rng = np.random.default_rng(3)
        for b in first.b.values():
            b.assign(rng.normal(0, 0.05, b.shape))
        pairs = oracle.adapter({n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a})
        scale = first.scale
    start = head_oracle.first_head(path, objective, data, first)
    truth = head_oracle.loss(oracle, data, objective, start, pairs, scale)
    run = run_of(
        path, data, objective, adapter=first, steps=1, micro_batch_size=2, lr=None, batch_size=len(data.tokens),
        optimizer=gl.optim.SGD(lr=1.0), max_norm=np.inf,
    )  # fmt: skip
    assert run.history[0].train.loss == pytest.approx(truth.loss, rel=1e-5)
    now = {name: p.numpy() for name, p in run.adapter.parameters().items()}
    assert HEAD in now
    for name, (before, gradient) in truth.gradients(oracle, pairs, first).items():
        moved = before - now[name]
        assert np.linalg.norm(moved - gradient) <= 2e-4 * np.linalg.norm(gradient) + 1e-6, name


@pytest.mark.parametrize("objective", POOLED)
def test_bits_do_not_depend_on_threads(tmp_path: Path, objective: str) -> None:
    path, data = write(tmp_path, "qwen3"), DATA[objective](12)
    one, two = (run_of(path, data, objective, epochs=2, threads=threads) for threads in (1, 2))
    assert trained(one) == trained(two)
    assert (HEAD in trained(one)) == (objective != "embed")


@pytest.mark.slow
@pytest.mark.parametrize("objective", POOLED)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_bits_of_one_process(tmp_path: Path, objective: str, ranks: int) -> None:
    path, data = write(tmp_path, "llama"), DATA[objective](14, val=2)
    settings: dict[str, Any] = {"batch_size": 4, "micro_batch_size": 1, "epochs": 2}
    one = run_of(path, data, objective, **settings)
    found = on_ranks(ranks, lambda rank: trained(run_of(path, data, objective, parallel=rank, **settings)))
    assert found == [trained(one)] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("objective", POOLED)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_resumed_run_has_the_bits_of_one_that_was_never_stopped(tmp_path: Path, objective: str, method: str) -> None:
    path, data = write(tmp_path, "llama"), DATA[objective](16, val=2)
    settings: dict[str, Any] = {"epochs": 3, "micro_batch_size": 1, "method": method, "batch_size": 2}
    whole = run_of(path, data, objective, **settings)
    settings["run"] = tmp_path / "run"
    first = run_of(path, data, objective, callbacks=[interrupted_at(5)], **settings)
    assert first.interrupted
    if objective in OTHERS:
        with pytest.raises(TrainError, match="objective is"):
            run_of(path, data, objective, resume=True, **settings, **OTHERS[objective])
    again = run_of(path, data, objective, resume=True, threads=2, **settings)
    assert trained(again) == trained(whole)
    assert again.report["val_loss"] == whole.report["val_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("objective", POOLED)
def test_the_plan_is_that_of_the_run(tmp_path: Path, objective: str) -> None:
    path, data = write(tmp_path, "llama"), DATA[objective](14, val=2)
    settings: dict[str, Any] = {"objective": objective, "batch_size": 4, "micro_batch_size": 2, "threads": 2}
    planned = gl.llm.plan(load(path), LoRA(rank=3), data, **settings)
    run = Run(load(path), data, LoRA(rank=3), **settings)
    run.prepare()
    made = run.memory()
    for name in ("weights", "trained", "state", "gradients", "inputs", "arena", "scratch", "steps", "process"):
        assert getattr(planned, name) == getattr(made, name), name
    adapter = LoRA(rank=3)
    without = gl.llm.plan(load(path), adapter, **settings, context=24)
    assert without.trained >= 4 * 48
    assert adapter.head is None and adapter.embedding is None


@pytest.mark.parametrize("objective", POOLED)
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"method": "full"}, {"kind": "q8_0"}])
def test_precisions_types_and_methods(tmp_path: Path, objective: str, settings: dict[str, Any]) -> None:
    """bf16 products, all tensors trained, a quantised base: the loss falls."""
    kind = {"kind": settings["kind"]} if "kind" in settings else {}
    path = write(tmp_path, "llama_untied", **{"width": 64, "heads": 8, "ffn": 96} | kind)
    given = {name: value for name, value in settings.items() if name != "kind"}
    run = run_of(path, DATA[objective](8), objective, epochs=20, **given)
    losses = run.history.to_dict()["loss"]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("objective", POOLED)
def test_a_step_is_verified(tmp_path: Path, objective: str) -> None:
    found = gl.llm.verify(load(write(tmp_path, "llama")), DATA[objective](6), objective=objective)
    assert found.agrees, found
    assert found.tokens > 0


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", HEADS)
@pytest.mark.parametrize("name", ["head.gguf", "folder"])
def test_a_saved_adapter_holds_its_head(tmp_path: Path, objective: str, name: str) -> None:
    path = write(tmp_path, "llama")
    run = run_of(path, DATA[objective](8), objective, epochs=2)
    run.save(tmp_path / name)
    again = LoRA.load(tmp_path / name, path)
    assert again.head == run.adapter.head
    assert again.parameters()[HEAD].numpy().tobytes() == run.adapter.parameters()[HEAD].numpy().tobytes()
    if name == "folder":
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["score"])


@pytest.mark.parametrize(
    ("objective", "arch"), [*((name, "llama") for name in HEADS), *((name, "qwen3") for name in HEADS)]
)
def test_a_trained_model_holds_its_head(tmp_path: Path, objective: str, arch: str) -> None:
    """Its file is a start for another training, and a merged model keeps the head."""
    path = write(tmp_path, arch)
    run = run_of(path, DATA[objective](8), objective, method="full", epochs=2)
    run.save(tmp_path / "whole.gguf")
    found = load(tmp_path / "whole.gguf").classifier
    assert found is not None
    assert found.head == run.adapter.head
    assert found.weight.tobytes() == run.adapter.parameters()[HEAD].numpy().tobytes()
    lora = run_of(tmp_path / "whole.gguf", DATA[objective](8), objective, epochs=1, lr=1e-9)
    np.testing.assert_allclose(lora.adapter.parameters()[HEAD].numpy(), found.weight, atol=1e-6)
    lora.save(tmp_path / "a.gguf")
    gl.llm.merge(path, tmp_path / "a.gguf", tmp_path / "merged.gguf")
    merged = load(tmp_path / "merged.gguf").classifier
    assert merged is not None
    np.testing.assert_allclose(merged.weight, found.weight, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_classes_of_qwen3_are_a_classifier_of_llama_cpp(tmp_path: Path, method: str) -> None:
    """A model's file holds the head as llama.cpp reads it, in place of an earlier one; several labels of a text, of
    which llama.cpp has none, stay metadata."""
    path, made = write(tmp_path, "qwen3"), tmp_path / "made.gguf"
    for data, is_classifier in ((head_rows.classes(8), True), (head_rows.classes(8, several=True), False)):
        run = run_of(path, data, "classify", method=method, epochs=1)
        if method == "full":
            run.save(made)
        else:
            run.save(tmp_path / "a.gguf")
            gl.llm.merge(path, tmp_path / "a.gguf", made, "q8_0")
        file, found = open_gguf(made), load(made).classifier
        assert found is not None
        assert found.head == run.adapter.head
        assert found.weight.tobytes() == run.adapter.parameters()[HEAD].numpy().tobytes()
        assert (CLASSIFIER in file.tensors) == is_classifier == (file.metadata.get("qwen3.pooling_type") == 4)
        assert any(key.startswith("gradloom.head.") for key in file.metadata) != is_classifier
        if is_classifier:
            assert file.metadata["qwen3.classifier.output_labels"] == list(found.head.labels)
            assert file.tensors[CLASSIFIER].kind == "f32"
            more = run_of(made, data, "classify", epochs=1)
            more.save(tmp_path / "more.gguf")
            gl.llm.merge(made, tmp_path / "more.gguf", tmp_path / "twice.gguf")
            twice = load(tmp_path / "twice.gguf").classifier
            assert twice is not None
            assert twice.weight.tobytes() == more.adapter.parameters()[HEAD].numpy().tobytes()


@pytest.mark.parametrize("labels", [None, ["a", "b"], ["a", "a", "b"], 3])
def test_a_classifier_whose_labels_do_not_fit_is_refused(tmp_path: Path, labels: Any) -> None:
    path = write(tmp_path, "qwen3")
    run_of(path, head_rows.classes(8), "classify", method="full", epochs=1).save(tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    tensors = {name: file.floats(name) for name in file.tensors}
    key, fields = "qwen3.classifier.output_labels", dict(file.fields)
    fields.pop(key)
    if labels is not None:
        fields[key] = field("u32", 3) if labels == 3 else field("array", labels, "string")
    write_gguf(tmp_path / "b.gguf", fields, tensors)
    with pytest.raises(FileError, match=r"b\.gguf: ") as caught:
        _ = load(tmp_path / "b.gguf").classifier
    assert "\n" not in str(caught.value)
    assert "labels" in str(caught.value)


def test_a_training_starts_from_a_saved_head(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), head_rows.pairs(8)
    run = run_of(path, data, "reward", epochs=2, run=tmp_path / "run")
    run.save(tmp_path / "head.gguf")
    start = run.adapter.parameters()[HEAD].numpy()
    by_file = run_of(path, data, "reward", epochs=1, lr=1e-9, adapter=LoRA.load(tmp_path / "head.gguf", path))
    np.testing.assert_allclose(by_file.adapter.parameters()[HEAD].numpy(), start, atol=1e-6)
    run = Run(load(path), data, objective="reward", epochs=1, lr=1e-9, val_split=0.0, continue_from=tmp_path / "run")
    assert run.adapter.parameters()[HEAD].numpy().tobytes() == start.tobytes()


def test_a_head_can_be_frozen(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, "llama"), head_rows.pairs(8), "reward", epochs=2, freeze=["head.*"])
    fresh = run_of(write(tmp_path, "llama"), head_rows.pairs(8), "reward", epochs=1, lr=1e-12)
    found = (each.adapter.parameters()[HEAD].numpy() for each in (run, fresh))
    np.testing.assert_allclose(*found, atol=1e-7)
    assert "head    " in run.table


def test_a_new_head_is_small_and_of_the_seed(tmp_path: Path) -> None:
    model = load(write(tmp_path, "llama"))
    heads = []
    for seed in (1, 1, 2):
        adapter = LoRA(rank=1, seed=seed)
        adapter.add_head(Head("classify", tuple("abcdefgh")), model, seed)
        heads.append(adapter.parameters()[HEAD].numpy())
    assert heads[0].tobytes() == heads[1].tobytes() != heads[2].tobytes()
    assert heads[0].shape == (8, 48)
    assert 0.018 < heads[0].std() < 0.022


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("gradloom.head.kind", field("string", "rank"), "need 'reward' or 'classify' or 'regress'"),
        ("gradloom.head.weight", field("array", np.zeros(7), "f32"), "do not fit"),
        ("gradloom.head.weight", field("array", np.full(48, np.nan), "f32"), "nan"),
        ("gradloom.head.shape", field("array", [-1, -48], "i32"), "do not fit"),
        ("gradloom.head.other", field("u32", 1), "other"),
        ("gradloom.head.labels", field("array", ["a", "b"], "string"), "2 labels of a head"),
    ],
)
def test_a_damaged_head_is_refused(tmp_path: Path, key: str, value: Any, text: str) -> None:
    path = write(tmp_path, "llama")
    run_of(path, head_rows.pairs(4), "reward", epochs=1).save(tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    tensors = {name: file.floats(name) for name in file.tensors}
    write_gguf(tmp_path / "b.gguf", dict(file.fields) | {key: value}, tensors)
    with pytest.raises(FileError, match=text) as caught:
        read_adapter_gguf(tmp_path / "b.gguf")
    assert "\n" not in str(caught.value)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_objectives_and_heads_fit_each_other(tmp_path: Path) -> None:
    from tests.llm.preference_rows import pairs

    path = write(tmp_path, "llama")
    adapter = LoRA(rank=2)
    run_of(path, head_rows.pairs(4), "reward", epochs=1, adapter=adapter)
    with pytest.raises(SettingError, match="has a head for reward; objective='simpo' trains none"):
        run_of(path, pairs(4), "simpo", epochs=1, adapter=adapter)
    with pytest.raises(SettingError, match="has a head for reward; objective='regress' needs its own"):
        run_of(path, LINES["regress"], "regress", epochs=1, adapter=adapter, context=32)
    adapter.save(tmp_path / "reward.gguf")
    gl.llm.merge(path, tmp_path / "reward.gguf", tmp_path / "scored.gguf")
    for given in ({"method": "full"}, {}):
        with pytest.raises(SettingError, match="model has a head for reward; objective='simpo' trains none"):
            run_of(tmp_path / "scored.gguf", pairs(4), "simpo", epochs=1, **given)
    with pytest.raises(DataError, match="its last token"):
        run_of(path, pairs(4), "reward", epochs=1)
    with pytest.raises(SettingError, match="output"):
        run_of(write(tmp_path, "llama_untied"), head_rows.pairs(4), "reward", adapter=LoRA(targets=["output"]))


# ---- data and predictions --------------------------------------------------------------------------------------------

WORDS = {"good": ["fine day", "so glad", "a joy"], "bad": ["no rain", "it fell", "he lost"], "odd": ["7 x 7", "q z"]}
TEXTS = [{"text": text, "label": name} for name, texts in WORDS.items() for text in texts]
LINES: dict[str, list[dict[str, Any]]] = {
    "classify": TEXTS,
    "regress": [{"text": row["text"], "label": 10.0 + len(row["text"]) ** 2} for row in TEXTS],
    "several": [{"text": row["text"], "label": [row["label"], "any"] if i % 2 else []} for i, row in enumerate(TEXTS)],
    "reward": [{"prompt": "Say: ", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(6)],
}


def fitted(folder: Path, name: str, **settings: Any) -> tuple[Path, Run]:
    """A run on these lines that has learned them."""
    path = write(folder, "llama")
    objective = "classify" if name == "several" else name
    given = {"epochs": 30, "lr": 2e-2, "context": 32, "batch_size": 4} | settings
    return path, run_of(path, LINES[name], objective, **given)


@pytest.mark.parametrize("name", list(LINES))
def test_predictions(tmp_path: Path, name: str) -> None:
    """Those of the training data are learned, and the same from memory, from files and from a merged model."""
    path, run = fitted(tmp_path, name)
    texts: Any = [{"text": row["text"]} for row in LINES[name]] if name != "reward" else [
        {"prompt": row["prompt"], "completion": row[side]} for row in LINES[name] for side in ("chosen", "rejected")
    ]  # fmt: skip
    found = gl.llm.predict(path, texts, run.adapter)
    assert len(found) == len(texts)
    if name == "reward":
        assert all(chosen > rejected for chosen, rejected in zip(found.values[::2], found.values[1::2], strict=True))
    elif name == "regress":
        truth = [row["label"] for row in LINES[name]]
        np.testing.assert_allclose(found.values, truth, atol=0.3 * np.std(truth))
    elif name == "several":
        assert [sorted(labels) for labels in found.values] == [sorted(row["label"]) for row in LINES[name]]
    else:
        assert found.values == [row["label"] for row in LINES[name]]
        assert found.probabilities is not None
        np.testing.assert_allclose(found.probabilities.sum(1), 1)
    for place in ("a.gguf", "folder"):
        run.save(tmp_path / place)
        again = gl.llm.predict(path, texts, tmp_path / place)
        assert again.scores.tobytes() == found.scores.tobytes()
        assert again.values == found.values
    gl.llm.merge(path, tmp_path / "a.gguf", tmp_path / "merged.gguf")
    merged = gl.llm.predict(tmp_path / "merged.gguf", texts)
    np.testing.assert_allclose(merged.scores, found.scores, atol=1e-3 * np.abs(found.scores).max())


@pytest.mark.parametrize(
    "number",
    [
        lambda i: 1e8 + i % 7,
        lambda i: 1.7e12 + 1000 * i,
        lambda i: 1e-50 * (i + 1),
        lambda i: 1e300 * (i - 3),
        lambda i: -5e38 + 1e37 * i,
        lambda i: 2**45 + 2 * i,
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numbers_are_standardised_in_float64(tmp_path: Path, number: Any) -> None:
    """The training is that of the standardised numbers, and all that is in their units is, too."""
    truth = np.array([number(i) for i in range(8)], np.float64)
    exact = [Fraction(float(y)) for y in truth]
    mean = sum(exact) / 8
    deviation = float((sum(((y - mean) / exact[-1]) ** 2 for y in exact) / 8) ** 0.5) * abs(truth[-1])
    standard = np.array([float((y - mean) / Fraction(deviation)) for y in exact])
    path = write(tmp_path, "llama")
    found = []
    for labels in (truth, standard):
        lines = [{"text": row["text"], "label": y} for row, y in zip(TEXTS, labels.tolist(), strict=True)]
        found.append((run_of(path, lines, "regress", epochs=2, context=32, val=lines, val_split=None), lines))
    (run, lines), (plain, _) = found
    assert run.adapter.head.mean == pytest.approx(float(mean), rel=1e-15)
    assert run.adapter.head.deviation == pytest.approx(deviation, rel=1e-9)
    assert run.report["val_loss"] == pytest.approx(plain.report["val_loss"], rel=1e-3)
    for name in ("mae", "rmse"):
        assert run.report[name] == pytest.approx(plain.report[name] * deviation, rel=1e-3)
    assert run.report["r2"] == pytest.approx(plain.report["r2"], abs=1e-2)
    measured = run.measure(lines).metrics
    assert measured["rmse"] == pytest.approx(run.report["rmse"])
    values = np.array(gl.llm.predict(path, [{"text": row["text"]} for row in TEXTS], run.adapter).values)
    distance = np.sqrt(np.mean(((values - truth) / deviation) ** 2)) * deviation
    assert distance == pytest.approx(run.report["rmse"], rel=1e-3)


def test_numbers_far_from_those_of_the_training_are_one_line(tmp_path: Path) -> None:
    lines = [{"text": row["text"], "label": 1e-50 * i} for i, row in enumerate(TEXTS)]
    with pytest.raises(DataError, match="the label 1 is more than .* standard deviations"):
        run_of(write(tmp_path, "llama"), lines, "regress", context=32, val=[{"text": "a", "label": 1}], val_split=None)


def test_predictions_are_those_of_each_text_alone(tmp_path: Path) -> None:
    path, run = fitted(tmp_path, "classify", epochs=3)
    texts = [row["text"] for row in TEXTS]
    together = gl.llm.predict(path, texts, run.adapter, context=16, batch_size=2)
    alone = np.concatenate([gl.llm.predict(path, text, run.adapter).scores for text in texts])
    np.testing.assert_allclose(together.scores, alone, atol=1e-4)


def test_whole_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    lines = [{"text": f"n {i}", "label": i % 11} for i in range(22)]
    run = run_of(write(tmp_path, "llama"), lines, "classify", epochs=1, context=32, val_split=0.2)
    assert run.adapter.head == Head("classify", tuple(map(str, range(11))))
    report = run.report
    assert {"accuracy", "balanced_accuracy", "f1_macro", "roc_auc"} <= report.keys()


@pytest.mark.parametrize(
    ("objective", "lines", "settings", "text"),
    [
        (
            "classify",
            [{"text": "a", "label": "x"}] * 3,
            {},
            "the label of all 3 samples is 'x'; need at least two classes",
        ),
        ("classify", [*TEXTS, {"text": "a"}], {}, "sample 9: the keys are text; need label, as in sample 1"),
        ("classify", [*TEXTS, {"text": "a", "label": 3}], {}, "label is 3; need a text, as before it"),
        ("classify", [*TEXTS, {"text": "a", "label": None}], {}, "the keys are text; need label"),
        (
            "classify",
            TEXTS,
            {"val": [{"text": "a", "label": "worse"}]},
            "label is 'worse'; need a class of the training",
        ),
        ("classify", LINES["several"], {"class_weight": "balanced"}, "requires one label for each text"),
        ("classify", TEXTS, {"class_weight": {"worse": 2}}, "'worse' is no class of the data"),
        ("classify", TEXTS, {"class_weight": {"bad": -1}}, 'need "balanced"'),
        ("classify", [*TEXTS, {"text": "a", "label": "x\ud800"}], {}, "sample 9: label holds U+D800, half of a pair"),
        ("classify", [*LINES["several"], {"text": "a", "label": ["\udfff"]}], {}, "sample 9: label holds U+DFFF"),
        ("classify", TEXTS, {"class_weight": {"good": 0, "bad": 0, "odd": 0}}, "need a class with a weight above 0"),
        ("classify", TEXTS, {"class_weight": {}}, 'need "balanced"'),
        ("regress", [{"text": "a", "label": 10**400}], {}, "label is inf; need a finite number"),
        ("regress", [{"text": "a", "label": "x"}], {}, "label is a text; need a number"),
        ("regress", [{"text": "a", "label": float("nan")}], {}, "label is nan; need a finite number"),
        ("regress", [{"text": "a", "label": 1}, {"text": "b", "label": 1}], {}, "need numbers that differ"),
        ("regress", [{"text": "a"}], {}, "the keys are text; need text and label"),
    ],
)
def test_bad_data_is_one_line(tmp_path: Path, objective: str, lines: Any, settings: Any, text: str) -> None:
    if "val" in settings:
        settings = {**settings, "val_split": None}
    with pytest.raises((DataError, SettingError)) as caught:
        run_of(write(tmp_path, "llama"), lines, objective, context=32, **settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_head_predicts_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    with pytest.raises(SettingError, match="has no head"):
        gl.llm.predict(path, "a")
    with pytest.raises(SettingError, match="the adapter has no head"):
        gl.llm.predict(path, "a", LoRA())


def test_llama_cpp_loads_an_adapter_with_a_head(tmp_path: Path) -> None:
    """Without the head, whose metadata it ignores."""
    llama = pytest.importorskip("llama_cpp")
    path = write(tmp_path, "llama")
    run_of(path, head_rows.pairs(4), "reward", epochs=1).save(tmp_path / "a.gguf")
    model = llama.Llama(str(path), lora_path=str(tmp_path / "a.gguf"), n_ctx=32, verbose=False)
    assert model.n_vocab() == 300


def test_test_rows_have_the_class_weights_of_the_training(tmp_path: Path) -> None:
    """Loss and scores of other data, of one class only."""
    lines = [{"text": f"a {i}", "label": "yes"} for i in range(6)] + [{"text": "no rain", "label": "no"}] * 2
    run = run_of(write(tmp_path, "llama"), lines, "classify", epochs=2, context=32, class_weight="balanced")
    other = [{"text": "a 1", "label": "yes"}, {"text": "no rain", "label": "no"}]
    scores = gl.llm.predict(run.model, [row["text"] for row in other], run.adapter)
    assert scores.probabilities is not None
    losses = -np.log([scores.probabilities[0, 1], scores.probabilities[1, 0]])
    weights = np.array([8 / 2 / 6, 8 / 2 / 2])
    assert run.measure(other).loss == pytest.approx(float((losses * weights).sum() / weights.sum()), rel=1e-4)
    assert run.measure(other[:1]).loss == pytest.approx(float(losses[0]), rel=1e-4)


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    path, other = write(tmp_path, "llama"), write(tmp_path, "llama_untied", width=96)
    run_of(path, head_rows.pairs(4), "reward", epochs=1).save(tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    tensors = {name: file.floats(name) for name in file.tensors}
    fields = dict(file.fields) | {
        "gradloom.head.weight": field("array", np.zeros(96), "f32"),
        "gradloom.head.shape": field("array", [1, 96], "i32"),
    }  # fmt: skip
    write_gguf(tmp_path / "b.gguf", fields, tensors)
    with pytest.raises(FileError, match="its head has rows of 96, and .* has 48"):
        LoRA.load(tmp_path / "b.gguf", path)
    with pytest.raises(FileError, match="another base"):
        LoRA.load(tmp_path / "a.gguf", other)


@pytest.mark.parametrize("texts", [5, [], [5], {"text": "a"}, [{"words": "a"}], [""], [{"text": 3}]])
def test_texts_that_cannot_be_scored_are_one_line(tmp_path: Path, texts: Any) -> None:
    path, run = fitted(tmp_path, "regress", epochs=1)
    with pytest.raises((DataError, SettingError)) as caught:
        gl.llm.predict(path, texts, run.adapter)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_head_keeps_its_classes_and_units(tmp_path: Path) -> None:
    """In a training that starts from it with fewer classes, or with other numbers, and in its plan."""
    path, run = fitted(tmp_path, "classify", epochs=1)
    fewer = [row for row in TEXTS if row["label"] != "odd"]
    plan = gl.llm.plan(path, run.adapter, fewer, objective="classify", context=32)
    assert plan.trained == 4 * sum(p.size for p in run.adapter.parameters().values())
    again = run_of(path, fewer, "classify", adapter=run.adapter, epochs=1, context=32)
    assert again.adapter.head == Head("classify", ("bad", "good", "odd"))
    path, run = fitted(tmp_path, "regress", epochs=1)
    head = run.adapter.head
    again = run_of(
        path, [{"text": "a", "label": 1}, {"text": "b", "label": 2}], "regress", adapter=run.adapter, context=32
    )
    assert again.adapter.head == head
    with pytest.raises(SettingError, match="has a head for regress"):
        run_of(path, TEXTS, "classify", adapter=run.adapter, context=32)


def test_sides_are_read_to_their_end(tmp_path: Path) -> None:
    """With the tokens of the other objectives on preferences, the end of text included."""
    tokenizer = load(write(tmp_path, "llama")).tokenizer
    whole = gl.llm.read_samples(LINES["reward"], tokenizer, form=gl.llm.Form("preferences", 2, last=True))
    others = gl.llm.read_samples(LINES["reward"], tokenizer, form=gl.llm.Form("preferences", 2))
    assert np.array_equal(whole.tokens, others.tokens)
    assert whole.tokens[whole.starts[1] - 1] == tokenizer.eos
    data = gl.llm.pack(whole, 32, last=True)
    assert data.report.counted == 2 * len(whole)
    assert data.report.counts == "the last token of each side"
