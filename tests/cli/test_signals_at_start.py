"""Signals while the command starts, and while it imports: one line and the code of the signal, no traceback."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests import processes

INTERRUPTED = "gradloom: interrupted\n"
# Runs as Python starts: once a module is looked for, does what `then` says
AT_IMPORT = """
import os, signal, sys, weakref

class Thing:
    pass

def as_numpy():  # whose C code replaces what is raised
    try:
        os.kill(os.getpid(), {number})
    except KeyboardInterrupt:
        raise ImportError("numpy._core.umath failed to import") from None

def in_callback():  # of a weak reference, as importlib has them
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), {number}))
    del thing

def plainly():
    os.kill(os.getpid(), {number})

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {then}()

sys.meta_path.insert(0, Finder())
"""
COMMAND = ("-m", "gradloom")


def run(tmp_path: Path, module: str, then: str, number: int, *words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of Python with these words, which gets a signal when it imports a module."""
    text = AT_IMPORT.format(module=module, then=then, number=int(number))
    (tmp_path / "sitecustomize.py").write_text(text)
    env = processes.environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    done = processes.start([sys.executable, *words], env=env)
    out, err = done.communicate(timeout=60)
    return done.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_numpy_is_imported(tmp_path: Path, number: int) -> None:
    """NumPy is not taken for a broken package."""
    words = (*COMMAND, "quantize", "absent.gguf", "-o", tmp_path / "o.gguf", "--type", "q8_0")
    assert run(tmp_path, "numpy.linalg", "as_numpy", number, *words) == (128 + number, "", INTERRUPTED)


def test_where_an_import_fails_for_the_interrupt(tmp_path: Path) -> None:
    """As one does that takes longer than a signal waits: NumPy prints its traceback, and is no broken package."""
    text = (
        "import sys; from gradloom.base import interrupts; from gradloom.cli.main import main; "
        "interrupts.IMPORT_SECONDS = 0; sys.exit(main(['quantize', 'absent.gguf', '-o', 'o.gguf']))"
    )
    code, out, err = run(tmp_path, "numpy.linalg", "as_numpy", signal.SIGTERM, "-c", text)
    assert (code, out) == (143, "") and err.endswith(f"\n{INTERRUPTED}") and "reinstall" not in err, err


def test_what_a_callback_loses(tmp_path: Path) -> None:
    words = (*COMMAND, "quantize", "absent.gguf", "-o", tmp_path / "o.gguf", "--type", "q8_0")
    assert run(tmp_path, "numpy.linalg", "in_callback", signal.SIGTERM, *words) == (143, "", INTERRUPTED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_the_command_itself_is_imported(tmp_path: Path, number: int) -> None:
    assert run(tmp_path, "click", "plainly", number, *COMMAND, "--version") == (128 + number, "", INTERRUPTED)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    text = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from gradloom.cli.start import main; sys.exit(main())"
    )
    code, out, err = run(tmp_path, "click", "plainly", signal.SIGINT, "-c", text, "--version")
    assert (code, err) == (0, "") and out.startswith("gradloom ")
