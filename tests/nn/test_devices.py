"""Module.to and gl.device: what is said of modules and nodes, and who hears it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.graph import reachable
from gradloom.graph.value import Value
from gradloom.transform.passes import rewrite
from gradloom.transform.place import place
from gradloom.transform.program import gather
from tests.plan.devices import DEVICES, registered
from tests.refused import refused


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    with registered():
        yield


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def devices_of(*values: Value) -> dict[str, set[str]]:
    """op -> devices of a placed program."""
    made = place(rewrite(gather(values)), DEVICES[::-1], lambda device, node: True)
    found: dict[str, set[str]] = {}
    for node in made.program.nodes:
        if node in made.device and node not in made.copies():
            found.setdefault(node.op.name, set()).add(made.device[node])
    return found


def test_a_module_runs_where_it_is_said_to_with_its_gradients_and_arrays() -> None:
    net = mlp()
    assert net.to("cpu1") is net
    net.layers[4].to("cpu2")
    assert {name: p.stored.device for name, p in net.named_parameters().items()} == {
        "0.weight": "cpu1", "0.bias": "cpu1", "2.weight": "cpu1", "2.bias": "cpu1",
        "4.weight": "cpu2", "4.bias": "cpu2",
    }  # fmt: skip
    loss = ops.sum(ops.exp(net(gl.input("x", (5, 4)))))
    gradients = gl.gradients(loss, net.parameters())
    made = place(rewrite(gather([loss, *[g for g in gradients if g is not None]])), ("cpu2", "cpu1"), lambda d, n: True)
    where = [made.device[v.node] for v in made.program.outputs]
    assert where == ["cpu2", "cpu1", "cpu1", "cpu1", "cpu1", "cpu2", "cpu2"]
    assert len(made.copies()) == 2
    net.to(None)
    assert all(p.stored.device is None for p in net.parameters())
    assert all(n.device is None for n in reachable([net(gl.input("x", (5, 4)))]))


def test_a_layer_without_arrays_is_said_too() -> None:
    net = nn.Sequential(nn.ReLU(), nn.GELU())
    net.to("cpu1")
    net.layers[1].to("cpu2")
    found = devices_of(net(gl.input("x", (5, 4))))
    assert found["relu"] == {"cpu1"} and found["gelu"] == {"cpu2"}


def test_device_covers_nodes_and_arrays_and_the_innermost_counts() -> None:
    x = gl.input("x", (5, 4))
    with gl.device("cpu1"):
        w = gl.parameter(np.ones((4, 3)))
        layer = nn.Linear(4, 3)
        a = ops.exp(x)
        with gl.device("cpu2:0"):
            b = ops.log(x)
        with gl.device(None):
            c = ops.sin(x)
        net = nn.Sequential(nn.Linear(4, 3))
    assert (w.stored.device, layer.weight.stored.device, net.parameters()[0].stored.device) == ("cpu1", "cpu1", "cpu1")
    assert (a.node.device, b.node.device, c.node.device, ops.exp(x).node.device) == ("cpu1", "cpu2", None, None)
    net.to("cpu2")
    with gl.device("cpu1"):
        assert net(x).node.device == "cpu2"


def test_a_leaf_that_a_module_keeps_does_not_carry_a_device_to_the_next_model() -> None:
    x = gl.input("x", (2, 5, 8))
    for name in ("cpu1", "cpu2"):
        out = nn.MultiheadAttention(8, 2, causal=True).to(name)(x)
        assert {node.device for node in reachable([out])} == {name, None}


def test_what_is_no_name_is_refused() -> None:
    for bad in (3, "", ["gpu"]):
        with refused("device", need="a name, such as 'cpu' or 'gpu'", place="to"):
            mlp().to(bad)  # type: ignore[arg-type]
        with pytest.raises(gl.SettingError, match="device: device="), gl.device(bad):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("name", ["cuda", "nowhere:1", "cpu:1", "numpy", "gpu:77"])
def test_a_device_that_is_not_there_is_refused_at_the_call(name: str) -> None:
    """And the module is as it was. Where there is no adapter at all, what it needs is said."""
    net = mlp().to("cpu1")
    need = "runs whole programs" if name == "numpy" else "does not exist here"
    message = rf"device='{name}' {need}.*; use 'cpu' or (.* or )?'cpu1' or 'cpu2'|gpu.*: .* (need|use|run) "
    with pytest.raises(gl.SettingError, match=f"^to: ({message})") as caught:
        net.to(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(gl.SettingError, match=f"^device: ({message})"), gl.device(name):
        pytest.fail("not reached")
    assert {p.stored.device for p in net.parameters()} == {"cpu1"} and gl.ops.exp(
        gl.input("x", (2,))
    ).node.device is None


def test_copies_of_a_module_keep_what_is_said_and_pickles_too() -> None:
    net = mlp().to("cpu1")
    net.layers[2].to("cpu2")
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        nodes = [n for n in reachable([other(gl.input("x", (5, 4)))]) if n.op.name == "matmul"]
        assert [n.device for n in nodes] == ["cpu1", "cpu2", "cpu1"]
        assert [p.stored.device for p in other.parameters()] == ["cpu1"] * 2 + ["cpu2"] * 2 + ["cpu1"] * 2


def test_what_is_said_is_no_part_of_a_saved_model(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 4)).astype(np.float32), (np.arange(20) % 3).astype(np.int32)
    net = mlp()
    gl.fit(net, (x, y), progress=False)
    gl.save(net, tmp_path / "plain.safetensors")
    gl.save(net.to("cpu2"), tmp_path / "said.safetensors")
    assert (tmp_path / "plain.safetensors").read_bytes() == (tmp_path / "said.safetensors").read_bytes()


def test_eager_ops_have_one_device_that_of_their_tape() -> None:
    net = mlp().to("cpu2")
    assert net(gl.tensor(np.ones((2, 4), np.float32))).numpy().shape == (2, 3)
    with (
        gl.device("cpu2"),
        pytest.raises(gl.SettingError, match="is for nodes of a graph, and this is computed eagerly"),
    ):
        ops.exp(gl.tensor(np.ones(3, np.float32)))
