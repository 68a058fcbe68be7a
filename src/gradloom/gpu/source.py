"""The module of a kernel: its bindings, accessors of its arguments, the prelude, the files of its family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from ..base.dtypes import DType

FOLDER = Path(__file__).parent / "wgsl"
RECORD_WORDS = 24  # of an argument on the tape
CALL_BYTES = 256  # of a dispatch in the buffer of calls: the least alignment of a dynamic offset
CALL_WORDS = 48  # of it for the kernel
ENTRY = "@builtin(local_invocation_index) lane: u32) {"  # how each one ends
IN_SUBGROUP = ENTRY[:-3] + ", @builtin(subgroup_invocation_id) near: u32) {\n  subgroup_lane = near;"
FIXED = 0  # slot of the buffer with status, settings, constants and inputs

_HEAD = """\
struct Call {{ args: u32, node: u32, groups: u32, zero: u32, words: array<vec4<u32>, 12> }}
@group(0) @binding(0) var<uniform> call: Call;
@group(0) @binding(1) var<storage, read> tape: array<u32>;
@group(0) @binding(2) var<storage, read_write> fixed: array<u32>;
{segments}"""

# One element at an offset, by the size of an element: words of 4 bytes, halves, bytes, pairs of words.
_AT = {
    "f32": ("f32", "return bitcast<f32>(load_{k}(base_{k}() + e));"),
    "i32": ("i32", "return bitcast<i32>(load_{k}(base_{k}() + e));"),
    "i64": ("vec2<u32>", "let w = base_{k}() + 2u * e; return vec2<u32>(load_{k}(w), load_{k}(w + 1u));"),
    "f64": ("f32", "let w = base_{k}() + 2u * e; return from_f64(vec2<u32>(load_{k}(w), load_{k}(w + 1u)));"),
    "f16": ("f32", "return from_f16(half_{k}(e));"),
    "bf16": ("f32", "return from_bf16(half_{k}(e));"),
    "u8": ("i32", "return i32(u8_{k}(e));"),
    "i8": ("i32", "return (i32(u8_{k}(e)) << 24u) >> 24u;"),
}
_SET = {
    "f32": "v: f32) {{ store_{k}(base_{k}() + e, bitcast<u32>(v)); }}",
    "i32": "v: i32) {{ store_{k}(base_{k}() + e, bitcast<u32>(v)); }}",
    "i64": "v: vec2<u32>) {{ let w = base_{k}() + 2u * e; store_{k}(w, v.x); store_{k}(w + 1u, v.y); }}",
}
_ZERO = {"f32": "0.0", "i32": "0", "vec2<u32>": "vec2<u32>(0u, 0u)"}

Slots = tuple[int, ...]  # of an argument: the buffers that it spans, in order; none: it is absent


@lru_cache(maxsize=64)
def file(name: str) -> str:
    return (FOLDER / f"{name}.wgsl").read_text()


def _words(k: int, slots: Slots, words: int) -> dict[str, str]:
    """load_k and store_k: a word counted from the first buffer of argument k. words: of a buffer that others follow."""
    names = ["fixed" if slot == FIXED else f"seg_{slot}" for slot in slots]
    starts = [f"w - {i * words}u" if i else "w" for i in range(len(names))]
    tests = [f"if (w < {(i + 1) * words}u) " for i in range(len(names) - 1)] + [""]
    rows = list(zip(tests, names, starts, strict=True))
    load = " ".join(f"{test}{{ return {name}[{at}]; }}" if test else f"return {name}[{at}];" for test, name, at in rows)
    store = " else ".join(f"{test}{{ {name}[{at}] = v; }}" for test, name, at in rows)
    return {
        f"load_{k}": f"fn load_{k}(w: u32) -> u32 {{ {load} }}",
        f"store_{k}": f"fn store_{k}(w: u32, v: u32) {{ {store} }}",
    }


def _accessors(k: int, slots: Slots, words: int, kind: DType | None) -> dict[str, str]:
    """name -> WGSL of each accessor of argument k; those that others use come first."""
    record = f"tape[call.args + {k * RECORD_WORDS}u + {{}}u]"
    made = {
        f"HAS_{k}": f"const HAS_{k} = {'true' if slots else 'false'};",
        f"base_{k}": f"fn base_{k}() -> u32 {{ return {record.format(4)}; }}",
        f"byte_{k}": f"fn byte_{k}() -> u32 {{ return {record.format(5)}; }}",
        f"size_{k}": f"fn size_{k}() -> u32 {{ return {record.format(3)}; }}",
    }
    if not slots:
        made[f"get_{k}"] = f"fn get_{k}(w: u32) -> u32 {{ return 0u; }}"
        made[f"put_{k}"] = f"fn put_{k}(w: u32, v: u32) {{ }}"
        made[f"put_part_{k}"] = f"fn put_part_{k}(w: u32, v: u32, mask: u32) {{ }}"
        made[f"at_{k}"] = f"fn at_{k}(e: u32) -> f32 {{ return 0.0; }}"
        made[f"set_{k}"] = f"fn set_{k}(e: u32, v: f32) {{ }}"
        return made
    made |= _words(k, slots, words)
    made[f"get_{k}"] = f"fn get_{k}(w: u32) -> u32 {{ return load_{k}(base_{k}() + w); }}"
    made[f"put_{k}"] = f"fn put_{k}(w: u32, v: u32) {{ store_{k}(base_{k}() + w, v); }}"
    made[f"put_part_{k}"] = (
        f"fn put_part_{k}(w: u32, v: u32, mask: u32) {{ let at = base_{k}() + w; "
        f"store_{k}(at, (load_{k}(at) & ~mask) | (v & mask)); }}"
    )
    for name, size, mask in (("half", "2u * e", "0xffffu"), ("u8", "e", "0xffu")):
        made[f"{name}_{k}"] = (
            f"fn {name}_{k}(e: u32) -> u32 {{ let b = byte_{k}() + {size}; "
            f"return (load_{k}(base_{k}() + (b >> 2u)) >> (8u * (b & 3u))) & {mask}; }}"
        )
    assert kind is not None
    if kind.name in _AT:
        result, body = _AT[kind.name]
        made[f"at_{k}"] = f"fn at_{k}(e: u32) -> {result} {{ {body.format(k=k)} }}"
    if kind.name in _SET:
        made[f"set_{k}"] = f"fn set_{k}(e: u32, " + _SET[kind.name].format(k=k)
    return made


def module(
    sources: Sequence[str],
    slots: Sequence[Slots],
    kinds: Sequence[DType | None],
    defines: Mapping[str, str],
    words: int,
    subgroup: int = 0,
) -> str:
    """The WGSL of a kernel. slots, kinds: of each argument. words: of a buffer that others of its memory follow.
    subgroup: threads of one at least; 0: there are none."""
    text = "\n".join(file(name) for name in sources)
    if "tree" in sources:
        text = file("tree_subgroups" if subgroup else "tree_plain").replace("$SUBGROUP", str(subgroup)) + text
        text = text.replace(ENTRY, IN_SUBGROUP) if subgroup else text
    for name, value in sorted(defines.items(), key=lambda item: -len(item[0])):
        text = text.replace("$" + name, value)
    used = set(re.findall(r"\b[A-Za-z0-9_]+_\d+\b", text))
    written: list[str] = []
    for k, (spanned, kind) in enumerate(zip(slots, kinds, strict=True)):
        made = _accessors(k, spanned, words, kind)
        wanted = {name for name in made if name in used}
        for name in reversed(list(made)):  # what those need that are used
            if name in wanted:
                wanted |= {other for other in made if re.search(rf"\b{other}\b", made[name])}
        written += [body for name, body in made.items() if name in wanted]
    count = max([s for spanned in slots for s in spanned], default=0)
    segments = "".join(
        f"@group(0) @binding({2 + i}) var<storage, read_write> seg_{i}: array<u32>;\n" for i in range(1, count + 1)
    )
    return _HEAD.format(segments=segments) + "\n".join(written) + "\n" + file("prelude") + text
