"""Rows of token ids with an id to predict at each position, through gl.fit."""

import numpy as np
import pytest

import gradloom as gl
from gradloom import DataError, nn


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
