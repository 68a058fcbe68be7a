"""Batches split over ranks: the same bits for any number of them. Ranks are threads here; tests/parallel has MPI."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError, GraphError, NonFiniteError, SettingError, TrainError
from gradloom.parallel import threads
from gradloom.parallel.agree import sampled
from gradloom.train.batches import RowRange, cut
from tests.refused import refused
from tests.train.small_models import cnn, data, mlp
from tests.train.split_training import on_ranks, told, train


@pytest.mark.parametrize("micro", [64, 16, 7])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_same_bits_for_any_ranks(make, micro):
    one = train(make, threads(1)[0], micro)
    for count in (2, 3):
        for found in on_ranks(count, lambda ranks: train(make, ranks, micro)):
            assert found == one


@pytest.mark.parametrize("micro", [64, 16, 7])
def test_same_as_without_ranks(micro):
    assert train(mlp, threads(1)[0], micro) == train(mlp, None, micro)


def test_batch_norm_of_whole_batches_is_that_without_ranks():
    assert train(cnn, threads(1)[0], 64) == train(cnn, None, 64)


def test_running_statistics_are_means_over_micro_batches():
    x = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    sizes = [slice(0, 4), slice(4, 8), slice(8, 10)]
    mean = sum(0.1 * x[rows].mean(0) * len(x[rows]) / 10 for rows in sizes)
    var = sum((0.9 + 0.1 * x[rows].var(0, ddof=1)) * len(x[rows]) / 10 for rows in sizes)

    def step(ranks):
        net = gl.nn.BatchNorm(3)
        trainer = gl.Trainer(net, "mean", gl.optim.SGD(lr=0.0), communicator=ranks, threads=1)
        gl.epoch(trainer, gl.data.Dataset(x), batch_size=10, micro_batch_size=4)
        return net.running_mean.numpy(), net.running_var.numpy()

    for found in on_ranks(2, step):
        np.testing.assert_allclose(found[0], mean, rtol=1e-5)
        np.testing.assert_allclose(found[1], var, rtol=1e-5)


def test_more_ranks_than_micro_batches():
    one = train(mlp, threads(1)[0], 40)
    assert on_ranks(5, lambda ranks: train(mlp, ranks, 40)) == [one] * 5


def test_without_a_micro_batch_size_each_rank_gets_a_share():
    same = train(mlp, None, 22)
    assert on_ranks(3, lambda ranks: train(mlp, ranks, None)) == [same] * 3


def test_sums_are_not_divided():
    def total(parallel, micro):
        net = gl.nn.Linear(4, 1)
        x = np.random.default_rng(1).standard_normal((30, 4)).astype(np.float32)
        settings = {"loss": "sum", "optimizer": gl.optim.SGD(lr=1e-3), "batch_size": 12, "micro_batch_size": micro}
        history = gl.fit(net, x, progress=False, parallel=parallel, threads=1, **settings)
        return net.state_dict()["weight"].tobytes(), told(history[0].train)

    assert on_ranks(2, lambda ranks: total(ranks, 5)) == [total(None, 5)] * 2


@pytest.mark.parametrize("micro", [64, 16])
def test_clipping_is_of_the_whole_batch(micro):
    plain = train(mlp, None, micro, max_norm=0.05)
    assert plain != train(mlp, None, micro)
    assert on_ranks(2, lambda ranks: train(mlp, ranks, micro, max_norm=0.05)) == [plain] * 2


def test_schedules_that_watch_the_loss():
    def run(parallel):
        rates = gl.optim.schedules.Plateau(0.05, factor=0.5, patience=0)
        return train(mlp, parallel, 16, optimizer=gl.optim.SGD(lr=rates), epochs=5)

    plain = run(None)
    assert on_ranks(2, run) == [plain] * 2


def test_an_optimiser_with_a_state_of_its_own_goes_on():
    def run(parallel):
        net = mlp().init(3)
        optimizer = gl.optim.Adam(net.parameters(), lr=0.01)
        settings = {"batch_size": 64, "micro_batch_size": 16, "seed": 3, "progress": False, "threads": 1}
        for _ in range(2):
            gl.fit(net, data(mlp), optimizer=optimizer, parallel=parallel, **settings)
        return {name: array.tobytes() for name, array in net.state_dict().items()}, optimizer.state.steps

    plain = run(None)
    assert plain[1] == 6
    assert on_ranks(2, run) == [plain] * 2


def test_fast_is_equal_to_noise_and_the_same_on_all_ranks():
    def run(ranks, exchange):
        net = mlp()
        settings = {"optimizer": gl.optim.SGD(lr=0.1), "batch_size": 64, "micro_batch_size": 10, "progress": False}
        gl.fit(net, data(mlp), epochs=2, parallel=ranks, exchange=exchange, threads=1, **settings)
        return net.state_dict()

    ordered = on_ranks(3, lambda ranks: run(ranks, "ordered"))
    fast = on_ranks(3, lambda ranks: run(ranks, "fast"))
    for name, array in ordered[0].items():
        assert fast[0][name].tobytes() == fast[1][name].tobytes() == fast[2][name].tobytes()
        np.testing.assert_allclose(fast[0][name], array, rtol=1e-4, atol=1e-6)
    with refused("exchange", "quick", need="ordered"):
        run(threads(1)[0], "quick")


@pytest.mark.parametrize("what", ["data", "labels", "lr", "seed", "epochs", "graph"])
def test_what_differs_is_named(what):
    said = {
        "data": "replica 1 differs from replica 0 in the data",
        "labels": "replica 1 differs from replica 0 in the data",
        "lr": "replica 1 has lr=0.5, replica 0 has 0.01; need the same settings on all 3",
        "seed": "replica 1 has seed=9, replica 0 has 0",
        "epochs": "replica 1 has epochs=2, replica 0 has 1",
        "graph": "replica 1 differs from replica 0 in the graph",
    }[what]

    def run(ranks):
        odd = ranks.rank == 1
        rows, net = data(mlp), gl.nn.Linear(50, 10)
        if odd and what == "data":
            rows.data[77, 3] += 1
        if odd and what == "labels":
            rows.labels[5] = (rows.labels[5] + 1) % 10
        if odd and what == "graph":
            net = gl.nn.Sequential(gl.nn.Linear(50, 10), gl.nn.ReLU())
        optimizer = gl.optim.AdamW(lr=0.5 if odd and what == "lr" else 0.01)
        settings = {"seed": 9 if odd and what == "seed" else 0, "epochs": 2 if odd and what == "epochs" else 1}
        gl.fit(net, rows, optimizer=optimizer, batch_size=50, parallel=ranks, progress=False, **settings)

    for error in on_ranks(3, run):
        assert isinstance(error, TrainError) and said in str(error)


def test_weights_that_differ_are_found_at_the_next_epoch():
    def run(ranks):
        net = gl.nn.Linear(50, 10)
        trainer = gl.Trainer(net, communicator=ranks, threads=1)
        rows = data(mlp)
        for _ in range(2):
            gl.epoch(trainer, rows, batch_size=50)
            if ranks.rank == 2:
                net.weight.stored.write(net.weight.numpy() + 1e-3)

    for error in on_ranks(3, run):
        assert isinstance(error, TrainError) and "replica 2 differs from replica 0 in the training state" in str(error)


def test_a_loss_that_is_not_finite_is_named_everywhere():
    def run(parallel):
        rows, net = data(mlp), mlp()
        rows.data[77, 3] = np.nan
        with pytest.raises(NonFiniteError) as caught:
            gl.fit(net, rows, batch_size=50, micro_batch_size=10, epochs=2, parallel=parallel, progress=False)
        return str(caught.value), {name: array.tobytes() for name, array in net.state_dict().items()}

    alone = run(None)
    assert "row 77 of the data is not finite" in alone[0]
    assert on_ranks(3, run) == [alone] * 3


def test_an_error_of_one_rank_ends_all():
    def listener(ranks):
        def heard(epoch):
            raise ValueError("no more disk")

        gl.fit(mlp(), data(mlp), batch_size=50, parallel=ranks, progress=False, on_epoch=heard)

    found = on_ranks(3, listener)
    assert isinstance(found[0], ValueError)
    for error in found[1:]:
        assert isinstance(error, TrainError) and "replica 0 failed with ValueError: no more disk" in str(error)

    def label(ranks):
        rows = data(mlp)
        rows.labels[:] = np.arange(rows.n) % 3

        def loss(pred, labels, weights):
            return gl.ops.loss.cross_entropy_pair(pred[:, : 3 - (ranks.rank == 1)], labels, weights)

        gl.fit(mlp(), rows, loss=loss, batch_size=50, parallel=ranks, progress=False)

    for error in on_ranks(2, label):
        assert isinstance(error, TrainError) and "replica 1 differs from replica 0 in the graph" in str(error)


def test_an_error_inside_a_step_ends_all_and_leaves_the_weights():
    x = np.random.default_rng(0).integers(0, 50, (40, 6))
    x[23, 2] = 50  # in the second step, in micro-batch 0 of 4

    def run(ranks):
        net = gl.nn.Sequential(gl.nn.Embedding(50, 8), gl.nn.Flatten(), gl.nn.Linear(48, 3))
        rows = gl.data.Dataset(x, np.arange(40) % 3)
        trainer = gl.Trainer(net, optimizer=gl.optim.SGD(lr=0.1), accumulate=4, communicator=ranks, threads=1)
        with pytest.raises((DataError, TrainError)) as caught:
            gl.epoch(trainer, rows, batch_size=20, micro_batch_size=5)
        return str(caught.value), trainer.steps, {n: a.tobytes() for n, a in net.state_dict().items()}

    first, second, third = on_ranks(3, run)
    assert "id 50 at position 20 is out of range; need 0..49" in first[0]
    assert "replica 0 failed with IndexOutOfRange" in second[0] and "replica 0 failed" in third[0]
    assert first[1:] == second[1:] == third[1:] and first[1] == 1


def test_rank_0_alone_hears():
    heard = [[], []]

    def run(ranks):
        mine = heard[ranks.rank]
        gl.fit(
            mlp(), data(mlp), batch_size=50, micro_batch_size=10, val_split=0.2, parallel=ranks, progress=False,
            on_epoch=lambda e: mine.append("epoch"),
            on_train_batch=lambda at: mine.append(("train", at.rows, at.result.ndata)),
            on_eval_batch=lambda at: mine.append(("val", at.rows, at.result.ndata)),
            on_progress=lambda at: mine.append("progress"),
        )  # fmt: skip

    assert on_ranks(2, run) == [None, None]
    assert heard[1] == []
    steps = [at for at in heard[0] if isinstance(at, tuple)]
    assert steps == [*(("train", n, n) for n in (50, 100, 120)), *(("val", n, n) for n in (10, 20, 30))]
    assert heard[0][-1] == "epoch" and "progress" in heard[0]


def test_what_a_listener_changes_reaches_all_ranks():
    def run(ranks):
        net = gl.nn.Linear(50, 10)

        def heard(epoch):
            net.bias.assign(np.arange(10))

        gl.fit(net, data(mlp), batch_size=50, parallel=ranks, progress=False, on_epoch=heard)
        return net.bias.numpy().tolist()

    assert on_ranks(3, run) == [list(range(10))] * 3


@pytest.mark.parametrize("where", ["on_epoch", "on_progress", "on_train_batch", "on_eval_batch"])
def test_a_listener_on_rank_0_stops_all(where):
    def run(ranks):
        net = mlp()

        def heard(at):
            if where == "on_epoch" or at.rows >= (100 if at.training else 20):
                raise gl.train.StopTraining

        settings = {"batch_size": 50, "micro_batch_size": 10, "val_split": 0.2, "epochs": 5, "progress": False}
        history = gl.fit(net, data(mlp), parallel=ranks, **settings, **{where: heard})
        results = [(e.epoch, told(e.train), e.val and told(e.val)) for e in history]
        return results, {name: array.tobytes() for name, array in net.state_dict().items()}

    found = on_ranks(3, run)
    assert isinstance(found[0], tuple), found
    assert found == [found[0]] * 3 and len(found[0][0]) == 1


def test_early_stopping_restores_the_best_weights_everywhere():
    def run(parallel):
        net, stop = mlp(), gl.train.EarlyStopping(patience=2, restore_best=True)
        settings = {"batch_size": 30, "micro_batch_size": 10, "val_split": 0.3, "epochs": 30, "progress": False}
        history = gl.fit(
            net, data(mlp), optimizer=gl.optim.AdamW(lr=0.02), parallel=parallel, on_epoch=stop, **settings
        )
        weights = {name: array.tobytes() for name, array in net.state_dict().items()}
        return len(history), weights, told(gl.evaluate(net, data(mlp)))

    plain = run(None)
    assert plain[0] < 30
    assert on_ranks(3, run) == [plain] * 3


def test_a_rate_that_a_listener_changes_counts_everywhere():
    def run(parallel):
        net, optimizer = mlp(), gl.optim.SGD(lr=0.1)

        def heard(epoch):
            optimizer.settings["lr"] /= 2

        settings = {"batch_size": 50, "micro_batch_size": 10, "epochs": 3, "progress": False}
        gl.fit(net, data(mlp), optimizer=optimizer, parallel=parallel, on_epoch=heard, **settings)
        return {name: array.tobytes() for name, array in net.state_dict().items()}

    plain = run(None)
    assert on_ranks(2, run) == [plain] * 2


def test_ctrl_c_stops_all_after_the_same_step():
    def run(ranks):
        net = mlp()

        def heard(at):
            if at.rows == 100:
                raise KeyboardInterrupt

        try:
            gl.fit(net, data(mlp), batch_size=50, epochs=3, parallel=ranks, progress=False, on_train_batch=heard)
        except KeyboardInterrupt:
            return {name: array.tobytes() for name, array in net.state_dict().items()}

    found = on_ranks(3, run)
    assert found[0] is not None and found == [found[0]] * 3


def test_what_ranks_cannot_do_is_refused():
    ranks = threads(1)[0]
    with pytest.raises(SettingError, match="dynamic=True requires one process"):
        gl.Trainer(mlp(), dynamic=True, communicator=ranks)
    with pytest.raises(SettingError, match="build='grad'"):
        gl.Trainer(mlp(), build="grad", communicator=ranks)
    with pytest.raises(SettingError, match="step: a batch in memory cannot be split"):
        gl.Trainer(mlp(), communicator=ranks).step(np.zeros((2, 50), np.float32), np.zeros(2, np.int64))

    class Counting(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gl.nn.Linear(50, 10)
            self.seen = self.parameter((), lambda rng, shape: np.zeros(shape), trainable=False)

        def forward(self, x):
            y = self.inner(x)
            y.node.effects = gl.ops.accumulate(1.0, self.seen, float(x.shape[0]))
            return y

    with pytest.raises(GraphError, match="its accumulate of .*seen.* cannot be averaged over micro-batches"):
        gl.fit(Counting(), data(mlp), parallel=ranks, progress=False)


def test_the_checks_come_before_any_training():
    def run(ranks):
        net = mlp()
        rows = data(mlp)
        rows.labels[3] = 12
        with pytest.raises((DataError, TrainError)):
            gl.fit(net, rows, batch_size=50, parallel=ranks, progress=False)

    assert on_ranks(2, run) == [None, None]


def test_samples_of_large_arrays_see_a_change_in_every_piece():
    array = np.arange(1 << 16, dtype=np.float32)
    before = sampled(array, 1 << 16)
    array[-1] += 1
    assert sampled(array, 1 << 16) != before
    assert sampled(array, 1 << 30) != sampled(array[:-1], 1 << 30)


def test_what_is_frozen_stays_as_it_is_on_all_ranks():
    start = mlp().init(3).state_dict()

    def run(ranks):
        net = mlp()
        gl.fit(net, data(mlp, 60), seed=3, batch_size=30, freeze="0.*", parallel=ranks, progress=False, threads=1)
        return {name: array.tobytes() for name, array in net.state_dict().items()}

    alone = run(threads(1)[0])
    assert {name for name, array in start.items() if alone[name] == array.tobytes()} == {"0.weight", "0.bias"}
    for found in on_ranks(2, run):
        assert found.keys() == alone.keys() and found["0.weight"] == alone["0.weight"]
        assert found["0.bias"] == alone["0.bias"] != b""


def test_a_parameter_that_nobody_trains_ends_all_ranks():
    scale = gl.parameter(2.0, name="scale")

    def run(ranks):
        loss = lambda p, y, weights: gl.ops.cross_entropy_pair(p * scale, y, weights)  # noqa: E731
        gl.fit(mlp(), data(mlp, 60), loss=loss, batch_size=30, parallel=ranks, progress=False, threads=1)

    for error in on_ranks(2, run):
        assert "the loss reaches a parameter that nobody trains: f32[] scale" in str(error)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("updates", [False, True])
def test_a_window_is_opened_once(updates, is_open):
    """Without updates all batches are one window, which continues in the next call; else each batch has one."""
    rows = RowRange(None, 0, 30, 10, 5, True)
    made = list(cut(rows, accumulates=True, updates=updates, is_open=is_open))
    opens = [one.start for one in made if one.first]
    assert opens == ([0, 10, 20] if updates else [0])[is_open:]
    assert sum(one.update for one in made) == (3 if updates else 0) and sum(one.rows * one.count for one in made) == 30
