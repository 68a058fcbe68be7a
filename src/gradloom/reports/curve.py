"""Memory against time of a step, as a small drawing that needs no script, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.memory import show_bytes
from .page import Table, table_html

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 16, 52
TITLE = "Memory and predicted time of a step: recomputation under ever smaller budgets"


def memory_time_curve(points: Sequence[tuple[int, float]]) -> str:
    """HTML of (bytes, relative time) points; the first one is that without a budget."""
    ordered = sorted(points)
    sizes, times = [size for size, _ in ordered], [time for _, time in ordered]
    margin = max((sizes[-1] - sizes[0]) * 0.08, 1.0)
    low, high = max(sizes[0] - margin, 0.0), sizes[-1] + margin
    slow = max(max(times) * 1.02, 1.1)
    x = [LEFT + (size - low) / (high - low) * (WIDTH - LEFT - RIGHT) for size in sizes]
    y = [TOP + (slow - time) / (slow - 0.98) * (HEIGHT - TOP - BOTTOM) for time in times]
    path = " ".join(f"{'L' if i else 'M'}{a:.1f} {b:.1f}" for i, (a, b) in enumerate(zip(x, y, strict=True)))
    dots = "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4"><title>{show_bytes(size)}: ×{time:.3f}</title></circle>'
        for a, b, (size, time) in zip(x, y, ordered, strict=True)
    )
    bottom = HEIGHT - BOTTOM
    grid = "".join(
        f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">×{value:.2f}</text>'
        for value, at in _levels(slow, bottom)
    )
    sides = "".join(
        f'<text x="{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}" y="{bottom + 20}" text-anchor="middle">'
        f"{show_bytes(round(low + share * (high - low)))}</text>"
        for share in (0.06, 0.35, 0.65, 0.94)
    )
    label = f"{len(points)} points from {show_bytes(sizes[0])} at ×{times[0]:.2f} to {show_bytes(sizes[-1])}"
    drawing = (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{TITLE}: {label}">{grid}{sides}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">memory of the run</text>'
        f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/><path class="curve-line" d="{path}"/>{dots}</svg>'
    )
    rows = [(show_bytes(size), size, f"×{time:.3f}") for size, time in points]
    note = "A budget is the peak of the process and a reserve, which the run may need beyond its plan."
    twin = table_html(Table(("memory", "bytes", "time of a step"), rows, f"{len(points)} points"))
    return f"<figure><figcaption>{TITLE}</figcaption>{drawing}<p>{note}</p>{twin}</figure>"


def _levels(slow: float, bottom: int) -> list[tuple[float, float]]:
    """(relative time, y) of the lines of the grid."""
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, slow) if (slow - 1) / step <= 5)
    found = []
    value = 1.0
    while value <= slow:
        found.append((value, TOP + (slow - value) / (slow - 0.98) * (bottom - TOP)))
        value += step
    return found
