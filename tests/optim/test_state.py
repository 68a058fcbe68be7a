"""An optimiser's state: one for trainers and loops; saved, loaded, and then as if nothing had been interrupted."""

import functools
import json

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import schedules

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)).astype(np.float32), RNG.integers(0, 3, 24)
KINDS = {
    "sgd": lambda p: gl.optim.SGD(p, lr=0.1),
    "momentum": lambda p: gl.optim.SGD(p, lr=schedules.Cosine(0.1, 30), momentum=0.9),
    "adam": lambda p: gl.optim.Adam(p, lr=schedules.Step(0.05, 2, by="epoch")),
    "adamw": lambda p: gl.optim.AdamW(p, lr=schedules.Plateau(0.05, 0.5, 0, threshold=0.5), weight_decay=0.1),
}


def net(seed=1):
    return gl.nn.Sequential(
        gl.nn.Linear(5, 8, activation="relu"), gl.nn.BatchNorm(8), gl.nn.Dropout(0.3), gl.nn.Linear(8, 3)
    ).init(seed)


def weights(model):
    return {k: v.copy() for k, v in model.state_dict().items()}


def same(a, b):
    return all(np.array_equal(a[k], b[k]) for k in a)


def fit(model, optimizer, epochs, **options):
    options = {"batch_size": 7, "seed": 5, "progress": False} | options
    return gl.fit(model, (X, Y), optimizer=optimizer, epochs=epochs, **options)


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_fit_is_an_uninterrupted_one(tmp_path, kind, suffix):
    """Bit for bit: moments, bias correction, schedules, dropout, the order of the rows; the numbers of epochs, too."""
    whole, first, second = net(), net(), net(9)
    a = KINDS[kind](whole.parameters())
    history = fit(whole, a, 6)
    b = KINDS[kind](first.parameters())
    early = fit(first, b, 2)
    gl.save(first, tmp_path / f"model.{suffix}")
    gl.save(b, tmp_path / f"optimizer.{suffix}")
    c = KINDS[kind](second.parameters())
    gl.load(second, tmp_path / f"model.{suffix}")
    gl.load(c, tmp_path / f"optimizer.{suffix}")
    late = fit(second, c, 4)
    assert same(weights(whole), weights(second))
    assert [h.epoch for h in (*early, *late)] == [h.epoch for h in history] == [1, 2, 3, 4, 5, 6]
    assert [h.train.loss for h in (*early, *late)] == [h.train.loss for h in history]
    assert c.steps == a.steps == 24 and c.epoch == 6 and same(a.state_dict(), c.state_dict())
    fresh = net(9)
    gl.load(fresh, tmp_path / f"model.{suffix}")
    fit(fresh, KINDS[kind](fresh.parameters()), 4)
    assert not same(weights(whole), weights(fresh))  # without the optimiser's file it is another run


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainers_state(tmp_path, kind):
    """The same for a trainer that keeps the state, before and after its first step; accumulating, too."""

    def make():
        model = net()
        return model, gl.Trainer(model, "cross_entropy", KINDS[kind](None), accumulate=2, seed=3)

    def train(trainer, first, last):
        for i in range(first, last):
            trainer.step(X[i : i + 6], Y[i : i + 6])
            trainer.step(X[i + 6 : i + 9], Y[i + 6 : i + 9])
        return trainer

    whole, trainer = make()
    train(trainer, 0, 8)
    first, early = make()
    train(early, 0, 4)
    gl.save(first, tmp_path / "m.safetensors")
    gl.save(early.optimizer_state, tmp_path / "o.safetensors")
    for steps_before in (0, 2):
        second, late = make()
        train(late, 0, steps_before)
        gl.load(second, tmp_path / "m.safetensors")
        gl.load(late.optimizer_state, tmp_path / "o.safetensors")
        assert late.steps == 4
        train(late, 4, 8)
        assert same(weights(whole), weights(second))


def test_a_function_models_state(tmp_path):
    """Parameters that are found when the first graph is built get what was loaded for them."""

    def make():
        w = gl.parameter(np.ones(3), name="w")
        return w, gl.Trainer(lambda x: x * w, "sum", gl.optim.SGD(lr=0.1, momentum=0.9))

    w, trainer = make()
    for _ in range(4):
        trainer.step(np.ones((1, 3)))
    v, early = make()
    early.step(np.ones((1, 3)))
    gl.save(early.optimizer_state, tmp_path / "o.safetensors")
    u, late = make()
    u.assign(v.numpy())
    gl.load(late.optimizer_state, tmp_path / "o.safetensors")
    assert set(late.optimizer_state.state_dict()) == {
        "steps",
        "epoch",
        "m.0",
        "optimizer",
    }  # saved before the first step: kept
    for _ in range(3):
        late.step(np.ones((1, 3)))
    np.testing.assert_array_equal(u.numpy(), w.numpy())


def test_names_and_dtypes():
    model = net()
    optimizer = gl.optim.AdamW(model.parameters(), lr=schedules.Plateau(0.1))
    assert {k: (v.dtype.name, v.shape) for k, v in optimizer.state_dict().items()} == {
        "steps": ("int64", ()), "epoch": ("int64", ()), "plateau.lr": ("float64", (4,)),
        "optimizer": ("int8", optimizer.state_dict()["optimizer"].shape),
    }  # fmt: skip
    fit(model, optimizer, 1)
    assert len(optimizer.state_dict()) == 4 + 2 * len(model.parameters())
    about = json.loads(optimizer.state_dict()["optimizer"].tobytes())
    assert about["kind"] == "AdamW" and about["keeps"] == ["m", "v"]
    assert about["parameters"] == [[name, list(p.shape)] for name, p in model.named_parameters().items()]


def parameters(*named):
    return [gl.parameter(np.ones(shape), name=name) for name, shape in named]


def stepped(optimizer):
    with gl.grad_tape() as tape:
        loss = sum(((p * p).sum() for p in optimizer.state.parameters[1:]), optimizer.state.parameters[0].sum())
    optimizer.step(tape.backward(loss))
    return optimizer


P, Q, A, B = ("p", 3), ("q", (2, 2)), ("a", 3), ("b", 3)
momentum = functools.partial(gl.optim.SGD, momentum=0.9)


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
@pytest.mark.parametrize(
    ("kind", "of", "other", "into", "message"),
    [
        (momentum, [P], gl.optim.Adam, [P], "the state is of SGD, this optimiser is Adam; the kinds must be equal"),
        (gl.optim.Adam, [P], momentum, [P], "the state is of Adam, this optimiser is SGD"),
        (gl.optim.Adam, [P], gl.optim.AdamW, [P], "the state is of Adam, this optimiser is AdamW"),
        (gl.optim.SGD, [P], momentum, [P], "the state is of SGD that keeps no moments, this one keeps m"),
        (momentum, [P], gl.optim.SGD, [P], "the state is of SGD that keeps m, this one keeps no moments"),
        (
            gl.optim.Adam,
            [P],
            gl.optim.Adam,
            [P, Q],
            r"of 1 parameters, .* has 2; parameter 1, q \[2, 2\], is in the opt",
        ),
        (
            gl.optim.Adam,
            [P, Q],
            gl.optim.Adam,
            [P],
            r"of 2 parameters, .* has 1; parameter 1, q \[2, 2\], is in the sta",
        ),
        (gl.optim.SGD, [P, Q], gl.optim.SGD, [P], "of 2 parameters, this optimiser has 1"),
        (gl.optim.Adam, [A, B], gl.optim.Adam, [B, A], r"parameter 0 is a \[3\] in the state and b \[3\] in this opt"),
        (gl.optim.Adam, [("w", 3)], gl.optim.Adam, [("other", 3)], r"parameter 0 is w \[3\] in the state and other"),
        (
            gl.optim.Adam,
            [("", 3)],
            gl.optim.Adam,
            [("", 4)],
            r"is \(no name\) \[3\] in the state and \(no name\) \[4\]",
        ),
    ],
)
def test_the_state_of_another_optimiser_is_refused(tmp_path, suffix, kind, of, other, into, message):
    path = tmp_path / f"o.{suffix}"
    gl.save(stepped(kind(parameters(*of))), path)
    optimizer = stepped(other(parameters(*into)))
    before = optimizer.state_dict()
    with pytest.raises(gl.GraphError, match=f"^load: .*{message}"):
        gl.load(optimizer, path)
    assert same(before, optimizer.state_dict()) and optimizer.steps == 1
    again = kind(parameters(*of))
    gl.load(again, path)
    assert same(again.state_dict(), stepped(kind(parameters(*of))).state_dict())


@pytest.mark.parametrize(("of", "into"), [("", "p"), ("p", ""), ("weight", "0.weight"), ("0.weight", "weight")])
def test_a_name_that_one_side_does_not_have_yet(of, into):
    """A module's parameters get their whole names when it is initialised, others perhaps never."""
    state = stepped(gl.optim.Adam(parameters((of, 3)))).state_dict()
    gl.optim.Adam(parameters((into, 3))).load_state_dict(state)


def test_a_state_without_what_it_is_of():
    """Files of before: held against the arrays."""
    state = {k: v for k, v in stepped(gl.optim.Adam(parameters(P, Q))).state_dict().items() if k != "optimizer"}
    gl.optim.Adam(parameters(P, Q)).load_state_dict(state)
    only_m = {k: v for k, v in state.items() if not k.startswith("v.")}
    with pytest.raises(gl.GraphError, match="load: m.0 without v.0: Adam keeps m, v of each parameter; need the state"):
        gl.optim.Adam(parameters(P, Q)).load_state_dict(only_m)
    with pytest.raises(gl.GraphError, match=r"load: optimizer is int8\[3\] without kind"):
        gl.optim.Adam(parameters(P, Q)).load_state_dict(state | {"optimizer": np.zeros(3, np.int8)})


def test_parameters_that_join_later_are_compared_then():
    w, v = parameters(("w", 3)), parameters(("v", 3))
    early = gl.Trainer(lambda x: x * w[0], "sum", momentum(lr=0.1))
    early.step(np.ones((1, 3)))
    late = gl.Trainer(lambda x: x * v[0], "sum", momentum(lr=0.1))
    late.optimizer_state.load_state_dict(early.optimizer_state.state_dict())
    assert same(late.optimizer_state.state_dict(), early.optimizer_state.state_dict())
    with pytest.raises(gl.GraphError, match=r"load: parameter 0 is w \[3\] in the state and v \[3\]"):
        late.step(np.ones((1, 3)))


def test_an_optimiser_with_parameters_trains_those():
    model = net()
    before = weights(model)
    fit(model, gl.optim.AdamW(list(model[3].parameters()), lr=0.1), 1)
    after = weights(model)
    changed = {k for k in after if not np.array_equal(before[k], after[k])}
    buffers = set(model.named_buffers())
    assert changed == {"3.weight", "3.bias", *buffers} and buffers


def test_fit_and_a_loop_take_turns():
    """One state: what fit accumulates is not left for the loop, and what the loop accumulated not for fit."""
    model = net()
    optimizer = gl.optim.SGD(model.parameters(), lr=0.1)

    def grads():
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
        return tape.backward(loss)

    for _ in range(2):
        fit(model, optimizer, 1, batch_size=12, micro_batch_size=4)
        optimizer.step(grads())
    assert optimizer.steps == 6
    optimizer.accumulate(grads())
    fit(model, optimizer, 1, batch_size=12, micro_batch_size=4)
    with pytest.raises(gl.GradientError, match="step: there are no gradients"):
        optimizer.step()


def saved(**change):
    model = net()
    optimizer = gl.optim.AdamW(model.parameters())
    fit(model, optimizer, 1)
    return {k: v for k, v in (optimizer.state_dict() | {"optimizer": None} | change).items() if v is not None}


@pytest.mark.parametrize(
    ("make", "arrays", "error", "message"),
    [
        ("sgd", {}, gl.GraphError, r"load: m.0, .*: not of this SGD, which keeps no moments of 6 parameters; need the"),
        ("momentum", {}, gl.GraphError, r"load: v.0, .* not of this SGD, which keeps m of 6 parameters"),
        ("adam", {"m.6": np.zeros(3, np.float32)}, gl.GraphError, r"load: m.6: not of this Adam"),
        ("adam", {"m.0": np.zeros(3, np.float32)}, gl.ShapeError, r"load: m.0 has shape \[3\]; need \[.*\], that of 0"),
        ("adam", {"m.0": np.zeros((5, 8), np.int32)}, gl.DTypeError, r"load: m.0 is int32; need f32"),
        ("adam", {"steps": None}, gl.GraphError, r"load: no 'steps' among 13 arrays; need the state of an optimiser"),
        ("adam", {"steps": np.array(-1)}, gl.SettingError, r"load: steps is int64\[\]; need a count"),
        ("adam", {"plateau.lr": np.zeros(4)}, gl.GraphError, r"load: plateau.lr: not of this Adam"),
        ("adamw", {}, gl.GraphError, r"load: no 'plateau.lr'; need the state of an optimiser with a Plateau for lr"),
        ("adamw", {"plateau.lr": np.zeros(3)}, gl.SettingError, r"load: plateau.lr is float64\[3\]; need f64\[4\]"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(make, arrays, error, message):
    model = net()
    optimizer = KINDS[make](model.parameters())
    fit(model, optimizer, 1)
    before = optimizer.state_dict()
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(saved(**arrays))
    assert same(before, optimizer.state_dict()) and before.keys() == optimizer.state_dict().keys()


@pytest.mark.parametrize("call", ["step", "zero_grad", "state_dict"])
def test_without_parameters_there_is_no_loop(call):
    message = rf"AdamW.{call}: it was made without parameters; need AdamW\(model.parameters\(\), lr=...\) for a loop"
    with pytest.raises(gl.GraphError, match=message):
        getattr(gl.optim.AdamW(), call)()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "parameters is empty; must have at least one"),
        (0.1, r"parameters is 0.1; must be a list of parameters, such as model.parameters\(\); lr is lr="),
        ({"a": 1}, r"parameters\['a'\] is an int; must be parameters"),
        ([1.0], r"parameters\[0\] is a float; must be parameters"),
        ([np.zeros(3)], r"parameters\[0\] is a ndarray"),
        ([gl.parameter(np.zeros(3), name="p", trainable=False)], r"parameters\[0\]: p is not trainable"),
    ],
)
def test_parameters_that_are_refused(parameters, message):
    with pytest.raises(gl.SettingError, match=message):
        gl.optim.SGD(parameters, lr=0.1)


def test_repr():
    assert repr(gl.optim.SGD([gl.parameter(np.zeros(3))] * 2, lr=0.1)) == (
        "SGD(1 parameters, lr=0.1, momentum=0.0, weight_decay=0.0)"
    )


@pytest.mark.parametrize(
    ("optimizer", "shape", "names"),
    [
        (gl.optim.AdamW(), (3, 2), {"v"}), (gl.optim.RMSprop(momentum=0.9, centered=True), (3, 2), {"v"}),
        (gl.optim.Adafactor(), (3, 2), {"r", "c"}), (gl.optim.Adafactor(), (3,), {"v"}),
        (gl.optim.Lion(), (3, 2), set()),
    ],
)  # fmt: skip
def test_an_average_of_squares_is_not_negative(optimizer, shape, names):
    made = gl.optim.OptimizerState(optimizer, [gl.parameter(np.ones(shape, np.float32))])
    kept = made.rules[0].shapes_of(shape)
    zero = {f"{name}.0": np.zeros(of, np.float32) for name, of in kept.items()}
    state = {**made.state_dict(), **zero}
    refused = set()
    for name, of in kept.items():
        changed = np.zeros(of, np.float32)
        changed.flat[-1] = -1e-3
        try:
            made.load_state_dict({**state, f"{name}.0": changed})
        except gl.SettingError as error:
            assert f"{name}.0" in str(error)
            refused.add(name)
    assert refused == names
