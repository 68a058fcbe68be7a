"""Random scripts of expressions, looks, tapes, updates and deletions do what PyTorch in float64 does.

What is lazy must not show: whatever is kept, dropped, looked at, recorded or updated in between, in whatever order.
"""

import os

import numpy as np
import pytest

import gradloom as gl

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

SCRIPTS = int(os.environ.get("SCRIPTS", "12"))
SHAPES = [(), (3,), (2, 3), (2, 1)]

UNARY = [
    (gl.ops.tanh, torch.tanh),
    (gl.ops.sigmoid, torch.sigmoid),
    (gl.ops.relu, torch.relu),
    (lambda x: x * 0.5, lambda x: x * 0.5),
    (lambda x: 1.5 - x, lambda x: 1.5 - x),
    (lambda x: gl.ops.softplus(x), torch.nn.functional.softplus),
    (lambda x: x.sum(), lambda x: x.sum()),
    (lambda x: x.mean(-1, keepdims=True) if x.ndim else x, lambda x: x.mean(-1, keepdim=True) if x.ndim else x),
    (lambda x: x.detach(), lambda x: x.detach().clone()),
]
BINARY = [
    (lambda a, b: a + b, lambda a, b: a + b),
    (lambda a, b: a - b, lambda a, b: a - b),
    (lambda a, b: a * b * 0.5, lambda a, b: a * b * 0.5),
    (lambda a, b: gl.ops.tanh(a) / (1.5 + b * b), lambda a, b: torch.tanh(a) / (1.5 + b * b)),
]


class Script:
    """Pairs (tensor, PyTorch's twin, the tape that recorded it)."""

    def __init__(self, seed, numbers=0, like=None):
        self.rng, self.numbers = np.random.default_rng(seed), np.random.default_rng([seed, numbers])
        self.said = [f"seed {seed}, numbers {numbers}"]
        self.tape, self.tapes = None, 0
        self.pairs = []
        arrays = [self.numbers.standard_normal(s) for s in SHAPES[1:]]
        self.params = like.params if like else [gl.parameter(a, name=f"p{i}") for i, a in enumerate(arrays)]
        self.twins = [torch.tensor(p.numpy().astype(np.float64), requires_grad=True) for p in self.params]
        self.opt = like.opt if like else gl.optim.SGD(self.params, lr=0.1)
        for _ in range(3):
            self.make_tensor()

    def pick(self, items):
        return items[self.rng.integers(len(items))]

    def twin(self, pair):
        """What the open tape sees: what another one recorded is a constant to it."""
        _, theirs, tape = pair
        return theirs if tape == self.tapes and self.tape is not None else theirs.detach()

    def add(self, mine, theirs):
        if len(self.pairs) > 12:
            self.pairs.pop(self.rng.integers(len(self.pairs)))
        self.pairs.append((mine, theirs if self.tape is not None else theirs.detach(), self.tapes))

    def leaf(self):
        """A tensor, or a parameter where a tape is open."""
        if self.tape is not None and self.rng.random() < 0.4:
            i = self.rng.integers(len(self.params))
            return self.params[i], self.twins[i]
        pair = self.pick(self.pairs)
        return pair[0], self.twin(pair)

    # ---- what a script does

    def make_tensor(self):
        a = self.numbers.standard_normal(self.pick(SHAPES)).astype(np.float32)
        self.add(gl.tensor(a), torch.tensor(a.astype(np.float64)))

    def unary(self):
        (ours, theirs), (x, y) = self.pick(UNARY), self.leaf()
        self.add(ours(x), theirs(y))

    def binary(self):
        (ours, theirs), (a, a2), (b, b2) = self.pick(BINARY), self.leaf(), self.leaf()
        self.add(ours(a, b), theirs(a2, b2))

    def look(self):
        self.check(self.pick(self.pairs))

    def drop(self):
        if len(self.pairs) > 3:
            self.pairs.pop(self.rng.integers(len(self.pairs)))

    def paused(self):
        with gl.no_grad():
            (ours, theirs), (x, y) = self.pick(UNARY), self.leaf()
            self.add(ours(x), theirs(y).detach())

    def slope(self):
        """A gradient by an inner tape, which the outer one may differentiate again."""
        if self.tape is None:
            return
        pair = self.pick(self.pairs)
        x, y = pair[0], self.twin(pair)
        y = y if y.requires_grad else y.clone().requires_grad_()
        (ours, theirs), (more, more2), (w, w2) = self.pick(UNARY[:3]), self.pick(BINARY), self.leaf()
        if not isinstance(w, gl.Parameter):
            w, w2 = w.detach(), w2.detach()  # it may depend on x, by what the inner tape has not seen
        with gl.grad_tape() as inner:
            inner.watch(x)
            z = more(ours(x * 1.0), w)
        (g,) = torch.autograd.grad(more2(theirs(y * 1.0), w2).sum(), y, create_graph=True)
        self.add(inner.backward(z)[x], g)

    def open(self):
        if self.tape is None:
            self.tapes += 1
            self.tape = gl.grad_tape()
            self.tape.__enter__()

    def close(self):
        """End the tape, after or before its gradients are asked for, and perhaps update."""
        if self.tape is None:
            return
        tape, mine = self.tape, [p for p in self.pairs if p[2] == self.tapes and p[1].requires_grad]
        early = self.rng.random() < 0.5
        grads = None
        if not early:
            tape.__exit__(None, None, None)
        if mine:
            loss, theirs, _ = self.pick(mine)
            expected = torch.autograd.grad(theirs.sum(), self.twins, allow_unused=True)
            if any(g is not None and g.any() for g in expected):
                grads = tape.backward(loss)
        if early:
            tape.__exit__(None, None, None)
        self.tape = None
        if grads is None:
            return
        if self.rng.random() < 0.5:
            for p, g in zip(self.params, expected, strict=True):
                found = grads.get(p)
                if found is None:
                    assert g is None or not g.any()
                else:
                    self.compare(found.numpy(), np.zeros(p.shape) if g is None else g.numpy())
        if self.rng.random() < 0.7:
            self.opt.step(grads)
            with torch.no_grad():
                for w, g in zip(self.twins, expected, strict=True):
                    if g is not None:
                        w -= 0.1 * g

    def assign(self):
        if self.tape is None:
            i = self.rng.integers(len(self.params))
            a = self.numbers.standard_normal(self.params[i].shape).astype(np.float32)
            self.params[i].assign(a)
            with torch.no_grad():
                self.twins[i].copy_(torch.tensor(a.astype(np.float64)))

    # ---- holding it against PyTorch

    def compare(self, found, expected):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=3e-4, atol=3e-5, err_msg="; ".join(map(str, self.said)))

    def check(self, pair):
        self.compare(pair[0].numpy(), pair[1].detach().numpy())

    def run(self, actions=45):
        weights = {
            "make_tensor": 2, "unary": 6, "binary": 6, "look": 3, "drop": 2, "paused": 1, "open": 2, "close": 2,
            "assign": 1, "slope": 1,
        }  # fmt: skip
        names, p = list(weights), np.array(list(weights.values()), float)
        try:
            for _ in range(actions):
                name = str(self.rng.choice(names, p=p / p.sum()))
                self.said.append(name)
                getattr(self, name)()
            self.close()
        finally:
            if self.tape is not None:
                self.tape.__exit__(None, None, None)
        for pair in self.pairs:
            self.check(pair)
        for mine, theirs in zip(self.params, self.twins, strict=True):
            self.compare(mine.numpy(), theirs.detach().numpy())


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("seed", range(SCRIPTS))
@pytest.mark.slow
def test_a_random_script_does_what_pytorch_does(seed):
    """The second time with other numbers: programs are there already."""
    torch.set_num_threads(1)
    first = Script(seed)
    first.run()
    before = gl.stats().compiled
    Script(seed, 1, first).run()
    assert gl.stats().compiled - before <= 1
