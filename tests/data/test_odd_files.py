"""Tables that no program would write, or only to do harm: refused in one line, or read within 20 times their bytes."""

import bz2
import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from gradloom.base.errors import DataError, FileError, GradloomError
from gradloom.base.memory import Memory
from gradloom.data import read_features, read_table
from gradloom.data.reading.csv_file import read_csv

SLACK = 4 << 20  # bytes that any small table takes


def peak_of(work, *arguments, **options):
    """(what the call gives or the GradloomError that it raises, bytes of memory at its peak)."""
    tracemalloc.start()
    try:
        found = work(*arguments, **options)
    except GradloomError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        found = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found, peak


def refused(path, kind, message, most=SLACK):
    error, peak = peak_of(read_table, path)
    assert type(error) is kind and message in str(error) and str(path) in str(error), error
    assert peak < 20 * path.stat().st_size + most, peak


@pytest.fixture
def small_machine(monkeypatch):
    """20 MB are free: 1 MB of text, 5 MB of arrays."""
    monkeypatch.setattr("gradloom.data.reading.unpacked.memory", lambda: Memory(1 << 30, 20_000_000))


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_a_long_cell_does_not_make_all_cells_long(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},{f't{i % 2}' if i != 7 else 'x' * 131_000},{i % 2}" for i in range(20_000)]
    path.write_text("n,text,y\n" + "\n".join(rows) + "\n")
    table, peak = peak_of(read_table, path, test_split=0)
    assert peak < 20 * path.stat().st_size + 4 * SLACK
    made = table.preprocess
    assert [c.kind for c in made.columns] == ["number", "text"]
    assert [len(c) for c in made.columns[1].categories] == [2, 2, 131_000]
    features, targets, _, _ = read_features(path, made)
    assert features.shape == (20_000, 4) and (targets == np.arange(20_000) % 2).all()
    assert np.flatnonzero(features[:, 3]).tolist() == [7]


def test_long_cells_everywhere(tmp_path):
    """A target, numbers, an empty column of cells with one long one among them."""
    path = tmp_path / "t.csv"
    long = "z" * 3000
    rows = [
        f"{i}{'.' + '0' * 2000 if i == 3 else ''},{'' if i % 3 else i},{long if i % 5 == 0 else 'a'}"
        for i in range(900)
    ]
    path.write_text("n,m,y\n" + "\n".join(rows) + "\n")
    table, peak = peak_of(read_table, path)
    assert peak < 20 * path.stat().st_size + SLACK
    assert table.preprocess.classes == ["a", long] and table.preprocess.inputs == 3
    assert "m: 600 empty cells filled with the training median" in " ".join(table.notes)
    assert table.train.labels.sum() + table.test.labels.sum() == 180
    path.write_text(path.read_text().replace(",", ";"))
    assert read_table(path).preprocess.inputs == 3


def test_categories_longer_than_the_cells(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{'x' * 60_000 if i % 3 else 'b'},{i % 2}\n" for i in range(30)))
    made = read_table(path).preprocess
    assert [len(c) for c in made.columns[0].categories] == [1, 60_000]
    path.write_text("a\n" + "b\nx\n" * 50_000 + "x" * 60_000 + "\n")
    (features, _, notes, _), peak = peak_of(read_features, path, made)
    assert features.sum(axis=0).tolist() == [50_000, 1] and peak < 20 * path.stat().st_size + 10 * SLACK
    assert notes == ["a: 50000 rows with a text unknown from training: x"]
    path.write_text("a\nx\n")
    assert read_features(path, made)[0].tolist() == [[0, 0]]


@pytest.mark.parametrize("columns", [10_000, 1 << 16])
@pytest.mark.slow
def test_many_columns(tmp_path, columns):
    path = tmp_path / "t.csv"
    rows = "".join(",".join([str(i)] * (columns - 1) + [str(i % 2)]) + "\n" for i in range(4))
    path.write_text(",".join(f"c{i}" for i in range(columns)) + "\n" + rows)
    data, peak = peak_of(read_csv, path)
    assert len(data.cells) == columns and data.rows == 4 and peak < 200e6
    with path.open("a") as file:
        file.write("1" + ",1" * columns + "\n")
    with pytest.raises(DataError, match=rf"line 6: {columns + 1} cells, needs {columns} as in line 1"):
        read_csv(path)


@pytest.mark.slow
def test_too_many_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1," * 100_000 + "1\n")
    refused(path, DataError, "line 1: 100,001 columns; need at most 65,536")
    np.savez(tmp_path / "t.npz", x=np.zeros((4, 70_000), "i1"), y=np.arange(4) % 2)
    refused(tmp_path / "t.npz", DataError, "70,000 columns; need at most 65,536", 20 * SLACK)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"a,y\n1,0\n2\0,1\n", FileError, "byte 9 is NUL, as in UTF-16 or in no text at all; save it as UTF-8 text"),
        ("a,y\n1,0\n2,1\n".encode("utf-16-le"), FileError, "byte 1 is NUL"),
        ("a,y\n1,0\n2,1\n".encode("utf-32-be"), FileError, "is NUL"),
        ("é,y\n1,0\n2,1\n".encode("latin-1"), FileError, "is not UTF-8 text (byte 0xe9); save it as UTF-8"),
        (b"a" * (17 << 20), FileError, "has a line of more than 16,777,216 bytes; need shorter ones"),
        (b"a,y\n1," + b"1" * 140_000 + b"\n", DataError, "line 2: a cell of more than 131,072 characters"),
        (b'a,y\n1,"' + b"1\n" * 140_000, DataError, "line 2: a cell of more than 131,072 characters"),
        ("a,y\n" + "１,0\n２,1\n" * 30, DataError, "column 'a': '１' is no number"),
        (b"a,y\n1,2\n", DataError, "1 row; need at least 2"),
        (
            b"a,y\n1,1e308\n2,-1e308\n3,1e308\n4,1.5\n5,0.5\n",
            DataError,
            "target 'y' has numbers as large as 1e+308; scale it",
        ),
        (b"a,y\n" + b"1,\xff\n", FileError, "is not UTF-8 text (byte 0xff)"),
        (b"\r\n\r\n\n", DataError, "holds no rows"),
    ],
    ids=range(12),
)
def test_csv_that_is_none(tmp_path, content, error, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if message == "column 'a': '１' is no number":  # texts, few of them: categories
        assert read_table(path).preprocess.columns[0].categories == ["１", "２"]
        return
    refused(path, error, message, 64 * SLACK)


def test_a_number_too_large_for_the_model(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    made = read_table(path).preprocess
    path.write_text("a\n1\n1e300\n")
    with pytest.raises(
        DataError, match="t.csv line 3: column 'a': a number is too far from those of the training rows"
    ):
        read_features(path, made)
    np.savez(tmp_path / "t.npz", x=np.array([[1.0], [1e300]]))
    with pytest.raises(DataError, match="row 1: column 'a': a number is too far from those of the training rows"):
        read_features(tmp_path / "t.npz", made)


def test_features_that_memory_does_not_hold(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"t{i % 50},{i % 2}\n" for i in range(3000)))
    monkeypatch.setattr("gradloom.data.encoding.preprocess.memory", lambda: Memory(1 << 30, 500_000))
    refused(
        path, DataError, "3,000 rows of 50 features take 600,000 bytes; 500,000 are free; leave out rows or columns"
    )


# -- archives ----------------------------------------------------------------------------------------------------------


def pack(path, pieces):
    """A gzip file of pieces that need not be held at once."""
    with gzip.open(path, "wb", 9) as file:
        for piece in pieces:
            file.write(piece)
    return path


@pytest.mark.parametrize(
    "piece", [b"1,2\n" * (1 << 18), b"a" * (1 << 20), b"\0" * (1 << 20), b"\n" * (1 << 20), b"," * (1 << 20)]
)
def test_csv_archives_that_do_not_end(tmp_path, small_machine, piece):
    path = pack(tmp_path / "t.csv.gz", (piece for _ in range(40)))
    error, peak = peak_of(read_csv, path)
    assert isinstance(error, GradloomError) and peak < 20 * 4_000_000 + 10 * SLACK, error
    if piece.startswith(b"1"):
        size = path.stat().st_size
        assert f"{size:,} bytes that unpack to more than {max(20 * size, 1_000_000):,} (20 times its size" in str(error)


def test_archives_that_shrank_much_and_are_tables(tmp_path):
    path = pack(tmp_path / "t.csv.gz", [b"a,b,y\n", *(b"1,2,0\n3,4,1\n" * 50_000 for _ in range(10))])
    assert path.stat().st_size * 20 < 11_000_000 // 2
    data = read_csv(path)
    assert data.rows == 1_000_000 and data.numbers(2)[:4].tolist() == [0, 1, 0, 1]


def test_archives_in_archives(tmp_path):
    inner = gzip.compress(b"a,y\n" + b"1,0\n2,1\n" * 20)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(inner))
    refused(tmp_path / "t.csv.gz", FileError, "t.csv.gz: ")
    (tmp_path / "t.csv.gz").write_bytes(inner + inner[: len(inner) // 2])
    refused(tmp_path / "t.csv.gz", FileError, "is truncated or damaged")


@pytest.mark.slow
def test_idx_archives_that_unpack_to_much(tmp_path, small_machine):
    folder = tmp_path / "d"
    folder.mkdir()
    head = struct.pack(">BBBB3I", 0, 0, 8, 3, 200_000, 28, 28)
    pack(folder / "train-images-idx3-ubyte.gz", [head, *(bytes(784_000) for _ in range(200))])
    pack(folder / "train-labels-idx1-ubyte.gz", [struct.pack(">BBBBI", 0, 0, 8, 1, 200_000), bytes(200_000)])
    error, peak = peak_of(read_table, folder)
    assert "train-images-idx3-ubyte.gz: " in str(error) and "bytes that unpack to more than 5,000,000" in str(error)
    assert peak < SLACK


# -- .npz --------------------------------------------------------------------------------------------------------------


def npy(shape, kind, data=b"", version=b"\x01\x00"):
    """An .npy file whose head says this."""
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(head))
    return b"\x93NUMPY" + version + size + head + data


def archive(path, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            if not isinstance(data, bytes):
                held = io.BytesIO()
                np.save(held, data)
                data = held.getvalue()
            file.writestr(name.replace("_npy", ".npy"), data)
    return path


X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
DEEP = b"(" * 90 + b")" * 90


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({"x_npy": X, "y_npy": Y, "readme": b"hello"}, DataError, "'readme' is no array (.npy)"),
        ({"x_npy": b"hello", "y_npy": Y}, FileError, "damaged"),
        ({"x_npy": b"", "y_npy": Y}, FileError, "damaged"),
        ({"x_npy": npy((10**12, 8), "<f8"), "y_npy": Y}, FileError, "'x' has 0 bytes; its head needs 64000000000000"),
        ({"x_npy": npy((10**30,), "<f8"), "y_npy": Y}, FileError, "'x' has 0 bytes; its head needs 8"),
        ({"x_npy": npy((-20, -2), "<f8", X.tobytes()), "y_npy": Y}, FileError, "of shape [-20, -2]"),
        (
            {"x_npy": npy((20, 2), "<f8", X.tobytes() + b"1"), "y_npy": Y},
            FileError,
            "'x' has 321 bytes; its head needs 320",
        ),
        ({"x_npy": npy((20, 2), "|O", X.tobytes()), "y_npy": Y}, DataError, "some array holds Python objects"),
        (
            {"x_npy": npy((20,), [("a", "<f8"), ("b", "<f8")], X.tobytes()), "y_npy": Y},
            DataError,
            "'x' is [('a', '<f8')",
        ),
        ({"x_npy": npy((20,), "<M8[s]", bytes(160)), "y_npy": Y}, DataError, "'x' is datetime64[s]; need numbers"),
        ({"x_npy": npy((20, 2), "<c8", X.tobytes()), "y_npy": Y}, DataError, "'x' is complex64; need numbers"),
        ({"x_npy": npy((20, 2), "S8", X.tobytes()), "y_npy": Y}, DataError, "'x' is |S8; need numbers"),
        ({"x_npy": X, "y_npy": npy((20,), "<c8", bytes(160))}, DataError, "'y' is complex64; need numbers or texts"),
        ({"x_npy": X, "y_npy": npy((20,), "|S0")}, FileError, "'y' has 0 bytes; its head needs 0"),
        (
            {"x_npy": npy((10**17, 0), "<f8"), "y_npy": npy((10**17, 0), "<f8")},
            DataError,
            "'x' has rows of shape [0], which",
        ),
        ({"x_npy": X, "y_npy": npy((20, 0), "<f8")}, DataError, "'y' has rows of shape [0], which hold nothing"),
        ({"x_npy": X, "y_npy": Y, "classes_npy": npy((10**17, 0), "<U1")}, DataError, "'classes' is <U1 of shape"),
        ({"x_npy": X, "y_npy": Y, "classes_npy": np.array(["a", "a"])}, DataError, "classes names one text twice"),
        (
            {"x_npy": X, "y_npy": Y, "classes_npy": np.array(["a", "\ud800"])},
            DataError,
            "need a text that UTF-8 can hold",
        ),
        (
            {"x_npy": X, "y_npy": Y, "classes_npy": np.array([["a", "b"]])},
            DataError,
            "'classes' is <U1 of shape [1, 2]; need a",
        ),
        (
            {"x_train_npy": X, "y_train_npy": Y, "x_test_npy": X[:0], "y_test_npy": Y[:0]},
            DataError,
            "'x_test': 0 rows; need at least 1",
        ),
        (
            {"x_train_npy": X, "y_train_npy": Y, "x_test_npy": X, "y_test_npy": Y.astype("U1")},
            DataError,
            "y_test is <U1, y_train int64",
        ),
        (
            {"x_train_npy": X, "y_train_npy": Y, "x_test_npy": X, "y_test_npy": X},
            DataError,
            "y_test has rows of shape [2]; need []",
        ),
        (
            {"x_train_npy": X, "y_train_npy": Y, "x_test_npy": X, "y_test_npy": Y * np.nan},
            DataError,
            "'y_test' is NaN or inf in some row",
        ),
        (
            {"x_train_npy": X, "y_train_npy": Y, "x_test_npy": X.astype("U4"), "y_test_npy": Y},
            DataError,
            "'x_test' is <U4; need numbers",
        ),
        ({"x_npy": np.full((20, 2, 2), 1e300) * Y[:, None, None], "y_npy": Y}, DataError, "some element is NaN or inf"),
        (
            {"x_npy": np.full((20, 2, 2), 1e100) * Y[:, None, None], "y_npy": Y},
            DataError,
            "are beyond float32; scale the data",
        ),
        ({"x_npy": X, "y_npy": np.zeros(20)}, DataError, "a single class, '0', in all 16 training rows"),
        ({"x_npy": npy(DEEP, "<f8").replace(repr(DEEP).encode(), DEEP), "y_npy": Y}, FileError, "damaged"),
        (
            {"x_npy": npy((20, 2), "<f8", X.tobytes(), b"\x03\x00"), "y_npy": Y},
            DataError,
            "'x' is written in version 3.0 of .npy; need 1.0 or 2.0",
        ),
        (
            {"x_npy": npy((20, 2), "<f8", X.tobytes(), b"\x09\x00"), "y_npy": Y},
            DataError,
            "'x' is written in version 9.0 of .npy; need 1.0 or 2.0",
        ),
    ],
    ids=range(31),
)
def test_npz_that_is_none(tmp_path, members, error, message):
    refused(archive(tmp_path / "t.npz", **members), error, message)


@pytest.mark.parametrize("key", ["classes", "feature_names"])
def test_npz_of_many_names(tmp_path, key):
    np.savez(tmp_path / "t.npz", x=X, y=Y, **{key: np.zeros(1_000_000, "i1")})
    refused(tmp_path / "t.npz", DataError, f"'{key}' holds 1,000,000 names; need at most 65,536")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.slow
def test_npz_that_unpacks_to_much(tmp_path, small_machine, method):
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", method) as file:
        with file.open("x.npy", "w") as member:
            member.write(npy((150_000, 1000), "|i1"))
            for _ in range(150):
                member.write(bytes(1_000_000))
        file.writestr("y.npy", npy((150_000,), "|i1", bytes(150_000)))
    size = path.stat().st_size
    refused(path, FileError, f"{size:,} bytes that unpack to more than 5,000,000 (20 times its size, or as much as")


def test_npz_members_that_lie(tmp_path):
    """A size in the archive's directory that the data do not have; two members of one name."""
    path = archive(tmp_path / "t.npz", zipfile.ZIP_DEFLATED, x_npy=npy((10**8,), "|i1"), y_npy=Y)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\1\2")
    _, real = struct.unpack("<II", whole[at + 20 : at + 28])
    whole[at + 24 : at + 28] = struct.pack("<I", real + 10**8)
    path.write_bytes(whole)
    refused(path, FileError, "", 110_000_000)
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "w") as file:
        for _ in range(2):
            file.writestr("x.npy", npy((20, 2), "<f8", X.tobytes()))
    refused(path, DataError, "'x.npy' is there twice")


def test_npz_in_every_order_and_width(tmp_path):
    for x in (X.astype(">f8"), np.asfortranarray(X), X.astype("f2"), X.astype(np.longdouble), X.astype(">i4"), X > 7):
        np.savez(tmp_path / "t.npz", x=x, y=Y.astype(">i8"))
        table = read_table(tmp_path / "t.npz")
        assert table.train.data.dtype in (np.float32, np.uint8) and table.train.n == 16
        features, targets, _, _ = read_features(tmp_path / "t.npz", table.preprocess)
        assert (targets == Y).all() and len(features) == 20


def test_arrays_to_predict_that_are_not_finite(tmp_path):
    images = np.random.default_rng(0).normal(size=(20, 3, 3))
    np.savez(tmp_path / "t.npz", x=images, y=Y)
    made = read_table(tmp_path / "t.npz").preprocess
    images[4, 1, 1] = np.nan
    np.savez(tmp_path / "t.npz", x=images)
    with pytest.raises(DataError, match="input: row 4 holds nan; need finite numbers within float32"):
        read_features(tmp_path / "t.npz", made)
    np.savez(tmp_path / "t.npz", x=images[:0])
    with pytest.raises(DataError, match=r"'x' of shape \[0, 3, 3\] is empty; need at least 1 row"):
        read_features(tmp_path / "t.npz", made)


def test_small_archives_of_much_are_small():
    """The archives of these tests are bombs: they unpack to hundreds of times their size."""
    assert (
        len(zlib.compress(bytes(1 << 20), 9)) * 900 < 1 << 20 and len(bz2.compress(bytes(1 << 20))) * 20_000 < 1 << 20
    )
