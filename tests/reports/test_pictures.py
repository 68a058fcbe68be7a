"""Pictures for slides are drawn from the numbers of the page's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.reports import pictures
from gradloom.reports.page import Figure, Table
from gradloom.reports.sections import figures_of
from gradloom.reports.time_section import roofline
from tests.reports.test_run_report import HOSTILE, churn  # noqa: F401
from tests.reports.test_time import ROWS, profile

pyplot = pytest.importorskip("matplotlib.figure")


def drawn(figure: Figure) -> Any:
    axis = pyplot.Figure().subplots()
    pictures._DRAWN[figure.kind](axis, figure)
    return axis


def test_every_plot_is_a_file(churn: Path, tmp_path: Path) -> None:  # noqa: F811
    made = gl.report(churn / "one")
    for kind, first in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        files = made.save_figures(tmp_path / kind, kind)
        plots = [figure for figure in figures_of(made.sections) if figure.kind != "memory_map"]
        assert len(files) == len(plots) and files[0].name == f"01-loss.{kind}"
        assert all(file.read_bytes().startswith(first) for file in files)


def test_a_roofline_is_drawn() -> None:
    figure = roofline(profile(*ROWS), "op")
    axis = drawn(figure)
    assert len(axis.get_lines()) == 3 and np.allclose(axis.collections[0].get_offsets()[0], [200.0, 50.0])


def test_the_numbers_are_those_of_the_figures(churn: Path) -> None:  # noqa: F811
    figures = {figure.kind: figure for figure in reversed(figures_of(gl.report(churn / "one").sections))}
    lines = drawn(figures["curves"]).get_lines()
    for i in range(len(figures["curves"].facts["curves"])):
        assert np.array_equal(lines[i].get_xdata(), figures["curves"].arrays[f"x{i}"])
        assert np.array_equal(lines[i].get_ydata(), figures["curves"].arrays[f"y{i}"])
    assert np.array_equal(drawn(figures["xy"]).get_lines()[0].get_ydata(), figures["xy"].arrays["y0"])
    bars = [bar.get_width() for bar in drawn(figures["bars"]).patches]
    assert np.array_equal(bars, figures["bars"].arrays["value"])
    cells = [text.get_text() for text in drawn(figures["matrix"]).texts]
    assert cells == [str(n) for n in np.ravel(figures["matrix"].arrays["value"])]


def test_names_are_no_formulas_and_no_paths(tmp_path: Path) -> None:
    names = [*HOSTILE, r"$\frac$", "../up"]  # the sixth is no valid formula
    arrays: dict[str, Any] = {"names": names, "value": np.ones(7, np.float32), "error": np.full(7, np.nan, np.float32)}
    figure = Figure("bars", "../../etc/$a_b$", "bars", Table((), ()), {"x": "lost"}, arrays)
    (file,) = pictures.save_pictures([figure], tmp_path / "new", "svg")
    assert file.parent == tmp_path / "new" and file.name == "01-etc-a-b.svg"


def test_bad_places_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(gl.FileError, match="file: cannot be written"):
        pictures.save_pictures([], tmp_path / "file", "png")
    with pytest.raises(gl.SettingError, match="bmp.*one of png, svg, pdf"):
        pictures.save_pictures([], tmp_path, "bmp")
