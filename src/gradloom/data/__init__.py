"""Data sets, loaders, and readers of CSV, .npz and idx files."""

from .dataset import Batch, Dataset, split_rows
from .loader import DataLoader
from .preprocess import Preprocess
from .readers import Table, read_features, read_table

__all__ = ["Batch", "DataLoader", "Dataset", "Preprocess", "Table", "read_features", "read_table", "split_rows"]
