"""Optimisers in a loop of one's own: against PyTorch, against the trainer, accumulated and clipped."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import clip_grad_norm, schedules
from tests.real_data import DATA
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)).astype(np.float32), RNG.integers(0, 3, 24).astype(np.int32)
OPTIMIZERS = {
    "sgd": (lambda p, lr: gl.optim.SGD(p, lr=lr, weight_decay=0.1), "SGD", {}),
    "momentum": (lambda p, lr: gl.optim.SGD(p, lr=lr, momentum=0.9), "SGD", {"momentum": 0.9}),
    "adam": (lambda p, lr: gl.optim.Adam(p, lr=lr, eps=1e-3), "Adam", {"eps": 1e-3}),
    "adamw": (
        lambda p, lr: gl.optim.AdamW(p, lr=lr, eps=1e-3, weight_decay=0.1),
        "AdamW",
        {"eps": 1e-3, "weight_decay": 0.1},
    ),
}
SCHEDULES = {
    "constant": (schedules.Constant(0.05), lambda t, o: t.LambdaLR(o, lambda i: 1.0)),
    "linear": (schedules.Linear(0.05, 10), lambda t, o: t.LinearLR(o, 1.0, 0.0, 10)),
    "cosine": (schedules.Cosine(0.05, 10), lambda t, o: t.CosineAnnealingLR(o, 10)),
    "step": (schedules.Step(0.05, 3), lambda t, o: t.StepLR(o, 3)),
    "exponential": (schedules.Exponential(0.05, 0.8), lambda t, o: t.ExponentialLR(o, 0.8)),
    "plateau": (schedules.Plateau(0.05, 0.5, 1), lambda t, o: t.ReduceLROnPlateau(o, factor=0.5, patience=1)),
}


def net(seed=1):
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 3)).init(seed)


def weights(model):
    return [p.numpy() for p in model.parameters()]


def same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


def slopes(model, x, y, total=False):
    """(loss, gradients) of the mean over the rows, or of their sum."""
    with gl.grad_tape() as tape:
        outputs, labels = model(gl.tensor(x)), gl.tensor(y)
        loss = gl.ops.cross_entropy_pair(outputs, labels)[0] if total else gl.ops.cross_entropy(outputs, labels)
    return loss, tape.backward(loss)


def torch_twin(model):
    torch = pytest.importorskip("torch")
    twin = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, mine in zip(twin.parameters(), model.parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    return torch, twin


@pytest.mark.filterwarnings("ignore:Detected call of")  # SGD's steps are taken by hand
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_and_schedule_against_pytorch(name, schedule):
    """Clipped now and then, too; all in float64 there."""
    make, kind, options = OPTIMIZERS[name]
    lr, make_scheduler = SCHEDULES[schedule]
    model = net()
    torch, twin = torch_twin(model)
    other = getattr(torch.optim, kind)(twin.parameters(), lr=0.05, **options)
    scheduler = make_scheduler(torch.optim.lr_scheduler, other)
    optimizer = make(model.parameters(), lr)
    for i in range(8):
        rows = slice(3 * i, 3 * i + 3)
        _, grads = slopes(model, X[rows], Y[rows])
        bound = 0.3 if i % 2 else 1e9
        clip_grad_norm(grads, bound)
        optimizer.step(grads)
        optimizer.observe(1.0)
        other.zero_grad()
        torch.nn.functional.cross_entropy(twin(torch.tensor(X[rows]).double()), torch.tensor(Y[rows]).long()).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), bound)
        if name == "sgd":
            with torch.no_grad():  # w (1 - lr wd) - lr g
                for p in twin.parameters():
                    p -= other.param_groups[0]["lr"] * (p.grad + 0.1 * p)
        else:
            other.step()
        scheduler.step(*([1.0] if schedule == "plateau" else []))
    for mine, p in zip(weights(model), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.reshape(p.shape), p.detach().numpy(), rtol=2e-4, atol=1e-5)
    assert optimizer.steps == 8


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_is_the_trainer_bit_for_bit(name):
    """The same gradients through the same update node. A sum and its weight, as the trainer takes them."""
    make = OPTIMIZERS[name][0]
    mine, its = net(), net()
    optimizer = make(mine.parameters(), schedules.Cosine(0.05, 6))
    trainer = gl.Trainer(its, "cross_entropy", make(None, schedules.Cosine(0.05, 6)))
    for i in range(5):
        _, grads = slopes(mine, X[i : i + 8], Y[i : i + 8], total=True)
        grads.weight = 8
        optimizer.step(grads)
        trainer.step(X[i : i + 8], Y[i : i + 8])
        assert same(weights(mine), weights(its))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(optimizer.state_dict().values(), trainer.optimizer_state.state_dict().values(), strict=True)
    )


def test_clipping_gives_the_norm_before():
    model = net()
    before = weights(model)
    _, grads = slopes(model, X, Y)
    plain = [np.array(g) for g in grads.values()]
    norm = clip_grad_norm(grads, 0.01)
    clipped = [np.array(g) for g in grads.values()]
    optimizer = gl.optim.SGD(model.parameters(), lr=1.0)
    optimizer.step(grads)
    size = np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in plain))
    assert float(norm) == pytest.approx(size, rel=1e-5) and size > 0.01
    for p, b, g, c in zip(weights(model), before, plain, clipped, strict=True):
        np.testing.assert_allclose(c, g * 0.01 / size, rtol=1e-5)
        np.testing.assert_allclose(p, b - c, rtol=1e-5, atol=1e-8)


def test_clipping_twice_is_clipping_to_the_smaller():
    a, b = net(), net()
    for model, bounds in ((a, (0.05, 0.01, 0.03)), (b, (0.01,))):
        _, grads = slopes(model, X, Y)
        norms = [clip_grad_norm(grads, bound) for bound in bounds]
        gl.optim.SGD(model.parameters(), lr=1.0).step(grads)
        if len(norms) == 3:
            assert float(norms[1]) == pytest.approx(0.05, rel=1e-5) and float(norms[2]) == pytest.approx(0.01, rel=1e-5)
    for p, q in zip(weights(a), weights(b), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accumulated_sums_are_divided_once(name):
    """Micro-batches of unequal sizes with their rows as weights give the trainer's accumulation, bit for bit."""
    make = OPTIMIZERS[name][0]
    mine, its = net(), net()
    optimizer = make(mine.parameters(), 0.05)
    trainer = gl.Trainer(its, "cross_entropy", make(None, 0.05), accumulate=3)
    for start in (0, 12):
        for first, last in ((0, 5), (5, 10), (10, 12)):
            rows = slice(start + first, start + last)
            _, grads = slopes(mine, X[rows], Y[rows], total=True)
            optimizer.accumulate(grads, last - first)
            trainer.step(X[rows], Y[rows])
        optimizer.step()
        assert same(weights(mine), weights(its))
    assert optimizer.steps == 2 == trainer.steps


def test_accumulation_without_weights_adds_as_pytorch_does():
    model = net()
    torch, twin = torch_twin(model)
    optimizer, other = gl.optim.SGD(model.parameters(), lr=0.5), torch.optim.SGD(twin.parameters(), lr=0.5)
    for k in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        for i in range(k + 1):
            rows = slice(4 * i, 4 * i + 4)
            optimizer.accumulate(slopes(model, X[rows], Y[rows])[1])
            loss = torch.nn.functional.cross_entropy(twin(torch.tensor(X[rows]).double()), torch.tensor(Y[rows]).long())
            loss.backward()
        norm = clip_grad_norm(optimizer, 0.2)
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.2)), rel=1e-5)
        optimizer.step()
        other.step()
    for mine, p in zip(weights(model), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.reshape(p.shape), p.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_settings_may_be_changed_by_hand():
    a, b = net(), net()
    one, other = (
        gl.optim.SGD(a.parameters(), lr=0.1),
        gl.optim.SGD(b.parameters(), lr=lambda step, epoch: 0.1 / (1 + step)),
    )
    for i in range(3):
        one.settings["lr"] = 0.1 / (1 + i)
        one.step(slopes(a, X, Y)[1])
        other.step(slopes(b, X, Y)[1])
    assert same(weights(a), weights(b))
    for name, value, message in (
        ("lr", "fast", "SGD: lr='fast': must be"),
        ("momentum", 0.9, "SGD: momentum=0.9 requires an optimizer that was created with it"),
    ):
        with pytest.raises(gl.SettingError, match=message):
            one.settings[name] = value
        assert one.steps == 3 and one.settings["momentum"] == 0.0 and one.settings["lr"] == 0.1 / 3


def test_rows_of_weight_zero_do_not_push():
    """A known fault elsewhere: weights that are folded into the labels. Weight 0 is left out."""
    found = []
    keep = np.arange(24) % 3 != 0
    for x, y, w in ((X, Y, keep.astype(np.float32)), (X[keep], Y[keep], np.ones(16, np.float32))):
        model = net()
        optimizer = gl.optim.AdamW(model.parameters(), lr=0.1)
        with gl.grad_tape() as tape:
            rows = gl.tensor(x)
            tape.watch(rows)
            loss = gl.ops.cross_entropy(model(rows), gl.tensor(y), gl.tensor(w))
        grads = tape.backward(loss)
        slope = grads[rows].numpy()
        optimizer.step(grads)
        found.append((slope, weights(model)))
    assert not found[0][0][~keep].any() and found[0][0][keep].any()
    for p, q in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_another_bound_or_rate_compiles_nothing():
    model = net()
    optimizer = gl.optim.SGD(model.parameters(), lr=schedules.Cosine(0.1, 50))

    def once(bound):
        optimizer.accumulate(slopes(model, X, Y)[1])
        optimizer.accumulate(slopes(model, X, Y)[1])
        clip_grad_norm(optimizer, bound)
        optimizer.step()
        grads = slopes(model, X, Y)[1]
        clip_grad_norm(grads, bound)
        optimizer.step(grads)

    once(0.5)
    before = gl.stats().compiled
    for i in range(5):
        once(0.1 + i)
    assert gl.stats().compiled == before


def test_zero_grad_drops_what_was_accumulated():
    a, b = net(), net()
    one, other = gl.optim.SGD(a.parameters(), lr=0.5), gl.optim.SGD(b.parameters(), lr=0.5)
    one.accumulate(slopes(a, X[:4], Y[:4])[1])
    clip_grad_norm(one, 1e-6)  # forgotten with it
    one.zero_grad()
    for optimizer, model in ((one, a), (other, b)):
        optimizer.accumulate(slopes(model, X[4:9], Y[4:9])[1])
        optimizer.step()
    assert same(weights(a), weights(b))
    with pytest.raises(gl.GradientError, match=r"step: there are no gradients; need step\(grads\), or accumulate"):
        one.step()


def test_a_parameter_without_gradient_stays():
    """Moments and decay included, and what one window left in its sum does not reach the next."""
    model = net()
    last = gl.nn.Sequential(gl.nn.Linear(5, 3)).init(3)
    optimizer = gl.optim.AdamW([*model.parameters(), *last.parameters()], lr=0.1, weight_decay=0.5)
    before = weights(last)
    optimizer.step(slopes(model, X, Y)[1])
    assert same(before, weights(last)) and set(optimizer.state_dict()) == {
        "steps", "epoch", "optimizer", *(f"{s}.{i}" for s in "mv" for i in range(4)),
    }  # fmt: skip
    sums = []
    for windows in ((("a", "b"), ("a",), ("a", "b")), (("a", "b"), ("a",), ("a", "b"))):
        one, two = net(), gl.nn.Sequential(gl.nn.Linear(5, 3)).init(3)
        optimizer = gl.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
        trace = []
        for window in windows:
            for which in window:
                optimizer.accumulate(slopes({"a": one, "b": two}[which], X, Y)[1])
            before = weights(two)
            optimizer.step()
            trace.append(same(before, weights(two)))
        sums.append(weights(two))
        assert trace == [False, True, False]
    plain = gl.nn.Sequential(gl.nn.Linear(5, 3)).init(3)
    optimizer = gl.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.step(slopes(plain, X, Y)[1])
    assert same(sums[0], weights(plain))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("how", ["step", "accumulate", "clipped"])
def test_what_is_not_finite_changes_nothing(how, bad):
    model = net()
    optimizer = gl.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.step(slopes(model, X, Y)[1])
    before, state = weights(model), optimizer.state_dict()
    x = X.copy()
    x[3, 2] = bad
    with pytest.raises(gl.NonFiniteError):
        _, grads = slopes(model, x, Y)
        if how == "clipped":
            clip_grad_norm(grads, 1.0)
        optimizer.accumulate(grads) if how == "accumulate" else optimizer.step(grads)
    assert same(before, weights(model)) and optimizer.steps == 1
    assert all(np.array_equal(a, b) for a, b in zip(state.values(), optimizer.state_dict().values(), strict=True))
    optimizer.step(slopes(model, X, Y)[1])
    assert optimizer.steps == 2


def test_misuse_is_named():
    model, other = net(), net()
    optimizer = gl.optim.SGD(model.parameters(), lr=0.1)
    grads = slopes(model, X, Y)[1]
    with pytest.raises(gl.GradientError, match="step: the loss depends on none of the 4 parameters of this optimiser"):
        gl.optim.SGD(other.parameters(), lr=0.1).step(grads)
    with refused("max_norm", 0):
        clip_grad_norm(grads, 0)
    optimizer.accumulate(grads)
    grads = slopes(model, X, Y)[1]
    with pytest.raises(
        gl.GradientError, match=r"step: gradients were accumulated since the last step; need accumulate"
    ):
        optimizer.step(grads)
    with pytest.raises(
        gl.GradientError,
        match="accumulate: gradients without a weight, then with one; all until the step must be alike",
    ):
        optimizer.accumulate(grads, 3)
    optimizer.zero_grad()
    clip_grad_norm(grads, 0.1)
    with pytest.raises(gl.GradientError, match="accumulate: these gradients are clipped; need clip_grad_norm"):
        optimizer.accumulate(grads, 3)


def test_accumulated_gradients_that_were_clipped_add_up_clipped():
    model = net()
    optimizer = gl.optim.SGD(model.parameters(), lr=1.0)
    before = weights(model)
    for _ in range(2):
        _, grads = slopes(model, X, Y)
        clip_grad_norm(grads, 0.01)
        optimizer.accumulate(grads)
    optimizer.step()
    moved = np.sqrt(sum(np.sum((a - b).astype(float) ** 2) for a, b in zip(before, weights(model), strict=True)))
    assert moved == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_loop_is_an_uninterrupted_one(tmp_path, name):
    make = OPTIMIZERS[name][0]

    def train(model, optimizer, first, last):
        for i in range(first, last):
            optimizer.step(slopes(model, X[i : i + 7], Y[i : i + 7])[1])
            if i % 3 == 2:
                optimizer.epoch += 1
                optimizer.observe(1.0)

    lr = schedules.Plateau(0.05, 0.5, 0)
    whole, first, second = net(), net(), net(4)
    train(whole, make(whole.parameters(), lr), 0, 10)
    optimizer = make(first.parameters(), lr)
    train(first, optimizer, 0, 6)
    gl.save(first, tmp_path / "m.safetensors")
    gl.save(optimizer, tmp_path / "o.safetensors")
    optimizer = make(second.parameters(), lr)
    gl.load(second, tmp_path / "m.safetensors")
    gl.load(optimizer, tmp_path / "o.safetensors")
    train(second, optimizer, 6, 10)
    assert same(weights(whole), weights(second)) and optimizer.steps == 10 and optimizer.epoch == 3


IRIS = DATA / "tabular" / "iris.csv"
RATES = {"sgd": 0.2, "momentum": 0.05, "adam": 0.02, "adamw": 0.02}


@pytest.mark.skipif(not IRIS.exists(), reason="needs iris.csv of the shared data")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_iris_is_learnt_with_each(name, schedule):
    """The eager loop on real data, clipped; the same bits a second time."""
    table = gl.data.read_table(IRIS, seed=0)
    rate, total = RATES[name], 40 * 5
    lr = {
        "constant": schedules.Constant(rate, warmup=10),
        "linear": schedules.Linear(rate, total, warmup=10),
        "cosine": schedules.Cosine(rate, total, warmup=10),
        "step": schedules.Step(rate, 20, 0.5, by="epoch"),
        "exponential": schedules.Exponential(rate, 0.97, by="epoch"),
        "plateau": schedules.Plateau(rate, 0.5, 3),
    }[schedule]
    found = []
    for _ in range(2):
        model = gl.nn.Sequential(gl.nn.Linear(4, 16, activation="relu"), gl.nn.Linear(16, 3)).init(0)
        optimizer = OPTIMIZERS[name][0](model.parameters(), lr)
        for _ in range(40):
            loss = 0.0
            batches = gl.data.DataLoader(table.train.data, table.train.labels, batch_size=32, shuffle=True, seed=0)
            for x, y in batches:
                loss_of_batch, grads = slopes(model, x, y)
                clip_grad_norm(grads, 1.0)
                optimizer.step(grads)
                loss += float(loss_of_batch) * len(x)
            optimizer.epoch += 1
            optimizer.observe(loss / table.train.n)
        found.append(weights(model))
    with gl.no_grad():
        guessed = model(gl.tensor(table.train.data)).numpy().argmax(-1)
    assert (guessed == table.train.labels).mean() > 0.9 and same(*found)


def test_two_optimisers_share_one_backward():
    """Each trains its part with the gradients of one backward, as two optimisers of PyTorch do."""
    model, alone = net(), net()
    first, last = gl.optim.SGD(model[0].parameters(), lr=0.2), gl.optim.Adam(model[1].parameters(), lr=0.05)
    for _ in range(3):
        grads = slopes(model, X, Y)[1]
        first.step(grads)
        last.step(grads)
    both = [gl.optim.SGD(alone[0].parameters(), lr=0.2), gl.optim.Adam(alone[1].parameters(), lr=0.05)]
    for _ in range(3):
        start = alone.state_dict()
        both[0].step(slopes(alone, X, Y)[1])
        moved = alone[0].state_dict()
        alone.load_state_dict(start)
        both[1].step(slopes(alone, X, Y)[1])
        alone[0].load_state_dict(moved)
    assert same(weights(model), weights(alone))


# ---- parameters that no optimiser has --------------------------------------------------------------------------


class Headed(gl.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = gl.nn.Linear(4, 3), gl.nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.body(x))


def backward_of(model, scale=1.0):
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(model(gl.tensor(x)) * scale, gl.tensor(np.arange(8) % 2))
    return tape.backward(loss)


@pytest.mark.parametrize("how", ["step", "accumulate"])
def test_a_gradient_of_a_parameter_that_no_optimiser_has_is_named(how):
    model, scale = Headed().init(0), gl.parameter(2.0, name="scale")
    before = model.state_dict()
    opt = gl.optim.SGD(model.head.parameters(), lr=0.1)
    with pytest.raises(gl.GradientError, match=rf"{how}: .* no optimiser was made with: f32\[3,4\] body.weight at"):
        getattr(opt, how)(backward_of(model))
    assert all((array == before[name]).all() for name, array in model.state_dict().items()) and opt.steps == 0
    whole = gl.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        gl.GradientError, match=r"no optimiser was made with: f32\[\] scale at .*need it among the para"
    ):
        getattr(whole, how)(backward_of(model, scale))
    for p in model.body.parameters():
        p.trainable = False
    getattr(opt, how)(backward_of(model))


def test_optimisers_that_share_gradients_leave_out_what_the_other_has():
    model = Headed().init(0)
    body, head = (gl.optim.SGD(part.parameters(), lr=0.1) for part in (model.body, model.head))
    before, grads = model.state_dict(), backward_of(model)
    body.step(grads)
    head.step(grads)
    assert all((array != before[name]).any() for name, array in model.state_dict().items())


def test_a_frozen_parameter_gets_no_gradient_and_one_that_thaws_does():
    model = Headed().init(0)
    opt = gl.optim.SGD(model.parameters(), lr=0.1)
    for trainable in (True, False, True):
        model.body.weight.trainable = trainable
        before, grads = model.body.weight.numpy(), backward_of(model)
        assert (model.body.weight in grads) == trainable
        opt.step(grads)
        assert (model.body.weight.numpy() != before).any() == trainable


def test_a_watched_parameter_is_no_business_of_an_optimiser():
    model, scale = Headed().init(0), gl.parameter(2.0, trainable=False)
    opt = gl.optim.SGD(model.parameters(), lr=0.1)
    x = np.ones((2, 4), np.float32)
    with gl.grad_tape() as tape:
        tape.watch(scale)
        loss = gl.ops.sum(model(gl.tensor(x)) * scale)
    grads = tape.backward(loss)
    assert grads[scale] is not None
    opt.step(grads)
    assert opt.steps == 1
