"""What a fit knows of its training while it runs, also when that is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..train.callbacks import Callback
from ..train.history import row_of
from ..train.result import EpochResult
from .common import heed_signals
from .saved_settings import SETTINGS, Inputs, share_digests


class Watch(Callback):
    """Hears of the loop of a fit, which tells all that came of it. With ranks, rank 0 alone hears."""

    stateless = True

    def __init__(
        self,
        settings: Callable[[], bytes],
        announce: Callable[[], None],
        inputs: Inputs,
        contents: Mapping[str, Callable[[], Sequence[Any]]],
        options: Callable[[], Mapping[str, str]],
    ) -> None:
        self.loop: Any = None
        self.announce = announce  # what was decided: said when nothing can be refused any more
        self.settings = settings  # the text of settings.toml
        self.inputs = inputs  # the files that were read
        self.contents = contents  # what a resumed run must find again, beside what it trains and validates on
        self.options = options  # by flag, what was decided: what differs in a resumed run is told by these

    def begin(self, loop: Any) -> None:
        self.loop = loop
        self.announce()
        heed_signals()
        loop.contents.update(self.contents)
        loop.about.update(self.options())
        share_digests(loop, self.inputs)
        if loop.saver is not None and loop.saver.folder is not None:
            loop.saver.folder.files[SETTINGS] = self.settings

    @property
    def epochs(self) -> list[EpochResult]:
        """The passes that are whole."""
        if self.loop is None:
            return []
        epochs, rows = list(self.loop.history), len(self.loop.train_rows)
        part = self.loop.stopped and epochs and epochs[-1].train.ndata < rows and not epochs[-1].train.skipped
        return epochs[:-1] if part else epochs

    @property
    def history(self) -> list[dict[str, Any]]:
        """What the whole passes have measured, by name."""
        return [row_of(epoch) for epoch in self.epochs]

    @property
    def kept(self) -> EpochResult | None:
        """What was measured of the weights that the model has now."""
        kept: EpochResult | None = None if self.loop is None else self.loop.kept
        return kept
