"""Profiles of language models: a fine-tuning step on random tokens, a chunk of a prompt, and one generated token."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import SettingError
from ..run.profile import Profile
from ..train.profile import profile_step
from .finetune import Run
from .generate import CHUNK, Generator
from .model import Adapter, Model
from .packing import TokenData
from .rows import CONTEXT
from .samples import Report


def profile_tuning(run: Run, steps: int) -> Profile:
    """The profile of a step of a fine-tuning, which stays untrained: of its last micro-batch, with the update.

    Labels that a reference model or a teacher computes are 0."""
    return profile_step(run.trainer, run.dataset, run.batch_size, run.micro_batch_size, steps)


def random_rows(model: Model, context: int | None, rows: int, seed: int) -> TokenData:
    """Rows of random tokens whose labels all count."""
    length = context_of(model, context)
    ids = np.random.default_rng(seed).integers(0, model.config.vocab_size, (rows, length + 1), np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)).copy()
    return TokenData(ids[:, :-1].copy(), positions, ids[:, 1:].copy(), Report())


def context_of(model: Model, context: int | None) -> int:
    """The tokens of a row; SettingError for a number that the model does not take."""
    limit = model.config.context_length
    length = min(CONTEXT, limit) if context is None else context
    if not 2 <= length <= limit:
        raise SettingError(setting="context", seen=context, need=f"2 to {limit}, the model's context", place="profile")
    return length


def profile_generation(
    model: Model, adapter: Adapter | None, context: int | None, steps: int, **options: Any
) -> dict[str, Profile]:
    """The profiles of the last chunk of a prompt and of one token, at the end of a text of `context` tokens. options:
    as for Generator."""
    length = context_of(model, context)
    generator = Generator(model, adapter, length, **options)
    generator.prepare(length)
    profiles = {}
    for name, n in (("prompt", CHUNK), ("token", 1)):
        begin = max(length - n, 0)
        feeds: dict[str, Any] = {"tokens": np.zeros((1, n), np.int32), "cache.position": begin}
        feeds["positions"] = begin + np.arange(n, dtype=np.int32)[None]
        if n > 1:
            feeds["last"] = np.array([min(n, length) - 1], np.int32)
        profiles[f"{name} of {n}" if n > 1 else name] = generator.programs[n].profile(feeds, steps)
    return profiles
