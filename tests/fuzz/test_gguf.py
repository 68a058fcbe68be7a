"""Damaged GGUF files: a FileError of one line or a valid file; no other exception, no hang, no memory beyond the file.

A failing case is its seed and number: `mutated(seed, number)` makes the same bytes again.
"""

import contextlib
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradloom
from gradloom.base.errors import FileError
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.files.gguf_types import KINDS, PLAIN
from tests import processes
from tests.real_data import DATA

ROOT = Path(gradloom.__file__).parents[1]
STORIES = DATA / "gguf" / "stories260K.gguf"
CASES = int(os.environ.get("FUZZ_CASES", "1500"))  # more of them: FUZZ_CASES=100000
# numbers where counts, lengths, offsets and products go wrong
EDGES = [0, 1, 2, 3, 4, 7, 8, 12, 13, 31, 32, 63, 64, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]
EDGES += [2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


def seeds(folder):
    """Whole files of several kinds, as bytes."""
    path = folder / "seed.gguf"
    fields = {
        "general.architecture": field("string", "llama"),
        "general.alignment": field("u32", 32),
        "llama.rope.freq_base": field("f32", 10000),
        "tokenizer.ggml.tokens": field("array", ["<s>", "a", "é", ""], "string"),
        "tokenizer.ggml.scores": field("array", [0.0, -1, -2, -3], "f32"),
        "tokenizer.ggml.add_bos": field("bool", True),
        "flags": field("array", [True, False], "bool"),
        "last": field("u64", 2**64 - 1),
    }
    tensors = {
        "token_embd.weight": np.ones((4, 32), "f4"),
        "blk.0.attn_q.weight": ("q8_0", (2, 64), bytes(136)),
        "output_norm.weight": np.ones(3, "f2"),
    }
    write_gguf(path, fields, tensors)
    made = [path.read_bytes()]
    write_gguf(path, fields, {})
    made.append(path.read_bytes())
    if STORIES.exists():
        made.append(STORIES.read_bytes()[:14000])  # its keys and records, and some of its weights
    return made


def mutated(files, seed, number):
    """Case `number` of `seed`: one to four changes of one of the files."""
    draw = random.Random(f"{seed} {number}")
    data = bytearray(draw.choice(files))
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        at = draw.randrange(len(data)) if draw.random() < 0.6 else draw.randrange(min(len(data), 64))
        how = draw.randrange(8)
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            data[at] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        elif how == 2:
            data[at : at + 4] = struct.pack("<I", draw.choice(EDGES) & 0xFFFFFFFF)
        elif how == 3:
            data[at : at + 8] = struct.pack("<Q", draw.choice(EDGES))
        elif how == 4:
            del data[at:]
        elif how == 5:
            del data[at : at + draw.choice([1, 4, 8, 30])]
        elif how == 6:
            data[at:at] = draw.randbytes(draw.choice([1, 4, 8, 30]))
        else:
            other = draw.randrange(len(data))
            data[at : at + 24] = data[other : other + 24]
        if not data:
            break
    return bytes(data)


def use(path):
    """Open a file and look at all of it; True when it is whole."""
    try:
        file = open_gguf(path)
    except FileError as error:
        assert "\n" not in str(error) and str(path) in str(error), str(error)
        return False
    size = os.path.getsize(path)
    for key in file.metadata:
        try:
            repr(file.metadata[key])
        except FileError as error:
            assert "UTF-8" in str(error) and "\n" not in str(error) and str(path) in str(error), str(error)
    end = 0
    for tensor in sorted(file.tensors.values(), key=lambda t: t.offset):
        assert end <= tensor.offset and tensor.offset % file.alignment == 0
        end = tensor.offset + tensor.bytes
        assert file.bytes(tensor.name).nbytes == tensor.bytes and end <= size
        block, block_bytes = KINDS[tensor.kind]
        assert np.prod(tensor.shape, dtype=object) * block_bytes == tensor.bytes * block
        if tensor.kind in PLAIN:
            assert file.array(tensor.name).shape == tensor.shape
    return True


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files(tmp_path, seed):
    files = seeds(tmp_path)
    path = tmp_path / "m.gguf"
    whole = 0
    tracemalloc.start()
    try:
        for number in range(CASES // 4):
            data = mutated(files, seed, number)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                whole += use(path)
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {number}: {error!r}") from error
            grown = tracemalloc.get_traced_memory()[1] - before
            # Python objects of the records that are there: some hundred bytes each; never what a count promises
            assert grown < 50 * len(data) + 200_000, f"seed {seed}, case {number}: {grown} bytes for {len(data)}"
    finally:
        tracemalloc.stop()
    assert 0 < whole < CASES // 4  # both ways out are tested


CHILD = """
import faulthandler, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_gguf as fuzz
folder = Path(sys.argv[2])
files = fuzz.seeds(folder)
fuzz.use(folder / "seed.gguf")
for line in open("/proc/self/status"):
    if line.startswith("VmSize"):
        size = int(line.split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20),) * 2)
faulthandler.dump_traceback_later(120, exit=True)
whole = 0
for number in range(int(sys.argv[3])):
    (folder / "m.gguf").write_bytes(fuzz.mutated(files, "child", number))
    whole += fuzz.use(folder / "m.gguf")
print("whole", whole)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to know the memory of a process")
def test_mutated_files_in_little_memory(tmp_path):
    """With 48 MiB more than the interpreter has, no case asks the system for more: the address space is limited."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(tmp_path), str(CASES // 2)],
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0 and done.stdout.startswith("whole "), done.stderr[-2000:]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(
    TEXTS.map(lambda v: field("string", v)),
    st.lists(TEXTS, max_size=6).map(lambda v: field("array", v, "string")),
    st.lists(st.booleans(), max_size=6).map(lambda v: field("array", v, "bool")),
    st.booleans().map(lambda v: field("bool", v)),
    st.integers(0, 2**64 - 1).map(lambda v: field("u64", v)),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: field("i32", v)),
    st.floats(width=32).map(lambda v: field("f32", v)),
    st.floats().map(lambda v: field("f64", v)),
    st.lists(st.integers(0, 255), max_size=9).map(lambda v: field("array", v, "u8")),
)


@st.composite
def tensors(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    block, size = KINDS[kind]
    shape = (*draw(st.lists(st.integers(1, 3), max_size=3)), block * draw(st.integers(1, 3)))
    count = int(np.prod(shape)) // block * size
    return kind, shape, (draw(st.binary(min_size=1, max_size=8)) * count)[:count]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(TEXTS.filter(lambda k: k != "general.alignment"), VALUES, max_size=6),
    made=st.dictionaries(TEXTS.filter(lambda k: len(k.encode()) < 64), tensors(), max_size=5),
    alignment=st.sampled_from([None, 1, 32, 128]),
    change=st.tuples(st.integers(0, 10_000), st.binary(max_size=9)),
)
def test_any_file_comes_back_and_any_change_is_answered(tmp_path, fields, made, alignment, change):
    path = tmp_path / "m.gguf"
    if alignment:
        fields = {**fields, "general.alignment": field("u32", alignment)}
    write_gguf(path, fields, made)
    file = open_gguf(path)
    assert file.fields == fields and list(file.fields) == list(fields) and list(file.tensors) == list(made)
    for name, (kind, shape, data) in made.items():
        assert (file.tensors[name].kind, file.tensors[name].shape) == (kind, shape)
        assert file.bytes(name).tobytes() == data
    del file
    whole = bytearray(path.read_bytes())
    at = change[0] % (len(whole) + 1)
    whole[at : at + len(change[1])] = change[1]
    path.write_bytes(whole)
    use(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 3))
def test_noise_behind_a_good_head(tmp_path, noise, count, keys):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, count, keys) + noise)
    with contextlib.suppress(FileError):
        use(path)
