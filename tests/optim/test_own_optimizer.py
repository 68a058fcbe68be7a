"""Optimisers that users write: update(self, p, g, ...). They are the built-in ones, by hand."""

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.optim import schedules


class MyLion(gl.optim.Optimizer):
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    state_names = ("m",)

    def update(self, p, g, m, lr, beta1, beta2, weight_decay):
        step = ops.sgn(beta1 * m + (1.0 - beta1) * g)
        return {"p": p * (1.0 - lr * weight_decay) - lr * step, "m": beta2 * m + (1.0 - beta2) * g}


class MyAdamW(gl.optim.Optimizer):
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    state_names, nonnegative = ("m", "v"), ("v",)

    def update(self, p, g, m, v, step, lr, beta1, beta2, eps, weight_decay):
        m, v = beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g
        mean, root = m / (1.0 - beta1**step), ops.sqrt(v / (1.0 - beta2**step))
        return {"p": p * (1.0 - lr * weight_decay) - lr * mean / (root + eps), "m": m, "v": v}


class Adan(gl.optim.Optimizer):
    """Xie et al., arXiv 2208.06677, algorithm 1."""

    lr: float = 1e-3
    beta1: float = 0.02
    beta2: float = 0.08
    beta3: float = 0.01
    eps: float = 1e-8
    state_names = ("m", "v", "n", "last")

    def update(self, p, g, m, v, n, last, step, lr, beta1, beta2, beta3, eps):
        change = ops.where(step > 1.0, g - last, 0.0 * g)
        m = (1.0 - beta1) * m + beta1 * g
        v = (1.0 - beta2) * v + beta2 * change
        n = (1.0 - beta3) * n + beta3 * ops.sqr(g + (1.0 - beta2) * change)
        return {"p": p - lr * (m + (1.0 - beta2) * v) / (ops.sqrt(n) + eps), "m": m, "v": v, "n": n, "last": g}


RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 4)).astype(np.float32), RNG.integers(0, 3, 48)


def net():
    return gl.nn.Sequential(gl.nn.Linear(4, 8, activation="tanh"), gl.nn.Linear(8, 3))


def weights(model):
    return {name: p.numpy() for name, p in model.named_parameters().items()}


def fitted(optimizer, **options):
    model = net()
    settings = {"loss": "cross_entropy", "epochs": 2, "batch_size": 16, "progress": False, **options}
    gl.fit(model, (X, Y), optimizer=optimizer, **settings)
    return weights(model)


def close(first, second, rtol=1e-5):
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=rtol, atol=1e-6)


def same(first, second):
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


OPTIONS = [{}, {"micro_batch_size": 4}, {"max_norm": 0.05}, {"max_value": 0.01}, {"precision": "bf16"}, {"ema": 0.9}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("mine", "theirs"), [(MyLion, gl.optim.Lion), (MyAdamW, gl.optim.AdamW)], ids=["lion", "adamw"]
)
def test_it_is_the_built_in_one(mine, theirs, options):
    settings = {"lr": schedules.Cosine(1e-2, steps=6), "weight_decay": 0.1}
    close(fitted(mine(**settings), **options), fitted(theirs(**settings), **options))


def test_adan_is_its_formula_in_float64():
    gradients = np.random.default_rng(1).standard_normal((6, 3))
    w = gl.parameter(np.zeros(3), name="w")
    opt = Adan([w], lr=0.1)
    for g in gradients:
        with gl.grad_tape() as tape:
            loss = ops.sum(w * gl.tensor(g.astype(np.float32)))
        opt.step(tape.backward(loss))
    p, m, v, n, last = (np.zeros(3) for _ in range(5))
    for k, g in enumerate(gradients):
        change = g - last if k else 0 * g
        m, v, last = 0.98 * m + 0.02 * g, 0.92 * v + 0.08 * change, g
        n = 0.99 * n + 0.01 * (g + 0.92 * change) ** 2
        p = p - 0.1 * (m + 0.92 * v) / (np.sqrt(n) + 1e-8)
    np.testing.assert_allclose(w.numpy(), p, rtol=1e-5)


def test_loop_tape_and_trainer_end_with_the_same_bits():
    model = net()
    opt = MyAdamW(model.parameters(), lr=1e-2)
    trainer_model = net()
    trainer = gl.Trainer(trainer_model, "cross_entropy", MyAdamW(lr=1e-2))
    for k in range(4):
        rows = slice(8 * k, 8 * k + 8)
        with gl.grad_tape() as tape:
            loss = ops.cross_entropy(model(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        opt.step(tape.backward(loss))
        trainer.step(X[rows], Y[rows])
    close(weights(model), weights(trainer_model), 1e-4)
    names = {name for name in opt.state_dict() if name.partition(".")[0] in ("m", "v")}
    assert len(names) == 8


def test_groups():
    """A group's own settings, no_decay, and a user's optimiser as that of a group."""
    groups = [{"match": "1.*", "lr": 0.0}]
    before, after = weights_of_new(), fitted(MyLion(lr=1e-2, groups=groups))
    assert before["1.weight"].tobytes() == after["1.weight"].tobytes() != after["0.weight"].tobytes()
    mixed = gl.optim.SGD(lr=0.1, groups=[{"match": "1.*", "optimizer": MyLion(lr=1e-3)}])
    plain = gl.optim.SGD(lr=0.1, groups=[{"match": "1.*", "optimizer": gl.optim.Lion(lr=1e-3)}])
    close(fitted(mixed), fitted(plain))
    close(
        fitted(MyAdamW(lr=1e-2, weight_decay=0.3, no_decay="norms_and_biases")),
        fitted(gl.optim.AdamW(lr=1e-2, weight_decay=0.3, no_decay="norms_and_biases")),
    )


def weights_of_new():
    model = net()
    gl.predict(model, X[:1])
    return weights(model)


@pytest.mark.parametrize("make", [lambda: MyAdamW(lr=1e-2), lambda: Adan(lr=1e-2)], ids=["adamw", "adan"])
def test_a_resumed_run_is_exact(tmp_path, make):
    whole = fitted(make(), epochs=4)
    fitted(make(), epochs=2, run=tmp_path / "a", checkpoint_every="2steps")
    same(fitted(make(), epochs=4, run=tmp_path / "a", resume=True), whole)


def test_another_rule_is_named_at_a_resume(tmp_path):
    def optimizer(sign):
        class Own(gl.optim.Optimizer):
            lr: float = 0.1

            def update(self, p, g, lr):
                return {"p": p - lr * g} if sign else {"p": p - lr * ops.sgn(g)}

        return Own()

    fitted(optimizer(1), run=tmp_path / "a")
    source = fitted(optimizer(1), epochs=3, run=tmp_path / "a", resume=True)
    assert source

    class Own(gl.optim.Optimizer):
        lr: float = 0.1

        def update(self, p, g, lr):
            return {"p": p - 2.0 * lr * g}

    with pytest.raises(gl.TrainError, match="optimizer"):
        fitted(Own(), epochs=4, run=tmp_path / "a", resume=True)


def test_saved_and_loaded(tmp_path):
    model = net()
    opt = MyLion(model.parameters(), lr=1e-2)
    gl.fit(model, (X, Y), optimizer=opt, epochs=1, batch_size=16, progress=False)
    gl.save(opt, tmp_path / "opt.safetensors")
    other = MyLion(model.parameters(), lr=1e-2)
    gl.load(other, tmp_path / "opt.safetensors")
    for name, array in opt.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])


def test_state_of_another_shape():
    class Rows(gl.optim.Optimizer):
        """SGD divided by the root mean square of each row's gradients so far."""

        lr: float = 0.1
        state_names = nonnegative = ("v",)

        def shapes_of(self, shape):
            return {"v": (*shape[:-1], 1)} if len(shape) > 1 else {}

        def update(self, p, g, v, lr):
            if v is None:
                return {"p": p - lr * g}
            v = v + ops.mean(g * g, -1, keepdims=True)
            return {"p": p - lr * g / ops.sqrt(v + 1e-8), "v": v}

    model = net()
    opt = Rows(model.parameters())
    gl.fit(model, (X, Y), optimizer=opt, epochs=1, batch_size=16, progress=False)
    assert sorted(a.shape for k, a in opt.state_dict().items() if k.startswith("v.")) == [(3, 1), (8, 1)]


def test_ranks_and_replicas():
    samples = [{"x": X[i : i + 1], "y": Y[i : i + 1]} for i in range(8)]
    found = [
        gl.dp_train(
            net, samples, loss_fn="cross_entropy", forward_fn=lambda model, s: model(s["x"]),
            target_fn=lambda s: s["y"], replicas=2, iterations=8, optimizer=optimizer, verbose=False,
        ).params
        for optimizer in (MyAdamW(lr=1e-2), gl.optim.AdamW(lr=1e-2))
    ]  # fmt: skip
    close({k: np.asarray(v) for k, v in found[0].items()}, {k: np.asarray(v) for k, v in found[1].items()}, 1e-4)


def made(body, names=("m",), base=gl.optim.Optimizer, **more):
    return type(
        "Own", (base,), {"__annotations__": {"lr": float}, "lr": 0.1, "state_names": names, "update": body, **more}
    )


WHOLE = {"__annotations__": {"lr": float, "k": int}}
WRONG = {
    "nothing": (
        lambda: type("Own", (gl.optim.Optimizer,), {})(),
        r"^Own: it has no update; need def update\(self, p, g",
    ),
    "base": (lambda: gl.optim.Optimizer(), r"^Optimizer: it has no update"),
    "name": (
        lambda: made(lambda self, p, g, q: {})(),
        r"^Own.update: parameter q is not known; must be among p, g, step",
    ),
    "star": (lambda: made(lambda self, **more: {})(), r"^Own.update: parameter \*\*more is not known"),
    "state": (lambda: made(lambda self, p, g: {}, ("g",))(), r"^Own: state_names has 'g', which is the gradient"),
    "setting": (lambda: made(lambda self, p, g: {}, ("lr",))(), r"^Own: state_names has 'lr', which is a setting"),
    "list": (lambda: fitted(made(lambda self, p, g, m: [p, m])()), r"^Own.update returned a list; must return a dict"),
    "less": (
        lambda: fitted(made(lambda self, p, g, m: {"p": p})()),
        r"^Own.update returned no 'm'; must return a dict",
    ),
    "more": (lambda: fitted(made(lambda self, p, g: {"p": p, "lr": p}, ())()), r"^Own.update returned 'lr'; must"),
    "number": (lambda: fitted(made(lambda self, p, g: {"p": 0.0}, ())()), r"^Own.update: p of 0.weight is a float"),
    "shape": (
        lambda: fitted(made(lambda self, p, g: {"p": ops.sum(p)}, ())()),
        r"^Own.update: p of 0.weight is f32\[\]; must be f32\[8,4\]",
    ),
    "twice": (lambda: made(lambda self, p, g, m: {}, ("m", "m"))(), r"^Own: state_names has 'm' twice"),
    "text": (lambda: made(lambda self, p, g, m: {}, "mv")(), r"^Own: state_names is 'mv'; must be a tuple"),
    "negative": (
        lambda: fitted(made(lambda self, p, g, m: {"p": p, "m": m}, shapes_of=lambda self, shape: {"m": (-1,)})()),
        r"^Own.shapes_of: m has shape \(-1,\); must be a tuple of whole numbers of at least 0$",
    ),
    "another state": (
        lambda: fitted(made(lambda self, p, g, m: {"p": p, "m": m}, shapes_of=lambda self, shape: {"k": (1,)})()),
        r"^Own.shapes_of returned 'k'; must be among state_names: m$",
    ),
    "no dict": (
        lambda: fitted(made(lambda self, p, g, m: {"p": p, "m": m}, shapes_of=lambda self, shape: shape)()),
        r"^Own.shapes_of returned an? tuple; must return a dict",
    ),
    "tensor": (
        lambda: fitted(made(lambda self, p, g: {"p": gl.tensor(np.zeros(p.shape))}, ())()),
        r"^Own.update: p of 0.weight is an eager tensor; must be a value of gl.ops",
    ),
    "half": (lambda: made(lambda self, p, g: {"p": p}, (), k=3, **WHOLE)(k=2.5), r"k=2.5: must be a whole number"),
    "bool": (lambda: made(lambda self, p, g: {"p": p}, (), k=3, **WHOLE)(k=True), r"k=True: must be a whole number"),
    "words": (lambda: made(lambda self, p, g: {"p": p}, (), k="a", **WHOLE)(k=1), r"k=1: must be a text"),
    "range": (lambda: made(lambda self, p, g, lr: {}, ())(lr=-1.0), r"lr=-1.0: must be a finite number of at least 0"),
    "keyword": (lambda: made(lambda self, p, g, lr: {}, ())(rate=1.0), r"rate"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_line(case):
    make, message = WRONG[case]
    with pytest.raises((gl.SettingError, gl.ShapeError, TypeError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_update_that_is_not_finite_is_named_at_the_next_step():
    """The guard checks gradients, so the error does not claim that the weights are those of before. GRADLOOM_CHECK=2
    names the node of the update."""
    own = made(lambda self, p, g: {"p": p * float("nan")}, ())
    with pytest.raises(gl.NonFiniteError, match=r"already, written by the update of an earlier step; need|mul#\d+ at"):
        fitted(own(), epochs=3)
