"""DLPack: memory shared with other array libraries, through NumPy's implementation of the protocol.

NumPy has no bf16 of its own. Arrays of it are exchanged as 16-bit whole numbers, and the type code in the capsule is
replaced (structs of dlpack.h, DLPack 1.0).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .arguments import as_bool, what_is
from .arrays import as_array
from .dtypes import bf16, u8
from .errors import DTypeError

CPU = (1, 0)  # kDLCPU, device 0
_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)  # NumPy: max_version=, copy=
_TYPE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}  # bytes before code (u8), bits (u8), lanes (u16) of the dtype
_UNSIGNED, _BFLOAT = 1, 4  # type codes


def exported(array: np.ndarray, place: str, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """The capsule of an array, read-only where the array is.

    Versions of DLPack before 1.0 cannot mark memory as read-only: their consumers get a copy of a read-only array.
    Raises BufferError for another device, for a stream, and for copy=False where only a copy is possible.
    """
    if dl_device is not None and tuple(dl_device) != CPU:
        raise BufferError(f"{place}: dl_device={tuple(dl_device)}; need {CPU}, the CPU, where its numbers are")
    if stream not in (None, -1):
        raise BufferError(f"{place}: stream={stream!r:.60}; need None, since the CPU has no streams")
    is_bf16 = array.dtype == bf16.numpy
    shared: np.ndarray = array.view(np.uint16) if is_bf16 else array
    if _HAS_VERSIONS and max_version is not None and max_version[0] >= 1:
        capsule = shared.__dlpack__(max_version=tuple(max_version), copy=copy)
    else:
        if copy is False and not shared.flags.writeable:
            raise BufferError(f"{place}: read-only, which DLPack before 1.0 cannot state; need copy=None or copy=True")
        capsule = (shared.copy() if copy or not shared.flags.writeable else shared).__dlpack__()
    if is_bf16:
        _change_type(capsule, _UNSIGNED, _BFLOAT)
    return capsule


def imported(x: Any, place: str, copy: bool | None) -> np.ndarray:
    """The memory of an object with `__dlpack__` as an array; a copy where it is on another device, or if copy=True.

    Raises DTypeError for an object without the protocol, for numbers that NumPy does not know, and for copy=False where
    only a copy is possible.
    """
    if copy is not None:
        as_bool("copy", copy, place)
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise DTypeError(f"{place}: {what_is(x)} has no __dlpack__; need an array of NumPy, PyTorch, JAX, ...")
    source = _Source(x, place, copy)
    try:
        array: np.ndarray = np.from_dlpack(source)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        without = " without a copy" if copy is False else ""
        raise DTypeError(f"{place}: {what_is(x)} cannot be read{without}: {reason}") from None
    if source.is_bf16:
        array = array.view(bf16.numpy)
    elif array.dtype.kind == "b":
        array = array.view(u8.numpy)
    return array.copy() if copy and not source.has_copied else array


def array_of(place: str, tensor: Any) -> np.ndarray:
    """The numbers of an array or of a tensor of another library, without a copy where that is possible."""
    if isinstance(tensor, np.ndarray) or not hasattr(tensor, "__dlpack__"):
        return as_array(place, tensor)
    if getattr(tensor, "requires_grad", False):  # of PyTorch
        tensor = tensor.detach()
    if getattr(tensor, "is_cpu", True) is False:
        tensor = tensor.cpu()
    return imported(tensor, place, None)


class _Source:
    """An object whose capsule NumPy can read. is_bf16: it holds bf16. has_copied: the producer made a copy."""

    def __init__(self, x: Any, place: str, copy: bool | None) -> None:
        self.x, self.place, self.copy = x, place, copy
        self.is_bf16 = self.has_copied = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **options: Any) -> Any:
        kind, number = (int(part) for part in self.x.__dlpack_device__())
        if kind != CPU[0]:  # only a producer of DLPack 1.0 copies between devices
            if self.copy is False:
                raise BufferError(f"its numbers are on device ({kind}, {number}), not on the CPU")
            capsule = self.x.__dlpack__(max_version=(1, 0), dl_device=CPU, copy=True)
            self.has_copied = True
        else:
            if self.copy is False and options:
                options["copy"] = False
            try:
                capsule = self.x.__dlpack__(**options)
            except TypeError:  # a producer of an older DLPack
                capsule = self.x.__dlpack__()
        self.is_bf16 = _change_type(capsule, _BFLOAT, _UNSIGNED)
        return capsule


_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _change_type(capsule: Any, before: int, after: int) -> bool:
    """Replace the type code in a capsule of 16-bit numbers; whether it had this one."""
    name = _name(capsule)
    start = _pointer(capsule, name)
    if name not in _TYPE_AT or start is None:
        return False
    found = (ctypes.c_uint8 * 2).from_address(start + _TYPE_AT[name])
    if (found[0], found[1]) != (before, 16):
        return False
    found[0] = after
    return True
