"""What attributes hold, and who shares it, after a checkpoint: in the objects that are there."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import types

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from gradloom.files.checkpoint_files import Encoded, read_checkpoint, read_manifest, write_checkpoint
from gradloom.runs.module_state import ModuleState


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    inner: dict = dataclasses.field(default_factory=lambda: {"list": [1, 2]})


class Holder(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value


class Net(nn.Module):
    """A value, and a layer with the same one, or with one of its own."""

    def __init__(self, value, other=None):
        super().__init__()
        self.value, self.block = value, Holder(value if other is None else other)


def saved(state, folder):
    """The part, as a checkpoint in a file brings it back."""
    folder.mkdir(exist_ok=True)
    path = write_checkpoint(folder, 1, Encoded({"part": state.part()}), {}, best=False, number=1)
    return read_checkpoint(read_manifest(path)).entries["part"]


def resumed(make, change, folder):
    """The model that `change` has changed after the run began, and one of a new process, which goes on from it."""
    net = make()
    state = ModuleState(net)
    change(net)
    again = make()
    other = ModuleState(again)
    mine = vars(again)["value"]
    other.load(saved(state, folder))()
    return net, again, mine, other


CHANGES = {
    "dict": (lambda: {"scale": 1.0, "deep": [{"a": 1}]}, lambda v: (v.pop("scale"), v["deep"][0].update(a=2))),
    "list": (lambda: [1.0, [2.0]], lambda v: (v.append(3), v[1].insert(0, -0.0))),
    "itself": (lambda: [1.0], lambda v: v.append(v)),
    "array": (lambda: np.ones(6, np.float32), lambda v: v.fill(0.5)),
    "list of arrays": (lambda: [np.ones(2)], lambda v: v[0].fill(np.nan)),
    "dataclass": (Config, lambda v: (setattr(v, "scale", 0.5), v.inner["list"].append(3))),
    "namespace": (
        lambda: types.SimpleNamespace(a=Config()),
        lambda v: vars(v.a).update(scale=(np.float32(1), "x"), new=None),
    ),
    "surrogates": (lambda: {"text": ""}, lambda v: v.update({"text": "\ud83d\ude00", "\ud83d\ude00": 1})),
    "keys": (lambda: {"at": 1, (1, "a"): 2}, lambda v: v.update({"at": "same", (1, "a"): [3], None: 4})),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_load_fills_the_objects_that_are_there(kind, tmp_path):
    make, change = CHANGES[kind]
    net, again, mine, state = resumed(lambda: Net(make()), lambda net: change(net.value), tmp_path)
    assert again.value is mine is again.block.value and state.warning() is None
    assert repr(mine) == repr(net.value) != repr(make())
    third = ModuleState(again)  # what a session after that begins with
    assert third.part()["holders"] == {}


def test_random_states_go_on(tmp_path):
    net, again, mine, state = resumed(lambda: Net(np.random.RandomState(3)), lambda net: net.value.rand(50), tmp_path)
    assert again.value is mine and state.warning() is None
    assert (mine.rand(3) == net.value.rand(3)).all()


def test_generators_inside_of_objects_go_on(tmp_path):
    make = lambda: Net(types.SimpleNamespace(rng=np.random.default_rng(3)))  # noqa: E731
    net, again, _, _ = resumed(make, lambda net: net.value.rng.random(5), tmp_path)
    assert again.value.rng.random() == net.value.rng.random()


def test_what_modules_share_is_as_it_was(tmp_path):
    """Shared or parted by a change, and exchanged for a new object: who holds the old one keeps it as it is."""
    two = lambda: Net({"a": 1}, {"a": 2})  # noqa: E731
    _, again, mine, _ = resumed(two, lambda net: setattr(net.block, "value", net.value), tmp_path / "shared")
    assert again.block.value is again.value is mine and mine == {"a": 1}
    one = lambda: Net({"a": 1})  # noqa: E731
    _, again, mine, _ = resumed(one, lambda net: setattr(net, "value", {"a": 3}), tmp_path / "parted")
    assert again.block.value is mine and (again.value, mine) == ({"a": 3}, {"a": 1})


@pytest.mark.parametrize("was_one", [True, False])
def test_what_the_script_shares_otherwise_is_said(was_one, tmp_path):
    one, two = Net({"a": 1}), Net({"a": 1}, {"a": 1})
    net, again = (one, two) if was_one else (two, one)
    said = "block.value: which attributes are one object differs from the run that was saved; the same bits are not pro"
    for i, made in enumerate((again, Net({"a": 1}, {"a": 1}) if was_one else Net({"a": 1}))):
        state, other = ModuleState(net), ModuleState(made)
        state.parted = other.parted if i else []
        other.load(saved(state, tmp_path))()
        assert other.warning().startswith(said)
        back = ModuleState(made)
        back.load(other.part())()  # the third session
        assert back.warning().startswith(said)


IN_PLACE = {
    "deque": (lambda: collections.deque([1.0]), lambda v: v.append(2)),
    "set": (lambda: {1}, lambda v: v.add(2)),
    "counter": (lambda: collections.Counter(a=1), lambda v: v.update("a")),
    "defaultdict": (lambda: collections.defaultdict(lambda: 0), lambda v: v["a"]),
    "bytearray": (lambda: bytearray(b"a"), lambda v: v.extend(b"b")),
    "count": (lambda: itertools.count(1), next),
    "large array": (lambda: np.zeros(1 << 25, np.uint8), lambda v: v.__setitem__(3, 1)),
    "inside": (lambda: {"a": [Config(), {1}]}, lambda v: v["a"][1].add(2)),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_another_object_that_is_changed_in_place_is_said(kind, tmp_path):
    """In the second and the third session; and nothing is said where it has not changed."""
    make, change = IN_PLACE[kind]
    said = "value had changed after the run began, which no checkpoint holds: as the script makes it now; the same bits"
    state = resumed(lambda: Holder(make()), lambda net: change(net.value), tmp_path)[-1]
    assert state.warning().startswith(said)
    third = ModuleState(Holder(make()))
    third.load(saved(state, tmp_path))()
    assert third.warning() == state.warning()
    assert resumed(lambda: Holder(make()), lambda net: None, tmp_path / "same")[-1].warning() is None


def one(x):
    return x


def two(x):
    return -x


FUNCTIONS = {
    "def": two, "lambda": lambda x: -x, "other lambda": lambda x: x, "partial": functools.partial(two),
    "op": gl.ops.relu,
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("new", FUNCTIONS)
@pytest.mark.parametrize("first", [one, lambda x: x * 2, functools.partial(one)], ids=["def", "lambda", "partial"])
def test_functions_that_were_exchanged_are_refused(first, new, inside, tmp_path):
    make = lambda: Holder(types.SimpleNamespace(act=first) if inside else first)  # noqa: E731

    def change(net):
        setattr(net.value if inside else net, "act" if inside else "value", FUNCTIONS[new])

    with pytest.raises(gl.TrainError, match="^load: model: value was .*, changed after the run began, and is (?!miss)"):
        resumed(make, change, tmp_path)


def test_a_name_with_a_dot(tmp_path):
    """Beside a module of the name before the dot."""
    net = Holder(1)
    net.a, net.b = Holder(2), 0
    state = ModuleState(net)
    setattr(net, "a.value", 3.0)
    setattr(net, "a%2Evalue", 4.0)
    again = Holder(1)
    again.a, again.b = Holder(2), 0
    other = ModuleState(again)
    other.load(saved(state, tmp_path))()
    assert (getattr(again, "a.value"), getattr(again, "a%2Evalue"), again.a.value) == (3.0, 4.0, 2)
