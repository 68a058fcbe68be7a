"""Hugging Face folders as models: config.json and mapped safetensors files, presented as an open GGUF file.

    config.json                          sizes and the family: hf_config.py
    model.safetensors, or model.safetensors.index.json and the files that it names
    tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json: hf_tokenizer.py

Rows of attn_q and attn_k stay in the folder's order. Files are untrusted input: names in the index must be those of
files in the folder, nothing in the folder is executed, pickled weights are not read.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.aligned import aligned_empty
from ..base.errors import FileError, one_line
from ..files.gguf_fields import Field, Metadata
from ..files.gguf_fields import field as gguf_field
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import PLAIN, show_name
from ..files.safetensors_file import SafetensorsFile, StoredTensor
from .config import Config, Keys
from .hf_config import TIED, FolderConfig, FolderKeys
from .hf_settings import CONFIG, read_bytes, read_json
from .hf_tokenizer import FolderTokenizer, tokenizer_of
from .hf_tokenizer_file import TOKENIZER_FILES, TokenizerFile

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_EMBEDDING = "embed_tokens.weight"
_UNUSED = re.compile(r"(^|\.)(rotary_emb\.(inv|original_inv)_freq|masked_bias)$")  # constants in older files
_OTHER_PARTS = re.compile(r"(model\.)?(vision_tower|vision_model|multi_modal_projector|audio_tower)\.")
_PIECE = 1 << 20  # elements that are converted at a time
_MOST_SHARDS = 4096


class HFFolder:
    """A Hugging Face folder that is open, with the attributes and methods of GGUF (files/gguf.py) that models use.

    path      as given
    config    FolderConfig: the translated config.json
    fields    GGUF's metadata of the model, the tokenizer's as it is in the folder
    metadata  key -> value
    tensors   GGUF's name -> TensorInfo; offsets are in the file of the tensor
    files     the safetensors files, by name
    names     GGUF's name -> the folder's name of the tensor
    """

    version, alignment = 0, 1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.folder = Path(path)
        config = self.folder / CONFIG
        _check_folder(self.folder)
        given = read_json(config)
        self.config = FolderConfig(str(config), given)
        self.fields: dict[str, Field] = dict(self.config.fields)
        name = given.get("_name_or_path")
        name = name if isinstance(name, str) and name else os.path.basename(os.path.abspath(path))
        self.fields["general.name"] = gguf_field("string", name.encode("utf-8", "replace").decode())
        self.metadata = Metadata(self.fields)
        self._places = self._open_files()
        self._made: dict[str, np.ndarray] = {}  # f32 arrays that are not in the files as they are
        self.names: dict[str, str] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._name_tensors()
        self.size = sum(file.size for file in self.files.values())

    # ---- opening --------------------------------------------------------------------------------------------------

    def _open_files(self) -> dict[str, SafetensorsFile]:
        """The folder's tensors: name -> file."""
        self.files: dict[str, SafetensorsFile] = {}
        index = self.folder / INDEX
        if not os.path.lexists(index) or os.path.lexists(self.folder / WEIGHTS):
            self.files[WEIGHTS] = SafetensorsFile(self.folder / WEIGHTS)
            return dict.fromkeys(self.files[WEIGHTS].tensors, self.files[WEIGHTS])
        given = read_json(index, 1 << 26).get("weight_map")
        if not isinstance(given, dict) or not given:
            raise FileError(f"{index}: weight_map is {one_line(given)}; need the file of each tensor")
        for name, shard in given.items():
            if not isinstance(shard, str) or not re.fullmatch(r"[^/\\:\0]{1,200}\.safetensors", shard):
                seen = f"{index}: the file of {show_name(name)} is {one_line(shard)}"
                raise FileError(f"{seen}; need the name of a .safetensors file in the folder")
        shards = dict.fromkeys(given.values())
        if len(shards) > _MOST_SHARDS:
            raise FileError(f"{index}: names {len(shards)} files; need at most {_MOST_SHARDS}")
        for shard in shards:
            if not os.path.lexists(self.folder / shard):
                raise FileError(f"{self.folder / shard}: is missing; {INDEX} names it: download the folder again")
            self.files[shard] = SafetensorsFile(self.folder / shard)
        for name, shard in given.items():
            if name not in self.files[shard].tensors:
                seen = f"{index}: names tensor {show_name(name)} in {shard}, which does not contain it"
                raise FileError(f"{seen}; download the folder again")
        found: dict[str, SafetensorsFile] = {}
        for file in self.files.values():
            for name in file.tensors:
                if name not in given:
                    raise FileError(f"{index}: does not name tensor {show_name(name)} of {file.path}; need all")
                if name in found:
                    raise FileError(f"{index}: {file.path} and {found[name].path} contain {show_name(name)}; need one")
                found[name] = file
        return found

    def _name_tensors(self) -> None:
        """Fill names and tensors. Raises FileError for tensors of no known name or dtype."""
        ends = sorted((n for n in self._places if n == _EMBEDDING or n.endswith(f".{_EMBEDDING}")), key=len)
        if not ends:
            seen = next(iter(self._places), "no tensor")
            raise FileError(f"{self.path}: no tensor is named {_EMBEDDING} (but {show_name(seen)}); need a whole model")
        prefix = ends[0].removesuffix(_EMBEDDING)
        tied = self.config.settings.get(TIED)
        modules = self.config.modules()
        for name, file in self._places.items():
            if _UNUSED.search(name) or (_OTHER_PARTS.match(name) and not name.startswith(prefix)):
                continue
            known = _known_name(name, prefix, modules)
            if known is None:
                known = name  # which no family has: the model names the nearest one
            if known == "output.weight" and tied is True and self._is_same(name, ends[0]):
                continue
            if known.endswith(".bias"):
                self.config.check_bias(known, show_name(name))
            self._add(known, name, file.tensors[name])
        if tied is False and "output.weight" not in self.tensors:
            seen = f"{self.config.settings.path}: tie_word_embeddings is false, and lm_head.weight is missing"
            raise FileError(f"{seen}; need lm_head.weight, or true")
        for known, array in self.config.tensors.items():
            self._made[known] = array
            self.names[known] = known
            self.tensors[known] = TensorInfo(known, "f32", array.shape, 0, array.nbytes)

    def _is_same(self, one: str, other: str) -> bool:
        """Whether two tensors are stored with the same numbers; transformers ties these alone."""
        here, there = self._places[one], self._places[other]
        a, b = here.tensors[one], there.tensors[other]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(here.bytes(one), there.bytes(other))

    def _add(self, known: str, name: str, stored: StoredTensor) -> None:
        shown = f"{self._places[name].path}: tensor {show_name(name)}"
        if known in self.names:
            raise FileError(f"{shown} and {show_name(self.names[known])} are the same tensor; remove either")
        kind = _KINDS.get(stored.dtype)
        if kind is None:
            raise FileError(f"{shown} is {stored.dtype}; need {', '.join(_KINDS)} (quantised models: as GGUF files)")
        if not all(stored.shape):
            raise FileError(f"{shown} has shape {list(stored.shape)}; need no empty axis")
        if stored.offset % PLAIN[kind].itemsize:
            size = PLAIN[kind].itemsize
            need = f"need a multiple of {size}: save the file again with a current safetensors package"
            raise FileError(f"{shown} begins at byte {stored.offset}; {need}")
        self.names[known] = name
        if self._has_offset(known):
            kind = "f32"
        size = math.prod(stored.shape) * PLAIN[kind].itemsize
        self.tensors[known] = TensorInfo(known, kind, stored.shape, stored.offset, size)

    def _has_offset(self, known: str) -> bool:
        """A norm whose stored numbers differ from those of GGUF files."""
        return bool(self.config.declared.folder.norm_offset) and known.endswith("_norm.weight")

    def keys(self) -> Keys:
        """The metadata, for messages that name config.json."""
        return FolderKeys(self.config.settings.path, self.metadata, self.names)  # type: ignore[arg-type]

    def configure(self, keys: Keys) -> Config:
        """The configuration, as transformers computes."""
        return self.config.configure(keys, {name: t.shape for name, t in self.tensors.items()})

    @functools.cached_property
    def tokenizer_file(self) -> TokenizerFile:
        """The checked files of the tokenizer."""
        return TokenizerFile(self.folder, str(self.path), dict(self.config.settings.values))

    def tokenizer(self, rows: int) -> FolderTokenizer:
        """The tokenizer, for an embedding of `rows` rows."""
        return tokenizer_of(self.tokenizer_file, rows)

    # ---- tensors --------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorInfo:
        """FileError when the folder has no tensor of that name."""
        if name not in self.tensors:
            raise FileError(f"{self.path}: has no tensor {name!r}; it has {len(self.tensors)} others")
        return self.tensors[name]

    def stored(self, name: str) -> np.ndarray:
        """The bytes of a tensor in its file, u8 [n]."""
        own = self.names[name]
        return self._places[own].bytes(own)

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor, u8 [n], read-only: in the mapped file, or of a small array of its own."""
        tensor = self.tensor(name)
        if name not in self._made and self._has_offset(name):
            own = self.names[name]
            kind = _KINDS[self._places[own].tensors[own].dtype]
            array = aligned_empty(tensor.shape, np.dtype(np.float32))
            array[...] = self.stored(name).view(PLAIN[kind]).reshape(tensor.shape).astype(np.float32)
            array += np.float32(self.config.declared.folder.norm_offset)
            self._made[name] = array
        made = self._made.get(name)
        if made is None:
            return self.stored(name)
        view = np.ascontiguousarray(made).reshape(-1).view(np.uint8)
        view.flags.writeable = False
        return view

    def release(self, name: str) -> None:
        """Release the memory pages of a tensor's bytes: the system reads them again at the next access."""
        own = self.names[name]
        if own in self._places:
            self._places[own].release(own)

    def array(self, name: str) -> np.ndarray:
        """A tensor in its shape, read-only, in the mapped file."""
        tensor = self.tensor(name)
        return self.bytes(name).view(PLAIN[tensor.kind]).reshape(tensor.shape)

    def floats(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows begin:end of a tensor as f32 [rows, row length], a copy; all axes but the last are counted as rows."""
        tensor = self.tensor(name)
        length = tensor.shape[-1] if tensor.shape else 1
        return np.array(self.array(name).reshape(-1, length)[begin:end], np.float32)

    def weights(self, name: str, out: np.ndarray) -> None:
        """A tensor, as `floats`, into f32 [..., row length]; some rows at a time."""
        rows = out.reshape(-1, out.shape[-1] if out.shape else 1)
        step = max(1, _PIECE // rows.shape[1])
        for begin in range(0, len(rows), step):
            rows[begin : begin + step] = self.floats(name, begin, begin + step)

    def check_weight(self, name: str) -> None:
        """FileError when the folder has no tensor of that name."""
        self.tensor(name)

    def check(self) -> None:
        """FileError when a file has changed since it was opened."""
        for file in self.files.values():
            file.check()

    def shown(self, name: str) -> str:
        """The folder's name of a tensor, for messages."""
        return self.names.get(name) or _folder_name(name, self.prefix, self.config.modules())

    @functools.cached_property
    def prefix(self) -> str:
        """Of the names of the decoder's tensors: "model.", for example."""
        return self.names["token_embd.weight"].removesuffix(_EMBEDDING)

    def __repr__(self) -> str:
        return f"HFFolder({os.fspath(self.path)!r}, {len(self.files)} files, {len(self.tensors)} tensors)"


def is_folder_of_model(path: str | os.PathLike[str]) -> bool:
    """A folder with a config.json."""
    return os.path.isdir(path) and os.path.lexists(os.path.join(path, CONFIG))


def files_of_folder(path: str | os.PathLike[str]) -> list[Path]:
    """The files of a model's folder that are read, sorted; [] for a folder without a model. Raises FileError for files
    that HFFolder does not open."""
    folder = Path(path)
    if not is_folder_of_model(folder) or not any(os.path.lexists(folder / name) for name in (WEIGHTS, INDEX)):
        return []
    index = [] if os.path.lexists(folder / WEIGHTS) else [INDEX]
    texts = [name for name in TOKENIZER_FILES if os.path.lexists(folder / name)]
    return [folder / name for name in sorted([CONFIG, *index, *HFFolder(folder).files, *texts])]


def _check_folder(folder: Path) -> None:
    """Raise FileError, naming the files there, unless the folder has a config.json and safetensors files."""
    names = set(_names(folder))
    need = "need a Hugging Face folder (config.json, model.safetensors, tokenizer.json) or a GGUF file"
    if CONFIG not in names:
        if snapshots := _snapshots(folder, names):
            seen = "is an entry of the Hugging Face cache; need the folder in it"
            raise FileError(f"{folder}: {seen}: {' or '.join(map(str, snapshots))}")
        what = "has no config.json"
        found = next((name for name in sorted(names) if name.endswith(".gguf")), None)
        if "adapter_config.json" in names:
            what += ", but an adapter_config.json: it is an adapter of PEFT, not a model"
            need = "need its model, and this folder as --lora (LoRA.load)"
        elif found is not None:
            what += f"; it contains {found}, which can be given itself"
        elif "run.json" in names:
            what += ", but a run.json: it is the folder of a run, not a model"
        raise FileError(f"{folder}: {what}; {need}")
    if WEIGHTS in names or INDEX in names:
        return
    pickled = next((n for n in sorted(names) if n.endswith((".bin", ".bin.index.json", ".pt", ".pth"))), None)
    if pickled is not None:
        raise FileError(
            f"{folder}: its weights are pickled ({pickled}), and reading them can run any program; need {WEIGHTS}: "
            "convert them with save_pretrained of transformers"
        )
    raise FileError(f"{folder}: has neither {WEIGHTS} nor {INDEX}; {need}")


def _snapshots(folder: Path, names: set[str]) -> list[Path]:
    """The folders of models in an entry of the Hugging Face cache, or in its `snapshots`: that of the branch main, or
    else all, at most 3. names: of the files there."""
    if folder.name != "snapshots" and "snapshots" not in names:
        return []
    inside = folder / "snapshots" if "snapshots" in names else folder
    try:
        hashes = sorted(name for name in os.listdir(inside) if re.fullmatch(r"[0-9a-f]{6,64}", name))
    except OSError:
        return []
    found = [inside / name for name in hashes if is_folder_of_model(inside / name)]
    try:
        main = read_bytes(inside.parent / "refs" / "main", 100).decode("ascii", "replace").strip()
    except FileError:
        main = ""
    return [one for one in found if one.name == main] or found[:3]


def refuse_models_folder(folder: str | os.PathLike[str]) -> None:
    """FileError for a folder with the files of a model, into which no adapter is written."""
    if not os.path.isdir(folder):
        return
    weights = re.compile(r"config\.json|(pytorch_)?model\b.*\.(safetensors|bin)(\.index\.json)?")
    for name in sorted(_names(Path(folder))):
        if weights.fullmatch(name):
            seen = f"{folder}: contains {name}: it is the folder of a model"
            raise FileError(f"{seen}; need another one for the adapter")


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count > 1 << 16:
                    raise FileError(f"{folder}: has more than {1 << 16} entries; need the folder of a model")
                yield entry.name
    except OSError as error:
        raise FileError(f"{folder}: cannot be read ({error.strerror or error})") from None


def _known_name(name: str, prefix: str, modules: Mapping[str, str]) -> str | None:
    """GGUF's name of a tensor, None if there is none."""
    if name in ("lm_head.weight", f"{prefix.removesuffix('model.')}lm_head.weight"):
        return "output.weight"
    if not name.startswith(prefix):
        return None
    rest = name.removeprefix(prefix)
    if rest == _EMBEDDING:
        return "token_embd.weight"
    if rest == "norm.weight":
        return "output_norm.weight"
    match = re.fullmatch(r"layers\.(0|[1-9]\d{0,8})\.(.+)\.(weight|bias)", rest)
    if match is None or match[2] not in modules:
        return None
    return f"blk.{match[1]}.{modules[match[2]]}.{match[3]}"


def _folder_name(name: str, prefix: str, modules: Mapping[str, str]) -> str:
    """The folder's name of a GGUF tensor; inverse of _known_name."""
    ends: dict[str, Any] = {
        "token_embd.weight": f"{prefix}{_EMBEDDING}", "output_norm.weight": f"{prefix}norm.weight",
        "output.weight": "lm_head.weight",
    }  # fmt: skip
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    module = None if match is None else next((m for m, t in modules.items() if t == match[2]), None)
    if match is None or module is None:
        return str(ends.get(name, name))
    return f"{prefix}layers.{match[1]}.{module}.{match[3]}"
