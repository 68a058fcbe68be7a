"""Options are declared once: everything else follows from the field of a record."""

from __future__ import annotations

import importlib.util
import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gradloom as gl
from gradloom.base.errors import SettingError
from gradloom.base.finetune_options import TuneOptions
from gradloom.base.options import Flag, Share, Whole, bits_of, default_bits, option, options_of, taken, takes, values_of
from gradloom.base.training_options import TrainerOptions
from gradloom.cli.config import asked, command
from gradloom.cli.setting import command_settings, settings_of
from gradloom.cli.settings_file import read, save

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


def docs() -> Any:
    spec = importlib.util.spec_from_file_location("options", ROOT / "docs" / "options.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_new_field_is_an_argument_with_documentation() -> None:
    parameter = inspect.signature(tune).parameters["noise"]
    assert (parameter.default, parameter.annotation, parameter.kind) == (0.0, float, parameter.KEYWORD_ONLY)
    assert tune.__annotations__["noise"] is float
    assert "    noise               standard deviation of a noise\n" in str(tune.__doc__)
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
        wrong = [key for key, one in options_of(*docs().functions()[name]).items() if one.bits is True]
        assert set(wrong) <= set(compared), name


def test_a_new_field_is_planned_where_the_command_plan_shows_it() -> None:
    plan = settings_of(command_settings("plan", Noisy))
    assert "noise" in plan and "lr" not in plan


def test_a_new_field_is_documented_and_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = docs()
    records = page.functions()
    monkeypatch.setattr(page, "functions", lambda: records | {"gl.llm.finetune": (Noisy,)})
    assert "| `noise` | `0.0` | yes | finetune plan | standard deviation of a noise |" in page.table()
    assert "    noise: float\n" in page.stubs()["src/gradloom/llm/arguments_typed.pyi"]


def test_the_generated_files_are_up_to_date() -> None:
    update = os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1"
    for file, text in docs().generated().items():
        if update:
            file.write_text(text)
        assert file.read_text() == text, f"{file.name}: run python docs/options.py --write"


@pytest.mark.parametrize("name", ["gl.fit", "gl.Trainer", "gl.dp_train", "gl.llm.finetune", "gl.llm.plan"])
def test_functions_have_the_options_of_their_records(name: str) -> None:
    function: Any = gl
    for part in name.split(".")[1:]:
        function = getattr(function, part)
    parameters = inspect.signature(function).parameters
    for one in options_of(*docs().functions()[name]).values():
        assert parameters[one.name].default == one.default, one.name
        if name != "gl.llm.plan":
            assert f"{one.name} " in (function.__doc__ if name != "gl.llm.finetune" else gl.llm.Run.__doc__)
    assert list(parameters)[-1] == "options"


def test_every_option_is_documented() -> None:
    for records in docs().functions().values():
        assert [one.name for one in options_of(*records).values() if not one.doc] == []


def test_options_of_a_class_come_before_inherited_ones_and_replace_them() -> None:
    @dataclass(frozen=True)
    class Base:
        a: Whole = option(1, "a")
        b: Whole | None = option(None, "b")

    assert next(iter(options_of(TuneOptions))) == "method"
    assert list(options_of(Base, TuneOptions))[:2] == ["a", "b"]
    assert values_of(Base(a=3), Base, TuneOptions) == {"a": 3, "b": None}
