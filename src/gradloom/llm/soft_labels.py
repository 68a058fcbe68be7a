"""Soft labels: the likeliest tokens of a teacher with their log-probabilities, computed once before the training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..base.errors import FileError, NonFiniteError, SettingError, TrainError
from ..base.messages import log
from ..base.schema import table, text
from ..data.dataset import IGNORED, Dataset
from ..files.atomic import atomic_write
from ..graph.leaves import input as input_value
from ..graph.value import Value
from ..parallel.agree import is_root
from ..parallel.communicator import Communicator
from ..run.budget import HUGE, STEP_BYTES
from ..run.compile import compile as compile_program
from ..run.cpu_backend import release_arena
from ..run.null_backend import PLANNED
from ..runs.folder import RunFolder
from ..runs.saver import Saver
from ..train.trainer import Trainer
from .computed_labels import ComputedLabels, Progress, compute_rows, padded_rows
from .gpu_layers import GpuLayers
from .model import Model
from .not_finite import bad_tensor
from .objective import Forward, Objective
from .objectives.distil import Distil

STATE = table({"digest": text})  # of a checkpoint
TOKENS = 512  # of a micro-batch, about
LOGITS = 1 << 22  # numbers that the logits of a block may be
FILE = "teacher.npy"  # of a run's folder
_PART = 1 << 20  # bytes of labels that are written or read at a time
_SORTED = 1 << 14  # numbers of soft labels that are sorted at a time
_FARTHEST = -1e4  # least log-probability that is stored


class SoftLabels(ComputedLabels):
    """For each token that counts, the ids of the teacher's k likeliest next tokens, their log-probabilities at the
    temperature of the objective, and that of all other tokens together: f32 [rows, L, 2k + 1].

    The teacher runs before the student, in memory that both share, and is freed when its pass ends. The result is kept
    in the labels, and in the folder of a run in `teacher.npy` (the columns of the tokens that count); checkpoints have
    its digest. Where a resumed run finds no intact file, the teacher computes it again.

    options: of gl.compile.
    """

    title = "log-probabilities of the teacher"

    def __init__(
        self, objective: Objective, teacher: Model | None, forward: Forward, options: Mapping[str, Any]
    ) -> None:
        assert isinstance(objective, Distil)
        self.objective: Distil = objective
        self.teacher, self.student, self.context = teacher, forward.model, forward.context
        self.options = _of_one_device(options, forward.layers)
        self.classes = forward.model.config.vocab_size
        if teacher is not None:
            self.classes = min(self.classes, teacher.config.vocab_size)
            limit = teacher.config.context_length
            if forward.context > limit:
                shown = f"{{context}} is more than {limit} tokens, the context of {{teacher}}; use a smaller one"
                raise SettingError(shown, context=forward.context, teacher=teacher.path, place="finetune")
        if objective.top_k > self.classes:
            need = f"at most {self.classes}, the vocabulary"
            raise SettingError(setting="top_k", seen=objective.top_k, need=need, place="finetune")
        self.folder: RunFolder | None = None
        self.digest: str | None = None
        self.bytes = 0

    # ---- programs --------------------------------------------------------------------------------------------

    def prepare(self, row_tokens: int) -> None:
        """Plan the pass: afterwards `bytes` is its memory. Its programs are compiled when it begins."""
        planned = dict(self.options)
        device = planned.pop("device", None) or planned.get("backend") or "cpu"
        if not device.startswith(PLANNED):
            planned["backend"] = device if device == "null" else PLANNED + device
        plans = [run.plan for run in self._compiled(row_tokens, planned)]
        weights = {s for plan in plans for s in plan.bytecode.stored}
        threads = max(plan.threads for plan in plans)
        self.bytes = (
            sum(s.bytes for s in weights)
            + sum(len(plan.bytecode.constants) + plan.bytecode.inputs_bytes for plan in plans)
            + max(plan.bytecode.arena_bytes for plan in plans) + HUGE
            + sum(-(-plan.bytecode.scratch_bytes * threads // HUGE) * HUGE for plan in plans)
            + STEP_BYTES * sum(len(plan.order.steps) for plan in plans)
            + 4 * 4 * self._block(row_tokens) * self.classes  # copies of a block's logits
            + 2 * 4 * self._rows(row_tokens) * row_tokens * self.objective.computed + 2 * _PART  # and of the labels
        )  # fmt: skip

    def _compiled(self, row_tokens: int, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Programs: rows i32 [rows, 2, L] -> hidden states [rows L, d]; a block of these -> log-probabilities."""
        assert self.teacher is not None
        forward = Forward(self.teacher, None, None, self.context, 1)
        x = input_value("rows", (self._rows(row_tokens), 2, row_tokens), "i32")
        hidden = input_value("hidden", (self._block(row_tokens), self.teacher.config.width), "f32")
        return compile_program([forward.hidden(x)], **options), compile_program([self._log_p(hidden)], **options)

    def _log_p(self, hidden: Value) -> Value:
        from .. import ops

        assert self.teacher is not None
        logits = self.teacher.project(hidden)
        if logits.shape[1] > self.classes:
            logits = logits[:, : self.classes]  # rows of the embedding that the student has not
        return ops.log_softmax(ops.scale(logits, 1 / self.objective.temperature))

    @staticmethod
    def _rows(row_tokens: int) -> int:
        return max(1, TOKENS // row_tokens)

    def _block(self, row_tokens: int) -> int:
        """Hidden states that are multiplied by the output's matrix at once."""
        return min(self._rows(row_tokens) * row_tokens, max(16, LOGITS // self.classes))

    # ---- the pass --------------------------------------------------------------------------------------------

    def compute_into(
        self, out: np.ndarray, data: Dataset, ranks: Communicator | None = None, on_progress: Progress | None = None
    ) -> None:
        labels = data.labels
        assert labels is not None and self.teacher is not None
        length = data.data.shape[2]
        size, block = self._rows(length), self._block(length)
        rows = max(1, _SORTED // self.objective.top_k)
        release_arena()  # pages of the training's steps, which were compiled before
        states, head = self._compiled(length, self.options)

        def compute(start: int, stop: int) -> np.ndarray:
            (hidden,) = states(rows=padded_rows(data.data[:, :2], start, stop, size))
            counted = np.flatnonzero(labels[start:stop, :, 0].ravel() != IGNORED)
            found = np.zeros(((stop - start) * length, out.shape[2]), np.float32)
            for begin in range(0, len(counted), block):
                places = counted[begin : begin + block]
                (log_p,) = head(hidden=padded_rows(hidden[places], 0, len(places), block))
                log_p = log_p[: len(places)]
                if np.isnan(log_p).any() or not np.isfinite(log_p.max(1)).all():
                    what = f"finetune: a log-probability of the teacher of rows {start} to {stop - 1}"
                    assert self.teacher is not None
                    cause = bad_tensor(self.teacher, None) or f"{self.teacher.path} gives logits that are not"
                    raise NonFiniteError(f"{what} is not finite: {cause}")
                for at in range(0, len(places), rows):
                    found[places[at : at + rows]] = likeliest(log_p[at : at + rows], self.objective.top_k)
            return found.reshape(stop - start, length, -1)

        compute_rows(out, size, compute, ranks, on_progress)

    def free(self) -> None:
        """Free the teacher: its pages of mapped files, and its copies."""
        if self.teacher is not None and self.teacher is not self.student:
            for name in self.teacher.weights:
                self.teacher.file.release(name)
        self.teacher = None

    # ---- of a run --------------------------------------------------------------------------------------------

    def attach(self, data: Dataset, trainer: Trainer, saver: Saver | None = None) -> None:
        super().attach(data, trainer, saver)
        self.ranks, self.folder = trainer.driver.ranks, None if saver is None else saver.folder
        trainer.train_state.register("teacher", self.state, self.loading, schema=STATE)

    def fill(self, ranks: Communicator | None, progress: bool) -> None:
        if self.digest is None:
            super().fill(ranks, progress)
            self.digest = self._digest()
            self.free()

    def state(self) -> dict[str, Any]:
        """Part of the state of a run. The first call in a run with a folder writes the file."""
        if self.folder is not None and self.digest is not None:
            self._write(self.folder.path(FILE))
            self.folder = None
        return {"digest": self.digest or ""}

    def loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `state`: from the file, or where it is missing or damaged by the teacher. Raises TrainError if the
        teacher computes something else than before."""
        digest = values["digest"]
        if self.digest != digest:
            self._restore(digest)
        return self.update

    def _restore(self, digest: str) -> None:
        columns, problem = self.columns_of(self.data), None
        if is_root(self.ranks):
            problem = (
                "there is no folder of a run" if self.folder is None else self._read(self.folder.folder / FILE, digest)
            )
        if self.ranks is not None:
            problem = self.ranks.gather(problem)[0]
        if problem is not None:
            if is_root(self.ranks):
                log.warning(f"soft labels: {problem}; the teacher computes them again")
            self.complete(self.data, self.ranks)
        elif self.ranks is not None:
            for columns, _ in self._parts():
                part = np.ascontiguousarray(columns)
                self.ranks.broadcast(part)
                columns[...] = part
        self.digest = self._digest()
        if self.digest != digest:
            need = "need the same teacher, processor and settings, or --overwrite (overwrite=True) to start anew"
            raise TrainError(f"load: the teacher computed other log-probabilities than before; {need}")
        if problem is None:
            self.folder = None  # the file is there
        self.free()

    # ---- the file --------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(view of the columns of some rows, places of these that count)."""
        assert self.data.labels is not None
        columns = self.columns_of(self.data)
        rows = max(1, _PART // (4 * math.prod(columns.shape[1:])))
        for start in range(0, self.data.n, rows):
            yield columns[start : start + rows], self.data.labels[start : start + rows, :, 0] != IGNORED

    def _digest(self) -> str:
        found = hashlib.sha256()
        for columns, counted in self._parts():
            found.update(columns[counted].data)
        return found.hexdigest()

    def _shape(self) -> tuple[int, int]:
        """Of the array in the file: tokens that count, columns."""
        assert self.data.labels is not None
        return int((self.data.labels[:, :, 0] != IGNORED).sum()), self.objective.computed

    def _write(self, path: Path) -> None:
        shape = self._shape()
        try:
            with atomic_write(path, needed_bytes=4 * math.prod(shape)) as file:
                head = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, head)
                for columns, counted in self._parts():
                    file.write(columns[counted].data)
        except FileError as error:
            log.warning(f"{error}: a resumed run computes the log-probabilities of the teacher again")

    def _read(self, path: Path, digest: str) -> str | None:
        """Read the file into the labels; the reason in words if it is missing, damaged or another one."""
        found = hashlib.sha256()
        try:
            with open(path, "rb") as file:
                if not self._has_header(file):
                    return f"{path} is damaged"
                for columns, counted in self._parts():
                    part = np.empty((int(counted.sum()), columns.shape[-1]), np.float32)
                    if file.readinto(part.reshape(-1).view(np.uint8).data) != part.nbytes:
                        return f"{path} is too short"
                    found.update(part.data)
                    columns[counted] = part
        except OSError as error:
            return f"{path}: {error.strerror or 'cannot be read'}"
        return None if found.hexdigest() == digest else f"{path} is damaged"

    def _has_header(self, file: BinaryIO) -> bool:
        """The file begins as an array of the right shape and dtype."""
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                return False
            shape, is_fortran, kind = np.lib.format.read_array_header_1_0(file)
        except ValueError:
            return False
        return shape == self._shape() and not is_fortran and kind == np.dtype("<f4")


def likeliest(log_p: np.ndarray, k: int) -> np.ndarray:
    """Of rows of log-probabilities f32 [B, V]: the ids of the k largest ones, of equal ones the first ids, from the
    largest on; these; and the logarithm of the sum of all others, f32 [B, 2k + 1]."""
    rows, classes = log_p.shape
    least = np.partition(log_p, classes - k, axis=1)[:, classes - k]
    row, ids = np.nonzero(log_p >= least[:, None])
    values = log_p[row, ids]
    order = np.lexsort((ids, -values, row))
    row, ids, values = row[order], ids[order], values[order]
    rank = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    row, ids, values = row[rank < k], ids[rank < k], values[rank < k]
    others = np.exp(log_p)
    others[row, ids] = 0
    with np.errstate(divide="ignore"):
        rest = np.log(others.sum(1, dtype=np.float64))
    found = np.concatenate([ids.reshape(rows, k), values.reshape(rows, k), rest[:, None]], 1).astype(np.float32)
    return np.maximum(found, np.float32(_FARTHEST))


def _of_one_device(options: Mapping[str, Any], layers: GpuLayers | None) -> dict[str, Any]:
    """Options of gl.compile for the teacher's programs: with layers on a GPU they run on the CPU."""
    made = {name: value for name, value in options.items() if name not in ("memory", "arena_bytes")}
    if layers is not None or "devices" in made:
        made.pop("devices", None)
        made["backend"] = "cpu"
    return made
