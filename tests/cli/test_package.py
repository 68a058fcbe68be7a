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


def test_the_version_is_that_of_the_build():
    done = subprocess.run([sys.executable, "-m", "gradloom", "--version"], env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"gradloom {gl.__version__}\n")
    built = next((d.version for d in metadata.distributions(name="gradloom")), None)
    assert gl.__version__ in (built, "0+source")
