"""Where modules are said to run, by programs that several devices compute."""

from __future__ import annotations

from typing import Any, TypeVar

from ..graph.scope import device_there, on_device

SAID = "_device"  # the attribute of a module that `to` sets: it decides no numbers, so no checkpoint holds it

M = TypeVar("M", bound="OnDevice")


class OnDevice:
    """The part of a module that knows its device."""

    _device: str | None = None

    def to(self: M, device: str | None) -> M:
        """Say that this module and all below it run on a device, and that their arrays lie there, in programs of
        several devices (gl.compile(devices=), docs/devices.md); None takes it back. Returns the module.

        device: "cpu", "gpu", "gpu:1". Nothing is copied now. The gradients of the module's nodes run there, too, as do
        the updates of its parameters. Of modules inside one another the innermost decides, whichever was said last
        for it. Takes effect where a graph is built next. SettingError for what is no name, and for a device that is
        not there.
        """
        tree: Any = self
        name = None if device is None else device_there("to", device)
        for module in tree.modules():
            module._device = name
        for _, parameter, _ in tree.named_stored():
            parameter.stored.device = name
        return self

    def forward_there(self, *args: Any, **kwargs: Any) -> Any:
        """`forward`, on the device that was said."""
        module: Any = self
        if self._device is None:
            return module.forward(*args, **kwargs)
        with on_device(self._device):
            return module.forward(*args, **kwargs)
