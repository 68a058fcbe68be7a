"""Listeners, schedules and clipping under a real mpiexec: all ranks end together, with the bits of one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.parallel.mpi import needs_mpi, run

pytestmark = needs_mpi
SCRIPT = Path(__file__).parent / "stopping.py"


@pytest.mark.slow
def test_all_ranks_stop_where_one_does():
    said = set()
    for ranks in (1, 2, 3):
        ended = run(ranks, SCRIPT)
        assert ended.code == 0, ended.err
        said.update(ended.out.splitlines())
    (only,) = said
    epochs, more, passes, rows, _, last = ast.literal_eval(only.split("] {")[0] + "]")
    assert epochs < 40 and more == [epochs + 1, epochs + 2] and (passes, rows, last) == (1, 36, epochs + 2)
