"""finetune: steps against PyTorch, accumulation, the same bits however it is run, interruptions, bad input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, NonFiniteError, SettingError
from gradloom.llm.finetune import Run, finetune
from gradloom.llm.lora import LoRA
from gradloom.llm.model import load
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm.random_models import error, packed, write
from tests.noise import assert_all_noise
from tests.real_data import DATA
from tests.refused import refused

ROOT = DATA
STORIES, SHAKESPEARE = ROOT / "gguf" / "stories260K.gguf", ROOT / "text" / "tinyshakespeare.txt"


def run_on(path: Path, data: Any, adapter: Any = None, **options: Any) -> Run:
    settings = {"val_split": 0.0, "batch_size": 4, "micro_batch_size": 2, "progress": False, "threads": 1}
    settings |= {} if "optimizer" in options else {"lr": 1e-3}
    return finetune(load(path), data, adapter, **(settings | options))


def trained(run: Run) -> dict[str, np.ndarray]:
    return {name: p.numpy() for name, p in run.adapter.parameters().items()}


@pytest.mark.oracle
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3_untied"])
def test_steps_of_sgd_are_those_of_pytorch(tmp_path: Path, case: str, method: str) -> None:
    """Five steps on one batch of four packed rows, in micro-batches of 1, 2 and 4: losses and all that was trained."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # more would only wait for each other
    from tests.llm.torch_model import TorchModel

    path, data, rate = write(tmp_path, case), packed(4, 24), 0.5 if method == "lora" else 0.05
    first = LoRA(rank=3, alpha=6, targets="all", seed=4)
    first.bind(load(path))
    start = {n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a}
    references = []
    for kind in (torch.float32, torch.float64):
        oracle = TorchModel(path, kind)
        lora = oracle.adapter(start) if method == "lora" else None
        leaves = (
            {f"{n}.lora_{s}": t for n, pair in lora.items() for s, t in zip("ab", pair, strict=True)}
            if lora is not None
            else oracle.train(list(oracle.weights))
        )
        optimizer = torch.optim.SGD(leaves.values(), lr=rate)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = oracle.loss(data.tokens, data.positions, data.labels, lora, first.scale)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        references.append({n: t.detach().numpy() for n, t in leaves.items()} | {"losses": np.array(losses)})
    for micro in (1, 2, 4):
        adapter: Any = LoRA(rank=3, alpha=6, targets="all", seed=4) if method == "lora" else TrainedTensors()
        run = run_on(
            path, data, adapter, epochs=5, micro_batch_size=micro, optimizer=gl.optim.SGD(lr=rate)
        )  # fmt: skip
        losses = np.array(run.history.to_dict()["loss"])
        assert losses[-1] < losses[0] - 0.05
        assert_all_noise(trained(run) | {"losses": losses}, *references, longest=data.tokens.size)


def test_micro_batches_are_weighted_by_their_tokens(tmp_path: Path) -> None:
    """Rows of 1 to 20 tokens that count: one big batch, single rows, and uneven micro-batches give one gradient."""
    path, data = write(tmp_path, "llama"), packed(5, 24)
    for row, count in enumerate((1, 20, 3, 7, 12)):
        data.labels[row] = -100
        data.labels[row, :count] = 5
    found = []
    for micro in (5, 1, 2):
        adapter = LoRA(rank=2, targets="all", seed=1)
        sgd = gl.optim.SGD(lr=1.0)
        run = run_on(path, data, adapter, batch_size=5, micro_batch_size=micro, steps=2, optimizer=sgd)
        found.append(trained(run) | {"loss": np.array([e.train.loss for e in run.history])})
    for other in found[1:]:
        for name, array in other.items():
            assert error(array, found[0][name].astype(np.float64)) < 2e-6, name


def test_the_same_bits_however_it_is_run(tmp_path: Path) -> None:
    path, data = write(tmp_path, "qwen3"), packed(7, 24)
    runs = [
        trained(run_on(path, copy.deepcopy(data), LoRA(rank=4, dropout=0.2, seed=1), epochs=2, seed=3, **options))
        for options in ({}, {"threads": 2}, {"reuse": False}, {"inplace": False}, {"fuse": False}, {"poison": True})
    ]
    for other in runs[1:]:
        for name, array in other.items():
            np.testing.assert_array_equal(array, runs[0][name], err_msg=name)
    other_seed = trained(run_on(path, data, LoRA(rank=4, dropout=0.2, seed=1), epochs=2, seed=4))
    assert any((other_seed[n] != a).any() for n, a in runs[0].items())


def test_validation_rows_are_never_trained_on(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), packed(10, 16)
    run = Run(load(path), data, LoRA(rank=2, seed=0), val_split=0.3, batch_size=2, epochs=2, lr=1e-3, threads=1)
    assert len(run.val_rows) == 3 and not set(run.val_rows) & set(run.train_rows)
    first = trained(run.train(progress=False))
    changed = packed(10, 16)
    changed.labels[run.val_rows] = 7
    changed.tokens[run.val_rows] = 9
    again = run_on(path, changed, LoRA(rank=2, seed=0), val_split=0.3, batch_size=2, epochs=2, micro_batch_size=None)
    for name, array in trained(again).items():
        np.testing.assert_array_equal(array, first[name])
    assert again.before is not None and run.before is not None and again.before.loss != run.before.loss


def test_dropout_does_not_touch_validation(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), packed(6, 16)
    found = []
    for dropout in (0.0, 0.9):
        adapter = LoRA(rank=2, dropout=dropout)
        adapter.bind(load(path))
        for b in adapter.b.values():
            b.assign(np.ones(b.shape))
        run = run_on(path, data, adapter, val_split=0.5, steps=1, optimizer=gl.optim.SGD(lr=0.0))
        found.append((run.before.loss, run.history[-1].train.loss))
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_dropout_is_the_same_in_micro_batches_of_any_size(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), packed(4, 16)
    found = []
    for micro in (4, 1, 3):
        adapter = LoRA(rank=2, dropout=0.5, seed=1)
        sgd = gl.optim.SGD(lr=1.0)
        found.append(trained(run_on(path, data, adapter, micro_batch_size=micro, steps=3, optimizer=sgd)))
    for other in found[1:]:
        for name, array in other.items():
            assert error(array, found[0][name].astype(np.float64)) < 2e-6, name


def test_steps_and_epochs(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(10, 16)
    run = run_on(path, data, epochs=2)
    assert (run.steps, run.steps_total, len(run.history)) == (6, 6, 2) and run.tokens == 2 * 10 * 16
    run = run_on(path, data, steps=7)
    assert (run.steps, len(run.history)) == (7, 3) and [e.train.ndata for e in run.history] == [10, 10, 4]
    assert run.tokens == 24 * 16
    run = run_on(path, data, batch_size=64, micro_batch_size=None)  # more than there are
    assert (run.batch_size, run.steps) == (10, 1)


def test_rates(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(10, 16)
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.1, schedule="linear", val_split=0.0)
    rates = [run.rate(i, 0) for i in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)]) and rates[10] == 1
    assert rates[55] == pytest.approx(0.5) and 0 < rates[99] < 0.02
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.0, val_split=0.0)
    assert run.rate(0, 0) == 1 and run.rate(50, 0) == pytest.approx(0.5) and run.rate(25, 0) > 0.8
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.5, schedule="constant", val_split=0.0)
    assert run.rate(24, 0) == 0.5 and run.rate(99, 0) == 1
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.1, schedule="wsd", val_split=0.0)
    rates = [run.rate(i, 0) for i in range(101)]
    assert rates[4] == 0.5 and rates[9:91] == [1.0] * 82 and rates[95] == pytest.approx(0.5) and rates[100] == 0
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.2, schedule="one_cycle", val_split=0.0)
    assert (run.rate(0, 0), run.rate(19, 0), run.rate(99, 0)) == pytest.approx((0.04, 1.0, 4e-6))
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.1, schedule="polynomial", power=2.0, val_split=0.0)
    assert (run.rate(4, 0), run.rate(10, 0), run.rate(55, 0)) == pytest.approx((0.5, 1.0, 0.25))
    run = Run(load(path), data, steps=100, lr=1.0, warmup=0.1, schedule="cosine_restarts", cycles=3, val_split=0.0)
    assert [run.rate(i, 0) for i in (9, 10, 25, 40, 70)] == pytest.approx([1.0, 1.0, 0.5, 1.0, 1.0])
    run = Run(load(path), data, steps=1, lr=1.0, warmup=0.9, schedule="wsd", val_split=0.0)
    assert run.rate(0, 0) == 1.0


def test_ctrl_c_leaves_with_the_work_so_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(40, 16)
    calls = []

    def interrupt(at: Any) -> None:
        calls.append(at.rows)
        if len(calls) == 2:
            raise KeyboardInterrupt

    adapter = LoRA(rank=2)
    run = run_on(path, data, adapter, epochs=1000, on_progress=interrupt)
    assert run.interrupted and 0 < run.steps < 10000
    assert any(b.numpy().any() for b in adapter.b.values())
    assert run.report["interrupted"] and run.report["steps"] == run.steps
    assert f"interrupted after {run.steps} of 10000 steps" in capsys.readouterr().err
    run.loop.steps_total = run.steps + 3
    run.train(progress=False)  # goes on
    assert not run.interrupted and run.steps == run.loop.steps_total == run.trainer.steps and run.loop.passes == 2
    assert run.train(progress=False).steps == run.loop.steps_total  # nothing is left


@pytest.mark.parametrize("listener", ["on_epoch", "on_progress"])
def test_a_listener_may_stop(tmp_path: Path, listener: str) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(40, 16)
    calls: list[Any] = []

    def stop(at: Any) -> None:
        calls.append(at)
        if len(calls) == 2:
            raise gl.train.StopTraining

    run = run_on(path, data, LoRA(rank=2), epochs=1000, **{listener: stop})
    assert run.stopped and not run.interrupted and len(calls) == 2 and 0 < run.steps <= 20
    assert run.history[-1].train.ndata and sum(h.train.ndata for h in run.history) == 4 * run.steps
    if listener == "on_epoch":
        assert run.steps == 20 and [h.epoch for h in run.history] == [1, 2]


def test_callbacks_hear_of_steps_and_evaluations(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(24, 16)
    seen: list[Any] = []

    class Heard(gl.train.Callback):
        def on_batch(self, batch: gl.train.BatchResult) -> None:
            assert batch.labels is not None and len(batch.labels) == len(batch.rows)
            seen.append((batch.step, batch.epoch, len(batch.rows)))

        def on_evaluation(self, evaluation: gl.train.Evaluation) -> None:
            assert evaluation.val is not None
            seen.append((evaluation.step, evaluation.epoch, evaluation.val.loss))

    run = run_on(path, data, LoRA(rank=2, seed=0), epochs=2, val_split=0.5, callbacks=[Heard()])
    expected: list[Any] = []
    for done in run.history:
        steps, first = -(-done.train.ndata // 4), max([one[0] for one in expected], default=0)
        expected += [(first + i + 1, done.epoch, min(4, done.train.ndata - 4 * i)) for i in range(steps)]
        assert done.val is not None
        expected.append((first + steps, done.epoch, done.val.loss))
    assert seen == expected and seen[-1][0] == run.steps > 2


@pytest.mark.parametrize("method", ["lora", "full"])
def test_early_stopping_brings_the_best_back(tmp_path: Path, method: str) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(12, 16)
    adapter = LoRA(rank=2, seed=0) if method == "lora" else TrainedTensors("all")
    stop, seen = gl.train.EarlyStopping(patience=3, restore_best=True), {}
    run = run_on(
        path, data, adapter, epochs=200, val_split=0.5, optimizer=gl.optim.AdamW(lr=0.05),
        on_epoch=[lambda at: seen.update({at.epoch: {n: p.numpy() for n, p in adapter.parameters().items()}}), stop],
    )  # fmt: skip
    losses = [h.val.loss for h in run.history if h.val is not None]
    assert run.stopped and stop.best_epoch == 1 + int(np.argmin(losses)) == len(losses) - 3
    for name, array in trained(run).items():
        np.testing.assert_array_equal(array, seen[stop.best_epoch][name])
    assert set(run.trainer.written()) == {p.stored for p in adapter.parameters().values()}  # no frozen weight is copied


def test_clipped_steps_are_no_longer_than_asked(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), packed(4, 16)
    moved = {}
    for max_norm in (1e-3, 1e9, float("inf")):
        adapter = TrainedTensors("all")
        adapter.bind(load(path))
        before = {n: p.numpy().astype(np.float64) for n, p in adapter.parameters().items()}
        adapter = TrainedTensors("all")
        run = run_on(path, data, adapter, steps=1, optimizer=gl.optim.SGD(lr=1.0), max_norm=max_norm)
        moved[max_norm] = np.sqrt(sum(np.sum((a - before[n]) ** 2) for n, a in trained(run).items()))
    assert moved[1e-3] == pytest.approx(1e-3, rel=1e-3) and moved[1e9] == moved[float("inf")] > 1e-2


def test_a_plateau_hears_of_validation(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama", layers=1), packed(12, 16)
    plateau = gl.optim.schedules.Plateau(0.05, 0.5, 0)
    run = run_on(path, data, epochs=8, val_split=0.5, optimizer=gl.optim.AdamW(lr=plateau))
    memory = plateau.remember()
    for at in run.history:
        assert at.val is not None
        plateau.observe(memory, at.val.loss)
    assert run.trainer.optimizer_state.memories["lr"] == memory and memory["rate"] < 0.05


@pytest.mark.parametrize("data_split", [0.0, 0.25])
def test_two_runs_of_one_pass_are_one_run_of_two(tmp_path: Path, data_split: float) -> None:
    """Adapter and optimiser go through files; the schedule is the optimiser's own, so it spans both runs."""
    path, data = write(tmp_path, "llama", layers=1), packed(9, 16)
    cosine = gl.optim.schedules.Cosine(1e-2, steps=6, warmup=1)
    found = []
    for passes in ((2,), (1, 1)):
        model, files = load(path), [tmp_path / "a.gguf", tmp_path / "o.safetensors"]
        adapter, history = LoRA(rank=2, dropout=0.3, seed=0), []
        for part, epochs in enumerate(passes):
            if part:
                adapter = LoRA.load(files[0], model)
                adapter.dropout = 0.3
            adapter.bind(model)
            optimizer = gl.optim.AdamW(adapter.parameters().values(), lr=cosine)
            if part:
                gl.load(optimizer, files[1])
            run = run_on(path, data, adapter, epochs=epochs, optimizer=optimizer, val_split=data_split)
            history += run.history
            run.save(files[0])
            gl.save(optimizer, files[1])
        assert [e.epoch for e in history] == [1, 2] and run.steps == run.steps_total
        found.append(trained(run) | {"losses": np.array([[e.train.loss, e.val.loss if e.val else 0] for e in history])})
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=name)


def test_an_optimiser_that_goes_on(tmp_path: Path) -> None:
    """Its steps, passes and moments go on; the run counts its own steps."""
    path, data = write(tmp_path, "llama", layers=1), packed(8, 16)
    adapter = LoRA(rank=2, seed=0)
    adapter.bind(load(path))
    optimizer = gl.optim.AdamW(adapter.parameters().values(), lr=1e-2)
    for k in (1, 2):
        run = run_on(path, data, adapter, epochs=1, optimizer=optimizer)
        assert run.steps == 2 and optimizer.steps == 2 * k and [e.epoch for e in run.history] == [k]


def test_a_new_run_begins_its_schedule_anew(tmp_path: Path) -> None:
    """The rates of lr, schedule and warmup span one run, also where moments of an earlier one are loaded."""
    path, data = write(tmp_path, "llama", layers=1), packed(8, 16)
    first = run_on(path, data, LoRA(rank=2, seed=0), steps=4)
    gl.save(first.trainer.optimizer_state, tmp_path / "o.safetensors")
    rates = []

    def note(at: Any) -> None:
        rates.append(run.optimizer.at(run.trainer.steps - 1, 0)["opt.lr"])

    run = Run(load(path), data, first.adapter, steps=4, lr=1e-2, val_split=0.0, threads=1, on_progress=note)
    gl.load(run.trainer.optimizer_state, tmp_path / "o.safetensors")
    before = trained(run)
    run.train(progress=False)
    assert run.steps == 4 and run.trainer.steps == 8 and run.rate(3, 0) > 0
    assert rates[-1] == pytest.approx(run.rate(3, 0))
    assert any((a != before[n]).any() for n, a in trained(run).items())


def test_a_loss_that_is_not_finite_stops_and_keeps_the_weights(tmp_path: Path) -> None:
    path, data = write(tmp_path, "llama"), packed(8, 16)
    adapter = TrainedTensors("all")
    with pytest.raises(NonFiniteError, match="training stopped at step"):
        run_on(path, data, adapter, epochs=5, optimizer=gl.optim.SGD(lr=1e30))
    assert all(np.isfinite(p.numpy()).all() for p in adapter.parameters().values())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"method": "qlora"}, SettingError, "method='qlora': must be lora or full"),
        ({"schedule": "cosin"}, SettingError, "schedule='cosin': must be"),
        ({"schedule": "polynomial"}, SettingError, "schedule='polynomial' requires power"),
        ({"schedule": "cosine_restarts"}, SettingError, "schedule='cosine_restarts' requires cycles"),
        ({"power": 2.0}, SettingError, "power=2.0 requires schedule 'polynomial'"),
        ({"schedule": "linear", "cycles": 2}, SettingError, "cycles=2 requires schedule 'cosine_restarts'"),
        ({"epochs": 1, "steps": 2}, SettingError, "epochs=1 and steps=2 are mutually exclusive"),
        ({"steps": 0}, SettingError, "steps=0: must be"),
        ({"batch_size": 0}, SettingError, "batch_size=0: must be"),
        ({"micro_batch_size": 5}, SettingError, "micro_batch_size=5 must be at most batch_size=4"),
        ({"lr": -1.0}, SettingError, "lr=-1.0: must be"),
        ({"warmup": 1.5}, SettingError, "warmup=1.5: must be"),
        ({"val_split": 1.0}, SettingError, "val_split=1.0: must be"),
        ({"nonsense": 1}, SettingError, "nonsense is not an argument"),
        (
            {"optimizer": gl.optim.SGD(lr=1.0), "lr": 1e-3, "warmup": 0.0},
            SettingError,
            "lr=.* and optimizer are mutually exclusive",
        ),
        ({"train_dtype": "f32"}, SettingError, "requires method='full'"),
        ({"tensors": "attn_q"}, SettingError, "requires method='full'"),
        ({"tensors": "all"}, SettingError, "requires method='full'"),
        ({"adapter": LoRA(), "method": "full"}, SettingError, "method='full' cannot be combined with a LoRA"),
        (
            {"adapter": TrainedTensors(), "method": "lora"},
            SettingError,
            "method='lora' cannot be combined with TrainedTensors",
        ),
        (
            {"adapter": TrainedTensors(), "tensors": "all"},
            SettingError,
            "cannot be combined with adapter",
        ),
        ({"exchange": "fast"}, SettingError, "exchange='fast' requires parallel='mpi'"),
        ({"timeout": 5.0}, SettingError, "timeout=5.0 requires parallel='mpi'"),
        ({"context": 32}, SettingError, "context=32: the rows are packed already, to 16 tokens"),
        (
            {"data_options": {"text_key": "t"}},
            SettingError,
            "data_options: text_key cannot be combined with rows",
        ),
        (
            {"adapter": TrainedTensors(), "train_dtype": "f32"},
            SettingError,
            "cannot be combined with adapter",
        ),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, options: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        run_on(write(tmp_path, "llama", layers=1), packed(8, 16), **options)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_more_memory_than_there_is_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from gradloom.base import memory

    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 100_000))
    run = None
    with pytest.raises(SettingError, match=r"plan: .* of memory are needed.*97.66 KiB are available; need"):
        run = Run(load(write(tmp_path, "llama")), packed(4, 16), method=method, val_split=0.0)
        run.train(progress=False)
    assert (run is None) == (method == "full")
    if run is not None:
        assert run.steps == 0 and not any(b.numpy().any() for b in run.adapter.b.values())


def test_data_that_do_not_fit_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, "llama", layers=1, context=32)
    data = packed(3, 16)
    data.tokens[1, 4] = 300
    with pytest.raises(DataError, match=r"token id 300 in row 1; need 0\.\.299, the model's vocabulary"):
        run_on(path, data)
    data = packed(3, 16)
    data.labels[2, 0] = 512
    with pytest.raises(DataError, match=r"label id 512 in row 2; need 0\.\.299"):
        run_on(path, data)
    data.labels[...] = -100
    data.positions[1, 3] = 4
    with pytest.raises(DataError, match="a position is before the start of its row"):
        run_on(path, data)
    data.positions[1, 3] = 0
    with pytest.raises(DataError, match="no token counts for the loss"):
        run_on(path, data)
    with pytest.raises(SettingError, match="rows of 33 tokens; must be at most 32, the model's context"):
        run_on(path, packed(3, 33))
    with refused("context", 64, need="2 to 32, the model's context"):
        run_on(path, tmp_path / "a.txt", context=64)


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists() or not SHAKESPEARE.exists(), reason=f"{ROOT} has not the model and the text")
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_real_model_learns_a_real_text(tmp_path: Path, method: str) -> None:
    text = tmp_path / "part.txt"
    text.write_text(SHAKESPEARE.read_text()[:60000])
    adapter = LoRA(rank=8, targets="all") if method == "lora" else None
    settings = {"context": 128, "steps": 40, "lr": 2e-3, "progress": False}
    run = finetune(str(STORIES), text, adapter, method=method, **settings)
    found = run.report
    assert run.before is not None and run.before.loss > 4.5
    drop = found["val_loss_before"] - found["val_loss"]
    assert drop > 1 and drop > 5 * (found["val_loss_before_unc"] + found["val_loss_unc"])
    assert found["steps"] == 40 and found["planned_bytes"] > 0 and found["peak_bytes"] > found["planned_bytes"]


def test_samples_are_split_before_they_are_packed(tmp_path: Path) -> None:
    """No row holds samples of both sides; what was cut and skipped is reported for both."""
    path, file = write(tmp_path, "llama"), tmp_path / "data.jsonl"
    file.write_text("".join(f'{{"prompt": "say {i}", "completion": "so {i} it is"}}\n' for i in range(40)))
    run = Run(load(path), file, context=48, val_split=0.25, epochs=1, seed=2)
    train, val = run.data.reports
    assert (train.samples, val.samples) == (30, 10) and len(run.val_rows) == val.rows > 0
    starts = (run.data.positions == 0) & (run.data.tokens != 0)
    assert starts[run.val_rows].sum() == 10 and starts[run.train_rows].sum() == 30
    assert sorted([*run.train_rows, *run.val_rows]) == list(range(len(run.data.tokens)))
    report = run.train(progress=False).report
    assert report["data"]["samples"] == 30 and report["val_loss_before"] > 0
    whole = Run(load(path), file, context=48, val_split=0.0)
    assert not len(whole.val_rows) and whole.data.reports[0].samples == 40


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_on(write(tmp_path, "llama", layers=1), packed(20, 16), epochs=2, val_split=0.2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("before training: validation loss ") and " +- " in lines[0]
    assert lines[1].startswith("epoch 1/2  loss ") and "validation loss " in lines[1] and len(lines) == 3


@pytest.mark.parametrize("adapter", [None, TrainedTensors("attn_norm")])
def test_the_table_of_what_trains(tmp_path: Path, adapter: Any) -> None:
    run = Run(load(write(tmp_path, "qwen2")), packed(4, 16), adapter, val_split=0.0)
    lines = run.table.splitlines()
    assert lines[0].split() == ["tensor", "shape", "type", "layers", "trains"]
    rows = {line.split()[0]: line for line in lines[1:-2]}
    assert set(rows) > {"token_embd", "output_norm", "attn_q", "attn_q.bias", "ffn_down"}
    counts = [int(line.split()[1].replace(",", "")) for line in lines[-2:]]
    if adapter is None:
        assert rows["attn_k"].endswith("0-1     LoRA of rank 8, 512 parameters each") and lines[-2].startswith(
            "trains:"
        )
        assert counts[0] == run.adapter.parameter_count == 2 * 2 * 8 * (96 + 64)
        assert counts[1] == sum(w.read().size for w in run.model.weights.values())
    else:
        assert rows["attn_norm"].endswith("yes") and rows["ffn_norm"].endswith("frozen") and counts[0] == 96


@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_a_quantised_model_trains_as_f32_copies_and_is_written(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, "llama", kind=kind, width=256, ffn=256, heads=4)
    data = packed(8, 16)
    run = run_on(path, data, TrainedTensors("all", "f32"), epochs=3, lr=3e-3)
    losses = [e.train.loss for e in run.history]
    assert losses[2] < losses[1] < losses[0]
    run.save(tmp_path / "new.gguf")
    again = load(tmp_path / "new.gguf")
    assert {t.kind for t in again.file.tensors.values()} == {"f32"}
    for name, array in trained(run).items():
        np.testing.assert_array_equal(again.array(name), array)


def test_an_adapter_from_a_file_goes_on_training(tmp_path: Path) -> None:
    """Saved and loaded between two runs of plain SGD, it ends where one run ends."""
    path, data = write(tmp_path, "llama"), packed(4, 16)
    sgd = {"optimizer": gl.optim.SGD(lr=0.5)}
    whole = run_on(path, data, LoRA(rank=3, alpha=5, targets="all", seed=1), epochs=4, **sgd)
    half = run_on(path, data, LoRA(rank=3, alpha=5, targets="all", seed=1), epochs=2, **sgd)
    half.save(tmp_path / "half.gguf")
    model = load(path)
    rest = LoRA.load(tmp_path / "half.gguf", model)
    second = finetune(model, data, rest, epochs=2, val_split=0.0, micro_batch_size=2, progress=False, **sgd)
    assert [e.train.loss for e in second.history] == pytest.approx([e.train.loss for e in whole.history[2:]], rel=1e-6)
    for name, array in trained(second).items():
        assert error(array, trained(whole)[name].astype(np.float64)) < 1e-5, name
