"""qwen3: a norm on each head of queries and keys; the metadata contain the size of a head."""

from __future__ import annotations

from ..family import Family

FAMILY = Family(pairing="half", qk_norm="head")
