"""Generate text that continues a prompt, token by token, with a cache of keys and values.

The cache is state of the program, written by set_rows only. A prompt is processed in chunks of CHUNK tokens, then one
token at a time. The last chunk is padded: its padding is written after the last token, where no query reads before it
is overwritten. Both programs are compiled once for a model and an adapter; they read the weights, and an adapter that
is being trained, in place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from .. import ops
from ..base import locks
from ..base.arguments import what_is
from ..base.errors import DataError, SettingError, one_line
from ..base.habits import hinted
from ..base.locks import Claim
from ..base.memory import need_memory, show_bytes
from ..graph.leaves import input as input_value
from ..graph.leaves import setting, stored_value
from ..graph.stored import Stored
from ..graph.value import Value
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.budget import ProcessBudget, check_places
from ..run.compile import compile as compile_program
from ..train.arguments import check_names
from .arguments import adapter_of
from .gpu_layers import GpuLayers, at, bytes_on, check_layers, layers_for, placed_options
from .model import Adapter, Model, model_of
from .not_finite import not_finite
from .sampling import Sampling, sample

CHUNK = 64  # tokens of a prompt in one step
ROWS = 256  # caches grow in steps of this many tokens
KEPT = 2  # generators that a model caches, for different adapters


class KeysAndValues:
    """The caches of all layers, f32 [1, rows, KVH, D] each, and the updates that fill them. longest: the most tokens of
    a text; a chunk of padding has room behind it."""

    def __init__(self, layers: int, longest: int, kv_heads: int, head_dim: int) -> None:
        self.longest, self.rows = longest, longest + CHUNK
        shape = (1, self.rows, kv_heads, head_dim)
        self.stored = [[_zeros(f"cache.{i}.{name}", shape) for name in ("keys", "values")] for i in range(layers)]

    @property
    def bytes(self) -> int:
        return sum(s.bytes for pair in self.stored for s in pair)

    def attend(
        self, layer: int, q: Value, k: Value, v: Value, positions: Value, scale: float, window: int | None
    ) -> Value:
        at = setting("cache.position", "i64")
        keys, values = (
            ops.set_rows(stored_value(stored), rows, at, axis=1)
            for stored, rows in zip(self.stored[layer], (k, v), strict=True)
        )
        return ops.attention(q, keys, values, positions, scale=scale, cached=True, window=window)[0]


def _zeros(name: str, shape: tuple[int, ...]) -> Stored:
    return Stored(name, np.broadcast_to(np.float32(0), shape), "f32", "state")  # memory is allocated on first use


class Generator:
    """A model with a cache for one text of at most `rows` tokens (by default the model's context).

    `feed` appends tokens and returns the logits of the next one; `tokens` samples. gpu_layers, gpu_memory, memory: see
    generate. options: for gl.compile. Used by one thread at a time; another one gets TrainError.
    """

    def __init__(
        self,
        model: Model,
        adapter: Adapter | None = None,
        rows: int | None = None,
        layers: GpuLayers | None = None,
        *,
        gpu_layers: int | str | None = None,
        gpu_memory: int | str | None = None,
        memory: int | str | None = None,
        arena_bytes: int | Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        """layers: those that run on a GPU, if they are already chosen; arena_bytes: most that arena and scratch of a
        program may have, or of its part on a device, if that is already chosen."""
        config = model.config
        check_places("generate", memory, options, layers, gpu_layers)
        if adapter is not None:
            adapter.bind(model)

        def held(some: GpuLayers) -> int:
            planned = Generator(model, adapter, rows, some, **placed_options(options, some))
            planned.prepare(CHUNK)
            return bytes_on(some.gpu, planned.plans).total

        if layers is None:
            layers, options = layers_for("generate", config.layers, gpu_layers, gpu_memory, options, held)
        self.layers, self.options = layers, placed_options(options, layers)
        self.model, self.adapter = model, adapter
        self.rows = config.context_length if rows is None else min(rows, config.context_length)
        need = 8 * config.layers * (self.rows + CHUNK) * config.kv_heads * config.head_dim
        what = f"generate: a cache of {self.rows} tokens needs {show_bytes(need)} of memory"
        need_memory(need, what, "need fewer tokens")
        self.cache = KeysAndValues(config.layers, self.rows, config.kv_heads, config.head_dim)
        self.length = 0  # tokens in the cache
        self.programs: dict[int, Any] = {}  # tokens per step -> program
        self._logits: dict[int, Value] = {}  # tokens per step -> output
        self.budget = None if memory is None else ProcessBudget("generate", memory, options)
        self._arena_bytes = arena_bytes
        if self.budget is not None:
            more = 0 if "tokenizer" in vars(model) else model.tokenizer_bytes
            self.budget.search(lambda: self.prepare(CHUNK), self.programs.clear, lambda: more)
        self._claim = Claim("this generator", "a generator for each thread, or llm.generate")

    @property
    def plans(self) -> list[Plan | Schedule]:
        """Plans of the programs compiled so far."""
        return [program.plan for program in self.programs.values()]

    @property
    def planned_bytes(self) -> int:
        """Bytes of the caches and of the planned arena of the programs compiled so far."""
        return self.cache.bytes + max((p.plan.peak_bytes for p in self.programs.values()), default=0)

    def prepare(self, tokens: int) -> None:
        """Compile the programs for a prompt of this length, without running them."""
        for n in (1, CHUNK) if tokens > 1 else (1,):
            self._program(n)

    @property
    def _known(self) -> int:
        """The number of logits of tokens that the tokenizer knows."""
        return min(self.model.tokenizer.vocab_size, self.model.config.vocab_size)

    def reset(self) -> None:
        """Begin a new text."""
        with self._claim:
            self.length = 0

    def rewind(self, length: int) -> None:
        """Go back to the first `length` tokens of the text."""
        with self._claim:
            self.length = min(self.length, length)

    def feed(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Append tokens to the text; returns the logits of the next token, f32 [vocabulary].

        Raises DataError for no tokens, ids outside of the vocabulary, and a text longer than `rows`; NonFiniteError if
        a logit of a token that the tokenizer knows is NaN or the largest one infinite, naming the first tensor or
        operation that is not finite.
        """
        with self._claim:
            return self._feed(ids)

    def _feed(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        tokens = _checked_ids(ids, self.model.config.vocab_size)
        if self.length + len(tokens) > self.rows:
            raise DataError(f"generate: a text of {self.length + len(tokens)} tokens; need at most {self.rows}")
        logits = np.empty(0, np.float32)
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            n = 1 if len(part) == 1 else CHUNK
            feeds: dict[str, Any] = {"tokens": np.zeros((1, n), np.int32), "cache.position": self.length}
            feeds["tokens"][0, : len(part)] = part
            feeds["positions"] = self.length + np.arange(n, dtype=np.int32)[None]
            if n > 1:
                feeds["last"] = np.array([len(part) - 1], np.int32)
            (logits,) = self._program(n)(**feeds)
            if not np.isfinite(np.max(logits[: self._known])):
                what = f"generate: the largest logit of position {self.length + len(part)}"
                at = {"cache.position": self.length}
                raise not_finite(
                    what, self.model, self.adapter, self.programs[n], [self._logits[n]], at, **self.options
                )
            self.length += len(part)
        return logits

    def _program(self, n: int) -> Any:
        """The program from n tokens to the logits after the last one that is not padding."""
        if n not in self.programs:
            tokens, positions = (input_value(name, (1, n), "i32") for name in ("tokens", "positions"))
            hidden = self.model.hidden(tokens, positions, self.adapter, self.cache, layers=self.layers)  # [n, d]
            if n > 1:
                with at(self.layers and self.layers.end):
                    hidden = ops.get_rows(hidden, input_value("last", (1,), "i32"))
            logits = self.model.project(hidden, self.adapter, self.layers).reshape(-1)
            self._logits[n] = logits
            if self.budget is not None:
                self.programs[n] = self.budget.compile(logits, (), self.options)
            else:
                self.programs[n] = compile_program(logits, memory=self._arena_bytes, **self.options)
        return self.programs[n]

    def tokens(
        self, prompt: Sequence[int] | np.ndarray, max_tokens: int, how: Sampling, end_ids: Collection[int] = ()
    ) -> Iterator[int]:
        """Ids that continue the text and the prompt, up to max_tokens or the first of end_ids, inclusive.

        Sampled by (seed, position), so the same seed gives the same text. Only ids that the tokenizer knows.
        Raises DataError if the generator is fed or reset elsewhere between two of them.
        """
        with self._claim:
            logits, length = self._feed(prompt), self.length
        for left in range(max_tokens, 0, -1):
            token = sample(logits[: self._known], how, length)
            yield token
            if token in end_ids or left == 1:
                return
            with self._claim:
                if self.length != length:
                    raise DataError(
                        f"generate: another call has fed this generator: its text has {self.length} tokens, this one "
                        f"{length}; need a generator for each text"
                    )
                logits, length = self._feed([token]), self.length


@dataclass(frozen=True)
class Generated:
    """Generated text with its tokens and times. ended: "end" (by the model), "stop" (a stop text) or "length". layers:
    those on a GPU; None if gpu_layers was not used or no block fits."""

    text: str
    tokens: tuple[int, ...]
    ended: str
    prompt_tokens: int
    prompt_seconds: float
    seconds: float
    layers: GpuLayers | None = None


@overload
def generate(
    model: Model | str | os.PathLike[str],
    prompt: str | Sequence[int] | np.ndarray,
    adapter: Adapter | str | os.PathLike[str] | None = None,
    **settings: Any,
) -> str: ...


@overload
def generate(
    model: Model | str | os.PathLike[str],
    prompt: list[str] | tuple[str, ...],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    **settings: Any,
) -> list[str]: ...


@hinted
def generate(
    model: Model | str | os.PathLike[str],
    prompt: str | Sequence[int] | np.ndarray | list[str] | tuple[str, ...],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    max_tokens: int = 64,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], Any] | None = None,
    **options: Any,
) -> str | list[str]:
    """Generate the text that continues a prompt, without the prompt; for a list of prompts a list of texts.

    model: a Model, or the path of a GGUF file, which is loaded for this call (load it once for several).
    prompt: text (names of special tokens in it become these tokens), or token ids. adapter: a LoRA or TrainedTensors,
    also while it is being trained; or the path of an adapter. temperature 0 always takes the likeliest token; top_k,
    top_p, seed: see Sampling.
    Ends after max_tokens, at a token that ends a text, or before one of the `stop` texts. stream: called with each new
    piece of the text, in whole characters. gpu_layers: number of blocks, the last ones, on the GPU (device= chooses
    it), the others run on the CPU; "auto": all that fit into gpu_memory, bytes or a text such as "4GiB". memory: most
    bytes that the process may hold, likewise, or "auto" (docs/memory.md); on the CPU. options: for
    gl.compile (threads=, ...).
    Raises DataError for an empty prompt if the model has no token that begins a text, or if prompt and max_tokens
    exceed the model's context; SettingError for a setting out of its range.
    """
    check_names("generate", options, generate, "gpu_layers", "gpu_memory", "memory")
    if stream is not None and not callable(stream):
        raise SettingError(f"generate: stream is {what_is(stream)}; need a function that gets each piece of text")
    how = Sampling(temperature, top_k, top_p, seed)
    check_layers("generate", **{name: value for name, value in options.items() if name != "memory"})
    check_places("generate", options.get("memory"), options, options.get("gpu_layers"))
    model = model_of(model, "generate")
    bound = adapter_of(adapter, model, "generate")
    if isinstance(prompt, np.ndarray) and prompt.dtype.kind in "UO":
        prompt = prompt.tolist()
    if not isinstance(prompt, (list, tuple)) or not prompt or not isinstance(prompt[0], str):
        one: Any = prompt
        return complete(model, one, bound, max_tokens, how, stop, stream, **options).text
    for text in prompt:
        if not isinstance(text, str):
            raise SettingError(f"generate: among several prompts is {what_is(text)}; need texts")
        check_length(model, prompt_ids(model, text), max_tokens)
    return [complete(model, str(text), bound, max_tokens, how, stop, stream, **options).text for text in prompt]


def complete(
    model: Model,
    prompt: str | Sequence[int] | np.ndarray,
    adapter: Adapter | None = None,
    max_tokens: int = 64,
    how: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], Any] | None = None,
    **options: Any,
) -> Generated:
    """Generate a text, with its tokens and times; see generate."""
    how = how or Sampling()
    ids = prompt_ids(model, prompt)
    check_length(model, ids, max_tokens)
    with generator_for(model, adapter, len(ids) + max_tokens, **options) as generator:
        return continued(generator, ids, max_tokens, how, stop, stream)


def check_length(model: Model, ids: np.ndarray, max_tokens: int) -> None:
    """Raise SettingError for an invalid max_tokens, DataError if prompt and max_tokens exceed the context."""
    if not isinstance(max_tokens, (int, np.integer)) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise SettingError(setting="max_tokens", seen=max_tokens, need="a whole number of at least 1")
    limit = model.config.context_length
    if len(ids) + max_tokens > limit:
        room = f"a prompt of at most {limit - max_tokens}" if max_tokens < limit else "less of both"
        if len(ids) < limit:
            room = f"at most {limit - len(ids)}, or " + room
        raise DataError(
            f"generate: {len(ids)} tokens of prompt and max_tokens={max_tokens}; the context is {limit}: need {room}"
        )


def continued(
    generator: Generator,
    ids: np.ndarray,
    max_tokens: int,
    how: Sampling,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], Any] | None = None,
) -> Generated:
    """Continue the text of a generator and these tokens; see generate."""
    tokenizer = generator.model.tokenizer
    text = _Text(tokenizer.stream(continued=generator.length + len(ids) > 1), stop, stream)
    ends, tokens, ended = tokenizer.end_ids, [], "length"
    began = time.perf_counter()
    first = None
    for token in generator.tokens(ids, max_tokens, how, ends):
        first = first or time.perf_counter()
        tokens.append(token)
        if token in ends:
            ended = "end"
        elif text.push(token):
            ended = "stop"
            break
    text.finish()
    now = time.perf_counter()
    first = first or now
    return Generated(text.text, tuple(tokens), ended, len(ids), first - began, now - first, generator.layers)


def prompt_ids(model: Model, prompt: str | Sequence[int] | np.ndarray) -> np.ndarray:
    """The tokens of a prompt, i32. Raises DataError if there are none."""
    if not isinstance(prompt, str):
        return _checked_ids(prompt, model.config.vocab_size)
    ids = model.tokenizer.encode(prompt, special=True)
    if not len(ids):
        raise DataError("generate: the prompt is empty, and this model has no token that begins a text; need a prompt")
    return _checked_ids(ids, model.config.vocab_size)


def _checked_ids(ids: Sequence[int] | np.ndarray, vocabulary: int) -> np.ndarray:
    usable = isinstance(ids, (list, tuple, np.ndarray)) and not any(isinstance(one, (list, tuple)) for one in ids)
    tokens = np.asarray(ids if usable else ())
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
        need = "need a text, several texts, or at least one token id"
        raise DataError(f"generate: the prompt is {one_line(ids)}; {need}")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        bad = int(np.argmax((tokens < 0) | (tokens >= vocabulary)))
        raise DataError(f"generate: token id {tokens[bad]} at place {bad}; need 0..{vocabulary - 1}, the vocabulary")
    return tokens.astype(np.int32)


@contextlib.contextmanager
def generator_for(model: Model, adapter: Adapter | None, rows: int, **options: Any) -> Iterator[Generator]:
    """A generator with an empty cache of at least `rows` tokens, exclusively for this `with`.

    A model caches the last KEPT generators that were returned.
    """
    most = -(-rows // ROWS) * ROWS
    key = (None if adapter is None else id(adapter), tuple(sorted(options.items())), model.is_long(most))
    with locks.building:
        kept: list[tuple[Any, Generator]] = vars(model).setdefault("generators", [])
        place = next((i for i, (other, g) in enumerate(kept) if other == key and g.rows >= rows), None)
        generator = None if place is None else kept.pop(place)[1]
    if generator is None:
        generator = Generator(model, adapter, most, **options)
    generator.reset()
    try:
        yield generator
    finally:
        with locks.building:
            kept.append((key, generator))
            del kept[:-KEPT]


class _Text:
    """Text built token by token: streamed, and cut before the first stop text."""

    def __init__(self, decoder: Any, stop: str | Sequence[str], stream: Callable[[str], Any] | None) -> None:
        stops = (stop,) if isinstance(stop, str) else stop
        wrong = [s for s in stops if not isinstance(s, str) or not s] if isinstance(stops, Collection) else [stop]
        if wrong:
            raise SettingError(setting="stop", seen=wrong[0], need="texts that are not empty")
        self.decoder, self.stops, self.stream = decoder, tuple(stops), stream
        self.text = ""  # streamed so far
        self._held = ""  # may be the beginning of a stop text

    def push(self, token: int) -> bool:
        """Append a token; True if the text contains a stop text."""
        return self._add(self.decoder.push(token))

    def finish(self) -> None:
        if self.decoder is not None:
            self._add(self.decoder.finish())
        self._give(self._held)
        self._held = ""

    def _add(self, piece: str) -> bool:
        self._held += piece
        at = min((i for s in self.stops if (i := self._held.find(s)) >= 0), default=-1)
        if at >= 0:
            self._give(self._held[:at])
            self._held, self.decoder = "", None
            return True
        wait = max((n for s in self.stops for n in range(len(s)) if n and self._held.endswith(s[:n])), default=0)
        cut = len(self._held) - wait
        self._give(self._held[:cut])
        self._held = self._held[cut:]
        return False

    def _give(self, piece: str) -> None:
        if piece:
            self.text += piece
            if self.stream is not None:
                self.stream(piece)
