"""The table of processors (csrc/tuning.h): its rows give the same bits."""

import re
import sys

import pytest

from gradloom import _core
from tests.processes import start

# Groups of columns and stretches of rows of every row of the table, and what is left over of them; k in one and in
# several blocks; batches.
PRODUCTS = """
import hashlib, sys
import ml_dtypes, numpy as np
from gradloom import _core
_core.use_tuning(sys.argv[1])
from gradloom.ops.common import Quantised
from tests.core.harness import isas, run
SIZES = (49, 97, 65), (130, 200, 300), (700, 193, 100), (61, 450, 1030), (530, 385, 40), (999, 100, 70), (300, 900, 600)
rng = np.random.default_rng(0)
def some(*shape):
    return rng.normal(size=shape).astype(np.float32)
cases = []
for m, n, k in SIZES:
    cases += [(some(m, k), some(k, n)), (some(m, k), some(n, k).T), (some(k, m).T, some(k, n))]
cases += [(some(3, 140, 96), some(3, 96, 230)), (some(200, 2048)[:, :1024], some(1024, 300))]
few = cases[3:6] + cases[9:12]
rounded = [(x.astype(ml_dtypes.bfloat16), y.astype(ml_dtypes.bfloat16)) for x, y in few]
frozen = [(some(130, k), Quantised.draw(rng, "q8_0", (500, k), (1, 0))) for k in (96, 1120)]
frozen += [(some(130, k), Quantised.draw(rng, "q8_0", (k, 416))) for k in (96, 1120)]
whole = hashlib.sha256()
for isa in _core.isas():
    for x, y in (cases + frozen if isa in isas() else []) + rounded:
        shape = (*x.shape[:-1], y.shape[-1])
        whole.update(run("matmul", [x, y], [("f32", shape)], isa=isa)[0].tobytes())
    print(isa, whole.hexdigest())
print(_core.tuning())
"""


def products(row: str) -> list[str]:
    process = start([sys.executable, "-c", PRODUCTS, row])
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines()


def test_bits_do_not_depend_on_the_row():
    rows = _core.tunings()
    assert len(rows) > 1 and len(set(rows)) == len(rows)
    first, *others = (products(row) for row in rows)
    assert [found[-1] for found in (first, *others)] == rows and len(first) == len(_core.isas()) + 1
    for found in others:
        assert found[:-1] == first[:-1]


def test_the_row_of_a_process_is_chosen_once():
    assert _core.tuning() in _core.tunings()
    with pytest.raises(ValueError, match=f"use_tuning default: this process uses {re.escape(_core.tuning())} already"):
        _core.use_tuning("default")
    with pytest.raises(ValueError, match="use_tuning none: there are intel-l2-2m, amd-family-26, default"):
        _core.use_tuning("none")


def test_the_processor():
    vendor, family, model, l1, l2 = _core.processor()
    if vendor in ("GenuineIntel", "AuthenticAMD"):
        assert family > 5 and model >= 0 and 8 << 10 <= l1 < l2
    rows = {("GenuineIntel", 6): ("intel-l2-2m", 2 << 20), ("AuthenticAMD", 26): ("amd-family-26", 1 << 20)}
    name, least_l2 = rows.get((vendor, family), ("default", 0))
    assert _core.tuning() == (name if l2 >= least_l2 else "default")
