"""llama, SmolLM, Mistral. GGUF files store the rows of attn_q and attn_k for rotations of neighbouring elements."""

from __future__ import annotations

from ..family import LINEARS, Family

FAMILY = Family(pairing="interleaved", optional_biases=LINEARS)
