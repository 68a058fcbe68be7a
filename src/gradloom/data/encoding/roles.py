"""Roles of columns that the user sets: dropped, categorical, numeric, time, weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base.errors import DataError, SettingError
from ..reading.columns import Columns


@dataclass(frozen=True)
class Roles:
    """Columns by name (or by number, where a table has no header).

    drop         are not used                          categorical  are texts, whatever they hold
    time         orders the rows; its dates are split  numeric      are numbers: a text there is an error
    weight       how much each row weighs in training
    """

    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    time: str | None = None
    weight: str | None = None

    def __bool__(self) -> bool:
        return bool(self.drop or self.categorical or self.numeric or self.time or self.weight)

    def named(self) -> str:
        """The options that are given, for messages."""
        return " and ".join(
            _flag(name) for name in ("drop", "categorical", "numeric", "time", "weight") if getattr(self, name)
        )

    def of(self, data: Columns, target: int) -> dict[int, str]:
        """{index of a column: its role}; DataError for a column that is not there, SettingError for two roles."""
        named = [(role, name) for role in ("drop", "categorical", "numeric") for name in getattr(self, role)]
        named += [(role, name) for role in ("time", "weight") if (name := getattr(self, role)) is not None]
        found: dict[int, str] = {}
        for role, name in named:
            try:
                index = data.find(name)
            except DataError as error:
                raise DataError(f"{error}; see {_flag(role)}") from None
            other = "target" if index == target else found.get(index, role)
            if other != role:
                raise SettingError(f"{_flag(role)}: {name!r:.60} is the {_WORDS[other]}, too; need one of both")
            found[index] = role
        return found


_WORDS = {
    "target": "target", "drop": "column to drop", "categorical": "column of categories", "numeric": "column of numbers",
    "time": "column of times", "weight": "column of weights",
}  # fmt: skip


def _flag(role: str) -> str:
    return "weight_column (--weight-column)" if role == "weight" else f"{role} (--{role})"
