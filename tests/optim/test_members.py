"""Updates of stacks: each matrix and each member of an ensemble is stepped as if it were trained alone."""

import copy
import math
import pickle

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.optim import SGD, Adafactor, Adam, AdamW, Lion, Muon, RMSprop
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)).astype(np.float32)
IDS = RNG.integers(0, 3, 60).astype(np.int32)
MEMBERS = 4


def ensemble(members: int = MEMBERS) -> nn.Ensemble:
    layers = (
        nn.Periodic(5, [0, 2, 3], frequencies=6, width=3, members=members),
        nn.MemberLinear(members, 14, 8, activation="relu"),
        nn.MemberLinear(members, 8, 3),
    )
    return nn.Ensemble(*layers, shortcut=5).init(1)


def parts(net: nn.Ensemble, m: int) -> dict[str, np.ndarray]:
    """The arrays of member m."""
    return {
        name: array.reshape(net.members, -1, *array.shape[1:])[m].copy() for name, array in net.state_dict().items()
    }


def with_adamw(**settings):
    return Muon(groups=[{"match": "not_2d", "optimizer": AdamW(lr=0.01)}], **settings)


OPTIMIZERS = {
    "adamw": lambda: AdamW(lr=0.01, weight_decay=0.1),
    "adam": lambda: Adam(lr=0.01, weight_decay=0.1),
    "sgd": lambda: SGD(lr=0.1, momentum=0.9),
    "nesterov": lambda: SGD(lr=0.1, momentum=0.9, nesterov=True),
    "lion": lambda: Lion(lr=0.001),
    "adamw, 8 bits": lambda: AdamW(lr=0.01, weight_decay=0.1, state_bits=8),
    "lion, 8 bits": lambda: Lion(lr=0.001, state_bits=8),
    "rmsprop": lambda: RMSprop(lr=0.001, centered=True, momentum=0.5),
    "adafactor": lambda: Adafactor(lr=0.05, weight_decay=0.1),
    "muon": lambda: with_adamw(lr=0.02),
}
CLIPPED = {
    "plain": {},
    "max_norm": {"max_norm": 0.02},
    "max_value": {"max_value": 0.003},
    "both": {"max_norm": 0.02, "max_value": 0.003},
}


@pytest.fixture(autouse=True)
def small_parameters_in_8_bits(monkeypatch):
    """Otherwise only parameters of 4096 elements and more have such moments."""
    monkeypatch.setattr("gradloom.optim.moments.LEAST_SIZE", 1)


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("clipped", CLIPPED)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_labels_of_a_fold_change_no_bit_of_the_member_that_leaves_it_out(kind, clipped, accumulated):
    folds = gl.data.Dataset(X, IDS).in_folds(MEMBERS, 3).folds
    changed = np.where(folds == 0, (IDS + 1) % 3, IDS).astype(np.int32)
    nets = []
    for labels in (IDS, changed):
        net = ensemble()
        gl.fit(
            net, (X, labels), optimizer=OPTIMIZERS[kind](), epochs=3, batch_size=20, folds=MEMBERS, seed=3, ema=0.5,
            micro_batch_size=7 if accumulated else None, progress=False, **CLIPPED[clipped],
        )  # fmt: skip
        nets.append(net)
    before = ensemble()
    for m in range(MEMBERS):
        one, other, begun = (parts(net, m) for net in (*nets, before))
        same = [np.array_equal(one[name], other[name]) for name in one]
        assert all(same) if m == 0 else not any(same)
        assert not any(np.array_equal(one[name], begun[name]) for name in one)


def test_ranks_clip_each_member_too():
    def run(ranks):
        net = ensemble()
        gl.fit(net, (X, IDS), optimizer=SGD(lr=0.1), batch_size=20, micro_batch_size=5, max_norm=0.02, folds=2,
               parallel=ranks, progress=False)  # fmt: skip
        return {name: array.tobytes() for name, array in net.state_dict().items()}

    (one,) = on_ranks(1, run)
    assert on_ranks(2, run) == [one] * 2


@pytest.mark.parametrize("kind", ["sgd", "adafactor"])
def test_each_member_is_clipped_as_it_would_be_alone(kind):
    """A member's gradient is 1 / members of what it is alone: so are the bound and, of SGD, the step."""
    bound = 0.05
    net = ensemble()
    ones = [ensemble(1) for _ in range(MEMBERS)]
    for m, one in enumerate(ones):
        one.load_state_dict(parts(net, m))

    def optimizer(scale):
        return SGD(lr=0.1 * scale) if kind == "sgd" else Adafactor(lr=0.05, eps1=1e-12)

    settings = {"epochs": 2, "batch_size": 20, "progress": False}
    gl.fit(net, (X, IDS), optimizer=optimizer(MEMBERS), max_norm=bound / MEMBERS, **settings)
    for m, one in enumerate(ones):
        gl.fit(one, (X, IDS), optimizer=optimizer(1), max_norm=bound, **settings)
        mine = parts(net, m)
        for name, array in one.state_dict().items():
            np.testing.assert_allclose(mine[name], array, rtol=1e-4, atol=1e-6)


def by_numpy(w, grads, lr, momentum=0.95, decay=0.0, nesterov=True, steps=5, matched=False):
    """Muon's steps on one matrix in float64."""
    m = np.zeros_like(w)
    for g in grads:
        m = momentum * m + (1 - momentum) * g
        u = momentum * m + (1 - momentum) * g if nesterov else m
        x = u / max(np.linalg.norm(u), 1e-7)
        for _ in range(steps):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        rows, columns = w.shape
        scale = 0.2 * math.sqrt(max(rows, columns)) if matched else math.sqrt(max(1, rows / columns))
        w = w * (1 - lr * decay) - lr * scale * x
    return w


@pytest.mark.parametrize("shape", [(3, 6, 4), (2, 4, 9), (5, 3, 3), (1, 7, 2)])
@pytest.mark.parametrize(
    "more", [{}, {"weight_decay": 0.2, "nesterov": False, "ns_steps": 3}, {"adjust_lr_fn": "match_rms_adamw"}]
)
def test_muon_steps_each_matrix_of_a_stack(shape, more):
    begun = RNG.standard_normal(shape)
    scales = 10.0 ** RNG.integers(-3, 3, (shape[0], 1, 1))  # a norm over the whole stack would be that of the largest
    grads = [RNG.standard_normal(shape) * scales for _ in range(4)]
    w = gl.nn.stacked(gl.parameter(begun, name="w"), shape[1:])
    optimizer = Muon([w], lr=0.1, **more)
    for g in grads:
        with gl.grad_tape() as tape:
            loss = gl.ops.sum(gl.tensor(w) * gl.tensor(g.astype(np.float32)))
        optimizer.step(tape.backward(loss))
    told = {"decay": more.get("weight_decay", 0.0), "nesterov": more.get("nesterov", True)}
    told |= {"steps": more.get("ns_steps", 5), "matched": "adjust_lr_fn" in more}
    for i in range(shape[0]):
        expected = by_numpy(begun[i].astype(np.float32).astype(np.float64), [g[i] for g in grads], 0.1, **told)
        np.testing.assert_allclose(w.numpy()[i], expected, rtol=2e-4, atol=2e-5)


def test_muon_trains_the_matrices_of_a_table():
    from gradloom.tables.perceptron import optimizer_for

    ends = []
    for lr in (0.02, 0.5):
        net = ensemble()
        gl.fit(net, (X, IDS), optimizer=optimizer_for(net, "muon", lr, 10), batch_size=20, progress=False)
        ends.append(net.state_dict())
    matrices = {"0.weight", "1.weight", "2.weight", "shortcut.weight"}
    assert {name for name in ends[0] if not np.array_equal(ends[0][name], ends[1][name])} >= matrices
    first = {"0.coefficients", "0.phases", "0.bias", "1.bias", "2.bias", "shortcut.bias"}
    net = ensemble()
    state = gl.Trainer(net, optimizer=with_adamw()).optimizer_state
    assert {name for name, p in net.named_parameters().items() if state.rule_of(p) is not state.optimizer} == first


def test_no_decay_spares_the_biases_of_members():
    net = ensemble()
    optimizer = SGD(lr=1.0, weight_decay=0.5, no_decay="norms_and_biases")
    gl.Trainer(net, optimizer=optimizer).step(X[:6], np.full(6, -100, np.int32))  # no row counts: decay alone
    begun = ensemble().state_dict()
    decayed = {name for name, array in net.state_dict().items() if np.array_equal(array, begun[name] * np.float32(0.5))}
    assert decayed == {"0.weight", "1.weight", "2.weight", "shortcut.weight"}


def test_copies_are_stacks_too():
    net = ensemble()
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        for p, own in zip(made.parameters(), net.parameters(), strict=True):
            assert p.stored.stack == own.stored.stack is not None


@pytest.mark.parametrize(
    ("shape", "one", "members"), [((3, 4, 5), (4, 4), 1), ((3, 4, 5), (4, 5), 2), ((), (), 1), ((6, 4), (5,), 1)]
)
def test_what_is_no_stack_is_refused(shape, one, members):
    with pytest.raises(gl.ShapeError, match="stacked"):
        nn.stacked(gl.parameter(np.zeros(shape)), one, members)
    with pytest.raises(gl.SettingError, match="members"):
        nn.stacked(gl.parameter(np.zeros((3, 4))), (4,), 0)


def test_muon_names_an_array_that_is_no_stack():
    w = gl.parameter(np.ones((2, 3, 3)), name="kernel")
    with pytest.raises(gl.SettingError, match="kernel"):
        gl.Trainer(lambda x: x * gl.ops.sum(w), "sum", Muon()).step([X[:2]])


@pytest.mark.parametrize("sizes", [(2, 8), (8, 2)])
def test_muon_scales_the_layer_of_a_member_as_the_same_linear_layer(sizes):
    n_in, n_out = sizes
    x, y = np.float32(np.random.default_rng(0).standard_normal((16, n_in))), np.zeros((16, n_out), np.float32)
    alone, one = nn.Linear(n_in, n_out), nn.Ensemble(nn.MemberLinear(1, n_in, n_out), average="outputs")
    alone.init(0)
    one.init(0)
    member = next(layer for layer in one.modules() if isinstance(layer, nn.MemberLinear))
    member.weight.assign(alone.weight.numpy().T[None])
    member.bias.assign(alone.bias.numpy()[None, None])
    before = alone.weight.numpy()
    for net in (alone, one):
        gl.fit(net, (x, y), loss="mse", optimizer=with_adamw(lr=0.1), batch_size=16, progress=False)
    step, of_member = alone.weight.numpy() - before, member.weight.numpy()[0].T - before
    np.testing.assert_allclose(of_member, step, rtol=2e-4, atol=2e-6)
