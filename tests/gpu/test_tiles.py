"""The tiles of products: each gives the same bits, on ragged shapes, transposed, batched, of narrow operands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradloom.base.dtypes import dtype
from gradloom.gpu.backend import Place, place_of
from gradloom.gpu.calls import Limits
from gradloom.gpu.device import LIMITS
from gradloom.gpu.kernels import linear_loss, product
from gradloom.gpu.kernels.product import NARROW, TILES, Tile, shares_of, tile_for
from gradloom.graph.opspec import REGISTRY
from gradloom.ops.matmul import narrow_operand
from tests.gpu.harness import default_place, run_node
from tests.noise import assert_noise
from tests.ops.cases import node_of, reference

LEAST = Limits()
NAMES = [f"{one.down}x{one.across} of {one.height}x{one.width}" for one in TILES]


@contextmanager
def only(monkeypatch: pytest.MonkeyPatch, tile: Tile) -> Iterator[None]:
    """Inside, all products take this tile."""
    with monkeypatch.context() as patched:
        for module in (product, linear_loss):
            patched.setattr(module, "tile_for", lambda *_: tile)
        yield


def place_for(tile: Tile) -> Place:
    """WebGPU's least limits, or the adapter's where the tile wants more."""
    place = default_place() if tile.fits(LEAST) else place_of(0)
    if not tile.fits(place.device.workgroup):
        pytest.skip(f"{place.device.name} has no room for it in a workgroup: {place.device.workgroup}")
    return place


@pytest.mark.no_adapter
def test_the_least_limits_are_those_of_webgpu() -> None:
    kinds = ("max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup",
             "max-compute-workgroup-size-x")  # fmt: skip
    assert Limits(*(LIMITS[name] for name in kinds)) == LEAST


@pytest.mark.no_adapter
def test_each_tile_is_the_best_for_some_shape_and_fits() -> None:
    """By the least limits and by larger ones; with each limit a little smaller than a tile wants, it is not taken."""
    sizes = (1, 2, 9, 17, 33, 48, 65, 100, 128, 200, 512, 784, 5000)
    large = Limits(32 << 10, 1024, 1024)
    for limits, wanted in ((LEAST, [one for one in TILES if one.fits(LEAST)]), (large, TILES)):
        taken = {tile_for(m, n, slots, limits) for m in sizes for n in sizes for slots in (1, 4, 64)}
        assert taken == set(wanted)
    for tile in TILES:
        threads, storage = tile.down * tile.across, 64 * (tile.tall + 1 + tile.wide) + product.SPARE
        enough = Limits(storage, threads, threads)
        assert tile.fits(enough)
        for name in ("storage", "threads", "across"):
            assert not tile.fits(replace(enough, **{name: getattr(enough, name) - 1}))


@pytest.mark.no_adapter
def test_few_tiles_share_k_out() -> None:
    """By the shape alone; whole blocks of K, none without work."""
    assert shares_of(600, 600, 600) == 1
    assert shares_of(64, 8, 576) == 2 and shares_of(16, 16, 100_000) == 64
    for k in (1, 255, 256, 1000, 5000, 70_000):
        shares = shares_of(20, 20, k)
        part = product.pad_k(k, shares)
        assert (shares - 1) * part < k <= shares * part and (shares == 1 or part % product.DEPTH == 0)


def operand(rng: np.random.Generator, shape: tuple[int, ...], form: str) -> np.ndarray:
    """Numbers as they lie in memory: row by row, transposed, or with gaps."""
    if form == "transposed":
        return np.swapaxes(rng.normal(size=(*shape[:-2], shape[-1], shape[-2])).astype(np.float32), -1, -2)
    if form == "gaps":
        return rng.normal(size=(*shape[:-1], 2 * shape[-1])).astype(np.float32)[..., ::2]
    return rng.normal(size=shape).astype(np.float32)


FORMS = ("rows", "transposed", "gaps")
RAGGED = ((37, 53, 70), (5, 40, 131), (131, 300, 6), (7, 1, 9))


def cases(rng: np.random.Generator) -> list[tuple[str, tuple[Any, ...], dict[str, Any], int]]:
    """(op, inputs, attributes, length of the sums)."""
    made: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = []
    for at, (m, k, n) in enumerate(RAGGED):
        x, y = operand(rng, (m, k), FORMS[at % 3]), operand(rng, (k, n), FORMS[(at + 1) % 3])
        made.append(("matmul_act", (x, y, rng.normal(size=n).astype(np.float32)), {"act": "relu"}, k))
    turned = [(left, right) for left in FORMS[:2] for right in FORMS[:2]]
    made += [("matmul", (operand(rng, (33, 20), a), operand(rng, (20, 18), b)), {}, 20) for a, b in turned]
    x, y = operand(rng, (2, 1, 19, 600), "rows"), operand(rng, (3, 600, 7), "transposed")
    made.append(("matmul_relu_back", (x, y, operand(rng, (2, 3, 19, 7), "rows")), {}, 600))
    how = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    images, kernels = operand(rng, (3, 5, 11, 13), "rows"), operand(rng, (7, 5, 3, 2), "rows")
    made.append(("conv2d", (images, kernels, None), how | {"act": "none"}, 30))
    return made


@pytest.mark.parametrize("tile", TILES, ids=NAMES)
def test_every_tile_gives_the_bits_of_the_first(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """And these are right; twice the same."""
    place = place_for(tile)
    for name, inputs, attrs, longest in cases(np.random.default_rng(0)):
        node = node_of(REGISTRY[name], inputs, attrs)
        with only(monkeypatch, TILES[0]):
            (first,) = run_node(node, inputs, place=place)
        with only(monkeypatch, tile):
            (found,), (again,) = (run_node(node, inputs, place=place) for _ in range(2))
        assert found.tobytes() == again.tobytes() == first.tobytes(), (name, [x.shape for x in inputs if x is not None])
        assert_noise(name, found, *reference(node, inputs, np.float32), *reference(node, inputs), longest=longest)


@pytest.mark.parametrize("kind", NARROW)
def test_narrow_operands_in_tiles(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded along K, as in a forward pass, and along N, as in the gradient of what came in."""
    rng, k, n = np.random.default_rng(1), 256, 256
    for along_k in (True, False):
        x = rng.normal(size=(21, k)).astype(np.float32)
        y = narrow_operand(rng, dtype(kind), (k, n), along_k)
        node = node_of(REGISTRY["matmul"], (x, y), {})
        found = []
        for tile in (TILES[0], Tile(8, 32, 8, 4), Tile(4, 64, 4, 2), Tile(8, 8, 4, 4)):
            assert tile in TILES
            with only(monkeypatch, tile):
                found.append(run_node(node, (x, y), place=default_place())[0])
        assert len({one.tobytes() for one in found}) == 1
        assert_noise(kind, found[0], *reference(node, (x, y), np.float32), *reference(node, (x, y)), longest=k)
