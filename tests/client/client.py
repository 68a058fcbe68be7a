"""llama.cpp behind a few calls, f32 arithmetic where it has it: f32 cache, no flash attention, one thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

F32 = 0  # ggml's number of the type


class Client:
    """A GGUF file in llama.cpp, with an adapter or without."""

    def __init__(
        self, path: Path, lora: Path | None = None, context: int = 512,
        watch: Callable[[str, np.ndarray, np.ndarray], None] | None = None,
    ) -> None:  # fmt: skip
        """`watch` is told of each product with a weight: its name, the activations [T, n_in] that go in, what comes
        out [T, n_out]."""
        from llama_cpp import Llama, llama_cpp

        params = llama_cpp.llama_context_default_params()
        if watch is not None:
            params.cb_eval = self._callback = _told_of_products(watch)  # kept: C holds no reference to it
        with mock.patch.object(llama_cpp, "llama_context_default_params", lambda: params):
            self.llama = Llama(
                str(path), lora_path=str(lora) if lora else None, n_ctx=context, n_batch=context, n_ubatch=context,
                n_threads=1, n_threads_batch=1, type_k=F32, type_v=F32, flash_attn=False, logits_all=True,
                use_mmap=lora is None, seed=0, verbose=False,
            )  # fmt: skip

    def encode(self, text: str) -> list[int]:
        return self.llama.tokenize(text.encode(), special=True)

    def decode(self, ids: Sequence[int]) -> str:
        return self.llama.detokenize(list(ids)).decode()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest token, `count` times over."""
        found: list[int] = []
        self.llama.reset()
        for token in self.llama.generate(list(prompt), top_k=1, temp=0.0, repeat_penalty=1.0):
            found.append(int(token))
            if len(found) == count:
                break
        return found

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """f32 [T, V], after each of the ids."""
        self.llama.reset()
        self.llama.eval(list(ids))
        return np.array(self.llama.scores[: len(ids)])


class _Tensor(ctypes.Structure):
    """The beginning of ggml.h: struct ggml_tensor."""


_Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
]  # fmt: skip


def _told_of_products(watch: Callable[[str, np.ndarray, np.ndarray], None]) -> Any:
    from llama_cpp import _ggml, llama_cpp

    name_of = _ggml.libggml.ggml_op_name
    name_of.restype = ctypes.c_char_p

    def array(t: Any) -> np.ndarray:
        shape, strides = tuple(t.ne)[::-1], tuple(t.nb)[::-1]
        assert t.type == F32 and strides[3] == 4
        size = sum((n - 1) * b for n, b in zip(shape, strides, strict=True)) + 4
        found = np.ndarray(shape, np.float32, (ctypes.c_char * size).from_address(t.data), strides=strides)
        return found.reshape(-1, shape[-1]).copy()

    @llama_cpp.ggml_backend_sched_eval_callback
    def callback(pointer: int, ask: bool, _: Any) -> bool:
        made = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
        if not ask and name_of(made.op) == b"MUL_MAT" and made.src[0].contents.name.endswith(b".weight"):
            watch(made.src[0].contents.name.decode(), array(made.src[1].contents), array(made))
        return True

    return callback
