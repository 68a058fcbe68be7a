"""A bias correction counts the steps that a parameter itself has had, as torch.optim does (here in f64)."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import GraphError, SettingError
from gradloom.runs.state import TrainState, load_optimizer, of_optimizer
from tests.train.split_training import on_ranks

torch = pytest.importorskip("torch")

KINDS = ["Adam", "AdamW", "Adafactor"]
STEPS, RATE = 24, 0.01
RNG = np.random.default_rng(0)
W = RNG.standard_normal((2, 3)).astype(np.float32)
X = RNG.standard_normal((STEPS * 6, 3)).astype(np.float32)
Y = RNG.standard_normal((STEPS * 6, 2)).astype(np.float32)


def thawed(step):
    """Whether the bias is trained: late, then not for a while, then again."""
    return 10 <= step < 14 or step >= 18


def sometimes(step):
    return step % 7 == 3


def rows(step):
    return slice(step * 6, step * 6 + 6)


def model():
    made = gl.nn.Sequential(gl.nn.Linear(3, 2)).init(0)
    made[0].weight.assign(W)
    made[0].bias.assign(np.zeros(2, np.float32))
    return made


def optimizer(kind, parameters=None, **options):
    return getattr(gl.optim, kind)(parameters, lr=RATE, **options)


def torch_run(kind, trained, whole=False, ignores=False):
    """(weight, bias) after the steps of torch.optim. whole: all on the first rows; ignores: the loss of a step that
    does not train the bias does not depend on it."""
    w = torch.tensor(W, dtype=torch.float64, requires_grad=True)
    b = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    own = getattr(torch.optim, kind)([w, b], lr=RATE, weight_decay=0)
    x, y = torch.tensor(X, dtype=torch.float64), torch.tensor(Y, dtype=torch.float64)
    for step in range(STEPS):
        own.zero_grad()
        at = rows(0 if whole else step)
        used = 0 if ignores and not trained(step) else b
        ((x[at] @ w.T + used - y[at]) ** 2).mean().backward()
        if not trained(step):
            b.grad = None
        own.step()
    return w.detach().numpy(), b.detach().numpy()


def check(net, expected):
    for p, values in zip((net[0].weight, net[0].bias), expected, strict=True):
        assert np.abs(values).max() > 0
        np.testing.assert_allclose(p.numpy(), values, rtol=2e-5, atol=2e-7)


def eager_step(net, own, step):
    with gl.grad_tape() as tape:
        loss = gl.ops.mse(net(gl.tensor(X[rows(step)])), gl.tensor(Y[rows(step)]))
    own.step(tape.backward(loss))


@pytest.mark.parametrize("trained", [thawed, sometimes])
@pytest.mark.parametrize("kind", KINDS)
def test_eager(kind, trained):
    net = model()
    own = optimizer(kind, net.parameters())
    for step in range(STEPS):
        net[0].bias.trainable = trained(step)
        eager_step(net, own, step)
    check(net, torch_run(kind, trained))
    assert own.steps == STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_accumulated(kind):
    net = model()
    own = optimizer(kind, net.parameters())
    for step in range(STEPS):
        net[0].bias.trainable = thawed(step)
        for first in (step * 6, step * 6 + 3):
            with gl.grad_tape() as tape:
                loss = gl.ops.mse(net(gl.tensor(X[first : first + 3])), gl.tensor(Y[first : first + 3]))
            own.accumulate(tape.backward(loss), 1)
        own.step()
    check(net, torch_run(kind, thawed))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_trainer(kind, accumulate):
    net = model()
    trainer = gl.Trainer(net, "mse", optimizer(kind), accumulate=accumulate)
    for step in range(STEPS):
        net[0].bias.trainable = thawed(step)
        part = 6 // accumulate
        for k in range(accumulate):
            own = slice(step * 6 + k * part, step * 6 + (k + 1) * part)
            trainer.step(X[own], Y[own])
    check(net, torch_run(kind, thawed))


@pytest.mark.parametrize("micro", [6, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_fit(kind, micro):
    """Passes of one step on the same rows; the bias is thawed between passes."""
    net = model()
    net[0].bias.trainable = thawed(0)

    def thaw(result):
        net[0].bias.trainable = thawed(result.epoch)  # counts from 1: that of the next pass from 0

    gl.fit(
        net, (X[:6], Y[:6]), loss="mse", optimizer=optimizer(kind), epochs=STEPS, batch_size=6,
        micro_batch_size=micro, on_epoch=thaw, progress=False,
    )  # fmt: skip
    check(net, torch_run(kind, thawed, whole=True))


@pytest.mark.parametrize("kind", KINDS)
def test_dp_train(kind):
    """Steps in which no replica reaches the bias: their samples ask for none."""
    samples = [
        {"x": X[rows(step)], "y": Y[rows(step)], "many": np.zeros(1 + sometimes(step), np.float32)}
        for step in range(STEPS)
    ]

    def forward(net, sample):
        if sample["many"].size == 2:
            return net(sample["x"])
        return gl.ops.matmul(sample["x"], net[0].weight, transpose_y=True)

    result = gl.dp_train(
        model, [s for s in samples for _ in range(2)], loss_fn=gl.ops.mse, forward_fn=forward,
        target_fn=lambda sample: sample["y"], replicas=2, iterations=STEPS, optimizer=optimizer(kind),
    )  # fmt: skip
    check(result.models[0], torch_run(kind, sometimes, ignores=True))
    check(result.models[1], torch_run(kind, sometimes, ignores=True))


@pytest.mark.parametrize("count", [1, 2])
def test_ranks(count):
    """Batches split over ranks, each a thread: the bias is thawed on all of them."""

    def train(ranks):
        net, data = model(), gl.data.Dataset(X[:6], Y[:6])
        trainer = gl.Trainer(net, "mse", optimizer("Adam"), communicator=ranks, accumulate=3, threads=1)
        for step in range(STEPS):
            net[0].bias.trainable = thawed(step)
            gl.epoch(trainer, data, batch_size=6, micro_batch_size=2)
        return net

    for net in on_ranks(count, train):
        check(net, torch_run("Adam", thawed, whole=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["state_dict", "file", "run"])
def test_resume(kind, way, tmp_path):
    """A state that was saved while the bias was behind goes on to the bit."""
    first = model()
    one = optimizer(kind, first.parameters())
    for step in range(STEPS):
        if step == 20:
            saved = {name: array.copy() for name, array in first.state_dict().items()}
            if way == "file":
                gl.save(one, tmp_path / "optimizer.safetensors")
            kept = TrainState()
            kept.register("optimizer", lambda: of_optimizer(one.state))
            entries, arrays = kept.collect(), one.state_dict()
        first[0].bias.trainable = thawed(step)
        eager_step(first, one, step)
    assert arrays["missed.1"] == 14 and "missed.0" not in arrays and entries["optimizer.missed.1"] == 14
    second = model()
    other = optimizer(kind, second.parameters())
    eager_step(second, other, 0)  # something to forget
    second.load_state_dict(saved)
    if way == "file":
        gl.load(other, tmp_path / "optimizer.safetensors")
    elif way == "state_dict":
        other.load_state_dict(arrays)
    else:
        run = TrainState()
        run.register("optimizer", lambda: of_optimizer(other.state), lambda values: load_optimizer(values, other.state))
        run.load(entries)
    for step in range(20, STEPS):
        eager_step(second, other, step)
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert np.array_equal(p.numpy(), q.numpy())
    check(second, torch_run(kind, thawed))


def test_a_state_without_counts():
    """As older files are: nothing was missed."""
    net = model()
    own = optimizer("Adam", net.parameters())
    for step in range(12):
        net[0].bias.trainable = thawed(step)
        eager_step(net, own, step)
    arrays = own.state_dict()
    assert arrays.pop("missed.1") == 10
    own.load_state_dict(arrays)
    assert not own.state.step_counts.missed and own.state_dict().keys() == arrays.keys()
    for wrong in (13, -1):
        with pytest.raises(SettingError, match="missed.1"):
            own.load_state_dict(arrays | {"missed.1": np.array(wrong)})
    with pytest.raises(GraphError, match="missed.7"):
        own.load_state_dict(arrays | {"missed.7": np.array(1)})


def test_rules_that_count_no_steps_make_no_programs_for_it():
    net = model()
    own = gl.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    for step in range(12):
        net[0].bias.trainable = thawed(step)
        eager_step(net, own, step)
    assert not own.state.step_counts.missed and "missed.1" not in own.state_dict()
