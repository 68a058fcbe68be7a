"""save and load: what comes back is what was there, or nothing changes."""

import tracemalloc

import numpy as np
import pytest

import gradloom as gl
from gradloom.files import load_arrays, save_arrays

ml_dtypes = pytest.importorskip("ml_dtypes")
SUFFIXES = (".safetensors", ".gguf")


def net():
    nn = gl.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(64, 3),
    )  # fmt: skip


def trained():
    rng = np.random.default_rng(0)
    model = net()
    gl.fit(model, (rng.standard_normal((30, 1, 8, 8)), rng.integers(0, 3, 30)), batch_size=10, progress=False, seed=3)
    return model


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path, suffix):
    """Weights and running statistics to the bit, the text beside them, and so the predictions."""
    model, file = trained(), tmp_path / f"model{suffix}"
    gl.save(model, file, {"classes": "a,b,c", "note": "zwölf"})
    other = net()
    assert gl.load(other, file) == {"classes": "a,b,c", "note": "zwölf"}
    before, after = model.state_dict(), other.state_dict()
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes(), name
    x = np.random.default_rng(1).standard_normal((5, 1, 8, 8))
    np.testing.assert_array_equal(gl.predict(model, x), gl.predict(other, x))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_fit_goes_on_from_what_was_loaded(tmp_path, suffix):
    """A fit does not draw loaded weights anew, whatever its seed."""
    model, file = trained(), tmp_path / f"model{suffix}"
    gl.save(model, file)
    other = net()
    gl.load(other, file)
    data = (np.zeros((4, 1, 8, 8), np.float32), np.arange(4) % 3)
    gl.fit(other, data, optimizer=gl.optim.SGD(lr=0.0), batch_size=4, seed=99, progress=False)
    for name, array in model.named_parameters().items():
        assert array.numpy().tobytes() == other.named_parameters()[name].numpy().tobytes()


def test_names():
    assert list(net().state_dict()) == [
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "6.weight", "6.bias",
    ]  # fmt: skip


def narrow():
    return gl.nn.Sequential(gl.nn.Linear(2, 3))


def wide():
    return gl.nn.Sequential(gl.nn.Linear(2, 4, bias=False))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("other", "kind", "message"),
    [
        (narrow, gl.GraphError, r"load: missing 0\.bias; unknown 0\.extra; need exactly the 2"),
        (wide, gl.ShapeError, r"load: 0\.weight has shape \[3, 2\]; need \[4, 2\]"),
    ],
)
def test_a_mismatch_changes_nothing(tmp_path, suffix, other, kind, message):
    file = tmp_path / f"w{suffix}"
    arrays = {"0.weight": np.ones((3, 2), np.float32)}
    if kind is gl.GraphError:
        arrays["0.extra"] = np.ones(1, np.float32)
    save_arrays(file, arrays)
    model = other().init(4)
    before = model.state_dict()
    with pytest.raises(kind, match=message):
        gl.load(model, file)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_arrays_that_are_no_numbers_change_nothing():
    model = gl.nn.Sequential(gl.nn.Linear(2, 3)).init(0)
    before = model.state_dict()
    with pytest.raises(gl.DTypeError, match=r"load: 0\.bias is <U1; need numbers"):
        model.load_state_dict({"0.weight": np.zeros((3, 2)), "0.bias": np.array(["a"] * 3)})
    np.testing.assert_array_equal(model[0].weight.numpy(), before["0.weight"])


@pytest.mark.parametrize("kind", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_float_types_are_converted(tmp_path, kind):
    file = tmp_path / "w.safetensors"
    weight = np.array([[1.5, -2.25]]).astype(kind)
    save_arrays(file, {"0.weight": weight})
    model = gl.nn.Sequential(gl.nn.Linear(2, 1, bias=False))
    gl.load(model, file)
    np.testing.assert_array_equal(model[0].weight.numpy(), [[1.5, -2.25]])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path, suffix):
    file = tmp_path / f"w{suffix}"
    model = gl.nn.Sequential(gl.nn.Linear(20, 30)).init(0)
    gl.save(model, file)
    whole = file.read_bytes()
    before = model.state_dict()
    for damage in (b"", whole[:7], whole[: len(whole) // 2], whole[:-64], b"nonsense" * 40):
        file.write_bytes(damage)
        with pytest.raises(gl.FileError) as error:
            gl.load(model, file)
        assert "\n" not in str(error.value)
    with pytest.raises(gl.FileError, match="no such file"):
        gl.load(model, tmp_path / f"none{suffix}")
    with pytest.raises(gl.FileError, match=r"need \.safetensors or \.gguf"):
        gl.save(model, tmp_path / "w.bin")
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


# ---- load(path): the network itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_network_comes_back_without_its_code(tmp_path, suffix):
    model, file = trained(), tmp_path / f"model{suffix}"
    gl.save(model, file, {"note": "kept"})
    back = gl.load(file)
    assert repr(back) == repr(model) and gl.load(net(), file) == {"note": "kept"}
    x = np.random.default_rng(1).standard_normal((5, 1, 8, 8))
    np.testing.assert_array_equal(gl.predict(back, x), gl.predict(model, x))


def test_what_was_loaded_trains_on_as_the_network_itself(tmp_path):
    model = trained()
    gl.save(model, tmp_path / "m.safetensors")
    back, rng = gl.load(tmp_path / "m.safetensors"), np.random.default_rng(2)
    data = (rng.standard_normal((30, 1, 8, 8)), rng.integers(0, 3, 30))
    for one in (model, back):
        gl.fit(one, data, batch_size=10, progress=False, seed=9)
    for name, array in model.state_dict().items():
        assert array.tobytes() == back.state_dict()[name].tobytes(), name


class Residual(gl.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = gl.nn.Linear(3, 3)

    def forward(self, x):
        return x + self.inner(x)


def test_a_class_of_the_users_own_is_refused_with_what_to_do(tmp_path):
    file = tmp_path / "m.safetensors"
    gl.save(gl.nn.Sequential(gl.nn.Linear(3, 3), Residual()), file)
    with pytest.raises(gl.FileError) as caught:
        gl.load(file)
    said = "1 is a Residual, a class of its own and no layer of gradloom"
    assert str(caught.value) == f"{file}: {said}; need that class: make the network, then gl.load(network, path)"
    other = gl.nn.Sequential(gl.nn.Linear(3, 3), Residual())
    assert gl.load(other, file) == {}


def test_files_without_a_network(tmp_path):
    file = tmp_path / "m.safetensors"
    save_arrays(file, {"a": np.zeros(3, np.float32)})
    with pytest.raises(gl.FileError, match=r"no model of gradloom; need a file that gl\.save wrote"):
        gl.load(file)
    with pytest.raises(gl.FileError, match="no such file"):
        gl.load(tmp_path / "nothing")
    save_arrays(tmp_path / "large.gguf", {"a": np.zeros(5_000_000, np.float32)})
    tracemalloc.start()
    with pytest.raises(gl.FileError, match=r"gl\.llm\.load reads language models"):
        gl.load(tmp_path / "large.gguf")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000  # its arrays are not read
    tracemalloc.stop()
    with pytest.raises(gl.SettingError, match=r"metadata key 'gradloom\.model' is that of the model itself"):
        gl.save(net(), file, {"gradloom.model": "x"})
    gl.save(gl.nn.Linear(2, 2), file)
    arrays, metadata = load_arrays(file)
    save_arrays(file, arrays | {"weight": np.full((2, 2), np.nan, np.float32)}, metadata)
    with pytest.raises(gl.FileError, match="NaN or infinite"):
        gl.load(file)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_what_load_would_refuse_is_not_saved(tmp_path, suffix):
    """NaN or inf in weights, buffers, moments or metrics: one line that names it, and the old file stays."""
    file = tmp_path / f"n{suffix}"

    def refused(what, message):
        before = file.read_bytes()
        with pytest.raises(gl.FileError, match=message) as error:
            gl.save(what, file)
        assert file.read_bytes() == before and [file] == list(tmp_path.iterdir()) and "\n" not in str(error.value)

    net = gl.nn.Sequential(gl.nn.Linear(2, 3), gl.nn.BatchNorm(3), gl.nn.Linear(3, 2))
    good = {name: np.array(array) for name, array in net.state_dict().items()}
    gl.save(net, file)
    for name in ("0.weight", next(name for name in good if "mean" in name)):
        for bad in (np.nan, np.inf):
            array = good[name].copy()
            array.flat[0] = bad
            net.load_state_dict(good | {name: array})
            refused(net, f"n{suffix}: array '{name}' holds 1 of {array.size} numbers that are NaN or infinite")
    net.load_state_dict(good)
    gl.save(net, file)

    opt = gl.optim.AdamW(net.parameters(), lr=gl.optim.schedules.Plateau(0.1))
    gl.save(opt, file)  # a Plateau without a loss yet remembers inf
    gl.load(opt, file)
    with gl.grad_tape() as tape:
        loss = gl.ops.mean(net(gl.tensor(np.ones((4, 2), np.float32))))
    opt.step(tape.backward(loss))
    gl.save(opt, file)
    arrays, metadata = load_arrays(file)
    arrays["m.0"].flat[0] = np.nan
    opt.load_state_dict(arrays)
    refused(opt, "array 'm.0' holds 1 of 6 numbers that are NaN or infinite")
    save_arrays(file, arrays, metadata)
    with pytest.raises(gl.FileError, match=r"array 'm\.0' holds"):
        gl.load(opt, file)


def test_a_model_is_saved_only_as_load_takes_it(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 2))
    table = gl.data.read_table(_csv(tmp_path / "t.csv", x), target="y")
    model = gl.train.Model(gl.nn.Linear(2, 1), table.preprocess)
    file = tmp_path / "m.safetensors"
    gl.save(model, file)
    before = file.read_bytes()
    for name, value, said in (
        ("loss", float("nan"), "JSON compliant"),
        ("loss", "low", "metrics: 'loss' is a str; need a number"),
        ("loss", np.float32(1), "float32 is not JSON"),
    ):
        model.metrics[name] = value
        with pytest.raises(gl.FileError, match=f"m.safetensors: the description of the model cannot be saved .*{said}"):
            gl.save(model, file)
    model.metrics.clear()
    weights = {name: np.array(array) for name, array in model.net.state_dict().items()}
    weights["weight"][0, 1] = -np.inf
    model.net.load_state_dict(weights)
    with pytest.raises(gl.FileError, match="array 'weight' holds 1 of 2 numbers"):
        gl.save(model, file)
    assert file.read_bytes() == before and gl.load(file).metrics == {}


def _csv(path, x):
    path.write_text("a,b,y\n" + "".join(f"{a},{b},{a + b}\n" for a, b in x))
    return path
