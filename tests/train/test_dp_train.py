"""Replicas side by side: the same weights, bit for bit, as a plain loop over the same samples."""

from __future__ import annotations

import csv
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.train.replica import CHECK_STEPS
from tests import processes
from tests.real_data import DATA

IRIS = DATA / "tabular" / "iris.csv"
Samples = Sequence[tuple[np.ndarray, np.ndarray]]


def net() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(4, 32, activation="relu"), gl.nn.Linear(32, 3))


def blobs(sizes: Sequence[int], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of so many rows, three classes that can be told apart."""
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        y = rng.integers(0, 3, n)
        found.append(((rng.standard_normal((n, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32), y))
    return found


def iris(rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    if not IRIS.exists():
        pytest.skip(f"needs {IRIS}")
    with IRIS.open() as file:
        table = [line for line in csv.reader(file) if line]
    names = sorted({line[-1] for line in table})
    x = np.array([line[:4] for line in table], np.float32)
    y = np.array([names.index(line[-1]) for line in table])
    order = np.random.default_rng(0).permutation(len(x))
    return [(x[part], y[part]) for part in np.split(order, range(rows, len(x), rows))]


def plain_loop(
    model: gl.nn.Module,
    samples: Samples,
    replicas: int,
    iterations: int,
    optimizer: gl.optim.Optimizer,
    max_norm: float = math.inf,
) -> tuple[dict[str, np.ndarray], list[float]]:
    """What dp_train should do, one sample after the other: sums of gradients in their order, divided once."""
    model.ensure_init(0)
    named = model.named_parameters()
    parameters = list(named.values())
    state = optimizer.make_state(parameters)
    sums = [gl.input(f"g{i}", p.shape) for i, p in enumerate(parameters)]
    weight = gl.input("weight")
    apply = gl.compile([], optimizer.update(gl.optim.UpdateInputs(parameters, sums, weight, state)))
    measure = gl.compile(ops.guard(gl.input("loss"), weight, *sums))
    programs: dict[Any, Any] = {}
    history = []
    for i in range(iterations):
        total: list[np.ndarray] | None = None
        losses = np.float32(0)
        for r in range(replicas):
            x, y = samples[(i * replicas + r) % len(samples)]
            if x.shape not in programs:
                loss = ops.cross_entropy(model(gl.input("x", x.shape)), gl.input("y", y.shape, "i32"))
                programs[x.shape] = gl.compile([loss, *gl.gradients(loss, parameters)])
            loss, *grads = programs[x.shape](x=x, y=y)
            losses = losses + loss
            total = grads if total is None else [a + g for a, g in zip(total, grads, strict=True)]
        assert total is not None
        divisor = np.float32(replicas)
        feeds = {f"g{k}": g for k, g in enumerate(total)}
        (norm,) = measure(**feeds, loss=losses, weight=divisor)
        divisor = divisor * np.maximum(norm / np.float32(max_norm), np.float32(1))
        rates = optimizer.at(i, i * replicas // len(samples))
        apply(**feeds, weight=divisor, **{k: v for k, v in rates.items() if k in apply.settings})
        history.append(float(losses / np.float32(replicas)))
    return {name: p.numpy() for name, p in named.items()}, history


def same(result: gl.DPResult, params: dict[str, np.ndarray]) -> bool:
    """All replicas have these weights, bit for bit."""
    models = [{n: p.numpy() for n, p in m.named_parameters().items()} for m in result.models]
    return all(
        found.keys() == params.keys() and all(np.array_equal(found[n], params[n]) for n in params)
        for found in (result.params, *models)
    )


def test_a_replica_that_gets_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, at once; the replicas that had begun end, and the next training works."""
    start = threading.Thread.start

    def one_thread(self: threading.Thread) -> None:
        if self.name == "replica 2":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", one_thread)
    began = time.monotonic()
    with pytest.raises(
        gl.TrainError, match="dp_train: there is no thread for replica 2 .can't start new thread.; need"
    ):
        gl.dp_train(net, blobs([8] * 6), loss_fn=ops.cross_entropy, replicas=4, iterations=50)
    assert time.monotonic() - began < 30
    assert not [t for t in threading.enumerate() if t.name.startswith("replica")]
    monkeypatch.undo()
    assert gl.dp_train(net, blobs([8] * 6), loss_fn=ops.cross_entropy, replicas=4, iterations=2).replicas == 4


# ---- equal to the plain loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [gl.optim.AdamW, gl.optim.Lion])
def test_moments_in_8_bits(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr("gradloom.optim.moments.LEAST_SIZE", 20)
    samples, optimizer = blobs([8, 8, 5, 1, 8]), kind(lr=1e-2, weight_decay=0.1, state_bits=8)
    result = gl.dp_train(net, samples, loss_fn=ops.cross_entropy, replicas=2, iterations=23, optimizer=optimizer)
    assert same(result, plain_loop(net(), samples, 2, 23, optimizer)[0])
    assert not same(result, plain_loop(net(), samples, 2, 23, kind(lr=1e-2, weight_decay=0.1))[0])


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("max_norm", [math.inf, 0.5])
def test_iris_equals_the_plain_loop(replicas: int, max_norm: float) -> None:
    samples = iris(16)  # the last has six rows
    result = gl.dp_train(
        net, samples, loss_fn=ops.cross_entropy, replicas=replicas, iterations=60, lr=1e-2, max_norm=max_norm
    )
    params, history = plain_loop(net(), samples, replicas, 60, gl.optim.Adam(lr=1e-2), max_norm)
    assert len(result.models) == result.replicas == replicas
    assert same(result, params)
    assert result.loss_history == history and result.loss == history[-1] < history[0]


@pytest.mark.parametrize(
    "optimizer",
    [
        gl.optim.SGD(lr=0.1, momentum=0.9, weight_decay=1e-3),
        gl.optim.AdamW(lr=lambda step, epoch: 1e-2 / (1 + epoch), weight_decay=0.1),
    ],
)
def test_other_optimisers_and_schedules(optimizer: gl.optim.Optimizer) -> None:
    samples = blobs([8, 8, 5, 1, 8])
    result = gl.dp_train(net, samples, loss_fn=ops.cross_entropy, replicas=2, iterations=23, optimizer=optimizer)
    assert same(result, plain_loop(net(), samples, 2, 23, optimizer)[0])


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("max_norm", [math.inf, 0.5])
def test_iris_equals_the_eager_loop(replicas: int, max_norm: float) -> None:
    samples = iris(16)
    result = gl.dp_train(
        net, samples, loss_fn=ops.cross_entropy, replicas=replicas, iterations=30, lr=1e-2, max_norm=max_norm
    )
    model = net()
    model.ensure_init(0)
    optimizer = gl.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(30):
        for r in range(replicas):
            x, y = samples[(i * replicas + r) % len(samples)]
            with gl.grad_tape() as tape:
                loss = ops.cross_entropy(model(gl.tensor(x)), gl.tensor(y))
            optimizer.accumulate(tape.backward(loss), weight=1)
        if max_norm < math.inf:
            gl.optim.clip_grad_norm(optimizer, max_norm)
        optimizer.step()
    assert same(result, {n: p.numpy() for n, p in model.named_parameters().items()})


@pytest.mark.parametrize("place", [0, 1])
def test_beside_an_open_tape(place: int) -> None:
    """Graphs of the replicas are none of a tape's business, and what a tape still owes is done before they start."""
    samples = blobs([6, 6])
    model = net().init(0)
    optimizer = gl.optim.SGD(model.parameters(), lr=0.1)
    start = net().init(4)
    before = model.parameters()[0].numpy()
    with gl.grad_tape() as tape:
        loss = ops.cross_entropy(model(gl.tensor(samples[0][0])), gl.tensor(samples[0][1]))
        if place == 0:
            optimizer.step(tape.backward(loss))
        after = [loss * 2.0, ops.sum(model.parameters()[0])]
        made = iter([model, net().init(9)] if place == 0 else [start, model])
        result = gl.dp_train(lambda: next(made), samples, loss_fn=ops.cross_entropy, replicas=2, iterations=3)
    other = net().init(0 if place == 0 else 4)
    first = gl.optim.SGD(lr=0.1)
    if place == 0:
        plain_loop(other, samples[:1], 1, 1, first)
        before = other.parameters()[0].numpy()
    params, _ = plain_loop(other, samples, 2, 3, gl.optim.Adam(lr=1e-3))
    assert same(result, params)
    assert float(after[0]) == 2 * float(loss) and math.isclose(float(after[1]), float(before.sum()), rel_tol=1e-4)


def test_a_plateau_sees_the_mean_loss_of_each_pass() -> None:
    """|w| with rate 2 jumps from 1 to -1 and back; after two passes without improvement the rate is 0.2."""

    def one() -> gl.nn.Module:
        model = gl.nn.Linear(1, 1, bias=False)
        model.weight.assign([[1.0]])
        return model

    plateau = gl.optim.schedules.Plateau(2.0, factor=0.1, patience=1)
    samples = [(np.ones((1, 1), np.float32), np.zeros(1, np.int64))] * 4  # a pass is two steps of two replicas
    result = gl.dp_train(
        one, samples, loss_fn=lambda out, target: ops.sum(abs(out)), replicas=2, iterations=9,
        optimizer=gl.optim.SGD(lr=plateau),
    )  # fmt: skip
    assert np.allclose(result.loss_history, [1] * 7 + [0.8, 0.6])


def test_any_threads_and_fewer_samples_than_replicas() -> None:
    samples = blobs([300, 200])
    found = [
        gl.dp_train(net, samples, loss_fn=ops.cross_entropy, replicas=3, iterations=5, threads=threads)
        for threads in (None, 1, 2)
    ]
    params, _ = plain_loop(net(), samples, 3, 5, gl.optim.Adam(lr=1e-3))
    assert all(same(one, params) for one in found)


def wide() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(256, 512, activation="relu"), gl.nn.Linear(512, 10))


def wide_samples(count: int, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((rows, 256)).astype(np.float32), rng.integers(0, 10, rows)) for _ in range(count)]


@pytest.mark.parametrize("options", [{"threads": 2}, {"poison": True}, {"check": 2}, {"reuse": False, "fuse": False}])
def test_options_of_compile_do_not_change_the_bits(options: dict[str, Any]) -> None:
    """Two replicas of two threads each take turns at the cores that there are."""
    given: dict[str, Any] = {"loss_fn": ops.cross_entropy, "replicas": 2, "iterations": 5, "max_norm": 0.1}
    samples = wide_samples(3, 700)
    assert same(gl.dp_train(wide, samples, **given, **options), gl.dp_train(wide, samples, **given, threads=1).params)


def test_the_fast_exchange_is_near() -> None:
    samples = blobs([8] * 6)
    found = [
        gl.dp_train(
            net, samples, loss_fn=ops.cross_entropy, replicas=3, iterations=10, exchange=exchange,
            optimizer=gl.optim.SGD(lr=0.1),
        )
        for exchange in ("ordered", "fast")
    ]  # fmt: skip
    assert all(np.allclose(found[0].params[n], found[1].params[n], atol=1e-5) for n in found[0].params)
    assert same(found[1], found[1].params)


def test_shuffle_is_an_order_of_its_own_per_pass_whatever_the_replicas() -> None:
    """With SGD at rate 0 nothing changes, so a sample's loss tells which one it was."""
    samples = blobs([4] * 7)
    histories = [
        gl.dp_train(
            net, samples, loss_fn=ops.cross_entropy, replicas=1, iterations=21, shuffle=True, seed=seed, lr=0
        ).loss_history
        for seed in (3, 3, 4)
    ]
    plain = gl.dp_train(net, samples, loss_fn=ops.cross_entropy, replicas=1, iterations=7, seed=3, lr=0).loss_history
    passes = [histories[0][k : k + 7] for k in (0, 7, 14)]
    assert histories[0] == histories[1] and histories[0] != histories[2]
    assert all(sorted(one) == sorted(plain) for one in passes) and len({tuple(one) for one in (*passes, plain)}) == 4
    two = gl.dp_train(
        net, samples, loss_fn=ops.cross_entropy, replicas=2, iterations=10, shuffle=True, seed=3, lr=0
    ).loss_history
    pairs = np.array(histories[0][:20], np.float32).reshape(10, 2)
    assert two == ((pairs[:, 0] + pairs[:, 1]) / np.float32(2)).tolist()


# ---- samples and losses of other forms ---------------------------------------------------------------------------


def test_dicts_with_functions_of_the_whole_sample() -> None:
    samples = blobs([6, 6, 3, 6])
    dicts = [{"features": x.astype(np.float64), "class": y, "extra": {"unused": 0}} for x, y in samples]
    result = gl.dp_train(
        net, dicts, loss_fn=lambda out, target: ops.cross_entropy(out, target), replicas=2, iterations=9,
        forward_fn=lambda model, s: model(s["features"]), target_fn=lambda s: s["class"],
    )  # fmt: skip
    params, _ = plain_loop(net(), samples, 2, 9, gl.optim.Adam(lr=1e-3))
    assert same(result, params)
    pairs = gl.dp_train(
        net, samples, loss_fn=ops.cross_entropy, replicas=2, iterations=9,
        forward_fn=lambda model, s: model(s[0]), target_fn=lambda s: s[1],
    )  # fmt: skip
    assert same(pairs, params)


def test_sums_and_weights_are_divided_once() -> None:
    """(sum, weight) over samples of 2 and 30 rows is the mean over 32 rows, no mean of means; zero weighs nothing."""
    small, large = blobs([2, 30])
    both = tuple(np.concatenate(pair) for pair in zip(small, large, strict=True))

    def pair(out: gl.Value, target: gl.Value) -> Any:
        return ops.cross_entropy_sum(out, target)[:2]

    options: dict[str, Any] = {"optimizer": gl.optim.SGD(lr=0.5), "iterations": 1}
    split = gl.dp_train(net, [small, large], loss_fn=pair, replicas=2, **options)
    whole = gl.dp_train(net, [both], loss_fn=ops.cross_entropy, replicas=1, **options)
    means = gl.dp_train(net, [small, large], loss_fn=ops.cross_entropy, replicas=2, **options)
    assert all(np.allclose(split.params[n], whole.params[n], atol=1e-6) for n in whole.params)
    assert not all(np.allclose(means.params[n], whole.params[n], atol=1e-4) for n in whole.params)
    assert math.isclose(split.loss, whole.loss, rel_tol=1e-6)
    masked = (small[0], np.full(2, -100))
    alone = gl.dp_train(net, [large], loss_fn=pair, replicas=1, **options)
    beside = gl.dp_train(net, [masked, large], loss_fn=pair, replicas=2, **options)
    assert same(beside, alone.params) and beside.loss == alone.loss


class TwoHeads(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle = gl.nn.Linear(4, 3), gl.nn.Linear(4, 3), gl.nn.Linear(2, 2)

    def forward(self, x: gl.Value) -> gl.Value:
        return self.b(x)


def heads(model: Any, sample: dict[str, gl.Value]) -> gl.Value:
    return model.a(sample["a"]) if "a" in sample else model.b(sample["b"])


def test_a_parameter_without_gradient_in_a_replica_counts_as_zero_there() -> None:
    (xa, ya), (xb, yb) = blobs([5, 5])
    samples = [{"a": xa, "y": ya}, {"b": xb, "y": yb}]
    result = gl.dp_train(
        TwoHeads, samples, loss_fn=ops.cross_entropy, forward_fn=heads, target_fn=lambda s: s["y"], replicas=2,
        iterations=1, optimizer=gl.optim.SGD(lr=1.0, weight_decay=0.5),
    )  # fmt: skip
    start = TwoHeads()
    start.ensure_init(0)
    for head, x, y in ((start.a, xa, ya), (start.b, xb, yb)):
        loss = ops.cross_entropy(head(gl.constant(x)), gl.constant(y.astype(np.int32), "i32"))
        (g,) = gl.compile(gl.gradients(loss, [head.weight]))()
        w = head.weight.numpy()
        name = "a.weight" if head is start.a else "b.weight"
        assert np.allclose(result.params[name], w * 0.5 - g / 2, atol=1e-6)
    assert same(result, result.params)
    assert np.array_equal(result.params["idle.weight"], start.idle.weight.numpy())  # reached by nobody: not decayed
    # one replica: the head that a step does not reach keeps its weights and its moments
    result = gl.dp_train(
        TwoHeads, samples[:1], loss_fn=ops.cross_entropy, forward_fn=heads, target_fn=lambda s: s["y"], replicas=1,
        iterations=3, optimizer=gl.optim.SGD(lr=1.0, weight_decay=0.5),
    )  # fmt: skip
    assert np.array_equal(result.params["b.weight"], start.b.weight.numpy())


class Normed(gl.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.out = gl.nn.BatchNorm(4), gl.nn.Dropout(0.5), gl.nn.Linear(4, 3)

    def forward(self, x: gl.Value) -> gl.Value:
        return self.out(self.drop(self.norm(x)))


def test_running_statistics_are_averaged_and_equal_on_all_replicas() -> None:
    samples = blobs([8, 12, 8])
    result = gl.dp_train(Normed, samples, loss_fn=ops.cross_entropy, replicas=3, iterations=1)
    means = [0.1 * x.mean(0) for x, _ in samples]
    variances = [0.9 + 0.1 * x.var(0, ddof=1) for x, _ in samples]
    for model in result.models:
        buffers = model.named_buffers()
        assert np.allclose(buffers["norm.running_mean"].numpy(), np.mean(means, 0), atol=1e-6)
        assert np.allclose(buffers["norm.running_var"].numpy(), np.mean(variances, 0), atol=1e-6)


def test_dropout_depends_on_the_sample_not_on_the_replica() -> None:
    """The j-th sample has the same masks whichever replica takes it; two replicas do not share theirs."""
    ones = (np.ones((1, 4), np.float32), np.zeros(1, np.int64))
    options: dict[str, Any] = {"loss_fn": ops.cross_entropy, "seed": 5, "lr": 0}

    def drop() -> gl.nn.Module:
        return gl.nn.Sequential(gl.nn.Linear(4, 64), gl.nn.Dropout(0.5), gl.nn.Linear(64, 3))

    one = gl.dp_train(drop, [ones], replicas=1, iterations=6, **options).loss_history
    two = gl.dp_train(drop, [ones], replicas=2, iterations=3, **options).loss_history
    assert len(set(one)) == 6
    pairs = np.array(one, np.float32).reshape(3, 2)
    assert two == ((pairs[:, 0] + pairs[:, 1]) / np.float32(2)).tolist()


def test_replicas_start_from_the_weights_of_the_first() -> None:
    made: list[gl.nn.Module] = []

    def make() -> gl.nn.Module:
        made.append(net().init(len(made)))
        return made[-1]

    result = gl.dp_train(make, blobs([4, 4]), loss_fn=ops.cross_entropy, replicas=3, iterations=1, lr=0)
    first = {n: p.numpy() for n, p in net().init(0).named_parameters().items()}
    assert len(made) == 3 and list(result.models) == made and same(result, first)


# ---- side by side ------------------------------------------------------------------------------------------------


def test_replicas_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native runs of two replicas overlap in time, in two threads, with an arena each."""
    from gradloom.run.cpu_backend import CpuExecutable

    seen: list[tuple[int, int, float, float]] = []
    run_many = CpuExecutable.run_many

    def timed(self: Any, *args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return run_many(self, *args, **more)
        finally:
            seen.append((threading.get_ident(), id(self.arena), began, time.perf_counter()))

    monkeypatch.setattr(CpuExecutable, "run_many", timed)
    gl.dp_train(wide, wide_samples(2, 2000), loss_fn=ops.cross_entropy, replicas=2, iterations=10, threads=1)
    runs = [[one for one in seen if one[0] == thread] for thread in {one[0] for one in seen}]
    assert (
        len(runs) == 2 and all(len({one[1] for one in mine}) == 1 for mine in runs) and runs[0][0][1] != runs[1][0][1]
    )
    both = sum(max(0.0, min(a[3], b[3]) - max(a[2], b[2])) for a in runs[0] for b in runs[1])
    busy = [sum(one[3] - one[2] for one in mine) for mine in runs]
    assert both > 0.5 * min(busy), f"{both:.3f} s of {busy} together"


# ---- what goes wrong ---------------------------------------------------------------------------------------------


def train(samples: Any, **options: Any) -> gl.DPResult:
    given = {"loss_fn": ops.cross_entropy, "replicas": 2, "iterations": 4} | options
    return gl.dp_train(given.pop("make_model", net), samples, **given)


def refused(kind: type[BaseException], message: str, samples: Any = None, **options: Any) -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    with pytest.raises(kind) as raised:
        train(blobs([4] * 4) if samples is None else samples, **options)
    assert str(raised.value) == message
    assert not set(threading.enumerate()) - before, "a replica's thread is left over"


def test_bad_arguments() -> None:
    refused(gl.SettingError, "iterations=0: must be a whole number of at least 1", iterations=0)
    refused(gl.SettingError, "replicas=0: must be a whole number of at least 1", replicas=0)
    refused(gl.SettingError, "max_norm=0: must be a number above 0 (inf: no clipping)", max_norm=0)
    refused(
        gl.SettingError, "lr=0.1 and optimizer are mutually exclusive",
        lr=0.1, optimizer=gl.optim.SGD(),
    )  # fmt: skip
    refused(gl.SettingError, "optimizer is a str; must be one of gl.optim, such as AdamW(lr=1e-3)", optimizer="adam")
    refused(
        gl.SettingError,
        "optimizer: this Adam has parameters, but each replica has its own; use Adam(lr=...)",
        optimizer=gl.optim.Adam(net().parameters()),
    )
    refused(gl.SettingError, "dp_train: arena is not supported", arena=None)
    refused(gl.SettingError, "dp_train: device='numpy': must be 'cpu', 'gpu', 'gpu:1'", backend="numpy")
    refused(gl.SettingError, "seed=-1: must be a whole number of at least 0", seed=-1)
    refused(gl.DataError, "samples: there are none; need at least one", [])
    refused(gl.DataError, "samples: got dict; need a sequence of pairs or dicts", {"x": 1})
    refused(gl.DataError, "samples: got generator; need a sequence of pairs or dicts", (s for s in blobs([1])))


def test_bad_models() -> None:
    one = net()
    refused(
        gl.GraphError, "make_model of replica 0: make_model gave NoneType; need a gl.nn.Module",
        make_model=lambda: None,
    )  # fmt: skip
    refused(
        gl.GraphError,
        "make_model of replica 1: make_model gave the same parameters twice; need a new model from each call",
        make_model=lambda: one,
    )
    made: list[int] = []

    def other() -> gl.nn.Module:
        made.append(1)
        return gl.nn.Linear(4, 2 + len(made))

    with pytest.raises(gl.TrainError, match=r"^replica 1 differs from replica 0 in the model: "):
        train(blobs([4] * 4), make_model=other)


def test_a_bad_sample_ends_all_and_is_named() -> None:
    good = blobs([4] * 6)
    for bad, kind, said in (
        ((np.zeros((4, 4)),), gl.DataError, "got tuple of 1; need a pair (x, target) or a dict of arrays"),
        (3.5, gl.DataError, "got float; need a pair (x, target) or a dict of arrays"),
        ((np.array(["a"]), 1), gl.DTypeError, "x: dtype <U1; need numbers"),
        ((good[0][0], np.full(4, 1 << 40)), gl.DataError,
         "target: 1099511627776 at position 0 is out of range; need ids below 2147483648"),
    ):  # fmt: skip
        refused(kind, f"replica 1, sample 3, step 2: {said}", [*good[:3], bad, *good[4:]])
    with pytest.raises(gl.DataError, match=r"^replica 1, sample 3, step 2: .*id 7 at position 2 is out of range"):
        train([*good[:3], (good[3][0], np.array([0, 1, 7, 2])), *good[4:]])
    with pytest.raises(gl.ShapeError, match=r"^replica 0, sample 4, step 3: matmul: inner sizes differ"):
        train([*good[:4], (np.zeros((4, 5)), good[4][1]), *good[5:]])
    refused(
        gl.SettingError,
        "replica 0, sample 0, step 1: samples are dicts of ['x', 'y']; need forward_fn, which picks out of them",
        [{"x": x, "y": y} for x, y in good],
        replicas=1,
    )


def test_an_error_of_the_users_keeps_its_kind() -> None:
    class Own(Exception):
        pass

    def loss(out: gl.Value, target: gl.Value) -> gl.Value:
        if out.shape[0] == 5:
            raise Own("no fives")
        return ops.cross_entropy(out, target)

    refused(Own, "replica 1, sample 1, step 1: no fives", blobs([4, 5]), loss_fn=loss)

    class Broken(list):  # type: ignore[type-arg]
        def __getitem__(self, k: Any) -> Any:
            if k == 2:
                raise OSError(5, "Input/output error", "file.npy")
            return super().__getitem__(k)

    refused(
        gl.TrainError,
        "replica 0, sample 2, step 2: OSError: [Errno 5] Input/output error: 'file.npy'",
        Broken(blobs([4] * 4)),
    )


def test_named_losses() -> None:
    """The mean over the labels of all replicas: sums and weights of samples of different sizes add up."""
    samples = [(x, np.where(np.arange(len(y)) % 3 == 1, -100, y)) for x, y in blobs([8, 2, 5, 6])]
    options: dict[str, Any] = {"replicas": 2, "iterations": 3, "optimizer": gl.optim.SGD(lr=0.1)}
    for loss in ("focal", gl.losses.CrossEntropy(label_smoothing=0.1)):
        named = gl.losses.named(loss) if isinstance(loss, str) else loss
        found = gl.dp_train(net, samples, loss_fn=loss, **options)
        same = gl.dp_train(net, samples, loss_fn=lambda out, y, named=named: named.pair(out, y), **options)
        assert found.loss_history == same.loss_history
        both = tuple(np.concatenate(pair) for pair in zip(*samples[:2], strict=True))
        whole = gl.dp_train(net, [both], loss_fn=loss, **options | {"replicas": 1, "iterations": 1})
        assert found.loss_history[0] == pytest.approx(whole.loss_history[0], rel=1e-5)


def test_bad_losses() -> None:
    for loss, seen in (({"a": "mse"}, "a dict"), (3, "an int"), (gl.losses.Huber, "the class Huber")):
        text = f"loss_fn is {seen}; must be a name or an object of gl.losses, or a function (outputs, target)"
        refused(gl.SettingError, text, loss_fn=loss)
    at = "replica 0, sample 0, step 1: "
    need = "need a scalar, or a pair of scalars (sum, weight)"
    refused(gl.ShapeError, f"{at}loss_fn gave f32[4,3]; {need}", loss_fn=lambda out, y: out, replicas=1)
    refused(
        gl.GraphError, f"{at}loss_fn gave float; need a scalar of the graph, or a pair (sum, weight)",
        loss_fn=lambda out, y: 1.0, replicas=1,
    )  # fmt: skip
    refused(
        gl.GradientError, "dp_train: the loss depends on no trainable parameter; need at least one",
        forward_fn=lambda model, s: s[0], loss_fn=lambda out, y: ops.mean(out),
    )  # fmt: skip


def test_a_number_that_is_not_finite_leaves_the_weights_before() -> None:
    samples = blobs([4] * 5)
    samples[3][0][2, 1] = np.nan
    made: list[gl.nn.Module] = []

    def make() -> gl.nn.Module:
        made.append(gl.nn.Sequential(gl.nn.BatchNorm(4), net()))
        return made[-1]

    with pytest.raises(gl.NonFiniteError) as raised:
        train(samples, make_model=make)
    assert str(raised.value) == (
        "training stopped at step 2 (epoch 1): x of the sample is not finite at [2, 1], in replica 1, sample 3; "
        "the weights before this step are kept; a smaller learning rate or scaled inputs may help"
    )
    after = train(samples, make_model=lambda: gl.nn.Sequential(gl.nn.BatchNorm(4), net()), iterations=1)
    for model in made:
        for (n, a), b in zip(model.state_dict().items(), after.model.state_dict().values(), strict=True):
            assert np.array_equal(a, b), n
    with pytest.raises(
        gl.NonFiniteError, match=r"step 1 \(epoch 1\): .*produced a number that is not finite.*replica 0, sample 0;"
    ):
        train(blobs([4] * 4), loss_fn=lambda out, y: ops.mean(ops.log(out * 0.0 - 1.0)))
    with pytest.raises(gl.NonFiniteError, match=r"step 1 \(epoch 1\): the squared norm of the gradients overflows f32"):
        train(blobs([4] * 4), loss_fn=lambda out, y: ops.mean(out) * 1e38)


def test_replicas_that_drift_apart_are_noticed() -> None:
    """Someone changes the weights of one replica in the middle of a run."""
    made: list[Any] = []

    def make() -> gl.nn.Module:
        made.append(net())
        return made[-1]

    class Meddler(list):  # type: ignore[type-arg]
        def __getitem__(self, k: Any) -> Any:
            if k == 5:
                made[1].parameters()[0].stored.write(0)
            return super().__getitem__(k)

    with pytest.raises(gl.TrainError, match=r"^replica 1 differs from replica 0 in the weights: "):
        train(Meddler(blobs([4] * 8)), make_model=make, iterations=CHECK_STEPS + 1)


def test_a_replica_that_hangs_is_named() -> None:
    forever = threading.Event()

    class Stuck(list):  # type: ignore[type-arg]
        def __getitem__(self, k: Any) -> Any:
            if k == 3:
                assert forever.wait(100)
            return super().__getitem__(k)

    began = time.perf_counter()
    with pytest.raises(gl.TrainError, match=r"^replica 1 gave no sign of life for 0.4 s"):
        train(Stuck(blobs([4] * 4)), timeout=0.4)
    assert time.perf_counter() - began < 20
    forever.set()


ENDLESS = """
import numpy as np
import gradloom as gl

rng = np.random.default_rng(0)
samples = [(rng.random((2000, 256), dtype=np.float32), rng.integers(0, 10, 2000)) for _ in range(4)]
make = lambda: gl.nn.Sequential(gl.nn.Linear(256, 512, activation="relu"), gl.nn.Linear(512, 10))
try:
    gl.dp_train(make, samples, loss_fn=gl.ops.cross_entropy, replicas=3, iterations=10_000_000, verbose=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_ends_all_replicas() -> None:
    script = ENDLESS.replace("10_000_000, verbose=True", "10, verbose=True") + ENDLESS
    job = processes.start([sys.executable, "-c", script], env=processes.environment())
    assert job.stderr is not None
    while not job.stderr.readline().startswith("step 10/10"):  # the second training follows
        assert job.poll() is None
    time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out) == (0, "interrupted\n"), err


def test_verbose_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    train(blobs([4] * 4), iterations=20, verbose=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(lines) == 10 and lines[-1].startswith("step 20/20  loss ") and lines[-1].endswith(" samples/s")
    train(blobs([4] * 4), iterations=20)
    assert "samples/s" not in capsys.readouterr().err
