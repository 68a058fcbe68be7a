"""GB/s of f32 written by dequantisation of whole tensors: ours, ggml's own (out of llama-cpp-python), the gguf package.

    python bench/dequantise.py [--elements 16777216] [--rounds 5] [--types q8_0,q4_k]

One and two threads for ours, one for the others; medians of rounds in turn. ggml is called through ctypes where the
package llama-cpp-python is installed. The bits of all three are compared first.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.random_gguf import TYPES, ggml_type, random_tensor


class Traits(ctypes.Structure):
    """ggml.h: struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("block_interleaved", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantised", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )


def ggml() -> ctypes.CDLL | None:
    """The library that llama-cpp-python brings, None where it is not installed."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(str(Path(found.origin).parent / "lib" / "libggml-base.so"))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--types", default=",".join(t for t in TYPES if t != "f32"))
    args = parser.parse_args()
    library, shape = ggml(), (args.elements // 4096, 4096)
    lines = []
    for kind in args.types.split(","):
        data = np.ascontiguousarray(random_tensor(shape, kind, 0.02, (0, 0))).view(np.uint8)
        outs, ways = contenders(library, kind, data, shape)
        for run in ways.values():
            run()
        first = outs["gguf"]
        for name, out in outs.items():
            assert out.tobytes() == first.tobytes(), f"{kind}: {name} and gguf differ"
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
        rates = {name: 4e-9 * args.elements / statistics.median(t) for name, t in times.items()}
        lines.append((kind, *(f"{rates[n]:.2f}" if n in rates else "-" for n in NAMES)))
    table(lines, ("GB/s of f32", *NAMES))


NAMES = ("gradloom, 1", "gradloom, 2", "ggml", "gguf")


def contenders(
    library: ctypes.CDLL | None, kind: str, data: np.ndarray, shape: tuple[int, ...]
) -> tuple[dict[str, np.ndarray], dict[str, Callable[[], object]]]:
    """Where each writes to, and what to call."""
    import gguf

    from gradloom.run import dequantize

    outs = {name: np.zeros(shape, np.float32) for name in NAMES if library is not None or name != "ggml"}

    def package() -> None:
        outs["gguf"][...] = gguf.quants.dequantize(data, ggml_type(kind)).reshape(shape)

    ways: dict[str, Callable[[], object]] = {
        "gradloom, 1": lambda: dequantize(data, kind, shape, out=outs["gradloom, 1"], threads=1),
        "gradloom, 2": lambda: dequantize(data, kind, shape, out=outs["gradloom, 2"], threads=2),
        "gguf": package,
    }
    if library is not None:
        to_float = library.ggml_get_type_traits(int(ggml_type(kind))).contents.to_float
        size = int(np.prod(shape))
        ways["ggml"] = lambda: to_float(data.ctypes.data, outs["ggml"].ctypes.data, size)
    return outs, ways


if __name__ == "__main__":
    main()
