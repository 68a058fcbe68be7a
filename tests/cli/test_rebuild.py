"""A step of a run is computed again to the bit, from a checkpoint or from the start; its capsule replays."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli import progress
from gradloom.cli.rebuilt import rebuilt
from gradloom.files.arrays import load_arrays
from gradloom.files.checkpoint_files import manifests, read_checkpoint
from gradloom.run.machine import isas
from gradloom.runs import failed_step
from gradloom.runs.capsules import load
from gradloom.train.rebuild import Gradients
from tests.cli.command import run
from tests.cli.test_fit import flowers, one_thread  # noqa: F401
from tests.cli.test_outputs import language  # noqa: F401
from tests.llm.random_models import write
from tests.parallel.mpi import needs_mpi
from tests.parallel.mpi import run as run_ranks
from tests.real_data import need

FIT = ("--epochs", 3, "--batch-size", 40, "--checkpoint-every", "1steps", "--keep", 100)
FINETUNE = ("--context", 32, "--steps", 6, "--batch-size", 4, "--checkpoint-every", "1steps", "--keep", 100)


def contents(folder):
    """A digest of the names, contents and times of all files of a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    facts = [(str(p.relative_to(folder)), p.stat().st_mtime_ns, p.read_bytes()) for p in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def numbers(entries):
    """The entries that decide bits: all but times, the lines of logs, and whether a display has asked for metrics."""
    left_out = ("time.", "callbacks.", "loop.train.measured.numbers")
    kept = {name: value for name, value in entries.items() if not name.startswith(left_out)}
    return {name: v.tobytes() if isinstance(v, np.ndarray) else repr(v) for name, v in kept.items()}


def check_all(folder):
    """Every step with a checkpoint, from the one before it, and with all earlier ones gone from the start."""
    saved = {one.step: one for one in manifests(folder / "checkpoints")[0]}
    steps = sorted(saved)
    assert len(steps) >= 5 and any(n.startswith("model.") for n in read_checkpoint(saved[steps[0]]).entries)
    before = contents(folder)
    for step in (steps[0], steps[2], steps[-2]):
        made = rebuilt(str(folder), step, [])
        assert made.result.from_step == step - 1
        assert numbers(made.result.state) == numbers(read_checkpoint(saved[step]).entries), step
    assert contents(folder) == before
    bare = folder.with_name("bare" + folder.suffix)
    shutil.copytree(folder, bare)
    for path in (bare / "checkpoints").iterdir():
        path.unlink()
    made = rebuilt(str(bare), steps[2], [])
    assert made.result.from_step == 0
    assert numbers(made.result.state) == numbers(read_checkpoint(saved[steps[2]]).entries)


@pytest.mark.parametrize(
    "options",
    [
        ("--micro-batch-size", 7, "--dropout", 0.2, "--ema", 0.9),
        ("--optimizer", "sgd", "--lr", 0.01, "--ensemble", 1, "--max-norm", 0.5),
        ("--precision", "bf16", "--val-split", 0.2, "--eval-every", "2steps"),
    ],
    ids=["adamw, micro-batches, dropout, ema", "sgd, clipped", "bf16, evaluations"],
)
def test_steps_of_a_fit_have_the_bits_of_their_checkpoints(capsys, tmp_path, options):
    code, _, err = run(capsys, "fit", flowers(tmp_path / "t.csv"), "--out", tmp_path / "run", *FIT, *options)
    assert code == 0, err
    check_all(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--micro-batch-size", 3, "--dropout", 0.1, "--ema", 0.9),
        ("--precision", "bf16", "--method", "full", "--train-dtype", "f32"),
    ],
    ids=["lora, micro-batches, dropout, ema", "full, bf16"],
)
def test_steps_of_a_finetune_have_the_bits_of_their_checkpoints(capsys, tmp_path, language, options):  # noqa: F811
    model, text = language
    code, _, err = run(capsys, "finetune", model, text, "--out", tmp_path / "a.gguf", *FINETUNE, *options)
    assert code == 0, err
    check_all(tmp_path / "a.run")


MPI = ("--parallel", "mpi")


def without_held(entries):
    """The numbers that decide bits, without the rows that one process holds, and without metrics of training, of this
    pass and of earlier ones: with ranks these are not measured."""
    left_out = ("rows.held", "loop.history")
    kept = {name: value for name, value in numbers(entries).items() if ".measured." not in name}
    return {name: value for name, value in kept.items() if name not in left_out}


def check_ranks(folder):
    """As check_all, of a run of ranks."""
    saved = {one.step: one for one in manifests(folder / "checkpoints")[0]}
    steps, before = sorted(saved), contents(folder)
    assert len(steps) >= 5
    for step in (steps[0], steps[2], steps[-2]):
        made = rebuilt(str(folder), step, [])
        assert made.result.from_step == step - 1
        assert without_held(made.result.state) == without_held(read_checkpoint(saved[step]).entries), step
    assert contents(folder) == before


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "options"),
    [(2, ("--micro-batch-size", 7, "--dropout", 0.2, "--ema", 0.9)), (3, ("--optimizer", "sgd", "--lr", 0.01))],
    ids=["2 ranks, micro-batches, dropout, ema", "3 ranks, their shares of the batch"],
)
def test_one_process_rebuilds_a_step_of_ranks(capsys, tmp_path, ranks, options):
    words = ("fit", flowers(tmp_path / "t.csv"), "--out", tmp_path / "run", *FIT, "--ensemble", 1, *options)
    ended = run_ranks(ranks, "-m", "gradloom", *words, *MPI)
    assert ended.code == 0, ended.err
    check_ranks(tmp_path / "run")
    code, out, err = run(capsys, "rebuild", tmp_path / "run", "--step", 4, "--json")
    assert code == 0 and "the same bits are not promised" not in err, err
    saved = read_checkpoint(next(one for one in manifests(tmp_path / "run" / "checkpoints")[0] if one.step == 4))
    assert json.loads(out)["grad_norm"] == saved.entries["loop.train.grad_norms"][-1]
    code, out, err = run(capsys, "capsule", tmp_path / "run", "--step", 3, "--out", tmp_path / "s.capsule")
    assert code == 0, err
    assert run(capsys, "replay", tmp_path / "s.capsule")[0] == 0
    after = {digest for call in load(tmp_path / "s.capsule").calls for digest in call.outcome.updated.values()}
    saved = read_checkpoint(next(one for one in manifests(tmp_path / "run" / "checkpoints")[0] if one.step == 3))
    weights = [array for name, array in saved.entries.items() if name.startswith("model.")]
    assert weights and {hashlib.sha256(array.tobytes()).hexdigest() for array in weights} <= after


@needs_mpi
@pytest.mark.parametrize("options", [(), ("--objective", "kto")], ids=["sft", "kto"])
def test_one_process_rebuilds_a_step_of_a_finetune_of_ranks(capsys, tmp_path, language, options):  # noqa: F811
    model, data = language
    if options:
        rows = [{"prompt": f"a {k}", "completion": f" b {k}", "label": k % 2 == 0} for k in range(24)]
        data = tmp_path / "judged.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("finetune", model, data, "--out", tmp_path / "a.gguf", *FINETUNE, "--micro-batch-size", 1, *options)
    ended = run_ranks(2, "-m", "gradloom", *words, *MPI)
    assert ended.code == 0, ended.err
    check_ranks(tmp_path / "a.run")


@needs_mpi
def test_ranks_that_sum_in_another_order_are_refused(capsys, tmp_path):
    words = ("fit", flowers(tmp_path / "t.csv"), "--out", tmp_path / "run", *FIT, *MPI, "--exchange", "fast")
    assert run_ranks(2, "-m", "gradloom", *words).code == 0
    for command in ("rebuild", "capsule"):
        code, out, err = run(capsys, command, tmp_path / "run", "--step", 2)
        assert code == 2 and out == "" and len(err.splitlines()) == 1
        assert "was trained with --exchange fast" in err and "Use a run with --exchange ordered" in err


def test_progress_counts_the_steps_up_to_the_step(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    data = flowers(tmp_path / "t.csv")
    assert run(capsys, "fit", data, "--out", folder, *FIT[:4], "--ensemble", 1, "--folds", 0)[0] == 0
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    code, out, err = run(capsys, "rebuild", folder, "--step", 5)
    assert code == 0 and "epoch" in out, err
    lines = [line for line in err.splitlines() if line.startswith("step ")]
    assert lines[-1] == "step 5 of 5" and "epoch" not in err
    counts = [int(line.split()[1]) for line in lines]
    assert counts == sorted(counts) and len(counts) >= 2


def test_weights_gradients_and_rows_of_a_step(capsys, tmp_path):
    folder, file = tmp_path / "run", tmp_path / "s.safetensors"
    options = ("--micro-batch-size", 7, "--dropout", 0.2, "--ensemble", 1)
    assert run(capsys, "fit", flowers(tmp_path / "t.csv"), "--out", folder, *FIT, *options)[0] == 0
    code, out, err = run(capsys, "rebuild", folder, "--step", 4, "--out", file, "--json")
    assert code == 0, err
    found = json.loads(out)
    arrays, metadata = load_arrays(file)
    saved = read_checkpoint(next(one for one in manifests(folder / "checkpoints")[0] if one.step == 4))
    for name, array in saved.entries.items():
        if name.startswith("model."):
            assert np.array_equal(arrays[f"weights.{name.removeprefix('model.')}"], array)
    grads = [array.astype(np.float64) for name, array in arrays.items() if name.startswith("gradients.")]
    squares = sum(float(np.sum(np.square(array))) for array in grads)
    assert found["grad_norm"] == pytest.approx(squares**0.5, rel=1e-6) and metadata["step"] == "4"
    assert found["loss"] == float(metadata["loss"]) and found["from_step"] == 3
    assert len(found["rows"]) == len(set(found["rows"])) == 40
    norms = saved.entries["loop.train.grad_norms"]
    assert found["grad_norm"] == norms[-1]


@pytest.mark.slow
def test_a_step_of_a_run_is_a_capsule(capsys, tmp_path, monkeypatch, language):  # noqa: F811
    model, text = language
    monkeypatch.chdir(tmp_path)
    options = ("--micro-batch-size", 3, "--dropout", 0.1)
    assert run(capsys, "finetune", model, text, "--out", "a.gguf", *FINETUNE, *options)[0] == 0
    before = contents(tmp_path / "a.run")
    code, out, err = run(capsys, "capsule", "a.run", "--step", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["calls"] == 2 and found["error"] is None and found["out"] == "step-3.capsule"
    assert contents(tmp_path / "a.run") == before
    assert run(capsys, "replay", "step-3.capsule")[0] == 0
    assert run(capsys, "replay", "step-3.capsule", "--isa", "scalar")[0] == 0
    made = load("step-3.capsule")
    data = next(one for one in made.stored if one.name == "data")
    assert data.shape[0] == 4  # the rows of the step alone
    saved = read_checkpoint(next(one for one in manifests(tmp_path / "a.run" / "checkpoints")[0] if one.step == 3))
    after = {made.stored[i].name: digest for call in made.calls for i, digest in call.outcome.updated.items()}
    weights = {n.removeprefix("model."): a for n, a in saved.entries.items() if n.startswith("model.")}
    same = [hashlib.sha256(a.tobytes()).hexdigest() in after.values() for a in weights.values()]
    assert same and all(same)
    code, _, err = run(capsys, "capsule", "a.run", "--step", 3, "--out", "b", "--no-data")
    assert code == 0 and (tmp_path / "b").stat().st_size < (tmp_path / "step-3.capsule").stat().st_size
    assert run(capsys, "replay", "b")[0] == 0


def test_what_cannot_be_rebuilt_is_refused_in_a_line(capsys, tmp_path):
    data, folder = flowers(tmp_path / "t.csv"), tmp_path / "run"
    assert run(capsys, "fit", data, "--out", folder, *FIT)[0] == 0
    for words, text in (
        (("--step", 100), "and no step 100"),
        (("--step", 0), "--step 0"),
        (("--step", 2, "--out", tmp_path / "x.npz"), "FILE.safetensors"),
    ):
        code, _, err = run(capsys, "rebuild", folder, *words)
        assert code == 2 and text in err and len(err.strip().splitlines()) == 1, err
    code, _, err = run(capsys, "rebuild", tmp_path, "--step", 1)
    assert code == 2 and "need the folder of a run" in err
    with open(data, "a") as file:
        file.write("5.0,3.0,1.5,0.2,setosa\n")
    for command in ("rebuild", "capsule"):
        code, _, err = run(capsys, command, folder, "--step", 2)
        assert code == 2 and "has changed" in err
    assert not list(tmp_path.glob("*.capsule"))


@pytest.mark.parametrize("command", [("rebuild", "--step", 1), ("capsule", "--step", 1), ("rerun",)])
def test_a_run_from_python_has_no_settings(capsys, tmp_path, command):
    net, folder = gl.nn.Linear(4, 3), tmp_path / "run"
    gl.fit(net, (np.eye(4, dtype=np.float32), [0, 1, 2, 0]), epochs=1, run=folder, progress=False)
    code, _, err = run(capsys, command[0], folder, *command[1:])
    seen = f"gradloom: {folder}: is a run of a Python program, without a settings.toml; run the program again, or save "
    assert code == 2 and err == f"{seen}its compiled programs with gl.capsule\n"


def test_a_damaged_checkpoint_is_passed_over(capsys, tmp_path):
    folder = tmp_path / "run"
    assert run(capsys, "fit", flowers(tmp_path / "t.csv"), "--out", folder, *FIT)[0] == 0
    saved = {one.step: one for one in manifests(folder / "checkpoints")[0]}
    want = numbers(read_checkpoint(saved[5]).entries)
    path = saved[4].arrays_path
    path.write_bytes(path.read_bytes()[:-1])
    made = rebuilt(str(folder), 5, [Gradients()])
    assert made.result.from_step == 3 and numbers(made.result.state) == want


def test_a_step_that_is_not_finite_leaves_its_capsule(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = flowers(tmp_path / "t.csv")
    words = ("fit", data, "--out", "run", *FIT, "--optimizer", "sgd", "--lr", 1e19, "--micro-batch-size", 15)
    code, _, err = run(capsys, *words)
    assert code == 2 and "failed.capsule holds the step that failed: gradloom replay run/failed.capsule" in err, err
    step = json.loads((tmp_path / "run" / "run.json").read_text())["step"] + 1
    assert f"training stopped at step {step}" in err
    for isa in ((), ("--isa", "scalar")):
        code, out, err = run(capsys, "replay", "run/failed.capsule", "--json", *isa)
        assert code == 0 and "not finite" in json.loads(out)["error"], err
    assert load("run/failed.capsule").about["step"] == step
    before = contents(tmp_path / "run")
    code, out, _ = run(capsys, "rebuild", "run", "--step", step)
    assert code == 2 and contents(tmp_path / "run") == before
    code, out, err = run(capsys, "capsule", "run", "--step", step, "--json")
    assert code == 0 and "not finite" in json.loads(out)["error"], err
    own, whole = load("run/failed.capsule").calls[-1], load(f"step-{step}.capsule").calls[-1]
    assert own.outcome.steps == whole.outcome.steps and own.outcome.failed == whole.outcome.failed > 0
    code, _, err = run(capsys, *words, "--overwrite", "--seed", 3)  # the file of the old run is replaced
    assert code == 2 and load("run/failed.capsule").calls[-1].outcome.steps != own.outcome.steps


def test_a_large_step_is_named_and_not_written(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(failed_step, "LIMIT", 100)
    folder = tmp_path / "run"
    words = ("fit", flowers(tmp_path / "t.csv"), "--out", folder, *FIT, "--optimizer", "sgd", "--lr", 1e19)
    code, _, err = run(capsys, *words)
    step = json.loads((folder / "run.json").read_text())["step"] + 1
    assert code == 2 and f"gradloom capsule {folder} --step {step} saves it as a file" in err
    assert not (folder / "failed.capsule").exists()


def test_a_capsule_that_cannot_be_written_hides_no_error(capsys, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failed_step, "write_archive", fails)
    words = ("fit", flowers(tmp_path / "t.csv"), "--out", tmp_path / "run", *FIT, "--optimizer", "sgd", "--lr", 1e19)
    code, _, err = run(capsys, *words)
    assert code == 2 and "training stopped at step" in err and "cannot be written" in err
    assert not [p for p in (tmp_path / "run").iterdir() if "failed" in p.name]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"kind": "q8_0"}, {"kind": "f16", "precision": "bf16"}], ids=["q8_0", "f16, bf16"])
def test_a_step_of_lora_on_mapped_weights_is_replayed(capsys, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("the cat sat on the mat, and the dog sat on the log. " * 40)
    model = write(tmp_path, "llama", context=128, kind=options["kind"], width=64, heads=4, ffn=96)
    precision = ("--precision", options.get("precision", "f32"))
    assert run(capsys, "finetune", model, "t.txt", "--out", "a.gguf", *FINETUNE, *precision)[0] == 0
    assert run(capsys, "capsule", "a.run", "--step", 2, "--out", "s.capsule")[0] == 0
    assert options["kind"] in {one.dtype.name for one in load("s.capsule").stored if one.role == "frozen"}
    for words in ((), ("--isa", "scalar")):
        code, out, err = run(capsys, "replay", "s.capsule", "--json", *words)
        assert code == 0 and json.loads(out)["by_bits"] == (not words or isas()[0] == "scalar"), err


@pytest.mark.slow
def test_a_step_of_a_real_model_is_replayed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, text = need("gguf/stories260K.gguf"), need("text/tinyshakespeare.txt")
    (tmp_path / "t.txt").write_text(text.read_text()[:8000])
    words = ("--context", 32, "--steps", 2, "--batch-size", 2, "--out", "a.gguf")
    assert run(capsys, "finetune", model, "t.txt", *words)[0] == 0
    assert run(capsys, "capsule", "a.run", "--step", 2)[0] == 0
    assert (
        run(capsys, "replay", "step-2.capsule")[0] == run(capsys, "replay", "step-2.capsule", "--isa", "scalar")[0] == 0
    )


@pytest.mark.slow
def test_files_of_the_run_are_not_replaced(capsys, tmp_path):
    data, folder = flowers(tmp_path / "t.csv"), tmp_path / "run"
    assert run(capsys, "fit", data, "--out", folder, *FIT)[0] == 0
    before = contents(tmp_path)
    for words in (
        ["rebuild", folder, "--step", 2, "-o", folder / "model.safetensors"],
        ["capsule", folder, "--step", 2, "-o", folder / "metrics.jsonl"],
        ["capsule", folder, "--step", 2, "-o", data],
        ["report", folder, "-o", folder / "settings.toml"],
        ["report", folder, "-o", folder / "model.safetensors"],
        ["report", folder / "model.safetensors", "-o", folder / "model.safetensors"],
    ):
        code, _, err = run(capsys, *words)
        assert code == 2 and "is the same file as" in err and err.count("\n") == 1, err
        assert contents(tmp_path) == before


def test_a_failed_step_between_steps_that_are_one_call_is_saved(tmp_path, monkeypatch, capsys):
    """Its number is that of the message, and its settings may be as large as any float."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    x[40] = 1e30  # step 6 of 8
    net = gl.nn.Linear(3, 1)
    with pytest.raises(gl.NonFiniteError) as caught:
        gl.fit(net, gl.data.Dataset(x, x[:, :1], shard_size=64), loss="mse", optimizer=gl.optim.SGD(lr=0.0),
               batch_size=8, epochs=1, val_split=0, run="run")  # fmt: skip
    assert "training stopped at step 6 " in str(caught.value)
    assert load("run/failed.capsule").about["step"] == 6
    assert gl.replay("run/failed.capsule").agrees
    with pytest.raises(gl.NonFiniteError, match="training stopped at step 2 "):
        gl.fit(gl.nn.Linear(3, 1), (x[:32], x[:32, :1]), loss="mse", optimizer=gl.optim.SGD(lr=1e30), batch_size=8,
               epochs=1, val_split=0, run="second")  # fmt: skip
    assert gl.replay("second/failed.capsule").agrees
    for device in (3, "", "null", "tpu"):
        with pytest.raises(gl.SettingError, match="cpu, gpu, or gpu:1"):
            gl.replay("second/failed.capsule", device=device)
