"""einsum: Einstein's sums of products, as matrix products, elementwise products and sums."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..base.errors import DTypeError, ShapeError
from ..graph.leaves import as_value
from ..graph.opspec import MAX_RANK
from ..graph.scope import user_location
from ..graph.value import Value, describe
from .common import f32_values
from .elementwise import mul
from .layout import permute, product, reshape
from .matmul import matmul
from .reduce import sum as sum_over
from .triangles import diagonal

Label = str  # a letter; of the axes under "...": "0", "1", ... counted from the last one


@dataclass(frozen=True)
class _Term:
    """An operand whose axes have different labels."""

    value: Value
    labels: tuple[Label, ...]

    def extents(self) -> dict[Label, int]:
        return dict(zip(self.labels, self.value.shape, strict=True))


def einsum(subscripts: str, *operands: Any) -> Value:
    """Sums of products by Einstein's convention, as numpy.einsum: einsum("ij,jk->ik", x, y) is x @ y.

    subscripts  a letter for each axis of each operand, operands separated by commas, and the letters of the result
                behind "->". Letters that the result does not have are summed over. A letter twice in one operand takes
                its diagonal. "..." stands for further axes, which broadcast. Without "->", the result has the axes of
                "..." and then, in alphabetical order, the letters that occur once
    operands    f32, of at most 6 axes, and so is the result; an axis of extent 1 broadcasts to the other extents of its
                letter

    Several operands are multiplied two by two, always those with the smallest product. Raises ShapeError where
    subscripts and shapes do not fit, DTypeError for subscripts that are no text and operands that are not f32.
    """
    if not isinstance(subscripts, str):
        seen = f"subscripts are {describe(as_value(subscripts))}"
        raise DTypeError(f'einsum: {seen}; need a text such as "ij,jk->ik" first; at {user_location()}')
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0]) if any(isinstance(v, Value) for v in operands[0]) else operands
    values = f32_values("einsum", *operands)
    call = _Call(subscripts, values)
    inputs, output = call.labels()
    terms = [call.distinct(value, labels) for value, labels in zip(values, inputs, strict=True)]
    terms = _broadcast(terms, call.extents(terms))
    while len(terms) > 1:
        kept = [_summed(t, _elsewhere(terms, [i], output)) for i, t in enumerate(terms)]
        first, second = _cheapest(kept, output)
        joined = call.product(kept[first], kept[second], _elsewhere(kept, [first, second], output))
        terms = [t for i, t in enumerate(kept) if i not in (first, second)] + [joined]
    last = _summed(terms[0], set(output))
    return permute(last.value, [last.labels.index(label) for label in output])


class _Call:
    """Subscripts and operands, and errors that name both."""

    def __init__(self, subscripts: str, values: Sequence[Value]) -> None:
        self.subscripts, self.values = subscripts, values

    def error(self, seen: str, wanted: str) -> ShapeError:
        shown = ", ".join(map(describe, self.values))
        return ShapeError(f'einsum "{self.subscripts}": {seen}: {shown}; need {wanted}; at {user_location()}')

    def labels(self) -> tuple[list[list[Label]], list[Label]]:
        """The labels of each operand's axes, and those of the result."""
        text = self.subscripts.replace(" ", "")
        if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", text):
            raise self.error("the subscripts are not usable", 'letters, "...", commas and one "->"')
        left, arrow, right = text.partition("->")
        given = left.split(",")
        for term in [*given, right]:
            if "." in term.replace("...", "", 1):
                raise self.error(f'"{term}" has dots that are no "..."', 'at most one "..." for each operand')
        if len(given) != len(self.values):
            raise self.error(f"subscripts of {len(given)} operands for {len(self.values)}", "one for each operand")
        inputs = [self._of_operand(term, value) for term, value in zip(given, self.values, strict=True)]
        wide = max((sum(label.isdigit() for label in labels) for labels in inputs), default=0)
        dots = [str(i) for i in reversed(range(wide))]
        if not arrow:
            counts = Counter(left)
            output = dots + sorted(label for label in set(left) - set(".,") if counts[label] == 1)
        else:
            output = self._of_output(right, dots, {label for labels in inputs for label in labels})
        if len(output) > MAX_RANK:
            raise self.error(f"the result has {len(output)} axes", f"at most {MAX_RANK}")
        return inputs, output

    def _of_operand(self, term: str, value: Value) -> list[Label]:
        before, dots, after = term.partition("...")
        rest = value.ndim - len(before) - len(after)
        if rest < 0 or (rest and not dots):
            seen = f'"{term}" has {len(before) + len(after)} letters for an operand of {value.ndim} axes'
            raise self.error(seen, 'a letter for each axis, or "..." for further ones')
        return [*before, *(str(i) for i in reversed(range(rest))), *after]

    def _of_output(self, term: str, dots: list[Label], known: set[Label]) -> list[Label]:
        before, has_dots, after = term.partition("...")
        if dots and not has_dots:
            raise self.error('the result has no place for the axes of "..."', '"..." behind "->", too')
        output = [*before, *(dots if has_dots else []), *after]
        for label, count in Counter(output).items():
            if count > 1:
                raise self.error(f"the result has {label} twice", "each letter once behind ->")
            if label not in known:
                raise self.error(f"the result has {label}, which no operand has", "letters of operands behind ->")
        return output

    def distinct(self, value: Value, labels: list[Label]) -> _Term:
        """The operand with a diagonal in place of each letter that it has several times."""
        while len(set(labels)) < len(labels):
            label = next(a for a in labels if labels.count(a) > 1)
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if value.shape[first] != value.shape[second]:
                seen = f"axes {label} of one operand have extents {value.shape[first]} and {value.shape[second]}"
                raise self.error(seen, "equal extents")
            value = diagonal(value, first, second)
            labels = [a for i, a in enumerate(labels) if i not in (first, second)] + [label]
        return _Term(value, tuple(labels))

    def extents(self, terms: Sequence[_Term]) -> dict[Label, int]:
        """The extent of each label over all operands."""
        known: dict[Label, int] = {}
        for term in terms:
            for label, extent in term.extents().items():
                other = known.setdefault(label, extent)
                if other == 1:
                    known[label] = extent
                elif extent not in (1, other):
                    axis = 'axes of "..."' if label.isdigit() else f"axes {label}"
                    raise self.error(f"{axis} have extents {other} and {extent}", "extents that are equal or 1")
        return known

    def product(self, x: _Term, y: _Term, kept: set[Label]) -> _Term:
        """`_product`, whose axes are few enough."""
        count = len({a for a in (*x.labels, *y.labels) if a in kept})
        if count > MAX_RANK:
            raise self.error(f"a product of two operands has {count} axes", f"at most {MAX_RANK}")
        return _product(x, y, kept)


def _broadcast(terms: Sequence[_Term], extents: dict[Label, int]) -> list[_Term]:
    """The terms without axes of extent 1 whose label is longer in another one."""
    result = []
    for term in terms:
        kept = [(a, n) for a, n in term.extents().items() if n == extents[a]]
        result.append(_Term(reshape(term.value, [n for _, n in kept]), tuple(a for a, _ in kept)))
    return result


def _elsewhere(terms: Sequence[_Term], chosen: Sequence[int], output: Sequence[Label]) -> set[Label]:
    """The labels of all other terms and of the result."""
    return set(output).union(*(t.labels for i, t in enumerate(terms) if i not in chosen))


def _summed(term: _Term, kept: set[Label]) -> _Term:
    """The term summed over the labels that are not kept."""
    gone = [i for i, label in enumerate(term.labels) if label not in kept]
    if not gone:
        return term
    return _Term(sum_over(term.value, gone), tuple(a for a in term.labels if a in kept))


def _cheapest(terms: Sequence[_Term], output: Sequence[Label]) -> tuple[int, int]:
    """The pair whose product has the fewest elements; of equal ones, the one with the fewest multiplications."""
    if len(terms) == 2:
        return 0, 1

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        extents = terms[pair[0]].extents() | terms[pair[1]].extents()
        kept = _elsewhere(terms, pair, output)
        return math.prod(n for a, n in extents.items() if a in kept), math.prod(extents.values())

    return min(itertools.combinations(range(len(terms)), 2), key=cost)


def _product(x: _Term, y: _Term, kept: set[Label]) -> _Term:
    """Both multiplied, and summed over the labels that are not kept: [batch, left, inner] x [batch, inner, right].

    A label of one term alone is kept: `_summed` has removed the others.
    """
    extents = x.extents() | y.extents()
    batch = [a for a in x.labels if a in y.labels and a in kept]
    inner = [a for a in x.labels if a in y.labels and a not in kept]
    left = [a for a in x.labels if a not in y.labels]
    right = [a for a in y.labels if a not in x.labels]
    b, m, k, n = (product([extents[a] for a in group]) for group in (batch, left, inner, right))
    if not inner:
        z = mul(_as(x, [*batch, *left], (b, m, 1)), _as(y, [*batch, *right], (b, 1, n)))
    elif not left and not right:
        z = sum_over(mul(_as(x, [*batch, *inner], (b, k)), _as(y, [*batch, *inner], (b, k))), -1)
    elif batch:
        z = matmul(_as(x, [*batch, *left, *inner], (b, m, k)), _as(y, [*batch, *inner, *right], (b, k, n)))
    else:
        z = matmul(_as(x, [*left, *inner], (m, k)), _as(y, [*inner, *right], (k, n)))
    labels = (*batch, *left, *right)
    return _Term(reshape(z, [extents[a] for a in labels]), labels)


def _as(term: _Term, labels: Sequence[Label], shape: Sequence[int]) -> Value:
    return reshape(permute(term.value, [term.labels.index(a) for a in labels]), shape)
