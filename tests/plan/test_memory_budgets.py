"""A sample of bench/memory_budgets.py and bench/recompute_optimum.py: few budgets on small graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment

ROOT = Path(__file__).parents[2]


def bench(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"bench/{name}.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["lora", "full", "cnn", "mlp", "deep", "random"])
def test_random_budgets(graph: str) -> None:
    """Plans within their budgets, and the bits of a run without one; of one graph, the memory of a process."""
    processes = ("--processes", "1" if graph == "mlp" else "0")
    done = bench("memory_budgets", "--only", graph, "--small", "--budgets", "6", "--decoder-runs", "6", *processes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{graph} 6 "), done.stdout


def test_the_choice_is_near_the_best_one() -> None:
    """5 % of a step's time, in the mean over random graphs on which all choices are tried."""
    done = bench("recompute_optimum", "--graphs", "5", "--nodes", "7", "--budgets", "4")
    assert done.returncode == 0, done.stdout + done.stderr
