"""Files: whole or not at all when written, checked when read."""

from .arrays import load_arrays, load_metadata, need_finite, save_arrays
from .atomic import atomic_path, atomic_write, check_new_folder, claim, new_folder, read_together, together
from .gguf import GGUF, open_gguf
from .gguf_writer import write_gguf
from .targets import check_target, names_folder, refuse_input

__all__ = [
    "GGUF",
    "atomic_path",
    "atomic_write",
    "check_new_folder",
    "check_target",
    "claim",
    "load_arrays",
    "load_metadata",
    "names_folder",
    "need_finite",
    "new_folder",
    "open_gguf",
    "read_together",
    "refuse_input",
    "save_arrays",
    "together",
    "write_gguf",
]
