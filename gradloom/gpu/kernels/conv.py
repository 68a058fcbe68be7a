"""Convolution and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from ..calls import Arg, Call, Dispatch, groups_for
from .table import kernel


def _words(call: Call, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
    """The words of wgsl/conv.wgsl, from the shapes of images, kernels and results."""
    return (*x[1:], *y[1:], *w[2:], *(n for name in ("stride", "padding", "dilation") for n in call.attrs[name]))


def _forward(call: Call) -> list[Dispatch]:
    x, w, bias, y = call.args
    value = "z + at_2(o)" if bias.present else "z"
    defines = {"FINISH": f"relu({value})" if call.attrs["act"] == "relu" else value}
    words = _words(call, x.shape, w.shape, y.shape)
    return _each(("conv", "conv_forward"), "conv", call.args, y, words, defines)


def _back_input(call: Call) -> list[Dispatch]:
    g, w, dx = call.args
    return _each(("conv_back_input",), "conv_back_input", call.args, dx, _words(call, dx.shape, w.shape, g.shape), {})


def _each(
    files: tuple[str, ...], entry: str, args: tuple[Arg, ...], output: Arg, words: tuple[int, ...],
    defines: dict[str, str],
) -> list[Dispatch]:  # fmt: skip
    """A thread per number of the output."""
    return [Dispatch(files, entry, args, groups_for(output.size), words, defines)] if output.size else []


def _back_weight(call: Call) -> list[Dispatch]:
    g, x, dw, db = call.args
    words = (*_words(call, x.shape, dw.shape, g.shape), g.shape[0])
    files = ("tree", "conv", "conv_back_weight")
    made = [Dispatch(files, "conv_back_weight", call.args, dw.size, words)] if dw.present and dw.size else []
    return [*made, Dispatch(files, "conv_back_bias", call.args, db.size, words)] if db.present and db.size else made


kernel("conv2d", "f32", _forward)
kernel("conv2d_back_input", "f32", _back_input)
kernel("conv2d_back_weight", "f32", _back_weight)
