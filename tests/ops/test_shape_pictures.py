"""Pictures of shapes for the reference: letters follow from the samples of an op, and every op has a picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from gradloom.graph.opspec import REGISTRY
from gradloom.ops.shape_pictures import STYLE, picture, text


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("relu", "x [n, m] -> y [n, m]"),
        ("add", "x [n, m], y [n, m] -> z [n, m]"),
        ("matmul", "x [n, m], y [m, k] -> z [n, k]"),
        ("sum", "x [n, m] -> y [n]"),
        ("permute", "x [n, m] -> y [m, n]"),
        ("get_rows", "table [n, m], ids [k] -> y [k, m]"),
        ("conv2d", "x [n, m, k, p], w [q, m, r, s], bias [q] -> y [n, q, t, u]"),  # 3 channels, kernels of 3 x 3
        ("solve_triangular", "a [n, n], b [n, m] -> x [n, m]"),
        ("cross_entropy_sum", "logits [n, m], labels [n], weights [n] -> loss [], weight [], grad [n, m]"),
        ("assign", "state [n], x [n] -> state [n]"),
        ("input", "-> y"),
    ],
)
def test_letters(name: str, shapes: str) -> None:
    assert text(REGISTRY[name]) == shapes


def test_attention_has_as_many_keys_as_queries_and_fewer_heads() -> None:
    shapes = text(REGISTRY["attention"])
    query, key = (re.search(rf"\b{name} \[(.*?)\]", shapes) for name in "qk")
    assert query and key
    assert query[1] == "n, m, k, p" and key[1] == "n, m, q, p"


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_op_has_a_picture(name: str) -> None:
    made = picture(REGISTRY[name])
    drawn = ET.fromstring(made)  # well-formed, in one line: Markdown takes it as it is
    assert "\n" not in made and made == picture(REGISTRY[name]) and "http" not in made + STYLE
    spec = REGISTRY[name]
    boxes = [figure.find("figcaption/b").text for figure in drawn.iter("figure")]  # type: ignore[union-attr]
    assert set(boxes) >= {slot.name for slot in spec.inputs if not slot.optional} | {slot.name for slot in spec.outputs}
    for svg in drawn.iter("svg"):
        assert 0 < int(svg.get("width", 0)) <= 120  # two fit beside each other on a phone
        assert {rect.get("stroke") for rect in svg.iter("rect")} == {"currentColor"}
