"""Stack: the layout of an array that holds several equal arrays along its first axis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """Layout of an array [count, ...] of `count` arrays, each of this shape.

    shape    of one array: (n_in, n_out) of a weight matrix, (n_out,) of a bias
    members  independent networks that the arrays belong to: the first count / members are those of network 0, and so on
    transposed  matrices are [inputs, outputs], as in x @ w; otherwise [outputs, inputs], as of a Linear
    """

    shape: tuple[int, ...]
    members: int = 1
    transposed: bool = False
