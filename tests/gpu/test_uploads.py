"""Long uploads to a device are shown, and a plan says how many bytes are uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom.base import uploads
from gradloom.base.memory import show_bytes
from gradloom.cli import progress
from gradloom.gpu import stored
from gradloom.llm.finetune import Run
from tests.cli.command import run as command
from tests.gpu.adapter import own_device
from tests.llm.random_models import packed

SIZES = {"layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 300, "std": 0.1}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its uploads are long ones, in parts of 4 KiB."""
    monkeypatch.setattr(uploads, "LONG", 1 << 14)
    monkeypatch.setattr(stored, "UPLOAD", 1 << 12)
    return str(write_random(tmp_path / "model.gguf", kind="f32", **SIZES))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_is_uploaded_before_the_first_step_is_what_the_plan_says(model: str, method: str) -> None:
    data = packed(rows=4, length=14, vocab=SIZES["vocab"])
    adapter = gl.llm.LoRA(rank=4, seed=1) if method == "lora" else None
    heard: list[tuple[str, int, int]] = []
    with own_device(), uploads.shown_by(lambda *one: heard.append(one)):
        run = Run(str(model), data, adapter, method=method, val_split=0, steps=1, batch_size=2, device="gpu")
        run.prepare()
        promised = run.memory().on_device
        assert promised is not None and not heard
        run.train(progress=False)
    assert len(heard) > 10 and {(where, total) for where, _, total in heard} == {("gpu", promised.uploaded)}
    done = [one for _, one, _ in heard]
    assert done == sorted(done) and done[-1] == promised.uploaded
    assert ("uploaded", f"{show_bytes(promised.uploaded)} before the first step") in run.memory().lines()


def test_a_short_upload_is_not_shown(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LONG", 256 << 20)
    heard: list[int] = []
    with own_device(), uploads.shown_by(lambda where, done, total: heard.append(done)):
        gl.llm.evaluate(model, packed(rows=2, length=14, vocab=SIZES["vocab"]), device="gpu")
    assert not heard


@pytest.mark.parametrize("terminal", [True, False])
def test_a_command_shows_it(
    model: str, terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "TERMINAL_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    text = tmp_path / "text.txt"
    text.write_text("a text that is long enough for some rows of tokens. " * 8)
    with own_device():
        code, _, shown = command(capsys, "evaluate", model, text, "--context", 16, "--device", "gpu")
    assert code == 0
    assert ("\ruploading to gpu: 4.00 KiB of " if terminal else "\nuploading to gpu: 4.00 KiB of ") in "\n" + shown, (
        shown
    )
    assert not terminal or shown.rfind("\r\x1b[K") > shown.rfind("uploading"), "the line goes in the end"
