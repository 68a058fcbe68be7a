"""A stand-in for llama.cpp in tests of `compare`: gradloom itself, with a difference that a test chooses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import llm
from gradloom.llm.net import Net
from gradloom.llm.other_program import BATCH


class OtherProgram:
    """Has the methods of LlamaCpp. change(logits f32 [T, V]) -> logits; wrong_block: its values are doubled; splits: it
    has other ids for texts that contain this text."""

    name, version = "llama.cpp", "1.2.3"
    change: Callable[[np.ndarray], np.ndarray] = staticmethod(lambda logits: logits)
    wrong_block: int | None = None
    splits: str | None = None

    def __init__(
        self, path: str, adapter: Any = None, context: int = 512, threads: int | None = None, on_block: Any = None
    ) -> None:
        self.model = llm.load(path)
        self.adapter = None if adapter is None else llm.LoRA.load(adapter, self.model)
        if self.adapter is not None:
            self.adapter.bind(self.model)
        self.vocab_size, self.context, self.on_block = self.model.config.vocab_size, context, on_block

    def tokenize(self, text: str) -> list[int]:
        ids = self.model.tokenizer.encode(text, bos=False, eos=False)
        return ids[:-1] if self.splits is not None and self.splits in text else ids

    def logits(self, tokens: Sequence[int]) -> Iterator[np.ndarray]:
        shape = (1, len(tokens))
        leaves = [gl.input(name, shape, "i32") for name in ("tokens", "positions")]
        net = Net(self.model, shape, self.adapter, None, False)
        hidden = self.model.family.hidden(net, *leaves)
        run = gl.compile([self.model.project(hidden, self.adapter), *net.blocks])
        places = np.arange(len(tokens), dtype=np.int32)[None]
        found, *blocks = (a.copy() for a in run(tokens=np.int32([tokens]), positions=places))
        for start in range(0, len(tokens), BATCH):
            part = slice(start, start + BATCH)
            for i, block in enumerate(blocks):
                if self.on_block is not None:
                    self.on_block(i, block[part].ravel() * (1 if i != self.wrong_block else 2))
            yield self.change(found[part])

    def __enter__(self) -> OtherProgram:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Let `compare` find this program in place of llama.cpp."""

    program = type("Program", (OtherProgram,), settings)
    monkeypatch.setattr(import_module("gradloom.llm.llama_cpp"), "LlamaCpp", program)
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(__version__=program.version))
