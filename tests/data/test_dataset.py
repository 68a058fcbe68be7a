import itertools
import threading
import time

import numpy as np
import pytest

from gradloom.base.errors import DataError, DTypeError, IndexOutOfRange, SettingError, ShapeError
from gradloom.data import DataLoader, Dataset, split_rows
from tests.refused import refused


def rows_of(batch):
    return batch.data[:, 0].astype(int).tolist()


def numbered(n, shard_size=1, **more):
    return Dataset(np.arange(n, dtype=np.float32)[:, None], shard_size=shard_size, **more)


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [("?", "u1"), ("i2", "i4"), ("u2", "i4"), ("u4", "i8"), ("u8", "i8"), (">i4", "i4"), (">f4", "f4"), (">f8", "f8")],
)
def test_other_numbers_are_widened(dtype, kept):
    data = np.array([[0, 1], [1, 0]], dtype)
    if data.dtype.kind in "iu":
        data[0, 0] = min(np.iinfo(dtype).max, np.iinfo("i8").max)
    dataset = Dataset(data, [0, 1])
    assert dataset.data.dtype == np.dtype(kept) and np.array_equal(dataset.data, data)
    assert np.array_equal(dataset.batch(0, 2).data, data.astype("f4"))
    with pytest.raises(IndexOutOfRange, match="data: 18446744073709551615 at position 1 is out of range"):
        Dataset(np.array([[0], [2**64 - 1]], "u8"))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "i8", "f2", "f4", "f8"])
def test_data_is_converted_batch_by_batch_and_never_copied(dtype):
    data = np.arange(30).reshape(10, 3).astype(dtype)
    labels = np.arange(10, dtype="u1")
    dataset = Dataset(data, labels)
    assert dataset.data is data and dataset.labels is labels
    batch = dataset.batch(4, 3)
    assert batch.data.dtype == np.float32 and batch.labels.dtype == np.int32 and batch.weights is None
    assert batch.data.flags.c_contiguous
    np.testing.assert_array_equal(batch.data, data[4:7])
    np.testing.assert_array_equal(batch.labels, [4, 5, 6])
    assert dataset.batch(0, 2, dtype="i32").data.dtype == np.int32


def test_memory_mapped_data_stays_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype="u1").reshape(4, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    dataset = Dataset(mapped)
    assert dataset.data is mapped and dataset.labels is None and dataset.shape == (3,)
    np.testing.assert_array_equal(dataset.get_batch(1, 3).data, [[9, 10, 11]])


@pytest.mark.parametrize("shard_size", [1, 2, 3, 5, 6, 7, 10])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 6, 10])
def test_batches_follow_the_shards(shard_size, batch_size):
    # no divisibility: every row comes exactly once, shards whole and in the shuffled order
    dataset = numbered(6, shard_size)
    dataset.shuffle(np.random.default_rng(0))
    seen = [row for i in range(-(-6 // batch_size)) for row in rows_of(dataset.get_batch(i, batch_size))]
    assert sorted(seen) == list(range(6)) and seen == dataset.rows().tolist()
    shards = [row // shard_size for row in seen]
    order = list(dict.fromkeys(shards))
    expected = [r for s in order for r in range(s * shard_size, min(6, (s + 1) * shard_size))]
    assert seen == expected


def test_shuffle_of_the_first_shards_leaves_the_rest():
    dataset = numbered(12, 2)
    for _ in range(5):
        dataset.shuffle(np.random.default_rng(3), shards=4)
        assert dataset.rows()[8:].tolist() == [8, 9, 10, 11]
        assert sorted(dataset.rows()[:8].tolist()) == list(range(8))
    assert dataset.rows()[:8].tolist() != list(range(8))
    dataset.shuffle(np.random.default_rng(3), shards=0)
    with refused("shards", 7, need="0..6"):
        dataset.shuffle(np.random.default_rng(0), shards=7)


def test_order_depends_on_seed_and_epoch_only():
    dataset = numbered(100)
    first = dataset.order(7, 0)
    assert first.dtype == np.int64 and sorted(first) == list(range(100))
    np.testing.assert_array_equal(first, numbered(100).order(7, 0))
    assert any(first != dataset.order(7, 1)) and any(first != dataset.order(8, 0))


@pytest.mark.parametrize("shard_size", [1, 4, 7])
def test_order_of_a_part_keeps_its_shards_together(shard_size):
    dataset = numbered(50, shard_size)
    train, val = dataset.split(0.3, 5)
    order = dataset.order(5, 2, train)
    assert sorted(order) == sorted(train) and not set(order) & set(val)
    shards = (order // shard_size).tolist()
    assert len(list(dict.fromkeys(shards))) == 1 + sum(a != b for a, b in itertools.pairwise(shards))
    assert all(b == a + 1 for a, b in itertools.pairwise(order) if a // shard_size == b // shard_size)


def test_split_takes_the_last_share_of_one_permutation():
    train, val = split_rows(1000, 0.05, 0)
    assert len(train) == 950 and len(val) == 50 and sorted([*train, *val]) == list(range(1000))
    _, more = split_rows(1000, 0.1, 0)
    np.testing.assert_array_equal(more[50:], val)
    # a class-sorted file does not validate on one class
    assert len({int(r) // 100 for r in val}) >= 8
    assert len(split_rows(10, 0.0, 0)[1]) == 0
    assert [len(p) for p in split_rows(2, 0.01, 0)] == [1, 1]
    assert [len(p) for p in split_rows(6, 1 / 3, 0, shard_size=2)] == [4, 2]
    with pytest.raises(DataError, match="cannot be split"):
        split_rows(5, 0.5, 0, shard_size=5)
    for bad in (-0.1, 1, 1.5, float("nan"), "x"):
        with pytest.raises(SettingError, match="val_split"):
            split_rows(10, bad, 0)


def test_weights_and_label_rows():
    dataset = Dataset(np.zeros((3, 2)), np.eye(3), weights=[1, 0, 2])
    batch = dataset.batch(1, 2)
    assert batch.labels.dtype == np.float32 and batch.labels.shape == (2, 3) and batch.weights.tolist() == [0, 2]
    assert dataset.label_shape == (3,) and not dataset.has_ids
    dataset.check_labels(3)
    with pytest.raises(ShapeError, match=r"need ids 0\.\.3 or rows \[3, 4\]"):
        dataset.check_labels(4)


def test_labels_of_every_integer_type():
    for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?", ">i4"):
        dataset = Dataset(np.zeros((2, 1)), np.array([0, 1], dtype=dtype))
        assert dataset.has_ids and dataset.batch(0, 2).labels.tolist() == [0, 1]
    assert Dataset(np.zeros((2, 1)), np.array([[0], [1]])).label_shape == ()
    assert Dataset(np.zeros((2, 1)), [-100, 1]).batch(0, 2).labels.tolist() == [-100, 1]


def test_an_id_for_each_position():
    data = np.zeros((3, 2, 4), np.int32)
    dataset = Dataset(data, np.arange(12).reshape(3, 4))
    assert dataset.has_ids and dataset.label_shape == (4,)
    assert dataset.batch(1, 1, dtype="i32").labels.tolist() == [[4, 5, 6, 7]]
    dataset.check_labels(12)
    with pytest.raises(DataError, match=r"labels: id 9 in row 2; need 0\.\.8 for 9 classes"):
        dataset.check_labels(9)
    with pytest.raises(DataError, match=r"labels: id -3 in row 1; need 0\.\.8 for 9 classes"):
        Dataset(data, [[0, 0, 0, 0], [0, -100, -3, 0], [0, 0, 0, 0]]).check_labels(9)
    with pytest.raises(DataError, match="labels: 4294967296 at position 5 is out of range; need whole numbers in"):
        Dataset(data, [[0, 0, 0, 0], [0, 1 << 32, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", "i4", "i8", "?"])
def test_whole_number_labels_of_any_shape(kind):
    labels = np.arange(24).reshape(2, 3, 4).astype(kind)
    dataset = Dataset(np.zeros((2, 5)), labels)
    assert dataset.has_ids and dataset.label_shape == (3, 4)
    np.testing.assert_array_equal(dataset.batch(0, 2).labels, labels.astype(np.int32))
    if kind in ("i1", "i4"):
        assert Dataset(np.zeros((2, 1)), -labels).batch(1, 1).labels.min() == -23


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Dataset(np.zeros((0, 3))), DataError, "data: 0 rows; need at least 1"),
        (lambda: Dataset(1.0), ShapeError, "data: a float; need an array whose first axis counts the rows"),
        (lambda: Dataset([[1, 2], [3]]), ShapeError, "data: rows of different lengths: row 1 has shape [1], row 0 [2]"),
        (lambda: Dataset([np.zeros((2, 2)), np.zeros((2, 3))]), ShapeError, "row 1 has shape [2, 3]"),
        (lambda: Dataset(np.array([[1, 2.0], [3, "x"]], object)), DTypeError, "data: dtype object, a str at [1, 1]"),
        (lambda: Dataset(np.array([[1, 2], [3]], object)), DTypeError, "data: dtype object, a list at [0]"),
        (lambda: Dataset(np.zeros((2, 1)), np.array([0, None], object)), DTypeError, "a NoneType at [1]"),
        (lambda: Dataset({}), ShapeError, "data: an empty dict; need at least one array"),
        (lambda: Dataset(np.zeros((2, 1), "c8")), DTypeError, "data: dtype complex64; must be one of "),
        (lambda: Dataset(np.zeros((2, 1)), [1]), ShapeError, "labels: 1 rows; need 2, one for each row of the data"),
        (lambda: Dataset(np.zeros((2, 1)), ["a", "b"]), DTypeError, "labels: dtype <U1; need whole-number class ids"),
        (lambda: Dataset(np.zeros((2, 1)), [0, -1]).check_labels(3), DataError, "labels: id -1 in row 1; need 0..2"),
        (lambda: Dataset(np.zeros((2, 1)), [0, 2**31]), DataError, "labels: 2147483648 at position 1 is out of range"),
        (
            lambda: Dataset(np.zeros((2, 1)), [0, 3]).check_labels(3),
            DataError,
            "labels: id 3 in row 1; need 0..2 for 3",
        ),
        (lambda: Dataset(np.zeros((2, 1)), weights=[1]), ShapeError, "weights: shape [1]; need [2]"),
        (lambda: Dataset(np.zeros((2, 1)), weights=[1, -1]), DataError, "weights: -1.0 in row 1; need finite"),
        (lambda: Dataset(np.zeros((2, 1)), weights=[0, 0]), DataError, "data: no row of 2 counts (weights of 0)"),
        (lambda: Dataset(np.zeros((2, 1)), [-100, -100]), DataError, "data: no row of 2 counts (labels of -100)"),
        (lambda: Dataset(np.zeros((2, 3)), np.full((2, 3), -100)), DataError, "data: no row of 2 counts (labels of"),
        (
            lambda: Dataset(np.zeros((2, 1)), [-100, 1], weights=[1, 0]),
            DataError,
            "data: no row of 2 counts (labels of -100 or weights of 0); need at least one row that counts",
        ),
        (lambda: Dataset(np.zeros((2, 1)), shard_size=0), SettingError, "shard_size=0: must be"),
        (lambda: Dataset(np.zeros((2, 1))).batch(2, 1), DataError, "batch: rows 2..3 of 2; need a start in 0..1"),
        (lambda: Dataset(np.zeros((2, 1))).order(-1, 0), SettingError, "seed=-1: must be"),
        (lambda: DataLoader(np.zeros((2, 1)), batch_size=0), SettingError, "batch_size=0: must be"),
        (lambda: DataLoader(np.zeros((2, 1)), batch_size=3, drop_last=True), DataError, "batch_size=3 is larger than"),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_loader():
    x, y = np.arange(10, dtype=np.float64)[:, None], np.arange(10)
    loader = DataLoader(x, y, batch_size=4, shuffle=True, seed=3)
    assert len(loader) == 3
    first = [b for _, b in loader]
    assert [len(b) for b in first] == [4, 4, 2] and sorted(np.concatenate(first)) == list(range(10))
    second = [b for _, b in loader]
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()
    again = DataLoader(x, y, batch_size=4, shuffle=True, seed=3)
    for epoch in (first, second):
        for (a, b), c in zip(again, epoch, strict=True):
            assert a.dtype == np.float32 and b.dtype == np.int32
            np.testing.assert_array_equal(a[:, 0], b)
            np.testing.assert_array_equal(b, c)
    dropped = DataLoader(x, batch_size=4, drop_last=True)
    assert len(dropped) == 2 and [b.shape for b in dropped] == [(4, 1), (4, 1)]
    ids = DataLoader(np.arange(4, dtype=np.int64)[:, None], batch_size=4)
    assert next(iter(ids)).dtype == np.int32


def batches(loader):
    return [b if isinstance(b, tuple) else (b,) for b in loader]


def assert_same_batches(found, expected):
    for a, b in zip(found, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 1000, 20_000])
@pytest.mark.parametrize("batch_size", [2, 3, 32, 999, 60_000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_gathered_many_at_a_time_are_the_plain_ones(rows, batch_size, drop_last, prefetch):
    batch_size = min(batch_size, rows) if drop_last else batch_size
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (rows, 2, 3), np.uint8), rng.standard_normal((rows, 2))
    loader = DataLoader(x, y, batch_size, True, 5, drop_last, prefetch=prefetch)
    for epoch in range(2):
        order = loader.dataset.order(5, epoch)
        expected = [order[i : i + batch_size] for i in range(0, rows, batch_size)][: len(loader)]
        assert_same_batches(
            batches(loader), [(x[rows].astype(np.float32), y[rows].astype(np.float32)) for rows in expected]
        )


def test_batches_belong_to_the_caller():
    x = np.zeros((10, 2), np.float32)
    loader = DataLoader(x, np.zeros(10, np.int64), batch_size=3)
    kept = []
    for a, b in loader:
        assert not a.any() and not b.any()
        a[...], b[...] = 1, 1
        kept.append(a)
    assert not x.any() and all(a.all() for a in kept)


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_loader_takes_a_data_set(prefetch):
    dataset = Dataset(np.arange(20.0)[:, None], np.arange(20), shard_size=4, weights=np.arange(20))
    for shuffle in (False, True):
        found = batches(DataLoader(dataset, batch_size=8, shuffle=shuffle, seed=1, prefetch=prefetch))
        rows = np.concatenate([b for _, b, _ in found])
        assert rows.tolist() == (dataset.order(1, 0) if shuffle else dataset.rows()).tolist()
        np.testing.assert_array_equal(np.concatenate([w for *_, w in found]), rows)
        assert all((np.diff(rows.reshape(-1, 4)) == 1).ravel())
    with pytest.raises(DataError, match="y: a data set has its own labels"):
        DataLoader(dataset, np.arange(20))
    only_weights = DataLoader(Dataset(np.zeros((2, 1)), weights=[1, 2]), batch_size=2, prefetch=prefetch)
    assert next(iter(only_weights))[1] is None


class Disk(np.ndarray):
    """Data whose reading waits, and fails at one row."""

    wait, fails_at, reads = 0.0, -1, 0

    def __getitem__(self, rows):
        Disk.reads += 1
        time.sleep(Disk.wait)
        if Disk.fails_at in np.asarray(rows):
            raise OSError("disk on fire")
        return np.asarray(super().__getitem__(rows))


def disk(rows, wait=0.0, fails_at=-1):
    Disk.wait, Disk.fails_at = wait, fails_at
    return np.zeros((rows, 4096), np.float32).view(Disk)


def prefetching():
    return [t for t in threading.enumerate() if t.name == "gradloom prefetch"]


def test_prefetch_reads_while_the_caller_works():
    """While the first batch is worked on, the next two are read, and no more: they would fill the memory."""
    for prefetch in (False, True):
        loader = DataLoader(disk(640), batch_size=32, prefetch=prefetch)
        Disk.reads = 0
        for _ in loader:
            end = time.monotonic() + (10 if prefetch else 0.05)
            while Disk.reads < 3 and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(0.05)
            break
        assert Disk.reads == (3 if prefetch else 1)


def test_batches_come_also_where_there_is_no_thread_for_them(monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    wanted = [x.copy() for x in DataLoader(disk(96), batch_size=32)]
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    got = list(DataLoader(disk(96), batch_size=32, prefetch=True))
    assert len(got) == len(wanted) == 3 and all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_an_error_in_the_thread_arrives():
    loader = DataLoader(disk(640, fails_at=100), batch_size=32, prefetch=True)
    seen = 0
    with pytest.raises(OSError, match="disk on fire"):
        for _ in loader:
            seen += 1
    assert 96 // 32 - 2 <= seen <= 96 // 32 and not prefetching()


def test_leaving_early_leaves_no_thread():
    loader = DataLoader(disk(6400, wait=0.001), batch_size=32, prefetch=True)
    for _ in loader:
        assert len(prefetching()) == 1
        break
    assert not prefetching()
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    assert not prefetching()
    unstarted = iter(loader)
    started = iter(loader)
    next(started)
    assert len(prefetching()) == 1
    started.close()
    unstarted.close()
    assert not prefetching() and loader.epoch == 4
    assert len(list(loader)) == 200 and not prefetching()
