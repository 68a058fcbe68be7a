"""Messages and plans name the user's line, whatever decorators lie between."""

import sys

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import GradloomError
from gradloom.graph.scope import located, user_location

HERE = "test_scope.py:"
X, Y = np.ones((6, 4), np.float32), np.arange(6) % 3


def wrong():
    return gl.nn.Sequential(gl.nn.Linear(5, 3)).init(0)


def net():
    return gl.nn.Sequential(gl.nn.Linear(4, 3)).init(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gl.fit(wrong(), (X, Y), progress=False),
        lambda: gl.Trainer(wrong()).step(X, Y),
        lambda: gl.Trainer(net()).step(X, Y + 5),
        lambda: gl.fit(net(), (X, Y), optimizer=gl.optim.SGD(lr=3e38), epochs=9, progress=False),
        lambda: gl.evaluate(wrong(), (X, Y)),
    ],
)
def test_errors_name_the_line_of_the_user(call):
    with pytest.raises(GradloomError, match=HERE):
        call()


def test_plans_and_timings_name_the_line_of_the_user():
    w = gl.parameter(np.ones((3, 4), np.float32), "w")
    loss = (gl.ops.matmul(gl.input("x", (2, 4)), w.T) * 3.0).sum()
    run = gl.compile([loss, *gl.gradients(loss, [w])])
    run.collect_times()
    run(x=np.ones((2, 4)))
    for text in (str(run.plan), str(run.timings())):
        assert HERE in text and "contextlib" not in text


def line():
    """Of the caller, as messages call it."""
    return f"{HERE}{sys._getframe(1).f_lineno}"


def test_the_search_for_the_line_ends_where_it_is_known_but_at_a_line_of_the_user_further_in():
    outer: list[str] = []

    def inner():
        assert user_location() == line()
        outer.append(gl.nn.Linear(2, 2).weight.node.where)
        return line()

    with located():
        assert outer == [] and inner() != line() and outer[0] != line()
    x = gl.input("x", (2, 3))
    loss, made = (x * x).sum(), line()
    (g,), differentiated = gl.gradients(loss, [x]), line()
    assert (loss.node.where, g.node.where) == (made, differentiated)


def test_in_a_step_a_node_is_of_the_line_of_the_user_s_forward_or_else_of_the_call_of_the_step():
    class Net(gl.nn.Module):
        def forward(self, x):
            doubled, self.line = x * 2.0, line()
            return doubled

    model = Net()
    trainer = gl.Trainer(gl.nn.Sequential(model, gl.nn.Linear(4, 3)))
    _, called = trainer.step(X, Y), line()
    nodes = trainer.compiled[0].run.program.nodes
    assert {node.where for node in nodes if node.op.name == "mul" and node.name == "0"} == {model.line}
    assert called in {node.where for node in nodes} <= {called, model.line, trainer.model[1].weight.node.where}
