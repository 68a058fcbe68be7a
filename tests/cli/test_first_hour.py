"""What the commands answer in the first hour: --quiet, finished runs, files of another command, missing ids."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gradloom
from gradloom.cli.main import main
from tests.llm.random_models import write


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{i},{i * i},{'u' if i % 3 else 'v'}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["a,b,y", *lines]))
    Path("d.jsonl").write_text('{"text": "a b c d e f g h"}\n' * 8)
    return tmp_path


def run(*words, capsys):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


FIT = ["fit", "t.csv", "--epochs", 2, "--threads", 1]
TUNE = ["finetune", "llama.gguf", "d.jsonl", "--steps", 2, "--context", 32, "--val-split", 0]
QUIET = {
    "fit": [*FIT, "--out", "b"],
    "predict": ["predict", "a", "t.csv", "--out", "p.csv"],
    "finetune": [*TUNE, "--out", "b.gguf"],
    "evaluate": ["evaluate", "llama.gguf", "d.jsonl", "--context", 32],
    "generate": ["generate", "llama.gguf", "--prompt", "a", "-n", 3],
    "verify": ["verify", "llama.gguf", "d.jsonl", "--context", 32],
    "plan": ["plan", "llama.gguf", "--context", 32, "--gpu-layers", 0],
    "rerun": ["rerun", "a"],
}


@pytest.mark.parametrize("name", QUIET)
def test_quiet_leaves_warnings_and_results(name, here, capsys):
    write(here)
    if name in ("predict", "rerun"):
        assert run(*FIT, "--out", "a", capsys=capsys)[0] == 0
    code, loud_out, loud = run(*QUIET[name], capsys=capsys)
    again = [word if word not in ("b", "b.gguf", "p.csv") else f"q{word}" for word in QUIET[name]]
    again += ["--out", "c"] if name == "rerun" else []
    quiet_code, out, err = run(*again, "--quiet", capsys=capsys)
    assert code == quiet_code == 0 and loud and len(out.splitlines()) == len(loud_out.splitlines())
    assert all("warning" in line for line in err.splitlines())
    assert run(*QUIET[name][:2], "--no-such-option", "--quiet", capsys=capsys)[2]  # errors are shown, and then reports


def test_quiet_ends_with_its_command(here, capsys):
    assert "2 classes" not in run(*FIT, "--out", "a", "--quiet", capsys=capsys)[2]
    assert "2 classes" in run(*FIT, "--out", "b", capsys=capsys)[2]


def test_quiet_shows_no_summary_on_stderr_with_json(here, capsys):
    code, out, err = run(*FIT, "--out", "a", "--quiet", "--json", capsys=capsys)
    assert code == 0 and len(out.splitlines()) == 1 and json.loads(out)["epochs"] == 2
    assert all("warning" in line for line in err.splitlines())


def test_commands_without_progress_do_not_take_it(capsys):
    for name in ("info", "runs", "doctor"):
        assert "--quiet" in run(name, "--quiet", capsys=capsys)[2]


def contents(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_resuming_a_finished_fit_reports_it_and_its_results(here, capsys):
    code, first, _ = run(*FIT, "--out", "a", "--json", capsys=capsys)
    before = contents(here)
    code, out, err = run("fit", "--out", "a", "--resume", "--json", capsys=capsys)
    assert (
        code == 0 and "has finished" in err and contents(here)["a/model.safetensors"] == before["a/model.safetensors"]
    )
    assert json.loads(out)["test_accuracy"] == json.loads(first)["test_accuracy"]
    assert run(*FIT, "--out", "a", "--resume", "--lr", 0.5, capsys=capsys)[0] == 2  # another run: refused as ever
    (here / "a" / "model.safetensors").unlink()  # what is lost is written again
    assert run("fit", "--out", "a", "--resume", capsys=capsys)[0] == 0 and (here / "a" / "model.safetensors").exists()


@pytest.mark.parametrize("out", ["a.gguf", "peft"])
def test_resuming_a_finished_finetune_reports_it(here, capsys, out):
    write(here)
    assert run(*TUNE, "--out", out, capsys=capsys)[0] == 0
    before = contents(here)
    code, _, err = run("finetune", "--out", out, "--resume", capsys=capsys)
    after = contents(here)
    assert code == 0 and "has finished" in err
    assert [
        name for name in before if name.startswith(out) and ".run" not in name and after[name] != before[name]
    ] == []


def test_data_that_changed_is_not_a_finished_run(here, capsys):
    assert run(*FIT, "--out", "a", capsys=capsys)[0] == 0
    Path("t.csv").write_text(Path("t.csv").read_text().replace("59,", "60,"))
    assert run("fit", "--out", "a", "--resume", capsys=capsys)[0] == 2


def test_rerun_of_what_a_run_has_written_names_the_run(here, capsys):
    write(here)
    assert run(*TUNE, "--out", "x.gguf", capsys=capsys)[0] == 0 and run(*FIT, "--out", "a", capsys=capsys)[0] == 0
    for file, needed in (
        ("x.gguf", "gradloom rerun x.run"),
        ("a/model.safetensors", "gradloom rerun a"),
        ("llama.gguf", "folder of its run"),
    ):
        code, out, err = run("rerun", file, capsys=capsys)
        assert code == 2 and needed in err and not out


def test_evaluate_of_a_table_model_names_predict(here, capsys):
    assert run(*FIT, "--out", "a", capsys=capsys)[0] == 0
    for model in ("a", "a/model.safetensors"):
        code, out, err = run("evaluate", model, "t.csv", capsys=capsys)
        assert code == 2 and f"gradloom predict {model} t.csv" in err and not out


@pytest.mark.parametrize("missing", [0xFFFFFFFF, 300, 1 << 20])
def test_info_shows_no_id_where_there_is_none(here, capsys, missing):
    key = "tokenizer.ggml.padding_token_id"
    path = write(here, metadata={key: missing})
    code, out, _ = run("info", path, "--json", capsys=capsys)
    assert code == 0 and "padding none" in out and f"padding {missing}" not in out
    facts = json.loads(out.splitlines()[-1])
    assert facts["pad"] is None and facts["metadata"][key] == missing
    write(here, metadata={key: 2})
    assert "padding 2" in run("info", path, capsys=capsys)[1]


def test_a_package_without_its_native_core_says_how_to_build_it(tmp_path):
    package = Path(gradloom.__file__).parent
    there = tmp_path / "src" / "gradloom"
    there.mkdir(parents=True)
    for one in package.iterdir():
        if not one.name.startswith("_c") and one.name != "__pycache__":
            (there / one.name).symlink_to(one)
    env = {"PYTHONPATH": str(tmp_path / "src"), "PATH": ""}
    # the finder of an editable installation provides the core that is left out here
    tree = "import sys; sys.meta_path = [one for one in sys.meta_path if 'editable' not in type(one).__module__]; "
    code = f"{tree}from gradloom.cli.main import main; sys.exit(main(['fit', 'x.csv']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "pip install ." in done.stderr and str(tmp_path / "src") in done.stderr
    code = f"{tree}import gradloom as gl; gl.tensor([1.0])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
    )
    assert "pip install ." in done.stderr.splitlines()[-1]
