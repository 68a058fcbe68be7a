"""Hugging Face folders of every family as llama.cpp's own converter writes them: tensors and metadata against those
that `merge` writes, logits against transformers in float64 and against llama.cpp."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

SOURCE = os.environ.get("LLAMA_CPP_SOURCE")
if not SOURCE:
    pytest.skip("LLAMA_CPP_SOURCE is not the folder of llama.cpp's converter", allow_module_level=True)
pytest.importorskip("llama_cpp", reason="the package llama-cpp-python is not installed")
for package in ("torch", "transformers", "sentencepiece"):
    pytest.importorskip(package, reason=f"llama.cpp's converter requires {package}, not installed")

import torch  # noqa: E402

from gradloom import llm, ops  # noqa: E402
from gradloom.base.errors import FileError  # noqa: E402
from gradloom.llm import families  # noqa: E402
from tests.client.gelu import table_geglu  # noqa: E402
from tests.client.test_families import LIMIT, their_logits  # noqa: E402
from tests.client.test_llama_cpp import logits  # noqa: E402
from tests.llm import family_folders as folders  # noqa: E402

KINDS = {"f32": "float32", "bf16": "bfloat16"}
# Metadata that differ, (ours, the converter's). None of them changes what llama.cpp computes, but those of the first:
# llama.cpp replaces yarn_attn_factor of files by its own for yarn, and multiplies with attn_factor
DIFFER: dict[str, dict[str, tuple[Any, Any]]] = {
    "llama, mscale": {
        "rope.scaling.attn_factor": (1.1417235, None), "rope.scaling.yarn_attn_factor": (None, 1.3),
    },
    "olmo3": {  # the values that are assumed without them
        "attention.sliding_window_pattern": (None, [True, True, True, False]), "rope.freq_base_swa": (None, 5000.0),
    },
    "phi3": {"attention.sliding_window": (None, 0), "rope.scaling.original_context_length": (None, 4096)},
    "phi3, longrope": {"attention.sliding_window": (None, 0), "rope.scaling.type": ("longrope", None)},
    "phi3, window": {  # llama.cpp does not use the window
        "attention.sliding_window": (None, 9), "rope.scaling.original_context_length": (None, 4096),
    },
    "hunyuan-dense, alpha": {  # the converter replaces the context of published files
        "context_length": (32768, 262144), "rope.scaling.original_context_length": (None, 262144),
        "rope.scaling.type": (None, "none"), "rope.scaling.factor": (None, 1.0),
    },
}  # fmt: skip
TOKENIZERS: dict[str, dict[str, tuple[Any, Any]]] = {  # likewise, by architecture
    "glm4": {"eot_token_id": (None, 435), "unknown_token_id": (None, 434)},
    "gemma3": {"eot_token_id": (1, None)},  # eos_token_id of config.json, which differs from the tokenizer's
    "hunyuan-dense": {"eos_token_id": (2, 3)},  # eod_token_id of config.json
    "ernie4_5": {"pre": (None, "default"), "unknown_token_id": (0, None)},
    "minicpm": {"pre": (None, "default"), "unknown_token_id": (0, None), "add_space_prefix": (True, None)},
}
# Written from our own file, and in another form; and transformers' class adds a token to Qwen 2's
UNCOMPARED = {
    **dict.fromkeys(folders.SPM, ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")),
    "qwen2": ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"),
}
UNLOADED = {
    "seed_oss, biases": "llama.cpp does not load files of seed_oss with attn_output.bias, ffn_gate.bias, ffn_up.bias, "
    "ffn_down.bias",
    "hunyuan-dense, biases": "llama.cpp does not load files of hunyuan-dense with attn_output.bias",
    "ernie4_5, biases": "llama.cpp does not load files of ernie4_5 with ffn_gate.bias, ffn_up.bias, ffn_down.bias",
}
LENGTHS = {"phi3, window": (8,), "phi3, longrope": (48,)}  # llama.cpp chooses longrope's factors by its context


class Made(NamedTuple):
    """transformers' model, and files by type: those of `merge`, those of the converter."""

    model: Any
    ours: dict[str, Path]
    theirs: dict[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """Of every case."""
    torch.set_num_threads(1)
    root, found, jobs = tmp_path_factory.mktemp("converted"), {}, []
    for number, name in enumerate(folders.CASES):
        model = folders.build(name)
        found[name] = one = Made(model, {}, {})
        for kind, dtype in KINDS.items():
            folder = folders.write(root / f"{number}-{kind}", name, model, dtype)
            one.ours[kind], one.theirs[kind] = root / f"{number}-{kind}-ours.gguf", root / f"{number}-{kind}.gguf"
            convert(folder, one.ours[kind], kind)
            pre = metadata(one.ours[kind]).get("tokenizer.ggml.pre", "default")
            jobs.append({"folder": str(folder), "out": str(one.theirs[kind]), "type": kind, "pre": pre})
    (root / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("converter.py")
    done = subprocess.run(
        [sys.executable, script, str(SOURCE), root / "jobs.json"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return found


def convert(folder: Path, out: Path, kind: str) -> llm.Merged:
    """A folder as a GGUF file, by `merge` with an adapter that changes nothing."""
    adapter = llm.LoRA(rank=1, targets="attn_output")
    adapter.bind(llm.load(folder))
    adapter.save(folder / "adapter")
    return llm.merge(folder, folder / "adapter", out, kind)


def need(path: Path) -> Path:
    """The converter's file."""
    error = Path(f"{path}.error")
    assert not error.exists(), error.read_text()
    return path


def metadata(path: Path) -> dict[str, Any]:
    """Without the architecture in front of keys."""
    reader = gguf.GGUFReader(path)
    found = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    return {k.removeprefix(f"{found['general.architecture']}."): v for k, v in found.items()}


def assumed(fields: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's values of absent keys (llama_model_base::load_hparams)."""
    head = fields["embedding_length"] // fields["attention.head_count"]
    head = fields.get("attention.key_length", head)
    return {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head}


def test_every_family_is_here() -> None:
    assert {case.arch for case in folders.CASES.values()} == set(families.names())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", folders.CASES)
def test_tensors_are_byte_equal(made: dict[str, Made], name: str, kind: str) -> None:
    ours, theirs = (
        {t.name: (t.tensor_type, tuple(t.shape), t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}
        for path in (made[name].ours[kind], need(made[name].theirs[kind]))
    )
    assert set(ours) == set(theirs)
    assert [tensor for tensor in ours if ours[tensor] != theirs[tensor]] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", folders.CASES)
def test_metadata(made: dict[str, Made], name: str, kind: str) -> None:
    ours, theirs = metadata(made[name].ours[kind]), metadata(need(made[name].theirs[kind]))
    assert theirs.pop("vocab_size", len(ours["tokenizer.ggml.tokens"])) == len(ours["tokenizer.ggml.tokens"])
    for key in ("name", "quantization_version", "size_label", "type"):
        ours.pop(f"general.{key}", None), theirs.pop(f"general.{key}", None)
    ours, theirs = assumed(ours) | ours, assumed(theirs) | theirs
    absent = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    theirs = absent | theirs
    differ = dict(DIFFER.get(name, {}))
    arch = folders.CASES[name].arch
    differ |= {f"tokenizer.ggml.{key}": pair for key, pair in TOKENIZERS.get(arch, {}).items()}
    for key in differ.keys() | ours.keys() | theirs.keys():
        if key in UNCOMPARED.get(arch, ()):
            continue
        pair = ours.get(key), theirs.get(key)
        if key in differ:
            assert pair == tuple(pytest.approx(value) if isinstance(value, float) else value for value in differ[key])
        else:
            assert pair[0] == pair[1], key


@pytest.mark.parametrize("name", UNLOADED)
def test_biases_that_llama_cpp_does_not_load(made: dict[str, Made], name: str, tmp_path: Path) -> None:
    """merge reports them."""
    for path in (made[name].ours["f32"], need(made[name].theirs["f32"])):
        with pytest.raises(FileError, match="wrong number of tensors"):
            their_logits(path, np.zeros(1, np.int32))
    folder = folders.write(tmp_path / "model", name, made[name].model)
    (note,) = convert(folder, tmp_path / "model.gguf", "f32").notes
    assert note.endswith(UNLOADED[name])  # behind a report of its tokenizer


@pytest.mark.parametrize("name", folders.CASES)
def test_logits(made: dict[str, Made], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the converter's file here, there, and of transformers' model in float64."""
    path = need(made[name].theirs["f32"])
    model = llm.load(path)
    for length in LENGTHS.get(name, (24, 48)):
        ids = np.random.default_rng(length).integers(3, 400, (1, length)).astype(np.int32)
        ours = logits(model, ids)[0]
        with torch.no_grad():
            right = made[name].model(torch.tensor(ids, dtype=torch.int64)).logits.numpy()[0]
        scale = np.abs(right).max()
        if name != "llama, mscale":  # see DIFFER
            assert np.abs(ours - right).max() <= 1e-5 * scale
        if name in UNLOADED:
            continue
        if model.config.architecture == "gemma3":
            with monkeypatch.context() as patch:
                patch.setattr(ops, "geglu", table_geglu)
                ours = logits(model, ids)[0]
            # where a gate is rounded to another number of f16, more: the median of the positions
            assert np.median(np.abs(their_logits(path, ids[0]) - ours).max(-1)) <= LIMIT * scale
            continue
        assert np.abs(their_logits(path, ids[0]) - ours).max() <= LIMIT * scale
