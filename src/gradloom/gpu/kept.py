"""Kept: an output of a program that stays on its device, to be an input of other programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph.declaration import Spec
from .device import Gpu
from .memory import Memory, read
from .stored import Copies


class Kept:
    """An array on a device that never changes. shape, dtype (NumPy's), nbytes: of the array."""

    def __init__(self, device: Gpu, copies: Copies, spec: Spec) -> None:
        self.device, self.shape, self.dtype, self.nbytes = device, spec.shape, spec.dtype.numpy, spec.bytes
        self.memory = Memory(device, self.nbytes, "a value of the tape")
        self._home: np.ndarray | None = None
        copies.kept.add(self)

    def numpy(self) -> np.ndarray:
        """The numbers, downloaded once: not a copy."""
        if self._home is None:
            with self.device.lock:
                data = read(self.memory, 0, self.nbytes)
            self._home = data.view(self.dtype).reshape(self.shape)
        return self._home

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.numpy(), dtype)
