import dataclasses
import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base import memory
from gradloom.base.errors import DTypeError, GradloomError, SettingError
from gradloom.cli.main import main
from gradloom.graph.stored import Stored
from gradloom.llm import LoRA, TrainedTensors, load
from gradloom.llm.finetune import Run
from gradloom.llm.plan import plan
from gradloom.run import budget
from tests.llm.random_models import rows_of, write
from tests.processes import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("plan"), "llama")


@pytest.fixture(autouse=True)
def short_curve(request, monkeypatch):
    """The curve of memory and time takes most of the time of a plan: the tests about it alone compute it, and those of
    the command, which prints it."""
    if "capsys" not in request.fixturenames and "curve" not in request.function.__name__:
        one = lambda run: [(run.plan.peak_bytes, 1.0, 0)]  # noqa: E731
        monkeypatch.setattr(sys.modules[plan.__module__], "memory_curve", one)


def test_the_plan_is_that_of_the_run(path):
    """Planned on nothing, and made of a run that is ready: the same bytes."""
    settings = {"context": 24, "batch_size": 4, "micro_batch_size": 2, "threads": 2}
    planned = plan(load(path), LoRA(rank=4), **settings)
    run = Run(load(path), rows_of(4), LoRA(rank=4), val_split=0.0, **settings | {"context": None})
    run.prepare()
    made = run.memory()
    for name in (
        "weights",
        "copies",
        "trained",
        "state",
        "gradients",
        "arena",
        "scratch",
        "threads",
        "lower_bound",
        "steps",
    ):
        assert getattr(planned, name) == getattr(made, name), name
    assert planned.weights == sum(t.bytes for t in load(path).file.tensors.values())
    parameters = 2 * 2 * (4 * (48 + 48) + 4 * (48 + 16))  # layers, matrices of one shape, r (n_in + n_out)
    assert (planned.trained, planned.state, planned.gradients) == (4 * parameters, 8 * parameters, 4 * parameters)
    assert made.lower_bound <= made.arena < made.unshared and made.total > made.own > made.arena
    assert run.planned_bytes == made.arena + 2 * made.scratch


OPTIONS = {
    "plain": {},
    "no validation": {"val_split": 0, "batch_size": 3},
    "short batches": {"val_split": 0.3, "batch_size": 5, "micro_batch_size": 3},
    "some validation": {"val_split": 0.5, "eval_rows": 2, "micro_batch_size": 1},
    "few steps": {"steps": 1, "batch_size": 4},
    "a file": {"val": "val.txt", "context": 32},
    "samples": {"sample_prompt": ["the sea", "a"], "sample_tokens": 3},
    "full": {"method": "full", "max_norm": 1.0, "ema": 0.9, "on_nonfinite": "skip", "weight_decay": 0.1},
    "others": {"optimizer": "lion", "freeze": ["blk.0.*"], "precision": "bf16", "threads": 1},
}


@pytest.fixture
def text(tmp_path, monkeypatch):
    """The path of a text, beside another one to validate on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "val.txt").write_text("a boat and a tree\n" * 12)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 30)
    return tmp_path / "text.txt"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_plan_with_data_is_that_of_the_run(path, text, options):
    """Every number, and after the run, too: it has compiled nothing else."""
    options = {"context": 24} | options
    planned = plan(str(path), None, text, **options)
    run = Run(str(path), text, None, **options)
    run.prepare()
    assert dataclasses.replace(run.memory(), available=planned.available) == planned
    run.train(progress=False)
    assert dataclasses.replace(run.memory(), available=planned.available) == planned


@pytest.mark.slow
def test_a_plan_without_data_is_no_less_than_that_of_a_run(path, text):
    """But for the rows of the data."""
    for options in (value for name, value in OPTIONS.items() if not {"val", "eval_rows"} & value.keys()):
        options = {"context": 24} | options
        planned, run = plan(str(path), **options), Run(str(path), text, **options)
        run.prepare()
        made = run.memory()
        for one in (field.name for field in dataclasses.fields(planned)):
            if one not in (
                "inputs",
                "available",
                "base",
                "reading",
                "device",
                "on_device",
                "layers",
                "duration",
                "programs",
            ):
                assert getattr(planned, one) >= getattr(made, one), (one, options)


@pytest.mark.parametrize("given", [{"val": "v.txt"}, {"eval_rows": 3}, {"text_key": "t"}])
def test_settings_of_data_need_data(path, given):
    with pytest.raises(SettingError, match=rf"^plan: {next(iter(given))}=.* requires data, that of the run$"):
        plan(load(path), **({"data_options": given} if "text_key" in given else given))


def test_full_training_and_other_optimisers(path):
    model = load(path)
    count = sum(w.read().size for w in model.weights.values())
    full = plan(model, TrainedTensors("all"), context=16, batch_size=1)
    assert (full.trained, full.state, full.gradients) == (4 * count, 8 * count, 0)
    assert plan(load(path), TrainedTensors("all"), context=16, batch_size=1, optimizer=gl.optim.SGD()).state == 0


def test_moments_in_8_bits(path):
    """Two codes an element, and two scales a block of 256 elements, of tensors of 4096 elements and more."""
    model = load(path)
    sizes = [w.read().size for w in model.weights.values()]
    large = [size for size in sizes if size >= 4096]
    expected = sum(2 * size + 8 * -(-size // 256) for size in large) + 8 * (sum(sizes) - sum(large))
    settings = {"context": 16, "batch_size": 1, "state_bits": 8, "threads": 1}
    planned = plan(model, TrainedTensors("all"), **settings)
    assert planned.state == expected < 8 * sum(sizes)
    run = Run(load(path), rows_of(1, 16), TrainedTensors("all"), val_split=0.0, **settings | {"context": None})
    run.prepare()
    assert run.memory().state == expected


def test_contents_that_follow_from_a_rule_take_no_memory_before_they_are_used():
    """Copies and moments of a full fine-tuning that would take 64 GiB, and one of them that is used."""
    made = []

    def make():
        made.append(1)
        return np.arange(6.0).reshape(2, 3)

    wide = [Stored("m", np.broadcast_to(np.float32(0), (1 << 15, 1 << 15))) for _ in range(16)]
    assert sum(s.bytes for s in wide) == 64 << 30
    deferred = Stored.deferred("w", (2, 3), make, "f32", "trained")
    assert (deferred.shape, deferred.bytes, made) == ((2, 3), 24, [])
    assert deferred.numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and deferred.address % 64 == 0
    deferred.write(7)
    assert deferred.read().tolist() == [[7] * 3] * 2 and made == [1]
    zeros = Stored("z", np.broadcast_to(np.float32(3), (2, 2)))
    zeros.write([[1, 2], [3, 4]])
    assert zeros.numpy().tolist() == [[1, 2], [3, 4]]


def test_an_adapter_that_was_planned_with_can_be_trained(path):
    """Planning leaves nothing behind: what trains is that of an adapter of its own."""
    planned, other = LoRA(rank=2, seed=3), LoRA(rank=2, seed=3)
    model = load(path)
    plan(model, planned, context=16)
    other.bind(model)
    for name, parameter in planned.parameters().items():
        np.testing.assert_array_equal(parameter.numpy(), other.parameters()[name].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run_takes_what_its_plan_promised(tmp_path, method):
    """rules: at most the promise and 3 % or 16 MiB, at least 90 % of it. A model of 38 MB, in a process of its own."""
    from examples.random_gguf import write_random

    shape = {"layers": 4, "width": 384, "heads": 6, "kv_heads": 2, "ffn": 1024, "vocab": 8192}
    model = write_random(tmp_path / "m.gguf", kind="f32", **shape)
    (tmp_path / "t.txt").write_text("the quick brown fox jumps over the lazy dog " * 400)
    command = [sys.executable, "bench/memory.py", "--work", "tuning", "--of", model, tmp_path / "t.txt", method, "f32"]
    done = subprocess.run([*command, "64", "4"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    promised, taken = found["promised"], found["taken"]
    assert 0.9 * promised <= taken <= promised + max(0.03 * promised, 16 << 20), found


COMMAND = """
import sys
from pathlib import Path
from gradloom.cli.main import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 2_000_000], ids=["training", "reading"])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_planned_total_bytes_is_the_peak_of_the_process(tmp_path, size):
    """Of a small model: most of it is the interpreter and its libraries, or the reading of a large text."""
    from examples.random_gguf import SHAPES, write_random

    model, text = write_random(tmp_path / "m.gguf", **SHAPES["small"]), tmp_path / "t.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * (size // 44))
    words = [model, text, "--context", 128, "--steps", 2, "--out", tmp_path / "a.gguf", "--threads", 2, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "finetune", *map(str, words)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    *_, report, kib = done.stdout.splitlines()
    planned, peak = json.loads(report)["planned_total_bytes"], int(kib) * 1024
    assert 0.9 * planned <= peak <= planned + max(0.03 * planned, 16 << 20), (planned, peak)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_soft_labels_of_all_tokens_are_within_the_plan(tmp_path):
    """Most of the memory is labels: no step copies those of many rows."""
    from examples.random_gguf import SHAPES, write_random

    model, text = write_random(tmp_path / "m.gguf", **SHAPES["small"]), tmp_path / "t.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 2500)
    words = [model, text, "--objective", "distil", "--teacher", model, "--top-k", 256, "--context", 64, "--steps", 2,
             "--val-split", 0.3, "--out", tmp_path / "a.gguf", "--threads", 2, "--json"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "finetune", *map(str, words)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    *_, report, kib = done.stdout.splitlines()
    planned, peak = json.loads(report)["planned_total_bytes"], int(kib) * 1024
    assert 0.9 * planned <= peak <= 1.01 * planned, (planned, peak)


HUGE = {
    "rows": {"batch_size": 10**8},
    "rows at a time": {"batch_size": 10**8, "micro_batch_size": 10**8},
    "rank": {"adapter": LoRA(rank=10**9, targets=["attn_q", "attn_v"])},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", HUGE.values(), ids=HUGE)
def test_plans_of_any_size_make_no_arrays_of_that_size(path, monkeypatch, settings):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 40, 1 << 36))
    model = load(path)
    plan(model, LoRA(rank=1), context=8)  # what is imported and remembered
    tracemalloc.start()
    found = plan(model, **settings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not found.fits and found.total > 1 << 38 and peak < 20 << 20
    need = "--batch-size" if len(settings) == 1 and "batch_size" in settings else "--rank|--micro-batch-size"
    with pytest.raises(SettingError, match=rf"of memory are needed, 64.00 GiB are available; need .*{need}"):
        found.check()


def test_a_plan_of_many_rows_is_that_of_few_but_for_the_rows(path):
    few, many = (plan(load(path), LoRA(rank=2), context=16, batch_size=n, micro_batch_size=3) for n in (8, 8000))
    assert many.inputs - few.inputs == 2 * 7992 * (3 * 4 * 16 + 8)  # tokens, positions, labels; the order
    assert dataclasses.replace(many, inputs=0, available=0) == dataclasses.replace(few, inputs=0, available=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_size": 2**62},
            f"batch_size={2**62}: rows of 512 tokens take 2.63 bytes or more; use a smaller one",
        ),
        ({"batch_size": 10**12, "micro_batch_size": 10**12}, "smaller shapes|need fewer than 2.63 bytes"),
        ({"batch_size": 0}, "batch_size=0: must be"),
    ],
)
def test_sizes_beyond_addresses(path, settings, message):
    with pytest.raises(GradloomError, match=message) as caught:
        plan(load(path), LoRA(rank=1), context=512, **settings)
    assert "\n" not in str(caught.value)


def test_what_trains_is_held_against_the_memory_before_it_is_made(path, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 40, 1 << 30))
    with pytest.raises(SettingError, match="to train these tensors, 1.00 GiB are available; need .* a smaller --rank"):
        Run(load(path), rows_of(4), LoRA(rank=10**8))


@pytest.mark.parametrize("settings", [{"rank": 2**31}, {"rank": 10**400}, {"alpha": 10**400}, {"alpha": float("nan")}])
def test_numbers_that_no_adapter_has(settings):
    with pytest.raises(SettingError, match="must be a (whole|positive) number") as caught:
        LoRA(**settings)
    assert len(str(caught.value)) < 200


def test_what_does_not_fit_is_refused_and_says_what_would(path, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 400_000))
    model = load(path)
    found = plan(model, LoRA(rank=2), context=512, batch_size=1)
    assert not found.fits
    with pytest.raises(
        SettingError, match=r"^plan: .* MiB of memory are needed, 390.62 KiB are available; need a smaller"
    ):
        found.check()
    assert "--method lora" in plan(model, TrainedTensors("all"), context=4, batch_size=1).hint()
    assert "q8_0" in plan(model, LoRA(rank=1), context=4, batch_size=1).hint()
    monkeypatch.setattr(memory, "memory", lambda: None)
    assert plan(model, LoRA(rank=2), context=512, batch_size=1).fits


@pytest.mark.parametrize("context", [1, 2049])
def test_a_context_that_cannot_be(path, context):
    with pytest.raises(SettingError, match="must be 2 to 2048, the model's context"):
        plan(load(path), context=context)


# -- the command -------------------------------------------------------------------------------------------------------


def command(capsys, *arguments):
    code = main(["plan", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_command(capsys, path):
    code, out, err = command(capsys, path, "--context", 64, "--rank", 4, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and err == "" and "it fits" in out and "mapped from the file" in out
    assert "data             on top: about 12 bytes for each token" in out
    assert found["planned_bytes"] == found["arena_bytes"] + found["threads"] * found["scratch_bytes"]
    assert found["needed_bytes"] > found["weights_bytes"] + found["planned_bytes"] and found["fits"] is True
    parts = [found[f"{name}_bytes"] for name in ("base", "needed", "copied", "left")]
    assert found["peak_bytes"] == sum(parts) and found["reading_bytes"] == 0
    assert found["lower_bound_bytes"] <= found["arena_bytes"] < found["unshared_bytes"]


def test_command_where_it_does_not_fit(capsys, path, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 1 << 16))
    code, out, err = command(capsys, path)
    assert code == 2 and "it does not fit" in out
    assert err.startswith("gradloom: plan: ") and err.count("\n") == 1 and "64.00 KiB are available; need" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--val", "nowhere.txt"], "--val nowhere.txt requires DATA, that of the run"),
        (["--as-chat"], "--as-chat requires DATA, that of the run"),
        (["nowhere.txt"], "nowhere.txt: cannot be read: no such file"),
        (["--rank", "0"], "--rank 0: must be a whole number of at least 1"),
        (["--method", "qlora"], "--method qlora: must be lora or full"),
        (["--optimizer", "nothing"], "--optimizer nothing: must be adamw or adam"),
        (["--context", "5000"], "--context 5000: must be 2 to 2048, the model's context"),
        (["--targets", "attn_z"], "--targets: 'attn_z' matches no tensor that can be trained"),
    ],
)
def test_bad_options(capsys, path, options, message):
    code, out, err = command(capsys, path, *options)
    assert (code, out) == (2, "") and err.startswith(f"gradloom: {message}") and err.count("\n") == 1


def test_tensors_that_need_copies_to_train(capsys, tmp_path):
    half = write(tmp_path, "llama", kind="f16")
    code, _, err = command(capsys, half, "--method", "full")
    assert code == 2 and "f16 and cannot be trained as it is; need --train-dtype f32" in err
    code, out, _ = command(capsys, half, "--method", "full", "--train-dtype", "f32", "--context", "8")
    assert code == 0 and "it fits" in out
    with pytest.raises(DTypeError):
        plan(load(half), TrainedTensors("all"))


def test_a_settings_file_and_lines_to_skip(capsys, path, tmp_path):
    data, file = tmp_path / "rows.jsonl", tmp_path / "plan.toml"
    data.write_text('{"text": "the sea and the boat"}\n{"text":\n' * 6)
    file.write_text(f'context = 16\nmodel = "{path}"\ndata = "{data}"\n')
    code, _, err = command(capsys, "--config", file)
    assert code == 2 and "rows.jsonl" in err and "--skip-bad-lines" in err
    found = []
    for words in (["--config", file, "--skip-bad-lines"], [path, data, "--context", 16, "--skip-bad-lines"]):
        code, out, err = command(capsys, *words, "--json")
        assert code == 0, err
        measured = ("available_bytes", "base_bytes", "reading_bytes", "peak_bytes", "left_bytes")
        found.append({k: v for k, v in json.loads(out.splitlines()[-1]).items() if k not in measured})
    assert found[0] == found[1]


def test_a_plan_predicts_seconds_where_the_steps_run_on_the_cpu(path, text):
    found = plan(str(path), data=text, context=24, batch_size=3, epochs=2)
    time, run = found.duration, Run(str(path), text, context=24, batch_size=3, epochs=2)
    assert time.steps == run.steps_total and time.per_epoch * 2 == time.steps and time.evaluations == 3
    assert time.step > 0 and time.evaluation > 0 and time.seconds > time.step * time.steps
    assert dict(found.lines())["time"] == str(time)
    report = found.report()
    assert report["step_seconds"] == time.step and report["predicted_seconds"] == time.seconds
    larger = plan(str(path), context=24, batch_size=6)
    assert larger.duration.step > time.step and "predicted_seconds" not in larger.report()
    assert "time" not in dict(larger.lines()) and "time of a step" in dict(larger.lines())
    sampled = plan(str(path), context=24, sample_prompt="a")
    assert sampled.duration.apart == ("sampled texts",)


def test_a_plan_without_enough_memory_predicts_nothing(path, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 20, 1 << 10))
    found = plan(str(path), context=24)
    assert not found.fits and found.duration is None and "step_seconds" not in found.report()


@pytest.mark.slow
def test_the_curve_of_memory_and_time_is_that_of_budgets(tmp_path: Path) -> None:
    """Its ends: no budget, and the least one that is accepted; each point can be met at about its time."""
    from examples.random_gguf import write_random

    write_random(tmp_path / "m.gguf", kind="q8_0", layers=8, width=128, heads=4, kv_heads=2, ffn=512, vocab=1024)
    options = {"context": 256, "batch_size": 4, "micro_batch_size": 4, "val_split": 0, "threads": 1}
    found = gl.llm.plan(tmp_path / "m.gguf", **options)
    (most, first), *smaller = found.curve
    assert (most, first) == (found.need, 1.0) and len(smaller) == 4
    assert all(a[0] > b[0] and a[1] <= b[1] for a, b in zip(found.curve, smaller, strict=False))
    assert gl.llm.plan(tmp_path / "m.gguf", memory="8GiB", **options).curve == found.curve
    with pytest.raises(gl.SettingError, match="at least about") as refused:
        gl.llm.plan(tmp_path / "m.gguf", memory=found.budget(smaller[-1][0]) - (8 << 20), **options)
    assert "at least" in str(refused.value)
    report = found.report()["memory_curve"]
    assert [point["needed_bytes"] for point in report] == [need for need, _ in found.curve]
    assert "memory and time" in dict(found.lines())


def test_budgets_of_the_curve_are_those_of_a_new_process(path, monkeypatch):
    """`plan` has run programs to time a step; the command that gets the budget has not."""
    found = dataclasses.replace(plan(load(path), context=24), base=100 << 20, curve=((64 << 20, 1.0), (32 << 20, 1.1)))
    monkeypatch.setattr(budget, "arena_was_used", lambda: True)
    assert found.budget(32 << 20) == found.budget(32 << 20, is_first=True) - (12 << 20)
    found = dataclasses.replace(found, held=120 << 20, left=0)  # what planning leaves counts, as for a budget
    least = (120 << 20) + (32 << 20) + found.copied + (16 << 20)
    assert [most for most, _ in found.curve_budgets()] == [budget.about(least + (32 << 20)), budget.about(least)]
    shown = memory.show_bytes(budget.about(least))
    assert f"{shown} x1.10" in dict(found.lines())["memory and time"]
    assert found.report_programs()["curve"] == found.curve_budgets()


@pytest.mark.slow
def test_budgets_of_the_curve_are_accepted(tmp_path):
    """By `plan` and `finetune`, each in a process of its own."""
    from examples.random_gguf import write_random

    write_random(tmp_path / "m.gguf", kind="q8_0", layers=8, width=128, heads=4, kv_heads=2, ffn=512, vocab=1024)
    (tmp_path / "t.txt").write_text("\n\n".join(f"the cat sat on mat {i}" for i in range(40)))
    words = [str(tmp_path / "m.gguf"), str(tmp_path / "t.txt"), "--context", "128"]

    def command(*words):
        line = [sys.executable, "-m", "gradloom", *words]
        return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)

    said = command("plan", *words).stdout
    budgets = re.findall(r"([0-9.]+) MiB x", said)
    assert len(budgets) > 2, said
    for most in (budgets[0], budgets[-1]):
        for name, more in (("plan", ()), ("finetune", ("--steps", "1", "--out", str(tmp_path / "a.gguf")))):
            done = command(name, *words, *more, "--memory", f"{most}MiB")
            assert done.returncode == 0, done.stderr


def test_rows_of_the_curve_do_not_depend_on_what_the_process_holds(path):
    """In a process of gigabytes all its budgets print alike."""
    found = dataclasses.replace(plan(load(path), context=24), curve=((600_000, 1.0), (500_000, 1.1)))
    for base in (100 << 20, 2_000_000_000, 5_000_000_000):
        lines = dict(dataclasses.replace(found, base=base).lines())
        assert lines["memory and time"].count(" x1.") == 2
