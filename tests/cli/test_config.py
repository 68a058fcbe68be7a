"""Settings files: the same run as from flags, flags first, each mistake in one line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from gradloom.base.errors import SettingError
from gradloom.base.options import Rate, Whole
from gradloom.cli.config import asked
from gradloom.cli.finetune_settings import FinetuneSettings
from gradloom.cli.fit_settings import FitSettings
from gradloom.cli.setting import checked, settings_of
from gradloom.cli.settings_file import read, save
from gradloom.files.toml_file import parse_toml
from tests.cli.command import run
from tests.cli.test_fit import flowers, one_thread  # noqa: F401
from tests.cli.test_outputs import language  # noqa: F401


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def trained(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> bytes:
    code, _, err = run(capsys, "fit", *arguments, "--out", out)
    assert code == 0, err
    return (out / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_plan_takes_the_settings_of_a_run(capsys, tmp_path, language):  # noqa: F811
    model, text = language
    out = tmp_path / "adapter.gguf"
    how = ("--context", 32, "--batch-size", 2, "--rank", 3, "--optimizer", "sgd", "--lr", 0.01, "--patience", 3)
    code, _, err = run(capsys, "finetune", model, text, *how, "--steps", 2, "--out", out)
    assert code == 0, err
    code, as_flags, err = run(capsys, "plan", model, text, *how[:-4], "--json")
    assert code == 0, err
    file = tmp_path / "adapter.run" / "settings.toml"
    code, from_run, err = run(capsys, "plan", "--config", file, "--json")
    assert code == 0, err
    first, second = (json.loads(said.splitlines()[-1]) for said in (as_flags, from_run))
    for told in (first, second):
        for measured in ("available_bytes", "base_bytes", "reading_bytes", "peak_bytes", "planned_total_bytes"):
            told.pop(measured, None)
    assert {**first, "model": ""} == {**second, "model": ""}
    code, _, err = run(capsys, "plan", "--config", file, "--batch-size", 4, "--json")
    assert code == 0, err
    wrong = write(tmp_path / "w.toml", file.read_text().replace("lr = 0.01", "lr = -1.0"))
    code, _, err = run(capsys, "plan", "--config", wrong)
    assert code == 2 and "w.toml: lr = -1.0: must be a finite number above 0" in err
    wrong = write(tmp_path / "w.toml", "lr = 0.01\n")
    code, _, err = run(capsys, "plan", "--config", wrong)
    assert code == 2 and "w.toml: key lr is not known to plan; " in err and " have it" in err
    trained(capsys, tmp_path / "fitted", flowers(tmp_path / "t.csv"), "--epochs", 1)
    code, _, err = run(capsys, "plan", "--config", tmp_path / "fitted" / "settings.toml")
    assert code == 2 and err.rstrip().endswith('run.command = "fit": must be finetune'), err


def test_whole_numbers_of_blocks_and_bytes_are_those_of_the_command_line(tmp_path):
    found = read(FinetuneSettings, write(tmp_path / "c.toml", "gpu_layers = 2\ngpu_memory = 4294967296\n"))
    assert found == {"gpu_layers": "2", "gpu_memory": "4294967296"}
    for bad in ("1.5", "true", "9223372036854775808", "[2]"):
        with pytest.raises(SettingError, match=r"gpu_layers = .*: must be a whole number, or auto"):
            read(FinetuneSettings, write(tmp_path / "c.toml", f"gpu_layers = {bad}\n"))
        with pytest.raises(SettingError, match=r"gpu_memory = .*: must be bytes such as 6GiB"):
            read(FinetuneSettings, write(tmp_path / "c.toml", f"gpu_memory = {bad}\n"))
        with pytest.raises(SettingError, match=r"memory = .*: must be bytes such as 6GiB, or auto"):
            read(FinetuneSettings, write(tmp_path / "c.toml", f"memory = {bad}\n"))


@pytest.mark.slow
def test_a_file_trains_as_flags_do_and_flags_go_first(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    options = ("--hidden", "8,4", "--epochs", 3, "--batch-size", 16, "--lr", 0.01, "--seed", 3, "--optimizer", "sgd")
    as_flags = trained(capsys, tmp_path / "a", data, *options)
    file = write(
        tmp_path / "s.toml",
        f"data = {json.dumps(data)}\nhidden = [8, 4]\nepochs = 3\nbatch_size = 16\nlr = 0.01\nseed = 3\n"
        f"optimizer = 'sgd'\nout = {json.dumps(str(tmp_path / 'of_file'))}\n",
    )
    assert trained(capsys, tmp_path / "b", "--config", file) == as_flags
    assert not (tmp_path / "of_file").exists()
    assert run(capsys, "fit", "--config", file)[0] == 0
    assert (tmp_path / "of_file" / "model.safetensors").read_bytes() == as_flags
    other = trained(capsys, tmp_path / "c", "--config", file, "--seed", 4)
    assert other != as_flags and other == trained(capsys, tmp_path / "d", data, *options, "--seed", 4)


def test_an_error_names_the_place_of_the_setting_that_counts(capsys, tmp_path):
    data, file = flowers(tmp_path / "t.csv"), write(tmp_path / "s.toml", 'metric = "accuracy"\n')
    code, _, err = run(capsys, "fit", data, "--config", file, "--folds", 0)
    assert code == 2 and "s.toml: metric" in err
    code, _, err = run(capsys, "fit", data, "--config", file, "--folds", 0, "--metric", "log_loss")
    assert code == 2 and "--metric" in err and "s.toml" not in err


def test_a_file_for_finetune(capsys, tmp_path, language):  # noqa: F811
    model, text = language
    code, _, err = run(
        capsys, "finetune", model, text, "--context", 32, "--steps", 2, "--rank", 2, "--targets", "attn_q,attn_v",
        "--rslora", "--out", tmp_path / "a.gguf",
    )  # fmt: skip
    assert code == 0, err
    file = write(
        tmp_path / "s.toml",
        f"model = '{model}'\ndata = '{text}'\ncontext = 32\nsteps = 2\nrank = 2\ntargets = ['attn_q', 'attn_v']\n"
        "rslora = true\n",
    )
    assert run(capsys, "finetune", "--config", file, "--out", tmp_path / "b.gguf")[0] == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert run(capsys, "finetune", "--config", file, "--out", tmp_path / "b.gguf", "--rank", 3)[0] == 0
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "b.gguf").read_bytes()
    code, _, err = run(capsys, "finetune", "--config", file, "--epochs", 3)
    assert code == 2 and f"--epochs 3 and {file}: steps = 2 are mutually exclusive" in err


@pytest.mark.parametrize(
    "text, says",
    [
        ("epochs = 'three'", 'epochs = "three": must be a whole number of at least 1'),
        ("epochs = 0", "epochs = 0: must be a whole number of at least 1"),
        ("epochs = 1.5", "epochs = 1.5: must be a whole number of at least 1"),
        ("epochs = true", "epochs = true: must be a whole number of at least 1"),
        (
            "epochs = 9223372036854775808",
            "epochs = 9223372036854775808: must be a whole number of at least 1, below 2**63",
        ),
        ("seed = -1", "seed = -1: must be a whole number of at least 0"),
        ("lr = inf", "lr = Infinity: must be a finite number above 0"),
        ("lr = nan", "lr = NaN: must be a finite number above 0"),
        ("lr = 1979-05-27", "lr = 1979-05-27: must be a finite number above 0"),
        ("val_split = 1", "val_split = 1: must be a number of at least 0 and below 1"),
        ("loss = 'hinge'", 'loss = "hinge": must be cross_entropy or mse'),
        ("loss = 3", "loss = 3: must be cross_entropy or mse"),
        ("val = 'a.csv'", 'val = "a.csv": must be a table of names, each with the name of a file or folder'),
        ("[val]\nclean = ''", 'val = {"clean": ""}: must be a table of names, each with the name of a file'),
        ("eval_every = '5 steps'\nepochs = '1'", 'epochs = "1": must be a whole number'),
        ("eval_every = '5min'", 'eval_every = "5min": must be a text such as 100steps or 1epoch'),
        ("eval_every = 'often'", 'eval_every = "often": must be a text such as 100steps or 1epoch'),
        ("[[groups]]\nmatch = '*'\nlr = -1", "groups[0].lr = -1: must be a finite number above 0"),
        ("[[groups]]\nmach = '*'", "groups[0]: key mach is not known; did you mean match?"),
        ("hidden = '64,64'", 'hidden = "64,64": must be whole numbers of at least 1, such as 64,64'),
        ("hidden = [64, 'x']", 'hidden = [64, "x"]: must be whole numbers of at least 1, such as 64,64'),
        ("out = ''", 'out = "": must be the name of a file or folder'),
        ("target = 3", "target = 3: must be a text"),
        ("json = 1", "json = 1: must be true or false"),
        ("batch-size = 3", "key batch-size is not known; did you mean batch_size?"),
        ("epoch = 3", "key epoch is not known; use epochs="),
        ("config = 'a.toml'", "key config is not known; keys: data, target, "),
        ("[hidden]\nwidth = 3", 'hidden = {"width": 3}: must be whole numbers of at least 1, such as 64,64'),
        ("[epochs]\nn = 3", 'epochs = {"n": 3}: must be a whole number of at least 1'),
        ("epochs = 3\nepochs = 4", "is not TOML: Cannot overwrite a value (at "),
        ("epochs: 3", "is not TOML: "),
        ("epochs = ", "is not TOML: "),
        ("x = " + "[" * 5000, "is not TOML: "),
        ("#" * (1 << 16) + "\n", "is longer than 65536 bytes; must be a settings file (TOML)"),
        (f"seed = {'9' * 5000}\n", "is not TOML: Exceeds the limit"),
        (f"batch_size = 0x{'f' * 5000}\n", "batch_size = 0xff"),
        (f"hidden = [0x{'f' * 5000}]\n", "hidden = ...: must be whole numbers"),
        ('data = "a\\u0000b"\n', 'data = "a\\u0000b": must be the name of a file or folder'),
        ('out = "a\\u0000b"\n', 'out = "a\\u0000b": must be the name of a file or folder'),
        (".".join("a" * 20000) + " = 1\n", "has a key of 64 dots or more"),
        ("x = {" + '"a" . ' * 64 + "b = 1}\n", "has a key of 64 dots or more"),
    ],
)
def test_mistakes(capsys, tmp_path, text, says):
    file = write(tmp_path / "s.toml", text)
    code, out, err = run(capsys, "fit", "nowhere.csv", "--config", file)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "Traceback" not in err, err
    assert err.startswith(f"gradloom: {file}: ") and says in err, err


def test_bytes_that_are_no_utf8(capsys, tmp_path):
    """Only what a run has saved may hold the bytes of a file's name."""
    for text in (b"# Gr\xfc\xdfe\nepochs = 3\n", b"data = '\xfc'\n", b"\xfc = 1\n", "epochs = 3".encode("utf-16")):
        (tmp_path / "s.toml").write_bytes(text)
        code, out, err = run(capsys, "fit", "--config", tmp_path / "s.toml")
        assert (code, out) == (2, "") and "s.toml: is not UTF-8 text; must be" in err and err.count("\n") == 1, err
    (tmp_path / "s.toml").write_bytes(b"data = '\xfc'\n[run]\ncommand = 'fit'\n")
    assert read(FitSettings, tmp_path / "s.toml") == {"data": os.fsdecode(b"\xfc")}
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbfepochs = 3\n")
    assert read(FitSettings, tmp_path / "s.toml") == {"epochs": 3}


def test_files_that_cannot_be_read(capsys, tmp_path):
    for file, says in ((tmp_path / "none.toml", "cannot be read: no such file"), (tmp_path, "is a folder; need a ")):
        code, _, err = run(capsys, "fit", "nowhere.csv", "--config", file)
        assert code == 2 and err.startswith(f"gradloom: {file}: {says}"), err


def test_what_is_missing_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s.toml", "epochs = 3")
    code, _, err = run(capsys, "fit", "--config", "s.toml")
    assert code == 2 and err == "gradloom: Missing argument 'DATA', or data = in a --config file\n"
    code, _, err = run(capsys, "finetune", "m.gguf")
    assert code == 2 and "Missing argument 'DATA'" in err


@dataclass(frozen=True)
class Group:
    match: str
    lr: Rate | None = None


@dataclass(frozen=True)
class Sample:
    data: str
    groups: list[Group] | None = None
    val: dict[str, str] | None = None
    kind: Literal["a", "b"] = "a"
    count: Whole | None = None


@pytest.mark.parametrize(
    "text, says",
    [
        ("[[groups]]\nmatch = '*.bias'\nlr = -1", "groups[0].lr = -1: must be a finite number above 0"),
        ("[[groups]]\nmatch = 'a'\n[[groups]]\nmatch = 'b'\nrate = 1", "groups[1]: key rate is not known; use lr"),
        ("[[groups]]\nlr = 1", "groups[0]: key match is missing; must be a text"),
        ("groups = [3]", "groups[0] = 3: must be a table"),
        ("groups = 3", "groups = 3: must be a list, each of it a table"),
        ("val = 'a.csv'", 'val = "a.csv": must be a table of names, each with a text'),
        ("[val]\nclean = 3", 'val = {"clean": 3}: must be a table of names, each with a text'),
    ],
)
def test_mistakes_in_tables(tmp_path, text, says):
    file = write(tmp_path / "s.toml", text)
    with pytest.raises(SettingError) as error:
        read(Sample, file)
    assert str(error.value).startswith(f"{file}: {says}"), error.value


def test_tables(tmp_path):
    text = "[[groups]]\nmatch = '*.bias'\nlr = 1\n[val]\nclean = 'a.csv'\n[run]\ncommand = 'fit'\nranks = 3\n"
    found = read(Sample, write(tmp_path / "s.toml", text))
    assert found == {"groups": [Group("*.bias", 1.0)], "val": {"clean": "a.csv"}}
    assert isinstance(found["groups"][0].lr, float)


def test_what_is_saved_is_read_again(tmp_path):
    """Every float to the last bit, texts of any kind, no None, nothing that another run chooses anew."""
    settings = Sample('a\x7f"b\\\n\u00e9\udcff.csv', [Group("*.bias", 0.1 + 0.2), Group("b")], {"x y": "1"}, "b")
    file = tmp_path / "s.toml"
    file.write_bytes(save(settings, {"command": "sample", "target": None}))
    assert Sample(**read(Sample, file)) == settings
    assert parse_toml(file)["run"] == {"command": "sample"}
    saved = parse_toml(write(tmp_path / "f.toml", save(FitSettings("x.csv", out="o", threads=3), {}).decode()))
    assert saved == {
        "data": os.path.abspath("x.csv"),
        "ema": 0.0,
        "on_nonfinite": "stop",
        "optimizer": "adamw",
        "watch_what": "norm",
        "seed": 0,
    }


@pytest.mark.parametrize("kind", [FitSettings, FinetuneSettings])
def test_one_declaration_says_all(kind):
    """Flags, keys and checks come from the fields; a default that is shown passes its own check."""
    settings = settings_of(kind)
    assert list(settings) == [field.name for field in fields(kind)]
    for setting in settings.values():
        if setting.default not in (None, ...):
            assert checked(setting.default, setting.kind, setting.flag, setting.name) == setting.default
    flags = {name: None for name, setting in settings.items() if setting.parameter}
    assert asked(kind, flags, None).values == {}
