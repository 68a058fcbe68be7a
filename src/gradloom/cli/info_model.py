"""Report of `gradloom info` on a model or network that gradloom saved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tables.model import Model


def is_saved_model(file: str) -> bool:
    """A folder with what `gradloom fit` saved, or a .safetensors file; not a Hugging Face folder."""
    from ..llm.hf_folder import is_folder_of_model
    from ..tables.model import MODEL

    if os.path.isdir(file):
        return os.path.lexists(os.path.join(file, MODEL)) and not is_folder_of_model(file)
    return file.lower().endswith(".safetensors")


def describe_model(file: str) -> tuple[dict[str, Any], list[tuple[str, str]], str]:
    """(all that info knows, as --json prints it; what a person reads; the network layer by layer).

    FileError for a file that gl.load does not open."""
    from ..files import load_metadata
    from ..nn.description import described
    from ..tables.model import MODEL, Model, read_model

    read = read_model(file)
    path = os.path.join(file, MODEL) if os.path.isdir(file) else file
    net = read.net if isinstance(read, Model) else read
    kind = "model" if isinstance(read, Model) else "network"
    facts: dict[str, Any] = {"file": path, "bytes": os.path.getsize(path), "kind": kind}
    facts["parameters"] = net.parameter_count()
    if isinstance(read, Model):
        facts |= _of_model(read)
    facts["network"] = described(net)
    facts["metadata"] = {key: text for key, text in load_metadata(path).items() if key != "gradloom.model"}
    facts["tensors"] = [
        {"name": name, "type": p.dtype.name, "shape": list(p.shape), "bytes": p.stored.bytes, "trained": p.trainable}
        for name, p, _ in net.named_stored()
    ]
    lines = [("file", f"{path}: a {kind} of gradloom, {facts['bytes']:,} bytes")]
    more = read.facts() if isinstance(read, Model) else {"network": f"{facts['parameters']:,} parameters"}
    return facts, [*lines, *more.items()], repr(net)


def _of_model(model: Model) -> dict[str, Any]:
    made = model.preprocess
    columns = [
        {"name": c.name, "kind": c.kind} | ({"reason": c.reason} if c.kind == "unused" else {}) for c in made.columns
    ]
    targets = [{"name": one.name, "task": one.task, "classes": one.classes} for one in made.targets]
    return {
        "task": model.task, "target": model.target, **({"targets": targets} if targets else {}),
        "features": made.inputs, "columns": columns, "shape": made.shape,
        "missing": made.missing, "encoding": made.encoding, "classes": model.classes, "metrics": model.metrics,
        "about": model.about,
    }  # fmt: skip
