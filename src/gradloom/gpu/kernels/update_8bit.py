"""Rules of optimisers whose moments are kept in 8 bits: one workgroup for each block of 256 elements."""

from __future__ import annotations

from dataclasses import replace

from ..calls import Call, Dispatch
from .table import kernel

# {name}: the number of an argument. Each moment: its old value, then the new one.
_READ = """
  begin_with({lowest}, lane);
  var {name} = 0.0;
  if (here) {{ {name} = value_of(u8_{code}(i), {lowest}) * at_{scale}(block); }}"""
_WRITE = """
  begin_with({lowest}, lane);
  let {name}_most = max_256(lane, abs({name}));
  let {name}_kept = {name}_most >= 1.17549435e-38;
  codes[lane] = 0u;
  if (here && {name}_kept) {{ codes[lane] = code_of(divided({name}, {name}_most), {lowest}); }}
  workgroupBarrier();
  if (runs) {{
    let first = byte_{code}() + begin;
    let at = (first & ~3u) + 4u * lane;  // a word, which may begin before the block
    var bits = 0u;
    var mask = 0u;
    for (var b = 0u; b < 4u; b++) {{
      if (at + b >= first && at + b < first + n) {{
        bits |= codes[at + b - first] << (8u * b);
        mask |= 255u << (8u * b);
      }}
    }}
    if (mask != 0u) {{ put_part_{code}(at >> 2u, bits, mask); }}
    if (lane == 0u) {{ set_{scale}(block, select(0.0, {name}_most, {name}_kept)); }}
  }}"""
_SLOPE = """
  var slope = 0.0;
  if (here) {{ slope = slope_of(at_{g}(i), at_{weight}(0u)); }}"""
_ADAMW = """
  m = fma(at_1(0u), m, (1.0 - at_1(0u)) * slope);
  v = fma(at_2(0u), v, (1.0 - at_2(0u)) * slope * slope);
  if (here && runs) {
    let rate = at_0(0u) / unbiased(at_1(0u), at_5(0u));
    let decay = fma(-at_0(0u), at_4(0u), 1.0);
    set_7(i, at_7(i) * decay - rate * m / (sqrt(v / unbiased(at_2(0u), at_5(0u))) + at_3(0u)));
  }"""
_LION = """
  let way = fma(at_1(0u), m, (1.0 - at_1(0u)) * slope);
  m = fma(at_2(0u), m, (1.0 - at_2(0u)) * slope);
  if (here && runs) {
    let decay = fma(-at_0(0u), at_3(0u), 1.0);
    set_5(i, at_5(i) * decay - select(signed(at_0(0u), way), 0.0, way == 0.0));
  }"""


def _moment(text: str, name: str, lowest: str, code: int) -> str:
    return text.format(name=name, lowest=lowest, code=code, scale=code + 1)


BODIES = {
    "adamw_8bit": (
        7,
        _moment(_READ, "m", "SIGNED", 9)
        + _moment(_READ, "v", "POSITIVE", 11)
        + _SLOPE.format(g=8, weight=6)
        + _ADAMW
        + _moment(_WRITE, "v", "POSITIVE", 11)
        + _moment(_WRITE, "m", "SIGNED", 9),
    ),
    "lion_8bit": (
        5,
        _moment(_READ, "m", "SIGNED", 7) + _SLOPE.format(g=6, weight=4) + _LION + _moment(_WRITE, "m", "SIGNED", 7),
    ),
}


def _update(call: Call) -> list[Dispatch]:
    first, body = BODIES[call.node.op.name]
    args = list(call.args[: len(call.node.inputs)])
    for k in (first, *range(first + 2, len(args))):
        args[k] = replace(args[k], write=True)
    arrays, blocks = args[first + 3].shape
    each = args[first].size // arrays
    # Codes are written by words. Where arrays are not of whole words, neighbouring blocks share some, but never a block
    # and the fourth after it: every fourth block runs at once.
    apart = 1 if each % 4 == 0 else 4
    return [
        Dispatch(
            ("math", "tree", "slope", "update_8bit"),
            "update",
            tuple(args),
            max(1, -(-(arrays * blocks - phase) // apart)),
            (blocks, each, arrays * blocks, apart, phase),
            {"BODY": body},
        )
        for phase in range(min(apart, max(1, arrays * blocks)))
    ]


for _name, _signature in (
    ("adamw_8bit", "f32_u8_f32_u8_f32_u8_f32_u8_f32"),
    ("lion_8bit", "f32_u8_f32_u8_f32"),
):
    kernel(_name, _signature, _update)
