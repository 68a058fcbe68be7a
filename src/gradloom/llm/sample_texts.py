"""Sampled texts: completions of given prompts during fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..base.errors import DataError, FileError, SettingError
from ..base.messages import log
from ..base.schema import items, table, text, whole
from ..files.atomic import write_inside
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..runs.events import Subscriber
from ..runs.folder import RunFolder
from .generate import Generator, check_length, continued, prompt_ids
from .gpu_layers import GpuLayers
from .model import Adapter, Model
from .sampling import Sampling

EVERY, TOKENS = "100steps", 64  # defaults
SAMPLES = "samples.jsonl"  # in the folder of a run
_SAMPLE = table({"step": whole(), "prompt": text, "text": text, "ended": text})
SAMPLES_OF_STATE = items(_SAMPLE)


@dataclass(frozen=True)
class SampledText:
    """The completion of `prompt` after `step` optimiser steps.

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
    """Samples a completion of each of several prompts, from a model with an adapter as it is at that moment.

    The generator has its own cache and programs; it reads the weights and draws by (seed, position in the text): the
    training continues with the same bits as without sampling.

    prompts      texts; special tokens in them count as such
    tokens       maximum number of sampled tokens for each
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
        """A text for each prompt, after `step` optimiser steps."""
        texts = []
        for prompt, ids in zip(self.prompts, self._ids, strict=True):
            self.generator.reset()
            written = continued(self.generator, ids, self.tokens, self.how)
            texts.append(SampledText(step, prompt, written.text, written.ended))
        return texts


class Samples(Subscriber):
    """Samples texts every `every` optimiser steps and after the last one, and emits on_sample for each.

    With ranks, rank 0 alone samples. texts: those so far; with a folder of a run they are written to samples.jsonl.
    """

    def __init__(self, sampler: TextSampler | None, every: int, folder: RunFolder | None) -> None:
        self.texts: list[SampledText] = []
        self._sampler, self._every, self._folder = sampler, every, folder
        self._sampled_at = 0  # the step after which texts were sampled last
        self._loop: Any = None

    @property
    def ends(self) -> tuple[int, ...]:
        return () if self._sampler is None else (self._every,)

    @property
    def apart(self) -> tuple[str, ...]:
        return () if self._sampler is None else ("sampled texts",)

    def begin(self, loop: Any) -> None:
        self._loop = loop

    def on_segment(self) -> None:
        steps, last = self._loop.steps, self._loop.steps_total
        if self._sampler is not None and steps > self._sampled_at and (steps % self._every == 0 or steps == last):
            self._sampled_at = steps
            self._loop.trainer.tell(self._sample, self._sampler)

    def _sample(self, sampler: TextSampler) -> None:
        texts = sampler.texts(self._loop.steps)
        self.texts += texts
        self._write()
        for one in texts:
            self._loop.emit("on_sample", one)

    def _write(self) -> None:
        """Write samples.jsonl as a whole: one that a killed process left may contain later steps. An error is printed,
        and training continues."""
        if self._folder is None or not self.texts:
            return
        lines = "".join(json.dumps(one.as_dict(), ensure_ascii=False) + "\n" for one in self.texts)
        error = _written(self._folder, lines)
        if error is not None:  # the folder's files may have taken the place of an older run's meanwhile
            error = _written(self._folder, lines)
        if error is not None:
            log.warning("%s; training continues", error)

    def state(self) -> dict[str, Any]:
        """Part of the state of a run."""
        return {"sampled_at": self._sampled_at, "samples": [one.as_dict() for one in self.texts]}

    def loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `state`."""
        texts = [SampledText(**one) for one in values["samples"]]

        def load() -> None:
            self.texts[:], self._sampled_at = texts, values["sampled_at"]
            self._write()

        return load


def _written(folder: RunFolder, samples: str) -> FileError | None:
    """Write samples.jsonl; returns the error, where it cannot be written."""
    try:
        write_inside(folder.path(SAMPLES), samples.encode("utf-8", "replace"))
    except FileError as error:
        return error
    return None


def prompts_of(given: Any) -> tuple[str, ...]:
    """The prompts of a setting: one text, several, or None."""
    prompts = () if given is None else (given,) if isinstance(given, str) else given
    if prompts == ():
        return prompts
    if not isinstance(prompts, (list, tuple)) or not prompts or not all(isinstance(text, str) for text in prompts):
        raise SettingError(setting="sample_prompt", seen=given, need="a text, or a list of texts", place="finetune")
    return tuple(prompts)
