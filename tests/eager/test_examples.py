"""The eager style on real data: the examples reach what gl.fit reaches with the same model; a language model trains."""

import numpy as np
import pytest

import gradloom as gl
from examples import eager_iris, eager_mnist
from tests.real_data import need

nn = gl.nn


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


@pytest.mark.slow
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


def test_an_adapter_of_a_language_model():
    """The gradients of LoRA in a tape are those of the graph, bit for bit, and the loss falls."""
    model = gl.llm.load(need("gguf/stories260K.gguf"))
    adapter = gl.llm.LoRA(rank=4, alpha=8, targets=("attn_q", "attn_v"), seed=0)
    adapter.bind(model)
    params = list(adapter.parameters().values())
    rng = np.random.default_rng(0)
    for p in params:
        p.assign(rng.standard_normal(p.shape) * 0.1)
    b, t = 2, 24
    tokens = rng.integers(3, 400, (b, t)).astype(np.int32)
    positions = np.tile(np.arange(t, dtype=np.int32), (b, 1))
    labels = np.concatenate((tokens[:, 1:], np.full((b, 1), -100)), 1).astype(np.int32).reshape(-1)

    def loss_of(tokens, positions, labels):
        total, weight = model.loss_pair(model.hidden(tokens, positions, adapter, training=True), labels)
        return total / weight

    shapes = {"tokens": (b, t), "positions": (b, t), "labels": (b * t,)}
    graph = loss_of(*[gl.input(name, shape, "i32") for name, shape in shapes.items()])
    expected = gl.compile([graph, *gl.gradients(graph, params)])(tokens=tokens, positions=positions, labels=labels)
    opt, losses = gl.optim.AdamW(params, lr=1e-2), []
    for step in range(10):
        with gl.grad_tape() as tape:
            loss = loss_of(gl.tensor(tokens), gl.tensor(positions), gl.tensor(labels))
        grads = tape.backward(loss)
        if step == 0:
            assert float(loss) == expected[0]
            for p, g in zip(params, expected[1:], strict=True):
                np.testing.assert_array_equal(grads[p].numpy(), g)
        opt.step(grads)
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
