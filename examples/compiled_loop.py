"""A training loop of one's own around one compiled program: a network learns u(t) from u'' = -u, u(0) = 0, u'(0) = 1.

    python examples/compiled_loop.py [--steps 2000] [--seed 0]

No solution is given: the loss holds the second derivative of the network, as nodes of the graph. Loss, gradients and
Adam's update, written by hand, are one program, planned and proved before the first step. The solution is sin(t).
"""

from __future__ import annotations

import argparse

import numpy as np

import gradloom as gl
from gradloom import ops

POINTS, LAST = 64, np.pi


def derivative(value: gl.Value, by: gl.Value) -> gl.Value:
    (slope,) = gl.gradients(value, [by])
    assert slope is not None
    return slope


def loss_of(net: gl.nn.Module, t: gl.Value) -> gl.Value:
    """Mean square of u'' + u, with u = t + t^2 net(t): u(0) = 0 and u'(0) = 1 hold by construction."""
    u = t + ops.sqr(t) * net(t / LAST)
    second = derivative(derivative(u, t), t)
    return ops.mean(ops.sqr(second + u))


def adam(parameters: list[gl.Parameter], loss: gl.Value) -> list[gl.Value]:
    """New values of parameters and moments (Kingma and Ba, arXiv 1412.6980), for gl.compile(updates=)."""
    lr, step = gl.setting("lr"), gl.setting("step")
    written: list[gl.Value] = []
    for p, g in zip(parameters, gl.gradients(loss, parameters), strict=True):
        if g is None:
            continue  # the loss does not depend on it
        m, v = (gl.parameter(np.zeros(p.shape), trainable=False) for _ in range(2))
        mean, square = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * ops.sqr(g)
        corrected = ops.sqrt(square / (1 - 0.999**step)) + 1e-8
        written += [p, p - lr * (mean / (1 - 0.9**step)) / corrected, m, mean, v, square]
    return list(ops.assign(*written))


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    net = gl.nn.Sequential(gl.nn.Linear(1, 32, "tanh"), gl.nn.Linear(32, 32, "tanh"), gl.nn.Linear(32, 1)).init(
        args.seed
    )
    loss = loss_of(net, gl.input("t", (POINTS, 1)))
    run = gl.compile(loss, updates=adam(net.parameters(), loss))
    print(f"{len(run.plan.order.steps)} instructions, {run.plan.peak_bytes} bytes")

    rng = np.random.default_rng(args.seed)
    for step in range(1, args.steps + 1):
        t = rng.uniform(0, LAST, (POINTS, 1)).astype(np.float32)
        rate = 3e-3 * (1 - step / (args.steps + 1))
        (value,) = run(t=t, lr=rate, step=step)
        if step % (args.steps // 5) == 0:
            print(f"step {step}: loss {value:.6f}")
    t = np.linspace(0, LAST, 100, dtype=np.float32)[:, None]
    away = float(np.abs(t + t**2 * gl.predict(net, t / np.float32(LAST)) - np.sin(t)).max())
    print(f"largest distance from sin(t): {away:.4f}")
    return away


if __name__ == "__main__":
    main()
