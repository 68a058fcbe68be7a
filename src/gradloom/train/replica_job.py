"""ReplicaJob: what all replicas of dp_train are asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.settings import switches
from ..optim.optimizer import Optimizer
from ..run.backend import device_of_rank
from ..run.cpu_backend import isa_of
from ..runs.identity import optimizer_of
from ..runs.state import shown
from .samples import Leaves, as_sample, flatten


@dataclass(frozen=True)
class ReplicaJob:
    """What all replicas know."""

    samples: Sequence[Any]
    count: int
    loss_fn: Callable[..., Any]
    forward_fn: Callable[..., Any] | None
    target_fn: Callable[..., Any] | None
    iterations: int
    optimizer: Optimizer
    max_norm: float
    max_value: float
    shuffle: bool
    seed: int
    exchange: str
    verbose: bool
    ema: float
    skips: bool
    devices: str | tuple[str, ...]  # of all replicas, or of each
    options: dict[str, Any]

    def device_of(self, rank: int) -> str:
        """Where a replica computes."""
        return device_of_rank(self.devices, rank) if isinstance(self.devices, str) else self.devices[rank]

    @property
    def places(self) -> list[str]:
        """Where replicas compute, each device once."""
        return [self.devices] if isinstance(self.devices, str) else list(dict.fromkeys(self.devices))

    def settings(self) -> str:
        """What must be the same everywhere, as text."""
        chosen = switches(**self.options)
        rates = [(k, v(0, 0) if callable(v) else v) for k, v in sorted(self.optimizer.settings.items())]
        return repr((
            self.count, self.iterations, type(self.optimizer).__name__, rates, self.max_norm, self.max_value,
            self.shuffle, self.seed, self.exchange, isa_of(self.places, chosen.isa), chosen.precision, chosen.flush,
            self.ema, self.skips, self.devices,
        ))  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common, but for the models. Its end may be another one."""
        functions = {"loss_fn": self.loss_fn, "forward_fn": self.forward_fn, "target_fn": self.target_fn}
        return {name: None if each is None else shown(each) for name, each in functions.items()} | {
            "samples": self.count, "optimizer": optimizer_of(self.optimizer), "max_norm": self.max_norm,
            "max_value": self.max_value, "shuffle": self.shuffle, "seed": self.seed, "exchange": self.exchange,
            "ema": self.ema, "on_nonfinite": "skip" if self.skips else "stop",
        }  # fmt: skip

    def contents(self) -> list[Any]:
        """The arrays of all samples, for a digest."""
        leaves: Leaves = {}
        layouts = [flatten(as_sample(sample), f"{i}.", leaves) for i, sample in enumerate(self.samples)]
        return [repr(layouts), *leaves.values()]
