"""Small Hugging Face folders with random weights, written without transformers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.hf_tokenizers import write_tokenizer

WIDTH, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 32, 48, 2, 4, 2, 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of CONFIG by their names in the folder, f32."""
    head = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        block = {
            "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (KV_HEADS * head, WIDTH),
            "self_attn.v_proj": (KV_HEADS * head, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH), "mlp.down_proj": (WIDTH, FFN),
            "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
        }  # fmt: skip
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    shapes["lm_head.weight"] = (VOCAB, WIDTH)
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=shape).astype(np.float32) * 0.2 for name, shape in shapes.items()}


def packed(tensors: dict[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """(head, data) of a safetensors file."""
    head: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        head[name] = {
            "dtype": {"f4": "F32", "f2": "F16"}[array.dtype.str[1:]], "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        data += raw
    return head, data


def safetensors(head: Any, data: bytes) -> bytes:
    """The bytes of a file."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_folder(folder: Path, shards: int = 1, form: str = "gpt-2", **config: Any) -> Path:
    """Write a llama model of CONFIG | config, with a tokenizer of at most 512 tokens, into `shards` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    write_tokenizer(folder, form, 300)
    tensors = list(arrays().items())
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(*packed(dict(tensors))))
        return folder
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(tensors[i::shards])
        (folder / name).write_bytes(safetensors(*packed(part)))
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": sum(a.nbytes for _, a in tensors)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
