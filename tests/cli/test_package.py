import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import gradloom as gl
from tests import processes

ENV = processes.environment()


def test_every_public_name_is_there():
    for name in gl.__all__:
        assert getattr(gl, name) is not None
    assert set(gl.__all__) <= set(dir(gl))
    with pytest.raises(AttributeError, match="module 'gradloom' has no attribute 'nope'"):
        gl.nope  # noqa: B018


def test_import_loads_nothing_heavy():
    code = "import sys, gradloom; print('numpy' in sys.modules); gradloom.fit; print('gguf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_new_process_knows_the_settings_of_all_commands(tmp_path):
    """A process imports the command that it runs, and the others when a settings file names what this one lacks."""
    (tmp_path / "other.toml").write_text("targets = 'all'\n")
    (tmp_path / "run.toml").write_text('[run]\ncommand = "finetune"\n')
    for file, text in (
        ("other.toml", "key targets is not known to fit; finetune and plan have it"),
        ("run.toml", 'run.command = "finetune": must be fit'),
    ):
        command = [sys.executable, "-m", "gradloom", "fit", "--config", file]
        ended = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True)
        assert ended.returncode == 2 and text in ended.stderr, ended.stderr


def test_the_version_is_that_of_the_build():
    done = subprocess.run([sys.executable, "-m", "gradloom", "--version"], env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"gradloom {gl.__version__}\n")
    built = next((d.version for d in metadata.distributions(name="gradloom")), None)
    assert gl.__version__ in (built, "0+source")


@pytest.mark.slow
def test_help_texts_do_not_depend_on_docstrings():
    """PYTHONOPTIMIZE=2 removes docstrings and assertions."""
    code = """
import contextlib, io, json
from gradloom.cli.main import _COMMANDS, main
texts = {}
for words in ([], *([name] for name in _COMMANDS)):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([*words, "--help"])
    texts[" ".join(words)] = out.getvalue()
print(json.dumps(texts))
"""
    texts = [
        json.loads(
            subprocess.run([sys.executable, *flags, "-c", code], env=ENV, capture_output=True, check=True).stdout
        )
        for flags in ([], ["-OO"])
    ]
    assert texts[0] == texts[1] and all(len(text.splitlines()) > 4 for text in texts[0].values())


@pytest.mark.slow
def test_it_trains_without_docstrings(tmp_path):
    digits = str(Path(__file__).parents[2] / "examples" / "data" / "digits.npz")
    words = ["fit", digits, "--epochs", "1", "--hidden", "4", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-OO", "-m", "gradloom", *words], env=ENV, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "run" / "model.safetensors").exists(), done.stderr
