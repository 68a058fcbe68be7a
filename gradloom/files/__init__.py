"""Files: whole or not at all when written, checked when read."""

from .arrays import load_arrays, need_finite, save_arrays
from .atomic import atomic_path, atomic_write, check_writable, refuse_input
from .gguf import GGUF, open_gguf, write_gguf

__all__ = [
    "GGUF",
    "atomic_path",
    "atomic_write",
    "check_writable",
    "load_arrays",
    "need_finite",
    "open_gguf",
    "refuse_input",
    "save_arrays",
    "write_gguf",
]
