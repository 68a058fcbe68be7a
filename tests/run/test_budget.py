"""memory= of gl.fit, Trainer, evaluate and predict: the process stays below the budget with the numbers of a run
without one, or the training is rejected before it begins. Trainings are processes of their own, which report peaks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
import gradloom.run.backend
from gradloom.base.arguments import halves
from gradloom.base.errors import BudgetError, SettingError
from gradloom.base.memory import present
from gradloom.graph.stored import Stored
from gradloom.run.budget import nearest, resident_when_settled

MIB = 1 << 20
ENV = {name: value for name, value in os.environ.items() if not name.startswith("GRADLOOM_")}  # plans that share bytes

# A deep network whose activations are most of its memory; `train` is replaced.
SCRIPT = """
import hashlib, json, sys
import numpy as np
import gradloom as gl
from gradloom.base.memory import resident_peak
rng = np.random.default_rng(0)
x = rng.standard_normal((8300, 16)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int32)
memory, depth, width, options = json.loads(sys.argv[1])
layers = [layer for _ in range(depth) for layer in (gl.nn.Linear(width, width), gl.nn.Tanh())]
net = gl.nn.Sequential(gl.nn.Linear(16, width), *layers, gl.nn.Linear(width, 2))
found = {}
try:
    TRAIN
except gl.GradloomError as error:
    found["error"] = str(error)
found["peak"] = resident_peak()
found["digest"] = hashlib.sha256(b"".join(v.tobytes() for v in net.state_dict().values())).hexdigest()
print(json.dumps(found))
"""
FIT = """
    history = gl.fit(net, (x, y), epochs=2, batch_size=4000, val_split=0.1, progress=False, memory=memory, **options)
    found |= {"planned": history[-1].planned_bytes, "loss": history[-1].val.loss}
"""


def train(
    body: str, memory: int | str | None = None, depth: int = 30, width: int = 128, **options: Any
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("    TRAIN\n", body), json.dumps([memory, depth, width, options])],
        capture_output=True, text=True, env=ENV,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def least_of(error: str) -> int:
    """The bytes that an error gives as the least."""
    found = re.search(r"at least about ([\d.]+) MiB", error)
    assert found is not None, error
    return int(float(found[1]) * MIB)


@pytest.mark.slow
def test_fit_stays_below_its_budget_with_the_same_bits() -> None:
    whole = train(FIT, micro_batch_size=4000)
    refused = train(FIT, 48 * MIB, micro_batch_size=4000)
    budget = least_of(refused["error"]) + 6 * MIB
    assert budget < whole["peak"] and "fewer rows" in refused["error"]
    small = train(FIT, budget, micro_batch_size=4000)
    assert small["peak"] <= budget and small["planned"] < whole["planned"] * 0.7
    assert small["digest"] == whole["digest"] and small["loss"] == whole["loss"]


COUPLED = """
    class Wide(gl.train.BatchLoss):
        def values(self, outputs, labels, weights=None):
            rows = outputs.shape[0]
            return [gl.ops.broadcast_to(gl.ops.reshape(outputs, (rows, 2, 1)), (rows, 2, 1024))]
        def join(self, values):
            return [values[0] - gl.ops.mean(values[0], axes=0, keepdims=True)]
        def loss(self, outputs, labels, joined, weights=None):
            return gl.ops.sum(outputs * joined[0][:, :, 0]), gl.constant(float(outputs.shape[0]))
    history = gl.fit(net, (x, y), loss=Wide(), epochs=1, batch_size=4000, val_split=0.1, progress=False, memory=memory,
                     **options)
    found |= {"planned": history[-1].planned_bytes}
"""


@pytest.mark.slow
def test_buffers_of_a_batch_loss_are_within_the_budget() -> None:
    """31 MiB each of values and of joined rows, for training; an evaluation of 829 rows has some of its own."""
    options: dict[str, Any] = {"depth": 2, "micro_batch_size": 400}
    whole = train(COUPLED, **options)
    least = least_of(train(COUPLED, 48 * MIB, **options)["error"])
    small = train(COUPLED, least + 6 * MIB, **options)
    assert "error" not in small and small["digest"] == whole["digest"]
    assert small["peak"] <= least + 6 * MIB and least > whole["peak"] - 16 * MIB


WIDE = """
    x, y = np.tile(x, (4, 1)), np.tile(y, 4)
    history = gl.fit(net, (x, y), epochs=1, batch_size=16000, progress=False, memory=memory, **options)
    found["planned"] = history[-1].planned_bytes
"""


@pytest.mark.slow
def test_fewer_rows_at_once_where_recomputation_does_not_suffice() -> None:
    wide: dict[str, Any] = {"depth": 1, "width": 512}
    least = least_of(train(WIDE, 48 * MIB, micro_batch_size=16000, **wide)["error"])
    budget = least - 30 * MIB
    small = train(WIDE, budget, **wide)
    assert "error" not in small, small
    assert small["peak"] <= budget
    sizes = (size for size in halves(16000) if train(WIDE, micro_batch_size=size, **wide)["digest"] == small["digest"])
    assert next(sizes, None) is not None


KEPT = """
    import tempfile
    stop = gl.train.EarlyStopping(patience=5, restore_best=True)
    with tempfile.TemporaryDirectory() as folder:
        more = {"run": folder + "/run", "checkpoint_every": "1steps"} if options["run"] else {}
        gl.fit(net, (x[:600], y[:600]), epochs=2, batch_size=100, val_split=0.2, progress=False, memory=memory,
               callbacks=[stop] * options["stop"], ema=options["ema"], **more)
    found["planned"] = 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"run": True, "stop": 0, "ema": 0.0}, {"run": True, "stop": 1, "ema": 0.9}, {"run": False, "stop": 1, "ema": 0.0}],
)
def test_a_budget_counts_checkpoints_best_weights_and_averages(options: dict[str, Any]) -> None:
    """Of a network whose arrays are most of its memory: 36 MiB of weights, twice as much of moments."""
    large: dict[str, Any] = {"depth": 9, "width": 1024}
    least = least_of(train(KEPT, 64 * MIB, **large, **options)["error"])
    small = train(KEPT, least + 2 * MIB, **large, **options)
    assert "error" not in small and small["peak"] <= least + 2 * MIB


def test_rows_that_a_layer_cannot_train_on_are_not_tried() -> None:
    """BatchNorm rejects one row: that is no error of a budget that two rows do not meet either."""
    x, y = np.ones((64, 4), np.float32), np.ones(64, np.int32)
    net = gl.nn.Sequential(gl.nn.Linear(4, 8), gl.nn.BatchNorm(8), gl.nn.Linear(8, 2))
    with pytest.raises(BudgetError, match="at least about"):
        gl.fit(net, (x, y), memory="1MiB", progress=False)


TRAINER = """
    trainer = gl.Trainer(net, memory=memory, **options)
    data = gl.data.Dataset(x, y)
    for _ in range(2):
        gl.epoch(trainer, data, batch_size=4000)
    found["loss"] = trainer.step(x[:3900], y[:3900]).loss
    found["planned"] = trainer.planned_bytes
"""


@pytest.mark.slow
def test_a_trainer_stays_below_its_budget_with_the_same_bits() -> None:
    whole = train(TRAINER)
    budget = least_of(train(TRAINER, 48 * MIB)["error"]) + 6 * MIB
    small = train(TRAINER, budget)
    assert "error" not in small, small
    assert small["peak"] <= budget < whole["peak"] and small["planned"] < whole["planned"]
    assert small["digest"] == whole["digest"] and small["loss"] == whole["loss"]


MEASURE = """
    measured = gl.evaluate(net, (x, y), memory=memory, **options)
    outputs = gl.predict(net, x, memory=memory, **options)
    found |= {"loss": measured.loss, "outputs": hashlib.sha256(outputs.tobytes()).hexdigest()}
"""


@pytest.mark.slow
def test_evaluate_and_predict_stay_below_their_budget() -> None:
    whole = train(MEASURE, depth=0, width=1 << 15)
    least = least_of(train(MEASURE, 16 * MIB, depth=0, width=1 << 15)["error"])
    small = train(MEASURE, least + 6 * MIB, depth=0, width=1 << 15)
    assert "error" not in small and small["peak"] <= least + 6 * MIB < whole["peak"]
    assert abs(small["loss"] - whole["loss"]) < 1e-6
    generous = train(MEASURE, 800 * MIB, depth=0, width=1 << 15)
    assert (generous["loss"], generous["outputs"]) == (whole["loss"], whole["outputs"])


def fit_table(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradloom", "fit", "t.csv", "--epochs", "2", "--batch-size", "1024", "--json"]
    more = ["--hidden", "2048", "--ensemble", "1", "--dropout", "0"]
    return subprocess.run([*command, *more, *options], cwd=folder, capture_output=True, text=True, env=ENV)


@pytest.mark.slow
def test_the_command_keeps_the_rows_that_a_budget_chose(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in rng.standard_normal((3000, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    refused = fit_table(tmp_path, "--memory", "32MiB", "--micro-batch-size", "1024")
    assert refused.returncode == 2 and "--memory" in refused.stderr and not (tmp_path / "gradloom-out/model").exists()
    budget = least_of(refused.stderr) - 4 * MIB
    done = fit_table(tmp_path, "--memory", str(budget), "--out", "small")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    micro = found["micro_batch_size"]
    assert (
        found["peak_bytes"] <= budget and micro < 1024 and f"{micro} rows are computed at once, not 1024" in done.stderr
    )
    assert f"micro_batch_size = {micro}\n" in (tmp_path / "small" / "settings.toml").read_text()
    same = fit_table(tmp_path, "--micro-batch-size", str(micro), "--out", "same")
    small, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("small", "same"))
    assert (
        json.loads(same.stdout.splitlines()[-1])["val_loss" if "val_loss" in found else "train_loss"]
        == (found["val_loss" if "val_loss" in found else "train_loss"])
    )
    assert len(small) == len(again)


@pytest.mark.parametrize("given", ["few", -1, 0, True, 1.5])
def test_budgets_that_are_no_bytes(given: object) -> None:
    with pytest.raises(SettingError, match="memory"):
        gl.Trainer(gl.nn.Linear(2, 2), memory=given)


@pytest.mark.parametrize("options", [{"device": "gpu"}, {"backend": "numpy"}, {"devices": ("gpu", "cpu")}])
def test_a_budget_is_for_steps_on_the_cpu(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="requires device 'cpu'"):
        gl.Trainer(gl.nn.Linear(2, 2), memory="1GiB", **options)
    with pytest.raises(SettingError, match="requires device 'cpu'"):
        gl.evaluate(gl.nn.Linear(2, 2), (np.ones((4, 2)), np.ones(4, int)), memory="1GiB", **options)


def test_a_budget_requires_graphs_that_stay() -> None:
    with pytest.raises(SettingError, match="dynamic=True are mutually exclusive"):
        gl.Trainer(gl.nn.Linear(2, 2), memory="1GiB", dynamic=True)


def test_auto_changes_nothing_where_there_is_room() -> None:
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    nets = [gl.nn.Linear(4, 2) for _ in range(2)]
    for net, memory in zip(nets, (None, "auto"), strict=True):
        gl.fit(net, (x, (x[:, 0] > 0).astype(np.int32)), epochs=2, progress=False, memory=memory, val_split=0.2)
    assert all(
        np.array_equal(a, b) for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True)
    )


def test_a_training_that_does_not_fit_leaves_the_model_as_it_was() -> None:
    x, net = np.ones((64, 4), np.float32), gl.nn.Linear(4, 2)
    net.init(0)
    before = {name: array.copy() for name, array in net.state_dict().items()}
    optimizer = gl.optim.AdamW(net.parameters())
    with pytest.raises(BudgetError, match="at least about"):
        gl.fit(net, (x, np.ones(64, np.int32)), optimizer=optimizer, memory="1MiB", progress=False)
    assert all(np.array_equal(before[name], array) for name, array in net.state_dict().items())
    gl.fit(net, (x, np.ones(64, np.int32)), optimizer=optimizer, progress=False)  # and it can be trained without
    assert optimizer.state.steps == 2


def test_a_refusal_proposes_what_a_resumed_run_can_change(tmp_path: Path) -> None:
    x, net = np.ones((64, 4), np.float32), gl.nn.Linear(4, 2)
    data = x, np.arange(64, dtype=np.int32) % 2
    gl.fit(net, data, run=tmp_path / "run", progress=False, epochs=1)
    with pytest.raises(BudgetError, match="at least about .*; a resumed run keeps its rows"):
        gl.fit(net, data, run=tmp_path / "run", resume=True, progress=False, epochs=2, memory="1MiB")


def test_a_refusal_states_how_many_earlier_programs_it_includes() -> None:
    net = gl.nn.Sequential(gl.nn.Linear(4, 512), gl.nn.Linear(512, 2))
    trainer = gl.Trainer(net, memory=resident_when_settled() + 64 * MIB)
    for rows in (8, 12):
        trainer.step(np.ones((rows, 4), np.float32), np.ones(rows, np.int32))
    with pytest.raises(BudgetError, match=r"at least about \S+ .iB, 2 earlier programs included; "):
        trainer.step(np.ones((1_000_000, 4), np.float32), np.ones(1_000_000, np.int32))


FIVE = """
    from gradloom.run.budget import nearest, resident_when_settled
    found["least"], found["peaks"] = [], []
    for budget in [1 << 20] * 2 + [memory] * 5:
        open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
        try:
            gl.fit(net, (x, y), epochs=1, batch_size=4000, progress=False, memory=budget, **options)
            found["peaks"].append(resident_peak())
        except gl.GradloomError as error:
            found["least"].append(error.least)
    found["planned"] = 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset")
def test_each_of_five_fits_of_a_process_stays_below_the_budget() -> None:
    """Also while they plan, with what the earlier ones have left in the process."""
    least = train(FIVE, 48 * MIB)["least"]
    budget = least[0] + 2 * MIB
    found = train(FIVE, budget)
    assert found["least"][:1] and len(found["peaks"]) == 5, found
    assert max(found["peaks"]) <= budget


@pytest.mark.slow
def test_the_least_budget_is_about_the_same_with_the_rows_that_a_refusal_names() -> None:
    deep: dict[str, Any] = {"depth": 12}
    refused = train(FIT, 48 * MIB, **deep)["error"]
    rows = re.search(r"at least about \S+ MiB with micro_batch_size (\d+)", refused)
    assert rows is not None, refused
    given = train(FIT, 48 * MIB, micro_batch_size=int(rows[1]), **deep)["error"]
    assert abs(least_of(given) - least_of(refused)) <= 1.5 * MIB


PROPOSED = """
    try:
        gl.fit(net, (x, y), epochs=1, batch_size=4000, progress=False, memory="1MiB", **options)
    except gl.GradloomError as error:
        least = error.least
    try:
        gl.fit(net, (x, y), epochs=1, batch_size=4000, progress=False, memory=least - (16 << 20), **options)
    except gl.GradloomError as error:
        found["refused"] = str(error)
    rows = int(found["refused"].split("micro_batch_size ")[1].split(",")[0])
    gl.fit(net, (x, y), epochs=1, batch_size=4000, progress=False, memory=least - (16 << 20), micro_batch_size=rows)
    found["planned"] = 0
"""


def test_a_refusal_of_fit_names_settings_that_are_enough() -> None:
    found = train(PROPOSED, 1, depth=1, width=512, micro_batch_size=4000)
    assert "it is enough for" in found["refused"] and "error" not in found, found


def test_a_refusal_plans_each_program_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs without clones, and their smallest plans."""
    plans = []
    make = gradloom.run.backend.make_plan
    monkeypatch.setattr(gradloom.run.backend, "make_plan", lambda *given: plans.append(1) or make(*given))
    layers = [layer for _ in range(8) for layer in (gl.nn.Linear(16, 16), gl.nn.Tanh())]
    x, y = np.ones((64, 16), np.float32), np.arange(64, dtype=np.int32) % 2
    with pytest.raises(BudgetError, match="would not suffice"):
        gl.fit(gl.nn.Sequential(*layers), (x, y), memory="1MiB", micro_batch_size=32, progress=False, val_split=0.5)
    assert len(plans) <= 3 * 2


@pytest.mark.parametrize("fitting", [0, 1, 2, 3])
def test_nearest_is_the_first_that_fits(fitting: int) -> None:
    assert nearest([3, 2, 1], lambda n: n <= fitting) == (fitting or None)
    assert nearest([], bool) is None


def test_a_program_that_misses_its_budget_by_a_byte_is_refused_in_bytes() -> None:
    x = gl.input("x", (64, 2000))
    with pytest.raises(BudgetError) as error:
        gl.compile((x * 2 + 1).sum(), memory=1)
    least = error.value.least
    with pytest.raises(BudgetError, match=f"memory='{least - 1} bytes': must be at least {least} bytes"):
        gl.compile((x * 2 + 1).sum(), memory=least - 1)


@pytest.mark.slow
def test_a_resumed_run_needs_about_the_memory_of_the_run(tmp_path: Path) -> None:
    """It frees the checkpoint that it has read: of 28 MiB of weights, 84 MiB with their moments."""
    x = np.random.default_rng(0).standard_normal((1500, 2))
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *(f"{a:.4f},{b:.4f},{a + b:.4f}" for a, b in x)]))
    deep = ("--hidden", ",".join(["1024"] * 8), "--checkpoint-every", "1steps", "--out", "run")
    new = least_of(fit_table(tmp_path, *deep, "--memory", "1MiB").stderr)
    stopped = fit_table(tmp_path, *deep, "--stop-after", "1s")
    assert (tmp_path / "run" / "checkpoints").exists(), stopped.stderr
    assert abs(least_of(fit_table(tmp_path, *deep, "--resume", "--memory", "1MiB").stderr) - new) < 8 * MIB
    resumed = json.loads(fit_table(tmp_path, *deep, "--resume").stdout.splitlines()[-1])
    assert resumed["peak_bytes"] < new


def test_ranks_choose_one_arena() -> None:
    """The ranks are threads of this process."""
    x = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)

    def net() -> gl.nn.Module:
        return gl.nn.Sequential(*(layer for _ in range(6) for layer in (gl.nn.Linear(16, 16), gl.nn.Tanh())))

    def run(memory: int | str | None) -> list[np.ndarray]:
        def rank(communicator: Any) -> list[np.ndarray]:
            made = net()
            gl.fit(made, (x, y), batch_size=128, parallel=communicator, memory=memory, progress=False, epochs=2)
            return list(made.state_dict().values())

        from tests.train.split_training import on_ranks

        return on_ranks(2, rank)[0]

    for a, b in zip(run(None), run("4GiB"), strict=True):
        assert np.array_equal(a, b)


def test_bytes_that_are_present_are_counted() -> None:
    deferred = Stored.deferred("a", (1 << 20,), lambda: np.zeros(1 << 20, np.float32))
    assert deferred.absent_bytes == 4 * MIB
    deferred.write(1.0)
    assert deferred.absent_bytes == 0
    assert present(0, 0) == 0
    untouched = np.empty(64 * MIB, np.uint8)
    before = present(untouched.ctypes.data, untouched.nbytes)  # a huge page at its ends
    assert before < 3 * MIB
    untouched[: 8 * MIB] = 1
    assert 8 * MIB <= present(untouched.ctypes.data, untouched.nbytes) < 11 * MIB
