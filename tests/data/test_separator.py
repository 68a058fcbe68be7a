"""A first line such as sep=; names the separator, as spreadsheets write and read it: it is no header."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gradloom.base.errors import DataError
from gradloom.data.reading.csv_file import read_csv
from gradloom.data.table import read_table

ROWS = "size{0}name\n1{0}a\n2{0}b\n3{0}x y\n"


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("first", ["sep={}\n", "sep={}\r\n", '"sep={}"\n', "SEP={}\r", "\ufeffsep={}\n"])
def test_the_line_is_no_row_and_no_header(tmp_path: Path, sign: str, first: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((first.format(sign) + ROWS.format(sign)).encode())
    found = read_csv(path)
    assert (found.names, found.header, found.separator, found.rows) == (["size", "name"], True, sign, 3)
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_csv(packed).names == ["size", "name"]
    path.write_text(first.format(sign).strip("\ufeff") + f"1{sign}2\n3{sign}4\n5{sign}7\n")
    assert (read_csv(path).header, read_csv(path).rows) == (False, 3)


def test_it_decides_where_another_one_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("sep=;\na,b,c;d\n1,5;2\n2,5;3\n")
    found = read_csv(path)
    assert found.names == ["a,b,c", "d"]
    path.write_text("sep=,\n" + "a;b\n" * 3)
    assert read_csv(path, header=False).rows == 3 and len(read_csv(path, header=False).names) == 1


def test_lines_are_counted_from_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("sep=;\na;b\n1;2\n1;2;3\n")
    with pytest.raises(DataError, match=r"t.csv line 4: 3 cells, needs 2 as in line 2"):
        read_csv(path)
    path.write_text("sep=|\na|b\n1|2\n")
    with pytest.raises(DataError, match=r"t.csv line 1: sep=\|: need a comma, a semicolon or a tab"):
        read_csv(path)


def test_a_column_that_turns_out_to_be_texts_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradloom.data.reading.text_bytes._PIECE", 64)
    path = tmp_path / "t.csv"
    path.write_text("sep=;\na;b\n" + "".join(f"{i};{i}\n" for i in range(100)) + "red;3\n" * 100)
    found = read_csv(path)
    assert found.names == ["a", "b"] and found.rows == 200


def test_a_table_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "a;y\n" + "".join(f"{i},5;{'pq'[i % 2]}\n" for i in range(40))
    path.write_text(rows)
    plain = read_table(path)
    path.write_text("sep=;\n" + rows)
    again = read_table(path)
    assert np.array_equal(plain.train.data, again.train.data) and plain.preprocess == again.preprocess
