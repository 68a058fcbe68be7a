"""phi3 (Phi-3, Phi-4): fused queries, keys and values; fused gate and up; factors of the rotation for long texts.

Its window is not used, as in llama.cpp.
"""

from __future__ import annotations

from ..family import FUSED, Family

FAMILY = Family(pairing="half", modules=FUSED)
