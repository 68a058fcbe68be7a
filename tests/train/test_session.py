"""gl.Graph: the ggml way (ggml_build_backward_expand, ggml_graph_reset, ggml_graph_get_grad)."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


def test_gradients_and_accumulators() -> None:
    w, x = gl.parameter([1.0, 2.0], "w"), gl.input("x", (2,))
    graph = gl.Graph(ops.sum(w * x * x))
    graph.backward()
    run = graph.compile(threads=1)
    assert run(x=[1, 2])[0] == 9
    assert run.grad(w).tolist() == [1, 4] and run.grad_acc(w).tolist() == [1, 4]
    run(x=[2, 3])
    assert run.grad(w).tolist() == [4, 9] and run.grad_acc(w).tolist() == [5, 13]
    run.reset()
    assert run.grad_acc(w).tolist() == [0, 0]
    run(x=[1, 1])
    assert run.grad_acc(w).tolist() == [1, 1]
    assert w.numpy().tolist() == [1, 2]
    assert run.plan.peak_bytes >= run.plan.lower_bound_bytes
    assert "mul" in str(graph) and graph.dot().startswith("digraph")


def test_several_losses_add_up() -> None:
    w = gl.parameter(3.0, "w")
    a, b, c = gl.set_loss(w * w), gl.set_loss(5.0 * w), w * 100.0
    run_of = gl.Graph(a, b, c)
    run_of.backward()
    run = run_of.compile()
    assert [float(v) for v in run()] == [9, 15, 300]
    assert run.grad(w) == 6 + 5
    everything = gl.Graph(w * 2.0, w * 7.0)  # none is marked: all are losses
    everything.backward()
    run = everything.compile()
    run()
    assert run.grad(w) == 9


def test_a_loss_inside_the_graph() -> None:
    """A marked value that other outputs are made of."""
    w = gl.parameter(2.0, "w")
    inner = gl.set_loss(w * w)
    graph = gl.Graph(inner * 10.0)
    graph.backward()
    run = graph.compile()
    run()
    assert run.grad(w) == 4


def test_kept_gradients_of_other_nodes() -> None:
    x, w = gl.input("x", (3,)), gl.parameter([1.0, 2.0, 3.0], "w")
    h = ops.sqr(w * x)
    graph = gl.Graph(ops.sum(h))
    graph.backward(keep=[h, x])
    run = graph.compile()
    with pytest.raises(gl.GradientError, match="has no gradient yet; run the graph first"):
        run.grad(w)
    run(x=[1, 1, 2])
    assert run.grad(h).tolist() == [1, 1, 1]
    assert run.grad(x).tolist() == [2, 8, 36]
    with pytest.raises(gl.GradientError, match=r"gradient of .* was not kept; need Graph.backward\(keep="):
        run.grad(h.node.inputs[0])
    with pytest.raises(gl.GradientError, match=r"x at .* has no accumulator; need a trainable parameter"):
        run.grad_acc(x)


def test_what_no_loss_reaches_has_gradient_none() -> None:
    used, beside, elsewhere = (gl.parameter(1.0, name) for name in ("used", "beside", "elsewhere"))
    frozen = gl.parameter(1.0, "frozen", trainable=False)
    x = gl.input("x")
    graph = gl.Graph(gl.set_loss(used * frozen), beside * x)
    graph.backward(keep=[x])
    run = graph.compile()
    run(x=1.0)
    assert run.grad(used) == 1
    for value in (beside, elsewhere, x):
        assert run.grad(value) is None and run.grad_acc(value) is None
    with pytest.raises(gl.GradientError, match=r"frozen at .* was not kept"):
        run.grad(frozen)


def test_without_backward() -> None:
    w = gl.parameter(1.0, "w")
    run = gl.Graph(w * 2.0).compile()
    assert run()[0] == 2
    with pytest.raises(gl.GradientError, match=r"call Graph.backward\(\) before compile\(\)"):
        run.grad(w)
    with pytest.raises(gl.GradientError, match="no accumulator"):
        run.grad_acc(w)
    with pytest.raises(gl.GraphError, match="Graph: no outputs"):
        gl.Graph()


def test_a_run_keeps_the_gradients_that_it_was_compiled_with() -> None:
    w, v = gl.parameter(1.0, "w"), gl.input("v")
    graph = gl.Graph(w * v)
    graph.backward()
    run = graph.compile()
    graph.backward(keep=[v])
    run(v=2.0)
    assert run.grad(w) == 2
    with pytest.raises(gl.GradientError, match="was not kept"):
        run.grad(v)


@pytest.mark.parametrize("options", [{}, {"reuse": False}, {"backend": "numpy"}])
def test_accumulators_are_never_forgotten(options: dict) -> None:
    """ggml's dynamic graphs never zeroed theirs: here a reset is a reset, and a window is a sum."""
    w, x = gl.parameter(np.zeros(3), "w"), gl.input("x", (3,))
    graph = gl.Graph(ops.sum((w + x) * x))
    graph.backward()
    run = graph.compile(**options)
    for _ in range(2):
        run.reset()
        total = np.zeros(3)
        for i in range(4):
            run(x=[i, 1, -i])
            total += [i, 1, -i]
            assert run.grad_acc(w).tolist() == total.tolist()
