"""Objectives: losses by hand, gradients against PyTorch in float64, and the promises of fine-tuning for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, SettingError, TrainError
from gradloom.cli.main import main
from gradloom.graph.leaves import constant
from gradloom.llm.finetune import Run, finetune
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.llm.objective import Parts
from gradloom.llm.objectives import declared
from gradloom.llm.objectives.cpo import Cpo
from gradloom.llm.objectives.dpo import Dpo
from gradloom.llm.objectives.kto import Kto
from gradloom.llm.objectives.orpo import Orpo
from gradloom.llm.objectives.simpo import Simpo
from gradloom.llm.rows import Rows
from gradloom.llm.trained_tensors import TrainedTensors
from gradloom.run.compile import compile as compile_program
from gradloom.train.identity import trainer_settings
from tests.llm.preference_rows import pairs
from tests.llm.random_models import packed, write
from tests.llm.test_resume import interrupted_at
from tests.real_data import need
from tests.train.split_training import on_ranks

PAIRED = [
    name for name, kind in declared().items() if kind.form.kind != "texts" and not kind.form.last
]  # heads: test_heads.py


def parts(
    logps: Any, counts: Any = (1, 1), reference: Any = None, numbers: Any = (0,), whole: Any = None, totals: Any = ()
) -> Parts:
    """Parts of one sample, whose whole texts have as many tokens as their completions."""
    given = (logps, counts, reference, numbers, whole)
    a = [None if v is None else constant(np.array(v, np.float32).reshape(1, 1, -1)) for v in given]
    assert a[0] is not None and a[1] is not None and a[3] is not None
    there = constant(np.ones((1, 1), np.float32))
    return Parts(a[0], a[1], a[2], a[3], there, a[4], a[1], tuple(constant(np.float32(t)) for t in totals))


def computed(value: Any) -> float:
    (found,) = compile_program([value])()
    return float(found.reshape(()))


PAIR = (-10.0, -14.0), (5, 4), (-11.0, -12.0)  # logps, tokens, those of the base model


@pytest.mark.parametrize(
    ("objective", "sample", "value"),
    [
        (Dpo(0.1), parts(*PAIR), 0.554355),
        (Dpo(0.1, "hinge"), parts(*PAIR), 0.7),
        (Dpo(0.1, "ipo"), parts(*PAIR), 18.49),
        (Dpo(0.1, label_smoothing=0.1), parts(*PAIR), 0.9 * 0.554355 + 0.1 * 0.854355),
        (Dpo(0.1), parts((-3, -4), reference=(-3, -4)), np.log(2)),
        (Simpo(2.0, 1.0), parts((-1, -2)), 0.313262),
        (Simpo(2.0, 1.0), parts((-5, -8), (5, 4)), 0.313262),
        (Orpo(0.1), parts((-1, -1.5), whole=(0, 0), totals=(1, 1)), 0.040114),
        (Orpo(0.1), parts((-1, -1.5), whole=(-6, 0), totals=(2, 8)), 6 * 2 / 8 + 0.040114),
        (Cpo(0.1, nll_weight=0.0), parts((1, -3), totals=(1, 1)), 0.513015),
        (Cpo(0.1), parts((-1, -5), totals=(2, 5)), 0.513015 + 2 / 5),
        (Kto(0.1), parts((1, 0), reference=(0, 0), numbers=(1,), totals=(2, 0.6)), 0.482507),
        (Kto(0.1), parts((-2, 0), reference=(0, 0), numbers=(0,), totals=(2, 0.6)), 0.442752),
        (Kto(0.1, 2.0), parts((1, 0), reference=(0, 0), numbers=(1,), totals=(2, 0.6)), 2 * 0.482507),
        (Kto(0.1), parts((1, 0), reference=(0, 0), numbers=(1,), totals=(2, -9)), 0.475021),
    ],
)
def test_losses_are_those_by_hand(objective: Any, sample: Parts, value: float) -> None:
    """TRL 1.16's definitions. In the fourth case 0.854355 is the loss of the swapped pair."""
    assert computed(objective.loss(sample)) == pytest.approx(value, rel=2e-6, abs=5e-7)


def test_losses_do_not_overflow() -> None:
    far = parts((-1e4, -1), reference=(-1, -1e4))
    assert computed(Dpo(10.0).loss(far)) == pytest.approx(2 * 9999 * 10, rel=1e-6)
    assert computed(Dpo(10.0).loss(parts((-1, -1e4), reference=(-1e4, -1)))) == 0


def data_for(objective: Any, rows: int, val: int = 0) -> Rows:
    """Rows of random samples in the form of an objective."""
    form = (declared()[objective] if isinstance(objective, str) else objective).form
    return pairs(rows, val=val, judged=form.kind == "judged", prompts=form.prompts)


def run_of(path: Path, data: Any, objective: Any = "dpo", **settings: Any) -> Run:
    given = {"batch_size": 4, "micro_batch_size": 2, "lr": 1e-2, "val_split": 0.0, "progress": False, "threads": 1}
    full = settings.pop("method", "lora") == "full"
    adapter = settings.pop("adapter", None) or (TrainedTensors() if full else LoRA(rank=3, seed=1))
    return finetune(load(path), data, adapter, objective=objective, **(given | settings))


def trained(run: Run) -> dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}


def test_the_first_loss_of_dpo_is_ln_2(tmp_path: Path) -> None:
    """Exactly: reference and training rows are packed alike, and a new adapter adds 0."""
    run = run_of(write(tmp_path, "llama"), pairs(4), batch_size=4, micro_batch_size=4, epochs=1)
    assert run.history[0].train.loss == np.log(np.float32(2))
    assert run.history[0].train.metrics["rewards/margins"] == 0


FORMULAS = [
    Dpo(0.1), Dpo(0.3, "hinge"), Dpo(0.1, "ipo"), Dpo(0.2, label_smoothing=0.2), Simpo(), Orpo(0.3), Cpo(0.2),
    Cpo(0.1, "ipo", nll_weight=0.5), Kto(0.3, 1.5, 0.5),
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("objective", FORMULAS, ids=repr)
def test_gradients_are_those_of_float64(tmp_path: Path, objective: Any) -> None:
    """One step of SGD of rate 1 on packed rows of one and two pairs: what it subtracts is the gradient."""
    torch = pytest.importorskip("torch")
    from tests.llm.preference_oracle import loss_of, sums
    from tests.llm.torch_model import TorchModel

    path, data = write(tmp_path, "llama"), data_for(objective, 4)
    first = LoRA(rank=3, alpha=6, targets="all", seed=4)
    first.bind(load(path))
    rng = np.random.default_rng(3)
    for b in first.b.values():
        b.assign(rng.normal(0, 0.05, b.shape))
    start = {n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a}
    run = run_of(
        path, data, objective, adapter=first, steps=1, micro_batch_size=2, lr=None, optimizer=gl.optim.SGD(lr=1.0)
    )
    oracle = TorchModel(path, torch.float64)
    lora = oracle.adapter(start)
    with torch.no_grad():
        reference = sums(oracle, data, None, 2.0)[0]
    found = sums(oracle, data, lora, first.scale)
    loss = loss_of(objective, *found, reference, data.values)
    loss.backward()
    assert run.history[0].train.loss == pytest.approx(loss.item(), rel=1e-5)
    now = run.adapter.parameters()
    for name, pair in lora.items():
        for side, leaf in zip("ab", pair, strict=True):
            moved = start[name]["ab".index(side)] - now[f"{name}.lora_{side}"].numpy()
            truth = leaf.grad.numpy()
            assert np.linalg.norm(moved - truth) <= 2e-4 * np.linalg.norm(truth) + 1e-6


@pytest.mark.parametrize("objective", PAIRED)
def test_bits_do_not_depend_on_threads(tmp_path: Path, objective: str) -> None:
    path, data = write(tmp_path, "qwen3"), data_for(objective, 6)
    one, two = (run_of(path, data, objective, epochs=2, threads=threads) for threads in (1, 2))
    assert trained(one) == trained(two)


def test_an_objective_of_the_user(tmp_path: Path) -> None:
    """The example of gl.llm.Objective's docstring learns its margin."""
    from tests.llm.own_objective import Margin

    run = run_of(write(tmp_path, "llama"), pairs(4), Margin(), epochs=30, lr=2e-2)
    losses = run.history.to_dict()["loss"]
    assert losses[0] > 0.3
    assert losses[-1] < 0.05


class _Own(gl.llm.Objective):
    form: ClassVar[gl.llm.Form] = gl.llm.Form("preferences", parts=2)


class _Texts(_Own):
    form: ClassVar[gl.llm.Form] = gl.llm.Form("texts")


class _NoForm(_Own):
    form: ClassVar[Any] = "preferences"


class _OfSides(_Own):
    def loss(self, parts: Parts) -> Any:
        return parts.logps


class _OfAll(_Own):
    def loss(self, parts: Parts) -> Any:
        return gl.ops.sum(parts.logps)


class _Nothing(_Own):
    def loss(self, parts: Parts) -> Any:
        return None


class _NoReference(_Own):
    def loss(self, parts: Parts) -> Any:
        return parts.ratios()[:, :, 0]


class _BadMetric(_Own):
    def loss(self, parts: Parts) -> Any:
        return parts.logps[:, :, 0]

    def metrics(self, parts: Parts) -> Any:
        return {"x": parts.logps}


class _NoMetrics(_BadMetric):
    def metrics(self, parts: Parts) -> Any:
        return None


class _BadTotals(_BadMetric):
    def metrics(self, parts: Parts) -> Any:
        return {}

    def totals(self, parts: Parts) -> Any:
        return parts.logps


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (_Own, "_Own has no loss; need loss"),
        (_Texts, "form is that of texts"),
        (_NoForm, "need a gl.llm.Form"),
        (_OfSides, "loss gave .*; need a number for each sample, f32"),
        (_OfAll, "loss gave .*; need a number for each sample, f32"),
        (_Nothing, "loss gave NoneType; need a number for each sample, f32"),
        (_NoReference, "need needs_reference = True"),
        (_BadMetric, "metric x gave .*; need a number for each sample, f32"),
        (_NoMetrics, "metrics gave NoneType; need a dict"),
        (_BadTotals, "totals gave .*; need a number for each sample, f32"),
    ],
)
def test_objectives_that_cannot_be(tmp_path: Path, kind: Any, text: str) -> None:
    with pytest.raises(gl.GradloomError, match=text) as caught:
        run_of(write(tmp_path, "llama"), pairs(4), kind())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["foo 1", "preferences 1", "preferences 3", "texts 2", "judged 0"])
def test_forms_that_cannot_be(given: str) -> None:
    kind, parts = given.split()
    with pytest.raises(SettingError, match="Form"):
        gl.llm.Form(kind, int(parts))  # type: ignore[arg-type]


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    """kto requires the completion of another sample, orpo labels of prompts."""
    path = write(tmp_path, "llama")
    judged = pairs(4, judged=True)
    assert judged.parts is not None and judged.values is not None
    own = replace(judged, parts=np.where(judged.parts >= 0, judged.parts // 2 * 2, judged.parts))
    with pytest.raises(DataError, match="has not 2 parts with tokens that count"):
        run_of(path, own, "kto")
    with pytest.raises(DataError, match="prompts have no labels"):
        run_of(path, pairs(4), "orpo")


def test_the_loss_has_the_name_that_earlier_checkpoints_hold(tmp_path: Path) -> None:
    run = Run(load(write(tmp_path, "llama")), packed(4, 24), val_split=0.0)
    assert trainer_settings(run.trainer)["loss"] == "Tuning._loss"


def test_the_plan_includes_metrics(tmp_path: Path) -> None:
    """No further program is compiled by the loop."""
    run = Run(load(write(tmp_path, "llama")), pairs(7, val=2), LoRA(rank=3), objective="dpo", batch_size=4)
    run.prepare()
    before = len(run.trainer.compiled)
    run.train(progress=False)
    assert len(run.trainer.compiled) == before


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"objective": "dpp"}, "objective"),
        ({"objective": "dpo", "gamma": 0.5}, "gamma=0.5 requires objective simpo, not dpo"),
        ({"objective": "sft", "beta": 0.5}, "beta=0.5 requires objective cpo or dpo or kto or orpo or simpo, not sft"),
        (
            {"objective": "dpo", "loss_type": "hinge", "label_smoothing": 0.1},
            "label_smoothing=0.1 requires loss_type sigmoid, not hinge",
        ),
        ({"objective": Dpo(), "beta": 0.5}, "cannot be combined with an Objective"),
        (
            {"objective": "dpo", "loss_type": "ipo", "beta": 1e-30},
            "beta=1e-30 must be at least 1e-15 with loss_type ipo",
        ),
        ({"objective": "cpo", "loss_type": "ipo", "beta": 1e-16}, "must be at least 1e-15 with loss_type ipo"),
        (
            {"objective": "kto", "desirable_weight": 0.0, "undesirable_weight": 0.0},
            "desirable_weight=0 and undesirable_weight=0 are both 0",
        ),
        ({"objective": "dpo", "label_smoothing": 0.5}, "label_smoothing"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as caught:
        run_of(write(tmp_path, "llama"), pairs(2), **settings)
    assert text in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("objective", PAIRED)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_bits_of_one_process(tmp_path: Path, objective: str, ranks: int) -> None:
    path, data = write(tmp_path, "llama"), data_for(objective, 7, 2)
    settings: dict[str, Any] = {"batch_size": 4, "micro_batch_size": 1, "epochs": 2}
    one = run_of(path, data, objective, **settings)
    found = on_ranks(ranks, lambda rank: trained(run_of(path, data, objective, parallel=rank, **settings)))
    assert found == [trained(one)] * ranks


@pytest.mark.parametrize("objective", PAIRED)
def test_a_resumed_run_has_the_bits_of_one_that_was_never_stopped(
    tmp_path: Path, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second pass; the log-probabilities of the base model come from the checkpoint."""
    path, data, settings = write(tmp_path, "llama"), data_for(objective, 8, 2), {"epochs": 3, "micro_batch_size": 1}
    whole = run_of(path, data, objective, **settings)
    settings["run"] = tmp_path / "run"
    first = run_of(path, data, objective, callbacks=[interrupted_at(3)], **settings)
    assert first.interrupted
    monkeypatch.setattr("gradloom.llm.reference.Reference.compute_into", None)
    with pytest.raises(TrainError, match="objective is"):
        run_of(path, data, objective, resume=True, **settings, beta=0.2)
    again = run_of(path, data, objective, resume=True, threads=2, **settings)
    assert trained(again) == trained(whole)
    assert again.report["rewards_chosen"] == whole.report["rewards_chosen"]


@pytest.mark.slow
@pytest.mark.parametrize("objective", PAIRED)
def test_the_plan_is_that_of_the_run(tmp_path: Path, objective: str) -> None:
    path, data = write(tmp_path, "llama"), data_for(objective, 7, 2)
    settings = {"objective": objective, "batch_size": 4, "micro_batch_size": 2, "threads": 2}
    planned = gl.llm.plan(load(path), LoRA(rank=3), data, **settings)
    run = Run(load(path), data, LoRA(rank=3), **settings)
    run.prepare()
    made = run.memory()
    for name in ("weights", "trained", "state", "gradients", "inputs", "arena", "scratch", "steps", "process"):
        assert getattr(planned, name) == getattr(made, name), name
    without = gl.llm.plan(load(path), LoRA(rank=3), **settings, context=24)
    assert without.arena <= made.arena  # of one pair in each row


@pytest.mark.slow
@pytest.mark.parametrize("objective", PAIRED)
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"method": "full"}, {"kind": "q8_0"}])
def test_precisions_types_and_methods(tmp_path: Path, objective: str, settings: dict[str, Any]) -> None:
    """bf16 products, all tensors trained, a quantised base: the chosen completions gain on the rejected ones."""
    kind = {"kind": settings["kind"]} if "kind" in settings else {}
    path = write(tmp_path, "llama", **{"width": 64, "heads": 8, "ffn": 96} | kind)
    given = {name: value for name, value in settings.items() if name != "kind"}
    run = run_of(path, data_for(objective, 4), objective, epochs=20, **given)
    losses = run.history.to_dict()["loss"]
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("objective", PAIRED)
def test_a_step_is_verified(tmp_path: Path, objective: str) -> None:
    found = gl.llm.verify(load(write(tmp_path, "llama")), data_for(objective, 3), objective=objective)
    assert found.agrees, found
    if objective == "dpo":
        assert abs(found.loss - np.log(2)) < 0.5


def test_dpo_by_hand_has_the_losses_of_the_objective() -> None:
    """examples/dpo_by_hand.py: ten steps, of which each takes all rows."""
    from examples import dpo_by_hand

    path = need("gguf/stories260K.gguf")
    lines = [
        {"prompt": f"One day, {name} saw a {thing}.", "chosen": " It was fun.", "rejected": " It was a bad day."}
        for name, thing in (("Tom", "dog"), ("Lily", "big red ball"))
    ] * 2
    lines[2]["prompt"], lines[3]["prompt"] = "A cat sat.", "The bird was in the tree."
    found = dpo_by_hand.train(str(path), lines, 10)
    run = finetune(
        path, lines, LoRA(rank=8, seed=0), objective="dpo", context=64, batch_size=4, epochs=10, val_split=0.0,
        optimizer=gl.optim.AdamW(lr=1e-3, weight_decay=0.0), max_norm=np.inf, progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(run.history.to_dict()["loss"], found, rtol=1e-5)
    assert found[0] == pytest.approx(np.log(2)) and found[-1] < 0.3


def stories(count: int, judged: bool = False) -> list[dict[str, Any]]:
    """Lines of preferences, or of judged completions."""
    rng = np.random.default_rng(count)
    names, things = ("Tom", "Lily", "Ben", "Mia"), ("dog", "red ball", "boat", "tree", "cat")
    ends = ((" It was fun.", " They were happy."), (" It was a bad day.", " She cried."))
    lines = []
    for i in range(count):
        prompt = f"One day, {rng.choice(names)} saw a {rng.choice(things)}."
        good, bad = (str(rng.choice(side)) for side in ends)
        pair = {"prompt": prompt, "chosen": good, "rejected": bad}
        one = {"prompt": prompt, "completion": (good, bad)[i % 2], "label": i % 2 == 0}
        lines.append(one if judged else pair)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("objective", PAIRED)
def test_other_data_are_measured_as_validation_rows(objective: str) -> None:
    judged = declared()[objective].form.kind == "judged"
    lines = stories(24, judged)
    run = finetune(
        need("gguf/stories260K.gguf"), stories(20, judged), LoRA(rank=4, seed=0), objective=objective, context=32,
        val=lines, epochs=3, lr=1e-3, progress=False,
    )  # fmt: skip
    last = run.history[-1].val
    assert last is not None
    found = run.measure(lines)
    assert found.loss == pytest.approx(last.loss, rel=1e-5)
    assert found.metrics["rewards/chosen"] == pytest.approx(last.metrics["rewards/chosen"], rel=1e-5)
    before = run.history[0].val
    assert before is not None and last.loss < before.loss


@pytest.mark.slow
def test_command_on_a_folder_with_test_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The adapter is saved, test pairs are measured, and `--json` has the rewards."""
    for name, count in (("train", 20), ("valid", 8), ("test", 12)):
        lines = "".join(json.dumps(line) + "\n" for line in stories(count))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    path, out = need("gguf/stories260K.gguf"), tmp_path / "a.gguf"
    words = [
        "finetune",
        str(path),
        str(tmp_path),
        "--objective",
        "dpo",
        "--context",
        "32",
        "--lr",
        "1e-3",
        "--epochs",
        "4",
    ]
    assert main([*words, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["objective"] == "dpo" and found["val_loss_before"] == pytest.approx(np.log(2), rel=1e-6)
    assert found["rewards_accuracy"] > 0.9 and found["rewards_margin"] > 0
    assert found["test_loss"] < 0.6 and found["test_rewards_accuracy"] > 0.9
    found = gl.llm.evaluate(path, [{"text": "One day, Tom saw a dog. It was fun."}], out)
    assert np.isfinite(found.nll)


def test_the_form_is_that_of_the_objective() -> None:
    with pytest.raises(SettingError, match="form follows from the objective"):
        Run(need("gguf/stories260K.gguf"), stories(4), objective="dpo", data_options={"form": gl.llm.Form("texts")})


@pytest.mark.parametrize(
    ("objective", "lines", "text"),
    [
        ("dpo", [{"prompt": "a", "chosen": "b", "rejected": "b"}] * 4, "identical"),
        ("dpo", [{"prompt": "a", "chosen": "b", "rejected": ""}] * 4, "rejected is empty"),
        ("dpo", [{"prompt": "a", "chosen": "b"}] * 4, "need chosen and rejected"),
        ("dpo", [{"prompt": "a " * 900, "chosen": "b", "rejected": "c"}] * 4, "within 32 tokens"),
        ("dpo", [{"prompt": "a", "chosen": 3, "rejected": "b"}] * 4, "chosen is a number"),
        ("dpo", [{"prompt": "a", "chosen": "c", "rejected": "b", "margin": float("nan")}] * 4, "margin is nan"),
        ("dpo", [{"text": "a"}] * 4, "need chosen and rejected"),
        ("kto", [{"prompt": "a", "completion": "b", "label": True}] * 4, "is true"),
        ("kto", [{"prompt": "a", "completion": "b", "label": "good"}] * 4, "need true or false"),
        ("kto", [{"prompt": "a", "completion": "b"}] * 4, "label"),
        ("kto", [{"prompt": "a", "completion": "", "label": True}] * 4, "completion is empty"),
        ("kto", [{"prompt": "a", "completion": "b", "label": float("inf")}] * 4, "need true or false"),
    ],
)
def test_bad_data(objective: str, lines: Any, text: str) -> None:
    with pytest.raises(DataError) as caught:
        Run(need("gguf/stories260K.gguf"), lines, objective=objective, context=32)
    assert text in str(caught.value) and "\n" not in str(caught.value)
