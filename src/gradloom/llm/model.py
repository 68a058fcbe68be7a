"""Model: a GGUF file as mapped weights, and the graph of its forward pass."""

from __future__ import annotations

import copy
import difflib
import functools
import math
import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import ops
from ..base import dtypes
from ..base.aligned import aligned_empty
from ..base.arguments import need_path, what_is
from ..base.errors import FileError, GraphError, SettingError, ShapeError, one_line
from ..base.extras import need_llm
from ..base.habits import AttributeHints, hinted
from ..base.memory import need_memory, show_bytes
from ..base.settings import Switches
from ..graph.leaves import Parameter, stored_value
from ..graph.scope import on_device
from ..graph.stored import Stored
from ..graph.value import Shape, Value
from ..ops.distillation import Distilled
from ..run import dequantize
from ..run.backend import backend
from . import families
from .config import Config, Keys, Rope, read_config
from .embedding import Embedding, embedding_of_model
from .gpu_layers import GpuLayers, at
from .head import CLASSIFIER, HeadArrays, head_of_model
from .hf_folder import HFFolder
from .net import Caches, ForwardAdapter, Net

if TYPE_CHECKING:
    from ..files.gguf_head import TensorInfo


TOKENIZER_BYTES = 12 << 20  # of memory of a tokenizer with the words that it remembers; measured
TOKEN_BYTES = 480  # more of them, for each of its tokens; measured


class Adapter(ForwardAdapter, Protocol):
    """The trained arrays of a model: added to its tensors (LoRA), or replacing them (TrainedTensors)."""

    def bind(self, model: Model) -> None:
        """Create the arrays for this model once. Raises FileError if they do not fit it."""

    def parameters(self) -> dict[str, Parameter]:
        """Name -> trained array."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained arrays."""


@hinted
def load(path: str | os.PathLike[str]) -> Model:
    """Load a model of a supported family from a GGUF file, or from a Hugging Face folder: config.json, *.safetensors in
    bf16, f16 or f32, tokenizer.json. The weights stay mapped from the files, quantised or not.

    Raises FileError for a damaged file, an architecture or a tensor that is not supported, missing metadata;
    SettingError for an invalid path.
    """
    need_path(path, "load", "model", "the path of a GGUF file or of a Hugging Face folder")
    return Model(path)


class Model(AttributeHints):
    """config; file (gradloom.files.GGUF); tokenizer; weights: tensor name -> Stored, read-only, never trained.

    copied_bytes: of f32 copies of tensors in types without a kernel; `notes` lists them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from .model_file import open_model

        need_llm()
        self.file = open_model(path)
        self.path = str(path)
        metadata = self.file.metadata
        architecture = metadata.get("general.architecture")
        if architecture is None:
            raise FileError(f"{path}: metadata general.architecture is missing; need a GGUF model")
        kind = metadata.get("general.type", "model")
        if not isinstance(kind, str) or kind != "model":
            raise FileError(f"{path}: is of type {one_line(kind)}; need a model")
        family = families.find(architecture)
        if family is None:
            shown = " ".join(str(architecture).split())[:60]
            raise FileError(f"{path}: the architecture {shown} is not supported; need {', '.join(families.names())}")
        self.family = family
        parts = metadata.get("split.count", 1)
        if isinstance(parts, int) and parts > 1:
            raise FileError(f"{path}: is one of {parts} parts; join them first (llama-gguf-split --merge)")
        if not self.file.tensors:
            raise FileError(f"{path}: contains no tensors, only metadata; need a model with its weights")
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise FileError(f"{path}: the tensor token_embd.weight [vocabulary, width] is missing; need a whole model")
        self.config: Config = self._configured()
        self._check_tensors()
        self._check_copies()
        self.copied_bytes = 0
        self._copied: dict[str, int] = {}
        self._check = self.file.check
        self.weights: dict[str, Stored] = {name: self._stored(name) for name in self.file.tensors}
        self._leaves: dict[str, Parameter] = {}
        self.notes = [
            f"tensors of type {kind} are held as f32 copies, {size} bytes: no kernel reads that type"
            for kind, size in self._copied.items()
        ]
        for rope in {rope for rope in self.config.rope if rope is not None}:
            self.frequencies(rope, self.config.context_length)

    # ---- the file ------------------------------------------------------------------------------------------

    def _configured(self) -> Config:
        if isinstance(self.file, HFFolder):
            self.family = self.file.config.family
            return self.file.configure(self.file.keys())
        keys = Keys(self.path, self.file.metadata)
        return self.family.configure(keys, read_config(keys, {n: t.shape for n, t in self.file.tensors.items()}))

    def _shown(self, name: str) -> str:
        """The name of a tensor for messages: the folder's own."""
        return self.file.shown(name) if isinstance(self.file, HFFolder) else name

    def _check_tensors(self) -> None:
        """Raise FileError unless every tensor is known, every required one exists, and all have the right shape."""
        c, family = self.config, self.family
        needed: dict[str, Shape] = {"token_embd.weight": (c.vocab_size, c.width), "output_norm.weight": (c.width,)}
        possible: dict[str, Shape] = {
            "output.weight": (c.vocab_size, c.width),
        }
        if family.classifies and CLASSIFIER in self.file.tensors:
            possible[CLASSIFIER] = (*self.file.tensors[CLASSIFIER].shape[:1], c.width)
        for rope in c.rope:
            if rope is not None:
                possible |= {name: (rope.dims // 2,) for name in (rope.short, rope.long) if name is not None}
        for i in range(c.layers):
            needed |= {f"blk.{i}.{name}": shape for name, shape in family.shapes(c).items()}
            possible |= {f"blk.{i}.{name}": shape for name, shape in family.optional_shapes(c).items()}
        missing = [name for name in needed if name not in self.file.tensors]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            name = self._shown(missing[0])
            raise FileError(f"{self.path}: the tensor {name}{more} is missing; need it for {c.architecture}")
        for name, tensor in self.file.tensors.items():
            shape = needed.get(name, possible.get(name))
            if shape is None:
                near = difflib.get_close_matches(name, [*needed, *possible], 1)
                hint = f"; the nearest known one is {self._shown(near[0])}" if near else ""
                seen = f"unsupported tensor {self._shown(name)} for the architecture {c.architecture}"
                raise FileError(f"{self.path}: {seen}{hint}")
            if tensor.shape != shape:
                seen = f"the tensor {self._shown(name)} has shape {list(tensor.shape)}"
                raise FileError(f"{self.path}: {seen}; need {list(shape)}")

    def _check_copies(self) -> None:
        """Raise FileError if there is not enough memory for f32 copies of types without a kernel."""
        copied = [t for t in self.file.tensors.values() if not _is_read_in_place(t)]
        need = sum(4 * math.prod(t.shape) for t in copied)
        kinds = ", ".join(sorted({t.kind for t in copied}))
        what = f"{self.path}: f32 copies of its tensors of type {kinds} need {show_bytes(need)} of memory"
        need_memory(need, what, "need another model", FileError)

    def _stored(self, name: str) -> Stored:
        """Mapped if kernels read the type, otherwise an f32 copy."""
        self.file.check_weight(name)
        tensor = self.file.tensors[name]
        if _is_read_in_place(tensor):
            return Stored.map(name, self.file.bytes(name), tensor.kind, tensor.shape, self._check)
        copy = aligned_empty(tensor.shape, np.dtype(np.float32))
        self.file.weights(name, copy)
        self.file.release(name)
        self.copied_bytes += copy.nbytes
        self._copied[tensor.kind] = self._copied.get(tensor.kind, 0) + copy.nbytes
        return Stored.wrap(name, copy, "frozen")

    def planned_as(self, kind: str) -> Model:
        """This model with matrices of another type, without their numbers: only to plan programs."""
        made, other = copy.copy(self), dtypes.dtype(kind)
        made._leaves, made.copied_bytes, made.weights = {}, 0, dict(self.weights)
        for name, weight in self.weights.items():
            if len(weight.shape) == 2 and weight.shape[-1] % other.block == 0:
                absent = np.zeros(other.bytes_of(weight.size), np.uint8)  # whose pages nothing touches
                made.weights[name] = Stored.map(name, absent, kind, weight.shape, self._check)
        return made

    def array(self, name: str) -> np.ndarray:
        """A tensor as f32 numbers (NumPy order); read-only unless converted."""
        weight = self.weights[name]
        return (
            weight.read()
            if weight.dtype is dtypes.f32
            else dequantize(weight.read().view(np.uint8), weight.dtype.name, weight.shape)
        )

    def copied(self, name: str) -> np.ndarray:
        """A tensor as an f32 copy; its pages of the file are released."""
        weight = self.weights[name]
        copy = dequantize(weight.read().reshape(-1).view(np.uint8), weight.dtype.name, weight.shape)
        self.file.release(name)
        return copy

    def check(self) -> None:
        """Raise FileError if the file has changed since it was opened."""
        self.file.check()

    @property
    def tokenizer_bytes(self) -> int:
        """Memory of the tokenizer, with the words that it remembers."""
        return TOKENIZER_BYTES + TOKEN_BYTES * self.config.vocab_size

    @property
    def classifier(self) -> HeadArrays | None:
        """The head that a training of the whole model saved with it, or None. Raises FileError for a damaged one."""
        head = head_of_model(self.file)
        if head is not None and head.weight.shape[1] != self.config.width:
            width = head.weight.shape[1]
            raise FileError(f"{self.path}: its head has rows of {width} numbers; need {self.config.width}")
        return head

    @property
    def embedding(self) -> Embedding | None:
        """How texts become embeddings, as the file states it (pooling_type), or None. Raises FileError for a pooling
        that is not supported."""
        return embedding_of_model(self.file.metadata, self.path)

    @functools.cached_property
    def tokenizer(self) -> Any:
        from .tokenizer import Tokenizer

        if isinstance(self.file, HFFolder):
            return self.file.tokenizer(self.config.vocab_size)
        tokens, rows = self.file.fields.get("tokenizer.ggml.tokens"), self.config.vocab_size
        if tokens is not None and tokens.count > rows:
            raise FileError(
                f"{self.path}: metadata tokenizer.ggml.tokens has {tokens.count} entries; need at most {rows}, "
                "the number of rows of token_embd.weight"
            )
        return Tokenizer(self.file.metadata, str(self.file.path))

    # ---- the graph -----------------------------------------------------------------------------------------

    def leaf(self, name: str) -> Parameter:
        """The graph's leaf for a tensor, the same in every graph."""
        if name not in self._leaves:
            with on_device(None):  # other graphs may place it on another device
                self._leaves[name] = stored_value(self.weights[name])
        return self._leaves[name]

    @property
    def tied(self) -> bool:
        """The embedding is also the output's matrix."""
        return "output.weight" not in self.weights

    @property
    def head_name(self) -> str:
        return "token_embd.weight" if self.tied else "output.weight"

    @property
    def head(self) -> Parameter:
        """The output's matrix [vocabulary, d]."""
        return self.leaf(self.head_name)

    def hidden(
        self,
        tokens: Value,
        positions: Value,
        adapter: Adapter | None = None,
        caches: Caches | None = None,
        training: bool = False,
        layers: GpuLayers | None = None,
        longest: int | None = None,
    ) -> Value:
        """tokens, positions i32 [B, T] -> [B*T, d] after the final norm. layers: those that run on a GPU.

        A position counts from the start of its sample: query t attends to the tokens t - positions[b, t] .. t.
        training: with dropout. longest: the most tokens of a sample, by default T. Raises ShapeError for tokens of
        another shape.
        """
        if tokens.ndim != 2 or tokens.shape != positions.shape:
            seen = f"{list(tokens.shape)} and {list(positions.shape)}"
            raise ShapeError(f"hidden: tokens and positions have shapes {seen}; need one shape [B, T]")
        net = Net(self, tokens.shape, adapter, caches, training, layers, longest)
        return self.family.hidden(net, tokens, positions)

    def project(self, x: Value, adapter: Adapter | None = None, layers: GpuLayers | None = None) -> Value:
        """Logits [N, vocabulary] of rows of `hidden`, [N, d]."""
        net = Net(self, (1, x.shape[0]), adapter, None, False, layers)
        y = net.linear(self.head_name.removesuffix(".weight"), self._scaled(x))
        cap = self.config.logit_cap
        return y if cap is None else ops.scale(ops.tanh(ops.scale(y, 1 / cap)), cap)

    def _scaled(self, x: Value) -> Value:
        """Rows of `hidden` as the output's matrix takes them."""
        scale = self.config.logit_scale
        return x if scale == 1 else ops.scale(x, scale)

    def logits(
        self, tokens: Value, positions: Value, adapter: Adapter | None = None, caches: Caches | None = None
    ) -> Value:
        """[B*T, vocabulary]."""
        return self.project(self.hidden(tokens, positions, adapter, caches), adapter)

    def loss_pair(
        self, x: Value, labels: Value, adapter: Adapter | None = None, layers: GpuLayers | None = None
    ) -> tuple[Value, Value]:
        """(sum, number of tokens that count) of the cross entropy of rows of `hidden` with ids i32 [N]; -100: ignored.

        Logits are never held in full, unless an adapter changes the output.
        """
        with at(layers and layers.end):
            labels = labels.reshape(x.shape[0])
            head = self._plain_head(x, adapter, layers)
            if head is None:
                return ops.cross_entropy_pair(self.project(x, adapter, layers), labels)
            return ops.linear_cross_entropy_pair(self._scaled(x), head, labels)

    def logprobs(
        self, x: Value, labels: Value, adapter: Adapter | None = None, layers: GpuLayers | None = None
    ) -> Value:
        """Log-probability of each label i32 [N] given the row of `hidden` [N, d] before it, f32 [N]; 0 where the label
        is -100.

        Logits are never held in full, unless an adapter changes the output. Raises ShapeError for labels of another
        number.
        """
        if labels.size != x.shape[0]:
            raise ShapeError(f"logprobs: labels have shape {list(labels.shape)}; need {x.shape[0]}, one per row")
        with at(layers and layers.end):
            labels = labels.reshape(x.shape[0])
            head = self._plain_head(x, adapter, layers)
            if head is not None:
                return -ops.linear_cross_entropy_rows(self._scaled(x), head, labels)
            own = ops.loss.one_hot(labels, self.config.vocab_size)  # 0 everywhere for -100
            log_p = ops.log_softmax(self.project(x, adapter, layers))
            return ops.sum(ops.where(ops.equal(own, 1.0), log_p, 0.0), axes=1)

    def distilled(
        self, x: Value, labels: Value, ids: Value, teacher: Value, temperature: float, hard: float,
        adapter: Adapter | None = None, layers: GpuLayers | None = None,
    ) -> Distilled:  # fmt: skip
        """Sums of the distillation loss of rows of `hidden` [N, d], see ops.linear_distilled: labels i32 [N], ids i32
        [N, k], teacher f32 [N, k + 1]. Logits are never held in full, unless an adapter changes the output."""
        with at(layers and layers.end):
            head = self._plain_head(x, adapter, layers)
            if head is None:
                return ops.distilled(self.project(x, adapter, layers), labels, ids, teacher, temperature, hard)
            return ops.linear_distilled(self._scaled(x), head, labels, ids, teacher, temperature, hard)

    def _plain_head(self, x: Value, adapter: Adapter | None, layers: GpuLayers | None) -> Value | None:
        """The output's matrix where logits are its product with rows of `hidden`; None where an adapter or a cap
        changes them."""
        own = adapter is not None and not self.tied and adapter.linear(self.head_name, x, 1, False) is not None
        if own or self.config.logit_cap is not None:
            return None
        return Net(self, (1, x.shape[0]), adapter, None, False, layers).weight(self.head_name)

    def is_long(self, tokens: int) -> bool:
        """Whether texts of at most `tokens` tokens have other rotations than short ones."""
        return any(rope is not None and rope.long != rope.short and tokens > rope.context for rope in self.config.rope)

    def frequencies(self, rope: Rope, tokens: int) -> np.ndarray:
        """Radians per token of each rotated pair, f32 [rope.dims / 2], of texts of at most `tokens`. Raises
        FileError if they are not finite."""
        name = rope.long if tokens > rope.context else rope.short
        factors = None if name is None else self.weights[name].read()
        with np.errstate(all="ignore"):
            try:
                angles = ops.rope_frequencies(
                    rope.dims, rope.base, rope.scaling, rope.factor, context=rope.context, low=rope.slow,
                    high=rope.fast, factors=factors,
                )  # fmt: skip
            except GraphError as error:
                raise FileError(f"{self.path}: {error}") from None
            angles = angles.astype(np.float32)
        if not np.isfinite(angles).all():
            raise FileError(
                f"{self.path}: rotations are not finite with rope.freq_base {rope.base:g}, a factor of "
                f"{rope.factor:g}{'' if name is None else f' and {name}'}; need others"
            )
        return angles

    def __repr__(self) -> str:
        return f"Model({self.path}: {self.config})"


@functools.cache
def readable_kinds() -> frozenset[str]:
    """The types of matrices that kernels read without conversion."""
    kernels = backend("cpu", Switches()).signatures() or ()
    return frozenset(
        t.name
        for t in dtypes.ALL
        if ("matmul", f"f32_{t.name}_f32") in kernels and ("get_rows", f"{t.name}_i32_f32") in kernels
    )


def _is_read_in_place(tensor: TensorInfo) -> bool:
    return tensor.kind == "f32" or (len(tensor.shape) == 2 and tensor.kind in readable_kinds())


def model_of(model: Model | str | os.PathLike[str], where: str) -> Model:
    """The model itself, or the one of a GGUF file. Raises SettingError, naming the function `where`, for others."""
    if isinstance(model, Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model)
    raise SettingError(
        f"{where}: model is {what_is(model)}; need a Model (gl.llm.load), or the path of a GGUF file, which is loaded"
    )
