"""gradloom info: contents of a GGUF file (a model, a vocabulary, an adapter) or of a model that gradloom saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_facts import INFO_GGUF, INFO_MODEL
from ..base.terminal import plural
from .common import Json, columns, json_text
from .parser import Argument, Option

if TYPE_CHECKING:
    from ..llm.model_file import ModelFile

# name in --json -> key after the architecture's name
SIZES = {
    "layers": "block_count",
    "width": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "ffn_width": "feed_forward_length",
    "context_length": "context_length",
    "rope_base": "rope.freq_base",
    "rope_dims": "rope.dimension_count",
    "rope_scaling": "rope.scaling.type",
    "rope_factor": "rope.scaling.factor",
}
# and of its vocabulary: key after "tokenizer."
VOCABULARY = {"tokenizer": "ggml.model", "pre_tokenizer": "ggml.pre", "bos": "ggml.bos_token_id"}
VOCABULARY |= {"eos": "ggml.eos_token_id", "pad": "ggml.padding_token_id"}


HELP = """Show a GGUF file: architecture, sizes, types, context, vocabulary, tensors; of an adapter, its pairs.
Of a model that gradloom saved: task, inputs, classes, metrics, how it was trained, layers.

The whole head of the file is checked: a damaged file is refused, with the place of the damage.
"""


def info(
    file: Annotated[
        str,
        Argument(
            help="A GGUF file (a model, a vocabulary or an adapter), a Hugging Face folder, or a file of gradloom fit "
            "or gl.save."
        ),
    ],
    tensors: Annotated[bool, Option("--tensors", help="List each tensor, not each kind of layer.")] = False,
    keys: Annotated[bool, Option("--keys", help="List all metadata.")] = False,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..llm.model_file import open_model
    from .info_model import describe_model, is_saved_model

    is_saved = is_saved_model(file)
    if is_saved:
        document = INFO_MODEL
        facts, lines, layers = describe_model(file)
        columns([(name, _short(text, 600)) for name, text in lines])
        print(f"\n{layers}")
    else:
        document, facts = INFO_GGUF, describe(open_model(file))
        columns(_lines(facts))
    if keys:
        print()
        columns([(_short(key, 80), _short(value, 100)) for key, value in facts["metadata"].items()])
    if facts["tensors"] and (tensors or not is_saved):
        print()
        _table(_each(facts["tensors"]) if tensors else _grouped(facts["tensors"]))
    if json:
        print(json_text(document, facts))
    return 0


def describe(file: ModelFile) -> dict[str, Any]:
    """All that info knows, as --json prints it."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture", "")
    facts: dict[str, Any] = {
        "file": str(file.path),
        "version": file.version,
        "bytes": file.size,
        "alignment": file.alignment,
        "kind": str(metadata.get("general.type", "model" if file.tensors else "vocabulary")),
        "architecture": str(architecture),
        "name": str(metadata.get("general.name", "")),
    }
    count = {t.name: math.prod(t.shape) for t in file.tensors.values()}
    types: dict[str, dict[str, int]] = {}
    for t in file.tensors.values():
        mix = types.setdefault(t.kind, {"tensors": 0, "parameters": 0, "bytes": 0})
        mix["tensors"] += 1
        mix["parameters"] += count[t.name]
        mix["bytes"] += t.bytes
    facts["parameters"] = sum(count.values())
    facts["types"] = dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))
    stored = sum(t.bytes for t in file.tensors.values())
    facts["bits_per_weight"] = 8 * stored / facts["parameters"] if count else None
    if facts["kind"] == "adapter":
        facts |= _adapter(file, metadata)
    else:
        facts |= {name: _value(metadata, f"{architecture}.{key}") for name, key in SIZES.items()}
        facts |= {name: _value(metadata, f"tokenizer.{key}") for name, key in VOCABULARY.items()}
        tokens = file.fields.get("tokenizer.ggml.tokens")
        facts["vocabulary"] = tokens.count if tokens is not None and tokens.kind == "array" else None
        for name in ("bos", "eos", "pad"):  # converters write -1, which is 4294967295 in u32, for none
            if isinstance(facts[name], int) and not 0 <= facts[name] < (facts["vocabulary"] or 1 << 31):
                facts[name] = None
        facts["chat_template"] = "tokenizer.chat_template" in metadata
        facts["file_type"] = _file_type(metadata.get("general.file_type"))
        facts["supported"] = _supported(str(architecture))
        facts["tokenizer_problem"] = _tokenizer_problem(file)
    facts |= _uses(file)
    facts["metadata"] = {key: _value(metadata, key) for key in metadata}
    facts["tensors"] = [
        {"name": t.name, "type": t.kind, "shape": list(t.shape), "offset": t.offset, "bytes": t.bytes}
        for t in file.tensors.values()
    ]
    return facts


def _adapter(file: ModelFile, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks are the rows of lora_b, in the file's order: ne[0]."""
    targets = [name.removesuffix(".lora_b") for name in file.tensors if name.endswith(".lora_b")]
    ranks = sorted({n for name in targets for n in file.tensors[f"{name}.lora_b"].shape[-1:]})
    alpha = metadata.get("adapter.lora.alpha")
    return {
        "adapter": str(metadata.get("adapter.type", "")),
        "alpha": alpha if isinstance(alpha, float) else None,
        "ranks": ranks,
        "targets": targets,
    }


def _uses(file: ModelFile) -> dict[str, Any]:
    """Pooling of embeddings and head of a model or an adapter; FileError for damaged ones."""
    from ..llm.embedding import pooling_of, read_embedding
    from ..llm.head import head_of_model

    stored, found = read_embedding(file.metadata, file.path), head_of_model(file)
    facts: dict[str, Any] = {
        "pooling": pooling_of(file.metadata) if stored is None else stored.pooling,
        "widths": [] if stored is None else list(stored.widths),
    }
    if found is not None:
        head = found.head
        facts["head"] = {
            "kind": head.kind, "scores": head.outputs, "labels": list(head.labels), "several": head.several
        }  # fmt: skip
    return facts


def _shown_uses(facts: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if facts["pooling"] not in (None, "rank"):  # which is that of a head
        widths = f", also the first {', '.join(map(str, facts['widths']))} numbers" if facts["widths"] else ""
        lines.append(("embeddings", f"pooling {facts['pooling']}{widths}"))
    if "head" in facts:
        head = facts["head"]
        names = f": {', '.join(head['labels'])}" if head["labels"] else ""
        several = ", several of a text" if head["several"] else ""
        lines.append(("head", _short(f"{head['kind']}{names}{several}", 200)))
    return lines


def _supported(architecture: str) -> bool:
    from ..llm import families

    return architecture in families.names()


def _tokenizer_problem(file: ModelFile) -> str | None:
    """The error of the tokenizer files of a Hugging Face folder; None without one, and for a GGUF file."""
    from ..base.errors import FileError
    from ..llm.hf_folder import HFFolder

    try:
        if isinstance(file, HFFolder):
            file.tokenizer_file.around()
    except FileError as error:
        return str(error)
    return None


def _value(metadata: Mapping[str, Any], key: str) -> Any:
    """A metadata value for JSON; a long array becomes its length and its first items."""
    import numpy as np

    value = metadata.get(key)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and any(isinstance(item, (list, np.ndarray)) for item in value):
        return {"count": len(value), "first": []}  # arrays of arrays: no key that is known has them
    if isinstance(value, list) and len(value) > 64:
        return {"count": len(value), "first": value[:4]}
    return value


def _file_type(value: Any) -> str | None:
    """q4_k_m of 15, as llama.cpp calls a mixture of types."""
    from ..files.gguf_types import FILE_TYPE_NAMES

    if isinstance(value, int) and value in FILE_TYPE_NAMES:
        return FILE_TYPE_NAMES[value]
    return None if value is None else f"unknown ({value!r:.40})"


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    parameters = facts["parameters"]
    kind = f"GGUF version {facts['version']}" if facts["version"] else "Hugging Face folder"
    lines = [("file", f"{facts['file']}: {kind}, {facts['bytes']:,} bytes")]
    named = f", {_short(facts['name'], 60)}" if facts["name"] else ""
    lines.append((_short(facts["kind"], 20), f"{_short(facts['architecture'], 40) or 'of no architecture'}{named}"))
    if parameters:
        bits = facts["bits_per_weight"]
        lines.append(("parameters", f"{parameters:,}, {bits:.2f} bits each"))
        mix = (f"{t} {m['bytes']:,} bytes in {plural(m['tensors'], 'tensor')}" for t, m in facts["types"].items())
        lines.append(("types", "; ".join(mix)))
    if facts["kind"] == "adapter":
        ranks = "/".join(map(str, facts["ranks"])) or "none"
        scale = "1" if not facts["alpha"] else f"{facts['alpha']:g} / rank"
        pairs = plural(len(facts["targets"]), "pair")
        lines.append(
            ("low rank", f"{_short(facts['adapter'], 40) or 'of no type'}, rank {ranks}, scale {scale}, {pairs}")
        )
        return [*lines, *_shown_uses(facts)]
    if facts["file_type"]:
        lines.append(("file type", _short(facts["file_type"], 60)))
    sizes = [
        ("layers", "layers {}"), ("width", "width {}"), ("heads", "heads {}"), ("kv_heads", "key-value heads {}"),
        ("ffn_width", "feed-forward {}"),
    ]  # fmt: skip
    rope = [("rope_base", "base {}"), ("rope_dims", "{} dimensions"), ("rope_scaling", "scaling {}")]
    vocabulary = [("vocabulary", "{} pieces"), ("tokenizer", "model {}"), ("pre_tokenizer", "split as {}")]
    vocabulary += [("bos", "begin {}"), ("eos", "end {}"), ("pad", "padding {}")]
    for title, parts in (
        ("sizes", sizes),
        ("context", [("context_length", "{}")]),
        ("rope", [*rope, ("rope_factor", "factor {}")]),
        ("vocabulary", vocabulary),
    ):
        ids = {f"tokenizer.{VOCABULARY[name]}": name for name in ("bos", "eos", "pad")}
        unset = {name for key, name in ids.items() if key in facts["metadata"] and facts[name] is None}
        shown = [
            text.format("none" if name in unset else _short(facts[name], 40))
            for name, text in parts
            if facts[name] is not None or name in unset
        ]
        if title == "vocabulary" and shown:
            shown.append("chat template" if facts["chat_template"] else "no chat template")
        if shown:
            lines.append((title, ", ".join(shown)))
    lines += _shown_uses(facts)
    if facts["kind"] == "model" and not facts["supported"]:
        lines.append(("note", "gradloom does not run this architecture"))
    if facts["tokenizer_problem"]:
        lines.append(("note", f"the tokenizer is not supported: {facts['tokenizer_problem']}"))
    return lines


def _short(value: Any, most: int) -> str:
    """One line of at most `most` characters, without control characters."""
    text = f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else text[: most - 3] + "..."


def _each(tensors: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (t["name"], t["type"], str(t["shape"]), f"{t['bytes']:,}", f"at {t['offset']:,}" if "offset" in t else "")
        for t in tensors
    ]


def _grouped(tensors: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row for the equal tensors of several blocks."""
    groups: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for t in tensors:
        head, block, rest = (*t["name"].split(".", 2), "", "")[:3]
        numbered = head == "blk" and block.isdecimal()
        name = f"blk.*.{rest}" if numbered else t["name"]
        groups.setdefault((name, t["type"], str(t["shape"])), []).append((int(block) if numbered else -1, t["bytes"]))
    rows: list[tuple[str, ...]] = []
    for (name, kind, shape), members in groups.items():
        blocks = [block for block, _ in members]
        if blocks[0] >= 0:
            name = name.replace("*", _ranges(sorted(blocks)), 1)
        total = sum(size for _, size in members)
        rows.append((name, kind, shape, f"{total:,}", f"x {len(members)}" if len(members) > 1 else ""))
    return rows


def _ranges(numbers: list[int]) -> str:
    """0-3,5 of 0 1 2 3 5."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)


def _table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they need to be; bytes to the right."""
    head = ("tensor", "type", "shape", "bytes", "")
    rows = [(_short(row[0], 80), *row[1:]) for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
    for row in [head, *rows]:
        cells = [
            cell.rjust(w) if i == 3 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
