"""Hugging Face folders of every family: random weights as transformers saves them, and the files of a tokenizer that
llama.cpp's converter reads."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import torch

from gradloom.llm.hf_export import tokenizer_fields
from gradloom.llm.hf_folder import HFFolder
from tests.llm import transformers_models as theirs
from tests.llm.hf_tokenizers import write_tokenizer
from tests.llm.transformers_models import HALVES, WIDE, Case

SPM = ("ernie4_5", "minicpm")  # families whose converter reads a tokenizer.model
VOCAB, SPM_VOCAB = 436, 504  # rows
GEMMA = theirs.CASES["gemma3"].settings
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    **{name: theirs.FOLDER_CASES[name] for name in (
        "llama, yarn", "llama, mscale", "llama", "llama3", "qwen3", "phi3", "phi3, longrope", "smollm3", "granite",
        "phi3, window", "olmo2", "olmo3", "mistral3", "glm4", "exaone4", "seed_oss", "ernie4_5", "hunyuan-dense",
    )},
    "mistral": Case("llama", "Mistral", {"sliding_window": None, "rope_parameters": HALVES}),
    "qwen2": Case("qwen2", "Qwen2", {"rope_parameters": HALVES}),
    "gemma3": Case("gemma3", "Gemma3", GEMMA | {
        "num_hidden_layers": 7, "layer_types": [SLIDING] * 5 + [FULL, SLIDING], "tie_word_embeddings": True,
    }),
    "hunyuan-dense, alpha": Case("hunyuan-dense", "HunYuanDenseV1", {
        "head_dim": 16, "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
    }),
    "seed_oss, biases": Case(
        "seed_oss", "SeedOss", WIDE | {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    ),
    "ernie4_5, biases": Case("ernie4_5", "Ernie4_5", WIDE | {"use_bias": True}),
    "hunyuan-dense, biases": Case("hunyuan-dense", "HunYuanDenseV1", WIDE | {"attention_bias": True}),
    # transformers has no MiniCPM of its own: Granite's factors, under MiniCPM's names in config.json
    "minicpm": Case("minicpm", "Granite", {
        "embedding_multiplier": 3.0, "residual_multiplier": 1.4 / 2, "attention_multiplier": 12**-0.5,
        "logits_scaling": 48 / 16, "rope_parameters": HALVES,
    }),
}  # fmt: skip
MINICPM = {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "scale_emb": 3.0, "scale_depth": 1.4,
           "dim_model_base": 16, "rope_theta": 5000.0}  # fmt: skip
TOKENS = {"glm4": ["<|endoftext|>", "<|user|>"]}  # which the converter of the family looks up


def build(name: str) -> Any:
    """The model in float64."""
    case = CASES[name]
    rows = SPM_VOCAB if case.arch in SPM else VOCAB
    return theirs.model(case._replace(settings={"vocab_size": rows} | case.settings))


def write(folder: Path, name: str, made: Any, dtype: str = "float32") -> Path:
    """The folder of a model with a tokenizer."""
    arch = CASES[name].arch
    copy.deepcopy(made).to(getattr(torch, dtype)).save_pretrained(folder)
    if arch == "minicpm":
        path = folder / "config.json"
        given = json.loads(path.read_text())
        kept = {key: value for key, value in given.items() if "multiplier" not in key and key != "logits_scaling"}
        del kept["rope_parameters"]
        path.write_text(json.dumps(kept | MINICPM))
    kind = "GPT2Tokenizer" if arch == "phi3" else "PreTrainedTokenizerFast"
    settings = {"pad_token": "<unk>", "tokenizer_class": kind}
    if arch in SPM:
        write_tokenizer(folder, "prepend", 300, add_prefix_space=True, **settings)  # 504 tokens
        (folder / "tokenizer.model").write_bytes(sentencepiece_model(folder))
    else:
        tokenizer = write_tokenizer(folder, "gpt-2", VOCAB - 6, **settings)
        tokenizer.add_special_tokens(TOKENS.get(arch, []))
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def sentencepiece_model(folder: Path) -> bytes:
    """tokenizer.model of the folder's tokenizer.json: sentencepiece_model.proto."""
    fields = tokenizer_fields(HFFolder(folder).tokenizer(SPM_VOCAB), SPM_VOCAB)

    def values(key: str) -> Any:
        return fields[f"tokenizer.ggml.{key}"].value

    data = b""
    for piece, score, kind in zip(values("tokens"), values("scores"), values("token_type"), strict=True):
        data += _block(1, _block(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind]))
    trainer = b"\x18\x02" + b"\x98\x02\x01"  # model_type BPE, byte_fallback (field 35)
    return data + _block(2, trainer) + _block(3, _block(1, b"identity") + b"\x18\x01")


def _block(field: int, data: bytes) -> bytes:
    """A field of bytes in Protocol Buffers."""
    size, length = b"", len(data)
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([field << 3 | 2]) + size + bytes([length]) + data
