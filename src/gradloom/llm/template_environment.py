"""jinja2's sandbox with what templates written for Hugging Face's library expect; part of the process of
template_worker.py."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any, NoReturn


class Refused(Exception):
    """raise_exception of a template."""


def sandbox(now: datetime.datetime, begin: str, end: str) -> Any:
    """An environment of jinja2. now: the moment that strftime_now returns. begin, end: written around {% generation %}
    blocks."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: what the assistant writes."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{begin}{caller()}{end}"

    def raise_exception(message: object) -> NoReturn:
        raise Refused(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own filter writes HTML

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(
            ("*", "**")
        )  # else computed when a template is compiled, also in what never runs

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": now.strftime}
    return environment
