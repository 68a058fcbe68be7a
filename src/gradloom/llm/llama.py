"""llama, SmolLM, Mistral: the block that the whole family shares.

    x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms_norm(x)
    x = x + Wdown (silu(Wgate n) * Wup n),               n = rms_norm(x)

Rows are tokens: x is [B*T, d]. Weights lie as [n_out, n_in].
"""

from __future__ import annotations

from .. import ops
from ..graph.value import Shape, Value
from .config import Config
from .net import Layer, Net, Pairing


class Llama:
    """GGUF's llama: the rows of Wq and Wk are permuted so that a rotation turns neighbouring elements of a head."""

    pairing: Pairing = "interleaved"
    biases: tuple[str, ...] = ()  # linear layers of a block that have a bias
    biases_possible: tuple[str, ...] = (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
    )  # fmt: skip
    linears: tuple[str, ...] = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

    def shapes(self, c: Config) -> dict[str, Shape]:
        """Tensors of one block, without `blk.N.`: name -> the shape (NumPy order) that the configuration asks for."""
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
        return shapes | {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in self.biases}

    def shapes_possible(self, c: Config) -> dict[str, Shape]:
        """Tensors that a block may have, too: name -> shape."""
        known = self.shapes(c)
        return {f"{n}.bias": known[f"{n}.weight"][:1] for n in self.biases_possible if f"{n}.bias" not in known}

    def hidden(self, net: Net, tokens: Value, positions: Value) -> Value:
        """tokens, positions i32 [B, T] -> the residual stream after the final norm, [B*T, d]."""
        x = net.embed(tokens)
        for layer in net.layers(positions):
            x = x + self.attention(layer, layer.norm("attn_norm", x))
            x = x + self.feed_forward(layer, layer.norm("ffn_norm", x))
        return net.norm("output_norm", x)

    def attention(self, layer: Layer, x: Value) -> Value:
        c = layer.config
        q = layer.rope(self.queries(layer, layer.heads(layer.linear("attn_q", x), c.heads)), self.pairing)
        k = layer.rope(self.keys(layer, layer.heads(layer.linear("attn_k", x), c.kv_heads)), self.pairing)
        v = layer.heads(layer.linear("attn_v", x), c.kv_heads)
        y = layer.attend(q, k, v)  # [B, T, H, D]
        return layer.linear("attn_output", y.reshape(x.shape[0], c.heads * c.head_dim))

    def queries(self, layer: Layer, q: Value) -> Value:
        """What a family does to the queries [B, T, H, D] before they are rotated."""
        return q

    def keys(self, layer: Layer, k: Value) -> Value:
        return k

    def feed_forward(self, layer: Layer, x: Value) -> Value:
        return layer.linear("ffn_down", ops.swiglu(layer.linear("ffn_gate", x), layer.linear("ffn_up", x)))
