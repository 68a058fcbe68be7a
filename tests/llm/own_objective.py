"""An objective of a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import gradloom as gl


@dataclass(frozen=True)
class Margin(gl.llm.Objective):
    """The mean log-probability of the chosen completion exceeds that of the rejected one by 1."""

    form: ClassVar[gl.llm.Form] = gl.llm.Form("preferences", parts=2)

    def loss(self, parts: gl.llm.Parts) -> gl.Value:
        means = parts.averages()
        return gl.ops.relu(1.0 - (means[:, :, 0] - means[:, :, 1]))
