"""Rows of label -100 and of weight 0 do not count; what happens where no row does."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 3)).astype(np.float32)
IDS = RNG.integers(0, 2, 24)


def net():
    return gl.nn.Linear(3, 2).init(0)


def without(rows, kind):
    """The data with these rows left out, by label or by weight."""
    if kind == "labels":
        return gl.data.Dataset(X, np.where(np.isin(np.arange(24), rows), -100, IDS))
    return gl.data.Dataset(X, IDS, weights=~np.isin(np.arange(24), rows))


@pytest.mark.parametrize("kind", ["labels", "weights"])
def test_no_row_counts(backend, kind):
    """DataError, and nothing has moved."""
    model = net()
    before = model.weight.numpy()
    for call in (gl.fit, gl.evaluate):
        with pytest.raises(DataError, match=r"data: no row of 24 counts .*; need at least one row that counts"):
            data = (X, np.full(24, -100)) if kind == "labels" else without(np.arange(24), kind)
            call(model, data, backend=backend)
    rows = gl.data.Dataset(X, IDS).split(0.25, 0)
    for part, name in zip(rows, ("training", "evaluation"), strict=True):
        with pytest.raises(DataError, match=f"{name} rows: no row of {len(part)} counts"):
            gl.fit(model, without(part, kind), optimizer=gl.optim.AdamW(lr=0.1, weight_decay=0.5), val_split=0.25,
                   progress=False, backend=backend)  # fmt: skip
    np.testing.assert_array_equal(model.weight.numpy(), before)


@pytest.mark.parametrize("kind", ["labels", "weights"])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_batch_without_a_row_that_counts_is_a_step_with_gradient_0(backend, kind, name):
    """As in PyTorch with gradients of zeros: decay and moments take part, and the step is counted."""
    torch = pytest.importorskip("torch")
    settings = {"lr": 0.1, "weight_decay": 0.5} | ({"momentum": 0.9} if name == "SGD" else {})
    model = net()
    theirs = torch.nn.Linear(3, 2)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(model.weight.numpy()))
        theirs.bias.copy_(torch.tensor(model.bias.numpy()))
    trainer = gl.Trainer(model, optimizer=getattr(gl.optim, name)(**settings), accumulate=1, backend=backend)
    gl.epoch(trainer, without(np.arange(8, 16), kind), result := gl.train.Result(), batch_size=8)
    assert trainer.steps == 3 and np.isfinite(result.loss) and result.counted == 16
    if name == "SGD":  # decoupled here: the decay comes first
        other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    else:
        other = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.5)
    for at in (0, 8, 16):
        other.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            theirs(torch.tensor(X[at : at + 8])), torch.tensor(IDS[at : at + 8]), reduction="mean"
        )
        (loss * (at != 8)).backward()
        if name == "SGD":
            with torch.no_grad():
                for p in theirs.parameters():
                    p.mul_(1 - 0.1 * 0.5)
        other.step()
    for mine, its in ((model.weight, theirs.weight), (model.bias, theirs.bias)):
        np.testing.assert_allclose(mine.numpy(), its.detach().numpy(), rtol=1e-5, atol=1e-6)
