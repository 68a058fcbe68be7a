"""What each rank of test_mpi.py does: sums in several sizes, exchanged values. Prints one line of checksums."""

from __future__ import annotations

import numpy as np

from gradloom import parallel as comm


def parts(count: int, elements: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count * 1000 + elements)
    sizes = 10.0 ** rng.integers(-6, 6, (count, elements))
    return list((rng.standard_normal((count, elements)) * sizes).astype(np.float32))


def main() -> None:
    ranks = comm.communicator("mpi", timeout=30)
    assert comm.communicator("mpi", timeout=20) is ranks and ranks.timeout == 20
    assert ranks.local_size == ranks.size
    sums = []
    for elements in (0, 1, 5, 17, 33, 1000, 20_001, 800_003):  # the last: several buckets of one stretch
        for count in (1, 2, 5) if elements < 100_000 else (3,):
            gs = parts(count, elements)
            whole = gs[0]
            for g in gs[1:]:
                whole = whole + g
            for ordered in (True, False):
                reduction = ranks.reduction(elements, ordered)
                for again in (1, 2):  # a reduction is used step after step
                    mine = np.empty(elements, np.float32)
                    for i in range(-(-count // ranks.size)):
                        j = i * ranks.size + ranks.rank
                        if j < count:
                            np.multiply(gs[j], np.float32(again), out=mine)
                        reduction.add(mine if j < count else None)
                        mine.fill(np.nan)  # what was given is free again
                    total = reduction.finish(np.empty(elements, np.float32) if again == 1 else None)
                    if ordered:
                        np.testing.assert_array_equal(total, whole * np.float32(again))
                        sums.append(comm.checksum(total))
                    else:
                        scale = np.sum(np.abs(gs), 0) * again + 1e-30
                        assert not elements or np.max(np.abs(total - whole * again) / scale) < 1e-6
                    ranks.check("a sum", comm.checksum(total))
    for ordered in (True, False):
        reduction = ranks.reduction(100, ordered)
        reduction.add(None)
        assert not reduction.finish().any()
    reduction = ranks.reduction(100)
    reduction.add(np.full(100, -0.0, np.float32) if ranks.rank == ranks.size - 1 else None)
    assert np.signbit(reduction.finish()).all()
    for dtype in ("f4", "i8", "u1"):
        array = np.arange(5_000_000).astype(dtype).reshape(5, -1) * ranks.is_root
        ranks.broadcast(array)
        np.testing.assert_array_equal(array.reshape(-1), np.arange(5_000_000).astype(dtype))
    for long in (0, 1000, 5_000_000):
        seen = ranks.gather({"rank": ranks.rank, "long": "x" * long * ranks.rank})
        assert [s["rank"] for s in seen] == list(range(ranks.size))
        assert [len(s["long"]) for s in seen] == [long * r for r in range(ranks.size)]
    ranks.gather(None)
    if ranks.is_root:
        print(comm.checksum(sums))


main()
