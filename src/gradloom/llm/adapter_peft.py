"""Adapters as folders for PEFT: adapter_model.safetensors and adapter_config.json.

Names are those of Hugging Face's modules. In models that also see images the decoder is a part of its own:
`model.language_model` in transformers' classes, whatever the names of the stored tensors are. Families with interleaved
pairs (llama) permute the rows of q and k in GGUF files, so the rows of B of q and k are permuted too.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import FileError, one_line
from ..files import atomic_write, load_arrays, read_together, save_arrays, together
from . import families
from .adapter_arrays import (
    CHAT_TEMPLATE,
    EMBEDDING,
    LARGEST,
    AdapterArrays,
    check_alpha,
    check_fits,
    finite,
    pairs_of,
    text_of,
)
from .embedding import PEFT_EMBEDDING, peft_embedding
from .embedding import peft_text as embedding_text
from .family import END_MODULES, Family
from .head import PEFT_HEAD, HeadArrays, check_finite, peft_head, peft_text
from .hf_folder import HFFolder, refuse_models_folder
from .model_file import ModelFile

PEFT_WEIGHTS, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_OTHERS = ("layer_replication", "use_qalora")  # change the model beside the pairs
_PREFIX = "base_model.model."
_SCORE = "score"  # transformers' module of a head
_SCORES = ("classifier", _SCORE)  # modules that PEFT saves with a task type of SEQ_CLS, where the model has them
_ENDS = {f"{tensor}.weight": module for module, tensor in END_MODULES.items()}
_TEXT_PART = "model.language_model."  # the decoder of a model that sees images, in transformers' classes
# other names of it: of the stored tensors, and of the modules in transformers before 4.52
_IN_TEXT_PART = re.compile(r"(?:model\.language_model|language_model\.model)\.|language_model\.(?=lm_head$)")


def write_peft(folder: str | os.PathLike[str], adapter: AdapterArrays, base: ModelFile, base_name: str = "") -> None:
    """Write adapter_model.safetensors and adapter_config.json, as PEFT loads them for the base on Hugging Face.

    base       the model; of a GGUF file, its number of heads orders the rows of q and k
    base_name  base_model_name_or_path of the config; optional, PEFT's users may load the base themselves
    Raises FileError for an architecture or tensor without a name in PEFT's format, and for the folder of a model.
    """
    refuse_models_folder(folder)
    check_fits(adapter, base, folder)
    check_alpha(folder, adapter)
    family = _family(folder, adapter.architecture)
    arrays: dict[str, np.ndarray] = {}
    modules: list[str] = []
    for name, (a, b) in adapter.pairs.items():
        module = _module(folder, family, name, base)
        modules.append(module.rpartition(".")[2])
        a, b = finite(f"{folder}: {name}.lora_a", a), finite(f"{folder}: {name}.lora_b", b)
        if name == EMBEDDING:
            arrays[f"{_PREFIX}{module}.lora_embedding_A"] = a.T
            arrays[f"{_PREFIX}{module}.lora_embedding_B"] = b
        else:
            heads = _heads(base, family, name)
            arrays[f"{_PREFIX}{module}.lora_A.weight"] = a
            arrays[f"{_PREFIX}{module}.lora_B.weight"] = _halves(b, heads) if heads else b
    texts = {key: text for key, text in adapter.texts.items() if key == CHAT_TEMPLATE}
    if adapter.head is not None:
        check_finite(folder, adapter.head.weight)
        arrays[f"{_PREFIX}{_SCORE}.weight"] = adapter.head.weight
        texts[PEFT_HEAD] = peft_text(adapter.head.head)
    if adapter.embedding is not None:
        texts[PEFT_EMBEDDING] = embedding_text(adapter.embedding)
    ranks = {name: adapter.rank(name) for name in adapter.pairs}
    rank = max(ranks.values(), key=list(ranks.values()).count)
    alphas = {}
    for name, r in ranks.items():
        alphas[name] = adapter.scale(name) * (math.sqrt(r) if adapter.rslora else r)
    alpha = alphas[next(name for name, r in ranks.items() if r == rank)]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if adapter.head is None else "SEQ_CLS",
        "base_model_name_or_path": base_name or None,
        "r": rank,
        "lora_alpha": _whole(alpha),
        "use_rslora": adapter.rslora,
        "rank_pattern": {_pattern(family, n, base): r for n, r in ranks.items() if r != rank},
        "alpha_pattern": {
            _pattern(family, n, base): _whole(x) for n, x in alphas.items() if not math.isclose(x, alpha)
        },
        "target_modules": _targets(sorted(set(modules)), base),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None if adapter.head is None else [_SCORE],
        "layers_to_transform": None,
        "layers_pattern": None,
    }
    with together(folder):
        save_arrays(Path(folder) / PEFT_WEIGHTS, arrays, texts)
        with atomic_write(Path(folder) / PEFT_CONFIG) as file:
            file.write((json.dumps(config, indent=2) + "\n").encode())


def read_peft(folder: str | os.PathLike[str], base: ModelFile) -> AdapterArrays:
    """Read PEFT's folder (or the .safetensors in it) for a base. Raises FileError as
    read_adapter_gguf, and for an unknown module.

    Scales that differ between pairs (alpha_pattern, or ranks under rsLoRA) are multiplied into lora_b.
    """
    folder = Path(folder)
    folder = folder.parent if folder.suffix == ".safetensors" else folder
    path = folder / PEFT_WEIGHTS
    config, (stored, texts) = read_together(
        folder, (PEFT_CONFIG, PEFT_WEIGHTS), lambda config, weights: (_config(config), load_arrays(weights))
    )
    architecture = text_of(base, "general.architecture")
    family = _family(path, architecture)
    halves_by_tensor: dict[str, dict[str, np.ndarray]] = {}
    modules: dict[str, str] = {}
    head, embedding = _head(path, stored, texts), peft_embedding(texts.pop(PEFT_EMBEDDING, None), path)
    for key, array in stored.items():
        match = re.fullmatch(
            r"(?:base_model\.model\.)?(.+?)\.lora_(?:embedding_)?([AB])(?:\.default)?(?:\.weight)?", key
        )
        if match is None:
            raise FileError(f"{path}: tensor {key!r} is not part of a pair; need names with lora_A and lora_B")
        module, half = match[1], "lora_" + match[2].lower()
        name = _tensor(path, architecture, family, module)
        if array.ndim != 2 or not array.size:
            raise FileError(f"{path}: {key} has shape {list(array.shape)}; need 2 axes, none of them empty")
        array = finite(f"{path}: {key}", array)
        if name == EMBEDDING:
            array = array.T if half == "lora_a" else array
        elif half == "lora_b":
            heads = _heads(base, family, name)
            if heads and array.shape[0] % (2 * heads):
                raise FileError(f"{path}: {key} has {array.shape[0]} rows; {base.path} has {heads} heads of even size")
            array = _side_by_side(array, heads) if heads else array
        halves_by_tensor.setdefault(name, {})[half] = np.ascontiguousarray(array)
        modules[name] = module
    pairs = pairs_of(path, halves_by_tensor, ".lora_a", ".lora_b")
    scales = {
        name: _peft_scale(folder / PEFT_CONFIG, config, modules[name], pair[1].shape[1]) for name, pair in pairs.items()
    }
    first = next(iter(pairs))
    alpha = scales[first] * pairs[first][1].shape[1]
    adapter = AdapterArrays(architecture, alpha, pairs, bool(config.get("use_rslora")), texts, head, embedding)
    for name, (a, b) in pairs.items():
        factor = scales[name] / adapter.scale(name)
        if not math.isclose(factor, 1):
            with np.errstate(over="ignore"):
                pairs[name] = (a, finite(f"{path}: lora_B of {name}, scaled by {factor:g},", b * factor))
            adapter.rslora = False
    check_fits(adapter, base, path)
    return adapter


def _head(path: Path, stored: dict[str, np.ndarray], texts: dict[str, str]) -> HeadArrays | None:
    """The head, which is taken out of the tensors and the metadata of a folder; None without one."""
    text = texts.pop(PEFT_HEAD, None)
    for name in (f"{_PREFIX}{_SCORE}.weight", f"{_SCORE}.weight"):
        if name in stored:
            weight = finite(f"{path}: {name}", stored.pop(name))
            return peft_head(text, np.ascontiguousarray(weight), path)
    if text is not None:
        raise FileError(f"{path}: has facts of a head ({PEFT_HEAD}) without {_PREFIX}{_SCORE}.weight; need both")
    return None


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}; PEFT writes it next to the weights"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: is not JSON ({' '.join(str(error).split())[:80]})") from None
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise FileError(f"{path}: peft_type is {kind!r:.60}; need 'LORA'")
    trained = config.get("modules_to_save")
    if isinstance(trained, list) and all(name in _SCORES for name in trained):
        config["modules_to_save"] = None
    for key in ("use_dora", "fan_in_fan_out", "modules_to_save", "alora_invocation_tokens", *_OTHERS):
        if config.get(key):
            raise FileError(f"{path}: {key} is {config[key]!r:.60}, which is not supported")
    if config.get("bias", "none") != "none":
        raise FileError(f"{path}: bias is {config['bias']!r:.60}; need 'none'")
    if not isinstance(config.get("use_rslora"), (bool, type(None))):
        raise FileError(f"{path}: use_rslora is {one_line(config['use_rslora'])}; need true or false")
    for key, is_right, need in (("r", _is_rank, "a whole number above 0"), ("lora_alpha", _is_scale, _NEED_SCALE)):
        if not is_right(config.get(key)):
            raise FileError(f"{path}: {key} is {one_line(config.get(key))}; need {need}")
    for key, is_right, need in (("rank_pattern", _is_rank, "whole numbers"), ("alpha_pattern", _is_scale, "numbers")):
        pattern = config.get(key) or {}
        if not isinstance(pattern, dict) or not all(is_right(v) for v in pattern.values()):
            raise FileError(f"{path}: {key} is {one_line(pattern)}; need {need} above 0 by module")
        for module in pattern:
            if not _is_pattern(module):
                need = f"at most {_PATTERN} characters, at most 2 repetitions, none of a group"
                raise FileError(
                    f"{path}: {key} has the pattern {one_line(module)}, which is not supported; need {need}"
                )
    return config


_NEED_SCALE = "a finite number above 0"
_PATTERN = 200  # characters


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_scale(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LARGEST


def _is_pattern(text: str) -> bool:
    """Whether the search for a regular expression takes time bounded by the length of a module's name."""
    plain = re.sub(r"\\.|\(\?:", "", text)
    if len(text) > _PATTERN or re.search(r"\)[*+{?]|\(\?", plain) or len(re.findall(r"[*+{?]", plain)) > 2:
        return False
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _peft_scale(path: Path, config: dict[str, Any], module: str, rank: int) -> float:
    """lora_alpha / r of one module, or lora_alpha / sqrt(r) with use_rslora. Raises FileError if r is not its rank."""
    expected = _by_module(config.get("rank_pattern"), module, config["r"])
    if expected != rank:
        raise FileError(f"{path}: r of {module} is {one_line(expected)}; need {rank}, the rank of its tensors")
    alpha = _by_module(config.get("alpha_pattern"), module, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_module(patterns: dict[str, Any] | None, module: str, default: Any) -> Any:
    """As PEFT: the value of the first key that is a pattern for the end of the module's name."""
    return next((v for key, v in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _sees_images(base: ModelFile) -> bool:
    """Whether the decoder is a part of a larger model."""
    return isinstance(base, HFFolder) and "language_model." in base.prefix


def _targets(modules: list[str], base: ModelFile) -> list[str] | str:
    """target_modules of the config: ends of names; or a pattern for whole names, without the part that sees images."""
    if not _sees_images(base):
        return modules
    ends = [module for module in modules if module in END_MODULES]  # beside the decoder
    inside = "|".join(re.escape(module) for module in modules if module not in ends)
    found = [rf"(.*\.)?language_model\.(.*\.)?({inside})"] if inside else []
    return "|".join([*found, *(rf"(.*\.)?{re.escape(module)}" for module in ends)])


def _module(path: str | os.PathLike[str], family: Family, name: str, base: ModelFile) -> str:
    """Hugging Face's module of a GGUF tensor. Raises FileError if it has none."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    modules = {tensor: module for module, tensor in family.modules.items()}
    found = f"model.layers.{match[1]}.{modules[match[2]]}" if match and match[2] in modules else _ENDS.get(name)
    if found is None:
        raise FileError(f"{path}: tensor {name!r} has no module in PEFT's format; need {', '.join(modules)} of a block")
    return _TEXT_PART + found.removeprefix("model.") if _sees_images(base) and found.startswith("model.") else found


def _tensor(path: str | os.PathLike[str], architecture: str, family: Family, module: str) -> str:
    """The GGUF tensor of Hugging Face's module. Raises FileError if it has none."""
    inside = _IN_TEXT_PART.match(module)
    named = module if inside is None else module[inside.end() :]
    named = f"model.{named}" if inside is not None and named != "lm_head" else named
    match = re.fullmatch(r"model\.layers\.(\d{1,9})\.([\w.]+)", named)
    if match and match[2] in family.modules:
        return f"blk.{match[1]}.{family.modules[match[2]]}.weight"
    if named in END_MODULES:
        return f"{END_MODULES[named]}.weight"
    raise FileError(f"{path}: module {module!r} has no tensor in a {architecture} GGUF file; is it for another base?")


def _family(path: str | os.PathLike[str], architecture: str) -> Family:
    family = families.find(architecture)
    if family is None:
        known = " ".join(families.names())
        raise FileError(f"{path}: PEFT's names for architecture {architecture!r} are not known; known are {known}")
    return family


def _pattern(family: Family, name: str, base: ModelFile) -> str:
    """A pattern that matches the module of this tensor only."""
    return re.escape(_module("", family, name, base))


def _heads(base: ModelFile, family: Family, name: str) -> int:
    """Heads of the tensor, if the family permutes its rows, else 0."""
    match = re.fullmatch(r"blk\.(\d+)\.attn_([qk])\.weight", name)
    if not family.permutes or isinstance(base, HFFolder) or match is None:
        return 0
    return heads_of(base, name)


def heads_of(base: ModelFile, name: str) -> int:
    """Heads of attn_q or attn_k in the metadata of a model. Raises FileError if there are none."""
    match = re.fullmatch(r"blk\.(\d+)\.attn_([qk])\.weight", name)
    if match is None:
        return 0
    key = f"{text_of(base, 'general.architecture')}.attention.head_count"
    heads = base.metadata.get(key)
    if match[2] == "k":
        heads = base.metadata.get(key + "_kv", heads)
    if isinstance(heads, np.ndarray):  # one number per layer
        layer = int(match[1])
        heads = int(heads[layer]) if layer < heads.size else None
    if not isinstance(heads, int) or heads < 1:
        raise FileError(f"{base.path}: {key} is {heads!r:.60}; need the number of heads to order the rows of {name}")
    return heads


def _side_by_side(b: np.ndarray, heads: int) -> np.ndarray:
    """Permute rows from Hugging Face's order (halves) to GGUF's (pairs): (0, D/2, 1, D/2+1, ...) of each head."""
    return b.reshape(heads, 2, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


def _halves(b: np.ndarray, heads: int) -> np.ndarray:
    """Inverse of _side_by_side."""
    return b.reshape(heads, -1, 2, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


def in_gguf_order(adapter: AdapterArrays, base: ModelFile, back: bool = False) -> AdapterArrays:
    """An adapter of a Hugging Face folder with the rows of B in the order of GGUF files; back: the inverse. Unchanged
    for a GGUF file."""
    family = families.find(adapter.architecture)
    if not isinstance(base, HFFolder) or family is None or not family.permutes:
        return adapter
    pairs = {}
    for name, (a, b) in adapter.pairs.items():
        heads = heads_of(base, name)
        if heads and b.shape[0] % (2 * heads) == 0:
            b = np.ascontiguousarray((_halves if back else _side_by_side)(b, heads))
        pairs[name] = (a, b)
    return replace(adapter, pairs=pairs)


def _whole(value: float) -> float | int:
    """16 instead of 16.0, also if rounding left it slightly off a whole number."""
    near = round(value)
    return near if math.isclose(value, near, rel_tol=1e-9) else value
