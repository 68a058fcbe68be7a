"""What numbers become: whole numbers of NumPy, masked arrays, numbers beyond their dtype."""

import numpy as np
import pytest

import gradloom as gl

INTEGERS = [np.int64(3), np.int32(3), np.uint16(3), np.array(3), np.array(3, np.int32)]


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize("make", [gl.constant, gl.tensor])
def test_a_whole_number_of_numpy_is_whole(make, number):
    assert make(number).dtype.name == "i32" and make(number).shape == ()
    assert make(np.bool_(True)).dtype.name == "u8"
    for other in (3, 3.0, np.float64(3), np.float32(3), np.array(3.0)):
        assert make(other).dtype.name == "f32"
    assert make([3]).dtype.name == make(np.array([3])).dtype.name == "i32"
    assert make(number, "f32").dtype.name == "f32"


@pytest.mark.parametrize("number", [3, *INTEGERS])
def test_a_whole_number_in_an_expression_counts_as_a_float(number):
    x = gl.input("x", (2,))
    for value, expected in (
        (x * number, [3, 6]), (number * x, [3, 6]), (gl.ops.add(x, number), [4, 5]),
        (gl.ops.where(gl.ops.less(x, number), x, number), [1, 2]),
    ):  # fmt: skip
        np.testing.assert_array_equal(gl.compile(value)(x=[1.0, 2.0])[0], expected)
    t = gl.tensor([1.0, 2.0])
    np.testing.assert_array_equal((t * number).numpy(), [3, 6])
    with gl.grad_tape() as tape:
        tape.watch(t)
        y = gl.ops.sum(t * number + gl.ops.maximum(t, number))
    np.testing.assert_array_equal(tape.backward(y)[t].numpy(), [3, 3])


def test_numbers_beyond_their_dtype_are_refused():
    for make in (gl.constant, gl.tensor):
        for data in (np.int64(3_000_000_000), np.array([1, -3_000_000_000])):
            with pytest.raises(gl.DataError, match=r"3000000000 at position .*-2147483648\.\.2147483647, i32"):
                make(data)
        with pytest.raises(gl.DataError, match=r"-1 at position 0 .*0\.\.255, u8"):
            make(np.array([-1, 255]), "u8")


MASKED = np.ma.masked_array(np.arange(12.0, dtype=np.float32).reshape(6, 2), np.eye(6, 2, dtype=bool))
IDS = np.ma.masked_array(np.array([0, 1, 0, 1, 0, 1]), [1, 0, 0, 0, 0, 0])
ONES = np.ma.masked_array(np.ones(6, np.float32), [0, 0, 1, 0, 0, 0])
PLAIN, Y = MASKED.data, IDS.data


def net():
    return gl.nn.Linear(2, 2)


def fit(*data, **more):
    return gl.fit(net(), gl.data.Dataset(*data, **more), progress=False, batch_size=3)


WAYS = {
    "tensor": lambda: gl.tensor(MASKED),
    "tensor in a list": lambda: gl.tensor([MASKED[0], MASKED[1]]),
    "constant": lambda: gl.constant(MASKED),
    "an expression": lambda: gl.input("x", (6, 2)) + MASKED,
    "an eager expression": lambda: gl.tensor(PLAIN) + MASKED,
    "one number": lambda: gl.tensor(MASKED[0, 0]),
    "parameter": lambda: gl.parameter(MASKED),
    "assign": lambda: gl.parameter(PLAIN).assign(MASKED),
    "load": lambda: net().load_state_dict({"weight": MASKED[:2], "bias": np.zeros(2)}),
    "data": lambda: fit(MASKED, Y),
    "labels": lambda: fit(PLAIN, IDS),
    "weights": lambda: fit(PLAIN, Y, weights=ONES),
    "a pair": lambda: gl.fit(net(), (MASKED, Y), progress=False, batch_size=3),
    "a loader": lambda: gl.data.DataLoader(MASKED, Y),
    "step": lambda: gl.Trainer(net()).step(MASKED, Y),
    "labels of a step": lambda: gl.Trainer(net()).step(PLAIN, IDS),
    "weights of a step": lambda: gl.Trainer(net()).step(PLAIN, Y, ONES),
    "predict": lambda: gl.predict(net(), MASKED),
    "evaluate": lambda: gl.evaluate(net(), (MASKED, Y)),
    "feeds": lambda: gl.compile(gl.input("x", (6, 2)) * 2)(x=MASKED),
    "dp_train": lambda: gl.dp_train(net, [(MASKED, Y)], loss_fn=gl.ops.cross_entropy, replicas=1, iterations=1),
    "standardize": lambda: gl.nn.Standardize(MASKED[0], np.ones(2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_masked_arrays_are_refused(way):
    with pytest.raises(gl.DTypeError, match=r"\d elements? (is|are) masked; need numbers everywhere"):
        WAYS[way]()


def test_masked_arrays_are_not_saved(tmp_path):
    from gradloom.files import save_arrays

    with pytest.raises(gl.DTypeError, match="masked"):
        save_arrays(tmp_path / "a.safetensors", {"a": MASKED}, {})
    assert not list(tmp_path.iterdir())


def test_an_array_without_a_masked_element_is_an_array():
    np.testing.assert_array_equal(gl.tensor(np.ma.masked_array(PLAIN)).numpy(), PLAIN)


def loaded(numbers):
    module = gl.nn.Module()
    module.weight = gl.parameter(np.zeros(np.shape(numbers)), "weight")
    module.load_state_dict({"weight": np.asarray(numbers)})
    return module.weight


TAKERS = {
    "parameter": gl.parameter, "tensor": gl.tensor, "constant": gl.constant, "load_state_dict": loaded,
    "assign": lambda numbers: gl.parameter(np.zeros(np.shape(numbers))).assign(numbers),
    "expression": lambda numbers: gl.input("x", np.shape(numbers)) * np.asarray(numbers),
    "eager expression": lambda numbers: gl.tensor(np.ones(np.shape(numbers))) * numbers,
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "first"),
    [
        (1e300, "1e+300"),
        ([0, -1e39, 1e40], "-1e+39"),
        ([np.nan, np.inf, 4e38], "4e+38"),
        (np.full((2, 2), 1e39), "1e+39"),
    ],
    ids=str,
)
@pytest.mark.parametrize("take", TAKERS)
def test_finite_numbers_too_large_for_a_dtype_are_refused(take, numbers, first):
    with pytest.raises(gl.DTypeError) as raised:
        TAKERS[take](numbers)
    assert f": {first} is too large for f32" in str(raised.value)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (np.float32([1, 70000]), "f16"), (np.array([1, -70000]), "f16"), (np.float32([1, 3.4e38]), "bf16"),
        (np.uint16([0, 65535]), "f16"), (np.broadcast_to(1e5, (2, 3)), "f16"),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_too_large_for_a_narrow_dtype_are_refused(numbers, kind):
    for make in (gl.tensor, gl.constant, lambda data, kind: gl.parameter(data, "w", kind)):
        with pytest.raises(gl.DTypeError, match=f"is too large for {kind}"):
            make(numbers, kind)


def test_infinite_numbers_and_nan_stay():
    numbers = np.array([np.inf, -np.inf, np.nan, 1e38, -3.4028235e38])
    for make in (gl.tensor, gl.parameter, loaded):
        np.testing.assert_array_equal(make(numbers).numpy(), numbers.astype(np.float32))
    np.testing.assert_array_equal(gl.compile(gl.constant(numbers))()[0], numbers.astype(np.float32))
    assert np.isinf(gl.tensor(np.inf).numpy()) and gl.tensor(3.4028235e38).numpy() == np.finfo(np.float32).max


@pytest.mark.parametrize("call, use", [
    (lambda x: np.abs(x), "np.absolute takes no graph value (f32[3,2]); use gl.ops.abs(x)"),
    (lambda x: np.sign(x), "np.sign takes no graph value (f32[3,2]); use gl.ops.sgn(x)"),
    (lambda x: np.exp(x), "np.exp takes no graph value (f32[3,2]); use gl.ops.exp"),
    (lambda x: np.mean(x), "np.mean takes no graph value (f32[3,2]); use gl.ops.mean"),
    (lambda x: np.max(x, axis=1), "np.max takes no graph value (f32[3,2]); use gl.ops.max"),
    (lambda x: np.where(x > 0, x, 0), "np.where takes no graph value (u8[3,2]); use gl.ops.where"),
    (lambda x: np.stack([x, x]), "np.stack takes no graph value (f32[3,2]); use gl.ops.stack"),
    (lambda x: np.median(x), "np.median takes no graph value (f32[3,2]); use the functions of gl.ops"),
    (lambda x: np.add.reduce(x), "np.add takes no graph value (f32[3,2]); use gl.ops.add"),
])  # fmt: skip
def test_functions_of_numpy_name_the_op(call, use):
    with pytest.raises(gl.DTypeError) as error:
        call(gl.input("x", (3, 2)))
    assert str(error.value).endswith(f": {use}")


def test_parameters_have_numbers_and_no_elementwise_functions_of_numpy():
    w = gl.parameter(np.ones((3, 2)), name="w")
    with pytest.raises(gl.DTypeError, match=r"w at .*np.exp takes no graph value \(f32\[3,2\]\); use gl.ops.exp"):
        np.exp(w)  # it would lose the gradient
    assert np.asarray(w).sum() == 6 and np.concatenate([w, w]).shape == (6, 2) and (np.ones(2) * w).shape == (3, 2)


def test_arrays_in_expressions():
    """array * value is an op; the functions of shapes take values, and those of numbers tensors."""
    x, array = gl.input("x", (3, 2)), np.full((3, 2), 2.0, np.float32)
    given, w = np.arange(6, dtype=np.float32).reshape(3, 2) - 2, np.ones((4, 3), np.float32)
    found = gl.compile([
        array * x, array + x, array - x, array / (x + 9), array < x, array == x, w @ x, np.float32(3) * x, array**x,
        (array > 0) & (x > 0), array % (x + 9),
    ])(x=given)  # fmt: skip
    want = [
        array * given, array + given, array - given, array / (given + 9), array < given, array == given, w @ given,
        3 * given, array**given, (array > 0) & (given > 0), array % (given + 9),
    ]  # fmt: skip
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert np.shape(x) == (3, 2) and np.ndim(x) == 2 and np.size(x) == 6 and np.transpose(x).shape == (2, 3)
    tensor = gl.tensor(given)
    assert type(array * tensor) is type(tensor) and type(np.exp(tensor)) is type(np.add(array, tensor)) is np.ndarray
