"""Errors about settings are data: a front end writes the names, and the fields survive copies, pickles and ranks."""

from __future__ import annotations

import copy
import pickle
from threading import Thread
from typing import Any

import pytest

import gradloom as gl
from gradloom.base.arguments import as_whole
from gradloom.base.errors import DataError, FileError, GuardTripped, SettingError, TrainError
from gradloom.cli.common import with_more
from gradloom.cli.config import Asked
from gradloom.cli.fit_settings import FitSettings
from gradloom.parallel.agree import agreed
from gradloom.parallel.replicas import threads
from gradloom.train.replica_steps import error_at
from tests.refused import refused

ONE = {"setting": "lr", "seen": 0.0, "need": "a finite number above 0", "place": "Adam"}
FLAGS: Any = lambda name, seen: None if name == "adapter" else f"--{name}" + ("" if seen is ... else f" {seen}")  # noqa: E731


def test_the_message_is_composed_from_the_fields():
    error = SettingError(**ONE)
    assert (error.setting, error.seen, error.need, error.place) == ("lr", 0.0, "a finite number above 0", "Adam")
    assert str(error) == "Adam: lr=0.0: must be a finite number above 0"
    assert error.rendered(FLAGS) == "--lr 0.0: must be a finite number above 0"
    assert str(error) == "Adam: lr=0.0: must be a finite number above 0"
    unknown = SettingError(setting="adapter", seen=3, need="a LoRA", place="finetune")
    assert unknown.rendered(FLAGS) == str(unknown) == "finetune: adapter=3: must be a LoRA"


def test_a_text_names_several_settings():
    error = SettingError("{epochs} and {steps} are mutually exclusive; see {data}", epochs=3, steps=4, data=...)
    assert (error.setting, error.seen) == ("epochs", 3) and error.settings == {"epochs": 3, "steps": 4, "data": ...}
    assert str(error) == "epochs=3 and steps=4 are mutually exclusive; see data"
    assert error.rendered(FLAGS) == "--epochs 3 and --steps 4 are mutually exclusive; see --data"
    name = "top_k"
    assert str(SettingError(f"{{{name}}} requires {{temperature}} > 0", {name: 5, "temperature": ...})).startswith(
        "top_k=5"
    )


@pytest.mark.parametrize("text", ["{lr}", "a {match}", "100%", "{", "}{", "{0}", ""])
def test_braces_of_others_stay(text):
    assert str(DataError(text)) == text
    assert str(SettingError(f"{{epochs}}: {text}", epochs=1)) == f"epochs=1: {text}"
    assert str(SettingError(setting="task", seen=text, need="a word")) == f"task={text!r}: must be a word"


def test_more_text_keeps_the_fields():
    error = error_at(with_more(SettingError(**ONE), "weights of {lr} are saved"), "make_model of replica 1")
    assert type(error) is SettingError and error.setting == "lr"
    assert str(error).startswith("make_model of replica 1: Adam: lr=0.0: must be") and str(error).endswith(
        "{lr} are saved"
    )
    assert error.rendered(FLAGS).startswith("make_model of replica 1: --lr 0.0: must")
    assert with_more(GuardTripped(3, "stopped"), "saved").steps_done == 3
    edited = FileError("rows.csv: see {encoding}", encoding=...).edited(lambda text: text.replace("rows.csv", "stdin"))
    assert edited.rendered(FLAGS) == "stdin: see --encoding"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error, 5))])
@pytest.mark.parametrize("seen", [0.0, "x", None, [1, "a"], lambda step: 1, pytest.raises])
def test_copies(again, seen):
    error = again(SettingError("{lr} requires {steps}", lr=seen, steps=..., place="Adam").extended("rank 1: ", "!"))
    assert type(error) is SettingError and error.setting == "lr" and error.settings["steps"] is ...
    assert str(error) == error.rendered() == str(SettingError("rank 1: Adam: {lr} requires steps!", lr=seen))
    assert error.rendered(FLAGS).startswith("rank 1: --lr ")
    tripped = again(GuardTripped(3, "not finite"))
    assert (tripped.steps_done, str(tripped)) == (3, "not finite")


def test_ranks_send_the_fields_to_each_other():
    caught: dict[int, Exception] = {}

    def work(rank: Any) -> None:
        try:
            with agreed(rank):
                as_whole("keep", 0 if rank.rank == 1 else 1, 1)
        except gl.GradloomError as error:
            caught[rank.rank] = error

    workers = [Thread(target=work, args=(rank,)) for rank in threads(3, timeout=30)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(30)
    assert type(caught[1]) is SettingError and caught[0] is not caught[2]
    for rank in (0, 2):
        error = caught[rank]
        assert type(error) is TrainError and (error.setting, error.seen) == ("keep", 0)
        assert str(error) == "replica 1: keep=0: must be a whole number of at least 1"
        assert error.rendered(FLAGS) == "replica 1: --keep 0: must be a whole number of at least 1"


def asked(**files: str) -> Asked[FitSettings]:
    return Asked(
        FitSettings, {"data": "t.csv", "lr": 3.0, "groups": [{"match": "*"}], "val": {"a": "v.csv"}}, None, files
    )


@pytest.mark.parametrize(
    ("error", "files", "message"),
    [
        (SettingError(**ONE), {}, "--lr 3: must be a finite number above 0"),
        (SettingError(**ONE), {"lr": "s.toml"}, "s.toml: lr = 3.0: must be a finite number above 0"),
        (SettingError("{lr} and {epochs}", lr=1, epochs=5), {"lr": "s.toml"}, "s.toml: lr = 3.0 and --epochs 5"),
        (SettingError("{betas} and {lr}", betas=1, lr=..., place="Adam"), {}, "Adam: betas=1 and --lr"),
        (SettingError("{groups}[0]: none", groups=..., place="Adam"), {"groups": "s.toml"}, "s.toml: groups[0]: none"),
        (SettingError("{data} is empty", data="x"), {}, "DATA t.csv is empty"),
        (DataError("t.csv: no column; see {target}", target=...), {}, "t.csv: no column; see --target"),
        (FileError("v.csv: no such file"), {}, "--val v.csv: no such file"),
        (FileError("v.csv: no such file"), {"val": "s.toml"}, "s.toml: val = v.csv: no such file"),
        (TrainError("lr=3 and --lr and lr (--lr)"), {}, "lr=3 and --lr and lr (--lr)"),
    ],
)
def test_a_command_writes_flags_and_keys(error, files, message):
    with pytest.raises(type(error)) as caught, asked(**files).naming_places():
        raise error
    assert caught.value is error and str(error) == message


def test_the_outer_front_end_leaves_what_the_inner_one_wrote():
    with pytest.raises(SettingError) as caught, asked().naming_places():
        raise SettingError(**ONE)
    caught.value.name_settings(lambda name, seen: "other")
    assert str(caught.value).startswith("--lr 3: ")


def test_the_fields_of_an_error_of_python():
    with refused("lr", -1, need="at least 0", place="AdamW"):
        gl.optim.AdamW(lr=-1)
    with refused("resume", ..., overwrite=...):
        gl.fit(gl.nn.Linear(1, 1), ([[0.0]], [0]), run="nowhere", resume=True, overwrite=True, progress=False)
