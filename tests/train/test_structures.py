"""Models with several inputs and outputs: data and labels as dicts and tuples, a loss for each output."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from tests.noise import assert_all_noise
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
ROWS = 60
U = RNG.normal(size=(ROWS, 4)).astype(np.float32)
V = RNG.integers(0, 5, ROWS)
GROUP = RNG.integers(0, 3, ROWS)
VALUE = RNG.normal(size=(ROWS, 2)).astype(np.float32)
AGE = RNG.normal(size=ROWS).astype(np.float32)
WEIGHTS = RNG.uniform(0.2, 2.0, ROWS).astype(np.float32)
MASKED = np.where(np.arange(ROWS) % 4 == 0, -100, GROUP)
X, Y = {"u": U, "v": V}, {"group": GROUP, "value": VALUE, "age": AGE}


def off_by(outputs: Any, labels: Any) -> Any:
    return ops.abs(outputs - labels)


LOSS: dict[str, Any] = {"group": "cross_entropy", "value": "mse", "age": off_by}
FACTORS = {"value": 0.5, "age": 0.25}


class Heads(nn.Module):
    """Numbers u [rows, 4] and ids v [rows] into three outputs: a dict, or a tuple in the order group, value, age."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(5, 8), nn.Linear(4, 8)
        self.group, self.value, self.age = nn.Linear(8, 3), nn.Linear(8, 2), nn.Linear(8, 1)
        self.as_tuple = as_tuple
        self.init(0)

    def forward(self, u: Any, v: Any) -> Any:
        hidden = ops.tanh(self.body(u) + self.embed(v))
        group, value, age = self.group(hidden), self.value(hidden), self.age(hidden)[:, 0]
        return (group, value, age) if self.as_tuple else {"group": group, "value": value, "age": age}


def trained(x: Any = X, y: Any = Y, weights: Any = None, **options: Any) -> tuple[dict[str, bytes], gl.train.History]:
    net = Heads(isinstance(options.get("loss"), tuple))
    settings = {
        "loss": LOSS, "loss_weights": FACTORS, "epochs": 3, "batch_size": 16, "progress": False, "threads": 1,
        "optimizer": gl.optim.AdamW(lr=0.01), "val_split": 0.2,
    } | options  # fmt: skip
    history = gl.fit(net, gl.data.Dataset(x, y, weights=weights), **settings)
    return {name: array.tobytes() for name, array in net.state_dict().items()}, history


def numbers(history: gl.train.History) -> list[dict[str, float]]:
    return [epoch.numbers() for epoch in history]


# ---- PyTorch -------------------------------------------------------------------------------------------------


def by_torch(steps: int, dtype: str, labels: np.ndarray, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    """SGD on all rows."""
    torch = pytest.importorskip("torch")
    number = getattr(torch, dtype)
    p = {n: torch.tensor(a, dtype=number, requires_grad=True) for n, a in Heads().state_dict().items()}
    u, v, ids = torch.tensor(U, dtype=number), torch.tensor(V), torch.tensor(labels)
    value, age = torch.tensor(VALUE, dtype=number), torch.tensor(AGE, dtype=number)
    w = torch.ones(ROWS, dtype=number) if weights is None else torch.tensor(weights, dtype=number)
    for _ in range(steps):
        hidden = torch.tanh(u @ p["body.weight"].T + p["body.bias"] + p["embed.weight"][v])
        made = {n: hidden @ p[f"{n}.weight"].T + p[f"{n}.bias"] for n in ("group", "value", "age")}
        each = torch.nn.functional.cross_entropy(made["group"], ids, reduction="none", ignore_index=-100)
        counted = w * (ids != -100)
        loss = (each * counted).sum() / counted.sum()
        loss = loss + 0.5 * (((made["value"] - value) ** 2).mean(1) * w).sum() / w.sum()
        loss = loss + 0.25 * ((made["age"][:, 0] - age).abs() * w).sum() / w.sum()
        slopes = torch.autograd.grad(loss, list(p.values()))
        with torch.no_grad():
            for each_p, slope in zip(p.values(), slopes, strict=True):
                each_p -= 0.1 * slope
    return {name: each_p.detach().numpy() for name, each_p in p.items()}


@pytest.mark.oracle
@pytest.mark.parametrize("labels", [GROUP, MASKED], ids=["labels", "some ignored"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_fifty_steps_are_those_of_torch(labels: np.ndarray, weights: np.ndarray | None) -> None:
    net = Heads()
    data = gl.data.Dataset(X, Y | {"group": labels}, weights=weights)
    gl.fit(
        net, data, loss=LOSS, loss_weights=FACTORS, epochs=50, batch_size=ROWS, progress=False,
        optimizer=gl.optim.SGD(lr=0.1),
    )  # fmt: skip
    single, double = (by_torch(50, dtype, labels, weights) for dtype in ("float32", "float64"))
    ours = net.state_dict()
    assert_all_noise(ours, single, double, longest=2000)
    for name, array in single.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5)


# ---- bits ----------------------------------------------------------------------------------------------------


def test_same_bits_with_threads_orders_of_keys_and_tuples() -> None:
    weights, history = trained(weights=WEIGHTS)
    for threads in (2, 4):
        assert trained(weights=WEIGHTS, threads=threads)[0] == weights
    flipped = [dict(reversed(one.items())) for one in (X, Y, LOSS, FACTORS)]
    again, other = trained(*flipped[:2], weights=WEIGHTS, loss=flipped[2], loss_weights=flipped[3])
    assert again == weights and numbers(other) == numbers(history)
    order = tuple(LOSS)
    given = {"loss": tuple(LOSS.values()), "loss_weights": tuple(FACTORS.get(name) for name in order)}
    as_tuple, positions = trained((U, V), tuple(Y[name] for name in order), weights=WEIGHTS, **given)
    names = {"output_1": "group", "output_2": "value", "output_3": "age", "output_1_accuracy": "group_accuracy"}
    for ours, theirs in names.items():
        assert positions[-1].numbers()[ours] == pytest.approx(history[-1].numbers()[theirs], rel=1e-4)
    for name, array in as_tuple.items():
        np.testing.assert_allclose(*(np.frombuffer(one, "f4") for one in (array, weights[name])), rtol=1e-3, atol=1e-5)


def test_micro_batches_are_whole_batches_within_rounding() -> None:
    whole, history = trained(weights=WEIGHTS)
    parts, cut = trained(weights=WEIGHTS, micro_batch_size=5)
    for name, array in whole.items():
        np.testing.assert_allclose(*(np.frombuffer(one, "f4") for one in (parts[name], array)), rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(numbers(cut), numbers(history), strict=True):
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-4)
        assert ours["group_accuracy"] == pytest.approx(theirs["group_accuracy"])
    with pytest.raises(gl.SettingError, match="different weights"):
        trained(y=Y | {"group": MASKED}, micro_batch_size=5)


def test_ranks_give_the_same_bits() -> None:
    def train(rank: Any) -> Any:
        weights, history = trained(weights=WEIGHTS, parallel=rank, micro_batch_size=8)
        return weights, numbers(history)

    (one,), two = on_ranks(1, train), on_ranks(2, train)
    assert isinstance(one, tuple) and two == [one, one]
    differ = on_ranks(2, lambda rank: trained({"u": U, "v": (V + rank.rank) % 5}, parallel=rank)[0])
    assert all(isinstance(error, gl.TrainError) and "the data" in str(error) for error in differ)


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    metrics = {"value": {"mae": lambda o, y: ops.mean(ops.abs(o - y), 1)}, "group": {"first": FIRST}}
    whole, history = trained(micro_batch_size=8, metrics=metrics)
    count = 0

    def stopping(at: Any) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"micro_batch_size": 8, "run": tmp_path / "run", "metrics": metrics}
    with pytest.raises(KeyboardInterrupt):
        trained(on_train_batch=stopping, **options)
    with pytest.raises(gl.TrainError, match="data"):
        trained({"u": U, "v": V[::-1].copy()}, resume=True, **options)
    with pytest.raises(gl.TrainError, match=r"loss_weights\.value is 0\.5.*|loss_weights.*was 0\.5"):
        trained(resume=True, loss_weights={"value": 0.75, "age": 0.25}, **options)
    again, resumed = trained(dict(reversed(X.items())), dict(reversed(Y.items())), resume=True, **options)
    assert again == whole and numbers(resumed) == numbers(history)
    names = {"loss", *LOSS, "group_accuracy", "value_mae", "group_first"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {f"val_{name}" for name in names} <= lines[-1].keys() and {*LOSS, "group_accuracy"} <= lines[-1].keys()


def first_share(outputs: Any, labels: Any) -> float:
    return float((outputs.argmax(1) == labels).mean())


FIRST = gl.train.Metric(first_share, whole=True)


# ---- numbers -------------------------------------------------------------------------------------------------


def test_losses_and_accuracies_are_those_of_numpy() -> None:
    net, data = Heads(), gl.data.Dataset(X, Y | {"group": MASKED}, weights=np.where(np.arange(ROWS) < 3, 0, WEIGHTS))
    found = gl.predict(net, X)
    metrics = {"group": {"first": FIRST}, "both": lambda o, y: ops.sum(ops.abs(o["value"]), 1) + ops.abs(y["age"])}
    result = gl.evaluate(net, data, loss=LOSS, loss_weights=FACTORS, batch_size=17, metrics=metrics)
    w = data.weights
    logits = found["group"] - found["group"].max(1, keepdims=True)
    each = np.log(np.exp(logits).sum(1)) - logits[np.arange(ROWS), GROUP]
    counted = w * (MASKED != -100)
    group = (each * counted).sum() / counted.sum()
    value = (((found["value"] - VALUE) ** 2).mean(1) * w).sum() / w.sum()
    age = (np.abs(found["age"] - AGE) * w).sum() / w.sum()
    np.testing.assert_allclose(list(result.losses.values()), [age, group, value], rtol=1e-5)
    assert list(result.losses) == ["age", "group", "value"]
    assert result.loss == pytest.approx(group + 0.5 * value + 0.25 * age, rel=1e-5)
    rows = counted > 0
    share = (found["group"].argmax(1) == MASKED)[rows].mean()
    unc = math.sqrt(share * (1 - share) / (rows.sum() - 1))
    assert result.accuracies == {"group_accuracy": pytest.approx(share)}
    assert result.numbers()["group_accuracy_unc"] == pytest.approx(unc)
    both = np.abs(found["value"]).sum(1) + np.abs(AGE)
    assert result.metrics["both"] == pytest.approx((both * w).sum() / w.sum(), rel=1e-5)
    alive = w > 0
    assert result.metrics["group_first"] == pytest.approx((found["group"].argmax(1) == MASKED)[alive].mean())
    assert math.isnan(result.accuracy) and len(result.predictions) == 0


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("ignored", [False, True], ids=["", "some ignored"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_sequences_and_soft_labels(ignored: bool, weights: np.ndarray | None) -> None:
    tokens = RNG.integers(0, 5, (ROWS, 6))
    following = np.where(ignored & (tokens == 0), -100, (tokens + 1) % 5)
    shares = RNG.dirichlet(np.ones(3), ROWS).astype(np.float32)
    embed, linear = nn.Embedding(5, 5).init(1), nn.Linear(5, 3).init(2)

    def model(t: Any) -> Any:
        return {"next": embed(t), "whole": linear(ops.mean(embed(t), 1))}

    found = gl.predict(model, {"t": tokens})
    w = np.ones(ROWS) if weights is None else weights.astype(np.float64)
    each = -np.take_along_axis(log_softmax(found["next"]), (tokens[..., None] + 1) % 5, -1)[..., 0]
    counted = w[:, None] * (following != -100)
    near = (each * counted).sum() / counted.sum()
    soft = (-(log_softmax(found["whole"]) * shares).sum(1) * w).sum() / w.sum()
    data = gl.data.Dataset({"t": tokens}, {"next": following, "whole": shares}, weights=weights)
    loss = {"next": "cross_entropy", "whole": "cross_entropy"}
    sizes = (7, 60)
    for size in sizes:
        result = gl.evaluate(model, data, loss=loss, loss_weights={"whole": 2.0}, batch_size=size)
        assert result.losses == {"next": pytest.approx(near, rel=1e-5), "whole": pytest.approx(soft, rel=1e-5)}
        assert result.loss == pytest.approx(near + 2 * soft, rel=1e-5)
        right = (found["next"].argmax(-1) == following)[following != -100].mean()
        whole = (found["whole"].argmax(1) == shares.argmax(1)).mean()
        assert result.accuracies == {"next_accuracy": pytest.approx(right), "whole_accuracy": pytest.approx(whole)}


def test_history_and_progress_name_the_losses(capsys: pytest.CaptureFixture[str]) -> None:
    stop = gl.train.EarlyStopping(5, monitor="val_group_accuracy")
    _, history = trained(progress=True, callbacks=[stop])
    columns = history.to_dict()
    assert {*LOSS, "group_unc", "group_accuracy", "val_value", "val_group_accuracy"} <= columns.keys()
    assert stop.best == max(columns["val_group_accuracy"])
    line = capsys.readouterr().err
    assert all(f"{name} " in line for name in (*LOSS, "group_accuracy"))


def test_an_output_may_be_left_out() -> None:
    net = Heads()
    before = net.age.weight.numpy()
    with pytest.warns(UserWarning, match="value.weight and 3 more, which stays untrained"):
        gl.fit(net, gl.data.Dataset(X, {"group": GROUP}), loss={"group": "cross_entropy"}, epochs=1, progress=False)
    np.testing.assert_array_equal(net.age.weight.numpy(), before)
    data = gl.data.Dataset((U, V), (GROUP, VALUE))
    result = gl.evaluate(Heads(True), data, loss=(None, "mse"))
    assert result.losses.keys() == {"output_2"} and not result.accuracies
    small = gl.evaluate(Heads(), gl.data.Dataset(X, {"group": GROUP}), loss={"group": "cross_entropy", "value": "mean"})
    assert small.losses["value"] == pytest.approx(gl.predict(Heads(), X)["value"].mean(), rel=1e-4)


def test_one_function_gets_all_outputs_and_labels() -> None:
    def whole(outputs: Any, labels: Any) -> Any:
        group = ops.cross_entropy(outputs["group"], labels["group"])
        return (
            group
            + 0.5 * ops.mse(outputs["value"], labels["value"])
            + 0.25 * ops.mean(ops.abs(outputs["age"] - labels["age"]))
        )

    ours, history = trained(loss=whole, loss_weights=None)
    theirs, each = trained()
    for name, array in ours.items():
        np.testing.assert_allclose(*(np.frombuffer(one, "f4") for one in (array, theirs[name])), rtol=1e-3, atol=1e-5)
    assert history[-1].train.loss == pytest.approx(each[-1].train.loss, rel=1e-5)


# ---- other ways in -------------------------------------------------------------------------------------------


def test_own_loops_and_loaders() -> None:
    data = gl.data.Dataset(X, Y, weights=WEIGHTS)
    batches = list(gl.data.DataLoader(data, batch_size=16, shuffle=True, seed=3))
    assert [len(w) for _, _, w in batches] == [16, 16, 16, 12]
    assert batches[0][0]["u"].dtype == np.float32 and batches[0][0]["v"].dtype == np.int32
    order = data.order(3, 0)
    np.testing.assert_array_equal(np.concatenate([y["group"] for _, y, _ in batches]), GROUP[order])
    np.testing.assert_array_equal(np.concatenate([x["u"] for x, _, _ in batches]), U[order])
    ahead = gl.data.DataLoader(data, batch_size=16, shuffle=True, seed=3, prefetch=True)
    np.testing.assert_array_equal(next(iter(ahead))[0]["u"], batches[0][0]["u"])
    nets = Heads(), Heads()
    stepped, passed = (gl.Trainer(net, LOSS, gl.optim.AdamW(lr=0.01), loss_weights=FACTORS) for net in nets)
    for x, y, w in batches:
        stepped.step(x, y, w)
    gl.epoch(passed, data, batch_size=16, order=order)
    for name, array in nets[0].state_dict().items():
        np.testing.assert_array_equal(nets[1].state_dict()[name], array)
    alone = list(gl.data.DataLoader({"u": U, "v": V}, batch_size=50))
    assert [one["v"].shape for one in alone] == [(50,), (10,)]
    pairs = list(gl.data.DataLoader((U, V), GROUP, batch_size=50))
    assert [x[1].shape for x, _ in pairs] == [(50,), (10,)]


def test_predictions_in_batches_by_keys_and_positions() -> None:
    whole, parts = gl.predict(Heads(), X), gl.predict(Heads(), (U, V), batch_size=7)
    assert whole.keys() == Y.keys()
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5, atol=1e-6)

    def added(u: Any, v: Any, *, scale: Any) -> Any:
        return u + v * scale

    given = {"v": U, "scale": np.ones_like(U), "u": 2 * U}
    np.testing.assert_allclose(gl.predict(added, given), 3 * U, rtol=1e-6)
    np.testing.assert_array_equal(gl.predict(lambda **x: x["a"] + x["b"], {"a": U, "b": U}), U + U)
    np.testing.assert_array_equal(gl.predict(lambda *x: x[0] + x[1], (U, U)), U + U)


def test_whole_numbers_that_are_read_as_floats_stay_exact() -> None:
    large = np.array([[1 << 40, 3], [5, 1 << 35]])
    found = gl.predict(lambda u, v: ops.cast(u, "f32") + ops.cast(v, "f32"), {"u": large, "v": large})
    np.testing.assert_array_equal(found, (2 * large).astype(np.float32))


def test_graphs_take_inputs_by_name() -> None:
    w = gl.parameter(RNG.normal(size=(4, 3)), "w")
    u, v = gl.input("u", (8, 4)), gl.input("v", (8, 3))
    data = {"v": RNG.normal(size=(20, 3)).astype("f4"), "u": U[:20]}
    np.testing.assert_allclose(gl.predict(gl.Graph(u @ w + v), data), U[:20] @ w.numpy() + data["v"], rtol=1e-5)
    gl.fit(gl.Graph(u @ w + v), gl.data.Dataset(data, GROUP[:20]), epochs=1, progress=False)
    group, value = gl.input("group", (8,), "i32"), gl.input("value", (8, 2))
    logits = u @ w + v
    losses = [
        gl.set_loss(gl.named(ops.cross_entropy(logits, group), "ce")),
        gl.set_loss(gl.named(ops.mse(logits[:, :2], value), "near")),
    ]
    labels = {"group": GROUP[:20], "value": VALUE[:20]}
    result = gl.evaluate(gl.Graph(logits, *losses), gl.data.Dataset(data, labels), batch_size=8)
    plain = gl.predict(gl.Graph(logits, *losses), data)
    assert result.losses["near"] == pytest.approx(((plain[:, :2] - VALUE[:20]) ** 2).mean(), rel=1e-5)
    for given, seen in (
        ({"u": U}, "data: no 'v'; need all inputs of the graph: u, v"),
        ({"u": U, "v": U, "w": U}, "data 'w': the graph has no such input"),
        ((U, U), "data: a tuple; need a dict"),
        (U, "the graph has the inputs u, v; need one, or data as a dict"),
    ):
        with pytest.raises(gl.GraphError, match=seen):
            gl.predict(gl.Graph(u @ w + v), given)
    with pytest.raises(gl.GraphError, match="labels 'other': the graph has no such input"):
        gl.evaluate(gl.Graph(logits, *losses), gl.data.Dataset(data, labels | {"other": GROUP[:20]}))


def test_replicas_take_samples_of_several_arrays() -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        return ops.cross_entropy(outputs["group"], labels["group"]) + ops.mse(outputs["value"], labels["value"])

    samples = [
        ({"u": U[i : i + 2], "v": V[i : i + 2]}, {"group": GROUP[i : i + 2], "value": VALUE[i : i + 2]})
        for i in range(0, 20, 2)
    ]
    settings: dict[str, Any] = {"loss_fn": loss, "iterations": 3, "lr": 0.01, "threads": 1}
    two = gl.dp_train(Heads, samples, replicas=2, **settings)
    again = gl.dp_train(Heads, [dict_sample(one) for one in samples], replicas=2, **settings | {"forward_fn": forward})
    assert [a.tobytes() for a in two.params.values()] == [a.tobytes() for a in again.params.values()]
    assert two.loss_history == again.loss_history


def dict_sample(sample: Any) -> Any:
    return tuple(sample)


def forward(model: Any, sample: Any) -> Any:
    return model(sample[0]["u"], sample[0]["v"])


def test_batch_losses_get_labels_as_they_are() -> None:
    def through(age: Any, group: Any, value: Any, *labels: Any) -> Any:
        assert [one.shape[1:] for one in labels] == [(), (), (2,)]  # age, group, value
        return ops.sum(ops.sqr(value - labels[2]), 1) + ops.sqr(age - labels[0])

    class Sorted(Heads):
        def forward(self, u: Any, v: Any) -> Any:
            return dict(sorted(super().forward(u, v).items()))

    data = gl.data.Dataset(X, Y)
    loss = gl.train.BatchLoss.through(through)
    whole, parts = (gl.evaluate(Sorted(), data, loss=loss, batch_size=size, threads=1).loss for size in (60, 20))
    assert whole == pytest.approx(parts, rel=1e-5)


def test_named_losses_and_metrics_of_outputs():
    """Objects of gl.losses with their options by output: micro-batches add up, and metrics know the loss."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(24, 5)).astype(np.float32)
    labels = {
        "tags": rng.integers(0, 2, (24, 3)).astype(np.float32), "class": rng.integers(0, 4, 24),
        "value": rng.normal(size=(24, 2)).astype(np.float32),
    }  # fmt: skip
    weights = rng.uniform(0.5, 2, 24).astype(np.float32)
    losses = {"tags": "bce", "class": gl.losses.CrossEntropy(label_smoothing=0.1), "value": gl.losses.Huber(delta=0.5)}

    def net(x):
        return {name: layers[name](x) for name in labels}

    layers = {name: gl.nn.Linear(5, width) for name, width in (("tags", 3), ("class", 4), ("value", 2))}
    for each in layers.values():
        each.ensure_init(0)
    before = {name: [p.numpy() for p in each.parameters()] for name, each in layers.items()}
    results, trained = [], []
    for micro in (8, 4):
        for name, each in layers.items():
            for p, value in zip(each.parameters(), before[name], strict=True):
                p.stored.write(value)
        history = gl.fit(
            net, gl.data.Dataset(x, labels, weights=weights), loss=losses, loss_weights={"value": 2.0}, batch_size=8,
            micro_batch_size=micro, epochs=2, val_split=0, progress=False, optimizer=gl.optim.SGD(lr=0.1),
        )  # fmt: skip
        results.append(history[-1].train.loss)
        trained.append([p.numpy() for each in layers.values() for p in each.parameters()])
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    found = gl.evaluate(
        net, gl.data.Dataset(x, labels, weights=weights), loss=losses,
        metrics={"tags": ["binary_accuracy"], "class": ["f1"], "value": ["mae"]},
    ).numbers()  # fmt: skip
    outputs = gl.predict(net, x)
    right = (outputs["tags"] > 0) == (labels["tags"] > 0.5)
    assert found["tags_binary_accuracy"] == pytest.approx(np.average(right.mean(1), weights=weights), rel=1e-5)
    error = np.abs(outputs["value"] - labels["value"]).mean(1)
    assert found["value_mae"] == pytest.approx(np.average(error, weights=weights), rel=1e-5)
    assert 0 <= found["class_f1"] <= 1 and found["class_accuracy"] >= 0
    with pytest.raises(gl.DataError, match="output 'tags': bce: label 2 in row 0"):
        gl.evaluate(net, gl.data.Dataset(x, {**labels, "tags": np.full((24, 3), 2.0, "f4")}), loss=losses)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_whole_number_targets_of_outputs(weights: np.ndarray | None) -> None:
    """They are the same numbers as floats, also in micro-batches; -100 does not count."""
    rng = np.random.default_rng(2)
    targets = {"tags": rng.integers(0, 2, (ROWS, 2)), "value": rng.integers(-3, 4, (ROWS, 2)), "ends": AGE.astype(int)}
    losses = {"tags": "bce", "value": "huber", "ends": gl.losses.Quantile((0.1, 0.9))}
    layers = {name: gl.nn.Linear(4, 2).init(0) for name in targets}

    def measured(labels: dict[str, np.ndarray], **options: int) -> gl.Result:
        data = gl.data.Dataset({"u": U}, labels, weights=weights)
        return gl.evaluate(lambda u: {n: layer(u) for n, layer in layers.items()}, data, loss=losses, **options)

    floats = measured({n: a.astype(np.float32) for n, a in targets.items()}).losses
    for size in (ROWS, 7):
        assert measured(targets, batch_size=size).losses == pytest.approx(floats, rel=1e-5)
    some = {name: array.copy() for name, array in targets.items()}
    some["value"][::3, 1] = -100
    found = measured(some, batch_size=7).losses
    assert {n: found[n] for n in ("tags", "ends")} == pytest.approx({n: floats[n] for n in ("tags", "ends")}, rel=1e-5)
    x = np.where(some["value"] == -100, 0, gl.predict(layers["value"], U) - some["value"])
    each = np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)
    counted = (some["value"] != -100) * (1.0 if weights is None else weights[:, None])
    assert found["value"] == pytest.approx((each * counted).sum() / counted.sum(), rel=1e-5)


def test_ids_of_each_pixel_of_one_output() -> None:
    """Labels of any shape: outputs [rows, height, width, classes], ids [rows, height, width]."""
    rng = np.random.default_rng(3)
    images, ids = rng.normal(size=(6, 3, 4, 5)).astype(np.float32), rng.integers(0, 2, (6, 3, 4))
    ids[0, 0] = -100
    layer = gl.nn.Linear(5, 2).init(0)
    history = gl.fit(layer, (images, ids), epochs=20, progress=False, batch_size=6, optimizer=gl.optim.SGD(lr=0.1))
    assert history[-1].train.loss < history[0].train.loss and history[-1].train.counted == ids.size - 4
    logits = gl.predict(layer, images).astype(np.float64)
    each = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(ids, 0)[..., None], -1)[..., 0]
    result = gl.evaluate(layer, (images, ids), metrics=["f1", "perplexity"])
    assert result.loss == pytest.approx(each[ids >= 0].mean(), rel=1e-5)
    assert result.accuracy == (logits.argmax(-1) == ids)[ids >= 0].mean()
    assert result.metrics["perplexity"] == pytest.approx(np.exp(each[ids >= 0].mean()), rel=1e-5)


def test_an_output_without_a_label_that_counts() -> None:
    """Its loss is nan, and the total is that of the others: early stopping sees a number."""
    none = gl.data.Dataset(X, Y | {"group": np.full(ROWS, -100)})
    for data in (none, gl.data.Dataset(X, Y | {"group": np.where(np.arange(ROWS) < 30, -100, GROUP)},
                                       weights=np.arange(ROWS) < 30)):  # fmt: skip
        result = gl.evaluate(Heads(), data, loss=LOSS, loss_weights=FACTORS, batch_size=20)
        assert math.isnan(result.losses["group"]) and math.isnan(result.accuracies["group_accuracy"])
        parts = (FACTORS.get(name, 1.0) * value for name, value in result.losses.items() if name != "group")
        assert result.loss == pytest.approx(sum(parts), rel=1e-6)
    stop = gl.train.EarlyStopping(patience=2, restore_best=True)
    history = gl.fit(Heads(), (X, Y), loss=LOSS, val=none, epochs=6, callbacks=[stop], progress=False)
    assert len(history) == 6 and stop.best == pytest.approx(min(epoch.val.loss for epoch in history))


def test_a_metric_by_its_name_alone() -> None:
    options: dict[str, Any] = {"loss": LOSS, "batch_size": 20}
    names = {"group": "f1", "value": gl.metrics.MAE(), "age": gl.train.Metric("rmse", uncertainty="bootstrap")}
    lists = {name: [one] for name, one in names.items()}
    found, same = (gl.evaluate(Heads(), (X, Y), metrics=metrics, **options).metrics for metrics in (names, lists))
    assert found == same and {"group_f1", "value_mae", "value_mae_unc", "age_rmse", "age_rmse_unc"} == set(found)
