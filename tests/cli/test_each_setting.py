"""Every setting of fit and finetune, given wrongly as an option and in a settings file: one line that names where the
setting came from, exit code 2, nothing written. The cases are made from the declarations."""

from __future__ import annotations

import json
import warnings
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from gradloom.base.errors import SettingError
from gradloom.base.fit_options import Group
from gradloom.base.options import Count, Decay, Duration, Interval, Often, Place, Rate, Share, Whole
from gradloom.base.training_options import OPTIMIZERS
from gradloom.cli.finetune_settings import FinetuneSettings, PlanSettings
from gradloom.cli.fit_settings import FitSettings
from gradloom.cli.setting import checked, settings_of
from gradloom.optim.names import optimizer_names
from tests.cli.command import run
from tests.cli.test_fit import flowers, one_thread  # noqa: F401
from tests.cli.test_outputs import language  # noqa: F401

DATE = "1979-05-27"
FILE = "odd settings.toml"
HUGE = 1 << 63
NUMBERS = ["three", True, [1], {"a": 1}, DATE, float("nan"), float("inf"), -1]
LENGTHS = ["", "5 parsecs", "0s", "0.0s", "0steps", "1.5steps", "5min\n", 5, [], DATE]
WRONG: dict[Any, list[Any]] = {
    Whole: [*NUMBERS, 0, 1.5, HUGE],
    Count: [*NUMBERS, 1.5, HUGE],
    Rate: [*NUMBERS, 0, 1e308, 3.5e38, 1e-60],
    Decay: [*NUMBERS, 1e308, 3.5e38],
    Share: [*NUMBERS, 1, 1.5, 0.99999999999],
    Duration: [*LENGTHS, "5epochs"],
    Interval: LENGTHS,
    Often: [*LENGTHS, "5min"],
    Place: ["", 3, ["a"], DATE, "a\0b"],
    bool: ["yes", 1, [], {}],
}
# What is wrong beside the rest of the command line, or of what the files hold
ODD: dict[str, list[Any]] = {
    "data": ["nowhere.csv", "nowhere.txt"],
    "model": ["nowhere.gguf"],
    "lora": ["nowhere.gguf"],
    "chat_template": ["nowhere.jinja"],
    "target": [3, "nothing", ""],
    "drop": ["nothing", [3], [""], ["nothing"], ["y"]],
    "categorical": ["nothing", [3], ["nothing"]],
    "numeric": ["nothing", [3], ["nothing"]],
    "time": [3, "", "nothing"],
    "weight_column": [3, "", "nothing"],
    "missing": [3, [3], [""]],
    "encoding": [3, "", "nothing", "rot13"],
    "test": ["nowhere.csv"],
    "monitor": [3, "val_loss"],
    "device": [3, "", "nothing", "gpu:99", "numpy", "GPU"],
    "gpu_layers": [-1, 1.5, True, "", "all", "-1", "1.5", HUGE],
    "gpu_memory": [0, 1.5, True, "", "much", HUGE],
    "state_bits": [16],
    "objective": ["dpp", 3, ""],
    "label_smoothing": [0.5, -0.1, True, "much", 0.1],
    "beta": [0.1],
    "loss_type": ["hinge"],
    "gamma": [0.1],
    "nll_weight": [0.1],
    "desirable_weight": [0.1],
    "undesirable_weight": [0.1],
    "center_rewards_coefficient": [0.1],
    "teacher": ["nowhere.gguf", 3],
    "top_k": [8],
    "temperature": [2.0],
    "hard_weight": [0.5],
    "memory": [0, 1.5, True, "", "much", 1000],
    "hidden": ["64", [0], [1 << 31], ["x"], 3],
    "groups": [3, [3], [{}], [{"match": "*"}], [{"match": "*.nothing", "lr": 0.1}], [{"match": "*", "lr": 1e308}]],
    "val": ["v.csv", {"": "t.csv"}, {"a.b": "t.csv"}, {"a": 3}, {"a": "nowhere.csv"}, {"a": ""}],
    "freeze": ["*.bias", [3], [""], ["*.nothing"]],
    "targets": ["attn_q", [3], [], ["nothing"]],
    "sample_prompt": ["once", [3], [], ["x" * 5000]],
    "sample_every": ["5steps"],
    "text_key": [3, "nothing"],
    "prompt_key": [3, "nothing"],
    "completion_key": [3, "nothing"],
    "messages_key": [3, "nothing"],
    "chosen_key": [3, "nothing"],
    "rejected_key": [3, "nothing"],
    "label_key": [3, "nothing"],
    "anchor_key": [3, "nothing"],
    "positive_key": [3, "nothing"],
    "negative_key": [3, "nothing"],
    "pooling": ["mean"],
    "widths": [[8], "8", [0], [8, 8], [], 3],
    "as_chat": [True],
    "skip_bad_lines": [True],
    "loss_on": ["assistant"],
    "train_dtype": ["f32"],
    "exchange": ["fast"],
    "out": ["t.csv/out"],
    "log": ["csv", ["nothing"], 3],
    "watch": ["0", [3], [""]],
    "watch_every": [3, "", "10s", "1epoch", "0steps", "5steps"],
    "watch_what": ["histogram", "x", 3],
    "class_weight": [{"a": 1}],
    "ensemble": [0, 1.5, "three", True, 10_001],
    "image_size": [0, 1.5, "three", True, 4097, 32],  # the last one: of data that are no folder of images
    "augment": [["spin"], [3], 3, ["flip"]],
}
OF_ONE_COMMAND = {"fit": {"eval_rows": [3], "eval_every": ["1steps"]}, "finetune": {"val": ["nowhere.txt"]}}
NOT_AS_OPTION = {  # what an option cannot say, or says rightly
    "drop": ["nothing", [3], [""]], "categorical": ["nothing", [3]], "numeric": ["nothing", [3]], "time": [3],
    "weight_column": [3], "target": [3], "missing": [3, [3], [""]], "encoding": [3],
    "monitor": [3], "gpu_layers": [HUGE], "augment": [3],
    "text_key": [3], "prompt_key": [3], "completion_key": [3], "messages_key": [3],
    "chosen_key": [3], "rejected_key": [3], "label_key": [3],
    "anchor_key": [3], "positive_key": [3], "negative_key": [3], "widths": ["8", 3],
    "sample_prompt": ["once", [3], []], "freeze": ["*.bias", [3]], "targets": ["attn_q", [3]], "log": ["csv", 3],
    "watch": ["0", [3]], "watch_every": [3],
    "out": ["t.csv/out"], "hidden": ["64", 3], "val": [{"a": 3}, {"": "t.csv"}, {"a.b": "t.csv"}, {"a": ""}],
}  # fmt: skip
SETTINGS = [("fit", FitSettings, name) for name in settings_of(FitSettings)]
SETTINGS += [("finetune", FinetuneSettings, name) for name in settings_of(FinetuneSettings)]


def wrong(command: str, setting: Any) -> list[Any]:
    """Of the values that its type excludes, some: each one is tried for some setting."""
    kind, name = setting.kind, setting.name
    some = WRONG.get(kind, [])
    first = [s for c, _, s in SETTINGS if c == command].index(name) % len(some) if some else 0
    odd = [] if (command, name) == ("finetune", "val") else ODD.get(name, [])  # of fit, it is a table of files
    found = [*odd, *OF_ONE_COMMAND.get(command, {}).get(name, []), *[*some, *some][first : first + 4]]
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is Literal:
        found += ["nothing", 3]
    assert found, f"no wrong value of {setting.name}"
    return found


def toml(value: Any) -> str:
    if value == DATE:
        return DATE
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, (str, bool)) else repr(value)


@pytest.fixture
def place(tmp_path, monkeypatch, language):  # noqa: F811
    """A folder with what both commands read."""
    flowers(tmp_path / "t.csv")
    for name, path in zip(("m.gguf", "t.txt"), language, strict=True):
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line(command: str, without: str) -> list[str]:
    """A command that would train, without one of its settings."""
    given = {"fit": {"epochs": 1, "hidden": 4}, "finetune": {"context": 32, "steps": 1}}[command]
    given = given | {"out": "out.gguf" if command == "finetune" else "out"}
    read = {"fit": {"data": "t.csv"}, "finetune": {"model": "m.gguf", "data": "t.txt"}}[command]
    if {"epochs", "steps"} & {without}:
        given = {k: v for k, v in given.items() if k not in ("epochs", "steps")}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != without]
    return words + [f"\0{name}={value}" for name, value in read.items() if name != without]


def refused(capsys: Any, place: Path, names: tuple[str, ...], *words: str) -> None:
    before = sorted(place.iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)
        code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and err.startswith("gradloom: ") and err.count("\n") == 1, (words, code, err)
    assert any(name in err for name in names), (words, err)
    assert any(
        word in err
        for word in (
            "need",
            "must be",
            "must have",
            "requires",
            "possible are",
            "matches no",
            "mutually exclusive",
            "did you mean",
            "see ",
            "No such",
            "no such",
            "leave",
            " has it",
            " have it",
            "choose",
        )
    ), err
    assert sorted(place.iterdir()) == before, (words, err)


def with_data(command: str, words: list[str], **read: str) -> list[str]:
    found = dict(word[1:].split("=", 1) for word in words if word.startswith("\0")) | read
    order = [found[name] for name in ("model", "data") if name in found]
    return [command, *[word for word in words if not word.startswith("\0")], "--", *order]


@pytest.mark.parametrize("command, kind, name", SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_in_a_file(capsys, place, command, kind, name):
    setting = settings_of(kind)[name]
    for value in wrong(command, setting):
        rest = line(command, name)
        file = place / FILE
        others = {w[1:].split("=", 1)[0]: w.split("=", 1)[1] for w in rest if w.startswith("\0")}
        text = "".join(f"{k} = {json.dumps(v)}\n" for k, v in others.items()) + f"{name} = {toml(value)}\n"
        file.write_text(text)
        words = [command, *[w for w in rest if not w.startswith("\0")], "--config", FILE]
        refused(capsys, place, (f"{FILE}: {name}", f"{name} of {FILE}", f"{FILE}: key run."), *words)


@pytest.mark.parametrize("command, kind, name", SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_as_an_option(capsys, place, command, kind, name):
    setting = settings_of(kind)[name]
    if setting.parameter is None:
        refused(capsys, place, (f"--{name}",), *with_data(command, line(command, name)[:1]), f"--{name}=x")
        return
    rest = line(command, name)
    for value in wrong(command, setting):
        if value in NOT_AS_OPTION.get(name, []) or "\0" in str(value):
            continue
        if isinstance(value, (list, dict)) and name not in ODD:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        text = "=".join(next(iter(value.items()))) if isinstance(value, dict) and name == "val" else text
        if setting.flag == name.upper():
            if text:
                refused(capsys, place, (text, f"'{setting.flag}'"), *with_data(command, rest, **{name: text}))
        elif setting.kind is bool:
            refused(capsys, place, (setting.flag,), *with_data(command, [*rest, f"{setting.flag}={text}"]))
        else:
            if setting.kind == Place and value not in ("", *ODD.get(name, [])):
                continue
            if text == str(True) and name in ("text_key", "target"):
                continue
            refused(capsys, place, (setting.flag,), *with_data(command, [*rest, f"{setting.flag}={text}"]))


@pytest.mark.parametrize("command, kind, name", SETTINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_name(capsys, place, command, kind, name):
    """The nearest is named, in files; a key of the other command is called that."""
    key = f"{name}_"
    (place / FILE).write_text(f"{key} = 3\n")
    rest = [word for word in line(command, "") if not word.startswith("\0")]
    refused(capsys, place, (f"{FILE}: key {key} is not known; did you mean {name}?",), command, *rest, "--config", FILE)
    words = with_data(command, line(command, name))
    refused(capsys, place, (f"--{key.replace('_', '-')}x",), *words[:1], f"--{key.replace('_', '-')}x=3", *words[1:])
    other, its = ("finetune", FinetuneSettings) if command == "fit" else ("fit", FitSettings)
    if name not in settings_of(its):
        (place / FILE).write_text(f"{name} = 3\n")
        have = "and plan have" if command == "finetune" and name in settings_of(PlanSettings) else "has"
        says = f"{FILE}: key {name} is not known to {other}; {command} {have} it"
        refused(capsys, place, (says,), other, "--config", FILE)


def test_each_type_refuses_what_is_tried():
    for kind, values in WRONG.items():
        for value in values:
            with pytest.raises(SettingError, match="^x: must be "):
                checked(date(1979, 5, 27) if value == DATE else value, kind, "x", "x")
    for kind, value in (
        (Rate, 3.4e38),
        (Rate, 1e-45),
        (Share, 0.9999999),
        (Decay, 0),
        (Duration, "0.1s"),
        (Often, "10steps"),
    ):
        assert checked(value, kind, "x", "x") == value


@pytest.mark.parametrize("words", [("--eval-every=1steps",), ("--eval-rows=2",), ("--patience=2",), ("--keep-best",)])
def test_a_validation_without_rows_names_the_option(capsys, place, words):
    rest = with_data("finetune", [*line("finetune", ""), "--val-split=0", *words])
    refused(capsys, place, ("requires validation rows: --val-split above 0",), *rest)


def test_all_optimisers_are_declared():
    assert set(get_args(OPTIMIZERS)) == set(optimizer_names())


def test_a_group_has_the_settings_that_are_tried():
    assert set(settings_of(Group)) == {"match", "lr", "weight_decay"}
