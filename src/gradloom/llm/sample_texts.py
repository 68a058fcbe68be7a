"""Texts that a model writes after given prompts while it is fine-tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..base.errors import DataError, SettingError
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from .generate import Generator, check_length, continued, prompt_ids
from .gpu_layers import GpuLayers
from .model import Adapter, Model
from .sampling import Sampling

EVERY, TOKENS = "100steps", 64  # when not said


@dataclass(frozen=True)
class SampledText:
    """What the model wrote after `prompt` when so many optimiser steps were done.

    ended: "end" (the model ended it), or "length"
    """

    step: int
    prompt: str
    text: str
    ended: str

    def as_dict(self) -> dict[str, Any]:
        """Its fields, as JSON has them."""
        return asdict(self)


class TextSampler:
    """Samples a text after each of several prompts, from a model with an adapter as it is at that moment.

    The generator's cache and programs are its own; it reads the weights and draws by (seed, place in the text), so that
    a training goes on as if nothing had been sampled.

    prompts      texts; special tokens in them count as such
    tokens       at most so many are sampled for each
    temperature  0 takes the likeliest token, above 0 draws by the seed

    Raises SettingError for settings out of range, DataError for a prompt that is empty or too long for the context.
    options go to gl.compile.
    """

    def __init__(
        self, model: Model, adapter: Adapter, prompts: Sequence[str], tokens: int, temperature: float, seed: int,
        layers: GpuLayers | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.prompts, self.tokens, self.how = tuple(prompts), tokens, Sampling(temperature, seed=seed)
        self._ids = [prompt_ids(model, prompt) for prompt in self.prompts]
        try:
            for ids in self._ids:
                check_length(model, ids, tokens)
        except DataError as error:
            raise DataError(f"{{sample_prompt}}: {error}", setting="sample_prompt") from None
        self.generator = Generator(model, adapter, max(map(len, self._ids)) + tokens, layers, **options)

    def prepare(self) -> None:
        """Compile the programs; nothing runs."""
        self.generator.prepare(max(map(len, self._ids)))

    @property
    def plans(self) -> list[Plan | Schedule]:
        """The plans of the programs that were compiled."""
        return self.generator.plans

    def texts(self, step: int) -> list[SampledText]:
        """A text for each prompt, after so many optimiser steps."""
        texts = []
        for prompt, ids in zip(self.prompts, self._ids, strict=True):
            self.generator.reset()
            written = continued(self.generator, ids, self.tokens, self.how)
            texts.append(SampledText(step, prompt, written.text, written.ended))
        return texts


def prompts_of(given: Any) -> tuple[str, ...]:
    """The prompts of a setting that is one text, several, or None."""
    prompts = () if given is None else (given,) if isinstance(given, str) else given
    if prompts == ():
        return prompts
    if not isinstance(prompts, (list, tuple)) or not prompts or not all(isinstance(text, str) for text in prompts):
        raise SettingError(setting="sample_prompt", seen=given, need="a text, or a list of texts", place="finetune")
    return tuple(prompts)
