"""Figures of a report as pictures for slides: drawn by matplotlib from the numbers of the page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import FileError, SettingError
from ..base.extras import optional
from ..base.reasons import unwritten
from ..base.terminal import in_one_line
from ..files.atomic import atomic_write
from .page import Figure

KINDS = ("png", "svg", "pdf")
_DOTS = 200  # per inch
_NAME = re.compile(r"[^A-Za-z0-9]+")


def save_pictures(figures: Sequence[Figure], folder: str | os.PathLike[str], kind: str) -> list[Path]:
    """Write each figure that is a plot into a folder, which is created if missing; returns the files: "01-loss.png".

    kind: one of KINDS. BackendError without matplotlib, FileError where a file cannot be written."""
    if kind not in KINDS:
        raise SettingError(setting="kind", seen=kind, need=f"one of {', '.join(KINDS)}")
    backend = optional("matplotlib.figure", "save_figures", "plot")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: {unwritten(error)}") from None
    made: list[Path] = []
    for figure in figures:
        draw = _DRAWN.get(figure.kind)
        if draw is None:  # a memory map, tokens
            continue
        picture = backend.Figure(figsize=(7, 4.2), layout="constrained")
        axis = picture.subplots()
        draw(axis, figure)
        axis.set_title(_text(figure.title), loc="left", fontsize=11)
        name = _NAME.sub("-", figure.title.partition(",")[0].partition(":")[0]).strip("-").lower()[:40]
        path = Path(folder) / f"{len(made) + 1:02d}-{name or 'figure'}.{kind}"
        with atomic_write(path) as file:
            picture.savefig(file, format=kind, dpi=_DOTS)
        made.append(path)
    return made


def _text(text: object) -> str:
    """A text as it is: matplotlib reads text between two $ as a formula."""
    return in_one_line(str(text)).replace("$", r"\$")


def _colour(number: int) -> str:
    return f"C{number - 1}"


def _curves(axis: Any, figure: Figure) -> None:
    facts, arrays = figure.facts, figure.arrays
    for i, curve in enumerate(facts["curves"]):
        x, y = (np.asarray(arrays[f"{name}{i}"], np.float64) for name in "xy")
        style = {"color": _colour(curve["colour"]), "linestyle": "--" if curve["dashed"] else "-"}
        axis.plot(x, y, marker="." if len(x) <= 60 else "", label=_text(curve["name"]), **style)
        if curve["band"]:
            spread = np.nan_to_num(np.asarray(arrays[f"s{i}"], np.float64))
            axis.fill_between(x, y - spread, y + spread, color=_colour(curve["colour"]), alpha=0.2, linewidth=0)
    axis.set(xlabel=facts["axis"], ylabel=facts["unit"])
    axis.legend()


def _xy(axis: Any, figure: Figure) -> None:
    facts, arrays = figure.facts, figure.arrays
    for i, one in enumerate(facts["series"]):
        x, y = (np.asarray(arrays[f"{name}{i}"], np.float64) for name in "xy")
        colour, label = _colour(one["colour"]), _text(one["name"])
        if one["line"]:
            axis.plot(x, y, color=colour, linestyle="--" if one.get("dashed") else "-", label=label)
        else:
            axis.plot(x, y, ".", color=colour, markersize=3, alpha=0.5, label=label)
        if f"l{i}" in arrays:
            low, high = (np.asarray(arrays[f"{name}{i}"], np.float64) for name in "lh")
            ends = np.maximum([y - low, high - y], 0.0)  # float32 numbers that are equal as float64
            axis.errorbar(x, y, ends, color=colour, fmt="o", markersize=4)
    if facts.get("diagonal"):
        axis.axline((0, 0), slope=1, color="grey", linestyle=":", linewidth=1)
    axis.set(xlabel=facts["x"], ylabel=facts["y"], xlim=facts.get("x_limits"), ylim=facts.get("y_limits"))
    if len(facts["series"]) > 1 or facts["series"][0].get("named"):
        axis.legend(fontsize=8)


def _bars(axis: Any, figure: Figure) -> None:
    names = [_text(name) for name in figure.arrays["names"]]
    value, error = (np.asarray(figure.arrays[name], np.float64) for name in ("value", "error"))
    error = np.nan_to_num(error)
    colours = ["lightgrey" if weak else "C0" for weak in abs(value) <= 2 * error]  # as the page has them
    axis.barh(np.arange(len(names)), value, xerr=error, color=colours)
    axis.set_yticks(np.arange(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel(figure.facts["x"])


def _counts(axis: Any, figure: Figure) -> None:
    axis.stairs(np.asarray(figure.arrays["rows"]), np.asarray(figure.arrays["edges"]), fill=True)
    axis.set(xlabel=figure.facts["x"], ylabel=figure.facts.get("unit", "rows"))


def _matrix(axis: Any, figure: Figure) -> None:
    names = [_text(name) for name in figure.arrays["names"]]
    counts = np.asarray(figure.arrays["value"], np.int64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for r, c in np.ndindex(counts.shape):
        axis.text(c, r, f"{counts[r, c]}", ha="center", va="center", color="white" if shares[r, c] > 0.55 else "black")
    axis.set_xticks(np.arange(len(names)), names, rotation=45 if max(map(len, names)) > 4 else 0)
    axis.set_yticks(np.arange(len(names)), names)
    axis.set(xlabel="predicted", ylabel="true")


def _heat(axis: Any, figure: Figure) -> None:
    facts, arrays = figure.facts, figure.arrays
    steps, shade = (np.asarray(arrays[name], np.float64) for name in ("step", "shade"))
    names = facts["names"]
    shades = np.where(shade == 255, np.nan, shade).reshape(len(steps), -1)
    columns = np.arange(len(steps) + 1.0)
    if names is None:
        for c, (low, high) in enumerate(zip(arrays["low"], arrays["high"], strict=True)):
            edges = np.linspace(float(low), max(float(high), float(low) + 1e-9), shades.shape[1] + 1)
            axis.pcolormesh(columns[c : c + 2], edges, shades[c][:, None], cmap="Blues", vmin=0, vmax=254)
    else:
        axis.pcolormesh(columns, np.arange(len(names) + 1.0), shades.T, cmap="Blues", vmin=0, vmax=254)
        axis.set_yticks(np.arange(len(names)) + 0.5, [_text(name) for name in names], fontsize=6)
        axis.invert_yaxis()
    kept = np.unique(np.linspace(0, len(steps) - 1, 6).astype(int))
    axis.set_xticks(kept + 0.5, [f"{steps[k]:g}" for k in kept])
    axis.set_xlabel(facts["axis"])


def _roofline(axis: Any, figure: Figure) -> None:
    arrays, roofs = figure.arrays, figure.facts["roofs"]
    x, y, share = (np.asarray(arrays[name], np.float64) for name in ("intensity", "speed", "share"))
    axis.scatter(x, y, 20 + 2000 * share, alpha=0.6)
    for name, at, height in list(zip(arrays["names"], x, y, strict=True))[:5]:
        axis.annotate(_text(name), (at, height), fontsize=8)
    flat = min((roof["rate"] for roof in roofs if not roof["per_byte"]), default=np.inf)
    across = np.geomspace(min([*x, 0.1]), max([*x, 100.0]), 200)
    for roof in roofs:
        height = np.minimum(across * roof["rate"], flat) if roof["per_byte"] else np.full(across.shape, flat)
        unit = "GB/s" if roof["per_byte"] else "GFLOP/s"
        axis.plot(across, height, linewidth=1, label=f"{roof['name']} {roof['rate']:.4g} {unit}")
    axis.set(xlabel="FLOP per byte", ylabel="GFLOP/s", xscale="log", yscale="log")
    if roofs:
        axis.legend(fontsize=8)


_DRAWN: dict[str, Callable[[Any, Figure], None]] = {
    "curves": _curves, "xy": _xy, "bars": _bars, "counts": _counts, "matrix": _matrix,
    "roofline": _roofline, "heat": _heat,
}  # fmt: skip
