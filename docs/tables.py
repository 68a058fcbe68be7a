"""Writes the tables of docs/tables.md: python docs/tables.py [FOLDER]      (default: here)"""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path


def write_tables(folder: Path) -> None:
    """Write the tables into `folder`, the same bytes each time (any Python draws these numbers)."""
    (folder / "churn.csv").write_text("\n".join(["months,calls,charge,plan,churn", *_customers()]) + "\n")
    (folder / "houses.csv").write_text("\n".join(["area,rooms,zip,price", *_houses()]) + "\n")
    head = "height,pressure,humidity,sky,warmest,rain,wind"
    (folder / "weather.csv").write_text("\n".join([head, *_weather()]) + "\n")
    (folder / "demand.csv").write_text("\n".join(["day,price,yesterday,demand", *_days()]) + "\n")


def _customers(count: int = 2000) -> list[str]:
    draw, rows = random.Random(1).random, []
    for _ in range(count):
        months, calls, charge = 1 + int(71 * draw()), int(6 * draw()), 20 + 80 * draw()
        leaves = draw() < 0.035 + 0.09 * (months < 24) + 0.012 * calls + 0.001 * (charge - 20)
        plan = ("basic", "family", "business")[int(3 * draw())]
        rows.append(f"{months},{calls},{charge:.2f},{plan},{'yes' if leaves else 'no'}")
    return rows


def _houses(count: int = 1500) -> list[str]:
    draw, rows = random.Random(2).random, []
    codes = [f"{10000 + int(89999 * draw()):05d}" for _ in range(24)]
    worth = [draw() for _ in codes]  # of a place: nothing that its number tells
    for _ in range(count):
        place, area, rooms = int(24 * draw()), 40 + 160 * draw(), 1 + int(6 * draw())
        price = 30_000 + 900 * area + 260_000 * worth[place] + 40_000 * (draw() + draw() - 1)
        rows.append(f"{area:.1f},{rooms},{codes[place]},{price:.0f}")
    return rows


def _weather(count: int = 1200) -> list[str]:
    draw, rows = random.Random(4).random, []
    for _ in range(count):
        height, pressure, humidity = int(1500 * draw()), 990 + 40 * draw(), 30 + 70 * draw()
        sky = ("clear", "mixed", "overcast")[int(3 * draw())]
        warmest = 28 - 0.0065 * height + 0.15 * (pressure - 1010) - 4 * (sky == "overcast") + 4 * (draw() - 0.5)
        rain = draw() < 0.02 + 0.5 * (humidity > 70) + 0.4 * (sky == "overcast") - 0.01 * (pressure - 1010)
        wind = ("calm", "breeze", "storm")[(pressure < 1018 + 8 * (draw() - 0.5)) + (pressure < 998)]
        measured = f"{'yes' if rain else 'no'},{'' if draw() < 0.3 else wind}"  # not all stations measure the wind
        rows.append(f"{height},{pressure:.1f},{humidity:.0f},{sky},{warmest:.1f},{measured}")
    return rows


def _days(count: int = 900) -> list[str]:
    draw, rows, level, demand = random.Random(7).random, [], 200.0, 200.0
    for number in range(count):
        day = datetime.date(2023, 1, 1) + datetime.timedelta(days=number)
        level += 8 * (draw() + draw() + draw() - 1.5)  # what one day adds stays in all that follow
        price, yesterday = 4 + draw(), demand
        demand = level + 6 * (day.weekday() >= 5) - 10 * (price - 4.5) + 4 * (draw() - 0.5)
        rows.append(f"{day},{price:.2f},{yesterday:.1f},{demand:.1f}")
    return rows


if __name__ == "__main__":
    write_tables(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
