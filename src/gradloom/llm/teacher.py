"""The teacher of a distillation: a model with the vocabulary and the tokenizer of the student."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

from ..base.errors import SettingError, one_line
from .model import Model, model_of
from .objective import Objective

# Texts that tokenizers of different kinds split differently: blanks, digits, case, punctuation, scripts, line ends
PROBES = (
    "Hello world, it's 12345.67 degrees!", "  two  blanks\tand\n\nlines ", "def f(x):\n    return x**2  # comment\n",
    "Grüße, naïve café, Ångström", "日本語のテキストと中文文本", "Привет, мир; 3 + 4 = 7",
    "emoji \U0001f642 and \U0001f469\u200d\U0001f680",
    "CamelCase snake_case UPPER I'LL",
)  # fmt: skip
_PADDING = re.compile(r"\[PAD\d+\]")  # names of rows of the embedding without a token, in GGUF files


def teacher_of(objective: Objective, student: Model) -> Model | None:
    """The teacher that the objective names, or None for an objective without one.

    Raises FileError for a file that is no model; SettingError for a model with another vocabulary or tokenizer.
    """
    if not objective.needs_teacher:
        return None
    given: Any = getattr(objective, "teacher", None)
    if given is None:
        text = "{objective} requires {teacher}, a GGUF model or a Hugging Face folder"
        raise SettingError(text, objective=objective.name, teacher=..., place="finetune")
    if not isinstance(given, (Model, str, os.PathLike)):
        need = "a Model (gl.llm.load), or the path of a GGUF file or of a Hugging Face folder"
        raise SettingError(setting="teacher", seen=given, need=need, place="finetune")
    teacher = model_of(given, "finetune")
    _check_tokens(teacher, student)
    if not isinstance(given, Model):
        vars(teacher).pop("tokenizer", None)  # memory that its pass does not need
    return teacher


def _check_tokens(teacher: Model, student: Model) -> None:
    """SettingError unless both models have the same tokens in the same order and split texts alike."""
    need = f"need the vocabulary of the student, {student.path}"
    ours, theirs = (_without_padding(model.tokenizer.pieces) for model in (student, teacher))
    for i, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            text = f"{{teacher}}: its token {i} is {one_line(other)}, not {one_line(own)}; {need}"
            raise SettingError(text, teacher=teacher.path)
    if len(ours) != len(theirs):
        text = f"{{teacher}}: it has {len(theirs):,} tokens, the student {len(ours):,}; {need}"
        raise SettingError(text, teacher=teacher.path)
    for probe in PROBES:
        own, other = (
            model.tokenizer.encode(probe, special=False, bos=False, eos=False) for model in (student, teacher)
        )
        if list(own) != list(other):
            text = f"{{teacher}}: its tokenizer splits {probe!r} into other tokens than the student's, {student.path}"
            raise SettingError(f"{text}; need the same tokenizer", teacher=teacher.path)


def _without_padding(pieces: list[str]) -> list[str]:
    """The tokens, without the names of unused rows at the end."""
    unused = sum(1 for _ in itertools.takewhile(_PADDING.fullmatch, reversed(pieces)))
    return pieces[: len(pieces) - unused]
