"""One training step of SmolLM2-135M's shape in PyTorch and in JAX: what bench/lora.py runs beside ours.

Random weights of the spread that examples/random_gguf.py gives, one row of tokens, AdamW. LoRA of rank 8 on q, k, v, o,
or full fine-tuning. Each returns a function that makes one step and gives its loss. PyTorch in f32 or under
autocast to bf16.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCAB, BASE = 30, 576, 9, 3, 64, 1536, 49152, 1e5
RANK, SCALE, LR, DECAY, EPS = 8, 2.0, 1e-3, 0.01, 1e-5
STD, B_STD = 0.02, 0.01
SHAPES = {  # [n_in, n_out]
    "q": (WIDTH, HEADS * HEAD), "k": (WIDTH, KV_HEADS * HEAD), "v": (WIDTH, KV_HEADS * HEAD),
    "o": (HEADS * HEAD, WIDTH), "gate": (WIDTH, FFN), "up": (WIDTH, FFN), "down": (FFN, WIDTH),
}  # fmt: skip
Step = Callable[[], float]


def tokens(length: int) -> np.ndarray:
    """[length + 1]"""
    return np.random.default_rng(0).integers(0, VOCAB, length + 1)


def angles(length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [length, HEAD], halves paired."""
    turn = np.outer(np.arange(length), BASE ** (-np.arange(0, HEAD, 2) / HEAD)).astype(np.float32)
    turn = np.concatenate([turn, turn], 1)
    return np.cos(turn), np.sin(turn)


def torch_step(
    length: int,
    full: bool,
    threads: int,
    layers: int = LAYERS,
    precision: str = "f32",
    rows: int = 1,
    checkpointed: bool = False,
) -> Step:
    """checkpointed: each block by torch.utils.checkpoint."""
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def made(*shape: int, std: float = STD, trains: bool = full) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(*shape) * std, requires_grad=trains)

    def ones() -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.ones(WIDTH), requires_grad=full)

    table, last = made(VOCAB, WIDTH), ones()
    blocks = [
        {name: made(n_out, n_in) for name, (n_in, n_out) in SHAPES.items()} | {"norm1": ones(), "norm2": ones()}
        for _ in range(layers)
    ]

    def adapter() -> dict:
        shapes = {name: SHAPES[name] for name in ("" if full else "qkvo")}
        return {k: (made(RANK, i, trains=True), made(o, RANK, std=B_STD, trains=True)) for k, (i, o) in shapes.items()}

    lora = [adapter() for _ in range(layers)]
    cos, sin = (torch.from_numpy(a) for a in angles(length))

    def linear(block: dict, adapter: dict, name: str, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, block[name])
        if name in adapter:
            a, b = adapter[name]
            y = y + SCALE * F.linear(F.linear(x, a), b)
        return y

    def rope(x: torch.Tensor) -> torch.Tensor:
        half = HEAD // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def through(x: torch.Tensor, block: dict, adapter: dict) -> torch.Tensor:
        h = F.rms_norm(x, (WIDTH,), block["norm1"], EPS)
        q, k, v = (linear(block, adapter, n, h).view(rows, length, -1, HEAD).transpose(1, 2) for n in "qkv")
        o = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        x = x + linear(block, adapter, "o", o.transpose(1, 2).reshape(rows * length, WIDTH))
        h = F.rms_norm(x, (WIDTH,), block["norm2"], EPS)
        return x + F.linear(F.silu(F.linear(h, block["gate"])) * F.linear(h, block["up"]), block["down"])

    def loss_of(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.embedding(ids, table)
        for both in zip(blocks, lora, strict=True):
            x = checkpoint(through, x, *both, use_reentrant=False) if checkpointed else through(x, *both)
        return F.cross_entropy(F.linear(F.rms_norm(x, (WIDTH,), last, EPS), table), labels)

    trained = [p for adapter in lora for pair in adapter.values() for p in pair]
    if full:
        trained = [table, last, *(p for block in blocks for p in block.values())]
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=DECAY, fused=True)
    row = torch.from_numpy(tokens(length))
    ids, labels = row[:-1].repeat(rows), row[1:].repeat(rows)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(ids, labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def jax_step(length: int, full: bool, threads: int, layers: int = LAYERS) -> Step:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)

    def made(*shape: int, std: float = STD) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    blocks = {name: made(layers, *shape) for name, shape in SHAPES.items()}
    blocks |= {name: np.ones((layers, WIDTH), np.float32) for name in ("norm1", "norm2")}
    base = {"table": made(VOCAB, WIDTH), "last": np.ones(WIDTH, np.float32), "blocks": blocks}
    lora = {n: (made(layers, SHAPES[n][0], RANK), made(layers, RANK, SHAPES[n][1], std=B_STD)) for n in "qkvo"}
    base, lora = jax.tree.map(jnp.asarray, (base, lora))
    cos, sin = (jnp.asarray(a)[:, None] for a in angles(length))

    def norm(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight

    def rope(x):
        half = HEAD // 2
        return x * cos + jnp.concatenate((-x[..., half:], x[..., :half]), -1) * sin

    def loss_of(trained, frozen, ids, labels):
        weights, adapters = (trained, {}) if full else (frozen, trained)
        mask = jnp.tril(jnp.ones((length, length), bool))

        def layer(x, both):
            block, adapter = both

            def linear(name, x):
                y = x @ block[name]
                return y + SCALE * ((x @ adapter[name][0]) @ adapter[name][1]) if name in adapter else y

            h = norm(x, block["norm1"])
            q, k, v = (linear(n, h).reshape(length, -1, HEAD) for n in "qkv")
            q, k = rope(q).reshape(length, KV_HEADS, HEADS // KV_HEADS, HEAD), rope(k)
            scores = jnp.einsum("sgrh,tgh->grst", q, k) * HEAD**-0.5
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
            x = x + linear("o", jnp.einsum("grst,tgh->sgrh", shares, v).reshape(length, WIDTH))
            h = norm(x, block["norm2"])
            return x + (jax.nn.silu(h @ block["gate"]) * (h @ block["up"])) @ block["down"], None

        x, _ = jax.lax.scan(layer, weights["table"][ids], (weights["blocks"], adapters))
        logits = norm(x, weights["last"]) @ weights["table"].T
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], 1)[:, 0])

    def update(state, frozen, ids, labels):
        p, m, v, t = state
        loss, g = jax.value_and_grad(loss_of)(p, frozen, ids, labels)
        t, each = t + 1, jax.tree.map
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        rate, shrink = LR / (1 - 0.9**t), 1 - 0.999**t
        p = each(lambda p, m, v: p * (1 - LR * DECAY) - rate * m / (jnp.sqrt(v / shrink) + 1e-8), p, m, v)
        return (p, m, v, t), loss

    trained, frozen = (base, {}) if full else (lora, base)
    one = jax.jit(update, donate_argnums=0)
    row = tokens(length)
    ids, labels = jnp.asarray(row[:-1]), jnp.asarray(row[1:])
    held = {"state": (trained, *(jax.tree.map(jnp.zeros_like, trained) for _ in "mv"), jnp.float32(0))}
    del base, lora, trained, blocks

    def step() -> float:
        held["state"], loss = one(held["state"], frozen, ids, labels)
        return float(loss)

    return step
