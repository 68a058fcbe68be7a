"""Streams of random nodes: by scope and ordinal, never by the place in the source."""

from __future__ import annotations

import numpy as np

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.graph import reachable
from gradloom.graph.scope import scope
from gradloom.graph.streams import fresh_streams
from gradloom.graph.value import Value


def streams(*values: Value) -> list[int]:
    return [n.attrs["stream"] for n in reachable(values) if n.op.name == "dropout"]


def twice(x: Value) -> Value:
    with scope("first"):
        y = ops.dropout(x, 0.5)
    with scope("second"):
        return ops.dropout(ops.dropout(y, 0.5), 0.5)


def same_on_other_lines(x: Value) -> Value:
    with scope("first"):
        y = ops.dropout(x, 0.5)
    with scope("second"):
        y = ops.dropout(y, 0.5)
        y = ops.relu(y)
        return ops.dropout(y, 0.5)


def test_a_build_gives_the_same_streams_wherever_its_lines_stand() -> None:
    x, found = gl.input("x", (3,)), []
    for build in (twice, same_on_other_lines, twice):
        with fresh_streams():
            found.append(streams(build(x)))
    assert found[0] == found[1] == found[2] and len(set(found[0])) == 3


def test_no_two_nodes_of_a_build_share_a_stream() -> None:
    """Neither in a loop, nor of branches of one structure, nor of a model that is called twice."""
    x, z = gl.input("x", (3,)), gl.input("z", (3,))
    net = nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.5))
    for _ in range(2):  # in a build, and by hand
        with fresh_streams():
            made = streams(*[ops.dropout(v, 0.5) for v in (x, x, z, ops.relu(x))], net(x), net(x), net(z))
        assert len(set(made)) == 10
    by_hand = streams(*[ops.dropout(v, 0.5) for v in (x, x, z, ops.relu(x))], net(x), net(x), net(z))
    assert len(set(by_hand)) == 10


def test_a_stream_that_is_given_is_kept() -> None:
    x = gl.input("x", (3,))
    assert streams(ops.dropout(x, 0.5, stream=7), ops.dropout(x, 0.5, stream=7)) == [7, 7]


def test_a_tape_draws_what_a_build_of_the_same_model_draws() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.3), nn.Dropout(0.5))
    ones = np.ones((4, 50), np.float32)
    with fresh_streams():
        built = gl.compile([y := net(gl.input("x", (4, 50))), net(y)])(x=ones, seed=5, step=2)
    for _ in range(2):
        with gl.grad_tape(seed=5, step=2):
            first = net(gl.tensor(ones))
            second = net(first)
        assert np.array_equal(first.numpy(), built[0]) and np.array_equal(second.numpy(), built[1])


def test_a_loss_that_calls_the_model_twice_draws_two_masks_and_the_same_in_each_program() -> None:
    """Of a trainer: also in the program of the short batch at the end of a pass."""
    net = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))
    seen: list[list[int]] = []

    def loss(pred: Value, labels: Value, weights: Value | None = None) -> Value:
        again = net(ops.full_like(pred, 1.0))
        seen.append(streams(pred, again))
        return ops.mean(ops.sqr(pred - again), 1)

    data = gl.data.Dataset(np.ones((7, 5), np.float32), np.zeros(7, np.float32))
    gl.fit(net, data, loss=loss, optimizer=gl.optim.SGD(lr=0.1), epochs=1, batch_size=4, progress=False)
    in_training = {tuple(s) for s in seen if s}
    assert len(in_training) == 1 and len(set(in_training.pop())) == 2 and len(seen) >= 2
