"""Shape ops of ONNX, of values and of known arrays."""

from __future__ import annotations

import math

import numpy as np

from .. import ops
from ..graph.value import Value
from .import_nodes import MAX_RANK, OnnxNode, Operand, axes_of, check_size, is_known, known, value_of, whole_numbers


def shape_of(node: OnnxNode, x: Operand) -> np.ndarray:
    return np.array(np.shape(x) if is_known(x) else x.shape, np.int64)[node.get("start", 0) : node.get("end")]


def reshape(node: OnnxNode, x: Operand, shape: Operand) -> Operand:
    wanted = whole_numbers(node, shape, "shape")
    if not node.get("allowzero", 0):
        if any(n == 0 and i >= len(x.shape) for i, n in enumerate(wanted)):
            raise node.fault(f"shape {wanted!s:.60} copies an extent that the input does not have")
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if len(wanted) > MAX_RANK:
        raise node.fault(f"shape {wanted!s:.60}; need at most {MAX_RANK} axes")
    try:
        return x.reshape(tuple(wanted)) if isinstance(x, np.ndarray) else ops.reshape(x, wanted)
    except ValueError:
        raise node.fault(f"shape {list(x.shape)} as {wanted!s:.60}; need equal numbers of elements") from None


def flatten(node: OnnxNode, x: Operand) -> Operand:
    axis = node.get("axis", 1)
    axis += len(x.shape) if axis < 0 else 0
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def transpose(node: OnnxNode, x: Operand) -> Operand:
    return x.transpose(tuple(node.get("perm", tuple(range(len(x.shape)))[::-1])))


def squeeze(node: OnnxNode, x: Operand, axes: Operand = None) -> Operand:
    found = axes_of(node, x, axes)
    found = [axis for axis, n in enumerate(x.shape) if n == 1] if found is None else found
    if any(x.shape[axis] != 1 for axis in found):
        raise node.fault(f"axes {found} of shape {list(x.shape)}; need extents of 1")
    return x.reshape(tuple(n for axis, n in enumerate(x.shape) if axis not in found))


def unsqueeze(node: OnnxNode, x: Operand, axes: Operand = None) -> Operand:
    count = len(node.get("axes") or whole_numbers(node, axes, "axes")) + len(x.shape)
    if count > MAX_RANK:
        raise node.fault(f"makes {count} axes; need at most {MAX_RANK}")
    found = axes_of(node, x, axes, count) or []
    extents = iter(x.shape)
    return x.reshape(tuple(1 if axis in found else next(extents) for axis in range(count)))


def concat(node: OnnxNode, *given: Operand) -> Operand:
    axis = node.get("axis", 0)
    if is_known(*given):
        return np.concatenate([np.atleast_1d(x) for x in given], axis)
    return ops.concat([value_of(x) for x in given], axis)


def split(node: OnnxNode, x: Operand, sizes: Operand = None) -> list[Operand]:
    axis, count = node.get("axis", 0) % max(len(x.shape), 1), len(node.outputs)
    found = node.get("split") if sizes is None else whole_numbers(node, sizes, "split")
    if found is None:
        each = -(-x.shape[axis] // count)
        found = [min(each, x.shape[axis] - i * each) for i in range(count)]
    if sum(found) != x.shape[axis] or min(found) < 0 or len(found) != count:
        raise node.fault(f"sizes {list(found)!s:.60} of an axis of {x.shape[axis]}; need sizes that add up")
    if is_known(x):
        return np.split(x, np.cumsum(found)[:-1], axis)
    return list(ops.split(x, list(found), axis))


def sliced(node: OnnxNode, x: Operand, starts: Operand = None, ends: Operand = None, axes: Operand = None,
           steps: Operand = None) -> Operand:  # fmt: skip
    first = node.get("starts") if starts is None else whole_numbers(node, starts, "starts")
    last = node.get("ends") if ends is None else whole_numbers(node, ends, "ends")
    found = axes_of(node, x, axes)
    found = list(range(len(first))) if found is None else found
    by = [1] * len(first) if steps is None else whole_numbers(node, steps, "steps")
    if not len(first) == len(last) == len(found) == len(by) or 0 in by:
        raise node.fault(f"starts {first!s:.40}, ends {last!s:.40}; requires {len(found)} numbers each")
    cuts = [slice(None)] * len(x.shape)
    for axis, a, b, s in zip(found, first, last, by, strict=True):
        cuts[axis] = slice(a, None if s < 0 and b < -(1 << 31) else b, s)
    return x[tuple(cuts)]


def expand(node: OnnxNode, x: Operand, shape: Operand) -> Operand:
    try:
        wanted = np.broadcast_shapes(x.shape, tuple(whole_numbers(node, shape, "shape")))
    except ValueError:
        raise node.fault(
            f"shape {list(x.shape)} to {np.asarray(shape).tolist()!s:.60}: they do not broadcast"
        ) from None
    check_size(node, wanted)
    return np.broadcast_to(x, wanted) if is_known(x) else ops.broadcast_to(x, wanted)


def tile(node: OnnxNode, x: Operand, times: Operand) -> Operand:
    found = whole_numbers(node, times, "repeats")
    if len(found) != len(x.shape):
        raise node.fault(f"repeats {found!s:.60}; need {len(x.shape)} of them")
    check_size(node, [n * k for n, k in zip(x.shape, found, strict=True)])
    return np.tile(x, found) if is_known(x) else ops.repeat(x, found)


def pad(node: OnnxNode, x: Value, pads: Operand = None, value: Operand = None, axes: Operand = None) -> Value:
    mode = node.get("mode", b"constant")
    if mode not in _PAD_MODES:
        node.need(mode=b"constant")
    sizes = node.get("pads") if pads is None else whole_numbers(node, pads, "pads")
    found = axes_of(node, x, axes) or list(range(len(x.shape)))
    if len(sizes) != 2 * len(found):
        raise node.fault(f"pads {list(sizes)!s:.60}; need {2 * len(found)} of them")
    pairs = [(0, 0)] * len(x.shape)
    for i, axis in enumerate(found):
        pairs[axis] = sizes[i], sizes[i + len(found)]
    check_size(node, [n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True)])
    number = node.get("value", 0.0) if value is None else float(known(node, value, "the value").reshape(()))
    return ops.pad(x, pairs, number) if mode == b"constant" else ops.pad(x, pairs, mode=_PAD_MODES[mode])


_PAD_MODES = {b"constant": "constant", b"reflect": "reflect", b"edge": "replicate", b"wrap": "circular"}


def gather(node: OnnxNode, x: Operand, ids: Operand) -> Operand:
    axis = node.get("axis", 0) % max(len(x.shape), 1)
    if is_known(ids):
        ids = np.asarray(ids)
        if ids.size and (int(ids.min()) < -x.shape[axis] or int(ids.max()) >= x.shape[axis]):
            raise node.fault(f"positions beyond an axis of {x.shape[axis]}")
        ids = np.where(ids < 0, ids + x.shape[axis], ids)
        if is_known(x):
            check_size(node, (*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))
            return np.take(x, ids, axis)
        if ids.ndim == 0:
            place = [slice(None)] * axis + [int(ids)]
            return x[tuple(place)]
    order = [axis, *(a for a in range(len(x.shape)) if a != axis)]
    front = x if axis == 0 else value_of(x).transpose(*order)
    made = ops.embedding(value_of(front), value_of(ids))
    count = len(ids.shape)
    if axis == 0:
        return made
    return made.transpose(*range(count, count + axis), *range(count), *range(count + axis, made.ndim))


def gather_elements(node: OnnxNode, x: Operand, ids: Operand) -> Value:
    axis = node.get("axis", 0) % max(len(x.shape), 1)
    if is_known(ids):
        ids = np.where(ids < 0, ids + x.shape[axis], ids)
    return ops.gather(value_of(x), value_of(ids), axis)


def trilu(node: OnnxNode, x: Operand, k: Operand = None) -> Value:
    by = 0 if k is None else int(known(node, k, "k").reshape(()))
    return (ops.triu if node.get("upper", 1) else ops.tril)(value_of(x), by)


def cumsum(node: OnnxNode, x: Operand, axis: Operand) -> Value:
    at, value = int(known(node, axis, "the axis").reshape(())), value_of(x)
    turned = ops.flip(value, at) if node.get("reverse", 0) else value
    made = ops.cumsum(turned, at)
    made = ops.sub(made, turned) if node.get("exclusive", 0) else made
    return ops.flip(made, at) if node.get("reverse", 0) else made


def constant_of_shape(node: OnnxNode, shape: Operand) -> np.ndarray:
    wanted = whole_numbers(node, shape, "shape")
    check_size(node, wanted)
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(-1)
    return np.full(wanted, value[0], value.dtype)


def whole_range(node: OnnxNode, start: Operand, limit: Operand, step: Operand) -> np.ndarray:
    a, b, s = (known(node, one, "a limit").reshape(()) for one in (start, limit, step))
    count = math.ceil((float(b) - float(a)) / float(s)) if s else -1
    check_size(node, [count if s else -1] if count > 0 or not s else [0])
    return np.asarray(a + np.arange(max(count, 0)) * s, a.dtype)
