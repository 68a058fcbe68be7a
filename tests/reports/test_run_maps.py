"""Memory maps of runs: in the History, in the folder of a run, in the report; of files with any content."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.base.errors import FileError
from gradloom.plan.memory_map import MOST, MemoryMap, ProgramMap, program_map, program_maps
from gradloom.reports.plan_page import Programs, sections
from gradloom.reports.run_report import report
from gradloom.reports.sections import figures_of
from gradloom.runs.plan_file import PLANS, plan_file, read_plan_file
from tests.plan.devices import DEVICES, registered
from tests.plan.programs import PROGRAMS, planned
from tests.reports.browser import Browser

HOSTILE = "a</script><script>window.hacked=1</script>\u202e"


def net_and_data(width: int = 16) -> tuple[Any, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((70, 6), np.float32), rng.integers(0, 3, 70)
    return nn.Sequential(nn.Linear(6, width, activation="relu"), nn.Linear(width, 3)), (x, y)


def fitted(**options: Any) -> Any:
    net, data = net_and_data()
    options = {"loss": "cross_entropy", "epochs": 2, "val_split": 0.2, "batch_size": 16, "progress": False} | options
    return gl.fit(net, data, **options)


def same(one: ProgramMap, other: ProgramMap) -> bool:
    """Whether two programs have equal maps."""
    pairs = list(zip(one.maps, other.maps, strict=True))
    fields = list(MemoryMap.__dataclass_fields__)
    return (one.name, one.copies, one.copy_bytes) == (other.name, other.copies, other.copy_bytes) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in fields
    )


def test_a_fit_has_maps_in_memory_and_in_its_folder(tmp_path: Path) -> None:
    history = fitted(run=tmp_path / "run")
    stored = read_plan_file(tmp_path / "run" / PLANS)
    assert [one.name for one in stored] == [one.name for one in history.programs]
    assert all(same(a, b) for a, b in zip(stored, history.programs, strict=True))
    assert (tmp_path / "run" / PLANS).stat().st_size < 4000
    for what in (history, tmp_path / "run"):
        made = report(what)
        titles = made.facts["sections"]
        assert titles[:4] == ["Summary", "Curves", "Memory", "Training step: rows f32[16,6]"] and not made.left_out
        maps = [figure for figure in figures_of(made.sections) if figure.kind == "memory_map"]
        assert len(maps) == len(history.programs) >= 3
        assert any(row[0] == "0.weight" for s in made.sections for _, table in s.tables for row in table.rows)
        assert len(made.html) < 300_000


def test_a_history_keeps_no_array_of_the_model() -> None:
    net, data = net_and_data(4096)
    history = gl.fit(net, data, loss="cross_entropy", epochs=1, progress=False, debug=0)
    stored = weakref.ref(next(iter(net.parameters())).stored)
    del net
    gc.collect()
    assert stored() is None and history.programs


def test_of_many_programs_the_largest_are_kept() -> None:
    plans = [planned(name) for name in PROGRAMS] * 4
    kept = program_maps(plans)
    assert len(kept) == MOST and kept[0].peak_bytes == max(plan.peak_bytes for plan in plans)


def test_a_run_on_two_devices_has_a_map_of_each(tmp_path: Path, browser: Browser) -> None:
    net, data = net_and_data()
    with registered():
        net[0].to(DEVICES[0])
        net[1].to(DEVICES[1])
        history = gl.fit(
            net, data, loss="cross_entropy", epochs=1, batch_size=16, progress=False, run=tmp_path / "run",
            devices=DEVICES,
        )  # fmt: skip
    largest = history.programs[0]
    assert {one.device for one in largest.maps} == {*DEVICES} and largest.copies and largest.copy_bytes
    assert same(read_plan_file(tmp_path / "run" / PLANS)[0], largest)
    report(tmp_path / "run").save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert "copies between devices" in browser.find("main").text
    section = browser.js(
        "const maps = [...document.querySelectorAll('figure[data-kind=memory_map]')].filter("
        "f => f.querySelector('figcaption').textContent.startsWith('Arena of'));"
        "return maps.slice(0, 2).map(f => {const b = f.querySelector('canvas').getBoundingClientRect();"
        "return [f.parentElement.id, b.left, b.right, b.top, b.bottom]})"
    )
    (one, left, right, _, end), (other, left2, right2, top2, _) = section
    assert one == other and (left, right) == (left2, right2) and end <= top2
    assert not browser.all("figure .problem")


def test_a_run_of_replicas_and_a_loop_with_a_trainer_have_maps(tmp_path: Path) -> None:
    net, (x, y) = net_and_data()
    trainer = gl.Trainer(net, "cross_entropy", gl.optim.AdamW(lr=1e-3))
    with gl.train.Checkpoint(tmp_path / "loop", trainer=trainer) as checkpoint:
        trainer.step(x, y)
        checkpoint.save(1)
    (one,) = read_plan_file(tmp_path / "loop" / PLANS)
    assert same(one, program_map(trainer.plans[0])) and one.name.startswith("Training step")
    rows = [(x[k : k + 1], y[k : k + 1]) for k in range(8)]
    gl.dp_train(
        lambda: net_and_data()[0],
        rows,
        loss_fn=gl.ops.cross_entropy,
        replicas=2,
        iterations=2,
        threads=1,
        run=tmp_path / "dp",
    )
    assert read_plan_file(tmp_path / "dp" / PLANS)


def test_a_loop_without_a_trainer_has_no_file_of_maps(tmp_path: Path) -> None:
    net, _ = net_and_data()
    with gl.train.Checkpoint(tmp_path, net=net) as checkpoint:
        checkpoint.save(1)
    assert not (tmp_path / PLANS).exists()


def test_a_resumed_run_writes_the_maps_of_its_programs_again(tmp_path: Path) -> None:
    fitted(run=tmp_path, epochs=1)
    (tmp_path / PLANS).write_bytes(b"old")
    fitted(run=tmp_path, epochs=3, resume=True)
    assert read_plan_file(tmp_path / PLANS)[0].name.startswith("Training step")


def test_names_of_a_file_are_texts(tmp_path: Path, browser: Browser) -> None:
    fitted(run=tmp_path / "run", epochs=1)
    path = tmp_path / "run" / PLANS
    found = json.loads(gzip.decompress(path.read_bytes()))
    one = found["programs"][0]
    one["name"] = HOSTILE
    for name in ("names", "ops", "lines", "specs"):
        one["maps"][0][name] = [f"{HOSTILE}{k}" for k in range(len(one["maps"][0][name]))]
    one["maps"][0]["stored"] = [[HOSTILE] * 3 + [1]]
    path.write_bytes(gzip.compress(json.dumps(found).encode()))
    page = report(tmp_path / "run")
    assert "\u202e" not in page.html and "<script>window" not in page.html
    page.save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.find(".map-top").send_keys("nl")
    assert browser.js("return window.hacked") is None and not browser.all("figure .problem")


def odd_values(rng: np.random.Generator, value: Any) -> Any:
    """The value with one of its parts replaced."""
    odd: list[Any] = [-1, 0, 3, 2**53 - 1, 2**53, 2**70, 0.5, None, "x", [], {}, True]
    if isinstance(value, dict) and value and rng.random() < 0.95:
        name = list(value)[rng.integers(len(value))]
        return value | {name: odd_values(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        k = int(rng.integers(len(value)))
        return [*value[:k], *([odd_values(rng, value[k])] if rng.random() < 0.8 else []), *value[k + 1 :]]
    return odd[rng.integers(len(odd))]


def test_damaged_files_are_refused_or_drawn(tmp_path: Path) -> None:
    """A value of another type, range or count anywhere: one line, or a map that fits together."""
    whole = json.loads(gzip.decompress(plan_file([program_map(planned("mlp"))])))
    rng, refused = np.random.default_rng(0), 0
    for _ in range(400):
        (tmp_path / PLANS).write_bytes(gzip.compress(json.dumps(odd_values(rng, whole)).encode(), 1))
        try:
            found = read_plan_file(tmp_path / PLANS)
        except FileError as error:
            refused += 1
            assert "\n" not in str(error) and str(tmp_path / PLANS) in str(error)
            continue
        for section in sections(Programs(found)):
            assert section.title is not None
    assert 100 < refused < 400


def test_bytes_that_are_no_file_of_maps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / PLANS
    good = plan_file([program_map(planned("mlp"))])
    for data in (
        b"",
        b"\x1f\x8b",
        good[:-20],
        gzip.compress(b"[]"),
        gzip.compress(b"\xff"),
        gzip.compress(b'{"format": 1}'),
    ):
        path.write_bytes(data)
        with pytest.raises(FileError, match="holds no memory maps"):
            read_plan_file(path)
    path.write_bytes(gzip.compress(b" " * ((1 << 26) + 1)))
    with pytest.raises(FileError, match="more than 64 MiB"):
        read_plan_file(path)


def test_a_report_names_a_file_of_maps_that_cannot_be_read(tmp_path: Path) -> None:
    fitted(run=tmp_path, epochs=1)
    (tmp_path / PLANS).write_bytes(b"no")
    made = report(tmp_path)
    assert "Memory" not in made.facts["sections"] and f"{tmp_path / PLANS}: holds no memory maps" in made.html
