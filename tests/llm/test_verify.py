"""verify finds nothing where all is right, and names what is wrong where something is."""

import itertools
import sys

import numpy as np
import pytest

from gradloom.base import memory
from gradloom.base.errors import NonFiniteError, SettingError
from gradloom.graph.opspec import REGISTRY
from gradloom.llm import LoRA, Run, TrainedTensors, load, plan
from gradloom.llm.verify import verify
from gradloom.plan import plan as planning
from gradloom.run.walk import Walk
from tests.llm.random_models import rows_of, write
from tests.refused import refused


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("verify"), "llama"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    return load(write(tmp_path_factory.mktemp("untied"), "llama", tied=False))


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("llama", {"tied": False}),
        ("qwen2", {}),
        ("qwen3", {"kind": "q8_0", "width": 64, "heads": 2, "head_dim": 32, "ffn": 96}),
    ],
)
@pytest.mark.parametrize(
    "made", [lambda: LoRA(rank=3, dropout=0.2, targets="all"), lambda: TrainedTensors("all", "f32")]
)
def test_all_is_right(tmp_path, arch, changes, made):
    adapter = made()
    model = load(write(tmp_path, arch, **changes))
    adapter.bind(model)
    before = {name: p.numpy() for name, p in adapter.parameters().items()}
    found = verify(model, rows_of(2, 20), adapter, batch_size=2, threads=2)
    assert found.agrees and len(found.checks) == 7, [c for c in found.checks if not c.holds]
    assert found.tokens == 2 * 18 and found.steps > 100 and found.peak_bytes < found.unshared_bytes
    assert 3 < found.loss < 30
    for name, p in adapter.parameters().items():
        assert p.numpy().tobytes() == before[name].tobytes(), f"{name} was left changed"
    assert not any(array.any() for name, array in before.items() if name.endswith("lora_b"))


ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
OTHERS = ("ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm", "token_embd", "output_norm", "output")
SUBSETS = [s for n in range(1, 5) for s in itertools.combinations(ATTENTION, n)]


@pytest.mark.parametrize(
    ("adapter", "chosen"),
    [(LoRA, s) for s in [*SUBSETS, *((name,) for name in OTHERS if "norm" not in name)]]
    + [(TrainedTensors, s) for s in [*SUBSETS, *((name,) for name in OTHERS)]],
    ids=lambda given: "+".join(given) if isinstance(given, tuple) else given.__name__,
)
def test_all_is_right_for_every_choice_of_tensors(untied, adapter, chosen):
    """Where few tensors train, some outputs of a backward kernel have no reader: they are dead once they are written,
    and are compared all the same."""
    made = LoRA(rank=2, targets=chosen) if adapter is LoRA else TrainedTensors(chosen)
    found = verify(untied, rows_of(1, 16), made, reference=False, threads=1)
    assert found.agrees and len(found.checks) == 5, [c for c in found.checks if not c.holds]


def test_a_plan_that_gives_bytes_away_too_early_is_caught_and_named(model, monkeypatch):
    """The proof, which would refuse it, is switched off; the down-projection of block 1 takes bytes that are alive."""
    monkeypatch.setattr(planning, "check", lambda *a: None)
    honest, named = planning.place, set()

    def careless(laid, order, workspaces=(), **options):
        found = honest(laid, order, workspaces, **options)
        if options["reuse"]:
            k = next(k for k, n in enumerate(order.steps) if "blk.1" in n.label and n.op.name == "matmul")
            thief = order.steps[k].outputs[0]
            victim = next(v for v, b in order.buffers.items() if b.birth < k < b.death and b.bytes >= 4096)
            found.offsets[thief] = found.offsets[victim]
            named.update(n.op.name for n in order.steps[k:] if {thief, victim} & set(n.inputs))
        return found

    monkeypatch.setattr(planning, "place", careless)
    found = verify(model, rows_of(1, 24), LoRA(rank=2), reference=False)
    first = found.checks[0]
    assert not found.agrees and not first.holds and first.found.startswith("the first node that differs: ")
    assert first.node.split()[0].split("#")[0] in named | {"matmul"}


def test_a_kernel_that_is_declared_in_place_and_is_not_safe_for_it_is_caught_and_named(model, monkeypatch):
    """What trained transformers wrongly for 17 months elsewhere: the declaration allows it, so the proof does, too.
    Here a matrix product may take the place of its left input; the bits differ only where outputs lie in place."""
    assert verify(model, rows_of(1, 24), LoRA(rank=2, targets="attn_v"), reference=False).agrees
    monkeypatch.setattr(REGISTRY["matmul"], "may_overwrite", {"z": ("x",)})
    found = verify(model, rows_of(1, 24), LoRA(rank=2, targets="attn_v"), reference=False)
    assert [c.holds for c in found.checks] == [False, True, False, False, False]
    assert {c.node for c in found.checks[:1] + found.checks[2:4]} == {"matmul blk.1.attn_q.grad"}, found.checks


@pytest.mark.parametrize(("op", "near"), [("rms_norm_back", "_norm"), ("adamw", "adamw")])
def test_a_kernel_that_computes_something_else_is_caught_and_named(model, monkeypatch, op, near):
    spec = REGISTRY[op]
    honest = spec.reference

    def moved(*arrays, **attrs):
        found = honest(*arrays, **attrs)
        return [a * 1.001 for a in found] if isinstance(found, (tuple, list)) else found * 1.001

    monkeypatch.setattr(spec, "reference", moved)
    found = verify(model, rows_of(1, 24), LoRA(rank=2))
    nodes, whole = found.checks[-2:]
    assert not nodes.holds and op in nodes.node and "by 0.00" in nodes.found
    assert [c.holds for c in found.checks[:5]] == [True] * 5 and not found.agrees
    assert near in nodes.node and (op == "adamw") == whole.holds


def first_of(made):
    """The results with the first a hundredth too large."""
    first, *others = made
    return (first * 1.01, *others)


def flipped(y):
    return np.swapaxes(y, -1, -2) if y.shape[-1] == y.shape[-2] else y


FAULTS = {  # by op and fault: what computes something else
    ("matmul", "scale"): lambda honest, x, y: honest(x=x, y=y) * 1.01,
    ("matmul", "small scale"): lambda honest, x, y: honest(x=x, y=y) * 1.001,
    ("matmul", "dropped term"): lambda honest, x, y: honest(x=x[..., 1:], y=y[..., 1:, :]),
    ("matmul", "transposed operand"): lambda honest, x, y: honest(x=x, y=flipped(y)),
    ("attention", "scale"): lambda honest, **given: first_of(honest(**given)),
    ("attention", "wrong mask"): lambda honest, **given: honest(**given | {"window": 7}),
    ("attention", "transposed operand"): lambda honest, **given: honest(**given | {"k": given["v"], "v": given["k"]}),
    ("attention_back", "scale"): lambda honest, **given: first_of(honest(**given)),
    ("attention_back", "dropped term"): lambda honest, **given: honest(**given | {"y": 0 * given["y"]}),
    ("attention_back", "wrong mask"): lambda honest, **given: honest(**given | {"window": 7}),
    ("attention_back", "transposed operand"): lambda honest, q, k, v, **given: honest(q=q, k=v, v=k, **given),
    ("swiglu_back", "scale"): lambda honest, **given: first_of(honest(**given)),
    ("adamw", "scale"): lambda honest, *arrays, **given: [a * 1.01 for a in honest(*arrays, **given)],
}  # fmt: skip


@pytest.mark.parametrize(("op", "fault"), FAULTS)
def test_in_bf16_what_is_wrong_is_still_told_from_rounding(model, monkeypatch, op, fault):
    honest = REGISTRY[op].reference
    monkeypatch.setattr(REGISTRY[op], "reference", lambda *a, **given: FAULTS[op, fault](honest, *a, **given))
    found = verify(model, rows_of(1, 24), TrainedTensors("all"), precision="bf16", threads=1)
    nodes = found.checks[-2]
    assert not nodes.holds and nodes.node.split()[0].split("#")[0] == op, found.checks


@pytest.mark.slow
def test_in_bf16_roundings_that_go_to_the_other_side_are_no_fault(model):
    """They add up from node to node: by more than f32 ever loses, and by no more than float64 itself differs."""
    for seed in range(2):
        for adapter in (LoRA(rank=2, seed=seed), TrainedTensors("all")):
            found = verify(model, rows_of(2, 24, seed=seed), adapter, batch_size=2, precision="bf16", threads=1)
            assert found.agrees and "; roundings may cost " in found.checks[-1].found, found.checks


def test_a_plan_that_reads_dead_bytes_is_caught_by_poison(model, monkeypatch):
    """What a plan calls dead one step too early changes nothing until it is poisoned."""
    monkeypatch.setattr(planning, "check", lambda *a: None)
    honest = planning.lower

    def hasty(laid, order, calls, needs, placement, guard=0):
        tape, places = honest(laid, order, calls, needs, placement, guard)
        tape.dead = [(max(at - 1, 0) if at < len(order.steps) else at, *rest) for at, *rest in tape.dead]
        return tape, places

    monkeypatch.setattr(planning, "lower", hasty)
    found = verify(model, rows_of(1, 24), LoRA(rank=2), reference=False)
    assert [c.holds for c in found.checks] == [True, True, False, True, True]
    assert found.checks[2].node or "stopped" in found.checks[2].found


def test_a_tensor_that_is_not_finite_is_named(tmp_path):
    path = write(tmp_path, "llama", tied=False)
    held = load(path).file.bytes("output.weight").tobytes()
    path.write_bytes(path.read_bytes().replace(held, np.full(4, np.nan, "f4").tobytes() + held[16:]))
    for adapter in (LoRA(rank=2), TrainedTensors("output", "f32")):
        model = load(path)
        adapter.bind(model)
        before = {name: p.numpy().tobytes() for name, p in adapter.parameters().items()}
        with pytest.raises(NonFiniteError, match=r"verify: .*not finite: .*output\.weight.* holds nan at \[0, 0\]$"):
            verify(model, rows_of(1, 16), adapter)
        assert {name: p.numpy().tobytes() for name, p in adapter.parameters().items()} == before


@pytest.mark.slow
def test_the_seed_chooses_the_rows(model):
    """They are those of the first step of a training with these settings."""
    data, losses = rows_of(6, 16), set()
    for seed in (0, 1, 2):
        adapter = LoRA(rank=2)
        adapter.bind(model)
        for b in adapter.b.values():
            b.assign(np.full(b.shape, 0.02, np.float32))  # verify gives numbers to matrices of 0
        found = verify(model, data, adapter, seed=seed, batch_size=2, reference=False)
        run = Run(model, data, adapter, seed=seed, batch_size=2, val_split=0.0, steps=1)
        assert found.loss == pytest.approx(run.train(progress=False).report["train_loss"], rel=1e-6)
        losses.add(found.loss)
    assert len(losses) == 3


@pytest.mark.parametrize("name", ["val_split", "micro_batch_size", "poison", "on_epoch", "parallel", "backend"])
def test_settings_that_change_nothing_are_refused(model, name):
    with pytest.raises(SettingError, match=f"^verify: {name} is a setting of finetune that changes nothing here"):
        verify(model, rows_of(2, 16), LoRA(rank=2), **{name: 1})
    if name in ("on_epoch", "backend"):
        with pytest.raises(SettingError, match=f"^plan: {name} is a setting of finetune that changes nothing here"):
            plan(model, LoRA(rank=2), **{name: 1})


def test_a_share_that_is_none_is_refused_by_plan(model):
    with refused("val_split", 1):
        plan(model, LoRA(rank=2), val_split=1)


def test_more_memory_than_there_is(model, monkeypatch):
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 1 << 20))
    with pytest.raises(SettingError, match=r"^verify: .* are needed, 1.00 MiB are available; need a smaller --context"):
        verify(model, rows_of(1, 24), LoRA(rank=2))


@pytest.mark.slow
def test_its_runs_flush_as_they_are_told(tmp_path, monkeypatch):
    model, seen = load(write(tmp_path, "llama")), []

    class Seen(Walk):
        def __init__(self, program, switches):
            seen.append(switches.flush)
            super().__init__(program, switches)

    monkeypatch.setattr(sys.modules["gradloom.run.walk"], "Walk", Seen)
    for options, flush in (({"flush": True}, True), ({"flush": False, "precision": "bf16"}, False)):
        seen.clear()
        assert verify(model, rows_of(1, 16), LoRA(rank=2), reference=False, **options).agrees
        assert seen == [flush] * 6
