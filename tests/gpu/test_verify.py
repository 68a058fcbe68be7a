"""A training step on a device held against float64 and the CPU, node by node; and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.settings import Switches
from gradloom.gpu import source
from gradloom.gpu.calls import Call, Dispatch, groups_for, joined
from gradloom.gpu.kernels.all import KERNELS
from gradloom.gpu.walk import GpuWalk
from gradloom.llm.verify import verify
from gradloom.plan import plan as planning
from gradloom.transform.program import gather
from tests.cli.command import run
from tests.gpu.adapter import own_device
from tests.llm.random_models import rows_of, write
from tests.refused import refused

NAMES = [
    "buffers shared, in place", "without in-place outputs", "dead bytes poisoned", "a second run", "unfused",
    "each node against the CPU", "each node against float64", "loss and gradients against float64",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return gl.llm.load(write(tmp_path_factory.mktemp("verify"), "llama"))


def test_all_is_right_in_bf16(model: Any) -> None:
    made = gl.llm.LoRA(rank=3)
    made.bind(model)
    found = verify(model, rows_of(1, 12), made, device="gpu", precision="bf16")
    assert found.agrees and [c.name for c in found.checks] == NAMES, [c for c in found.checks if not c.holds]


@pytest.mark.parametrize("full", [False, True])
def test_all_is_right(model: Any, full: bool) -> None:
    made = gl.llm.TrainedTensors("attn_q") if full else gl.llm.LoRA(rank=3, dropout=0.2)
    made.bind(model)
    before = {name: p.numpy() for name, p in made.parameters().items()}
    found = verify(model, rows_of(1, 12), made, device="gpu")
    assert found.agrees and [c.name for c in found.checks] == NAMES, [c for c in found.checks if not c.holds]
    here = verify(model, rows_of(1, 12), made, reference=False)
    assert np.isclose(found.loss, here.loss, rtol=1e-5) and found.peak_bytes < found.unshared_bytes
    assert all(p.numpy().tobytes() == before[name].tobytes() for name, p in made.parameters().items())


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_kernel_that_computes_something_else_is_named(
    model: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """It is a hundredth too large: beside the CPU and beside float64."""
    honest = KERNELS["rms_norm", "f32"]

    def moved(call: Call) -> list[Dispatch]:
        y = call[len(call.node.inputs)]
        larger = elementwise("fma(x, 1.01, 0.0)")(replace(call, args=(y, y)))
        return [*honest.rule(call), *larger]

    monkeypatch.setitem(KERNELS, ("rms_norm", "f32"), replace(honest, rule=moved))
    found = verify(model, rows_of(1, 12), gl.llm.LoRA(rank=2), device="gpu", precision=precision)
    assert [c.holds for c in found.checks[:7]] == [True] * 5 + [False] * 2 and not found.agrees
    assert all(c.node.startswith("rms_norm ") and "by 0.01" in c.found for c in found.checks[5:7]), found.checks


def test_in_bf16_a_node_that_rounds_nothing_has_the_limits_of_f32(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is a thousandth too large: less than what a rounding costs."""
    honest = KERNELS["matmul", "bf16_f32"]

    def moved(call: Call) -> list[Dispatch]:
        y = call[len(call.node.inputs)]
        return [*honest.rule(call), *elementwise("fma(x, 1.001, 0.0)")(replace(call, args=(y, y)))]

    monkeypatch.setitem(KERNELS, ("matmul", "bf16_f32"), replace(honest, rule=moved))
    made = gl.llm.TrainedTensors("attn_q")
    found = verify(model, rows_of(1, 12), made, device="gpu", precision="bf16", reference=False)
    assert [c.holds for c in found.checks] == [True] * 5 + [False]
    assert found.checks[5].node.startswith("matmul ") and "by 0.001" in found.checks[5].found, found.checks[5]


def test_numbers_that_round_to_the_other_side_on_the_device_are_no_fault(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention rounds its weights and their slopes. Here each that lies near the middle of two of bf16 goes to the
    other one on the GPU: float64 allows it, so must the CPU."""
    rounded = "return from_bf16(bf16_bits(x));"
    other = """
      let low = bitcast<u32>(x) & 0xffffu;
      if (low < 0x7000u || low >= 0x9000u) { return from_bf16(bf16_bits(x)); }
      return from_bf16((bitcast<u32>(x) >> 16u) + u32(low < 0x8000u));"""
    honest = source.file
    assert rounded in honest("attention_seen")
    monkeypatch.setattr(source, "file", lambda name: honest(name).replace(rounded, other))
    with own_device():  # which has compiled no kernel yet
        found = verify(model, rows_of(1, 12), gl.llm.LoRA(rank=3), device="gpu", precision="bf16")
    assert found.agrees and "attention" in found.checks[5].found, [c for c in found.checks if not c.holds]


def elementwise(formula: str) -> Any:
    """The rule of a kernel: a formula of x."""

    def rule(call: Call) -> list[Dispatch]:
        (x, y), defines = joined(call.args), {"VALUE": formula, "SECOND": "0.0"}
        return [Dispatch(("elementwise",), "map", (y, x), groups_for(y.size), (), defines)]

    return rule


def test_a_plan_that_gives_bytes_away_too_early_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof, which would refuse it."""
    monkeypatch.setattr(planning, "check", lambda *a: None)
    honest = planning.place

    def careless(laid: Any, order: Any, workspaces: Any = (), **options: Any) -> Any:
        found = honest(laid, order, workspaces, **options)
        if options["reuse"]:
            k = next(k for k, n in enumerate(order.steps) if "blk.1" in n.label and n.op.name == "matmul")
            victim = next(v for v, b in order.buffers.items() if b.birth < k < b.death and b.bytes >= 2048)
            found.offsets[order.steps[k].outputs[0]] = found.offsets[victim]
        return found

    monkeypatch.setattr(planning, "place", careless)
    found = verify(model, rows_of(1, 24), gl.llm.LoRA(rank=2), device="gpu", reference=False)
    assert not found.checks[0].holds and found.checks[0].found.startswith("the first node that differs: ")
    assert found.checks[3].holds and found.checks[5].holds


def test_a_walk_has_the_values_of_a_whole_run() -> None:
    """Inputs, settings, stored arrays and updates; what stops a run stops a step."""
    w = gl.parameter(np.array([1.0, 2.0, 3.0], np.float32), name="w")
    x, by = gl.input("x", (3,)), gl.setting("by")
    ids = gl.input("ids", (2,), "i32")
    updates = ops.assign(w, w + by)
    walk = GpuWalk(gather([ops.get_rows(ops.exp(x * w), ids)], updates), Switches())
    for _ in range(2):
        before = w.numpy()
        walk.begin({"x": np.ones(3), "ids": [2, 0]}, {"by": 0.5})
        written = walk.run_all()
        at = next(k for k, node in enumerate(walk.steps) if node.op.name == "get_rows")
        assert np.allclose(written[at][0], np.exp(before[[2, 0]]), rtol=1e-6)
        assert np.array_equal(w.numpy(), before + 0.5)
    walk.begin({"x": np.ones(3), "ids": [2, 3]}, {"by": 0.5})
    with pytest.raises(gl.GradloomError, match="id 3 at position 1 is out of range"):
        walk.run_all()
    walk.begin({"x": np.ones(3), "ids": [1, 1]}, {"by": 0.0})
    walk.run_all()


@pytest.mark.no_adapter
def test_what_cannot_be_verified_is_refused(model: Any) -> None:
    with refused("device", "numpy", need="'cpu', 'gpu' or 'gpu:1'", place="verify"):
        verify(model, rows_of(1, 12), device="numpy")
    for name, value in (("isa", "scalar"), ("flush", True)):
        with pytest.raises(gl.SettingError, match=f"verify: {name}=.* requires device 'cpu'"):
            verify(model, rows_of(1, 12), device="gpu", **{name: value})  # type: ignore[arg-type]
    for name, value in (("gpu_layers", 1), ("gpu_layers", 0), ("gpu_memory", "1G"), ("devices", ("gpu", "cpu"))):
        with pytest.raises(gl.SettingError, match=f"verify: {name}=.*: a step is verified on one device; need device="):
            verify(model, rows_of(1, 12), **{name: value})


def test_the_command_takes_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = write(tmp_path, "llama"), tmp_path / "text.txt"
    text.write_text("the sea and the boat\n" * 40)
    code, _, err = run(capsys, "verify", path, text, "--device", "gpu:99")
    assert code == 2 and "gpu:99: there is no such adapter" in err
    code, out, _ = run(capsys, "verify", path, text, "--context", 12, "--device", "gpu", "--no-reference", "--json")
    assert code == 0 and "each node against the CPU           agree in all " in out and "all agree\n" in out


def test_backends_are_compared_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """float64, the CPU and the GPU; a wrong kernel is named, whichever is held against which."""
    x = gl.input("x", (5, 6))
    first = ops.tanh(x)
    y, feeds = ops.softmax(first * 2.0), {"x": np.ones((5, 6))}
    every = (("cpu", "gpu"), ("numpy", "cpu", "gpu"), ("gpu", "cpu"))
    assert all(gl.compare(y, feeds, backends, tolerance=1e-6, threads=1, isa="scalar") is None for backends in every)
    monkeypatch.setitem(KERNELS, ("tanh", "f32"), KERNELS["sin", "f32"])
    for backends in every:
        found = gl.compare(y, feeds, backends)
        assert found is not None and found[0] is first
        assert np.isclose(found[1], abs(np.sin(1) - np.tanh(1)), rtol=1e-5)
