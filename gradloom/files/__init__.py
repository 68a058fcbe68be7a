"""Files: whole or not at all when written, checked when read."""

from .arrays import load_arrays, need_finite, not_finite, save_arrays
from .atomic import atomic_path, atomic_write, check_target, claim, read_together, refuse_input, together
from .gguf import GGUF, open_gguf, write_gguf

__all__ = [
    "GGUF",
    "atomic_path",
    "atomic_write",
    "check_target",
    "claim",
    "load_arrays",
    "need_finite",
    "not_finite",
    "open_gguf",
    "read_together",
    "refuse_input",
    "save_arrays",
    "together",
    "write_gguf",
]
