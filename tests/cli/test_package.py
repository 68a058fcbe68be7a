import subprocess
import sys
from importlib import metadata

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
