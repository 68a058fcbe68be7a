"""What the cells of a table are: numbers, missing values, texts; where a text in a column of numbers is an error."""

import csv
import io
import random

import numpy as np
import pytest

from gradloom import _cells
from gradloom.base.errors import DataError
from gradloom.data import read_features, read_table
from gradloom.data.reading.columns import Lines
from gradloom.data.reading.csv_file import read_csv


def write(path, text):
    path.write_text(text)
    return path


def column(tmp_path, cells, separator=","):
    """A file of two more columns, of which `cells` is the first."""
    with open(tmp_path / "t.csv", "w", newline="") as file:
        rows = [["a", "b", "y"], *([cell, i, i % 2] for i, cell in enumerate(cells))]
        csv.writer(file, delimiter=separator).writerows(rows)
    return tmp_path / "t.csv"


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_python():
    draw = random.Random(0)
    texts = ["0", "-0", "+5", "5.", ".5", "1e5", "1E-5", "1e308", "1e309", "-1e999", "1e-400", "9" * 400, "0" * 400]
    texts += ["0." + "0" * 400 + "1", "9007199254740993", "123456789012345", "1234567890123456", "4.35", "2.675e-3"]
    texts += ["0.1" + "0" * 30, "0e5", "0.0000e999", "infinity", "-INF", "007", "1.7976931348623157e308"]
    texts += ["5e-324", "-1e-320", "1e-310", "2.4703282292062328e-324"]  # below the smallest normal number
    texts += [repr(draw.gauss(0, 10.0 ** draw.randrange(-12, 12))) for _ in range(2000)]
    texts += [f"{draw.randrange(10**9)}.{draw.randrange(10**6)}" for _ in range(2000)]
    for text in texts:
        read = _cells.read_cell(text, False)
        assert isinstance(read, float) and np.float64(read).tobytes() == np.float64(float(text)).tobytes(), text
    for text in ("1_0", "0x1", "e5", "1e", "--1", "1 2", "１", "1.2.3", "+-1", "$", "%", "infinit", "1,2", "$-$1", "-"):
        assert not isinstance(_cells.read_cell(text, False), float), text


@pytest.mark.parametrize(
    ("cell", "comma", "value"),
    [
        ("$3.50", False, 3.5), ("-$3.50", False, -3.5), ("$-3.50", False, -3.5), ("$ 1,234.50", False, 1234.5),
        ("1,234", False, 1234), ("1,234,567.5", False, 1234567.5), ("12,34", False, False), ("1,2345", False, False),
        ("3.1%", False, 3.1), ("3.1 %", False, 3.1), ("-5%", False, -5), ("€3", False, 3), ("3 €", False, 3),
        ("£1,000", False, 1000), ("1,5", True, 1.5), ("1,234", True, 1.234), ("1,234,567", True, 1234567),
        ("1.234,5", True, 1234.5), ("1.234.567,25", True, 1234567.25), ("3,50 €", True, 3.5), ("1,5,2", True, False),
        ("0,519", False, False), ("-0,519", True, -0.519), ("0.519,5", True, False), ("0,519,000", True, False),
        ("12 kg", False, False), ("%", False, False), ("$inf", False, False), ("3%%", False, False),
    ],
)  # fmt: skip
def test_units_and_groups_of_digits(cell, comma, value):
    assert _cells.read_cell(cell, comma) == value and type(_cells.read_cell(cell, comma)) in (bool, float)


def test_prices_percentages_and_thousands_are_numbers(tmp_path):
    rows = "".join(f'${i}.50,"{i + 1},234",{i}.1%,{i % 2}\n' for i in range(40))
    table = read_table(write(tmp_path / "t.csv", "price,count,share,y\n" + rows), test_split=0)
    price, count, share = table.preprocess.columns
    assert [c.kind for c in (price, count, share)] == ["number"] * 3
    assert (price.mean, count.median, round(share.mean, 9)) == (20.0, 20734.0, 19.6)
    assert "price: '$' of 40 cells is not part of the number" in table.notes


def test_groups_of_digits_that_another_cell_makes_sure(tmp_path):
    """1,234 in a file with semicolons is 1.234, unless a cell such as 1,234,567 says what the commas are."""
    for more, value in (("2,5", 1.234), ("1,234,567", 1234.0)):
        data = read_csv(column(tmp_path, ["1,234"] * 9 + [more], ";"))
        assert data.numbers(0)[0] == value


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["$1"] * 20 + ["€2"] + ["3"] * 10, "line 22: column 'a': 1 of 31 numbers have '€', others none or '$'; need"),
        (["5%"] * 20 + ["0.05"] * 9, "line 2: column 'a': 20 of 29 numbers have '%', others none; need one unit"),
    ],
)  # fmt: skip
def test_units_that_differ(tmp_path, cells, message):
    with pytest.raises(DataError) as caught:
        read_table(column(tmp_path, cells))
    assert message in str(caught.value)


def test_a_percentage_of_nothing_needs_no_sign(tmp_path):
    assert read_table(column(tmp_path, ["5%", "6%", "0"] * 9)).preprocess.columns[0].kind == "number"


def test_a_number_beyond_the_others_is_no_constant(tmp_path):
    for cells in ([1e300] + [1.0] * 30, [1e300, -1e300] * 15, [1e-300, 2e-300] * 15, [1.7e308, -1.7e308] * 15):
        table = read_table(column(tmp_path, cells), test_split=0)
        assert table.preprocess.columns[0].kind == "number" and np.isfinite(table.train.data).all()
        assert abs(table.train.data[:, 0]).max() > 0.9


# ---- missing values --------------------------------------------------------------------------------------------------

MARKS = ["-", "#N/A", ".", "missing", "?", "NA", "n/a", "NaN", "null", "None", "--", "#DIV/0!", "MISSING", "–"]


@pytest.mark.parametrize("share", [0.01, 0.08, 0.5, 0.95])
@pytest.mark.parametrize("mark", MARKS)
def test_marks_of_missing_values_at_any_share(tmp_path, mark, share):
    n = 200
    cells = [mark if i < share * n else f"{i}.5" for i in range(n)]
    random.Random(0).shuffle(cells)
    table = read_table(column(tmp_path, cells), test_split=0)
    count = int(share * n)
    assert table.preprocess.columns[0].kind == "number"
    cells_said = "1 empty cell" if count == 1 else f"{count} empty cells"
    assert any(f"a: {cells_said} ({count} {mark!r}) filled with" in note for note in table.notes), table.notes


def test_marks_beside_empty_cells_are_counted(tmp_path):
    table = read_table(column(tmp_path, ["", "-", "NA", "-", *map(str, range(30))]), test_split=0)
    assert any("a: 4 empty cells (2 '-', 1 'NA' among them) filled" in note for note in table.notes)


# ---- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.05, 0.08, 0.3, 0.6])
def test_a_text_among_numbers_is_an_error_at_any_share(tmp_path, share):
    n = 400
    cells = [f"{i}.5" for i in range(n)]
    for i in range(int(share * n)):
        cells[n - 1 - i] = "oops"
    line = n - int(share * n) + 2
    with pytest.raises(DataError) as caught:
        read_table(column(tmp_path, cells))
    rest = f"as {n - int(share * n)} of its other cells are; fix the cell or leave it empty"
    assert f"t.csv line {line}: column 'a': 'oops' is no number, {rest}" in str(caught.value)
    with pytest.raises(DataError, match=rf"t.csv line {line}: target 'a': 'oops' is no number"):
        read_table(tmp_path / "t.csv", target="a")


@pytest.mark.parametrize(
    "cells",
    [
        ["0", "1", "2", "3+"] * 20,  # dependents
        [f"A/5 {i}" if i % 4 == 0 else str(113_000 + i) for i in range(400)],  # tickets
        [f"{i % 7}x" for i in range(100)],
        ["yes", "no", "?"] * 20,
    ],
)
def test_texts_that_are_no_mistakes(tmp_path, cells):
    assert read_table(column(tmp_path, cells), test_split=0).preprocess.columns[0].kind in ("text", "unused")


def test_leading_zeros_are_kept(tmp_path):
    data = read_csv(column(tmp_path, ["02134", "98101", "00501"] * 9))
    codes, texts = data.texts(0)
    assert [texts[code] for code in codes[:3]] == [b"02134", b"98101", b"00501"]
    assert data.numbers(0)[:3].tolist() == [2134, 98101, 501]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_text_behind_the_first_piece(tmp_path):
    """A column that turns out to be texts, or to have leading zeros, when the first four megabytes were numbers."""
    rows = 700_000
    text = "".join(f"{i % 100},{i % 7}\n" for i in range(rows))
    data = read_csv(write(tmp_path / "t.csv", f"a,y\n{text}x,1\n007,2\n"))
    assert data.rows == rows + 2 and data.lines[-1] == rows + 3 and data.numbers(1)[-1] == 2
    codes, texts = data.texts(0)
    assert [texts[code] for code in (codes[0], codes[99], codes[-2], codes[-1])] == [b"0", b"99", b"x", b"007"]
    assert data.numbers(0) is None and data.first_text(0) == (rows, "x")


def test_rows_over_the_ends_of_pieces(tmp_path, monkeypatch):
    """Cells, line ends and quotes, cut at every byte."""
    rows = [
        ["id", "text", "n"],
        *([str(i), t, f"{i}.5"] for i, t in enumerate(['a"b', "x\ny", "é", " ", "\r\n", "u,v"])),
    ]
    for end in ("\n", "\r\n", "\r"):
        held = io.StringIO(newline="")
        csv.writer(held, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
        (tmp_path / "t.csv").write_bytes(held.getvalue().encode("utf-8-sig"))
        whole = None
        for size in range(3, 90):  # the mark of byte order lies in one piece
            monkeypatch.setattr("gradloom.data.reading.text_bytes._PIECE", size)
            data = read_csv(tmp_path / "t.csv")
            codes, texts = data.texts(1)
            found = (data.names, data.numbers(2).tolist(), [texts[c] for c in codes], list(data.lines))
            whole = whole or found
            assert found == whole and found[0] == rows[0] and found[1] == [i + 0.5 for i in range(6)]
            assert [t.decode() for t in found[2]] == [row[1].strip() for row in rows[1:]]


def test_lines_are_runs():
    draw = np.random.default_rng(5)
    for _ in range(50):
        lines, held = np.cumsum(draw.choice([1, 1, 1, 2, 5], 200)), Lines()
        for part in np.split(lines, np.sort(draw.integers(0, 200, 6))):
            held.add(part)
        assert len(held) == 200 and list(held) == lines.tolist() and held[-1] == lines[-1]
        held.put_first(0)
        assert list(held) == [0, *lines.tolist()]
        with pytest.raises(IndexError):
            held[201]


def test_random_files_are_cut_as_python_cuts_them(tmp_path):
    draw = random.Random(1)
    cells = ["", "1", "-2.5", 'a"', '"', '""', "x,y", "\n", "a\r\nb", " u ", "é", "\u00a0v\u2003", "\t", "NA", "ends\r"]
    for _ in range(300):
        width = draw.randrange(2, 5)
        rows = [[draw.choice(cells) for _ in range(width)] for _ in range(draw.randrange(1, 9))]
        held = io.StringIO(newline="")
        several = any(mark in cell for row in rows for cell in row for mark in "\r\n")
        quoting = csv.QUOTE_ALL if several else draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
        csv.writer(held, lineterminator=draw.choice(["\n", "\r\n"]), quoting=quoting).writerows(rows)
        (tmp_path / "t.csv").write_bytes(held.getvalue().encode())
        reader = csv.reader(io.StringIO(held.getvalue(), newline=""), skipinitialspace=True, strict=True)
        expected = [([c.strip() for c in row], reader.line_num) for row in reader]
        splitter = _cells.Splitter(",")
        splitter.feed(held.getvalue().encode(), True)
        splitter.begin(bytes([_cells.TEXTS] * width))
        columns = []
        for one in splitter.columns:
            codes, (data, ends) = one.take(), one.texts
            texts = [data[b:e].decode() for b, e in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
            columns.append([texts[code] for code in codes])
        found = [[c.decode() for c in splitter.first[1]], *map(list, zip(*columns, strict=True))]
        assert found == [row for row, _ in expected] and splitter.fault is None
        assert [splitter.first[0], *splitter.take_lines().tolist()] == [line for _, line in expected]


def test_numbers_are_held_in_few_bytes(tmp_path):
    data = read_csv(column(tmp_path, [f"{i % 250 - 125}.{i % 10}" for i in range(1000)]))
    blocks = [block.dtype for block, _ in data.cells[0].blocks.parts]
    assert blocks == [np.int16]
    assert data.numbers(0).tolist() == [float(f"{i % 250 - 125}.{i % 10}") for i in range(1000)]


def test_pieces_are_joined(tmp_path, monkeypatch):
    """Pieces of other widths between them; numbers, missing ones and codes stay what they are."""
    monkeypatch.setattr("gradloom.data.reading.text_bytes._PIECE", 512)
    monkeypatch.setattr("gradloom.data.reading.cells._JOINED", 700)
    wide = [i % 50 if i % 400 < 200 else i * 1000 for i in range(3000)]
    texts = [f"t{i * i % 97}" for i in range(3000)]
    lines = [f"{'' if i % 11 == 0 else n},{t},{i / 8}" for i, (n, t) in enumerate(zip(wide, texts, strict=True))]
    data = read_csv(write(tmp_path / "t.csv", "\n".join(["a,b,y", *lines])))
    parts = data.cells[0].blocks.parts
    assert len({block.dtype for block, _ in parts}) > 1 and max(block.nbytes for block, _ in parts) >= 700
    assert np.array_equal(data.numbers(0), [np.nan if i % 11 == 0 else n for i, n in enumerate(wide)], equal_nan=True)
    codes, seen = data.texts(1)
    assert [seen[code].decode() for code in codes] == texts
    assert data.numbers(2).tolist() == [i / 8 for i in range(3000)]


def test_categories_of_numbers_are_found_again(tmp_path):
    """A category that is a number is the same text whether its column holds texts beside it or not."""
    made = read_table(column(tmp_path, ["1.50", "x", "2"] * 12)).preprocess
    write(tmp_path / "p.csv", "a,b\n1.50,1\n2,2\n")
    features, *_ = read_features(tmp_path / "p.csv", made)
    assert features[:, :3].sum(axis=1).tolist() == [1, 1]


def test_no_warning_stands_beside_an_error(tmp_path, recwarn):
    for cells in (["1e308", "-1e308", "1e308"] * 10, ["inf", "1"] * 9, ["nan"] * 9):
        for target in ("a", "y"):
            try:
                read_table(column(tmp_path, cells), target=target)
            except DataError as error:
                assert "\n" not in str(error)
    assert not recwarn.list
