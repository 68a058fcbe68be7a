"""Reading tables: seconds and memory of a CSV file of 21 columns that is read and trained on for one epoch.

    python bench/read_csv.py [--megabytes 165]     2000: a file that must train within 1.5 GB (1430 MiB) beside

"beside" is the resident peak less what the process held after its imports and less the data's own arrays, the features
and labels. The process is one of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import rss_mib, table

MIB = 2**20


def write(path: Path, megabytes: int) -> None:
    """Rows of 20 numbers with 4 decimals and a class, 20,000 different ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 20)).round(4)
    rows = [",".join([*map(str, row.tolist()), str(int(row[0] + row[1] > 0))]) for row in x]
    block = "\n".join(rows) + "\n"
    with open(path, "w") as file:
        file.write(",".join([*(f"c{i}" for i in range(20)), "y"]) + "\n")
        for _ in range(max(round(megabytes * 1e6 / len(block)), 1)):
            file.write(block)


def train(path: str) -> dict[str, float]:
    import gradloom as gl
    from gradloom.data.reading.csv_file import read_csv

    net = gl.nn.Sequential(gl.nn.Linear(20, 64, activation="relu"), gl.nn.Linear(64, 2))
    base = rss_mib()
    began = time.perf_counter()
    cut = read_csv(path)
    cut_seconds = time.perf_counter() - began
    rows = cut.rows
    del cut
    began = time.perf_counter()
    data = gl.data.read_table(path, target="y")
    seconds = time.perf_counter() - began
    gl.fit(net, data.train, epochs=1, batch_size=500, seed=0)
    assert data.test is not None and data.train.labels is not None and data.test.labels is not None
    arrays = [data.train.data, data.train.labels, data.test.data, data.test.labels]
    own = sum(a.nbytes for a in arrays) / MIB
    return {"rows": rows, "cut": cut_seconds, "read": seconds, "peak": rss_mib() - base, "own": own}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=165)
    parser.add_argument("--train")
    given = parser.parse_args()
    if given.train:
        print(json.dumps(train(given.train)))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        write(path, given.megabytes)
        done = subprocess.run(
            [sys.executable, __file__, "--train", path], check=True, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        beside = found["peak"] - found["own"]
        row = (
            f"{path.stat().st_size / 1e6:.0f} MB, {found['rows']:,} rows",
            f"{found['cut']:.2f}", f"{found['read']:.2f}",
            f"{found['peak']:.0f}", f"{found['own']:.0f}", f"{beside:.0f}",
        )  # fmt: skip
    table([row], ("file", "cells, s", "table, s", "peak, MiB", "own arrays, MiB", "beside, MiB"))
