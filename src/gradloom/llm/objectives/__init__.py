"""Objectives of fine-tuning. Each is declared in one file."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from importlib import import_module
from typing import Any

from ...base.arguments import what_is
from ...base.errors import SettingError
from ...base.finetune_options import ObjectiveOptions
from ...base.options import options_of
from ..forms import Form
from ..objective import Objective


@functools.cache
def declared() -> dict[str, type[Objective]]:
    """Name -> objective, sorted."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f".{name}", __name__).OBJECTIVE for name in names}


def _check_own(objective: Objective) -> None:
    """SettingError for an objective without a form of its own or without a loss."""
    name, form = type(objective).__name__, objective.form
    if not isinstance(form, Form):
        text = f"finetune: {{objective}}: {name}.form is {what_is(form)}; need a gl.llm.Form"
        raise SettingError(text, setting="objective")
    plain = type(objective).pair is Objective.pair  # with the loss of each sample
    if plain and form.kind == "texts":
        need = "gl.llm.Form('preferences', parts=2) or 'judged'"
        raise SettingError(f"finetune: {{objective}}: {name}.form is that of texts; need {need}", setting="objective")
    if plain and type(objective).loss is Objective.loss:
        raise SettingError(f"finetune: {{objective}}: {name} has no loss; need loss(self, parts)", setting="objective")


def settings_of(kind: Any) -> set[str]:
    """The names of the settings of an objective."""
    return {field.name for field in dataclasses.fields(kind)}


def objective_of(options: ObjectiveOptions) -> Objective:
    """The objective that these options name, with its settings; SettingError for one that it does not have."""
    named = options.objective
    given = {name: getattr(options, name) for name in options_of(ObjectiveOptions) if name != "objective"}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(named, Objective):
        for name, value in given.items():
            text = f"{{{name}}} cannot be combined with an Objective as {{objective}}; use a field of it"
            raise SettingError(text, {name: value, "objective": ...}, place="finetune")
        _check_own(named)
        return named
    known = declared()
    if not isinstance(named, str) or named not in known:
        shown = repr(named) if isinstance(named, str) else what_is(named)
        need = f"{', '.join(known)}, or a gl.llm.Objective"
        raise SettingError(f"finetune: {{objective}} is {shown}; need {need}", objective=named)
    kind = known[named]
    for name, value in given.items():
        if name not in settings_of(kind):
            others = " or ".join(n for n, one in known.items() if name in settings_of(one))
            text = f"{{{name}}} requires {{objective}} {others}, not {named}"
            raise SettingError(text, {name: value, "objective": ...}, place="finetune")
    values: Any = given
    return kind(**values)
