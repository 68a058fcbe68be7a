"""Data sets, loaders, image folders, and readers of CSV, .npz and idx files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from ..base.native import core_error

try:
    from .. import _cells  # noqa: F401 - the reader of tables
except ImportError as error:
    raise core_error("_cells", error) from error

from . import transforms
from .dataset import Batch, Dataset, Draw, split_rows
from .encoding.preprocess import Preprocess
from .fetched import MapDataset
from .file_rows import open_dataset
from .images import ImageFolder
from .loader import DataLoader
from .table import Table, read_features, read_table

__all__ = [
    "Batch", "DataLoader", "Dataset", "Draw", "ImageFolder", "MapDataset", "Preprocess", "Table", "open_dataset",
    "read_features", "read_table", "split_rows", "transforms",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
