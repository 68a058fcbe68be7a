"""A hundred networks of random layers; `python -m tests.nn.random_networks --count 2000` takes two thousand."""

import pytest

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
COUNT, CHUNK = 100, 5
LAYERS = {
    "Linear", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "GroupNorm", "InstanceNorm", "BatchNorm",
    "LayerNorm", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "MaxPool2d", "Upsample", "Residual", "PReLU",
    "GLU", "RNN", "LSTM", "GRU", "TransformerEncoderLayer",
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_networks_are_those_of_pytorch(first):
    pytest.importorskip("torch")
    from tests.nn.random_networks import check

    for seed in range(first, first + CHUNK):
        check(seed)


def test_all_layers_are_drawn():
    pytest.importorskip("torch")
    from tests.nn.random_networks import drawn

    assert set(LAYERS) <= {name for seed in range(COUNT) for name in drawn(seed)[0].used}
