"""Losses that couple the rows of a step, on a GPU: values and joined rows stay there."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from tests.train.test_batch_loss import BATCH, InfoNCE, close, train


@pytest.mark.parametrize("micro", [BATCH, 3])
def test_training(micro: int) -> None:
    close(train(InfoNCE(), micro, device="gpu", threads=None), train(InfoNCE(), micro), rtol=1e-3)


def test_whole_numbers_are_read_back() -> None:
    x, ids = np.ones((8, 4), np.float32), np.arange(8) << 22
    loss = gl.train.BatchLoss.through(lambda outputs, labels: gl.ops.sum(outputs, -1) * gl.ops.cast(labels, "f32"))
    trainer = gl.Trainer(gl.nn.Linear(4, 2), loss, accumulate=2, device="gpu")
    with pytest.raises(gl.DataError, match="need whole numbers below 16777216"):
        gl.epoch(trainer, gl.data.Dataset(x, ids), batch_size=8)
