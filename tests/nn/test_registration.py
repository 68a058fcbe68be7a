"""What a module registers: every parameter that its attributes hold, at any depth; what it cannot find is said."""

import copy
import pickle

import numpy as np
import pytest

import gradloom as gl

nn = gl.nn
RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 4)).astype(np.float32)
Y = RNG.standard_normal((24, 3)).astype(np.float32)


class Scaled(nn.Module):
    """Parameters by gl.parameter and self.parameter, in attributes, lists, tuples, dicts, and dicts of lists."""

    def __init__(self):
        super().__init__()
        self.scale = gl.parameter(np.full(3, 2.0))
        self.shifts = [gl.parameter(np.zeros(3)), (gl.parameter(np.ones(3)), self.parameter((3,), nn.initial.normal()))]
        self.towers = {"a": [nn.Linear(4, 3), [nn.Linear(3, 3)]], "b": {"c": (nn.Linear(3, 3),)}}
        self.fixed = gl.parameter(np.full(3, 0.5), trainable=False)

    def forward(self, x):
        first, (second,) = self.towers["a"]
        x = self.towers["b"]["c"][0](second(first(x))) * self.scale
        return x + self.shifts[0] + self.shifts[1][0] * self.shifts[1][1] + self.fixed


NAMES = [
    "scale", "shifts.0", "shifts.1.0", "shifts.1.1",
    *(f"towers.{path}.{kind}" for path in ("a.0", "a.1.0", "b.c.0") for kind in ("weight", "bias")),
]  # fmt: skip


def test_names_are_paths_through_nested_containers():
    net = Scaled()
    assert list(net.named_parameters()) == NAMES
    assert list(net.named_buffers()) == ["fixed"]
    assert net.parameter_count() == 3 * 4 + (4 * 3 + 3) + 2 * (9 + 3)
    assert [name for name, _ in net.children()] == ["towers.a.0", "towers.a.1.0", "towers.b.c.0"]
    assert len(list(net.modules())) == 4


@pytest.mark.parametrize("how", ["fit", "eager"])
def test_every_registered_parameter_trains(how):
    net = Scaled().init(0)
    before = net.state_dict()
    if how == "fit":
        gl.fit(net, (X, Y), loss="mse", optimizer=gl.optim.SGD(lr=0.1), batch_size=8, progress=False)
    else:
        opt = gl.optim.SGD(net.parameters(), lr=0.1)
        with gl.grad_tape() as tape:
            loss = gl.ops.mse(net(gl.tensor(X)), gl.tensor(Y))
        opt.step(tape.backward(loss))
    for name, array in net.state_dict().items():
        assert (array != before[name]).any() == (name != "fixed"), name


def test_registered_parameters_are_saved_and_loaded(tmp_path):
    net, other = Scaled().init(0), Scaled().init(1)
    net.scale.assign([1.0, 2.0, 3.0])
    gl.save(net, tmp_path / "net.safetensors")
    gl.load(other, tmp_path / "net.safetensors")
    np.testing.assert_array_equal(other.scale.numpy(), [1, 2, 3])
    np.testing.assert_array_equal(gl.predict(other, X), gl.predict(net, X))


def test_init_draws_what_has_an_initialisation_and_keeps_the_numbers_of_the_others():
    net = Scaled().init(0)
    drawn = net.shifts[1][1].numpy()
    net.init(1)
    assert (net.shifts[1][1].numpy() != drawn).any()
    np.testing.assert_array_equal(net.scale.numpy(), 2.0)


def test_copies_register_their_own():
    net = Scaled().init(0)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert list(twin.named_parameters()) == NAMES
        twin.init(3)
        assert twin.scale.stored is not net.scale.stored
        assert (twin.shifts[1][1].numpy() != net.shifts[1][1].numpy()).any()


def test_what_is_appended_later_is_registered():
    net = Scaled().init(0)
    net(gl.input("x", (2, 4)))
    net.shifts.append(net.parameter((2,), nn.initial.normal()))
    net.towers["late"] = [[nn.Linear(2, 2)]]
    assert list(net.named_parameters())[-2:] == ["towers.late.0.0.weight", "towers.late.0.0.bias"]
    net(gl.input("x", (2, 4)))
    net.ensure_init()
    assert net.shifts[-1].numpy().all() and net.towers["late"][0][0].weight.numpy().all()


def test_more_than_layers_in_a_sequential():
    class Wrapped(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(4, 3))
            self.scale, self.extra = gl.parameter(2.0), nn.Linear(3, 3)

        def forward(self, x):
            return self.extra(super().forward(x)) * self.scale

    assert list(Wrapped().named_parameters()) == ["scale", "0.weight", "0.bias", "extra.weight", "extra.bias"]


def test_a_module_that_holds_itself():
    net = nn.Linear(4, 3)
    net.parent = [net]
    loop = [net]
    loop.append(loop)
    net.loop = loop
    assert list(net.named_parameters()) == ["weight", "bias"]
    assert list(net.modules()) == [net]


def test_two_parameters_of_one_path_are_refused():
    net = nn.Module()
    net.held = {"a.b": gl.parameter(1.0), "a": {"b": gl.parameter(2.0)}}
    with pytest.raises(gl.GraphError, match=r"Module: two parameters are called held\.a\.b"):
        net.parameters()


def test_a_forgotten_super_init_is_said():
    class Before(nn.Module):
        def __init__(self):
            self.width = 4
            self.layer = nn.Linear(4, 3)
            super().__init__()

    class Nested(nn.Module):
        def __init__(self):
            self.blocks = {"a": [gl.parameter(1.0)]}

    class Own(nn.Module):
        def __init__(self):
            self.weight = self.parameter((3,), nn.initial.normal())

    class Plain(nn.Module):
        def __init__(self):
            self.width = 4

        def forward(self, x):
            return x

    class Fine(nn.Module):
        def __init__(self):
            self.width = 4
            super().__init__()
            self.layer = nn.Linear(self.width, 3)

    for kind in (Before, Nested, Own):
        with pytest.raises(gl.GraphError, match=rf"{kind.__name__}\.__init__ did not call super\(\)\.__init__\(\)"):
            kind()
    for use in (lambda net: net(gl.input("x", (2, 4))), lambda net: net.parameters(), lambda net: net.state_dict()):
        with pytest.raises(gl.GraphError, match=r"Plain\.__init__ did not call super\(\)\.__init__\(\)"):
            use(Plain())
        with pytest.raises(gl.GraphError, match=r"Plain\.__init__ did not call super\(\)\.__init__\(\)"):
            use(nn.Sequential(Plain()))
    assert list(Fine().named_parameters()) == ["layer.weight", "layer.bias"]
