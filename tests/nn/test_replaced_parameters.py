"""What looks like an update of a parameter and would be none."""

import numpy as np
import pytest

import gradloom as gl


def test_a_parameter_is_not_replaced_by_numbers():
    net = gl.nn.Sequential(gl.nn.Linear(3, 2))
    net.init(0)
    for other in (np.zeros((2, 3), np.float32), 0.5, gl.tensor(np.zeros((2, 3))), net[0].weight * 2.0):
        with pytest.raises(gl.DTypeError, match="weight.assign"):
            net[0].weight = other
    assert sorted(net.named_parameters()) == ["0.bias", "0.weight"]
    net[0].weight = gl.parameter(np.ones((2, 3)))
    net[0].bias = None
    assert list(net.named_parameters()) == ["0.weight"]


@pytest.mark.parametrize("op", ["-=", "+=", "*=", "/="])
def test_an_augmented_assignment_names_assign(op):
    p = gl.parameter([1.0, 2.0], name="p")
    with pytest.raises(gl.GraphError, match=r"p\.assign"):
        exec(f"p {op} 2.0", {"p": p})
    assert p.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("make", [
    lambda pair: gl.data.Dataset(pair), lambda pair: gl.data.DataLoader(pair, batch_size=2),
    lambda pair: gl.predict(gl.nn.Linear(3, 3), pair),
])  # fmt: skip
def test_a_pair_of_arrays_is_no_array_of_two_rows(make):
    with pytest.raises((gl.ShapeError, gl.DataError), match="a tuple of 2 arrays"):
        make((np.zeros((4, 3), np.float32), np.ones((4, 3), np.float32)))
