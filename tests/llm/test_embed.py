"""Embeddings: the loss by hand, gradients and trajectories against PyTorch, metrics, files, texts and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, FileError, SettingError
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.graph.leaves import constant
from gradloom.llm.adapter_gguf import read_adapter_gguf
from gradloom.llm.embedding import Embedding
from gradloom.llm.finetune import Run
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.llm.objectives.embed import Embed, ranks
from gradloom.llm.trained_tensors import TrainedTensors
from gradloom.run.compile import compile as compile_program
from tests.llm.random_models import write
from tests.llm.test_objectives import run_of, trained

LINES = [{"anchor": f"question {i} of {i * i}", "positive": f"answer to {i * i}"} for i in range(12)]
TRIPLETS = [row | {"negative": f"no answer, {i + 50}"} for i, row in enumerate(LINES)]
TEXTS = ["a", "question 3 of 9", "so it goes, on and on", "answer to 9"]


# ---- loss and metrics ------------------------------------------------------------------------------------------------


def by_hand(e: np.ndarray, labels: np.ndarray, temperature: float, widths: Any) -> float:
    """The sum of the losses of the samples: e [N, P, width] of norm 1, labels [N, 1 + P], one sample at a time."""
    there = np.flatnonzero(labels[:, 0])
    total = 0.0
    for width in widths:
        u = e[:, :, :width].astype(np.float64)
        u /= np.linalg.norm(u, axis=2, keepdims=True)
        for i in there:
            scores = []
            for side in range(1, e.shape[1]):
                for j in there:
                    own = i == j and side == 1
                    same = labels[j, 1 + side] == labels[i, 2] or (side == 1 and labels[j, 1] == labels[i, 1])
                    if own or not same:
                        scores.append(u[i, 0] @ u[j, side] / temperature)
            mine = u[i, 0] @ u[i, 1] / temperature
            total += np.log(np.exp(np.array(scores) - mine).sum())
    return total / len(widths)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("widths", [None, (3, 8)])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_loss_is_that_by_hand(parts: int, widths: Any, repeated: bool) -> None:
    """Rows of at most 3 samples, some without; texts that occur twice are no negatives of each other."""
    rng = np.random.default_rng(parts)
    e = rng.standard_normal((4, 3, parts, 8)).astype(np.float32)
    e /= np.linalg.norm(e, axis=3, keepdims=True)
    ids = np.arange(12 * parts).reshape(4, 3, parts).astype(np.float32)
    if repeated:
        ids[1, 0, 0], ids[2, 1, 1], ids[3, 0, -1] = ids[0, 0, 0], ids[0, 1, 1], ids[1, 1, 1]
    labels = np.concatenate([np.ones((4, 3, 1), np.float32), ids], 2)
    labels[0, 2], labels[3, 1:] = 0, 0
    objective = Embed(0.1, "last", widths, parts == 3)
    (found,) = compile_program([objective.row_losses(constant(e), constant(labels))])()
    flat = e.reshape(12, parts, 8), labels.reshape(12, 1 + parts)
    assert found.shape == (4,)
    assert found.sum() == pytest.approx(by_hand(*flat, 0.1, widths or [8]), rel=1e-5)


def test_ranks_are_those_by_hand() -> None:
    rng = np.random.default_rng(0)
    e = rng.standard_normal((30, 3, 4)).astype(np.float32)
    ids = np.arange(90).reshape(30, 3)
    ids[4, 1], ids[7, 0], ids[9, 2] = ids[5, 1], ids[6, 0], ids[3, 1]
    found = ranks(e, ids)
    for i in range(30):
        mine, count = e[i, 0] @ e[i, 1], 0
        for j in range(30):
            for side in (1, 2):
                same = ids[j, side] == ids[i, 1] or (side == 1 and ids[j, 0] == ids[i, 0])
                count += not same and e[i, 0] @ e[j, side] >= mine
        assert found[i] == count


@pytest.mark.oracle
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(
    ("pooling", "parts", "widths"), [("last", 2, None), ("mean", 2, None), ("last", 3, (8, 48)), ("mean", 3, (16,))]
)
def test_gradients_are_those_of_float64(tmp_path: Path, pooling: str, parts: int, widths: Any, method: str) -> None:
    """One step of SGD of rate 1 in micro-batches: what it subtracts is the gradient."""
    torch = pytest.importorskip("torch")
    from tests.llm.embed_rows import loss_of, parts_of, texts
    from tests.llm.torch_model import TorchModel

    path, data = write(tmp_path, "qwen2_partial"), texts(7, parts)
    oracle, pairs, scale = TorchModel(path, torch.float64), None, 1.0
    first: Any = TrainedTensors(["attn_q", "ffn_up"])
    if method == "lora":
        first = LoRA(rank=3, alpha=6, targets="all", seed=4)
        first.bind(load(path))
        rng = np.random.default_rng(3)
        for b in first.b.values():
            b.assign(rng.normal(0, 0.05, b.shape))
        pairs = oracle.adapter({n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a})
        scale = first.scale
        leaves = {f"{n}.lora_{s}": leaf for n, both in pairs.items() for s, leaf in zip("ab", both, strict=True)}
    else:
        oracle.train([f"blk.{i}.{name}.weight" for i in range(oracle.layers) for name in ("attn_q", "ffn_up")])
        leaves = {n: w for n, w in oracle.weights.items() if w.requires_grad}
    truth = loss_of(oracle, parts_of(data, parts), pooling, widths, 0.1, pairs, scale)
    truth.backward()
    run = run_of(
        path, data, "embed", adapter=first, steps=1, micro_batch_size=2, lr=None, batch_size=len(data.tokens),
        optimizer=gl.optim.SGD(lr=1.0), max_norm=np.inf, temperature=0.1, pooling=pooling, widths=widths,
    )  # fmt: skip
    assert run.history[0].train.loss == pytest.approx(truth.item(), rel=1e-5)
    now = {name: p.numpy() for name, p in run.adapter.parameters().items()}
    assert now.keys() == leaves.keys()
    for name, leaf in leaves.items():
        moved, gradient = leaf.detach().numpy() - now[name], leaf.grad.numpy()
        assert np.linalg.norm(moved - gradient) <= 2e-4 * np.linalg.norm(gradient) + 1e-6, name


@pytest.mark.oracle
def test_fifty_steps_are_those_of_pytorch(tmp_path: Path) -> None:
    """The losses of MultipleNegativesRankingLoss by hand, with AdamW, on all pairs in each step."""
    torch = pytest.importorskip("torch")
    from tests.llm.embed_rows import loss_of, parts_of, texts
    from tests.llm.torch_model import TorchModel

    path, data = write(tmp_path, "llama"), texts(6)
    adapter = LoRA(rank=3, seed=1)
    adapter.bind(load(path))
    oracle = TorchModel(path, torch.float64)
    pairs = oracle.adapter({n: (adapter.a[n].numpy(), adapter.b[n].numpy()) for n in adapter.a})
    optimizer = torch.optim.AdamW([leaf for both in pairs.values() for leaf in both], lr=2e-3, weight_decay=0.0)
    samples, truth = parts_of(data, 2), []
    for _ in range(50):
        optimizer.zero_grad()
        loss = loss_of(oracle, samples, "last", None, 0.05, pairs, adapter.scale)
        loss.backward()
        optimizer.step()
        truth.append(loss.item())
    run = run_of(
        path, data, "embed", adapter=adapter, epochs=50, lr=None, batch_size=len(data.tokens), max_norm=np.inf,
        optimizer=gl.optim.AdamW(lr=2e-3, weight_decay=0.0),
    )  # fmt: skip
    np.testing.assert_allclose(run.history.to_dict()["loss"], truth, rtol=1e-4, atol=1e-4)
    assert truth[-1] < 0.5 * truth[0]


@pytest.mark.oracle
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_micro_batches_are_one_batch(tmp_path: Path, pooling: str) -> None:
    pytest.importorskip("torch")  # of the module below
    from tests.llm.embed_rows import texts

    path, data = write(tmp_path, "llama"), texts(14, 3)
    one, several = (
        run_of(path, data, "embed", epochs=3, batch_size=6, micro_batch_size=size, pooling=pooling, lr=1e-3)
        for size in (6, 1)
    )
    np.testing.assert_allclose(several.history.to_dict()["loss"], one.history.to_dict()["loss"], rtol=1e-5)


@pytest.mark.slow
def test_memory_is_that_of_a_micro_batch(tmp_path: Path) -> None:
    """1024 samples in a step: the arena of two, and the embeddings and similarities of all."""
    path = write(tmp_path, "llama")
    settings: dict[str, Any] = {"objective": "embed", "context": 24, "micro_batch_size": 2, "threads": 1}
    small, large = (gl.llm.plan(load(path), LoRA(), batch_size=size, **settings) for size in (2, 1024))
    similarities = 1024 * 1024 * 4
    assert large.total - small.total < 10 * similarities
    whole = gl.llm.plan(load(path), LoRA(), batch_size=1024, **settings | {"micro_batch_size": 1024})
    assert whole.arena > 10 * large.arena


def test_validation_has_recall_and_its_uncertainty(tmp_path: Path) -> None:
    """Those of embed's rows, of all validation rows together."""
    path = write(tmp_path, "llama")
    run = run_of(path, LINES[:8], "embed", epochs=2, context=32, val=LINES[6:], val_split=None)
    found = run.history[-1].val.metrics
    e = np.stack([gl.llm.embed(path, [row[key] for row in LINES[6:]], run.adapter) for key in LINES[0]], 1)
    rank = ranks(e, np.arange(e.shape[0] * 2).reshape(-1, 2))
    assert found["recall@1"] == (rank < 1).mean()
    assert found["recall@5"] == (rank < 5).mean()
    assert found["mrr"] == pytest.approx((1 / (rank + 1)).mean())
    assert 0 < found["mrr_unc"] < 0.5
    report = run.report
    assert report["recall_at_1"] == found["recall@1"] and report["mrr_unc"] == found["mrr_unc"]
    again = run.measure(LINES[6:])
    assert again.metrics["mrr"] == pytest.approx(found["mrr"])


# ---- texts -----------------------------------------------------------------------------------------------------------


def hand_embedded(model: Any, text: str, pooling: str, adapter: Any = None) -> np.ndarray:
    """By Model.hidden on the tokens of one text."""
    ids = model.tokenizer.encode(text)
    if pooling == "last" and ids[-1] != model.tokenizer.eos:
        ids = [*ids, model.tokenizer.eos]
    tokens = np.array([ids], np.int32)
    leaves = [gl.input(name, tokens.shape, "i32") for name in ("tokens", "positions")]
    (hidden,) = gl.compile(model.hidden(*leaves, adapter))(
        tokens=tokens, positions=np.arange(tokens.size, dtype=np.int32)[None]
    )
    pooled = hidden.mean(0) if pooling == "mean" else hidden[-1]
    return pooled / np.linalg.norm(pooled)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_are_pooled_hidden_states(tmp_path: Path, pooling: str) -> None:
    model = load(write(tmp_path, "llama"))
    found = gl.llm.embed(model, TEXTS, pooling=pooling, batch_size=2)
    assert found.shape == (4, 48) and found.dtype == np.float32
    for text, one in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(one, hand_embedded(model, text, pooling), atol=2e-6)
        np.testing.assert_allclose(gl.llm.embed(model, text, pooling=pooling)[0], one, atol=2e-6)
    narrow = gl.llm.embed(model, TEXTS, pooling=pooling, width=5)
    np.testing.assert_allclose(narrow, found[:, :5] / np.linalg.norm(found[:, :5], axis=1)[:, None], atol=1e-6)
    by_key = gl.llm.embed(model, [{"t": t} for t in TEXTS], pooling=pooling, data_options={"text_key": "t"})
    np.testing.assert_allclose(by_key, found, atol=2e-6)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_files_hold_the_pooling(tmp_path: Path, pooling: str, method: str) -> None:
    """Adapter, PEFT folder, merged and trained models give the embeddings of the run, without options."""
    path = write(tmp_path, "llama_untied")
    run = run_of(path, LINES, "embed", epochs=3, context=32, pooling=pooling, method=method, widths=[16, 48])
    facts = Embedding(pooling, (16, 48))
    assert run.adapter.embedding == facts
    found = gl.llm.embed(run.model, TEXTS, run.adapter)
    if method == "full":
        assert "output.weight" not in run.adapter.parameters()
        run.save(tmp_path / "whole.gguf")
        made = [tmp_path / "whole.gguf"]
        np.testing.assert_allclose(gl.llm.embed(made[0], TEXTS), found, atol=1e-6)
    else:
        for name in ("a.gguf", "folder"):
            run.save(tmp_path / name)
            assert LoRA.load(tmp_path / name, path).embedding == facts
            assert gl.llm.embed(path, TEXTS, tmp_path / name).tobytes() == found.tobytes()
            gl.llm.merge(path, tmp_path / name, tmp_path / f"{name}.merged.gguf")
        made = [tmp_path / f"{name}.merged.gguf" for name in ("a.gguf", "folder")]
    for file in made:
        np.testing.assert_allclose(gl.llm.embed(file, TEXTS), found, atol=1e-5)
        metadata = open_gguf(file).metadata
        assert metadata["llama.pooling_type"] == {"mean": 1, "last": 3}[pooling]
        assert metadata.get("tokenizer.ggml.add_eos_token", False) == (pooling == "last")
        assert load(file).embedding == facts


@pytest.mark.slow
def test_pooling_is_that_of_the_start(tmp_path: Path) -> None:
    """Of a model's file, an adapter, an earlier run; a given one comes first."""
    path = write(tmp_path, "llama")
    file = open_gguf(path)
    tensors = {name: file.floats(name).reshape(tensor.shape) for name, tensor in file.tensors.items()}
    for number, pooling in ((0, "last"), (1, "mean"), (3, "last")):
        other = tmp_path / f"p{number}.gguf"
        write_gguf(other, dict(file.fields) | {"llama.pooling_type": field("u32", number)}, tensors)
        run = run_of(other, LINES, "embed", steps=1, context=32)
        assert run.adapter.embedding == Embedding(pooling)
        expected = gl.llm.embed(path, TEXTS, pooling=pooling)
        np.testing.assert_allclose(gl.llm.embed(other, TEXTS), expected, atol=1e-6)
    settings: dict[str, Any] = {"steps": 1, "context": 32}
    run = run_of(path, LINES, "embed", pooling="mean", widths=[8], run=tmp_path / "run", **settings)
    assert run_of(path, LINES, "embed", adapter=run.adapter, **settings).adapter.embedding == Embedding("mean", (8,))
    started = Run(load(path), LINES, objective="embed", continue_from=tmp_path / "run", val_split=0.0, **settings)
    assert started.adapter.embedding == Embedding("mean", (8,))
    last = run_of(path, LINES, "embed", adapter=run.adapter, pooling="last", **settings)
    assert last.adapter.embedding == Embedding("last", (8,))
    cls = tmp_path / "cls.gguf"
    write_gguf(cls, dict(file.fields) | {"llama.pooling_type": field("u32", 2)}, tensors)
    with pytest.raises(FileError, match="pooling_type is cls; need mean or last"):
        gl.llm.embed(cls, TEXTS)
    assert gl.llm.embed(cls, TEXTS, pooling="mean").shape == (4, 48)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("gradloom.embed.pooling", field("string", "max"), "need 'mean' or 'last'"),
        ("gradloom.embed.widths", field("array", [8, 8], "i32"), "need different whole numbers"),
        ("gradloom.embed.widths", field("u32", 3), "need different whole numbers"),
        ("gradloom.embed.normalize", field("bool", False), "need true"),
        ("gradloom.embed.other", field("u32", 1), "other"),
    ],
)
def test_damaged_facts_are_refused(tmp_path: Path, key: str, value: Any, text: str) -> None:
    run_of(write(tmp_path, "llama"), LINES, "embed", steps=1, context=32).save(tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    tensors = {name: file.floats(name) for name in file.tensors}
    write_gguf(tmp_path / "b.gguf", dict(file.fields) | {key: value}, tensors)
    with pytest.raises(FileError, match=text) as caught:
        read_adapter_gguf(tmp_path / "b.gguf")
    assert "\n" not in str(caught.value)


# ---- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_line_decides_on_negatives(tmp_path: Path) -> None:
    """Also of packed rows; other names of keys."""
    path = write(tmp_path, "llama")
    run = run_of(path, TRIPLETS, "embed", epochs=20, context=32, lr=1e-2)
    assert run.objective == Embed(0.05, "last", None, True)
    assert run.data.tokens.shape[1] == 96
    losses = run.history.to_dict()["loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert run_of(path, run.data, "embed", steps=1).objective == run.objective
    renamed = [{"q": row["anchor"], "p": row["positive"], "n": row["negative"]} for row in TRIPLETS]
    keys = {"anchor_key": "q", "positive_key": "p", "negative_key": "n"}
    again = run_of(path, renamed, "embed", epochs=20, context=32, lr=1e-2, data_options=keys)
    assert trained(again) == trained(run)


def test_texts_end_with_their_token(tmp_path: Path) -> None:
    """With pooling last, and once only."""
    tokenizer = load(write(tmp_path, "llama")).tokenizer
    for end in (False, True):
        form = gl.llm.Form("pairs", parts=2, last=True, end=end)
        samples = gl.llm.read_samples(LINES, tokenizer, form=form)
        assert (samples.tokens[samples.starts[1:] - 1] == tokenizer.eos).all() == end
        assert samples.tokens[samples.starts[1:] - 2].max() != tokenizer.eos


def test_identical_texts_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    rows = [*LINES[:3], {"anchor": "a", "positive": "a"}]
    run = run_of(path, rows, "embed", steps=1, context=32)
    assert run.data.reports[0].skipped == {"identical sides": 1}
    assert run.data.reports[0].samples == 3


@pytest.mark.parametrize(
    ("lines", "settings", "text"),
    [
        ([*LINES, TRIPLETS[0]], {}, "sample 13: has negative, which sample 1 does not have"),
        ([*TRIPLETS, LINES[0]], {}, "sample 13: the keys are anchor, positive; need negative, as in sample 1"),
        ([{"anchor": "a", "positive": ""}], {}, "positive is empty; need a text"),
        ([{"anchor": 3, "positive": "b"}], {}, "anchor is a number; need a text"),
        ([{"anchor": "a"}], {}, "the keys are anchor; need anchor and positive; name others by anchor_key="),
        ([{"text": "a"}], {}, "the keys are text; need anchor and positive"),
        ([{"anchor": "a", "positive": "a"}], {}, "no sample to train on; skipped: 1 sample, identical sides"),
        (LINES[:1], {}, "one training sample without a negative"),
        (TRIPLETS, {"data_options": {"negative_key": "negatve"}}, "the first row has no 'negatve'"),
        ([row | {"anchor": "a"} for row in LINES], {}, "the anchors of all training samples are the same"),
        ([row | {"positive": "a " * 60 + row["positive"]} for row in LINES], {}, "the positive texts of all training"),
        (
            [{name: "a " * 60 + text for name, text in row.items()} for row in LINES],
            {},
            f"within 32 tokens ({len(LINES)} samples, identical sides after the cut)",
        ),
        (LINES, {"val": TRIPLETS, "val_split": None}, "has negative, and the training data has not"),
        (TRIPLETS, {"val": LINES, "val_split": None}, "need anchor and positive and negative"),
        (LINES, {"widths": [64]}, "widths=64: must be at most 48, the width of the model"),
        (LINES, {"widths": [0]}, "must be different whole numbers above 0"),
        (LINES, {"widths": 8}, "must be different whole numbers above 0"),
        (LINES, {"pooling": "max"}, "pooling"),
        (LINES, {"temperature": 0}, "temperature"),
        (LINES, {"beta": 0.1}, "not embed"),
        (LINES, {"data_options": {"chosen_key": "positive"}}, "chosen_key"),
        (LINES, {"data_options": {"anchor_key": 3}}, "anchor_key"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, lines: Any, settings: Any, text: str) -> None:
    with pytest.raises((DataError, SettingError)) as caught:
        run_of(write(tmp_path, "llama"), lines, "embed", context=32, **settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_of_one_pair_is_refused(tmp_path: Path) -> None:
    """Its loss is 0; with a negative, or as the last step of a pass, it is not."""
    path = write(tmp_path, "llama")
    long = [{key: text * 3 for key, text in row.items()} for row in TRIPLETS[:3]]
    pairs = [{key: row[key] for key in ("anchor", "positive")} for row in long]
    for plan in (False, True):
        with pytest.raises(SettingError, match="one sample in each step, without a negative"):
            if plan:
                gl.llm.plan(path, LoRA(), pairs, objective="embed", batch_size=1, context=28, val_split=0.0)
            else:
                run_of(path, pairs, "embed", batch_size=1, micro_batch_size=1, context=28)
    run = run_of(path, pairs, "embed", batch_size=2, context=28, epochs=1)
    assert run.steps == 2
    run = run_of(path, long, "embed", batch_size=1, micro_batch_size=1, context=28, epochs=1)
    assert run.history[0].train.loss > 0


@pytest.mark.parametrize(
    ("texts", "settings", "text"),
    [
        ([], {}, "need a text, a list of texts"),
        (["a", 3], {}, "sample 1: is a str; need a dict"),
        (3, {}, "need a text, a list of texts"),
        ("", {}, "1 sample, empty"),
        (["a", ""], {}, "1 of 2 texts are empty"),
        ("a", {"pooling": "max"}, "must be mean or last"),
        ("a", {"width": 49}, "must be 1 to 48, the width of the model"),
        ("a", {"width": 0}, "width"),
        ("a", {"context": 10**6}, "context"),
        ("a", {"data_options": {"anchor_key": "a"}}, "anchor_key"),
        ("a", {"poling": "mean"}, "poling"),
    ],
)
def test_texts_that_cannot_be_embedded_are_one_line(tmp_path: Path, texts: Any, settings: Any, text: str) -> None:
    with pytest.raises(gl.GradloomError) as caught:
        gl.llm.embed(write(tmp_path, "llama"), texts, **settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_objective_of_fixed_settings(tmp_path: Path) -> None:
    """As an object, with the settings of its fields."""
    path = write(tmp_path, "llama")
    given = Embed(0.1, "mean")
    assert run_of(path, TRIPLETS, given, steps=1, context=32).objective == replace(given, negatives=True)
