"""Messages and plans name the user's line, whatever decorators lie between."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import GradloomError

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
    run.profile()
    run(x=np.ones((2, 4)))
    for text in (str(run.plan), str(run.timings())):
        assert HERE in text and "contextlib" not in text
