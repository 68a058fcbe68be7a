"""What a training does not train is named in a warning."""

import warnings

import numpy as np
import pytest

import gradloom as gl

X = np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


class Net(gl.nn.Module):
    """One layer is never used."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = gl.nn.Linear(4, 2), gl.nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


class Whole(Net):
    def forward(self, x):
        return self.used(x) + self.spare(x)


def by_fit(net, **options):
    gl.fit(net, (X, Y), epochs=2, batch_size=10, val_split=0.25, progress=False, **options)


def by_micro_batches(net, **options):
    by_fit(net, micro_batch_size=3, **options)


def by_trainer(net, **options):
    trainer = gl.Trainer(net, **options)
    for rows in (8, 8, 5):
        trainer.step(X[:rows], Y[:rows])


def by_dp_train(net, **options):
    pairs = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)]
    gl.dp_train(lambda: type(net)(), pairs, loss_fn=gl.ops.cross_entropy, replicas=2, iterations=7, **options)


def said(run, *given, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*given, **options)
    return [one for one in caught if issubclass(one.category, UserWarning)]


@pytest.mark.parametrize("run", [by_fit, by_micro_batches, by_trainer, by_dp_train])
def test_a_layer_that_is_not_used_is_named_once(run):
    (one,) = said(run, Net())
    assert "spare.weight" in str(one.message) and "1 more" in str(one.message)
    assert one.filename == __file__
    assert said(run, Whole()) == []


@pytest.mark.parametrize("run", [by_fit, by_trainer])
def test_what_is_frozen_or_left_to_others_is_no_surprise(run):
    assert said(run, Net(), freeze="spare.*") == []
    net = Net()
    assert said(run, net, optimizer=gl.optim.SGD(net.used.parameters(), lr=0.1)) == []
    for p in net.spare.parameters():
        p.trainable = False
    assert said(run, net) == []


def test_an_optimiser_that_was_given_it_warns_too():
    net = Net()
    (one,) = said(by_fit, net, optimizer=gl.optim.SGD(net.parameters(), lr=0.1))
    assert "spare.weight" in str(one.message)


def test_no_epochs_train_nothing():
    net = Whole().init(3)
    before = net.state_dict()
    (one,) = said(gl.fit, net, (X, Y), epochs=0, progress=False)
    assert "epochs=0" in str(one.message)
    assert all(np.array_equal(before[name], array) for name, array in net.state_dict().items())
    assert said(gl.fit, net, (X, Y), epochs=1, progress=False) == []
