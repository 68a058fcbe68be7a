"""Pages of the site's reference: every public name with its signature and docstring, as Markdown for Sphinx.

python docs/reference.py FOLDER     writes a page for each namespace; docs/conf.py does so before a build

docs/names/ has an example for each name: files SPACE-PART.md (gl.ops-math.md) with a section "## name" for each, whose
blocks tests/docs/test_pages.py executes.

A docstring is plain text: paragraphs, tables of arguments ("name    text", continued by deeper lines), and indented
code. Names in backticks stay; everything else is escaped.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gradloom as gl
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.ops import shape_pictures
from gradloom.ops.table import attribute_text, gradient_text

NAMES = Path(__file__).parent / "names"

# Names of `gl` itself by subject, in the order of the page.
SECTIONS = {
    "Training": "fit evaluate predict epoch Trainer EpochResult Result set_loss seed",
    "Saving and reports": "save load save_gguf load_gguf report stats",
    "Other libraries": "from_dlpack export_onnx import_onnx",
    "Ops of your own": "op",
    "Graphs": (
        "Graph Value Node input parameter constant setting scope named gradients Gradients compile check_gradients "
        "compare capsule replay"
    ),
    "Eager tensors": "tensor Tensor Parameter grad_tape no_grad",
    "Devices and processes": "device devices Device dp_train DPResult",
    "Errors": (
        "GradloomError ShapeError DTypeError GraphError GradientError PlanError SettingError DataError FileError "
        "TrainError NonFiniteError UserOpError BackendError DeviceLost DeviceMemoryError"
    ),
}

TITLES = {
    "data": "Data",
    "llm": "Language models",
    "losses": "Losses",
    "metrics": "Metrics",
    "nn": "Layers",
    "ops": "Ops",
    "optim": "Optimisers and schedules",
    "parallel": "Several processes",
    "sklearn": "scikit-learn estimators",
    "train": "Loops, callbacks and metrics of a training",
}


def namespaces() -> dict[str, dict[str, list[str]]]:
    """Namespace ("gl", "gl.nn") -> section -> public names: the contents of the reference."""
    found = {"gl": {title: names.split() for title, names in SECTIONS.items()}}
    for name in gl.__all__:
        value = getattr(gl, name)
        if isinstance(value, ModuleType):
            found[f"gl.{name}"] = dict(_kinds(value))
    return found


@functools.cache
def examples(space: str) -> dict[str, str]:
    """Name -> Markdown of its example: the blocks of its section in docs/names/."""
    found = {}
    for page in sorted(NAMES.glob("*.md")):
        if page.stem.partition("-")[0] != space:
            continue
        for part in re.split(r"^## ", page.read_text(), flags=re.M)[1:]:
            name, _, body = part.partition("\n")
            found[name.strip()] = re.sub(r"^<!-- .*?-->\n", "", body, flags=re.M | re.S).strip()
    return found


def _kinds(module: ModuleType) -> Iterator[tuple[str, list[str]]]:
    names = sorted(module.__all__, key=str.lower)
    classes = [name for name in names if isinstance(getattr(module, name), type)]
    if classes:
        yield "Classes", classes
    if len(classes) < len(names):
        yield "Functions", [name for name in names if name not in classes]


def pages() -> dict[str, str]:
    """File name -> Markdown of all namespaces."""
    made = {}
    for space, sections in namespaces().items():
        owner = gl if space == "gl" else getattr(gl, space.removeprefix("gl."))
        title = f"{TITLES[space.removeprefix('gl.')]}: `{space}`" if space != "gl" else "`gradloom as gl`"
        parts = [f"# {title}", _markdown(inspect.getdoc(owner) or "") if space != "gl" else HEAD]
        if space == "gl.ops":
            parts.append(shape_pictures.STYLE)
        for section, names in sections.items():
            parts += [f"## {section}", *(_entry(space, name, getattr(owner, name)) for name in names)]
        made[f"{space}.md"] = "\n\n".join(parts) + "\n"
    made["every_op.md"] = every_op()
    return {"index.md": INDEX % "\n".join(name.removesuffix(".md") for name in made), **made}


HEAD = """All examples `import gradloom as gl`. The namespaces `gl.data`, `gl.llm`, `gl.losses`, `gl.metrics`, `gl.nn`,
`gl.ops`, `gl.optim`, `gl.parallel`, `gl.sklearn` and `gl.train` have pages of their own."""


INDEX = """# Reference

Every public name, from its docstring. Layers have [a page with all arguments](../layers.md), the ops of the registry
[a page with pictures of their shapes](every_op.md) and [a table](../ops.md), commands [a page](../command.md) and
[options](../options.md).

```{toctree}
:maxdepth: 1

%s
```
"""


OPS_HEAD = """# Every op, with its shapes

The ops of the registry by family, backward and update ops included: formula, attributes, gradient and shapes. The
shapes are those of a sample that the tests run: axes with the same letter have the same length, and the lengths of the
sample are below. A dashed box stands for any shape, and "&#8230;" for further groups of the same inputs.
[The table of ops](../ops.md) also lists what may be computed in place and what `precision="bf16"` rounds;
[`gl.ops`](gl.ops.md) has the functions with all their arguments."""


def every_op() -> str:
    """The page of all ops of the registry."""
    families: dict[str, list[OpSpec]] = {}
    for op in REGISTRY.values():
        families.setdefault(op.family, []).append(op)
    parts = [OPS_HEAD, shape_pictures.STYLE]
    for family, ops in families.items():
        parts.append(f"## {family}")
        for op in ops:
            parts += [f"### {op.name}", _markdown(op.doc), _facts(op)]
    return "\n\n".join(parts) + "\n"


def _facts(op: OpSpec) -> str:
    """Attributes, gradient and picture of an op."""
    attributes = [f"- attributes: `{', '.join(map(attribute_text, op.attrs))}`"] if op.attrs else []
    return "\n".join([*attributes, f"- gradient: {_escaped(gradient_text(op))}", "", shape_pictures.picture(op)])


def _entry(space: str, name: str, value: Any) -> str:
    """A class or function as a directive of Sphinx's Python domain, so that search and index find it."""
    example = examples(space).get(name, "")
    if isinstance(value, type):
        return _directive("class", f"{space}.{name}{_signature(value)}", _class_body(value, example))
    if isinstance(value, OpSpec):
        return _directive(
            "function",
            f"{space}.{name}({', '.join(_op_arguments(value))})",
            f"{_markdown(value.doc)}\n\n{_facts(value)}\n\n{example}",
        )
    if callable(value):
        body = _markdown(inspect.getdoc(value) or "")
        if space == "gl.ops" and name in REGISTRY:
            body += (
                f"\n\nThe op `{name}`: {_escaped(REGISTRY[name].doc.partition(chr(10))[0])}\n\n{_facts(REGISTRY[name])}"
            )
        return _directive("function", f"{space}.{name}{_signature(value)}", f"{body}\n\n{example}")
    return _directive("data", f"{space}.{name}", f"{_markdown(inspect.getdoc(value) or str(value))}\n\n{example}")


def _op_arguments(op: OpSpec) -> list[str]:
    inputs = [f"{name.rstrip('?')}=None" if name.endswith("?") else name for name in op.input_names]
    required = [a.name for a in op.attrs if a.default is inspect.Parameter.empty]
    return inputs + required + [f"{a.name}={a.default!r}" for a in op.attrs if a.name not in required]


def _class_body(value: type, example: str) -> str:
    parts = [_markdown(inspect.getdoc(value) or ""), example]
    for name, member in sorted(vars(value).items()):
        if name.startswith("_") or not inspect.getdoc(member) or getattr(member, "__doc__", None) is None:
            continue
        if isinstance(member, property):
            parts.append(_directive("property", name, _markdown(inspect.getdoc(member) or "")))
        elif isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
            shown = _signature(getattr(value, name))
            parts.append(_directive("method", f"{name}{shown}", _markdown(inspect.getdoc(member) or "")))
    return "\n\n".join(parts)


def _directive(kind: str, line: str, body: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`{3,}", body)), default=0))
    return f"{fence}{{py:{kind}}} {line}\n\n{body}\n{fence}"


def _signature(value: Any) -> str:
    """Names and defaults without types, which docstrings state in words."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    parameters = []
    for p in signature.parameters.values():
        if p.name == "self":
            continue
        default = p.default
        if default is not inspect.Parameter.empty and not re.fullmatch(r"[\w.+\-'\"() ,\[\]{}:]*", repr(default)):
            default = _Shown(getattr(default, "__name__", "..."))
        parameters.append(p.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(parameters))


class _Shown:
    """A default whose repr is a name."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


# ---- docstrings ------------------------------------------------------------------------------------------------------

_ROW = re.compile(r"( *)(\S(?:(?! {2}).)*?) {2,}(\S.*)$")  # name, two spaces or more, text


def _markdown(text: str) -> str:
    """Markdown of a docstring: paragraphs, tables of arguments as lists, indented lines as code."""
    first, _, rest = text.partition("\n")
    text = f"{first}\n{_dedented(rest)}"
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip())


def _dedented(text: str) -> str:
    """Without the indentation of the first paragraph after the first line, which ops keep in their docs."""
    lines = [line for line in text.splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return text if indent > 4 else "\n".join(line[indent:] for line in text.splitlines())


def _block(block: str) -> str:
    lines = block.splitlines()
    table = _table(lines)
    if table is not None:
        return "\n".join(f"- `{name}`: {_escaped(text)}" for name, text in table)
    if all(line.startswith("    ") for line in lines):
        return "```\n" + "\n".join(line[4:] for line in lines) + "\n```"
    return _escaped(" ".join(line.strip() for line in lines))


def _table(lines: list[str]) -> list[tuple[str, str]] | None:
    """(name, text) of each row of a table of arguments; None for other blocks."""
    first = _ROW.match(lines[0])
    if first is None:
        return None
    rows: list[tuple[str, str]] = []
    for line in lines:
        row = _ROW.match(line)
        if row and row[1] == first[1] and not re.search(r"[(){}\[\]]", row[2]):
            rows.append((row[2], row[3]))
        elif line.startswith(first[1] + "  "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return None
    return rows


def _escaped(text: str) -> str:
    """Text in which Markdown sees no markup, but for names in backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        p if p.startswith("`") and len(p) > 1 else re.sub(r"([\\*_\[\]<>|#`$~{}])", r"\\\1", p) for p in parts
    )


def write(folder: Path) -> None:
    """Write the pages that differ from those in the folder, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = pages()
    for name, text in contents.items():
        page = folder / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
    for page in folder.glob("*.md"):
        if page.name not in contents:
            page.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
