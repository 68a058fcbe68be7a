"""RNN, LSTM and GRU: against PyTorch, with states, lengths, layers and directions."""

import numpy as np
import pytest

import gradloom as gl
from tests.kept import torch
from tests.nn.torch_twins import compare_or_kept

nn = gl.nn
N, T, I, H = 3, 4, 2, 3


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SETTINGS = [
    {}, {"num_layers": 2, "bias": False}, {"bidirectional": True, "batch_first": True},
    {"num_layers": 3, "bidirectional": True},
]  # fmt: skip


def twins(kind, options):
    def twin():
        return getattr(torch.nn, kind)(I, H, **options)

    return getattr(nn, kind)(I, H, **options).init(1), twin


def sequence(options, seed=0):
    return drawn(*((N, T) if options.get("batch_first") else (T, N)), I, seed=seed)


@pytest.mark.oracle
@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_outputs_states_and_gradients_are_those_of_pytorch(kind, options):
    net, twin = twins(kind, options)
    compare_or_kept(f"{kind} {options}", net, twin, {"x": sequence(options)}, second=not options)


PROJECTED = [
    {"proj_size": 2}, {"proj_size": 1, "num_layers": 2, "bidirectional": True, "batch_first": True},
    {"proj_size": 2, "num_layers": 3, "bias": False},
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("options", PROJECTED, ids=str)
def test_projections_of_an_lstm_are_those_of_pytorch(options):
    net, twin = twins("LSTM", options)
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    feeds = {
        "x": sequence(options), "h": drawn(count, N, options["proj_size"], seed=2), "c": drawn(count, N, H, seed=3),
    }  # fmt: skip

    compare_or_kept(
        f"LSTM {options}", net, twin, feeds, lambda x, h, c: net(x, (h, c)), lambda layer, x, h, c: layer(x, (h, c)),
        second=False,
    )  # fmt: skip
    compare_or_kept(f"LSTM {options} from zeros", net, twin, {"x": sequence(options, 5)}, second=False)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("kind", "options"),
    [("RNN", {"nonlinearity": "relu"}), ("GRU", {"num_layers": 2}), ("LSTM", {"bidirectional": True})],
)
def test_given_states(kind, options):
    net, twin = twins(kind, options)
    shape = (options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1), N, H)
    feeds = {"x": sequence(options), "h": drawn(*shape, seed=2)}
    call = twin_call = None
    if kind == "LSTM":
        feeds["c"] = drawn(*shape, seed=3)

        def call(x, h, c):
            return net(x, (h, c))

        def twin_call(layer, x, h, c):
            return layer(x, (h, c))

    compare_or_kept(f"{kind} {options} with states", net, twin, feeds, call, twin_call, second=False)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_lengths_are_packed_sequences(kind, options):
    net, twin = twins(kind, options)
    first = options.get("batch_first", False)

    def packed(layer, x, lengths):
        rnn = torch.nn.utils.rnn
        outputs, state = layer(rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False))
        return rnn.pad_packed_sequence(outputs, first, total_length=T)[0], state

    feeds = {"x": sequence(options), "lengths": np.array([2, T, 1], np.int32)}
    compare_or_kept(
        f"{kind} {options} with lengths", net, twin, feeds, lambda x, n: net(x, lengths=n), packed, second=False
    )


def test_lengths_may_be_an_array_and_0_leaves_the_state():
    net = nn.GRU(I, H, batch_first=True).init(0)
    state = drawn(1, N, H, seed=4)
    outputs, last = net(gl.input("x", (N, T, I)), state, lengths=[0, 1, T])
    found, end = gl.compile([outputs, last])(x=drawn(N, T, I))
    np.testing.assert_array_equal(end[0, 0], state[0, 0])
    assert not found[0].any() and not found[1, 1:].any() and found[1, 0].all() and found[2].all()
    np.testing.assert_array_equal(end[0, 2], found[2, -1])


@pytest.mark.parametrize(
    "lengths", [[1, T + 1, 2], [1, -1, 2], [1.0, float("nan"), 2.0]], ids=["long", "negative", "nan"]
)
def test_lengths_out_of_range_are_an_error(lengths):
    net = nn.LSTM(I, H, batch_first=True).init(0)
    given = gl.input("n", (N,), "f32" if isinstance(lengths[0], float) else "i32")
    run = gl.compile(net(gl.input("x", (N, T, I)), lengths=given)[0])
    with pytest.raises(gl.DataError, match="lengths"):
        run(x=drawn(N, T, I), n=np.array(lengths))


class Reader(nn.Module):
    """The class of a sequence, of its last state."""

    def __init__(self, kind):
        super().__init__()
        self.read = getattr(nn, kind)(I, 8, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x, lengths):
        outputs, _ = self.read(x, lengths=lengths)
        return self.head(gl.ops.sum(outputs, 1))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_they_learn_in_micro_batches_as_in_whole_ones(kind):
    x, lengths = drawn(32, T, I), np.arange(32, dtype=np.int32) % T + 1
    seen = np.arange(T)[None] < lengths[:, None]
    y = ((x[..., 0] * seen).sum(1) > 0).astype(np.int64)
    found = []
    for options in ({}, {"micro_batch_size": 4}):
        net = Reader(kind).init(0)
        history = gl.fit(net, ({"x": x, "lengths": lengths}, y), optimizer=gl.optim.Adam(lr=0.02), epochs=12,
                         batch_size=16, seed=1, progress=False, **options)  # fmt: skip
        found.append([one.train.loss for one in history])
    assert found[0][-1] < 0.7 * found[0][0]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.LSTM(2, 0), gl.ShapeError, "hidden_size=0"),
        (lambda: nn.LSTM(2, 3, proj_size=3), gl.SettingError, "must be below hidden_size=3"),
        (lambda: nn.LSTM(2, 3, proj_size=-1), gl.SettingError, "proj_size"),
        (lambda: nn.LSTM(2, 3, proj_size=1)(gl.input("x", (4, 5, 2)), (np.zeros((1, 5, 3)), np.zeros((1, 5, 3)))),
         gl.ShapeError, r"a pair \(h, c\) of shape \[1, 5, 1\] and \[1, 5, 3\]"),
        (lambda: nn.LSTM(2, 3, dropout=0.5), gl.SettingError, "requires num_layers of at least 2"),
        (lambda: nn.RNN(2, 3, nonlinearity="gelu"), gl.SettingError, "'tanh' or 'relu'"),
        (lambda: nn.GRU(2, 3)(gl.input("x", (4, 2))), gl.ShapeError, r"need \[steps, rows, 2\]"),
        (lambda: nn.GRU(2, 3, batch_first=True)(gl.input("x", (4, 5, 3))), gl.ShapeError, r"need \[rows, steps, 2\]"),
        (lambda: nn.GRU(2, 3)(gl.input("x", (4, 5, 2)), np.zeros((1, 4, 3))), gl.ShapeError, r"need shape \[1, 5, 3\]"),
        (lambda: nn.LSTM(2, 3)(gl.input("x", (4, 5, 2)), np.zeros((1, 5, 3))), gl.ShapeError, r"a pair \(h, c\)"),
        (lambda: nn.GRU(2, 3)(gl.input("x", (4, 5, 2)), lengths=[1, 2]), gl.ShapeError, "one for each of 5 rows"),
        (lambda: nn.GRU(2, 3)(gl.input("x", (4, 2, 2)), lengths=[True, False]), gl.DTypeError, "whole"),
    ],
)  # fmt: skip
def test_errors_are_one_line(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_dropout_is_between_the_layers_in_training(kind):
    options = {"num_layers": 2, "batch_first": True}
    net, plain = getattr(nn, kind)(I, H, dropout=0.5, **options).init(1), getattr(nn, kind)(I, H, **options).init(1)
    x = drawn(64, T, I)
    run = gl.compile(net(gl.input("x", x.shape))[0])
    one, again, other = (run(x=x, seed=seed, step=0, row=0)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any() and one.all()  # the last layer's outputs are whole
    net.eval()
    plain.eval()
    whole, other = (gl.compile(one(gl.input("x", x.shape))[0])(x=x)[0] for one in (net, plain))
    np.testing.assert_array_equal(whole, other)


def test_a_tape_records_them():
    net = nn.LSTM(I, H, batch_first=True).init(0)
    with gl.grad_tape() as tape:
        outputs, (h, _) = net(gl.tensor(drawn(N, T, I)), lengths=[1, 2, 4])
        loss = gl.ops.sum(outputs * outputs) + gl.ops.sum(h)
    grads = tape.backward(loss)
    assert all(np.abs(grads[p].numpy()).max() > 0 for p in net.parameters())
