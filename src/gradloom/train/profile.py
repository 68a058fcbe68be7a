"""The profile of a training step."""

from __future__ import annotations

import numpy as np

from ..data.dataset import Dataset
from ..graph.value import builds_graphs
from ..run.profile import Profile
from .batches import RowRange, cut
from .trainer import Trainer


@builds_graphs
def profile_step(trainer: Trainer, data: Dataset, batch_size: int, micro_batch_size: int, steps: int) -> Profile:
    """Time the last micro-batch of an optimiser step on the first rows of the data, with its update. Nothing is
    trained: weights, moments and sums are restored. steps: how many are timed.

    Raises as Executable.profile; NonFiniteError where the step is not finite."""
    driver, source = trainer.driver, trainer.source(data)
    rows = RowRange(source, 0, min(batch_size, data.n), batch_size, micro_batch_size, True)
    source.reserve(rows.count)
    source.load(0, rows.count, rows.count, True)
    with trainer.claim, trainer.training():
        trainer.cache.refresh(True)
        groups = list(cut(rows, driver.keeps_gradients, True, False))
        step = driver.program_for(rows, groups[-1])
        if step.join is not None:
            driver.joins.fill(rows)
        settings = driver.settings_of(groups[-1], 1, True)
        numbers = {name: np.broadcast_to(np.asarray(value), (1,))[0] for name, value in settings.items()}
        profile: Profile = step.run.profile({name: numbers[name] for name in step.run.settings}, steps)
        return profile
