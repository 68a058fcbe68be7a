"""The objective distil: the pass of the teacher, its file, losses against PyTorch, and the promises of fine-tuning."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import FileError, SettingError, TrainError
from gradloom.llm import LoRA, TrainedTensors, finetune, load
from gradloom.llm.finetune import Run
from gradloom.llm.soft_labels import FILE, SoftLabels, likeliest
from tests.llm.random_models import packed, write
from tests.llm.resumed_finetune import Heard
from tests.llm.test_resume import interrupted_at
from tests.train.split_training import on_ranks

WIDE = {"width": 64, "heads": 8, "ffn": 96}  # sizes that quantised types permit


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(student, teacher): the teacher is larger, of another architecture, and has other weights."""
    folder = tmp_path_factory.mktemp("models")
    teacher = write(folder, "qwen3", layers=3, width=60, seed=7)
    return write(folder, "llama"), teacher


def run_of(models: tuple[Path, Path], data: Any, **settings: Any) -> Run:
    given = {"batch_size": 4, "micro_batch_size": 2, "lr": 1e-2, "val_split": 0.0, "progress": False, "threads": 1}
    full = settings.pop("method", "lora") == "full"
    adapter = settings.pop("adapter", None) or (TrainedTensors() if full else LoRA(rank=3, seed=1))
    given |= {"objective": "distil", "teacher": models[1], "top_k": 8} | settings
    return finetune(load(models[0]), data, adapter, **given)


def trained(run: Run) -> dict[str, bytes]:
    return {name: p.numpy().tobytes() for name, p in run.adapter.parameters().items()}


def columns(run: Run) -> np.ndarray:
    assert run.dataset.labels is not None
    return run.dataset.labels


# ---- the pass of the teacher -------------------------------------------------------------------------------------


def test_likeliest_are_sorted_and_ties_go_to_the_first_ids() -> None:
    rng = np.random.default_rng(0)
    log_p = rng.integers(0, 4, (50, 20)).astype(np.float32)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    for k in (1, 7, 19, 20):
        found = likeliest(log_p, k)
        order = np.argsort(-log_p, axis=1, kind="stable")
        assert np.array_equal(found[:, :k], order[:, :k])
        assert np.array_equal(found[:, k : 2 * k], np.take_along_axis(log_p, order[:, :k], 1))
        rest = np.exp(np.take_along_axis(log_p, order[:, k:], 1).astype(np.float64)).sum(1)
        assert np.allclose(np.exp(found[:, -1]), rest, atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_columns_are_those_of_the_teacher(models: tuple[Path, Path], temperature: float) -> None:
    """Against PyTorch in float64; the teacher's pass has fewer rows at a time than the data have."""
    torch = pytest.importorskip("torch")
    from tests.llm.torch_model import TorchModel

    data = packed(30, 24)
    run = run_of(models, data, steps=1, temperature=temperature, top_k=5)
    with torch.no_grad():
        logits = TorchModel(models[1], torch.float64).logits(data.tokens, data.positions)
    log_p = (logits / temperature).log_softmax(-1).numpy().reshape(30, 24, -1)
    found, counted = columns(run), data.labels != -100
    assert np.array_equal(found[:, :, 0], data.labels)
    assert not found[~counted][:, 1:].any()
    ids, own = found[counted][:, 1:6].astype(int), log_p[counted]
    taken = np.take_along_axis(own, ids, 1)
    assert np.allclose(taken, found[counted][:, 6:11], atol=2e-5)
    assert np.allclose(taken, -np.sort(-own, axis=1)[:, :5], atol=2e-5)
    assert np.allclose(np.exp(found[counted][:, 11]), 1 - np.exp(taken).sum(1), atol=1e-5)


def test_the_teacher_is_freed(models: tuple[Path, Path]) -> None:
    run = Run(load(models[0]), packed(6, 24), LoRA(rank=3), objective="distil", teacher=models[1], val_split=0.0)
    soft = run.computed
    assert isinstance(soft, SoftLabels) and soft.teacher is not None
    run.train(progress=False)
    assert soft.teacher is None and run.job.teacher is None


@pytest.mark.parametrize("top_k", [1, 8, 300])
def test_a_student_like_its_teacher_has_the_loss_0(models: tuple[Path, Path], top_k: int) -> None:
    run = run_of((models[0], models[0]), packed(4, 24), micro_batch_size=4, steps=1, top_k=top_k)
    first = run.history[0].train
    assert abs(first.loss) < 1e-6 and abs(first.metrics["kl"]) < 1e-6
    assert first.metrics["same_top"] == 1


# ---- losses ------------------------------------------------------------------------------------------------------


def torch_loss(torch: Any, logits: Any, labels: np.ndarray, temperature: float, hard: float) -> Any:
    """The loss of rows of logits, from the columns of the data set [rows, 1 + 2k + 1]."""
    k = (labels.shape[1] - 2) // 2
    ids, teacher = torch.from_numpy(labels[:, 1 : 1 + k].astype(np.int64)), torch.from_numpy(labels[:, 1 + k :])
    log_p = teacher.to(logits.dtype)
    log_q = (logits / temperature).log_softmax(-1)
    others = torch.ones_like(logits).scatter(1, ids, 0.0)
    kl = (log_p[:, :k].exp() * (log_p[:, :k] - log_q.gather(1, ids))).sum(1)
    if k < logits.shape[1]:
        kl = kl + log_p[:, k].exp() * (log_p[:, k] - (log_q.exp() * others).sum(1).log())
    nll = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[:, 0].astype(np.int64)))
    return (1 - hard) * temperature**2 * kl.mean() + hard * nll


LOSSES = [(8, 1.0, 0.0), (8, 2.0, 0.25), (300, 1.0, 0.0), (1, 0.7, 0.0)]


@pytest.mark.oracle
@pytest.mark.parametrize(("top_k", "temperature", "hard"), LOSSES)
@pytest.mark.parametrize("targets", ["attention", "all"])  # all: also the output's matrix
def test_gradients_are_those_of_float64(
    tmp_path: Path, models: tuple[Path, Path], top_k: int, temperature: float, hard: float, targets: str
) -> None:
    """One step of SGD of rate 1: what it subtracts is the gradient."""
    torch = pytest.importorskip("torch")
    from tests.llm.torch_model import TorchModel

    path, data = write(tmp_path, "llama_untied"), packed(4, 24)
    first = LoRA(rank=3, alpha=6, **({} if targets == "attention" else {"targets": "all"}), seed=4)
    first.bind(load(path))
    rng = np.random.default_rng(3)
    for b in first.b.values():
        b.assign(rng.normal(0, 0.05, b.shape))
    start = {n: (first.a[n].numpy(), first.b[n].numpy()) for n in first.a}
    run = run_of(
        (path, models[1]), data, adapter=first, steps=1, lr=None, optimizer=gl.optim.SGD(lr=1.0), top_k=top_k,
        temperature=temperature, hard_weight=hard,
    )  # fmt: skip
    oracle = TorchModel(path, torch.float64)
    lora = oracle.adapter(start)
    logits = oracle.logits(data.tokens, data.positions, lora, first.scale).flatten(0, -2)
    labels = columns(run).reshape(-1, columns(run).shape[2])
    counted = labels[:, 0] != -100
    loss = torch_loss(torch, logits[torch.from_numpy(counted)], labels[counted], temperature, hard)
    loss.backward()
    assert run.history[0].train.loss == pytest.approx(loss.item(), rel=1e-5)
    now = run.adapter.parameters()
    for name, pair in lora.items():
        for side, leaf in zip("ab", pair, strict=True):
            moved = start[name]["ab".index(side)] - now[f"{name}.lora_{side}"].numpy()
            truth = leaf.grad.numpy()
            assert np.linalg.norm(moved - truth) <= 2e-4 * np.linalg.norm(truth) + 1e-6, name


@pytest.mark.oracle
def test_fifty_steps_are_those_of_pytorch(models: tuple[Path, Path]) -> None:
    """All tensors train, by SGD; the losses of 50 steps agree to 1e-4."""
    torch = pytest.importorskip("torch")
    from tests.llm.torch_model import TorchModel

    data, rate = packed(4, 24), 0.03
    run = run_of(
        models, data, method="full", epochs=50, lr=None, optimizer=gl.optim.SGD(lr=rate), temperature=2.0,
        hard_weight=0.2,
    )  # fmt: skip
    oracle = TorchModel(models[0], torch.float64)
    for weight in oracle.weights.values():
        weight.requires_grad_()
    labels = columns(run).reshape(-1, columns(run).shape[2])
    counted = labels[:, 0] != -100
    losses = []
    for _ in range(50):
        logits = oracle.logits(data.tokens, data.positions).flatten(0, -2)[torch.from_numpy(counted)]
        loss = torch_loss(torch, logits, labels[counted], 2.0, 0.2)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for weight in oracle.weights.values():
                weight -= rate * weight.grad
                weight.grad = None
    np.testing.assert_allclose(run.history.to_dict()["loss"], losses, rtol=1e-4)
    assert losses[-1] < losses[0] - 0.05


def test_the_cross_entropy_is_that_of_sft(models: tuple[Path, Path]) -> None:
    data, settings = packed(8, 24), {"val_split": 0.3, "steps": 1}
    distilled = run_of(models, data, **settings)
    plain = run_of(models, data, objective="sft", teacher=None, top_k=None, **settings)
    assert distilled.before is not None and plain.before is not None
    assert distilled.before.metrics["nll_loss"] == pytest.approx(plain.before.loss, rel=1e-5)


# ---- promises of fine-tuning ---------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_threads(models: tuple[Path, Path]) -> None:
    one, two = (run_of(models, packed(6, 24), epochs=2, threads=threads) for threads in (1, 2))
    assert trained(one) == trained(two)
    assert np.array_equal(columns(one), columns(two))


def test_micro_batches_change_noise_only(models: tuple[Path, Path]) -> None:
    one, two = (run_of(models, packed(8, 24), epochs=3, micro_batch_size=size) for size in (1, 4))
    np.testing.assert_allclose(one.history.to_dict()["loss"], two.history.to_dict()["loss"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_bits_of_one_process(models: tuple[Path, Path], ranks: int) -> None:
    data, settings = packed(50, 24), {"micro_batch_size": 1, "steps": 6, "val_split": 0.1}
    one = run_of(models, data, **settings)

    def of_rank(rank: Any) -> tuple[dict[str, bytes], bytes]:
        run = run_of(models, data, parallel=rank, **settings)
        return trained(run), columns(run).tobytes()

    assert on_ranks(ranks, of_rank) == [(trained(one), columns(one).tobytes())] * ranks


def stopped(models: tuple[Path, Path], folder: Path, **settings: Any) -> tuple[Run, dict[str, Any]]:
    """(the run that is never stopped, settings to resume one that was stopped in its second pass)."""
    given = {"epochs": 3, "micro_batch_size": 1, "val_split": 0.2} | settings
    whole = run_of(models, packed(8, 24), **given)
    given["run"] = folder
    assert run_of(models, packed(8, 24), callbacks=[interrupted_at(3)], **given).interrupted
    return whole, given | {"resume": True}


@pytest.mark.slow
def test_a_resumed_run_reads_the_file(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, again = stopped(models, tmp_path / "run")
    counted = int((columns(whole)[:, :, 0] != -100).sum())
    assert np.load(tmp_path / "run" / FILE).shape == (counted, 17)
    with monkeypatch.context() as patch:
        patch.setattr(SoftLabels, "compute_into", None)
        with pytest.raises(TrainError, match="objective is"):
            run_of(models, packed(8, 24), **again, temperature=2.0)
        with pytest.raises(TrainError, match="teacher"):
            run_of((models[0], models[0]), packed(8, 24), **again)
        resumed = run_of(models, packed(8, 24), threads=2, **again)
    assert trained(resumed) == trained(whole)
    assert resumed.report["kl"] == whole.report["kl"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "short", "other", "no array"])
def test_a_damaged_file_is_computed_again(
    tmp_path: Path, models: tuple[Path, Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole, again = stopped(models, tmp_path / "run")
    file = tmp_path / "run" / FILE
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "short":
        file.write_bytes(content[:-100])
    elif damage == "other":
        content[-5] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(b"nothing of the kind")
    intact = run_of(models, packed(8, 24), **again)
    assert trained(intact) == trained(whole)
    assert np.load(file).shape[1] == 17


@pytest.mark.slow
@pytest.mark.parametrize("file", ["intact", "gone"])
def test_ranks_resume_a_run_of_ranks(tmp_path: Path, models: tuple[Path, Path], file: str) -> None:
    given: dict[str, Any] = {"epochs": 3, "micro_batch_size": 1, "val_split": 0.2}
    whole = trained(run_of(models, packed(8, 24), **given))
    given["run"] = tmp_path / "run"
    given["checkpoint_every"] = "1steps"

    def broken(batch: Any) -> None:
        if batch.step == 3:
            raise ValueError("stop")

    found = on_ranks(2, lambda rank: run_of(models, packed(8, 24), parallel=rank, callbacks=[Heard(broken)], **given))
    assert all(isinstance(one, (ValueError, TrainError)) for one in found), found
    if file == "gone":
        (tmp_path / "run" / FILE).unlink()
    found = on_ranks(2, lambda rank: trained(run_of(models, packed(8, 24), parallel=rank, resume=True, **given)))
    assert found == [whole] * 2


@pytest.mark.slow
def test_killed_in_the_pass_of_the_teacher(tmp_path: Path, models: tuple[Path, Path]) -> None:
    """Nothing was written: the next run starts anew, with the bits of one that was never killed."""
    code = f"""
import os, signal
from gradloom.llm import soft_labels
from tests.llm.test_distil import packed, run_of, Path
soft_labels.likeliest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run_of((Path({str(models[0])!r}), Path({str(models[1])!r})), packed(8, 24), run={str(tmp_path / "run")!r}, resume=True)
"""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "run" / FILE).exists()
    again = run_of(models, packed(8, 24), run=tmp_path / "run", resume=True)
    assert trained(again) == trained(run_of(models, packed(8, 24)))


@pytest.mark.slow
def test_the_plan_is_that_of_the_run(models: tuple[Path, Path]) -> None:
    settings: dict[str, Any] = {"objective": "distil", "teacher": models[1], "top_k": 8, "batch_size": 4, "threads": 2}
    planned = gl.llm.plan(load(models[0]), LoRA(rank=3), packed(7, 24), **settings)
    run = Run(load(models[0]), packed(7, 24), LoRA(rank=3), **settings)
    run.prepare()
    made = run.memory()
    names = ("weights", "trained", "state", "gradients", "inputs", "arena", "scratch", "steps", "process", "teacher")
    for name in names:
        assert getattr(planned, name) == getattr(made, name), name
    assert made.need == max(made.weights + made.own, made.during_teacher)
    without = gl.llm.plan(load(models[0]), LoRA(rank=3), **settings, context=24)
    assert without.arena <= made.arena and without.teacher == made.teacher


@pytest.mark.slow
def test_a_budget_below_the_pass_of_the_teacher(tmp_path: Path, models: tuple[Path, Path]) -> None:
    large = write(tmp_path, "llama", layers=4, width=384, heads=8, ffn=8192)
    settings: dict[str, Any] = {"objective": "distil", "teacher": large, "context": 24}
    need = gl.llm.plan(load(models[0]), LoRA(rank=3), **settings)
    assert need.need == need.during_teacher > need.weights + need.own
    with pytest.raises(SettingError, match="for the pass of the teacher") as caught:
        gl.llm.plan(load(models[0]), LoRA(rank=3), **settings, memory=need.base + need.need // 2)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"method": "full"}, {"kind": "q8_0"}])
def test_precisions_types_and_methods(tmp_path: Path, models: tuple[Path, Path], settings: dict[str, Any]) -> None:
    """bf16 products, all tensors trained, a quantised base: the student approaches the teacher."""
    kind = {"kind": settings["kind"]} if "kind" in settings else {}
    path = write(tmp_path, "llama", **WIDE | kind)
    given = {name: value for name, value in settings.items() if name != "kind"}
    losses = run_of((path, models[1]), packed(4, 24), epochs=20, **given).history.to_dict()["loss"]
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.slow
def test_a_step_is_verified(models: tuple[Path, Path]) -> None:
    found = gl.llm.verify(load(models[0]), packed(3, 24), objective="distil", teacher=models[1], top_k=8)
    assert found.agrees, found


def test_other_data_are_measured_as_validation_rows(models: tuple[Path, Path]) -> None:
    texts = [{"text": f"abc {i} the cat and the dog {i * 7}"} for i in range(6)]
    settings: dict[str, Any] = {"context": 24, "val": texts, "val_split": None}
    run = run_of(models, [{"text": "the dog and the cat"}] * 4, **settings)
    last = run.history[-1].val
    assert last is not None
    found = run.measure(texts)
    assert found.loss == pytest.approx(last.loss, rel=1e-5)
    assert found.metrics["same_top"] == last.metrics["same_top"]


# ---- teachers that cannot be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["missing", "adapter", "no model", "fewer", "renamed", "short", "none", "number"])
def test_teachers_that_cannot_be(tmp_path: Path, models: tuple[Path, Path], case: str) -> None:
    """One line, before anything is written."""
    student, teacher = models
    texts: dict[str, tuple[type[Exception], str]] = {
        "missing": (FileError, "nowhere.gguf"),
        "adapter": (FileError, "is of type 'adapter'; need a model"),
        "no model": (FileError, "notes.gguf"),
        "fewer": (SettingError, "it has 280 tokens, the student 300; need the vocabulary of the student"),
        "renamed": (SettingError, r"its token \d+ is .*, not .*; need the vocabulary of the student"),
        "short": (SettingError, "context=24 is more than 16 tokens, the context of teacher"),
        "none": (SettingError, "objective='distil' requires teacher, a GGUF model"),
        "number": (SettingError, "teacher"),
    }
    given: Any = tmp_path / "nowhere.gguf"
    if case == "adapter":
        given = tmp_path / "adapter.gguf"
        run_of((student, student), packed(4, 24), steps=1).save(given)
    elif case == "no model":
        given = tmp_path / "notes.gguf"
        given.write_text("nothing of the kind")
    elif case == "fewer":
        given = write(tmp_path, "llama", vocab=280)
    elif case == "renamed":
        given = tmp_path / "renamed.gguf"
        content = teacher.read_bytes()
        piece = load(teacher).tokenizer.pieces[290].encode()
        at = content.index(len(piece).to_bytes(8, "little") + piece) + 8
        given.write_bytes(content[:at] + b"#" * len(piece) + content[at + len(piece) :])
    elif case == "short":
        given = write(tmp_path, "llama", context=16)
    elif case in ("none", "number"):
        given = None if case == "none" else 3
    kind, text = texts[case]
    folder = tmp_path / "run"
    with pytest.raises(kind, match=text) as caught:
        run_of((student, given), packed(4, 24), run=folder)
    assert "\n" not in str(caught.value)
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"top_k": 301}, "top_k.*at most 300"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 300.0}, "temperature=300.0: must be 0.01 to 100 in distil"),
        ({"hard_weight": 1.5}, "hard_weight"),
        ({"beta": 0.1}, "beta=0.1 requires objective"),
        ({"objective": "sft", "teacher": None}, "top_k=8 requires objective distil, not sft"),
    ],
)
def test_settings_without_effect_are_refused(models: tuple[Path, Path], settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError, match=text):
        run_of(models, packed(4, 24), **settings)


def test_a_copy_of_the_student_is_a_teacher(tmp_path: Path, models: tuple[Path, Path]) -> None:
    """A copy of the student's file under another name has the loss 0 as a teacher, too."""
    copy = tmp_path / "copy.gguf"
    shutil.copy(models[0], copy)
    run = run_of((models[0], copy), packed(4, 24), steps=1)
    assert abs(run.history[0].train.loss) < 1e-6


_PEAK = """
from gradloom.llm import LoRA, load
from gradloom.llm.finetune import Run
from gradloom.base import memory
from tests.llm.random_models import packed
run = Run(
    load({student!r}), packed(16, 128, 8000), LoRA(rank=4), objective="distil", teacher={teacher!r}, context=128,
    val_split=0.0, batch_size=4, threads=2, steps=2,
)
run.prepare()
planned = run.memory()
assert planned.during_teacher > planned.weights + planned.own
run.train(progress=False)
print(planned.total, memory.resident_peak())
"""


@pytest.mark.slow
def test_the_peak_is_the_planned_one(tmp_path: Path) -> None:
    """A teacher that needs more memory than the training, in a process of its own: 3 % or 16 MiB more are allowed."""
    student = write(tmp_path, "llama", **WIDE, vocab=8000)
    teacher = write(tmp_path, "qwen3", layers=6, width=512, heads=8, ffn=4096, vocab=8000)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    code = _PEAK.format(student=str(student), teacher=str(teacher))
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, check=True, capture_output=True, text=True
    )
    planned, peak = map(int, found.stdout.split())
    assert peak <= max(1.03 * planned, planned + (16 << 20))
