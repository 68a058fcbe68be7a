"""Hugging Face folders that cannot be read: one line that names the file, the defect and the requirement."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradloom import llm
from gradloom.base.errors import FileError
from tests.llm.random_folders import CONFIG, arrays, packed, safetensors, write_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("whole")
    return {shards: write_folder(root / str(shards), shards) for shards in (1, 2)}


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        given = CONFIG | changes
        kept = {key: value for key, value in given.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def tokenizer(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        given = json.loads((folder / "tokenizer.json").read_text())
        change(given)
        (folder / "tokenizer.json").write_text(json.dumps(given))

    return edit


def head(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        given, data = packed(arrays())
        change(given)
        (folder / "model.safetensors").write_bytes(safetensors(given, data))

    return edit


def index(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        given = json.loads(path.read_text())
        change(given["weight_map"])
        path.write_text(json.dumps(given))

    return edit


def weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return edit


def replaced(folder: Path, name: str, by: str, text: str = "") -> None:
    (folder / name).unlink()
    (folder / by).write_text(text)


NORM, Q, HEAD = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"
DEFECTS: dict[str, tuple[int, Callable[[Path], Any], str, str]] = {
    "no config": (1, lambda f: (f / "config.json").unlink(), "", "has no config.json; need"),
    "adapter": (1, lambda f: replaced(f, "config.json", "adapter_config.json", "{}"), "", "adapter of PEFT"),
    "gguf inside": (1, lambda f: replaced(f, "config.json", "model.gguf"), "", "contains model.gguf"),
    "config no object": (1, lambda f: (f / "config.json").write_text("[1]"), "config.json", "need an object"),
    "config cut": (1, lambda f: (f / "config.json").write_text('{"a": '), "config.json", "is not read as JSON"),
    "config no text": (1, lambda f: (f / "config.json").write_bytes(b"\xff"), "config.json", "is not UTF-8"),
    "model_type": (1, config(model_type="mamba"), "config.json", "model_type is 'mamba', which is not supp.*; must be"),
    "no model_type": (1, config(model_type=...), "config.json", "model_type is missing"),
    "layers too few": (1, config(num_hidden_layers=1), "", "unsupported tensor .*layers.1"),
    "layers too many": (1, config(num_hidden_layers=3), "config.json", "num_hidden_layers is 3; need at most 2"),
    "layers absent": (1, config(num_hidden_layers=...), "config.json", "num_hidden_layers is missing"),
    "heads": (1, config(num_attention_heads=3), "config.json", "num_attention_heads is 3; need a divisor"),
    "kv heads": (1, config(num_key_value_heads=4), "config.json", "is 4; need the rows of .*k_proj.weight, 16"),
    "ffn": (1, config(intermediate_size=50), "config.json", "is 50; need the rows of .*gate_proj.weight, 48"),
    "width": (1, config(hidden_size=64), "", "need"),
    "rope type": (1, config(rope_scaling={"rope_type": "ntk"}), "config.json", "rope_type is 'ntk'; need one of"),
    "rope no object": (1, config(rope_scaling=3), "config.json", "rope_scaling is 3; need an object"),
    "untied": (1, head(lambda g: g.__setitem__("x", g.pop(HEAD))), "", "need|unsupported"),
    "quantised": (1, config(quantization_config={"quant_method": "gptq"}), "config.json", "gptq.*need weights"),
    "classifier": (1, config(architectures=["LlamaForSequenceClassification"]), "config.json", "causal language mod"),
    "activation": (1, config(hidden_act="relu"), "config.json", "hidden_act is 'relu'; need silu"),
    "both directions": (1, config(is_causal=False), "config.json", "is_causal is False; need true"),
    "experts": (1, config(num_local_experts=8), "config.json", "num_local_experts is 8; need none"),
    "missing shard": (2, lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "model-00002-of-00002", "missi"),
    "absent tensor": (2, index(lambda m: m.__setitem__("x.weight", next(iter(m.values())))), "index.json", "does not"),
    "unnamed tensor": (2, index(lambda m: m.pop(NORM)), "index.json", "does not name tensor"),
    "outside": (2, index(lambda m: m.__setitem__(NORM, "../model.safetensors")), "index.json", "in the folder"),
    "absolute": (2, index(lambda m: m.__setitem__(NORM, "/etc/passwd")), "index.json", "in the folder"),
    "no name": (2, index(lambda m: m.__setitem__(NORM, 3)), "index.json", "in the folder"),
    "empty map": (2, index(lambda m: m.clear()), "index.json", "weight_map"),
    "pickle only": (1, lambda f: replaced(f, "model.safetensors", "pytorch_model.bin"), "", "pickled.*need model.safe"),
    "no weights": (1, lambda f: (f / "model.safetensors").unlink(), "", "neither model.safetensors nor"),
    "cut": (1, weights(lambda b: b[:-4]), "model.safetensors", "the file is cut"),
    "longer": (1, weights(lambda b: b + b"1234"), "model.safetensors", "need no more"),
    "short": (1, weights(lambda b: b[:5]), "model.safetensors", "has 5 bytes"),
    "empty": (1, weights(lambda b: b""), "model.safetensors", "has 0 bytes"),
    "head length": (1, weights(lambda b: struct.pack("<Q", 1 << 62) + b[8:]), "model.safetensors", "its head has"),
    "lfs": (1, weights(lambda b: b"version https://git-lfs"), "model.safetensors", "git lfs pull"),
    "head no JSON": (1, weights(lambda b: b[:8] + b"x" + b[9:]), "model.safetensors", "no safetensors file"),
    "beyond": (1, head(lambda g: g[HEAD].update(data_offsets=[0, 1 << 50])), "model.safetensors", "bytes"),
    "backwards": (1, head(lambda g: g[HEAD].update(data_offsets=[8, 0])), "model.safetensors", "a begin and an end"),
    "overlap": (1, head(lambda g: g[NORM].update(data_offsets=[0, 128])), "model.safetensors", "begins at byte"),
    "shape": (1, head(lambda g: g[NORM].update(shape=[-1])), "model.safetensors", "sizes"),
    "product": (1, head(lambda g: g[NORM].update(shape=[1 << 62, 1 << 62])), "model.safetensors", "takes"),
    "dtype": (1, head(lambda g: g[NORM].update(dtype="I32")), "model.safetensors", "is I32; need F32"),
    "no dtype": (1, head(lambda g: g[NORM].update(dtype="X")), "model.safetensors", "is of dtype"),
    "unknown tensor": (1, head(lambda g: g.__setitem__("model.x.weight", g.pop(Q))), "", "q_proj.weight is missing"),
    "no embedding": (1, head(lambda g: g.__setitem__("x", g.pop("model.embed_tokens.weight"))), "", "need a whole"),
    "no tokenizer": (1, lambda f: (f / "tokenizer.json").unlink(), "", "has no tokenizer.json; need"),
    "merges": (1, tokenizer(lambda t: t["model"].pop("merges")), "tokenizer.json", "need"),
    "empty merges": (1, tokenizer(lambda t: t["model"].update(merges=[])), "tokenizer.json", "model.merges is"),
    "odd merge": (1, tokenizer(lambda t: t["model"]["merges"].append(["zzz", "y"])), "tokenizer.json", "two pieces"),
    "unigram": (1, tokenizer(lambda t: t["model"].update(type="Unigram")), "tokenizer.json", "need BPE"),
    "ids": (1, tokenizer(lambda t: t["model"]["vocab"].update(zzz=3)), "tokenizer.json", "an id for each piece"),
    "step": (1, tokenizer(lambda t: t.update(normalizer={"type": "Bert"})), "tokenizer.json", "not supported"),
    "large": (1, tokenizer(lambda t: t["added_tokens"].append({"id": 1 << 25, "content": "z"})), "tokenizer.json", ""),
    "pattern": (
        1, tokenizer(lambda t: t.update(normalizer={"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
        "tokenizer.json", "need|cannot use",
    ),
    "generation": (1, lambda f: (f / "generation_config.json").write_text("["), "generation_config.json", "need an"),
}  # fmt: skip


@pytest.mark.parametrize("defect", list(DEFECTS))
def test_a_defect_is_one_line(defect: str, whole: dict[int, Path], tmp_path: Path) -> None:
    shards, change, file, wanted = DEFECTS[defect]
    folder = Path(shutil.copytree(whole[shards], tmp_path / "model"))
    change(folder)
    with pytest.raises(FileError) as raised:
        llm.load(folder).tokenizer.encode("a text")
    text = str(raised.value)
    assert text.startswith(str(folder / file) if file.endswith(".json") and "index" not in file else str(folder)), text
    assert "\n" not in text and file in text and re.search(wanted, text), text


def test_whole_folders_are_read(whole: dict[int, Path]) -> None:
    models = [llm.load(whole[shards]) for shards in (1, 2)]
    assert all(m.tokenizer.decode(m.tokenizer.encode("a text")) == "a text" for m in models)
    assert {n: w.shape for n, w in models[0].weights.items()} == {n: w.shape for n, w in models[1].weights.items()}


def test_a_tokenizer_of_more_than_16_million_characters_is_read(whole: dict[int, Path], tmp_path: Path) -> None:
    """Those of Llama 3 and Gemma 3 have 17 and 33."""
    folder = Path(shutil.copytree(whole[1], tmp_path / "model"))
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" " * 17_000_000)
    assert llm.load(folder).tokenizer.vocab_size > 300


def test_a_file_that_changes_later_is_noticed(whole: dict[int, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole[1], tmp_path / "model"))
    model = llm.load(folder)
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\0\0")
    with pytest.raises(FileError, match=r"model.safetensors: has changed since it was opened"):
        model.file.check()


@pytest.mark.parametrize("name", ["someone/tiny-135M", "tiny-1.7B"])
def test_a_name_is_no_place_to_download_from(name: str) -> None:
    need = rf"^{re.escape(name)}: no such file or directory; gradloom downloads nothing: download the model first, and "
    with pytest.raises(FileError, match=f"{need}give its folder"):
        llm.load(name)
    with pytest.raises(FileError, match=r"^none\.gguf: no such file or directory$"):
        llm.load("none.gguf")
