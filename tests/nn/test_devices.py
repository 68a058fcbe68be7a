"""Module.to and gl.device: what is said of modules and nodes, and who hears it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.graph import reachable
from gradloom.graph.value import Value
from gradloom.transform.passes import rewrite
from gradloom.transform.place import place
from gradloom.transform.program import gather


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def devices_of(*values: Value) -> dict[str, set[str]]:
    """op -> devices of a placed program."""
    made = place(rewrite(gather(values)), ("gpu", "cpu"), lambda device, node: True)
    found: dict[str, set[str]] = {}
    for node in made.program.nodes:
        if node in made.device and node not in made.copies():
            found.setdefault(node.op.name, set()).add(made.device[node])
    return found


def test_a_module_runs_where_it_is_said_to_with_its_gradients_and_arrays() -> None:
    net = mlp()
    assert net.to("cpu") is net
    net.layers[4].to("gpu")
    assert {name: p.stored.device for name, p in net.named_parameters().items()} == {
        "0.weight": "cpu", "0.bias": "cpu", "2.weight": "cpu", "2.bias": "cpu", "4.weight": "gpu", "4.bias": "gpu",
    }  # fmt: skip
    loss = ops.sum(ops.exp(net(gl.input("x", (5, 4)))))
    gradients = gl.gradients(loss, net.parameters())
    made = place(rewrite(gather([loss, *[g for g in gradients if g is not None]])), ("gpu", "cpu"), lambda d, n: True)
    where = [made.device[v.node] for v in made.program.outputs]
    assert where == ["gpu", "cpu", "cpu", "cpu", "cpu", "gpu", "gpu"]
    assert len(made.copies()) == 2
    net.to(None)
    assert all(p.stored.device is None for p in net.parameters())
    assert all(n.device is None for n in reachable([net(gl.input("x", (5, 4)))]))


def test_a_layer_without_arrays_is_said_too() -> None:
    net = nn.Sequential(nn.ReLU(), nn.GELU())
    net.to("cpu")
    net.layers[1].to("gpu")
    found = devices_of(net(gl.input("x", (5, 4))))
    assert found["relu"] == {"cpu"} and found["gelu"] == {"gpu"}


def test_device_covers_nodes_and_arrays_and_the_innermost_counts() -> None:
    x = gl.input("x", (5, 4))
    with gl.device("cpu"):
        w = gl.parameter(np.ones((4, 3)))
        layer = nn.Linear(4, 3)
        a = ops.exp(x)
        with gl.device("gpu:0"):
            b = ops.log(x)
        with gl.device(None):
            c = ops.sin(x)
        net = nn.Sequential(nn.Linear(4, 3))
    assert (w.stored.device, layer.weight.stored.device, net.parameters()[0].stored.device) == ("cpu", "cpu", "cpu")
    assert (a.node.device, b.node.device, c.node.device, ops.exp(x).node.device) == ("cpu", "gpu", None, None)
    net.to("gpu")
    with gl.device("cpu"):
        assert net(x).node.device == "gpu"


def test_what_is_no_name_is_refused() -> None:
    for bad in (3, "", ["gpu"]):
        with pytest.raises(gl.SettingError, match=r"to: device=.* is not usable; need a name, such as 'cpu' or 'gpu'"):
            mlp().to(bad)  # type: ignore[arg-type]
        with pytest.raises(gl.SettingError, match="device: device="), gl.device(bad):  # type: ignore[arg-type]
            pass


def test_copies_of_a_module_keep_what_is_said_and_pickles_too() -> None:
    net = mlp().to("cpu")
    net.layers[2].to("gpu")
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        nodes = [n for n in reachable([other(gl.input("x", (5, 4)))]) if n.op.name == "matmul"]
        assert [n.device for n in nodes] == ["cpu", "gpu", "cpu"]
        assert [p.stored.device for p in other.parameters()] == ["cpu"] * 2 + ["gpu"] * 2 + ["cpu"] * 2


def test_what_is_said_is_no_part_of_a_saved_model(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 4)).astype(np.float32), (np.arange(20) % 3).astype(np.int32)
    net = mlp()
    gl.fit(net, (x, y), progress=False)
    gl.save(net, tmp_path / "plain.safetensors")
    gl.save(net.to("gpu"), tmp_path / "said.safetensors")
    assert (tmp_path / "plain.safetensors").read_bytes() == (tmp_path / "said.safetensors").read_bytes()


def test_eager_ops_have_one_device_that_of_their_tape() -> None:
    net = mlp().to("gpu")
    assert net(gl.tensor(np.ones((2, 4), np.float32))).numpy().shape == (2, 3)
    with (
        gl.device("gpu"),
        pytest.raises(gl.SettingError, match="is for nodes of a graph, and this is computed eagerly"),
    ):
        ops.exp(gl.tensor(np.ones(3, np.float32)))
