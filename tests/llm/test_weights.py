"""Weights of samples and of messages: which tokens count, and how much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError
from gradloom.llm.data import read_samples
from gradloom.llm.finetune import Run, finetune
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.llm.objectives.sft import Sft
from gradloom.llm.packing import pack
from gradloom.llm.tokenizer import Tokenizer
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm.chats import CHATML, MARKED
from tests.llm.random_models import packed, write
from tests.llm.small_tokenizers import byte_bpe
from tests.llm.test_resume import interrupted_at
from tests.train.split_training import on_ranks


def tokenizer(**keys: Any) -> Tokenizer:
    return Tokenizer(byte_bpe(**{"chat_template": CHATML} | keys), "small")


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def turn(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def counted(samples: Any, i: int = 0) -> str:
    """The text of the tokens that count."""
    tokens, counts = samples[i]
    pieces = tokenizer().pieces
    return "".join(pieces[t] for t in tokens[counts])


TWO = (user("a"), turn("one"), user("b"), turn("two"))


def two(**second: Any) -> dict[str, Any]:
    """A chat of two turns, the first with these marks."""
    return chat(TWO[0], {**TWO[1], **second}, *TWO[2:])


@pytest.mark.parametrize("template", [CHATML, MARKED])
@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}, {"weight": 0.0}, {"train": False, "weight": 1}])
def test_a_turn_can_be_excluded(mark: dict[str, Any], template: str) -> None:
    tok = tokenizer(chat_template=template)
    samples = read_samples([two(**mark)], tok)
    assert counted(samples) == "two<|im_end|>" and samples.weights is None
    np.testing.assert_array_equal(samples[0][0], read_samples([two()], tok)[0][0])
    assert samples.report.messages_excluded == 1
    assert "weights: 1 message excluded" in str(samples.report)


def test_marks_that_change_nothing() -> None:
    marked = chat(user("a", train=False, weight=None), turn("one", train=True, weight=1), *TWO[2:])
    plain, same = (read_samples([row], tokenizer()) for row in (two(), marked))
    np.testing.assert_array_equal(plain.counted, same.counted)
    np.testing.assert_array_equal(plain.tokens, same.tokens)
    assert same.weights is None and "weights:" not in str(same.report)
    assert vars(plain.report) == vars(same.report)


def test_templates_get_no_marks() -> None:
    """One that prints all keys of a message."""
    source = CHATML.replace("message['content']", "message['content'] + message.keys() | join(',')")
    texts = [read_samples([row], tokenizer(chat_template=source))[0][0] for row in (two(), two(weight=1, train=True))]
    np.testing.assert_array_equal(*texts)


def test_the_weight_of_a_turn() -> None:
    samples = read_samples([two(weight=0.25)], tokenizer())
    tokens, counts = samples[0]
    assert counted(samples) == "one<|im_end|>two<|im_end|>"
    assert samples.weights is not None and samples.weights.dtype == np.float32
    assert samples.weights[counts].tolist() == [0.25] * 4 + [1.0] * 4
    assert (samples.weights[~counts] == 0).all()
    data = pack(samples, 100)
    assert data.weights is not None
    n = tokens.size - 1
    np.testing.assert_array_equal(data.weights[0, :n], samples.weights[1:])
    assert "weights: 1 message weighted" in str(data.report)


def test_sharegpt_has_weights_too() -> None:
    rows = [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "one", "weight": 0},
             {"from": "human", "value": "b"}, {"from": "gpt", "value": "two"}]}]  # fmt: skip
    assert counted(read_samples(rows, tokenizer())) == "two<|im_end|>"


@pytest.mark.parametrize("row", [{"text": "abc"}, {"prompt": "a", "completion": "bc"}, chat(user("a"), turn("bc"))])
def test_the_weight_of_a_sample(row: dict[str, Any]) -> None:
    samples = read_samples([row | {"weight": 2}, row, row | {"weight": 0}, row | {"weight": None}], tokenizer())
    assert len(samples) == 3 and samples.report.skipped == {"weight 0": 1}
    assert samples.weights is not None
    weights = [samples.weights[samples.starts[i] :][: len(samples[i][0])] for i in range(3)]
    for i, weight in enumerate((2, 1, 1)):
        np.testing.assert_array_equal(weights[i], weight * samples[i][1])
    assert "weights: 1 sample weighted" in str(samples.report) and samples.report.unused == ()
    first, last = samples.split(0.34, 0)
    assert first.weights is not None and last.weights is not None
    assert sorted([*first.weights, *last.weights]) == sorted(samples.weights)


def test_weights_of_numpy() -> None:
    assert read_samples([two(weight=np.float32(0.5), train=np.True_)], tokenizer()).report.messages_weighted == 1
    for bad in (np.float32(np.nan), np.float64(np.inf), np.int8(-1)):
        with pytest.raises(DataError, match="need a finite number of at least 0"):
            read_samples([two(weight=bad)], tokenizer())


def test_products_that_vanish_count_for_nothing() -> None:
    rows = [two(weight=1e-30) | {"weight": 1e-30}, chat(user("a"), turn("b", weight=1e-30), weight=1e-30)]
    samples = read_samples(rows, tokenizer())
    assert len(samples) == 1 and samples.report.skipped == {"no token that counts": 1}
    assert counted(samples) == "two<|im_end|>"


def test_weights_multiply_with_that_of_the_sample() -> None:
    samples = read_samples([two(weight=0.25) | {"weight": 0.5}], tokenizer())
    assert samples.weights is not None
    assert samples.weights[samples.counted].tolist() == [0.125] * 4 + [0.5] * 4


def test_a_key_weight_that_is_no_number_is_not_read() -> None:
    samples = read_samples([{"text": "abc", "weight": "3 kg"}], tokenizer())
    assert samples.weights is None and samples.report.unused == ("weight",)


def test_samples_without_a_token_that_counts_are_skipped() -> None:
    rows = [chat(user("a"), turn("one", train=False)), two()]
    samples = read_samples(rows, tokenizer())
    assert len(samples) == 1 and samples.report.skipped == {"no token that counts": 1}


def test_all_tokens_but_those_of_a_turn() -> None:
    samples = read_samples([two(train=False)], tokenizer(), train_on_all=True)
    whole = read_samples([two()], tokenizer(), train_on_all=True)
    assert counted(whole) != counted(samples) == counted(whole).replace("one<|im_end|>", "", 1)


BAD = [
    (two(weight=-1), "messages[1].weight is -1; need a finite number of at least 0"),
    (two(weight=float("inf")), "messages[1].weight is inf; need a finite number of at least 0"),
    (two(weight=float("nan")), "messages[1].weight is nan; need a finite number of at least 0"),
    (two(weight=10**400), "need at most 1e+09"),
    (two(weight="1"), "messages[1].weight is '1'; need a finite number of at least 0"),
    (two(weight=True), "messages[1].weight is True; need a finite number"),
    (two(train=1), "messages[1].train is 1; need true or false"),
    (two(train="no"), "messages[1].train is 'no'; need true or false"),
    (chat(user("a", train=True), turn("b")), "messages[0].train is true, in a message of the role 'user'; only"),
    (chat(user("a", weight=0.5), turn("b")), "messages[0].weight is 0.5, in a message of the role 'user'; only"),
    (two() | {"weight": -1}, "weight is -1; need a finite number of at least 0"),
    (two() | {"weight": "1"}, "weight is '1'; need a finite number of at least 0"),
]


@pytest.mark.parametrize(("row", "message"), BAD)
def test_bad_marks(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in (two(), row)))
    with pytest.raises(DataError) as caught:
        read_samples(path, tokenizer())
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_the_prompt_cannot_be_left_out_of_all_tokens() -> None:
    with pytest.raises(DataError, match=r"messages\[0\].train is false, in .* 'user'; all tokens outside"):
        read_samples([chat(user("a", train=False), turn("b"))], tokenizer(), train_on_all=True)


def test_preferences_exclude_turns_and_have_no_weights() -> None:
    form = gl.llm.Form("preferences", 2)
    sides = {"chosen": [turn("x", train=False), user("q"), turn("good")], "rejected": [turn("y"), turn("bad")]}
    samples = read_samples([{"prompt": [user("a")], **sides}], tokenizer(), form=form)
    assert counted(samples) == "good<|im_end|>y<|im_end|>bad<|im_end|>"
    assert samples.report.messages_excluded == 1
    sides["chosen"][0] = turn("x", weight=0.5)
    with pytest.raises(DataError, match=r"chosen\[0\].weight is 0.5; need 0 or 1: .* the objective sft"):
        read_samples([{"prompt": [user("a")], **sides}], tokenizer(), form=form)


def test_sides_that_differ_in_their_marks_are_identical() -> None:
    row = {"prompt": [user("a")], "chosen": [turn("x", weight=1)], "rejected": [turn("x")]}
    with pytest.raises(DataError, match="identical sides"):
        read_samples([row], tokenizer(), form=gl.llm.Form("preferences", 2))


def test_a_head_reads_no_marks() -> None:
    form = gl.llm.Form("labelled", last=True, labels="classes")
    rows = [two(train=False) | {"label": "a"}, two() | {"label": "b"}]
    with pytest.raises(DataError, match=r"messages\[1\].train is false; the last token of the text is read"):
        read_samples(rows, tokenizer(), form=form)


# ---- training --------------------------------------------------------------------------------------------------------


def weighted(rows: int = 4, length: int = 24, seed: int = 0) -> Any:
    data = packed(rows, length, seed=seed)
    rng = np.random.default_rng(seed + 1)
    data.weights = rng.choice([0, 0.3, 1, 2.5], data.labels.shape).astype(np.float32)
    return data


def run_of(path: Path, data: Any, **settings: Any) -> Run:
    settings = {"batch_size": 4, "micro_batch_size": 2, "val_split": 0.0, "threads": 1, "lr": 1e-2, **settings}
    adapter = settings.pop("adapter", None) or LoRA(rank=3, seed=1)
    return finetune(load(path), data, adapter, progress=False, **settings)


def trained(run: Run) -> dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}


def test_weights_of_1_give_the_loss_of_none(tmp_path: Path) -> None:
    path, data = write(tmp_path), packed(4, 24)
    plain = run_of(path, data, epochs=2).history.to_dict()["loss"]
    data.weights = np.full(data.labels.shape, 2.0, np.float32)  # also where there is no label
    same = run_of(path, data, epochs=2).history.to_dict()["loss"]
    assert same == pytest.approx(plain, rel=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("case", ["llama", "llama_untied"])
def test_loss_and_gradients_are_those_of_float64(tmp_path: Path, case: str) -> None:
    """One step of SGD of rate 1, in micro-batches: what it subtracts is the gradient."""
    torch = pytest.importorskip("torch")
    from tests.llm.torch_model import TorchModel

    path, data = write(tmp_path, case), weighted()
    first = LoRA(rank=3, alpha=6, targets="all", seed=4)
    first.bind(load(path))
    rng = np.random.default_rng(3)
    for b in first.b.values():
        b.assign(rng.normal(0, 0.05, b.shape))
    start = {n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a}
    run = run_of(path, data, adapter=first, steps=1, lr=None, optimizer=gl.optim.SGD(lr=1.0))
    oracle = TorchModel(path, torch.float64)
    lora = oracle.adapter(start)
    log_p = oracle.logits(data.tokens, data.positions, lora, first.scale).log_softmax(-1)
    labels = torch.from_numpy(data.labels.astype(np.int64)).reshape(-1)
    weights = torch.from_numpy(data.weights.astype(np.float64)).reshape(-1) * (labels >= 0)
    own = log_p.reshape(labels.numel(), -1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    loss = -(weights * own).sum() / weights.sum()
    loss.backward()
    assert run.history[0].train.loss == pytest.approx(loss.item(), rel=1e-5)
    now = run.adapter.parameters()
    for name, pair in lora.items():
        for side, leaf in zip("ab", pair, strict=True):
            moved = start[name]["ab".index(side)] - now[f"{name}.lora_{side}"].numpy()
            truth = leaf.grad.numpy()
            assert np.linalg.norm(moved - truth) <= 2e-4 * np.linalg.norm(truth) + 1e-6


@pytest.mark.parametrize("full", [False, True])
def test_a_resumed_run_has_the_bits_of_one_that_was_never_stopped(tmp_path: Path, full: bool) -> None:
    path, data = write(tmp_path), weighted(10)

    def run(**more: Any) -> Run:
        adapter = TrainedTensors(["attn_q"], "f32") if full else None
        return run_of(path, data, adapter=adapter, epochs=3, val_split=0.2, **more)

    whole = run()
    assert run(run=tmp_path / "run", callbacks=[interrupted_at(3)]).interrupted
    again = run(run=tmp_path / "run", resume=True, threads=2)
    assert trained(again) == trained(whole)
    assert again.report["val_loss"] == whole.report["val_loss"]


def test_other_weights_are_not_resumed(tmp_path: Path) -> None:
    path, data = write(tmp_path), weighted(10)
    assert run_of(path, data, epochs=3, run=tmp_path / "run", callbacks=[interrupted_at(3)]).interrupted
    data.weights = data.weights + 1
    with pytest.raises(gl.TrainError, match="cannot be resumed"):
        run_of(path, data, epochs=3, run=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_ranks_have_the_bits_of_one_process(tmp_path: Path) -> None:
    path, data = write(tmp_path), weighted(8)
    settings: dict[str, Any] = {"micro_batch_size": 1, "epochs": 2, "val_split": 0.25}
    one = run_of(path, data, **settings)
    found = on_ranks(2, lambda rank: trained(run_of(path, data, parallel=rank, **settings)))
    assert found == [trained(one)] * 2


def test_the_plan_is_that_of_the_run(tmp_path: Path) -> None:
    path, data = write(tmp_path), weighted(7)
    settings: dict[str, Any] = {"batch_size": 4, "micro_batch_size": 2, "threads": 2, "val_split": 0.3}
    planned = gl.llm.plan(load(path), LoRA(rank=3), data, **settings)
    run = Run(load(path), data, LoRA(rank=3), **settings)
    run.prepare()
    assert run.memory().planned == planned.planned


def test_verify_takes_weights(tmp_path: Path) -> None:
    assert gl.llm.verify(write(tmp_path), weighted(2), batch_size=2, threads=2).agrees


def test_evaluate_weighs_as_the_training_does(tmp_path: Path) -> None:
    path, data = write(tmp_path), weighted(4)
    run = run_of(path, weighted(8, seed=5), epochs=1)
    measured = gl.llm.evaluate(run.model, data, run.adapter, threads=1)
    assert measured.nll == pytest.approx(run.measure(data).loss, rel=1e-5)
    assert measured.tokens == (data.labels >= 0).sum()
    doubled = weighted(4)
    doubled.weights = doubled.weights * 2
    again = gl.llm.evaluate(run.model, doubled, run.adapter, threads=1)
    assert (again.nll, again.nll_unc) == pytest.approx((measured.nll, measured.nll_unc), rel=1e-12)


def test_validation_data_without_weights(tmp_path: Path) -> None:
    model = load(write(tmp_path))
    tok = tokenizer()
    model.__dict__["tokenizer"] = tok
    rows = [{"text": f"ab{i}", "weight": 0.5 + i} for i in range(4)]
    read = gl.llm.rows.read_rows(model, rows, 16, val=[{"text": "abc"}])
    assert read.weights is not None
    np.testing.assert_array_equal(read.weights[read.val], (read.labels[read.val] >= 0).astype(np.float32))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), "need f32"),
        (np.full((4, 24), -1.0), "is negative"),
        (np.full((4, 24), np.nan), "not finite"),
        (np.zeros((4, 24)), "weights of all labels are 0"),
        ([1.0], "need f32"),
    ],
)
def test_weights_of_rows_that_cannot_be(tmp_path: Path, weights: Any, message: str) -> None:
    data = packed(4, 24)
    data.weights = weights
    with pytest.raises(DataError, match=message):
        run_of(write(tmp_path), data)


class _Unweighted(Sft):
    takes_weights = False


def test_an_objective_that_reads_no_weights_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not read; need weights of 0 and 1, or the objective sft"):
        run_of(write(tmp_path), weighted(), objective=_Unweighted())
