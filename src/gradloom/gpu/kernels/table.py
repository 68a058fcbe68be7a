"""The table of all kernels: (op, signature) -> rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..calls import Call, Dispatch

Rule = Callable[[Call], list[Dispatch]]
Workspace = Callable[[Call], int]


@dataclass(frozen=True)
class Kernel:
    """rule: the dispatches of an instruction. workspace: bytes that it wants as its last argument."""

    rule: Rule
    workspace: Workspace


KERNELS: dict[tuple[str, str], Kernel] = {}


def _none(call: Call) -> int:
    return 0


def kernel(op: str, signatures: str | Iterable[str], rule: Rule, workspace: Workspace = _none) -> None:
    """Enter a kernel for these dtypes ("f32", "f32_i32_f32"; several separated by spaces)."""
    for signature in signatures.split() if isinstance(signatures, str) else signatures:
        assert (op, signature) not in KERNELS, (op, signature)
        KERNELS[op, signature] = Kernel(rule, workspace)
