"""Arguments are heeded or refused: booleans, whole numbers, settings of optimisers, objects of the wrong kind."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import gradloom as gl
from gradloom import GraphError, SettingError, nn
from gradloom.optim import SGD, Adam, AdamW, schedules
from tests.llm.random_models import rows_of, write
from tests.refused import refused

X, Y = np.random.default_rng(0).normal(size=(12, 3)).astype("f4"), np.arange(12) % 2


def net():
    return nn.Sequential(nn.Linear(3, 2)).init(0)


def losses(**options):
    model = net()
    history = gl.fit(model, (X, Y), optimizer=SGD(lr=0.1), progress=False, **options)
    return [h.train.loss for h in history], model.state_dict()


BOOLEANS = {
    "DataLoader shuffle": lambda v: gl.data.DataLoader(X, Y, shuffle=v),
    "DataLoader drop_last": lambda v: gl.data.DataLoader(X, Y, batch_size=4, drop_last=v),
    "DataLoader prefetch": lambda v: gl.data.DataLoader(X, Y, prefetch=v),
    "Linear bias": lambda v: nn.Linear(3, 2, bias=v),
    "Conv2d bias": lambda v: nn.Conv2d(3, 2, 1, bias=v),
    "attention bias": lambda v: nn.MultiheadAttention(8, 2, bias=v),
    "attention causal": lambda v: nn.MultiheadAttention(8, 2, causal=v),
    "module parameter": lambda v: nn.Module().parameter((2,), lambda rng, shape: np.zeros(shape), trainable=v),
    "module train": lambda v: net().train(v),
    "parameter": lambda v: gl.parameter([1.0], trainable=v),
    "trainable": lambda v: setattr(gl.parameter([1.0]), "trainable", v),
    "rslora": lambda v: gl.llm.LoRA(rslora=v),
    "restore_best": lambda v: gl.train.EarlyStopping(restore_best=v),
    "fit progress": lambda v: gl.fit(net(), (X, Y), progress=v),
    "Trainer dynamic": lambda v: gl.Trainer(net(), dynamic=v),
    "decoupled": lambda v: Adam(decoupled_weight_decay=v),
    "compile fuse": lambda v: gl.compile([gl.input("x", (2,)) * 2.0], fuse=v),
    "keepdims": lambda v: gl.ops.sum(gl.input("x", (2, 3)), 1, keepdims=v),
    "transpose": lambda v: gl.ops.matmul(gl.input("x", (3, 3)), gl.input("y", (3, 3)), transpose_y=v),
    "dp shuffle": lambda v: gl.dp_train(net, [(X[0], 1)], loss_fn="mse", iterations=1, shuffle=v),
    "dp verbose": lambda v: gl.dp_train(net, [(X[0], 1)], loss_fn="mse", iterations=1, verbose=v),
}


@pytest.mark.parametrize("value", ["no", "False", 2, None, np.ones(2)], ids=str)
@pytest.mark.parametrize("case", BOOLEANS)
def test_a_boolean_is_no_text(case, value):
    if value is None and case == "compile fuse":
        return  # not given
    with pytest.raises(gl.GradloomError, match=r"(must be|as) (True or False|bool)|bool") as caught:
        BOOLEANS[case](value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [c for c in BOOLEANS if not c.startswith("dp ")])
def test_a_boolean_of_numpy_is_one(case, capsys):
    for value in (np.bool_(True), np.bool_(False), True):
        BOOLEANS[case](value)


def test_whole_numbers_of_numpy():
    n = np.int64
    expected = losses(epochs=2, batch_size=4, micro_batch_size=2, seed=3, threads=1)
    for seed in (np.int8(3), np.uint64(3)):
        found = losses(epochs=n(2), batch_size=np.uint16(4), micro_batch_size=n(2), seed=seed, threads=n(1))
        assert found[0] == expected[0]
        assert all(np.array_equal(found[1][k], expected[1][k]) for k in expected[1])
    gl.Trainer(net(), optimizer=SGD(), accumulate=n(2), seed=np.uint64(7)).step(X, Y)
    gl.data.DataLoader(X, Y, batch_size=np.uint8(4), seed=np.uint64(2**63))
    gl.evaluate(net(), (X, Y), batch_size=n(4))
    assert gl.predict(net(), X, batch_size=n(5)).shape == (12, 2)
    assert nn.MaxPool2d(n(2))(gl.tensor(np.ones((1, 1, 4, 4), "f4"))).shape == (1, 1, 2, 2)
    assert nn.Conv2d(1, n(2), n(3), padding=n(1))(gl.tensor(np.ones((1, 1, 4, 4), "f4"))).shape == (1, 2, 4, 4)
    assert gl.ops.sum(gl.tensor(X), n(1)).shape == (12,)


def test_whole_numbers_of_numpy_in_finetune(tmp_path):
    n, model = np.int64, gl.llm.load(write(tmp_path))
    run = gl.llm.finetune(
        model, rows_of(4), gl.llm.LoRA(rank=n(2), seed=np.uint64(1), dropout=np.float32(0.0)), batch_size=n(2),
        micro_batch_size=n(1), steps=n(1), seed=np.uint64(4), val_split=0.0, progress=False, threads=n(1),
    )  # fmt: skip
    assert run.steps == 1 and run.report["seed"] == 4
    assert gl.llm.finetune(model, rows_of(4), epochs=n(1), batch_size=n(4), progress=False, val_split=0.0).steps == 1


@pytest.mark.parametrize("value", [True, 1.0, "2", -1])
def test_what_is_no_whole_number(value):
    for name in ("epochs", "batch_size", "seed"):
        with pytest.raises(SettingError, match="must be a whole number"):
            gl.fit(net(), (X, Y), progress=False, **{name: value})


# -- optimisers --------------------------------------------------------------------------------------------------------


def grads(model, opt):
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
    return tape.backward(loss)


def test_a_setting_is_an_attribute():
    one, two = net(), net()
    slow, fast = SGD(one.parameters(), lr=0.1), SGD(two.parameters(), lr=5.0)
    assert slow.lr == 0.1 and slow.momentum == 0.0
    slow.lr = 5.0
    assert slow.settings["lr"] == slow.lr == 5.0
    for opt, model in ((slow, one), (fast, two)):
        opt.step(grads(model, opt))
    assert np.array_equal(one[0].weight.numpy(), two[0].weight.numpy())
    slow.lr = schedules.Linear(0.1, 10)
    slow.step(grads(one, slow))
    slow.settings |= {"lr": 0.5}
    assert slow.lr == 0.5
    slow.epoch = 3
    assert slow.epoch == 3
    again = pickle.loads(pickle.dumps(AdamW(lr=0.25)))
    again.lr = 0.5
    assert copy.deepcopy(again).lr == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: setattr(o, "lr", -1.0), "SGD: lr=-1.0: must be a finite number of at least 0"),
        (lambda o: setattr(o, "lr", "5"), "SGD: lr='5': must be"),
        (lambda o: setattr(o, "lr", True), "SGD: lr=True: must be"),
        (lambda o: setattr(o, "momentum", 0.9), "momentum=0.9 requires an optimizer"),
        (lambda o: setattr(o, "learning_rate", 1.0), "SGD: learning_rate is not a setting"),
        (lambda o: setattr(o, "momentun", 0.0), "SGD: momentun is not a setting; did you mean momentum"),
        (lambda o: o.settings.__setitem__("momentun", 1.0), "SGD: momentun is not a setting; did you mean momentum"),
        (lambda o: o.settings.update(lr=-1.0), "SGD: lr=-1.0: must be"),
        (lambda o: setattr(o, "settings", {"lr": 1.0}), "SGD: settings cannot be replaced"),
        (lambda o: o.settings.pop("lr"), "SGD: lr cannot be removed"),
    ],
)
def test_settings_are_checked_as_they_are_set(change, message):
    opt = SGD(net().parameters(), lr=0.1)
    with pytest.raises(SettingError, match=message):
        change(opt)
    assert opt.lr == 0.1
    with pytest.raises(AttributeError, match="momentun'; did you mean momentum"):
        _ = opt.momentun


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, "1", True, np.ones(2), -np.float32(1)], ids=str)
def test_a_weight_is_a_number_of_at_least_0(weight):
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    with refused("weight", need="a finite number of at least 0", place="accumulate"):
        opt.accumulate(grads(model, opt), weight)


# -- what is no such object --------------------------------------------------------------------------------------------


class Foreign:
    def __repr__(self):
        return "Foreign (\n  lr: 1\n)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: gl.save({"a": X}, p), SettingError, "save: got a dict; need a module, or an optimiser"),
        (lambda p: gl.save(nn.Linear, p), SettingError, "save: got the class Linear; need a module"),
        (lambda p: gl.load({"a": X}, p), SettingError, "load: got a dict; need a module"),
        (lambda p: gl.save(net(), None), SettingError, "save: the path is a NoneType; need that of a .safetensors"),
        (lambda p: gl.load(net(), None), SettingError, "load: the path is a NoneType"),
        (
            lambda p: gl.fit(nn.Flatten, (X, Y), progress=False),
            GraphError,
            "the class Flatten; need one that is made",
        ),
        (lambda p: gl.evaluate(nn.Flatten, (X, Y)), GraphError, "got the class Flatten"),
        (
            lambda p: gl.Trainer(net(), optimizer=Foreign()),
            SettingError,
            "optimizer is a Foreign; must be one of gl",
        ),
        (lambda p: gl.Trainer(net(), optimizer=SGD), SettingError, "optimizer is the class SGD; must be one of gl.o"),
        (lambda p: SGD(net().parameters()).step({"a": X}), gl.GradientError, "step: got a dict; need the gradients"),
        (lambda p: SGD(net().parameters()).accumulate({}), gl.GradientError, "accumulate: got a dict; need the gra"),
        (lambda p: gl.optim.clip_grad_norm({}, 1.0), gl.GradientError, "clip_grad_norm: got a dict; need what tape"),
        (lambda p: SGD(lr=Foreign()), SettingError, r"SGD: lr=Foreign \( lr: 1 \): must be"),
    ],
)
def test_one_line_says_what_was_got(tmp_path, call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(tmp_path / "x.safetensors")
    assert "\n" not in str(caught.value)


def test_finetune_names_its_own_arguments(tmp_path):
    model = SimpleNamespace()
    with pytest.raises(SettingError, match="^finetune: contxt is not an argument; did you mean context"):
        gl.llm.finetune(model, "t.txt", contxt=64)
    with pytest.raises(SettingError, match="^finetune: zzz is not an argument; use .*context.*threads"):
        gl.llm.finetune(model, "t.txt", zzz=64)
    with refused("progress", "no"):
        gl.llm.finetune(gl.llm.load(write(tmp_path)), rows_of(4), progress="no")
    with pytest.raises(SettingError, match="^optimizer is a Foreign; must be one of"):
        gl.llm.finetune(gl.llm.load(write(tmp_path)), rows_of(4), optimizer=Foreign())
