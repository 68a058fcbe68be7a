"""Merged models as Hugging Face folders: the files of the base with new weights, which transformers loads."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..base.arrays import place_in
from ..base.errors import FileError
from ..files import atomic_path, atomic_write, together
from ..files.gguf_types import PLAIN
from .adapter_arrays import AdapterArrays
from .hf_folder import INDEX, HFFolder
from .hf_settings import CONFIG, read_bytes, read_json

_DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.json",
)  # fmt: skip
_PIECE = 1 << 20  # elements that are converted at a time


def write_merged(
    base: HFFolder, adapter: AdapterArrays, out: str | os.PathLike[str], kind: str | None
) -> tuple[int, dict[str, int]]:
    """Write the base with the adapter added to a folder, in the files of the base. Returns the bytes of the weights and
    the number of tensors by type.

    kind: f32, f16, bf16 of all tensors; None: each keeps its type. Unchanged tensors of the same type are copied byte
    for byte. Raises FileError for numbers that are not finite or outside of the range of the type.
    """
    folder, size, kinds = Path(out), 0, Counter[str]()
    known = {name: gguf for gguf, name in base.names.items()}
    template = adapter.chat_template
    with together(folder):
        for shard, file in base.files.items():
            head: dict[str, object] = {"__metadata__": {"format": "pt"}}
            at = 0
            for name, tensor in file.tensors.items():
                own = {dtype: one for one, dtype in _DTYPES.items()}.get(tensor.dtype)
                new = tensor.dtype if kind is None or own is None else _DTYPES[kind]
                end = at + (tensor.bytes if new == tensor.dtype else _count(tensor.shape) * PLAIN[str(kind)].itemsize)
                head[name] = {"dtype": new, "shape": list(tensor.shape), "data_offsets": [at, end]}
                kinds[new.lower()] += 1
                at = end
            text = json.dumps(head, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            with atomic_path(folder / shard, 8 + len(text) + at) as part, open(part, "wb") as writer:
                writer.write(struct.pack("<Q", len(text)) + text)
                for name in file.tensors:
                    for piece in _pieces(base, shard, name, known.get(name, ""), adapter, kind):
                        writer.write(piece.data)
            size += 8 + len(text) + at
        config = read_json(base.folder / CONFIG)
        if kind is not None:
            config |= {key: _TORCH[kind] for key in ("dtype", "torch_dtype") if key in config}
        _write(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
        for copied in (*_COPIED, INDEX):
            if os.path.lexists(base.folder / copied) and (copied != INDEX or len(base.files) > 1):
                _write(folder / copied, read_bytes(base.folder / copied, 1 << 27))
        template = template if template is not None else base.tokenizer_file.chat_template
        if template is not None:
            _write(folder / "chat_template.jinja", template.encode())
    return size, dict(kinds.most_common())


def _write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _pieces(
    base: HFFolder, shard: str, name: str, known: str, adapter: AdapterArrays, kind: str | None
) -> Iterator[np.ndarray]:
    """The bytes of a tensor of the new file, some rows at a time. known: GGUF's name, "" if there is none."""
    file = base.files[shard]
    tensor, data = file.tensors[name], file.bytes(name)
    own = {dtype: one for one, dtype in _DTYPES.items()}.get(tensor.dtype)
    new = own if kind is None else kind
    if own is None or (new == own and known not in adapter.pairs):
        yield data
        return
    length = tensor.shape[-1] if tensor.shape else 1
    rows = data.view(PLAIN[own]).reshape(-1, length)
    step = max(1, _PIECE // length)
    for begin in range(0, len(rows), step):
        values = rows[begin : begin + step].astype(np.float32)
        with np.errstate(over="ignore"):
            if known in adapter.pairs:
                values = (values + adapter.delta(known, begin, begin + step)).astype(np.float32)
            made = values.astype(PLAIN[str(new)])
        bad = np.flatnonzero(~np.isfinite(made.astype(np.float32)))
        if bad.size:
            where = place_in(tensor.shape, begin * length + int(bad[0]))
            raise FileError(f"{file.path}: tensor {name!r} has {values.flat[bad[0]]:g}{where}; need numbers of {new}")
        yield np.ascontiguousarray(made).reshape(-1).view(np.uint8)
