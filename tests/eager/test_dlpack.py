"""DLPack and NumPy views: addresses, lifetimes, writers, strides, dtypes, devices, versions of the protocol."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.leaves import stored_value
from gradloom.graph.stored import Stored


def address(array: Any) -> int:
    return array.__array_interface__["data"][0]


class Old:
    """A consumer of DLPack before 1.0, as NumPy calls one: no arguments."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.x.__dlpack__()


class Capsule:
    """Passes a capsule on, and records the arguments."""

    def __init__(self, x: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.x, self.device, self.asked = x, device, {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked = options
        options.pop("dl_device", None)
        return self.x.__dlpack__(**options)


def parameter() -> gl.Parameter:
    return gl.parameter(np.arange(6, dtype=np.float32).reshape(2, 3), "w")


def test_a_parameter_is_shared_read_only_and_shows_its_training() -> None:
    w = parameter()
    view = np.from_dlpack(w)
    assert address(view) == w.stored.address and not view.flags.writeable and view.shape == (2, 3)
    w.assign(np.full((2, 3), 7.0))
    assert (view == 7).all()
    layer = gl.nn.Linear(3, 1).init()
    view, before = np.from_dlpack(layer.weight), np.asarray(layer.weight)
    data = gl.data.Dataset(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32))
    gl.fit(layer, data, loss="mse", epochs=1, progress=False)
    assert (view == layer.weight.numpy()).all() and (view != before).any()  # asarray is a copy


def test_an_eager_step_is_seen_when_it_has_been_computed() -> None:
    w = gl.parameter(np.ones(4, np.float32), "w")
    view = np.from_dlpack(w)
    with gl.grad_tape() as tape:
        loss = (w * w).sum()
    gl.optim.SGD([w], lr=0.5).step(tape.backward(loss))
    np.testing.assert_array_equal(np.from_dlpack(w), [0, 0, 0, 0])
    np.testing.assert_array_equal(view, [0, 0, 0, 0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_memory_outlives_its_producer(shape: tuple[int, ...]) -> None:
    views = []
    for _ in range(20):
        w = gl.parameter(np.full(shape, 3.0, np.float32), "w")
        t = gl.tensor(np.full(shape, 4.0, np.float32))
        views.append((np.from_dlpack(w), np.from_dlpack(t), np.asarray(w, copy=False)))
        del w, t
        gc.collect()
    for a, b, c in views:
        assert a.shape == b.shape == c.shape == shape and (a == 3).all() and (b == 4).all() and (c == 3).all()


def test_a_tensor_keeps_the_memory_that_it_was_made_of() -> None:
    array = np.arange(1000, dtype=np.float32)
    t = gl.from_dlpack(array)
    assert address(t.computed()) == address(array)
    double = t * 2
    del array, t
    gc.collect()
    np.testing.assert_array_equal(double.numpy(), np.arange(1000) * 2)


def test_strides_are_kept_and_computed_with() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1::2]
    t = gl.from_dlpack(array)
    assert address(t.computed()) == address(array) and t.computed().strides == array.strides
    np.testing.assert_array_equal((t @ t.T).numpy(), array @ array.T)
    np.testing.assert_array_equal(np.from_dlpack(gl.from_dlpack(array.T)), array.T)
    np.testing.assert_array_equal(gl.from_dlpack(array[::-1]).numpy(), array[::-1])


@pytest.mark.parametrize(
    "kind", ["float32", "float16", "float64", "uint8", "int8", "int32", "int64", "bfloat16", "bool"]
)
def test_dtypes(kind: str) -> None:
    array = np.array([0, 1, 5], ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    source = gl.tensor(array, "bf16") if kind == "bfloat16" else array  # NumPy alone exports no bf16
    t = gl.from_dlpack(source)
    assert t.dtype.name == {"float32": "f32", "float16": "f16", "float64": "f64", "uint8": "u8", "int8": "i8",
                            "int32": "i32", "int64": "i64", "bfloat16": "bf16", "bool": "u8"}[kind]  # fmt: skip
    memory = source.computed() if kind == "bfloat16" else source
    assert address(t.computed()) == address(memory)
    np.testing.assert_array_equal(t.computed().astype(np.float32), array.astype(np.float32))


def test_copy() -> None:
    array = np.ones(3, np.float32)
    assert address(gl.from_dlpack(array, copy=True).computed()) != address(array)
    assert address(gl.from_dlpack(array, copy=False).computed()) == address(array)
    w = parameter()
    assert address(gl.from_dlpack(w).computed()) != w.stored.address  # a tensor does not change
    assert address(gl.from_dlpack(w, copy=False).computed()) == w.stored.address
    assert np.from_dlpack(w, copy=True).flags.writeable
    assert address(np.asarray(w, copy=False)) == w.stored.address
    t = gl.tensor(array)
    assert address(np.asarray(t, copy=False)) == address(t.computed())
    assert np.asarray(t).flags.writeable and not np.asarray(t, copy=False).flags.writeable
    for x in (w, t):
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, np.float64, copy=False)


def test_older_consumers_and_producers() -> None:
    w = parameter()
    assert w.__dlpack_device__() == gl.tensor(1.0).__dlpack_device__() == (1, 0)
    old = np.from_dlpack(Old(w))
    assert address(old) != w.stored.address  # it could not know that the memory is read-only
    np.testing.assert_array_equal(old, w.numpy())
    with pytest.raises(BufferError, match="w: read-only, which DLPack before 1.0 cannot state"):
        w.__dlpack__(copy=False)
    array = np.ones(3, np.float32)
    assert address(gl.from_dlpack(Old(array)).computed()) == address(array)


def test_a_producer_on_another_device_copies() -> None:
    there = Capsule(np.ones(3, np.float32), device=(2, 0))
    assert gl.from_dlpack(there).tolist() == [1, 1, 1]
    with pytest.raises(
        gl.DTypeError, match=r"a Capsule cannot be read without a copy: its numbers are on device \(2, 0"
    ):
        gl.from_dlpack(there, copy=False)


def test_contents_on_a_device_are_copied() -> None:
    class Far:
        home = "there"

        def bring(self, several: Any) -> None:
            for _, array in several:
                array[...] = 5

    w = parameter()
    w.stored.away = Far()
    with pytest.raises(BufferError, match="w: its contents are not shared: their newest values are on another device"):
        np.from_dlpack(w, copy=False)
    with pytest.raises(ValueError, match="another device"):
        np.asarray(w, copy=False)
    with pytest.raises(
        gl.DTypeError, match="cannot be read without a copy: .*their newest values are on another device"
    ):
        gl.from_dlpack(w, copy=False)
    copied = np.from_dlpack(w)
    assert (copied == 5).all() and address(copied) != w.stored.address


def test_errors() -> None:
    quantised = stored_value(Stored.map("q", np.zeros(34, np.uint8), "q8_0", (32,)))
    with pytest.raises(BufferError, match="q: its contents are not shared: they are q8_0"):
        np.from_dlpack(quantised)
    with pytest.raises(BufferError, match=r"dl_device=\(2, 0\); need \(1, 0\), the CPU"):
        parameter().__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream=1; need None"):
        parameter().__dlpack__(stream=1)
    for x, message in (([1.0], "a list has no __dlpack__"), (np.ones(2, np.int16), "int16"),
                       (np.array(["a"]), "cannot be read")):  # fmt: skip
        with pytest.raises(gl.DTypeError, match=message):
            gl.from_dlpack(x)
    with pytest.raises(gl.SettingError, match="copy"):
        gl.from_dlpack(np.ones(2), copy="no")
    with pytest.raises(gl.DTypeError, match="cannot be read: .*requires? grad"):
        gl.from_dlpack(pytest.importorskip("torch").ones(2, requires_grad=True))


def test_pytorch_shares_memory_both_ways() -> None:
    torch = pytest.importorskip("torch")
    w, t = parameter(), gl.tensor(np.arange(3, dtype=np.float32))
    for x, start in ((w, w.stored.address), (t, address(t.computed()))):
        for made in (torch.from_dlpack(x), torch.as_tensor(x)):
            assert made.data_ptr() == start and made.shape == x.shape
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert address(gl.from_dlpack(theirs).computed()) == theirs.data_ptr()
    np.testing.assert_array_equal(gl.from_dlpack(theirs.T).numpy(), theirs.T.numpy())
    half = torch.arange(3).to(torch.bfloat16)
    mine = gl.from_dlpack(half)
    assert mine.dtype.name == "bf16" and address(mine.computed()) == half.data_ptr()
    back = torch.from_dlpack(mine)
    assert back.dtype == torch.bfloat16 and back.data_ptr() == half.data_ptr() and back.tolist() == [0, 1, 2]
    del half, mine
    gc.collect()
    assert back.tolist() == [0, 1, 2]
