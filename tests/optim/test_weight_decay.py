"""Weight decay, coupled to the gradient and decoupled from it, against PyTorch."""

import numpy as np
import pytest

import gradloom as gl
from tests.refused import refused

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 40)
optim = gl.optim

CASES = {
    "SGD coupled": (
        lambda **o: optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.2, decoupled_weight_decay=False, **o),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
    ),
    "SGD without momentum": (
        lambda **o: optim.SGD(lr=0.1, weight_decay=0.2, **o),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2),
    ),
    "Adam": (
        lambda **o: optim.Adam(lr=0.05, weight_decay=0.2, eps=1e-3, **o),
        lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.2, eps=1e-3),
    ),
    "Adam decoupled": (
        lambda **o: optim.Adam(lr=0.05, weight_decay=0.2, eps=1e-3, decoupled_weight_decay=True, **o),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2, eps=1e-3),
    ),
    "AdamW": (
        lambda **o: optim.AdamW(lr=0.05, weight_decay=0.2, eps=1e-3, **o),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2, eps=1e-3),
    ),
}


def net():
    return gl.nn.Linear(4, 3).init(0)


def in_torch(make, max_norm=None):
    twin, start = torch.nn.Linear(4, 3), net()
    with torch.no_grad():
        twin.weight.copy_(torch.tensor(start.weight.numpy()))
        twin.bias.copy_(torch.tensor(start.bias.numpy()))
    opt = make(twin.parameters())
    for i in range(0, 40, 10):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(twin(torch.tensor(X[i : i + 10])), torch.tensor(Y[i : i + 10])).backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
        opt.step()
    return twin.weight.detach().numpy()


@pytest.mark.parametrize("how", ["whole", "accumulated", "clipped", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_weight_decay_is_that_of_pytorch(case, how):
    ours, theirs = CASES[case]
    model = net()
    if how == "eager":
        opt = ours(parameters=model.parameters())
        for i in range(0, 40, 10):
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(model(gl.tensor(X[i : i + 10])), gl.tensor(Y[i : i + 10]))
            opt.step(tape.backward(loss))
    else:
        options = {"max_norm": 0.3} if how == "clipped" else {}
        options |= {"accumulate": 4} if how == "accumulated" else {}
        trainer = gl.Trainer(model, optimizer=ours(), **options)
        gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=10)
    expected = in_torch(theirs, 0.3 if how == "clipped" else None)
    np.testing.assert_allclose(model.weight.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_coupled_and_decoupled_differ_where_there_is_a_momentum():
    found = [in_torch(CASES[case][1]) for case in ("SGD coupled", "Adam", "AdamW")]
    model = net()
    trainer = gl.Trainer(model, optimizer=optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.2))
    gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=10)
    assert not np.allclose(model.weight.numpy(), found[0], rtol=1e-2) and not np.allclose(found[1], found[2], rtol=1e-2)


def test_coupled_decay_may_follow_a_schedule_and_needs_its_place_from_the_start():
    model = net()
    opt = optim.Adam(model.parameters(), weight_decay=lambda step, epoch: 0.0)
    twin = net()
    plain = optim.Adam(twin.parameters())
    for one, other in ((model, opt), (twin, plain)):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(one(gl.tensor(X)), gl.tensor(Y))
        other.step(tape.backward(loss))
    np.testing.assert_array_equal(model.weight.numpy(), twin.weight.numpy())
    with refused("weight_decay", 0.1, place="Adam"):
        plain.settings["weight_decay"] = 0.1
    with refused("decoupled_weight_decay", "no", place="SGD"):
        optim.SGD(decoupled_weight_decay="no")


@pytest.mark.parametrize("make", [gl.optim.SGD, gl.optim.Adam])
def test_a_batch_without_weight_decays_in_both_forms(make):
    x, y = np.ones((4, 1), np.float32), np.array([-100, -100, 0, 1], np.int32)
    moved = []
    for decoupled in (True, False):
        net = gl.nn.Linear(1, 2).init(0)
        before = net.weight.numpy()
        trainer = gl.Trainer(net, "cross_entropy", make(lr=0.5, weight_decay=0.5, decoupled_weight_decay=decoupled))
        trainer.step(x[:2], y[:2])
        moved.append(net.weight.numpy() / before)
    assert np.all(moved[0] == 0.75)
    assert np.all(moved[1] < 1) and (make is gl.optim.Adam or np.all(moved[1] == 0.75))
