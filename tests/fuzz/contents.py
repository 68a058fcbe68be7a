"""Models and adapters whose parts disagree: whole files with other numbers, types, shapes, names and lengths in them.

    python -m tests.fuzz.contents --count 100000 --first 0

A case is its number: `case(folder, number)` writes the same files again. Each goes through info, load, the tokenizer,
plan, a forward pass, the adapter and a step of LoRA. Every part answers with a result or with a GradloomError of one
line, within 10 s of the processor, and takes no more resident memory than 20 times the files and 200 MB (VmHWM, which
is set back before each case); the address space is limited to 8 GiB more than at the start.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import struct
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.base.errors import GradloomError, NonFiniteError
from gradloom.cli.main import main as command
from gradloom.files import open_gguf, save_arrays, write_gguf
from gradloom.files.gguf_fields import Field, field
from gradloom.files.gguf_types import KINDS
from gradloom.llm import LoRA, load
from gradloom.llm.adapter_arrays import AdapterArrays
from gradloom.llm.adapter_gguf import write_adapter_gguf
from gradloom.llm.adapter_peft import write_peft
from gradloom.llm.plan import plan
from tests.fuzz.limits import memory, reset_peak
from tests.llm.small_tokenizers import byte_bpe_fields

SECONDS = 10  # of the processor; sixty times as many on the clock, because other processes may take turns
SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "ffn": 64, "vocab": 512}
ARCHS = ("llama", "qwen2", "qwen3")
COUNTS = (
    "block_count", "embedding_length", "feed_forward_length", "context_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count", "vocab_size",
    "expert_count",
)  # fmt: skip
NUMBERS = (
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor", "rope.scale_linear", "attention.scale",
)  # fmt: skip
TOKENIZER = (
    "tokens", "scores", "token_type", "merges", "model", "pre", "bos_token_id", "eos_token_id", "unknown_token_id",
    "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
)  # fmt: skip
WHOLE = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 100, 512, 513, 65536, 2**30, 2**31 - 1, 2**31, 2**32 - 1)
REAL = (0.0, -1.0, 1.0, 0.5, 1e-45, 1e-30, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "llama", "gpt2", "gpt-2", "qwen2", "adapter", "lora", "none", "linear", "yarn", "\n", "\u2581", "a b")
PEFT = (None, True, False, 0, -1, 1, 2, 8, 10**9, 10**400, 1e39, 0.5, float("nan"), "", "no", [], [1], {})
PATTERNS = ("q_proj", "(", "a+", r"(\w+\.?)+x", ".*", "(" * 300, r"model\.layers\.0\.self_attn\.q_proj")
TEXT = "Once upon a time <s></s> \u00e9\u6f22 \U0001f600\n  12345 aaaaaaaa"


def odd_value(draw: random.Random, old: Field | None) -> Field:
    """Another value: of another size, sign, kind or length."""
    how = draw.randrange(9)
    if how == 0:
        return field(draw.choice(("u32", "u64")), draw.choice(WHOLE))
    if how == 1:
        return field(draw.choice(("i32", "i64")), -draw.choice(WHOLE[:18]))
    if how == 2:
        return field(draw.choice(("f32", "f64")), draw.choice(REAL))
    if how == 3:
        return field("bool", draw.random() < 0.5)
    if how == 4:
        return field("string", draw.choice(TEXTS))
    count = draw.choice((0, 1, 2, 3, 100, 511, 512, 513, 2000))
    if how == 5:
        return field("array", [draw.choice(TEXTS)] * count, "string")
    if how == 6:
        return field("array", [draw.choice(WHOLE[:19])] * count, draw.choice(("u32", "i64")))
    if how == 7:
        return field("array", [draw.choice(REAL)] * count, draw.choice(("f32", "f64")))
    if old is not None and old.kind == "array" and old.count and old.item != "array":  # the same, cut, doubled or mixed
        items = list(old.value)
        items = draw.choice((items[:-1], items[: count + 1], items * 2, items[::-1], items[:1] * len(items)))
        return field("array", items, old.item)
    inner = struct.pack("<IQ", 4, 1) + struct.pack("<I", 7)
    return Field("array", struct.pack("<IQ", 9, 2) + inner * 2, "array", 2)


def odd_tensor(draw: random.Random, shape: tuple[int, ...]) -> Any:
    """A tensor of another type, shape or content."""
    how = draw.randrange(4)
    if how == 0:
        shape = draw.choice(((1,), (32,), (32, 32), (64, 32), (32, 64), (512, 32), (2, 2, 2), (1, 1, 1, 1), (256, 256)))
    elif how == 1:
        shape = (*shape[:-1], shape[-1] * 2) if draw.random() < 0.5 else shape[::-1]
    kind = draw.choice(sorted(KINDS)) if draw.random() < 0.6 else "f32"
    block, size = KINDS[kind]
    count = int(np.prod(shape))
    if shape[-1] % block:
        kind, block, size = "f32", 1, 4
    if kind == "f32":
        data = np.full(shape, draw.choice((0.0, 1.0, 1e30, 3e38, float("nan"), float("inf"))), "f4").tobytes()
    else:
        data = draw.randbytes(min(count // block * size, 4096)).ljust(count // block * size, b"\x01")
    return kind, shape, data


def change_tensors(draw: random.Random, tensors: dict[str, Any]) -> None:
    how, name = draw.randrange(6), draw.choice(list(tensors))
    if how == 0:
        tensors.pop(name)
    elif how == 1:  # swapped
        other = draw.choice(list(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif how == 2:  # another name
        new = name.replace("blk.0", draw.choice(("blk.1", "blk.00", "blk.-1", "blk.99999999999", "blk.x", "blk")))
        tensors[new if new != name else name + "x"] = tensors.pop(name)
    else:
        tensors[name] = odd_tensor(draw, tensors[name][1])


class Seeds:
    """Whole files that cases begin from."""

    def __init__(self, folder: Path) -> None:
        self.models = {}
        for arch in ARCHS:
            for tied in (True, False):
                path = write_random(folder / f"{arch}{tied}.gguf", arch, "q8_0", tied=tied, chat=True, **SHAPE)
                self.models[arch, tied] = open_gguf(path)
        self.pairs = {}
        rng = np.random.default_rng(0)
        for name, (n_out, n_in) in {"blk.0.attn_q.weight": (32, 32), "blk.0.ffn_down.weight": (32, 64)}.items():
            self.pairs[name] = rng.normal(size=(2, n_in)).astype("f4"), rng.normal(size=(n_out, 2)).astype("f4")
        for arch in ARCHS:
            adapter = AdapterArrays(arch, 4.0, self.pairs)
            write_adapter_gguf(folder / f"{arch}.lora.gguf", adapter)
            write_peft(folder / f"{arch}.peft", adapter, self.models[arch, True])
        self.folder = folder


def case(seeds: Seeds, folder: Path, number: int) -> tuple[Path, Path]:
    """Write the model and the adapter of this case; GradloomError for what the writer itself refuses."""
    draw = random.Random(f"contents {number}")
    arch = draw.choice(ARCHS)
    base = seeds.models[arch, draw.random() < 0.5]
    fields = dict(base.fields)
    tensors: dict[str, Any] = {n: (t.kind, t.shape, base.bytes(n)) for n, t in base.tensors.items()}
    if draw.random() < 0.3:
        fields = {k: f for k, f in fields.items() if not k.startswith("tokenizer.")} | byte_bpe_fields()
    odd_model = draw.random() < 0.7
    keys = (
        [f"{arch}.{k}" for k in (*COUNTS, *COUNTS, *NUMBERS)] + [f"tokenizer.ggml.{k}" for k in TOKENIZER] + [*fields]
    )
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3)) if odd_model else 0):
        key = draw.choice(keys)
        if draw.random() < 0.15:
            fields.pop(key, None)
        else:
            fields[key] = odd_value(draw, fields.get(key))
    for _ in range(draw.choice((0, 0, 1, 2)) if odd_model else 0):
        change_tensors(draw, tensors)
    fields.pop("general.alignment", None)
    write_gguf(folder / "m.gguf", fields, tensors)
    return folder / "m.gguf", odd_adapter(draw, seeds, folder, arch)


def odd_adapter(draw: random.Random, seeds: Seeds, folder: Path, arch: str) -> Path:
    if draw.random() < 0.5:
        old = open_gguf(seeds.folder / f"{arch}.lora.gguf")
        fields = dict(old.fields)
        tensors: dict[str, Any] = {n: (t.kind, t.shape, old.bytes(n)) for n, t in old.tensors.items()}
        for _ in range(draw.choice((0, 1, 1, 2))):
            if draw.random() < 0.5:
                key = draw.choice([*fields, "adapter.lora.alpha", "adapter.lora.alpha"])
                fields[key] = odd_value(draw, fields.get(key))
            else:
                change_tensors(draw, tensors)
        write_gguf(folder / "a.gguf", fields, tensors)
        return folder / "a.gguf"
    from gradloom.files import load_arrays

    source, target = seeds.folder / f"{arch}.peft", folder / "peft"
    target.mkdir(exist_ok=True)
    config = json.loads((source / "adapter_config.json").read_text())
    arrays, _ = load_arrays(source / "adapter_model.safetensors")
    for _ in range(draw.choice((0, 1, 1, 2))):
        how, key = draw.randrange(4), draw.choice(sorted(arrays))
        if how == 0:
            config[draw.choice(("rank_pattern", "alpha_pattern"))] = {draw.choice(PATTERNS): draw.choice(PEFT)}
        elif how == 1:
            config[draw.choice([*config, "r", "lora_alpha", "use_rslora"])] = draw.choice(PEFT)
        elif how == 2:
            arrays[key] = np.full(
                draw.choice(((0, 32), (2, 32), (32, 2), (32, 0), (1,), (2, 64))), draw.choice(REAL), "f4"
            )
        else:
            arrays[key.replace(".0.", draw.choice((".1.", ".99999999999999999999.", ".x.")))] = arrays.pop(key)
    (target / "adapter_config.json").write_text(json.dumps(config))
    save_arrays(target / "adapter_model.safetensors", arrays)
    return target


def rows(vocabulary: int) -> Any:
    tokens = np.arange(8, dtype=np.int32).reshape(1, 8) % vocabulary
    positions = np.arange(8, dtype=np.int32).reshape(1, 8)
    return SimpleNamespace(tokens=tokens, positions=positions, labels=np.roll(tokens, -1, 1))


def use(model_path: Path, adapter_path: Path, told: collections.Counter[str]) -> None:
    """Everything that is done with a model and an adapter; `told` counts how far cases come."""

    def answers(what: str, call: Any) -> Any:
        """The result of the call; None for a GradloomError of one line."""
        try:
            result = call()
        except GradloomError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000, str(error)
            told[f"{what}: refused"] += 1
            return None
        told[what] += 1
        return result

    for options in (("--keys",), ("--tensors", "--json")):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = command(["info", str(model_path), *options])
        assert code in (0, 2) and said.getvalue().count("\n") == code // 2, said.getvalue()
    model = answers("load", lambda: load(model_path))
    if model is None:
        return

    def tokenize() -> None:
        ids = model.tokenizer.encode(TEXT)
        assert all(0 <= i < model.tokenizer.vocab_size <= model.config.vocab_size for i in ids)
        model.tokenizer.decode(ids)

    def forward() -> None:
        data = rows(model.config.vocab_size)
        tokens, positions = gl.input("tokens", (1, 8), "i32"), gl.input("positions", (1, 8), "i32")
        run = gl.compile(model.logits(tokens, positions), threads=1)
        assert run(tokens=data.tokens, positions=data.positions)[0].shape == (8, model.config.vocab_size)

    def step(adapter: LoRA) -> None:
        data, settings = rows(model.config.vocab_size), {"steps": 1, "val_split": 0.0, "threads": 1}
        with contextlib.suppress(NonFiniteError):  # weights may hold anything
            gl.llm.finetune(model, data, adapter, progress=False, **settings)

    answers("tokenizer", tokenize)
    answers("plan", lambda: plan(model, LoRA(rank=2), context=2, batch_size=1, threads=1))
    if answers("forward", lambda: (forward(), True)) is None:
        return
    found = answers("adapter", lambda: LoRA.load(adapter_path, model))
    answers("step", lambda: step(found or LoRA(rank=2, targets="attn_q")))


def run(first: int, count: int) -> collections.Counter[str]:
    """All cases of a range; AssertionError names the one that does not answer as it should."""
    warnings.simplefilter("error", RuntimeWarning)
    told: collections.Counter[str] = collections.Counter()
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        seeds = Seeds(Path(folder))
        use(*case(seeds, Path(folder), 0), told)  # imports
        size = memory("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 30),) * 2)
        for number in range(first, first + count):
            try:
                model, adapter = case(seeds, Path(folder), number)
            except GradloomError:
                told["not written"] += 1
                continue
            faulthandler.dump_traceback_later(60 * SECONDS, exit=True)
            reset_peak()
            before, began = memory("VmRSS"), time.process_time()
            try:
                use(model, adapter, told)
            except BaseException as error:
                raise AssertionError(f"case {number}: {error!r}") from error
            grown, seconds = memory("VmHWM") - before, time.process_time() - began
            faulthandler.cancel_dump_traceback_later()
            written = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.name in ("m.gguf", "a.gguf"))
            assert grown < 20 * written + (200 << 20), f"case {number}: {grown} bytes for {written}"
            assert seconds < SECONDS, f"case {number}: {seconds} s of the processor"
            worst = max(worst, grown)
            if (number - first) % 1000 == 999:
                print(
                    f"{number + 1 - first} cases, at most {worst} bytes more: {dict(sorted(told.items()))}", flush=True
                )
    told["cases"], told["bytes"] = count, worst
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    os.environ.setdefault("GRADLOOM_THREADS", "1")
    print(json.dumps(run(asked.first, asked.count)))
