"""An optimiser step is whole or nothing: running statistics, results, counts. Batches may be skipped."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.parallel.replicas import threads as thread_ranks
from gradloom.runs.state import difference
from gradloom.train import Result, StopTraining
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 4)).astype(np.float32), RNG.integers(0, 3, 48)


def trainer(**options):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    return gl.Trainer(net, optimizer=gl.optim.AdamW(lr=0.05), **{"seed": 3, "accumulate": 3} | options)


def statistics(made):
    return {name: p.numpy() for name, p in made.model.named_buffers().items()}


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("stops", [StopTraining, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5])
def test_an_open_window_leaves_nothing_behind(stops, micro_batches):
    """Batches of 12 rows in three micro-batches; a run that is stopped in its first or second batch is as one that
    ended before that batch."""
    heard = []

    def stop(at):
        heard.append(at)
        if len(heard) == micro_batches:
            raise stops("enough")

    stopped, short = trainer(), trainer()
    result, expected = Result(), Result()
    with pytest.raises(stops):
        gl.epoch(stopped, gl.data.Dataset(X, Y), result, batch_size=12, on_train_batch=stop)
    if micro_batches >= 3:
        gl.epoch(short, gl.data.Dataset(X[:12], Y[:12]), expected, batch_size=12)
        short.epoch = 0
    else:
        short.prepare(short.source(gl.data.Dataset(X, Y)), 0, 12, batch_size=12, micro_batch_size=4)
    assert same(statistics(stopped), statistics(short))
    assert (result.ndata, result.batches, len(result.predictions)) == ((12, 3, 12) if micro_batches >= 3 else (0, 0, 0))
    assert result.ndata == 0 or result.loss == expected.loss
    state, wanted = (
        {name: value for name, value in made.train_state.collect().items() if name != "rows.held"}
        for made in (stopped, short)
    )
    assert micro_batches < 3 or difference(state, wanted) is None


def test_a_window_that_fails_leaves_nothing_behind():
    x = X.copy()
    x[21] = np.nan  # in the third micro-batch of the second batch
    failed, short, result = trainer(), trainer(), Result()
    with pytest.raises(gl.NonFiniteError, match="step 2"):
        gl.epoch(failed, gl.data.Dataset(x, Y), result, batch_size=12)
    gl.epoch(short, gl.data.Dataset(X[:12], Y[:12]), batch_size=12)
    assert same(statistics(failed), statistics(short)) and result.ndata == 12


def test_steps_that_are_handed_over_leave_nothing_behind():
    made, result = trainer(), Result()
    made.step(X[:4], Y[:4], result=result)
    made.step(X[4:8], Y[4:8], result=result)
    made.step(X[8:12], Y[8:12], result=result)
    before, losses = statistics(made), result.loss
    made.step(X[12:16], Y[12:16], result=result)
    assert not same(before, statistics(made))
    bad = np.full((4, 4), np.nan, np.float32)
    with pytest.raises(gl.NonFiniteError):
        made.step(bad, Y[:4], result=result)
    assert same(before, statistics(made)) and (result.ndata, result.loss) == (12, losses)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_the_steps_before_one_that_fails_are_in_the_result(backend):
    x = X.copy()
    x[29] = np.nan
    made, result, expected = trainer(accumulate=1, backend=backend), Result(), Result()
    with pytest.raises(gl.NonFiniteError):
        gl.epoch(made, gl.data.Dataset(x, Y), result, batch_size=4)
    gl.epoch(trainer(accumulate=1, backend=backend), gl.data.Dataset(X[:28], Y[:28]), expected, batch_size=4)
    assert made.steps == 7 and (result.ndata, result.batches) == (28, 7) and result.loss == expected.loss


def test_a_result_is_cut_back():
    result = Result()
    result.add(2, np.ones(1), np.ones(1), np.array([1, 2], np.int32), np.array([1, 1]))
    mark, before = result.mark(), result.state()
    result.add(3, np.ones(2), np.ones(2), np.array([1, 2, 3], np.int32), np.array([1, 1, 3]))
    assert (result.ndata, result.correct, result.counted, result.batches) == (5, 3, 5, 3)
    result.cut(mark)
    assert difference(before, result.state()) is None
    assert difference(before, Result.of_state(before).state()) is None
    result.drop_predictions()
    assert Result.of_state(result.state()).state()["predictions"] is None


# ---- skipping ------------------------------------------------------------------------------------------------


def by_hand(bad, accumulate, batch=12):
    """The weights of a run without the batches in `bad`, one `step` at a time, and its losses."""
    made, losses = trainer(accumulate=accumulate, dynamic=True), []
    micro = batch // accumulate
    for number in range(48 // batch):
        if number in bad:
            made.driver.skipped += 1  # the random step
            continue
        for at in range(number * batch, (number + 1) * batch, micro):
            result = made.step(X[at : at + micro], Y[at : at + micro])
            losses.append(result.loss)
    return made, losses


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("bad", [[0], [1, 2], [3], [0, 2, 3]])
def test_a_batch_that_is_not_finite_is_skipped(bad, accumulate):
    x = X.copy()
    for number in bad:
        x[12 * number + 7 % (3 + number)] = np.inf
    made, result = trainer(accumulate=accumulate, on_nonfinite="skip"), Result()
    gl.epoch(made, gl.data.Dataset(x, Y), result, batch_size=12)
    expected, losses = by_hand(bad, accumulate)
    expected.epoch = 1
    assert (made.steps, result.skipped, made.driver.skipped) == (4 - len(bad), len(bad), len(bad))
    assert (result.ndata, result.batches) == (12 * (4 - len(bad)), len(losses))
    assert f"{len(bad)} skipped" in repr(result)
    one, other = (
        {name: v for name, v in m.train_state.collect().items() if name != "rows.held"} for m in (made, expected)
    )
    assert difference(one, other) is None


def test_it_stops_unless_asked_to_skip():
    x = X.copy()
    x[0] = np.inf
    with pytest.raises(gl.NonFiniteError):
        gl.epoch(trainer(), gl.data.Dataset(x, Y), batch_size=12)
    with refused("on_nonfinite", "ignore", need="stop or skip"):
        trainer(on_nonfinite="ignore")
    x[:] = np.inf
    net = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(gl.NonFiniteError, match="epoch 1: none of its 4 batches was finite; all were skipped"):
        gl.fit(net, (x, Y), batch_size=12, progress=False, on_nonfinite="skip")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipping_in_a_fit_says_how_many(capsys, accumulate):
    x = X.copy()
    x[[3, 30]] = np.nan
    net = nn.Sequential(nn.Linear(4, 3))
    history = gl.fit(
        net, (x, Y), batch_size=6, micro_batch_size=6 // accumulate, epochs=2, seed=1, on_nonfinite="skip",
    )  # fmt: skip
    skipped = [epoch.train.skipped for epoch in history]
    assert all(n in (1, 2) for n in skipped)
    said = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(said) == 2 and f"epoch 1: {skipped[0]} of 8 batches skipped: not finite" in said[0]


def test_ranks_skip_alike():
    """Two ranks skip what one does, and go on with the same bits."""
    import threading

    x = X.copy()
    x[14] = np.nan
    done = {}

    def train(size):
        def one(rank):
            with rank:
                net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.Dropout(0.2), nn.Linear(8, 3)).init(5)
                history = gl.fit(
                    net, (x, Y), batch_size=12, micro_batch_size=6, parallel=rank, progress=False, seed=2, epochs=2,
                    on_nonfinite="skip", threads=1,
                )  # fmt: skip
                done[size, rank.rank] = net.state_dict(), [e.train.skipped for e in history], history[-1].train.loss

        threads = [threading.Thread(target=one, args=(rank,)) for rank in thread_ranks(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    train(1)
    train(2)
    alone, first, second = done[1, 0], done[2, 0], done[2, 1]
    assert alone[1] == first[1] == second[1] == [1, 1] and alone[2] == first[2]
    assert same(alone[0], first[0]) and same(first[0], second[0])
