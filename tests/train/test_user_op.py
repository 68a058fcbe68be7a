"""gl.op in trainings: the bits of a composition, micro-batches, eager tapes, replicas, resumed runs, errors."""

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops


def forward(x):
    return np.where(x > 0, x, 0).astype(x.dtype)


def vjp(inputs, gradients):
    return np.where(inputs[0] > 0, gradients[0], 0).astype(gradients[0].dtype)


class Net(gl.nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, act):
        super().__init__()
        self.one, self.two, self.act = gl.nn.Linear(4, 8), gl.nn.Linear(8, 3), act

    def forward(self, x):
        return self.two(self.act(self.one(x)))


RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.integers(0, 3, 50)


def fitted(act, **options):
    net = Net(act)
    settings = {"optimizer": gl.optim.Adam(lr=1e-2), "epochs": 2, "batch_size": 16, "progress": False, **options}
    history = gl.fit(net, (X, Y), loss="cross_entropy", **settings)
    return net, history, {name: p.numpy() for name, p in net.named_parameters().items()}


def same(first, second):
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batch_size": 5},
        {"val_split": 0.2},
        {"max_norm": 0.1},
        {"threads": 1},
        {"precision": "bf16"},
        {"ema": 0.9},
    ],
    ids=str,
)
def test_the_bits_of_a_training_with_relu(options):
    """ReLU in NumPy and gl.ops.relu round nothing, so that the trainings agree bit for bit."""
    net, history, mine = fitted(gl.op(forward, vjp), **options)
    relu_net, relu_history, theirs = fitted(ops.relu, **options)
    assert same(mine, theirs)
    assert history[-1].train.loss == relu_history[-1].train.loss
    assert gl.evaluate(net, (X, Y)).loss == gl.evaluate(relu_net, (X, Y)).loss
    np.testing.assert_array_equal(gl.predict(net, X), gl.predict(relu_net, X))


def test_any_number_of_threads():
    assert same(fitted(gl.op(forward, vjp), threads=1)[2], fitted(gl.op(forward, vjp), threads=2)[2])


def eager(act, steps=6, lr=1e-2):
    gl.seed(0)
    net = Net(act)
    opt = gl.optim.AdamW(net.parameters(), lr=lr)
    for k in range(steps):
        with gl.grad_tape() as tape:
            loss = ops.cross_entropy(net(gl.tensor(X[k : k + 16])), gl.tensor(Y[k : k + 16]))
        opt.step(tape.backward(loss))
    return net, opt, {name: p.numpy() for name, p in net.named_parameters().items()}


def test_eager():
    before = gl.stats()
    _, _, mine = eager(gl.op(forward, vjp))
    assert gl.stats().compiled - before.compiled <= 2  # the program of the first step serves the others
    assert same(mine, eager(ops.relu)[2])
    double = gl.op(lambda x: x * 2, lambda gradients: gradients[0] * 2)
    x = gl.tensor([1.0, 2.0])
    assert double(x).numpy().tolist() == [2, 4] and (double(x) + double(x)).numpy().tolist() == [4, 8]
    with gl.grad_tape() as tape:
        tape.watch(x)
        y = double(x * x)
    assert tape.backward(y)[x].numpy().tolist() == [4, 8]
    with gl.no_grad():
        assert double([3.0]) is not None


def test_eager_closures_are_programs_of_their_own():
    x = gl.tensor([1.0, 2.0])
    assert [gl.op(lambda x, k=k: x * k)(x).numpy()[1] for k in range(4)] == [0, 2, 4, 6]


class Fails:
    """ReLU that raises in one of its calls."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self, x):
        self.calls += 1
        if self.calls == self.at:
            raise OSError("disk is gone")
        return forward(x)


@pytest.mark.parametrize(("micro", "at"), [(None, 1), (None, 2), (None, 3), (4, 1), (4, 3), (4, 6)])
def test_an_error_leaves_the_state_of_the_steps_before(at, micro):
    """The weights are those of the completed steps, counted as such; a training from there has the bits of one without
    an error."""
    options = {"batch_size": 16, "micro_batch_size": micro or 16}
    per_step = 1 if micro is None else 4
    op_net = Net(gl.op(Fails(at), vjp))
    trainer = gl.Trainer(op_net, "cross_entropy", gl.optim.Adam(lr=1e-2), accumulate=per_step)
    data = gl.data.Dataset(X[:48], Y[:48])
    result = gl.Result()
    with pytest.raises(
        gl.UserOpError, match=r"Fails act at test_user_op.py:\d+: OSError: disk is gone$|Fails#"
    ) as caught:
        gl.epoch(trainer, data, result_train=result, **options)
    assert "\n" not in str(caught.value) and isinstance(caught.value.__cause__, OSError)
    done = (at - 1) // per_step
    assert trainer.optimizer_state.steps == done
    plain = gl.Trainer(Net(ops.relu), "cross_entropy", gl.optim.Adam(lr=1e-2), accumulate=per_step)
    if done:
        gl.epoch(plain, gl.data.Dataset(X[: 16 * done], Y[: 16 * done]), **options)
    mine = {name: p.numpy() for name, p in op_net.named_parameters().items()}
    theirs = {name: p.numpy() for name, p in plain.model.named_parameters().items()}
    assert same(mine, theirs)


def test_fit_stops_with_one_line_and_keeps_the_weights():
    act = gl.op(Fails(3), vjp)
    with pytest.raises(gl.UserOpError, match=r"Fails.*OSError: disk is gone"):
        fitted(act)


def test_a_step_that_is_not_finite_names_the_op():
    calls = []

    def blows(x):
        calls.append(1)
        return x * (np.nan if len(calls) > 2 else 1)

    with pytest.raises(gl.NonFiniteError, match=r"step 3 .*blows.*produced a number that is not finite"):
        fitted(gl.op(blows, vjp))


def test_a_number_that_is_not_finite_once():
    """A function that answers otherwise when the step runs again."""
    calls = []

    def once(x):
        calls.append(1)
        return x * (np.inf if len(calls) == 2 else 1)

    with pytest.raises(gl.NonFiniteError, match=r"finite when the step runs again, after the user-defined op"):
        fitted(gl.op(once, vjp))


def test_skipped_batches():
    calls = []

    def blows(x):
        calls.append(1)
        return forward(x) * (np.nan if len(calls) == 2 else 1)

    _, history, _ = fitted(gl.op(blows, vjp), on_nonfinite="skip")
    assert history[0].train.skipped == 1


def test_a_loss_with_a_user_op_and_replaced_ops():
    """In a loss function; and another op put in place of the first one is another program."""
    square = gl.op(lambda d: d * d, lambda inputs, gradients: 2 * inputs[0] * gradients[0])
    targets = X @ np.ones((4, 3), np.float32)
    nets = []
    for loss in (lambda y, t: ops.mean(square(y - t)), "mse"):
        net = Net(ops.tanh)
        gl.fit(net, (X, targets), loss=loss, epochs=1, batch_size=10, progress=False, optimizer=gl.optim.SGD(lr=0.1))
        nets.append({name: p.numpy() for name, p in net.named_parameters().items()})
    for name in nets[0]:
        np.testing.assert_allclose(nets[0][name], nets[1][name], rtol=1e-4, atol=1e-6)
    net = Net(gl.op(lambda x: x * 0, vjp))
    first = gl.predict(net, X)
    net.act = gl.op(lambda x: x + 5, vjp)
    assert not np.array_equal(first, gl.predict(net, X))


def test_a_dynamic_model_that_switches_ops():
    """Programs are found again by the ops' identity: five steps, two programs."""
    twice, thrice = gl.op(lambda x: x * 2, vjp), gl.op(lambda x: x * 3, vjp)

    class Switching(Net):
        def forward(self, x):
            self.count = getattr(self, "count", 0) + 1
            return super().forward(x)

    net = Switching(twice)
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.SGD(lr=0.0), dynamic=True)
    losses = []
    for act in (twice, thrice, twice, thrice, gl.op(lambda x: x * 2, vjp)):
        net.act = act
        losses.append(float(trainer.step(X[:8], Y[:8]).loss))
    assert losses[0] == losses[2] == losses[4] != losses[1] == losses[3]


@pytest.mark.parametrize("micro", [None, 3])
def test_values_per_row_of_a_loss(micro):
    """The loss is a user-defined op of outputs and targets, with row weights."""
    targets = (X @ np.ones((4, 3))).astype(np.float32)
    squares = gl.op(
        lambda y, t: ((y - t) ** 2).sum(1),
        lambda inputs, gradients: (2 * (inputs[0] - inputs[1]) * gradients[0][:, None], None),
        lambda y, t: y.shape[:1],
    )
    data = gl.data.Dataset(X, targets, weights=np.linspace(0.1, 1, len(X)))
    found = []
    for loss in (squares, lambda y, t: ops.sum((y - t) * (y - t), 1)):
        net = Net(ops.tanh)
        options = {"epochs": 2, "batch_size": 12, "micro_batch_size": micro, "progress": False}
        history = gl.fit(net, data, loss=loss, optimizer=gl.optim.SGD(lr=0.01), **options)
        found.append((history[-1].train.loss, net.one.weight.numpy()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)


def test_a_failed_step_of_a_run_has_no_capsule(tmp_path, caplog):
    calls = []

    def blows(x):
        calls.append(1)
        return forward(x) * (np.nan if len(calls) > 2 else 1)

    with pytest.raises(gl.NonFiniteError, match=r"step 3 .*blows"):
        fitted(gl.op(blows, vjp), run=tmp_path / "a")
    assert not (tmp_path / "a" / "failed.capsule").exists()


def test_an_eager_step_that_fails_changes_nothing():
    calls = []

    def sometimes(x):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("gone")
        return x * 2

    op = gl.op(sometimes, lambda gradients: gradients[0] * 2)
    w = gl.parameter(np.ones(3), name="w")
    opt = gl.optim.Adam([w], lr=0.1)

    def step():
        with gl.grad_tape() as tape:
            loss = ops.sum(op(w))
        opt.step(tape.backward(loss))

    step()
    before = w.numpy()
    with pytest.raises(gl.UserOpError, match=r"sometimes#\d+ at test_user_op.py:\d+: OSError: gone"):
        step()
    assert w.numpy().tobytes() == before.tobytes() and opt.steps == 1
    step()
    assert opt.steps == 2 and not np.array_equal(w.numpy(), before)


def test_resume_is_exact_and_names_another_function(tmp_path):
    options = {"epochs": 3, "checkpoint_every": "1epoch"}
    whole = fitted(gl.op(forward, vjp), epochs=3)[2]
    fitted(gl.op(forward, vjp), run=tmp_path / "a", **options | {"epochs": 2})
    resumed = fitted(gl.op(forward, vjp), run=tmp_path / "a", resume=True, **options)[2]
    assert same(resumed, whole)
    other = gl.op(lambda x: np.maximum(x, 0.1), vjp)
    message = r"the graph of a step differs \(the code of gl.op is '?<lambda> \w+'? and was '?forward \w+'?\)"
    with pytest.raises(gl.TrainError, match=message):
        fitted(other, run=tmp_path / "a", resume=True, **options | {"epochs": 4})


def test_replicas():
    def make():
        return Net(gl.op(forward, vjp))

    samples = [{"x": X[i : i + 1], "y": Y[i : i + 1]} for i in range(8)]
    results = [
        gl.dp_train(
            make if act is None else lambda act=act: Net(act), samples, loss_fn="cross_entropy",
            forward_fn=lambda model, s: model(s["x"]), target_fn=lambda s: s["y"], replicas=replicas, iterations=8,
            lr=1e-2, verbose=False,
        )
        for act, replicas in ((None, 1), (ops.relu, 1), (None, 2), (ops.relu, 2))
    ]  # fmt: skip
    found = [{k: np.asarray(v) for k, v in r.params.items()} for r in results]
    assert same(found[0], found[1]) and same(found[2], found[3])
