"""The network for images: blocks of convolution, normalisation, ReLU and pooling, and one linear layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import nn
from ..base.errors import SettingError
from ..base.memory import need_memory, show_bytes
from ..data.encoding.preprocess import Preprocess

DROPOUT = 0.2  # of the features of the last layer
_LARGE, _SMALL = 5000, 16  # training rows from which on, and pixels of a side up to which, the network is wider
_FIRST, _WIDE_FIRST, _MOST = 16, 32, 256  # channels of the first block, and at most


def channels_for(shape: Sequence[int], rows: int) -> list[int]:
    """The default channels of the blocks: blocks halve the image until its shorter side has 2 to 5 pixels, and double
    the channels. shape: [channels, height, width]; rows: of the training."""
    side = min(shape[1:])
    blocks = min(max(int(math.log2(max(side / 3, 1))), 2), int(math.log2(side)))
    first = _WIDE_FIRST if rows >= _LARGE or side <= _SMALL else _FIRST
    return [min(first << block, _MOST) for block in range(blocks)]


def convolutional(preprocess: Preprocess, channels: Sequence[int], dropout: float) -> nn.Sequential:
    """Features of images -> logits f32 [n, classes], or standardised targets: of files pixels f32 [n, channels, height,
    width], of arrays their elements f32 [n, features].

    channels: of each block, which halves height and width. SettingError for more blocks than the image can be halved,
    and where the free memory is too small."""
    shape = preprocess.image_shape
    assert shape is not None
    found, height, width = shape
    if min(height, width) >> len(channels) < 1:
        need = f"at most {int(math.log2(min(height, width)))} blocks for images of {height} x {width}"
        raise SettingError(setting="hidden", seen=list(channels), need=need)
    layers: list[nn.Module] = [nn.Standardize(np.float32(preprocess.mean), np.float32(preprocess.std))]
    if preprocess.kind == "array":
        layers.append(nn.Unflatten(1, preprocess.shape))
        if tuple(preprocess.shape) != shape:  # the channels are last
            layers.append(nn.Permute((0, 3, 1, 2)))
    count = 0
    for made in channels:
        count += 9 * found * made
        found, height, width = made, height // 2, width // 2
    count += found * height * width * preprocess.outputs
    what = f"channels {','.join(map(str, channels)):.80}: {count:,} parameters need {show_bytes(16 * count)} of memory"
    need_memory(16 * count, f"{what} to train", "need fewer")
    found = shape[0]
    for made in channels:
        conv = nn.Conv2d(found, made, 3, padding="same", bias=False)
        layers += [conv, nn.BatchNorm(made), nn.ReLU(), nn.MaxPool2d(2)]
        found = made
    layers.append(nn.Flatten())
    if dropout:
        layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(found * height * width, preprocess.outputs))
    return nn.Sequential(*layers)
