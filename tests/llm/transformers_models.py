"""Small random models of transformers, and GGUF files of their weights as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
import transformers

from examples.random_gguf import add_tokenizer

VOCAB, LAYERS = 320, 4
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
HALVES = {"rope_type": "default", "rope_theta": 5000.0}
WIDE = {"head_dim": 16, "rope_parameters": HALVES}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32, "factor": 2.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
}  # fmt: skip


class Case(NamedTuple):
    """A family: general.architecture, transformers' name, its settings, and GGUF's metadata of these."""

    arch: str
    name: str
    settings: dict[str, Any]
    metadata: dict[str, Any] = {}  # noqa: RUF012
    interleaved: bool = False  # rows of q and k are permuted


PATTERN = ["sliding_attention"] * 3 + ["full_attention"]
CASES = {
    "llama, yarn": Case("llama", "Llama", {"rope_parameters": YARN}, YARN_KEYS, True),
    "gemma3": Case(
        "gemma3", "Gemma3", {
            "head_dim": 16, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 16, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            },
        }, {
            "attention.sliding_window": 7, "attention.sliding_window_pattern": 2, "rope.freq_base": 50000.0,
            "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": Case("phi3", "Phi3", {"rope_parameters": HALVES}),
    "phi3, longrope": Case(
        "phi3", "Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}, {
            "rope.freq_base": 10000.0, "rope.scaling.original_context_length": 32, "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(2) / np.log(32))),
        },
    ),
    "smollm3": Case("smollm3", "SmolLM3", {"rope_parameters": HALVES}, interleaved=True),
    "granite": Case(
        "granite", "Granite", {
            "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 5.0,
            "rope_parameters": HALVES,
        }, {
            "embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 5.0,
        }, True,
    ),
    "olmo2": Case("olmo2", "Olmo2", {"rope_parameters": HALVES}),
    "olmo3": Case(
        "olmo2", "Olmo3", {
            "rope_parameters": {"sliding_attention": HALVES, "full_attention": YARN}, "sliding_window": 5,
            "layer_types": PATTERN,
        }, YARN_KEYS | {"attention.sliding_window": 5},
    ),
    "mistral3": Case(
        "mistral3", "Ministral3", {
            "head_dim": 16,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.3},
        }, YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 0.5, "attention.temperature_scale": 0.3}, True,
    ),
    "glm4": Case(
        "glm4", "Glm4", {
            "head_dim": 16, "attention_bias": True, "rope_parameters": HALVES | {"partial_rotary_factor": 0.5},
        }, {"rope.dimension_count": 8},
    ),
    "exaone4": Case(
        "exaone4", "Exaone4", {
            "layer_types": ["full_attention"] * LAYERS, "sliding_window": None, "rope_parameters": HALVES,
        },
    ),
    "seed_oss": Case("seed_oss", "SeedOss", WIDE | {"attention_bias": True}),
    "ernie4_5": Case("ernie4_5", "Ernie4_5", WIDE),
    "hunyuan-dense": Case("hunyuan-dense", "HunYuanDenseV1", WIDE),
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FOLDER_CASES = CASES | {  # of which GGUF files differ, or do not contain everything
    "llama": Case("llama", "Llama", {"rope_parameters": HALVES | {"rope_type": "linear", "factor": 2.0}}),
    "llama3": Case("llama", "Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama, mscale": Case("llama", "Llama", {"rope_parameters": YARN | {"attention_factor": 1.3}}),
    "mistral": Case("llama", "Mistral", {"sliding_window": 7, "rope_parameters": HALVES}),
    "qwen2": Case(
        "qwen2", "Qwen2", {
            "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2, "rope_parameters": HALVES,
        },
    ),
    "qwen3": Case("qwen3", "Qwen3", WIDE),
    "phi3, window": Case(
        "phi3", "Phi3", {
            "sliding_window": 9, "rope_parameters": HALVES | {"partial_rotary_factor": 0.5},
            "tie_word_embeddings": True,
        },
    ),
    "smollm3, window": Case(
        "smollm3", "SmolLM3", {
            "rope_parameters": HALVES, "no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": 5,
        },
    ),
    "exaone4, window": Case(
        "exaone4", "Exaone4", {"layer_types": PATTERN, "sliding_window": 6, "rope_parameters": HALVES},
    ),
    "hunyuan-dense, alpha": Case(
        "hunyuan-dense", "HunYuanDenseV1",
        {"head_dim": 16, "rope_parameters": HALVES | {"rope_type": "dynamic", "alpha": 3.0, "factor": 1.0}},
    ),
}  # fmt: skip
NAMES = {  # of tensors in a block, and outside; what differs between families
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "post_attention_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def model(case: Case, seed: int = 0) -> Any:
    """In float64, with weights of about 1 / sqrt(width) and norms near 1."""
    config = getattr(transformers, case.name + ("TextConfig" if case.name == "Gemma3" else "Config"))
    kind = getattr(transformers, f"{case.name}ForCausalLM")
    torch.manual_seed(seed)
    made = kind(config(**SIZES | case.settings, attn_implementation="eager")).double().eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name:
                weight.add_(torch.rand_like(weight) * 0.2 - 0.1)
            else:
                weight.copy_(torch.randn_like(weight) * 0.15)
            weight.copy_(weight.float())  # f32 numbers, so that the file holds them all
    return made


def tensor_name(case: Case, name: str) -> str:
    """GGUF's name of a parameter."""
    if name in ENDS:
        return ENDS[name]
    _, _, block, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    found = NAMES[module]
    behind = case.arch in ("gemma3", "olmo2", "exaone4", "seed_oss")
    if module == "post_attention_layernorm" and behind:
        found = "post_attention_norm"
    return f"blk.{block}.{found}.{kind}"


def stored(case: Case, made: Any, name: str, array: np.ndarray) -> np.ndarray:
    """A parameter, or its gradient, in the file's order of rows."""
    if case.interleaved and ("q_proj" in name or "k_proj" in name):
        heads = made.config.num_attention_heads if "q_proj" in name else made.config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    return array


def write(path: Path, case: Case, made: Any) -> Path:
    c = made.config
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer = gguf.GGUFWriter(path, case.arch)
    known = {
        "context_length": c.max_position_embeddings, "embedding_length": c.hidden_size,
        "block_count": c.num_hidden_layers, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": head, "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": float(c.rms_norm_eps), "rope.dimension_count": head,
        "rope.freq_base": 5000.0, "vocab_size": c.vocab_size,
    }  # fmt: skip
    for key, value in (known | case.metadata).items():
        _add(writer, f"{case.arch}.{key}", value)
    add_tokenizer(writer, c.vocab_size, False)
    for name, weight in made.named_parameters():
        array = stored(case, made, name, weight.detach().numpy())
        if case.arch == "gemma3" and "norm" in name:
            array = array + 1
        writer.add_tensor(tensor_name(case, name), np.ascontiguousarray(array, np.float32))
    if "long_factor" in c.to_dict().get("rope_parameters", {}):
        for kind in ("long", "short"):
            factors = np.float32(c.rope_parameters[f"{kind}_factor"])
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[type(value)](key, value)


def seeing(name: str, text: str, image: str, tied: bool, outer: bool = True) -> Any:
    """A small random model that sees images: `text` is the case of its decoder, `image` the class of its other part.
    tied: in the configuration of the decoder; outer: in that of the whole, which decides."""
    inner = model(FOLDER_CASES[text]).config
    inner.tie_word_embeddings = tied
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = getattr(transformers, f"{image}VisionConfig")(**sizes, image_size=28, patch_size=14)
    config = getattr(transformers, f"{name}Config")(
        text_config=inner, vision_config=vision, tie_word_embeddings=outer, image_token_id=5, image_token_index=5
    )
    made = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    with torch.no_grad():
        for weight in made.model.language_model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return made
