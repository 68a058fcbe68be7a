"""Data sets, loaders, and readers of CSV, .npz and idx files."""

from .dataset import Batch, DataLoader, Dataset, split_rows

__all__ = ["Batch", "DataLoader", "Dataset", "split_rows"]
