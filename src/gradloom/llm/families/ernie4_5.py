"""ernie4_5 (dense): llama's block."""

from __future__ import annotations

from ..family import LINEARS, Family

FAMILY = Family(pairing="interleaved", optional_biases=LINEARS)
