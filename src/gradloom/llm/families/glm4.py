"""glm4: norms around both branches, fused gate and up, a part of each head rotated."""

from __future__ import annotations

from ..family import FUSED_FFN, POST_NORMS, QKV, Family

FAMILY = Family(pairing="interleaved", optional_biases=QKV, post_norms=POST_NORMS, modules=FUSED_FFN)
