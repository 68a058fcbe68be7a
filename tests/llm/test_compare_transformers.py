"""compare with transformers: Hugging Face folders of every family, adapters, differences that are found, and files of
the folder that must not be used."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom import llm
from gradloom.base.errors import FileError
from gradloom.cli.main import main
from gradloom.llm.compare import rows_of
from gradloom.llm.lora import LoRA
from gradloom.llm.model import Model

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tests.llm import transformers_models as theirs  # noqa: E402
from tests.llm.hf_tokenizers import write_tokenizer  # noqa: E402

pytestmark = pytest.mark.oracle
# Read tokenizer.json as it is, also in a family whose own class is another
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<unk>"}
TEXTS = [{"text": text} for text in ("One, two, three.", "The quick brown fox jumps over the lazy dog!", "Is it?") * 3]
CONTEXT = 48  # longer than all windows, and than the short texts of the longrope case


def saved(folder: Path, name: str, dtype: Any = None) -> Path:
    """A folder of a case, as transformers saves it."""
    made = theirs.model(theirs.FOLDER_CASES[name]).to(dtype or torch.float32)
    made.save_pretrained(folder)
    write_tokenizer(folder, "gpt-2", 300, **TOKENIZER)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("folder") / "model", "llama3")


def compared(model: Any, adapter: Any = None, tokens: int = 300, **options: Any) -> llm.Comparison:
    return llm.compare(model, adapter=adapter, context=CONTEXT, tokens=tokens, threads=1, layers=True, **options)


def check_equal(found: llm.Comparison) -> None:
    assert found.program == "transformers" and found.version == transformers.__version__
    assert abs(found.difference) < 1e-6 and found.kl_max < 1e-9 and found.same_top == 1 and found.other_ids == 0
    assert found.layers is not None and len(found.layers) == theirs.LAYERS
    assert max(found.layers) < 1e-5 and found.first_layer is None


@pytest.mark.parametrize("name", list(theirs.FOLDER_CASES))
def test_every_family_agrees(tmp_path: Path, name: str) -> None:
    model = llm.load(saved(tmp_path / "model", name))
    rows = rows_of(model, TEXTS, None, CONTEXT, 300, {})
    assert (rows.positions == 0).sum() >= len(TEXTS) > len(rows.tokens) > 1, "rows of several texts"
    found = llm.compare(model, rows, threads=1, layers=True)
    check_equal(found)
    assert found.texts == len(TEXTS) and found.tokens > 100


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "image"), [("Gemma3", "gemma3", "Siglip"), ("Mistral3", "mistral3", "Pixtral")]
)
def test_the_text_model_of_one_that_sees_images(tmp_path: Path, name: str, text: str, image: str, tied: bool) -> None:
    """Its decoder is deeper in the model, and its class is not one of causal language models. Whether the embeddings
    are tied is in the outer configuration, whatever the inner one has."""
    made = theirs.seeing(name, text, image, tied)
    made.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", "gpt-2", 300, **TOKENIZER)
    model = llm.load(tmp_path / "model")
    plain, adapted = compared(model), compared(model, drawn(model, "all"))
    for found in (plain, adapted):
        check_equal(found)
    assert abs(adapted.nll - plain.nll) > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_are_decoded(tmp_path: Path, dtype: str) -> None:
    check_equal(compared(saved(tmp_path / "model", "qwen3", getattr(torch, dtype))))


def drawn(model: Model, targets: Any, **options: Any) -> LoRA:
    adapter = llm.LoRA(rank=3, targets=targets, **options)
    adapter.bind(model)
    draw = np.random.default_rng(0)
    for p in (*adapter.a.values(), *adapter.b.values()):
        p.assign(draw.normal(0, 0.1, p.shape).astype(np.float32))
    return adapter


@pytest.mark.parametrize(("name", "more"), [("llama3", True), ("gemma3", False), ("phi3", True), ("glm4", True)])
def test_an_adapter_is_added_to_the_weights(tmp_path: Path, name: str, more: bool) -> None:
    """q and k in the folder's order of rows, fused layers, the embedding and the output."""
    folder = saved(tmp_path / "model", name)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    model = llm.load(folder)
    plain = compared(model)
    adapter = drawn(model, ["all", "token_embd", "output"] if more else "all", rslora=True)
    adapted = compared(model, adapter)
    for found in (plain, adapted):
        check_equal(found)
    assert abs(adapted.nll - plain.nll) > 1e-2
    for out in ("peft", "adapter.gguf"):
        adapter.save(tmp_path / out)
        again = compared(model, tmp_path / out)
        check_equal(again)
        assert again.nll == pytest.approx(adapted.nll, abs=1e-6)
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def other(folder: Path, copy: Path, change: Any) -> Model:
    """The model of the folder, which transformers reads from a copy that `change` has changed."""
    shutil.copytree(folder, copy)
    change(copy)
    model = llm.load(folder)
    model.path = str(copy)
    return model


def test_a_changed_weight_is_found(folder: Path, tmp_path: Path) -> None:
    from gradloom.files import load_arrays, save_arrays

    def change(copy: Path) -> None:
        arrays = {name: array.copy() for name, array in load_arrays(copy / "model.safetensors")[0].items()}
        arrays["model.layers.2.mlp.down_proj.weight"][3] *= 1.05
        save_arrays(copy / "model.safetensors", arrays, {"format": "pt"})

    found = compared(other(folder, tmp_path / "copy", change))
    assert found.first_layer == 2 and found.layers is not None and found.layers[1] < 1e-5 < 1e-3 < found.layers[2]
    assert found.kl > 1e-7 and abs(found.difference) > 1e-6 and found.other_ids == 0


def test_other_ids_are_counted(folder: Path, tmp_path: Path) -> None:
    model = other(folder, tmp_path / "copy", lambda copy: write_tokenizer(copy, "gpt-2", 285, **TOKENIZER))
    found = compared(model)
    assert 0 < found.other_ids <= found.texts and abs(found.difference) < 1e-6


def test_it_stays_in_the_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no code."""
    calls: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda *given: calls.append(given))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: calls.append(given) or [])

    def change(copy: Path) -> None:
        code = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        (copy / "code.py").write_text(code)
        for name, key, value in (
            ("config.json", "AutoModelForCausalLM", "code.Own"),
            ("config.json", "AutoConfig", "code.Own"),
            ("tokenizer_config.json", "AutoTokenizer", ["code.Own", "code.Own"]),
        ):
            given = json.loads((copy / name).read_text())
            given.setdefault("auto_map", {})[key] = value
            (copy / name).write_text(json.dumps(given))

    check_equal(compared(other(folder, tmp_path / "copy", change)))
    assert not calls and not (tmp_path / "ran").exists()


def test_a_folder_that_it_does_not_load(folder: Path, tmp_path: Path) -> None:
    model = other(folder, tmp_path / "copy", lambda copy: write_tokenizer(copy, "gpt-2", pad_token={"content": "x"}))
    with pytest.raises(FileError, match=r"copy: transformers \S+ cannot load it: Special token pad_token"):
        llm.compare(model)

    def forget(copy: Path) -> None:
        from gradloom.files import load_arrays, save_arrays

        arrays = load_arrays(copy / "model.safetensors")[0]
        del arrays["model.layers.1.input_layernorm.weight"]
        save_arrays(copy / "model.safetensors", arrays, {"format": "pt"})

    with pytest.raises(FileError, match=r"finds no tensor model\.layers\.1\.input_layernorm\.weight; it would draw"):
        llm.compare(other(folder, tmp_path / "other", forget))


def test_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    threads, level = torch.get_num_threads(), transformers.logging.get_verbosity()
    words = ["compare", str(folder), "--context", "48", "--tokens", "100", "--threads", "1", "--layers", "--json"]
    assert main(words) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert found["with"] == "transformers" and found["kl"] < 1e-9 and found["first_layer"] is None
    lines = err.splitlines()
    assert lines[2].startswith(f"transformers {transformers.__version__} with torch {torch.__version__}, on the CPU")
    assert [line.split()[0] for line in lines[-7:]] == [
        "tokenizer", "loss", "difference", "KL", "likeliest", "layers", "time",
    ]  # fmt: skip
    assert "[transformers]" not in err and "Loading weights" not in err and len(lines) <= 11, err
    assert (torch.get_num_threads(), transformers.logging.get_verbosity()) == (threads, level)
