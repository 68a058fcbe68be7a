"""Training, evaluation and prediction on an iterable of batches: the bits of a data set, resuming, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.train.stream import is_stream
from tests.train.split_training import on_ranks, raised

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((52, 6)).astype(np.float32), RNG.integers(0, 3, 52)
BATCHES = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 52, 16)]


def net():
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))


def weights(model):
    return {name: array.tobytes() for name, array in model.state_dict().items()}


def falling(step, epoch):
    return 0.02 / (1 + epoch)


def decay(step, epoch):
    return 0.01 / (1 + epoch)


def trained(data, model=None, **options):
    """(weights, losses of the epochs, gradient norms)."""
    model = net() if model is None else model
    lr = gl.optim.schedules.Plateau(0.02, patience=0, factor=0.5)
    options = {"seed": 1, "progress": False, "optimizer": gl.optim.AdamW(lr=lr, weight_decay=decay)} | options
    history = gl.fit(model, data, **options)
    numbers = [(e.train.loss, e.train.loss_unc, None if e.val is None else e.val.loss) for e in history]
    rates = [(e.epoch, *e.rates.values()) for e in history]
    return weights(model), numbers, rates, [e.train.grad_norms.tobytes() for e in history]


def batches():
    yield from BATCHES


class Again:
    """A new iterator each time, without a length."""

    def __iter__(self):
        return iter(BATCHES)


def torch_loader(**options):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    return torch.utils.data.DataLoader(data, batch_size=16, **options)


# ---- the same bits ---------------------------------------------------------------------------------------------------


def epochs_of_a_data_set(number, **options):
    """Weights after passes over a Dataset in its order."""
    model = net()
    trainer = gl.Trainer(model, optimizer=gl.optim.AdamW(lr=falling), seed=1, **options)
    for _ in range(number):
        gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=16)
    return weights(model)


@pytest.mark.parametrize(
    "make",
    [lambda: BATCHES, Again, lambda: batches, lambda: gl.data.DataLoader(X, Y, batch_size=16), torch_loader],
    ids=["list", "object", "function", "loader", "torch"],
)
def test_a_stream_gives_the_bits_of_its_rows(make):
    model = net()
    gl.fit(model, make(), optimizer=gl.optim.AdamW(lr=falling), seed=1, epochs=2, progress=False)
    assert weights(model) == epochs_of_a_data_set(2)


def test_a_generator_gives_one_epoch():
    model = net()
    gl.fit(model, batches(), optimizer=gl.optim.AdamW(lr=falling), seed=1, progress=False)
    assert weights(model) == epochs_of_a_data_set(1)


def test_micro_batches_split_each_batch():
    model = net()
    gl.fit(model, BATCHES, optimizer=gl.optim.AdamW(lr=falling), seed=1, progress=False, micro_batch_size=8)
    assert weights(model) == epochs_of_a_data_set(1, accumulate=2)


def test_several_inputs_and_outputs():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(6, 8), nn.Linear(6, 8)
            self.ids, self.sums = nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, u, v):
            hidden = gl.ops.tanh(self.left(u) + self.right(v))
            return {"ids": self.ids(hidden), "sums": self.sums(hidden)}

    loss = {"ids": "cross_entropy", "sums": "mse"}
    labels = Y.copy()
    labels[20] = -100  # an ignored label: batches with one have programs of their own
    whole = gl.data.Dataset({"u": X, "v": X**2}, {"ids": labels, "sums": X.sum(1)})
    parts = [whole.take(np.arange(i, min(i + 16, 52))) for i in range(0, 52, 16)]
    one, other = Heads(), Heads()
    gl.epoch(gl.Trainer(one, loss, seed=1), whole, batch_size=16)
    gl.fit(other, [(data, ids) for data, ids, _ in parts], loss=loss, seed=1, progress=False)
    for name, array in one.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[name], array, atol=2e-6)
    assert set(gl.predict(other, (part.data for part in parts))) == {"ids", "sums"}


def test_row_weights_and_batches_without_weight():
    """A batch of which no row counts is a step with gradient 0, as of a data set."""
    w = np.concatenate([np.zeros(16), np.linspace(0, 2, 36)]).astype(np.float32)
    one, other = net(), net()
    gl.epoch(gl.Trainer(one, seed=1), gl.data.Dataset(X, Y, weights=w), batch_size=16)
    gl.fit(other, [(X[i : i + 16], Y[i : i + 16], w[i : i + 16]) for i in range(0, 52, 16)], seed=1, progress=False)
    assert weights(one) == weights(other)


def test_evaluate_and_predict():
    model = net()
    whole = gl.evaluate(model, (X, Y), batch_size=16, metrics=["f1"]).numbers()
    assert gl.evaluate(model, batches(), metrics=["f1"]).numbers() == whole
    assert gl.evaluate(model, Again(), metrics=["f1"], memory="64GiB").numbers() == whole
    wanted = gl.predict(model, X)
    assert np.array_equal(gl.predict(model, (x for x, _ in BATCHES)), wanted)
    assert np.array_equal(gl.predict(model, lambda: (x for x, _ in BATCHES), memory="64GiB"), wanted)
    assert np.array_equal(gl.predict(model, gl.data.DataLoader(X, batch_size=16)), wanted)


def test_validation_on_streams():
    both = {"one": batches, "rows": (X, Y)}
    history = gl.fit(net(), BATCHES, val=both, epochs=2, eval_every="3steps", seed=1, progress=False)
    assert [one.step for epoch in history for one in epoch.evaluations] == [3, 4, 6, 8]
    for evaluation in (one for epoch in history for one in epoch.evaluations):
        assert evaluation.results["one"].numbers() == evaluation.results["rows"].numbers()


def test_a_shuffled_validation_loader_has_one_order():
    """Each evaluation reads the same batches."""
    loader = gl.data.DataLoader(X, Y, batch_size=16, shuffle=True, seed=2)
    model = net()
    history = gl.fit(model, BATCHES, val=loader, epochs=3, seed=1, progress=False)
    assert history[-1].val.numbers() == gl.evaluate(model, gl.data.DataLoader(X, Y, 16, True, 2)).numbers()


# ---- epochs ----------------------------------------------------------------------------------------------------------


def test_steps_per_epoch_continue_the_iteration():
    cycled = [*BATCHES, *BATCHES, *BATCHES][:9]
    found = trained(BATCHES, epochs=3, steps_per_epoch=3)
    assert found[0] == trained(cycled, epochs=3, steps_per_epoch=3)[0]
    assert found == trained(itertools.cycle(BATCHES), epochs=3, steps_per_epoch=3)


def test_set_epoch_is_called_with_the_number_of_the_iteration():
    class Numbered(Again):
        def __init__(self):
            self.seen = []
            self.sampler = self

        def set_epoch(self, epoch):
            self.seen.append(epoch)

    data, val = Numbered(), Numbered()
    gl.fit(net(), data, val=val, epochs=3, progress=False)
    assert sorted(set(data.seen)) == [0, 1, 2]
    assert set(val.seen) == {0}


def test_callbacks_get_the_rows_of_a_batch():
    class Record(gl.train.Callback):
        needs_outputs = True

        def __init__(self):
            self.batches = []

        def on_batch(self, batch):
            self.batches.append((batch.step, batch.rows.tolist(), batch.labels.tolist(), batch.outputs.shape))

    record = Record()
    gl.fit(net(), BATCHES, epochs=2, callbacks=[record], progress=False, micro_batch_size=8)
    rows = [list(range(i, min(i + 16, 52))) for i in range(0, 52, 16)] * 2
    assert record.batches == [(k + 1, mine, Y[mine].tolist(), (len(mine), 3)) for k, mine in enumerate(rows)]


def test_progress_counts_rows(capsys):
    seen = []
    gl.fit(net(), batches, epochs=2, on_train_batch=lambda at: seen.append((at.rows, at.rows_total)))
    assert seen == [(16, None), (32, None), (48, None), (52, None)] * 2
    (first,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch 1/2 "))
    assert first.endswith("  4 steps")


def test_a_wrong_length_is_noticed(capsys):
    class Long(Again):
        def __len__(self):
            return 30

    history = gl.fit(net(), Long(), epochs=2, progress=False)
    assert [epoch.train.ndata for epoch in history] == [52, 52]
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("data: 4 batches, but its len() is 30; all of them were used") == 1


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_that_is_none(length):
    class Odd(Again):
        def __len__(self):
            return length

    assert gl.fit(net(), Odd(), progress=False)[0].train.ndata == 52


class Closed:
    """An array of another library that NumPy cannot read."""

    shape = (4, 6)

    def __array__(self, *_, **__):
        raise RuntimeError("it requires grad;\ndetach it")


def test_an_iterator_that_ends_early(capsys):
    history = gl.fit(net(), batches(), epochs=3, steps_per_epoch=3, progress=False)
    assert [epoch.train.ndata for epoch in history] == [48, 4]
    line = "data: the iterator has ended after 4 batches; 3 epochs of 3 batches need 9: training ends here"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    assert len(gl.fit(net(), batches(), epochs=3, steps_per_epoch=2, progress=False)) == 2


def test_many_sizes_are_noticed(capsys):
    gl.fit(net(), [(X[:n], Y[:n]) for n in range(2, 13)], progress=False)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("data: batches of more than 8 sizes")]) == 1


# ---- resuming --------------------------------------------------------------------------------------------------------


class Drawn:
    """An order that a generator of its own draws anew for each iteration."""

    def __init__(self, seed=5):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        order = self.rng.permutation(52)
        for i in range(0, 52, 16):
            yield X[order[i : i + 16]], Y[order[i : i + 16]]


class ByEpoch(Drawn):
    def set_epoch(self, epoch):
        self.rng = np.random.default_rng(epoch)

    def __len__(self):
        return 4


class Stateful:
    """The state of a loader with a position."""

    def __init__(self):
        self.epoch = self.at = 0

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, values):
        self.epoch, self.at = values["epoch"], values["at"]

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(52)
        while self.at < 52:
            rows = order[self.at : self.at + 16]
            self.at += 16
            yield X[rows], Y[rows]
        self.epoch, self.at = self.epoch + 1, 0


def seeded_torch_loader():
    pytest.importorskip("torch").manual_seed(3)
    return torch_loader(shuffle=True)


KINDS = {
    "loader": lambda: gl.data.DataLoader(X, Y, batch_size=16, shuffle=True, seed=3),
    "list": lambda: BATCHES,
    "function": lambda: batches,
    "drawn": Drawn,
    "by epoch": ByEpoch,
    "stateful": Stateful,
    "torch": seeded_torch_loader,
}
SETTINGS = {
    "micro": {"micro_batch_size": 8},
    "cycled": {"steps_per_epoch": 3},
    "inside": {"eval_every": "3steps"},
}


def stopping(count):
    calls = []

    def listener(at):
        calls.append(at)
        if len(calls) == count:
            raise KeyboardInterrupt

    return listener


@pytest.mark.parametrize(
    ("kind", "settings"),
    [*((kind, "plain") for kind in KINDS), *(("drawn", name) for name in SETTINGS), ("stateful", "cycled")],
)
def test_a_stopped_run_resumes_with_the_same_bits(kind, settings, tmp_path):
    """In training and in evaluations, with a checkpoint after each step, or one at the end."""
    options = {"epochs": 3, "val": BATCHES} | SETTINGS.get(settings, {})
    whole = trained(KINDS[kind](), **options)
    for count, every, listener in (
        (2, "5min", "on_train_batch"),
        (4, "1steps", "on_train_batch"),
        (8, "5min", "on_train_batch"),
        (3, "1steps", "on_eval_batch"),
        (8, "5min", "on_eval_batch"),
    ):
        run = tmp_path / f"{count}-{every}-{listener}"
        with pytest.raises(KeyboardInterrupt):
            trained(KINDS[kind](), run=run, checkpoint_every=every, **options | {listener: stopping(count)})
        assert trained(KINDS[kind](), run=run, resume=True, **options) == whole


@pytest.mark.parametrize("kind", ["list", "stateful", "loader"])
def test_a_batch_that_is_not_finite_is_read_again(kind, tmp_path):
    """The run ends at the batch; with clean data the resume trains on it."""
    bad = {"at": True}

    class Spoiled(Stateful):
        def __iter__(self):
            for k, (x, y) in enumerate(super().__iter__()):
                yield (x * np.float32(np.nan) if k == 2 and bad["at"] else x), y

    def make():
        if kind == "stateful":
            return Spoiled()
        x = X.copy()
        x[32:48] = np.nan if bad["at"] else x[32:48]
        if kind == "loader":
            return gl.data.DataLoader(x, Y, batch_size=16)
        return [(x[i : i + 16], Y[i : i + 16]) for i in range(0, 52, 16)]

    with pytest.raises(gl.NonFiniteError, match=r"^data: batch 3: training stopped at step 3 "):
        trained(make(), run=tmp_path, epochs=2)
    bad["at"] = False
    if kind == "loader":  # whose data identify the run
        with pytest.raises(gl.TrainError, match="the data differ"):
            trained(make(), run=tmp_path, epochs=2, resume=True)
    else:
        assert trained(make(), run=tmp_path, epochs=2, resume=True) == trained(make(), epochs=2)


def test_more_epochs_continue_a_finished_run(tmp_path):
    for kind in ("list", "loader", "stateful", "drawn"):
        trained(KINDS[kind](), run=tmp_path / kind, epochs=2)
        assert trained(KINDS[kind](), run=tmp_path / kind, epochs=3, resume=True) == trained(KINDS[kind](), epochs=3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Drawn(6), r"data: cannot be resumed: the iterable gives other batches than before \(iteration 2\)"),
        (lambda: BATCHES[1:], r"the iterable gives other batches than before"),
        (lambda: BATCHES[:1], r"the iterable gives fewer batches than before"),
        (lambda: KINDS["loader"](), r"the data are a gl.data.DataLoader and were an iterable that is read again"),
        (lambda: (X, Y), r"batches is none and was data float32\[6\], labels int64\[\]"),
    ],
)
def test_other_batches_are_refused(other, message, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(Drawn(), run=tmp_path, epochs=3, on_train_batch=stopping(6))
    before = sorted(tmp_path.rglob("*.json"))
    with pytest.raises(gl.TrainError, match=message):
        trained(other(), run=tmp_path, epochs=3, resume=True)
    assert sorted(tmp_path.rglob("*.json")) == before


def test_other_batches_of_the_open_iteration_are_refused(tmp_path):
    class Other(ByEpoch):
        def __iter__(self):
            for k, (x, y) in enumerate(super().__iter__()):
                yield (x + np.float32(k == 1)), y

    with pytest.raises(KeyboardInterrupt):
        trained(ByEpoch(), run=tmp_path, epochs=3, on_train_batch=stopping(6))
    with pytest.raises(gl.TrainError, match="the iterable gives other batches than before"):
        trained(Other(), run=tmp_path, epochs=3, resume=True)


def test_another_number_of_batches_is_refused(tmp_path):
    trained(BATCHES, run=tmp_path)
    with pytest.raises(gl.TrainError, match="number of batches is 3 and was 4"):
        trained(BATCHES[:3], run=tmp_path, epochs=2, resume=True)


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 4}])
def test_batches_that_grow(options, tmp_path):
    """The first batch, whose programs identify the run, is the smallest one."""
    growing = [(X[:6], Y[:6]), (X[:40], Y[:40]), (X[40:], Y[40:])]
    with pytest.raises(KeyboardInterrupt):
        trained(growing, run=tmp_path, epochs=3, on_train_batch=stopping(18 if options else 5), **options)
    whole = trained(growing, epochs=3, **options)
    assert trained(growing, run=tmp_path, epochs=3, resume=True, **options) == whole
    if options:
        seen = []
        gl.fit(net(), growing, on_train_batch=lambda at: seen.append(at.rows), progress=False, **options)
        assert seen == [4, 6, *range(10, 59, 4)]


def test_a_loader_that_begins_inside_of_its_epoch(tmp_path):
    def loader():
        made = gl.data.DataLoader(X, Y, batch_size=8, shuffle=True, seed=3)
        made.load_state({**made.state(), "epoch": 2, "batches": 3})
        return made

    whole = trained(loader(), epochs=2)
    with pytest.raises(KeyboardInterrupt):
        trained(loader(), run=tmp_path, epochs=2, on_train_batch=stopping(2))
    assert trained(loader(), run=tmp_path, epochs=2, resume=True) == whole


def test_a_run_on_rows_is_not_resumed_with_batches(tmp_path):
    trained((X, Y), run=tmp_path)
    with pytest.raises(gl.TrainError, match="it trained on the rows of a data set"):
        trained(BATCHES, run=tmp_path, resume=True)


def test_what_a_run_says_before_it_begins(tmp_path, capsys):
    trained(batches(), run=tmp_path / "a")
    line = f"{tmp_path}/a: data are an iterator: the run cannot be resumed; its weights, logs and reports are kept"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    with pytest.raises(gl.SettingError, match="resume=True: data are an iterator, which cannot be resumed"):
        trained(batches(), run=tmp_path / "a", resume=True)
    trained(BATCHES, run=tmp_path / "b")
    assert "a resume reads the batches of its epoch again" in capsys.readouterr().err


# ---- ranks -----------------------------------------------------------------------------------------------------------


def trained_on_ranks(size, make, **options):
    def work(rank):
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
        return trained(make(rank.rank), model, parallel=rank, threads=1, **options)

    found = on_ranks(size, work)
    if (error := raised(found)) is not None:
        raise error
    assert all(other == found[0] for other in found)
    return found[0]


def test_ranks_share_the_rows_of_each_batch():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    options = {"epochs": 2, "micro_batch_size": 4, "val": BATCHES}
    assert trained_on_ranks(2, lambda rank: BATCHES, **options) == trained(BATCHES, model, **options)
    trained_on_ranks(3, lambda rank: batches())


def test_ranks_with_other_batches_are_refused():
    changed = [*BATCHES[:2], (BATCHES[2][0] + 1, BATCHES[2][1]), BATCHES[3]]
    with pytest.raises(gl.TrainError, match="the batch"):
        trained_on_ranks(2, lambda rank: changed if rank else BATCHES)
    with pytest.raises(gl.TrainError, match="the iterable of replica 0 ends after 2 batches, that of replica 1 does"):
        trained_on_ranks(2, lambda rank: BATCHES if rank else BATCHES[:2])


# ---- what is a stream, and what a batch ------------------------------------------------------------------------------


def test_what_is_a_stream():
    class Rows(Again):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return BATCHES[i]

    for one in (BATCHES, BATCHES[:2], BATCHES[:1], [X, X, X], batches(), batches, Again(), [], [list(BATCHES[0])] * 3):
        assert is_stream(one)
    for one in ((X, Y), [X, Y], X, "file", None, {"u": X}, gl.data.Dataset(X, Y), Rows(), [[1, 2], [3, 4], [5, 6]]):
        assert not is_stream(one)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, "data: batch 2: data: a NoneType; need an array"),
        ("text", "data: batch 2: data: a str; need an array"),
        ((Closed(), Y[:4]), "data: batch 2: data: a Closed is no array: it requires grad; detach it$"),
        ((X[:0], Y[:0]), "data: batch 2: data: 0 rows; need at least 1"),
        ((X[:4, :5], Y[:4]), r"batch 2: data of float32, rows of shape \[5\]; the batches before have data of"),
        ((X[:4].astype(np.float64), Y[:4]), "batch 2: data of float64, rows of shape"),
        (X[:4], "batch 2: no labels; the batches before have labels of int64"),
        ((X[:4], Y[:4], np.ones(4)), r"batch 2: weights of float32, rows of shape \[\]; the batches before have"),
        ((X[:4], Y[:5]), "batch 2: labels: 5 rows; need 4, one for each row of the data"),
        ((X, Y, Y, Y), r"batch 2: a tuple of 4; need x, \(x, y\) or \(x, y, weights\)"),
        ((X[:16], np.full(16, 7)), "batch 2: .*id 7 at position 0 is out of range; need 0..2"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_used_is_named(batch, message):
    with pytest.raises(gl.GradloomError, match=message):
        gl.fit(net(), iter([BATCHES[0], batch]), progress=False)


@pytest.mark.parametrize("batch", [None, "text"])
def test_a_batch_of_a_list_that_cannot_be_used_is_named(batch):
    with pytest.raises(gl.ShapeError, match=r"data: batch 2: data: a \w+; need an array"):
        gl.fit(net(), [BATCHES[0], batch, BATCHES[1]], progress=False)


def test_an_error_of_the_iterable_is_raised_as_it_is():
    def failing():
        yield from BATCHES[:2]
        raise LookupError("mine")

    model, two = net(), net()
    with pytest.raises(LookupError, match=r"^mine$"):
        gl.fit(model, failing(), seed=1, progress=False)
    gl.fit(two, BATCHES[:2], seed=1, progress=False)
    assert weights(model) == weights(two)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "data: an iterable without batches; need at least one"),
        (iter(()), {}, "data: an iterable without batches; need at least one"),
        (lambda: None, {}, "data: the function returned a NoneType; need an iterator of batches"),
        (batches(), {"epochs": 2}, "epochs=2: data are an iterator, which gives one epoch"),
        (BATCHES, {"batch_size": 32}, "batch_size=32 requires a data set"),
        (BATCHES, {"val_split": 0.1}, "val_split=0.1 requires a data set"),
        (BATCHES, {"folds": 2}, "folds=2 requires a data set"),
        (BATCHES, {"class_weight": "balanced"}, "class_weight is balanced; the classes of an iterable of batches"),
        (BATCHES, {"class_weight": {0: 2.0}}, "class_weight is a dict; the classes of an iterable of batches"),
        (BATCHES, {"class_weight": [1.0, 2.0]}, "must be a weight for each of the 3 classes"),
        (BATCHES, {"val": batches()}, "val: an iterator, which can be read once"),
        (BATCHES, {"val": BATCHES, "eval_rows": 4}, "eval_rows=4 requires data sets in val"),
        ((X, Y), {"steps_per_epoch": 3}, "steps_per_epoch=3 requires data that are an iterable of batches"),
        (BATCHES, {"optimizer": gl.optim.SGD(lr=gl.optim.schedules.Cosine(0.1, steps=20, warmup=9))},
         "warmup=9 exceeds the 4 steps"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_with_a_stream(data, options, message):
    with pytest.raises(gl.GradloomError, match=message):
        gl.fit(net(), data, progress=False, **options)


def test_an_iterator_behind_a_function_ends():
    once = batches()
    with pytest.raises(gl.DataError, match="no batches in iteration 2; need an iterable that gives a new iterator"):
        gl.fit(net(), lambda: once, epochs=2, progress=False)


def test_evaluate_and_predict_refuse():
    model = net()
    for call, message in (
        (lambda: gl.evaluate(model, BATCHES, batch_size=8), "batch_size=8 requires a data set"),
        (lambda: gl.evaluate(model, iter(())), "an iterable without batches"),
        (lambda: gl.predict(model, batches()), "batch 1 is a tuple of 2; need its rows alone"),
        (lambda: gl.predict(model, BATCHES), "got a list of tuples; need rows alone"),
        (lambda: gl.predict(model, iter(())), "has no batches"),
        (lambda: gl.predict(model, (x for x, _ in BATCHES), batch_size=8), "batch_size=8 requires arrays"),
    ):
        with pytest.raises(gl.GradloomError, match=message):
            call()


def test_class_weights_of_a_list():
    by_row = [(x, y, np.array([1.0, 2.0, 0.5], np.float32)[y]) for x, y in BATCHES]
    one, other = net(), net()
    gl.fit(one, BATCHES, class_weight=[1.0, 2.0, 0.5], seed=1, progress=False)
    gl.fit(other, by_row, seed=1, progress=False)
    for name, array in one.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[name], array, atol=2e-6)


def test_batches_are_not_written():
    """A batch belongs to the caller."""
    kept = [(x.copy(), y.copy()) for x, y in BATCHES]
    gl.fit(net(), kept, epochs=2, val=kept, progress=False)
    assert all(
        np.array_equal(a, b) for one, other in zip(kept, BATCHES, strict=True) for a, b in zip(one, other, strict=True)
    )
