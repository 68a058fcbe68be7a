"""hunyuan-dense: queries and keys are normalised after their rotation."""

from __future__ import annotations

from ..family import LINEARS, Family

FAMILY = Family(name="hunyuan-dense", pairing="half", optional_biases=LINEARS, qk_norm="head", rotates_first=True)
