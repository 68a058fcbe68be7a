"""Schedules: their values against PyTorch's schedulers; what they change; what they refuse."""

import math

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import schedules as s


def torch_rates(make, steps, lr=0.5):
    """The rate that each of so many steps is taken with."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


CASES = {
    "constant": (s.Constant(0.5), lambda t, o: t.LambdaLR(o, lambda i: 1.0)),
    "linear": (s.Linear(0.5, 30, 0.1), lambda t, o: t.LinearLR(o, 1.0, 0.2, 30)),
    "cosine": (s.Cosine(0.5, 40, 0.05), lambda t, o: t.CosineAnnealingLR(o, 40, 0.05)),
    "step": (s.Step(0.5, 7, 0.3), lambda t, o: t.StepLR(o, 7, 0.3)),
    "exponential": (s.Exponential(0.5, 0.9), lambda t, o: t.ExponentialLR(o, 0.9)),
    "polynomial": (s.Polynomial(0.5, 30, 1.7), lambda t, o: t.PolynomialLR(o, 30, 1.7)),
    "restarts": (s.CosineWarmRestarts(0.5, 7), lambda t, o: t.CosineAnnealingWarmRestarts(o, 7)),
    "longer restarts": (
        s.CosineWarmRestarts(0.5, 3, 2, 0.05),
        lambda t, o: t.CosineAnnealingWarmRestarts(o, 3, 2, 0.05),
    ),
    "one cycle": (s.OneCycle(0.5, 40), lambda t, o: t.OneCycleLR(o, 0.5, 40)),
    "one cycle of few steps up": (
        s.OneCycle(0.5, 40, pct_start=0.01),
        lambda t, o: t.OneCycleLR(o, 0.5, 40, pct_start=0.01),
    ),
    "one cycle, all up": (s.OneCycle(0.5, 41, pct_start=1.0), lambda t, o: t.OneCycleLR(o, 0.5, 41, pct_start=1.0)),
    "one cycle in three phases": (
        s.OneCycle(
            0.5, 40, pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=20, three_phase=True
        ),
        lambda t, o: t.OneCycleLR(
            o, 0.5, 40, pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=20, three_phase=True
        ),
    ),
}


@pytest.mark.parametrize("decay_type", ["cosine", "linear", "1-sqrt"])
@pytest.mark.parametrize("warmup", [0, 5])
def test_warmup_stable_decay_is_that_of_transformers(decay_type, warmup):
    """After the warm-up, whose first step is taken with rate 0 there."""
    torch, theirs = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def make(lr_scheduler, optimizer):
        return theirs.get_wsd_schedule(
            optimizer, warmup, 12, num_training_steps=40, decay_type=decay_type, min_lr_ratio=0.1
        )

    rates = torch_rates(make, 50)
    schedule = s.WarmupStableDecay(0.5, 40, 12, 0.05, warmup=warmup, decay_type=decay_type)
    np.testing.assert_allclose([schedule(i, 0) for i in range(warmup, 50)], rates[warmup:], rtol=1e-12)
    assert schedule(warmup, 0) == schedule(27, 0) == 0.5 > schedule(29, 0) and schedule(40, 0) == 0.05
    assert torch


def test_polynomial_is_that_of_transformers():
    theirs = pytest.importorskip("transformers")

    def make(lr_scheduler, optimizer):
        return theirs.get_polynomial_decay_schedule_with_warmup(optimizer, 6, 30, lr_end=0.05, power=2.0)

    schedule, rates = s.Polynomial(0.5, 30, 2.0, 0.05, warmup=6), torch_rates(make, 40)
    np.testing.assert_allclose([schedule(i, 0) for i in range(6, 40)], rates[6:], rtol=1e-12)


def test_one_cycle_of_a_momentum():
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, 30)
    ours = s.OneCycle(0.85, 30, div_factor=0.85 / 0.95, final_div_factor=1.0)
    for step in range(30):
        assert ours(step, 0) == pytest.approx(optimizer.param_groups[0]["momentum"], rel=1e-12)
        optimizer.step()
        cycle.step() if step < 29 else None


def test_one_cycle_of_one_step_up():
    """PyTorch divides by 0 where the rise ends at step 0."""
    schedule = s.OneCycle(1.0, 10, pct_start=0.1)
    assert schedule(0, 0) == 1.0 > schedule(1, 0) and schedule(9, 0) == schedule(100, 0) == pytest.approx(1 / 25e4)
    assert s.OneCycle(1.0, 1)(0, 0) == pytest.approx(1 / 25e4)


@pytest.mark.parametrize("name", CASES)
def test_values_are_pytorchs(name):
    schedule, make = CASES[name]
    ours = [schedule(i, 0) for i in range(40)]
    np.testing.assert_allclose(ours, torch_rates(make, 40), rtol=1e-6, atol=1e-9)


WARM = {
    "constant": lambda w: s.Constant(0.5, warmup=w),
    "linear": lambda w: s.Linear(0.5, 30 + w, 0.1, warmup=w),
    "cosine": lambda w: s.Cosine(0.5, 40 + w, 0.05, warmup=w),
    "step": lambda w: s.Step(0.5, 7, 0.3, warmup=w),
    "exponential": lambda w: s.Exponential(0.5, 0.9, warmup=w),
}


@pytest.mark.parametrize("name", WARM)
def test_warmup_comes_before(name):
    """Up in equal steps to the value, then the schedule as it is without a warm-up."""
    plain, warm = CASES[name][0], WARM[name](8)
    np.testing.assert_allclose([warm(i, 0) for i in range(8)], [0.5 * (i + 1) / 8 for i in range(8)])
    assert [warm(i + 8, 0) for i in range(40)] == pytest.approx([plain(i, 0) for i in range(40)])
    assert warm(7, 0) == 0.5


def test_an_end_stays():
    assert [s.Linear(1.0, 4)(i, 0) for i in (0, 2, 4, 5, 1000)] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert s.Cosine(1.0, 4, 0.25)(4, 0) == s.Cosine(1.0, 4, 0.25)(10**9, 0) == 0.25


@pytest.mark.parametrize("kind", [lambda **k: s.Step(0.5, 2, 0.5, **k), lambda **k: s.Exponential(0.5, 0.5, **k)])
def test_by_epoch(kind):
    schedule = kind(by="epoch", warmup=3)
    assert [schedule(i, 4) for i in (3, 100)] == [kind()(4, 0)] * 2 and schedule(0, 4) == 0.5 / 3
    assert s.Linear(1.0, 4, by="epoch")(77, 1) == 0.75


@pytest.mark.parametrize("patience", [0, 2])
@pytest.mark.parametrize("cooldown", [0, 3])
def test_plateau_is_pytorchs(patience, cooldown):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(patience + cooldown)
    losses = [*(1 / (1 + i) for i in range(5)), *(0.2 + 0.1 * rng.random(30)), 0.1, *[0.1] * 12, float("nan"), 0.05]
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    judge = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.4, patience=patience, threshold=1e-3, cooldown=cooldown, min_lr=1e-4, eps=0
    )
    plateau = s.Plateau(0.5, 0.4, patience, threshold=1e-3, cooldown=cooldown, minimum=1e-4)
    memory = plateau.remember()
    for loss in losses:
        judge.step(loss)
        plateau.observe(memory, loss)
        assert plateau.recall(memory, 5, 0) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
    assert memory["rate"] < 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: s.Constant(-1), r"Constant: value=-1: must be a finite number of at least 0"),
        (lambda: s.Constant("0.1"), r"Constant: value='0.1': must be"),
        (lambda: s.Constant(math.nan), r"Constant: value=nan: must be"),
        (lambda: s.Constant(0.1, warmup=-1), r"Constant: warmup=-1: must be a whole number of at least 0"),
        (lambda: s.Constant(0.1, warmup=0.1), r"Constant: warmup=0.1: must be"),
        (lambda: s.Linear(0.1, 0), r"Linear: steps=0: must be a whole number of at least 1"),
        (lambda: s.Linear(0.1, 10, -1), r"Linear: final=-1: must be"),
        (lambda: s.Cosine(0.1, 10, warmup=10), r"Cosine: warmup=10 must be less than steps=10"),
        (lambda: s.Cosine(0.1, 10, by="batch"), r"Cosine: by='batch': must be step or epoch"),
        (lambda: s.Step(0.1, 0), r"Step: every=0: must be"),
        (lambda: s.Step(0.1, 5, -0.1), r"Step: factor=-0.1: must be"),
        (lambda: s.Exponential(0.1, math.inf), r"Exponential: factor=inf: must be"),
        (lambda: s.Polynomial(0.1, 9, -1), r"Polynomial: power=-1: must be"),
        (lambda: s.CosineWarmRestarts(0.1, 0), r"CosineWarmRestarts: period=0: must be a whole number of at least 1"),
        (lambda: s.CosineWarmRestarts(0.1, 5, 1.5), r"CosineWarmRestarts: period_factor=1.5: must be"),
        (lambda: s.WarmupStableDecay(0.1, 9, 8, warmup=2), r"warmup=2 and decay=8 must be at most steps=9 together"),
        (
            lambda: s.WarmupStableDecay(0.1, 9, 8, decay_type="sqrt"),
            r"decay_type='sqrt': must be one of cosine, linear, 1-sqrt",
        ),
        (lambda: s.OneCycle(0.1, 9, pct_start=2), r"OneCycle: pct_start=2: must be from 0 to 1"),
        (lambda: s.OneCycle(0.1, 9, div_factor=0), r"OneCycle: div_factor=0: must be a finite number above 0"),
        (lambda: s.OneCycle(0.1, 9, anneal_strategy="cosine"), r"anneal_strategy='cosine': must be cos or linear"),
        (lambda: s.OneCycle(0.1, 9, three_phase=1), r"OneCycle: three_phase=1: must be"),
        (lambda: s.Plateau(0.1, factor=1.0), r"Plateau: factor=1.0: must be at least 0 and below 1"),
        (lambda: s.Plateau(0.1, patience=True), r"Plateau: patience=True: must be"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(gl.SettingError, match=message):
        make()


def test_they_show_what_they_are():
    assert repr(s.Cosine(1e-3, 1000, warmup=50)) == "Cosine(0.001, steps=1000, final=0.0, warmup=50)"
    assert repr(s.Step(0.1, 2, by="epoch")) == "Step(0.1, every=2, factor=0.1, by='epoch')"
    assert repr(s.Plateau(0.1, cooldown=3)) == "Plateau(0.1, factor=0.1, patience=10, cooldown=3)"
    assert repr(s.Polynomial(0.1, 9, 2.0)) == "Polynomial(0.1, steps=9, power=2.0, final=0.0)"
    assert repr(s.OneCycle(0.1, 9)) == "OneCycle(0.1, steps=9)"
    assert (
        repr(s.OneCycle(0.1, 9, three_phase=True, div_factor=5))
        == "OneCycle(0.1, steps=9, div_factor=5, three_phase=True)"
    )
    assert (
        repr(s.CosineWarmRestarts(0.1, 9, by="epoch"))
        == "CosineWarmRestarts(0.1, period=9, period_factor=1, final=0.0, by='epoch')"
    )
    assert (
        repr(s.WarmupStableDecay(0.1, 9, 3, decay_type="linear"))
        == "WarmupStableDecay(0.1, steps=9, decay=3, final=0.0, decay_type='linear')"
    )
    assert "lr=Linear(0.1, steps=9, final=0.0)" in repr(gl.optim.SGD(lr=s.Linear(0.1, 9)))


OPTIMIZERS = {
    "sgd": lambda lr, *p: gl.optim.SGD(*p, lr=lr),
    "momentum": lambda lr, *p: gl.optim.SGD(*p, lr=lr, momentum=0.9),
    "adamw": lambda lr, *p: gl.optim.AdamW(*p, lr=lr, weight_decay=0.1),
    "adam": lambda lr, *p: gl.optim.Adam(*p, lr=lr),
}
SCHEDULES = {
    "constant": s.Constant(0.1, warmup=2),
    "linear": s.Linear(0.1, 6),
    "cosine": s.Cosine(0.1, 6, warmup=1),
    "step": s.Step(0.1, 2),
    "exponential": s.Exponential(0.1, 0.5),
    "plateau": s.Plateau(0.1, 0.5, 0),
    "polynomial": s.Polynomial(0.1, 6, 2.0, warmup=1),
    "restarts": s.CosineWarmRestarts(0.1, 2, 2),
    "wsd": s.WarmupStableDecay(0.1, 6, 3, warmup=1),
    "one cycle": s.OneCycle(0.1, 6),
    "by epoch": s.Step(0.1, 1, by="epoch"),
    "own": lambda step, epoch: 0.1 / (1 + step),
}


def trained(optimizer, backend="cpu"):
    """w after each of six steps in three epochs, on a loss that does not get better."""
    w = gl.parameter(np.array([1.0, -2.0, 0.5]), name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", optimizer, backend=backend)
    found = []
    for g in np.random.default_rng(0).standard_normal((6, 3)):
        trainer.step([g])
        found.append(w.numpy())
        if len(found) % 2 == 0:
            trainer.epoch += 1
            trainer.optimizer_state.observe(1.0)
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_schedule_acts_on_every_optimiser(name, schedule):
    """A known fault elsewhere: schedules that change Adam's rate and leave SGD's."""
    make, lr = OPTIMIZERS[name], SCHEDULES[schedule]
    ours = trained(make(lr))
    assert not np.array_equal(ours[-1], trained(make(0.1))[-1])
    plateau = isinstance(lr, s.Plateau)
    rates = [[0.1, 0.1, 0.1, 0.1, 0.05, 0.05][i] if plateau else lr(i, i // 2) for i in range(6)]
    by_hand = trained(make(lambda step, epoch: rates[step]))
    np.testing.assert_array_equal(ours, by_hand)
    np.testing.assert_array_equal(ours, trained(make(lr)))  # nothing is left in the schedule


@pytest.mark.parametrize("setting", ["momentum", "weight_decay"])
def test_any_setting_may_be_a_schedule(setting):
    a = trained(gl.optim.SGD(**{"momentum": 0.5, setting: s.Linear(0.5, 5)}))
    b = trained(gl.optim.SGD(**{"momentum": 0.5, setting: 0.5}))
    np.testing.assert_array_equal(a[0], b[0])
    assert not np.array_equal(a[1], b[1])


def test_fit_tells_a_plateau_of_its_epochs():
    """The rate falls when validation stops getting better, and the trainer's state remembers it."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), rng.integers(0, 2, 40)  # noise: validation gets worse
    net = gl.nn.Sequential(gl.nn.Linear(3, 16, activation="relu"), gl.nn.Linear(16, 2))
    optimizer = gl.optim.SGD(net.parameters(), lr=s.Plateau(0.5, 0.5, 1))
    history = gl.fit(net, (x, y), optimizer=optimizer, epochs=12, batch_size=8, val_split=0.25, progress=False)
    memory = s.Plateau(0.5, 0.5, 1).remember()
    for at in history:
        s.Plateau(0.5, 0.5, 1).observe(memory, at.val.loss)
    assert optimizer.state.memories["lr"] == memory and memory["rate"] < 0.5
