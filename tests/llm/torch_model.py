"""Llama, Qwen2 and Qwen3 in PyTorch, written from the papers and from GGUF's conventions; shares no code with gradloom.

Weights come from the `gguf` package's reader and dequantisation. Everything is computed in the dtype that is asked for:
float32 stands for "PyTorch's own f32", float64 for the truth. Attention holds T x T, generation has no cache.

RMS norm: arXiv 1910.07467; rotary positions: arXiv 2104.09864 (GGUF's llama pairs neighbours (2i, 2i+1), the Qwen
family pairs (i, i + d/2)); SwiGLU: arXiv 2002.05202; grouped-query attention: arXiv 2305.13245; LoRA: arXiv 2106.09685.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Adapter = dict[str, tuple[torch.Tensor, torch.Tensor]]  # A [r, n_in], B [n_out, r]; of token_embd A [V, r], B [d, r]


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(metadata, dequantised f32 arrays in NumPy order)."""
    reader = gguf.GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    arrays = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}
    return metadata, {k: np.array(v, np.float32) for k, v in arrays.items()}


class TorchModel:
    def __init__(self, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self.metadata, arrays = read(path)
        self.dtype = dtype
        self.weights = {k: torch.tensor(v).to(dtype) for k, v in arrays.items()}
        self.arch = self.metadata["general.architecture"]
        assert self.arch in ("llama", "qwen2", "qwen3"), self.arch
        self.layers = int(self.of("block_count"))
        self.heads = int(self.of("attention.head_count"))
        self.kv_heads = int(self.of("attention.head_count_kv", self.heads))
        self.head_dim = int(self.of("attention.key_length", self.of("embedding_length") // self.heads))
        self.eps = float(self.of("attention.layer_norm_rms_epsilon"))
        self.rope_dims = int(self.of("rope.dimension_count", self.head_dim))
        base = float(self.of("rope.freq_base", 10000.0))
        frequencies = base ** (-np.arange(0, self.rope_dims, 2) / self.rope_dims)
        if self.of("rope.scaling.type", "none") == "linear":
            frequencies = frequencies / float(self.of("rope.scaling.factor"))
        if "rope_freqs.weight" in arrays:
            frequencies = frequencies / arrays["rope_freqs.weight"].astype(np.float64)
        self.frequencies = torch.tensor(frequencies).to(dtype)

    def of(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        assert value is not None, key
        return value

    # ---- forward -------------------------------------------------------------------------------------------

    def hidden(
        self, tokens: Any, positions: Any = None, adapter: Adapter | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """tokens, positions [B, T] -> [B * T, d] after the final norm. Positions restart at 0 with each packed sample,
        and no token sees what lies before its own sample."""
        tokens = torch.as_tensor(np.asarray(tokens, np.int64))
        batch, length = tokens.shape
        here = torch.arange(length).expand(batch, length)
        positions = here if positions is None else torch.as_tensor(np.asarray(positions, np.int64))
        seen = (here[:, None, :] <= here[:, :, None]) & (
            here[:, None, :] >= (here - positions)[:, :, None]
        )  # [B, T, S]
        angles = positions[..., None].to(self.dtype) * self.frequencies  # [B, T, dims / 2]
        turn = (torch.cos(angles)[:, :, None], torch.sin(angles)[:, :, None])

        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            y = x @ self.weights[f"{name}.weight"].T
            if f"{name}.bias" in self.weights:
                y = y + self.weights[f"{name}.bias"]
            if adapter is not None and f"{name}.weight" in adapter:
                a, b = adapter[f"{name}.weight"]
                y = y + scale * ((x @ a.T) @ b.T)
            return y

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

        def attention(x: torch.Tensor, block: str) -> torch.Tensor:
            shape = (batch, length, -1, self.head_dim)
            q, k, v = (linear(x, f"{block}.attn_{n}").view(shape) for n in "qkv")
            if self.arch == "qwen3":
                q, k = norm(q, f"{block}.attn_q_norm"), norm(k, f"{block}.attn_k_norm")
            q, k = self.rope(q, *turn), self.rope(k, *turn)
            group = self.heads // self.kv_heads
            k, v = (t.repeat_interleave(group, 2) for t in (k, v))
            scores = torch.einsum("bthd,bshd->bhts", q, k) * self.head_dim**-0.5
            weights = torch.softmax(scores.masked_fill(~seen[:, None], -torch.inf), -1)
            mixed = torch.einsum("bhts,bshd->bthd", weights, v).reshape(batch, length, -1)
            return linear(mixed, f"{block}.attn_output")

        table = self.weights["token_embd.weight"]
        x = table[tokens]
        if adapter is not None and "token_embd.weight" in adapter:
            a, b = adapter["token_embd.weight"]
            x = x + scale * (a[tokens] @ b.T)
        for i in range(self.layers):
            block = f"blk.{i}"
            x = x + attention(norm(x, f"{block}.attn_norm"), block)
            h = norm(x, f"{block}.ffn_norm")
            gate, up = linear(h, f"{block}.ffn_gate"), linear(h, f"{block}.ffn_up")
            x = x + linear(gate * torch.sigmoid(gate) * up, f"{block}.ffn_down")
        return norm(x, "output_norm").reshape(batch * length, -1)

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x [B, T, H, D]; cos, sin [B, T, 1, dims / 2]."""
        turned, rest = x[..., : self.rope_dims], x[..., self.rope_dims :]
        if self.arch == "llama":
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return torch.cat((turned, rest), -1)

    @property
    def head(self) -> torch.Tensor:
        return self.weights.get("output.weight", self.weights["token_embd.weight"])

    def project(self, x: torch.Tensor, adapter: Adapter | None, scale: float) -> torch.Tensor:
        """[N, d] -> [N, V]."""
        logits = x @ self.head.T
        if adapter is not None and "output.weight" in adapter:
            a, b = adapter["output.weight"]
            logits = logits + scale * ((x @ a.T) @ b.T)
        return logits

    def logits(
        self, tokens: Any, positions: Any = None, adapter: Adapter | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """[B, T, V]."""
        found = self.project(self.hidden(tokens, positions, adapter, scale), adapter, scale)
        return found.reshape(*np.shape(tokens), -1)

    # ---- training ------------------------------------------------------------------------------------------

    def loss(
        self, tokens: Any, positions: Any, labels: Any, adapter: Adapter | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """Mean over the labels that are not -100; labels[b, t] is the id of the token that follows tokens[b, t]."""
        logits = self.logits(tokens, positions, adapter, scale).flatten(0, 1)
        wanted = torch.as_tensor(np.asarray(labels, np.int64)).flatten()
        return torch.nn.functional.cross_entropy(logits, wanted, ignore_index=-100)

    def adapter(self, arrays: dict[str, tuple[np.ndarray, np.ndarray]]) -> Adapter:
        """Trainable copies of (A [r, n_in], B [n_out, r]) per base tensor."""
        return {
            k: tuple(torch.tensor(np.asarray(v)).to(self.dtype).requires_grad_() for v in pair)  # type: ignore[misc]
            for k, pair in arrays.items()
        }

    def train(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Make these weights trainable."""
        return {name: self.weights[name].requires_grad_() for name in names}

    # ---- generation ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def greedy(self, prompt: list[int], count: int, adapter: Adapter | None = None, scale: float = 1.0) -> list[int]:
        """The `count` likeliest next tokens, the whole text computed again for each; stops at nothing."""
        ids = list(prompt)
        for _ in range(count):
            last = self.hidden([ids], None, adapter, scale)[-1:]
            ids.append(int(self.project(last, adapter, scale).argmax()))
        return ids[len(prompt) :]


# ---- the SPM tokenizer, as in llama.cpp: the pair of neighbours with the best score merges first ------------------


def spm_encode(metadata: dict[str, Any], text: str, bos: bool = True) -> list[int]:
    pieces, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in ids]
        if not pairs:
            break
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    found = [int(metadata["tokenizer.ggml.bos_token_id"])] if bos else []
    for s in symbols:
        found += [ids[s]] if s in ids else [ids[f"<0x{byte:02X}>"] for byte in s.encode()]
    return found


def spm_decode(metadata: dict[str, Any], tokens: list[int]) -> str:
    pieces, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    parts = [
        bytes([int(pieces[i][3:5], 16)]) if types[i] == gguf.TokenType.BYTE else pieces[i].replace("▁", " ").encode()
        for i in tokens
        if types[i] != gguf.TokenType.CONTROL
    ]
    return b"".join(parts).decode(errors="replace")
