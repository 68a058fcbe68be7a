"""Layers against PyTorch's with the same weights: outputs, gradients and second derivatives.

Ours are computed by the float64 references, PyTorch's in float64; outputs and gradients also on the CPU in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import ops
from gradloom.graph.value import Value
from gradloom.run.numpy_backend import evaluate
from tests import kept

Call = Callable[..., Any]


def by_torch_names(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays by our names -> by PyTorch's: only attention differs, which packs three projections there."""
    made = dict(arrays)
    for name in arrays:
        if name.endswith("query.weight"):
            at = name.removesuffix("query.weight")
            for kind in ("weight", "bias"):
                if f"{at}query.{kind}" in made:
                    packed = [made.pop(f"{at}{part}.{kind}") for part in ("query", "key", "value")]
                    made[f"{at}in_proj_{kind}"] = np.concatenate(packed)
                    made[f"{at}out_proj.{kind}"] = made.pop(f"{at}out.{kind}")
    return made


def copied(net: Any, twin: Any) -> None:
    """Give the twin, in float64, the arrays of our layer; the names must be the same."""
    import torch

    state = by_torch_names(net.state_dict())
    twin.double().train(net.training)
    named = {n: torch.tensor(a.astype(np.float64)) for n, a in state.items()}
    theirs = {n: a for n, a in twin.state_dict().items() if not n.endswith("num_batches_tracked")}
    assert set(named) == set(theirs), f"ours {sorted(named)}, PyTorch's {sorted(theirs)}"
    twin.load_state_dict(named, strict=False)


def spread(net: Any, rng: np.random.Generator) -> None:
    """Other numbers than 0 and 1 for weights and statistics that begin with them."""
    for name, p, _ in net.init(0).named_stored():
        low = 0.5 if name.endswith("running_var") else -1.0
        p.assign(rng.uniform(low, 1.5, p.shape).astype(np.float32))


def flat(values: Any) -> list[Any]:
    if isinstance(values, (tuple, list)):
        return [one for value in values for one in flat(value)]
    return [values]


def agree(what: str, found: Mapping[str, Any], wanted: Mapping[str, Any], room: float) -> None:
    assert set(found) == set(wanted), f"{what}: {sorted(found)}, PyTorch {sorted(wanted)}"
    largest = max((float(np.abs(w).max(initial=0)) for w in wanted.values()), default=0.0)
    for name, want in wanted.items():
        got = np.asarray(found[name], np.float64)
        assert got.shape == tuple(want.shape), f"{what} {name}: {got.shape}, PyTorch {tuple(want.shape)}"
        error = float(np.abs(got - want).max(initial=0))
        assert error <= room * (1 + largest), f"{what} {name}: error {error:.3g}\n{got}\n{want}"


def compare_or_kept(
    what: str,
    net: Any,
    twin: Callable[[], Any],
    feeds: Mapping[str, np.ndarray],
    call: Call | None = None,
    twin_call: Call | None = None,
    second: bool = True,
) -> None:
    """Compare where PyTorch is installed, in any case with what was kept of it (tests/kept.py); AssertionError.

    twin: makes the layer of PyTorch. twin_call: called with the twin and its inputs.
    """
    if kept.INSTALLED:
        theirs = twin()
        values = compare(what, net, theirs, feeds, call, twin_call and (lambda *x: twin_call(theirs, *x)), second)
    else:
        outputs, _, _, grads = derived(net, feeds, call)
        values = [*outputs, *(g for g in grads.values() if g is not None)]
        on_the_cpu(what, values, feeds, 1e-4)
    known = evaluate(values, used(values, feeds))
    kept.check_kept(known[v] for v in values)


def derived(
    net: Any, feeds: Mapping[str, np.ndarray], call: Call | None = None, seed: int = 0
) -> tuple[list[Value], list[np.ndarray], list[Value], dict[str, Value | None]]:
    """(outputs, their random weights in a loss, parameters and inputs, the loss's gradients by their names)."""
    rng = np.random.default_rng(seed)
    leaves = {n: gl.input(n, a.shape, "f32" if a.dtype == np.float32 else "i32") for n, a in feeds.items()}
    outputs: list[Value] = flat((call or net)(*leaves.values()))
    weights = [rng.uniform(-1, 1, y.shape).astype(np.float32) for y in outputs]
    named = net.named_parameters() | {n: leaves[n] for n, a in feeds.items() if a.dtype == np.float32}
    loss = [ops.sum(y * w) for y, w in zip(outputs, weights, strict=True)]
    wrt = list(named.values())
    return outputs, weights, wrt, dict(zip(named, gl.gradients(loss, wrt), strict=True))


def compare(
    what: str,
    net: Any,
    twin: Any,
    feeds: Mapping[str, np.ndarray],
    call: Call | None = None,
    twin_call: Call | None = None,
    second: bool = True,
    seed: int = 0,
    cpu_room: float = 1e-4,
) -> list[Value]:
    """Compare a layer with its twin in PyTorch: its outputs and gradients; AssertionError.

    call, twin_call: net and twin with the inputs in the order of feeds; the default gives them by position.
    cpu_room: error allowed on the CPU, relative to the largest value.
    """
    import torch

    copied(net, twin)
    tensors = {n: torch.tensor(a.astype(np.float64 if a.dtype == np.float32 else np.int64)) for n, a in feeds.items()}
    floats = [n for n, a in feeds.items() if a.dtype == np.float32]
    for n in floats:
        tensors[n].requires_grad_()
    outputs, weights, wrt, named = derived(net, feeds, call, seed)
    names, grads = list(named), list(named.values())
    theirs = flat((twin_call or twin)(*tensors.values()))
    known = evaluate(outputs, feeds)
    agree(
        f"{what}: output",
        {str(i): known[y] for i, y in enumerate(outputs)},
        {str(i): y.detach().numpy() for i, y in enumerate(theirs)},
        1e-6,
    )
    twin_parameters = dict(twin.named_parameters())
    twin_wrt = {**twin_parameters, **{n: tensors[n] for n in floats}}
    total = sum((y * torch.tensor(w.astype(np.float64))).sum() for y, w in zip(theirs, weights, strict=True))
    twin_grads = torch.autograd.grad(total, list(twin_wrt.values()), create_graph=second, allow_unused=True)
    agree(f"{what}: gradient of", arrays(names, wrt, grads, feeds), tensors_of(twin_wrt, twin_grads), 1e-6)
    values = [*outputs, *(g for g in grads if g is not None)]
    on_the_cpu(what, values, feeds, cpu_room)
    bent = [ops.sum(ops.sin(g)) for g in grads if g is not None]
    twin_bent = [torch.sin(g).sum() for g in twin_grads if g is not None and g.requires_grad] if second else []
    if twin_bent and bent:
        again = gl.gradients(bent, wrt)
        twin_again = torch.autograd.grad(sum(twin_bent), list(twin_wrt.values()), allow_unused=True)
        agree(f"{what}: second derivative of", arrays(names, wrt, again, feeds), tensors_of(twin_wrt, twin_again), 1e-5)
    return values


def arrays(names: list[str], wrt: list[Value], grads: list[Value | None], feeds: Any) -> dict[str, np.ndarray]:
    present = [g for g in grads if g is not None]
    known = evaluate(present, used(present, feeds))
    pairs = zip(names, wrt, grads, strict=True)
    return by_torch_names({n: np.zeros(v.shape) if g is None else known[g] for n, v, g in pairs})


def tensors_of(wrt: Mapping[str, Any], grads: Any) -> dict[str, np.ndarray]:
    pairs = zip(wrt.items(), grads, strict=True)
    return {n: np.zeros(tuple(t.shape)) if g is None else g.detach().numpy() for (n, t), g in pairs}


def used(values: list[Value], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    from gradloom.graph.graph import reachable

    keys = {n.attrs["key"] for n in reachable(values) if n.op.name == "input"}
    return {n: a for n, a in feeds.items() if n in keys}


def on_the_cpu(what: str, values: list[Value], feeds: Mapping[str, np.ndarray], room: float) -> None:
    mine = used(values, feeds)
    known = evaluate(values, mine)
    largest = max(float(np.abs(known[v]).max(initial=0)) for v in values)
    for value, array in zip(values, gl.compile(values)(**mine), strict=True):
        error = float(np.abs(array - known[value]).max(initial=0))
        assert error <= room * (0.1 + largest), f"{what}: {value!r} on the CPU: error {error:.3g}"
