"""Each optimiser against its reference in float64: PyTorch's where it has it, else the formula of the paper."""

import inspect

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import clip_grad_norm, schedules
from tests.refused import refused

torch = pytest.importorskip("torch")
optim = gl.optim

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 5)).astype(np.float32), RNG.integers(0, 3, 48).astype(np.int32)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                way = (beta1 * m + (1 - beta1) * p.grad).sign()
                p -= group["lr"] * (way + group["weight_decay"] * p)
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


def dynamic_map(signed):
    """Numbers of dynamic tree quantisation with 8 bits, as bitsandbytes' create_dynamic_map draws them (bits of the
    exponent: 7)."""
    numbers = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        centres = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        numbers += [*centres, *(-centres if signed else [])]
    assert len(set(numbers)) == 256
    return torch.tensor(sorted(numbers), dtype=torch.float64)


MAPS = {signed: dynamic_map(signed) for signed in (True, False)}


def rounded(x, signed):
    """Each number as the nearest of the map times the largest absolute value of its block of 256; without a sign no
    number above 0 as 0."""
    made, flat = torch.zeros(x.numel(), dtype=x.dtype), x.ravel()
    for at in range(0, x.numel(), 256):
        block = flat[at : at + 256]
        scale = block.abs().max()
        if scale > 0:
            near = (block[:, None] / scale - MAPS[signed]).abs()
            if not signed:
                near[:, 0] = torch.where(block > 0, torch.inf, near[:, 0])
            made[at : at + 256] = MAPS[signed][near.argmin(1)] * scale
    return made.reshape(x.shape)


class AdamW8(torch.optim.Optimizer):
    """AdamW whose moments are rounded to 8 bits after each step, arXiv 2110.02861."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, coupled=False):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "decay": weight_decay, "coupled": coupled})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("m", "v"))
                t = state["t"] = state.get("t", 0) + 1
                g = p.grad + group["decay"] * p if group["coupled"] else p.grad
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                if not group["coupled"]:
                    p *= 1 - group["lr"] * group["decay"]
                p -= group["lr"] * m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
                state["m"], state["v"] = rounded(m, True), rounded(v, False)


class Lion8(Lion):
    """The same with m rounded to 8 bits after each step."""

    def step(self):
        super().step()
        for kept in self.state.values():
            kept["m"] = rounded(kept["m"], True)


class Several:
    """Optimisers side by side, as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()

    def step(self):
        for each in self.optimizers:
            each.step()


@pytest.fixture(autouse=True)
def muon_in_float64(monkeypatch):
    """PyTorch's Muon rounds its iterations to bfloat16."""
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", ITERATIONS)


@pytest.fixture(autouse=True)
def small_parameters_in_8_bits(monkeypatch):
    """Otherwise only parameters of 4096 elements and more have such moments."""
    monkeypatch.setattr("gradloom.optim.moments.LEAST_SIZE", 1)


def _iterations():
    from torch.optim import _muon

    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert ".bfloat16()" in source
    scope = vars(_muon).copy()
    exec(source.replace(".bfloat16()", ".clone()"), scope)
    return scope["_zeropower_via_newtonschulz"]


ITERATIONS = _iterations()


def muon(parameters, lr, **options):
    """PyTorch's Muon on the matrices, its AdamW on the rest."""
    parameters = list(parameters)
    return Several(
        torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=lr, **options),
        torch.optim.AdamW([p for p in parameters if p.ndim != 2], lr=lr, eps=1e-3, weight_decay=0.0),
    )


def with_adamw(lr, **options):
    """Our Muon, with AdamW for what is no matrix."""
    groups = [{"match": "not_2d", "optimizer": optim.AdamW(lr=lr, eps=1e-3)}]
    return optim.Muon(lr=lr, groups=groups, **options)


EPS = float(np.finfo(np.float32).eps)
RMS = {"alpha": 0.9, "eps": 1e-3}
CASES = {
    "nesterov": (
        lambda lr, **o: optim.SGD(lr=lr, momentum=0.9, nesterov=True, **o),
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    ),
    "nesterov, coupled": (
        lambda lr, **o: optim.SGD(
            lr=lr, momentum=0.9, nesterov=True, weight_decay=0.2, decoupled_weight_decay=False, **o
        ),
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.2),
    ),
    "lion": (
        lambda lr, **o: optim.Lion(lr=lr, weight_decay=0.2, **o),
        lambda p, lr: Lion(p, lr=lr, weight_decay=0.2),
    ),
    "rmsprop": (
        lambda lr, **o: optim.RMSprop(lr=lr, **RMS, **o),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, **RMS),
    ),
    "rmsprop, decay": (
        lambda lr, **o: optim.RMSprop(lr=lr, weight_decay=0.2, **RMS, **o),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, weight_decay=0.2, **RMS),
    ),
    "rmsprop, centered": (
        lambda lr, **o: optim.RMSprop(lr=lr, centered=True, **RMS, **o),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True, **RMS),
    ),
    "rmsprop, all": (
        lambda lr, **o: optim.RMSprop(lr=lr, centered=True, momentum=0.8, weight_decay=0.2, **RMS, **o),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True, momentum=0.8, weight_decay=0.2, **RMS),
    ),
    "adamw, 8 bits": (
        lambda lr, **o: optim.AdamW(lr=lr, eps=1e-3, weight_decay=0.2, state_bits=8, **o),
        lambda p, lr: AdamW8(p, lr=lr, eps=1e-3, weight_decay=0.2),
    ),
    "adam, 8 bits": (
        lambda lr, **o: optim.Adam(lr=lr, eps=1e-3, weight_decay=0.3, state_bits=8, **o),
        lambda p, lr: AdamW8(p, lr=lr, eps=1e-3, weight_decay=0.3, coupled=True),
    ),
    "lion, 8 bits": (
        lambda lr, **o: optim.Lion(lr=lr, weight_decay=0.2, state_bits=8, **o),
        lambda p, lr: Lion8(p, lr=lr, weight_decay=0.2),
    ),
    "adafactor": (
        lambda lr, **o: optim.Adafactor(lr=lr, **o),
        lambda p, lr: torch.optim.Adafactor(p, lr=lr, eps=(EPS, 1e-3)),
    ),
    "adafactor, decay": (
        lambda lr, **o: optim.Adafactor(lr=lr, weight_decay=0.5, d=1.001, eps2=0.5, beta2_decay=-0.5, **o),
        lambda p, lr: torch.optim.Adafactor(p, lr=lr, weight_decay=0.5, d=1.001, eps=(EPS, 0.5), beta2_decay=-0.5),
    ),
    "muon": (with_adamw, lambda p, lr: muon(p, lr, weight_decay=0.0)),
    "muon, decay": (
        lambda lr, **o: with_adamw(lr, weight_decay=0.2, momentum=0.8, nesterov=False, ns_steps=3, **o),
        lambda p, lr: muon(p, lr, weight_decay=0.2, momentum=0.8, nesterov=False, ns_steps=3),
    ),
    "muon, matched": (
        lambda lr, **o: with_adamw(lr, adjust_lr_fn="match_rms_adamw", **o),
        lambda p, lr: muon(p, lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    ),
}
STEPS = 24


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 3)).init(1)


def weights(model):
    return [p.numpy() for p in model.parameters()]


def by_torch(make, clipped=False):
    """The weights after 24 steps of 6 rows, in float64, with a cosine."""
    twin = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, mine in zip(twin.parameters(), net().parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    rate = schedules.Cosine(0.02, steps=40)
    optimizer = make(twin.parameters(), 0.02)
    for i in range(STEPS):
        rows = slice(6 * (i % 8), 6 * (i % 8) + 6)
        for group in optimizer.param_groups:
            group["lr"] = rate(i, 0)
        optimizer.zero_grad()
        outputs = twin(torch.tensor(X[rows]).double())
        torch.nn.functional.cross_entropy(outputs, torch.tensor(Y[rows]).long()).backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
        optimizer.step()
    return [p.detach().numpy() for p in twin.parameters()]


def batches():
    for i in range(STEPS):
        rows = slice(6 * (i % 8), 6 * (i % 8) + 6)
        yield X[rows], Y[rows]


def trained(make, how, model, **options):
    rate = schedules.Cosine(0.02, steps=40)
    if how.startswith("eager"):
        optimizer = make(rate, parameters=model.parameters())
        for x, y in batches():
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(model(gl.tensor(x)), gl.tensor(y))
            grads = tape.backward(loss)
            if how == "eager, clipped":
                clip_grad_norm(grads, 0.3)
            optimizer.step(grads)
        return optimizer
    if how == "accumulated":
        trainer = gl.Trainer(model, optimizer=make(rate), accumulate=3, **options)
        for x, y in batches():
            for at in range(0, 6, 2):
                trainer.step(x[at : at + 2], y[at : at + 2])
    else:
        trainer = gl.Trainer(model, optimizer=make(rate), max_norm=0.3 if how == "clipped" else np.inf, **options)
        for x, y in batches():
            trainer.step(x, y)
    return trainer


@pytest.mark.parametrize("how", ["whole", "accumulated", "clipped", "eager", "eager, clipped"])
@pytest.mark.parametrize("case", CASES)
def test_every_optimiser_against_its_reference(case, how):
    ours, theirs = CASES[case]
    model = net()
    trained(ours, how, model)
    for mine, other in zip(weights(model), by_torch(theirs, "clipped" in how), strict=True):
        np.testing.assert_allclose(mine.reshape(other.shape), other, rtol=2e-4, atol=2e-5)


def test_the_references_differ_from_each_other():
    """So that no case passes as another one."""
    ends = [np.concatenate([w.ravel() for w in by_torch(theirs)]) for _, theirs in CASES.values()]
    for i, one in enumerate(ends):
        assert all(np.abs(one - other).max() > 1e-3 for other in ends[:i])


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_threads_changes_no_bit(case):
    """The same bits on one and two threads; the definition in NumPy within the noise of f32."""
    ours, _ = CASES[case]
    one, two, defined = net(), net(), net()
    trained(ours, "accumulated", one, threads=1)
    trained(ours, "accumulated", two, threads=2)
    trained(ours, "accumulated", defined, backend="numpy")
    assert all(np.array_equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))
    for a, b in zip(weights(one), weights(defined), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_without_weight_is_a_step_with_gradient_0(case):
    ours, theirs = CASES[case]
    model = net()
    trainer = gl.Trainer(model, optimizer=ours(0.02))
    trainer.step(X[:6], Y[:6])
    trainer.step(X[:6], np.full(6, -100, np.int32))
    twin = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, mine in zip(twin.parameters(), net().parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    optimizer = theirs(twin.parameters(), 0.02)
    torch.nn.functional.cross_entropy(twin(torch.tensor(X[:6]).double()), torch.tensor(Y[:6]).long()).backward()
    optimizer.step()
    for p in twin.parameters():
        p.grad.zero_()
    optimizer.step()
    for mine, other in zip(weights(model), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.reshape(other.shape), other.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_that_is_not_finite_changes_nothing(case):
    model = net()
    trainer = gl.Trainer(model, optimizer=CASES[case][0](0.02))
    trainer.step(X[:6], Y[:6])
    before, moments = weights(model), [p.numpy() for kept in trainer.state.values() for p in kept.values()]
    with pytest.raises(gl.NonFiniteError):
        trainer.step(np.full((6, 5), np.inf, np.float32), Y[:6])
    after = [p.numpy() for kept in trainer.state.values() for p in kept.values()]
    assert all(np.array_equal(a, b) for a, b in zip(before + moments, weights(model) + after, strict=True))
    assert trainer.steps == 1


@pytest.mark.parametrize("case", CASES)
def test_saved_and_loaded_it_goes_on_to_the_bit(case):
    def run(model, optimizer, first, last):
        for x, y in list(batches())[first:last]:
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(model(gl.tensor(x)), gl.tensor(y))
            optimizer.step(tape.backward(loss))

    ours, rate = CASES[case][0], schedules.Cosine(0.02, steps=40)
    whole, first, second = net(), net(), net()
    run(whole, ours(rate, parameters=whole.parameters()), 0, 10)
    begun = ours(rate, parameters=first.parameters())
    run(first, begun, 0, 5)
    second.load_state_dict(first.state_dict())
    again = ours(rate, parameters=second.parameters())
    again.load_state_dict(begun.state_dict())
    run(second, again, 5, 10)
    assert all(np.array_equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    forgotten = net()
    forgotten.load_state_dict(first.state_dict())
    run(forgotten, ours(rate, parameters=forgotten.parameters()), 5, 10)
    assert not all(np.array_equal(a, b) for a, b in zip(weights(whole), weights(forgotten), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_state_of_a_run_goes_on_to_the_bit(case):
    def made(model):
        return gl.Trainer(model, optimizer=CASES[case][0](schedules.Cosine(0.02, steps=40)), accumulate=2)

    def run(trainer, first, last):
        for x, y in list(batches())[first:last]:
            trainer.step(x, y)

    whole, first, second = net(), net(), net()
    run(made(whole), 0, 12)
    begun, again = made(first), made(second)
    run(begun, 0, 5)  # inside of a window
    again.train_state.load(begun.train_state.collect())
    run(again, 5, 12)
    assert all(np.array_equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))


def test_lion_moves_nowhere_where_nothing_pushes():
    """sign(0) is 0, whatever the sign of that 0."""
    w = gl.parameter(np.ones(3), name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", optim.Lion(lr=0.5))
    trainer.step([np.array([0.0, -0.0, 2.0], np.float32)])
    np.testing.assert_array_equal(w.numpy(), [1.0, 1.0, 0.5])


def test_what_cannot_be():
    with refused("nesterov", True, place="SGD", momentum=...):
        optim.SGD(nesterov=True)
    with refused("momentum", 0.5, place="RMSprop"):
        optim.RMSprop().momentum = 0.5
    with refused("alpha", 1.0, place="RMSprop"):
        optim.RMSprop(alpha=1.0)
    with refused("beta2_decay", 0.1, need="a finite number of at m", place="Adafactor"):
        optim.Adafactor(beta2_decay=0.1)
    with refused("d", 0.5, need="a finite number of at least 1", place="Adafactor"):
        optim.Adafactor(d=0.5)
    with refused("adjust_lr_fn", "none", place="Muon"):
        optim.Muon(adjust_lr_fn="none")
    with pytest.raises(
        gl.SettingError, match=r"Muon: \S+ has shape \[\S+\]; need matrices .* and for the rest groups="
    ):
        gl.Trainer(net(), optimizer=optim.Muon()).step(X[:6], Y[:6])
    with refused("centered", "yes", place="RMSprop"):
        optim.RMSprop(centered="yes")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (optim.SGD(momentum=0.9), optim.SGD(momentum=0.9, nesterov=True)),
        (optim.RMSprop(), optim.RMSprop(decoupled_weight_decay=True)),
        (optim.AdamW(), optim.AdamW(no_decay="norms_and_biases")),
    ],
)
def test_the_state_of_another_rule_is_refused(one, other):
    states = [gl.Trainer(net(), optimizer=each).train_state for each in (one, other)]
    with pytest.raises(gl.TrainError, match="load: optimizer: (flags=|groups is missing)"):
        states[1].load(states[0].collect())
