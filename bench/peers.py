"""The same training steps in PyTorch and JAX, each in a process of its own: `python bench/peers.py WORK PEER`.

WORK: mlp (784-500-10, AdamW), tiny (4-32-3, batch 32, AdamW), cnn (conv 3x3x8, pool, conv 3x3x16, pool, dense, AdamW),
deep (--layers dense layers of width 8, batch 4, AdamW).
PEER: torch, torch-fused (fused AdamW), torch-cl (channels last), torch-compile, jax, jax-scan.
--precision bf16: PyTorch computes under its autocast, JAX in f32.
Prints one JSON object: seconds per step (median of the blocks), seconds from the model to the end of the first block
(with --steps 1 and --blocks 0 of the first step: what compiling takes), resident MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("mlp", "tiny", "cnn", "deep"))
    parser.add_argument("peer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None, help="steps per block")
    parser.add_argument("--layers", type=int, default=100, help="of deep")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import numpy as np

    rng = np.random.default_rng(0)
    rows, batch, steps = {
        "mlp": (60000, 500, 120),
        "tiny": (32000, 32, 1000),
        "cnn": (5000, 500, 12),
        "deep": (4, 4, 1),
    }[args.work]
    steps = args.steps or steps
    shape = {"mlp": (784,), "tiny": (4,), "cnn": (1, 28, 28), "deep": (8,)}[args.work]
    x = rng.random((rows, *shape), dtype=np.float32)
    y = rng.integers(0, {"tiny": 3, "deep": 8}.get(args.work, 10), rows)
    made = time.perf_counter()
    block = (_torch if args.peer.startswith("torch") else _jax)(args, x, y, batch, steps)
    block()
    first = time.perf_counter() - made
    times = []
    for _ in range(args.blocks):
        began = time.perf_counter()
        block()
        times.append((time.perf_counter() - began) / steps)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"first_seconds": first, "rss_mib": round(rss, 1)}
    if times:
        found |= {"seconds_per_step": statistics.median(times), "min": min(times)}
    print(json.dumps(found))


def _torch(args, x, y, batch, steps):
    import torch
    from torch import nn

    torch.set_num_threads(args.threads)
    if args.work == "cnn":
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10),
        )  # fmt: skip
    elif args.work == "deep":
        net = nn.Sequential(*(part for _ in range(args.layers) for part in (nn.Linear(8, 8), nn.ReLU())))
    else:
        n_in, hidden, n_out = (784, 500, 10) if args.work == "mlp" else (4, 32, 3)
        net = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, n_out))
    data, labels = torch.from_numpy(x), torch.from_numpy(y)
    if args.peer == "torch-cl":
        net, data = net.to(memory_format=torch.channels_last), data.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.0, fused=args.peer == "torch-fused")
    loss_of = nn.CrossEntropyLoss()

    def forward(a, b):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            return loss_of(net(a), b)

    if args.peer == "torch-compile":
        forward = torch.compile(forward)
    batches = len(x) // batch

    def block():
        for i in range(steps):
            at = i % batches * batch
            optimizer.zero_grad()
            loss = forward(data[at : at + batch], labels[at : at + batch])
            loss.backward()
            optimizer.step()
        float(loss.detach())

    return block


def _jax(args, x, y, batch, steps):
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(1)

    def he(*shape, fan):
        return jnp.asarray((rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32))

    if args.work == "cnn":
        x = x.transpose(0, 2, 3, 1)
        params = [
            he(3, 3, 1, 8, fan=9),
            jnp.zeros(8),
            he(3, 3, 8, 16, fan=72),
            jnp.zeros(16),
            he(784, 10, fan=784),
            jnp.zeros(10),
        ]

        def conv(h, w, b):
            form = ("NHWC", "HWIO", "NHWC")
            return jax.nn.relu(jax.lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=form) + b)

        def pool(h):
            return jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

        def logits(p, a):
            h = pool(conv(pool(conv(a, p[0], p[1])), p[2], p[3]))
            return h.reshape(len(h), -1) @ p[4] + p[5]
    elif args.work == "deep":
        params = [part for _ in range(args.layers) for part in (he(8, 8, fan=8), jnp.zeros(8))]

        def logits(p, a):
            for w, b in zip(p[::2], p[1::2], strict=True):
                a = jax.nn.relu(a @ w + b)
            return a
    else:
        n_in, hidden, n_out = (784, 500, 10) if args.work == "mlp" else (4, 32, 3)
        params = [he(n_in, hidden, fan=n_in), jnp.zeros(hidden), he(hidden, n_out, fan=hidden), jnp.zeros(n_out)]

        def logits(p, a):
            return jax.nn.relu(a @ p[0] + p[1]) @ p[2] + p[3]

    def loss(p, a, b):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(p, a)), b[:, None], 1))

    data, labels, batches = jnp.asarray(x), jnp.asarray(y), len(x) // batch

    def update(state, i):
        p, m, v, t = state
        at = i % batches * batch
        a, b = jax.lax.dynamic_slice_in_dim(data, at, batch), jax.lax.dynamic_slice_in_dim(labels, at, batch)
        value, g = jax.value_and_grad(loss)(p, a, b)
        t = t + 1
        m = [0.9 * mi + 0.1 * gi for mi, gi in zip(m, g, strict=True)]
        v = [0.999 * vi + 0.001 * gi * gi for vi, gi in zip(v, g, strict=True)]
        scale = 1e-3 / (1 - 0.9**t)
        p = [pi - scale * mi / (jnp.sqrt(vi / (1 - 0.999**t)) + 1e-8) for pi, mi, vi in zip(p, m, v, strict=True)]
        return (p, m, v, t), value

    held = {"state": (params, [jnp.zeros_like(p) for p in params], [jnp.zeros_like(p) for p in params], jnp.float32(0))}
    if args.peer == "jax-scan":
        many = jax.jit(lambda s: jax.lax.scan(update, s, jnp.arange(steps)), donate_argnums=0)

        def block():
            held["state"], values = many(held["state"])
            float(values[-1])
    else:
        one = jax.jit(update, donate_argnums=0)

        def block():
            for i in range(steps):
                held["state"], value = one(held["state"], i)
            float(value)

    return block


if __name__ == "__main__":
    main()
