"""Curves hold the numbers of the log; points that are left out keep the extremes and are counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.reports.curves import (
    EPOCH,
    EPOCHS,
    STEP,
    TRAINING,
    VALIDATION,
    Chart,
    Curve,
    charts_of,
    extremes,
    lines_of,
)
from gradloom.reports.figures import chart_figures
from gradloom.reports.page import page
from gradloom.reports.run_report import report
from gradloom.runs.log_files import read_metrics


def by_name(charts: list[Chart]) -> dict[str, dict[str, Curve]]:
    return {chart.name: {curve.name: curve for curve in chart.curves} for chart in charts}


def train_line(step: int, **more: Any) -> dict[str, Any]:
    base = {"kind": "train", "step": step, "epoch": 1, "time": 1e9 + step, "seconds": float(step), "loss": 1 / step}
    return {**base, "lr": 0.1, "rows": 32 * step, "rows_per_second": 640.0, **more}


def test_curves_are_the_lines_of_the_log() -> None:
    lines = [
        train_line(10, accuracy=0.5, grad_norm=2.0),
        {"kind": "evaluation", "step": 10, "epoch": 1, "val_loss": 0.8, "val_loss_unc": 0.1, "clean.loss": 0.7},
        train_line(20, accuracy=0.6, grad_norm=1.0),
        {"kind": "epoch", "step": 20, "epoch": 1, "loss": 0.3, "loss_unc": 0.02, "val_loss": 0.6, "lr": 0.1},
        train_line(30, loss=None, not_finite={"loss": "nan"}, accuracy=0.7),
        {"kind": "evaluation", "step": 30, "epoch": 2, "val_loss": 0.5, "clean.loss": 0.4},
    ]
    found = by_name(charts_of(lines))
    assert list(found) == ["loss", "accuracy", "learning rate", "seconds per step", "gradient norm"]
    loss = found["loss"]
    assert list(loss) == [TRAINING, EPOCHS, VALIDATION, "clean"]
    assert loss[TRAINING].step.tolist() == [10, 20, 30] and math.isnan(loss[TRAINING].value[2])
    assert loss[EPOCHS].value.tolist() == [0.3] and loss[EPOCHS].spread is not None
    assert loss[VALIDATION].step.tolist() == [10, 20, 30] and loss[VALIDATION].value.tolist() == [0.8, 0.6, 0.5]
    spread = loss[VALIDATION].spread
    assert spread is not None and spread[0] == 0.1 and np.isnan(spread[1:]).all()
    assert loss["clean"].value.tolist() == [0.7, 0.4]
    assert found["accuracy"][TRAINING].value.tolist() == [0.5, 0.6, 0.7]
    assert found["learning rate"]["all parameters"].logged == 3
    assert np.allclose(found["seconds per step"][TRAINING].value, 32 / 640)
    assert found["gradient norm"]["last step"].value.tolist() == [2.0, 1.0]


def test_an_epoch_line_after_its_evaluation_is_no_second_point() -> None:
    lines = [
        {"kind": "evaluation", "step": 5, "epoch": 1, "val_loss": 0.8},
        {"kind": "epoch", "step": 5, "epoch": 1, "loss": 1.0, "val_loss": 0.8},
    ]
    assert by_name(charts_of(lines))["loss"][VALIDATION].step.tolist() == [5]


def test_rates_of_groups_are_curves_of_their_own() -> None:
    lines = [train_line(step, **{"head.*.lr": 0.01}) for step in (1, 2)]
    assert list(by_name(charts_of(lines))["learning rate"]) == ["other parameters", "head.*"]


def test_lines_with_any_content_are_read() -> None:
    """A file of strangers: other types, huge numbers, missing steps."""
    odd: list[dict[str, Any]] = [
        {"kind": "train", "step": "x", "loss": 1.0},
        {"kind": "train", "step": 3, "loss": [1], "accuracy": True, "lr": 10**400},
        {"kind": ["train"], "step": 4, "loss": 2.0},
        {"loss": {"a": 1}},
        {"kind": "train", "step": 5, "loss": 0.5, "rows": "many", "rows_per_second": 0},
    ]
    assert by_name(charts_of(odd))["loss"][TRAINING].step.tolist() == [3, 5]
    assert charts_of([]) == []


@pytest.mark.parametrize("n", [7, 2000, 2001, 50_000])
def test_thinning_keeps_extremes_and_ends(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(size=n).cumsum()
    values[n // 2], values[n // 3] = 1e6, -1e6
    curve = Curve("a", np.arange(n, dtype=np.float64), values, abs(values), n)
    found = curve.thinned(2000)
    assert len(found.step) <= 2000 and found.logged == n
    assert found.step[0] == 0 and found.step[-1] == n - 1 and (np.diff(found.step) > 0).all()
    assert found.value.max() == 1e6 and found.value.min() == -1e6
    assert np.array_equal(found.value, values[found.step.astype(int)]) and found.spread is not None
    assert np.array_equal(found.spread, abs(found.value))
    if n <= 2000:
        assert found is curve


def test_thinning_of_gaps() -> None:
    values = np.full(100, np.nan)
    values[40:60] = np.arange(20)
    kept = extremes(values, 20)
    assert len(kept) <= 20 and np.nanmax(values[kept]) == 19 and np.nanmin(values[kept]) == 0


def test_ten_thousand_steps_stay_within_600_kb() -> None:
    rng = np.random.default_rng(0)
    lines = []
    for step in range(1, 10_001):
        numbers = rng.random(6).tolist()
        more = dict(
            zip(("loss", "accuracy", "grad_norm", "grad_norm_mean", "lr", "rows_per_second"), numbers, strict=True)
        )
        more |= {"memory_bytes": int(rng.integers(1 << 30)), "memory_peak_bytes": 1 << 30}
        lines.append(train_line(step, **more))
        if step % 10 == 0:
            lines.append({"kind": "evaluation", "step": step, "epoch": 1, "val_loss": numbers[0], "val_loss_unc": 0.1})
    figures = chart_figures([[("run", chart)] for chart in charts_of(lines)])
    assert len(figures) == 6
    assert figures[0].title == "loss, 3,000 of 11,000 points drawn"
    from gradloom.reports.page import Section

    size = len(page("Run", [Section("Curves", figures=figures)]).encode())
    assert size < 600_000, size


def test_the_figure_has_the_numbers_of_the_curve() -> None:
    curve = Curve(
        TRAINING, np.array([1.0, 2.0, 4.0]), np.array([0.1, np.nan, 0.3]), np.array([0.01, np.nan, np.nan]), 3
    )
    (figure,) = chart_figures([[("run", Chart("loss", "", (curve,)))]])
    assert figure.arrays["x0"].dtype == np.uint32 and figure.arrays["x0"].tolist() == [1, 2, 4]  # type: ignore[union-attr]
    assert np.array_equal(figure.arrays["y0"], np.float32([0.1, np.nan, 0.3]), equal_nan=True)  # type: ignore[arg-type]
    assert figure.facts["range"] == [1.0, 4.0] and figure.facts["curves"][0]["band"] is True
    assert figure.table.rows == [
        ("1", TRAINING, "0.1", "0.01"), ("2", TRAINING, "not finite", ""), ("4", TRAINING, "0.3", ""),
    ]  # fmt: skip
    assert "training ends at 0.3" in figure.label


def test_one_point_has_a_range() -> None:
    curve = Curve(TRAINING, np.array([7.0]), np.array([1.0]), None, 1)
    (figure,) = chart_figures([[("run", Chart("loss", "", (curve,)))]])
    assert figure.facts["range"] == [6.0, 8.0]


# ---- a History -------------------------------------------------------------------------------------------------------


def trained(**options: Any) -> gl.train.History:
    x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
    net = gl.nn.Sequential(gl.nn.Linear(4, 8), gl.nn.ReLU(), gl.nn.Linear(8, 2))
    return gl.fit(net, (x, x[:, :2] * 2), epochs=3, loss="mse", batch_size=32, progress=False, **options)


def test_a_history_has_every_step_and_epoch() -> None:
    history = trained(val_split=0.2)
    lines, axis = lines_of(history)
    found = by_name(charts_of(lines, axis))
    assert axis == STEP and list(found) == ["loss", "learning rate", "seconds per step", "gradient norm"]
    loss = found["loss"]
    assert loss[TRAINING].step.tolist() == list(range(1, 13)) and loss[EPOCHS].step.tolist() == [4, 8, 12]
    assert loss[EPOCHS].value.tolist() == [epoch.train.loss for epoch in history]
    assert loss[EPOCHS].spread is not None and loss[EPOCHS].spread[0] == history[0].train.loss_unc
    assert loss[VALIDATION].value.tolist() == [epoch.val.loss for epoch in history if epoch.val]
    assert np.isclose(loss[TRAINING].value[:4].mean(), history[0].train.loss)
    norms = np.concatenate([epoch.train.grad_norms for epoch in history])
    assert np.array_equal(found["gradient norm"]["last step"].value, norms)
    assert np.allclose(found["seconds per step"]["mean of the epoch, with validation"].value[1:],
                       [epoch.seconds / 4 for epoch in history][1:])  # fmt: skip


def test_a_history_is_the_log_of_its_run(tmp_path: Path) -> None:
    history = trained(val_split=0.2, run=tmp_path / "run")
    of_log = by_name(charts_of(read_metrics(tmp_path / "run")))
    of_memory = by_name(charts_of(*lines_of(history)))
    assert np.array_equal(of_log["loss"][TRAINING].value, of_memory["loss"][EPOCHS].value)
    assert np.array_equal(of_log["loss"][VALIDATION].value, of_memory["loss"][VALIDATION].value)
    for name in ("step", "value"):
        one, other = (getattr(found["learning rate"]["all parameters"], name) for found in (of_log, of_memory))
        assert np.array_equal(one, other)


def test_a_history_without_steps_counts_epochs() -> None:
    history = trained()
    for epoch in history:
        epoch.train._norms.clear()
    lines, axis = lines_of(history)
    assert axis == EPOCH and by_name(charts_of(lines, axis))["loss"][TRAINING].step.tolist() == [1, 2, 3]
    assert "over epochs" in report(history).html


def test_lines_are_json(tmp_path: Path) -> None:
    lines, _ = lines_of(trained(val_split=0.2))
    assert json.loads(json.dumps(lines)) == lines
