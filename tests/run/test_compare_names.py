"""compare says which backends it needs where one name is given."""

import pytest

import gradloom as gl
from gradloom.base.errors import SettingError


def test_one_name_is_not_taken_letter_by_letter() -> None:
    with pytest.raises(SettingError, match=r"backends='cpu' is one name; need two or more, such as \('numpy', 'cpu'\)"):
        gl.compare(gl.input("x", (2,)) * 2, {"x": [1.0, 2.0]}, backends="cpu")
