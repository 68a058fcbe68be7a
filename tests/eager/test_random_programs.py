"""Random programs, computed eagerly with looks, tapes and updates at random, against the same arithmetic in NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops

UNARY = {
    "neg": (lambda t: -t, lambda a: -a),
    "tanh": (ops.tanh, np.tanh),
    "relu": (ops.relu, lambda a: np.maximum(a, 0)),
    "scale": (lambda t: t * 0.75, lambda a: a * 0.75),
    "mean": (lambda t: t - t.mean(axes=0, keepdims=True), lambda a: a - a.mean(axis=0, keepdims=True)),
    "turn": (lambda t: t[::1].T.T, lambda a: a),
    "detach": (lambda t: t.detach(), lambda a: a),
}
BINARY = {
    "add": (lambda s, t: s + t, np.add),
    "mul": (lambda s, t: ops.tanh(s) * t, lambda a, b: np.tanh(a) * b),
    "matmul": (lambda s, t: ops.matmul(s, t, transpose_y=True) @ t * 0.1, lambda a, b: a @ b.T @ b * 0.1),
}


class Machine:
    """Tensors with their NumPy twins in float64, and parameters that are assigned to in between."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.draw = np.random.default_rng(seed)
        self.parameters = [gl.parameter(self.draw.uniform(-1, 1, (3, 3)), f"p{i}") for i in range(2)]
        self.twins = [p.numpy().astype(np.float64) for p in self.parameters]
        self.values = [self.leaf()]

    def leaf(self):
        a = self.draw.uniform(-1, 1, (3, 3)).astype(np.float32)
        return gl.tensor(a), a.astype(np.float64)

    def pick(self):
        if self.random.random() < 0.25:
            i = self.random.randrange(2)
            return self.parameters[i], self.twins[i]
        return self.random.choice(self.values)

    def step(self):
        chance = self.random.random()
        if chance < 0.15:
            self.values.append(self.leaf())
        elif chance < 0.45:
            name = self.random.choice(list(UNARY))
            t, a = self.random.choice(self.values)
            self.values.append((UNARY[name][0](t), UNARY[name][1](a)))
        elif chance < 0.8:
            name = self.random.choice(list(BINARY))
            (s, a), (t, b) = self.random.choice(self.values), self.pick()
            self.values.append((BINARY[name][0](s, t), BINARY[name][1](a, b)))
        elif chance < 0.88:
            self.check(self.random.choice(self.values))
        elif chance < 0.93:
            i = self.random.randrange(2)
            self.twins[i] = self.draw.uniform(-1, 1, (3, 3)).astype(np.float32).astype(np.float64)
            self.parameters[i].assign(self.twins[i])
        elif chance < 0.96:  # an update that is recorded
            i = self.random.randrange(2)
            t, a = self.random.choice(self.values)
            ops.assign(self.parameters[i], ops.tanh(t))
            self.twins[i] = np.tanh(a)
        elif len(self.values) > 4:
            del self.values[self.random.randrange(len(self.values))]

    @staticmethod
    def check(pair):
        t, a = pair
        np.testing.assert_allclose(t.numpy(), a, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("taped", [False, True])
def test_random_programs(seed, taped):
    machine = Machine(seed)
    for _ in range(6):
        if taped:
            with gl.grad_tape():
                for _ in range(25):
                    machine.step()
        for _ in range(15):
            machine.step()
    for pair in machine.values:
        machine.check(pair)
    for p, a in zip(machine.parameters, machine.twins, strict=True):
        np.testing.assert_allclose(p.numpy(), a, rtol=2e-3, atol=2e-4)


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_random_programs_are_pytorchs(seed):
    torch = pytest.importorskip("torch")
    rng = random.Random(seed)
    arrays = [np.random.default_rng(seed + i).uniform(-1, 1, (3, 3)).astype(np.float32) for i in range(3)]
    theirs = [torch.tensor(a.astype(np.float64), requires_grad=i < 2) for i, a in enumerate(arrays)]
    parameters = [gl.parameter(a, f"p{i}") for i, a in enumerate(arrays[:2])]
    with gl.grad_tape() as tape:
        mine = [*parameters, gl.tensor(arrays[2])]
        values = list(zip(mine, theirs, strict=True))
        for _ in range(20):
            (s, a), (t, b) = rng.choice(values), rng.choice(values)
            kind = rng.randrange(6)
            if kind == 0:
                values.append((s + t, a + b))
            elif kind == 1:
                values.append((ops.tanh(s) * t, torch.tanh(a) * b))
            elif kind == 2:
                values.append((s @ t, a @ b))
            elif kind == 3:
                values.append((ops.detach(s) * t, a.detach() * b))
            elif kind == 4:
                with gl.no_grad():
                    u = ops.sigmoid(s)
                values.append((u + t * 0.5, torch.sigmoid(a).detach() + b * 0.5))
            elif hasattr(s, "tolist") and s.numpy().sum() > 0:  # Python decides
                values.append((s * 2.0, a * 2.0))
        loss, other = sum(ops.sum(ops.tanh(v)) for v, _ in values), sum(torch.tanh(v).sum() for _, v in values)
    grads = tape.backward(loss)
    other.backward()
    assert float(loss) == pytest.approx(other.item(), rel=1e-4)
    for p, q in zip(parameters, theirs, strict=False):
        np.testing.assert_allclose(grads[p].numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-4)
