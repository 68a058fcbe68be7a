"""AveragedWeights: a moving average of weights for loops of your own; fit and Trainer have ema=."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..base.arguments import as_bool, as_share, what_is
from ..base.errors import SettingError, TrainError
from ..graph.leaves import Parameter
from ..graph.stored import copies, replace
from ..optim.average import Average
from ..run.compile import compile as compile_program
from ..runs.state import AVERAGE, check_equal, check_names, matching, need_schema


class AveragedWeights:
    """mean <- decay * mean + (1 - decay) * w at each `update`, f32, as the ema= of gl.fit, with its bits (cf. PyTorch's
    AveragedModel with get_ema_multi_avg_fn, timm's ModelEma). The means begin as the weights are now.

        average = gl.train.AveragedWeights(net.parameters(), decay=0.999)
        for x, y in batches:
            ...
            opt.step(tape.backward(loss))
            average.update()
        with average.shown():
            ...  # net holds the means; outside of it the weights that are trained

    gl.train.Checkpoint(..., average=average) saves and restores it. parameters: arrays of f32; buffers (running
    statistics) have no mean. options go to gl.compile. SettingError for a decay outside of 0 <= decay < 1, and for what
    is no parameter.
    """

    def __init__(self, parameters: Iterable[Parameter], decay: float = 0.999, **options: Any) -> None:
        self.parameters = list({p.stored: p for p in map(_checked, parameters)}.values())
        if not self.parameters:
            raise SettingError("AveragedWeights: there are no parameters; need at least one")
        self._average = Average(as_share("decay", decay))
        means = [self._average.of(p).stored for p in self.parameters]
        weights = copies([p.stored for p in self.parameters])
        replace(dict(zip(means, weights, strict=True)))
        self._run = compile_program([], self._average.updates(self.parameters, ()), **options)

    @property
    def decay(self) -> float:
        return self._average.decay

    def __repr__(self) -> str:
        shown = ", shown" if self._average.is_shown else ""
        return f"AveragedWeights({len(self.parameters)} parameters, decay {self.decay:g}{shown})"

    def update(self) -> None:
        """An optimiser step is done: the means follow. TrainError while the means are shown."""
        if self._average.is_shown:
            raise TrainError("AveragedWeights: the parameters hold the means; need show(False) before update")
        self._run()

    def show(self, shown: bool = True) -> None:
        """Let the parameters hold the means, or with False the weights that are trained."""
        self._average.show(as_bool("shown", shown))

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, the parameters hold the means."""
        before = self._average.is_shown
        self.show()
        try:
            yield
        finally:
            self.show(before)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint: decay, whether the parameters hold the means, and the other arrays, "mean.0", ..."""
        kept = self._average.entries(self.parameters)
        names = [name for name in kept if name.startswith("mean.")]
        return kept | dict(zip(names, copies([kept[name] for name in names]), strict=True))

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`, but for the parameters. TrainError where it does not fit."""
        mine = self._average.entries(self.parameters)
        need_schema(AVERAGE, values, "load: average")
        check_names("average", values, mine)
        check_equal("average", values, {"decay": mine["decay"]})
        stored = {name: one for name, one in mine.items() if name.startswith("mean.")}
        replace(matching("average", {name: values[name] for name in stored}, stored))
        if max(values["shown"], default=-1) >= len(self.parameters):
            raise TrainError(f"load: average: of more than {len(self.parameters)} parameters; need the same")
        self._average.take(self.parameters, values["is_shown"], values["shown"])


def _checked(parameter: Any) -> Parameter:
    if not isinstance(parameter, Parameter):
        raise SettingError(f"AveragedWeights: got {what_is(parameter)}; need parameters, such as net.parameters()")
    return parameter
