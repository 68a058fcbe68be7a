"""The end of a step: rules of optimisers, sums, averages, the norm of the gradients and the guard. One dispatch per
group of arrays; a rule writes in place."""

from __future__ import annotations

from dataclasses import replace

from ...base.dtypes import f32
from ..calls import NOTHING, Arg, Call, Dispatch, groups_for
from .table import Rule, Workspace, kernel

# The body of a group's update. a: scalars and the group's arrays by name; set(name, value) writes.
BODIES = {
    "sgd": """
  let decay = fma(-a(lr), a(weight_decay), 1.0);
  var step = slope_of(b(g), a(weight));
  if (has(m)) {
    step = fma(a(momentum), b(m), step);
    set(m, step);
  }
  set(w, b(w) * decay - a(lr) * step);""",
    "sgd_nesterov": """
  let decay = fma(-a(lr), a(weight_decay), 1.0);
  let slope = slope_of(b(g), a(weight));
  let moved = fma(a(momentum), b(m), slope);
  set(m, moved);
  set(w, b(w) * decay - a(lr) * fma(a(momentum), moved, slope));""",
    "adamw": """
  let slope = slope_of(b(g), a(weight));
  let mean = fma(a(beta1), b(m), (1.0 - a(beta1)) * slope);
  let spread = fma(a(beta2), b(v), (1.0 - a(beta2)) * slope * slope);
  let rate = a(lr) / unbiased(a(beta1), a(step));
  let decay = fma(-a(lr), a(weight_decay), 1.0);
  set(m, mean);
  set(v, spread);
  set(w, b(w) * decay - rate * mean / (sqrt(spread / unbiased(a(beta2), a(step))) + a(eps)));""",
    "lion": """
  let slope = slope_of(b(g), a(weight));
  let old = b(m);
  let way = fma(a(beta1), old, (1.0 - a(beta1)) * slope);
  let decay = fma(-a(lr), a(weight_decay), 1.0);
  set(m, fma(a(beta2), old, (1.0 - a(beta2)) * slope));
  set(w, b(w) * decay - select(signed(a(lr), way), 0.0, way == 0.0));""",
    "rmsprop": """
  let slope = slope_of(b(g), a(weight));
  var spread = fma(a(alpha), b(v), (1.0 - a(alpha)) * slope * slope);
  set(v, spread);
  if (has(a)) {
    let mean = fma(a(alpha), b(a), (1.0 - a(alpha)) * slope);
    set(a, mean);
    spread = max(spread - mean * mean, 0.0);
  }
  var step = slope / (sqrt(spread) + a(eps));
  if (has(m)) {
    step = fma(a(momentum), b(m), step);
    set(m, step);
  }
  let decay = fma(-a(lr), a(weight_decay), 1.0);
  set(w, b(w) * decay - a(lr) * step);""",
    "average": """
  let old = b(mean);
  set(mean, fma(1.0 - a(decay), keep(b(w) - old), old));""",
    "accumulate": """
  if (a(keep) != 0.0) { set(acc, b(acc) + b(g)); } else { set(acc, b(g)); }""",
    "zero": """
  set(acc, 0.0);""",
    "assign": """
  set(state, b(x));""",
}
PIECE = 16384  # elements of a gradient that one workgroup takes


def _update(op: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        spec = call.node.op
        names = [s.name for s in spec.inputs]
        fixed, size = spec.fixed_inputs, spec.group_size
        scalars, arrays = names[: len(names) - size], names[len(names) - size :]
        given = len(call.node.inputs)
        assert fixed == len(scalars)
        body = BODIES[op]
        for k, name in enumerate(scalars):
            body = body.replace(f"a({name})", f"at_{k}(0u)")
        for k, name in enumerate(arrays, fixed):
            body = body.replace(f"b({name})", f"at_{k}(i)").replace(f"set({name}, ", f"set_{k}(i, ")
            body = body.replace(f"has({name})", f"HAS_{k}")
        written = {names.index(target) for target in spec.updates.values()}
        made = []
        for begin in range(fixed, given, size):
            group = list(call.args[begin : begin + size])
            for k in range(size):
                if fixed + k in written and group[k].present:
                    group[k] = replace(group[k], write=True)
            first = min(written) - fixed
            if group[first].size:
                defines = {"W": str(fixed + first), "BODY": body}
                args = (*call.args[:fixed], *group)
                made.append(
                    Dispatch(("math", "slope", "update"), "update", args, groups_for(group[first].size), (), defines)
                )
        return made

    return rule


def _set_rows(call: Call) -> list[Dispatch]:
    cache, rows, position = call.args[:3]
    axis = call.attrs["axis"]
    inner = 1
    for n in cache.shape[axis + 1 :]:
        inner *= n
    assert position.dtype is not None
    wide = position.dtype.bytes == 8
    low = "at_2(0u)" if wide else "vec2<u32>(bitcast<u32>(at_2(0u)), select(0u, 0xffffffffu, at_2(0u) < 0))"
    words = (inner, rows.shape[axis], cache.shape[axis])
    args = (replace(cache, write=True), rows, position)
    return [Dispatch(("set_rows",), "set_rows", args, groups_for(rows.size), words, {"POSITION": low})]


def _pieces(arrays: tuple[Arg, ...]) -> list[int]:
    """Workgroups, and so sums of squares, of each gradient."""
    return [-(-a.size // PIECE) for a in arrays]


def _norm(first: int) -> tuple[Rule, Workspace]:
    """first: how many scalars come before the gradients; with two of them, the first is the loss and guards the run."""

    def workspace(call: Call) -> int:
        return 4 * max(sum(_pieces(call.args[first : len(call.node.inputs)])), 1)

    def rule(call: Call) -> list[Dispatch]:
        arrays = call.args[first : len(call.node.inputs)]
        norm, sums = call.args[len(call.node.inputs) :]
        made, at = [], 0
        for g, pieces in zip(arrays, _pieces(arrays), strict=True):
            if pieces:
                place = sums.seen_with(f32, (pieces,), at)
                made.append(Dispatch(("tree", "norm_squares"), "squares", (g, place), pieces, (PIECE,)))
                at += pieces
        loss = call[0] if first == 2 else NOTHING
        args = (norm, sums.seen_with(f32, (at,)), call[first - 1], loss)
        return [*made, Dispatch(("tree", "norm_end"), "norm_end", args, 1)]

    return rule, workspace


for _name in BODIES:
    kernel(_name, "f32", _update(_name))
kernel("set_rows", "f32_i32_f32 f32_i64_f32", _set_rows)
kernel("grad_norm", "f32", *_norm(1))
kernel("guard", "f32", *_norm(2))
