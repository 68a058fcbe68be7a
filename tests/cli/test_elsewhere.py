"""The last lines of finetune and merge: commands for the result, here and with llama.cpp."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.command import run
from tests.llm.random_models import write

ROOT = Path(__file__).parents[2]


def last_lines(out: str) -> dict[str, list[str]]:
    """Words of the commands by the name of the line."""
    found = re.findall(r"^(use it|elsewhere) +(.*)$", out, re.M)
    return {name: shlex.split(text) for name, text in found}


def test_the_commands_name_the_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    model, data = write(folder, "llama", chat=True, context=64), folder / "t.txt"
    data.write_text("once upon a time there was a dog. " * 40)
    adapter, merged = str(folder / "a.gguf"), str(folder / "m.gguf")
    given = ("finetune", model, data, "--context", 16, "--steps", 1, "--out")
    code, out, _ = run(capsys, *given, adapter)
    own = ["-m", str(model), "--lora", adapter]
    assert code == 0 and last_lines(out)["elsewhere"] == ["llama-server", *own]
    assert last_lines(out)["use it"] == ["gradloom", "generate", *own[1:], "--prompt", "..."]
    code, out, _ = run(capsys, *given, folder / "full.gguf", "--method", "full")
    assert code == 0 and last_lines(out)["elsewhere"] == ["llama-server", "-m", str(folder / "full.gguf")]
    code, out, _ = run(capsys, *given, folder / "peft")  # which llama.cpp does not read
    assert code == 0 and "elsewhere" not in last_lines(out) and "use it" in last_lines(out)
    code, out, _ = run(capsys, "merge", model, adapter, "-o", merged)
    assert code == 0 and last_lines(out)["elsewhere"] == ["llama-server", "-m", merged]
    command = last_lines(out)["use it"]
    assert run(capsys, *command[1:-1], "once", "-n", 2)[0] == 0


def test_the_readme_shows_the_line() -> None:
    block = re.search(r"<!-- finetune -->(.*?)<!-- /finetune -->", (ROOT / "README.md").read_text(), re.S)
    assert block and re.search(r"^    elsewhere +llama-server -m stories260K.gguf --lora bard.gguf$", block[1], re.M)
