"""BatchLoss: losses that couple all rows of a step computed in micro-batches."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.errors import DataError, DTypeError, GraphError, NonFiniteError, SettingError, ShapeError
from gradloom.parallel import threads
from gradloom.run.budget import resident_when_settled
from gradloom.run.null_backend import PLANNED
from gradloom.train.duration import work
from gradloom.train.source import PlannedSource
from tests.train.split_training import on_ranks

ROWS, BATCH = 20, 8
TEMPERATURE = 0.5


def pairs(n: int = ROWS) -> np.ndarray:
    """Two views of each row, f32 [n, 2, 6]."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((n, 6))
    return np.stack([first, first + 0.3 * rng.standard_normal((n, 6))], axis=1).astype(np.float32)


class Towers(nn.Module):
    """Embeddings (a, b), f32 [rows, 4] each, of the views [rows, 2, 6]."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(6, 16, activation="tanh"), *between, nn.Linear(16, 4))
        self.b = nn.Linear(6, 4)

    def forward(self, x):
        return self.a(x[:, 0]), self.b(x[:, 1])


@contextlib.contextmanager
def raises(kind, *texts):
    """An error of this kind with all these texts."""
    with pytest.raises(kind) as raised:
        yield
    assert all(text in str(raised.value) for text in texts), raised.value


def info_nce(a, b):
    own = np.eye(a.shape[0], dtype=np.float32)
    return -ops.sum(ops.log_softmax(a @ b.T * (1 / TEMPERATURE), -1) * own, -1)


def whole(outputs):
    """info_nce as a loss function of a batch that is one micro-batch."""
    return info_nce(*outputs)


class InfoNCE(gl.train.BatchLoss):
    """info_nce by the three parts. `seen`: the values that a step has joined."""

    def values(self, outputs, labels, weights=None):
        return outputs

    def join(self, values):
        each = info_nce(*values)
        return [each, *gl.gradients(ops.sum(each), values)]

    def loss(self, outputs, labels, joined, weights=None):
        each, *slopes = joined
        moved = ops.sum(outputs[0] * slopes[0]) + ops.sum(outputs[1] * slopes[1])
        return ops.sum(each) + (moved - ops.detach(moved)), gl.constant(float(each.shape[0]))


class Centred(gl.train.BatchLoss):
    """Squares of outputs [rows, k] minus their means over the batch, which are constants."""

    def values(self, outputs, labels, weights=None):
        return [outputs]

    def join(self, values):
        return [ops.broadcast_to(ops.mean(values[0], axes=0, keepdims=True), values[0].shape)]

    def loss(self, outputs, labels, joined, weights=None):
        return ops.sum(ops.sqr(outputs - joined[0])), gl.constant(float(outputs.shape[0]))


LOSSES = {"through": lambda: gl.train.BatchLoss.through(info_nce), "parts": InfoNCE}


def train(loss, micro, net=None, *, batch=BATCH, epochs=2, n=ROWS, ranks=None, data=None, **options):
    """(weights and buffers, losses) of a training."""
    net = (Towers() if net is None else net).init(3)
    options = {"optimizer": gl.optim.SGD(lr=0.2), "threads": 1, "progress": False, "val_split": 0.25} | options
    rows = gl.data.Dataset(pairs(n)) if data is None else data
    history = gl.fit(
        net, rows, loss=loss, batch_size=batch, micro_batch_size=micro, epochs=epochs, seed=1, parallel=ranks, **options
    )
    return net.state_dict(), [(h.train.loss, h.val.loss if h.val else None) for h in history]


def close(found, expected, rtol=2e-5):
    for name, array in expected[0].items():
        np.testing.assert_allclose(found[0][name], array, rtol=rtol, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(np.array(found[1], float), np.array(expected[1], float), rtol=rtol)


def bits(found):
    return {name: array.tobytes() for name, array in found[0].items()}, found[1]


# ---- gradients -------------------------------------------------------------------------------------------


def gradients_of(loss, micro, backend="cpu", build="grad", net=None, **options):
    """name -> the gradient of the mean loss of one batch of 8 rows; the loss."""
    net = (Towers() if net is None else net).init(3)
    trainer = gl.Trainer(net, loss, build=build, accumulate=8 // micro, backend=backend, threads=1, **options)
    result = gl.train.Result()
    source = trainer.source(gl.data.Dataset(pairs(8)))
    trainer.run_rows(source, 0, 8, result, batch_size=8, micro_batch_size=micro)
    return {name: trainer.grad_acc(name) for name in net.named_parameters()}, result.loss


def reference(weights):
    """The loss of the 8 rows in float64, and its gradient by central differences."""
    x = pairs(8).astype(np.float64)

    def loss(w):
        a = np.tanh(x[:, 0] @ w["a.0.weight"].T + w["a.0.bias"]) @ w["a.1.weight"].T + w["a.1.bias"]
        b = x[:, 1] @ w["b.weight"].T + w["b.bias"]
        z = a @ b.T / TEMPERATURE
        return np.mean(np.log(np.exp(z).sum(1)) - np.diag(z))

    slopes = {}
    for name, array in weights.items():
        slopes[name] = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {n: v.copy() for n, v in weights.items()}
                moved[name][at] += step
                ends.append(loss(moved))
            slopes[name][at] = (ends[0] - ends[1]) / 2e-5
    return loss(weights), slopes


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("micro", [8, 4, 2, 1])
def test_gradients_are_those_of_the_whole_batch(how, micro, backend):
    weights = {name: p.numpy().astype(np.float64) for name, p in Towers().init(3).named_parameters().items()}
    loss, slopes = reference(weights)
    found, mean = gradients_of(LOSSES[how](), micro, backend)
    assert mean == pytest.approx(loss, rel=1e-6)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-4, atol=1e-6, err_msg=name)


def test_one_micro_batch_is_a_loss_function_of_the_whole():
    """The gradient through joined rows is the gradient of the function itself."""
    found, loss = gradients_of(gl.train.BatchLoss.through(info_nce), 8)
    plain, plain_loss = gradients_of(whole, 8)
    assert loss == plain_loss
    for name, slope in plain.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("micro", [4, 2, 3])
def test_micro_batches_train_like_the_whole(micro):
    """With a short last batch (15 rows of training in 8 and 7), and validation on batches of the same size."""
    close(train(InfoNCE(), micro), train(InfoNCE(), 8))


@pytest.mark.parametrize("micro", [8, 2])
def test_what_is_joined_is_constant(micro):
    """Also where it depends on a parameter without the values."""
    x, w = pairs(8).reshape(8, 12), gl.parameter(np.full((12, 3), 0.1, np.float32), "w")

    class Shifted(Centred):
        def join(self, values):
            return [super().join(values)[0] + ops.sum(w)]

    trainer = gl.Trainer(lambda x: x @ w, Shifted(), build="grad", accumulate=8 // micro)
    trainer.run_rows(trainer.source(gl.data.Dataset(x)), 0, 8, gl.train.Result(), batch_size=8, micro_batch_size=micro)
    out = x @ np.full((12, 3), 0.1)
    expected = x.T @ (2 * (out - out.mean(0) - 3.6)) / 8
    np.testing.assert_allclose(trainer.grad_acc("w"), expected, rtol=1e-4, atol=1e-5)


def test_labels_weights_and_whole_numbers():
    """Labels reach the function as ids, also 2^24 - 1; row weights multiply its values."""
    n, ids = 8, np.array([0, 1, 2, 0, 1, 2, (1 << 24) - 1, (1 << 24) - 1])
    x, weights = pairs(n)[:, 0], np.random.default_rng(1).uniform(0.5, 2, n).astype(np.float32)

    def of_class(outputs, labels):
        """Squared distance to the mean of the outputs with the same label."""
        same = ops.where(ops.equal(ops.reshape(labels, (n, 1)), ops.reshape(labels, (1, n))), 1.0, 0.0)
        means = same @ outputs / ops.sum(same, axes=1, keepdims=True)
        return ops.sum(ops.sqr(outputs - means), -1)

    found = []
    for micro in (8, 3):
        net = nn.Linear(6, 4).init(0)
        trainer = gl.Trainer(net, gl.train.BatchLoss.through(of_class), build="grad", accumulate=-(-8 // micro))
        result = gl.train.Result()
        trainer.run_rows(
            trainer.source(gl.data.Dataset(x, ids, weights=weights)), 0, 8, result, batch_size=8, micro_batch_size=micro
        )
        found.append((result.loss, trainer.grad_acc("weight")))
    out = x @ net.weight.numpy().T + net.bias.numpy()
    means = np.stack([out[ids == one].mean(0) for one in ids])
    assert found[0][0] == pytest.approx(np.sum(weights * ((out - means) ** 2).sum(1)) / weights.sum(), rel=1e-5)
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4, atol=1e-6)


def test_large_whole_numbers_are_refused():
    x, ids = pairs(8)[:, 0], np.array([0, 1, 1 << 24, 3, 4, 5, 6, 7])
    trainer = gl.Trainer(
        nn.Linear(6, 4), gl.train.BatchLoss.through(lambda outputs, labels: ops.sum(outputs, -1)), accumulate=2
    )
    with raises(DataError, "loss: values 2 has 16777216 in row 2 of the batch; need whole numbers below 16777216"):
        gl.epoch(trainer, gl.data.Dataset(x, ids), batch_size=8)


# ---- random numbers, running statistics -------------------------------------------------------------------


class Equal(gl.train.BatchLoss):
    """The sum of the squares of outputs minus the outputs of the first pass: 0 where both have the same masks."""

    def values(self, outputs, labels, weights=None):
        return [outputs]

    def join(self, values):
        return values

    def loss(self, outputs, labels, joined, weights=None):
        return ops.sum(ops.sqr(outputs - joined[0]) + 0.0 * outputs), gl.constant(float(outputs.shape[0]))


@pytest.mark.parametrize("ranks", [None, 2])
def test_both_passes_have_the_same_masks(ranks):
    x = np.abs(pairs(16)[:, 0]) + 1

    def work(communicator):
        net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).init(0)
        trainer = gl.Trainer(net, Equal(), gl.optim.SGD(lr=0.1), accumulate=4, seed=4, communicator=communicator)
        result, _ = gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=2)
        assert trainer.steps == 2
        return result.loss

    assert on_ranks(ranks, work) == [0.0] * ranks if ranks else work(None) == 0.0


def test_micro_batches_have_masks_of_their_own():
    """Else the test above could pass with one mask for all: the mean over the batch of equal rows differs from each."""
    x = np.ones((8, 6), np.float32)
    trainer = gl.Trainer(nn.Dropout(0.5), Centred(), build="forward")
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).init(0)
    trainer = gl.Trainer(net, Centred(), gl.optim.SGD(lr=0.1), accumulate=4, seed=4)
    result, _ = gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=2)
    assert result.loss > 1e-3


def test_running_statistics_are_updated_once_for_each_micro_batch():
    """As by a loss that does not couple rows."""
    x = pairs(16)[:, 0]
    found = []
    for loss in (Centred(), "mean"):
        net = nn.Sequential(nn.BatchNorm(6), nn.Linear(6, 2)).init(0)
        trainer = gl.Trainer(net, loss, gl.optim.SGD(lr=0.0), accumulate=4)
        gl.epoch(trainer, gl.data.Dataset(x), batch_size=16, micro_batch_size=4)
        found.append({name: p.numpy() for name, p in net.named_buffers().items()})
    for name, array in found[1].items():
        assert np.array_equal(found[0][name], array), name
    assert not np.array_equal(found[0]["0.running_mean"], np.zeros(6))


# ---- results and evaluation --------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_batch_in_training_and_evaluation():
    x = pairs(8)
    for micro in (8, 4, 1):
        net = Towers().init(3)
        loss, _ = reference({name: p.numpy().astype(np.float64) for name, p in net.named_parameters().items()})
        trainer = gl.Trainer(net, InfoNCE(), gl.optim.SGD(lr=0.0), accumulate=8 // micro)
        result, _ = gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=micro)
        assert result.loss == pytest.approx(loss, rel=1e-6)
        _, result = gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=micro, split=0)
        assert result.loss == pytest.approx(loss, rel=1e-6) and result.ndata == 8
        assert gl.evaluate(net, gl.data.Dataset(x), loss=InfoNCE(), batch_size=8).loss == pytest.approx(loss, rel=1e-6)


def test_an_evaluation_couples_the_rows_of_the_trainings_batches():
    """Micro-batches alone would give less: fewer negatives."""
    x = pairs(40)
    net = Towers()
    history = gl.fit(
        net, x, loss=InfoNCE(), val=x[:16], batch_size=8, micro_batch_size=2, epochs=1, progress=False,
        metrics={"norm": lambda outputs, labels: ops.sum(ops.sqr(outputs[0]), -1)},
    )  # fmt: skip
    val = history[-1].val
    assert val.loss == pytest.approx(gl.evaluate(net, x[:16], loss=InfoNCE(), batch_size=8).loss, rel=1e-6)
    assert val.loss > gl.evaluate(net, x[:16], loss=InfoNCE(), batch_size=2).loss + 0.5
    assert val.ndata == 16 and val.metrics["norm"] > 0


def test_an_evaluation_within_a_budget_couples_the_same_rows():
    x, net = pairs(16), Towers().init(3)
    plain = gl.evaluate(net, x, loss=InfoNCE(), batch_size=8)
    assert (
        gl.evaluate(net, x, loss=InfoNCE(), batch_size=8, memory=resident_when_settled() + (1 << 30)).loss == plain.loss
    )


def test_listeners_change_nothing():
    seen = []
    plain = train(InfoNCE(), 3)
    assert bits(train(InfoNCE(), 3, on_train_batch=seen.append, on_eval_batch=seen.append)) == bits(plain)
    assert len(seen) == 2 * ((3 + 3) + 2)  # micro-batches of 8 and 7 rows, and of 5


def test_steps_of_the_callers_own_rows():
    x = pairs(8)
    one, other = Towers().init(3), Towers().init(3)
    result = gl.Trainer(one, InfoNCE(), gl.optim.SGD(lr=0.2)).step(x)
    gl.epoch(gl.Trainer(other, InfoNCE(), gl.optim.SGD(lr=0.2)), gl.data.Dataset(x), batch_size=8)
    for name, array in one.state_dict().items():
        assert np.array_equal(array, other.state_dict()[name])
    assert result.ndata == 8


# ---- ranks, resuming, failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [8, 3, 2])
def test_ranks_have_the_bits_of_one_process(micro):
    def work(ranks):
        net = Towers(nn.Dropout(0.3))
        return bits(train(InfoNCE(), micro, net, ranks=ranks, optimizer=gl.optim.AdamW(lr=0.01)))

    one = work(None)
    assert work(threads(1)[0]) == one
    for count in (2, 3):
        assert on_ranks(count, work) == [one] * count


def test_ranks_report_each_batch():
    seen = []
    one = bits(train(InfoNCE(), 3))
    found = on_ranks(2, lambda ranks: bits(train(InfoNCE(), 3, ranks=ranks, on_eval_batch=seen.append)))
    assert found == [one] * 2 and seen


@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_has_the_bits_of_one_without_a_break(tmp_path, stop):
    """Stopped inside of an epoch, and in a process where nothing is compiled yet."""
    options = {"epochs": 2, "optimizer": gl.optim.AdamW(lr=0.02), "checkpoint_every": "1steps"}
    net = lambda: Towers(nn.Dropout(0.2), nn.BatchNorm(16))  # noqa: E731
    plain = bits(train(InfoNCE(), 4, net(), **options | {"run": tmp_path / "plain"}))

    class Stop(gl.train.Callback):
        stateless, steers = True, False

        def on_batch(self, batch):
            if batch.step == stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(InfoNCE(), 4, net(), callbacks=[Stop()], **options | {"run": tmp_path / "run"})
    found = bits(train(InfoNCE(), 4, net(), **options | {"run": tmp_path / "run", "resume": True}))
    assert found == plain


def test_another_join_is_not_resumed(tmp_path):
    """The graph of the join is part of the run's identity."""

    class Other(InfoNCE):
        def join(self, values):
            return [one * 2.0 for one in super().join(values)]

    Other.__name__ = Other.__qualname__ = "InfoNCE"
    train(InfoNCE(), 4, run=tmp_path / "run", epochs=1)
    with pytest.raises(gl.TrainError, match="graph"):
        train(Other(), 4, run=tmp_path / "run", epochs=2, resume=True)


@pytest.mark.parametrize("check", [0, 2])
@pytest.mark.parametrize("count", [None, 2])
def test_a_batch_that_is_not_finite_is_skipped(check, count):
    """The row that is not finite is in the last micro-batch, whose values reach all rows."""
    x = pairs(16)
    x[7, 1, 2] = np.inf

    def work(ranks):
        net = Towers().init(3)
        trainer = gl.Trainer(
            net, InfoNCE(), gl.optim.SGD(lr=0.2), accumulate=4, on_nonfinite="skip", communicator=ranks, check=check
        )
        result, _ = gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=2)
        assert result.skipped == 1 and trainer.steps == 1 and result.ndata == 8
        return {name: array.tobytes() for name, array in net.state_dict().items()}

    other = Towers().init(3)
    trainer = gl.Trainer(other, InfoNCE(), gl.optim.SGD(lr=0.2), accumulate=4)
    gl.epoch(trainer, gl.data.Dataset(x[8:]), batch_size=8, micro_batch_size=2)
    expected = {name: array.tobytes() for name, array in other.state_dict().items()}
    assert (work(None) if count is None else on_ranks(count, work)) == (
        expected if count is None else [expected] * count
    )


@pytest.mark.parametrize("check", [0, 2])
@pytest.mark.parametrize("count", [None, 2])
def test_the_cause_is_named_where_it_is(check, count):
    x = pairs(16)
    x[13, 0, 1] = np.nan

    def work(ranks):
        net = Towers().init(3)
        trainer = gl.Trainer(net, InfoNCE(), gl.optim.SGD(lr=0.2), accumulate=4, communicator=ranks, check=check)
        with pytest.raises(NonFiniteError) as error:
            gl.epoch(trainer, gl.data.Dataset(x), batch_size=8, micro_batch_size=2)
        return str(error.value)

    for text in [work(None)] if count is None else on_ranks(count, work):
        assert "row 13 of the data is not finite at [0, 1]" in text and "step 2" in text


def test_a_join_that_is_not_finite_is_named():
    class Root(Centred):
        def join(self, values):
            return [gl.named(ops.sqrt(values[0] - 100.0), "root")]

    for micro in (4, 2):
        trainer = gl.Trainer(nn.Linear(6, 2), Root(), accumulate=4 // micro)
        with pytest.raises(NonFiniteError, match="root"):
            gl.epoch(trainer, gl.data.Dataset(pairs(8)[:, 0]), batch_size=4, micro_batch_size=micro)


class Stop(Exception):
    """Raised by a listener."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stop])
def test_an_interrupted_step_changes_nothing(kind):
    """After the second micro-batch of the second step; a new pass over the same rows then has the bits of one process
    that was not interrupted."""
    x = gl.data.Dataset(pairs(16))

    def trained(stop):
        net, seen = Towers(nn.Dropout(0.3), nn.BatchNorm(16)).init(3), []
        trainer = gl.Trainer(net, InfoNCE(), gl.optim.SGD(lr=0.2, momentum=0.9), accumulate=4, threads=1)

        def count(at):
            seen.append(at)
            if stop and len(seen) == 6:
                raise kind

        source, result = trainer.source(x), gl.train.Result()
        for start in (0, 8):
            if start and stop:
                with pytest.raises(kind):
                    trainer.run_rows(
                        source, 8, 16, result, batch_size=8, micro_batch_size=2, each=True, on_progress=count
                    )
                assert result.ndata == 8 and trainer.steps == 1
            trainer.run_rows(
                source, start, start + 8, result, batch_size=8, micro_batch_size=2, each=True, on_progress=count
            )
        return {name: array.tobytes() for name, array in net.state_dict().items()}, result.loss

    assert trained(True) == trained(False)


def test_the_predicted_work_is_what_runs():
    """Of 20 rows in batches of 8, 8 and 4, and micro-batches of 3: programs, and how often each runs."""
    for backward in (True, False):
        trainer = gl.Trainer(Towers(), InfoNCE(), accumulate=3, threads=1)
        source = trainer.source(gl.data.Dataset(pairs()))
        found = work(trainer, source, 0, 20, 8, 3, backward)
        trainer.run_rows(source, 0, 20, gl.train.Result(), batch_size=8, micro_batch_size=3, backward=backward)
        programs = [*trainer.compiled, *trainer.driver.joins.compiled]
        expected = {id(one.run.plan): one.run.steps_run for one in programs}
        counts = dict.fromkeys(expected, 0)
        for plan, count, _ in found:
            counts[id(plan)] += count
        assert counts == expected


def test_several_devices():
    close(train(InfoNCE(), 3, devices=("numpy", "cpu"), threads=None), train(InfoNCE(), 8))


# ---- memory, precision --------------------------------------------------------------------------------------


def test_plans_contain_values_and_joined_rows():
    """Buffers of the batch are in the plans before anything runs, and a run adds none."""
    trainer = gl.Trainer(Towers(), InfoNCE(), accumulate=4, threads=1)
    source = trainer.source(gl.data.Dataset(pairs(64)))
    trainer.prepare(source, 0, 64, batch_size=64, micro_batch_size=16)
    planned, plans = trainer.planned_bytes, len(trainer.plans)

    def buffers():
        held = {s for plan in trainer.plans for s in plan.bytecode.stored}
        return {s.name: s.bytes for s in held if s.name.startswith(("values ", "joined "))}

    expected = {"values 0": 1024, "values 1": 1024, "joined 0": 256, "joined 1": 1024, "joined 2": 1024}
    assert buffers() == expected
    trainer.run_rows(source, 0, 64, gl.train.Result(), batch_size=64, micro_batch_size=16)
    assert trainer.planned_bytes == planned and len(trainer.plans) == plans and buffers() == expected


def test_rows_that_are_only_planned_have_the_plans_of_a_run():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 16)

        def forward(self, x):
            return ops.mean(self.table(x), axes=1)

    loss = gl.train.BatchLoss.through(
        lambda outputs, labels: ops.sum(ops.sqr(outputs - ops.mean(outputs, axes=0, keepdims=True)), -1)
    )

    def planned(source, **options):
        trainer = gl.Trainer(Net(), loss, accumulate=4, **options)
        trainer.prepare(source or trainer.source(data), 0, 64, batch_size=32, micro_batch_size=8)
        return sorted((p.peak_bytes, sorted((s.name, s.bytes) for s in p.bytecode.stored)) for p in trainer.plans)

    data = gl.data.Dataset(np.zeros((64, 5), np.int32), np.zeros(64, np.int32))
    assert planned(PlannedSource(64, (5,), ()), backend=PLANNED + "cpu") == planned(None)


def test_memory_of_a_micro_batch():
    """Activations are those of a micro-batch: a step of 16 micro-batches plans a small part of the whole's arena."""
    found = []
    for micro in (256, 16):
        net = nn.Sequential(nn.Linear(6, 512, activation="tanh"), nn.Linear(512, 512, activation="tanh"))
        trainer = gl.Trainer(net, Centred(), gl.optim.SGD(lr=0.1), accumulate=256 // micro, threads=1)
        source = trainer.source(gl.data.Dataset(pairs(256)[:, 0]))
        trainer.prepare(source, 0, 256, batch_size=256, micro_batch_size=micro)
        found.append(max(plan.bytecode.arena_bytes for plan in trainer.plans))
    assert found[1] < found[0] / 2


def test_bf16():
    close(train(InfoNCE(), 4, precision="bf16"), train(InfoNCE(), 8, precision="bf16"), rtol=1e-2)


# ---- refusals ------------------------------------------------------------------------------------------------


def test_refusals():
    data = gl.data.Dataset(pairs(8))
    with raises(SettingError, "loss: got the class InfoNCE; need an instance: InfoNCE(...)"):
        gl.Trainer(Towers(), InfoNCE)
    with raises(SettingError, "accumulate=2", "must be 1 with a BatchLoss"):
        gl.Trainer(Towers(), InfoNCE(), accumulate=2).step(pairs(8))
    with raises(SettingError, "dynamic=True with a BatchLoss requires micro_batch_size = batch_size"):
        gl.epoch(gl.Trainer(Towers(), InfoNCE(), accumulate=2, dynamic=True), data, batch_size=8)
    with raises(SettingError, "a BatchLoss cannot be combined with nn.Ensemble"):
        gl.Trainer(nn.Ensemble(nn.MemberLinear(2, 6, 2)), InfoNCE())
    with raises(SettingError, "dp_train cannot take a BatchLoss"):
        gl.train.dp_train(Towers, [(pairs(1), 0)], loss_fn=InfoNCE(), iterations=1)


@pytest.mark.parametrize(
    "method, made, error, text",
    [
        ("values", list, GraphError, "Broken.values gave none; need one or several values"),
        ("values", lambda: [3], GraphError, "Broken.values gave int"),
        ("values", lambda: [gl.constant(np.ones(3))], ShapeError, "need 4 rows along the first axis"),
        ("values", lambda: [gl.constant(np.ones(4, np.uint8))], DTypeError, "need f32 or i32"),
        ("join", lambda: [gl.constant(1.0)], ShapeError, "need 8 rows along the first axis"),
        ("join", lambda: [gl.constant(np.ones(8, np.int32))], DTypeError, "need f32"),
        ("loss", lambda: gl.constant(1.0), ShapeError, "need two scalars (sum, weight)"),
        ("loss", lambda: (gl.constant(np.ones(2)), gl.constant(1.0)), ShapeError, "need two scalars (sum, weight)"),
    ],
)
def test_what_a_method_must_give(method, made, error, text):
    Broken = type("Broken", (Centred,), {method: lambda self, *given, **named: made()})
    trainer = gl.Trainer(nn.Linear(6, 2), Broken(), accumulate=2)
    with raises(error, text):
        gl.epoch(trainer, gl.data.Dataset(pairs(8)[:, 0]), batch_size=8)


def test_row_weights_need_a_place():
    class Without(Centred):
        def values(self, outputs, labels):
            return [outputs]

    data = gl.data.Dataset(pairs(8)[:, 0], np.zeros((8, 2), np.float32), weights=np.ones(8))
    with raises(DataError, "the data have row weights, and", "does not take `weights`"):
        gl.epoch(gl.Trainer(nn.Linear(6, 2), Without(), accumulate=2), data, batch_size=8)
