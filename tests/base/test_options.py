"""Options are declared once: everything else follows from the field of a record."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import SettingError
from gradloom.base.finetune_options import TuneOptions
from gradloom.base.fit_options import NetworkOptions, PassOptions
from gradloom.base.options import (
    Flag,
    Share,
    Whole,
    bits_of,
    default_bits,
    need_of,
    option,
    options_of,
    taken,
    takes,
    values_of,
    within,
    without_none,
)  # fmt: skip
from gradloom.base.training_options import TrainerOptions
from gradloom.cli.config import asked, command
from gradloom.cli.setting import command_settings, settings_of
from gradloom.cli.settings_file import read, save
from tests.llm.random_models import rows_of, write
from tests.refused import refused
from tests.scripts import script

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Noisy(TuneOptions):
    """The options of a fine-tuning and a new one."""

    noise: Share = option(0.0, "standard deviation of a noise", Flag("finetune plan", "Add noise."), bits=True)


@takes(Noisy)
def tune(model: str, **settings: Any) -> Any:
    """Train.

    model  a model

    {options}
    """
    return taken(Noisy, settings)


def test_a_new_field_is_an_argument_with_documentation() -> None:
    parameter = inspect.signature(tune).parameters["noise"]
    assert (parameter.default, parameter.annotation, parameter.kind) == (0.0, float, parameter.KEYWORD_ONLY)
    assert tune.__annotations__["noise"] is float
    assert re.search(r"\nnoise +standard deviation of a noise\n", str(inspect.getdoc(tune)))
    assert "{options}" not in str(tune.__doc__)
    use, others = tune("m", noise=0.5, batch_size=2, threads=3)
    assert (use.noise, use.batch_size, others) == (0.5, 2, {"threads": 3})


def test_a_new_field_is_a_flag_with_help_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradloom.cli.config.register", lambda *given: None)
    kind = command_settings("finetune", Noisy)
    call = command(kind, lambda given: 0, "noisy")
    shown = inspect.signature(call).parameters["noise"].annotation.__metadata__[0]
    assert shown.help == "Add noise. [default: 0.0]"
    assert asked(kind, {"noise": 0.25}, None).settings().noise == 0.25
    with pytest.raises(SettingError, match=r"--noise 1.*at least 0 and below 1"):
        asked(kind, {"noise": 1.0}, None)


def test_a_new_field_is_in_settings_files(tmp_path: Path) -> None:
    kind, file = command_settings("finetune", Noisy), tmp_path / "settings.toml"
    file.write_bytes(save(kind(noise=0.25), {}))
    assert read(kind, file)["noise"] == 0.25
    file.write_text("noise = 2\n")
    with pytest.raises(SettingError, match=r"noise = 2: must be a number of at least 0 and below 1"):
        read(kind, file)


def test_a_new_field_is_compared_at_a_resume() -> None:
    assert bits_of(Noisy(noise=0.25), Noisy)["noise"] == 0.25
    assert default_bits(Noisy) == {**default_bits(TuneOptions), "noise": 0.0}


def test_only_fields_of_compared_records_decide_bits() -> None:
    """A resume compares those of TrainerOptions and TuneOptions; in another record `bits=True` would do nothing."""
    compared = options_of(TrainerOptions, TuneOptions)
    for name in ("gl.fit", "gl.dp_train", "gl.llm.finetune", "gl.llm.plan"):
        wrong = [key for key, one in options_of(*script("docs/options.py").functions()[name]).items() if one.bits]
        assert set(wrong) <= set(compared), name


def test_a_new_field_is_planned_where_the_command_plan_shows_it() -> None:
    plan = settings_of(command_settings("plan", Noisy))
    assert "noise" in plan and "lr" not in plan


def test_a_new_field_is_documented_and_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("docs/options.py")
    records = page.functions()
    monkeypatch.setattr(page, "functions", lambda: records | {"gl.llm.finetune": (Noisy,)})
    assert "| `noise` | `0.0` | yes | finetune plan | standard deviation of a noise |" in page.table()
    assert "    noise: float\n" in page.stubs()["src/gradloom/llm/arguments_typed.pyi"]


def test_the_generated_files_are_up_to_date() -> None:
    update = os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1"
    for file, text in script("docs/options.py").generated().items():
        if update:
            file.write_text(text)
        assert file.read_text() == text, f"{file.name}: run python docs/options.py --write"


@pytest.mark.parametrize("name", ["gl.fit", "gl.Trainer", "gl.dp_train", "gl.llm.finetune", "gl.llm.plan"])
def test_functions_have_the_options_of_their_records(name: str) -> None:
    function: Any = gl
    for part in name.split(".")[1:]:
        function = getattr(function, part)
    parameters = inspect.signature(function).parameters
    for one in options_of(*script("docs/options.py").functions()[name]).values():
        assert parameters[one.name].default == one.default, one.name
        if name != "gl.llm.plan":
            assert f"{one.name} " in (function.__doc__ if name != "gl.llm.finetune" else gl.llm.Run.__doc__)
    assert list(parameters)[-1] == "options"


def test_every_option_is_documented() -> None:
    for records in script("docs/options.py").functions().values():
        assert [one.name for one in options_of(*records).values() if not one.doc] == []


def test_options_of_a_class_come_before_inherited_ones_and_replace_them() -> None:
    @dataclass(frozen=True)
    class Base:
        a: Whole = option(1, "a")
        b: Whole | None = option(None, "b")

    assert next(iter(options_of(TuneOptions))) == "method"
    assert list(options_of(Base, TuneOptions))[:2] == ["a", "b"]
    assert values_of(Base(a=3), Base, TuneOptions) == {"a": 3, "b": None}


# ---- limits of arguments ---------------------------------------------------------------------------------------------

X, Y = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2


def net() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(3, 2)).init(0)


CALLS: dict[str, Any] = {
    "gl.fit": lambda **given: gl.fit(net(), (X, Y), progress=False, **given),
    "gl.Trainer": lambda **given: gl.Trainer(net(), **given),
    "gl.dp_train": lambda **given: gl.dp_train(
        net, [(X[:1], Y[:1])], loss_fn=lambda made, y: gl.ops.sum(made), iterations=1, **given
    ),
    "gl.llm.finetune": lambda **given: gl.llm.finetune("absent.gguf", "absent.txt", **given),
    "gl.llm.plan": lambda **given: gl.llm.plan("absent.gguf", **given),
    "Classifier": lambda **given: gl.sklearn.Classifier(**given).fit(X, Y),
    "Regressor": lambda **given: gl.sklearn.Regressor(**given).fit(X, Y),
}


def kinds(call: str) -> dict[str, Any]:
    """The types of the options by name, as this function checks them."""
    if call.startswith("gl."):
        return {name: one.kind for name, one in options_of(*script("docs/options.py").functions()[call]).items()}
    every = options_of(PassOptions, NetworkOptions, TrainerOptions)
    flags = {name: one.flag("fit") for name, one in every.items() if hasattr(getattr(gl.sklearn, call), name)}
    return {name: flag.kind for name, flag in flags.items() if flag is not None and name != "class_weight"}


def wrong_values(kind: Any) -> Iterator[Any]:
    """Values beyond each limit of a type, and of another type."""
    inner = without_none(kind)
    plain, *limits = get_args(inner) if get_origin(inner) is Annotated else (inner,)
    if plain is bool:
        yield from ("no", 2)
    elif get_origin(plain) is Literal:
        yield from ("nonsense", 3)
    elif limits and plain in (int, float, str):
        yield from ((), True) if plain is not str else ((), 3)
        beyond = {"ge": -1, "gt": 0, "le": math.inf if plain is float else 1 << 63, "lt": 1, "pattern": "soon"}
        for name, bound in limits[0].limits:
            assert not limits[0].allows(beyond[name]), bound
            yield beyond[name]
        if plain is float:
            yield math.nan


WRONG = [
    pytest.param(call, name, value, kind, id=f"{call}-{name}-{value!r:.12}")
    for call in CALLS
    for name, kind in kinds(call).items()
    for value in wrong_values(kind)
]


@pytest.mark.parametrize(("call", "name", "value", "kind"), WRONG)
def test_a_value_beyond_the_limits_of_its_field_is_refused(call: str, name: str, value: Any, kind: Any) -> None:
    need = "True or False" if kind is bool else need_of(without_none(kind), value)
    with refused(name, need=need) as raised:
        CALLS[call](**{name: value})
    assert raised.value.seen is value


def test_all_limits_are_tried() -> None:
    tried = {(case.values[0], case.values[1]) for case in WRONG}
    assert {("gl.fit", "batch_size"), ("gl.Trainer", "ema"), ("gl.dp_train", "on_nonfinite")} <= tried
    assert {("gl.llm.finetune", "warmup"), ("gl.llm.plan", "context"), ("Classifier", "patience")} <= tried
    assert {("gl.fit", "checkpoint_every"), ("gl.llm.finetune", "keep_best"), ("Regressor", "lr")} <= tried


def test_numbers_of_numpy_become_those_of_python() -> None:
    made = [
        within("n", value, kind) for value, kind in ((np.int32(3), Whole), (np.float64(0.5), Share), (1, Whole | None))
    ]
    assert made == [3, 0.5, 1] and [type(one) for one in made] == [int, float, int]
    assert within("n", None, Whole | None) is None
    with refused("n", None, need="a whole number of at least 1"):
        within("n", None, Whole)


def test_a_state_that_is_compared_in_place_of_an_option_is_in_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, set[str]] = {}
    run = gl.llm.Run(write(tmp_path), rows_of(4), val_split=0.5)
    found["gl.llm.finetune"] = {*run.loop.identity().settings, "placement"}  # of the environment, on several devices
    found["gl.fit"] = set()
    monkeypatch.setattr(gl.train.Loop, "run", lambda loop, _: found["gl.fit"].update(loop.identity().settings))
    model = gl.nn.Ensemble(gl.nn.MemberLinear(2, 3, 2))
    gl.fit(model, (X, Y), loss="cross_entropy", folds=2, progress=False)
    gl.fit(gl.nn.Linear(3, 3), [(X, Y)] * 3, loss="cross_entropy", steps_per_epoch=2, progress=False)
    for function, records in script("docs/options.py").functions().items():
        names = {one.compared_as for one in options_of(*records).values()} - {""}
        assert names <= found.get(function.replace("plan", "finetune"), set()), function
