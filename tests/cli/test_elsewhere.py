"""The last lines of finetune and merge: commands for the result, here and with llama.cpp."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from gradloom.cli.common import llama_server
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


@pytest.mark.parametrize(
    "adapter", ["a.gguf", "a folder/b.gguf", "it's/a.gguf", "a,b.gguf", '"a.gguf', 'a "b",c.gguf', 'a"b.gguf', ",", '"']
)
def test_llama_cpp_reads_the_path_of_the_adapter(adapter: str) -> None:
    """It reads the value of --lora as a row of CSV since 2026, with a quote in an unquoted field as it is."""
    words = shlex.split(line := llama_server("a, model.gguf", adapter), comments=True)
    assert words[:4] == ["llama-server", "-m", "a, model.gguf", "--lora"] and len(words) == 5
    assert next(csv.reader([words[4]])) == [adapter]
    has_note = "  # a comma or quote in the path of an adapter: needs llama.cpp of February 2026 or newer" in line
    assert has_note is ("," in adapter or adapter.startswith('"'))


def test_paths_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single quotes are part of a path there."""
    monkeypatch.setattr("sys.platform", "win32")
    lines = [llama_server("C:\\my models\\m.gguf", f"C:\\{name}.gguf") for name in ("a", "a b", "a,b")]
    monkeypatch.undo()
    start = 'llama-server -m "C:\\my models\\m.gguf" --lora '
    assert lines == [f"{start}C:\\a.gguf", f'{start}"C:\\a b.gguf"', f'{start}\\"C:\\a,b.gguf\\"']


def test_the_line_of_an_adapter_with_a_comma(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, data, adapter = write(tmp_path, "llama", context=64), tmp_path / "t.txt", str(tmp_path / "a, b.gguf")
    data.write_text("once upon a time there was a dog. " * 40)
    code, out, _ = run(capsys, "finetune", model, data, "--context", 16, "--steps", 1, "--out", adapter)
    lines = last_lines(out)
    assert code == 0 and lines["use it"][4] == adapter
    assert lines["elsewhere"][:5] == ["llama-server", "-m", str(model), "--lora", f'"{adapter}"']
