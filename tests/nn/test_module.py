"""Modules: names, initialisation, modes, sharing."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import gradloom as gl

nn = gl.nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = self.parameter((width,), lambda rng, shape: np.ones(shape))

    def forward(self, x):
        return x + self.fc2(gl.ops.relu(self.fc1(x))) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.blocks = [Block(6), Block(6)]
        self.heads = {"a": nn.Linear(6, 3)}

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x)


NAMES = [
    "stem.weight", "stem.bias", "blocks.0.scale", "blocks.0.fc1.weight", "blocks.0.fc1.bias", "blocks.0.fc2.weight",
    "blocks.0.fc2.bias", "blocks.1.scale", "blocks.1.fc1.weight", "blocks.1.fc1.bias", "blocks.1.fc2.weight",
    "blocks.1.fc2.bias", "heads.a.weight", "heads.a.bias",
]  # fmt: skip


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((12, 4)).astype(np.float32), rng.integers(0, 3, 12)


def test_names_of_nested_modules():
    net = Net()
    assert list(net.named_parameters()) == NAMES
    assert list(net.state_dict()) == NAMES
    assert net.parameter_count() == 4 * 6 + 6 + 2 * (6 + 2 * (36 + 6)) + 18 + 3
    assert [m.__class__.__name__ for m in net.modules()] == [
        "Net",
        "Linear",
        *["Block", "Linear", "Linear"] * 2,
        "Linear",
    ]


def test_every_nested_parameter_trains():
    net = Net().init(0)
    before = net.state_dict()
    trainer = gl.Trainer(net, "cross_entropy", accumulate=2)
    for _ in range(2):
        trainer.step(*data())
    for name, array in net.state_dict().items():
        assert (array != before[name]).any(), name
        assert np.isfinite(trainer.grad_acc(name)).all()


def test_nodes_are_named_by_their_path():
    from gradloom.graph.graph import reachable

    out = Net()(gl.input("x", (2, 4)))
    names = {n.name for n in reachable([out]) if n.op.name == "matmul"}
    assert names == {"stem", "blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "blocks.1.fc2", "heads.a"}
    with pytest.raises(gl.ShapeError, match=r"node stem at test_module\.py"):
        Net()(gl.input("x", (2, 5)))


def test_init_is_reproducible():
    a, b, c = Net().init(1), Net().init(1), Net().init(2)
    for name, array in a.state_dict().items():
        np.testing.assert_array_equal(array, b.state_dict()[name])
        if not name.endswith("scale"):
            assert (array != c.state_dict()[name]).any()


def test_parameters_have_streams_of_their_own():
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(5, 7)).init(0)
    assert (net[0].weight.numpy() != net[1].weight.numpy()).all()


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(nn.Linear(300, 200), 300), (nn.Conv2d(30, 40, (3, 5)), 450), (nn.Conv2d(3, 64, 1), 3)],
)
def test_bounds_are_those_of_pytorch(layer, fan_in):
    """Weights and biases U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    layer.init(0)
    bound = 1 / np.sqrt(fan_in)
    for array in (layer.weight.numpy(), layer.bias.numpy()):
        assert np.abs(array).max() <= bound
        assert np.abs(array).max() > 0.8 * bound
        assert abs(array.mean()) < 4 * bound / np.sqrt(3 * array.size)
    assert layer.weight.numpy().std() == pytest.approx(bound / np.sqrt(3), rel=0.15)


def test_constant_beginnings():
    for layer in (nn.BatchNorm(3), nn.LayerNorm(3), nn.RMSNorm(3)):
        for name, array in layer.state_dict().items():
            np.testing.assert_array_equal(array, 1 if name in ("weight", "running_var") else 0)
    embedding = nn.Embedding(100, 50).init(0).weight.numpy()
    assert embedding.std() == pytest.approx(1, abs=0.05) and abs(embedding.mean()) < 0.05


def test_a_fit_draws_by_its_seed_and_only_once():
    x, y = data()
    options = {"optimizer": gl.optim.SGD(lr=0.0), "batch_size": 4, "progress": False}
    net = Net()
    gl.fit(net, (x, y), seed=5, **options)
    expected = Net().init(5).state_dict()
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, expected[name])
    gl.fit(net, (x, y), seed=6, **options)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, expected[name])


def test_what_was_assigned_is_not_drawn_anew():
    """A pretrained part under a new head keeps its weights."""
    net = Net()
    net.stem.load_state_dict({"weight": np.full((6, 4), 0.5), "bias": np.arange(6.0)})
    net.blocks[1].scale.assign(np.full(6, 7.0))
    gl.fit(net, data(), optimizer=gl.optim.SGD(lr=0.0), batch_size=4, seed=3, progress=False)
    state = net.state_dict()
    np.testing.assert_array_equal(state["stem.weight"], 0.5)
    np.testing.assert_array_equal(state["stem.bias"], np.arange(6))
    np.testing.assert_array_equal(state["blocks.1.scale"], 7)
    np.testing.assert_array_equal(state["heads.a.weight"], Net().init(3).state_dict()["heads.a.weight"])


def test_a_call_draws_what_was_never_drawn():
    """Also inside a scope of the caller's."""
    x = data()[0]
    with gl.scope("encoder"):
        out = Net()(gl.input("x", (12, 4)))
    found = gl.compile(out)(x=x)[0]
    np.testing.assert_array_equal(found, gl.predict(Net().init(0), x))


X = np.ones((3, 4), np.float32)
READS = {
    "numpy": lambda net: net[0].weight.numpy(),
    "tensor": lambda net: gl.tensor(net[0].weight).numpy(),
    "tape": lambda net: (gl.tensor(X) @ net[0].weight.T).numpy(),
    "graph": lambda net: gl.compile(gl.input("x", (3, 4)) @ net[0].weight.T)(x=X),
    "reference": lambda net: gl.compile(gl.input("x", (3, 4)) @ net[0].weight.T, backend="numpy")(x=X),
    "forward alone": lambda net: gl.compile(net[0].forward(gl.input("x", (3, 4))))(x=X),
}


@pytest.mark.parametrize("how", ["new", "deepcopy", "pickle"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_weights_are_not_read_before_they_are_drawn(read, how):
    """Streams are numbered over the whole model, so a part cannot be drawn by a read of it."""
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    net = {
        "new": lambda: net,
        "deepcopy": lambda: copy.deepcopy(net),
        "pickle": lambda: pickle.loads(pickle.dumps(net)),
    }[how]()
    with pytest.raises(gl.GraphError, match=r"^parameter weight: read before it has numbers; need init\(seed\) "):
        read(net)
    net.init(3)
    drawn = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)).init(3)
    np.testing.assert_array_equal(read(net), read(drawn))


def test_what_is_not_drawn_may_be_assigned_and_loaded():
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    net[0].weight.assign(np.arange(8.0).reshape(2, 4))
    np.testing.assert_array_equal(net[0].weight.numpy(), np.arange(8).reshape(2, 4))
    with pytest.raises(gl.ShapeError):
        net[0].bias.assign([1, 2, 3])
    with pytest.raises(gl.GraphError, match="bias: read before it has numbers"):
        net[0].bias.numpy()
    state = net.state_dict()  # draws the others
    other = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    other.load_state_dict(state)
    np.testing.assert_array_equal(other[1].weight.numpy(), net[1].weight.numpy())
    assert net[1].weight.numpy().any()


def test_a_part_called_on_its_own_keeps_its_name():
    net = Net().init(0)
    trainer = gl.Trainer(net, "cross_entropy", accumulate=2)
    trainer.step(*data())
    gl.predict(net.stem, data()[0])
    assert trainer.grad_acc("stem.weight").shape == (6, 4)


def test_shared_modules_count_once():
    """Tied weights: one parameter, one update with the sum of both gradients."""
    shared = nn.Linear(4, 4)
    net = nn.Sequential(shared, nn.Tanh(), shared).init(0)
    assert list(net.named_parameters()) == ["0.weight", "0.bias"]
    assert list(net.state_dict()) == ["0.weight", "0.bias"]
    x = data()[0]
    w, b = (net[0].weight.numpy().astype(float), net[0].bias.numpy().astype(float))
    gl.Trainer(net, "mean", gl.optim.SGD(lr=1.0)).step(x)
    h = np.tanh(x @ w.T + b)
    g = np.full((12, 4), 1 / 48)
    back = (g @ w) * (1 - h * h)
    np.testing.assert_allclose(net[0].weight.numpy(), w - (g.T @ h + back.T @ x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net[0].bias.numpy(), b - (g.sum(0) + back.sum(0)), rtol=1e-5, atol=1e-6)


def test_modes():
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm(4)))
    assert all(m.training for m in net.modules())
    assert net.eval() is net and not any(m.training for m in net.modules())
    net.train()
    assert all(m.training for m in net.modules())


def test_training_leaves_the_modes_as_they_were():
    """fit trains a model that is in eval mode, too; a part that is kept in eval mode keeps its statistics."""
    x, y = data()
    net = nn.Sequential(nn.BatchNorm(4), nn.Linear(4, 3)).init(0).eval()
    gl.fit(net, (x, y), batch_size=4, progress=False)
    assert not any(m.training for m in net.modules())
    assert (net[0].running_mean.numpy() != 0).all()
    net = nn.Sequential(nn.BatchNorm(4), nn.Linear(4, 3)).init(0)
    net[0].eval()
    gl.fit(net, (x, y), batch_size=4, val_split=0.5, progress=False)
    assert (net.training, net[0].training, net[1].training) == (True, False, True)
    np.testing.assert_array_equal(net[0].running_mean.numpy(), 0)


def test_buffers_do_not_train():
    net = nn.Sequential(nn.Standardize([1, 2, 3, 4], [2, 2, 2, 2]), nn.Linear(4, 3)).init(0)
    assert list(net.named_buffers()) == ["0.mean", "0.scale"]
    gl.fit(net, data(), batch_size=4, progress=False)
    np.testing.assert_array_equal(net[0].mean.numpy(), [1, 2, 3, 4])
    np.testing.assert_array_equal(net[0].scale.numpy(), 0.5)
    x = np.float32([[3, 2, 1, 0]])
    np.testing.assert_allclose(gl.predict(nn.Sequential(net[0]), x), [[1, 0, -1, -2]])


def test_what_is_refused():
    class Unassigned(nn.Module):
        def __init__(self):
            super().__init__()
            self.ws = {self.parameter((2,), lambda rng, shape: np.zeros(shape))}

    for build, kind, message in (
        (lambda: nn.Linear(0, 3), gl.ShapeError, "Linear: n_in=0"),
        (lambda: nn.Linear(3, 2.5), gl.ShapeError, r"Linear: n_out=2\.5"),
        (
            lambda: nn.Linear(3, 2, activation="rely"),
            gl.SettingError,
            "activation: 'rely' is not known; must be one of relu",
        ),
        (lambda: nn.Conv2d(1, 0, 3), gl.ShapeError, "Conv2d: channels_out=0"),
        (lambda: nn.Dropout(1.0), gl.SettingError, r"Dropout: rate=1\.0: must be"),
        (lambda: nn.Dropout(-0.1), gl.SettingError, r"rate=-0\.1"),
        (lambda: nn.Standardize([0], [0]), gl.SettingError, "need std > 0"),
        (lambda: nn.Sequential(nn.Linear(2, 2), gl.ops.relu), gl.GraphError, "Sequential: got"),
        (lambda: nn.Module()(gl.input("x", (2,))), gl.GraphError, "Module has no forward"),
        (lambda: Unassigned().state_dict(), gl.GraphError, r"need self\.name = self\.parameter"),
        (lambda: nn.Flatten()(gl.input("x", (2, 3))).reshape(7), gl.ShapeError, "reshape"),
        (lambda: nn.Unflatten(1, (2, 2))(gl.input("x", (2, 3))), gl.ShapeError, "reshape"),
        (lambda: nn.Unflatten(True, (2, 2)), gl.SettingError, r"Unflatten: dim=True: must be a whole number"),
        (
            lambda: nn.Unflatten(-3, (2, 2))(gl.input("x", (2, 4))),
            gl.ShapeError,
            r"Unflatten: axis -3 does not exist: f32\[2,4\]; need an axis from -2 to 1",
        ),
        (lambda: nn.Permute((0, 2)), gl.SettingError, r"Permute: dims=\(0, 2\): must be each axis once"),
    ):
        with pytest.raises(kind, match=message):
            build()


def test_axes():
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    there = nn.Sequential(nn.Unflatten(1, (2, 2, 3)), nn.Permute((0, 3, 1, 2)))
    np.testing.assert_array_equal(gl.predict(there, x), x.reshape(2, 2, 2, 3).transpose(0, 3, 1, 2))
    last = nn.Unflatten(-1, (3, 2))
    np.testing.assert_array_equal(gl.predict(last, x.reshape(2, 2, 6)), x.reshape(2, 2, 3, 2))


def test_one_batch_norm_at_two_places_is_refused():
    norm = nn.BatchNorm(4)
    with pytest.raises(gl.GraphError, match="BatchNorm: one module at two places"):
        gl.fit(nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 3)), data(), batch_size=4, progress=False)
    assert gl.predict(nn.Sequential(norm, norm), data()[0]).shape == (12, 4)


def test_a_model_may_be_a_pair_of_values():
    x, y = data()
    net = nn.Linear(4, 3).init(0)
    leaf = gl.input("x", (6, 4))
    pair = (leaf, net(leaf))
    history = gl.fit(pair, (x, y), batch_size=6, progress=False, optimizer=gl.optim.SGD(lr=0.1))
    twin = nn.Linear(4, 3).init(0)
    expected = gl.fit(twin, (x, y), batch_size=6, progress=False, optimizer=gl.optim.SGD(lr=0.1))
    assert history[-1].train.loss == expected[-1].train.loss
    np.testing.assert_array_equal(net.weight.numpy(), twin.weight.numpy())
    with pytest.raises(gl.ShapeError, match=r"the batch is f32\[6,3\]; the graph's input x is f32\[6,4\]"):
        gl.fit(pair, (x[:, :3], y), batch_size=6, progress=False)


def test_forward_takes_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x, y, *, scale=1.0):
            return self.fc(x) * scale, self.fc(x=y)

    net = Two().init(0)
    x, y = data()[0][:6], data()[0][6:]
    outs = net(gl.input("x", (6, 4)), gl.input("y", (6, 4)), scale=2.0)
    first, second = gl.compile(list(outs))(x=x, y=y)
    np.testing.assert_array_equal(first, 2 * gl.predict(net.fc, x))
    np.testing.assert_array_equal(second, gl.predict(net.fc, y))
    with pytest.raises(TypeError, match="forward"):
        net(gl.input("x", (6, 4)))


def test_what_is_added_after_a_call_is_drawn_and_named():
    """A list grows without an assignment, with a module that was made before the first call."""
    from gradloom.graph.graph import reachable

    late = nn.Linear(6, 6)
    net = nn.Sequential(nn.Linear(4, 6))
    x = gl.input("x", (2, 4))
    net(x)
    net.layers.append(late)
    assert late.weight.stored.version == 0
    names = [n.name for n in reachable([net(x)]) if n.op.name == "matmul"]
    assert names == ["0", "1"] and late.weight.stored.version == 1
    np.testing.assert_array_equal(late.weight.numpy(), net.init(0)[1].weight.numpy())
    net.layers.insert(0, nn.Linear(4, 4))
    names = [n.name for n in reachable([net(x)]) if n.op.name == "matmul"]
    assert names == ["0", "1", "2"]
    net.layers[0], net.layers[1] = nn.Linear(4, 4), nn.Linear(4, 6)
    names = [n.name for n in reachable([net(x)]) if n.op.name == "matmul"]
    assert names == ["0", "1", "2"]
    net.head = nn.Linear(6, 2)
    assert net.layers[0].weight.stored.version == 1 and net.head.weight.stored.version == 0
    net(x)
    assert net.head.weight.stored.version == 1  # an attribute beside the layers is a child, too
    net.layers = [net.head, nn.Linear(2, 2)]
    names = [n.name for n in reachable([net(gl.input("x", (2, 6)))]) if n.op.name == "matmul"]
    assert names == ["0", "1"] and net.head.weight.stored.version == 1


def test_two_dropouts_that_change_places_keep_masks_of_their_own():
    net = nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.5))

    def streams():
        from gradloom.graph.graph import reachable
        from gradloom.graph.streams import fresh_streams

        with fresh_streams():
            out = net(gl.input("x", (2, 4)))
        return [n.attrs["stream"] for n in reachable([out]) if n.op.name == "dropout"]

    first = streams()
    assert len(set(first)) == 2 and streams() == first
    net.layers.insert(0, nn.Dropout(0.5))
    assert len(set(streams())) == 3


def test_a_module_from_elsewhere_is_drawn_by_its_first_call():
    class Borrower(nn.Module):
        def forward(self, x):
            return lent(x)

    lent = nn.Linear(4, 3)
    net = Borrower()
    x = data()[0]
    out = gl.compile(net(gl.input("x", x.shape)))(x=x)[0]
    assert lent.weight.stored.version == 1
    np.testing.assert_array_equal(out, gl.predict(nn.Linear(4, 3).init(0), x))


def test_a_failed_forward_leaves_nothing_behind():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("not today")

    from gradloom.graph.scope import current_scope

    for net in (Fails(), nn.Sequential(nn.Linear(4, 4), Fails())):
        with pytest.raises(ValueError, match="not today"):
            net(gl.input("x", (2, 4)))
        assert current_scope() == ""
        assert nn.Linear(4, 3)(gl.input("x", (2, 4))).name == ""


def test_nested_calls_look_nothing_up_twice(monkeypatch):
    """What a call costs must not grow with the tree: the second call walks no children."""
    net = Net()
    x = gl.input("x", (2, 4))
    net(x)
    monkeypatch.setattr(nn.Module, "children", lambda self: pytest.fail("walked the tree"))
    net(x)


def zoo():
    return nn.Sequential(
        nn.Standardize([1, 2, 3, 4], [2, 2, 2, 2]), nn.Linear(4, 6, activation="gelu"), nn.BatchNorm(6), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(6, 6, bias=False), nn.LayerNorm(6), nn.RMSNorm(6), nn.Softmax(), nn.Linear(6, 3),
    )  # fmt: skip


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_of_a_model_go_their_own_way(how, fitted):
    x, y = data()
    options = {"epochs": 2, "batch_size": 4, "progress": False}
    net = zoo()
    if fitted:
        gl.fit(net, (x, y), **options)
    made = copy.deepcopy(net) if how == "deepcopy" else pickle.loads(pickle.dumps(net))
    assert list(made.state_dict()) == list(net.state_dict())
    assert [type(m).__name__ for m in made.modules()] == [type(m).__name__ for m in net.modules()]
    np.testing.assert_array_equal(gl.predict(made, x), gl.predict(net, x))
    before = net.state_dict()
    gl.fit(made, (x, y), **options)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    expected = made.state_dict()
    gl.fit(net, (x, y), **options)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, expected[name])


def test_shared_parts_stay_shared_in_a_copy():
    shared = nn.Linear(4, 4)
    net = copy.deepcopy(nn.Sequential(shared, nn.Tanh(), shared)).init(0)
    assert net[0] is net[2] and list(net.named_parameters()) == ["0.weight", "0.bias"]
    assert net[0].weight is not shared.weight


def test_a_pickle_goes_to_another_process(tmp_path):
    """Node numbers of the process that it comes from mean nothing there."""
    x, y = data()
    net = zoo()
    gl.fit(net, (x, y), epochs=1, batch_size=4, progress=False)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps((net, x, y, gl.predict(net, x))))
    code = f"""
import pickle, numpy as np
net, x, y, expected = pickle.load(open({str(tmp_path / "model.pickle")!r}, "rb"))
import gradloom as gl
np.testing.assert_array_equal(gl.predict(net, x), expected)
net.train()
gl.fit(net, (x, y), epochs=1, batch_size=4, progress=False)
opt = gl.optim.SGD(net.parameters(), lr=0.1)
with gl.grad_tape() as tape:
    loss = gl.ops.cross_entropy(net(gl.tensor(x)), gl.tensor(y))
opt.step(tape.backward(loss))
print(float(loss) > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True"], done.stderr
