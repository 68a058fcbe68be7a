"""gl.train.Checkpoint: loops of the user's own, stopped anywhere and resumed in another process, to the bit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, optim
from gradloom.files import checkpoint_files
from gradloom.parallel.communicator import checksum
from gradloom.runs.folder import read_run
from tests import processes

X = np.random.default_rng(0).normal(size=(46, 4)).astype(np.float32)
Y = (X @ np.arange(4, dtype=np.float32)[:, None]).astype(np.float32)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


class Best:
    """Something of the user's own that remembers."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.weights: np.ndarray | None = None

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "weights": self.weights}

    def load_state(self, values: dict[str, Any]) -> None:
        self.losses, self.weights = list(values["losses"]), values["weights"]


def eager(folder: str, kill: int = 0, resume: bool = True) -> None:
    """A loop with dropout, batch norm, windows of 3 micro-batches, clipping, a Plateau, shuffled data and noise."""
    gl.seed(5)
    net, rng, best = network(), np.random.default_rng(1), Best()
    net.init(3)
    opt = optim.AdamW(net.parameters(), lr=optim.schedules.Plateau(0.05, patience=0, factor=0.5), weight_decay=0.01)
    loader = gl.data.DataLoader(X, Y, batch_size=6, shuffle=True, seed=2)
    table = gl.data.Dataset(X, Y)
    checkpoint = gl.train.Checkpoint(
        folder, keep=2, model=net, optimizer=opt, loader=loader, table=table, noise=rng, best=best
    )
    step = (checkpoint.load() if resume else None) or 0
    total = checkpoint.values.get("total", 0.0)
    for epoch in range(loader.epoch, 4):
        for x, y in loader:
            with gl.grad_tape() as tape:
                loss = gl.ops.mean((net(x + 0.1 * rng.normal(size=x.shape).astype(np.float32)) - y) ** 2)
                grads = tape.backward(loss)
            opt.accumulate(grads, 1)
            total += float(loss)
            step += 1
            if step % 3 == 0:
                optim.clip_grad_norm(opt, 0.5)
                opt.step()
            checkpoint.save(step, total=total)
            if step == kill:
                if kill % 2 == 0:  # else an older checkpoint may be the newest
                    checkpoint.wait()
                os.kill(os.getpid(), signal.SIGKILL)
        table.shuffle(rng)
        net.eval()
        with gl.no_grad():
            rows = table.batch(0, 20)
            best.losses.append(float(gl.ops.mean((net(gl.tensor(rows.data)) - rows.labels) ** 2)))
        net.train()
        best.weights = net.state_dict()["0.weight"]
        opt.epoch = epoch + 1
        opt.observe(best.losses[-1])
    checkpoint.close()
    moments = [v for k, v in sorted(opt.state_dict().items()) if k != "optimizer"]
    print(step, total, best.losses, opt.steps, checksum(*net.state_dict().values(), *moments, table.rows()))


def by_trainer(folder: str, kill: int = 0, resume: bool = True) -> None:
    """Passes by gl.epoch with a Trainer: dropout, batch norm, accumulation, an order drawn by the user."""
    trainer = gl.Trainer(network(), "mse", optim.AdamW(lr=optim.schedules.Plateau(0.05, patience=0)), accumulate=2)
    data, rng, stop = gl.data.Dataset(X, Y), np.random.default_rng(4), gl.train.EarlyStopping(9, restore_best=True)
    stop.begin(trainer)
    checkpoint = gl.train.Checkpoint(folder, trainer=trainer, data=data, rng=rng)
    passes = (checkpoint.load() if resume else None) or 0
    history = list(checkpoint.values.get("history", []))
    while passes < 5:
        data.shuffle(rng)
        train, val = gl.epoch(trainer, data, split=36, batch_size=8)
        trainer.optimizer_state.observe(val.loss)
        history.append((train.loss, val.loss))
        passes += 1
        stop(gl.EpochResult(passes, train, val, trainer.steps, 0.0))
        checkpoint.save(passes, history=history)
        if passes == kill:
            checkpoint.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    stop.end()
    checkpoint.close()
    print(history, stop.best_epoch, checksum(*trainer.model.state_dict().values()))


def ended(how: str, *arguments: Any) -> tuple[str, str, int]:
    code = f"from tests.runs import test_own_loop as t\nt.{how}(*{arguments!r})"
    process = processes.start([sys.executable, "-c", code], env=processes.environment())
    out, err = process.communicate(timeout=120)
    return out, err, process.returncode


@pytest.mark.parametrize(("how", "kills"), [("eager", (1, 4, 8, 23)), ("by_trainer", (1, 3))])
@pytest.mark.slow
def test_a_loop_that_was_killed_goes_on_to_the_same_bits(tmp_path, how, kills):
    whole, err, code = ended(how, str(tmp_path / "whole"))
    assert code == 0 and whole and "there is no checkpoint to resume from" in err
    for kill in kills:
        _, _, code = ended(how, str(tmp_path / "cut"), kill)
        assert code == -signal.SIGKILL
    again, err, code = ended(how, str(tmp_path / "cut"))
    assert (again, err, code) == (whole, "", 0)
    other, err, _ = ended(how, str(tmp_path / "cut"), 0, False)  # a finished run is replaced
    assert other == whole and "finished run in it is replaced" in err


def killed_before_its_first_manifest(folder: str) -> None:
    net, opt = made()
    honest = checkpoint_files.atomic_inside

    def until_the_manifest(folder: Any, name: str, *size: int) -> Any:
        return os.kill(os.getpid(), signal.SIGKILL) if name.endswith(".json") else honest(folder, name, *size)

    checkpoint_files.atomic_inside = until_the_manifest  # type: ignore[assignment]
    with gl.train.Checkpoint(folder, model=net, optimizer=opt) as checkpoint:
        checkpoint.load()
        checkpoint.save(3)


def test_a_kill_before_the_first_manifest_leaves_a_run_that_begins_anew(tmp_path):
    """The arrays that it leaves are not those of a checkpoint that was complete."""
    assert ended("killed_before_its_first_manifest", str(tmp_path))[2] == -signal.SIGKILL
    assert (tmp_path / "run.json").exists() and (tmp_path / "checkpoints" / "step-000003.safetensors").exists()
    net, opt = made()
    with gl.train.Checkpoint(tmp_path, model=net, optimizer=opt) as checkpoint:
        assert checkpoint.load() is None
        checkpoint.save(1)
    assert read_run(tmp_path)["step"] == 1


# ---- in one process --------------------------------------------------------------------------------------------------


def made(seed: int = 0, width: int = 3) -> tuple[nn.Linear, optim.Optimizer]:
    net = nn.Linear(2, width)
    net.init(seed)
    return net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def stepped(net: nn.Linear, opt: optim.Optimizer) -> None:
    with gl.grad_tape() as tape:
        grads = tape.backward(gl.ops.mean(net(np.ones((2, 2), np.float32)) ** 2))
    opt.step(grads)


def test_values_and_objects_come_back(tmp_path):
    net, opt = made()
    one = gl.parameter(np.arange(3.0), name="one")
    stepped(net, opt)
    with gl.train.Checkpoint(
        tmp_path, model=net, optimizer=opt, one=one, several=[one], named={"a": one}
    ) as checkpoint:
        checkpoint.save(1, loss=0.5, history=[1, (2, None)], array=np.arange(2))
    before = net.state_dict(), opt.state_dict(), one.numpy()
    stepped(net, opt)
    one.assign(np.zeros(3))
    opt.lr = 0.7
    again = gl.train.Checkpoint(tmp_path, model=net, optimizer=opt, one=one, several=[one], named={"a": one})
    assert again.load() == 1
    assert again.values["history"] == [1, (2, None)] and again.values["loss"] == 0.5
    assert again.values["array"].tolist() == [0, 1]
    assert checksum(*before[0].values()) == checksum(*net.state_dict().values()) and opt.lr == 0.1
    assert checksum(*before[1].values()) == checksum(*opt.state_dict().values())
    assert one.numpy().tolist() == before[2].tolist() == [0, 1, 2]
    with pytest.raises(gl.TrainError, match="load once, before any save"):
        again.load()
    again.close()


def test_a_window_that_waits_for_its_step(tmp_path):
    net, opt = made()
    with gl.grad_tape() as tape:
        opt.accumulate(tape.backward(gl.ops.mean(net(np.ones((2, 2), np.float32)) ** 2)), 2)
    with gl.train.Checkpoint(tmp_path, model=net, optimizer=opt) as checkpoint:
        checkpoint.save(1)
    opt.step()
    net2, opt2 = made(seed=8)
    again = gl.train.Checkpoint(tmp_path, model=net2, optimizer=opt2)
    assert again.load() == 1
    opt2.step()
    assert checksum(*net2.state_dict().values()) == checksum(*net.state_dict().values())
    again.close()


def test_a_model_that_was_never_used_is_saved_as_it_is_drawn(tmp_path):
    net = nn.Linear(2, 3)
    with gl.train.Checkpoint(tmp_path, model=net) as checkpoint:
        checkpoint.save(0)
    other = nn.Linear(2, 3)
    again = gl.train.Checkpoint(tmp_path, model=other)
    assert again.load() == 0 and checksum(*other.state_dict().values()) == checksum(*net.state_dict().values())
    assert np.abs(net.state_dict()["weight"]).min() > 0
    again.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n, o, r: {"model": nn.Linear(2, 4)}, r"model: .*weight is float32\[3, 2\] and here f32\[4, 2\]"),
        (lambda n, o, r: {"optimizer": optim.Adam(n.parameters(), lr=0.1)}, "kind='Adam', in the state 'SGD'"),
        (lambda n, o, r: {"rng": np.random.Generator(np.random.MT19937(0))}, "rng: a generator of MT19937, in"),
        (lambda n, o, r: {"more": Best()}, "load: more is not in the checkpoint"),
        (lambda n, o, r: {"data": gl.data.Dataset(X[:4])}, r"order of a data set: int64\[46\]; need each of 4 shards"),
        (
            lambda n, o, r: {"loader": gl.data.DataLoader(X, batch_size=3, shuffle=True)},
            "a data loader with batch_size=3, in the state 4; need the same",
        ),
    ],
)  # fmt: skip
def test_an_object_of_another_structure_is_refused_and_nothing_changed(tmp_path, change, said):
    net, opt = made()
    rng = np.random.Generator(np.random.PCG64(1))
    data, loader = gl.data.Dataset(X), gl.data.DataLoader(X, batch_size=4, shuffle=True)
    objects = {"model": net, "optimizer": opt, "rng": rng, "data": data, "best": Best(), "loader": loader}
    with gl.train.Checkpoint(tmp_path, **objects) as checkpoint:
        checkpoint.save(3)
    stepped(net, opt)
    rng.normal()
    data.shuffle(rng)
    next(iter(loader))
    objects["best"].losses = [1.0]

    def now() -> list[Any]:
        arrays = *net.state_dict().values(), *opt.state_dict().values(), data.rows()
        return [checksum(*arrays), str(rng.bit_generator.state), objects["best"].state(), loader.state()]

    before = now()
    with pytest.raises((gl.TrainError, gl.DataError), match=said):
        gl.train.Checkpoint(tmp_path, **{**objects, **change(net, opt, rng)}).load()
    assert now() == before
    again = gl.train.Checkpoint(tmp_path, **objects)
    assert again.load() == 3 and now() != before and loader.epoch == 0
    again.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got no objects to save"),
        ({"count": 3}, r"count is a int|count is an int|count is .*int.*, which cannot be saved"),
        ({"f": len}, "f is .*which cannot be saved"),
        ({"parameters": []}, "parameters is .*which cannot be saved"),
        ({"opt": optim.AdamW()}, r"opt is an optimiser that was made without parameters; need AdamW\(model"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path, given, said):
    with pytest.raises(gl.SettingError, match=said):
        gl.train.Checkpoint(tmp_path, **given)


def test_values_that_cannot_be_saved_are_refused_by_name(tmp_path):
    class Odd(Best):
        def state(self) -> dict[str, Any]:
            return {"file": sys.stdout}

    with gl.train.Checkpoint(tmp_path, odd=Odd()) as checkpoint, pytest.raises(gl.DataError, match=r"odd\.file is "):
        checkpoint.save(1)
    with (
        gl.train.Checkpoint(tmp_path, best=Best()) as checkpoint,
        pytest.raises(gl.DataError, match="given values.x/mine is object"),
    ):
        checkpoint.save(1, x={"mine": object()})


def test_a_run_that_has_not_finished_is_not_overwritten_unasked(tmp_path):
    net, _ = made()
    first = gl.train.Checkpoint(tmp_path, model=net)
    with pytest.raises(RuntimeError), first:
        first.save(1)
        raise RuntimeError
    second = gl.train.Checkpoint(tmp_path, model=net)
    with pytest.raises(gl.FileError, match="not finished .failed at step 1.; need --resume .*overwrite=True"):
        second.save(1)
    third = gl.train.Checkpoint(tmp_path, model=net, overwrite=True)
    third.save(7)
    third.close()
    fourth = gl.train.Checkpoint(tmp_path, model=net)
    assert fourth.load() == 7
    fourth.close()


def test_another_instruction_set_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GRADLOOM_ISA", raising=False)
    net, _ = made()
    with gl.train.Checkpoint(tmp_path, model=net) as checkpoint:
        checkpoint.save(1)
    monkeypatch.setenv("GRADLOOM_ISA", "scalar")
    again = gl.train.Checkpoint(tmp_path, model=net)
    assert again.load() == 1
    again.close()
    assert "isa is scalar and was " in capsys.readouterr().err


# ---- the loader's place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"prefetch": True}, {"shuffle": False}])
def test_a_loader_goes_on_inside_an_epoch(options):
    options = {"batch_size": 4, "shuffle": True, "seed": 3} | options

    def batches(loader: gl.data.DataLoader, stop: int, seen: list[np.ndarray]) -> dict[str, Any]:
        for _ in range(loader.epoch, 3):
            for x in loader:
                seen.append(x)
                if len(seen) == stop:
                    return loader.state()
        return loader.state()

    whole: list[np.ndarray] = []
    loader = gl.data.DataLoader(X, **options)
    end = batches(loader, 0, whole)
    assert (end["epoch"], end["batches"]) == (3, 0)
    for stop in range(1, len(whole)):
        seen: list[np.ndarray] = []
        state = batches(gl.data.DataLoader(X, **options), stop, seen)
        loader = gl.data.DataLoader(X, **options)
        loader.load_state(state)
        assert loader.state() == state
        assert batches(loader, 0, seen) == end
        assert checksum(*seen) == checksum(*whole)


def test_an_epoch_that_was_left_is_over():
    loader = gl.data.DataLoader(X, batch_size=4)
    for _ in loader:
        break
    assert (loader.state()["epoch"], loader.state()["batches"]) == (1, 0)
    held = iter(loader)
    next(held)
    assert (loader.state()["epoch"], loader.state()["batches"]) == (1, 1)
    loader.epoch = 7
    assert (loader.state()["epoch"], loader.state()["batches"]) == (7, 0)


def test_draws_go_on(tmp_path):
    def drawn() -> np.ndarray:
        return gl.ops.dropout(gl.tensor(np.ones(64, np.float32)), 0.5).numpy()

    net, _ = made()
    gl.seed(11)
    drawn()
    with gl.train.Checkpoint(tmp_path, model=net) as checkpoint:
        checkpoint.save(1)
    after = [drawn() for _ in range(3)]
    gl.seed(1)
    drawn()
    again = gl.train.Checkpoint(Path(tmp_path), model=net)
    again.load()
    assert [a.tolist() for a in after] == [drawn().tolist() for _ in range(3)]
    again.close()


@pytest.mark.parametrize("given", ["module", "optimizer", "parameters"])
def test_what_a_loop_has_frozen_on_its_way_is_frozen_after_a_load(tmp_path: Path, given: str) -> None:
    def objects(net: nn.Linear) -> dict[str, Any]:
        opt = optim.SGD(net.parameters(), lr=0.1)
        return {"module": {"a": net}, "optimizer": {"a": opt}, "parameters": {"a": net.named_parameters()}}[given]

    net = nn.Linear(2, 2).init()
    with gl.train.Checkpoint(tmp_path, **objects(net)) as checkpoint:
        net.bias.trainable = False
        checkpoint.save(1)
    again = nn.Linear(2, 2)
    given_again = objects(again)
    again.weight.trainable = False  # and thawed
    with gl.train.Checkpoint(tmp_path, **given_again) as checkpoint:
        assert checkpoint.load() == 1
    assert again.weight.trainable and not again.bias.trainable


def test_a_step_is_given_once(tmp_path: Path) -> None:
    with gl.train.Checkpoint(tmp_path, net=nn.Linear(2, 2)) as checkpoint:
        need = r"^Checkpoint\.save: step=5 together with step 1; need another name for the value$"
        with pytest.raises(gl.SettingError, match=need):
            checkpoint.save(1, step=5)
        with pytest.raises(gl.GradloomError, match="step"):
            checkpoint.save()
        checkpoint.save(step=2)
    assert gl.train.Checkpoint(tmp_path, net=nn.Linear(2, 2)).load() == 2
