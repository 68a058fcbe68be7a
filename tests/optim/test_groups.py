"""Parameter groups: settings by patterns of names, against PyTorch's param_groups and against separate optimisers."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import SGD, AdamW, Lion, schedules
from tests.refused import refused
from tests.train.small_models import mlp
from tests.train.split_training import on_ranks, train

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 5)).astype(np.float32), RNG.integers(0, 3, 48).astype(np.int32)
GROUPS = [{"match": "*.bias", "weight_decay": 0.0}, {"match": "1.*", "lr": 0.001, "beta1": 0.5}]


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 3)).init(1)


def named(model):
    return {name: p.numpy() for name, p in model.named_parameters().items()}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def fit(model, optimizer, **options):
    return gl.fit(model, (X, Y), optimizer=optimizer, epochs=2, batch_size=8, seed=3, progress=False, **options)


def loop(model, optimizer, steps=12):
    """A loop of one's own; the parameters after it."""
    for i in range(steps):
        rows = slice(8 * (i % 6), 8 * (i % 6) + 8)
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        optimizer.step(tape.backward(loss))
    return named(model)


def test_groups_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    model = net()
    twin = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    with torch.no_grad():
        for p, mine in zip(twin.parameters(), model.parameters(), strict=True):
            p.copy_(torch.tensor(mine.numpy().reshape(p.shape)))
    cosine = schedules.Cosine(0.05, steps=10)
    groups = [*GROUPS, {"match": "0.*", "lr": cosine, "eps": 1e-2}]
    optimizer = AdamW(model.named_parameters(), lr=0.01, eps=1e-3, weight_decay=0.3, groups=groups)
    other = torch.optim.AdamW(
        [
            {"params": [twin[0].bias, twin[2].bias], "weight_decay": 0.0},
            {"params": [twin[2].weight], "lr": 0.001, "betas": (0.5, 0.999)},
            {"params": [twin[0].weight], "eps": 1e-2},
        ],
        lr=0.01, eps=1e-3, weight_decay=0.3,
    )  # fmt: skip
    for i in range(12):
        rows = slice(8 * (i % 6), 8 * (i % 6) + 8)
        other.param_groups[2]["lr"] = cosine(i, 0)
        other.zero_grad()
        outputs = twin(torch.tensor(X[rows]).double())
        torch.nn.functional.cross_entropy(outputs, torch.tensor(Y[rows]).long()).backward()
        other.step()
    loop(model, optimizer)
    for p, mine in zip(twin.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy().reshape(p.shape), p.detach().numpy(), rtol=2e-4, atol=2e-5)


def test_a_group_of_the_same_settings_gives_the_same_bits():
    plain, grouped = net(), net()
    fit(plain, AdamW(lr=0.01, weight_decay=0.1))
    fit(grouped, AdamW(lr=0.01, weight_decay=0.1, groups=[{"match": "1.*", "lr": 0.01}]))
    assert same(named(plain), named(grouped))


@pytest.mark.parametrize("setting", [{"lr": 0.0}, {"weight_decay": 0.9}, {"beta2": 0.1}, {"eps": 1.0}])
def test_each_setting_changes_its_group_alone(setting):
    plain, grouped = net(), net()
    trainer = [gl.Trainer(m, optimizer=o) for m, o in (
        (plain, AdamW(lr=0.01)), (grouped, AdamW(lr=0.01, groups=[{"match": "1.weight", **setting}]))
    )]  # fmt: skip
    for t in trainer:
        t.step(X[:8], Y[:8])
        t.step(X[8:16], Y[8:16])
    before, after = named(plain), named(grouped)
    assert not np.array_equal(before["1.weight"], after["1.weight"])
    if "lr" in setting:
        np.testing.assert_array_equal(after["1.weight"], named(net())["1.weight"])


def test_fit_trainer_and_eager_loop_agree():
    """With a schedule in a group, to the bit."""
    groups = [{"match": "0.*", "lr": schedules.Cosine(0.05, steps=10)}, {"match": ["*.bias"], "weight_decay": 0.0}]
    ends = []
    for how in ("fit", "step", "eager", "named"):
        model = net()
        if how in ("fit", "step"):
            trainer = gl.Trainer(model, optimizer=AdamW(lr=0.01, weight_decay=0.1, groups=groups))
            if how == "fit":
                for _ in range(2):
                    gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=8)
                trainer.epoch = 0
            else:
                for i in range(12):
                    trainer.step(X[8 * (i % 6) : 8 * (i % 6) + 8], Y[8 * (i % 6) : 8 * (i % 6) + 8])
        else:
            given = model.parameters() if how == "eager" else model.named_parameters()
            loop(model, AdamW(given, lr=0.01, weight_decay=0.1, groups=groups))
        ends.append(named(model))
    assert all(same(ends[0], other) for other in ends[1:])


def test_the_first_group_that_matches_wins():
    model, other = net(), net()
    groups = [{"match": "0.bias", "lr": 0.0}, {"match": "0.*", "lr": 0.5}]
    loop(model, SGD(model.parameters(), lr=0.1, groups=groups))
    assert np.array_equal(named(model)["0.bias"], named(other)["0.bias"])
    assert not np.array_equal(named(model)["0.weight"], named(other)["0.weight"])


def test_no_decay_spares_norms_and_biases():
    class Net(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = self.parameter((7, 4), lambda rng, shape: rng.standard_normal(shape))
            self.norm = self.parameter((4,), lambda rng, shape: np.ones(shape))
            self.head = gl.nn.Linear(4, 3)

        def forward(self, ids):
            return self.head(gl.ops.get_rows(self.embedding, ids) * self.norm)

    ids, labels = np.zeros(4, np.int32), np.full(4, -100, np.int32)  # no row counts: decay alone
    moved = {}
    for case, groups in {"plain": [], "group": [{"match": "head.bias", "weight_decay": 0.1}]}.items():
        model = Net().init(0)
        model.head.bias.assign(np.ones(model.head.bias.shape))
        before = named(model)
        optimizer = SGD(lr=1.0, weight_decay=0.5, no_decay="norms_and_biases", groups=groups)
        gl.Trainer(model, optimizer=optimizer).step(ids, labels)
        moved[case] = {name: (array / before[name]).min() for name, array in named(model).items()}
    assert moved["plain"]["embedding"] == 0.5 and moved["plain"]["head.weight"] == 0.5
    assert moved["plain"]["norm"] == 1 and moved["plain"]["head.bias"] == 1
    assert moved["group"]["head.bias"] == np.float32(0.9)  # a group that states it has its way
    with refused("no_decay", "bias", need="norms_and_biases", place="SGD"):
        SGD(no_decay="bias")


def test_a_group_without_a_decay_of_its_own_spares_them_too():
    model = net()
    for p in model.parameters():
        p.assign(np.ones(p.shape))
    optimizer = SGD(lr=1.0, weight_decay=0.5, no_decay="norms_and_biases", groups=[{"match": "1.*", "lr": 0.1}])
    gl.Trainer(model, optimizer=optimizer).step(X[:4], np.full(4, -100, np.int32))
    after = {name: array.flat[0] for name, array in named(model).items()}
    assert after == {"0.weight": 0.5, "0.bias": 1.0, "1.weight": np.float32(0.95), "1.bias": 1.0}


def test_an_optimiser_of_its_own():
    """Matrices by SGD with a momentum, the rest by Lion: as two optimisers side by side."""
    model, other = net(), net()
    rest = Lion(lr=0.01, weight_decay=0.1)
    one = SGD(model.named_parameters(), lr=0.1, momentum=0.9, groups=[{"match": "*.bias", "optimizer": rest}])
    loop(model, one)
    biases = [p for name, p in other.named_parameters().items() if name.endswith("bias")]
    matrices = [p for name, p in other.named_parameters().items() if name.endswith("weight")]
    two = [SGD(matrices, lr=0.1, momentum=0.9), Lion(biases, lr=0.01, weight_decay=0.1)]
    for i in range(12):
        rows = slice(8 * (i % 6), 8 * (i % 6) + 8)
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(other(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        grads = tape.backward(loss)
        for each in two:
            each.step(grads)
    assert same(named(model), named(other))


def test_settings_of_a_group_are_read_and_set():
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.01, groups=GROUPS)
    assert optimizer.groups[1].lr == 0.001 and optimizer.settings["1.*.lr"] == 0.001
    assert optimizer.groups[1].eps == optimizer.eps == 1e-8
    before = loop(model, optimizer, 2)
    optimizer.groups[1].lr = 0.0
    after = loop(model, optimizer, 2)
    assert np.array_equal(before["1.weight"], after["1.weight"])
    assert not np.array_equal(before["1.bias"], after["1.bias"])
    with pytest.raises(gl.SettingError, match=r"AdamW: eps is not a setting of this group, which has lr, beta1"):
        optimizer.groups[1].eps = 0.5
    with refused("lr", -1, place="AdamW"):
        optimizer.settings["1.*.lr"] = -1


def test_a_plateau_in_a_group_remembers_and_is_saved():
    def optimizer(model):
        return SGD(model.parameters(), lr=0.1, groups=[{"match": "1.*", "lr": schedules.Plateau(0.1, 0.5, 0)}])

    model = net()
    opt = optimizer(model)
    for loss in (1.0, 2.0, 3.0):
        opt.observe(loss)
    assert opt.state.settings()["opt.1.*.lr"] == 0.025 and opt.state.settings()["opt.lr"] == 0.1
    again = optimizer(net())
    again.load_state_dict(opt.state_dict())
    assert again.state.settings() == opt.state.settings()


def test_saved_and_loaded_it_goes_on_to_the_bit():
    def make(model):
        groups = [{"match": "*.bias", "optimizer": Lion(lr=0.01)}, {"match": "1.*", "lr": 0.02}]
        return AdamW(model.named_parameters(), lr=0.01, groups=groups)

    whole, first, second = net(), net(), net()
    expected = loop(whole, make(whole), 6)  # rows 0..48, then again
    opt = make(first)
    loop(first, opt, 6)
    second.load_state_dict(first.state_dict())
    again = make(second)
    again.load_state_dict(opt.state_dict())
    assert same(expected, named(second))
    opt = make(whole := net())
    expected = loop(whole, opt, 12)
    assert same(expected, loop(second, again, 6))
    plain = AdamW(net().named_parameters())
    with pytest.raises(gl.GraphError, match="load: the state is of AdamW, Lion, this optimiser is AdamW"):
        plain.load_state_dict(opt.state_dict())


def test_the_state_of_a_run_tells_the_groups():
    def state(groups):
        trainer = gl.Trainer(net(), optimizer=AdamW(lr=0.01, groups=groups))
        trainer.step(X[:8], Y[:8])
        return trainer.train_state.digest("optimizer")

    one = state(GROUPS)
    assert one == state(GROUPS) and one != state(GROUPS[::-1]) and one != state([])


def test_dp_train_heeds_groups():
    samples = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 48, 4)]

    def train(replicas, groups):
        result = gl.dp_train(
            net, samples, loss_fn=gl.ops.cross_entropy, replicas=replicas, iterations=4,
            optimizer=SGD(lr=0.1, groups=groups),
        )  # fmt: skip
        return named(result.model)

    still = train(2, [{"match": "0.*", "lr": 0.0}])
    assert np.array_equal(still["0.weight"], named(net())["0.weight"])
    assert not np.array_equal(still["1.weight"], named(net())["1.weight"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"match": "bias", "lr": 0.1}], r"AdamW: groups\[0\]: 'bias' matches no parameter; did you mean 1.bias\?"),
        ([{"match": "0.*", "lr": 0.1}, {"match": "0.bias", "lr": 0.2}], r"groups\[1\]: earlier groups have all"),
        (
            [{"match": "0.*", "rate": 0.1}],
            r"groups\[0\]: rate is not a setting of AdamW; must be one of match, optimizer, lr",
        ),
        ([{"match": "0.*", "weightdecay": 0.1}], r"did you mean weight_decay\?"),
        ([{"match": "0.*", "lr": -1}], "AdamW: lr=-1: must be"),
        ([{"match": "0.*"}], r"groups\[0\] must have a setting"),
        ([{"lr": 0.1}], r"groups\[0\] is a dict with lr; must be a dict such as"),
        ([{"match": 3, "lr": 0.1}], r"groups\[0\]: match=3: must be"),
        ([{"match": "0.*", "lr": 0.1}, {"match": "0.*", "lr": 0.2}], "an earlier group has the same patterns"),
        ([{"match": "0.*", "optimizer": AdamW, "lr": 1}], r"groups\[0\]: optimizer is the class AdamW"),
        ([{"match": "0.*", "optimizer": SGD(), "lr": 1}], "optimizer cannot be combined with other settings"),
        ({"match": "0.*", "lr": 0.1}, "AdamW: groups is a dict; must be a list of dicts"),
    ],
)
def test_groups_that_are_refused(groups, message):
    with pytest.raises(gl.SettingError, match=message):
        gl.Trainer(net(), optimizer=AdamW(groups=groups))


def test_names_that_are_missing():
    model = gl.nn.Sequential(gl.nn.Linear(5, 8), gl.nn.Linear(8, 3))  # never drawn: its parameters have no paths yet
    with pytest.raises(gl.SettingError, match=r"several have the same name, .* use model.named_parameters\(\)"):
        AdamW(model.parameters(), groups=[{"match": "bias", "lr": 0.1}])
    AdamW(model.named_parameters(), groups=[{"match": "1.bias", "lr": 0.1}])
    w = gl.parameter(np.ones(3), name="w")
    trainer = gl.Trainer(lambda x: x * w, "sum", AdamW(groups=[{"match": "v", "lr": 0.1}]))
    with pytest.raises(gl.SettingError, match="'v' matches no parameter; parameters: w"):
        trainer.step([np.ones(3, np.float32)])


def test_a_frozen_group_may_thaw():
    """A pattern of frozen parameters is no mistake: they may be thawed."""
    model = net()
    second = model[1].parameters()
    for p in second:
        p.trainable = False
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.1, groups=[{"match": "1.*", "lr": 0.0}]))
    trainer.step(X[:8], Y[:8])
    for p in second:
        p.trainable = True
    trainer.step(X[:8], Y[:8])
    assert np.array_equal(named(model)["1.weight"], named(net())["1.weight"])


@pytest.mark.parametrize("kind", ["groups", "muon", "lion"])
def test_ranks_take_the_same_steps(kind):
    def optimizer():
        if kind == "groups":
            groups = [{"match": "*.bias", "lr": schedules.Cosine(0.05, steps=10)}]
            return AdamW(lr=0.01, weight_decay=0.1, no_decay="norms_and_biases", groups=groups)
        if kind == "lion":
            return Lion(lr=0.01, weight_decay=0.1)
        return gl.optim.Muon(lr=0.02, groups=[{"match": "not_2d", "optimizer": AdamW(lr=0.01)}])

    def run(ranks):
        return train(mlp, ranks, 16, optimizer=optimizer(), max_value=0.01)

    (one,) = on_ranks(1, run)
    assert on_ranks(2, run) == [one] * 2
    assert one[0] != train(mlp, None, 16)[0]


def test_ranks_refuse_different_groups():
    def run(ranks):
        rate = 0.01 * (1 + ranks.rank)
        return train(mlp, ranks, 16, optimizer=AdamW(groups=[{"match": "*.bias", "lr": rate}]))

    assert any("lr" in str(error) and isinstance(error, gl.TrainError) for error in on_ranks(2, run))

    def other(ranks):
        return train(mlp, ranks, 16, optimizer=SGD(momentum=0.9, nesterov=bool(ranks.rank)))

    assert all(isinstance(error, gl.TrainError) for error in on_ranks(2, other))


@pytest.mark.parametrize("groups", [[{"match": "norms_and_biases", "lr": 0.1}], [{"match": "not_2d", "lr": 0.1}]])
def test_a_word_that_matches_no_parameter_is_refused(groups):
    model = gl.nn.Linear(3, 2, bias=False).init(0)
    word = groups[0]["match"]
    with pytest.raises(gl.SettingError, match=word):
        SGD(model.named_parameters(), groups=groups)
    with pytest.raises(gl.SettingError, match=word):
        gl.Trainer(model, optimizer=SGD(groups=groups))


def test_no_decay_without_norms_and_biases_is_refused():
    model = gl.nn.Linear(3, 2, bias=False).init(0)
    with pytest.raises(gl.SettingError, match="no_decay"):
        gl.Trainer(model, optimizer=AdamW(weight_decay=0.1, no_decay="norms_and_biases"))


def test_an_optimiser_that_trains_nothing_is_refused():
    """Its rate would have no effect, however the groups are written."""
    others = (
        [{"match": "*", "optimizer": AdamW(lr=0.1)}],
        [{"match": "*", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}],
    )
    for groups in others:
        with pytest.raises(gl.SettingError, match="no effect"):
            SGD(net().named_parameters(), lr=0.5, groups=groups)
        with pytest.raises(gl.SettingError, match="no effect"):
            gl.Trainer(net(), optimizer=SGD(lr=0.5, groups=groups))
    SGD(net().named_parameters(), lr=0.5, groups=[{"match": "*", "lr": 0.1}])  # the rest is read
