"""What `gradloom fit` reaches on three real tables, without an option beyond --target: held-out rows, seeds 0, 1, 2.

    python examples/tabular.py FOLDER

FOLDER holds iris.csv and winequality-red.csv (UCI, without header, the target last) and california-housing.csv
(StatLib, with header). A table that is not there is left out, and said.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import tempfile
from pathlib import Path

from gradloom.cli.main import main as gradloom

TABLES: tuple[tuple[str, list[str], str], ...] = (
    ("iris.csv", [], "test_accuracy"),
    ("winequality-red.csv", [], "test_accuracy"),
    ("california-housing.csv", ["--target", "median_house_value"], "test_r2"),
)


def main(folder: Path) -> int:
    print(f"{'table':<24}{'measure':<16}{'seed 0':>8}{'seed 1':>8}{'seed 2':>8}{'median':>8}{'seconds':>9}")
    for name, options, measure in TABLES:
        if not (folder / name).exists():
            print(f"{name:<24}not in {folder}")
            continue
        found = []
        with tempfile.TemporaryDirectory() as out:
            for seed in ("0", "1", "2"):
                command = ["fit", str(folder / name), *options, "--seed", seed, "--json", "--out", out]
                said = io.StringIO()
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    code = gradloom(command)
                if code:
                    print(said.getvalue(), end="", file=sys.stderr)
                    return code
                found.append(json.loads(said.getvalue().splitlines()[-1]))
        values = [f[measure] for f in found]
        shown = "".join(f"{v:>8.4f}" for v in [*values, statistics.median(values)])
        print(f"{name:<24}{measure:<16}{shown}{statistics.median(f['seconds'] for f in found):>9.2f}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/tabular.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
