"""An earlier run whose training is continued on other data: its weights, and if asked its optimiser's state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import FileError, TrainError
from ..base.record import differences, flat
from ..base.schema import Schema, different_texts, flag, number, table, text, whole
from ..runs.checkpoint import Checkpoints
from ..runs.state import need_schema
from ..train.trainer import Trainer
from .embedding import SCHEMA as EMBEDDING_SCHEMA
from .embedding import Embedding
from .head import SCHEMA as HEAD_SCHEMA
from .head import Head
from .lora import LoRA
from .model import Adapter, Model
from .records import BASE, record_of
from .trained_tensors import TrainedTensors

_SAME = ("kind", "rank", "alpha", "rslora", "targets", "tensors", "head")  # of an adapter whose training is continued
_SHOWN = 8  # differences in a message


def about_adapter(adapter: Adapter) -> dict[str, Any]:
    """Plain values of an adapter that is bound to a model, without its arrays."""
    template = getattr(adapter, "chat_template", None)
    through = {} if template is None else {"chat_template": template}
    head = getattr(adapter, "head", None)
    through |= {} if head is None else {"head": head.as_dict()}
    embedding = getattr(adapter, "embedding", None)
    through |= {} if embedding is None else {"embedding": embedding.as_dict()}
    if isinstance(adapter, LoRA):
        return {
            "kind": "lora", "rank": adapter.rank, "alpha": adapter.alpha, "dropout": adapter.dropout,
            "rslora": adapter.rslora, "targets": list(adapter.a),
        } | through  # fmt: skip
    if isinstance(adapter, TrainedTensors):
        return {"kind": "full", "tensors": list(adapter.arrays)} | through
    return {"kind": type(adapter).__name__}


_MORE = {"chat_template": text, "head": HEAD_SCHEMA, "embedding": EMBEDDING_SCHEMA}  # of the adapters that have them
FULL = table({"kind": text, "tensors": different_texts} | _MORE, absent=_MORE)


def lora_schema(most: int) -> Schema:
    """Of what about_adapter gives for a LoRA. most: of its rank; no array of it is larger."""
    return table(
        {
            "kind": text, "rank": whole(1, most), "alpha": number(), "dropout": number(0, 1), "rslora": flag,
            "targets": different_texts,
        }
        | _MORE,
        absent=_MORE,
    )  # fmt: skip


class EarlierRun:
    """The newest checkpoint of a run's folder. FileError where there is none.

    optimizer: load the steps and moments of its optimiser, too
    """

    def __init__(self, folder: str | os.PathLike[str], optimizer: bool) -> None:
        self.folder, self.optimizer = Path(folder), optimizer
        saved = Checkpoints(self.folder / "checkpoints").latest()
        settings = {} if saved is None else saved.about.get("settings", {})
        about = settings.get("adapter", {}) if isinstance(settings, dict) else {}
        if saved is None or not isinstance(about, dict) or about.get("kind") not in ("lora", "full"):
            seen = "there is no checkpoint in it" if saved is None else "its checkpoint is of no fine-tuning"
            raise FileError(f"{self.folder}: {seen}; need the folder of a run of finetune (run=, --run)")
        sizes = [n for v in saved.entries.values() if isinstance(v, np.ndarray) for n in v.shape]
        schema = FULL if about["kind"] == "full" else lora_schema(max(sizes, default=1))
        need_schema(schema, about, f"{saved.path}: about.settings.adapter")
        self.step, self._entries, self._about = saved.step, saved.entries, about
        self._base = settings.get(BASE)
        self._chat_template = about.get("chat_template")
        head = about.get("head")
        self._head = None if head is None else Head.checked(head, f"{saved.path}: about.settings.adapter.head")
        facts = about.get("embedding")
        where = f"{saved.path}: about.settings.adapter.embedding"
        self._embedding = None if facts is None else Embedding.checked(facts, where)

    def adapter(self) -> Adapter:
        """An adapter like that of the run, with weights of its own."""
        about = self._about
        made: LoRA | TrainedTensors
        if about["kind"] == "full":
            made = TrainedTensors(about["tensors"], "f32")
        else:
            made = LoRA(about["rank"], about["alpha"], about["targets"], about["dropout"], about["rslora"])
        made.chat_template, made.head, made.embedding = self._chat_template, self._head, self._embedding
        return made

    def __str__(self) -> str:
        how = "the optimiser's moments are kept;" if self.optimizer else "the optimiser,"
        return f"continues {self.folder} from step {self.step}: {how} schedule and order of rows begin anew"

    def load(self, trainer: Trainer, model: Model, adapter: Adapter) -> None:
        """Load the run's weights into a trainer of an adapter like its own; with `optimizer` its steps and moments: the
        settings, the schedules and the count of passes stay the trainer's. TrainError for another model (its
        weights, tokenizer, template), another adapter, and entries that do not fit."""
        base = {} if self._base is None else record_of(model)  # a checkpoint of an earlier version has none
        adapters = [{n: about.get(n) for n in _SAME} for about in (about_adapter(adapter), self._about)]
        records = ({BASE: base, "adapter": adapters[0]}, {BASE: self._base or {}, "adapter": adapters[1]})
        if found := differences(*map(flat, records)):
            need = "need the model and an adapter like that of the run, or the adapter's file as adapter="
            raise TrainError(f"{self.folder}: cannot be continued: {'; '.join(found[:_SHOWN])}; {need}")
        state = trainer.train_state
        entries = {name: value for name, value in self._entries.items() if name.startswith("model.")}
        if self.optimizer:
            mine = state.entries("optimizer")
            fresh = ("settings", "schedules", "groups", "plateaus", "epoch")
            entries |= {name: value for name, value in self._entries.items() if name.startswith("optimizer.")}
            entries |= {f"optimizer.{name}": mine[f"optimizer.{name}"] for name in fresh if f"optimizer.{name}" in mine}
        try:
            state.load(entries, "model", *(["optimizer"] if self.optimizer else []))
        except TrainError as error:
            raise TrainError(f"{self.folder}: cannot be continued: {error}") from None
