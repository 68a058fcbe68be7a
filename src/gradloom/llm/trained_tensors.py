"""Training of a model's own tensors, as f32 copies."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import locks
from ..base.errors import DTypeError, SettingError
from ..files import refuse_input
from ..graph.leaves import Parameter, stored_value
from ..graph.stored import Stored
from ..graph.value import Value
from .head import CLASSIFIER, with_head
from .headed import Headed
from .lora import choose_tensors, without_output

if TYPE_CHECKING:
    from .model import Model


class TrainedTensors(Headed):
    """Trains the model's own tensors, as f32 copies of the mapped ones.

    tensors      names, short names or patterns; "all" for the whole model
    train_dtype  "f32" permits quantised and half-precision tensors, whose copies are then f32

    chat_template: the template that finetune used instead of the model's own, or None; `save` writes it.
    head: see LoRA.
    """

    def __init__(self, tensors: str | Sequence[str] = "all", train_dtype: str | None = None) -> None:
        if train_dtype not in (None, "f32"):
            raise SettingError(setting="train_dtype", seen=train_dtype, need="f32")
        self.tensors, self.train_dtype = tensors, train_dtype
        self.chat_template: str | None = None
        self.arrays: dict[str, Parameter] = {}
        self._model: Model | None = None

    def choose(self, model: Model) -> list[str]:
        """The tensors of this model that train. Raises DTypeError if they require train_dtype."""
        fixed = ("rope_", CLASSIFIER)  # constants of the rotation; the head, which is a parameter of its own
        names = [name for name in model.weights if not name.startswith(fixed)]
        names = without_output(names, self)
        chosen = choose_tensors(names, self.tensors, names, "tensors")
        if self.train_dtype is None:
            for name in chosen:
                kind = model.file.tensors[name].kind
                if kind != "f32":
                    raise DTypeError(
                        f"{model.path}: {name} is {kind} and cannot be trained as it is; need --train-dtype f32 "
                        "(train_dtype='f32'), which trains f32 copies, or LoRA, which leaves it as it is"
                    )
        return chosen

    def trained_bytes(self, model: Model) -> int:
        """Bytes of the copies, also before they are created. Raises the errors of `choose`."""
        head = sum(p.size for p in self.head_parameters().values())
        return 4 * (sum(math.prod(model.weights[name].shape) for name in self.choose(model)) + head)

    def check_file(self, model: Model) -> None:
        """Raise FileError for a Hugging Face folder that `save` cannot write as a GGUF file; warn of properties that
        such a file does not state."""
        from ..base.messages import log
        from .hf_export import GgufView
        from .hf_folder import HFFolder

        if isinstance(model.file, HFFolder) and (note := GgufView(model.file).note()):
            log.warning("%s: %s", model.path, note)

    def bind(self, model: Model) -> None:
        """Copy the chosen tensors, once."""
        with locks.building:
            if self._model is model:
                return
            self.check_head(model)
            if self._model is not None:
                raise SettingError(f"trained tensors belong to {self._model.path}; use that model")
            for name in self.choose(model):
                self.arrays[name] = stored_value(_copied(model, name))
            self._model = model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole model as a .gguf file: trained tensors as f32, everything else unchanged, except for the chat
        template if the model was trained with another one.

        Raises FileError if the file cannot be written or is the model's own, or a number is not finite.
        """
        from ..files import need_finite, write_gguf
        from ..files.gguf_fields import field
        from .adapter_arrays import CHAT_TEMPLATE
        from .embedding import with_embedding
        from .hf_export import GgufView, as_pieces
        from .hf_folder import HFFolder

        if self._model is None:
            raise SettingError("TrainedTensors.save: there are no trained tensors yet; bind them to a model")
        if Path(path).suffix != ".gguf":
            raise SettingError(f"{path}: must be FILE.gguf, as which a fully fine-tuned model is written")
        file: Any = self._model.file
        file.check()
        trained = {name: parameter.stored.read() for name, parameter in self.arrays.items()}
        refuse_input(path, self._model.path)
        need_finite(path, trained)
        if isinstance(file, HFFolder):
            file = GgufView(file)
            trained = {name: file.ordered(name, array) for name, array in trained.items()}
        template = {} if self.chat_template is None else {CHAT_TEMPLATE: field("string", self.chat_template)}
        tensors = {
            name: trained[name]
            if name in trained
            else (tensor.kind, tensor.shape, functools.partial(as_pieces, file, name))
            for name, tensor in file.tensors.items()
        }
        architecture = self._model.config.architecture
        fields, tensors = with_head(file.fields, tensors, self.head_arrays(), architecture, path)
        write_gguf(path, with_embedding(fields, self.embedding, architecture) | template, tensors, finite=True)

    def parameters(self) -> dict[str, Parameter]:
        return dict(self.arrays) | self.head_parameters()

    def weight(self, name: str) -> Parameter | None:
        return self.arrays.get(name)

    def linear(self, name: str, x: Value, rows: int, training: bool) -> Value | None:
        return None

    def embed(self, name: str, tokens: Value) -> Value | None:
        return None

    @property
    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters().values())


def _copied(model: Model, name: str) -> Stored:
    """A trainable copy of a tensor, created on first use."""
    return Stored.deferred(name, model.weights[name].shape, lambda: model.copied(name), "f32", "trained")
