"""GGUF files by hand, byte for byte, so that they can also be wrong."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    """One key; `value` is bytes, or a text of kind STRING."""
    return text(name) + struct.pack("<I", kind) + (text(value) if isinstance(value, str) else value)


def tensor(name, sizes, kind, offset):
    """One record; sizes as in the file, the fastest axis first."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def head(tensors, keys, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, keys)


def model(keys=(), tensors=(), data=b"", alignment=32, version=3):
    """A whole file: records, padding, data."""
    file = head(len(tensors), len(keys), version) + b"".join(keys) + b"".join(tensors)
    return file + bytes(-len(file) % alignment) + data if tensors else file


SMALL = model(
    [
        key("general.architecture", STRING, "llama"),
        key("llama.block_count", U32, struct.pack("<I", 2)),
        key("names", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("") + text("ü")),
        key("scores", ARRAY, struct.pack("<IQ", F32, 2) + struct.pack("<2f", 0.5, -1)),
        key(
            "deep",
            ARRAY,
            struct.pack("<IQ", ARRAY, 2) + struct.pack("<IQ3B", U8, 3, 1, 2, 3) + struct.pack("<IQ", STRING, 0),
        ),
        key("flag", BOOL, b"\1"),
    ],
    [tensor("w", (4, 2), 0, 0), tensor("q", (32, 1), 8, 32), tensor("b", (3,), 30, 96)],
    struct.pack("<8f", *range(8)) + bytes(34 + 30) + bytes(6) + bytes(26),
)
