"""run.profile: times of instructions by op, line and module, of real steps that leave no trace."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.graph.leaves import stored_value
from gradloom.graph.stored import Stored
from gradloom.run.profile import Profile, ProfileRow, save_trace
from tests.plan.devices import DEVICES, registered

ROWS, WIDE = 96, 384


class Net(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [gl.nn.Linear(WIDE, WIDE, activation="gelu") for _ in range(3)]
        self.norm = gl.nn.BatchNorm(WIDE)

    def forward(self, x: gl.Value) -> gl.Value:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def trainer(**options: Any) -> tuple[Net, Any, dict[str, Any]]:
    """A network, a compiled step of it, and its feeds."""
    net = Net().init(3)
    x = gl.input("x", (ROWS, WIDE))
    loss = ops.mean(ops.sqr(net(x)))
    parameters = net.parameters()
    gradients = gl.gradients(loss, parameters)
    lr = gl.setting("lr")
    updates = [ops.assign(p, p - lr * g)[0] for p, g in zip(parameters, gradients, strict=True) if g is not None]
    x_data = np.random.default_rng(0).standard_normal((ROWS, WIDE)).astype(np.float32)
    return net, gl.compile(loss, updates, **options), {"x": x_data, "lr": 0.1}


def bits(net: gl.nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in net.state_dict().items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_changes_no_bit_of_weights_results_and_inputs(threads: int) -> None:
    net, run, feeds = trainer(threads=threads)
    other, plain, _ = trainer(threads=threads)
    assert run(**feeds)[0] == plain(**feeds)[0]
    before, fed = bits(net), run.fed()["x"].copy()
    profile = run.profile(feeds | {"x": feeds["x"] * 2}, steps=3)
    assert profile.steps == 3 and bits(net) == before and np.array_equal(run.fed()["x"], fed)
    timed = run.timings()
    assert run(**feeds)[0] == plain(**feeds)[0]  # as if there had been no profile
    assert bits(net) == bits(other) != before
    assert run.timings() == timed  # switched off again


def test_a_step_that_fails_is_undone() -> None:
    x = gl.input("x", (4,))
    count, total = (Stored(name, np.zeros(4, np.float32)) for name in ("count", "total"))
    first = ops.assign(stored_value(count), stored_value(count) + 1.0)[0]
    second = ops.assign(stored_value(total), stored_value(total) + ops.get_rows(x, gl.input("i", (4,), "i32")))[0]
    run = gl.compile([], [first, second])
    good, bad = ({"x": np.ones(4), "i": [0, 1, 2, k]} for k in (3, 4))
    run.profile(good, steps=2)
    with pytest.raises(gl.DataError, match="id 4 at position 3"):
        run.profile(bad, steps=2)
    assert not count.numpy().any() and not total.numpy().any()
    run(**good)
    assert count.numpy().tolist() == [1] * 4


def test_the_parts_add_up_to_the_whole() -> None:
    _, run, feeds = trainer(threads=1)
    profile = run.profile(feeds, steps=10)
    assert len(profile.rows) == len(run.plan.order.steps) and len(profile.step_times) == 10
    shares = [sum(row.times[i] for row in profile.rows) / whole for i, whole in enumerate(profile.step_times)]
    assert 0.5 < max(shares) < 1.05  # less where other processes interrupt a step between two instructions
    assert profile.step_seconds == pytest.approx(np.median(profile.step_times))
    assert all(row.seconds == pytest.approx(np.median(row.times)) for row in profile.rows)
    for what in ("op", "line", "module", "pattern"):
        groups = profile.by(what)
        assert sum(row.seconds for row in groups) == pytest.approx(profile.seconds)
        assert sum(row.count for row in groups) == len(profile.rows)
        assert sum(row.flops for row in groups) == pytest.approx(sum(row.flops for row in profile.rows))
        assert [row.seconds for row in groups] == sorted((row.seconds for row in groups), reverse=True)
        assert len({row.name for row in groups}) == len(groups)


def test_work_line_and_module_of_a_product() -> None:
    m, k, n = 64, 128, 32
    with gl.scope("outer.3.inner"):
        y = ops.matmul(gl.input("x", (m, k)), gl.input("w", (k, n)))  # this line
    line = next(i for i, text in enumerate(Path(__file__).read_text().split("\n"), 1) if text.endswith("# this line"))
    profile = gl.compile(y).profile({"x": np.ones((m, k)), "w": np.ones((k, n))}, steps=5)
    (row,) = profile.rows
    assert row.op == "matmul" and row.flops == 2 * m * n * k and row.bytes == 4 * (m * k + k * n + m * n)
    assert row.line == f"test_profile.py:{line}"
    assert (row.module, row.pattern) == ("outer.3.inner", "outer.*.inner")
    assert row.shapes == "f32[64,128], f32[128,32] -> f32[64,32]"
    assert row.gflops == pytest.approx(row.flops / row.seconds / 1e9)
    assert row.limit is not None and row.limit > 0 and row.limit_share == row.limit / row.seconds


def test_gradients_belong_to_the_module_of_their_node() -> None:
    _, run, feeds = trainer()
    profile = run.profile(feeds, steps=1)
    assert {"layers.0", "layers.1", "layers.2", "norm"} <= {row.module for row in profile.rows}
    assert not any(row.module.endswith(".grad") for row in profile.rows)
    assert {"layers.*", "norm"} <= {row.name for row in profile.by("pattern")}


def test_a_cache_moves_the_written_rows_alone() -> None:
    cache = stored_value(Stored("cache", np.zeros((1, 5000, 4), np.float32)))
    filled = ops.set_rows(cache, gl.input("rows", (1, 2, 4)), gl.setting("at", "i64"), axis=1)
    profile = gl.compile([], [filled]).profile({"rows": np.ones((1, 2, 4)), "at": 7}, steps=1)
    assert profile.rows[0].bytes == 2 * 4 * 2 * 4 and not cache.node.attrs["stored"].numpy().any()


def test_the_trace_has_the_keys_of_the_format(tmp_path: Path) -> None:
    _, run, feeds = trainer()
    profile = run.profile(feeds, steps=2)
    profile.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(profile.rows)
    end = 0.0
    for event, row in zip(events, profile.rows, strict=True):
        assert isinstance(event["name"], str) and event["name"] == row.op and isinstance(event["cat"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= end * (1 - 1e-9) and event["dur"] == pytest.approx(row.seconds * 1e6)
        end = event["ts"] + event["dur"]
        assert event["args"]["bytes"] == row.bytes and event["args"]["line"] == row.line
    assert end == pytest.approx(profile.seconds * 1e6)
    about = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert {event["name"] for event in about} == {"process_name", "thread_name"} and trace["displayTimeUnit"] == "ms"
    save_trace(tmp_path / "two.json", {"a": profile, "b": profile})
    both = json.loads((tmp_path / "two.json").read_text())["traceEvents"]
    assert len(both) == 2 * len(trace["traceEvents"]) and {event["pid"] for event in both} == {0, 1}
    with pytest.raises(gl.FileError, match="nowhere"):
        profile.save(tmp_path / "nowhere" / "trace.json")


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    name = "a\x1b[31m\nb\udcff\u202e" + "long" * 30
    with gl.scope(name):
        y = ops.sin(gl.input("x", (3,)))
    profile = gl.compile(y).profile({"x": np.ones(3)}, steps=1)
    ops.sin(gl.input("y", (3,)))
    assert profile.rows[0].module == name
    shown = str(Profile((*profile.rows, *gl.compile(-y).profile({"x": np.ones(3)}, steps=1).rows), (1e-3,), "here"))
    assert "\x1b" not in shown and "\u202e" not in shown and "\udcff" not in shown and "a\\x1b[31m\\nb" in shown
    assert max(map(len, shown.split("\n"))) < 120
    profile.save(tmp_path / "t.json")
    event = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"][-1]
    assert event["args"]["module"] == name


def test_threads_see_no_weights_of_a_profile() -> None:
    net, run, feeds = trainer(threads=1)
    before, seen, stop = bits(net), [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(bits(net) == before)

    reader = threading.Thread(target=look)
    reader.start()
    profiles: list[Profile] = []
    works = [threading.Thread(target=lambda: profiles.append(run.profile(feeds, steps=5))) for _ in range(2)]
    for work in works:
        work.start()
    for work in works:
        work.join()
    stop.set()
    reader.join()
    assert all(seen) and len(profiles) == 2 and bits(net) == before
    assert all(row.seconds > 0 for profile in profiles for row in profile.by("op"))


def test_the_definition_and_several_devices() -> None:
    net, run, feeds = trainer(backend="numpy")
    before = bits(net)
    profile = run.profile(feeds, steps=2)
    assert bits(net) == before and profile.rates is None and profile.where == "numpy"
    assert all(row.limit_share is None for row in profile.rows) and "matmul" in {row.op for row in profile.rows}
    with registered():
        x, w = gl.input("x", (8, 8)), gl.parameter(np.ones((8, 8)), name="w")
        with gl.device(DEVICES[1]):
            y = ops.sin(x @ w)
        with gl.device(DEVICES[0]):
            z = ops.cos(y) + 1.0
        run = gl.compile(z, ops.assign(w, w * 2.0), devices=DEVICES)
        profile = run.profile({"x": np.ones((8, 8))}, steps=2)
        assert (w.stored.numpy() == 1).all() and {row.device for row in profile.rows} == set(DEVICES)
        assert set(profile.where.split(", ")) == set(DEVICES)
        assert {event["tid"] for event in profile.events(0, "")} == {0, 1}
    with pytest.raises(gl.BackendError, match="it plans and does not run"):
        gl.compile(ops.sin(gl.input("x", (3,))), backend="null").profile({"x": np.ones(3)})


def test_bad_arguments_are_named() -> None:
    _, run, feeds = trainer()
    with pytest.raises(gl.GraphError, match="x is not fed"):
        run.profile()
    with pytest.raises(gl.GraphError, match="y is not an input of this graph"):
        run.profile(feeds | {"y": 1})
    with pytest.raises(gl.SettingError, match=r"feeds.* is a bool; must be a dict of inputs and settings"):
        run.profile(True)
    for steps in (0, -1, 1.5, "3", True):
        with pytest.raises(gl.SettingError, match="steps.*a whole number of at least 1"):
            run.profile(feeds, steps=steps)
    with pytest.raises(gl.SettingError, match="must be 'op' or 'line'"):
        run.profile(feeds, steps=1).by("name")


def test_copies_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradloom.run import profile as module

    net, run, feeds = trainer()
    before = bits(net)

    def refuse(need: int, what: str, hint: str) -> None:
        raise gl.SettingError(f"{what}; {hint}")

    monkeypatch.setattr(module, "need_memory", refuse)
    with pytest.raises(gl.SettingError, match="of memory are needed for copies of the arrays that the program writes"):
        run.profile(feeds)
    assert bits(net) == before


def test_an_instruction_without_a_time_has_no_rates() -> None:
    row = ProfileRow("sin", 0.0, 8.0, 64.0, 1e-9, "sin", "a.py:1", "")
    assert row.gflops == row.gbs == 0 and row.limit_share is None
    assert " -" in str(Profile((row,), (0.0,), "here"))
