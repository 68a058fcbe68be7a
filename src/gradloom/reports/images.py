"""Images in a page: rows of a data set as PNG in data URLs."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LARGEST = 128  # pixels of a side that are shown


def is_image(shape: list[int]) -> bool:
    """Whether rows of this shape can be shown: [height, width], or with 1 or 3 channels at the end."""
    return len(shape) in (2, 3) and max(shape[:2]) <= _LARGEST and min(shape[:2]) > 1 and shape[2:] in ([], [1], [3])


def image_url(row: np.ndarray, shape: list[int]) -> str:
    """The data URL of a PNG of one row: bytes as they are, other numbers scaled from their least to their largest."""
    pixels = np.reshape(row, shape)
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = ((pixels - low) / ((high - low) or 1.0) * 255).round().astype(np.uint8)
    colour = 2 if shape[2:] == [3] else 0
    lines = pixels.reshape(shape[0], -1)
    data = zlib.compress(np.concatenate([np.zeros((shape[0], 1), np.uint8), lines], axis=1).tobytes(), 9)
    head = struct.pack(">IIBBBBB", shape[1], shape[0], 8, colour, 0, 0, 0)
    parts = b"".join(_part(name, content) for name, content in ((b"IHDR", head), (b"IDAT", data), (b"IEND", b"")))
    return f"data:image/png;base64,{base64.b64encode(_SIGNATURE + parts).decode()}"


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
