"""A fine-tuning that is stopped at any moment and resumed ends with the same bits as one that was never stopped."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import FileError, SettingError, TrainError
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.llm import LoRA, finetune, load
from gradloom.llm.finetune import Run
from gradloom.runs.checkpoint import Checkpoints
from gradloom.runs.saver import TimeIsUp
from tests import processes
from tests.llm.random_models import packed, write
from tests.llm.resumed_finetune import Heard, outcome, same, tuned
from tests.train.split_training import on_ranks

PROGRAM = Path(__file__).with_name("resumed_finetune.py")


def interrupted_at(step: int) -> Heard:
    def heard(batch: Any) -> None:
        if batch.step == step:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the step is completed first

    return Heard(heard)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def whole(path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, np.ndarray]]:
    """What came of the runs that nobody stopped, LoRA and full, without a folder."""
    return {full: outcome(tuned(path, full)) for full in (False, True)}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("step", [1, 2, 5, 9, 11])
def test_ctrl_c_and_resume(path: Path, whole: Any, tmp_path: Path, full: bool, step: int) -> None:
    """On the first step, where texts are sampled, inside of a pass and at its end; then on two threads."""
    folder = tmp_path / "run"
    first = tuned(path, full, run=folder, callbacks=[interrupted_at(step)])
    assert first.interrupted and first.steps == step
    again = tuned(path, full, run=folder, resume=True, threads=2)
    assert same(outcome(again), whole[full])
    texts = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert texts == [text.as_dict() for text in again.samples]


@pytest.mark.slow
def test_a_refused_budget_proposes_what_a_resumed_run_can_change(path: Path, tmp_path: Path) -> None:
    first = tuned(path, False, run=tmp_path / "run", callbacks=[interrupted_at(2)])
    assert first.interrupted
    with pytest.raises(SettingError, match="at least about .*a resumed run keeps its rows"):
        tuned(path, False, run=tmp_path / "run", resume=True, memory="1MiB")


def test_moments_in_8_bits(path: Path, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped and resumed on two threads: the same bits, and not those of f32 moments, which are rejected."""
    monkeypatch.setattr("gradloom.optim.moments.LEAST_SIZE", 1000)
    folder = tmp_path / "run"
    through = outcome(tuned(path, True, state_bits=8))
    first = tuned(path, True, run=folder, state_bits=8, callbacks=[interrupted_at(5)])
    assert first.interrupted
    with pytest.raises(TrainError, match="cannot be resumed: .*state_bits is 32 and was 8"):
        tuned(path, True, run=folder, resume=True)
    again = outcome(tuned(path, True, run=folder, resume=True, state_bits=8, threads=2))
    assert same(again, through) and not same(again, whole[True])


@pytest.mark.slow
@pytest.mark.parametrize(("one", "two"), [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_ranks(path: Path, whole: Any, tmp_path: Path, one: int, two: int) -> None:
    def train(count: int, **options: Any) -> Any:
        folder = tmp_path / "run"
        return on_ranks(count, lambda ranks: outcome(tuned(path, run=folder, parallel=ranks, **options)))

    def stop(batch: Any) -> None:
        if batch.step == 5:
            raise TimeIsUp("as stop_after does")

    train(one, callbacks=[Heard(stop)])
    found = train(two, resume=True)
    for name, array in whole[False].items():
        if name != "texts":  # rank 0 alone has them
            assert all(other[name].tobytes() == array.tobytes() for other in found), name
    assert found[0]["texts"].tobytes() == whole[False]["texts"].tobytes()


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("quantised"), kind="q8_0", width=64, heads=4, ffn=96)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("counts", [(0, 2, 3), (2, 0, 3), (3, 1, 0), (0, 3)])
@pytest.mark.slow
def test_one_process_and_ranks_take_turns(quantised: Path, tmp_path: Path, full: bool, counts: tuple[int, ...]) -> None:
    """A quantised base; windows of two micro-batches of three rows and one, the last batch of a pass shorter. 0: one
    process, without ranks."""
    shapes: dict[str, Any] = {"rows": 14, "micro_batch_size": 3}
    whole = outcome(tuned(quantised, full, **shapes))

    def train(count: int, **options: Any) -> dict[str, np.ndarray]:
        options |= shapes | {"run": tmp_path / "run"}
        if not count:
            return outcome(tuned(quantised, full, **options))
        found = on_ranks(count, lambda ranks: outcome(tuned(quantised, full, parallel=ranks, **options)))
        assert all(isinstance(one, dict) for one in found), found
        return found[0]

    def stop(batch: Any) -> None:
        if batch.step in (4, 7):
            raise TimeIsUp("as stop_after does")

    for i, count in enumerate(counts[:-1]):
        found = train(count, resume=i > 0, callbacks=[Heard(stop)])
        assert found["steps"][0] == (4, 7)[i]
    assert same(train(counts[-1], resume=True), whole)


@pytest.mark.parametrize(("full", "ranks"), [(False, 1), (True, 1), (False, 2)])
@pytest.mark.slow
def test_killed_at_any_moment(path: Path, whole: Any, tmp_path: Path, full: bool, ranks: int) -> None:
    draw, kills, out = random.Random(ranks + full), 0, tmp_path / "out.npz"
    command = [sys.executable, PROGRAM, path, tmp_path / "run", out, *(["--full"] if full else [])]
    while True:
        more = ["--threads", 1 + kills % 2, "--ranks", ranks]
        more += ["--kill", draw.uniform(0, 0.25)] if kills < 3 else []
        process = processes.start([*command, *more], env=processes.environment())
        _, said = process.communicate(timeout=200)
        assert process.returncode in (0, -9), said
        if process.returncode == 0:
            break
        kills += 1
    assert kills and same(dict(np.load(out)), whole[full])


def test_time_that_is_up_before_the_first_step(path: Path, tmp_path: Path) -> None:
    """The validation before it ends, and the step is done: there is something to go on from."""
    run = tuned(path, run=tmp_path / "run", stop_after="0.000001s")
    assert run.stopped and 0 < run.steps < run.steps_total and any((tmp_path / "run" / "checkpoints").iterdir())


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"lr": 2e-2}, "optimizer.lr is Cosine.* and was Cosine"),
    ({"schedule": "linear"}, "optimizer.lr is Linear.* and was Cosine"),
    ({"weight_decay": 0.2}, "optimizer.weight_decay is 0.2 and was 0.1"),
    ({"epochs": 5}, "steps is 15 and was 12"),
    ({"batch_size": 2}, "batch_size is 2 and was 4"),
    ({"micro_batch_size": 1}, "micro_batch_size is 1 and was 2"),
    ({"seed": 3}, "seed is 3 and was 2"),
    ({"max_norm": 2.0}, "max_norm is 2.0 and was 1.0"),
    ({"val_split": 0.3}, "validation rows is 4 and was 3"),
    ({"freeze": "*.lora_a"}, "freeze is .* and was"),
    ({"optimizer": "lion"}, "optimizer.kind is Lion and was AdamW"),
    ({"rows": 14}, "training rows is 11 and was 10"),
    ({"keep_best": False}, "callbacks is .* and was"),
]


@pytest.fixture(scope="module")
def stopped(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    tuned(path, run=folder, callbacks=[interrupted_at(4)])
    return folder


@pytest.mark.parametrize(("options", "message"), CHANGED)
def test_what_must_be_the_same(path: Path, stopped: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainError, match=f"cannot be resumed: .*{message}"):
        tuned(path, run=stopped, resume=True, **options)


@pytest.mark.slow
def test_adapter_data_and_model_must_be_the_same(path: Path, stopped: Path, tmp_path: Path) -> None:
    def resume(model: Path = path, data: Any = None, **adapter: Any) -> None:
        given = LoRA(**{"rank": 3, "dropout": 0.2, "seed": 1} | adapter)
        settings: dict[str, Any] = {
            "val_split": 0.2, "batch_size": 4, "micro_batch_size": 2, "threads": 1, "epochs": 4, "lr": 1e-2,
            "weight_decay": 0.1, "max_norm": 1.0, "keep_best": True, "seed": 2, "progress": False,
        }  # fmt: skip
        finetune(load(model), data or packed(13, 24), given, **settings, run=stopped, resume=True)

    for changed, message in (
        ({"rank": 2}, "adapter.rank is 2 and was 3"),
        ({"alpha": 5.0}, "adapter.alpha is 5.0 and was 6.0"),
        ({"dropout": 0.1}, "adapter.dropout is 0.1 and was 0.2"),
        ({"targets": ["attn_q"]}, "adapter.targets is"),
        ({"rslora": True}, "adapter.rslora is True and was False"),
    ):
        with pytest.raises(TrainError, match=f"cannot be resumed: .*{message}"):
            resume(**changed)
    other = packed(13, 24)
    other.labels[3, 2] = 5
    with pytest.raises(TrainError, match="cannot be resumed: the data differ"):
        resume(data=other)
    (tmp_path / "other").mkdir()
    with pytest.raises(TrainError, match="cannot be resumed: base model.weights is .*the frozen weights differ"):
        resume(write(tmp_path / "other", std=0.16))


def another(path: Path, folder: Path, key: str = "", tensor: str = "") -> Path:
    """The model with the last item of a list in its metadata renamed, or with the numbers of a tensor doubled."""
    file = open_gguf(path)
    fields = dict(file.fields)
    if key:
        fields[key] = field("array", [*fields[key].value[:-1], "renamed"], "string")
    tensors: dict[str, Any] = {t.name: (t.kind, t.shape, file.bytes(t.name)) for t in file.tensors.values()}
    if tensor:
        tensors[tensor] = file.floats(tensor) * 2
    write_gguf(folder / "another.gguf", fields, tensors)
    return folder / "another.gguf"


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_another_model_of_the_same_shapes(path: Path, tmp_path: Path, full: bool) -> None:
    """Of another name for a token, which no row and no graph shows, and of other numbers in a tensor, also in one that
    trains: the checkpoint holds it, and no frozen weight differs."""
    tuned(path, full, run=tmp_path / "a", callbacks=[interrupted_at(2)])
    tokens = another(path, tmp_path, key="tokenizer.ggml.tokens")
    for verb, options in (("resumed", {"run": tmp_path / "a", "resume": True}), ("continued", {})):
        how: dict[str, Any] = options or {"continue_from": tmp_path / "a"}
        with pytest.raises(TrainError, match=rf"cannot be {verb}: base model.tokenizer.ggml.tokens is .*; need"):
            tuned(tokens, full, **how)
    weights = another(path, tmp_path, tensor="blk.0.attn_q.weight")
    with pytest.raises(TrainError, match=r"cannot be resumed: base model.weights is "):
        tuned(weights, full, run=tmp_path / "a", resume=True)
    with pytest.raises(TrainError, match=r"cannot be continued: base model.weights is "):
        tuned(weights, full, continue_from=tmp_path / "a")
    tuned(path, full, run=tmp_path / "a", resume=True)


def test_an_adapter_of_another_scale_is_not_continued(path: Path, tmp_path: Path) -> None:
    tuned(path, run=tmp_path / "a")
    with pytest.raises(TrainError, match=r"a: cannot be continued: adapter.alpha is 9.0 and was 6.0"):
        continued(path, continue_from=tmp_path / "a", adapter=LoRA(rank=3, alpha=9.0))


def test_the_best_is_kept_and_the_last_can_be_reached(path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": gl.optim.AdamW(lr=0.05), "lr": None, "weight_decay": None, "epochs": 6}
    run = tuned(path, run=tmp_path / "run", **options)
    saved = Checkpoints(tmp_path / "run" / "checkpoints").latest()
    assert saved is not None and saved.step == run.steps
    last = tuned(path, **options | {"optimizer": gl.optim.AdamW(lr=0.05), "keep_best": False})
    losses = [epoch.val.loss for epoch in run.history]
    assert min(losses) < losses[-1]
    for name in run.adapter.parameters():
        assert saved.entries[f"model.{name}"].tobytes() == last.adapter.parameters()[name].numpy().tobytes()
    assert any((p.numpy() != last.adapter.parameters()[n].numpy()).any() for n, p in run.adapter.parameters().items())


# -- on other data -----------------------------------------------------------------------------------------------------


def continued(path: Path, **options: Any) -> Run:
    settings: dict[str, Any] = {"val_split": 0.0, "batch_size": 3, "threads": 1, "epochs": 2, "lr": 3e-3, "seed": 7}
    return finetune(load(path), packed(8, 20, seed=5), progress=False, **settings | options)


@pytest.mark.parametrize("keep_optimizer", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_continued_on_other_data(path: Path, tmp_path: Path, full: bool, keep_optimizer: bool) -> None:
    """Against the same by hand: the earlier run's own adapter, and its moments in a run whose schedule begins anew."""
    first = tuned(path, full, run=tmp_path / "a", keep_best=False)
    moments = first.trainer.optimizer_state.state_dict()
    run = continued(path, continue_from=tmp_path / "a", keep_optimizer=keep_optimizer)
    settings: dict[str, Any] = {"val_split": 0.0, "batch_size": 3, "threads": 1, "epochs": 2, "lr": 3e-3, "seed": 7}
    hand = Run(first.model, packed(8, 20, seed=5), first.adapter, **settings)
    if keep_optimizer:
        hand.trainer.optimizer_state.load_state_dict(moments)
        hand.trainer.epoch = 0
    hand.train(progress=False)
    assert same(outcome(run), outcome(hand))
    assert run.first_step == (first.steps if keep_optimizer else 0) and [e.epoch for e in run.history] == [1, 2]


def test_a_continued_run_resumes_too(path: Path, tmp_path: Path) -> None:
    tuned(path, run=tmp_path / "a")
    options: dict[str, Any] = {"continue_from": tmp_path / "a", "keep_optimizer": True}
    plain = continued(path, **options)
    continued(path, run=tmp_path / "b", callbacks=[interrupted_at(3)], **options)
    assert same(outcome(continued(path, run=tmp_path / "b", resume=True, **options)), outcome(plain))


def test_what_cannot_be_continued(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileError, match="there is no checkpoint in it; need the folder of a run of finetune"):
        continued(path, continue_from=tmp_path / "none")
    with pytest.raises(SettingError, match="keep_optimizer=True requires continue_from"):
        continued(path, keep_optimizer=True)
    gl.fit(gl.nn.Linear(2, 1), np.zeros((4, 2)), loss="mean", run=tmp_path / "fit", progress=False, epochs=1)
    with pytest.raises(FileError, match="its checkpoint is of no fine-tuning"):
        continued(path, continue_from=tmp_path / "fit")
    tuned(path, run=tmp_path / "a")
    with pytest.raises(TrainError, match=r"a: cannot be continued: .*AdamW"):
        continued(path, continue_from=tmp_path / "a", keep_optimizer=True, optimizer="sgd")
    with pytest.raises(TrainError, match=r"a: cannot be continued: adapter.rank is 2 and was 3"):
        continued(path, continue_from=tmp_path / "a", adapter=LoRA(rank=2))
    capsys.readouterr()
    finetune(load(path), packed(8, 20), continue_from=tmp_path / "a", steps=1, threads=1)
    step = Checkpoints(tmp_path / "a" / "checkpoints").latest().step  # type: ignore[union-attr]
    said = f"from step {step}: the optimiser, schedule and order of rows begin anew\n"
    assert said in capsys.readouterr().err


def test_a_run_is_trained_once(path: Path, tmp_path: Path) -> None:
    run = tuned(path, run=tmp_path / "a")
    with pytest.raises(TrainError, match="the folder of this run is closed; need a new Run, with resume=True"):
        run.train(progress=False)
    with pytest.raises(SettingError, match=r"resume=True requires run"):
        tuned(path, resume=True)
