"""Rows of token ids with an id to predict at each position, through gl.fit."""

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, nn
from gradloom.train.class_weight import weights_of_classes


class Tagger(nn.Module):
    """Embedding and one linear layer: ids i32 [N, T] -> logits [N, T, classes]."""

    def __init__(self, tokens: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.embedding(x))


def rows(n: int = 60, length: int = 7, tokens: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, tokens, (n, length)).astype(np.int32)
    return x, (x * 3 % 5).astype(np.int32)


def test_a_label_for_each_position_is_learned():
    x, y = rows()
    y[:, 0] = -100  # the first position never counts
    history = gl.fit(
        Tagger(20, 5), (x, y), optimizer=gl.optim.AdamW(lr=0.05), epochs=20, batch_size=16, micro_batch_size=5,
        val_split=0.2, progress=False,
    )  # fmt: skip
    last = history[-1]
    assert last.train.loss < 0.05 and last.val.accuracy == 1.0
    assert last.train.counted == 48 * 6 and last.val.counted == 12 * 6
    assert last.val.predictions.shape == (12 * 7,)


def test_micro_batches_agree_with_the_whole():
    x, y = rows(12)
    found = []
    for micro in (12, 5):
        net = Tagger(20, 5).init(1)
        gl.fit(
            net, (x, y), optimizer=gl.optim.SGD(lr=1.0), epochs=3, batch_size=12, micro_batch_size=micro, progress=False
        )
        found.append(net.state_dict())
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=2e-6)


def test_an_id_beyond_the_classes_names_its_row():
    x, y = rows(10)
    y[7, 3] = 9
    with pytest.raises(DataError, match=r"labels: id 9 in row 7; need 0\.\.4 for 5 classes"):
        gl.fit(Tagger(20, 5), (x, y), batch_size=5, progress=False)


def weighted_loss(outputs, labels, weights):
    return gl.ops.cross_entropy_pair(outputs, labels, weights)


@pytest.mark.parametrize("loss", ["cross_entropy", weighted_loss])
@pytest.mark.parametrize("micro", [12, 5])
def test_weights_of_rows_weigh_each_label_of_their_row(loss, micro, backend):
    """Loss and SGD steps are those of PyTorch on sum(w[row] * loss[label]) / sum(w[row] of the labels that count)."""
    torch = pytest.importorskip("torch")
    x, y = rows(12)
    y[0, 2:], y[4] = -100, -100
    weights = np.random.default_rng(1).uniform(0.1, 5, 12).astype(np.float32)
    weights[7] = 0
    net, data = Tagger(20, 5).init(1), gl.data.Dataset(x, y, weights=weights)
    embedding, head = torch.nn.Embedding(20, 16).double(), torch.nn.Linear(16, 5).double()
    with torch.no_grad():
        embedding.weight.copy_(torch.tensor(net.embedding.weight.numpy()))
        head.weight.copy_(torch.tensor(net.head.weight.numpy()))
        head.bias.copy_(torch.tensor(net.head.bias.numpy()))
    every = torch.tensor(np.where(y == -100, 0, weights[:, None]).astype(np.float64))

    def mean():
        losses = torch.nn.functional.cross_entropy(
            head(embedding(torch.tensor(x))).permute(0, 2, 1), torch.tensor(y).long(), reduction="none"
        )
        return (losses * every).sum() / every.sum()

    measured = gl.evaluate(net, data, loss=loss, batch_size=micro, backend=backend)
    np.testing.assert_allclose(measured.loss, mean().item(), rtol=1e-6)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        mean().backward()
        optimizer.step()
    gl.fit(
        net, data, loss=loss, optimizer=gl.optim.SGD(lr=1.0), epochs=3, batch_size=12, micro_batch_size=micro,
        progress=False, backend=backend,
    )  # fmt: skip
    np.testing.assert_allclose(net.head.weight.numpy(), head.weight.detach().numpy(), rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(net.embedding.weight.numpy(), embedding.weight.detach().numpy(), rtol=1e-5, atol=2e-6)


def test_weights_of_rows_are_heeded_in_validation_beside_class_weights():
    x, y = rows(40)
    weights = np.random.default_rng(1).uniform(0.1, 5, 40).astype(np.float32)
    net, data = Tagger(20, 5).init(1), gl.data.Dataset(x, y, weights=weights)
    (epoch,) = gl.fit(net, data, class_weight="balanced", val_split=0.2, epochs=1, batch_size=8, progress=False)
    _, held = data.split(0.2, 0)
    logits = gl.predict(net, x[held]).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, y[held][..., None], -1)[..., 0]
    table = weights_of_classes("balanced", data, data.split(0.2, 0)[0])
    each = weights[held][:, None] * np.where(y[held] < 0, 0.0, table[np.maximum(y[held], 0)])
    np.testing.assert_allclose(epoch.val.loss, np.average(losses, weights=each), rtol=1e-6)


def test_weights_of_rows_weigh_each_number_of_their_target():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 9, 4, 3)).astype(np.float32)
    weights = rng.uniform(0.1, 5, 9).astype(np.float32)
    measured = gl.evaluate(lambda v: v * 1.0, gl.data.Dataset(x, y, weights=weights), loss="mse", batch_size=4)
    expected = np.average(np.square(x.astype(np.float64) - y).mean((1, 2)), weights=weights)
    np.testing.assert_allclose(measured.loss, expected, rtol=1e-6)
