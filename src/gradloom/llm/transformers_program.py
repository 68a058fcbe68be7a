"""transformers, with PyTorch: logits of a Hugging Face folder on the CPU.

Weights are f32, attention is eager. Only files of the folder are read: no network, no code in it, no pickled weights.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import BackendError, FileError
from ..base.memory import need_memory, show_bytes
from ..base.settings import core_count
from .adapter_arrays import EMBEDDING, AdapterArrays
from .hf_folder import HFFolder
from .other_program import BATCH, OnBlock, Program

if TYPE_CHECKING:
    from .lora import LoRA
    from .model import Model
    from .model_file import ModelFile

_NEED = "run pip install torch transformers"
_OLDEST = 5  # version of transformers
_SAFE = {"local_files_only": True, "trust_remote_code": False}
_LONGEST = 200  # characters of a reason


def packages() -> tuple[Any, Any]:
    """The modules torch and transformers. BackendError with the command that installs them."""
    torch = _package("torch", lambda: import_module("torch"))
    lib = _package("transformers", lambda: import_module("transformers"))
    if int(str(lib.__version__).split(".")[0]) < _OLDEST:
        raise BackendError(f"transformers is {lib.__version__}; need {_OLDEST} or newer: pip install -U transformers")
    return torch, lib


def _package(name: str, load: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise BackendError(f"transformers: requires {name}, not installed; {_NEED}") from None
        raise BackendError(f"transformers: {name} cannot be loaded: {_reason(error)}; install it again") from None


class Transformers:
    """The model of a Hugging Face folder in transformers.

    model     whose folder is loaded; adapter: added to the weights, or None
    context   the most tokens of a text
    on_block  called with (number of a block, the residual stream behind it f32 [n * d]) for each block of logits
    Raises BackendError without the packages, FileError for a folder that transformers does not load.
    """

    name = "transformers"

    def __init__(self, model: Model, adapter: AdapterArrays | None, context: int, on_block: OnBlock | None) -> None:
        self._torch, self._lib = packages()
        self.version = str(self._lib.__version__)
        self.context = context
        self._path = os.fspath(model.path)
        # The rotations of some models depend on the longest text: here that is the row's length
        self._padded = context if model.is_long(context) else 0
        size = 4 * sum(math.prod(tensor.shape) for tensor in model.file.tensors.values())
        what = f"{self._path}: its weights in f32 take {show_bytes(size)} in transformers"
        need_memory(size, what, "free memory, or compare a smaller model of the family", BackendError)
        self._model, self._tokenizer = self._loaded()
        self._decoder = self._model.get_decoder()
        self.vocab_size = int(self._model.get_output_embeddings().weight.shape[0])
        self._on_block = on_block
        self._blocks: list[np.ndarray] = []  # the residual stream behind each block of a text, f32 [T, d]
        if on_block is not None:
            for layer in self._decoder.layers:
                layer.register_forward_hook(self._keep)
        if adapter is not None:
            self._add(adapter, model.file)

    def _loaded(self) -> tuple[Any, Any]:
        """(model, tokenizer)"""
        lib = self._lib
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tokenizer = lib.AutoTokenizer.from_pretrained(self._path, **_SAFE)
                config = lib.AutoConfig.from_pretrained(self._path, **_SAFE)
                text = type(config) in lib.MODEL_FOR_CAUSAL_LM_MAPPING
                kind = lib.AutoModelForCausalLM if text else lib.AutoModelForImageTextToText
                model, found = kind.from_pretrained(
                    self._path, dtype=self._torch.float32, attn_implementation="eager", use_safetensors=True,
                    output_loading_info=True, **_SAFE,
                )  # fmt: skip
        except MemoryError:
            raise
        except Exception as error:  # of any class: the folder's files reach many parts of the package
            seen = f"{self._path}: transformers {self.version} cannot load it"
            raise FileError(f"{seen}: {_reason(error)}") from None
        missing = sorted(found["missing_keys"])
        if missing:
            seen = f"{self._path}: transformers {self.version} finds no tensor {missing[0]}"
            raise FileError(f"{seen}; it would draw random numbers instead")
        return model.eval(), tokenizer

    def _keep(self, _layer: Any, _given: Any, output: Any) -> None:
        stream = output[0] if isinstance(output, tuple) else output
        self._blocks.append(stream[0].numpy())

    def _add(self, adapter: AdapterArrays, file: ModelFile) -> None:
        """Add s B A to the weights."""
        assert isinstance(file, HFFolder)
        ends = {EMBEDDING: "get_input_embeddings", "output.weight": "get_output_embeddings"}
        for name in adapter.pairs:
            own = file.shown(name).removeprefix(file.prefix)
            try:
                weight = getattr(self._model, ends[name])().weight if name in ends else self._decoder.get_parameter(own)
            except AttributeError:
                seen = f"{self._path}: transformers {self.version} has no parameter {own}"
                raise BackendError(f"{seen}, which the adapter changes; need an adapter without it") from None
            weight.data = weight.data + self._torch.from_numpy(adapter.delta(name).astype(np.float32))

    def tokenize(self, text: str) -> list[int]:
        """Ids, without bos and eos; the names of control tokens become these tokens."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def logits(self, tokens: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of a text, in blocks f32 [n, V]; they are computed at once."""
        self._blocks.clear()
        count = len(tokens)
        ids = [*tokens, *[0] * (self._padded - count)]
        try:
            with self._torch.inference_mode():
                given = self._torch.tensor([ids], dtype=self._torch.int64)
                found = self._model(input_ids=given, use_cache=False).logits[0].numpy()
        except RuntimeError as error:
            raise BackendError(f"{self._path}: transformers {self.version} failed: {_reason(error)}") from None
        for start in range(0, count, BATCH):
            part = slice(start, min(start + BATCH, count))
            for i, block in enumerate(self._blocks):
                assert self._on_block is not None
                self._on_block(i, block[part].ravel())
            yield found[part]


def _reason(error: BaseException) -> str:
    """The message of an error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@contextmanager
def _quiet(lib: Any) -> Iterator[None]:
    """Log errors only, and show no progress."""
    log = lib.logging
    level, shows = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shows:
            log.enable_progress_bar()


@contextmanager
def _threads(torch: Any, threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or core_count())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _describe() -> str:
    torch, lib = packages()
    return f"transformers {lib.__version__} with torch {torch.__version__}, on the CPU, weights in f32, eager attention"


@contextmanager
def _opened(
    model: Model, adapter: LoRA | None, context: int, threads: int | None, on_block: OnBlock | None
) -> Iterator[Transformers]:
    torch, lib = packages()
    with _quiet(lib), _threads(torch, threads):
        yield Transformers(model, None if adapter is None else adapter.contents(model), context, on_block)


TRANSFORMERS = Program(
    Transformers.name, True, "is a GGUF file, and transformers is compared on Hugging Face folders; need one",
    _describe, _opened,
)  # fmt: skip
