"""Modules that contain themselves, and modules in more levels than Python can call."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import GraphError
from gradloom.nn import Linear, Module, Sequential

X = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)


def holds_itself():
    net = Sequential(Linear(2, 2))
    net.layers.append(net)
    return net


def holds_itself_below():
    inner = Sequential(Linear(2, 2))
    inner.layers.append(Sequential(inner))
    return Sequential(inner)


def nested(levels=3000):
    net: Module = Linear(2, 2)
    for _ in range(levels):
        net = Sequential(net)
    return net


@pytest.mark.parametrize("make", [holds_itself, holds_itself_below, nested])
def test_what_needs_no_forward_works(make, tmp_path):
    net = make()
    assert net.parameter_count() == 6 and len(net.init(3).state_dict()) == 2
    assert "6 parameters" in net.summary() and repr(net).startswith("Sequential(") and "<table>" in net._repr_html_()
    assert net.train() is net
    gl.save(net, tmp_path / "m.safetensors")
    again = make()
    gl.load(again, tmp_path / "m.safetensors")
    assert all((again.state_dict()[name] == array).all() for name, array in net.state_dict().items())


@pytest.mark.parametrize("make", [holds_itself, holds_itself_below, nested])
def test_forward_is_an_error_of_one_line(make):
    net = make()
    for use in (
        lambda: net(gl.input("x", (4, 2))),
        lambda: gl.fit(net, (X, X), epochs=1, loss="mse"),
        lambda: gl.predict(net, X),
        lambda: gl.evaluate(net, (X, X), loss="mse"),
    ):
        with pytest.raises(GraphError, match="Sequential") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_levels_that_python_can_call():
    net = nested(100)
    gl.fit(net, (X, X), epochs=1, loss="mse")
    assert gl.predict(net, X).shape == (16, 2)


def test_the_order_of_paths():
    """Of a module first its own parameters, then those of its children."""
    net = Sequential(Sequential(Linear(2, 3), Linear(3, 4)), Linear(4, 5))
    net.own = gl.parameter(np.zeros(2, np.float32))
    names = [name for name, _, _ in net.named_stored()]
    assert names == ["own", *(f"{at}.{name}" for at in ("0.0", "0.1", "1") for name in ("weight", "bias"))]
