"""Events of a Loop: their order, and that subscribers do not change the loop."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.runs.events import Subscriber
from gradloom.train import Callback, StopTraining

X = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
EVENTS = [name for name, each in vars(Subscriber).items() if callable(each) and not name.startswith("_")]
EVENTS.remove("every_batch")
EVENTS.remove("copied_bytes")


class Records(Subscriber):
    """Records the names of events, each repetition once; of between_steps with its argument."""

    def __init__(self, seen, mark="", ends=()):
        self.seen, self.mark, self._ends = seen, mark, ends
        for name in EVENTS:
            setattr(self, name, lambda *values, name=name: self.record(name, values))

    @property
    def ends(self):
        return self._ends

    def record(self, name, values):
        event = " ".join([self.mark + name, *(values if name == "between_steps" else ())])
        if not self.seen or self.seen[-1] != event:
            self.seen.append(event)
        return contextlib.nullcontext()


def loop(subscribers, *callbacks, steps=3, **options):
    net = nn.Linear(3, 2)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(net.parameters(), lr=0.1), backend="numpy")
    return gl.train.Loop(
        trainer, gl.data.Dataset(X, Y), np.arange(8), np.arange(8, 12), batch_size=4, micro_batch_size=4, steps=steps,
        subscribers=subscribers, callbacks=callbacks, **options,
    )  # fmt: skip


def test_events_come_in_the_documented_order():
    seen = []
    loop([Records(seen, ends=(1,))], validates_first=True, eval_every="1steps").run()
    segment = ["on_progress", "on_segment", "between_steps segment"]
    inside = ["on_progress", "on_evaluation", "between_steps evaluation"]
    end = ["on_progress", "on_evaluation", "on_pass", "on_epoch", "between_steps epoch"]
    assert seen == [
        "begin", "running", "restore", "on_progress", "on_before", "start",
        "begin_pass", *segment, *inside, *segment, *end,
        "begin_pass", *segment, *end,
        "finish", "end",
    ]  # fmt: skip


def test_subscribers_receive_an_event_one_after_the_other():
    seen = []

    class Last(Callback):
        def on_epoch(self, result):
            seen.append("callback")

    display, one, saver = Records(seen, "display "), Records(seen, "one "), Records(seen, "saver ")
    loop([one], Last(), steps=2, saver=saver).run(display)
    assert [each for each in seen if each.endswith("begin")] == ["display begin", "one begin", "saver begin"]
    at = seen.index("callback")
    assert seen[at - 1 : at + 3] == ["display on_epoch", "callback", "one on_epoch", "saver on_epoch"]


@pytest.mark.parametrize("event", ["on_evaluation", "on_epoch"])
def test_a_stop_between_steps_waits_for_the_other_subscribers(event):
    class Stops(Callback):
        pass

    def stop(self, value):
        raise StopTraining

    setattr(Stops, event, stop)
    seen = []
    run = loop([Records(seen)], Stops(), steps=4)
    run.run()
    assert run.stopped and seen.count("on_epoch") == 1 and seen[-5:] == [
        "on_pass", "on_epoch", "between_steps epoch", "finish", "end"
    ]  # fmt: skip


NOT_HERE = {"running", "on_predicted", "on_progress", "on_segment", "on_notice", "on_sample", "on_checkpoint"}
STOPS = sorted({*EVENTS} - NOT_HERE)


@pytest.mark.parametrize("event", STOPS)
def test_a_stop_ends_the_run_in_order_after_all_subscribers_have_received_the_event(event):
    class Stops(Subscriber):
        pass

    def stop(*values):
        raise StopTraining

    seen, first = [], Stops()
    setattr(first, event, stop)
    callback = Callback()
    if event in ("on_stop", "on_part"):  # inside a pass, which another stop ends
        callback.on_batch = stop
    made = loop([first, Records(seen)], callback, steps=4, validates_first=True)
    made.run()
    assert event in [name.split()[0] for name in seen] and seen[-1] == "end"
    assert made.stopped or event in ("finish", "end")
    assert made.steps == {"begin": 0, "restore": 0, "on_before": 0, "start": 0, "begin_pass": 0}.get(
        event, {"on_stop": 1, "on_part": 1, "finish": 4, "end": 4}.get(event, 2)
    )


def test_a_stop_inside_a_pass_ends_it_as_a_part():
    class Stops(Callback):
        def on_batch(self, batch):
            raise StopTraining

    seen = []
    loop([Records(seen)], Stops()).run()
    assert seen[-6:] == ["begin_pass", "on_stop", "on_pass", "on_part", "finish", "end"]


def test_an_error_is_an_event():
    class Fails(Callback):
        def on_epoch(self, result):
            raise RuntimeError("no")

    seen = []
    with pytest.raises(RuntimeError):
        loop([Records(seen)], Fails()).run()
    assert seen[-2:] == ["on_pass", "on_stop"]


def changes_of_loops(path: Path) -> list[str]:
    """Statements that assign to an attribute of a loop, or call a method that changes it."""

    def is_of_loop(node: ast.AST) -> bool:
        if not isinstance(node, ast.Attribute):
            return False
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        return name in ("loop", "_loop")

    found, text = [], path.read_text()
    for node in ast.walk(ast.parse(text if "loop" in text else "")):  # which saves most of the time
        targets: list[ast.AST] = []
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changing = ("append", "extend", "update", "clear", "pop", "insert", "setdefault")
            targets = [node.func.value] if node.func.attr in changing else []
        targets = [t.value if isinstance(t, ast.Subscript) else t for t in targets]
        found += [f"{path.name}:{node.lineno}" for target in targets if is_of_loop(target)]
    return found


def test_no_module_changes_a_loop(tmp_path):
    package = Path(gl.__file__).parent
    assert [change for path in sorted(package.rglob("*.py")) for change in changes_of_loops(path)] == []
    odd = tmp_path / "odd.py"
    odd.write_text("loop.a = 1\nself.loop.b |= {}\nself._loop.c.append(1)\nloop.d['x'] = 2\nother.e = loop.f\n")
    assert sorted(changes_of_loops(odd)) == [f"odd.py:{line}" for line in (1, 2, 3, 4)]
