"""A kernel that is wrong in one element, for tests of the tools that find it."""

from __future__ import annotations

import numpy as np

from gradloom.run import walk as walks


class WrongKernel:
    """A kernel whose results are wrong in one element, from now on. least: instructions of the programs where it is."""

    def __init__(self, monkeypatch, name, least=0):
        right = walks.Walk.run_step

        def run_step(walk, k):
            right(walk, k)
            if walk.steps[k].op.name == name and len(walk.steps) >= least:
                for _, array in walk.written(k):
                    if array.dtype == np.float32 and array.flags.writeable:
                        array.reshape(-1)[-1] += 0.25

        monkeypatch.setattr(walks.Walk, "run_step", run_step)
