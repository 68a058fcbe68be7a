"""llama.cpp behind a few calls, f32 arithmetic where it has it: f32 cache, no flash attention, one thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

F32 = 0  # ggml's number of the type


class Client:
    """A GGUF file in llama.cpp, with an adapter or without."""

    def __init__(self, path: Path, lora: Path | None = None, context: int = 512) -> None:
        from llama_cpp import Llama

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
