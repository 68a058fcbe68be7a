"""Moments in 8 bits: which parameters have them, groups, saved states, and what is refused. Their numbers are in
test_references.py, their kernels in tests/ops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.ops.update_8bit import decode, encode, values
from gradloom.optim import SGD, Adam, AdamW, Lion
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 64)).astype(np.float32), RNG.integers(0, 3, 40).astype(np.int32)


def net():
    layers = gl.nn.Linear(64, 80, activation="relu"), gl.nn.Linear(80, 64, activation="relu"), gl.nn.Linear(64, 3)
    return gl.nn.Sequential(*layers).init(1)


def trained(optimizer, steps=4, model=None, **options):
    model = net() if model is None else model
    trainer = gl.Trainer(model, optimizer=optimizer, seed=2, **options)
    for i in range(steps):
        trainer.step(X[8 * (i % 5) : 8 * (i % 5) + 8], Y[8 * (i % 5) : 8 * (i % 5) + 8])
    return trainer


def kept(trainer):
    """Name of a parameter -> name of an array -> (dtype, shape)."""
    return {
        stored.name: {name: (p.dtype.name, p.shape) for name, p in arrays.items()}
        for stored, arrays in trainer.state.items()
    }


def test_large_parameters_have_codes_and_small_ones_f32():
    found = kept(trained(AdamW(state_bits=8)))
    codes = {
        "m_code": ("u8", (80, 64)),
        "m_scale": ("f32", (1, 20)),
        "v_code": ("u8", (80, 64)),
        "v_scale": ("f32", (1, 20)),
    }
    assert found["0.weight"] == codes
    for name in ("0.bias", "1.bias", "2.weight", "2.bias"):
        assert {one: kind for one, (kind, _) in found[name].items()} == {"m": "f32", "v": "f32"}
    assert set(kept(trained(Lion(state_bits=8)))["1.weight"]) == {"m_code", "m_scale"}
    assert all(set(one) == {"m", "v"} for one in kept(trained(AdamW(state_bits=32))).values())


def test_each_array_of_a_stack_decides_and_has_blocks_of_its_own():
    small = gl.nn.Ensemble(gl.nn.MemberLinear(3, 64, 63)).init(1)
    large = gl.nn.Ensemble(gl.nn.MemberLinear(3, 64, 65)).init(1)
    for model, names in ((small, {"m", "v"}), (large, {"m_code", "m_scale", "v_code", "v_scale"})):
        trainer = gl.Trainer(model, optimizer=AdamW(state_bits=8))
        trainer.step(X[:8], Y[:8])
        found = next(one for name, one in kept(trainer).items() if name.endswith("weight"))
        assert set(found) == names
    assert found["m_scale"] == ("f32", (3, 17))


def test_a_group_may_keep_f32():
    groups = [{"match": "0.*", "state_bits": 32}]
    found = kept(trained(AdamW(state_bits=8, groups=groups)))
    assert set(found["0.weight"]) == {"m", "v"} and "m_code" in found["1.weight"]
    found = kept(
        trained(AdamW(groups=[{"match": "1.*", "state_bits": 8}], no_decay="norms_and_biases", weight_decay=0.1))
    )
    assert set(found["0.weight"]) == {"m", "v"} and "m_code" in found["1.weight"]


@pytest.mark.parametrize("make", [AdamW, Adam, Lion])
def test_losses_are_near_those_of_f32_moments(make):
    coded, plain = (trained(make(lr=1e-3, state_bits=bits), 60) for bits in (8, 32))
    one, other = (gl.evaluate(t.model, (X, Y)).loss for t in (coded, plain))
    before = gl.evaluate(net(), (X, Y)).loss
    assert abs(one - other) < 0.05 * (before - other)
    assert one != other


def test_accumulation_clipping_averages_and_frozen_parameters():
    """Two micro-batches are one batch; frozen parameters keep their bits and moments."""
    options = {"max_norm": 0.1, "ema": 0.9}
    for accumulate, micro in ((1, None), (2, 4)):
        model = net()
        gl.fit(
            model, (X, Y), optimizer=AdamW(lr=1e-3, state_bits=8), epochs=2, batch_size=8, micro_batch_size=micro,
            progress=False, seed=1, freeze="1.*", **options,
        )  # fmt: skip
        assert np.array_equal(model.layers[1].weight.numpy(), net().layers[1].weight.numpy())
        if accumulate == 1:
            whole = model
    for one, other in zip(whole.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=2e-4)


def test_a_saved_state_is_that_of_its_bits(tmp_path):
    model = net()
    optimizer = AdamW(model.parameters(), state_bits=8)
    trained(optimizer, model=model)
    state = optimizer.state_dict()
    assert state["m_code.0"].dtype == np.uint8 and state["v_scale.0"].dtype == np.float32
    gl.save(optimizer, tmp_path / "o.safetensors")
    again = AdamW(net().parameters(), state_bits=8)
    gl.load(again, tmp_path / "o.safetensors")
    assert all(np.array_equal(a, state[name]) for name, a in again.state_dict().items())
    with pytest.raises(gl.GraphError, match="keeps m, v, m_code, m_scale, v_code, v_scale, this one keeps m, v; need"):
        gl.load(AdamW(net().parameters()), tmp_path / "o.safetensors")
    for name, value, message in (
        ("m_code.0", state["m_code.0"].astype(np.float32), "m_code.0 is float32; need u8"),
        ("m_scale.0", state["m_scale.0"].reshape(-1), r"m_scale.0 has shape \[20\]; need \[1, 20\]"),
        ("v_scale.0", -state["v_scale.0"], "v_scale.0 holds .*must be at least 0"),
        ("m.1", state["m.1"].astype(np.uint8), "m.1 is uint8; need f32"),
    ):
        with pytest.raises(gl.GradloomError, match=message):
            again.load_state_dict(state | {name: value})
    del state["v_scale.0"]
    with pytest.raises(gl.GraphError, match=r"without v_scale.0"):
        again.load_state_dict(state)


def test_a_run_state_of_other_bits_is_refused_and_one_of_32_has_no_new_entry():
    one, other = (trained(AdamW(state_bits=bits)).train_state for bits in (8, 32))
    assert "state_bits" not in str(other.collect()["optimizer.flags"])
    with pytest.raises(gl.TrainError, match="load: optimizer: flags="):
        other.load(one.collect())
    again = trained(AdamW(state_bits=8), 0)
    again.train_state.load(one.collect())
    assert again.train_state.digest() == one.digest()


@pytest.mark.parametrize("folder", [False, True])
def test_a_fit_that_was_stopped_ends_with_the_same_bits(tmp_path, folder):
    def run(model, **more):
        gl.fit(
            model,
            (X, Y),
            optimizer=AdamW(lr=1e-3, state_bits=8),
            epochs=4,
            batch_size=8,
            progress=False,
            seed=1,
            **more,
        )

    whole, model = net(), net()
    run(whole)
    stop = []

    def listen(batch):
        stop.append(batch)
        if len(stop) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, run=tmp_path / "run", on_train_batch=listen)
    resumed = net() if folder else model
    run(resumed, run=tmp_path / "run", resume=True, on_train_batch=lambda batch: None)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert np.array_equal(one.numpy(), other.numpy())


def test_codes():
    """Every code stands for itself; halves of a code's distance, tiny numbers, blocks of zeros, negative extremes."""
    scale = np.zeros((1, 1))
    for signed in (True, False):
        numbers = values(signed).astype(np.float64)
        assert len(set(numbers)) == 256
        codes, most = encode(numbers * 3, scale, signed)
        assert np.array_equal(codes, np.arange(256)) and most.item() == 3
        assert np.array_equal(decode(codes, most, signed), numbers * 3)
        zeros, most = encode(np.zeros(7), scale, signed)
        assert most == 0 and not zeros.any() and not decode(zeros, most, signed).any()
        assert encode(np.array([1e-39]), scale, signed)[1] == 0
    assert np.array_equal(encode(np.array([-2.0, 1e-9, -1e-9]), scale, True)[0], [255, 0, 0])
    assert np.array_equal(encode(np.array([2.0, 1e-9, 0.0]), scale, False)[0], [255, 1, 0])


@pytest.mark.parametrize("kind", [AdamW, Adam, Lion])
@pytest.mark.parametrize("bits", [16, 8.5, "8", True, None, 0])
def test_other_bits_are_refused(kind, bits):
    with refused("state_bits", bits, need="8 or 32", place=kind.__name__):
        kind(state_bits=bits)


def test_other_optimisers_have_no_such_argument():
    with pytest.raises(TypeError, match=r"'state_bits'; not supported; use .*AdamW, .*Adam or .*Lion\(state_bits=8\)"):
        SGD(state_bits=8)


def test_the_text_of_an_optimizer_has_its_bits() -> None:
    assert repr(gl.optim.Lion(state_bits=8)).endswith("state_bits=8)")
    assert "state_bits" not in repr(gl.optim.Lion())


def test_a_resume_names_other_bits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)

    def fit(bits: int, **more: Any) -> None:
        net = gl.nn.Sequential(gl.nn.Linear(64, 64), gl.nn.Linear(64, 2))
        optimizer = gl.optim.AdamW(state_bits=bits)
        labels = (x[:, 0] > 0).astype(np.int32)
        gl.fit(net, (x, labels), optimizer=optimizer, run=tmp_path / "run", progress=False, **more)

    fit(8, epochs=1)
    with pytest.raises(gl.TrainError, match="state_bits"):
        fit(32, epochs=2, resume=True)
