"""The communicator that `parallel=` names: this process alone, or the ranks that mpiexec started."""

from __future__ import annotations

from ..base.errors import SettingError
from ..base.training_options import TIMEOUT
from .communicator import Alone, Communicator, checked_timeout

_joined: Communicator | None = None  # this process among those of mpiexec, from its first call on


def communicator(parallel: str | Communicator | None = None, timeout: float = TIMEOUT) -> Communicator:
    """None or "none": this process alone; "mpi": the ranks of mpiexec; a Communicator: itself."""
    global _joined
    if isinstance(parallel, Communicator):
        return parallel
    if parallel is None or parallel == "none":
        return Alone(timeout)
    if parallel == "mpi":
        if _joined is None:
            from .mpi import MpiRank

            _joined = MpiRank(timeout)
        _joined.timeout = checked_timeout(timeout)
        return _joined
    raise SettingError(setting="parallel", seen=parallel, need="None, 'none', 'mpi' or a Communicator")


def ranks_of(
    who: str, parallel: str | Communicator | None, timeout: float, exchange: str = "ordered"
) -> Communicator | None:
    """The communicator that `who` was asked to split its batches over, None for this process alone; SettingError for
    settings of several processes without them."""
    if parallel is not None:
        return communicator(parallel, timeout)
    for name, value, default in (("exchange", exchange, "ordered"), ("timeout", timeout, TIMEOUT)):
        if value != default:
            raise SettingError(f"{{{name}}} requires {{parallel}}", {name: value, "parallel": "mpi"}, place=who)
    return None


def is_writer() -> bool:
    """Whether this process writes files: not if it trains together with others of mpiexec and is not rank 0."""
    return _joined is None or _joined.is_root
