"""Records of a fine-tuning's inputs, which a resumed or continued run must share."""

from __future__ import annotations

from typing import Any

from ..base.record import shortened
from ..files.gguf_fields import Field
from ..parallel.communicator import checksum
from .model import Model
from .rows import Rows

BASE = "base model"
_ENDS = 1024  # bytes at each end of a tensor
_MOST_TEXT = 200  # characters of a metadata value


def record_of(model: Model) -> dict[str, Any]:
    """The metadata of a model (without those that describe the file, "general."), the names and shapes of its tensors,
    and "weights": a checksum of both ends of each tensor, which identifies the weights in milliseconds; a checkpoint
    also contains the digest of all frozen weights."""
    file = model.file
    keys = [key for key in file.fields if not key.startswith("general.") or key == "general.architecture"]
    tensors = [(t.name, t.kind, t.shape) for t in file.tensors.values()]
    ends = [part for name in file.tensors for part in (file.bytes(name)[:_ENDS], file.bytes(name)[-_ENDS:])]
    return {key: _text(file.fields[key]) for key in keys} | {"tensors": checksum(*tensors), "weights": checksum(*ends)}


def records_of(model: Model, rows: Rows, teacher: Model | None = None) -> dict[str, dict[str, Any]]:
    """The records of a run on these rows."""
    read = [{"samples": {"keys": list(report.keys)}} for report in rows.reports[:1]]
    taught = {} if teacher is None else {"teacher": record_of(teacher)}
    return {BASE: record_of(model)} | taught | (read[0] if read else {})


def _text(field: Field) -> str:
    if field.kind == "array":
        return f"{field.count} {field.item} {checksum(bytes(field.raw))}"
    if field.kind == "string":
        return str(shortened(bytes(field.raw[8:]).decode("utf-8", "replace"), _MOST_TEXT))
    return repr(field.value)
