"""Ranks that train one model together, threads or processes: who I am, and sums that come out equal everywhere."""

from .communicator import Communicator, Reduction, checksum, launched
from .flat import FlatArrays
from .join import communicator
from .replicas import threads

__all__ = ["Communicator", "FlatArrays", "Reduction", "checksum", "communicator", "launched", "threads"]
