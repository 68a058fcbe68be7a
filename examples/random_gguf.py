"""Write a GGUF language model with random weights: a model of any size and type to test, measure and debug with.

    python examples/random_gguf.py OUT.gguf [--shape small] [--arch llama] [--type q4_k] [--layers N] [--seed 0] ...

The file is complete: metadata, an SPM tokenizer whose pieces are really reached by merging, weights. f32 f16 bf16 q8_0
q4_0 q4_1 q5_0 q5_1 hold normal numbers; q2_k q3_k q4_k q5_k q6_k hold random blocks whose scales give the same spread.
Equal arguments give equal bytes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gguf
import numpy as np

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 512},
    "small": {"layers": 2, "width": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 512},  # any type fits
    "deep": {"layers": 30, "width": 72, "heads": 9, "kv_heads": 3, "ffn": 192, "vocab": 1024, "rope_base": 1e5},
    "smollm2-135m": {
        "layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "ffn": 1536, "vocab": 49152, "rope_base": 1e5,
        "context": 8192,
    },
    "qwen3-0.6b": {
        "arch": "qwen3", "layers": 28, "width": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 3072,
        "vocab": 151936, "rope_base": 1e6, "context": 40960,
    },
}  # fmt: skip


class Arch(NamedTuple):
    """Differences of an architecture from llama's: tensors of a block, and metadata that its files must have."""

    biases: tuple[str, ...] = ()
    qk_norm: Literal["", "head", "width"] = ""
    fused_qkv: bool = False
    fused_ffn: bool = False  # ffn_up has the rows of the gate, then its own
    before: tuple[str, ...] = ("attn_norm", "ffn_norm")
    behind: tuple[str, ...] = ()
    untied: bool = False  # needs output.weight
    head_keys: bool = False  # always has attention.key_length
    half_rope: bool = False  # half of each head is turned
    metadata: dict[str, Any] = {}  # noqa: RUF012


QKV = ("attn_q", "attn_k", "attn_v")
POST = ("post_attention_norm", "post_ffw_norm")
ARCHS = {
    "llama": Arch(),
    "qwen2": Arch(biases=QKV),
    "qwen3": Arch(qk_norm="head", head_keys=True),
    "gemma3": Arch(
        qk_norm="head", behind=POST, head_keys=True,
        metadata={"attention.sliding_window": 32, "attention.sliding_window_pattern": 2, "rope.freq_base": 1e6},
    ),
    "phi3": Arch(fused_qkv=True, fused_ffn=True, metadata={"rope.scaling.original_context_length": 2048}),
    "smollm3": Arch(),
    "granite": Arch(
        metadata={"embedding_scale": 6.0, "residual_scale": 0.5, "attention.scale": 0.2, "logit_scale": 2.0}
    ),
    "olmo2": Arch(
        qk_norm="width", before=(), behind=POST, untied=True, metadata={"attention.sliding_window": 32}
    ),
    "mistral3": Arch(
        head_keys=True,
        metadata={
            "attention.temperature_scale": 0.1, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 32, "rope.scaling.yarn_log_multiplier": 0.5,
            "rope.scaling.yarn_beta_fast": 24.0, "rope.scaling.yarn_beta_slow": 2.0,
        },
    ),
    "glm4": Arch(biases=QKV, fused_ffn=True, behind=POST, half_rope=True),
    "exaone4": Arch(qk_norm="head", before=(), behind=POST),
    "seed_oss": Arch(biases=QKV, before=("attn_norm", "post_attention_norm"), head_keys=True),
    "ernie4_5": Arch(head_keys=True),
    "hunyuan-dense": Arch(qk_norm="head", head_keys=True),
    "minicpm": Arch(),
}  # fmt: skip
BY_ROUNDING = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
D_AT = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}  # bytes of the f16 d and dmin
MIN_TO_SCALE = {"q2_k": 1.5, "q4_k": 7.5, "q5_k": 15.5}  # dmin / d for which the mean is 0
TYPES = (*BY_ROUNDING, *D_AT)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_random(
    path: str | Path,
    arch: str = "llama",
    kind: str = "f32",
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 160,
    vocab: int = 512,
    *,
    head_dim: int | None = None,
    rope_dims: int | None = None,
    rope_base: float = 10000.0,
    rope_factors: Any = None,
    context: int = 2048,
    eps: float = 1e-5,
    tied: bool = True,
    std: float = 0.02,
    embedding_std: float | None = None,
    seed: int = 0,
    chat: bool = False,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write the file and return its path.

    kind         type of every matrix, embedding and output included; norms and biases are f32
    head_dim     width // heads when not given; other values are written as attention.key_length and value_length
    rope_dims    dimensions of a head that are turned, head_dim when not given
    rope_factors numbers [rope_dims / 2], stored as rope_freqs.weight (what llama 3.1 has)
    tied         no output.weight: the embedding is the output layer; olmo2 always has one
    std          of the matrices; norm weights lie in 0.9 .. 1.1, biases (qwen2) have 5 times std
    embedding_std of the embedding and the output, std when not given
    chat         adds <|im_start|>, <|im_end|> and a ChatML template
    metadata     further keys, such as {"llama.rope.scaling.type": "linear"}; text, whole numbers, numbers, truth values
    """
    if arch not in ARCHS or kind not in TYPES:
        raise ValueError(f"arch {arch!r}, type {kind!r}: need one of {', '.join(ARCHS)} and one of {', '.join(TYPES)}")
    made, head = ARCHS[arch], head_dim or width // heads
    tied = tied and not made.untied
    if heads % kv_heads or (head_dim is None and width % heads):
        raise ValueError(
            f"width {width}, {heads} heads, {kv_heads} kv heads: need heads to divide by kv heads, width by heads"
        )
    block = gguf.GGML_QUANT_SIZES[ggml_type(kind)][0]
    for name, size in (("width", width), ("heads * head_dim", heads * head), ("ffn", ffn)):
        if size % block:
            raise ValueError(f"{name} = {size}: need a multiple of {block}, the block of {kind}")
    path = Path(path)
    writer = gguf.GGUFWriter(path, arch)
    called = "phi" if arch == "phi3" else arch  # names with phi3 need its special tokens in llama.cpp
    writer.add_name(f"random {called} {kind}")
    writer.add_file_type(int(gguf.LlamaFileType["ALL_F32" if kind == "f32" else "MOSTLY_" + file_type(kind)]))
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(eps)
    writer.add_rope_dimension_count(rope_dims or (head // 2 if made.half_rope else head))
    own = {f"{arch}.{key}": value for key, value in made.metadata.items()} | (metadata or {})
    if f"{arch}.rope.freq_base" not in own:
        writer.add_rope_freq_base(rope_base)
    writer.add_vocab_size(vocab)
    if head * heads != width or made.head_keys:
        writer.add_key_length(head)
        writer.add_value_length(head)
    add_tokenizer(writer, vocab, chat)
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string
    }  # fmt: skip
    for key, value in own.items():
        adders[type(value)](key, value)

    shapes = tensor_shapes(made, layers, width, heads, kv_heads, head, ffn, vocab)
    if tied:
        del shapes["output"]
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    weights |= {f"blk.{i}.{n}.bias": shapes[f"blk.{i}.{n}"][:1] for i in range(layers) for n in made.biases}
    if rope_factors is not None:
        weights["rope_freqs.weight"] = np.shape(rope_factors)

    makers: list[functools.partial[np.ndarray]] = []
    for place, (name, shape) in enumerate(weights.items()):
        stored = kind if len(shape) == 2 else "f32"
        if name == "rope_freqs.weight":
            makers.append(functools.partial(np.asarray, rope_factors, np.float32))
        else:
            spread = -0.1 if name.endswith("norm.weight") else std * (5 if name.endswith("bias") else 1)
            if name in ("token_embd.weight", "output.weight"):
                spread = embedding_std or std
            makers.append(functools.partial(random_tensor, shape, stored, spread, (seed, place)))
        elements, size = gguf.GGML_QUANT_SIZES[ggml_type(stored)]
        dtype = np.dtype({"f32": np.float32, "f16": np.float16}.get(stored, np.uint8))
        held = (*shape[:-1], shape[-1] // elements * size // dtype.itemsize)
        writer.add_tensor_info(name, held, dtype, int(np.prod(held)) * dtype.itemsize, ggml_type(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for make in makers:  # one tensor in memory at a time
        writer.write_tensor_data(make())
    writer.close()
    return path


def tensor_shapes(
    arch: Arch, layers: int, width: int, heads: int, kv_heads: int, head: int, ffn: int, vocab: int
) -> dict[str, tuple[int, ...]]:
    """Tensors by their names without `.weight`, in the file's order."""
    q, kv = heads * head, kv_heads * head
    rows = {"attn_qkv": q + 2 * kv} if arch.fused_qkv else {"attn_q": q, "attn_k": kv, "attn_v": kv}
    into = {"ffn_up": 2 * ffn} if arch.fused_ffn else {"ffn_gate": ffn, "ffn_up": ffn}
    first, second = (arch.before[:1], arch.before[1:])
    block: dict[str, tuple[int, ...]] = dict.fromkeys(first, (width,))
    block |= {name: (count, width) for name, count in rows.items()} | {"attn_output": (width, q)}
    block |= dict.fromkeys(second, (width,))
    block |= {name: (count, width) for name, count in into.items()} | {"ffn_down": (width, ffn)}
    block |= dict.fromkeys(arch.behind, (width,))
    if arch.qk_norm:
        whole = arch.qk_norm == "width"
        block |= {"attn_q_norm": (q if whole else head,), "attn_k_norm": (kv if whole else head,)}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab, width)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in block.items()}
    return shapes | {"output_norm": (width,), "output": (vocab, width)}


def ggml_type(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind.upper()]


def file_type(kind: str) -> str:
    return {"q3_k": "Q3_K_M", "q4_k": "Q4_K_M", "q5_k": "Q5_K_M"}.get(kind, kind.upper())


def random_tensor(shape: tuple[int, ...], kind: str, spread: float, seed: tuple[int, ...]) -> np.ndarray:
    """As stored: typed numbers for f32 and f16, else bytes. A negative spread: uniform within that of 1."""
    rng = np.random.default_rng(seed)
    if spread < 0:
        return (1 + spread * rng.uniform(-1, 1, shape)).astype(np.float32)
    if kind in D_AT:
        return random_blocks(shape, kind, spread, rng)
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
    return gguf.quants.quantize(values, ggml_type(kind))


def random_blocks(shape: tuple[int, ...], kind: str, std: float, rng: np.random.Generator) -> np.ndarray:
    """u8 [..., bytes]: every bit of a block is random but for its scales, which vary by a factor of 3."""
    elements, size = gguf.GGML_QUANT_SIZES[ggml_type(kind)]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // elements, size), dtype=np.uint8)

    def set_scale(d: np.ndarray) -> None:
        for at, factor in zip(D_AT[kind], (1.0, MIN_TO_SCALE.get(kind, 1.0)), strict=False):
            blocks[:, at : at + 2] = (d * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)

    set_scale(np.ones(len(blocks)))
    unit = gguf.quants.dequantize(blocks[:256], ggml_type(kind)).std()
    set_scale(std / unit * rng.uniform(0.5, 1.5, len(blocks)))
    return blocks.reshape(*shape[:-1], -1)


def pieces(vocab: int, chat: bool = False) -> tuple[list[str], list[float], list[int]]:
    """(pieces, scores, types): <unk> <s> </s>, the chat marks, 256 bytes, characters, then words that grow letter by
    letter, so that every piece is two shorter ones merged; earlier pieces merge first."""
    kind = gguf.TokenType
    found = [("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)]
    if chat:
        found += [("<|im_start|>", kind.CONTROL), ("<|im_end|>", kind.CONTROL)]
    found += [(f"<0x{i:02X}>", kind.BYTE) for i in range(256)]
    if vocab < len(found):
        raise ValueError(f"vocab = {vocab}: need at least {len(found)}, the special tokens and the bytes")
    plain = len(found)
    letters = "etaoinshrdlucmfwygpbvkxqjz"
    others = "\n.,'!?;:-\"()0123456789" + letters.upper() + "&/*+=#%@$[]{}<>_|\\`~^"
    found += [(c, kind.NORMAL) for c in "▁" + letters + others]
    for length in itertools.count(1):
        if len(found) >= vocab:
            break
        words = ("".join(w) for w in itertools.product(letters, repeat=length))
        with_space = (p + w for w in words for p in (("▁",) if length == 1 else ("", "▁")))
        found += [(w, kind.NORMAL) for w in itertools.islice(with_space, vocab - len(found))]
    found = found[:vocab]
    scores = [0.0 if i < plain else float(plain - i) for i in range(vocab)]
    return [p for p, _ in found], scores, [int(t) for _, t in found]


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int, chat: bool) -> None:
    texts, scores, types = pieces(vocab, chat)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(texts.index("<|im_end|>") if chat else 2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    if chat:
        writer.add_chat_template(CHATML)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="the sizes below, where they are not given")
    parser.add_argument("--arch", choices=tuple(ARCHS))
    parser.add_argument("--type", choices=TYPES, default="f32", dest="kind")
    for name in ("layers", "width", "heads", "kv-heads", "ffn", "vocab", "head-dim", "context"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--rope-base", type=float)
    parser.add_argument("--std", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untied", action="store_true", help="an output layer of its own")
    parser.add_argument("--chat", action="store_true", help="with a ChatML template")
    args = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    out, shape, untied = args.pop("out"), args.pop("shape"), args.pop("untied")
    try:
        write_random(out, tied=not untied, **(SHAPES[shape] | args))
    except ValueError as bad:
        parser.error(str(bad))
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
