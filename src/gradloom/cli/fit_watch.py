"""Callbacks of the commands that train: records of settings and inputs, and the loop of a fit while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files.toml_file import parse_toml
from ..runs.events import Contribution
from ..runs.identity import FILES
from ..runs.saver import Saver
from ..train.callbacks import Callback
from ..train.history import row_of
from ..train.result import EpochResult
from .common import raise_lost_signal
from .saved_settings import SETTINGS, Inputs


class RunInputs(Callback, Contribution):
    """Records the settings and the input files of a command in its run.

    settings  returns the text of settings.toml
    compared  contents that a resumed run must find again, in addition to training and validation data
    options   returns the settings as decided, by flag: a resume reports differences by these
    """

    stateless, steers = True, False

    def __init__(
        self,
        inputs: Inputs,
        settings: Callable[[], bytes],
        compared: Mapping[str, Callable[[], Sequence[Any]]],
        options: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.inputs, self.settings, self.compared, self.options = inputs, settings, compared, options

    def about(self) -> dict[str, Any]:
        """Options, and digests of the input files. The file of `lora` is left out: a run that is resumed does not read
        it, and may have replaced it."""
        digests = {name: digest for name, digest in self.inputs.digests().items() if name != "lora"}
        return {**self.options(), FILES: digests}

    def contents(self) -> Mapping[str, Callable[[], Sequence[Any]]]:
        return self.compared

    def files(self) -> dict[str, Callable[[], bytes]]:
        return {SETTINGS: self.settings}

    def earlier_about(self, folder: Path) -> dict[str, Any]:
        """Digests of the input files, which settings.toml has, too."""
        file = folder / SETTINGS
        about = parse_toml(file).get("run") if file.exists() else None
        digests = about.get("digests") if isinstance(about, dict) else None
        return {FILES: digests} if isinstance(digests, dict) else {}


class Watch(RunInputs):
    """Holds the loop of a fit, for the report. With ranks, on rank 0 alone.

    announce  prints the settings as decided, when all are accepted
    """

    steers = True  # the run identities of earlier versions name it

    def __init__(self, announce: Callable[[], None], *inputs: Any) -> None:
        super().__init__(*inputs)
        self.loop: Any = None
        self.announce = announce

    def begin(self, loop: Any) -> None:
        self.loop = loop
        self.announce()
        raise_lost_signal()

    @property
    def saver(self) -> Saver | None:
        """That of the run, from its begin on."""
        subscribers = () if self.loop is None else self.loop.subscribers
        return next((each for each in subscribers if isinstance(each, Saver)), None)

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
        """Results of the whole passes, by name."""
        return [row_of(epoch) for epoch in self.epochs]

    @property
    def kept(self) -> EpochResult | None:
        """The result of the weights that the model has now."""
        kept: EpochResult | None = None if self.loop is None else self.loop.kept
        return kept
