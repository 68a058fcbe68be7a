"""Modules as text: the tree that print(net) shows, and the table of net.summary()."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ..base.html import html_table, html_text
from ..base.memory import show_bytes
from ..base.terminal import in_one_line, printable
from ..graph.leaves import Parameter
from ..graph.value import describe


class Shown:
    """The text form of a module."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor that would make this layer as it is now; empty for a class without any, or
        that does not report them."""
        return {}

    def summary(self) -> str:
        """A table in text: each layer with its arguments, its arrays, and how many numbers they hold."""
        return summary(self)

    def __repr__(self) -> str:
        return tree(self)

    def _repr_html_(self) -> str:
        lines = [(path, layer, arrays, f"{count:,}" if count else "") for path, layer, arrays, count in rows(self)]
        return html_table(COLUMNS, lines) + html_text(total(self))


COLUMNS = ("name", "layer", "arrays", "numbers")


def heading(module: Any) -> str:
    """The layer with its arguments, without those that are the constructor's defaults: Linear(n_in=4, n_out=3)."""
    known = inspect.signature(type(module).__init__).parameters
    shown = []
    for name, value in arguments_of(module).items():
        default = known[name].default if name in known else inspect.Parameter.empty
        is_left_out = value is None and default is not inspect.Parameter.empty  # as in a description
        if not is_left_out and (default is inspect.Parameter.empty or value != default):
            shown.append(f"{name}={value!r}")
    return f"{type(module).__name__}({', '.join(shown)})"


def arguments_of(module: Any) -> dict[str, Any]:
    """Its arguments; empty for a layer that is not built yet, or whose attributes were replaced."""
    try:
        return dict(module.arguments())
    except (AttributeError, TypeError, ValueError):
        return {}


def tree(module: Any) -> str:
    """The module and all below it, one line each; a module at a second place is named by its first."""
    try:
        return printable("\n".join(_tree(module, {}, "")))
    except RecursionError:
        return f"{type(module).__name__}(... nested too deeply to show)"


def _tree(module: Any, places: dict[Any, str], path: str) -> Iterator[str]:
    places[module] = path or "the whole"
    is_complete = bool(arguments_of(module)) and type(module).__module__.startswith("gradloom.")
    inside = []
    if not is_complete:
        own = own_parameters(module)
        inside = [f"({name}): {describe(p)}{'' if p.trainable else ', buffer'}" for name, p in own]
    for name, child in module.children():
        if is_complete and not name.isdecimal():  # of the layer's own making, as its arrays are
            continue
        if child in places:
            inside.append(f"({name}): the same as ({places[child]})")
        else:
            first, *rest = _tree(child, places, f"{path}.{name}".lstrip("."))
            inside += [f"({name}): {first}", *rest]
    title = heading(module)
    if not inside:
        yield title
    else:
        yield title.removesuffix(")")
        yield from (f"  {line}" for line in inside)
        yield ")"


def own_parameters(module: Any) -> list[tuple[str, Parameter]]:
    """(attribute, parameter or buffer) of a module itself."""
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Parameter)]


def rows(module: Any) -> list[tuple[str, str, str, int]]:
    """(path, layer, arrays, numbers in them) of each module that holds arrays or holds no other module."""
    found: list[tuple[str, str, str, int]] = []
    paths = {p.stored: name for name, p, _ in module.named_stored()}
    seen: set[Any] = set()

    todo = [(module, "")]
    while todo:
        one, path = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        arrays = [(name, p) for name, p in own_parameters(one) if paths.get(p.stored) == f"{path}.{name}".lstrip(".")]
        children = list(one.children())
        if arrays or not children:
            text = ", ".join(f"{name} {describe(p)}{'' if p.trainable else ' buffer'}" for name, p in arrays)
            found.append((path or "-", heading(one), text, sum(p.size for _, p in arrays)))
        todo += [(child, f"{path}.{name}".lstrip(".")) for name, child in reversed(children)]
    return found


def summary(module: Any) -> str:
    """A line for each layer with its arrays, and their sums."""
    table = [COLUMNS]
    for path, layer, arrays, size in rows(module):
        table.append((in_one_line(path), in_one_line(layer), in_one_line(arrays), f"{size:,}" if size else ""))
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    lines = []
    for *texts, count in table:
        cells = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        lines.append("  ".join([*cells, count.rjust(widths[3])]).rstrip())
    return "\n".join([*lines, total(module)])


def total(module: Any) -> str:
    """How many numbers are trained, how many are not, and their bytes."""
    trained, others = module.named_parameters().values(), module.named_buffers().values()
    frozen = sum(p.size for p in others)
    size = sum(p.stored.bytes for p in [*trained, *others])
    more = f", {frozen:,} numbers in buffers" * bool(frozen)
    return f"{sum(p.size for p in trained):,} parameters{more}, {show_bytes(size)}"
