"""The device of modules, in programs on several devices."""

from __future__ import annotations

from typing import Any, TypeVar

from ..graph.scope import device_there, on_device

ASSIGNED = "_device"  # the attribute of a module that `to` sets: it decides no numbers, so no checkpoint holds it

M = TypeVar("M", bound="OnDevice")


class OnDevice:
    """The part of a module that knows its device."""

    _device: str | None = None

    def to(self: M, device: str | None) -> M:
        """Assign this module, all modules below it, and their arrays to a device, in programs on
        several devices (gl.compile(devices=), docs/devices.md); None removes the assignment. Returns the module.

        device: "cpu", "gpu", "gpu:1". Nothing is copied now. The gradients of the module's nodes run there as well, and
        so do the updates of its parameters. For nested modules the innermost decides, whichever was assigned last for
        it. Takes effect when the next graph is built. SettingError for an invalid name, and for a device that is not
        there."""
        tree: Any = self
        name = None if device is None else device_there("to", device)
        for module in tree.modules():
            module._device = name
        for _, parameter, _ in tree.named_stored():
            parameter.stored.device = name
        return self

    def forward_there(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, on the assigned device."""
        module: Any = self
        if self._device is None:
            return module.forward(*args, **kwargs)
        with on_device(self._device):
            return module.forward(*args, **kwargs)
