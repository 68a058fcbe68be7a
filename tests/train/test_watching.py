"""watch= of gl.fit: norms in metrics.jsonl, and the bits of a run without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.graph.graph import reachable
from gradloom.run.budget import resident_when_settled
from gradloom.train.watching import of_ranges, ranges, watch_warnings
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((100, 6)).astype(np.float32), RNG.integers(0, 3, 100)
EVERY = 4


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16, activation="gelu"), nn.BatchNorm(16), nn.Dropout(0.2), nn.Linear(16, 3)
    )  # fmt: skip


def fitted(folder: Path | None, epochs: int = 3, **options: Any) -> dict[str, bytes]:
    """The weights of a run, bit for bit."""
    model = net()
    more: dict[str, Any] = {"batch_size": 20, "val_split": 0.1, "seed": 4, "progress": False}
    gl.fit(model, (X, Y), epochs=epochs, run=folder, **more | options)
    return {name: array.tobytes() for name, array in model.state_dict().items()}


def lines(folder: Path, kind: str = "watch") -> list[dict[str, Any]]:
    return [line for line in gl.train.read_metrics(folder) if line["kind"] == kind]


def without_times(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in ("time", "seconds")} for line in found]


@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch_size": 7}, {"precision": "bf16"}, {"fuse": False}, {"dynamic": True}, {"threads": 1, "ema": 0.9},
     {"optimizer": "sgd"}, {"max_norm": 0.1}],
    ids=str,
)  # fmt: skip
def test_the_bits_are_those_of_a_run_without_watching(options: dict[str, Any], tmp_path: Path) -> None:
    def run(name: str, **more: Any) -> dict[str, bytes]:
        made = options | ({"optimizer": gl.optim.SGD(lr=0.1)} if "optimizer" in options else {})
        return fitted(tmp_path / name, **made, **more)

    plain = run("plain")
    assert run("watched", watch=["*", "grad:*"], watch_every=f"{EVERY}steps") == plain
    found = lines(tmp_path / "watched")
    steps = -(-90 // 20) * 3
    assert [line["step"] for line in found] == list(range(EVERY, steps + 1, EVERY))
    names = {f"norm/{name}" for name in ("0", "1", "2", "3", "0.weight", "3.bias", "grad:0", "grad:3", "grad:0.weight")}
    assert all(names <= line.keys() and all(line[name] > 0 for name in names) for line in found)
    assert not any(name.startswith("norm/") for line in lines(tmp_path / "plain", "epoch") for name in line)
    losses = [[line["loss"] for line in lines(tmp_path / name, "epoch")] for name in ("plain", "watched")]
    assert losses[0] == losses[1]


def test_gradients_are_those_of_the_step(tmp_path: Path) -> None:
    """With SGD and one batch a step is lr times the gradient of the mean loss."""
    model = nn.Sequential(nn.Linear(6, 3))
    options: dict[str, Any] = {"batch_size": 100, "progress": False}
    before = []
    watch = {"watch": ["0.weight", "grad:0.weight", "0"], "watch_every": "1steps"}
    model.init(3)
    for epoch in range(3):
        before.append(model.state_dict()["0.weight"])
        gl.fit(
            model, (X, Y), epochs=1, run=tmp_path / str(epoch), **options | {"optimizer": gl.optim.SGD(lr=0.5)}, **watch
        )
        (line,) = lines(tmp_path / str(epoch))
        after = model.state_dict()["0.weight"]
        assert line["norm/0.weight"] == pytest.approx(np.linalg.norm(before[-1]), rel=1e-6)
        assert line["norm/grad:0.weight"] == pytest.approx(np.linalg.norm(after - before[-1]) / 0.5, rel=1e-4)
        assert line["step"] == 1


def test_a_resumed_run_has_the_lines_of_one_in_one_piece(tmp_path: Path) -> None:
    options: dict[str, Any] = {"watch": ["0", "grad:3"], "watch_every": "3steps", "log": ("csv",)}
    whole = fitted(tmp_path / "whole", **options)

    seen: list[Any] = []

    def stop(progress: Any) -> None:
        seen.append(progress)
        if len(seen) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "parts", on_train_batch=stop, **options)
    assert 0 < len(lines(tmp_path / "parts")) < len(lines(tmp_path / "whole"))
    assert fitted(tmp_path / "parts", resume=True, **options) == whole
    assert without_times(lines(tmp_path / "parts")) == without_times(lines(tmp_path / "whole"))
    text = (tmp_path / "parts" / "metrics.csv").read_text()
    assert "norm/0" in text.splitlines()[0] and text.count("\nwatch,") == len(lines(tmp_path / "whole"))
    assert fitted(tmp_path / "parts", epochs=4, resume=True, watch="1") == fitted(tmp_path / "whole", 4, resume=True)


def test_an_optimiser_that_has_made_steps_before(tmp_path: Path) -> None:
    model, rule = net(), gl.optim.AdamW(lr=1e-3)
    rule = gl.optim.AdamW(model.init(0).parameters(), lr=1e-3)
    for name in ("first", "second"):
        gl.fit(model, (X, Y), optimizer=rule, epochs=1, batch_size=34, progress=False, run=tmp_path / name,
               watch="3", watch_every="1steps")  # fmt: skip
        assert [line["step"] for line in lines(tmp_path / name)] == [1, 2, 3]


def test_skipped_steps_and_values_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLOOM_CHECK", raising=False)  # which ends a step at the first number that is not finite
    x = X.copy()
    x[:3] = np.inf
    model = nn.Sequential(nn.Linear(6, 3))
    gl.fit(model, (x, Y), epochs=1, batch_size=10, progress=False, run=tmp_path / "a", on_nonfinite="skip", watch="0",
           watch_every="1steps")  # fmt: skip
    found = lines(tmp_path / "a")
    assert [line["step"] for line in found] == list(range(1, 11))
    odd = [line for line in found if line["norm/0"] is None]
    assert 1 <= len(odd) <= 3 and all(line["not_finite"]["norm/0"] in ("nan", "inf") for line in odd)


def test_tensorboard_has_the_norms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    fitted(tmp_path / "a", watch="grad:0", watch_every="5steps", log="tensorboard")
    data = b"".join(path.read_bytes() for path in (tmp_path / "a" / "tensorboard").iterdir())
    assert b"watch/norm/grad:0" in data


def test_a_log_without_a_run(tmp_path: Path) -> None:
    fitted(None, watch="0", watch_every="2steps", callbacks=[gl.train.Log(tmp_path / "log")])
    assert len(lines(tmp_path / "log")) == 7


def test_a_watched_training_stays_within_its_budget(tmp_path: Path) -> None:
    limit = resident_when_settled() + (1 << 30)
    plain = fitted(tmp_path / "plain", memory=limit)
    assert fitted(tmp_path / "watched", memory=limit, watch=["*", "grad:*"], watch_every="2steps") == plain
    with pytest.raises(gl.SettingError, match="memory"):
        fitted(tmp_path / "none", memory="1MiB", watch="0")
    trainer = gl.Trainer(net(), optimizer=gl.optim.SGD(lr=0.1))
    from gradloom.train.watching import Watching

    source = trainer.source(gl.data.Dataset(X, Y))
    count = len(trainer.prepare(source, 0, 100, batch_size=30)) and len(trainer.plans)
    other = gl.Trainer(net(), optimizer=gl.optim.SGD(lr=0.1))
    other.driver.watching = Watching(("0",), 2)
    other.prepare(other.source(gl.data.Dataset(X, Y)), 0, 100, batch_size=30)
    assert len(other.plans) == 2 * count  # the plans of memory= and gl.llm.plan


def test_what_is_refused(tmp_path: Path) -> None:
    def refused(text: str, **options: Any) -> None:
        with pytest.raises(gl.SettingError, match=text) as caught:
            fitted(tmp_path / "a", **options)
        assert "\n" not in str(caught.value)

    refused("watch: '4' matches no module, node, input or parameter; names: ", watch="4")
    refused("watch: 'grad:3.wieght' matches no .*; did you mean 3.weight", watch=["0", "grad:3.wieght"])
    refused("watch.*a pattern of names", watch=3)
    refused("watch.*a pattern of names", watch=["0", ""])
    refused("watch_every.* requires watch", watch_every="3steps")
    refused("watch_every.*such as 100steps", watch="0", watch_every="3s")
    refused("watch_every.*such as 100steps", watch="0", watch_every="0steps")
    assert not (tmp_path / "a" / "metrics.jsonl").exists()
    with pytest.raises(gl.SettingError, match="watch.* requires run, the folder of a run, or gl.train.Log"):
        fitted(None, watch="0")
    found = on_ranks(2, lambda ranks: gl.fit(net(), (X, Y), parallel=ranks, watch="0", progress=False))
    assert all(isinstance(one, gl.SettingError) and "watch" in str(one) for one in found)
    assert "requires one process" in str(found[0])


def test_a_graph_is_not_kept_longer_than_before() -> None:
    """What a program was compiled of is part of its compiled batch already."""
    trainer = gl.Trainer(net(), optimizer=gl.optim.SGD(lr=0.1))
    (step, *_) = trainer.prepare(trainer.source(gl.data.Dataset(X, Y)), 0, 100, batch_size=30)
    kept = set(reachable([*step.outputs, *step.updates]))
    assert set(reachable([*step.run.origin.outputs, *step.run.origin.updates])) == kept


# ---- histograms and dead units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"micro_batch_size": 7}], ids=str)
def test_histograms_change_no_bit(options: dict[str, Any], tmp_path: Path) -> None:
    watch: dict[str, Any] = {"watch": ["*", "grad:*"], "watch_every": "4steps"}
    plain = fitted(tmp_path / "plain", **options)
    assert fitted(tmp_path / "norms", **options, **watch) == plain
    assert fitted(tmp_path / "histograms", watch_what="histogram", **options, **watch) == plain
    norms, histograms = lines(tmp_path / "norms"), lines(tmp_path / "histograms")
    assert len(norms) == len(histograms) > 0
    for one, other in zip(norms, histograms, strict=True):
        names = [name for name in one if name.startswith(("norm/", "zero_units/"))]
        assert "zero_units/0" in names and "zero_units/0.weight" not in names and "zero_units/grad:0" not in names
        for name in names:
            assert other[name] == pytest.approx(one[name], rel=1e-5), name
        found = other["histogram/0"]
        assert len(found["counts"]) == 64 and found["low"] < found["high"] and found["not_finite"] == 0
        rows = sum(found["counts"]) // 16
        assert sum(found["counts"]) == 16 * rows and rows <= 20
        assert sum(other["histogram/3.bias"]["counts"]) == 3


def dying(folder: Path, **options: Any) -> None:
    """Train a network whose hidden units 2, 3 and 7 are zero for all rows."""
    model = nn.Sequential(nn.Linear(6, 16, activation="relu"), nn.Linear(16, 3)).init(0)
    state = model.state_dict()
    bias = state["0.bias"].copy()
    bias[[2, 3, 7]] = -100
    model.load_state_dict(state | {"0.bias": bias})
    more: dict[str, Any] = {"batch_size": 20, "progress": False, "watch": ["0", "1"], "watch_every": "1steps"}
    gl.fit(model, (X, Y), run=folder, optimizer=gl.optim.SGD(lr=0.01), **more | {"epochs": 3} | options)


@pytest.mark.parametrize("what", ["norm", "histogram"])
def test_dead_units_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    dying(tmp_path / "a", watch_what=what)
    found = lines(tmp_path / "a")
    assert all({2, 3, 7} <= of_ranges(line["zero_list/0"]) for line in found)
    assert all(line["zero_units/0"] == len(of_ranges(line["zero_list/0"])) for line in found)
    assert all(line["zero_units/1"] == 0 and "zero_list/1" not in line for line in found)
    (text,) = watch_warnings(found)
    assert text == "0: 3 units zero for all rows at the last 10 watched steps: 2-3,7"
    assert f"watch: {text}\n" in capsys.readouterr().err
    assert f"{text}</p>" in gl.report(tmp_path / "a").html
    dying(tmp_path / "b", epochs=1, watch_what=what)  # too few watched steps
    assert not watch_warnings(lines(tmp_path / "b")) and "watch: " not in capsys.readouterr().err


def test_channels_of_images_are_units(tmp_path: Path) -> None:
    conv = nn.Conv2d(1, 4, 3, activation="relu").init(0)
    conv.load_state_dict(conv.state_dict() | {"bias": np.array([0.0, -100.0, 0.0, 0.0], np.float32)})
    images = RNG.standard_normal((40, 1, 6, 6)).astype(np.float32)
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(64, 3))
    gl.fit(model, (images, Y[:40]), epochs=1, batch_size=20, progress=False, run=tmp_path, watch="0",
           watch_every="1steps")  # fmt: skip
    assert [line["zero_list/0"] for line in lines(tmp_path)] == ["1", "1"]


def watched(norms: list[Any], zeros: list[str] | None = None) -> list[dict[str, Any]]:
    lists = zeros or [""] * len(norms)
    return [
        {"kind": "watch", "step": k, "norm/a": norm, "zero_units/a": 1} | ({"zero_list/a": text} if text else {})
        for k, (norm, text) in enumerate(zip(norms, lists, strict=True))
    ]


def test_warnings_of_watched_values() -> None:
    assert watch_warnings(watched([1.0, 1.0, 1.0, 50.0, 120.0, 130.0, 140.0])) == [
        "a: its norm has grown from 1 to 130, 130 times"
    ]
    assert watch_warnings(watched([1.0, 1.0, 1.0, 99.0, 99.0, 99.0])) == []
    assert watch_warnings(watched([0.0, 0.0, 0.0, 99.0, 99.0, 99.0])) == []  # what begins at zero only begins
    assert watch_warnings(watched([1.0, None])) == ["a: its norm is not finite at step 1"]
    ten = [1.0] * 10
    assert watch_warnings(watched(ten, ["1-3,5"] * 9 + ["2-6"])) == [
        "a: 3 units zero for all rows at the last 10 watched steps: 2-3,5"
    ]
    assert watch_warnings(watched(ten, ["1", "2"] * 5)) == []
    assert watch_warnings(watched(ten, ["1"] * 9 + [""])) == []
    for odd in (None, [], {}, "x", -1, True, 1e999, 10**400, "1-999999999999"):
        watch_warnings([{"kind": "watch", name: odd} for name in ("norm/a", "zero_units/a", "zero_list/a")] * 12)
    assert ranges([3, 17, 18, 19, 20]) == "3,17-20" and of_ranges("3,17-20") == {3, 17, 18, 19, 20}


def test_a_resumed_run_has_the_histograms_of_one_in_one_piece(tmp_path: Path) -> None:
    options: dict[str, Any] = {"watch": ["0"], "watch_every": "3steps", "watch_what": "histogram"}
    fitted(tmp_path / "whole", **options)
    fitted(tmp_path / "parts", epochs=1, **options)
    fitted(tmp_path / "parts", resume=True, **options)
    assert without_times(lines(tmp_path / "parts")) == without_times(lines(tmp_path / "whole"))


def test_tensorboard_has_the_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    log = ("tensorboard", "csv")
    fitted(tmp_path / "a", watch="0", watch_every="5steps", watch_what="histogram", log=log)
    assert "histogram/" not in (tmp_path / "a" / "metrics.csv").read_text()
    (file,) = (tmp_path / "a" / "tensorboard").iterdir()
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):  # length u64, its checksum u32, the event, its checksum u32
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        found += [(event.step, v.histo) for v in event.summary.value if v.tag == "watch/histogram/0"]
        at += 16 + size
    stored = lines(tmp_path / "a")
    assert [step for step, _ in found] == [line["step"] for line in stored]
    for (_, histo), line in zip(found, stored, strict=True):
        assert list(histo.bucket) == line["histogram/0"]["counts"] and histo.max == line["histogram/0"]["high"]
        assert histo.bucket_limit[-1] == pytest.approx(histo.max) and histo.num == sum(histo.bucket)


def test_what_is_watched_requires_patterns(tmp_path: Path) -> None:
    with pytest.raises(gl.SettingError, match="watch_what histogram requires watch|watch_what.*requires watch"):
        fitted(tmp_path, watch_what="histogram")
    with pytest.raises(gl.SettingError, match="watch_what"):
        fitted(tmp_path, watch="0", watch_what="values")


def test_a_run_that_ends_before_its_first_watched_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(tmp_path / "a", watch="0")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("watch: ")]
    assert re.fullmatch(r"watch: the run ends at step \d+, and every 100th is watched: use a smaller watch_every", line)
