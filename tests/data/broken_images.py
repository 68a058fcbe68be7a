"""Image files that are damaged, odd or hostile, drawn by number: (name, bytes, whether it must be usable)."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

FORMATS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tif": "TIFF", "ppm": "PPM"}
NAMES = (
    "plain",
    "with space",
    "line\nfeed",
    "escape\x1b[31m",
    "ümläut",
    "-dash",
    "quote'\"",
    "très\u202eevil",
    "a" * 200,
)


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(rng, mode="RGB", size=(20, 16)):
    noise = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8).astype(np.uint8))
    return noise.convert(mode)


def png(width, height, body=b""):
    """A PNG with this header; body: of the compressed pixels."""

    def part(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", body) + part(b"IEND", b"")


def truncated(rng):
    suffix = list(FORMATS)[rng.integers(len(FORMATS))]
    content = encoded(picture(rng), FORMATS[suffix])
    return suffix, content[: rng.integers(0, int(len(content) * 0.9))], None


def flipped(rng):
    suffix = list(FORMATS)[rng.integers(len(FORMATS))]
    content = bytearray(encoded(picture(rng), FORMATS[suffix]))
    for _ in range(rng.integers(1, 20)):
        content[rng.integers(len(content))] = rng.integers(256)
    return suffix, bytes(content), None


def noise(rng):
    return "png", rng.bytes(int(rng.integers(0, 3000))), False


def bomb(rng):
    """A small file whose header has up to 2**31 pixels on a side."""
    side = int(2 ** rng.uniform(14, 30))
    if rng.random() < 0.5:
        return "png", png(side, side, zlib.compress(bytes(10_000))), False
    return "bmp", b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0), False


def wrong_suffix(rng):
    names = list(FORMATS)
    return names[rng.integers(len(names))], encoded(picture(rng), FORMATS[names[rng.integers(len(names))]]), True


def tiny(rng):
    return "png", encoded(picture(rng, size=(1, 1)), "PNG"), True


def thin(rng):
    return "png", encoded(picture(rng, size=(1, int(rng.integers(1, 500)))), "PNG"), True


def animated(rng):
    kind = ("GIF", "WEBP", "PNG", "TIFF")[rng.integers(4)]
    frames = [picture(rng) for _ in range(3)]
    return kind.lower(), encoded(frames[0], kind, save_all=True, append_images=frames[1:]), True


def mode(rng):
    name, kind = (("CMYK", "JPEG"), ("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("1", "PNG"), ("YCbCr", "JPEG"))[
        rng.integers(6)
    ]
    return kind.lower(), encoded(picture(rng, name), kind), True


def deep(rng):
    """16 bits, 32 bits beyond them, or floating-point numbers."""
    which = rng.integers(3)
    if which == 0:
        values = rng.integers(0, 65536, (9, 9), np.uint16)
        return "png", encoded(Image.fromarray(values), "PNG"), True
    values = rng.integers(1 << 20, 1 << 30, (9, 9), np.int32) if which == 1 else rng.random((9, 9), np.float32)
    return "tif", encoded(Image.fromarray(values), "TIFF"), False


def text_bomb(rng):
    """A PNG whose text takes 200 MB once it is unpacked."""
    body = encoded(picture(rng), "PNG")
    text = b"k\0\0" + zlib.compress(bytes(1 << 20) * 200, 9)
    part = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    return "png", body[:33] + part + body[33:], None


MAKERS = (truncated, flipped, noise, bomb, wrong_suffix, tiny, thin, animated, mode, deep)


def draw(number):
    """(name of the file, bytes, whether it must be usable, must not be, or None: either)."""
    rng = np.random.default_rng(number)
    suffix, content, usable = MAKERS[number % len(MAKERS)](rng)
    return f"{NAMES[rng.integers(len(NAMES))]} {number}.{suffix}", content, usable
