"""Image transforms of gl.data.ImageFolder: flips, crops, rotations, colours, erasing, mixing, normalisation.

A transform is a frozen dataclass with two methods: `train(x, draws)` for rows of a training pass, and `evaluate(x)` for
all other rows. x is u8 [n, channels, height, width], or f32 in 0..1 from the first transform that computes fractions;
the transform owns it and may write to it. Random numbers depend on (seed, epoch, position of the transform, row) alone:
batches, threads, ranks and resumed runs see the same images. A transform of your own is a subclass of Transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.habits import missing_name
from .base import Draws, Transform
from .geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomRotation, RandomVerticalFlip
from .mixing import CutMix, MixUp
from .pixels import ColorJitter, Normalize, RandomErasing

__all__ = [
    "ColorJitter", "CutMix", "Draws", "MixUp", "Normalize", "RandomCrop", "RandomErasing", "RandomHorizontalFlip",
    "RandomResizedCrop", "RandomRotation", "RandomVerticalFlip", "Transform",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
