"""compare says which backends it needs where one name is given."""

import gradloom as gl
from tests.refused import refused


def test_one_name_is_not_taken_letter_by_letter() -> None:
    with refused("backends", "cpu", need="two or more, such as ('numpy', 'cpu')"):
        gl.compare(gl.input("x", (2,)) * 2, {"x": [1.0, 2.0]}, backends="cpu")
