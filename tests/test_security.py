"""SECURITY.md holds: no pickle, no evaluated text, no network, in the sources and in running commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_fit import flowers
from tests.llm.random_models import write

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gradloom"
CALLS = re.compile(r"(pickle|marshal|dill|joblib)\.(loads?|Unpickler)|eval|exec|from_pretrained|hf_hub_download")
MODULES = re.compile(r"urllib\.request|http(\.\w+)?|requests|httpx|ftplib|smtplib|aiohttp|huggingface_hub|shelve")
RANKS = {"parallel/mpi.py": "pickle.loads"}  # between the ranks of one job


def found(path: Path) -> Iterator[str]:
    """Calls and imports that SECURITY.md excludes."""
    text = path.read_text()
    if not (re.search(rf"({CALLS.pattern})\s*\(", text) or MODULES.search(text)):  # most files, which saves time
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and CALLS.fullmatch(call := ast.unparse(node.func)):
            yield call
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from filter(MODULES.fullmatch, names)


def test_the_sources_unpickle_evaluate_and_download_nothing() -> None:
    uses = {(path.relative_to(PACKAGE).as_posix(), text) for path in PACKAGE.rglob("*.py") for text in found(path)}
    assert uses == set(RANKS.items())


def test_what_the_sources_must_not_have_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "import http.client\nfrom urllib.request import urlopen\nx = eval('1')\npickle.load(f)\nmodel.eval()\n"
    )
    assert sorted(found(file)) == ["eval", "http.client", "pickle.load", "urllib.request"]


COMMANDS = """
import sys
refused = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "pickle.find_class", "marshal.loads")
def hook(event, arguments):
    if event in refused and not (event == "marshal.loads" and importing()):
        print("REFUSED", event, arguments, file=sys.stderr)
        raise RuntimeError(event)
def importing():  # compiled modules of the installation are marshalled
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
sys.addaudithook(hook)
from gradloom.cli.main import main
for command in {commands!r}:
    assert main(command) == 0, command
try:
    import socket; socket.create_connection(("127.0.0.1", 9))
except RuntimeError:
    print("the hook works")
"""


@pytest.mark.slow
def test_running_commands_unpickle_and_connect_nothing(tmp_path: Path) -> None:
    table, out = flowers(tmp_path / "t.csv"), str(tmp_path / "out")
    model = str(write(tmp_path, "llama", chat=True, context=64))
    (tmp_path / "t.txt").write_text("once upon a time there was a dog. " * 40)
    tuned = str(tmp_path / "a.gguf")
    commands = [
        ["fit", table, "--out", out, "--epochs", "1"],
        ["predict", out, table, "--out", str(tmp_path / "p.csv")],
        ["finetune", model, str(tmp_path / "t.txt"), "--context", "16", "--steps", "2", "--out", tuned],
        ["finetune", "--out", tuned, "--resume"],
        ["generate", model, "--lora", tuned, "--prompt", "once", "--chat", "-n", "2"],
        ["info", model],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=commands)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.endswith("the hook works\n"), done.stderr


def test_the_named_files_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`|\]\((docs/[\w.]+)\)", (ROOT / "SECURITY.md").read_text())
    missing = [a or b for a, b in named if not (ROOT / (a or b)).exists()]
    assert len(named) > 15 and not missing
