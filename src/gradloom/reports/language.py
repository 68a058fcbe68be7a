"""Sections of language models: the loss of each token of validation samples, and rewards of preferences."""

from __future__ import annotations

import math

import numpy as np

from ..base.errors import GradloomError
from ..base.hooks import predicted_by_run
from ..llm.validation import BAD, GOOD, MARGINS, Predicted, Sample, predicted
from .figures import histogram_figure
from .page import Figure, Section, Table
from .run_files import RunFiles
from .summary import Score

_SHOWN = 4  # samples
_LONGEST = 600  # tokens of a sample
TOKENS, REWARDS = "Token losses", "Rewards of validation samples"


def validation_sections(run: RunFiles, of: str, left_out: list[str]) -> list[Section]:
    """The predictions of a fine-tuned model on its validation rows, computed now; the reason in one line where that
    cannot be done; nothing for other runs. left_out: takes that line."""
    if run.kind != "finetune" or (run.live is None and run.settings_file is None):
        return []
    try:
        found = _predicted(run)
    except GradloomError as error:
        left_out.append(f"validation samples of {run.name}: left out: {error}")
        return [Section(f"Validation samples{of}", [f"Left out: {error}."])]
    if found is None:
        return []
    if found.samples:
        return [_token_section(found, of)]
    return [_reward_section(found, of)] if found.rewards else []


def _predicted(run: RunFiles) -> Predicted | None:
    live = run.live
    if live is not None:
        return predicted(live.forward, live.objective, live.data, **live.trainer.options)
    assert run.settings_file is not None
    found: Predicted | None = predicted_by_run(run.settings_file, run.about)
    return found


def _rows(found: Predicted) -> str:
    if found.rows == found.of_rows:
        return f"all {found.rows:,} validation rows"
    return f"{found.rows:,} of {found.of_rows:,} validation rows, evenly spaced"


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _token_section(found: Predicted, of: str) -> Section:
    mean, error, count = found.loss
    chosen = _chosen(found.samples)
    text = (
        f"Computed now by the saved weights on {_rows(found)}: {count:,} tokens that count in {len(found.samples):,} "
        f"samples. The loss of a token is -log of its probability after the tokens before it. Shown are the samples "
        f"with the largest mean losses and those nearest to the median. Grey tokens do not count."
    )
    numbers = [("mean loss of a token", f"{Score(mean, error)}"), ("perplexity", f"{_exp(mean):.5g}")]
    return Section(f"{TOKENS}{of}", [text], numbers, figures=[token_figure(found.samples[k], k) for k in chosen])


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _chosen(samples: list[Sample]) -> list[int]:
    """Numbers of samples: half of them those with the largest means, the others nearest to the median."""
    means = np.array([sample.mean for sample in samples])
    order = np.argsort(-means, kind="stable").tolist()
    worst = order[: _SHOWN // 2]
    typical = [k for k in np.argsort(abs(means - np.median(means)), kind="stable").tolist() if k not in worst]
    return worst + typical[: _SHOWN - len(worst)]


def token_figure(sample: Sample, number: int) -> Figure:
    """A sample as text whose tokens are shaded by their losses. number: among the samples, from 0."""
    count = len(sample.tokens)
    tokens, losses = sample.tokens[:_LONGEST], sample.losses[:_LONGEST]
    rows = [
        (k, token, *(("", "") if math.isnan(loss) else (f"{loss:.4f}", f"{math.exp(-loss):.3g}")))
        for k, (token, loss) in enumerate(zip(tokens, losses.tolist(), strict=True), 1)
    ]
    counted = int((~np.isnan(sample.losses)).sum())
    cut = "" if count <= _LONGEST else f", the first {_LONGEST} of {count:,} tokens"
    largest = int(np.nanargmax(losses)) if not np.isnan(losses).all() else 0
    return Figure(
        "tokens",
        f"Validation sample {number + 1}: mean loss {sample.mean:.4f} of {counted:,} tokens{cut}",
        f"Text of {count:,} tokens shaded by their losses; the largest is that of token {largest + 1}, "
        f"{tokens[largest]!r:.60}: {float(losses[largest]):.4g}.",
        Table(("number", "token", "loss", "probability"), rows, "" if not cut else f"{_LONGEST} of {count:,} tokens"),
        {},
        {"tokens": tokens, "losses": losses.astype(np.float32)},
    )


# ---- rewards ---------------------------------------------------------------------------------------------------------


def _reward_section(found: Predicted, of: str) -> Section:
    numbers, figures = [], []
    every = np.concatenate([*found.rewards.values()])
    ends = float(every.min()), float(every.max())
    for name, values in found.rewards.items():
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        unit = "pairs" if name == MARGINS else "completions"
        label = "mean margin" if name == MARGINS else f"mean reward of {name}"
        numbers.append((label, str(Score(float(values.mean()), float(error)))))
        title = "Margins: reward of the chosen minus the rejected completion" if name == MARGINS else f"Rewards: {name}"
        noun = "margins of pairs" if name == MARGINS else f"rewards of {name}"
        x = "margin" if name == MARGINS else "reward"
        figures.append(histogram_figure(values, f"{title}, {len(values):,} validation {unit}", noun, x, unit, ends))
    if MARGINS in found.rewards:
        values = found.rewards[MARGINS]
        share, n = float((values > 0).mean()), len(values)
        error = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.nan
        numbers.append(("pairs with a positive margin", str(Score(share, error))))
    elif GOOD in found.rewards and BAD in found.rewards:
        numbers.append(("difference of the means", f"{found.rewards[GOOD].mean() - found.rewards[BAD].mean():.5g}"))
    text = (
        f"Computed now by the saved weights on {_rows(found)}. Rewards are those of the objective, as the log has them."
    )
    return Section(f"{REWARDS}{of}", [text], numbers, figures=figures)
