"""Data sets, loaders, and readers of CSV, .npz and idx files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from ..base.native import core_error

try:
    from .. import _cells  # noqa: F401 - the reader of tables
except ImportError as error:
    raise core_error("_cells", error) from error

from .dataset import Batch, Dataset, split_rows
from .encoding.preprocess import Preprocess
from .loader import DataLoader
from .table import Table, read_features, read_table

__all__ = ["Batch", "DataLoader", "Dataset", "Preprocess", "Table", "read_features", "read_table", "split_rows"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
