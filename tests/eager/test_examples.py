"""The examples of the eager style reach on real data what gl.fit reaches with the same model."""

from pathlib import Path

import pytest

import gradloom as gl
from examples import eager_iris, eager_mnist

nn = gl.nn
DATA = Path(__file__).parents[3] / "shared" / "data"


def need(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {DATA}")
    return path


def test_iris(capsys):
    path = need("tabular/iris.csv")
    reached = [eager_iris.main([str(path), "--seed", str(seed)]) for seed in range(2)]
    for seed, accuracy in enumerate(reached):
        table = gl.data.read_table(path, seed=seed)
        net = nn.Sequential(nn.Linear(4, 32, activation="relu"), nn.Linear(32, 3)).init(seed)
        gl.fit(net, table.train, optimizer=gl.optim.Adam(lr=1e-2), epochs=60, batch_size=32, seed=seed, progress=False)
        expected = gl.evaluate(net, table.test).accuracy
        assert accuracy >= 0.9 and abs(accuracy - expected) <= 1.01 / 30
    assert "accuracy on 30 held-out flowers" in capsys.readouterr().out


def test_mnist(capsys):
    path = need("mnist")
    epochs, rows = 2, 20000
    accuracy = eager_mnist.main([str(path), "--epochs", str(epochs), "--train-rows", str(rows)])
    table = gl.data.read_table(path)
    x, y = table.train.data[:rows], table.train.labels[:rows]
    net = eager_mnist.build(float(x.mean()), float(x.std()), 0)
    steps = epochs * rows // 100
    optimizer = gl.optim.AdamW(lr=lambda step, epoch: 2e-3 * (1 - step / steps), weight_decay=0.01)
    gl.fit(net, (x, y), optimizer=optimizer, epochs=epochs, batch_size=100, progress=False)
    expected = gl.evaluate(net, table.test).accuracy
    assert accuracy > 0.95 and abs(accuracy - expected) < 0.006
    assert "epoch 2: loss" in capsys.readouterr().out
