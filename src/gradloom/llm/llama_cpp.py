"""llama.cpp, through the package llama-cpp-python: logits of a GGUF model on the CPU.

Keys and values are cached in f32, and attention is computed without flash attention, as exact as llama.cpp can.
llama.cpp runs in this process: an assertion of its own ends it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import BackendError, FileError
from ..base.settings import core_count
from .other_program import BATCH, OnBlock, Program

if TYPE_CHECKING:
    from .lora import LoRA
    from .model import Model

_F32 = 0  # ggml's number of the type
_ERROR = 4  # ggml's number of the log level
_PACKAGE = "llama-cpp-python"
_errors: list[str] = []  # lines that llama.cpp has logged since the last call


def package() -> Any:
    """The module of the package. BackendError with the command that installs it."""
    try:
        return import_module("llama_cpp")
    except ImportError:
        raise BackendError(f"llama.cpp: requires {_PACKAGE}, not installed; run pip install {_PACKAGE}") from None
    except (OSError, RuntimeError) as error:  # its library
        reason = " ".join(str(error).split())
        raise BackendError(f"llama.cpp: {_PACKAGE} cannot be loaded: {reason}; install it again") from None


class LlamaCpp:
    """A model in llama.cpp.

    path      of the GGUF file; adapter: of a GGUF adapter, or None
    context   the most tokens of a text
    on_block  called with (number of a block, the residual stream behind it f32 [tokens, d]) for each batch
    Raises BackendError without the package, FileError for a file that llama.cpp does not load.
    """

    name = "llama.cpp"

    def __init__(
        self,
        path: str | os.PathLike[str],
        adapter: str | os.PathLike[str] | None = None,
        context: int = 512,
        threads: int | None = None,
        on_block: OnBlock | None = None,
    ) -> None:
        self._lib = lib = package()
        self.version = str(lib.__version__)
        if not hasattr(lib, "llama_memory_clear"):
            raise BackendError(f"{_PACKAGE} is {self.version}; need 0.3.16 or newer: pip install -U {_PACKAGE}")
        lib.llama_log_set(_log(lib), None)
        lib.llama_backend_init()
        self._model = self._context = self._batch = self._adapter = None
        self._path = os.fspath(path)
        self._model = self._loaded(path, lambda: lib.llama_model_load_from_file(os.fsencode(path), self._on_cpu()))
        self._vocabulary = lib.llama_model_get_vocab(self._model)
        self.vocab_size = int(lib.llama_vocab_n_tokens(self._vocabulary))
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, BATCH, BATCH
        settings.n_threads = settings.n_threads_batch = threads or core_count()
        settings.type_k = settings.type_v = _F32
        settings.flash_attn_type = settings.no_perf = 0
        if on_block is not None:
            self._callback = settings.cb_eval = _block_callback(lib, on_block)  # C holds no reference to it
        self._context = self._loaded(path, lambda: lib.llama_init_from_model(self._model, settings))
        self.context = int(lib.llama_n_ctx(self._context))
        if adapter is not None:
            self._adapter = self._loaded(
                adapter, lambda: lib.llama_adapter_lora_init(self._model, os.fsencode(adapter))
            )
            self._apply(self._adapter)
        self._batch = lib.llama_batch_init(BATCH, 0, 1)

    def _on_cpu(self) -> Any:
        settings = self._lib.llama_model_default_params()
        settings.n_gpu_layers = 0
        return settings

    def _loaded(self, path: str | os.PathLike[str], load: Callable[[], Any]) -> Any:
        _errors.clear()
        found = load()
        if not found:
            reason = next((line for line in _errors if "error" in line), _errors[-1] if _errors else "no reason given")
            reason = reason.split("error loading model: ")[-1]
            raise FileError(f"{os.fspath(path)}: llama.cpp ({_PACKAGE} {self.version}) cannot load it: {reason}")
        return found

    def _apply(self, adapter: Any) -> None:
        lib = self._lib
        if hasattr(lib, "llama_set_adapters_lora"):
            handles = (lib.llama_adapter_lora_p_ctypes * 1)(adapter)
            code = lib.llama_set_adapters_lora(self._context, handles, 1, (ctypes.c_float * 1)(1.0))
        else:
            code = lib.llama_set_adapter_lora(self._context, adapter, 1.0)
        if code:
            raise BackendError(f"{self._path}: llama.cpp cannot apply the adapter (code {code})")

    def tokenize(self, text: str) -> list[int]:
        """Ids, without bos and eos; the names of control tokens become these tokens."""
        data = text.encode()
        if not data:
            return []
        room = len(data) + 16
        ids = (self._lib.llama_token * room)()
        count = self._lib.llama_tokenize(self._vocabulary, data, len(data), ids, room, False, True)
        return list(ids[:count])

    def logits(self, tokens: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits after each token of a text, in blocks f32 [n, V] that are valid until the next."""
        lib, batch = self._lib, self._batch
        assert batch is not None
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), start + i, 1, 1
                batch.seq_id[i][0] = 0
            _errors.clear()
            code = lib.llama_decode(self._context, batch)
            if code:
                reason = _errors[-1] if _errors else f"code {code}"
                raise BackendError(f"{self._path}: llama.cpp failed at token {start}: {reason}")
            yield np.ctypeslib.as_array(lib.llama_get_logits(self._context), (len(part), self.vocab_size))

    def close(self) -> None:
        """Free the memory of the model; a second call has no effect."""
        lib = self._lib
        if self._batch is not None:
            lib.llama_batch_free(self._batch)
        if self._context is not None:
            lib.llama_free(self._context)
        if self._model is not None:
            lib.llama_model_free(self._model)  # and its adapters
        self._model = self._context = self._batch = None

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_callbacks: list[Any] = []  # C holds no reference to it


def _log(lib: Any) -> Any:
    """The callback that collects the errors which llama.cpp logs."""
    if not _callbacks:

        def collect(level: int, text: bytes, _data: Any) -> None:
            line = " ".join(text.decode(errors="replace").split())
            if level == _ERROR and line:
                _errors.append(line)

        _callbacks.append(lib.llama_log_callback(collect))
    return _callbacks[0]


def _block_callback(lib: Any, on_block: OnBlock) -> Any:
    """The callback that reads the residual stream behind each block, which llama.cpp calls l_out-N."""
    ggml = import_module("llama_cpp._ggml").libggml
    name_of, data_of, count_of = ggml.ggml_get_name, ggml.ggml_get_data_f32, ggml.ggml_nelements
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    data_of.restype, data_of.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]
    count_of.restype, count_of.argtypes = ctypes.c_int64, [ctypes.c_void_p]

    def read(pointer: int, ask: bool, _data: Any) -> bool:
        name = name_of(pointer)
        if not name.startswith(b"l_out-"):
            return not ask
        if not ask:
            on_block(int(name[6:]), np.ctypeslib.as_array(data_of(pointer), (count_of(pointer),)).copy())
        return True

    return lib.ggml_backend_sched_eval_callback(read)


def _describe() -> str:
    version = package().__version__
    return f"llama.cpp of {_PACKAGE} {version}, on the CPU, keys and values in f32, no flash attention"


@contextmanager
def _opened(
    model: Model, adapter: LoRA | None, context: int, threads: int | None, on_block: OnBlock | None
) -> Iterator[LlamaCpp]:
    with ExitStack() as opened:
        file = None
        if adapter is not None:
            file = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "adapter.gguf"
            adapter.save(file)
        yield opened.enter_context(LlamaCpp(model.path, file, context, threads, on_block))


LLAMA_CPP = Program(
    LlamaCpp.name, False, "is a folder, and llama.cpp reads GGUF files; need one, such as merge writes", _describe,
    _opened,
)  # fmt: skip
