"""Without the packages of an extra: base commands and functions run, others name the extra in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.random_gguf import write_random
from gradloom.base.extras import EXTRAS
from gradloom.files.gguf_types import FILE_TYPE_NAMES
from tests import processes

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "examples" / "data" / "digits.npz")
NEED = "requires gguf, tokenizers, jinja2, not installed; run pip install 'gradloom[llm]'"

# A process in which these packages are not installed; it runs commands and statements, and prints their results.
WITHOUT = """
import contextlib, io, json, sys
from importlib import metadata

GONE = ("gguf", "tokenizers", "jinja2")
sys.modules.update(dict.fromkeys(GONE))
version = metadata.version

def version_without(name):
    if name in GONE:
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = version_without
import gradloom as gl
import numpy as np
from gradloom.cli.main import main
from gradloom.run import machine

machine.stale_sources = list  # whoever edits sources meanwhile
done = []
for work in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(work) if isinstance(work, list) else exec(work)
        except gl.GradloomError as error:
            code = f"{type(error).__name__}: {error}"
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""

LANGUAGE_COMMANDS = [
    "finetune m.gguf d.txt --out a.gguf", "evaluate m.gguf d.txt", "generate m.gguf --prompt x", "chat m.gguf",
    "plan m.gguf", "plan m.gguf d.txt", "verify m.gguf d.txt", "merge m.gguf a.gguf --out o.gguf",
]  # fmt: skip
LANGUAGE_CALLS = [
    "gl.llm.load('m.gguf')", "gl.llm.finetune('m.gguf', 'd.txt')", "gl.llm.plan('m.gguf')",
    "gl.llm.evaluate('m.gguf', 'd.txt')", "gl.llm.generate('m.gguf', 'x')", "gl.llm.verify('m.gguf', 'd.txt')",
    "gl.llm.merge('m.gguf', 'a.gguf', 'o.gguf')", "gl.llm.Conversation('m.gguf')",
    "gl.llm.Tokenizer({}, 'm.gguf')",
    "from gradloom.files import open_gguf; open_gguf('m.gguf').floats('token_embd.weight')",
]  # fmt: skip
BASE_COMMANDS = [
    "--help", "--version", "finetune --help", "doctor --json", "info m.gguf", "info m.gguf --tensors --keys --json",
    f"fit {DIGITS} --epochs 1 --out run", f"predict run/model.safetensors {DIGITS}", "runs",
]  # fmt: skip
BASE_CALLS = [
    "net = gl.nn.Linear(2, 3); gl.fit(net, (np.zeros((9, 2), 'f4'), np.arange(9) % 3), progress=False)",
    "from gradloom.files import open_gguf; open_gguf('f32.gguf').floats('token_embd.weight')",
    "gl.save(gl.nn.Linear(2, 3), 'net.gguf'); gl.load('net.gguf')",
    "gl.llm.LoRA(rank=2)",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, str, str]]:
    folder = tmp_path_factory.mktemp("without")
    write_random(folder / "m.gguf", kind="q8_0")
    write_random(folder / "f32.gguf")
    (folder / "d.txt").write_text("one two three " * 100)
    texts = [*LANGUAGE_COMMANDS, *BASE_COMMANDS, *LANGUAGE_CALLS, *BASE_CALLS]
    commands = len(LANGUAGE_COMMANDS) + len(BASE_COMMANDS)
    work = [text.split() if i < commands else text for i, text in enumerate(texts)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=json.dumps(work), capture_output=True, text=True, cwd=folder,
        env=processes.environment(), timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(texts, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("command", LANGUAGE_COMMANDS)
def test_a_command_names_the_extra(results: dict[str, Any], command: str) -> None:
    code, out, err = results[command]
    assert (code, out, err) == (2, "", f"gradloom: language model: {NEED}\n")


@pytest.mark.slow
@pytest.mark.parametrize("call", LANGUAGE_CALLS)
def test_a_function_names_the_extra(results: dict[str, Any], call: str) -> None:
    where = "m.gguf: tensor 'token_embd.weight' (q8_0)" if "floats" in call else "language model"
    assert results[call] == [f"BackendError: {where}: {NEED}", "", ""]


@pytest.mark.slow
@pytest.mark.parametrize("work", [*BASE_COMMANDS, *BASE_CALLS])
def test_the_rest_runs(results: dict[str, Any], work: str) -> None:
    code, _, err = results[work]
    assert code in (0, None), err
    assert "Traceback" not in err


@pytest.mark.slow
def test_doctor_lists_what_is_missing(results: dict[str, Any]) -> None:
    lines = results["doctor --json"][1].splitlines()
    assert re.search(r"^\[llm\] +not installed: pip install 'gradloom\[llm\]'$", "\n".join(lines), re.M)
    found = json.loads(lines[-1])
    assert "; without the extra llm not checked: linear_cross_entropy" in "\n".join(lines)
    assert found["extras"]["llm"] == dict.fromkeys(EXTRAS["llm"]) and found["problems"] == []


def test_the_extras_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for extra, packages in EXTRAS.items():
        listed = re.search(rf"^{extra} = \[(.*)\]", text, re.M)
        assert listed and tuple(re.findall(r'"([\w-]+)', listed[1])) == packages


def test_the_lock_file_has_every_package_for_development() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|llm|test|dev) = \[(.*?)\]$", text, re.M | re.S)
    assert len(lists) == 4
    needed = {name.lower().replace("_", "-") for name in re.findall(r'"([\w-]+)', " ".join(lists))} - {"gradloom"}
    lock = (ROOT / "requirements-dev.lock").read_text()
    assert needed <= set(re.findall(r"^([\w-]+)==", lock, re.M))
    assert "://" not in lock


def test_tables_and_networks_import_no_package_of_an_extra(tmp_path: Path) -> None:
    """Not even where it is installed."""
    names = {*EXTRAS["llm"], "wgpu", "pyarrow", "sklearn", "matplotlib", "tensorboardX", "mpi4py", "PIL"}
    code = (
        "import sys, gradloom as gl\nfrom gradloom.cli.main import main\n"
        f"assert main(['fit', {DIGITS!r}, '--epochs', '1', '--out', 'run']) == 0\n"
        f"assert main(['predict', 'run/model.safetensors', {DIGITS!r}]) == 0\n"
        "gl.fit(gl.nn.Linear(2, 3), ([[1, 2], [3, 4]], [0, 1]), epochs=1, progress=False)\n"
        f"print(sorted(sys.modules.keys() & {names}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=processes.environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_file_types_are_those_of_llama_cpp() -> None:
    import gguf

    assert {
        int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").lower() for kind in gguf.LlamaFileType
    } == FILE_TYPE_NAMES
