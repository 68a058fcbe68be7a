"""Parameter groups: settings of an optimiser for the parameters whose names match a pattern.

    groups=[{"match": "*.bias", "weight_decay": 0.0}, {"match": "head.*", "lr": schedule}]

A group is an update rule of its own. Of its settings, those that it states are in the optimiser's table, called after
its patterns ("head.*.lr"); the others it reads from the optimiser. A step has one update node for each rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..base.arguments import nearest, what_is
from ..base.errors import SettingError
from ..base.patterns import as_patterns, matched
from .rule import UpdateRule

GroupSettings = Mapping[str, Any]

WORDS = {"norms_and_biases": lambda shape: len(shape) <= 1, "not_2d": lambda shape: len(shape) != 2}
"""Words that select parameters by their shape (of a stack: by that of each array): norms_and_biases those of at most
one axis (biases, gains of norms), but not embeddings; not_2d all but matrices."""


class ParameterGroup:
    """Parameters whose names match: `rule` updates them, and `undecayed` those of them that no_decay names."""

    def __init__(self, match: tuple[str, ...], rule: UpdateRule, undecayed: UpdateRule | None) -> None:
        self.match, self.rule, self.undecayed = match, rule, undecayed

    def holds(self, name: str, shape: tuple[int, ...]) -> bool:
        return any(WORDS[m](shape) if m in WORDS else fnmatchcase(name, m) for m in self.match)

    def rule_for(self, shape: tuple[int, ...]) -> UpdateRule:
        return self.undecayed if self.undecayed is not None and WORDS["norms_and_biases"](shape) else self.rule


class Groups:
    """The groups of an optimiser, the first that matches first; the last holds whatever is left."""

    def __init__(self, base: UpdateRule, arguments: Mapping[str, Any], groups: Any, no_decay: Any) -> None:
        who = type(base).__name__
        if no_decay not in ("", "norms_and_biases"):
            need = "norms_and_biases, or groups= for others"
            raise SettingError(setting="no_decay", seen=no_decay, need=need, place=who)
        if isinstance(groups, (str, Mapping)) or not isinstance(groups, Sequence):
            text = f"{{groups}} is {what_is(groups)}; must be a list of dicts"
            raise SettingError(text, setting="groups", place=who)
        self._base, self._decays = base, not no_decay
        self._arguments = arguments
        self.stated = [self._stated(i, one) for i, one in enumerate(groups)]
        rest = None if self._decays else self._derived(base, self._arguments, {"weight_decay": 0.0}, None)
        self.all = [*self.stated, ParameterGroup((), base, rest)]
        for i, one in enumerate(self.stated):
            if any(one.match == other.match for other in self.stated[:i]):
                text = f"{{groups}}[{i}]: an earlier group has the same patterns; use one group for them"
                raise SettingError(text, setting="groups", place=who)

    def _stated(self, i: int, given: Any) -> ParameterGroup:
        name = type(self._base).__name__
        who = f"{name}: groups[{i}]"
        if not isinstance(given, Mapping) or "match" not in given:
            keys = ", ".join(map(str, given)) if isinstance(given, Mapping) else ""
            seen = f"a dict with {keys or 'no key'}" if isinstance(given, Mapping) else what_is(given)
            text = f'{{groups}}[{i}] is {seen}; must be a dict such as {{"match": "*.bias", "weight_decay": 0.0}}'
            raise SettingError(text, setting="groups", place=name)
        match = as_patterns("match", given["match"], who)
        own = {k: v for k, v in given.items() if k != "match"}
        if not match or not own:
            lacks = "pattern" if not match else "setting"
            text = f"{{groups}}[{i}] must have a {lacks}, such as {'*.bias' if not match else 'lr'}"
            raise SettingError(text, setting="groups", place=name)
        name = ",".join(match)
        if "optimizer" in own:
            return ParameterGroup(match, self._other(who, name, own), None)
        self._check_known(who, own)
        rule = self._derived(self._base, self._arguments, own, name)
        undecayed = None
        if not self._decays and "weight_decay" not in own:
            undecayed = self._derived(rule, {**self._arguments, **own}, {"weight_decay": 0.0}, None)
        return ParameterGroup(match, rule, undecayed)

    def _check_known(self, who: str, own: Mapping[str, Any]) -> None:
        known = list(self._base.declared)
        for key in own:
            if key not in known:
                hint = nearest(key, known, f"must be one of match, optimizer, {', '.join(known)}")
                raise SettingError(f"{who}: {key} is not a setting of {type(self._base).__name__}{hint}")

    def _other(self, who: str, name: str, own: Mapping[str, Any]) -> UpdateRule:
        """The rule of a group with an optimiser of its own."""
        optimizer = own["optimizer"]
        if not isinstance(optimizer, UpdateRule) or getattr(optimizer, "state", None) is not None:
            text = f"{{optimizer}} is {what_is(optimizer)}; must be one without parameters, such as AdamW(lr=1e-3)"
            raise SettingError(text, setting="optimizer", place=who)
        if len(own) > 1 or optimizer.placing:
            text = "{optimizer} cannot be combined with other settings, or with groups of its own"
            raise SettingError(text, setting="optimizer", place=who)
        rule = type(optimizer)(**optimizer.arguments)
        rule.take_part(self._base.settings, {s: f"{name}.{s}" for s in rule.names}, dict(optimizer.settings))
        return rule

    @staticmethod
    def _derived(
        base: UpdateRule, arguments: Mapping[str, Any], own: Mapping[str, Any], name: str | None
    ) -> UpdateRule:
        """The base with some arguments of its own; without a name its own settings are constants."""
        rule = type(base)(**{**arguments, **own})
        stated = {k: v for k, v in own.items() if k in rule.names}
        keys = dict(base.keys)
        keys |= {k: "" if name is None else f"{name}.{k}" for k in stated}
        rule.take_part(base.settings, keys, stated if name is not None else {})
        return rule

    # ---- which parameters ----------------------------------------------------------------------------------

    def rule_of(self, name: str, shape: tuple[int, ...]) -> UpdateRule:
        """The rule that updates a parameter of this name."""
        group = next(g for g in self.all if g is self.all[-1] or g.holds(name, shape))
        return group.rule_for(shape)

    def check(self, named: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """SettingError for a pattern or a word that matches none of all parameters, for a group that gets none of them,
        and for an optimiser whose settings no parameter reads. Shapes: those of each array of a stack."""
        named = list(named)
        name, taken = type(self._base).__name__, set[str]()
        for i, group in enumerate(self.stated):
            patterns = [m for m in group.match if m not in WORDS]
            matched("groups", patterns, [one for one, _ in named], f"[{i}]", name)
            for word in (m for m in group.match if m in WORDS):
                _need_match("groups", word, named, f"[{i}]", name)
            held = {one for one, shape in named if group.holds(one, shape)}
            if held <= taken:
                text = f"{{groups}}[{i}]: earlier groups have all that {group.match} matches; change the order"
                raise SettingError(text, setting="groups", place=name)
            taken |= held
        if not self._decays:
            _need_match("no_decay", "norms_and_biases", named, place=name)
        if named and not any(self._reads_base(self.rule_of(*one)) for one in named):
            used = sorted({type(self.rule_of(*one)).__name__ for one in named})
            text = (
                f"{{groups}} give every parameter to {', '.join(used)}, so its own settings have no effect; "
                f"use gl.optim.{used[0]} instead, or narrower patterns"
            )
            raise SettingError(text, setting="groups", place=name)

    def _reads_base(self, rule: UpdateRule) -> bool:
        """Whether a rule reads a setting that is the optimiser's own."""
        return any(rule.keys.get(name, name) in self._base.names for name in rule.names)

    @property
    def rules(self) -> list[UpdateRule]:
        """All rules, the optimiser first."""
        groups = [self.all[-1], *self.stated]
        return [rule for g in groups for rule in (g.rule, g.undecayed) if rule is not None]


def _need_match(
    setting: str, word: str, named: Iterable[tuple[str, tuple[int, ...]]], part: str = "", place: str = ""
) -> None:
    """SettingError unless the word matches one of these parameters."""
    if not any(WORDS[word](shape) for _, shape in named):
        raise SettingError(f"{{{setting}}}{part}: {word!r} matches no parameter; omit it", setting=setting, place=place)
