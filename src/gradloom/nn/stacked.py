"""stacked: declares that a parameter holds several equal arrays, for optimisers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..base.arguments import as_whole
from ..base.errors import ShapeError
from ..graph.leaves import Parameter
from ..graph.stack import Stack


def stacked(parameter: Parameter, shape: Sequence[int], members: int = 1, transposed: bool = False) -> Parameter:
    """Declare that a parameter [count, ...] holds `count` arrays of this shape, and return the parameter.

    Optimisers read the declaration: Muon steps each matrix by itself, and the words "not_2d" and "norms_and_biases"
    classify a parameter by `shape`. members: independent networks, as of an Ensemble: Adafactor then computes one root
    mean square, and max_norm= one norm, for each of them. Network m owns count / members arrays, from number
    m * count / members on. transposed: matrices are [inputs, outputs], as in x @ w, not [outputs, inputs], as of a
    Linear; Muon's scale depends on it.
    Raises ShapeError if the parameter does not hold arrays of this shape, or their count is not a multiple of members.

        self.weight = gl.nn.stacked(self.parameter((8, 16, 16), init), (16, 16))
    """
    shape, members = tuple(shape), as_whole("members", members, 1, "stacked")
    count = parameter.shape[0] if parameter.shape else 0
    if not count or count % members or math.prod(parameter.shape[1:]) != math.prod(shape):
        raise ShapeError(
            f"stacked: a parameter of shape {list(parameter.shape)} is not a stack of arrays of shape {list(shape)} of "
            f"{members} members; use the shape of one array, and a divisor of the first axis"
        )
    parameter.stored.stack = Stack(shape, members, transposed)
    return parameter
