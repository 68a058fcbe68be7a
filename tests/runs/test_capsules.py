"""Capsules: a program, its inputs and its arrays in a file, run again to the same bits, elsewhere within tolerances."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import BackendError, FileError, GraphError, IndexOutOfRange, NotFinite, PlanError
from gradloom.cli.main import main
from gradloom.graph.declaration import Sample
from gradloom.graph.graph import update_target
from gradloom.graph.leaves import stored_value
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.stored import Stored
from gradloom.graph.value import Value
from gradloom.ops.common import Quantised
from gradloom.plan import plan as planning
from gradloom.run.capsule import digest
from gradloom.run.capsule_format import described, restored
from gradloom.run.replay import replay as replay_here
from gradloom.runs.capsules import capsule_of, load
from tests.llm.random_models import write
from tests.ops.cases import case_id, cases, samples_of
from tests.wrong_kernel import WrongKernel


def through_text(made, with_data=True):
    """A capsule that was written to text and arrays, and read."""
    head, arrays = described(made, with_data)

    def read(number, kind, shape):
        array = arrays[number]
        assert (array.dtype, array.shape) == (kind, shape)
        return array.copy()

    return restored(json.loads(json.dumps(head)), read)


def operand(x: object, i: int) -> Value | None:
    if x is None:
        return None
    return x.value() if isinstance(x, Quantised) else stored_value(Stored(f"x{i}", x, x.dtype))


def compiled(name: str, sample: Sample) -> object:
    """The program of one op on stored arrays: all its outputs, or updates."""
    node = REGISTRY[name].node([operand(x, i) for i, x in enumerate(sample.inputs)], sample.attrs)
    updates = [v for v in node.outputs if update_target(v) is not None]
    outputs = [] if node.op.updates else list(node.outputs)
    return gl.compile(outputs, updates, threads=1)


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_programs_of_all_ops_come_back(case):
    name, number = case
    run = compiled(name, samples_of(name)[number])
    try:
        run.check_files()
    except IndexOutOfRange:  # of i64 numbers that i32 does not hold
        with pytest.raises(IndexOutOfRange):
            capsule_of(run, {})
        return
    made = capsule_of(run, {})
    again = through_text(made)
    result = replay_here(again)
    assert result.agrees and result.by_bits and result.same_plan, result.first
    assert again.calls[0].outcome.digests == made.calls[0].outcome.digests
    for node, other in zip(made.programs[0].nodes, again.programs[0].nodes, strict=True):
        assert (node.op, node.name, node.where) == (other.op, other.name, other.where)
        assert [v.shape for v in node.outputs] == [v.shape for v in other.outputs]
    if not made.calls[0].outcome.error:
        try:
            want = run()
        except NotFinite:  # under GRADLOOM_CHECK=2, which refuses what these samples compute
            return
        assert [digest(a) for a in want] == made.calls[0].outcome.digests
        written = {s.name: digest(s.read()) for s in run.writes}
        assert written == {made.stored[i].name: d for i, d in made.calls[0].outcome.updated.items()}


def step(scale=1.0):
    """One step of AdamW with dropout: (program, feeds, parameters)."""
    rng = np.random.default_rng(0)
    x, y = gl.input("x", (6, 5)), gl.input("y", (6,), "i32")
    w1, w2 = (gl.parameter(rng.standard_normal(s) * scale, f"w{i}") for i, s in enumerate(((5, 32), (32, 4))))
    h = gl.named(gl.ops.silu(gl.ops.dropout(x @ w1, 0.2, stream=1)), "hidden")
    loss, weight = gl.ops.cross_entropy_pair(gl.ops.exp(h @ w2), y)
    grads = gl.gradients(loss, [w1, w2])
    guard = gl.ops.guard(loss, weight, *grads)
    optimizer = gl.optim.AdamW(lr=0.1)
    made = optimizer.make_state([w1, w2])
    updates = optimizer.update(gl.optim.UpdateInputs([w1, w2], grads, weight, made))
    feeds = {"x": rng.standard_normal((6, 5)).astype(np.float32), "y": rng.integers(0, 4, 6).astype(np.int32)}
    return ([loss, weight, guard], updates), feeds | optimizer.at(0, 0) | {"opt.t": 1, "seed": 3}, [w1, w2]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_step_is_replayed_to_the_bit(tmp_path, precision, capsys):
    program, feeds, weights = step()
    run = gl.compile(*program, precision=precision)
    before = [w.numpy() for w in weights]
    file = tmp_path / "step.capsule"
    gl.capsule(run, file, feeds)
    assert all(np.array_equal(w.numpy(), old) for w, old in zip(weights, before, strict=True))  # it ran on copies
    result = gl.replay(file)
    assert result.agrees and result.by_bits and result.same_plan and result.steps == len(run.plan.order.steps)
    want = [digest(a) for a in run(**feeds)]
    saved = load(file)
    assert saved.calls[0].outcome.digests == want
    assert {saved.stored[i].name: d for i, d in saved.calls[0].outcome.updated.items()} == {
        s.name: digest(s.read()) for s in run.writes
    }
    other = gl.replay(file, isa="scalar")
    assert other.agrees and other.by_bits == (run.isa == "scalar")
    assert main(["replay", str(file)]) == 0 and "the same bits" in capsys.readouterr().out


def test_a_capsule_without_data_holds_none_and_is_proved(tmp_path, capsys):
    program, feeds, weights = step()
    gl.capsule(gl.compile(*program), tmp_path / "a", feeds, data=False)
    data = (tmp_path / "a").read_bytes()
    assert weights[0].numpy().tobytes()[:64] not in data and feeds["x"].tobytes()[:64] not in data
    result = gl.replay(tmp_path / "a")
    assert result.agrees and result.same_plan and not (result.has_run or result.by_bits)
    assert main(["replay", str(tmp_path / "a")]) == 0 and "no data to run" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "a"), "--bisect"]) == 2
    assert "a: has no data to run; --bisect requires a capsule with data" in capsys.readouterr().err
    with pytest.raises(gl.BackendError, match="run is a Linear; need what gl.compile returns"):
        gl.capsule(gl.nn.Linear(2, 2), tmp_path / "b")


def test_a_step_that_is_not_finite_is_replayed_in_another_process(tmp_path):
    program, feeds, weights = step(scale=40.0)
    run = gl.compile(*program)
    with pytest.raises(gl.NonFiniteError):
        run(**feeds)
    before = weights[0].numpy()
    file = tmp_path / "nan.capsule"
    gl.capsule(run, file, feeds)
    assert np.array_equal(weights[0].numpy(), before)
    for isa in ({}, {"GRADLOOM_ISA": "scalar"}):
        done = subprocess.run(
            [sys.executable, "-m", "gradloom.cli.main", "replay", str(file), "--json"],
            env={**os.environ, **isa}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["agrees"] and "not finite" in found["error"] and found["not_finite"].startswith("exp")
        assert found["by_bits"] == (not isa or run.isa == "scalar")


@pytest.mark.parametrize("isa", [None, "scalar"])
@pytest.mark.parametrize("kernel", ["silu", "matmul", "cross_entropy_sum"])
def test_a_wrong_kernel_is_found_and_reduced_to_its_instruction(tmp_path, monkeypatch, capsys, isa, kernel):
    program, feeds, _ = step()
    run = gl.compile(*program)
    if not any(node.op.name == kernel for node in run.plan.order.steps):
        kernel = next(n.op.name for n in run.plan.order.steps if n.op.name.startswith(kernel))
    file, small = tmp_path / "step.capsule", tmp_path / "step.reduced.capsule"
    gl.capsule(run, file, feeds)
    words = [] if isa is None else ["--isa", isa]
    with monkeypatch.context() as patch:
        WrongKernel(patch, kernel)
        assert main(["replay", str(file), "--bisect", *words]) == 1
        out = capsys.readouterr().out
        assert "DIFFERS" in out and f"{kernel}" in out and str(small) in out
        alone = load(small)
        assert [n.op.name for n in alone.programs[0].nodes if not n.op.leaf and n.op.view is None] == [kernel]
        assert main(["replay", str(small), *words]) == 1
    assert main(["replay", str(small), *words]) == 0  # with the right kernel
    assert main(["replay", str(file), *words]) == 0


def test_a_fault_of_a_place_in_the_plan_is_not_reduced(tmp_path, monkeypatch, capsys):
    program, feeds, _ = step()
    run = gl.compile(*program)
    gl.capsule(run, tmp_path / "a.capsule", feeds)
    WrongKernel(monkeypatch, "silu", least=4)
    assert main(["replay", str(tmp_path / "a.capsule"), "--bisect"]) == 1
    assert "no instruction differs alone" in capsys.readouterr().out
    assert not (tmp_path / "a.reduced.capsule").exists()


def test_other_contents_are_another_result(tmp_path):
    """A capsule whose saved digests are those of another run differs at the first instruction that reads them."""
    program, feeds, _ = step()
    made = capsule_of(gl.compile(*program), feeds)
    made.calls[0].inputs["x"] = made.calls[0].inputs["x"] + 1
    result = replay_here(through_text(made))
    assert not result.agrees and result.first.by_bits and "instruction whose bits differ is 0" in result.first.text


def test_a_rejected_plan_is_saved_with_its_program(tmp_path, monkeypatch, capsys):
    program, _, _ = step()
    right = planning.lower

    def lower(*args):
        bytecode, places = right(*args)
        bytecode.args["offset"][int(bytecode.instructions[1]["arg_first"])] += 64
        return bytecode, places

    with monkeypatch.context() as patch:
        patch.setattr(planning, "lower", lower)
        with pytest.raises(PlanError, match=r"gl\.capsule\(error, FILE\)") as failed:
            gl.compile(*program)
        gl.capsule(failed.value, tmp_path / "plan.capsule")
        assert main(["replay", str(tmp_path / "plan.capsule")]) == 1
        assert "the proof rejects the plan" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "plan.capsule")]) == 0
    assert "proof: " in load(tmp_path / "plan.capsule").plans[0].error


def test_what_cannot_be_saved_is_refused(tmp_path):
    program, feeds, _ = step()
    with pytest.raises(BackendError, match="references or on several devices"):
        gl.capsule(gl.compile(*program, backend="numpy"), tmp_path / "a", feeds)
    with pytest.raises(GraphError, match="x is not fed"):
        gl.capsule(gl.compile(*program), tmp_path / "a", {})
    with pytest.raises(FileError):
        gl.capsule(gl.compile(*program), tmp_path, feeds)
    assert not list(tmp_path.iterdir())


def test_mapped_quantised_weights_come_back(tmp_path):
    rng = np.random.default_rng(1)
    quantised = Quantised.draw(rng, "q8_0", (16, 64))
    x = gl.input("x", (3, 64))
    run = gl.compile([x @ gl.ops.permute(quantised.value(), axes=(1, 0))])
    feeds = {"x": rng.standard_normal((3, 64)).astype(np.float32)}
    gl.capsule(run, tmp_path / "q.capsule", feeds)
    saved = load(tmp_path / "q.capsule")
    assert [s.dtype.name for s in saved.stored] == ["q8_0"] and saved.stored[0].role == "frozen"
    assert gl.replay(tmp_path / "q.capsule").agrees and gl.replay(tmp_path / "q.capsule", isa="scalar").agrees
    assert saved.calls[0].outcome.digests == [digest(run(**feeds)[0])]


def test_a_kill_while_it_is_written_leaves_nothing(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys
        import numpy as np
        import gradloom as gl
        from gradloom.files import capsule_file
        right = np.lib.format.write_array
        def write_array(file, array, **options):
            right(file, array, **options)
            if array.nbytes > 100_000:
                os.kill(os.getpid(), signal.SIGKILL)
        np.lib.format.write_array = write_array
        w = gl.parameter(np.ones((500, 500)), "w")
        gl.capsule(gl.compile([gl.ops.exp(w)]), sys.argv[1])
    """)
    file = tmp_path / "a.capsule"
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL and not file.exists()
    w = gl.parameter(np.ones((5, 5)), "w")
    gl.capsule(gl.compile([gl.ops.exp(w)]), file)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == ["a.capsule"]


def test_verify_saves_the_step_of_a_wrong_kernel(tmp_path, monkeypatch, capsys):
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat, and the dog sat on the log. " * 20)
    model = write(tmp_path, "llama", chat=True, context=128)
    monkeypatch.chdir(tmp_path)
    words = ["verify", str(model), str(text), "--context", "8", "--capsule", "v.capsule"]
    with monkeypatch.context() as patch:
        WrongKernel(patch, "rms_norm_back")
        assert main(words) == 1
        assert "gradloom replay v.capsule --bisect" in capsys.readouterr().out
        assert main(["replay", "v.capsule", "--bisect"]) == 1
        assert "rms_norm_back" in capsys.readouterr().out
        assert main(["replay", "v.reduced.capsule"]) == 1
    assert main(["replay", "v.capsule"]) == 0 and main(["replay", "v.reduced.capsule"]) == 0
    os.unlink("v.capsule")
    assert main(words) == 0 and not os.path.exists("v.capsule")
