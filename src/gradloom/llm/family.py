"""Declaration of a model family: the tensors of a block, the block itself, and the names that other tools use.

    x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms_norm(x)
    x = x + Wdown (act(Wgate n) * Wup n),                n = rms_norm(x)

Rows are tokens: x is [B*T, d]. Weights are stored as [n_out, n_in].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .. import ops
from ..graph.value import Shape, Value
from .config import Config, Keys
from .folder_form import FolderForm
from .net import Layer, Net, Pairing

# Linear layers: Hugging Face's module -> GGUF's tensor, in a block and outside of it
_APART = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
_QKV = {"self_attn.qkv_proj": "attn_qkv"}
_OUTPUT = {"self_attn.o_proj": "attn_output"}
_GATE_AND_UP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
_GATE_UP = {"mlp.gate_up_proj": "ffn_up"}
_DOWN = {"mlp.down_proj": "ffn_down"}
MODULES = _APART | _OUTPUT | _GATE_AND_UP | _DOWN
FUSED_FFN = _APART | _OUTPUT | _GATE_UP | _DOWN
FUSED = _QKV | _OUTPUT | _GATE_UP | _DOWN
ALL_MODULES = FUSED | FUSED_FFN | MODULES  # of all families
END_MODULES = {"model.embed_tokens": "token_embd", "lm_head": "output"}
QKV = tuple(_APART.values())
LINEARS = tuple(MODULES.values())  # of a block
FFN = ("ffn_gate", "ffn_up", "ffn_down")
POST_NORMS = ("post_attention_norm", "post_ffw_norm")


def _as_read(keys: Keys, config: Config) -> Config:
    return config


@dataclass(frozen=True)
class Family:
    """Differences of a family from llama's block.

    name             general.architecture of its files, where that is not the name of the declaring file
    pairing          elements of a head that are rotated together in GGUF files. Where folder.pairing differs, rows of
                     attn_q and attn_k are permuted from Hugging Face's order
    biases           linear layers of a block that have a bias
    optional_biases  linear layers of a block that may have a bias
    unread_biases    of these, those of which llama.cpp has no bias: it does not load files with one
    qk_norm          queries and keys are normalised: each "head", or the whole "width" of all heads
    rotates_first    they are rotated before they are normalised
    norms            names of norms, "" for none: before attention and feed-forward
    post_norms       likewise, behind them
    activation       of the gate
    classifies       llama.cpp reads the matrix of a head of classes, and computes their probabilities
    modules          linear layers of a block: Hugging Face's module -> GGUF's tensor. Without ffn_gate, ffn_up
                     holds the rows of the gate, then those of up
    configure        returns the configuration with the family's own metadata; raises FileError
    folder           differences of the family's Hugging Face folders
    """

    pairing: Pairing
    folder: FolderForm
    name: str = ""
    biases: tuple[str, ...] = ()
    optional_biases: tuple[str, ...] = ()
    unread_biases: tuple[str, ...] = ()
    qk_norm: Literal["", "head", "width"] = ""
    rotates_first: bool = False
    norms: tuple[str, str] = ("attn_norm", "ffn_norm")
    post_norms: tuple[str, str] = ("", "")
    activation: Literal["silu", "gelu"] = "silu"
    classifies: bool = False
    modules: Mapping[str, str] = field(default_factory=lambda: MODULES)
    configure: Callable[[Keys, Config], Config] = _as_read

    @property
    def permutes(self) -> bool:
        """GGUF files store the rows of attn_q and attn_k in another order than Hugging Face's folders."""
        return self.pairing != self.folder.pairing

    @property
    def fused_ffn(self) -> bool:
        return "ffn_gate" not in self.modules.values()

    def linears(self, c: Config) -> dict[str, Shape]:
        """The linear layers of a block: name -> shape in NumPy's order."""
        q, kv, up = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.ffn_width
        rows = {"attn_qkv": q + 2 * kv} if c.fused_qkv else {"attn_q": q, "attn_k": kv, "attn_v": kv}
        into = {"ffn_up": 2 * up} if self.fused_ffn else {"ffn_gate": up, "ffn_up": up}
        return {
            **{name: (count, c.width) for name, count in rows.items()},
            "attn_output": (c.width, q),
            **{name: (count, c.width) for name, count in into.items()},
            "ffn_down": (c.width, up),
        }

    def shapes(self, c: Config) -> dict[str, Shape]:
        """Required tensors of one block, without `blk.N.`: name -> shape in NumPy's order."""
        norms: dict[str, Shape] = {name: (c.width,) for name in (*self.norms, *self.post_norms) if name}
        if self.qk_norm:
            whole = self.qk_norm == "width"
            norms |= {
                f"{name}_norm": (count * c.head_dim if whole else c.head_dim,)
                for name, count in (("attn_q", c.heads), ("attn_k", c.kv_heads))
            }
        linears = self.linears(c)
        return {f"{name}.weight": shape for name, shape in (linears | norms).items()} | _biases(self.biases, linears)

    def optional_shapes(self, c: Config) -> dict[str, Shape]:
        """Optional tensors of one block: name -> shape."""
        return _biases(self.optional_biases, self.linears(c))

    def hidden(self, net: Net, tokens: Value, positions: Value) -> Value:
        """tokens, positions i32 [B, T] -> the residual stream after the final norm, [B*T, d]."""
        x = net.embed(tokens)
        for layer in net.layers(positions):
            x = x + self._branch(layer, 0, x, self._attention)
            x = x + self._branch(layer, 1, x, self._feed_forward)
            net.blocks.append(x)
        return net.norm("output_norm", x)

    def _branch(self, layer: Layer, which: int, x: Value, inner: Callable[[Layer, Value], Value]) -> Value:
        """The term that attention (0) or feed-forward (1) adds to the residual stream."""
        before, behind = self.norms[which], self.post_norms[which]
        y = inner(layer, layer.norm(before, x) if before else x)
        y = layer.norm(behind, y) if behind else y
        scale = layer.config.residual_scale
        return y if scale == 1 else ops.scale(y, scale)

    def _attention(self, layer: Layer, x: Value) -> Value:
        c = layer.config
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        fused = layer.linear("attn_qkv", x) if c.fused_qkv else None

        def part(name: str, begin: int, count: int) -> Value:
            return layer.linear(name, x) if fused is None else fused[:, begin : begin + count]

        queries = layer.tempered(self._rotated(layer, "attn_q", part("attn_q", 0, q), c.heads))
        keys = self._rotated(layer, "attn_k", part("attn_k", q, kv), c.kv_heads)
        y = layer.attend(queries, keys, layer.heads(part("attn_v", q + kv, kv), c.kv_heads))  # [B, T, H, D]
        return layer.linear("attn_output", y.reshape(x.shape[0], q))

    def _rotated(self, layer: Layer, name: str, y: Value, heads: int) -> Value:
        """Queries or keys [B*T, heads*D], normalised and rotated, [B, T, heads, D]."""
        if self.qk_norm == "width":
            y = layer.norm(f"{name}_norm", y)
        y = layer.heads(y, heads)
        if self.rotates_first:
            y = layer.rope(y, self.pairing)
        if self.qk_norm == "head":
            y = layer.norm(f"{name}_norm", y)
        return y if self.rotates_first else layer.rope(y, self.pairing)

    def _feed_forward(self, layer: Layer, x: Value) -> Value:
        if self.fused_ffn:
            both = layer.linear("ffn_up", x)
            gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        else:
            gate, up = layer.linear("ffn_gate", x), layer.linear("ffn_up", x)
        return layer.linear("ffn_down", ops.swiglu(gate, up) if self.activation == "silu" else ops.geglu(gate, up))


def _biases(names: tuple[str, ...], linears: dict[str, Shape]) -> dict[str, Shape]:
    """Biases of these linear layers. Where queries, keys and values are fused, so are their biases."""
    if set(QKV) <= set(names) and "attn_qkv" in linears:
        names = ("attn_qkv", *names)
    return {f"{name}.bias": linears[name][:1] for name in names if name in linears}
