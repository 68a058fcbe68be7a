"""Seconds of the first command: whole processes, from start to exit, and their processor time; medians of rounds that
run each command once.

    python bench/start.py [--rounds 11]

`gradloom fit` trains a network on examples/data/digits.npz for one epoch; Python and NumPy alone are the limits.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from common import HERE, table

DIGITS = HERE.parent / "examples" / "data" / "digits.npz"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
    "python -c 'import gradloom'": ["-c", "import gradloom"],
    "gradloom --version": ["-m", "gradloom", "--version"],
    "gradloom --help": ["-m", "gradloom", "--help"],
    "gradloom fit digits.npz --epochs 1": ["-m", "gradloom", "fit", str(DIGITS), "--epochs", "1"],
}


def processor_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for k in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                began, used = time.perf_counter(), processor_seconds()
                subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=True)
                if k:  # the first round fills caches
                    seconds[name].append((time.perf_counter() - began, processor_seconds() - used))
    medians = {name: map(statistics.median, zip(*times, strict=True)) for name, times in seconds.items()}
    table(
        [(name, *(f"{number:.3f}" for number in numbers)) for name, numbers in medians.items()],
        (f"{rounds} rounds", "seconds", "processor"),
    )


if __name__ == "__main__":
    main()
