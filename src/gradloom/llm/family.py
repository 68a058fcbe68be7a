"""Declaration of a model family: the tensors of a block, the block itself, and the names that other tools use.

    x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms_norm(x)
    x = x + Wdown (silu(Wgate n) * Wup n),               n = rms_norm(x)

Rows are tokens: x is [B*T, d]. Weights are stored as [n_out, n_in].
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..graph.value import Shape, Value
from .config import Config
from .net import Layer, Net, Pairing

# Linear layers: Hugging Face's module -> GGUF's tensor, in a block and outside of it
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
END_MODULES = {"model.embed_tokens": "token_embd", "lm_head": "output"}
LINEARS = tuple(MODULES.values())  # of a block


@dataclass(frozen=True)
class Family:
    """Differences of a family from llama's block.

    pairing          elements of a head that are rotated together. With "interleaved", the rows of attn_q and attn_k are
                     permuted from Hugging Face's order, which is "half"
    biases           linear layers of a block that have a bias
    optional_biases  linear layers of a block that may have a bias
    head_norms       queries and keys are normalised per head before they are rotated
    """

    pairing: Pairing
    biases: tuple[str, ...] = ()
    optional_biases: tuple[str, ...] = ()
    head_norms: bool = False

    def shapes(self, c: Config) -> dict[str, Shape]:
        """Required tensors of one block, without `blk.N.`: name -> shape in NumPy's order."""
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shapes: dict[str, Shape] = {
            "attn_norm.weight": (c.width,),
            "attn_q.weight": (q, c.width),
            "attn_k.weight": (kv, c.width),
            "attn_v.weight": (kv, c.width),
            "attn_output.weight": (c.width, q),
            "ffn_norm.weight": (c.width,),
            "ffn_gate.weight": (c.ffn_width, c.width),
            "ffn_up.weight": (c.ffn_width, c.width),
            "ffn_down.weight": (c.width, c.ffn_width),
        }
        norms: dict[str, Shape] = {f"{name}.weight": (c.head_dim,) for name in ("attn_q_norm", "attn_k_norm")}
        return shapes | _biases(self.biases, shapes) | (norms if self.head_norms else {})

    def optional_shapes(self, c: Config) -> dict[str, Shape]:
        """Optional tensors of one block: name -> shape."""
        return _biases(self.optional_biases, self.shapes(c))

    def hidden(self, net: Net, tokens: Value, positions: Value) -> Value:
        """tokens, positions i32 [B, T] -> the residual stream after the final norm, [B*T, d]."""
        x = net.embed(tokens)
        for layer in net.layers(positions):
            x = x + self._attention(layer, layer.norm("attn_norm", x))
            x = x + _feed_forward(layer, layer.norm("ffn_norm", x))
        return net.norm("output_norm", x)

    def _attention(self, layer: Layer, x: Value) -> Value:
        c = layer.config
        q = self._rotated(layer, "attn_q", x, c.heads)
        k = self._rotated(layer, "attn_k", x, c.kv_heads)
        v = layer.heads(layer.linear("attn_v", x), c.kv_heads)
        y = layer.attend(q, k, v)  # [B, T, H, D]
        return layer.linear("attn_output", y.reshape(x.shape[0], c.heads * c.head_dim))

    def _rotated(self, layer: Layer, name: str, x: Value, heads: int) -> Value:
        """Queries or keys, [B, T, H, D]."""
        y = layer.heads(layer.linear(name, x), heads)
        return layer.rope(layer.norm(f"{name}_norm", y) if self.head_norms else y, self.pairing)


def _feed_forward(layer: Layer, x: Value) -> Value:
    return layer.linear("ffn_down", ops.swiglu(layer.linear("ffn_gate", x), layer.linear("ffn_up", x)))


def _biases(names: tuple[str, ...], shapes: dict[str, Shape]) -> dict[str, Shape]:
    return {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in names}
