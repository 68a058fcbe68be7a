"""Files: whole or not at all when written, checked when read."""

from .arrays import load_arrays, save_arrays
from .atomic import atomic_path, atomic_write, check_writable

__all__ = ["atomic_path", "atomic_write", "check_writable", "load_arrays", "save_arrays"]
