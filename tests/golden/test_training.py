"""Ten losses of a run with fixed seeds, as they were when they were written down.

GRADLOOM_UPDATE_GOLDEN=1 writes them anew, from the float64 references.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from tests.core.harness import isas

FILE = Path(__file__).with_name("mlp_losses.json")


def losses(**options):
    """An MLP with dropout and layer norm on made-up classes: ten epochs, micro-batches, a validation part."""
    rng = np.random.Generator(np.random.Philox(key=7))
    centres = rng.standard_normal((4, 12)) * 1.5
    y = rng.integers(0, 4, 150)
    x = (centres[y] + rng.standard_normal((150, 12))).astype(np.float32)
    nn = gl.nn
    net = nn.Sequential(nn.Linear(12, 24, activation="relu"), nn.LayerNorm(24), nn.Dropout(0.2), nn.Linear(24, 4))
    history = gl.fit(
        net, (x, y), optimizer=gl.optim.AdamW(lr=lambda step, epoch: 3e-3 * 0.9**epoch, weight_decay=0.01), epochs=10,
        batch_size=32, micro_batch_size=20, val_split=0.1, seed=11, progress=False, **options,
    )  # fmt: skip
    return {"train": [h.train.loss for h in history], "validation": [h.val.loss for h in history]}


@pytest.fixture(scope="module")
def golden():
    if os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1":
        FILE.write_text(json.dumps(losses(backend="numpy"), indent=1) + "\n")
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("options", [{"backend": "numpy"}, *({"isa": isa} for isa in isas())], ids=str)
def test_losses(golden, options):
    found = losses(**options)
    tolerance = 1e-6 if "backend" in options else 1e-5
    for part, expected in golden.items():
        assert len(expected) == 10
        np.testing.assert_allclose(found[part], expected, rtol=tolerance, err_msg=part)
    assert golden["train"][-1] < 0.6 * golden["train"][0]
