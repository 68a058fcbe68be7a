"""Ranks that train one model together, threads or processes: who I am, and sums that come out equal everywhere."""

from .communicator import Communicator, Reduction, checksum, communicator, launched, threads
from .flat import FlatArrays

__all__ = ["Communicator", "FlatArrays", "Reduction", "checksum", "communicator", "launched", "threads"]
