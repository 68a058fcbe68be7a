"""compare: the measured quantities against their definitions, with a stand-in for the other program.

tests/client compares with llama.cpp itself."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import llm
from gradloom.base.errors import BackendError, FileError, NonFiniteError, SettingError
from gradloom.llm.compare import rows_of
from gradloom.llm.compare_texts import TEXTS
from gradloom.llm.net import Net
from tests.llm.other_program import OtherProgram, use
from tests.llm.random_folders import write_folder
from tests.llm.random_models import write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, "llama", context=256)


def logits_of(path: Path, tokens: np.ndarray) -> np.ndarray:
    return np.concatenate(list(OtherProgram(str(path)).logits(tokens.tolist())))


def test_the_same_program_agrees(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    found = llm.compare(path, layers=True)
    assert abs(found.difference) < 1e-6 and found.kl < 1e-10 and found.same_top == 1 and found.other_ids == 0
    assert found.layers is not None and max(found.layers) < 1e-5 and found.first_layer is None
    assert found.texts >= len(TEXTS) and found.tokens > 500 and found.version == "1.2.3"


def test_the_numbers_are_those_of_their_definitions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0, 0.3, (64, 300)).astype(np.float32)
    use(monkeypatch, change=staticmethod(lambda logits: logits + noise[: len(logits)]))
    rows = rows_of(llm.load(path), None, None, 128, 300, {})
    assert (rows.labels >= 0).sum() == 300
    found = llm.compare(path, rows)
    nll, other, kl, same = [], [], [], []
    for tokens, positions, labels in zip(rows.tokens, rows.positions, rows.labels, strict=True):
        starts = [*np.flatnonzero(positions == 0).tolist(), len(tokens)]
        for begin, stop in itertools.pairwise(starts):
            if not (labels[begin:stop] >= 0).any():
                continue
            q = logits_of(path, tokens[begin:stop]).astype(np.float64)
            p = q + np.resize(noise, q.shape)
            q, p = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (q, p))
            for t in np.flatnonzero(labels[begin:stop] >= 0):
                label = labels[begin + t]
                nll.append(-q[t, label])
                other.append(-p[t, label])
                kl.append((np.exp(p[t]) * (p[t] - q[t])).sum())
                same.append(q[t].argmax() == p[t].argmax())
    assert found.tokens == len(nll) == 300
    differences = np.subtract(nll, other)
    for value, right in (
        (found.nll, np.mean(nll)),
        (found.other_nll, np.mean(other)),
        (found.difference, differences.mean()),
        (found.difference_unc, differences.std(ddof=1) / np.sqrt(300)),
        (found.kl, np.mean(kl)),
        (found.kl_unc, np.std(kl, ddof=1) / np.sqrt(300)),
        (found.kl_max, np.max(kl)),
        (found.same_top, np.mean(same)),
    ):
        assert value == pytest.approx(right, rel=1e-4, abs=1e-6)
    assert found.same_top < 1 and found.kl > 1e-3


def test_an_adapter_is_on_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    model = llm.load(path)
    adapter = llm.LoRA(rank=2, targets="all")
    adapter.bind(model)
    for p in adapter.b.values():
        p.assign(np.random.default_rng(0).normal(0, 0.5, p.shape))
    plain, adapted = llm.compare(model, tokens=200), llm.compare(model, adapter=adapter, tokens=200)
    assert abs(adapted.difference) < 1e-6 and abs(adapted.nll - plain.nll) > 1e-3
    with pytest.raises(SettingError, match="need a LoRA"):
        llm.compare(model, adapter=llm.TrainedTensors("all"))


def test_differences_are_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, wrong_block=1, splits="lighthouse")
    found = llm.compare(path, layers=True)
    assert found.first_layer == 1 and found.layers is not None and found.layers[0] < 1e-6 < 0.1 < found.layers[1]
    assert found.other_ids == 1
    assert llm.compare(path, tokens=10).first_layer is None


def test_every_block_is_compared(path: Path) -> None:
    model = llm.load(path)
    net = Net(model, (1, 4), None, None, False)
    model.family.hidden(net, *(gl.input(name, (1, 4), "i32") for name in ("tokens", "positions")))
    assert len(net.blocks) == model.config.layers


def test_what_cannot_be_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(BackendError, match="llama-cpp-python, not installed; run pip install llama-cpp-python"):
        llm.compare(path)
    use(monkeypatch, change=staticmethod(lambda logits: logits * np.nan))
    with pytest.raises(NonFiniteError, match=r"llama\.cpp are not finite, and those of gradloom are"):
        llm.compare(path)
    wrong: dict[str, Any]
    for wrong, need in (
        ({"program": "vllm"}, r"program.*llama\.cpp"),
        ({"tokens": 0}, "at least 1"),
        ({"context": 1}, "2 to 256"),
    ):
        with pytest.raises(SettingError, match=need):
            llm.compare(path, **wrong)


def test_the_program_depends_on_the_form_of_the_model(path: Path, tmp_path: Path, monkeypatch: Any) -> None:
    folder = write_folder(tmp_path / "folder")
    with pytest.raises(
        FileError, match=r"folder: is a folder, and llama\.cpp reads GGUF files; need one, .* or program transf"
    ):
        llm.compare(folder, program="llama.cpp")
    with pytest.raises(
        FileError,
        match=r"is a GGUF file, and transformers is compared on Hugging Face folders; need one, or program ll",
    ):
        llm.compare(path, program="transformers")
    for name in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    need = "transformers: requires torch, not installed; run pip install torch transformers"
    for program in (None, "transformers"):
        with pytest.raises(BackendError, match=need):
            llm.compare(folder, program=program)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.9.0"))
    with pytest.raises(BackendError, match="requires transformers, not installed; run pip install torch transformers"):
        llm.compare(folder)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.57.3"))
    with pytest.raises(BackendError, match="transformers is 4.57.3; need 5 or newer: pip install -U transformers"):
        llm.compare(folder)


def test_the_command(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gradloom.cli.main import main

    use(monkeypatch, wrong_block=1, splits="lighthouse")
    assert main(["compare", str(path), "--layers", "--tokens", "200"]) == 0
    out, err = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert list(rows) == ["tokenizer", "loss", "difference", "KL", "likeliest", "layers", "time"]
    assert rows["tokenizer"] == "1 of 1 texts have other ids in llama.cpp" or "1 of " in rows["tokenizer"]
    assert "the first above 1e-04 is blk.1" in rows["layers"] and "200 tokens" in rows["loss"]
    assert "llama.cpp of llama-cpp-python 1.2.3" in err and "eight short texts of gradloom" in err
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert main(["compare", str(path)]) == 2
    need = "gradloom: llama.cpp: requires llama-cpp-python, not installed; run pip install llama-cpp-python"
    assert capsys.readouterr().err.splitlines()[-1] == need
    assert main(["compare", str(path), "--with", "vllm"]) == 2
    assert "--with vllm" in capsys.readouterr().err.splitlines()[-1]
