"""Tables with odd cells and damaged bytes, archives that are cut off, nested or unpack to much: a table, or one line.

A failing case is its number: `csv_file(number)` and `npz_file(number)` make the same file again.
"""

import gzip
import io
import random
import struct
import zipfile
import zlib
from datetime import datetime, timedelta

import numpy as np
import pytest

from gradloom.base.memory import Memory
from gradloom.data import read_features, read_table
from gradloom.data.encoding.times import FORMS
from tests.fuzz.limits import CASES, Costs, one_input

CELLS = [
    "",
    "0",
    "1",
    "2",
    "-1",
    "1.5",
    "1,5",
    "1e5",
    "1e308",
    "-1e308",
    "1e-320",
    "1e999",
    "inf",
    "-inf",
    "nan",
    "NA",
    "?",
]
CELLS += [
    "red",
    "blue",
    "é",
    "１",
    "1_0",
    "0x1",
    " 1 ",
    "\t",
    ";",
    '""',
    "#",
    "true",
    "None",
    "x" * 300,
    "9" * 400,
    "0" * 5000,
]
CELLS += ["\x0b", "\x1c1", "\u2028", "\x85", "\u0660", "\u00a01", "\U0001f600", "-", "+", ".", "e5", "1e", "--1", "1 2"]
BYTES = [
    b"\0",
    b"\xff",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"\xc3",
    b'"',
    b'""',
    b"'",
    b"\n",
    b"\r",
    b"\r\n",
    b",",
    b";",
    b"\t",
]
BYTES += [
    b"\\",
    b"," * 3000,
    b"\n" * 3000,
    b'"' * 999,
    b"x" * 70_000,
    b"x" * 140_000,
    b"1," * 70_000,
    b"\x1a",
    b"\xed\xa0\x80",
]
DTYPES = [
    "f8",
    "f4",
    "f2",
    ">f8",
    "i1",
    "u1",
    "i4",
    "i8",
    "u8",
    ">i2",
    "?",
    "U3",
    "S3",
    "c8",
    "M8[s]",
    "m8[s]",
    "g",
    "V3",
]
NAMES = [
    "x",
    "y",
    "X",
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "classes",
    "feature_names",
    "data",
    "target",
    "labels",
]
NAMES += ["images", "features", "other", "a/b", "é"]
SHAPES = [
    (20, 2),
    (20,),
    (20, 1),
    (20, 2, 2),
    (0,),
    (0, 2),
    (20, 0),
    (),
    (1,),
    (1, 2),
    (2, 2),
    (20, 3),
    (3,),
    (2,),
    (19, 2),
]
SIZES = [0, 1, 19, 20, 2**31, 2**32, 2**62, 2**63, 10**18, 10**30, -1, -20]


def damaged(draw, data, times=(1, 1, 2, 3)):
    """One to three changes of bytes."""
    data = bytearray(data)
    for _ in range(draw.choice(times)):
        at = draw.randrange(len(data) + 1)
        how = draw.randrange(5)
        if how == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[at : at + draw.choice([1, 3, 100])]
        elif how == 2:
            del data[at:]
        elif how == 3:
            data[at : at + 4] = struct.pack("<I", draw.choice([0, 1, 255, 2**16, 2**31, 2**32 - 1]))
        else:
            data[at:at] = draw.choice(BYTES)
    return bytes(data)


def table(draw):
    """The text of a table, most of whose cells are usual ones."""
    separator, end = draw.choice([",", ",", ";", "\t"]), draw.choice(["\n", "\n", "\r\n", "\r"])
    columns, count = draw.choice([1, 2, 2, 3, 3, 3, 4, 40]), draw.choice([1, 2, 10, 30, 40, 100, 200])
    odd = draw.choice([0, 0, 0.003, 0.1])
    kinds = [
        draw.choice(["whole", "number", "number", "text", "text", "date", "class", "class", "class"])
        for _ in range(columns)
    ]
    if draw.random() < 0.3:
        kinds[draw.randrange(columns)] = draw.choice(["one", "empty", "odd"])
    rows = []
    if draw.random() < 0.7:
        rows.append(
            [draw.choice(["size", "y", "", "1", "é"]) + str(i) * draw.choice([1, 1, 1, 0]) for i in range(columns)]
        )
    form = draw.choice(FORMS)
    for i in range(count):
        day = datetime(2020, 1, 1) + timedelta(days=i * draw.choice([1, 9]), minutes=draw.choice([0, 90]))
        usual = {
            "date": f"{day:%Y-%m-%d}" if form == "iso" else day.strftime(form).replace(",", ""),
            "whole": str(i), "number": f"{draw.gauss(0, 3):.3f}", "text": f"t{draw.randrange(5)}", "class": str(i % 2),
            "one": "1", "empty": "", "odd": draw.choice(CELLS),
        }  # fmt: skip
        rows.append([draw.choice(CELLS) if draw.random() < odd else usual[kind] for kind in kinds])
        if draw.random() < odd / 20:
            rows[-1].append("1")
        if draw.random() < odd / 50:
            rows.append(rows[0])
    return end.join(separator.join(row) for row in rows) + end * draw.randrange(3)


def csv_file(number):
    """(name, bytes) of case `number`: a .csv or a .csv.gz file."""
    draw = random.Random(number)
    data = table(draw).encode(draw.choice(["utf-8"] * 60 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"]), "replace")
    if draw.random() < 0.25:
        data = damaged(draw, data)
    if draw.random() < 0.6:
        return "t.csv", data
    how = draw.randrange(8)
    if how == 0:
        data = data + draw.choice([b"1,2\n", b"\n", b"a", b",", b"\0", b"1,2,3\n", data[-30:]]) * draw.choice(
            [10**5, 10**6]
        )
    packed = gzip.compress(data, draw.choice([1, 9]), mtime=0)
    if how == 1:
        packed = gzip.compress(packed)
    elif how == 2:
        packed = packed[: draw.randrange(len(packed))]
    elif how == 3:
        packed = damaged(draw, packed)
    elif how == 4:
        packed += draw.choice([packed, packed[:20], b"\0" * 9, b"junk"])
    elif how == 5:
        packed = zlib.compress(data)
    return "t.csv.gz", packed


def npy(draw, name, usual):
    """An .npy file: an array for this name, of the usual shape if it is x, whose head may say something else."""
    one = name.lower().endswith(("x", "train", "test", "data", "images")) and "y" not in name
    kind = np.dtype(draw.choice(DTYPES if draw.random() < 0.15 else ["f8", "f4", "i8"]))
    shape = draw.choice(SHAPES) if draw.random() < 0.1 else usual if one else (20,)
    values = np.array([draw.choice([0, 1, 1, 2, 3, 5]) for _ in range(int(np.prod(shape)))], "f8").reshape(shape)
    if draw.random() < 0.1 and values.size:
        values.flat[draw.randrange(values.size)] = draw.choice(
            [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e38, 1e-320, -7, 1e18]
        )
    with np.errstate(all="ignore"):
        array = np.zeros(shape, kind) if kind.kind == "V" else values.astype(kind)
    held = io.BytesIO()
    np.lib.format.write_array(held, array, version=draw.choice([None] * 20 + [(2, 0), (2, 0), (3, 0)]))
    data = held.getvalue()
    if draw.random() < 0.1:
        sizes = [(draw.choice(SIZES), draw.choice(SIZES)) for _ in range(3)]
        head = {
            "descr": draw.choice([kind.str, kind.str, "|O", "S0", "<U99999", [("a", "<f8")], "x", 3]),
            "fortran_order": draw.choice([False, True, 2]),
            "shape": draw.choice([shape, *sizes, 3, (1,) * 99]),
        }
        text = draw.choice([*[repr(head)] * 3, "(" * 2000, "{" * 100, "9" * 5000, "[" * 9000 + "]" * 9000])
        data = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + array.tobytes()
    return data


def npz_file(number):
    """(name, bytes) of case `number`: an .npz file."""
    draw = random.Random(number)
    held, usual = io.BytesIO(), draw.choice(SHAPES[:4])
    pairs = [("x", "y"), ("x_train", "y_train"), ("data", "target")]
    names = list(draw.choice(pairs)) + [draw.choice(NAMES) for _ in range(draw.choice([0, 0, 1, 2, 3]))]
    if draw.random() < 0.3:
        names = ["x_train", "y_train", "x_test", "y_test", *names[2:]]
    with zipfile.ZipFile(held, "w") as file:
        for name in dict.fromkeys(names):
            method = draw.choice(
                [zipfile.ZIP_STORED] * 20 + [zipfile.ZIP_DEFLATED] * 20 + [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
            )
            data = npy(draw, name, usual)
            how = draw.randrange(4, 40) if draw.random() < 0.9 else draw.randrange(5)
            if how == 0:
                data += bytes(draw.choice([1, 10, 10**4]))
            elif how == 1:
                data = damaged(draw, data)
            elif how == 2:
                data = draw.choice([b"", b"hello", b"\x93NUMPY", b"PK\3\4"])
            elif how == 3 and draw.random() < 0.05:
                text = repr({"descr": "|i1", "fortran_order": False, "shape": (12 * 10**6,)})
                data = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + bytes(12 * 10**6)
            suffix = ".npy" if draw.random() < 0.99 else draw.choice(["", ".txt", ".NPY"])
            file.writestr(name + suffix, data, method)
    data = held.getvalue()
    return "t.npz", damaged(draw, data) if draw.random() < 0.25 else data


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """40 MB are free, so that 2 MB of text and 10 MB of arrays may be unpacked: what they take is below one_input's."""
    monkeypatch.setattr("gradloom.data.reading.unpacked.memory", lambda: Memory(1 << 30, 40_000_000))


def options_of(make, number):
    """What read_table is told of how the cells of case `number` are read."""
    if make is npz_file:
        return {}
    draw = random.Random(f"options of {number}")
    encodings = [
        *[None] * 12,
        "cp1252",
        "latin-1",
        "utf-8",
        "utf-16",
        "utf-16-le",
        "utf-32",
        "shift_jis",
        "cp037",
        "hz",
    ]
    words = [*[()] * 4, ["t1"], ["1", "x"], ["-1", "?", "é"], ["red", "2020-01-01"]]
    return {"encoding": draw.choice(encodings), "missing": draw.choice(words)}


def read_all(make, folder, numbers, costs):
    """Read the files of these cases as tables to train on, and again as tables to predict."""
    task = [None, None, "classification", "regression"]
    for number in numbers:
        name, data = make(number)
        path = folder / name
        path.write_bytes(data)
        try:
            with one_input(path, costs):
                options = options_of(make, number)
                read = read_table(path, None, task[number % 4], 0.2, 0.25 * (number % 3 == 0), number, **options)
                for part in (read.train, read.test):
                    for array in [] if part is None else [part.data, part.labels]:
                        assert array.dtype.kind in "iu" or np.isfinite(array).all(), array
                features, _, _, _ = read_features(path, read.preprocess)
                assert features.shape[1] == read.preprocess.inputs and np.isfinite(features).all()
        except BaseException as error:
            raise AssertionError(f"case {number} of {make.__name__}: {error!r}") from error


@pytest.mark.parametrize("make", [csv_file, npz_file])
@pytest.mark.slow
def test_odd_tables(tmp_path, make):
    costs = Costs()
    read_all(make, tmp_path, range(CASES), costs)
    print(f"\n{make.__name__}: {CASES} inputs: {costs}")
    assert costs.read > CASES / 20 and costs.refused > CASES / 5
